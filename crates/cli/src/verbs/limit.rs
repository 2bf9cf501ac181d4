//! The limit beside each figure: what the processors do with the same bytes and nothing above.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use sinew::fabric::Clock;
use sinew::host::HostClock;
use sinew::mem::SharedMemory;
use sinew::mem::ring::INLINE_MAX;

use sinew_harness::load::verbs::{Exchange, Form, Layout, Op, POINTER, VerbsPlan, Work};
use sinew_harness::machine::{self, Pair, two_threads};
use sinew_harness::{Comparison, histogram, limits};

use super::device::Carried;
use super::kind::Kind;

/// Times around a loop between two looks at the clock.
const GROUP: usize = 256;
/// Bytes of a packet's header on the way of a message over shared memory.
const PACKET_HEADER: usize = 24;
/// A limit of which nothing came through is tried again for longer, up to this.
const LONGEST_TRY: Duration = Duration::from_secs(1);

/// What a figure is measured beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Against {
    /// Copies of the same size into memory of the same layout, by one thread, that makes no messages; millions a second.
    Copies,
    /// The same packets through a bare ring; millions a second.
    Ring,
    /// Copies of what the other core has just written; millions a second.
    FreshCopies,
    /// Atomics of one thread; millions a second.
    Atomics,
    /// Reading the same bytes; nanoseconds.
    Load,
    /// Reading the same bytes when the other core has just written them; nanoseconds.
    FreshLoad,
    /// One atomic; nanoseconds.
    Atomic,
    /// A cache line to the other core and back; nanoseconds, and the part of it that counts.
    Cores(u32),
    /// A packet through a ring and back.
    RingTrip(u32),
}

/// Measures what the machine allows for what a plan measures.
pub struct Meter {
    against: Option<Against>,
    cpus: Pair,
    size: usize,
    layout: Layout,
    /// READs of an object.
    reads: usize,
}

impl Meter {
    pub fn new(plan: &VerbsPlan, kind: Kind, carried: Carried, cpus: Pair) -> Self {
        let packet_fits = plan.message_len() + PACKET_HEADER <= INLINE_MAX;
        let part = if kind == Kind::Latency { 2 } else { 1 };
        let against = match (carried, plan.work, kind) {
            (Carried::Shm, Work::Load(_), Kind::Latency) if plan.fresh && machine::has_two_cpus() => {
                Some(Against::FreshLoad)
            }
            (Carried::Shm, Work::Load(op), Kind::Latency) => {
                Some(if matches!(op, Op::Read) { Against::Load } else { Against::Atomic })
            }
            (Carried::Shm, Work::Load(Op::Read | Op::Write), _) => Some(Against::Copies),
            (Carried::Shm, Work::Load(Op::WriteImm), _) if !packet_fits => Some(Against::Copies),
            (Carried::Shm, Work::Load(Op::Send | Op::WriteImm), _) if packet_fits => Some(Against::Ring),
            (Carried::Shm, Work::Load(Op::Send), _) => Some(Against::FreshCopies),
            (Carried::Shm, Work::Load(_), _) => Some(Against::Atomics),
            (Carried::Ibverbs, ..) => None,
            // Many in flight: there is no bare thing that does the same.
            (Carried::Shm, Work::Echo(_), _) if plan.window > 1 => None,
            (Carried::Shm, Work::Echo(Form::Ww | Form::Ws), _) => Some(Against::Cores(part)),
            (Carried::Shm, Work::Echo(Form::Ss | Form::Imm), _) => packet_fits.then_some(Against::RingTrip(part)),
        };
        let layout = Layout::new(plan.size.max(1), plan.layout().slots);
        Self { against, cpus, size: plan.message_len(), layout, reads: plan.reads }
    }

    /// Whether there is a limit.
    pub fn has_limit(&self) -> bool {
        self.against.is_some()
    }

    /// How to take it: what one thread does alone, or half a line's round trip, can be beaten.
    pub fn comparison(&self) -> Option<Comparison> {
        Some(match self.against? {
            Against::Copies | Against::Atomics | Against::Cores(_) => Comparison::Baseline,
            _ => Comparison::Limit,
        })
    }

