//! A packet ring between one producer and one consumer, over 64-byte lines of memory that both can reach.
//!
//! A packet takes one to four consecutive lines, and its first line starts with a word that says where in the ring's
//! history it stands, what it is and how long: so a packet of up to 56 bytes is exactly one cache line, which travels once.
//! Publishing is one release store of that word, after the bytes.
//!
//! - A burst is published by its first packet's word, stored last ([`Producer::submit`]); that word also tells how many lines
//!   the burst has. So a consumer that polls sees a burst at once and fetches its lines together, and the two do not
//!   take lines from each other while the burst is being written.
//! - The bytes of a packet of several lines could look like a word one lap later. The producer remembers such lines, and
//!   clears the word of one before the consumer can come to it. One line is always spare for this.
//! - A packet never wraps: a skip record fills the lines before the ring's end.
//! - Packets longer than [`INLINE_MAX`] leave their bytes in the producer's arena; the ring carries their first bytes and a
//!   [`Far`] description of the rest. [`Producer::revoke`] changes the packet's own word, which the consumer checks after it
//!   copied: from then on the packet does not count. (The word is that of the packet alone, so other packets are not disturbed,
//!   and it lies in the line that the consumer has just read.)
//! - The consumer gives lines back through a position in a line of its own, once per burst ([`Consumer::give_back`]); the
//!   producer keeps a copy of it and reads it again when it runs out of room.
//!
//! The other side may be another process and hostile. Each side keeps its own position in private memory; what it reads
//! from the other (words, the position given back) is checked, and a ring that breaks the rules is *broken*: it yields and
//! takes nothing more. [`Consumer`] reads such a ring only by copying out with atomic loads. Where both sides are safe code of
//! one process ([`pair`]), the bytes can be read in place, because a published line is not written until it is given back.

mod board;
mod packet;
#[cfg(all(test, not(loom)))]
mod tests;
mod words;

#[cfg(not(loom))]
use std::io;
use std::num::NonZeroU64;

#[cfg(not(loom))]
use crate::atomic::plain::Arc;
use crate::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use crate::region::Region;
use crate::shared::Guard;

use packet::{
    BURST_LINES_MAX, BURST_SHIFT, KIND_FAR, KIND_INLINE, KIND_REVOKED, KIND_SKIP, kind_of, len_of, lines_of, plain_len,
    without_burst, word_of,
};

pub use board::{BOARD_BYTES, BOARD_LINKS_MAX, Board, Doorbell, Sleeper};
pub use packet::Taken;
pub use words::Words;

/// Bytes of a line.
pub const LINE: usize = 64;
/// Bytes of a packet that fills one line.
pub const FULL_LINE: usize = LINE - WORD;
/// The largest packet whose bytes travel in the ring.
pub const INLINE_MAX: usize = 4 * LINE - WORD;
/// The largest head that a packet with a [`Far`] rest carries in the ring.
pub const FAR_HEAD_MAX: usize = LINE - WORD - FAR_BYTES;
/// The most lines that one packet takes.
pub const PACKET_LINES_MAX: usize = 4;
/// The fewest lines of a ring. (Loom's rings are smaller, so that it comes to an end.)
pub const LINES_MIN: usize = if cfg!(loom) { 2 } else { 8 };
/// The most lines of a ring (positions are compared by 32 bits).
pub const LINES_MAX: usize = 1 << 26;

const WORD: usize = 8;
const FAR_BYTES: usize = 16;
/// What stands before the lines: the consumer's position. Two lines, because processors fetch lines in pairs.
const CONTROL_BYTES: usize = 2 * LINE;
const HEAD_WORD: usize = 0;
const FIRST_LINE_WORD: usize = CONTROL_BYTES / 8;

/// Bytes of memory that a ring of `lines` lines needs.
pub const fn bytes_for(lines: usize) -> usize {
    CONTROL_BYTES + lines * LINE
}

/// Whether a ring can have so many lines: a power of two between [`LINES_MIN`] and [`LINES_MAX`].
pub const fn valid_lines(lines: usize) -> bool {
    lines.is_power_of_two() && lines >= LINES_MIN && lines <= LINES_MAX
}

