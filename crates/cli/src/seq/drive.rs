//! A client that is kept busy, and what must hold of the numbers that it gets.

use std::time::Duration;

use anyhow::{bail, ensure};
use hdrhistogram::Histogram;
use sinew::fabric::Clock;
use sinew::host::{HostClock, Interrupt};
use sinew::sequencer::{CallError, Client, Numbers};

use crate::client::histogram;
use crate::machine::Idle;

/// Of so many batches the latency of one is recorded.
const SAMPLE_EVERY: u64 = 32;
/// The clock is looked at every so many turns.
const TURNS_PER_LOOK: u64 = 16;
/// An answer that takes longer will not come.
const PATIENCE_NS: u64 = 5_000_000_000;
/// Numbers of one slice lie no further apart.
const SPAN_MAX: u64 = 1 << 36;

/// What a client is to do.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    pub duration: Duration,
    /// Numbers that each call asks for.
    pub count: u32,
    /// All numbers must be at least this.
    pub from: u64,
}

/// What came of it.
pub struct Slice {
    /// Calls that were answered in the time.
    pub calls: u64,
    pub elapsed_ns: u64,
    pub latency: Histogram<u64>,
    /// Calls that an unreliable transport lost.
    pub lost: u64,
    pub seen: Seen,
}

/// A client, of whatever design, or what one is compared with.
pub trait Drive {
    fn slice(&mut self, ask: Ask) -> anyhow::Result<Slice>;
}

/// The numbers that were seen, each as a bit.
#[derive(Default)]
pub struct Seen {
    from: u64,
    bits: Vec<u64>,
    /// How many.
    pub numbers: u64,
    /// One more than the greatest.
    pub end: u64,
}

impl Seen {
    pub fn new(from: u64) -> Self {
        Self { from, end: from, ..Self::default() }
    }

    /// Takes numbers that were seen.
    ///
    /// # Errors
    ///
    /// Says which of them was seen before, or is less than what was there before the slice.
    #[inline]
    pub fn take(&mut self, numbers: Numbers) -> anyhow::Result<()> {
        let offset = numbers.first.checked_sub(self.from);
        let Some(offset) = offset.filter(|offset| *offset < SPAN_MAX) else {
            bail!("{} was handed out after {}", numbers.first, self.from);
        };
        let (mut at, mut left) = (offset, u64::from(numbers.count));
        while left > 0 {
            let (word, bit) = ((at / 64) as usize, at % 64);
            let now = left.min(64 - bit);
            let mask = (u64::MAX >> (64 - now)) << bit;
            if word >= self.bits.len() {
                self.bits.resize((word + 1).next_power_of_two().max(1 << 12), 0);
            }
            if self.bits[word] & mask != 0 {
                bail!("a number from {} on was handed out twice", self.from + at);
            }
            self.bits[word] |= mask;
            (at, left) = (at + now, left - now);
        }
        self.numbers += u64::from(numbers.count);
        self.end = self.end.max(numbers.last() + 1);
        Ok(())
    }

    /// Adds what another client saw in the same slice.
    ///
    /// # Errors
    ///
    /// Says that both got the same number.
    pub fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        ensure!(self.from == other.from, "the slices of two clients began elsewhere");
        if self.bits.len() < other.bits.len() {
            self.bits.resize(other.bits.len(), 0);
        }
        for (at, (own, others)) in self.bits.iter_mut().zip(&other.bits).enumerate() {
            let twice = *own & others;
            if twice != 0 {
                let number = self.from + at as u64 * 64 + u64::from(twice.trailing_zeros());
                bail!("{number} was handed out twice, to two clients");
            }
            *own |= others;
        }
        self.numbers += other.numbers;
        self.end = self.end.max(other.end);
        Ok(())
    }
}

/// A call on its way.
#[derive(Clone, Copy, Default)]
struct Flight {
    /// One more than the greatest number of a call that was over when this one began.
    floor: u64,
    /// When it began, if that is recorded; else 0.
    began_ns: u64,
}

/// Keeps a client's window full.
pub struct Driver<C: Client, H> {
    client: C,
    _hold: H,
    batch: usize,
    clock: HostClock,
    interrupt: Interrupt,
    idle: Idle,
    /// By tag.
    flights: Vec<Flight>,
    /// Tags of calls that are not in flight.
    free: Vec<u32>,
    floor: u64,
    seen: Seen,
    latency: Histogram<u64>,
    lost: u64,
}

