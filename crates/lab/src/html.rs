//! Self-contained HTML pages, with plots that follow the width of the window and the reader's choice of light or dark.
//!
//! Plots are HTML boxes whose lengths are relative to their container, and lines are SVG that is stretched while its
//! strokes are not, so text has one size on every screen.
//!
//! The pages are HTML and CSS alone; no script is needed.

mod axis;
mod bars;
mod lines;
mod ratios;

use std::fmt::{Display, Write};

pub use bars::{Bar, bars};
pub use lines::{MarkedSpan, Panel, panels};
pub use ratios::{BAND, Dot, ratios};

const STYLE: &str = include_str!("html/style.css");

/// A page with a title around a body, which is HTML.
pub fn page(title: &str, body: &str) -> String {
    let title = escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>Sinew: {title}</title>\
         <style>{STYLE}</style></head>\n<body><main><h1>{title}</h1>{body}</main></body></html>\n"
    )
}

/// Escapes a text for a page, or for an attribute in double quotes.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(char),
        }
    }
    escaped
}

/// A paragraph.
pub fn paragraph(text: &str) -> String {
    format!("<p>{}</p>", escaped(text))
}

/// A table, which scrolls sideways if it is wider than the window. A row with a single cell is a heading for the rows
/// below it.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = String::from("<div class=\"wide\"><table><tr>");
    header.iter().for_each(|cell| push(&mut text, format_args!("<th>{}</th>", escaped(cell))));
    text.push_str("</tr>\n");
    for row in rows {
        text.push_str("<tr>");
        match &row[..] {
            [head] => {
                push(&mut text, format_args!("<td class=\"case\" colspan=\"{}\">{}</td>", header.len(), escaped(head)))
            }
            cells => cells.iter().for_each(|cell| push(&mut text, format_args!("<td>{}</td>", escaped(cell)))),
        }
        text.push_str("</tr>\n");
    }
    text + "</table></div>\n"
}

/// Figures to be seen first: the name and the value of each.
pub fn tiles(tiles: &[(&str, String)]) -> String {
    let mut text = String::from("<dl class=\"tiles\">");
    for (what, value) in tiles {
        push(&mut text, format_args!("<div><dt>{}</dt><dd>{}</dd></div>", escaped(what), escaped(value)));
    }
    text + "</dl>\n"
}

/// Appends to a text.
fn push(text: &mut String, more: impl Display) {
    // Writing to a string cannot fail.
    let _ = write!(text, "{more}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_from_elsewhere_are_text_wherever_they_stand() {
        let hostile = "\"><script>alert('&')</script>";
        let safe = "&quot;&gt;&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;";
        let series =
            Panel { name: hostile.to_owned(), unit: "Gbps", summary: hostile.to_owned(), lines: vec![vec![1.0, 2.0]] };
        let shade = MarkedSpan { name: hostile.to_owned(), from: 0.0, to: 1.0, is_fault: true };
        let dot = Dot { name: hostile.to_owned(), ratio: 2.0, shown: hostile.to_owned(), is_good: None };
        let bar = Bar { name: hostile.to_owned(), paper: Some(1.0), found: None };
        for part in [
            page(hostile, ""),
            paragraph(hostile),
            table(&[hostile], &[vec![hostile.to_owned()]]),
            tiles(&[(hostile, hostile.to_owned())]),
            bars(hostile, &[bar.clone(), bar]),
            panels("time", &[0.5, 1.0], &[series], &[shade]),
            ratios(&[dot], true),
        ] {
            assert!(!part.contains("<script") && part.contains(safe), "{part}");
        }
    }

    #[test]
    fn values_that_are_no_numbers_draw_nothing_and_break_nothing() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, f64::MAX, f64::MIN_POSITIVE] {
            let bar = Bar { name: String::new(), paper: Some(value), found: Some(1.0) };
            let panel = Panel { name: String::new(), unit: "", summary: String::new(), lines: vec![vec![value, 1.0]] };
            let dot = Dot { name: String::new(), ratio: value, shown: String::new(), is_good: None };
            let drawn =
                bars("", &[bar.clone(), bar]) + &panels("", &[value, 1.0], &[panel], &[]) + &ratios(&[dot], true);
            for wrong in ["NaN", "inf"] {
                assert!(!drawn.contains(wrong), "{value}: {drawn}");
            }
        }
    }
}