/// Lines that hold at least `packets` packets whatever their lengths: four each, the most that a skip record wastes, and the
/// spare one.
pub const fn lines_for(packets: usize) -> usize {
    let lines = packets * PACKET_LINES_MAX + PACKET_LINES_MAX;
    let lines = if lines < LINES_MIN { LINES_MIN } else { lines };
    lines.next_power_of_two()
}

/// Packets that a ring of `lines` lines holds whatever their lengths.
pub const fn packets_for(lines: usize) -> usize {
    (lines - PACKET_LINES_MAX) / PACKET_LINES_MAX
}

/// Why a ring did not take a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The consumer has to give back lines first.
    #[error("the ring is full")]
    Full,
    /// More than [`INLINE_MAX`] bytes, or a head of more than [`FAR_HEAD_MAX`].
    #[error("the packet is too long for the ring")]
    TooLong,
    /// The consumer gave back what it never had; the ring is of no further use.
    #[error("the other side broke the ring's rules")]
    Broken,
}

/// Bytes of a packet that are not in the ring but in the producer's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Far {
    /// Where they start in the arena's region, in bytes.
    pub offset: u64,
    /// How many.
    pub len: u32,
}

/// The side that sends.
#[derive(Debug)]
pub struct Producer {
    words: Words,
    mask: u64,
    /// Position of the next line to write, whose word is that of no packet to come.
    tail: u64,
    /// What the consumer had given back when it was last looked at.
    head: u64,
    /// Before this position a packet of one line can be written without a look at anything: there is room for it, and the word
    /// behind it needs no clearing. Too low a limit does no harm.
    limit: u64,
    broken: bool,
    /// Position of the first packet since the last [`Self::submit`]; `tail` when there is none.
    first: u64,
    /// The word that will publish it.
    first_word: u64,
    /// Lines, a bit each, whose word position holds bytes of a packet that started before them.
    continued: Vec<u64>,
}

