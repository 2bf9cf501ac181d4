//! Driver of a client thread.

use sinew::fabric::Clock;
use sinew::fabric::verbs::Device;

use anyhow::ensure;

use super::echoes::Echoes;
use super::fresh::Fresh;
use super::link::{LinkAddress, Rig};
use super::mixed::MixedEchoes;
use super::plan::{EchoForm, Side, VerbsPlan, Wait, WorkKind};
use super::stream::Stream;
use crate::load::{Load, Slice, Span, State};

/// Longest wait for an answer, or for the completion of a request, in ns.
const PATIENCE_NS: u64 = 5_000_000_000;

/// Kind of work.
enum WorkDriver {
    Stream(Stream),
    Fresh(Fresh),
    Echoes(Echoes),
    Mixed(MixedEchoes),
}

/// A driver of requests on the queue pairs of a client thread.
pub struct Requester<D: Device, C> {
    driver: WorkDriver,
    rig: Rig<D>,
    clock: C,
    /// Time when something last arrived, in ns.
    last_arrival_ns: u64,
    span: Span,
    slice: Slice,
}

impl<D: Device, C: Clock> Requester<D, C> {
    /// The driver of the calling thread, with `count` links that are not connected yet, and their addresses for the
    /// other side. With one request in flight, `times` has each one timed.
    ///
    /// # Errors
    ///
    /// The device cannot do what the plan asks for, or has no room.
    pub fn new(
        device: &D,
        domain: &D::Domain,
        plan: &VerbsPlan,
        count: usize,
        times: bool,
        clock: C,
    ) -> anyhow::Result<(Self, Vec<LinkAddress>)> {
        let (rig, addresses) = Rig::new(device, domain, plan, Side::Client, count)?;
        let driver = match plan.work {
            WorkKind::Load(_) if plan.fresh => WorkDriver::Fresh(Fresh::new(&rig)?),
            WorkKind::Load(op) => WorkDriver::Stream(Stream::new(&rig, op, times)?),
            WorkKind::Echo(form) => match plan.mix {
                Some(mix) => WorkDriver::Mixed(MixedEchoes::new(&rig, mix)),
                None => WorkDriver::Echoes(Echoes::new(&rig, form)),
            },
        };
        Ok((Self { driver, rig, clock, last_arrival_ns: 0, span: Span::default(), slice: Slice::new() }, addresses))
    }

    /// Connects the links, in their order.
    ///
    /// # Errors
    ///
    /// The other side's addresses do not fit the plan.
    pub fn connect(&mut self, addresses: &[LinkAddress]) -> anyhow::Result<()> {
        self.rig.connect(addresses)
    }

    /// Requests of each link so far.
    pub fn made(&self) -> Vec<u64> {
        self.rig.links.iter().map(|link| link.made).collect()
    }
}

impl<D: Device, C: Clock> Load for Requester<D, C> {
    fn begin(&mut self, now_ns: u64, end_ns: u64) -> anyhow::Result<()> {
        self.span = Span::begin(now_ns, end_ns);
        self.slice = Slice::new();
        self.last_arrival_ns = now_ns;
        match &mut self.driver {
            WorkDriver::Stream(stream) => stream.begin(),
            WorkDriver::Fresh(_) | WorkDriver::Mixed(_) => {}
            WorkDriver::Echoes(echoes) => echoes.begin(),
        }
        Ok(())
    }

    #[inline]
    fn turn(&mut self, now_ns: u64) -> anyhow::Result<State> {
        let Self { driver, rig, clock, slice, .. } = self;
        let may_start = self.span.may_start(now_ns, slice.done);
        let outcome = match driver {
            WorkDriver::Stream(stream) => stream.turn(rig, clock, (now_ns, may_start), slice)?,
            WorkDriver::Fresh(fresh) => fresh.turn(rig, clock, may_start, slice)?,
            WorkDriver::Echoes(echoes) => echoes.turn(rig, clock, may_start, slice)?,
            WorkDriver::Mixed(echoes) => echoes.turn(rig, clock, may_start, slice)?,
        };
        if outcome.has_returned {
            self.last_arrival_ns = now_ns;
        }
        if !may_start && outcome.is_drained {
            return Ok(State::Over);
        }
        let silence_ns = now_ns.saturating_sub(self.last_arrival_ns);
        ensure!(
            silence_ns < PATIENCE_NS,
            "requests were not answered, or did not complete, within {} s",
            silence_ns / 1_000_000_000
        );
        Ok(State::of(outcome.is_busy))
    }

    #[inline]
    fn rest(&mut self) -> anyhow::Result<bool> {
        let polls_memory = self.rig.plan.fresh || self.rig.plan.work == WorkKind::Echo(EchoForm::Ww);
        self.rig.rest(if polls_memory { Wait::Poll } else { self.rig.plan.wait })
    }

    fn end(&mut self) -> Slice {
        let slice = std::mem::take(&mut self.slice);
        Slice { elapsed_ns: self.span.elapsed_ns(), ..slice }
    }
}
