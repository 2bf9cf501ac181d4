//! What an experiment is.

use sinew_harness::load::verbs::VerbsPlan;

/// A published figure, run again.
pub trait Experiment: Sync {
    /// As it is asked for, in `nsdi19-table5`.
    fn id(&self) -> &'static str;

    /// Its paper's short name, which its own begins with.
    fn paper(&self) -> &'static str {
        self.id().split('-').next().unwrap_or_default()
    }

    /// What it shows.
    fn title(&self) -> &'static str;

    /// The paper and the place in it.
    fn source(&self) -> &'static str;

    /// What is run, and where the model departs from what the paper ran.
    fn setup(&self) -> &'static str;

    /// Why what is found is another thing than the paper's, where it is; empty where nothing needs to be said.
    fn remark(&self) -> &'static str {
        ""
    }

    /// The processors that it measures on; none where all is simulated.
    fn measures_on(&self) -> Vec<usize> {
        Vec::new()
    }

    /// What can be measured on a real fabric, too, by the same programs: rows as they are without what is found, and which requests each is of. None where
    /// nothing can.
    fn plans(&self) -> Vec<(Row, VerbsPlan)> {
        Vec::new()
    }

    /// Runs it. `progress` hears how much is done, from 0 to 1.
    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row>;
}

/// A figure: what the paper says, and what was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The figure's name, unlike any other.
    pub id: String,
    /// Where the paper has it, if it does.
    pub place: Option<&'static str>,
    /// Of which case of the experiment; empty where there is one only.
    pub case: String,
    /// What it is a figure of.
    pub metric: String,
    /// What the paper says.
    pub paper: Option<f64>,
    /// How that can be held against what is found.
    pub against: Against,
    /// What the simulated cluster does.
    pub model: Option<f64>,
    /// What this machine does.
    pub measured: Option<f64>,
    /// Its unit.
    pub unit: &'static str,
}

/// What the paper's figure of a row is to the one that is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// It is of the same thing: how far apart they are is an error.
    Same,
    /// The model was calibrated by it, or it follows from the set-up: the row shows that, and nothing else.
    Calibrated,
    /// It is a bound: nothing more is claimed.
    AtMost,
    /// It is a bound: nothing less is claimed.
    AtLeast,
    /// It is of another thing, which is named: how far apart they are is no error.
    Other(&'static str),
}

/// How far what was found is from the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Error {
    /// As a part of what the paper says: 0.1 is a tenth too much.
    Part(f64),
    /// Where that is a percentage itself: the difference of the two.
    Points(f64),
}

impl Row {
    /// A figure that is not found yet.
    pub fn open(id: impl Into<String>, metric: impl Into<String>, unit: &'static str) -> Self {
        Self {
            id: id.into(),
            place: None,
            case: String::new(),
            metric: metric.into(),
            paper: None,
            against: Against::Same,
            model: None,
            measured: None,
            unit,
        }
    }

    /// A figure of a simulated cluster.
    pub fn model(id: impl Into<String>, metric: impl Into<String>, model: f64, unit: &'static str) -> Self {
        Self { model: Some(model), ..Self::open(id, metric, unit) }
    }

    /// Of a case of the experiment.
    #[must_use]
    pub fn case(self, case: impl Into<String>) -> Self {
        Self { case: case.into(), ..self }
    }

    /// What the paper says, and where.
    #[must_use]
    pub fn paper(self, place: &'static str, paper: f64, against: Against) -> Self {
        Self { place: Some(place), paper: Some(paper), against, ..self }
    }

    /// What was found.
    pub fn found(&self) -> Option<f64> {
        self.model.or(self.measured)
    }

    /// All words that say what it is a figure of.
    pub fn name(&self) -> String {
        if self.case.is_empty() { self.metric.clone() } else { format!("{}, {}", self.case, self.metric) }
    }

    /// How many times the paper's figure the one that was found is, where both are there.
    pub fn ratio(&self) -> Option<f64> {
        let (paper, found) = (self.paper?, self.found()?);
        (paper != 0.0).then(|| found / paper)
    }

    /// How far what was found is from the paper, where both are there and of the same thing.
    pub fn error(&self) -> Option<Error> {
        let (Against::Same | Against::Calibrated) = self.against else { return None };
        let (paper, found) = (self.paper?, self.found()?);
        match self.unit {
            "%" => Some(Error::Points(found - paper)),
            _ if paper == 0.0 => None,
            _ => Some(Error::Part(found / paper - 1.0)),
        }
    }
}

/// What was found of the row of this name.
#[cfg(test)]
pub(crate) fn found_of(rows: &[Row], id: &str) -> f64 {
    rows.iter()
        .find(|row| row.id == id)
        .and_then(Row::found)
        .unwrap_or_else(|| panic!("{id} is no row, or was not found"))
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
            against: Against::Same,
            model,
            measured,
            unit: "us",
        };
        assert_eq!(row(Some(200.0), Some(250.0), None).error(), Some(Error::Part(0.25)));
        assert_eq!(row(Some(200.0), None, Some(150.0)).error(), Some(Error::Part(-0.25)));
        assert_eq!(row(None, Some(1.0), None).error(), None);
        assert_eq!(row(Some(0.0), Some(1.0), None).error(), None);
        assert_eq!(row(Some(1.0), None, None).error(), None);
        let percent = Row { unit: "%", ..row(Some(9.0), None, Some(6.5)) };
        assert_eq!(percent.error(), Some(Error::Points(-2.5)));
        for against in [Against::AtMost, Against::AtLeast, Against::Other("another")] {
            let row = Row { against, ..row(Some(200.0), Some(50.0), None) };
            assert_eq!((row.error(), row.ratio()), (None, Some(0.25)), "what is another thing has no error");
        }
    }
}
