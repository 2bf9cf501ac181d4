//! The limit beside each figure.

use std::cell::OnceCell;
use std::time::Duration;

use sinew::udp::raw::{Mode, PACKET_LEN_MAX};

use sinew_harness::limits::xdp::{Mover, XdpEcho};
use sinew_harness::limits::{self, Datagrams, HEADER_LEN};
use sinew_harness::machine::{self, Pair};
use sinew_harness::service::VERDICT_LEN;

use super::plan::{Kind, RpcPlan};
use crate::fabrics::Fabric;

/// Length of the raw packets that a bandwidth over UDP is compared with, in bytes.
const UDP_BANDWIDTH_PACKET: usize = 4096;
/// Lengths of a full datagram, and of the headers before it, on a pair of virtual interfaces, in bytes.
const XDP_DATAGRAM: usize = 1472;
const XDP_HEADERS: usize = 42;
/// Datagrams in flight that a bandwidth over an RDMA device is compared with: as many as a session has credits.
const BANDWIDTH_WINDOW: usize = 32;
/// Smallest MTU of RDMA devices, in bytes.
const LEAST_DATAGRAM: usize = 256;
/// Least memory copied at a time when a bandwidth over shared memory is compared: with less, reading the clock would
/// show.
const COPY_MIN: usize = 64 << 10;
/// Longest measurement of a limit. If no message was received in the time, because something else had the processors,
/// the limit is measured again for four times as long, up to this.
const LONGEST_TRY: Duration = Duration::from_secs(1);

/// Measures the machine's limit for a plan.
pub struct LimitMeter {
    kind: Kind,
    fabric: Fabric,
    cpus: Pair,
    size: usize,
    window: usize,
    batch: usize,
    coalesces: bool,
    /// `?name=value...`, appended to addresses made here.
    options: String,
    xdp: OnceCell<XdpEcho>,
}

impl LimitMeter {
    /// The limit for a plan.
    pub fn new(plan: &RpcPlan) -> Self {
        let cpus = machine::pair(&plan.client_cpus, &plan.server_cpus);
        let size = match (plan.kind, plan.fabric) {
            (Kind::Latency | Kind::Rate, Fabric::Udp) => plan.size.min(PACKET_LEN_MAX - HEADER_LEN),
            (Kind::Bandwidth, Fabric::Udp) => UDP_BANDWIDTH_PACKET,
            (Kind::Latency | Kind::Rate, Fabric::Xdp) => plan.size.min(XDP_DATAGRAM - HEADER_LEN),
            (_, Fabric::Xdp) => XDP_DATAGRAM - HEADER_LEN,
            // Without a device nothing is measured.
            (_, Fabric::Ibverbs) => {
                let datagram = limits::datagram_len_max(&plan.options).unwrap_or(LEAST_DATAGRAM) - HEADER_LEN;
                if plan.kind == Kind::Bandwidth { datagram } else { plan.size.min(datagram) }
            }
            (Kind::Bandwidth, _) => plan.size.max(COPY_MIN),
            _ => plan.size,
        };
        let coalesces = ![plan.address.as_deref().unwrap_or_default(), &plan.options]
            .iter()
            .any(|options| options.contains("coalesce=off"));
        let options = plan.options.clone();
        let RpcPlan { kind, fabric, window, batch, .. } = *plan;
        Self { kind, fabric, cpus, size, window, batch, coalesces, options, xdp: OnceCell::new() }
    }

    /// Processors that it uses.
    pub fn cpus(&self) -> Pair {
        self.cpus
    }

    /// Length of the messages that it moves, in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The limit in words.
    pub fn what(&self) -> String {
        let size = sinew_harness::units::size(self.size);
        match (self.kind, self.fabric) {
            (Kind::Scale, _) => format!("the same over {} sessions", RpcPlan::FEW_SESSIONS),
            (Kind::Bandwidth, Fabric::Udp) => "UDP packets of 4 KB one way, cut and joined by the kernel".to_owned(),
            (Kind::Bandwidth, Fabric::Ibverbs) => format!("datagrams of {size} between two bare queue pairs"),
            (Kind::Bandwidth, Fabric::Xdp) => "full frames between two bare sockets, there and back".to_owned(),
            (Kind::Rate, Fabric::Xdp) if self.coalesces => {
                "frames full of the same packets between two bare sockets".to_owned()
            }
            (_, Fabric::Xdp) => "the same frames between two bare sockets".to_owned(),
            (Kind::Bandwidth, _) => format!("copies of {size} that the other core has just written"),
            (_, Fabric::Udp) => "the same packets between two bare sockets".to_owned(),
            (_, Fabric::Ibverbs) => "the same datagrams between two bare queue pairs".to_owned(),
            _ if self.size + HEADER_LEN <= sinew::mem::ring::INLINE_MAX => {
                "the same packets through two bare rings".to_owned()
            }
            _ => "the same messages between two bare ports".to_owned(),
        }
    }

