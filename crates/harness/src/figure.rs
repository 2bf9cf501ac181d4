//! Results of measurements: their text, and their schema for programs.
//!
//! `docs/results.md` describes the schema; a test reads the output of every command.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::measured::Measured;
use crate::others::TOO_MUCH;
use crate::surroundings::Surroundings;
use crate::{units, validity};

/// Value of `schema` in a single result.
pub const RESULT: &str = "sinew.result/1";
/// Value of `schema` in a list of results.
pub const RESULTS: &str = "sinew.results/1";

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds, of which less is better.
    Ns,
    /// Millions a second.
    Mops,
    /// Gigabits a second.
    Gbps,
    /// The unit of a paper's figure.
    Of(&'static str),
}

impl Unit {
    /// Name in the schema.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ns => "ns",
            Self::Mops => "Mops",
            Self::Gbps => "Gbps",
            Self::Of(name) => name,
        }
    }

    /// A value as text, with the prefix of the unit that reads best.
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Ns => units::time(value),
            Self::Mops => format!("{} M/s", units::figure(value)),
            Self::Gbps | Self::Of(_) => format!("{} {}", units::figure(value), self.name()),
        }
    }
}

/// Kind of comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The machine's limit: the figure can be at most as good.
    Limit,
    /// Another way to do the same work, or less of it: the figure may be better.
    Baseline,
    /// Another project's program.
    Peer,
    /// A paper's figure.
    Paper,
}

impl Comparison {
    /// Name in the schema, and for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Baseline => "baseline",
            Self::Peer => "peer",
            Self::Paper => "paper",
        }
    }
}

/// Comparison of a figure, and its value.
#[derive(Clone, Debug)]
pub struct ComparedSide {
    /// Kind of comparison.
    pub comparison: Comparison,
    /// Description of what was compared.
    pub what: String,
    /// Its value, in the figure's unit; `None` if nothing was received.
    pub value: Option<f64>,
    /// Whether the figure can be divided by it; false if the two were measured with different sizes.
    pub has_ratio: bool,
    /// Slices of it.
    pub slices: Vec<f64>,
}

/// A figure, and everything that belongs to it.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Name of the benchmark: `rpc latency`.
    pub bench: String,
    /// Description for people: `latency over shm, 32 B`.
    pub title: String,
    /// The value; `None` if nothing was received.
    pub value: Option<f64>,
    /// Unit of the value.
    pub unit: Unit,
    /// Slices of it.
    pub slices: Vec<f64>,
    /// Comparison, if there is one.
    pub compared: Option<ComparedSide>,
    /// Latency of single requests in ns, or a sample of them.
    pub latency: Option<Histogram<u64>>,
    /// Reasons why the figure is invalid.
    pub invalid_because: Vec<String>,
    /// State of the machine; `None` where nothing was measured.
    pub surroundings: Option<Surroundings>,
    /// Parameters of the measurement.
    pub setup: Value,
    /// Further results.
    pub details: Value,
    /// Further lines for people.
    pub lines: Vec<String>,
}

impl Measured {
    /// The figure of a side, with what makes it invalid.
    pub fn figure(&self, bench: impl Into<String>, title: impl Into<String>, unit: Unit, side: usize) -> Figure {
        // Disturbance by other programs also makes figures unsteady, which is then not reported as a second reason.
        let unsteady = if self.disturbed.is_empty() { validity::unsteady(self, side) } else { None };
        let unsteady = unsteady.map(|unsteady| unsteady.complaint("the figure"));
        Figure {
            bench: bench.into(),
            title: title.into(),
            value: validity::figure(self, side),
            unit,
            slices: self.slices(side),
            compared: None,
            latency: None,
            invalid_because: self.disturbed.iter().cloned().chain(unsteady).collect(),
            surroundings: Some(self.surroundings.clone()),
            setup: json!({}),
            details: json!({}),
            lines: Vec::new(),
        }
    }
}

