//! The report of experiments: one HTML file with tables and plots, which needs nothing beside it.

use crate::experiment::{Experiment, Row};
use crate::html::{PlotError, bars, escaped, page, table};

/// The report of some experiments with their rows.
///
/// # Errors
///
/// [`PlotError`].
pub fn html(results: &[(&dyn Experiment, Vec<Row>)]) -> Result<String, PlotError> {
    let mut body = String::new();
    for (it, rows) in results {
        let (title, source, setup) = (escaped(it.title()), escaped(it.source()), escaped(it.setup()));
        body.push_str(&format!("<h2>{title}</h2><p>{source}. {setup}</p>"));
        let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
        body.push_str(&table(&["", "paper", "model", "measured", "unit", "error"], &cells));
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

fn figure(value: Option<f64>) -> String {
    value.map_or_else(
        String::new,
        |value| if value.abs() < 100.0 { format!("{value:.3}") } else { format!("{value:.0}") },
    )
}

fn cells(row: &Row) -> Vec<String> {
    let error = row.error().map_or_else(String::new, |error| format!("{:+.1} %", error * 100.0));
    let [paper, model, measured] = [row.paper, row.model, row.measured].map(figure);
    vec![row.metric.clone(), paper, model, measured, row.unit.to_owned(), error]
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
            place: "Table 1",
            metric: "a <b>".to_owned(),
            paper,
            model,
            measured: None,
            unit: "us",
        };
        let page = html(&[(&One, vec![row(Some(1.0), Some(2.0)), row(None, Some(3.0)), row(None, None)])]).unwrap();
        assert!(page.contains("A &lt; B &amp; C") && page.contains("a &lt;b&gt;") && page.contains("+100.0 %"));
        assert_eq!(page.matches("<svg").count(), 1);
        assert!(!page.contains("href=") && !page.contains("src="), "{page}");
    }
}
