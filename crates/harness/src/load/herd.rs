//! HERD's cache over verbs: all windows of a thread's clients are kept full, and every answer is checked.

use anyhow::ensure;
use sinew::fabric::Clock;
use sinew::fabric::verbs::Device;
use sinew::herd::ClientStats;
use sinew::kv::herd::{Client, Outcome, Status};

use super::{Load, Slice, Span, State};
use crate::workload::{Request, Workload, check_value, fill_value, key_bytes};

/// Requests that are drawn ahead.
const TRACE: usize = 1 << 20;
/// Of so many answers the time of one is taken.
const SAMPLE_EVERY: u64 = 8;

/// A driver of clients of one thread. Latencies are from a request to its answer, the wait in the window included.
pub struct Herd<D: Device, C> {
    clients: Vec<Client<D>>,
    clock: C,
    trace: Vec<Request>,
    at: usize,
    /// Differs from round to round of the trace, so that values do.
    round: u64,
    value: Vec<u8>,
    /// When answers were asked for whose time is taken.
    sampled: Vec<u64>,
    answers: u64,
    span: Span,
    slice: Slice,
}

impl<D: Device, C: Clock> Herd<D, C> {
    /// Asks over these clients for the keys of a workload, whose values are all as long.
    pub fn new(clients: Vec<Client<D>>, clock: C, workload: &Workload) -> Self {
        Self {
            clients,
            clock,
            trace: workload.trace(TRACE),
            at: 0,
            round: 1,
            value: vec![0; workload.sizes.max()],
            sampled: Vec::with_capacity(64),
            answers: 0,
            span: Span::default(),
            slice: Slice::new(),
        }
    }

    /// What the clients counted, together.
    pub fn stats(&self) -> ClientStats {
        let mut sum = ClientStats::default();
        for client in &self.clients {
            let stats = client.calls().stats();
            sum.retried += stats.retried;
            sum.late += stats.late;
            sum.strange += stats.strange;
        }
        sum
    }

    /// Fills a client's window; whether there was room for anything.
    #[inline(always)]
    fn ask(&mut self, which: usize, now_ns: u64) -> anyhow::Result<bool> {
        let client = &mut self.clients[which];
        let mut has_asked = false;
        loop {
            let request = self.trace[self.at];
            let (key, tag) = (key_bytes(request.key()), request.key() << 1 | u64::from(request.is_get()));
            if !client.has_room(&key) {
                client.flush();
                return Ok(has_asked);
            }
            has_asked = true;
            if request.is_get() {
                client.get(tag, &key, now_ns)?;
            } else {
                fill_value(&mut self.value, request.key(), self.round);
                client.put(tag, &key, &self.value, now_ns)?;
            }
            self.at += 1;
            if self.at == self.trace.len() {
                (self.at, self.round) = (0, self.round + 1);
            }
        }
    }
}

/// Whether an answer is right, whether it is that to a GET, and whether its key was there.
#[inline(always)]
fn checked(outcome: &Outcome<'_>, value_size: usize) -> (bool, bool, bool) {
    let (key, is_get) = (outcome.tag >> 1, outcome.tag & 1 == 1);
    match outcome.status {
        Some(Status::Found) if is_get => {
            (outcome.value.len() == value_size && check_value(outcome.value, key), true, true)
        }
        Some(Status::Absent) if is_get => (true, true, false),
        Some(Status::Stored) if !is_get => (true, false, false),
        _ => (false, is_get, false),
    }
}

impl<D: Device, C: Clock> Load for Herd<D, C> {
    fn begin(&mut self, now_ns: u64, end_ns: u64) -> anyhow::Result<()> {
        self.span = Span::begin(now_ns, end_ns);
        self.slice = Slice::new();
        Ok(())
    }

    #[inline]
    fn turn(&mut self, _: u64) -> anyhow::Result<State> {
        // Clients hand requests out again that were not answered in time, so they need to know it.
        let now_ns = self.clock.now_ns();
        let goes_on = self.span.goes_on(now_ns, self.slice.done);
        let (mut is_busy, mut left, mut wrong) = (false, 0, 0u64);
        for which in 0..self.clients.len() {
            let Self { clients, slice, value, sampled, answers, .. } = self;
            let came = clients[which].poll(now_ns, |outcome| {
                let (is_right, is_get, is_hit) = checked(&outcome, value.len());
                wrong += u64::from(!is_right);
                *answers += 1;
                if goes_on {
                    slice.done += 1;
                    slice.gets += u64::from(is_get);
                    slice.hits += u64::from(is_hit);
                    if answers.is_multiple_of(SAMPLE_EVERY) {
                        sampled.push(outcome.asked_ns);
                    }
                }
            })?;
            is_busy |= came > 0;
            if goes_on {
                is_busy |= self.ask(which, now_ns)?;
            } else {
                left += self.clients[which].calls().in_flight();
                self.clients[which].flush();
            }
        }
        ensure!(wrong == 0, "{wrong} answers were wrong");
        if !self.sampled.is_empty() {
            let done_ns = self.clock.now_ns();
            for asked_ns in self.sampled.drain(..) {
                self.slice.latency.saturating_record(done_ns.saturating_sub(asked_ns).max(1));
            }
        }
        if !goes_on && left == 0 {
            return Ok(State::Over);
        }
        Ok(State::of(is_busy))
    }

    fn end(&mut self) -> Slice {
        let slice = std::mem::take(&mut self.slice);
        Slice { elapsed_ns: self.span.elapsed_ns(), ..slice }
    }
}
