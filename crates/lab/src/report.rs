//! Presentation of experiments' results: the columns, and the comparison of a row with the paper.

mod overview;
mod page;

pub use overview::svg;
pub use page::html;
pub use sinew_harness::units::figure;

use crate::experiment::{Comparison, Error, Experiment, Row};

/// Content of a column in a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Nothing.
    Empty,
    /// A text.
    Text(String),
    /// A figure, in the row's unit or as a ratio.
    Figure(f64),
}

/// A column.
pub struct Column {
    /// Its key in JSON.
    pub key: &'static str,
    /// Its content for a row.
    pub of: fn(&Row) -> Cell,
}

/// All columns of JSON, in their order.
pub const COLUMNS: [Column; 12] = [
    Column { key: "id", of: |row| Cell::Text(row.id.clone()) },
    Column { key: "place", of: |row| text(row.place) },
    Column { key: "metric", of: |row| Cell::Text(row.name()) },
    Column { key: "paper", of: |row| number(row.paper) },
    Column { key: "model", of: |row| number(row.model) },
    Column { key: "measured", of: |row| number(row.measured) },
    Column { key: "unit", of: |row| text(Some(row.unit)) },
    Column {
        key: "error",
        of: |row| match row.error() {
            Some(Error::Relative(part)) => Cell::Figure(part),
            _ => Cell::Empty,
        },
    },
    Column {
        key: "error_points",
        of: |row| match row.error() {
            Some(Error::Points(points)) => Cell::Figure(points),
            _ => Cell::Empty,
        },
    },
    Column {
        key: "against",
        of: |row| match (row.paper, row.against) {
            (None, _) => Cell::Empty,
            (_, Comparison::Same) => text(Some("same")),
            (_, Comparison::Calibrated) => text(Some("calibrated")),
            (_, Comparison::AtMost) => text(Some("at most")),
            (_, Comparison::AtLeast) => text(Some("at least")),
            (_, Comparison::Other(what)) => text(Some(what)),
        },
    },
    Column { key: "ratio", of: |row| number(row.ratio()) },
    Column { key: "missing_because", of: |row| text(row.missing_because.as_deref()) },
];

fn text(text: Option<&str>) -> Cell {
    text.map_or(Cell::Empty, |text| Cell::Text(text.to_owned()))
}

fn number(number: Option<f64>) -> Cell {
    number.map_or(Cell::Empty, Cell::Figure)
}

/// A row's comparison with the paper, in a few words; empty if the paper has no value.
pub fn standing(row: &Row) -> String {
    let (Some(paper), Some(found)) = (row.paper, row.found()) else { return String::new() };
    let error = match row.error() {
        Some(Error::Relative(part)) => format!("{:+.1} %", part * 100.0),
        Some(Error::Points(points)) => format!("{points:+.1} points"),
        None => String::new(),
    };
    match row.against {
        Comparison::Same => error,
        Comparison::Calibrated => format!("{error}, calibrated"),
        Comparison::AtMost if found <= paper => "not more".to_owned(),
        Comparison::AtLeast if found >= paper => "not less".to_owned(),
        Comparison::AtMost | Comparison::AtLeast => {
            row.ratio().map_or_else(|| "missed".to_owned(), |ratio| format!("missed: {} x", figure(ratio)))
        }
        Comparison::Other(what) => row.ratio().map_or_else(String::new, |ratio| format!("{} x {what}", figure(ratio))),
    }
}

/// Picks a value of a row, if it has one.
type Figure = fn(&Row) -> Option<f64>;

/// A table of rows for people: the headings of its columns, and its lines. Each case has a line of its own above its
/// rows, which are then indented.
pub fn table(rows: &[Row]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    const FIGURES: [(&str, Figure); 3] =
        [("paper", |row| row.paper), ("model", |row| row.model), ("measured", |row| row.measured)];
    let columns: Vec<_> = FIGURES.into_iter().filter(|(_, of)| rows.iter().any(|row| of(row).is_some())).collect();
    let heads = columns.iter().map(|(head, _)| *head);
    let heads: Vec<&str> = [""].into_iter().chain(heads).chain(["unit", "against the paper"]).collect();
    let (mut lines, mut case) = (Vec::new(), "");
    for row in rows {
        if row.case != case {
            lines.push(vec![row.case.clone()]);
            case = &row.case;
        }
        let indent = if case.is_empty() { "" } else { "\u{a0}\u{a0}" };
        let figures = columns.iter().map(|(_, of)| of(row).map_or_else(String::new, figure));
        let ends = [row.unit.to_owned(), standing(row)];
        lines.push([format!("{indent}{}", row.metric)].into_iter().chain(figures).chain(ends).collect());
    }
    (heads, lines)
}

