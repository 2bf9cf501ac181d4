//! Table 3 and Figure 7: sequencers.

use sinew_harness::units::counted;

use super::{WINDOWS, baseline, batched, multi_queue, profile};
use crate::experiment::{Comparison, Experiment, Row};
use crate::services::sequencer::{Design, SequencerResult, SequencerRun};

/// Experiment for Table 3 and Figure 7.
pub struct Table3;

/// Client processes (4.2).
const CLIENTS: usize = 70;
/// Numbers of cores at which the curves are drawn; the hosts have 14.
const CORES: [usize; 6] = [1, 2, 4, 6, 10, 14];

/// A line of the figure: the suffix of its rows' names, its name, and the server's design.
type Line = (&'static str, &'static str, Design);

fn lines() -> [Line; 4] {
    [
        ("base", "HERD RPC", Design::Herd(baseline())),
        ("batch", "HERD RPC, batches", Design::Herd(batched(CLIENTS))),
        ("multiq", "HERD RPC, batches, three queue pairs a port", Design::Herd(multi_queue(CLIENTS))),
        ("spec_s0", "Spec-S0", Design::Spec { queue_pairs: 2, is_batched: true }),
    ]
}

/// Rates of the paper: the row's name, the line, the number of cores, millions of calls per second, and the place.
const RATES: [(&str, &str, usize, f64, &str); 5] = [
    ("seq.core.base", "base", 1, 7.0, "4.2"),
    ("seq.core.batch", "batch", 1, 16.6, "4.2"),
    ("seq.core.multiq", "multiq", 1, 27.4, "4.2"),
    ("seq.rpcopts", "multiq", 6, 97.2, "Table 3"),
    ("seq.10core", "multiq", 10, 84.0, "4.2"),
];

const REMARK: &str = "The paper does not say how many requests each client had in flight: each point has the shortest \
    window of 2, 4, 8 and 16 that comes within 5 % of the best, and batches are longer or shorter with it. The \
    baseline's peak is limited by the shared word, which moves from core to core: it is calibrated on that. Queue \
    pairs are bound to units in turn, so that with some numbers of cores a few units have one more than others, and \
    hold up those that share them: the curves have dents.";

impl Experiment for Table3 {
    fn id(&self) -> &'static str {
        "atc16-table3"
    }

    fn title(&self) -> &'static str {
        "Sequencers on a Connect-IB"
    }

    fn source(&self) -> &'static str {
        "atc16 4.2, Table 3 and Figure 7"
    }

    fn setup(&self) -> &'static str {
        "70 clients on five hosts with a modelled Connect-IB each, and the real servers, clients and drivers of this \
         repository's sequencers. A host's two ports are one link of twice the rate; workers still have a queue pair \
         for each port. The counter that workers share is a word that moves from core to core."
    }

    fn remark(&self) -> &'static str {
        REMARK
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let cib = profile("cib");
        let (mut rows, mut done) = (Vec::new(), 0.0);
        let steps = (lines().len() * CORES.len() + 1) as f64;
        let row = |id: &str, metric: String, model, paper: Option<(&'static str, f64)>, unit| {
            let (place, paper) = paper.unzip();
            Row::model(id, metric, model, unit).published(&cib, place.unwrap_or_default(), paper)
        };
        for (line, name, design) in lines() {
            let mut peak = 0.0f64;
            for cores in CORES {
                progress(done / steps);
                done += 1.0;
                let found = SequencerRun::atc16(design, cores).best(&cib, WINDOWS);
                peak = peak.max(found.mops);
                let paper = RATES.iter().find(|(_, of, at, ..)| (*of, *at) == (line, cores));
                let fallback = format!("seq.{line}.{cores}");
                let (id, paper) = paper.map_or((&*fallback, None), |(id, _, _, rate, at)| (*id, Some((*at, *rate))));
                rows.push(row(id, counted(cores, "core"), found.mops, paper, "M/s").case(name));
                let batches = [(6, "seq.6core.batchsize", 15.9), (10, "seq.10core.batchsize", 4.4)];
                for (at, id, batch) in batches.into_iter().filter(|(at, ..)| line == "multiq" && *at == cores) {
                    let metric = format!("{}, responses per batch", counted(at, "core"));
                    let found = row(id, metric, found.batch, Some(("4.2", batch)), "responses").case(name);
                    rows.push(Row {
                        against: Comparison::Other("the paper's, whose clients' windows it does not say"),
                        ..found
                    });
                }
            }
            let of_all = match line {
                "base" => Some(("seq.baseline", 26.0)),
                "spec_s0" => Some(("seq.spec_s0", 122.0)),
                _ => None,
            };
            if let Some((id, paper)) = of_all {
                rows.push(row(id, "at most".to_owned(), peak, Some(("Table 3", paper)), "M/s").case(name));
            }
        }
        progress(done / steps);
        rows.push(
            row("seq.atomics", "at most".to_owned(), atomics().mops, Some(("Table 3", 2.24)), "M/s")
                .case("fetch-and-add"),
        );
        rows
    }
}

fn atomics() -> SequencerResult {
    SequencerRun { measured_ns: 2_000_000, window: 4, ..SequencerRun::atc16(Design::Atomics, 1) }.run(&profile("cib"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_limits_each_design_is_what_limits_the_papers() {
        let cib = profile("cib");
        let of =
            |line: usize, cores| SequencerRun { window: 8, ..SequencerRun::atc16(lines()[line].2, cores) }.run(&cib);
        // The limits are a core, then a core's queue pairs, and then neither of these (4.2).
        let [base, batch, multi] = [0, 1, 2].map(|line| of(line, 1).mops);
        assert!(base < 8.0 && (14.0..18.0).contains(&batch) && multi > 1.3 * batch, "{base} {batch} {multi}");
        // "throughput drops because the response batch size are smaller" (4.2). In the model, too, batches are smaller
        // with more cores.
        let (six, ten) = (of(2, 6), of(2, 10));
        assert!(ten.batch < six.batch && six.mops > 70.0, "{six:?} {ten:?}");
        let atomics = atomics().mops;
        assert!((2.0..2.4).contains(&atomics), "{atomics}");
    }
}
