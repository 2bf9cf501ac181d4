//! One picture of all predictions: an SVG with a line for each paper and a dot for each simulated row, placed by its
//! ratio to the published figure.

use std::fmt::Write;

use super::Done;
use crate::experiment::{Comparison, Error};
use crate::html::{BAND, escaped};

/// Names of the papers, in the order of their publication.
const PAPERS: [(&str, &str); 6] = [
    ("sigcomm14", "HERD"),
    ("nsdi15", "G-Opt"),
    ("atc16", "Design guidelines"),
    ("nsdi19", "eRPC"),
    ("apnet19", "RoCE configuration"),
    ("rdmabox", "RDMAbox"),
];

/// Ratios at the ends of the axis. A dot beyond one is drawn at that end.
const ENDS: [f64; 2] = [0.25, 4.0];
/// Marks of the axis, and their labels.
const MARKS: [(f64, &str); 7] =
    [(0.25, "1/4"), (0.5, "1/2"), (0.8, "0.8"), (1.0, "1"), (1.2, "1.2"), (2.0, "2"), (4.0, "4")];

const LEFT: f64 = 190.0;
const RIGHT: f64 = 800.0;
const WIDTH: f64 = 970.0;
const TOP: f64 = 84.0;
const RADIUS: f64 = 3.5;
/// Least distance of two dots' centres.
const APART: f64 = 2.0 * RADIUS - 0.5;
/// Least height of a paper's line.
const LINE: f64 = 44.0;

