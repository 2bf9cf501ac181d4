//! Pages that need nothing beside them: HTML with plots in SVG.

use std::fmt::Write;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const PLOT_SIZE: (u32, u32) = (860, 420);
const STYLE: &str = "\
body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;width:100%;margin:1rem 0}\
th,td{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:right}\
th:first-child,td:first-child{text-align:left}\
svg{max-width:100%;height:auto}";
const COLOURS: [RGBColor; 6] = [
    RGBColor(30, 110, 180),
    RGBColor(210, 90, 30),
    RGBColor(40, 150, 80),
    RGBColor(140, 70, 160),
    RGBColor(120, 120, 120),
    RGBColor(190, 150, 20),
];

/// A plot that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the plot of {what}: {problem}")]
pub struct PlotError {
    what: String,
    problem: String,
}

/// A page of this title around what is given, which is HTML.
pub fn page(title: &str, body: &str) -> String {
    let title = escaped(title);
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Sinew: {title}</title>\
         <style>{STYLE}</style></head><body><h1>{title}</h1>{body}</body></html>\n"
    )
}

/// As text of a page.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A table.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = String::from("<table>");
    let mut line = |cells: &mut dyn Iterator<Item = String>, tag: &str| {
        text.push_str("<tr>");
        // Writing to a string cannot fail.
        cells.for_each(|cell| _ = write!(text, "<{tag}>{}</{tag}>", escaped(&cell)));
        text.push_str("</tr>");
    };
    line(&mut header.iter().map(|cell| (*cell).to_owned()), "th");
    rows.iter().for_each(|row| line(&mut row.iter().cloned(), "td"));
    text + "</table>"
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn svg(what: &str, draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String, PlotError> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, PLOT_SIZE).into_drawing_area();
    let drawn = draw(&area).and_then(|()| Ok(area.present()?));
    drop(area);
    drawn.map_err(|error| PlotError { what: what.to_owned(), problem: error.to_string() })?;
    Ok(svg)
}

/// Some more than the greatest, for the axis.
fn above(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max).max(f64::MIN_POSITIVE) * 1.1
}

/// Bars side by side: for each label a value of each series, or none.
pub fn bars(unit: &str, labels: &[&str], series: &[(&str, Vec<Option<f64>>)]) -> Result<String, PlotError> {
    // With room for the legend.
    let most = above(series.iter().flat_map(|(_, values)| values.iter().flatten().copied())) * 1.25;
    let width = 0.7 / series.len().max(1) as f64;
    svg(unit, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(170)
            .y_label_area_size(70)
            .build_cartesian_2d(-0.5..labels.len() as f64 - 0.5, 0.0..most)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(labels.len() + 1)
            .x_label_formatter(&|_| String::new())
            .y_desc(unit)
            .light_line_style(WHITE)
            .draw()?;
        // Upright, or they would lie on each other; and below the bars, where the chart's own would not lie.
        let upright = TextStyle::from(("sans-serif", 11).into_font().transform(FontTransform::Rotate90));
        let upright = upright.pos(Pos::new(HPos::Left, VPos::Center));
        for (index, label) in labels.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(index as f64, 0.0));
            area.draw(&Text::new(*label, (x, y + 8), upright.clone()))?;
        }
        for (index, (name, values)) in series.iter().enumerate() {
            // What is held against is grey.
            let colour = if index == 0 { RGBColor(170, 170, 170) } else { COLOURS[(index - 1) % COLOURS.len()] };
            let bars = values.iter().enumerate().filter_map(|(at, value)| {
                let left = at as f64 - 0.35 + index as f64 * width;
                Some(Rectangle::new([(left, 0.0), (left + 0.85 * width, (*value)?)], colour.filled()))
            });
            chart
                .draw_series(bars)?
                .label(*name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        }
        let labels = &mut chart.configure_series_labels();
        labels.position(SeriesLabelPosition::UpperRight).background_style(WHITE).border_style(BLACK).draw()?;
        Ok(())
    })
}

/// Lines over virtual time in milliseconds: each series a name, and a value for each time.
pub fn lines(unit: &str, times_ms: &[f64], series: &[(String, Vec<f64>)]) -> Result<String, PlotError> {
    let most = above(series.iter().flat_map(|(_, values)| values.iter().copied()));
    svg(unit, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..above(times_ms.iter().copied()) / 1.1, 0.0..most)?;
        chart.configure_mesh().x_desc("ms").y_desc(unit).light_line_style(WHITE).draw()?;
        for (index, (name, values)) in series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let points: Vec<(f64, f64)> = times_ms.iter().copied().zip(values.iter().copied()).collect();
            chart
                .draw_series([PathElement::new(points, colour.stroke_width(2))])?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 12, y)], colour.stroke_width(2)));
        }
        let labels = &mut chart.configure_series_labels();
        labels.background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
        Ok(())
    })
}
