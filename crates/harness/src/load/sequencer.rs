//! Load for a sequencer, and checks of the numbers that it hands out.

use anyhow::{bail, ensure};
use sinew::fabric::Clock;
use sinew::sequencer::{CallError, Client, Numbers};

use super::{Drive, Load, Slice, Span, State};

/// Sampling interval: the latency of one batch in this many is recorded.
const SAMPLE_EVERY: u64 = 32;
/// Silence after which the sequencer counts as gone, in ns.
const PATIENCE_NS: u64 = 5_000_000_000;
/// Greatest distance between the numbers of one slice.
const SPAN_MAX: u64 = 1 << 36;

/// The numbers that were seen, one bit each.
#[derive(Default)]
pub struct SeenNumbers {
    from: u64,
    bits: Vec<u64>,
    /// Count of the numbers.
    pub numbers: u64,
    /// One more than the greatest number.
    pub end: u64,
}

impl SeenNumbers {
    /// No numbers yet; all must be at least `from`.
    pub fn new(from: u64) -> Self {
        Self { from, end: from, ..Self::default() }
    }

    /// Adds numbers that were seen.
    ///
    /// # Errors
    ///
    /// One of them was seen before, or is less than the numbers before the slice; the error names it.
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

    /// Adds the numbers that another client saw in the same slice.
    ///
    /// # Errors
    ///
    /// Both got the same number.
    pub fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        ensure!(self.from == other.from, "the slices of two clients began at different numbers");
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

/// A call in flight.
#[derive(Clone, Copy, Default)]
struct Flight {
    /// One more than the greatest number of any call that was over when this one began.
    floor: u64,
    /// Time when it began, if its latency is recorded; else 0.
    began_ns: u64,
}

/// A driver of a sequencer's client.
pub struct Sequencer<C: Client, K> {
    client: C,
    batch: usize,
    clock: K,
    /// Calls in flight, by tag.
    flights: Vec<Flight>,
    /// Tags of calls that are not in flight.
    free: Vec<u32>,
    /// Numbers that each call asks for.
    count: u32,
    floor: u64,
    seen: SeenNumbers,
    batches: u64,
    last_answer_ns: u64,
    span: Span,
    slice: Slice,
}

impl<C: Client, K: Clock> Sequencer<C, K> {
    /// Keeps up to `window` calls in flight, `batch` of which are sent together.
    pub fn new(client: C, clock: K, window: usize, batch: usize) -> Self {
        let window = client.window().min(window);
        Self {
            client,
            batch: batch.min(window),
            clock,
            flights: vec![Flight::default(); window],
            free: (0..window as u32).collect(),
            count: 1,
            floor: 0,
            seen: SeenNumbers::default(),
            batches: 0,
            last_answer_ns: 0,
            span: Span::default(),
            slice: Slice::new(),
        }
    }

    /// Takes the answers that have arrived. Returns their number.
    #[inline]
    fn take_answers(&mut self) -> anyhow::Result<u64> {
        let mut answered = 0;
        while let Some(answer) = self.client.answer() {
            let Flight { floor, began_ns } = self.flights[answer.tag as usize];
            self.free.push(answer.tag as u32);
            let numbers = match answer.result {
                Ok(numbers) => numbers,
                Err(CallError::NoAnswer { .. }) => {
                    self.slice.lost += 1;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            ensure!(
                numbers.first >= floor && numbers.count == self.count,
                "{numbers:?} came, but {} numbers from {floor} on were asked for",
                self.count
            );
            self.floor = self.floor.max(numbers.last() + 1);
            self.seen.take(numbers)?;
            if began_ns != 0 {
                self.slice.latency.saturating_record(self.clock.now_ns().saturating_sub(began_ns).max(1));
            }
            answered += 1;
        }
        Ok(answered)
    }
}

/// Orders for a driver of a sequencer's client.
pub trait SequencerLoad: Drive {
    /// Has each call of the next slice ask for `count` numbers, all of which must be at least `from`.
    fn expect(&mut self, count: u32, from: u64);

    /// Takes the numbers that have come since.
    fn take_seen(&mut self) -> SeenNumbers;
}

impl<C: Client, K: Clock> SequencerLoad for Sequencer<C, K> {
    fn expect(&mut self, count: u32, from: u64) {
        self.count = count;
        self.seen = SeenNumbers::new(from);
    }

    fn take_seen(&mut self) -> SeenNumbers {
        std::mem::take(&mut self.seen)
    }
}

impl<C: Client, K: Clock> Load for Sequencer<C, K> {
    fn begin(&mut self, now_ns: u64, end_ns: u64) -> anyhow::Result<()> {
        self.span = Span::begin(now_ns, end_ns);
        self.slice = Slice::new();
        (self.batches, self.last_answer_ns) = (0, now_ns);
        Ok(())
    }

    #[inline]
    fn turn(&mut self, now_ns: u64) -> anyhow::Result<State> {
        let may_start = self.span.may_start(now_ns, self.slice.done);
        let starts = may_start && self.free.len() >= self.batch;
        if starts {
            let began_ns = if self.batches.is_multiple_of(SAMPLE_EVERY) { self.clock.now_ns() } else { 0 };
            self.batches += 1;
            for _ in 0..self.batch {
                let Some(tag) = self.free.pop() else { break };
                self.flights[tag as usize] = Flight { floor: self.floor, began_ns };
                self.client.request(tag.into(), self.count)?;
            }
        }
        let is_busy = self.client.turn(now_ns)?;
        // Late answers are checked, too.
        let answered = self.take_answers()?;
        if may_start {
            self.slice.done += answered;
        }
        if answered > 0 {
            self.last_answer_ns = now_ns;
        }
        ensure!(now_ns.saturating_sub(self.last_answer_ns) < PATIENCE_NS, "the sequencer no longer answers");
        if !may_start && self.free.len() == self.flights.len() {
            return Ok(State::Over);
        }
        Ok(State::of(is_busy || starts || answered > 0))
    }

    fn end(&mut self) -> Slice {
        let slice = std::mem::take(&mut self.slice);
        Slice { elapsed_ns: self.span.elapsed_ns(), ..slice }
    }

    fn tend(&mut self) {
        // A bounded number of turns, whatever keeps arriving. An error shows in the next slice.
        let _ = (0..1000).take_while(|_| self.client.turn(self.clock.now_ns()).unwrap_or(false)).count();
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
        let mut seen = SeenNumbers::new(1000);
        for (first, count) in [(1000, 1), (1063, 2), (1001, 62), (2000, 200), (1_000_000, 1)] {
            seen.take(one(first, count)).unwrap();
        }
        assert_eq!((seen.numbers, seen.end), (266, 1_000_001));
        for (first, count) in
            [(1000, 1), (1064, 1), (1062, 1), (1900, 101), (2199, 1), (999, 1), (0, 1), (u64::MAX - 9, 1)]
        {
            assert!(seen.take(one(first, count)).is_err(), "{first} {count}");
        }
        let mut other = SeenNumbers::new(1000);
        other.take(one(1_000_001, 5)).unwrap();
        seen.add(&other).unwrap();
        assert_eq!((seen.numbers, seen.end), (271, 1_000_006));
        assert!(seen.add(&other).is_err() && seen.add(&SeenNumbers::new(0)).is_err());
    }
}
