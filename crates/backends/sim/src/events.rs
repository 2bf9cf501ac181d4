//! Future events of a simulation, in order.
//!
//! Most events are near. A wheel has a place for each of the next nanoseconds, and later events wait in a heap until
//! they come within the wheel's reach. (A heap alone took 30 % of a simulation's time.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds that the wheel reaches: as many as fit in the nearest cache. (With four times as many, simulations took
/// 1 to 4 % longer.)
const REACH: usize = 1 << 12;
/// Words of a bitmap with a bit for each place.
const WORDS: usize = REACH / 64;
const _: () = assert!(WORDS == 64);
/// No entry.
const NONE: u32 = u32::MAX;

/// An event; its time is kept beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Packets that were submitted together reach their host's network interface.
    Sent { host: u32, first: u32 },
    /// The head of a lane's first packet reaches the switch at the lane's end, or the whole packet reaches the host.
    Landed { lane: u32, flight: u32 },
    /// A packet arrives out of its lane's order.
    Stray { flight: u32, on: u32 },
    /// A lane has sent a packet, and others are queued for it.
    LinkFree { lane: u32 },
    /// A request to pause, or to go on, reaches a lane's sender.
    Paused { lane: u32, paused: bool },
    /// Something is due at a NIC.
    Nic { nic: u32, job: u32 },
    /// An actor has its turn, if it still waits for the turn of this number. For the actor [`WOKEN`]: the first wake
    /// that is due is handled.
    Turn { actor: u32, number: u32 },
}

/// Number of no actor, which stands for wakes. A kind of event of their own would make all events cost more.
const WOKEN: u32 = (1 << 29) - 1;

/// An event in one word: its kind in 3 bits, then its numbers, of 29 and of 32 bits.
///
/// An enum is written in parts and then copied in words, which stalls the processor: simulations took 1 to 2 % longer.
type Word = u64;

impl Event {
    #[inline]
    fn to_word(self) -> Word {
        let (kind, a, b) = match self {
            Self::Sent { host, first } => (0, host, first),
            Self::Landed { lane, flight } => (1, lane, flight),
            Self::Stray { flight, on } => (2, flight, on),
            Self::LinkFree { lane } => (3, lane, 0),
            Self::Paused { lane, paused } => (4, lane, u32::from(paused)),
            Self::Turn { actor, number } => (5, actor, number),
            Self::Nic { nic, job } => (6, nic, job),
        };
        debug_assert!(a < 1 << 29, "there is no memory for so many");
        kind << 61 | u64::from(a) << 32 | u64::from(b)
    }

    // Inlined, since the caller would otherwise read in one word what was just written in parts, as above.
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
    /// The next entry of the same nanosecond.
    next: u32,
}

/// The events of a nanosecond: the first and the last.
#[derive(Clone, Copy, Debug)]
struct Chain {
    first: u32,
    /// Stale where there is no first.
    last: u32,
}

/// Events by time; those of one nanosecond in the order in which they were scheduled.
#[derive(Debug)]
pub(crate) struct Events {
    /// Start of the wheel's reach. All events in the heap are beyond its end.
    now_ns: u64,
    wheel: Box<[Chain; REACH]>,
    /// A bit for each place of the wheel that has events.
    filled: Box<[u64; WORDS]>,
    /// A bit for each word of `filled` that is not zero.
    filled_words: u64,
    entries: Vec<Entry>,
    /// The first free entry; each free entry knows the next.
    free: u32,
    far: BinaryHeap<Reverse<(u64, u64, Word)>>,
    /// Time from which the wheel reaches the first event of the heap.
    far_from_ns: u64,
    /// Number of the next event to enter the heap.
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
    /// Schedules an event. One in the past happens at once.
    // Inlined, since the event would otherwise go through memory before it becomes a word.
    #[inline(always)]
    pub fn add(&mut self, time_ns: u64, event: Event) {
        self.add_word(time_ns, event.to_word());
    }

    /// Schedules the moment at which a wake is handled.
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

    // The compiler alone inlines it only in some places, depending on its other callers, which takes 4 % of a packet's
    // instructions.
    #[inline(always)]
    fn put(&mut self, time_ns: u64, event: Word) {
        if self.free == NONE {
            self.grow();
        }
        let (index, place) = (self.free, time_ns as usize % REACH);
        self.free = self.entries[index as usize].next;
        // Branch-free: predicting whether the place is empty would fail every third time. The first entry of a place is
        // linked behind itself, which the next write undoes.
        let chain = &mut self.wheel[place];
        let is_first = chain.first == NONE;
        let before = if is_first { index } else { chain.last };
        *chain = Chain { first: if is_first { index } else { chain.first }, last: index };
        self.entries[before as usize].next = index;
        self.entries[index as usize] = Entry { event, next: NONE };
        self.filled[place / 64] |= 1 << (place % 64);
        self.filled_words |= 1 << (place / 64);
    }

