//! What is going to happen, in order.
//!
//! Most of what is foreseen is near: a wheel has a place for each of the next nanoseconds, and what lies beyond waits in a heap until its
//! time comes within the wheel's reach. (With a heap alone, 30 % of a simulation's time went into it.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds that the wheel reaches: as many as the nearest cache has room for. (With four times as many, simulations took 1 to 4 % longer.)
const REACH: usize = 1 << 12;
/// Words of a bit for each of them.
const WORDS: usize = REACH / 64;
const _: () = assert!(WORDS == 64);
/// No entry.
const NONE: u32 = u32::MAX;

/// Something that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Packets that were submitted together reach their host's network interface.
    Sent { host: u32, first: u32 },
    /// The head of a lane's first packet, which is this, reaches the switch at its end, or all of it the host.
    Landed { lane: u32, flight: u32 },
    /// A packet arrives that is not in its lane's order.
    Stray { flight: u32, on: u32 },
    /// A lane is done with a packet, and others wait for it.
    LinkFree { lane: u32 },
    /// A lane's sender hears that it is to pause, or to go on.
    Paused { lane: u32, paused: bool },
    /// Something is due at a NIC.
    Nic { nic: u32, job: u32 },
    /// An actor is to have its turn, if it still waits for this one; or, as that of [`WOKEN`], who was woken first of all who are now.
    Turn { actor: u32, number: u32 },
}

/// Whose turn it is when somebody was woken. A kind of event for that would make all events cost more.
const WOKEN: u32 = (1 << 29) - 1;

/// An event in one word: what it is in 3 bits, and then its numbers, of 29 and of 32.
///
/// An enum is written in parts and then copied in words, for which a processor has to wait: simulations took 1 to 2 % longer.
type Word = u64;

impl Event {
    #[inline]
    fn to_word(self) -> Word {
        let (what, a, b) = match self {
            Self::Sent { host, first } => (0, host, first),
            Self::Landed { lane, flight } => (1, lane, flight),
            Self::Stray { flight, on } => (2, flight, on),
            Self::LinkFree { lane } => (3, lane, 0),
            Self::Paused { lane, paused } => (4, lane, u32::from(paused)),
            Self::Turn { actor, number } => (5, actor, number),
            Self::Nic { nic, job } => (6, nic, job),
        };
        debug_assert!(a < 1 << 29, "there is no memory for so many");
        what << 61 | u64::from(a) << 32 | u64::from(b)
    }

    // Else whoever takes it reads in one word what was just written in parts, as above.
    #[inline(always)]
    fn of_word(word: Word) -> Self {
        let (a, b) = ((word >> 32) as u32 & ((1 << 29) - 1), word as u32);
        match word >> 61 {
            0 => Self::Sent { host: a, first: b },
            1 => Self::Landed { lane: a, flight: b },
            2 => Self::Stray { flight: a, on: b },
            3 => Self::LinkFree { lane: a },
            4 => Self::Paused { lane: a, paused: b != 0 },
            5 => Self::Turn { actor: a, number: b },
            _ => Self::Nic { nic: a, job: b },
        }
    }
}

/// An event on the wheel.
#[derive(Clone, Copy, Debug)]
struct Entry {
    event: Word,
    /// The next of the same nanosecond.
    next: u32,
}

/// The events of a nanosecond: the first and the last.
#[derive(Clone, Copy, Debug)]
struct Chain {
    first: u32,
    /// Whatever it was, where there is no first.
    last: u32,
}

/// Events, the next first; those of one nanosecond in the order in which they were foreseen.
#[derive(Debug)]
pub(crate) struct Events {
    /// What the wheel reaches begins here. All that lies in the heap is beyond it.
    now_ns: u64,
    wheel: Box<[Chain; REACH]>,
    /// A bit for each place of the wheel that has events, and a bit for each of these words that is not zero.
    filled: Box<[u64; WORDS]>,
    filled_words: u64,
    entries: Vec<Entry>,
    /// The first entry that is free; each of these knows the next.
    free: u32,
    far: BinaryHeap<Reverse<(u64, u64, Word)>>,
    /// From when on the wheel reaches the first of these.
    far_from_ns: u64,
    /// Of the next event of the heap.
    number: u64,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            now_ns: 0,
            wheel: Box::new([Chain { first: NONE, last: NONE }; REACH]),
            filled: Box::new([0; WORDS]),
            filled_words: 0,
            entries: Vec::new(),
            free: NONE,
            far: BinaryHeap::new(),
            far_from_ns: u64::MAX,
            number: 0,
        }
    }
}

impl Events {
    /// Foresees an event. One of the past happens at once.
    // Else the event would be handed on in memory, where it becomes a word.
    #[inline(always)]
    pub fn add(&mut self, time_ns: u64, event: Event) {
        self.add_word(time_ns, event.to_word());
    }

    /// Foresees that somebody who was woken is to hear of it.
    #[cold]
    pub fn add_wake(&mut self, time_ns: u64) {
        self.add(time_ns, Event::Turn { actor: WOKEN, number: 0 });
    }

    #[inline]
    fn add_word(&mut self, time_ns: u64, event: Word) {
        let time_ns = time_ns.max(self.now_ns);
        if time_ns - self.now_ns < REACH as u64 {
            self.put(time_ns, event);
        } else {
            self.add_far(time_ns, event);
        }
    }

    #[cold]
    fn add_far(&mut self, time_ns: u64, event: Word) {
        self.far.push(Reverse((time_ns, self.number, event)));
        self.number += 1;
        self.far_from_ns = self.far_from_ns.min(time_ns - (REACH as u64 - 1));
    }