const STYLE: &str = "\
.t{font-size:15px;font-weight:600;fill:#1c2430}.s{font-size:13px;font-weight:400;fill:#5a6573}\
.n{font-size:12px;fill:#5a6573}.g{stroke:#d8dde4;stroke-width:1}.w{fill:#dff1e6}.b{fill:#fff}\
.in{fill:#1f7a4d;fill-opacity:.75}.out{fill:#b4471b;fill-opacity:.75}
@media (prefers-color-scheme:dark){.t{fill:#e4e8ee}.s,.n{fill:#9aa6b4}.g{stroke:#323b47}.w{fill:#1b3a2a}.b{fill:#14181e}\
.in{fill:#5ec58f}.out{fill:#f0955f}}";

/// Predictions of a paper's figures, as ratios to these, in ascending order.
struct Line {
    name: &'static str,
    paper: &'static str,
    ratios: Vec<f64>,
}

/// The simulated rows that run what the paper ran, with no parameter set by the paper's figure; rows in per cent are
/// left out. A paper without such a row has no line. Other programs, which may have disturbed measured rows, do not
/// change these.
fn lines(results: &[Done<'_>]) -> Vec<Line> {
    let of_paper = |&(paper, name): &(&'static str, &'static str)| {
        let rows = results
            .iter()
            .filter(|done| done.experiment.paper() == paper)
            .flat_map(|done| &done.rows)
            .filter(|row| row.model.is_some() && row.against == Comparison::Same);
        let ratio = |error| if let Error::Relative(part) = error { Some(1.0 + part) } else { None };
        let mut ratios: Vec<f64> =
            rows.filter_map(|row| ratio(row.error()?)).filter(|ratio| ratio.is_finite()).collect();
        ratios.sort_by(f64::total_cmp);
        (!ratios.is_empty()).then_some(Line { name, paper, ratios })
    };
    PAPERS.iter().filter_map(of_paper).collect()
}

fn is_within(ratio: f64) -> bool {
    (BAND[0] - 1e-9..=BAND[1] + 1e-9).contains(&ratio)
}

/// Median distance of ratios from 1, in per cent.
fn median_error_percent(ratios: &[f64]) -> f64 {
    let mut errors: Vec<f64> = ratios.iter().map(|ratio| (ratio - 1.0).abs() * 100.0).collect();
    errors.sort_by(f64::total_cmp);
    f64::midpoint(errors[(errors.len() - 1) / 2], errors[errors.len() / 2])
}

fn x_of(ratio: f64) -> f64 {
    let part = (ratio.clamp(ENDS[0], ENDS[1]) / ENDS[0]).ln() / (ENDS[1] / ENDS[0]).ln();
    LEFT + part * (RIGHT - LEFT)
}

/// Places of dots whose horizontal places are given in ascending order: each is as near to the line as dots beside it
/// allow. The second number is the distance from the line, upwards if negative.
fn swarm(xs: &[f64]) -> Vec<(f64, f64)> {
    let mut placed: Vec<(f64, f64)> = Vec::with_capacity(xs.len());
    for &x in xs {
        let first = placed.partition_point(|(other, _)| *other <= x - APART);
        let beside = &placed[first..];
        let is_free = |y: f64| beside.iter().all(|(other_x, other_y)| (other_x - x).hypot(other_y - y) >= APART - 1e-9);
        // Each dot beside it blocks less than two steps, so one of these is free.
        let steps = (0..=4 * beside.len() + 1).map(|step| f64::from(step.div_ceil(2) as u32) * APART / 2.0);
        let y = steps.enumerate().map(|(step, y)| if step % 2 == 0 { y } else { -y }).find(|y| is_free(*y));
        placed.push((x, y.unwrap_or(0.0)));
    }
    placed
}

/// The picture. It is the same on every machine, as it leaves out what is measured.
pub fn svg(results: &[Done<'_>]) -> String {
    let lines = lines(results);
    let (total, within) = lines
        .iter()
        .flat_map(|line| &line.ratios)
        .fold((0, 0), |(total, within), ratio| (total + 1, within + usize::from(is_within(*ratio))));
    let mut body = String::new();
    let mut y = TOP;
    for Line { name, paper, ratios } in &lines {
        let dots = swarm(&ratios.iter().map(|ratio| x_of(*ratio)).collect::<Vec<_>>());
        let most = dots.iter().map(|(_, y)| y.abs()).fold(0.0, f64::max);
        let height = LINE.max(2.0 * (most + RADIUS) + 12.0);
        let middle = y + height / 2.0;
        let predictions = if ratios.len() == 1 { "prediction" } else { "predictions" };
        // Writing to a string cannot fail.
        let _ = writeln!(
            body,
            "<text x=\"{:.0}\" y=\"{:.1}\" class=\"t\" text-anchor=\"end\">{}</text>\n\
             <text x=\"{:.0}\" y=\"{:.1}\" class=\"n\" text-anchor=\"end\">{}</text>\n\
             <text x=\"{:.0}\" y=\"{:.1}\" class=\"n\">{} {predictions}</text>\n\
             <text x=\"{:.0}\" y=\"{:.1}\" class=\"n\">median error {:.1} %</text>",
            LEFT - 14.0,
            middle - 2.0,
            escaped(name),
            LEFT - 14.0,
            middle + 14.0,
            escaped(paper),
            RIGHT + 14.0,
            middle - 3.0,
            ratios.len(),
            RIGHT + 14.0,
            middle + 13.0,
            median_error_percent(ratios),
        );
        for ((x, dy), ratio) in dots.iter().zip(ratios) {
            let class = if is_within(*ratio) { "in" } else { "out" };
            let _ = write!(body, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"{RADIUS}\"/>", middle + dy);
        }
        body.push('\n');
        y += height;
    }
    let mut axis = format!(
        "<rect class=\"w\" x=\"{:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\"/>\n",
        x_of(BAND[0]),
        x_of(BAND[1]) - x_of(BAND[0]),
        y - TOP
    );
    for (mark, label) in MARKS {
        let x = x_of(mark);
        let _ = writeln!(
            axis,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{y:.1}\" class=\"g\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" class=\"n\" text-anchor=\"middle\">{label}</text>",
            y + 18.0
        );
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {:.0}\" \
         font-family=\"system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif\">\n\
         <title>Predictions beside published figures</title>\n<style>{STYLE}</style>\n\
         <rect class=\"b\" width=\"100%\" height=\"100%\"/>\n\
         <text x=\"24\" y=\"34\" class=\"t\">Simulated figures, as multiples of the published ones</text>\n\
         <text x=\"24\" y=\"56\" class=\"s\">{within} of {total} predictions are within 20 % (green); none sets a \
         parameter by the figure that it predicts. Dots beyond an end are drawn there.</text>\n{axis}{body}</svg>\n",
        y + 34.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Experiment, Row};

    struct OfHerd;

    impl Experiment for OfHerd {
        fn id(&self) -> &'static str {
            "sigcomm14-one"
        }

        fn title(&self) -> &'static str {
            "one"
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

    fn row(paper: f64, model: f64, against: Comparison, unit: &'static str) -> Row {
        Row::model("a", "latency", model, unit).paper("Table 1", paper, against)
    }

    fn picture(rows: Vec<Row>, complaint: Option<String>) -> String {
        svg(&[Done { experiment: &OfHerd, rows, complaint }])
    }

    #[test]
    fn only_simulated_predictions_are_drawn() {
        let measured = Row { measured: Some(1.0), model: None, ..row(1.0, 1.0, Comparison::Same, "us") };
        let rows = vec![
            row(10.0, 11.0, Comparison::Same, "us"),
            row(10.0, 30.0, Comparison::Same, "M/s"),
            row(10.0, 11.0, Comparison::Calibrated, "us"),
            row(10.0, 11.0, Comparison::AtMost, "us"),
            row(10.0, 11.0, Comparison::Other("its Timely"), "us"),
            row(10.0, 11.0, Comparison::Same, "%"),
            measured,
        ];
        let drawn = picture(rows.clone(), None);
        assert_eq!((drawn.matches("<circle").count(), drawn.matches("class=\"in\"").count()), (2, 1), "{drawn}");
        assert!(
            drawn.contains("1 of 2 predictions")
                && drawn.contains(">HERD</text>")
                && drawn.contains(">sigcomm14</text>"),
            "{drawn}"
        );
        assert!(drawn.contains("median error 105.0 %"), "{drawn}");
        assert_eq!(picture(rows, Some("busy".to_owned())), drawn, "other programs do not change what is simulated");
    }

    #[test]
    fn values_beyond_the_axis_or_that_are_no_numbers_break_nothing() {
        for found in [0.0, -1.0, 1e300, f64::MIN_POSITIVE, f64::NAN, f64::INFINITY] {
            let drawn = picture(vec![row(1.0, found, Comparison::Same, "us")], None);
            assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{found}: {drawn}");
        }
        assert_eq!([x_of(0.0), x_of(ENDS[0]), x_of(ENDS[1]), x_of(1e300)], [LEFT, LEFT, RIGHT, RIGHT]);
    }

    #[test]
    fn dots_do_not_overlap() {
        let mut xs: Vec<f64> = (0..60).map(|index| 100.0 + f64::from(index * index % 37)).collect();
        xs.extend([150.0; 20]);
        xs.sort_by(f64::total_cmp);
        let placed = swarm(&xs);
        for (index, (x, y)) in placed.iter().enumerate() {
            for (other_x, other_y) in &placed[..index] {
                assert!((x - other_x).hypot(y - other_y) >= APART - 1e-9, "{x} {y} beside {other_x} {other_y}");
            }
        }
        assert_eq!(swarm(&[3.0]), [(3.0, 0.0)]);
    }
}
