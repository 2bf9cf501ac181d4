//! The report: one HTML file, whose first page says how far the paper and the results agree.

use std::collections::BTreeSet;

use sinew_harness::units::figure;

use super::{Done, missing, standing, table as lines_of};
use crate::experiment::{Comparison, Error, Row};
use crate::html::{BAND, Bar, Dot, bars, escaped, page, paragraph, ratios, table, tiles};

/// The report of some experiments.
pub fn html(results: &[Done<'_>]) -> String {
    let mut body = front(results);
    for (index, done) in results.iter().enumerate() {
        body.push_str(&section(index, done));
    }
    page("Published figures, run again", &body)
}

/// Rows that count, and are compared with the paper in one way.
fn held<'a>(results: &'a [Done<'_>], how: fn(Comparison) -> bool) -> Vec<&'a Row> {
    let counted = results.iter().flat_map(Done::counted);
    counted.filter(|row| row.ratio().is_some() && how(row.against)).collect()
}

/// The headline, a plot of all rows that run what the paper ran, the table of contents, and plots of the other rows
/// that the paper has.
fn front(results: &[Done<'_>]) -> String {
    let is_points = |row: &&Row| matches!(row.error(), Some(Error::Points(_)));
    let same = held(results, |against| against == Comparison::Same);
    let (points, same): (Vec<&Row>, Vec<&Row>) = same.into_iter().partition(is_points);
    let bounds = held(results, |against| matches!(against, Comparison::AtMost | Comparison::AtLeast));
    let calibrated = held(results, |against| against == Comparison::Calibrated);
    let others = held(results, |against| matches!(against, Comparison::Other(_)));
    let mut text = paragraph(
        "Figures of published papers, beside those of this code: on simulated clusters, and on this machine where an \
         experiment says so.",
    );
    text.push_str(&headline(&same, &bounds));
    text.push_str(&papers(results));
    let invalid: Vec<&str> =
        results.iter().filter(|done| done.complaint.is_some()).map(|done| done.experiment.title()).collect();
    if !invalid.is_empty() {
        text.push_str(&format!(
            "<p class=\"bad\">Invalid, and not counted here: {}.</p>",
            escaped(&invalid.join("; "))
        ));
    }
    text.push_str(&plot_of(
        "Rows that run what the paper ran",
        "Each row is a figure of the paper; its mark shows the value found here as a multiple of the paper's. The axis \
         is logarithmic: the middle line is the paper's value, with a band of 20 % around it.",
        &same,
        true,
    ));
    text.push_str("<nav><h3>Contents</h3><ol>");
    for (index, done) in results.iter().enumerate() {
        let (title, source) = (escaped(done.experiment.title()), escaped(done.experiment.source()));
        text.push_str(&format!("<li><a href=\"#e{index}\">{title}</a> <span class=\"soft\">{source}</span></li>"));
    }
    text.push_str("</ol></nav>");
    for (head, sentence, rows) in [
        (
            "Rows for which the paper has a bound",
            "A bound is kept on one side of the middle line, however far from it.",
            &bounds,
        ),
        (
            "Rows that are percentages themselves",
            "What counts is the difference in percentage points, which stands beside each row: the ratio of small \
             percentages says little.",
            &points,
        ),
        (
            "Calibrated rows",
            "The model was calibrated on these figures, or they follow from the set-up: that shows the calibration, \
             not agreement.",
            &calibrated,
        ),
    ] {
        text.push_str(&plot_of(head, sentence, rows, false));
    }
    for what in others.iter().filter_map(|row| other(row)).collect::<BTreeSet<_>>() {
        let rows: Vec<&Row> = others.iter().copied().filter(|row| other(row) == Some(what)).collect();
        text.push_str(&plot_of(
            &format!("Rows beside figures of {what}"),
            "The paper has no figure for what was run here. The difference is no error; the experiments below say \
             where it comes from.",
            &rows,
            false,
        ));
    }
    text
}

fn plot_of(head: &str, sentence: &str, rows: &[&Row], has_band: bool) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let dots: Vec<Dot> = rows.iter().filter_map(|row| dot(row)).collect();
    format!("<h3>{}</h3>{}{}", escaped(head), paragraph(sentence), ratios(&dots, has_band))
}

/// The other thing beside whose value a row stands, if there is one.
fn other(row: &Row) -> Option<&'static str> {
    if let Comparison::Other(what) = row.against { Some(what) } else { None }
}

fn dot(row: &Row) -> Option<Dot> {
    let ratio = row.ratio()?;
    let is_good = match row.against {
        Comparison::Same if row.unit != "%" => Some((BAND[0] - 1e-9..=BAND[1] + 1e-9).contains(&ratio)),
        Comparison::AtMost | Comparison::AtLeast => Some(keeps(row, ratio)),
        _ => None,
    };
    // The heading says for all rows what is left out here.
    let shown = match (row.against, row.error()) {
        (Comparison::Other(_), _) => format!("{} x", figure(ratio)),
        (Comparison::Calibrated, Some(Error::Relative(part))) => format!("{:+.1} %", part * 100.0),
        _ => standing(row),
    };
    Some(Dot { name: row.name(), ratio, shown, is_good })
}

/// Whether a row keeps to the paper's bound.
fn keeps(row: &Row, ratio: f64) -> bool {
    if row.against == Comparison::AtMost { ratio <= 1.0 } else { ratio >= 1.0 }
}

/// The number of rows that agree, the median and the worst error, and the number of bounds that are kept.
fn headline(same: &[&Row], bounds: &[&Row]) -> String {
    let errors = same.iter().filter_map(|row| match row.error() {
        Some(Error::Relative(part)) => Some((part, *row)),
        _ => None,
    });
    let mut errors: Vec<(f64, &Row)> = errors.collect();
    errors.sort_by(|(one, _), (other, _)| one.abs().total_cmp(&other.abs()));
    let mut figures = Vec::new();
    let worst = errors.last().map(|(part, row)| (format!("worst: {}", row.name()), format!("{:+.1} %", part * 100.0)));
    if let Some((median, _)) = errors.get(errors.len() / 2) {
        let within = errors.iter().filter(|(part, _)| part.abs() <= BAND[1] - 1.0 + 1e-9).count();
        let what = "rows are within 20 % of the paper, of those that run what it ran";
        figures.push((what, format!("{within} of {}", errors.len())));
        figures.push(("is the median error of these, whatever its sign", format!("{:.1} %", median.abs() * 100.0)));
    }
    figures.extend(worst.iter().map(|(what, value)| (&**what, value.clone())));
    if !bounds.is_empty() {
        let kept = bounds.iter().filter(|row| row.ratio().is_some_and(|ratio| keeps(row, ratio))).count();
        figures.push(("of the paper's bounds are kept", format!("{kept} of {}", bounds.len())));
    }
    if figures.is_empty() {
        return paragraph("None of these rows runs exactly what the paper ran: the experiments say what they show.");
    }
    tiles(&figures)
}

/// Error above which a row is counted as far off.
const FAR: f64 = 0.3;

/// Distance of each paper's rows from the model's predictions. Calibrated rows are counted apart.
fn papers<'a>(results: &'a [Done<'_>]) -> String {
    let names: BTreeSet<&str> = results.iter().map(|done| done.experiment.paper()).collect();
    let line = |name: &&str| {
        let of_paper = results.iter().filter(|done| done.experiment.paper() == *name);
        let rows: Vec<&'a Row> = of_paper.flat_map(Done::counted).collect();
        let parts = |against: Comparison| -> Vec<(f64, &'a Row)> {
            let held = rows.iter().filter(|row| row.against == against);
            let of =
                |row: &&'a Row| if let Some(Error::Relative(part)) = row.error() { Some((part, *row)) } else { None };
            held.filter_map(of).collect()
        };
        let (mut predicted, calibrated) = (parts(Comparison::Same), parts(Comparison::Calibrated).len());
        predicted.sort_by(|(one, _), (other, _)| one.abs().total_cmp(&other.abs()));
        let far = predicted.iter().filter(|(part, _)| part.abs() > FAR + 1e-9).count();
        let median = predicted.get(predicted.len() / 2).map(|(part, _)| format!("{:.1} %", part.abs() * 100.0));
        let worst = predicted.last().map(|(part, row)| format!("{:+.1} % ({})", part * 100.0, row.name()));
        let count = predicted.len().to_string();
        let figures = [count, median.unwrap_or_default(), worst.unwrap_or_default(), far.to_string()];
        (!rows.is_empty())
            .then(|| [(*name).to_owned()].into_iter().chain(figures).chain([calibrated.to_string()]).collect())
    };
    let lines: Vec<Vec<String>> = names.iter().filter_map(line).collect();
    if lines.is_empty() {
        return String::new();
    }
    let heads = ["paper", "predictions", "median error", "worst", "over 30 %", "calibrated, not counted"];
    let sentence = "Predictions are rows that run what the paper ran, with no parameter set by the paper's figure; \
        percentages are left out.";
    format!("<h3>Each paper</h3>{}{}", paragraph(sentence), table(&heads, &lines))
}

/// A section for an experiment: what it runs, plots of the results, the figures, and why they differ from the paper's.
fn section(index: usize, done: &Done<'_>) -> String {
    let Done { experiment, rows, complaint } = done;
    let mut text = format!("<h2 id=\"e{index}\">{}</h2>", escaped(experiment.title()));
    text.push_str(&format!("<p class=\"soft\">{} ({})</p>", escaped(experiment.source()), escaped(experiment.id())));
    text.push_str(&paragraph(experiment.setup()));
    if let Some(complaint) = complaint {
        text.push_str(&format!("<p class=\"bad\">Invalid: {}.</p>", escaped(complaint)));
    }
    if !experiment.remark().is_empty() {
        text.push_str(&paragraph(experiment.remark()));
    }
    missing(rows).iter().for_each(|sentence| text.push_str(&paragraph(sentence)));
    let mut units: Vec<&'static str> = Vec::new();
    for row in rows {
        if !units.contains(&row.unit) {
            units.push(row.unit);
        }
    }
    for unit in units {
        let of_unit = rows.iter().filter(|row| row.unit == unit && (row.paper.is_some() || row.found().is_some()));
        let pairs: Vec<Bar> =
            of_unit.map(|row| Bar { name: row.name(), paper: row.paper, found: row.found() }).collect();
        // A single figure is left to the table, and so is what the paper alone has.
        if pairs.len() > 1 && pairs.iter().any(|pair| pair.found.is_some()) {
            text.push_str(&plot(unit, &pairs, rows));
        }
    }
    let (heads, lines) = lines_of(rows);
    text + &table(&heads, &lines)
}

fn plot(unit: &str, pairs: &[Bar], rows: &[Row]) -> String {
    let has = |of: fn(&Row) -> Option<f64>| rows.iter().any(|row| of(row).is_some());
    let found = match (has(|row| row.model), has(|row| row.measured)) {
        (true, true) => "the model, or measured where it says so",
        (false, true) => "measured on this machine",
        _ => "the model",
    };
    let (has_paper, more) = (pairs.iter().any(|pair| pair.paper.is_some()), more_or_less(unit));
    let sentence = match has_paper {
        true => format!("All figures in {}: the paper's, and those found here; {more}.", in_words(unit)),
        false => format!("All figures in {}; the paper has none for them; {more}.", in_words(unit)),
    };
    let paper = if has_paper { "<i class=\"paper\"></i>the paper" } else { "" };
    let key = format!("<p class=\"key\">{paper}<i class=\"found\"></i>{found}</p>");
    format!("<h3>{}</h3>{}{key}{}", escaped(&heading(unit)), paragraph(&sentence), bars(&in_words(unit), pairs))
}

fn heading(unit: &str) -> String {
    let words = in_words(unit);
    let mut chars = words.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Name of a unit in full.
fn in_words(unit: &str) -> String {
    match unit {
        "us" => "microseconds",
        "Gbps" => "gigabits per second",
        "M/s" => "million calls per second",
        "/s" => "packets per second",
        "M" => "millions of packets",
        "%" => "per cent",
        other => other,
    }
    .to_owned()
}

fn more_or_less(unit: &str) -> &'static str {
    match unit {
        "us" => "shorter bars are quicker",
        "Gbps" | "M/s" => "longer bars are faster",
        "%" => "relative to the value before the step, or to what was possible",
        _ => "counts",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Experiment;

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

        fn remark(&self) -> &'static str {
            "a < remark"
        }

        fn run(&self, _: &mut dyn FnMut(f64)) -> Vec<Row> {
            Vec::new()
        }
    }

    fn row(metric: &str, paper: Option<f64>, model: Option<f64>, against: Comparison) -> Row {
        Row {
            id: "a".to_owned(),
            place: Some("Table 1"),
            case: String::new(),
            metric: metric.to_owned(),
            paper,
            against,
            model,
            measured: None,
            unit: "us",
            missing_because: None,
        }
    }

    fn report(rows: Vec<Row>, complaint: Option<&str>) -> String {
        html(&[Done { experiment: &One, rows, complaint: complaint.map(str::to_owned) }])
    }

    #[test]
    fn a_report_has_tables_and_plots_and_needs_nothing_else() {
        let rows = vec![
            row("a <b>", Some(1.0), Some(2.0), Comparison::Same),
            row("b", None, Some(3.0), Comparison::Same),
            Row { missing_because: Some("d < e".to_owned()), ..row("c", None, None, Comparison::Same) },
        ];
        let page = report(rows, Some("a < b"));
        assert!(page.contains("Invalid: a &lt; b.") && page.contains("not counted here: A &lt; B &amp; C"));
        assert!(page.contains("<h2 id=\"e0\">A &lt; B &amp; C</h2>") && page.contains("a &lt; remark"));
        assert!(page.contains("a &lt;b&gt;") && page.contains("+100.0 %"));
        assert!(page.contains("Not measured (c): d &lt; e."));
        assert_eq!(page.matches("class=\"bars\"").count(), 1);
        let elsewhere = page.matches("href=").count() - page.matches("href=\"#e").count();
        assert!(
            elsewhere == 0 && !page.contains("src=") && !page.contains("<script") && !page.contains("url("),
            "{page}"
        );
        assert!(page.contains("prefers-color-scheme:dark") && page.contains("width=device-width"));
    }

    #[test]
    fn the_first_page_counts_what_runs_what_the_paper_ran_and_nothing_else() {
        let rows = vec![
            row("near", Some(10.0), Some(12.0), Comparison::Same),
            row("near, too", Some(10.0), Some(9.5), Comparison::Same),
            row("far", Some(10.0), Some(7.0), Comparison::Same),
            row("set", Some(10.0), Some(10.0), Comparison::Calibrated),
            row("kept", Some(10.0), Some(1.0), Comparison::AtMost),
            row("broken", Some(10.0), Some(1.0), Comparison::AtLeast),
            row("another", Some(10.0), Some(90.0), Comparison::Other("its Timely")),
        ];
        let page = report(rows.clone(), None);
        let front = page.split("<h2").next().unwrap();
        for part in ["<dd>2 of 3</dd>", "<dd>20.0 %</dd>", "<dt>worst: far</dt><dd>-30.0 %</dd>", "<dd>1 of 2</dd>"] {
            assert!(front.contains(part), "{part}: {front}");
        }
        assert_eq!(
            front.matches("class=\"ratios").count(),
            4,
            "rows that compare with the paper in another way have plots of their own"
        );
        assert!(front.contains("Rows beside figures of its Timely") && front.contains("9.00 x<"));
        let of_paper = "<td>one</td><td>3</td><td>20.0 %</td><td>-30.0 % (far)</td><td>0</td><td>1</td>";
        assert!(front.contains(of_paper), "{front}");
        // Values measured while other programs ran mean nothing.
        let measured = rows.into_iter().map(|row| Row { measured: row.model, model: None, ..row }).collect();
        let page = report(measured, Some("busy"));
        assert!(!page.contains("class=\"ratios") && page.contains("None of these rows"), "{page}");
    }

    #[test]
    fn a_figure_that_is_alone_has_no_plot() {
        let page = report(vec![row("a", Some(1.0), Some(2.0), Comparison::Same)], None);
        assert!(!page.contains("class=\"bars\"") && page.contains("class=\"ratios band\""));
    }
}