impl<C: Client, H> Driver<C, H> {
    /// Up to `window` calls are in flight, of which `batch` go out together; `hold` lives as long as the client.
    pub fn new(client: C, hold: H, window: usize, batch: usize, interrupt: Interrupt) -> Self {
        let window = client.window().min(window);
        Self {
            client,
            _hold: hold,
            batch: batch.min(window),
            clock: HostClock::new(),
            interrupt,
            idle: Idle::new(),
            flights: vec![Flight::default(); window],
            free: (0..window as u32).collect(),
            floor: 0,
            seen: Seen::default(),
            latency: histogram(),
            lost: 0,
        }
    }

    /// Turns the client once; how many calls were answered.
    #[inline]
    fn turn(&mut self, now_ns: u64, count: u32) -> anyhow::Result<u64> {
        let is_busy = self.client.turn(now_ns)?;
        let mut answered = 0;
        while let Some(answer) = self.client.answer() {
            let Flight { floor, began_ns } = self.flights[answer.tag as usize];
            self.free.push(answer.tag as u32);
            let numbers = match answer.result {
                Ok(numbers) => numbers,
                Err(CallError::NoAnswer { .. }) => {
                    self.lost += 1;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            ensure!(
                numbers.first >= floor && numbers.count == count,
                "{numbers:?} came although {} numbers above {floor} were asked for",
                count
            );
            self.floor = self.floor.max(numbers.last() + 1);
            self.seen.take(numbers)?;
            if began_ns != 0 {
                self.latency.saturating_record(self.clock.now_ns().saturating_sub(began_ns).max(1));
            }
            answered += 1;
        }
        if !is_busy {
            self.idle.pass();
        }
        Ok(answered)
    }
}

impl<C: Client, H> Drive for Driver<C, H> {
    fn slice(&mut self, ask: Ask) -> anyhow::Result<Slice> {
        let Ask { duration, count, from } = ask;
        self.seen = Seen::new(from);
        self.latency.reset();
        self.lost = 0;
        let window = self.flights.len();
        let began_ns = self.clock.now_ns();
        let end_ns = began_ns + duration.as_nanos() as u64;
        let (mut now_ns, mut heard_ns, mut turns, mut batches, mut calls) = (began_ns, began_ns, 0u64, 0u64, 0);
        // At least one call comes back, however little of the time others leave us.
        while now_ns < end_ns || calls == 0 {
            if self.free.len() >= self.batch {
                let began_ns = if batches.is_multiple_of(SAMPLE_EVERY) { self.clock.now_ns() } else { 0 };
                batches += 1;
                for _ in 0..self.batch {
                    let Some(tag) = self.free.pop() else { break };
                    self.flights[tag as usize] = Flight { floor: self.floor, began_ns };
                    self.client.request(tag.into(), count)?;
                }
            }
            let answered = self.turn(now_ns, count)?;
            calls += answered;
            turns += 1;
            if turns.is_multiple_of(TURNS_PER_LOOK) {
                now_ns = self.clock.now_ns();
                ensure!(!self.interrupt.is_set(), "interrupted");
            }
            if answered > 0 {
                heard_ns = now_ns;
            }
            ensure!(now_ns.saturating_sub(heard_ns) < PATIENCE_NS, "the sequencer does not answer any more");
        }
        let elapsed_ns = now_ns - began_ns;
        // What comes now is looked at all the same.
        while self.free.len() < window {
            now_ns = self.clock.now_ns();
            if self.turn(now_ns, count)? > 0 {
                heard_ns = now_ns;
            }
            ensure!(now_ns.saturating_sub(heard_ns) < PATIENCE_NS, "the sequencer does not answer any more");
            ensure!(!self.interrupt.is_set(), "interrupted");
        }
        let seen = std::mem::take(&mut self.seen);
        Ok(Slice { calls, elapsed_ns, latency: self.latency.clone(), lost: self.lost, seen })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(first: u64, count: u32) -> Numbers {
        Numbers { first, count }
    }

    #[test]
    fn a_number_that_was_there_is_noticed_wherever_it_is() {
        let mut seen = Seen::new(1000);
        for (first, count) in [(1000, 1), (1063, 2), (1001, 62), (2000, 200), (1_000_000, 1)] {
            seen.take(one(first, count)).unwrap();
        }
        assert_eq!((seen.numbers, seen.end), (266, 1_000_001));
        for (first, count) in
            [(1000, 1), (1064, 1), (1062, 1), (1900, 101), (2199, 1), (999, 1), (0, 1), (u64::MAX - 9, 1)]
        {
            assert!(seen.take(one(first, count)).is_err(), "{first} {count}");
        }
        let mut other = Seen::new(1000);
        other.take(one(1_000_001, 5)).unwrap();
        seen.add(&other).unwrap();
        assert_eq!((seen.numbers, seen.end), (271, 1_000_006));
        assert!(seen.add(&other).is_err() && seen.add(&Seen::new(0)).is_err());
    }
}