impl Figure {
    /// Compares it with another side of the same measurement.
    #[must_use]
    pub fn compared_with(
        mut self,
        measured: &Measured,
        side: usize,
        comparison: Comparison,
        what: impl Into<String>,
    ) -> Self {
        let unsteady = if measured.disturbed.is_empty() { validity::unsteady(measured, side) } else { None };
        let complaint = unsteady.map(|unsteady| unsteady.complaint(&format!("the {}", comparison.name())));
        // A problem with the cores' distance concerns both sides, and is reported once.
        self.invalid_because.extend(complaint.filter(|complaint| !self.invalid_because.contains(complaint)));
        let (value, slices) = (validity::figure(measured, side), measured.slices(side));
        self.compared = Some(ComparedSide { comparison, what: what.into(), value, has_ratio: true, slices });
        self
    }

    /// The figure divided by what it is compared with.
    pub fn ratio(&self) -> Option<f64> {
        let beside = self.compared.as_ref().filter(|beside| beside.has_ratio)?;
        Some(self.value? / beside.value?)
    }

    /// Whether it is valid.
    pub fn is_valid(&self) -> bool {
        self.invalid_because.is_empty()
    }

    /// A percentile of the latency, in ns.
    pub fn percentile_ns(&self, quantile: f64) -> Option<f64> {
        let latency = self.latency.as_ref().filter(|latency| !latency.is_empty())?;
        Some(latency.value_at_quantile(quantile) as f64)
    }

    /// The figure with its unit.
    pub fn text(&self) -> String {
        self.value.map_or_else(|| "not measured".to_owned(), |value| self.unit.text(value))
    }

    /// Value of the comparison, with its unit.
    pub fn compared_text(&self) -> String {
        match self.compared.as_ref().map(|beside| beside.value) {
            None => "none".to_owned(),
            Some(None) => "not measured".to_owned(),
            Some(Some(value)) => self.unit.text(value),
        }
    }

    /// Some percentiles, as in `p50 / p99`.
    pub fn percentiles_text(&self, quantiles: &[f64]) -> String {
        let text = |quantile: &f64| self.percentile_ns(*quantile).map(units::time);
        quantiles.iter().filter_map(text).collect::<Vec<_>>().join(" / ")
    }

    /// The result in the schema.
    pub fn to_json(&self) -> Value {
        let beside = self.compared.as_ref();
        let latency = self.latency.as_ref().filter(|latency| !latency.is_empty());
        json!({
            "schema": RESULT,
            "bench": self.bench,
            "figure": self.value.map(units::rounded),
            "unit": self.unit.name(),
            "limit": beside.and_then(|beside| beside.value).map(units::rounded),
            "limit_kind": beside.map(|beside| beside.comparison.name()),
            "limit_what": beside.map(|beside| &beside.what),
            "ratio": self.ratio().map(units::rounded),
            "valid": self.is_valid(),
            "invalid_because": self.invalid_because,
            "percentiles": latency.map(percentiles),
            "slices": {
                "figure": units::rounded_all(&self.slices),
                "limit": beside.map(|beside| units::rounded_all(&beside.slices)).unwrap_or_default(),
            },
            "surroundings": self.surroundings.as_ref().map_or_else(|| json!({}), Surroundings::to_json),
            "setup": self.setup,
            "details": self.details,
        })
    }

