//! The sending side of a ring.

use super::packet::{
    BURST_LINES_MAX, BURST_SHIFT, KIND_FAR, KIND_INLINE, KIND_REVOKED, KIND_SKIP, kind_of, lines_of, word_of,
};
use super::words::Words;
use super::{
    CONTROL_BYTES, FAR_BYTES, FAR_HEAD_MAX, FIRST_LINE_WORD, FULL_LINE, Far, HEAD_WORD, INLINE_MAX, LINE, Refused,
    WORD, bytes_for, valid_lines,
};
use crate::atomic::{AtomicU64, Ordering, fence};

/// The sending side of a ring.
#[derive(Debug)]
pub struct Producer {
    words: Words,
    mask: u64,
    /// Position of the next line to write. The word there matches no packet to come.
    tail: u64,
    /// Position up to which the consumer had given lines back when the producer last looked.
    head: u64,
    /// Position before which a packet of one line can be written without any check: there is room for it, and the word
    /// behind it needs no clearing. A limit that is too low does no harm.
    unchecked_limit: u64,
    /// Position up to which lines can be written in a row, one more being free behind them. A limit that is too low
    /// does no harm.
    row_end: u64,
    broken: bool,
    /// Position of the first packet since the last [`Self::submit`]; `tail` when there is none.
    burst_start: u64,
    /// The word that will publish that packet.
    first_word: u64,
    /// One bit for each line: set if the place of its word holds bytes of a packet that started before it.
    continued: Vec<u64>,
}

impl Producer {
    /// The producer of a ring of `lines` lines over fresh, zeroed memory of [`bytes_for`]`(lines)` bytes; `None` when
    /// the sizes do not fit.
    ///
    /// # Safety
    ///
    /// There is at most one producer for the memory, and nobody in this process except its consumer accesses it.
    pub unsafe fn new(words: Words, lines: usize) -> Option<Self> {
        (valid_lines(lines) && words.count() == bytes_for(lines) / 8).then(|| Self {
            words,
            mask: lines as u64 - 1,
            tail: 0,
            head: 0,
            unchecked_limit: lines as u64 - 1,
            row_end: 0,
            broken: false,
            burst_start: 0,
            first_word: 0,
            continued: vec![0; lines.div_ceil(64)],
        })
    }

    #[inline(always)]
    fn index(&self, position: u64) -> usize {
        (position & self.mask) as usize
    }

    #[inline(always)]
    fn word(&self, position: u64) -> &AtomicU64 {
        // SAFETY: the mask keeps the line inside the ring. No slice covers it: the producer passes only positions of
        // lines that were given back.
        unsafe { self.words.word(FIRST_LINE_WORD + self.index(position) * (LINE / 8)) }
    }

    #[inline(always)]
    fn byte(&self, position: u64) -> usize {
        CONTROL_BYTES + self.index(position) * LINE
    }

    /// Queues a packet of at most [`INLINE_MAX`] bytes, `head` and then `data`, which the next [`Self::submit`]
    /// publishes.
    ///
    /// # Errors
    ///
    /// [`Refused`]; nothing was sent then.
    #[inline(always)]
    pub fn push(&mut self, head: &[u8], data: &[u8]) -> Result<(), Refused> {
        if self.push_full_line(head, data) { Ok(()) } else { self.push_any(head, data) }
    }

    /// As [`Self::push`], for a header of 24 bytes and a message of 32, in one piece or two, each aligned to 8:
    /// together they fill a line. For any other packet, or when the ring needs a check first, it does nothing and
    /// returns false.
    #[inline(always)]
    pub fn push_full_line(&mut self, head: &[u8], data: &[u8]) -> bool {
        let tail = self.tail;
        if tail >= self.unchecked_limit {
            return false;
        }
        let offset = self.byte(tail);
        // SAFETY: the mask keeps the line inside the ring. The line is free, since `tail` is below the limit, and the
        // consumer does not read it before it is published; no slice covers it.
        let (word, is_written) =
            unsafe { (self.words.word(offset / 8), self.words.put_full_line(offset + WORD, head, data)) };
        if !is_written {
            return false;
        }
        let full_word = word_of(tail, FULL_LINE, KIND_INLINE);
        if tail == self.burst_start {
            self.first_word = full_word;
        } else {
            // Relaxed: the consumer comes here only through the burst's first packet.
            word.store(full_word, Ordering::Relaxed);
        }
        self.tail = tail + 1;
        true
    }