impl Producer {
    /// The producer of a ring of `lines` lines over fresh, zeroed memory of [`bytes_for`]`(lines)` bytes; `None` when the
    /// sizes do not fit.
    ///
    /// # Safety
    ///
    /// There is at most one producer for the memory, and nobody in this process but its consumer accesses it.
    pub unsafe fn new(words: Words, lines: usize) -> Option<Self> {
        (valid_lines(lines) && words.count() == bytes_for(lines) / 8).then(|| Self {
            words,
            mask: lines as u64 - 1,
            tail: 0,
            head: 0,
            limit: lines as u64 - 1,
            broken: false,
            first: 0,
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
        // SAFETY: the mask keeps the line inside the ring. No slice covers it: the producer passes only positions of lines that
        // were given back.
        unsafe { self.words.word(FIRST_LINE_WORD + self.index(position) * (LINE / 8)) }
    }

    #[inline(always)]
    fn byte(&self, position: u64) -> usize {
        CONTROL_BYTES + self.index(position) * LINE
    }

    /// Sends a packet of at most [`INLINE_MAX`] bytes, `head` and then `data`, with the next [`Self::submit`].
    ///
    /// # Errors
    ///
    /// [`Refused`]; nothing was sent then.
    #[inline(always)]
    pub fn push(&mut self, head: &[u8], data: &[u8]) -> Result<(), Refused> {
        if self.push_full_line(head, data) { Ok(()) } else { self.push_any(head, data) }
    }

    /// As [`Self::push`], for a header of 24 bytes and a message of 32, in one piece or in two, each aligned to 8: they fill a
    /// line. For others, and where there is anything to see to first, it does nothing and returns false.
    #[inline(always)]
    pub fn push_full_line(&mut self, head: &[u8], data: &[u8]) -> bool {
        let tail = self.tail;
        if tail >= self.limit {
            return false;
        }
        let at = self.byte(tail);
        // SAFETY: the mask keeps the line inside the ring. It is free, since `tail` is below the limit, and the consumer does not
        // read it before it is published; no slice covers it.
        let (word, is_written) = unsafe { (self.words.word(at / 8), self.words.put_full_line(at + WORD, head, data)) };
        if !is_written {
            return false;
        }
        let told = word_of(tail, FULL_LINE, KIND_INLINE);
        if tail == self.first {
            self.first_word = told;
        } else {
            // Relaxed: the consumer comes here only through the burst's first packet.
            word.store(told, Ordering::Relaxed);
        }
        self.tail = tail + 1;
        true
    }

    /// As [`Self::push`], which is for packets that are likely to fill a line; this is for all others.
    ///
    /// # Errors
    ///
    /// As there.
    #[inline(never)]
    pub fn push_any(&mut self, head: &[u8], data: &[u8]) -> Result<(), Refused> {
        let len = head.len() + data.len();
        if len > FULL_LINE || self.tail >= self.limit {
            return self.push_slowly(head, data);
        }
        // SAFETY: the line is free, since `tail` is below the limit, and the consumer does not read it before it is published.
        unsafe { self.put(head, data) };
        self.hold(word_of(self.tail, len, KIND_INLINE));
        self.tail += 1;
        Ok(())
    }

    /// A packet of several lines, or one for which there may be no room.
    #[inline(never)]
    fn push_slowly(&mut self, head: &[u8], data: &[u8]) -> Result<(), Refused> {
        let len = head.len() + data.len();
        if len > INLINE_MAX {
            return Err(Refused::TooLong);
        }
        let lines = lines_of(len) as u64;
        self.reserve(lines)?;
        // SAFETY: `reserve` made sure of `lines` free lines in a row, which the consumer does not read before they are published.
        unsafe { self.put(head, data) };
        self.publish(lines, len, KIND_INLINE);
        if lines == 1 {
            self.find_limit();
        }
        Ok(())
    }

    /// Copies a packet's bytes to the lines at `tail`.
    ///
    /// # Safety
    ///
    /// They are free, and enough.
    #[inline(always)]
    unsafe fn put(&self, head: &[u8], data: &[u8]) {
        let at = self.byte(self.tail) + WORD;
        // SAFETY: the caller's promises.
        unsafe {
            self.words.put(at, head);
            if !data.is_empty() {
                self.words.put(at + head.len(), data);
            }
        }
    }

    /// Sends a packet whose first bytes are `head`, at most [`FAR_HEAD_MAX`], and whose rest is in the arena, with the next
    /// [`Self::submit`]. Returns its position: the arena's bytes may be written again when [`Self::given_back`] is beyond it, or
    /// after [`Self::revoke`].
    ///
    /// # Errors
    ///
    /// [`Refused`]; nothing was sent then.
    #[inline]
    pub fn push_far(&mut self, head: &[u8], far: Far) -> Result<u64, Refused> {
        if head.len() > FAR_HEAD_MAX {
            return Err(Refused::TooLong);
        }
        self.reserve(1)?;
        let at = self.byte(self.tail) + WORD;
        let mut description = [0; FAR_BYTES];
        description[..8].copy_from_slice(&far.offset.to_le_bytes());
        description[8..].copy_from_slice(&u64::from(far.len).to_le_bytes());
        // SAFETY: as in `push`: one free line.
        unsafe {
            self.words.put(at, &description);
            self.words.put(at + FAR_BYTES, head);
        }
        let position = self.tail;
        self.publish(1, head.len(), KIND_FAR);
        Ok(position)
    }

    /// Makes sure that a packet of `lines` lines can be written at `tail`, in one piece.
    #[inline(always)]
    fn reserve(&mut self, lines: u64) -> Result<(), Refused> {
        let to_end = self.mask + 1 - (self.tail & self.mask);
        let skipped = if to_end < lines { to_end } else { 0 };
        // One more for the clear word behind the packet.
        let needed = skipped + lines + 1;
        if self.room() < needed {
            self.look_for_room(needed)?;
        }
        if skipped > 0 {
            self.publish(skipped, skipped as usize, KIND_SKIP);
        }
        Ok(())
    }

    #[inline(always)]
    fn room(&self) -> u64 {
        self.mask + 1 - (self.tail - self.head)
    }

    /// Finds the limit anew: the first line from `tail` on that has no room behind it, or a word to clear.
    fn find_limit(&mut self) {
        let end = self.head + self.mask;
        let mut next = self.tail + 1;
        while next <= end {
            let index = self.index(next);
            let bits = self.continued[index / 64] >> (index % 64);
            if bits != 0 {
                next += u64::from(bits.trailing_zeros());
                break;
            }
            // On to the next 64 lines, or the ring's first ones.
            next += (64 - index as u64 % 64).min(self.mask + 1 - index as u64);
        }
        self.limit = end.min(next - 1);
    }

    #[cold]
    #[inline(never)]
    fn look_for_room(&mut self, needed: u64) -> Result<(), Refused> {
        // The consumer can only make room if it sees what there is.
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
            // Relaxed: a release store makes it visible before the packet, this packet's or its burst's.
            self.word(next).store(0, Ordering::Relaxed);
        }
        self.hold(word_of(self.tail, len, kind));
        self.tail = next;
    }

    /// Writes the word of the packet at `tail`, or keeps it until the next [`Self::submit`], when it is the first.
    #[inline(always)]
    fn hold(&mut self, word: u64) {
        if self.tail == self.first {
            self.first_word = word;
        } else {
            // Relaxed: the consumer comes here only through the burst's first packet.
            self.word(self.tail).store(word, Ordering::Relaxed);
        }
    }

    /// Publishes what was pushed since the last call, at once.
    #[inline]
    pub fn submit(&mut self) {
        let lines = self.tail - self.first;
        if lines == 0 {
            return;
        }
        // Of a burst of one line there is nothing to tell.
        let told = if lines == 1 { 0 } else { lines.min(BURST_LINES_MAX) << BURST_SHIFT };
        // Release: the burst's bytes and words come first. Partner: the acquire load in `Consumer::take`.
        self.word(self.first).store(self.first_word | told, Ordering::Release);
        self.first = self.tail;
        if told != 0 {
            self.prefetch(lines.min(BURST_LINES_MAX));
        }
    }

    /// The next burst will need as many lines as the last, which the consumer's cache still holds from the lap before. Not its
    /// first: the consumer is polling that.
    #[inline(always)]
    fn prefetch(&self, lines: u64) {
        if self.room() > 2 * BURST_LINES_MAX {
            let ahead = self.index(self.tail + 1);
            let lines = (lines as usize - 1).min(self.mask as usize + 1 - ahead);
            self.words.prefetch_write(CONTROL_BYTES + ahead * LINE, lines);
        }
    }

    /// The position up to which the consumer has given lines back, read anew.
    #[inline]
    pub fn given_back(&mut self) -> u64 {
        // SAFETY: the control words lie in the ring and are never lent. Acquire: what the consumer read from the lines and from
        // the arena happened before they are written again. Partner: the release store in `Consumer::give_back`.
        let head = unsafe { self.words.word(HEAD_WORD) }.load(Ordering::Acquire);
        if head.wrapping_sub(self.head) <= self.tail - self.head {
            self.head = head;
        } else {
            self.broken = true;
        }
        self.head
    }

    /// The position behind everything sent so far.
    #[inline]
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// Takes back the arena's bytes of the packet that [`Self::push_far`] sent at `position`: a consumer that copies them from
    /// now on, or is copying them now, finds that they do not count. Never waits. [`Self::revoked`] must follow before the
    /// bytes are written. A position that was given back already is left alone.
    ///
    /// # Safety
    ///
    /// [`Self::push_far`] of this producer returned `position`: any other may lie in the middle of a packet that the consumer is
    /// reading in place.
    pub unsafe fn revoke(&mut self, position: u64) {
        self.submit();
        // Only what the consumer still has: those lines are the packet's own.
        if position.wrapping_sub(self.head) < self.tail - self.head {
            // Release: this may be the word by which the consumer comes to the rest of a burst.
            self.word(position).store(word_of(position, 0, KIND_REVOKED), Ordering::Release);
        }
    }

    /// Ends one or more calls of [`Self::revoke`]: writes to the arena that come later are visible later.
    pub fn revoked() {
        // The writer's half of a sequence lock. Partner: the acquire fence in `Guard::still_lent`.
        fence(Ordering::Release);
    }

    /// Whether the consumer broke the rules.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether somebody else wrote over the word by which the consumer comes to the oldest packet that it has not given back. It
    /// would wait for that packet for ever.
    pub fn is_spoiled(&mut self) -> bool {
        let oldest = self.given_back();
        // Relaxed: nobody but us has any business to write it.
        let word = self.word(oldest).load(Ordering::Relaxed);
        let stands = word as u32 == oldest as u32 && (KIND_INLINE..=KIND_REVOKED).contains(&kind_of(word));
        oldest != self.first && !stands
    }
}

/// The side that receives.
#[derive(Debug)]
pub struct Consumer {
    words: Words,
    mask: u64,
    /// Position of the next line to read.
    at: u64,
    /// What the producer knows of `at`.
    given_back: u64,
    /// Packets of one line are shorter than this: 0 once the ring is broken, so that none is taken.
    one_line_below: u64,
    /// Whether the producer is safe code of this process.
    trusted: bool,
}

impl Consumer {
    /// The consumer of a ring of `lines` lines over fresh, zeroed memory of [`bytes_for`]`(lines)` bytes; `None` when the
    /// sizes do not fit.
    ///
    /// # Safety
    ///
    /// There is at most one consumer for the memory. `trusted` only if its producer is a [`Producer`] of this process and
    /// nobody else can write the memory.
    pub unsafe fn new(words: Words, lines: usize, trusted: bool) -> Option<Self> {
        (valid_lines(lines) && words.count() == bytes_for(lines) / 8).then(|| Self {
            words,
            mask: lines as u64 - 1,
            at: 0,
            given_back: 0,
            one_line_below: FULL_LINE as u64 + 1,
            trusted,
        })
    }