    /// Measures once. Returns zero if no message was received in all the time that may be spent.
    pub fn measure(&self, duration: Duration) -> anyhow::Result<f64> {
        let mut duration = duration;
        loop {
            let figure = self.try_for(duration)?;
            if figure > 0.0 || duration >= LONGEST_TRY {
                return Ok(figure);
            }
            duration = (duration * 4).min(LONGEST_TRY);
        }
    }

    fn datagrams(&self, window: usize, batch: usize, answer: usize) -> Datagrams<'_> {
        let lens = [self.size, answer].map(|len| len + HEADER_LEN);
        Datagrams { cpus: self.cpus, options: &self.options, lens, window, batch }
    }

    /// Measures frames between bare AF_XDP sockets, which are opened at the first measurement.
    fn frames(&self, kind: Kind, duration: Duration) -> anyhow::Result<f64> {
        let packet = self.size + HEADER_LEN;
        let echo = match self.xdp.get() {
            Some(echo) => echo,
            None => {
                let echo = XdpEcho::start(Mover::Bare, self.cpus)?;
                self.xdp.get_or_init(|| echo)
            }
        };
        let full = if kind == Kind::Rate && self.coalesces { (XDP_DATAGRAM - 2) / (packet + 2) } else { 1 };
        let each = full.clamp(1, self.window);
        let len = XDP_HEADERS + if each > 1 { 2 + each * (packet + 2) } else { packet };
        let (window, batch) = match kind {
            Kind::Latency => (1, 1),
            Kind::Bandwidth => (BANDWIDTH_WINDOW, BANDWIDTH_WINDOW / 4),
            Kind::Rate | Kind::Scale => (self.window.div_ceil(each), self.batch.div_ceil(each)),
        };
        let (trips, mops) = echo.measure(len, window, batch, duration)?;
        Ok(match kind {
            Kind::Latency => trips.value_at_quantile(0.5) as f64,
            Kind::Bandwidth => mops * 8e-3 * self.size as f64,
            Kind::Rate | Kind::Scale => mops * each as f64,
        })
    }

    fn try_for(&self, duration: Duration) -> anyhow::Result<f64> {
        let Self { cpus, size, window, batch, .. } = *self;
        match (self.kind, self.fabric) {
            (Kind::Latency, Fabric::Ibverbs) => {
                let (trips, _) = self.datagrams(1, 1, size).measure(duration)?;
                Ok(trips.value_at_quantile(0.5) as f64)
            }
            (Kind::Rate, Fabric::Ibverbs) => Ok(self.datagrams(window, batch, size).measure(duration)?.1),
            (Kind::Bandwidth, Fabric::Ibverbs) => {
                let (_, mops) =
                    self.datagrams(BANDWIDTH_WINDOW, BANDWIDTH_WINDOW / 4, VERDICT_LEN).measure(duration)?;
                Ok(mops * 8e-3 * size as f64)
            }
            (kind, Fabric::Xdp) => self.frames(kind, duration),
            (Kind::Latency, Fabric::Udp) => limits::udp_round_trip_ns(cpus, size + HEADER_LEN, duration),
            (Kind::Latency, _) => limits::shm_round_trip_ns(cpus, size, duration),
            (Kind::Rate, Fabric::Udp) => {
                let mode = if self.coalesces { Mode::Joined } else { Mode::List };
                limits::udp_echo_mops(cpus, mode, size + HEADER_LEN, window, batch, duration)
            }
            (Kind::Rate | Kind::Scale, _) => limits::shm_echo_mops(cpus, size, window, batch, duration),
            (Kind::Bandwidth, Fabric::Udp) => limits::udp_bandwidth_gbps(cpus, size, duration),
            (Kind::Bandwidth, _) => Ok(limits::copy_fresh_bytes_per_s(cpus, size, duration)? * 8e-9),
        }
    }
}
