//! `sinew forward patterns`: searches of payloads, in four ways.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use sinew::fabric::SeededGenerator;
use sinew::forward::rules;
use sinew::host::Interrupt;
use sinew_harness::patterns::{Patterns, SearchMethod, Sizes};
use sinew_harness::run::{Interrupted, Progress};
use sinew_harness::units::parse_count;
use sinew_harness::{Comparison, Figure, MeasureSides, Unit, machine, units};

use crate::measure::{MeasureArgs, with_progress};
use crate::{Outcome, Usage, infile};

pub const HELP: &str = "\
One thread searches payloads for patterns, each with one of several automata, as Snort does (nsdi15 5). It does so in
four ways: in batches of 8,192 that are sorted by automaton and length and walked eight at a time; one payload after
another; eight at a time in order of arrival; and with the DFA of the aho-corasick crate. The ways take turns in the
same run, and each payload's hits are compared.

Without --rules, patterns are drawn from --seed: words with punctuation between them, and arbitrary bytes, of 13
states each; group sizes fall with their rank. Half of the payloads have 64 to 256 bytes, half 512 to 1,460; nine of
ten consist of such words, and one in 50 contains a whole pattern. With --rules, patterns are grouped by protocol and
port.

Examples:
  sinew forward patterns
  sinew forward patterns --rules community.rules --json";

/// Options of `sinew forward patterns`.
#[derive(clap::Args)]
pub struct Args {
    /// File of Snort rules, at most 256 MB, whose contents are searched for [default: patterns are drawn]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["patterns", "groups"])]
    rules: Option<PathBuf>,
    /// Number of patterns to draw, 1 to 1000000 [default: 23331]
    #[arg(long, value_parser = parse_count)]
    patterns: Option<usize>,
    /// Groups of patterns, each with an automaton, at most as many as --patterns [default: 450]
    #[arg(long, value_parser = parse_count)]
    groups: Option<usize>,
    /// Seed from which patterns and payloads are drawn
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    seed: u64,
    #[command(flatten)]
    measure: MeasureArgs,
}

const RULES_LEN_MAX: u64 = 256 << 20;

impl Args {
    fn sizes(&self) -> anyhow::Result<Sizes> {
        let patterns = self.patterns.unwrap_or(Sizes::PAPER.patterns);
        let groups = self.groups.unwrap_or(Sizes::PAPER.groups.min(patterns));
        ensure!((1..=1_000_000).contains(&patterns), "--patterns can be 1 to 1000000");
        ensure!((1..=patterns).contains(&groups), "--groups can be 1 to {patterns}, as many as there are patterns");
        Ok(Sizes { patterns, groups, payloads: Sizes::PAPER.payloads })
    }

    fn patterns(&self, sizes: Sizes) -> anyhow::Result<Patterns> {
        let Some(path) = &self.rules else { return Patterns::new(sizes, self.seed) };
        let contents = infile::read_up_to(path, RULES_LEN_MAX, |text| Ok(rules::parse(text)?))?;
        let mut groups = BTreeMap::<_, Vec<_>>::new();
        for content in contents {
            groups.entry((content.protocol, content.ports)).or_default().push(content.pattern);
        }
        Patterns::of(groups.into_values().collect(), sizes.payloads, SeededGenerator::new(self.seed))
            .with_context(|| path.display().to_string())
    }
}

struct Sides(Patterns);

impl MeasureSides for Sides {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        self.0.gbps(SearchMethod::ALL[side], duration).map(Some)
    }
}

/// Runs the benchmark.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    args.measure.check_thresholds(Unit::Gbps).map_err(Usage::of)?;
    let sizes = args.sizes().map_err(Usage::of)?;
    let figure = with_progress(|progress| measure(args, sizes, progress))?;
    args.measure.show(&figure)
}

fn measure(args: &Args, sizes: Sizes, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    let setting = args.measure.setting((1, 0), false).map_err(Usage::of)?;
    machine::pin(setting.client_cpus[0])?;
    progress("making automata", 0.0);
    let patterns = args.patterns(sizes)?;
    ensure!(!interrupt.is_set(), Interrupted);
    let (automata, states, bytes) = patterns.size();
    let (crate_bytes, hits_per_kb) = (patterns.crate_bytes(), patterns.hits_per_kb());
    let mut sides = Sides(patterns);
    let measured =
        setting.run(1, [], None, interrupt).measure_alternately(SearchMethod::ALL.len(), &mut sides, progress)?;
    let kind = if automata == 1 { "automaton" } else { "automata" };
    let title = format!("{automata} {kind} of {}", units::counted(states, "state"));
    let figure = measured.figure("forward patterns", title, Unit::Gbps, 0);
    let mut figure = figure.compared_with(&measured, 1, Comparison::Baseline, "payload after payload");
    let times = |theirs| measured.median_ratio(0, theirs).map(units::rounded);
    let gbps = |side| {
        let slices = measured.slices(side);
        (!slices.is_empty()).then(|| units::rounded(units::median(&slices)))
    };
    let [times_plain, times_interchanged, times_crate] = [1, 2, 3].map(times);
    let [plain, interchanged, by_crate] = [1, 2, 3].map(gbps);
    let source = args.rules.as_ref().map(|path| path.display().to_string());
    figure.setup = json!({ "automata": automata, "states": states, "seed": args.seed, "rules": source });
    figure.details = json!({
        "plain_gbps": plain,
        "interchanged_gbps": interchanged,
        "crate_gbps": by_crate,
        "times_plain": times_plain,
        "times_interchanged": times_interchanged,
        "times_crate": times_crate,
        "hits_per_kb": units::rounded(hits_per_kb),
        "table_bytes": bytes,
        "crate_bytes": crate_bytes,
    });
    let text = |value: Option<f64>| value.map(units::figure).unwrap_or_default();
    figure.lines = vec![
        format!(
            "eight at once, unsorted: {} Gbps; the aho-corasick crate's DFA: {} Gbps",
            text(interchanged),
            text(by_crate)
        ),
        format!(
            "{} times payload after payload, {} times the crate; tables of {}, the crate's of {}; {} hits in 1,000 bytes",
            text(times_plain),
            text(times_crate),
            units::size(bytes),
            units::size(crate_bytes),
            units::figure(hits_per_kb)
        ),
    ];
    Ok(figure)
}
