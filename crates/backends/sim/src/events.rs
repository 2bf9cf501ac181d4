//! What is going to happen, in order.
//!
//! Most of what is foreseen is near: a wheel has a place for each of the next nanoseconds, and what lies beyond waits in a heap until its
//! time comes within the wheel's reach. (With a heap alone, 30 % of a simulation's time went into it.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds that the wheel reaches.
const REACH: usize = 1 << 14;
/// No entry.
const NONE: u32 = u32::MAX;

/// Something that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// Packets that were submitted together reach their host's network interface.
    Sent { host: u32, sending: u32 },
    /// The head of a lane's first packet reaches the switch at its end, or all of it the host.
    Landed { lane: u32 },
    /// A packet arrives that is not in its lane's order.
    Stray { stray: u32 },
    /// A lane is done with a packet, and others wait for it.
    LinkFree { lane: u32 },
    /// A lane's sender hears that it is to pause, or to go on.
    Paused { lane: u32, paused: bool },
    /// An actor is to have its turn, if it still waits for this one.
    Turn { actor: u32, number: u32 },
}

/// An event on the wheel.
#[derive(Clone, Copy, Debug)]
struct Entry {
    event: Event,
    /// The next of the same nanosecond.
    next: u32,
}

/// The events of a nanosecond: the first and the last.
#[derive(Clone, Copy, Debug)]
struct Chain {
    first: u32,
    last: u32,
}

/// Events, the next first; those of one nanosecond in the order in which they were foreseen.
#[derive(Debug)]
pub(crate) struct Events {
    /// What the wheel reaches begins here. All that lies in the heap is beyond it.
    now_ns: u64,
    wheel: Box<[Chain; REACH]>,
    /// A bit for each place of the wheel that has events, and a bit for each of these words that is not zero.
    filled: Box<[u64; REACH / 64]>,
    filled_words: [u64; REACH / 64 / 64],
    entries: Vec<Entry>,
    free: u32,
    far: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Of the next event of the heap.
    number: u64,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            now_ns: 0,
            wheel: Box::new([Chain { first: NONE, last: NONE }; REACH]),
            filled: Box::new([0; REACH / 64]),
            filled_words: [0; REACH / 64 / 64],
            entries: Vec::new(),
            free: NONE,
            far: BinaryHeap::new(),
            number: 0,
        }
    }
}

impl Events {
    /// Foresees an event. One of the past happens at once.
    #[inline]
    pub fn add(&mut self, time_ns: u64, event: Event) {
        let time_ns = time_ns.max(self.now_ns);
        if time_ns - self.now_ns < REACH as u64 {
            self.put(time_ns, event);
        } else {
            self.far.push(Reverse((time_ns, self.number, event)));
            self.number += 1;
        }
    }

    #[inline]
    fn put(&mut self, time_ns: u64, event: Event) {
        let entry = Entry { event, next: NONE };
        let index = self.free;
        let index = if index == NONE {
            self.entries.push(entry);
            self.entries.len() as u32 - 1
        } else {
            self.free = self.entries[index as usize].next;
            self.entries[index as usize] = entry;
            index
        };
        let place = time_ns as usize % REACH;
        let chain = &mut self.wheel[place];
        if chain.first == NONE {
            *chain = Chain { first: index, last: index };
            self.filled[place / 64] |= 1 << (place % 64);
            self.filled_words[place / 64 / 64] |= 1 << (place / 64 % 64);
        } else {
            self.entries[chain.last as usize].next = index;
            chain.last = index;
        }
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
        let words = REACH / 64;
        let mut word = (start / 64 + 1) % words;
        for _ in 0..=words / 64 {
            let left = self.filled_words[word / 64] >> (word % 64);
            if left != 0 {
                word += left.trailing_zeros() as usize;
                return Some(word * 64 + self.filled[word].trailing_zeros() as usize);
            }
            word = (word / 64 + 1) * 64 % words;
        }
        None
    }

    /// The next event, and when it is.
    #[cfg(test)]
    fn pop(&mut self) -> Option<(u64, Event)> {
        self.pop_until(u64::MAX)
    }

    /// The next event, if it is by `end_ns`, and when it is.
    #[inline]
    pub fn pop_until(&mut self, end_ns: u64) -> Option<(u64, Event)> {
        let next_ns = self.next_ns().filter(|next_ns| *next_ns <= end_ns)?;
        if next_ns != self.now_ns {
            self.now_ns = next_ns;
            self.reach();
        }
        let place = next_ns as usize % REACH;
        let chain = &mut self.wheel[place];
        let index = chain.first;
        let Entry { event, next } = self.entries[index as usize];
        chain.first = next;
        if next == NONE {
            self.filled[place / 64] &= !(1 << (place % 64));
            if self.filled[place / 64] == 0 {
                self.filled_words[place / 64 / 64] &= !(1 << (place / 64 % 64));
            }
        }
        self.entries[index as usize].next = self.free;
        self.free = index;
        Some((next_ns, event))
    }

    /// Takes what has come within reach from the heap, before anything else can be put where it belongs.
    #[inline]
    fn reach(&mut self) {
        while let Some(Reverse((time_ns, _, event))) = self.far.peek().copied() {
            if time_ns - self.now_ns >= REACH as u64 {
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
