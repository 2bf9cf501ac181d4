//! What experiments found, as it is shown: its columns, how a figure is written, and the report, one HTML file with tables and plots which
//! needs nothing beside it.

use crate::experiment::{Error, Experiment, Row};
use crate::html::{PlotError, bars, escaped, page, table};

/// What a row has in a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell<'a> {
    /// Nothing.
    Empty,
    /// A text.
    Text(&'a str),
    /// A figure, in the row's unit.
    Figure(f64),
    /// How far what was found is from the paper.
    Error(Error),
}

/// A column.
pub struct Column {
    /// What JSON calls it.
    pub key: &'static str,
    /// What is above it in tables; none where they do not have it.
    pub head: Option<&'static str>,
    /// What it has of a row.
    pub of: for<'a> fn(&'a Row) -> Cell<'a>,
}

/// All columns, in their order.
pub const COLUMNS: [Column; 9] = [
    Column { key: "id", head: None, of: |row| Cell::Text(&row.id) },
    Column { key: "place", head: None, of: |row| row.place.map_or(Cell::Empty, Cell::Text) },
    Column { key: "metric", head: Some(""), of: |row| Cell::Text(&row.metric) },
    Column { key: "paper", head: Some("paper"), of: |row| row.paper.map_or(Cell::Empty, Cell::Figure) },
    Column { key: "model", head: Some("model"), of: |row| row.model.map_or(Cell::Empty, Cell::Figure) },
    Column { key: "measured", head: Some("measured"), of: |row| row.measured.map_or(Cell::Empty, Cell::Figure) },
    Column { key: "unit", head: Some("unit"), of: |row| Cell::Text(row.unit) },
    Column { key: "error", head: Some("error"), of: |row| row.error().map_or(Cell::Empty, Cell::Error) },
    Column {
        key: "error_points",
        head: None,
        of: |row| match row.error() {
            Some(Error::Points(points)) => Cell::Figure(points),
            _ => Cell::Empty,
        },
    },
];

impl Cell<'_> {
    /// As tables have it.
    pub fn text(&self) -> String {
        match self {
            Self::Empty => String::new(),
            Self::Text(text) => (*text).to_owned(),
            Self::Figure(value) => figure(*value),
            Self::Error(Error::Part(part)) => format!("{:+.1} %", part * 100.0),
            Self::Error(Error::Points(points)) => format!("{points:+.1} points"),
        }
    }
}

/// What is above the columns of a table.
pub fn heads() -> Vec<&'static str> {
    COLUMNS.iter().filter_map(|column| column.head).collect()
}

/// A row of a table.
pub fn cells(row: &Row) -> Vec<String> {
    COLUMNS.iter().filter(|column| column.head.is_some()).map(|column| (column.of)(row).text()).collect()
}

/// A figure with about three digits, two below one.
pub fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 || v == 0.0 => 2,
        v => (1.0 - v.log10().floor()).min(9.0) as usize,
    };
    format!("{value:.decimals$}")
}

/// An experiment that was run.
pub struct Done<'a> {
    /// Which.
    pub experiment: &'a dyn Experiment,
    /// What was found.
    pub rows: Vec<Row>,
    /// Why that is invalid, if it is.
    pub complaint: Option<String>,
}

/// The report of some experiments.
///
/// # Errors
///
/// [`PlotError`].
pub fn html(results: &[Done<'_>]) -> Result<String, PlotError> {
    let mut body = String::new();
    for Done { experiment: it, rows, complaint } in results {
        let (title, source, setup) = (escaped(it.title()), escaped(it.source()), escaped(it.setup()));
        body.push_str(&format!("<h2>{title}</h2><p>{source}. {setup}</p>"));
        if let Some(complaint) = complaint {
            body.push_str(&format!("<p><strong>Invalid: {}.</strong></p>", escaped(complaint)));
        }
        let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
        body.push_str(&table(&heads(), &cells));
        let mut units: Vec<&'static str> = rows.iter().map(|row| row.unit).collect();
        units.sort_unstable();
        units.dedup();
        for unit in units {
            let of_unit = || rows.iter().filter(|row| row.unit == unit);
            let labels: Vec<&str> = of_unit().map(|row| &*row.id).collect();
            let paper = of_unit().map(|row| row.paper).collect();
            let here = of_unit().map(|row| row.model.or(row.measured)).collect();
            body.push_str(&bars(unit, &labels, &[("paper", paper), ("here", here)])?);
        }
    }
    Ok(page("Published figures, run again", &body))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One;

    impl Experiment for One {
        fn id(&self) -> &'static str {
            "one"
        }

        fn title(&self) -> &'static str {
            "A < B & C"
        }

        fn source(&self) -> &'static str {
            "a paper"
        }

        fn setup(&self) -> &'static str {
            "a setup"
        }

        fn run(&self, _: &mut dyn FnMut(f64)) -> Vec<Row> {
            Vec::new()
        }
    }

    #[test]
    fn a_report_has_tables_and_plots_and_needs_nothing_else() {
        let row = |paper, model| Row {
            id: "a".to_owned(),
            place: Some("Table 1"),
            metric: "a <b>".to_owned(),
            paper,
            model,
            measured: None,
            unit: "us",
        };
        let rows = vec![row(Some(1.0), Some(2.0)), row(None, Some(3.0)), row(None, None)];
        let page = html(&[Done { experiment: &One, rows, complaint: Some("a < b".to_owned()) }]).unwrap();
        assert!(page.contains("<strong>Invalid: a &lt; b.</strong>"));
        assert!(page.contains("A &lt; B &amp; C") && page.contains("a &lt;b&gt;") && page.contains("+100.0 %"));
        assert_eq!(page.matches("<svg").count(), 1);
        assert!(!page.contains("href=") && !page.contains("src="), "{page}");
    }

    #[test]
    fn a_table_has_the_columns_that_have_a_head_and_figures_of_three_digits() {
        assert_eq!(heads(), ["", "paper", "model", "measured", "unit", "error"]);
        let row = Row {
            id: "a".to_owned(),
            place: None,
            metric: "loss".to_owned(),
            paper: Some(9.0),
            model: None,
            measured: Some(6.5),
            unit: "%",
        };
        assert_eq!(cells(&row), ["loss", "9.00", "", "6.50", "%", "-2.5 points"]);
        let figures = [1234.0, 35.21, 6.194, 0.18, 0.0423, 0.000_19, 0.0].map(figure);
        assert_eq!(figures, ["1234", "35.2", "6.19", "0.18", "0.042", "0.00019", "0.00"]);
    }
}