    /// Makes room for one more event.
    #[cold]
    fn grow(&mut self) {
        self.free = self.entries.len() as u32;
        self.entries.push(Entry { event: 0, next: NONE });
    }

    /// Time of the next event.
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

    /// The next place of the wheel that has events, going round from now.
    #[inline]
    fn next_place(&self) -> Option<usize> {
        let start = self.now_ns as usize % REACH;
        let here = self.filled[start / 64] >> (start % 64);
        if here != 0 {
            return Some(start + here.trailing_zeros() as usize);
        }
        // The whole words from the next one on, and finally the one begun with.
        if self.filled_words == 0 {
            return None;
        }
        let from = start / 64 + 1;
        let word = (from + self.filled_words.rotate_right(from as u32).trailing_zeros() as usize) % WORDS;
        Some(word * 64 + self.filled[word].trailing_zeros() as usize)
    }

    /// Takes the next event, with its time.
    #[cfg(test)]
    fn pop(&mut self) -> Option<(u64, Event)> {
        self.pop_until(u64::MAX)
    }

    /// Takes the next event, with its time, if it is due by `end_ns`.
    #[inline(always)]
    pub fn pop_until(&mut self, end_ns: u64) -> Option<(u64, Event)> {
        let next_ns = self.next_ns().filter(|next_ns| *next_ns <= end_ns)?;
        self.now_ns = next_ns;
        if next_ns >= self.far_from_ns {
            self.fill_wheel();
        }
        let place = next_ns as usize % REACH;
        let index = self.wheel[place].first;
        let entry = &mut self.entries[index as usize];
        let Entry { event, next } = *entry;
        entry.next = self.free;
        self.free = index;
        self.wheel[place].first = next;
        // Branch-free here, too.
        let left = self.filled[place / 64] & !(u64::from(next == NONE) << (place % 64));
        self.filled[place / 64] = left;
        self.filled_words &= !(u64::from(left == 0) << (place / 64));
        Some((next_ns, Event::of_word(event)))
    }

    /// Shows the events that are scheduled for the times `from_ns` to `to_ns`, as far as they are on the wheel.
    #[inline]
    pub fn show(&self, from_ns: u64, to_ns: u64, mut show: impl FnMut(Event)) {
        for time_ns in from_ns.max(self.now_ns)..=to_ns.min(self.now_ns.saturating_add(REACH as u64 - 1)) {
            let place = time_ns as usize % REACH;
            let mut next = self.wheel[place].first;
            while next != NONE {
                let entry = self.entries[next as usize];
                show(Event::of_word(entry.event));
                next = entry.next;
            }
        }
    }

    /// Moves events that have come within reach from the heap to the wheel, before any other event can be put in their
    /// places.
    #[cold]
    fn fill_wheel(&mut self) {
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
    fn events_of_a_range_of_times_are_shown_and_stay() {
        let mut events = Events::default();
        // The last one is in the heap.
        for (time_ns, lane) in [(5, 0), (3, 1), (5, 2), (9, 3), (REACH as u64 + 5, 4)] {
            events.add(time_ns, Event::LinkFree { lane });
        }
        let shown = |events: &Events, from_ns, to_ns| {
            let mut shown = Vec::new();
            events.show(from_ns, to_ns, |event| shown.push(event));
            shown
        };
        let lanes = |lanes: &[u32]| lanes.iter().map(|&lane| Event::LinkFree { lane }).collect::<Vec<_>>();
        assert_eq!(shown(&events, 4, 8), lanes(&[0, 2]));
        assert_eq!(shown(&events, 0, u64::MAX), lanes(&[1, 0, 2, 3]));
        assert_eq!(events.pop(), Some((3, Event::LinkFree { lane: 1 })));
        assert_eq!(events.pop(), Some((5, Event::LinkFree { lane: 0 })));
        // Places of the past are those of later times, too.
        assert_eq!(shown(&events, 0, 5), lanes(&[2]));
        assert_eq!(shown(&events, 6, 6 + REACH as u64), lanes(&[3]));
        assert_eq!(shown(&events, 8, 7), []);
    }

    #[test]
    fn near_and_far_events_come_as_from_a_sorted_list() {
        for seed in 0..50 {
            let mut generator = SeededGenerator::new(seed);
            let (mut events, mut list, mut now_ns) = (Events::default(), Vec::new(), 0);
            for lane in 0..3_000u32 {
                // Often the same nanosecond, often the last within the wheel's reach and the first beyond it.
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
