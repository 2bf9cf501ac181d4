//! Sides that are measured against each other.

use super::Setting;

/// What a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    MillionPerSecond,
    Nanoseconds,
    GigabitPerSecond,
    ThousandPerSecond,
    Seconds,
}

impl Unit {
    /// As JSON names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::MillionPerSecond => "mops",
            Self::Nanoseconds => "ns",
            Self::GigabitPerSecond => "gbps",
            Self::ThousandPerSecond => "kops",
            Self::Seconds => "s",
        }
    }

    /// For people.
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

    /// How many times as good `ours` is.
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

/// A system's name, and what finds out whether it is here: if not, it says what to do.
pub type Peer = (&'static str, fn() -> Result<(), String>);

/// One system in one contest.
pub struct Side {
    pub system: &'static str,
    pub name: String,
    /// For how many of this peer's operations one of ours counts.
    pub counts: f64,
    pub measure: Runner,
}

/// This system and its peers at the same task.
pub struct Contest {
    pub what: String,
    pub unit: Unit,
    pub ours: Side,
    pub peers: Vec<Side>,
}