    #[inline(always)]
    fn byte(&self, position: u64) -> usize {
        CONTROL_BYTES + (position & self.mask) as usize * LINE
    }

    #[inline(always)]
    fn word_at(&self) -> u64 {
        // SAFETY: the mask keeps the line inside the ring; nobody holds a slice over a line that was not taken yet. Acquire: the
        // packet's bytes are visible once its word is. Partner: the release store in `Producer::submit`.
        unsafe { self.words.word(self.byte(self.at) / 8) }.load(Ordering::Acquire)
    }

    /// Whether nothing can be taken now.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let word = self.word_at();
        self.is_broken() || word == 0 || word as u32 != self.at as u32
    }

    /// Whether the producer has published nothing since the last [`Self::take`] that found nothing: a look at one word. (`false`
    /// says less than [`Self::is_empty`].)
    #[inline(always)]
    pub fn has_nothing_new(&self) -> bool {
        self.word_at() as u32 != self.at as u32
    }

    /// Takes the next packet. Its bytes stay as they are until [`Self::give_back`].
    #[inline(always)]
    pub fn take(&mut self) -> Option<Taken> {
        let position = self.at;
        let at = self.byte(position);
        let word = self.word_at();
        if word as u32 != position as u32 {
            return None;
        }
        // Nearly all packets: one line, which is all that its word tells of.
        if plain_len(word) < self.one_line_below {
            self.at = position + 1;
            // SAFETY: the word has a kind, which is not zero.
            return Some(Taken { at: at + WORD, word: unsafe { NonZeroU64::new_unchecked(word) } });
        }
        self.take_any(word)
    }

