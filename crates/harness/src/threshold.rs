//! Thresholds for figures: `--fail-if-below 5`, `--fail-if-above '1 ms'`.

use std::cmp::Ordering;
use std::str::FromStr;

use crate::figure::{Figure, Unit};

/// A threshold on a figure: a number, and its unit if one was given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    value: f64,
    unit: Option<Unit>,
}

/// Units as they are written, each with the figure's unit to which it is converted, and the factor.
const UNITS: [(&str, Unit, f64); 12] = [
    ("ns", Unit::Ns, 1.0),
    ("us", Unit::Ns, 1e3),
    ("ms", Unit::Ns, 1e6),
    ("s", Unit::Ns, 1e9),
    ("Kops", Unit::Mops, 1e-3),
    ("Mops", Unit::Mops, 1.0),
    ("K/s", Unit::Mops, 1e-3),
    ("M/s", Unit::Mops, 1.0),
    ("M", Unit::Mops, 1.0),
    ("Mbps", Unit::Gbps, 1e-3),
    ("Gbps", Unit::Gbps, 1.0),
    ("Tbps", Unit::Gbps, 1e3),
];

impl FromStr for Threshold {
    type Err = String;

    /// Parses `5`, `1.5ms`, `2 M/s`, `40 Gbps`; a bare number is in the figure's own unit.
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            let units = UNITS.map(|(name, ..)| name).join(", ");
            format!("must be a number from 0 on, with or without a unit ({units})")
        };
        let text = text.trim();
        let unit_start = text.find(|char: char| char.is_alphabetic() && char != 'e').unwrap_or(text.len());
        let (number, unit) = (text[..unit_start].trim(), &text[unit_start..]);
        let number = number.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
        let number = number.ok_or_else(expected)?;
        if unit.is_empty() {
            return Ok(Self { value: number, unit: None });
        }
        let (_, unit, factor) = UNITS.iter().find(|(name, ..)| *name == unit).ok_or_else(expected)?;
        Ok(Self { value: number * factor, unit: Some(*unit) })
    }
}

/// Options that judge a result.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Thresholds {
    /// Exit with status 3 if the figure is below this, and with 4 if the result is invalid; a number without a unit is
    /// in the figure's own: 5, '5 M/s', 1ms, '40 Gbps'
    #[arg(long, value_name = "FIGURE", allow_negative_numbers = true)]
    fail_if_below: Option<Threshold>,
    /// Exit with status 3 if the figure is above this, and with 4 if the result is invalid
    #[arg(long, value_name = "FIGURE", allow_negative_numbers = true)]
    fail_if_above: Option<Threshold>,
    /// Exit with status 3 if the ratio of the figure to what it is compared with is below this, and with 4 if the
    /// result is invalid
    #[arg(long, value_name = "RATIO", allow_negative_numbers = true, value_parser = parse_ratio)]
    fail_if_ratio_below: Option<f64>,
    /// Exit with status 3 if the ratio of the figure to what it is compared with is above this, and with 4 if the
    /// result is invalid
    #[arg(long, value_name = "RATIO", allow_negative_numbers = true, value_parser = parse_ratio)]
    fail_if_ratio_above: Option<f64>,
}

/// Parses a ratio.
///
/// # Errors
///
/// The text is no number, or has a unit.
pub fn parse_ratio(text: &str) -> Result<f64, String> {
    let threshold: Threshold = text.parse()?;
    if threshold.unit.is_some() { Err("a ratio has no unit".to_owned()) } else { Ok(threshold.value) }
}

/// Verdict on a result. Of the verdicts on several results, the greatest is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// No threshold was missed.
    Kept,
    /// The result is not valid enough to judge.
    NotJudged,
    /// A threshold was missed.
    Missed,
}

impl Thresholds {
    /// Whether there is a threshold on the ratio.
    pub fn judge_ratio(&self) -> bool {
        self.fail_if_ratio_below.is_some() || self.fail_if_ratio_above.is_some()
    }

    /// Checks that the thresholds apply to figures of this unit.
    ///
    /// # Errors
    ///
    /// Names the option that has another unit.
    pub fn check(&self, unit: Unit) -> Result<(), String> {
        let figure = self.fail_if_below.zip(self.fail_if_above).map(|(below, above)| (below.value, above.value));
        let ratio = self.fail_if_ratio_below.zip(self.fail_if_ratio_above);
        for (names, both) in
            [("--fail-if-below and --fail-if-above", figure), ("--fail-if-ratio-below and -above", ratio)]
        {
            if both.is_some_and(|(below, above)| below > above) {
                return Err(format!("{names}: no figure is between them, so every result would fail"));
            }
        }
        let both = [("--fail-if-below", self.fail_if_below), ("--fail-if-above", self.fail_if_above)];
        let other = both
            .into_iter()
            .find_map(|(name, threshold)| threshold?.unit.filter(|own| *own != unit).map(|own| (name, own)));
        other.map_or(Ok(()), |(name, own)| {
            Err(format!("{name}: the figure is in {}, but the threshold in {}", unit.name(), own.name()))
        })
    }