    /// As [`Self::push`], for a header of two words and a message of whole words, aligned to 8, that fit in a line. For
    /// any other packet, or when the ring needs a check first, it does nothing and returns false.
    #[inline(always)]
    pub fn push_words(&mut self, head: [u64; 2], data: &[u8]) -> bool {
        let tail = self.tail;
        // SAFETY: as in `push_full_line`: five words at most are written behind the line's own and the header's two.
        if tail >= self.unchecked_limit || !unsafe { self.words.put_words(self.byte(tail) + WORD, head, data) } {
            return false;
        }
        self.write_word(word_of(tail, 16 + data.len(), KIND_INLINE));
        self.tail = tail + 1;
        true
    }

    /// As [`Self::push`], without first trying [`Self::push_full_line`]: for packets that are unlikely to fill a line.
    ///
    /// # Errors
    ///
    /// As for [`Self::push`].
    #[inline(never)]
    pub fn push_any(&mut self, head: &[u8], data: &[u8]) -> Result<(), Refused> {
        // Most packets are one piece, and should not save registers for a second.
        if data.is_empty() { self.push_pieces::<1>(head, data) } else { self.push_both(head, data) }
    }

    #[inline(never)]
    fn push_both(&mut self, head: &[u8], data: &[u8]) -> Result<(), Refused> {
        self.push_pieces::<2>(head, data)
    }

    /// Queues a packet of one piece, `head`, or of two.
    #[inline(always)]
    fn push_pieces<const PIECES: usize>(&mut self, head: &[u8], data: &[u8]) -> Result<(), Refused> {
        let data = if PIECES == 1 { &[] } else { data };
        let len = head.len() + data.len();
        if len > FULL_LINE || self.tail >= self.unchecked_limit {
            return self.push_slowly::<PIECES>(head, data);
        }
        // SAFETY: the line is free, since `tail` is below the limit, and the consumer does not read it before it is
        // published.
        unsafe { self.put(head, data) };
        self.write_word(word_of(self.tail, len, KIND_INLINE));
        self.tail += 1;
        Ok(())
    }

    /// Queues a packet of several lines, or one for which there may be no room.
    #[inline(never)]
    fn push_slowly<const PIECES: usize>(&mut self, head: &[u8], data: &[u8]) -> Result<(), Refused> {
        let data = if PIECES == 1 { &[] } else { data };
        let len = head.len() + data.len();
        if len > INLINE_MAX {
            return Err(Refused::TooLong);
        }
        let lines = lines_of(len) as u64;
        self.reserve(lines)?;
        // SAFETY: `reserve` made sure of `lines` free lines in a row, which the consumer does not read before they are
        // published.
        unsafe { self.put(head, data) };
        self.publish(lines, len, KIND_INLINE);
        if lines == 1 {
            self.update_limit();
        }
        Ok(())
    }

    /// Copies a packet's bytes to the lines at `tail`.
    ///
    /// # Safety
    ///
    /// Those lines are free, and long enough for the packet.
    #[inline(always)]
    unsafe fn put(&self, head: &[u8], data: &[u8]) {
        let offset = self.byte(self.tail) + WORD;
        // SAFETY: the caller's promises.
        unsafe {
            self.words.put(offset, head);
            if !data.is_empty() {
                self.words.put(offset + head.len(), data);
            }
        }
    }