    /// The packet that `word` begins, whatever it is; its position is right.
    #[inline(never)]
    fn take_any(&mut self, word: u64) -> Option<Taken> {
        // A clear word has kind 0; a word of another position cannot be here unless the other side put it there.
        let (told, plain) = (NonZeroU64::new(word)?, NonZeroU64::new(without_burst(word))?);
        if self.is_broken() {
            return None;
        }
        let len = len_of(word);
        let index = (self.at & self.mask) as usize;
        let at = CONTROL_BYTES + index * LINE + WORD;
        // The first word of a burst tells how many lines are written: they are fetched all at once. Lines that are not written
        // yet are left alone, since to take them from the producer just before it writes costs more than it saves.
        if plain != told {
            let burst = (word >> BURST_SHIFT) as usize;
            let lines = burst.min(self.mask as usize + 1 - index);
            self.words.prefetch_read(CONTROL_BYTES + (index + 1) * LINE, lines - 1);
            self.words.prefetch_read(CONTROL_BYTES, (burst - lines).min(index));
        }
        match kind_of(word) {
            KIND_INLINE => {
                let lines = lines_of(len);
                if len > INLINE_MAX || index + lines > self.mask as usize + 1 {
                    return self.break_off();
                }
                self.at += lines as u64;
                Some(Taken { at, word: plain })
            }
            KIND_FAR if len <= FAR_HEAD_MAX => {
                self.at += 1;
                Some(Taken { at: at + FAR_BYTES, word: told })
            }
            KIND_REVOKED => {
                self.at += 1;
                // Whatever length it claims.
                let word = NonZeroU64::new(word_of(0, 0, KIND_REVOKED))?;
                Some(Taken { at, word })
            }
            KIND_SKIP => self.skip(len),
            _ => self.break_off(),
        }
    }

