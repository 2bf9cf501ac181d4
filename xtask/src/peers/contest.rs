//! Sides that are measured against each other.

use super::Setting;

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    MillionPerSecond,
    Nanoseconds,
    GigabitPerSecond,
    ThousandPerSecond,
    Seconds,
}

impl Unit {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::MillionPerSecond => "mops",
            Self::Nanoseconds => "ns",
            Self::GigabitPerSecond => "gbps",
            Self::ThousandPerSecond => "kops",
            Self::Seconds => "s",
        }
    }

    /// Formats a figure for people.
    pub fn show(self, figure: f64) -> String {
        match self {
            Self::MillionPerSecond if figure < 1.0 => format!("{figure:.3} M/s"),
            Self::MillionPerSecond => format!("{figure:.1} M/s"),
            Self::Nanoseconds => format!("{figure:.0} ns"),
            Self::GigabitPerSecond => format!("{figure:.1} Gbps"),
            Self::ThousandPerSecond => format!("{figure:.1} K/s"),
            Self::Seconds => format!("{figure:.2} s"),
        }
    }

    /// Returns how many times better than `theirs` a figure `ours` is.
    pub fn ratio(self, ours: f64, theirs: f64) -> f64 {
        match self {
            Self::Nanoseconds | Self::Seconds => theirs / ours,
            Self::MillionPerSecond | Self::GigabitPerSecond | Self::ThousandPerSecond => ours / theirs,
        }
    }
}

type Measure = dyn Fn(&Setting) -> anyhow::Result<f64>;

/// Takes one measurement.
pub struct Runner(Box<Measure>);

impl Runner {
    pub fn new(measure: impl Fn(&Setting) -> anyhow::Result<f64> + 'static) -> Self {
        Self(Box::new(measure))
    }

    pub fn run(&self, setting: &Setting) -> anyhow::Result<f64> {
        (self.0)(setting)
    }
}

/// A system's name, and a check that the system is here; if it is not, the error says what to do.
pub type Peer = (&'static str, fn() -> Result<(), String>);

/// One system in one contest.
pub struct Side {
    pub system: &'static str,
    pub name: String,
    /// Operations of this peer that one of ours counts for.
    pub counts: f64,
    pub measure: Runner,
}

/// This system and its peers at the same task.
pub struct Contest {
    pub title: String,
    pub unit: Unit,
    pub ours: Side,
    pub peers: Vec<Side>,
}
