//! The circular log: items are appended, and the oldest are overwritten.

use std::ops::Range;

/// Bits of a place: an offset in words. A log or a heap is smaller.
pub(crate) const OFFSET_BITS: u32 = 36;
const LAP_BITS: u32 = 11;
/// Bits of a position, as a slot of the index holds it: place and lap.
pub(crate) const POSITION_BITS: u32 = OFFSET_BITS + LAP_BITS;
const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;
const LAP: u64 = 1 << OFFSET_BITS;

/// The head of the log, where the next item goes: the number of laps begun, and the place.
///
/// Laps are counted modulo 2^11. No slot points to an item that was overwritten more than a lap ago, since each item's
/// slot is visited once in a lap; so positions from different times are never confused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head(pub u64);

impl Head {
    /// Whether the item appended at `position` is still there, whole.
    ///
    /// One lap advances the head by the size of the largest possible log, whatever the size of this one. So an item of
    /// this lap lies less than that behind the head, and so does an item of the last lap at a place that this lap has
    /// not reached.
    #[inline(always)]
    pub fn is_live(self, position: u64) -> bool {
        (self.0.wrapping_sub(position) & POSITION_MASK).wrapping_sub(1) < LAP
    }

    /// Distance of `position` behind the head, for comparing the ages of items.
    #[inline(always)]
    pub fn age(self, position: u64) -> u64 {
        self.0.wrapping_sub(position) & POSITION_MASK
    }
}

/// The position of a place in a lap.
pub(crate) fn position_of(lap: u64, offset: usize) -> u64 {
    ((lap << OFFSET_BITS) + offset as u64) & POSITION_MASK
}

/// Returns the place of `position` in the log.
#[inline(always)]
pub(crate) fn offset_of(position: u64) -> usize {
    (position & (LAP - 1)) as usize
}

/// The places of a log's older half, which begins at the head and may go around the log's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OlderHalf {
    /// Start of the half that does not go around the log's end, and the length of each half.
    start: usize,
    len: usize,
    /// Whether that is the younger half.
    is_younger: bool,
}

impl OlderHalf {
    /// No place.
    pub const NONE: Self = Self { start: 0, len: 0, is_younger: false };

    #[inline(always)]
    pub fn contains(&self, offset: usize) -> bool {
        (offset.wrapping_sub(self.start) < self.len) != self.is_younger
    }
}

/// The state of a circular log: where the next item goes, and which is the oldest.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    words: usize,
    offset: usize,
    lap: u64,
    /// Place of the oldest item that was not [passed](Self::advance_tail), in this lap or the last one.
    tail: usize,
    tail_lap: u64,
    /// End of the items of the last lap.
    end: usize,
}

impl Log {
    /// Makes a log of `words` words, fewer than 2^36.
    pub fn new(words: usize) -> Self {
        Self { words, offset: 0, lap: 1, tail: 0, tail_lap: 1, end: 0 }
    }

    pub fn words(&self) -> usize {
        self.words
    }

    pub fn head(&self) -> Head {
        Head((self.lap << OFFSET_BITS) + self.offset as u64)
    }

    /// Returns the position of the oldest item if it must go before an item of `words` words can be
    /// [reserved](Self::reserve). `words` must be no more than the log has.
    #[inline]
    pub fn blocking_item(&self, words: usize) -> Option<u64> {
        let (lap, end) = if self.wraps(words) { (self.lap + 1, words) } else { (self.lap, self.offset + words) };
        let is_older = self.tail_lap + 1 < lap;
        let is_under = self.tail_lap + 1 == lap && self.tail < end;
        self.oldest_item().filter(|_| is_older || is_under)
    }

    /// The places of the older half.
    #[inline(always)]
    pub fn older_half(&self) -> OlderHalf {
        let len = self.words / 2;
        let is_younger = self.offset >= len;
        OlderHalf { start: if is_younger { self.offset - len } else { self.offset }, len, is_younger }
    }

    /// Position of the oldest item.
    fn oldest_item(&self) -> Option<u64> {
        let is_empty = self.tail_lap == self.lap && self.tail == self.offset;
        (!is_empty).then(|| position_of(self.tail_lap, self.tail))
    }

    /// Moves on from the oldest item, of `words` words, to the next.
    pub fn advance_tail(&mut self, words: usize) {
        self.tail += words;
        self.end_lap_of_tail();
    }

    /// Whether the oldest item, of `words` words, could be appended again after it is [passed](Self::advance_tail),
    /// with no other in the way.
    pub fn fits_after_advance(&self, words: usize) -> bool {
        let mut after = self.clone();
        after.advance_tail(words);
        after.blocking_item(words).is_none()
    }