    /// Steps over a skip record of `len` lines and takes what the ring's first line begins.
    #[cold]
    #[inline(never)]
    fn skip(&mut self, len: usize) -> Option<Taken> {
        let to_end = self.mask + 1 - (self.at & self.mask);
        // A record leads exactly to the ring's end, and is shorter than a packet: so no walk meets two in a row.
        if len as u64 != to_end || to_end >= PACKET_LINES_MAX as u64 {
            return self.break_off();
        }
        self.at += to_end;
        self.take()
    }

    #[cold]
    #[inline(never)]
    fn break_off(&mut self) -> Option<Taken> {
        self.one_line_below = 0;
        None
    }

    /// Whether the producer broke the rules: nothing more will be taken.
    pub fn is_broken(&self) -> bool {
        self.one_line_below == 0
    }

    /// The rest of `taken`, if it is in the producer's arena. Its offset and length are the other side's claim: unchecked, and
    /// another one, perhaps, at another call.
    ///
    /// # Safety
    ///
    /// `taken` came from this ring and was not given back.
    #[inline]
    pub unsafe fn far(&self, taken: &Taken) -> Option<Far> {
        if !taken.is_far() {
            return None;
        }
        let at = (taken.at - FAR_BYTES) / 8;
        // SAFETY: both words lie in the packet's line, which is ours until given back; `take` checked the kind, so that they stand
        // before its bytes. Relaxed: ordered by the word's acquire.
        let (offset, len) =
            unsafe { (self.words.word(at).load(Ordering::Relaxed), self.words.word(at + 1).load(Ordering::Relaxed)) };
        Some(Far { offset: u64::from_le(offset), len: u64::from_le(len) as u32 })
    }

    /// Gives back the lines of everything taken so far. What was taken must not be read any more.
    ///
    /// # Safety
    ///
    /// No slice from [`Self::bytes_in_place`] is alive.
    #[inline]
    pub unsafe fn give_back(&mut self) {
        if self.given_back != self.at {
            self.given_back = self.at;
            // SAFETY: the control words lie in the ring and are never lent. Release: our reads come before the producer's next
            // writes. Partner: the acquire load in `Producer::given_back`.
            unsafe { self.words.word(HEAD_WORD) }.store(self.at, Ordering::Release);
        }
    }

    /// Copies the ring bytes of `taken` out to `target`, and possibly bytes of no meaning behind them.
    ///
    /// # Safety
    ///
    /// `target` is valid for writes of [`Taken::copy_len`] bytes and belongs to the caller; `taken` came from this ring and
    /// was not given back.
    #[inline(always)]
    pub unsafe fn copy_out(&self, taken: &Taken, target: *mut u8) {
        if taken.is_plain_line() && !cfg!(loom) {
            // By far the most common length, as a constant: seven loads and stores in a row.
            // SAFETY: the caller's promises; the line lies in the ring.
            unsafe { self.words.get_words::<{ FULL_LINE / 8 }>(taken.at, target) }
        } else {
            // SAFETY: the caller's promises; `take` checked that the packet's lines lie in the ring.
            unsafe { self.words.get(taken.at, target, taken.copy_len()) }
        }
    }

