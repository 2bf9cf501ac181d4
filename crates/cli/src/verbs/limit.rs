//! The limit beside each figure: what the processors do with the same bytes, without verbs.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sinew::fabric::Clock;
use sinew::host::{HostClock, serialize};
use sinew::mem::SharedMemory;
use sinew::mem::ring::INLINE_MAX;

use sinew_harness::load::verbs::{EchoForm, Exchange, Layout, Op, POINTER, VerbsPlan, WorkKind};
use sinew_harness::machine::{self, Pair, two_threads};
use sinew_harness::{Comparison, histogram, limits};

use super::device::VerbsFabric;
use super::kind::Kind;

/// Turns of a loop between readings of the clock.
const GROUP: usize = 256;
/// Length of a packet's header, when a message goes over shared memory, in bytes.
const PACKET_HEADER: usize = 24;
/// Longest measurement of a limit, which is measured again for longer if no message was received.
const LONGEST_TRY: Duration = Duration::from_secs(1);

/// Comparison of a figure.
pub struct Meter {
    /// Description.
    pub what: &'static str,
    /// Kind of comparison. A baseline can be beaten: one thread alone, or half a line's round trip.
    pub comparison: Comparison,
    /// Measures it for the given time. Returns millions a second, or nanoseconds.
    take: Box<dyn Fn(Duration) -> anyhow::Result<f64>>,
}

impl Meter {
    /// The machine's limit for a plan; `None` if nothing without verbs does the same.
    pub fn new(plan: &VerbsPlan, kind: Kind, fabric: VerbsFabric, cpus: Pair) -> Option<Self> {
        let is_latency = kind == Kind::Latency;
        let (size, packet, reads) = (plan.message_len(), plan.message_len() + PACKET_HEADER, plan.reads);
        let packet_fits = packet <= INLINE_MAX;
        let layout = Layout::new(plan.size.max(1), plan.layout().slots);
        let is_bare = match plan.work {
            _ if fabric == VerbsFabric::Ibverbs => false,
            WorkKind::Load(_) => true,
            // With many in flight there is none.
            WorkKind::Echo(form) => plan.window == 1 && (packet_fits || matches!(form, EchoForm::Ww | EchoForm::Ws)),
        };
        if !is_bare {
            return None;
        }
        let part = if is_latency { 2.0 } else { 1.0 };
        let one_of = |half: &'static str, whole| if is_latency { half } else { whole };
        Some(match plan.work {
            WorkKind::Load(Op::Read) if is_latency && plan.fresh && machine::has_two_cpus() => {
                Self::limit("reading the same bytes, which the other core has just written", move |duration| {
                    fresh_loads(cpus, layout, duration)
                })
            }
            WorkKind::Load(Op::Read) if is_latency => Self::limit("reading the same bytes", move |duration| {
                alone(cpus, || each(duration, loads(layout, reads)))
            }),
            WorkKind::Load(_) if is_latency => {
                Self::limit("one atomic", move |duration| alone(cpus, || each(duration, one_atomic())))
            }
            WorkKind::Load(Op::Send | Op::WriteImm) if packet_fits => {
                Self::limit("the same packets through a bare ring", move |duration| {
                    limits::ring_stream_mops(cpus, packet, duration)
                })
            }
            WorkKind::Load(Op::Send) => {
                Self::limit("copies of what the other core has just written", move |duration| {
                    Ok(limits::copy_fresh_bytes_per_s(cpus, size, duration)? / size as f64 / 1e6)
                })
            }
            WorkKind::Load(Op::Read | Op::Write | Op::WriteImm) => {
                Self::baseline("copies of the same size by one thread", move |duration| {
                    alone(cpus, || rate(duration, copies(layout, reads)))
                })
            }
            WorkKind::Load(Op::FetchAdd | Op::CompareSwap) => {
                Self::baseline("atomics of one thread", move |duration| alone(cpus, || rate(duration, one_atomic())))
            }
            WorkKind::Echo(EchoForm::Ww | EchoForm::Ws) => Self::baseline(
                one_of("half a cache line's round trip between the cores", "a cache line to the other core and back"),
                move |duration| Ok(machine::core_round_trip_ns(cpus, duration)?.unwrap_or(0.0) / part),
            ),
            WorkKind::Echo(EchoForm::Ss | EchoForm::Imm) => Self::limit(
                one_of("half a packet's round trip through bare rings", "a packet through a bare ring and back"),
                move |duration| {
                    Ok(limits::ring_round_trips(cpus, packet, duration)?.value_at_quantile(0.5) as f64 / part)
                },
            ),
        })
    }

    /// A comparison that can be beaten.
    fn baseline(what: &'static str, take: impl Fn(Duration) -> anyhow::Result<f64> + 'static) -> Self {
        Self { what, comparison: Comparison::Baseline, take: Box::new(take) }
    }

