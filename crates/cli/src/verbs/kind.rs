//! Kinds of measurements.

use sinew_harness::Unit;
use sinew_harness::load::verbs::{Op, VerbsPlan, WorkKind};

/// Kind of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes a second.
    Bandwidth,
    /// Messages a second.
    Rate,
    /// One request at a time.
    Latency,
    /// Messages that come back.
    Echo,
}

impl Kind {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "bw",
            Self::Rate => "rate",
            Self::Latency => "lat",
            Self::Echo => "echo",
        }
    }

    /// Whether the figure of a plan is a time.
    pub fn is_time(self, plan: &VerbsPlan) -> bool {
        self == Self::Latency || (self == Self::Echo && plan.window == 1 && plan.links().len() == 1)
    }

    /// Whether a latency is half of the time measured: that of a message one way, as in perftest.
    pub fn is_halved(self, plan: &VerbsPlan) -> bool {
        self == Self::Latency && matches!(plan.work, WorkKind::Echo(_))
    }

    /// Whether requests are made one at a time, and each is timed.
    pub fn is_single(self, plan: &VerbsPlan) -> bool {
        self == Self::Latency && matches!(plan.work, WorkKind::Load(Op::Read | Op::FetchAdd | Op::CompareSwap))
    }

    /// Unit of a plan's figure.
    pub fn unit(self, plan: &VerbsPlan) -> Unit {
        match self {
            Self::Bandwidth => Unit::Gbps,
            _ if self.is_time(plan) => Unit::Ns,
            _ => Unit::Mops,
        }
    }
}