    // Left to itself it is inlined here and there only, by how often it is called elsewhere: 4 % of a packet's instructions.
    #[inline(always)]
    fn put(&mut self, time_ns: u64, event: Word) {
        if self.free == NONE {
            self.grow();
        }
        let (index, place) = (self.free, time_ns as usize % REACH);
        self.free = self.entries[index as usize].next;
        // Without a guess whether there is another one: every third would be wrong. The first is put behind itself, and then behind nothing.
        let chain = &mut self.wheel[place];
        let is_first = chain.first == NONE;
        let before = if is_first { index } else { chain.last };
        *chain = Chain { first: if is_first { index } else { chain.first }, last: index };
        self.entries[before as usize].next = index;
        self.entries[index as usize] = Entry { event, next: NONE };
        self.filled[place / 64] |= 1 << (place % 64);
        self.filled_words |= 1 << (place / 64);
    }

    /// Room for one event more.
    #[cold]
    fn grow(&mut self) {
        self.free = self.entries.len() as u32;
        self.entries.push(Entry { event: 0, next: NONE });
    }

    /// When the next is.
    #[inline]
    pub fn next_ns(&self) -> Option<u64> {
        match self.next_place() {
            Some(place) => {
                let ahead = place.wrapping_sub(self.now_ns as usize) % REACH;
                Some(self.now_ns + ahead as u64)
            }
            None => self.far.peek().map(|Reverse((time_ns, ..))| *time_ns),
        }
    }

    /// The next place of the wheel that has events, from now on around it.
    #[inline]
    fn next_place(&self) -> Option<usize> {
        let start = self.now_ns as usize % REACH;
        let here = self.filled[start / 64] >> (start % 64);
        if here != 0 {
            return Some(start + here.trailing_zeros() as usize);
        }
        // Whole words from the next one on, and at last the one that was begun with.
        if self.filled_words == 0 {
            return None;
        }
        let from = start / 64 + 1;
        let word = (from + self.filled_words.rotate_right(from as u32).trailing_zeros() as usize) % WORDS;
        Some(word * 64 + self.filled[word].trailing_zeros() as usize)
    }

    /// The next event, and when it is.
    #[cfg(test)]
    fn pop(&mut self) -> Option<(u64, Event)> {
        self.pop_until(u64::MAX)
    }

    /// The next event, if it is by `end_ns`, and when it is.
    #[inline(always)]
    pub fn pop_until(&mut self, end_ns: u64) -> Option<(u64, Event)> {
        let next_ns = self.next_ns().filter(|next_ns| *next_ns <= end_ns)?;
        self.now_ns = next_ns;
        if next_ns >= self.far_from_ns {
            self.reach();
        }
        let place = next_ns as usize % REACH;
        let index = self.wheel[place].first;
        let entry = &mut self.entries[index as usize];
        let Entry { event, next } = *entry;
        entry.next = self.free;
        self.free = index;
        self.wheel[place].first = next;
        // Without a guess here, too.
        let left = self.filled[place / 64] & !(u64::from(next == NONE) << (place % 64));
        self.filled[place / 64] = left;
        self.filled_words &= !(u64::from(left == 0) << (place / 64));
        Some((next_ns, Event::of_word(event)))
    }

    /// Takes what has come within reach from the heap, before anything else can be put where it belongs.
    #[cold]
    fn reach(&mut self) {
        self.far_from_ns = u64::MAX;
        while let Some(Reverse((time_ns, _, event))) = self.far.peek().copied() {
            let from_ns = time_ns - (REACH as u64 - 1);
            if from_ns > self.now_ns {
                self.far_from_ns = from_ns;
                return;
            }
            self.far.pop();
            self.put(time_ns, event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sinew_fabric::{Generator, SeededGenerator};

    #[test]
    fn events_come_by_time_and_then_as_they_were_foreseen() {
        let mut events = Events::default();
        for (time_ns, lane) in [(5, 0), (3, 9), (5, 1), (4, 7), (3, 2), (5, 2)] {
            events.add(time_ns, Event::LinkFree { lane });
        }
        let mut order = Vec::new();
        while let Some((time_ns, Event::LinkFree { lane })) = events.pop() {
            order.push((time_ns, lane));
        }
        assert_eq!(order, [(3, 9), (3, 2), (4, 7), (5, 0), (5, 1), (5, 2)]);
    }

    #[test]
    fn near_and_far_events_come_as_from_a_sorted_list() {
        for seed in 0..50 {
            let mut generator = SeededGenerator::new(seed);
            let (mut events, mut list, mut now_ns) = (Events::default(), Vec::new(), 0);
            for lane in 0..3_000u32 {
                // Often the same nanosecond, often the last that the wheel reaches and the first that it does not.
                let ahead = match generator.below(6) {
                    0 => 0,
                    1 => generator.below(4),
                    2 => generator.below(2_000),
                    3 => REACH as u64 - 2 + generator.below(4),
                    4 => generator.below(3 * REACH as u64),
                    _ => generator.next_u64() >> 40,
                };
                events.add(now_ns + ahead, Event::LinkFree { lane });
                list.push((now_ns + ahead, lane));
                while generator.chance(0.45) && !list.is_empty() {
                    let first = (0..list.len()).min_by_key(|at| list[*at]).unwrap();
                    let (time_ns, lane) = list.remove(first);
                    assert_eq!(events.next_ns(), Some(time_ns));
                    assert_eq!(events.pop(), Some((time_ns, Event::LinkFree { lane })), "seed {seed}");
                    now_ns = time_ns;
                }
            }
            list.sort_unstable();
            for (time_ns, lane) in list {
                assert_eq!(events.pop(), Some((time_ns, Event::LinkFree { lane })));
            }
            assert_eq!((events.pop(), events.next_ns()), (None, None));
        }
    }
}
