//! Rows against the paper: each as a multiple of the paper's value, on one logarithmic axis with a band of 20 %.

use super::axis::percent;
use super::{escaped, push};

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Dot {
    /// Name of the quantity.
    pub name: String,
    /// The value that was found over the paper's.
    pub ratio: f64,
    /// Text beside the mark.
    pub shown: String,
    /// Whether the row is as it should be, if that can be said.
    pub is_good: Option<bool>,
}

/// Ratios that count as agreement: from a fifth less to a fifth more.
pub const BAND: [f64; 2] = [0.8, 1.2];
/// Marks that an axis may have. A ratio beyond the last is drawn at the edge, and its number says where it is.
const MARKS: [f64; 9] = [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

/// Draws all rows on one axis, with the band if it means anything for them.
pub fn ratios(dots: &[Dot], has_band: bool) -> String {
    let known = |ratio: &f64| ratio.is_finite() && *ratio > 0.0;
    let of = |start: f64, pick: fn(f64, f64) -> f64| dots.iter().map(|dot| dot.ratio).filter(known).fold(start, pick);
    let (least, most) = (of(BAND[0], f64::min), of(BAND[1], f64::max));
    let first = MARKS.iter().rposition(|mark| *mark <= least).unwrap_or(0);
    let last = MARKS.iter().position(|mark| *mark >= most).unwrap_or(MARKS.len() - 1);
    let (from, to) = (MARKS[first].ln(), MARKS[last].ln());
    // A ratio of 0 is drawn at the edge, and so is one that is no number.
    let place = |ratio: f64| if ratio > 0.0 { percent((ratio.ln() - from) / (to - from)) } else { percent(0.0) };
    let (left, right) = (place(BAND[0]), place(BAND[1]));
    let class = if has_band { "ratios band" } else { "ratios" };
    let mut text = format!("<div class=\"{class}\" style=\"--left:{left};--right:{right};--one:{}\">", place(1.0));
    for Dot { name, ratio, shown, is_good } in dots {
        let class = match is_good {
            Some(true) => "in",
            Some(false) => "out",
            None => "apart",
        };
        push(
            &mut text,
            format_args!(
                "<div class=\"name\">{}</div><div class=\"track\"><i class=\"{class}\" style=\"left:{}\"></i></div>\
                 <div class=\"value {class}\">{}</div>\n",
                escaped(name),
                place(*ratio),
                escaped(shown)
            ),
        );
    }
    text.push_str("<div class=\"name\"></div><div class=\"axis\">");
    for mark in &MARKS[first..=last] {
        push(&mut text, format_args!("<span style=\"left:{}\">{mark}</span>", place(*mark)));
    }
    text.push_str("<em>times the paper's figure</em></div><div class=\"value\"></div></div>\n");
    text
}
