//! What all benchmarks have in common on the command line, and how their results are shown.

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
    /// Seconds of measuring; what it stands beside takes about half as long again
    #[arg(long, visible_alias = "duration", default_value = "3", allow_negative_numbers = true, value_parser = parse_seconds)]
    pub seconds: Duration,
    /// Processors of the client threads, then of the server threads [default: 0,1,... where there are enough]
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Leave threads where the system puts them
    #[arg(long, conflicts_with = "pin")]
    no_pin: bool,
    /// What `sinew limits --json` printed on this machine when it was quiet: a result is invalid when the machine is much slower now
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// Print one JSON object (see docs/results.md)
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub thresholds: Thresholds,
}

impl MeasureArgs {
    /// The processors of so many client and server threads.
    pub fn places(&self, threads: (usize, usize), is_server_elsewhere: bool) -> anyhow::Result<Places> {
        machine::places(&self.pin, self.no_pin, threads, is_server_elsewhere)
    }

    /// What the machine is held against.
    pub fn references(&self) -> anyhow::Result<References> {
        self.reference.as_deref().map(References::read).transpose().map(Option::unwrap_or_default)
    }

    /// Where so many client and server threads are measured, and how.
    pub fn setting(&self, threads: (usize, usize), is_server_elsewhere: bool) -> anyhow::Result<Setting> {
        let (client_cpus, server_cpus) = self.places(threads, is_server_elsewhere)?;
        let (duration, references) = (self.seconds, self.references()?);
        Ok(Setting { duration, client_cpus, server_cpus, is_server_elsewhere, references })
    }

    /// Whether the thresholds can be held against figures of this unit.
    pub fn check_thresholds(&self, unit: figure::Unit) -> anyhow::Result<()> {
        self.thresholds.check(unit).map_err(anyhow::Error::msg)
    }

    /// Shows one result, and judges it.
    pub fn show(&self, figure: &Figure) -> anyhow::Result<Outcome> {
        if self.json {
            output::print(figure.to_json())?;
        } else {
            output::print(figure.to_text(output::width()))?;
        }
        Ok(self.judge([figure]))
    }

    /// Shows several results, and judges them: one that could not be judged hides no other.
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

/// Where client and server threads are measured, and how.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Of our slices together.
    pub duration: Duration,
    pub client_cpus: Vec<Option<usize>>,
    pub server_cpus: Vec<Option<usize>>,
    /// What a server uses that was not started here is not known to be its own.
    pub is_server_elsewhere: bool,
    /// What the machine is held against.
    pub references: References,
}

impl Setting {
    /// How the first `judged` sides are measured beside such server processes.
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

/// What the options of a benchmark are on a command line of these words.
pub fn as_told<A: clap::Args>(words: &[&str], duration: Duration) -> anyhow::Result<A> {
    let command = A::augment_args(clap::Command::new("bench").no_binary_name(true));
    let seconds = format!("--seconds={}", duration.as_secs_f64());
    let matches = command.try_get_matches_from(words.iter().copied().chain([&*seconds]))?;
    Ok(A::from_arg_matches(&matches)?)
}

/// Shows on a terminal what is done, and how much of it; nothing elsewhere. It is gone when `work` is done.
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
