//! The receiving side of a ring.

use std::num::NonZeroU64;

#[cfg(not(loom))]
use super::packet::InRing;
use super::packet::{
    BURST_SHIFT, KIND_FAR, KIND_INLINE, KIND_REVOKED, KIND_SKIP, Taken, kind_of, len_of, lines_of, plain_len,
    without_burst, word_of,
};
use super::words::Words;
use super::{
    CONTROL_BYTES, FAR_BYTES, FAR_HEAD_MAX, FULL_LINE, Far, HEAD_WORD, INLINE_MAX, LINE, PACKET_LINES_MAX, WORD,
    bytes_for, valid_lines,
};
#[cfg(not(loom))]
use crate::atomic::AtomicU64;
use crate::atomic::Ordering;
use crate::shared::Guard;

/// The receiving side of a ring.
#[derive(Debug)]
pub struct Consumer {
    words: Words,
    mask: u64,
    /// Position of the next line to read.
    position: u64,
    /// Value of `position` that the producer was last told.
    given_back: u64,
    /// Bound below which a word's plain length marks a packet of one line; 0 once the ring is broken, so that no packet
    /// is taken.
    plain_len_limit: u64,
    /// Whether the producer is safe code of this process.
    trusted: bool,
}

impl Consumer {
    /// The consumer of a ring of `lines` lines over fresh, zeroed memory of [`bytes_for`]`(lines)` bytes; `None` when
    /// the sizes do not fit.
    ///
    /// # Safety
    ///
    /// There is at most one consumer for the memory. `trusted` only if its producer is a [`Producer`](super::Producer)
    /// of this process and nobody else can write the memory.
    pub unsafe fn new(words: Words, lines: usize, trusted: bool) -> Option<Self> {
        (valid_lines(lines) && words.count() == bytes_for(lines) / 8).then(|| Self {
            words,
            mask: lines as u64 - 1,
            position: 0,
            given_back: 0,
            plain_len_limit: FULL_LINE as u64 + 1,
            trusted,
        })
    }

    #[inline(always)]
    fn byte(&self, position: u64) -> usize {
        CONTROL_BYTES + (position & self.mask) as usize * LINE
    }

    #[inline(always)]
    fn word_at(&self) -> u64 {
        // SAFETY: the mask keeps the line inside the ring; nobody holds a slice over a line that was not taken yet.
        // Acquire: the packet's bytes are visible once its word is. Partners: the release stores in `Producer::submit`
        // and `Producer::revoke`.
        unsafe { self.words.word(self.byte(self.position) / 8) }.load(Ordering::Acquire)
    }

