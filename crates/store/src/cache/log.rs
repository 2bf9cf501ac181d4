//! The circular log: items are appended, and the oldest are overwritten.

use std::ops::Range;

/// Bits of a place: an offset in words. A log or a heap is smaller.
pub(crate) const PLACE_BITS: u32 = 36;
const LAP_BITS: u32 = 11;
/// What a slot of the index holds of a position: place and lap.
pub(crate) const POSITION_BITS: u32 = PLACE_BITS + LAP_BITS;
const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;
const LAP: u64 = 1 << PLACE_BITS;

/// Where the next item goes: how many laps were begun, and the place.
///
/// Laps are counted modulo 2^11. No slot points to something that was overwritten more than a lap ago, since every slot is looked
/// at once in a lap: positions are never mistaken for those of another time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head(pub u64);

impl Head {
    /// Whether what was appended at `position` is still there, whole.
    ///
    /// A lap counts as the largest log there can be, whatever the log's size: what was appended in this lap lies less than
    /// that behind, and so does what the last lap appended at a place that this lap has not come to.
    #[inline(always)]
    pub fn is_live(self, position: u64) -> bool {
        (self.0.wrapping_sub(position) & POSITION_MASK).wrapping_sub(1) < LAP
    }

    /// How much further back `position` is than others: a measure to compare by.
    #[inline(always)]
    pub fn age(self, position: u64) -> u64 {
        self.0.wrapping_sub(position) & POSITION_MASK
    }
}

/// The position of a place in a lap.
pub(crate) fn position_of(lap: u64, place: usize) -> u64 {
    ((lap << PLACE_BITS) + place as u64) & POSITION_MASK
}

/// Where in the log `position` lies.
#[inline(always)]
pub(crate) fn place(position: u64) -> usize {
    (position & (LAP - 1)) as usize
}

/// The order in which a circular log is written, and its items go.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    words: usize,
    place: usize,
    lap: u64,
    /// Where the oldest item begins that was not [passed](Self::pass): in this lap or the last one.
    tail: usize,
    tail_lap: u64,
    /// Where the items of the last lap end.
    end: usize,
}

impl Log {
    /// A log of `words`, fewer than 2^36.
    pub fn new(words: usize) -> Self {
        Self { words, place: 0, lap: 1, tail: 0, tail_lap: 1, end: 0 }
    }

    pub fn words(&self) -> usize {
        self.words
    }

    pub fn head(&self) -> Head {
        Head((self.lap << PLACE_BITS) + self.place as u64)
    }

    /// The position of the oldest item, if an item of `words` more, no more than the log has, cannot be [had](Self::reserve) while it
    /// is there.
    #[inline]
    pub fn in_the_way(&self, words: usize) -> Option<u64> {
        let (lap, end) = if self.goes_around(words) { (self.lap + 1, words) } else { (self.lap, self.place + words) };
        let is_older = self.tail_lap + 1 < lap;
        let is_under = self.tail_lap + 1 == lap && self.tail < end;
        let is_empty = self.tail_lap == self.lap && self.tail == self.place;
        ((is_older || is_under) && !is_empty).then(|| position_of(self.tail_lap, self.tail))
    }

    /// Goes on from the oldest item, which takes so many words, to the next.
    pub fn pass(&mut self, words: usize) {
        self.tail += words;
        self.end_lap_of_tail();
    }

    /// Whether the oldest item, of `words`, could be appended once more, once it is [passed](Self::pass), with no other in the way.
    pub fn has_room_once_passed(&self, words: usize) -> bool {
        let mut after = self.clone();
        after.pass(words);
        after.in_the_way(words).is_none()
    }

    fn end_lap_of_tail(&mut self) {
        if self.tail_lap < self.lap && self.tail >= self.end {
            (self.tail_lap, self.tail) = (self.lap, 0);
        }
    }

    /// Whether an item of `words` begins a lap: items do not go around the end.
    fn goes_around(&self, words: usize) -> bool {
        self.place + words > self.words
    }

    /// Makes room for an item of `words`, once nothing is [in the way](Self::in_the_way); returns its position. From then on what lay
    /// there is not [live](Head::is_live).
    pub fn reserve(&mut self, words: usize) -> u64 {
        if self.goes_around(words) {
            self.end = self.place;
            self.place = 0;
            self.lap += 1;
            self.end_lap_of_tail();
        }
        let position = self.head().0 & POSITION_MASK;
        self.place += words;
        position
    }

    /// Words that it has appended something to, up to all.
    pub fn used(&self) -> usize {
        if self.lap == 1 { self.place } else { self.words }
    }

    /// The places where the items of the last lap begin and end that were not passed, and those of this one.
    pub fn laps(&self) -> [(u64, Range<usize>); 2] {
        let is_in_this = self.tail_lap == self.lap;
        let last = if is_in_this { 0..0 } else { self.tail..self.end };
        let this = if is_in_this { self.tail..self.place } else { 0..self.place };
        [(self.lap - 1, last), (self.lap, this)]
    }

    /// Has it have `words` from now on, once nothing is left beyond them: its items end at these places, in the last lap and in this one.
    pub fn limit(&mut self, words: usize, ends: [usize; 2]) {
        self.words = words;
        [self.end, self.place] = ends;
        if self.tail_lap == self.lap {
            self.tail = self.tail.min(self.place);
        }
        self.end_lap_of_tail();
    }

    /// How many words were appended since `position`, which is live.
    pub fn appended_since(&self, position: u64) -> usize {
        let place = place(position);
        if place < self.place { self.place - place } else { self.end.saturating_sub(place) + self.place }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_live_is_what_no_later_item_lies_on() {
        for words in [1, 2, 7, 64, 100] {
            let mut log = Log::new(words);
            // What stands in each word, by the number of the item.
            let mut owner = vec![None; words];
            let mut items = Vec::new();
            let mut passing = std::collections::VecDeque::new();
            // More laps than are told apart.
            for number in 0..5000 * words {
                let len = 1 + (number * 7 + number / 3) % words;
                while let Some(position) = log.in_the_way(len) {
                    let (_, oldest, len) = passing.pop_front().expect("nothing else is in the way");
                    assert_eq!(position, oldest, "{words} {number}");
                    log.pass(len);
                }
                let position = log.reserve(len);
                assert!(position < 1 << POSITION_BITS);
                // What was passed is what is not live any more.
                assert!(passing.iter().all(|(_, position, _)| log.head().is_live(*position)), "{words} {number}");
                passing.push_back((number, position, len));
                for place in &mut owner[place(position)..place(position) + len] {
                    *place = Some(number);
                }
                items.push((number, position, len));
                let head = log.head();
                let mut ages = Vec::new();
                items.retain(|(number, position, len)| {
                    let whole =
                        owner[place(*position)..place(*position) + len].iter().all(|other| *other == Some(*number));
                    assert!(whole || !head.is_live(*position), "{words} {number}");
                    // What lies beyond the last item of a lap is given up though nothing lies on it.
                    ages.push(head.age(*position));
                    head.is_live(*position)
                });
                assert!(ages.is_sorted_by(|a, b| a > b), "the oldest comes first");
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