    /// Queues a packet whose first bytes are `head`, at most [`FAR_HEAD_MAX`], and whose rest is in the arena; the next
    /// [`Self::submit`] publishes it. Returns its position: the arena's bytes may be written again once
    /// [`Self::given_back`] is beyond it, or after [`Self::revoke`].
    ///
    /// # Errors
    ///
    /// [`Refused`]; nothing was sent then.
    #[inline(always)]
    pub fn push_far(&mut self, head: &[u8], far: Far) -> Result<u64, Refused> {
        if head.len() > FAR_HEAD_MAX {
            return Err(Refused::TooLong);
        }
        self.reserve(1)?;
        let offset = self.byte(self.tail) + WORD;
        let mut description = [0; FAR_BYTES];
        description[..8].copy_from_slice(&far.offset.to_le_bytes());
        description[8..].copy_from_slice(&u64::from(far.len).to_le_bytes());
        // SAFETY: as in `push_any`: `reserve` made sure of one free line.
        unsafe {
            self.words.put(offset, &description);
            self.words.put(offset + FAR_BYTES, head);
        }
        let position = self.tail;
        self.publish(1, head.len(), KIND_FAR);
        Ok(position)
    }

    /// Makes sure that a packet of `lines` lines can be written at `tail`, in one piece.
    #[inline(always)]
    fn reserve(&mut self, lines: u64) -> Result<(), Refused> {
        if self.tail + lines <= self.row_end { Ok(()) } else { self.reserve_anew(lines) }
    }

    /// As [`Self::reserve`], where the ring ends, or the room that was known of.
    #[inline(never)]
    fn reserve_anew(&mut self, lines: u64) -> Result<(), Refused> {
        let to_end = self.mask + 1 - (self.tail & self.mask);
        let skipped = if to_end < lines { to_end } else { 0 };
        // One more for the clear word behind the packet.
        let needed = skipped + lines + 1;
        if self.room() < needed {
            self.refresh_room(needed)?;
        }
        if skipped > 0 {
            self.publish(skipped, skipped as usize, KIND_SKIP);
        }
        self.row_end = (self.head + self.mask).min((self.tail | self.mask) + 1);
        Ok(())
    }

    #[inline(always)]
    fn room(&self) -> u64 {
        self.mask + 1 - (self.tail - self.head)
    }

    /// Finds the limit anew: the first line from `tail` on that has no room behind it, or is followed by a word to
    /// clear.
    fn update_limit(&mut self) {
        let end = self.head + self.mask;
        let mut next = self.tail + 1;
        while next <= end {
            let index = self.index(next);
            let bits = self.continued[index / 64] >> (index % 64);
            if bits != 0 {
                next += u64::from(bits.trailing_zeros());
                break;
            }
            // On to the next 64 lines, or to the ring's first ones.
            next += (64 - index as u64 % 64).min(self.mask + 1 - index as u64);
        }
        self.unchecked_limit = end.min(next - 1);
    }

    #[cold]
    #[inline(never)]
    fn refresh_room(&mut self, needed: u64) -> Result<(), Refused> {
        // The consumer can make room only if it sees what was queued.
        self.submit();
        self.given_back();
        if self.broken {
            return Err(Refused::Broken);
        }
        if self.room() < needed { Err(Refused::Full) } else { Ok(()) }
    }

    #[inline(always)]
    fn publish(&mut self, lines: u64, len: usize, kind: u64) {
        let next = self.tail + lines;
        if lines > 1 {
            for line in self.tail + 1..next {
                let index = self.index(line);
                self.continued[index / 64] |= 1 << (index % 64);
            }
        }
        let index = self.index(next);
        if self.continued[index / 64] & 1 << (index % 64) != 0 {
            self.continued[index / 64] &= !(1 << (index % 64));
            // Relaxed: a later release store, this packet's or its burst's, makes it visible before the packet.
            self.word(next).store(0, Ordering::Relaxed);
        }
        self.write_word(word_of(self.tail, len, kind));
        self.tail = next;
    }