    /// Position of the item after the one of `words` words at `position`, which must be live.
    pub fn next_item(&self, position: u64, words: usize) -> Option<u64> {
        let end = offset_of(position) + words;
        let is_in_this_lap = position_of(self.lap, offset_of(position)) == position;
        let (lap, place) = match is_in_this_lap {
            true => (self.lap, end),
            false if end < self.end => (self.lap - 1, end),
            false => (self.lap, 0),
        };
        let is_head = lap == self.lap && place == self.offset;
        (!is_head).then(|| position_of(lap, place))
    }

    fn end_lap_of_tail(&mut self) {
        if self.tail_lap < self.lap && self.tail >= self.end {
            (self.tail_lap, self.tail) = (self.lap, 0);
        }
    }

    /// Whether an item of `words` words starts a new lap: items do not wrap around the end.
    fn wraps(&self, words: usize) -> bool {
        self.offset + words > self.words
    }

    /// Reserves `words` words for an item, once nothing is [in the way](Self::blocking_item); returns its position.
    /// From then on, an item that lay there is no longer [live](Head::is_live).
    pub fn reserve(&mut self, words: usize) -> u64 {
        if self.wraps(words) {
            self.end = self.offset;
            self.offset = 0;
            self.lap += 1;
            self.end_lap_of_tail();
        }
        let position = self.head().0 & POSITION_MASK;
        self.offset += words;
        position
    }

    /// Words that have been appended to at some time.
    pub fn used(&self) -> usize {
        if self.lap == 1 { self.offset } else { self.words }
    }

    /// Ranges of the items that were not passed, in the last lap and in this one, each with its lap.
    pub fn laps(&self) -> [(u64, Range<usize>); 2] {
        let is_in_this = self.tail_lap == self.lap;
        let last = if is_in_this { 0..0 } else { self.tail..self.end };
        let this = if is_in_this { self.tail..self.offset } else { 0..self.offset };
        [(self.lap - 1, last), (self.lap, this)]
    }

    /// Limits the log to `words` words, once no item is left beyond them. `ends` are the ends of the items in the last
    /// lap and in this one.
    pub fn limit(&mut self, words: usize, ends: [usize; 2]) {
        self.words = words;
        [self.end, self.offset] = ends;
        if self.tail_lap == self.lap {
            self.tail = self.tail.min(self.offset);
        }
        self.end_lap_of_tail();
    }

    /// Words appended since `position`, which must be live.
    pub fn appended_since(&self, position: u64) -> usize {
        let place = offset_of(position);
        if place < self.offset { self.offset - place } else { self.end.saturating_sub(place) + self.offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_live_is_what_no_later_item_lies_on() {
        for words in [1, 2, 7, 64, 100] {
            let mut log = Log::new(words);
            // Number of the item that each word belongs to.
            let mut owner = vec![None; words];
            let mut items = Vec::new();
            let mut passing = std::collections::VecDeque::new();
            // More laps than the lap counter can tell apart.
            for number in 0..5000 * words {
                let len = 1 + (number * 7 + number / 3) % words;
                while let Some(position) = log.blocking_item(len) {
                    let (_, oldest, len) = passing.pop_front().expect("nothing else is in the way");
                    assert_eq!(position, oldest, "{words} {number}");
                    let next = passing.front().map(|(_, position, _)| *position);
                    assert_eq!(log.next_item(oldest, len), next, "{words} {number}");
                    log.advance_tail(len);
                }
                let position = log.reserve(len);
                assert!(position < 1 << POSITION_BITS);
                // Exactly the items that were passed are no longer live.
                assert!(passing.iter().all(|(_, position, _)| log.head().is_live(*position)), "{words} {number}");
                passing.push_back((number, position, len));
                for place in &mut owner[offset_of(position)..offset_of(position) + len] {
                    *place = Some(number);
                }
                items.push((number, position, len));
                let head = log.head();
                let mut ages = Vec::new();
                items.retain(|(number, position, len)| {
                    let whole = owner[offset_of(*position)..offset_of(*position) + len]
                        .iter()
                        .all(|other| *other == Some(*number));
                    assert!(whole || !head.is_live(*position), "{words} {number}");
                    // An item beyond the last one of a lap is given up, though nothing overwrites it.
                    ages.push(head.age(*position));
                    head.is_live(*position)
                });
                assert!(ages.is_sorted_by(|a, b| a > b), "the oldest comes first");
                for (at, (_, position, len)) in items.iter().enumerate() {
                    let next = items.get(at + 1).map(|(_, position, _)| *position);
                    assert_eq!(log.next_item(*position, *len), next, "{words} {number}");
                    let distance = (offset_of(*position) + words - log.offset) % words;
                    let is_older = log.older_half().contains(offset_of(*position));
                    // An odd number of words has no halves.
                    assert!(is_older == (distance < words / 2) || 2 * distance == words - 1, "{words} {number}");
                }
                assert!(items.len() <= words);
                assert!(items.iter().eq(&passing), "{words} {number}");
                assert_eq!(items.last().map(|item| item.0), Some(number));
                if number > 300 * words && words > 60 {
                    break;
                }
            }
        }
    }
}