    /// A few lines of text, none longer than `width` unless a single word is.
    pub fn to_text(&self, width: usize) -> String {
        let mut lines = vec![format!("{}: {}", self.title, self.text())];
        if let Some(latency) = self.latency.as_ref().filter(|latency| !latency.is_empty()) {
            let time = |value: u64| units::time(value as f64);
            let at = |quantile| time(latency.value_at_quantile(quantile));
            lines.push(format!(
                "  latency: min {}, p50 {}, p99 {}, p99.9 {}, max {}",
                time(latency.min()),
                at(0.5),
                at(0.99),
                at(0.999),
                time(latency.max())
            ));
        }
        if let Some(beside) = &self.compared {
            let ratio = match self.ratio().map(units::figure) {
                Some(ratio) if self.unit == Unit::Ns => format!(" ({ratio} times)"),
                Some(ratio) => format!(" (ratio {ratio})"),
                None => String::new(),
            };
            lines.push(format!("  {}: {}{ratio}: {}", beside.comparison.name(), self.compared_text(), beside.what));
        }
        lines.extend(self.lines.iter().map(|line| format!("  {line}")));
        if let Some(surroundings) = &self.surroundings {
            let again = match surroundings.attempts {
                0 | 1 => String::new(),
                attempts => format!("; disturbed, so measured {attempts} times as long"),
            };
            lines.extend(surroundings.cores_text().map(|cores| format!("  {cores}{again}")));
        }
        lines.extend(self.invalid_because.iter().map(|reason| format!("  INVALID: {reason}")));
        lines.iter().map(|line| units::wrapped(line, width, 4)).collect::<Vec<_>>().join("\n")
    }
}

/// Disturbances of figures, each reason once; for use of the processors by others, the greatest share.
pub fn complaints<'a>(figures: impl IntoIterator<Item = &'a Figure>) -> Vec<String> {
    let share_of = |figure: &Figure| figure.surroundings.as_ref().and_then(|surroundings| surroundings.others_share);
    let used = |figure: &&Figure| share_of(figure).is_some_and(|share| share >= TOO_MUCH);
    let invalid = figures.into_iter().filter(|figure| !figure.is_valid());
    let (by_others, others): (Vec<_>, Vec<_>) = invalid.partition(used);
    let share = by_others.iter().filter_map(|figure| share_of(figure)).fold(0.0, f64::max) * 100.0;
    let first = (!by_others.is_empty()).then(|| {
        let count = units::counted(by_others.len(), "figure");
        format!("INVALID: {count}, since others used up to {share:.0} % of the processors meanwhile.")
    });
    let rest = others.iter().map(|figure| format!("INVALID: {}: {}.", figure.title, figure.invalid_because.join("; ")));
    first.into_iter().chain(rest).collect()
}

/// The percentiles that a result contains.
fn percentiles(latency: &Histogram<u64>) -> Value {
    json!({
        "min_ns": latency.min(),
        "mean_ns": units::rounded(latency.mean()),
        "p50_ns": latency.value_at_quantile(0.5),
        "p90_ns": latency.value_at_quantile(0.9),
        "p99_ns": latency.value_at_quantile(0.99),
        "p999_ns": latency.value_at_quantile(0.999),
        "max_ns": latency.max(),
    })
}

/// Several results as one object.
pub fn list(results: impl IntoIterator<Item = Value>) -> Value {
    json!({ "schema": RESULTS, "results": results.into_iter().collect::<Vec<_>>() })
}