    /// The ring bytes of `taken`, where they are.
    ///
    /// # Safety
    ///
    /// The ring is a trusted one, `taken` came from it, and it is not given back while the slice lives (`'a` is the caller's
    /// choice).
    #[cfg(not(loom))]
    #[inline]
    pub unsafe fn bytes_in_place<'a>(&self, taken: &Taken) -> &'a [u8] {
        debug_assert!(self.trusted);
        // SAFETY: the range lies in the ring, and the producer, which keeps the rules, does not write it before it is given
        // back.
        unsafe { std::slice::from_raw_parts(self.words.address(taken.at), taken.len()) }
    }

    /// What must still hold after a copy of the arena bytes of `taken`; `None` when it has none.
    ///
    /// # Safety
    ///
    /// `taken` came from this ring, and it is not given back, nor the ring's memory freed, during `'a`, which is the caller's
    /// choice.
    #[inline]
    pub unsafe fn guard<'a>(&self, taken: &Taken) -> Option<Guard<'a>> {
        if !taken.is_far() {
            return None;
        }
        let line = taken.at - taken.at % LINE;
        // SAFETY: the line of a taken packet lies in the ring; slices of packets do not cover their words. The caller answers
        // for the lifetime.
        let word = unsafe { &*std::ptr::from_ref(self.words.word(line / 8)) };
        Some(Guard { word, expected: taken.word.get() })
    }

    /// The position behind everything taken so far, in lines since the ring was made.
    #[inline]
    pub fn position(&self) -> u64 {
        self.at
    }

    /// A position that nothing published by now can have reached.
    pub fn last_position(&self) -> u64 {
        self.given_back + self.mask + 1
    }

    /// Takes one packet, shows its ring bytes to `read`, and gives its lines back: a receiver in one call. A burst costs less
    /// when it is given back as a whole; see [`Self::receive`].
    #[cfg(not(loom))]
    pub fn pop<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let mut read = Some(read);
        let mut result = None;
        self.receive(1, |bytes| result = read.take().map(|read| read(bytes)));
        result
    }

    /// Shows the ring bytes of up to `packets_max` packets to `read`, in order, then gives their lines back. Returns how many
    /// there were.
    #[cfg(not(loom))]
    #[inline]
    pub fn receive(&mut self, packets_max: usize, mut read: impl FnMut(&[u8])) -> usize {
        let mut packets = 0;
        while packets < packets_max
            && let Some(taken) = self.take()
        {
            if self.trusted {
                // SAFETY: a trusted ring, and the slice ends with the call of `read`.
                read(unsafe { self.bytes_in_place(&taken) });
            } else {
                let mut copy = [0; INLINE_MAX];
                // SAFETY: no packet's ring bytes are more than INLINE_MAX, rounded up included.
                unsafe { self.copy_out(&taken, copy.as_mut_ptr()) };
                read(&copy[..taken.len()]);
            }
            packets += 1;
        }
        // SAFETY: the slices above are gone.
        unsafe { self.give_back() };
        packets
    }
}

/// A ring of `lines` lines (a power of two) in private memory, for two threads of this process.
///
/// ```
/// let (mut producer, mut consumer) = sinew_mem::ring::pair(1024)?;
/// producer.push(b"head", b" and data").unwrap();
/// producer.submit();
/// assert_eq!(consumer.pop(|bytes| bytes.to_vec()).as_deref(), Some(&b"head and data"[..]));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// A number of lines that no ring can have, or no memory.
#[cfg(not(loom))]
pub fn pair(lines: usize) -> io::Result<(Producer, Consumer)> {
    if !valid_lines(lines) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a ring has a power of two of {LINES_MIN} to {LINES_MAX} lines, not {lines}"),
        ));
    }
    let region = Arc::new(Region::private(bytes_for(lines))?);
    let words = Words::of_region(&region, 0, bytes_for(lines)).expect("the region was made for the ring");
    // SAFETY: fresh memory that only these two reach, one producer and one consumer, both of this process.
    let ends = unsafe { (Producer::new(words.clone(), lines), Consumer::new(words, lines, true)) };
    match ends {
        (Some(producer), Some(consumer)) => Ok((producer, consumer)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}