    /// Judges a result by the thresholds, and calls `report` for each one that it missed.
    ///
    /// An invalid result neither misses nor meets any: it says little about what was measured.
    pub fn judge(&self, figure: &Figure, report: &mut dyn FnMut(String)) -> Verdict {
        let unit = format!(" {}", figure.unit.name());
        let of = |threshold: Option<Threshold>| threshold.map(|threshold| threshold.value);
        let (below, above) = ((Ordering::Less, "below"), (Ordering::Greater, "above"));
        let thresholds = [
            (of(self.fail_if_below), below, "the figure", figure.value, unit.as_str()),
            (of(self.fail_if_above), above, "the figure", figure.value, unit.as_str()),
            (self.fail_if_ratio_below, below, "the ratio", figure.ratio(), ""),
            (self.fail_if_ratio_above, above, "the ratio", figure.ratio(), ""),
        ];
        let mut verdict = Verdict::Kept;
        for (threshold, (missed, side), what, value, unit) in thresholds {
            let Some(threshold) = threshold else { continue };
            let Some(value) = value.filter(|_| figure.is_valid()) else {
                let why = figure.invalid_because.join("; ");
                let why = if why.is_empty() { "it was not measured" } else { &why };
                report(format!("{what} was not judged against {threshold}{unit}: the result is INVALID, since {why}"));
                return Verdict::NotJudged;
            };
            if value.partial_cmp(&threshold) == Some(missed) {
                report(format!("{what} is {value:.3}{unit}, {side} {threshold}{unit}"));
                verdict = Verdict::Missed;
            }
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::surroundings::Surroundings;
    use serde_json::json;

    fn figure(value: f64, is_valid: bool) -> Figure {
        Figure {
            bench: "rpc rate".to_owned(),
            title: String::new(),
            value: Some(value),
            unit: Unit::Mops,
            slices: Vec::new(),
            compared: None,
            latency: None,
            invalid_because: if is_valid { Vec::new() } else { vec!["others used it".to_owned()] },
            surroundings: Some(Surroundings::default()),
            setup: json!({}),
            details: json!({}),
            lines: Vec::new(),
        }
    }

    #[test]
    fn thresholds_have_units_or_that_of_the_figure() {
        let read = |text: &str| text.parse::<Threshold>().map(|threshold| (threshold.value, threshold.unit));
        for (text, value, unit) in [
            ("0", 0.0, None),
            ("1e9", 1e9, None),
            ("1 ms", 1e6, Some(Unit::Ns)),
            ("1.5us", 1500.0, Some(Unit::Ns)),
            ("5 M/s", 5.0, Some(Unit::Mops)),
            ("40Gbps", 40.0, Some(Unit::Gbps)),
        ] {
            assert_eq!(read(text), Ok((value, unit)), "{text}");
        }
        for text in ["", "-1", "nan", "inf", "x", "1 parsec", "ms", "1 ms ms"] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(parse_ratio("1.5").is_ok() && parse_ratio("1 ms").is_err());
    }

    #[test]
    fn a_threshold_in_another_unit_than_the_figures_is_refused_by_name() {
        let above = |text: &str| Thresholds { fail_if_above: text.parse().ok(), ..Thresholds::default() };
        assert!(above("1 ms").check(Unit::Ns).is_ok() && above("1").check(Unit::Gbps).is_ok());
        assert!(above("1 ms").check(Unit::Mops).unwrap_err().contains("--fail-if-above"));
        let both = |below: &str| Thresholds { fail_if_below: below.parse().ok(), ..above("5") };
        assert!(both("5").check(Unit::Mops).is_ok() && both("6").check(Unit::Mops).is_err());
    }

    #[test]
    fn a_threshold_that_is_missed_outweighs_results_that_could_not_be_judged() {
        let limits = Thresholds { fail_if_below: "5".parse().ok(), ..Thresholds::default() };
        let judged = |value, is_valid| limits.judge(&figure(value, is_valid), &mut |_| ());
        assert_eq!(judged(6.0, true), Verdict::Kept);
        assert_eq!((judged(4.0, true), judged(4.0, false)), (Verdict::Missed, Verdict::NotJudged));
        assert!(Verdict::Missed > Verdict::NotJudged && Verdict::NotJudged > Verdict::Kept);
        let mut messages = Vec::new();
        limits.judge(&figure(4.0, false), &mut |text| messages.push(text));
        assert!(messages[0].contains("INVALID, since others used it"), "{messages:?}");
    }
}
