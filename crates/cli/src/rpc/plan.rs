//! Plan of a benchmark of RPC.

use std::time::Duration;

use sinew_harness::load::echo::{Answer, Shape};
use sinew_harness::reference::{References, Yardstick};
use sinew_harness::{Unit, machine};

use crate::echo::EchoPlan;
use crate::endpoint_args::LimitArgs;
use crate::fabrics::Fabric;

/// Kind of benchmark.
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
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Rate => "rate",
            Self::Bandwidth => "bandwidth",
            Self::Scale => "scale",
        }
    }

    /// Unit of its figures.
    pub fn unit(self) -> Unit {
        match self {
            Self::Latency => Unit::Ns,
            Self::Rate | Self::Scale => Unit::Mops,
            Self::Bandwidth => Unit::Gbps,
        }
    }
}

/// A measurement to make.
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
    /// Address of a server that is already running.
    pub address: Option<String>,
    /// Process of that server, if it is one of ours.
    pub server: Option<u32>,
    /// `?name=value...`, appended to addresses made here.
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

    /// Sessions that a window needs. Calls choose theirs at random, so some sessions get more than their share; with
    /// twice the slots few calls wait.
    pub fn sessions_for(window: usize, slots: u16) -> usize {
        (2 * window).div_ceil(usize::from(slots.max(1))).max(1)
    }

    /// Packets that a ring must hold for these sessions, unless an option says how many.
    pub fn ring_packets(&self) -> Option<usize> {
        let packets = self.sessions * usize::from(self.limits.credits()) + 64;
        let rings = matches!(self.fabric, Fabric::Shm | Fabric::Hub);
        (self.kind == Kind::Scale && rings && self.options.is_empty()).then_some(packets)
    }

    /// Options that addresses need for these sessions.
    pub fn options(&self) -> String {
        match self.ring_packets() {
            Some(packets) => format!("?ring={packets}"),
            None => self.options.clone(),
        }
    }

    /// Whether a figure can be divided by a limit that was measured with messages of `limit_size` bytes.
    pub fn has_ratio(&self, limit_size: usize) -> bool {
        // Bandwidths compare whatever the length of the messages.
        self.kind == Kind::Bandwidth || self.size == limit_size
    }

    /// Work of the client threads.
    pub fn clients(&self) -> EchoPlan {
        let answer = if self.kind == Kind::Bandwidth { Answer::Verdict } else { Answer::Echo };
        EchoPlan {
            fabric: self.fabric,
            options: self.options(),
            limits: self.limits.clone(),
            shape: Shape { size: self.size, answer, window: self.window, batch: self.batch },
            sessions: self.sessions,
        }
    }

    /// Yardstick that shows whether the machine is as it was when a reference was made.
    pub fn yardstick(&self) -> Yardstick {
        match (self.kind, self.fabric) {
            (Kind::Bandwidth, Fabric::Udp) => Yardstick::UdpBandwidth,
            (_, Fabric::Udp) => Yardstick::UdpRoundTrip,
            (Kind::Bandwidth, _) => Yardstick::Copy,
            _ => Yardstick::RingRoundTrip,
        }
    }
}