/// Checks that an object conforms to the schema, as the output of every command must.
///
/// # Errors
///
/// Names the wrong field.
pub fn check(object: &Value) -> Result<(), String> {
    let fields = object.as_object().ok_or("it is not an object")?;
    if object["schema"] == RESULTS {
        let results = object["results"]
            .as_array()
            .filter(|results| !results.is_empty())
            .ok_or("`results` is not a non-empty list")?;
        return results.iter().try_for_each(check);
    }
    let has = |name: &str, is: fn(&Value) -> bool| match fields.get(name) {
        Some(value) if is(value) => Ok(()),
        other => Err(format!("`{name}` is {other:?}")),
    };
    let (number, text) =
        (|value: &Value| value.is_number() || value.is_null(), |value: &Value| value.is_string() || value.is_null());
    has("schema", |value| value == RESULT)?;
    has("bench", Value::is_string)?;
    has("unit", Value::is_string)?;
    for name in ["figure", "limit", "ratio"] {
        has(name, number)?;
    }
    for name in ["limit_kind", "limit_what"] {
        has(name, text)?;
    }
    has("valid", Value::is_boolean)?;
    has("invalid_because", Value::is_array)?;
    has("percentiles", |value| value.is_object() || value.is_null())?;
    for name in ["slices", "surroundings", "setup", "details"] {
        has(name, Value::is_object)?;
    }
    let is_explained = object["valid"] == json!(object["invalid_because"].as_array().is_some_and(Vec::is_empty));
    let known =
        ["schema", "bench", "figure", "unit", "limit", "limit_kind", "limit_what", "ratio", "valid", "invalid_because"];
    let known = known.into_iter().chain(["percentiles", "slices", "surroundings", "setup", "details"]);
    let unknown = unknown(fields, &known.collect::<Vec<_>>());
    match (is_explained, unknown) {
        (false, _) => Err("`valid` and `invalid_because` disagree".to_owned()),
        (true, Some(name)) => Err(format!("`{name}` is not a field of the schema")),
        (true, None) => Ok(()),
    }
}

fn unknown(fields: &Map<String, Value>, known: &[&str]) -> Option<String> {
    fields.keys().find(|name| !known.contains(&name.as_str())).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::Round;

    fn measured() -> Measured {
        let round = Round { cores_ns: None, values: vec![Some(6.0), Some(4.0)] };
        let surroundings = Surroundings { attempts: 1, ..Surroundings::default() };
        Measured { rounds: vec![round; 10], surroundings, disturbed: Vec::new() }
    }

    fn figure() -> Figure {
        let measured = measured();
        measured.figure("rpc rate", "a rate", Unit::Mops, 0).compared_with(
            &measured,
            1,
            Comparison::Limit,
            "a bare ring",
        )
    }

    #[test]
    fn a_result_is_in_the_schema_and_a_list_of_them() {
        let one = figure().to_json();
        check(&one).unwrap();
        check(&list([one.clone(), one.clone()])).unwrap();
        assert_eq!((&one["figure"], &one["ratio"], &one["valid"]), (&json!(6.0), &json!(1.5), &json!(true)));
        for (name, bad) in [("unit", json!(1)), ("valid", json!(false)), ("extra", json!(1)), ("schema", json!("x"))] {
            let mut wrong = one.clone();
            wrong[name] = bad;
            assert!(check(&wrong).is_err(), "{name}");
        }
        assert!(check(&list([])).is_err() && check(&json!([])).is_err());
    }

    #[test]
    fn what_was_not_measured_tells_of_no_machine() {
        let computed = Figure { surroundings: None, ..figure() };
        let object = computed.to_json();
        assert_eq!((check(&object), &object["surroundings"]), (Ok(()), &json!({})));
        assert!(!computed.to_text(100).contains("cores") && figure().to_json()["surroundings"]["cpus"].is_number());
    }

    #[test]
    fn what_is_invalid_says_why_in_both_forms() {
        let mut figure = figure();
        figure.invalid_because.push("others used 30 % of the processors meanwhile".to_owned());
        assert!(figure.to_text(80).contains("INVALID: others used 30 %"));
        assert_eq!(figure.to_json()["invalid_because"][0], "others used 30 % of the processors meanwhile");
        check(&figure.to_json()).unwrap();
    }

    #[test]
    fn a_size_that_the_limit_was_not_measured_with_has_no_ratio() {
        let mut figure = figure();
        figure.compared.as_mut().unwrap().has_ratio = false;
        assert_eq!((figure.ratio(), &figure.to_json()["limit"]), (None, &json!(4.0)));
    }

    #[test]
    fn no_line_is_longer_than_the_terminal_is_wide() {
        let mut figure = figure();
        figure.lines.push("word ".repeat(60));
        assert!(figure.to_text(80).lines().all(|line| line.chars().count() <= 80), "{}", figure.to_text(80));
    }
}