    /// Whether there is nothing to take now.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let word = self.word_at();
        self.is_broken() || word == 0 || word as u32 != self.position as u32
    }

    /// Whether the producer has published nothing since the last [`Self::take`] that found nothing: a cheap check of
    /// one word. `true` is certain; with `false` there may still be nothing to take (see [`Self::is_empty`]).
    #[inline(always)]
    pub fn has_nothing_new(&self) -> bool {
        self.word_at() as u32 != self.position as u32
    }

    /// As [`Self::has_nothing_new`], and certain of a ring that was never used, too: the first line there has the right
    /// position, 0, but no packet. For polls of many rings, of which some may never be used.
    #[inline(always)]
    pub fn looks_empty(&self) -> bool {
        let word = self.word_at();
        word as u32 != self.position as u32 || word == 0
    }

    /// Takes the next packet. Its bytes stay unchanged until [`Self::give_back`].
    #[inline(always)]
    pub fn take(&mut self) -> Option<Taken> {
        let position = self.position;
        let offset = self.byte(position);
        let word = self.word_at();
        if word as u32 != position as u32 {
            return None;
        }
        // The fast path of nearly all packets: they are described fully by their word, and most take one line.
        let len = plain_len(word);
        // SAFETY: `new` and `mark_broken` set it, to this and to 0.
        unsafe { std::hint::assert_unchecked(self.plain_len_limit <= FULL_LINE as u64 + 1) };
        let lines = if len < self.plain_len_limit {
            1
        } else {
            // The other side may have put any length there.
            if len > INLINE_MAX as u64 || self.is_broken() {
                return self.take_any(word);
            }
            let lines = lines_of(len as usize);
            if (position & self.mask) as usize + lines > self.mask as usize + 1 {
                return self.take_any(word);
            }
            lines as u64
        };
        self.position = position + lines;
        // SAFETY: the word's kind is not zero, so the word is not.
        Some(Taken { offset: offset + WORD, word: unsafe { NonZeroU64::new_unchecked(word) } })
    }

    /// Takes whole packets, with no rest elsewhere, for as long as `takes` returns true for the next, which lies in the
    /// ring. The first that it refuses, or that is of another kind, is left for [`Self::take`]. Returns whether it took
    /// all that there is.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn take_whole(&mut self, mut takes: impl FnMut(InRing<'_>) -> bool) -> bool {
        if self.is_broken() {
            return true;
        }
        // Nobody sees the position meanwhile, so it may be in a register, and so may all that does not change.
        let (first, mask, mut position) = (self.words.address(CONTROL_BYTES), self.mask, self.position);
        let mut word;
        loop {
            let line = first.wrapping_add((position & mask) as usize * LINE);
            // SAFETY: as in `word_at`: the mask keeps the line inside the ring. Acquire: as there.
            word = unsafe { &*line.cast::<AtomicU64>() }.load(Ordering::Acquire);
            if word as u32 != position as u32 {
                break;
            }
            let mut len = plain_len(word);
            if len > FULL_LINE as u64 {
                match self.rarer_whole_len(position, word) {
                    Some(rarer_len) => len = rarer_len,
                    None => break,
                }
            }
            // SAFETY: `len` bytes behind the word lie in the packet's lines, which are in the ring, and which nobody
            // gives back meanwhile.
            if !takes(unsafe { InRing::new(line.wrapping_add(WORD), len as usize) }) {
                break;
            }
            position += lines_of(len as usize) as u64;
        }
        self.position = position;
        word as u32 != position as u32
    }

    /// The next packet, if it is whole. It is not taken.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn next_whole(&self) -> Option<InRing<'_>> {
        let word = self.word_at();
        if word as u32 != self.position as u32 || self.is_broken() {
            return None;
        }
        let len = self.whole_len(self.position, word)?;
        // SAFETY: as in `take_whole`; the borrow keeps the lines from being given back.
        Some(unsafe { InRing::new(self.words.address(self.byte(self.position) + WORD), len as usize) })
    }

    /// As [`Self::whole_len`], for a packet that has several lines, or is the first of its burst, which is fetched.
    #[cfg(not(loom))]
    #[inline(never)]
    fn rarer_whole_len(&self, position: u64, word: u64) -> Option<u64> {
        self.prefetch_burst((position & self.mask) as usize, word);
        self.whole_len(position, word)
    }

    /// Length of the whole packet that `word` begins at `position`; `None` if it begins something else.
    #[cfg(not(loom))]
    #[inline(always)]
    fn whole_len(&self, position: u64, word: u64) -> Option<u64> {
        // The other side may have put any length there, for which `take` marks the ring as broken.
        let len = Some(plain_len(without_burst(word))).filter(|len| *len <= INLINE_MAX as u64)?;
        let end = (position & self.mask) + lines_of(len as usize) as u64;
        (end <= self.mask + 1).then_some(len)
    }

    /// Fetches the lines of the burst whose first word this is, at line `index`, all at once. Lines not yet written are
    /// left alone: taking them from the producer just before it writes costs more than it saves.
    #[inline(always)]
    fn prefetch_burst(&self, index: usize, word: u64) {
        let burst = (word >> BURST_SHIFT) as usize;
        if burst > 0 {
            let lines = burst.min(self.mask as usize + 1 - index);
            self.words.prefetch_read(CONTROL_BYTES + (index + 1) * LINE, lines - 1);
            self.words.prefetch_read(CONTROL_BYTES, (burst - lines).min(index));
        }
    }

    /// Takes the packet of any kind that `word` begins; the word's position was checked by the caller.
    #[inline(never)]
    fn take_any(&mut self, word: u64) -> Option<Taken> {
        // A clear word has kind 0. A word of another position cannot be here unless the other side put it there.
        let (full_word, word_without_burst) = (NonZeroU64::new(word)?, NonZeroU64::new(without_burst(word))?);
        if self.is_broken() {
            return None;
        }
        let len = len_of(word);
        let index = (self.position & self.mask) as usize;
        let offset = CONTROL_BYTES + index * LINE + WORD;
        self.prefetch_burst(index, word);
        match kind_of(word) {
            KIND_INLINE => {
                let lines = lines_of(len);
                if len > INLINE_MAX || index + lines > self.mask as usize + 1 {
                    return self.mark_broken();
                }
                self.position += lines as u64;
                Some(Taken { offset, word: word_without_burst })
            }
            KIND_FAR if len <= FAR_HEAD_MAX => {
                self.position += 1;
                Some(Taken { offset: offset + FAR_BYTES, word: full_word })
            }
            KIND_REVOKED => {
                self.position += 1;
                // Its claimed length is ignored.
                let word = NonZeroU64::new(word_of(0, 0, KIND_REVOKED))?;
                Some(Taken { offset, word })
            }
            KIND_SKIP => self.skip(len),
            _ => self.mark_broken(),
        }
    }

    /// Steps over a skip record of `len` lines and takes the packet at the ring's first line.
    #[cold]
    #[inline(never)]
    fn skip(&mut self, len: usize) -> Option<Taken> {
        let to_end = self.mask + 1 - (self.position & self.mask);
        // A record leads exactly to the ring's end and is shorter than a packet, so no walk meets two in a row.
        if len as u64 != to_end || to_end >= PACKET_LINES_MAX as u64 {
            return self.mark_broken();
        }
        self.position += to_end;
        self.take()
    }

    #[cold]
    #[inline(never)]
    fn mark_broken(&mut self) -> Option<Taken> {
        self.plain_len_limit = 0;
        None
    }

    /// Whether the producer broke the rules, so that nothing more will be taken.
    pub fn is_broken(&self) -> bool {
        self.plain_len_limit == 0
    }

    /// The rest of `taken`, if it is in the producer's arena. Its offset and length are claims of the other side: they
    /// are unchecked, and another call may return others.
    ///
    /// # Safety
    ///
    /// `taken` came from this ring and was not given back.
    #[inline]
    pub unsafe fn far(&self, taken: &Taken) -> Option<Far> {
        if !taken.is_far() {
            return None;
        }
        let first_word = (taken.offset - FAR_BYTES) / 8;
        // SAFETY: both words lie in the packet's line, which is ours until given back; `take` checked the kind, so they
        // stand before its bytes. Relaxed: ordered by the acquire of the packet's word.
        let (offset, len) = unsafe {
            (
                self.words.word(first_word).load(Ordering::Relaxed),
                self.words.word(first_word + 1).load(Ordering::Relaxed),
            )
        };
        Some(Far { offset: u64::from_le(offset), len: u64::from_le(len) as u32 })
    }

    /// Gives back the lines of everything taken so far. What was taken must no longer be read.
    ///
    /// # Safety
    ///
    /// No slice from [`Self::bytes_in_place`] is alive.
    #[inline]
    pub unsafe fn give_back(&mut self) {
        if self.given_back != self.position {
            self.given_back = self.position;
            // SAFETY: the control words lie in the ring and are never lent. Release: our reads come before the
            // producer's next writes. Partner: the acquire load in `Producer::given_back`.
            unsafe { self.words.word(HEAD_WORD) }.store(self.position, Ordering::Release);
        }
    }

    /// Copies the ring bytes of `taken` to `target`, possibly followed by meaningless bytes, up to [`Taken::copy_len`].
    ///
    /// # Safety
    ///
    /// `target` is valid for writes of [`Taken::copy_len`] bytes and belongs to the caller; `taken` came from this ring
    /// and was not given back.
    #[inline(always)]
    pub unsafe fn copy_out(&self, taken: &Taken, target: *mut u8) {
        if taken.is_plain_line() && !cfg!(loom) {
            // This is by far the most common length, passed as a constant: seven loads and stores in a row.
            // SAFETY: the caller's promises; the line lies in the ring.
            unsafe { self.words.get_words::<{ FULL_LINE / 8 }>(taken.offset, target) }
        } else {
            // SAFETY: the caller's promises; `take` checked that the packet's lines lie in the ring.
            unsafe { self.words.get(taken.offset, target, taken.copy_len()) }
        }
    }

    /// The ring bytes of `taken`, in place.
    ///
    /// # Safety
    ///
    /// The ring is a trusted one, `taken` came from it, and it is not given back while the slice lives (the caller
    /// chooses `'a`).
    #[cfg(not(loom))]
    #[inline]
    pub unsafe fn bytes_in_place<'a>(&self, taken: &Taken) -> &'a [u8] {
        debug_assert!(self.trusted);
        // SAFETY: the range lies in the ring, and the producer, which keeps the rules, does not write it before it is
        // given back.
        unsafe { std::slice::from_raw_parts(self.words.address(taken.offset), taken.len()) }
    }

    /// Guard that must still hold after the arena bytes of `taken` are copied; `None` when it has none there.
    ///
    /// # Safety
    ///
    /// `taken` came from this ring, and during `'a`, which the caller chooses, it is not given back and the ring's
    /// memory is not freed.
    #[inline]
    pub unsafe fn guard<'a>(&self, taken: &Taken) -> Option<Guard<'a>> {
        if !taken.is_far() {
            return None;
        }
        let line = taken.offset - taken.offset % LINE;
        // SAFETY: the line of a taken packet lies in the ring; slices of packets do not cover their words. The caller
        // answers for the lifetime.
        let word = unsafe { &*std::ptr::from_ref(self.words.word(line / 8)) };
        Some(Guard { word, expected: taken.word.get() })
    }

    /// The position behind everything taken so far, in lines since the ring was made.
    #[inline]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// A position beyond everything that can have been published by now.
    pub fn last_position(&self) -> u64 {
        self.given_back + self.mask + 1
    }

    /// Takes one packet, shows its ring bytes to `read`, and gives its lines back. Giving back a whole burst at once
    /// costs less; see [`Self::receive`].
    #[cfg(not(loom))]
    pub fn pop<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let mut read = Some(read);
        let mut result = None;
        self.receive(1, |bytes| result = read.take().map(|read| read(bytes)));
        result
    }

    /// Shows the ring bytes of up to `packets_max` packets to `read`, in order, then gives their lines back. Returns
    /// the number of packets.
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
                // SAFETY: no packet has more ring bytes than INLINE_MAX, even rounded up.
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
