//! Output that is filled in place: appending each part of an answer by itself would look for room each time, and making
//! the output longer for each answer would write zeros that are overwritten at once.

use sinew_mem::copy_small;

/// Bytes that are filled in before they go to the output together.
const ROOM_LEN: usize = 4 << 10;

/// Answers on their way to a connection's output, which has them once this is dropped.
pub(super) struct Filler<'w> {
    out: &'w mut Vec<u8>,
    room: &'w mut [u8],
    filled: usize,
}

/// A few bytes that are written as a whole word. What lies behind them is written next.
#[derive(Clone, Copy)]
pub(super) struct Short {
    word: [u8; 8],
    len: usize,
}

impl Short {
    /// # Panics
    ///
    /// When there are more than eight bytes.
    pub const fn new(bytes: &[u8]) -> Self {
        let mut word = [0; 8];
        word.split_at_mut(bytes.len()).0.copy_from_slice(bytes);
        Self { word, len: bytes.len() }
    }

    /// A space and a number of one or two digits.
    #[inline(always)]
    fn of_number(number: u64) -> Option<Self> {
        let digit = |number: u64| b'0' + number as u8;
        match number {
            0..10 => Some(Self { word: [b' ', digit(number), 0, 0, 0, 0, 0, 0], len: 2 }),
            10..100 => Some(Self { word: [b' ', digit(number / 10), digit(number % 10), 0, 0, 0, 0, 0], len: 3 }),
            _ => None,
        }
    }
}

impl<'w> Filler<'w> {
    /// Appends to `out` by way of `room`, which is to be kept for the next time.
    #[inline(always)]
    pub fn new(out: &'w mut Vec<u8>, room: &'w mut Vec<u8>) -> Self {
        if room.is_empty() {
            room.resize(ROOM_LEN, 0);
        }
        Self { out, room, filled: 0 }
    }

    /// Length of the output so far.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.out.len() + self.filled
    }

    /// Appends up to `max` bytes, which `fill` writes.
    #[inline(always)]
    pub fn append(&mut self, max: usize, fill: impl FnOnce(&mut Place<'_>)) {
        // A last short part is written as a word.
        let max = max + size_of::<u64>();
        let has_room = self.room.len() - self.filled >= max || self.make_room(max);
        // One call of `fill`, so that it is compiled into this function.
        let mut place = Place(if has_room { &mut self.room[self.filled..] } else { self.lengthen(max) });
        fill(&mut place);
        let left = place.0.len();
        if has_room {
            self.filled = self.room.len() - left;
        } else {
            self.out.truncate(self.out.len() - left);
        }
    }

    /// Makes room for `max` bytes; returns whether there can be so much.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, max: usize) -> bool {
        self.flush();
        self.room.len() >= max
    }

    /// Makes the output itself longer, where all has been flushed to it.
    #[cold]
    #[inline(never)]
    fn lengthen(&mut self, max: usize) -> &mut [u8] {
        let start = self.out.len();
        self.out.resize(start + max, 0);
        &mut self.out[start..]
    }

    #[inline(never)]
    fn flush(&mut self) {
        self.out.extend_from_slice(&self.room[..self.filled]);
        self.filled = 0;
    }
}

impl Drop for Filler<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// The place of an answer, filled in from its beginning.
pub(super) struct Place<'a>(&'a mut [u8]);

impl<'a> Place<'a> {
    /// The next `len` bytes.
    #[inline(always)]
    pub fn next(&mut self, len: usize) -> &'a mut [u8] {
        let (next, rest) = std::mem::take(&mut self.0).split_at_mut(len);
        self.0 = rest;
        next
    }

    #[inline(always)]
    pub fn put(&mut self, bytes: &[u8]) {
        copy_small(self.next(bytes.len()), bytes);
    }

    #[inline(always)]
    pub fn put_short(&mut self, Short { word, len }: Short) {
        let rest = std::mem::take(&mut self.0);
        *rest.first_chunk_mut().expect("there is room for a word") = word;
        self.0 = &mut rest[len..];
    }

    /// Puts a space and a number in decimal.
    #[inline(always)]
    pub fn put_number(&mut self, number: u64) {
        match Short::of_number(number) {
            Some(short) => self.put_short(short),
            None => self.put_long_number(number),
        }
    }

    #[inline(never)]
    fn put_long_number(&mut self, number: u64) {
        self.put(b" ");
        self.put(itoa::Buffer::new().format(number).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_follow_each_other_and_nothing_follows_the_last() {
        let (mut out, mut room) = (b"before".to_vec(), Vec::new());
        let long = vec![b'a'; ROOM_LEN - 10];
        let mut expected = out.clone();
        for texts in [&[&long[..10], b"", &long[..2000], &long[..2500]][..], &[&long, &long], &[]] {
            let mut filler = Filler::new(&mut out, &mut room);
            for text in texts {
                filler.append(text.len() + 2, |place| {
                    place.put(text);
                    place.put_short(Short::new(b"\r\n"));
                });
                expected.extend([*text, b"\r\n"].concat());
                assert_eq!(filler.len(), expected.len());
            }
            drop(filler);
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn numbers_are_written_whole() {
        let ends = (0..20).flat_map(|digits| [10u64.pow(digits) - 1, 10u64.pow(digits)]);
        for number in (0..2000).chain(ends).chain([u32::MAX.into(), u64::MAX]) {
            let mut out = Vec::new();
            Filler::new(&mut out, &mut Vec::new()).append(21, |place| place.put_number(number));
            assert_eq!(out, format!(" {number}").as_bytes());
        }
    }
}
