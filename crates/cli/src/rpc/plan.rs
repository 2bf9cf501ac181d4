//! What a benchmark of RPC is to measure.

use std::time::Duration;

use sinew_harness::load::echo::Shape;
use sinew_harness::reference::{References, Yardstick};
use sinew_harness::{Unit, machine};

use crate::echo::EchoPlan;
use crate::endpoint_args::LimitArgs;
use crate::fabrics::Fabric;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One call at a time.
    Latency,
    /// Small calls, many in flight.
    Rate,
    /// Large requests.
    Bandwidth,
    /// The rate over many sessions against that over few.
    Scale,
}

impl Kind {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Rate => "rate",
            Self::Bandwidth => "bandwidth",
            Self::Scale => "scale",
        }
    }

    /// What its figures are counted in.
    pub fn unit(self) -> Unit {
        match self {
            Self::Latency => Unit::Ns,
            Self::Rate | Self::Scale => Unit::Mops,
            Self::Bandwidth => Unit::Gbps,
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct RpcPlan {
    pub kind: Kind,
    pub fabric: Fabric,
    pub duration: Duration,
    pub size: usize,
    pub window: usize,
    pub batch: usize,
    pub sessions: usize,
    pub threads: usize,
    pub client_cpus: Vec<Option<usize>>,
    pub server_cpus: Vec<Option<usize>>,
    /// A server that runs already,
    pub address: Option<String>,
    /// and its process, where that is one of ours.
    pub server: Option<u32>,
    /// `?name=value...` for addresses made here.
    pub options: String,
    pub limits: LimitArgs,
    pub references: References,
}

impl RpcPlan {
    /// Sessions that [`Kind::Scale`] compares with.
    pub const FEW_SESSIONS: usize = 20;

    /// A plan with the defaults of its kind.
    pub fn new(kind: Kind, fabric: Fabric, duration: Duration) -> Self {
        let (size, window, batch, sessions) = match kind {
            Kind::Latency => (32, 1, 1, 1),
            Kind::Rate => (32, 60, 3, Self::sessions_for(60, 8)),
            Kind::Bandwidth => (8 << 20, 2, 1, 1),
            Kind::Scale => (32, 60, 3, 20_000),
        };
        let pair = machine::default_pair();
        Self {
            kind,
            fabric,
            duration,
            size,
            window,
            batch,
            sessions,
            threads: 1,
            client_cpus: vec![pair.map(|cpus| cpus[0])],
            server_cpus: vec![pair.map(|cpus| cpus[1])],
            address: None,
            server: None,
            options: String::new(),
            limits: LimitArgs::default(),
            references: References::default(),
        }
    }

    /// Sessions that a window needs: calls choose theirs at random, so that some get more than their share; with twice the
    /// slots few of them wait.
    pub fn sessions_for(window: usize, slots: u16) -> usize {
        (2 * window).div_ceil(usize::from(slots.max(1))).max(1)
    }

    /// Packets that a ring has to hold for so many sessions, where no option says how many.
    pub fn ring_packets(&self) -> Option<usize> {
        let packets = self.sessions * usize::from(self.limits.credits()) + 64;
        let rings = matches!(self.fabric, Fabric::Shm | Fabric::Hub);
        (self.kind == Kind::Scale && rings && self.options.is_empty()).then_some(packets)
    }

    /// The options that addresses need for so many sessions.
    pub fn options(&self) -> String {
        match self.ring_packets() {
            Some(packets) => format!("?ring={packets}"),
            None => self.options.clone(),
        }
    }

    /// Whether a figure can be divided by a limit that was measured with messages of `limit_size` bytes.
    pub fn has_ratio(&self, limit_size: usize) -> bool {
        // Bits per second are bits per second, whatever they come in.
        self.kind == Kind::Bandwidth || self.size == limit_size
    }

    /// What client threads do.
    pub fn clients(&self) -> EchoPlan {
        let sink = self.kind == Kind::Bandwidth;
        EchoPlan {
            fabric: self.fabric,
            options: self.options(),
            limits: self.limits.clone(),
            shape: Shape { size: self.size, window: self.window, batch: self.batch, sink },
            sessions: self.sessions,
        }
    }

    /// What tells whether the machine is as it was when a reference was made.
    pub fn yardstick(&self) -> Yardstick {
        match (self.kind, self.fabric) {
            (Kind::Bandwidth, Fabric::Udp) => Yardstick::UdpBandwidth,
            (_, Fabric::Udp) => Yardstick::UdpRoundTrip,
            (Kind::Bandwidth, _) => Yardstick::Copy,
            _ => Yardstick::RingRoundTrip,
        }
    }
}
