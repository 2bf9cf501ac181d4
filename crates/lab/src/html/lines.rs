//! Lines over time, each in a panel of its own, so that none hides another.

use super::axis::{label, marks, percent};
use super::{escaped, push};

/// Size of a panel's drawing, which is stretched to the panel.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 100.0;

/// Content of a panel.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Name of the panel.
    pub name: String,
    /// Name of its vertical axis.
    pub unit: &'static str,
    /// The values in words.
    pub summary: String,
    /// One value for each time in each line: a single line; or the lowest, the middle and the highest, drawn as a band
    /// with a line in it.
    pub lines: Vec<Vec<f64>>,
}

/// A stretch of time that is marked.
#[derive(Clone, Debug, PartialEq)]
pub struct MarkedSpan {
    /// Reason why it is marked.
    pub name: String,
    /// Its beginning, in the unit of the times.
    pub from: f64,
    /// Its end, in the unit of the times.
    pub to: f64,
    /// Whether it is a fault; else it is time that is not counted.
    pub is_fault: bool,
}

/// Panels over the same times; `time` names their axis.
pub fn panels(time: &str, times: &[f64], panels: &[Panel], shades: &[MarkedSpan]) -> String {
    let end = times.iter().copied().filter(|time| time.is_finite()).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let mut text = String::from("<div class=\"panels\">");
    panels.iter().for_each(|panel| push_panel(&mut text, time, times, end, panel, shades));
    text + "</div>\n"
}

fn push_panel(text: &mut String, time: &str, times: &[f64], end: f64, panel: &Panel, shades: &[MarkedSpan]) {
    let Panel { name, unit, summary, lines } = panel;
    let values = lines.iter().flatten().copied().filter(|value| value.is_finite());
    let marks_up = marks(values.fold(0.0, f64::max));
    let most = marks_up.last().copied().unwrap_or(1.0);
    push(
        text,
        format_args!(
            "<figure><figcaption><b>{}</b> {}</figcaption><div class=\"up\">{}</div><div class=\"plot\">",
            escaped(name),
            escaped(summary),
            escaped(unit)
        ),
    );
    for mark in &marks_up {
        let bottom = percent(mark / most);
        push(text, format_args!("<span class=\"y\" style=\"bottom:{bottom}\"><s>{}</s></span>", label(*mark)));
    }
    for MarkedSpan { name, from, to, is_fault } in shades {
        let (left, right) = ((from / end).clamp(0.0, 1.0), (to / end).clamp(0.0, 1.0));
        let class = if *is_fault { "fault" } else { "warm" };
        let (left, width) = (percent(left), percent(right - left));
        let name = escaped(name);
        push(
            text,
            format_args!("<span class=\"{class}\" title=\"{name}\" style=\"left:{left};width:{width}\"></span>"),
        );
    }
    let size = format!("viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\"");
    push(text, format_args!("<svg {size} role=\"img\" aria-label=\"{}: {}\">", escaped(name), escaped(summary)));
    let point = |time: f64, value: f64| {
        let part = |part: f64| if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
        format!("{:.1},{:.2} ", WIDTH * part(time / end), HEIGHT * (1.0 - part(value / most)))
    };
    let points =
        |values: &[f64]| times.iter().zip(values).map(|(time, value)| point(*time, *value)).collect::<Vec<_>>();
    let mut line = |values: &[f64]| {
        let points = points(values).concat();
        push(text, format_args!("<polyline points=\"{}\"/>", points.trim_end()));
    };
    match &lines[..] {
        [low, middle, high] => {
            let back: String = points(low).into_iter().rev().collect();
            let band = points(high).concat() + back.trim_end();
            line(middle);
            push(text, format_args!("<polygon points=\"{band}\"/>"));
        }
        lines => lines.iter().for_each(|values| line(values)),
    }
    text.push_str("</svg>");
    for mark in marks(end).into_iter().filter(|mark| *mark <= end * 1.0001) {
        push(
            text,
            format_args!("<span class=\"x\" style=\"left:{}\"><s>{}</s></span>", percent(mark / end), label(mark)),
        );
    }
    push(text, format_args!("</div><div class=\"along\">{}</div></figure>\n", escaped(time)));
}
