//! Lines over time, each in a panel of its own, so that none hides another.

use super::axis::{label, marks, percent};
use super::{escaped, push};

/// Units of a panel's drawing, which is stretched to the panel.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 100.0;

/// What a panel shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Of what.
    pub name: String,
    /// The name of its upright axis.
    pub unit: &'static str,
    /// The values in words.
    pub summary: String,
    /// A value for each time: one line; or the lowest, a middle and the highest, which are a band and a line in it.
    pub lines: Vec<Vec<f64>>,
}

/// A time that is different from others.
#[derive(Clone, Debug, PartialEq)]
pub struct Shade {
    /// Why.
    pub name: String,
    /// From when.
    pub from: f64,
    /// Until when.
    pub to: f64,
    /// Whether it is a fault, and not what is not counted.
    pub is_fault: bool,
}

/// Panels over the same times, of which `time` names the axis.
pub fn panels(time: &str, times: &[f64], panels: &[Panel], shades: &[Shade]) -> String {
    let end = times.iter().copied().filter(|time| time.is_finite()).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let mut text = String::from("<div class=\"panels\">");
    panels.iter().for_each(|panel| push_panel(&mut text, time, times, end, panel, shades));
    text + "</div>\n"
}

fn push_panel(text: &mut String, time: &str, times: &[f64], end: f64, panel: &Panel, shades: &[Shade]) {
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
    for Shade { name, from, to, is_fault } in shades {
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
