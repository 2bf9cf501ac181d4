//! The report: one HTML file with tables and plots, which needs nothing beside it.

use std::fmt::Write;

use plotters::prelude::*;

use crate::experiment::{Experiment, Row};

const PLOT_SIZE: (u32, u32) = (860, 320);
const STYLE: &str = "\
body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;width:100%;margin:1rem 0}\
th,td{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:right}\
th:first-child,td:first-child{text-align:left}\
svg{max-width:100%;height:auto}";

/// A plot that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the plot of {unit}: {problem}")]
pub struct PlotError {
    unit: &'static str,
    problem: String,
}

/// The report of some experiments with their rows.
///
/// # Errors
///
/// [`PlotError`].
pub fn html(results: &[(&dyn Experiment, Vec<Row>)]) -> Result<String, PlotError> {
    let mut page =
        String::from("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Sinew: the lab</title>");
    // Writing to a string cannot fail.
    let _ = write!(page, "<style>{STYLE}</style></head><body><h1>Published figures, run again</h1>");
    for (it, rows) in results {
        let _ =
            write!(page, "<h2>{}</h2><p>{}. {}</p>", escaped(it.title()), escaped(it.source()), escaped(it.setup()));
        page.push_str(&table(rows));
        let mut units: Vec<&'static str> = rows.iter().map(|row| row.unit).collect();
        units.dedup();
        units.sort_unstable();
        units.dedup();
        for unit in units {
            let of_unit: Vec<&Row> = rows.iter().filter(|row| row.unit == unit).collect();
            page.push_str(&plot(unit, &of_unit)?);
        }
    }
    page.push_str("</body></html>\n");
    Ok(page)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn figure(value: Option<f64>) -> String {
    value.map_or_else(
        String::new,
        |value| if value.abs() < 100.0 { format!("{value:.3}") } else { format!("{value:.0}") },
    )
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "<table><tr><th></th><th>paper</th><th>model</th><th>measured</th><th>unit</th><th>error</th></tr>",
    );
    for row in rows {
        let error = row.error().map_or_else(String::new, |error| format!("{:+.1} %", error * 100.0));
        let _ = write!(
            text,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{error}</td></tr>",
            escaped(&row.metric),
            figure(row.paper),
            figure(row.model),
            figure(row.measured),
            row.unit
        );
    }
    text + "</table>"
}

/// Bars: of each row what the paper says, and what was found.
fn plot(unit: &'static str, rows: &[&Row]) -> Result<String, PlotError> {
    let failed = |problem: String| PlotError { unit, problem };
    let found = |row: &Row| row.model.or(row.measured);
    let values = rows.iter().flat_map(|row| [row.paper, found(row)]).flatten();
    let most = values.fold(0.0, f64::max).max(f64::MIN_POSITIVE) * 1.1;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, PLOT_SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..rows.len() as f64, 0.0..most)
            .map_err(|error| failed(error.to_string()))?;
        let label = |at: &f64| rows.get(*at as usize).map_or_else(String::new, |row| row.id.clone());
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(rows.len())
            .x_label_formatter(&label)
            .y_desc(unit)
            .draw()
            .map_err(|error| failed(error.to_string()))?;
        type Value<'a> = &'a dyn Fn(&Row) -> Option<f64>;
        let series: [(&str, RGBColor, f64, Value<'_>); 2] =
            [("paper", RGBColor(170, 170, 170), 0.15, &|row| row.paper), ("here", RGBColor(30, 110, 180), 0.5, &found)];
        for (name, colour, from, value) in series {
            let bars = rows.iter().enumerate().filter_map(|(at, row)| {
                let left = at as f64 + from;
                Some(Rectangle::new([(left, 0.0), (left + 0.3, value(row)?)], colour.filled()))
            });
            chart
                .draw_series(bars)
                .map_err(|error| failed(error.to_string()))?
                .label(name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        }
        chart.configure_series_labels().border_style(BLACK).draw().map_err(|error| failed(error.to_string()))?;
        area.present().map_err(|error| failed(error.to_string()))?;
    }
    Ok(svg)
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