    /// What it is, in words.
    pub fn what(&self) -> &'static str {
        match self.against {
            None => "none",
            Some(Against::Copies) => "copies of the same size by one thread",
            Some(Against::Ring) => "the same packets through a bare ring",
            Some(Against::FreshCopies) => "copies of what the other core has just written",
            Some(Against::Atomics) => "atomics of one thread",
            Some(Against::Load) => "reading the same bytes",
            Some(Against::FreshLoad) => "reading the same bytes, which the other core has just written",
            Some(Against::Atomic) => "one atomic",
            Some(Against::Cores(1)) => "a cache line to the other core and back",
            Some(Against::Cores(_)) => "half a cache line's round trip between the cores",
            Some(Against::RingTrip(1)) => "a packet through a bare ring and back",
            Some(Against::RingTrip(_)) => "half a packet's round trip through bare rings",
        }
    }

    /// Measures once: millions a second, or nanoseconds. `None` when there is no limit, or nothing came through.
    pub fn measure(&self, duration: Duration) -> anyhow::Result<Option<f64>> {
        let mut duration = duration;
        loop {
            let figure = self.try_for(duration)?;
            if figure.is_none_or(|figure| figure > 0.0) || duration >= LONGEST_TRY {
                return Ok(figure.filter(|figure| *figure > 0.0));
            }
            duration = (duration * 4).min(LONGEST_TRY);
        }
    }

    fn try_for(&self, duration: Duration) -> anyhow::Result<Option<f64>> {
        let Self { against: Some(against), cpus, size, layout, reads } = *self else { return Ok(None) };
        // Alone, on the client's processor.
        let alone = |work: &(dyn Fn() -> f64 + Sync)| two_threads(cpus, work, |_| ()).map(|(figure, ())| figure);
        let ns = |part: u32, ns: Option<f64>| ns.map(|ns| ns / f64::from(part));
        Ok(match against {
            Against::Copies => Some(alone(&|| copies(layout, reads, duration))?),
            Against::Ring => Some(limits::ring_stream_mops(cpus, size + PACKET_HEADER, duration)?),
            Against::FreshCopies => Some(limits::copy_fresh_bytes_per_s(cpus, size, duration)? / size as f64 / 1e6),
            Against::Atomics => Some(alone(&|| atomics(duration))?),
            Against::Load => Some(alone(&|| each(duration, loads(layout, reads)))?),
            Against::FreshLoad => Some(fresh_loads(cpus, layout, duration)?),
            Against::Atomic => Some(alone(&|| each(duration, one_atomic()))?),
            Against::Cores(part) => ns(part, machine::core_round_trip_ns(cpus, duration)?),
            Against::RingTrip(part) => {
                let trips = limits::ring_round_trips(cpus, size + PACKET_HEADER, duration)?;
                ns(part, Some(trips.value_at_quantile(0.5) as f64))
            }
        })
    }
}

/// Millions of turns of `work` a second.
fn rate(duration: Duration, mut work: impl FnMut(usize)) -> f64 {
    let (began, mut turns) = (Instant::now(), 0usize);
    loop {
        for _ in 0..GROUP {
            work(turns);
            turns += 1;
        }
        let elapsed = began.elapsed();
        if elapsed >= duration {
            return turns as f64 / elapsed.as_secs_f64() / 1e6;
        }
    }
}

fn copies(layout: Layout, reads: usize, duration: Duration) -> f64 {
    let (mut target, source) = (vec![1u8; layout.bytes()], vec![2u8; layout.size]);
    let mut pointer = [0; POINTER];
    let mut slot = 0;
    rate(duration, |_| {
        let at = layout.offset(slot);
        for _ in 1..reads {
            pointer.copy_from_slice(&black_box(&target)[at..at + POINTER]);
            black_box(&mut pointer);
        }
        target[at..at + layout.size].copy_from_slice(black_box(&source));
        black_box(&mut target);
        slot = if slot + 1 == layout.slots { 0 } else { slot + 1 };
    })
}

fn word() -> SharedMemory {
    SharedMemory::private(64).expect("a page of memory")
}

fn atomics(duration: Duration) -> f64 {
    let word = word();
    rate(duration, |_| {
        let _ = black_box(word.fetch_add(0, 1));
    })
}

/// The median time of one turn of `work`, with one reading of the clock, in nanoseconds.
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

/// The median time of reading what the other core has written since the last time, with one reading of the clock.
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
            // Nothing is read ahead of the clock, and the clock is not read ahead of what it waits for.
            fence(Ordering::SeqCst);
            let began_ns = clock.now_ns();
            memory.read(0, &mut target)?;
            black_box(&mut target);
            fence(Ordering::SeqCst);
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

fn one_atomic() -> impl FnMut() {
    let word = word();
    move || {
        let _ = black_box(word.fetch_add(0, 1));
    }
}
