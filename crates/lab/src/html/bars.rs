//! Horizontal bars in pairs: the paper's value, and the one that was found.

use super::axis::{label, marks, percent};
use super::{escaped, push};
use sinew_harness::units::figure;

/// A pair of bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Name of the pair.
    pub name: String,
    /// The paper's value.
    pub paper: Option<f64>,
    /// The value that was found.
    pub found: Option<f64>,
}

/// Bars on one axis, which `unit` names.
pub fn bars(unit: &str, bars: &[Bar]) -> String {
    let values = bars.iter().flat_map(|bar| [bar.paper, bar.found]).flatten();
    let marks = marks(values.filter(|value| value.is_finite()).fold(0.0, f64::max));
    let most = marks.last().copied().unwrap_or(1.0);
    let mut text = String::from("<div class=\"bars\">");
    for Bar { name, paper, found } in bars {
        push(&mut text, format_args!("<div class=\"name\">{}</div><div class=\"track\">", escaped(name)));
        for (class, value) in [("paper", paper), ("found", found)] {
            let Some(value) = value.filter(|value| value.is_finite()) else { continue };
            let (width, shown) = (percent(value / most), figure(value));
            push(
                &mut text,
                format_args!(
                    "<div class=\"bar\"><i class=\"{class}\" style=\"width:{width}\"></i><b>{shown}</b></div>"
                ),
            );
        }
        text.push_str("</div>\n");
    }
    text.push_str("<div class=\"name\"></div><div class=\"axis\">");
    for mark in &marks {
        push(&mut text, format_args!("<span style=\"left:{}\">{}</span>", percent(mark / most), label(*mark)));
    }
    push(&mut text, format_args!("<em>{}</em></div></div>\n", escaped(unit)));
    text
}