    fn limit(what: &'static str, take: impl Fn(Duration) -> anyhow::Result<f64> + 'static) -> Self {
        Self { comparison: Comparison::Limit, ..Self::baseline(what, take) }
    }

    /// Measures once; `None` if no message was received.
    pub fn measure(&self, mut duration: Duration) -> anyhow::Result<Option<f64>> {
        loop {
            let figure = (self.take)(duration)?;
            if figure > 0.0 || duration >= LONGEST_TRY {
                return Ok(Some(figure).filter(|figure| *figure > 0.0));
            }
            duration = (duration * 4).min(LONGEST_TRY);
        }
    }
}

/// Result of one thread alone, on the client's processor.
fn alone(cpus: Pair, work: impl Fn() -> f64 + Send) -> anyhow::Result<f64> {
    two_threads(cpus, work, |_| ()).map(|(figure, ())| figure)
}

/// Millions of turns of `work` a second.
fn rate(duration: Duration, mut work: impl FnMut()) -> f64 {
    let (began, mut turns) = (Instant::now(), 0);
    loop {
        (0..GROUP).for_each(|_| work());
        turns += GROUP;
        let elapsed = began.elapsed();
        if elapsed >= duration {
            return turns as f64 / elapsed.as_secs_f64() / 1e6;
        }
    }
}

/// Median time of one turn of `work`, including one reading of the clock, in nanoseconds.
fn each(duration: Duration, mut work: impl FnMut()) -> f64 {
    let (clock, mut times) = (HostClock::new(), histogram());
    let mut now_ns = clock.now_ns();
    let end_ns = now_ns + duration.as_nanos() as u64;
    while now_ns < end_ns {
        work();
        let done_ns = clock.now_ns();
        times.saturating_record((done_ns - now_ns).max(1));
        now_ns = done_ns;
    }
    times.value_at_quantile(0.5) as f64
}

fn copies(layout: Layout, reads: usize) -> impl FnMut() {
    let (mut target, source) = (vec![1u8; layout.bytes()], vec![2u8; layout.size]);
    let (mut pointer, mut slot) = ([0; POINTER], 0);
    move || {
        let offset = layout.offset(slot);
        for _ in 1..reads {
            pointer.copy_from_slice(&black_box(&target)[offset..offset + POINTER]);
            black_box(&mut pointer);
        }
        target[offset..offset + layout.size].copy_from_slice(black_box(&source));
        black_box(&mut target);
        slot = if slot + 1 == layout.slots { 0 } else { slot + 1 };
    }
}

fn loads(layout: Layout, reads: usize) -> impl FnMut() {
    let memory = SharedMemory::private(layout.bytes()).expect("a page of memory");
    let (mut target, mut pointer) = (vec![0; layout.size], [0; POINTER]);
    move || {
        for _ in 1..reads {
            let _ = memory.read(0, &mut pointer);
            black_box(&mut pointer);
        }
        let _ = memory.read(0, &mut target);
        black_box(&mut target);
    }
}

fn one_atomic() -> impl FnMut() {
    let word = SharedMemory::private(64).expect("a page of memory");
    move || {
        let _ = black_box(word.fetch_add(0, 1));
    }
}

/// Median time of reading what the other core has just written, including one reading of the clock, in nanoseconds.
fn fresh_loads(cpus: Pair, layout: Layout, duration: Duration) -> anyhow::Result<f64> {
    let exchange = Exchange::of(layout);
    let memory = SharedMemory::private(exchange.bytes())?;
    let first = || {
        let (clock, mut times, mut target) = (HostClock::new(), histogram(), vec![0; layout.size]);
        let (mut sequence, mut now_ns) = (0, clock.now_ns());
        let end_ns = now_ns + duration.as_nanos() as u64;
        while now_ns < end_ns {
            sequence += 1;
            memory.store(exchange.asked, sequence)?;
            while memory.load(exchange.written)? != sequence {}
            // Keeps the reads from moving ahead of the clock, and the clock from moving ahead of the wait.
            serialize();
            let began_ns = clock.now_ns();
            memory.read(0, &mut target)?;
            black_box(&mut target);
            serialize();
            now_ns = clock.now_ns();
            times.saturating_record((now_ns - began_ns).max(1));
        }
        anyhow::Ok(times.value_at_quantile(0.5) as f64)
    };
    let second = |stop: &AtomicBool| {
        let (mut message, mut written) = (vec![0; layout.size], 0);
        while !stop.load(Ordering::Relaxed) {
            written = exchange.answer(&memory, &mut message, written)?;
        }
        anyhow::Ok(())
    };
    let (figure, answered) = two_threads(cpus, first, second)?;
    answered.and(figure)
}