    /// Writes the word of the packet at `tail`; the burst's first is kept for [`Self::submit`].
    #[inline(always)]
    fn write_word(&mut self, word: u64) {
        if self.tail == self.burst_start {
            self.first_word = word;
        } else {
            // Relaxed: the consumer comes here only through the burst's first packet.
            self.word(self.tail).store(word, Ordering::Relaxed);
        }
    }

    /// Publishes everything pushed since the last call, at once.
    #[inline]
    pub fn submit(&mut self) {
        let lines = self.tail - self.burst_start;
        if lines == 0 {
            return;
        }
        // A burst of one line has no length to announce.
        let burst_bits = if lines == 1 { 0 } else { lines.min(BURST_LINES_MAX) << BURST_SHIFT };
        // Release: the burst's bytes and words come first. Partner: the acquire load in `Consumer::word_at`.
        self.word(self.burst_start).store(self.first_word | burst_bits, Ordering::Release);
        self.burst_start = self.tail;
        if burst_bits != 0 {
            self.prefetch(lines.min(BURST_LINES_MAX));
        }
    }

    /// Prefetches lines for the next burst, assuming it is as long as the last; the consumer's cache still holds them
    /// from the lap before. The next line is left out, because the consumer is polling it.
    #[inline(always)]
    fn prefetch(&self, lines: u64) {
        if self.room() > 2 * BURST_LINES_MAX {
            let ahead = self.index(self.tail + 1);
            let lines = (lines as usize - 1).min(self.mask as usize + 1 - ahead);
            self.words.prefetch_write(CONTROL_BYTES + ahead * LINE, lines);
        }
    }

    /// Reads again the position up to which the consumer has given lines back.
    #[inline]
    pub fn given_back(&mut self) -> u64 {
        // SAFETY: the control words lie in the ring and are never lent. Acquire: what the consumer read from the lines
        // and from the arena happened before they are written again. Partner: the release store in
        // `Consumer::give_back`.
        let head = unsafe { self.words.word(HEAD_WORD) }.load(Ordering::Acquire);
        if head.wrapping_sub(self.head) <= self.tail - self.head {
            self.head = head;
        } else {
            self.broken = true;
        }
        self.head
    }

    /// The position that [`Self::given_back`] returned last, or that was read when there was no room.
    #[inline]
    pub fn last_given_back(&self) -> u64 {
        self.head
    }

    /// The position behind everything sent so far.
    #[inline]
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// Revokes the arena bytes of the packet that [`Self::push_far`] sent at `position`: a consumer that copies them
    /// from now on, or is copying them now, finds that they do not count. This never waits. [`Self::revoked`] must
    /// follow before the bytes are written. A position that was given back already is left alone.
    ///
    /// # Safety
    ///
    /// [`Self::push_far`] of this producer returned `position`: any other may lie in the middle of a packet that the
    /// consumer is reading in place.
    pub unsafe fn revoke(&mut self, position: u64) {
        self.submit();
        // Only if the consumer still has the packet, so that the line is still the packet's own.
        if position.wrapping_sub(self.head) < self.tail - self.head {
            // Release: the consumer may come to the rest of a burst through this word. Partner: the acquire load in
            // `Consumer::word_at`.
            self.word(position).store(word_of(position, 0, KIND_REVOKED), Ordering::Release);
        }
    }

    /// Ends one or more calls of [`Self::revoke`]: writes to the arena that come later become visible after the
    /// revocations.
    pub fn revoked() {
        // The writer's half of a sequence lock. Partner: the acquire fence in `Guard::still_lent`.
        fence(Ordering::Release);
    }

    /// Whether the consumer broke the rules.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether somebody else overwrote the word through which the consumer comes to the oldest packet not yet given
    /// back. The consumer would wait for that packet for ever.
    pub fn is_overwritten(&mut self) -> bool {
        let oldest = self.given_back();
        // Relaxed: nobody else has any business to write it.
        let word = self.word(oldest).load(Ordering::Relaxed);
        let is_intact = word as u32 == oldest as u32 && (KIND_INLINE..=KIND_REVOKED).contains(&kind_of(word));
        oldest != self.burst_start && !is_intact
    }
}
