//! Experiments, and the figures that they produce.

use sinew_harness::load::verbs::VerbsPlan;

/// A published figure that is reproduced.
pub trait Experiment: Sync {
    /// Name by which it is requested, such as `nsdi19-table5`.
    fn id(&self) -> &'static str;

    /// Short name of its paper: the first part of [`Self::id`].
    fn paper(&self) -> &'static str {
        self.id().split('-').next().unwrap_or_default()
    }

    /// What the experiment shows, in a few words.
    fn title(&self) -> &'static str;

    /// The paper and the place in it.
    fn source(&self) -> &'static str;

    /// What it runs, and how this departs from what the paper ran.
    fn setup(&self) -> &'static str;

    /// Reason why the results differ from the paper's, if they do; empty if nothing needs to be said.
    fn remark(&self) -> &'static str {
        ""
    }

    /// Processors on which it measures; empty if everything is simulated.
    fn measures_on(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Command that measures it, if nothing here can; its rows then have only the paper's values.
    fn measured_by(&self) -> Option<&'static str> {
        None
    }

    /// Measurements that the same programs can make on a real fabric: rows without results, each with the plan that
    /// measures it. Empty if there are none.
    fn plans(&self) -> Vec<(Row, VerbsPlan)> {
        Vec::new()
    }

    /// Runs the experiment. `progress` is called with the part that is done, from 0 to 1.
    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row>;
}

/// A figure: the paper's value, and the value that was found by simulating or measuring.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Unique name of the figure.
    pub id: String,
    /// Place in the paper, if the paper has this figure.
    pub place: Option<&'static str>,
    /// Case of the experiment; empty if there is only one.
    pub case: String,
    /// Quantity that it measures.
    pub metric: String,
    /// The paper's value.
    pub paper: Option<f64>,
    /// Relation of the paper's value to the one that was found.
    pub against: Comparison,
    /// Value of the simulated cluster.
    pub model: Option<f64>,
    /// Value measured on this machine.
    pub measured: Option<f64>,
    /// Unit of all values.
    pub unit: &'static str,
    /// Reason why no value was found, if that needs to be said.
    pub missing_because: Option<String>,
}

/// Relation of the paper's value to the one that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Both measure the same thing: the difference is an error.
    Same,
    /// The model was calibrated on the paper's value, or the value follows from the set-up, so agreement proves
    /// nothing.
    Calibrated,
    /// The paper's value is an upper bound.
    AtMost,
    /// The paper's value is a lower bound.
    AtLeast,
    /// The paper's value measures another quantity, named here: the difference is no error.
    Other(&'static str),
}

/// Difference between the value that was found and the paper's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Error {
    /// Relative to the paper's value: 0.1 means that the value found is a tenth higher.
    Relative(f64),
    /// Difference in percentage points, if the values are percentages themselves.
    Points(f64),
}

impl Row {
    /// A row without a value yet.
    pub fn open(id: impl Into<String>, metric: impl Into<String>, unit: &'static str) -> Self {
        Self {
            id: id.into(),
            place: None,
            case: String::new(),
            metric: metric.into(),
            paper: None,
            against: Comparison::Same,
            model: None,
            measured: None,
            unit,
            missing_because: None,
        }
    }

    /// A row with a simulated value.
    pub fn model(id: impl Into<String>, metric: impl Into<String>, model: f64, unit: &'static str) -> Self {
        Self { model: Some(model), ..Self::open(id, metric, unit) }
    }

    /// Sets the case of the experiment.
    #[must_use]
    pub fn case(self, case: impl Into<String>) -> Self {
        Self { case: case.into(), ..self }
    }

    /// Sets the paper's value, its place, and its relation to the value found.
    #[must_use]
    pub fn paper(self, place: &'static str, paper: f64, against: Comparison) -> Self {
        Self { place: Some(place), paper: Some(paper), against, ..self }
    }

    /// The value that was found: the simulated one, else the measured one.
    pub fn found(&self) -> Option<f64> {
        self.model.or(self.measured)
    }

    /// Full name of the quantity, with its case.
    pub fn name(&self) -> String {
        if self.case.is_empty() { self.metric.clone() } else { format!("{}, {}", self.case, self.metric) }
    }

    /// The value that was found over the paper's, if both exist.
    pub fn ratio(&self) -> Option<f64> {
        let (paper, found) = (self.paper?, self.found()?);
        (paper != 0.0).then(|| found / paper)
    }

    /// The error, if both values exist and measure the same thing.
    pub fn error(&self) -> Option<Error> {
        let (Comparison::Same | Comparison::Calibrated) = self.against else { return None };
        let (paper, found) = (self.paper?, self.found()?);
        match self.unit {
            "%" => Some(Error::Points(found - paper)),
            _ if paper == 0.0 => None,
            _ => Some(Error::Relative(found / paper - 1.0)),
        }
    }
}

/// The value found in the row with this name.
#[cfg(test)]
pub(crate) fn found_of(rows: &[Row], id: &str) -> f64 {
    rows.iter()
        .find(|row| row.id == id)
        .and_then(Row::found)
        .unwrap_or_else(|| panic!("no row is named {id}, or it has no value"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_part_of_what_the_paper_says() {
        let row = |paper, model, measured| Row {
            id: String::new(),
            place: None,
            case: String::new(),
            metric: String::new(),
            paper,
            against: Comparison::Same,
            model,
            measured,
            unit: "us",
            missing_because: None,
        };
        assert_eq!(row(Some(200.0), Some(250.0), None).error(), Some(Error::Relative(0.25)));
        assert_eq!(row(Some(200.0), None, Some(150.0)).error(), Some(Error::Relative(-0.25)));
        assert_eq!(row(None, Some(1.0), None).error(), None);
        assert_eq!(row(Some(0.0), Some(1.0), None).error(), None);
        assert_eq!(row(Some(1.0), None, None).error(), None);
        let percent = Row { unit: "%", ..row(Some(9.0), None, Some(6.5)) };
        assert_eq!(percent.error(), Some(Error::Points(-2.5)));
        for against in [Comparison::AtMost, Comparison::AtLeast, Comparison::Other("another")] {
            let row = Row { against, ..row(Some(200.0), Some(50.0), None) };
            assert_eq!((row.error(), row.ratio()), (None, Some(0.25)), "a value of another thing has no error");
        }
    }
}
