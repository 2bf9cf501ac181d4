//! What an experiment is.

/// A published figure, run again.
pub trait Experiment: Sync {
    /// As it is asked for, in `nsdi19-table5`.
    fn id(&self) -> &'static str;

    /// What it shows.
    fn title(&self) -> &'static str;

    /// The paper and the place in it.
    fn source(&self) -> &'static str;

    /// What is run, and where the model departs from what the paper ran.
    fn setup(&self) -> &'static str;

    /// The processors that it measures on; none where all is simulated.
    fn measures_on(&self) -> Vec<usize> {
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
    /// What it is a figure of.
    pub metric: String,
    /// What the paper says.
    pub paper: Option<f64>,
    /// What the simulated cluster does.
    pub model: Option<f64>,
    /// What this machine does.
    pub measured: Option<f64>,
    /// Its unit.
    pub unit: &'static str,
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
    /// How far what was found is from the paper, where both are there.
    pub fn error(&self) -> Option<Error> {
        let (paper, found) = (self.paper?, self.model.or(self.measured)?);
        match self.unit {
            "%" => Some(Error::Points(found - paper)),
            _ if paper == 0.0 => None,
            _ => Some(Error::Part(found / paper - 1.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_part_of_what_the_paper_says() {
        let row = |paper, model, measured| Row {
            id: String::new(),
            place: None,
            metric: String::new(),
            paper,
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
    }
}