/// Sentences about the cases that have no values, each with the reason.
pub fn missing(rows: &[Row]) -> Vec<String> {
    let mut sentences = Vec::new();
    for row in rows {
        let Some(reason) = &row.missing_because else { continue };
        let what = if row.case.is_empty() { &row.metric } else { &row.case };
        let sentence = format!("Not measured ({what}): {reason}.");
        if !sentences.contains(&sentence) {
            sentences.push(sentence);
        }
    }
    sentences
}

/// An experiment that was run.
pub struct Done<'a> {
    /// The experiment.
    pub experiment: &'a dyn Experiment,
    /// The rows that it found.
    pub rows: Vec<Row>,
    /// Reason why measured rows are invalid, if they are.
    pub complaint: Option<String>,
}

impl Done<'_> {
    /// Rows that count: all, or only the simulated ones if other programs disturbed what was measured.
    pub fn counted(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| self.complaint.is_none() || row.measured.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, paper: f64, model: Option<f64>, against: Comparison) -> Row {
        Row {
            id: "a".to_owned(),
            place: None,
            case: case.to_owned(),
            metric: "latency".to_owned(),
            paper: Some(paper),
            against,
            model,
            measured: None,
            unit: "us",
            missing_because: None,
        }
    }

    #[test]
    fn a_row_stands_to_the_paper_as_what_is_claimed_allows() {
        let of = |against, model| standing(&row("", 4.0, Some(model), against));
        assert_eq!(of(Comparison::Same, 5.0), "+25.0 %");
        assert_eq!(of(Comparison::Calibrated, 4.0), "+0.0 %, calibrated");
        assert_eq!([of(Comparison::AtMost, 4.0), of(Comparison::AtMost, 6.0)], ["not more", "missed: 1.50 x"]);
        assert_eq!([of(Comparison::AtLeast, 4.0), of(Comparison::AtLeast, 2.0)], ["not less", "missed: 0.50 x"]);
        assert_eq!(of(Comparison::Other("its Timely"), 1.0), "0.25 x its Timely");
        assert_eq!(standing(&row("", 4.0, None, Comparison::Same)), "");
        let points = Row { unit: "%", ..row("", 9.0, Some(6.5), Comparison::Same) };
        assert_eq!(standing(&points), "-2.5 points");
        assert_eq!(standing(&row("", 0.0, Some(1.0), Comparison::AtMost)), "missed");
    }

    #[test]
    fn a_table_has_cases_above_their_rows_and_no_empty_column() {
        let rows = [
            row("one", 4.0, Some(5.0), Comparison::Same),
            row("one", 4.0, Some(4.0), Comparison::Same),
            row("two", 4.0, None, Comparison::Same),
        ];
        let (heads, lines) = table(&rows);
        assert_eq!(heads, ["", "paper", "model", "unit", "against the paper"]);
        let lines: Vec<String> = lines.iter().map(|line| line.join("|")).collect();
        let indented = |line: &str| format!("\u{a0}\u{a0}latency|{line}");
        let [first, second, third] = ["4.00|5.00|us|+25.0 %", "4.00|4.00|us|+0.0 %", "4.00||us|"].map(indented);
        assert_eq!(lines, ["one", &first, &second, "two", &third]);
        let (_, lines) = table(&[row("", 4.0, Some(5.0), Comparison::Same)]);
        assert_eq!((lines.len(), &*lines[0][0]), (1, "latency"));
    }

    #[test]
    fn a_case_without_values_is_told_once_with_the_reason() {
        let found = row("one", 4.0, Some(5.0), Comparison::Same);
        let missing_because = Some("there is no etcd".to_owned());
        let lost = Row { missing_because, case: "two".to_owned(), model: None, ..found.clone() };
        let other = Row { case: String::new(), ..lost.clone() };
        let sentences = ["Not measured (two): there is no etcd.", "Not measured (latency): there is no etcd."];
        assert_eq!(missing(&[found, lost.clone(), lost, other]), sentences);
    }

    #[test]
    fn figures_have_three_digits() {
        let figures = [1234.0, 35.21, 6.194, 0.18, 0.0423, 0.000_19, 0.0].map(figure);
        assert_eq!(figures, ["1234", "35.2", "6.19", "0.18", "0.042", "0.00019", "0.00"]);
    }
}
