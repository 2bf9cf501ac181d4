//! Options that all benchmarks share, and how their results are shown.

use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use sinew::host::Interrupt;
use sinew_harness::machine::{self, Places};
use sinew_harness::reference::{References, Yardstick};
use sinew_harness::threshold::{Thresholds, Verdict};
use sinew_harness::units::parse_seconds;
use sinew_harness::{Figure, Run, figure};

use crate::{Outcome, output};

/// Options of every benchmark.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Measuring")]
pub struct MeasureArgs {
    /// Seconds for which each figure is measured, 0.01 to 86400; what it is compared with takes further time
    #[arg(long, visible_alias = "duration", default_value = "3", allow_negative_numbers = true, value_parser = parse_seconds)]
    pub seconds: Duration,
    /// Processors to pin threads to, separated by commas: one for each client thread, then one for each server thread
    /// [default: the first ones, if there are enough]
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Pin no threads: the system places them
    #[arg(long, conflicts_with = "pin")]
    no_pin: bool,
    /// File with the output of `sinew limits --json` from a quiet moment of this machine; if the machine is much slower
    /// now, the result is invalid
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// Print one JSON object (see docs/results.md)
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub thresholds: Thresholds,
}

impl MeasureArgs {
    /// Processors for these numbers of client and server threads.
    pub fn places(&self, threads: (usize, usize), is_server_elsewhere: bool) -> anyhow::Result<Places> {
        machine::places(&self.pin, self.no_pin, threads, is_server_elsewhere)
    }

    /// Reference figures of the machine.
    pub fn references(&self) -> anyhow::Result<References> {
        self.reference.as_deref().map(References::read).transpose().map(Option::unwrap_or_default)
    }

    /// Places and time for these numbers of client and server threads.
    pub fn setting(&self, threads: (usize, usize), is_server_elsewhere: bool) -> anyhow::Result<Setting> {
        let (client_cpus, server_cpus) = self.places(threads, is_server_elsewhere)?;
        let (duration, references) = (self.seconds, self.references()?);
        Ok(Setting { duration, client_cpus, server_cpus, is_server_elsewhere, references })
    }

    /// Checks that the thresholds apply to figures of this unit.
    pub fn check_thresholds(&self, unit: figure::Unit) -> anyhow::Result<()> {
        self.thresholds.check(unit).map_err(anyhow::Error::msg)
    }

    /// Prints a result, and judges it.
    pub fn show(&self, figure: &Figure) -> anyhow::Result<Outcome> {
        if self.json {
            output::print(figure.to_json())?;
        } else {
            output::print(figure.to_text(output::width()))?;
        }
        Ok(self.judge([figure]))
    }

    /// Prints several results, and judges them all: one that cannot be judged does not hide another's verdict.
    pub fn show_all(&self, figures: &[Figure], text: impl FnOnce() -> String) -> anyhow::Result<Outcome> {
        if self.json {
            output::print(figure::list(figures.iter().map(Figure::to_json)))?;
        } else {
            output::print(text())?;
        }
        Ok(self.judge(figures))
    }

    fn judge<'a>(&self, figures: impl IntoIterator<Item = &'a Figure>) -> Outcome {
        let judge = |figure| self.thresholds.judge(figure, &mut |text| output::complain(text));
        figures.into_iter().map(judge).max().unwrap_or(Verdict::Kept).into()
    }
}

/// Places of client and server threads, and the time to measure.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Sum of the slices of the measured side.
    pub duration: Duration,
    pub client_cpus: Vec<Option<usize>>,
    pub server_cpus: Vec<Option<usize>>,
    /// Whether the server was started elsewhere, so that its processors are unknown.
    pub is_server_elsewhere: bool,
    /// Reference figures of the machine.
    pub references: References,
}

impl Setting {
    /// A run whose first `judged` sides count, beside these server processes.
    pub fn run(
        &self,
        judged: usize,
        servers: impl IntoIterator<Item = u32>,
        yardstick: Option<Yardstick>,
        interrupt: Interrupt,
    ) -> Run<'_> {
        let own_cpus = if self.is_server_elsewhere { &[] } else { &self.server_cpus[..] };
        Run {
            duration: self.duration,
            pair: machine::pair(&self.client_cpus, &self.server_cpus),
            pins: [&self.client_cpus, own_cpus].concat(),
            servers: servers.into_iter().collect(),
            judged,
            yardstick: yardstick.map(|yardstick| (yardstick, &self.references)),
            interrupt,
        }
    }
}

impl From<Verdict> for Outcome {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Kept => Self::Done,
            Verdict::NotJudged => Self::NotJudged,
            Verdict::Missed => Self::ThresholdMissed,
        }
    }
}

/// Parses `words` as the options of a benchmark that takes `duration`.
pub fn parse_args<A: clap::Args>(words: &[&str], duration: Duration) -> anyhow::Result<A> {
    let command = A::augment_args(clap::Command::new("bench").no_binary_name(true));
    let seconds = format!("--seconds={}", duration.as_secs_f64());
    let matches = command.try_get_matches_from(words.iter().copied().chain([&*seconds]))?;
    Ok(A::from_arg_matches(&matches)?)
}

/// Shows the current activity and its progress while `work` runs, if standard error is a terminal.
pub fn with_progress<T>(work: impl FnOnce(&mut dyn FnMut(&str, f64)) -> T) -> T {
    let bar = ProgressBar::new(1000);
    bar.set_style(ProgressStyle::with_template("{wide_bar} {percent:>3} %  {msg:26}").expect("a fixed template"));
    let result = work(&mut |what, part| {
        bar.set_message(what.to_owned());
        bar.set_position((part * 1000.0) as u64);
    });
    bar.finish_and_clear();
    result
}
