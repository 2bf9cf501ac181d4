//! Sizes, times and figures in the form in which people read and write them.

use std::fmt::Display;
use std::time::Duration;

/// Shortest and longest measurement, in seconds.
const SECONDS: std::ops::RangeInclusive<f64> = 0.01..=86_400.0;

/// Parses the duration of a measurement, in seconds: `3`, `0.5`.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let expected = || format!("must be a number of seconds from {} to {}", SECONDS.start(), SECONDS.end());
    // Comparisons with NaN are false, so it is refused.
    let seconds = text.parse().ok().filter(|seconds| SECONDS.contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(expected)
}

/// Parses a size in bytes: `32`, `64K`, `8M`, `1G` (powers of 1024).
pub fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, factor) = match text.trim_end_matches(['b', 'B', 'i']).char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1usize),
    };
    let number: usize = digits.parse().map_err(|_| format!("`{text}` is not a size: write 32, 64K, 8M or 1G"))?;
    number.checked_mul(factor).ok_or_else(|| format!("`{text}` is more than this machine can address"))
}

/// Parses a count: `20`, `64K`, `8M` (powers of 1000).
pub fn parse_count(text: &str) -> Result<usize, String> {
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1000),
        Some((at, 'm' | 'M')) => (&text[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&text[..at], 1_000_000_000usize),
        _ => (text, 1),
    };
    let number: usize = digits.parse().map_err(|_| format!("`{text}` is not a number: write 20, 64K or 8M"))?;
    number.checked_mul(factor).ok_or_else(|| format!("`{text}` is more than this machine can count"))
}

/// A number of things, of a noun whose plural is regular: `1 packet`, `2 packets`, `2 copies`.
pub fn counted<C: Copy + Display + PartialEq + From<u8>>(count: C, noun: &str) -> String {
    if count == C::from(1u8) { format!("1 {noun}") } else { format!("{count} {}", plural(noun)) }
}

fn plural(noun: &str) -> String {
    match noun.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{stem}ies"),
        _ if ["s", "x", "ch", "sh"].iter().any(|end| noun.ends_with(end)) => format!("{noun}es"),
        _ => format!("{noun}s"),
    }
}

/// A size, in the form that [`parse_size`] reads.
pub fn size(bytes: usize) -> String {
    for (factor, unit) in [(1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")] {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{} {unit}", bytes / factor);
        }
    }
    format!("{bytes} B")
}

/// An amount of memory, to about three digits, in the units of [`size`]: `12.8 MB`.
pub fn amount(bytes: u64) -> String {
    let unit = [(1u64 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")].into_iter().find(|(factor, _)| bytes >= *factor);
    match unit {
        Some((factor, unit)) if bytes.is_multiple_of(factor) => format!("{} {unit}", bytes / factor),
        Some((factor, unit)) => format!("{} {unit}", figure(bytes as f64 / factor as f64)),
        None => format!("{bytes} B"),
    }
}

/// A time, in the unit that reads best.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e4 => format!("{:.2} us", ns / 1e3),
        ns if ns < 1e6 => format!("{:.1} us", ns / 1e3),
        ns => format!("{:.1} ms", ns / 1e6),
    }
}

/// The median; 0 if there are no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

/// A number for JSON, without meaningless digits: five, or all those before the point.
pub fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let decimals = (4.0 - value.abs().log10().floor()).clamp(0.0, 15.0);
    let scale = 10f64.powi(decimals as i32);
    (value * scale).round() / scale
}

/// Several [`rounded`] numbers.
pub fn rounded_all(values: &[f64]) -> Vec<f64> {
    values.iter().copied().map(rounded).collect()
}

/// A figure with about three digits, or two below one.
pub fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 || v == 0.0 => 2,
        v => (1.0 - v.log10().floor()).min(9.0) as usize,
    };
    format!("{value:.decimals$}")
}

/// Breaks a line between words so that no part is longer than `width`, if words allow it; all parts but the first are
/// indented.
pub fn wrapped(line: &str, width: usize, indent: usize) -> String {
    let first = line.len() - line.trim_start().len();
    let (mut text, mut len) = (" ".repeat(first), first);
    let mut is_new = true;
    for word in line.split_whitespace() {
        let chars = word.chars().count();
        if !is_new && len + 1 + chars > width {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            (len, is_new) = (indent, true);
        }
        if !is_new {
            text.push(' ');
            len += 1;
        }
        text.push_str(word);
        (len, is_new) = (len + chars, false);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_mean_nothing_are_refused() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "0.009", "-1", "nan", "inf", "86401", "1e300", "3s"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_read_with_and_without_a_unit() {
        for (text, bytes) in
            [("32", 32), ("0", 0), ("64K", 65536), ("8M", 8 << 20), ("8MB", 8 << 20), ("1GiB", 1 << 30)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "x", "8Q", "-1", "M", "99999999999999999999", "99999999999G"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn one_thing_is_singular() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "packet")), ["0 packets", "1 packet", "2 packets"]);
        assert_eq!([1, 2].map(|count| counted(count, "copy")), ["1 copy", "2 copies"]);
        let several = ["key", "prefix", "switch", "entry"].map(|noun| counted(3u64, noun));
        assert_eq!(several, ["3 keys", "3 prefixes", "3 switches", "3 entries"]);
    }

    #[test]
    fn an_amount_has_three_digits_and_a_unit() {
        let all = [0, 1023, 1536, 13_421_776, 4 << 30].map(amount);
        assert_eq!(all, ["0 B", "1023 B", "1.50 KB", "12.8 MB", "4 GB"]);
    }

    #[test]
    fn figures_read_well() {
        assert_eq!((size(8 << 20), size(32), size(1500)), ("8 MB".into(), "32 B".into(), "1500 B".into()));
        assert_eq!([0.000_123_456_7, 6.123_456, 123_456.7, 0.0].map(rounded), [0.000_123_46, 6.1235, 123_457.0, 0.0]);
        assert_eq!((time(91.0), time(1234.0), time(52_300.0)), ("91 ns".into(), "1.23 us".into(), "52.3 us".into()));
    }

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrapped("  one two three", 9, 4), "  one two\n    three");
        assert_eq!(wrapped("one two", 7, 4), "one two");
        assert_eq!(wrapped("a-long-word b", 5, 1), "a-long-word\n b");
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
