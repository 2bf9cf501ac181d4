//! The encoding of a request in its slot.
//!
//! ```text
//! ... | body, to a multiple of 8 bytes | token 4 | kind 2 | length 2 | number 4 | attempt 1 | checksum 3 | slot end
//!                                       <------------ head ---------> <------------ tail -------------->
//! ```
//!
//! All numbers are little-endian. The tail is one aligned word, and is written last. The checksum covers everything
//! else: the body, the head, the number and the attempt.

use sinew_mem::atomic::plain::{AtomicU64, Ordering};

use crate::layout::FOOT_LEN;

/// Reason why the contents of a slot were not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SlotDrop {
    /// The length is more than a request can have.
    #[error("longer than a request can be")]
    Length,
    /// The checksum does not match: the request is still being written, its tail was written too early, or the bytes
    /// are no request.
    #[error("torn: the checksum does not match the bytes")]
    Torn,
    /// The request is from an earlier client of the same slots.
    #[error("from another client than the one that has these slots")]
    Token,
    /// The number is neither the next of the slot nor the last.
    #[error("out of turn: neither the next request of its slot nor the last")]
    OutOfTurn,
    /// The client left before the request was executed.
    #[error("its client is gone")]
    Gone,
}

impl SlotDrop {
    /// All reasons.
    pub const ALL: [Self; 5] = [Self::Length, Self::Torn, Self::Token, Self::OutOfTurn, Self::Gone];

    /// Short name of the reason, for counters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Torn => "torn",
            Self::Token => "token",
            Self::OutOfTurn => "out_of_turn",
            Self::Gone => "gone",
        }
    }
}

/// The last word of a slot: number, attempt and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail(pub u64);

impl Tail {
    /// The number and the attempt; the other bits are the checksum.
    const STAMP: u64 = (1 << 40) - 1;

    /// The tail with no checksum.
    #[inline(always)]
    fn stamp(sequence: u32, attempt: u8) -> u64 {
        u64::from(sequence) | u64::from(attempt) << 32
    }

    #[inline(always)]
    pub fn sequence(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    pub fn attempt(self) -> u8 {
        (self.0 >> 32) as u8
    }
}

/// The word before the tail: token, kind and length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head(pub u64);

impl Head {
    #[inline(always)]
    pub fn new(token: u32, kind: u16, len: u16) -> Self {
        Self(u64::from(token) | u64::from(kind) << 32 | u64::from(len) << 48)
    }

    #[inline(always)]
    pub fn token(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    pub fn kind(self) -> u16 {
        (self.0 >> 32) as u16
    }

    #[inline(always)]
    pub fn len(self) -> usize {
        (self.0 >> 48) as usize
    }

    /// Words of the body, the last of which may be padded.
    #[inline(always)]
    fn body_words(self) -> usize {
        (self.len() + 7) >> 3
    }
}

#[inline(always)]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The tail of a request: its stamp, and a checksum of 24 bits over the words of its body, which are given in pairs
/// with the last one alone if their number is odd. The checksum detects accidents, not forgery.
#[inline(always)]
fn tail_of(pairs: impl Iterator<Item = [u64; 2]>, last: impl FnOnce() -> Option<u64>, head: u64, stamp: u64) -> Tail {
    const ODD: [u64; 2] = [0x2d35_8dcc_aa6c_78a5, 0x8bb8_4b93_962e_acc9];
    let mut sum = mix(head ^ ODD[0], stamp ^ ODD[1]);
    // The products are independent of `sum` and of each other.
    for [a, b] in pairs {
        sum = sum.rotate_left(7) ^ mix(a ^ ODD[0], b ^ ODD[1]);
    }
    if let Some(last) = last() {
        sum = sum.rotate_left(7) ^ mix(last ^ ODD[0], ODD[1]);
    }
    // Folded: the halves of a product that are XORed cancel where a factor is complemented, in one window of bits.
    Tail((sum ^ sum << 40) & !Tail::STAMP | stamp)
}

/// As [`tail_of`], of a body of whole words.
#[inline(always)]
fn tail_of_bytes(body: &[u8], head: u64, stamp: u64) -> Tail {
    let (pairs, last) = body.as_chunks::<8>().0.as_chunks::<2>();
    let pairs = pairs.iter().map(|pair| pair.map(u64::from_le_bytes));
    tail_of(pairs, || last.first().copied().map(u64::from_le_bytes), head, stamp)
}

/// Makes a request of the body, which lies before the last [`FOOT_LEN`] bytes of `slot`; the request begins at
/// [`start`]. Zeros must pad the body to a multiple of 8 bytes.
#[inline(always)]
pub(crate) fn seal(slot: &mut [u8], head: Head, sequence: u32, attempt: u8) {
    let (foot, start) = (slot.len() - FOOT_LEN, start(slot.len(), head));
    let (body, place) = slot[start..].split_at_mut(foot - start);
    let tail = tail_of_bytes(body, head.0, Tail::stamp(sequence, attempt));
    place[..8].copy_from_slice(&head.0.to_le_bytes());
    place[8..].copy_from_slice(&tail.0.to_le_bytes());
}

/// Start of a request with this head that ends at `end`.
#[inline(always)]
pub(crate) fn start(end: usize, head: Head) -> usize {
    end - FOOT_LEN - head.body_words() * 8
}

/// Encodes a request as a client does; its last byte belongs at the end of its slot. For tests of servers.
pub fn build_request(token: u32, sequence: u32, attempt: u8, kind: u16, body: &[u8]) -> Vec<u8> {
    let mut slot = body.to_vec();
    slot.resize(body.len().next_multiple_of(8) + FOOT_LEN, 0);
    let head = Head::new(token, kind, u16::try_from(body.len()).unwrap_or(u16::MAX));
    seal(&mut slot, head, sequence, attempt);
    slot
}

/// The head of the request in an image that ends with it, as [`seal`] made it.
#[inline(always)]
pub(crate) fn sealed_head(image: &[u8]) -> Head {
    let foot = image.last_chunk::<FOOT_LEN>().and_then(|foot| foot.first_chunk());
    Head(foot.map_or(0, |head| u64::from_le_bytes(*head)))
}

/// A slot in the memory of a worker, which its client may be writing.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    body: &'a [AtomicU64],
    foot: &'a [AtomicU64; FOOT_LEN / 8],
}

/// Loads a word. Everything that its writer stored before it is visible afterwards.
#[inline(always)]
fn load(word: &AtomicU64) -> u64 {
    // Partner: the client's device, which stores words in ascending order, each with release.
    u64::from_le(word.load(Ordering::Acquire))
}

impl<'a> Slot<'a> {
    /// The slot of `len` bytes that ends at byte `end` of the memory with these words; `None` if it is not in there,
    /// which cannot be, since the layout was checked against the memory.
    #[inline(always)]
    pub fn new(words: &'a [AtomicU64], end: usize, len: usize) -> Option<Self> {
        let (end, len) = (end / 8, len / 8);
        let (body, foot) = words.get(end.checked_sub(len)?..end)?.split_last_chunk()?;
        Some(Self { body, foot })
    }

    /// The tail.
    #[inline(always)]
    pub fn tail(self) -> Tail {
        Tail(load(&self.foot[1]))
    }

    /// The head.
    #[inline(always)]
    pub fn head(self) -> Head {
        Head(load(&self.foot[0]))
    }

    /// Copies the request with this tail to `copy`, which must have room for the longest, and checks the copy. The
    /// checksum is made of the words as they pass.
    #[inline(always)]
    pub fn read(self, tail: Tail, token: u32, len_max: usize, copy: &mut [u8]) -> Result<Head, SlotDrop> {
        let head = self.head();
        let words = head.body_words();
        if head.len() > len_max || words > self.body.len() {
            return Err(SlotDrop::Length);
        }
        let body = &self.body[self.body.len() - words..];
        let copy = copy.as_chunks_mut().0.get_mut(..words).ok_or(SlotDrop::Length)?;
        let ((pairs, last), (copies, last_copy)) = (body.as_chunks::<2>(), copy.as_chunks_mut::<2>());
        let take = |word: &AtomicU64, copy: &mut [u8; 8]| {
            let word = load(word);
            *copy = word.to_le_bytes();
            word
        };
        let pairs = pairs.iter().zip(copies).map(|([a, b], [to_a, to_b])| [take(a, to_a), take(b, to_b)]);
        let last = || last.first().zip(last_copy.first_mut()).map(|(word, copy)| take(word, copy));
        if tail_of(pairs, last, head.0, tail.0 & Tail::STAMP) != tail {
            return Err(SlotDrop::Torn);
        }
        // The token is checked last, since a torn request may have any token.
        if head.token() != token { Err(SlotDrop::Token) } else { Ok(head) }
    }
}

#[cfg(test)]
mod tests {
    use sinew_mem::SharedMemory;

    use super::*;

    const SLOT: usize = 128;
    const MAX: usize = SLOT - FOOT_LEN;

    fn memory(request: &[u8]) -> SharedMemory {
        let memory = SharedMemory::private(SLOT).unwrap();
        memory.write(SLOT - request.len(), request).unwrap();
        memory
    }

    fn slot(memory: &SharedMemory) -> Slot<'_> {
        Slot::new(memory.words(), SLOT, SLOT).unwrap()
    }

    fn get(memory: &SharedMemory, token: u32) -> Result<(Head, Vec<u8>), SlotDrop> {
        let mut copy = [0xEE; MAX];
        let slot = slot(memory);
        let head = slot.read(slot.tail(), token, MAX, &mut copy)?;
        assert_eq!(head, slot.head());
        Ok((head, copy[..head.len()].to_vec()))
    }

    #[test]
    fn a_request_of_any_length_is_read_back() {
        for len in 0..=MAX {
            let body: Vec<u8> = (0..len).map(|at| at as u8 + 1).collect();
            let request = build_request(7, 9, 3, 11, &body);
            assert_eq!(request.len(), len.next_multiple_of(8) + FOOT_LEN);
            let memory = memory(&request);
            let tail = slot(&memory).tail();
            assert_eq!((tail.sequence(), tail.attempt()), (9, 3));
            let head = Head::new(7, 11, len as u16);
            assert_eq!(sealed_head(&request), head);
            assert_eq!(get(&memory, 7), Ok((head, body)));
        }
    }

    #[test]
    fn the_layout_is_fixed() {
        let request = build_request(0x0403_0201, 0x0807_0605, 9, 0x0B0A, &[0xFF; 3]);
        assert_eq!(request[..8], [0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0]);
        assert_eq!(request[8..21], [1, 2, 3, 4, 0x0A, 0x0B, 3, 0, 5, 6, 7, 8, 9]);
        assert_eq!(request[21..], [0x6C, 0x33, 0x68], "a change of the checksum is another version");
    }

    #[test]
    fn a_slot_in_which_any_byte_is_of_another_request_is_torn() {
        let new = build_request(7, 9, 1, 2, &[0x55; 40]);
        for at in 0..new.len() - 8 {
            let mut torn = new.clone();
            torn[at] ^= 0x10;
            let expected = match at {
                // An impossible length is reported before the body is read.
                47 => SlotDrop::Length,
                _ => SlotDrop::Torn,
            };
            assert_eq!(get(&memory(&torn), 7), Err(expected), "{at}");
        }
        let old = build_request(7, 5, 1, 2, &[0x66; 40]);
        // Any of the body's words are from an older request.
        for words in 1..1u32 << 5 {
            let mut torn = new.clone();
            for word in (0..5).filter(|word| words & 1 << word != 0) {
                torn[word * 8..][..8].copy_from_slice(&old[word * 8..][..8]);
            }
            assert_eq!(get(&memory(&torn), 7), Err(SlotDrop::Torn), "{words:b}");
        }
    }

    #[test]
    fn a_slot_in_which_a_word_of_equal_bytes_is_of_another_request_is_torn() {
        // Cleared and filled words are what programs really write, one over the other.
        let tail_of = |first: u8, second: u8| {
            let body = [[first; 8], [second; 8]].concat();
            tail_of_bytes(&body, 0, Tail::stamp(9, 1))
        };
        for fixed in 0..=u8::MAX {
            let mut tails: Vec<u64> = (0..=u8::MAX).map(|second| tail_of(fixed, second).0).collect();
            tails.sort_unstable();
            assert!(tails.windows(2).all(|pair| pair[0] != pair[1]), "after {fixed}");
            let mut tails: Vec<u64> = (0..=u8::MAX).map(|first| tail_of(first, fixed).0).collect();
            tails.sort_unstable();
            assert!(tails.windows(2).all(|pair| pair[0] != pair[1]), "before {fixed}");
        }
    }

    #[test]
    fn what_cannot_be_a_request_is_refused_by_reason() {
        assert_eq!(get(&memory(&build_request(7, 1, 1, 0, &[1; 8])), 8), Err(SlotDrop::Token));
        assert_eq!(get(&memory(&[0; SLOT]), 0), Err(SlotDrop::Torn));
        assert_eq!(get(&memory(&[0xFF; SLOT]), 0), Err(SlotDrop::Length));
        let mut long = build_request(7, 1, 1, 0, &[1; 8]);
        let at = long.len() - 10;
        long[at..at + 2].copy_from_slice(&(MAX as u16 + 1).to_le_bytes());
        assert_eq!(get(&memory(&long), 7), Err(SlotDrop::Length));
    }

    #[test]
    fn slots_lie_in_the_memory_and_requests_in_their_slots_and_copies() {
        let memory = memory(&build_request(7, 1, 1, 0, &[1; 24]));
        for (end, len) in [(SLOT + 8, SLOT), (SLOT - 8, SLOT), (0, SLOT), (SLOT, 8), (SLOT, 0), (usize::MAX, SLOT)] {
            assert!(Slot::new(memory.words(), end, len).is_none(), "{end} {len}");
        }
        for (slot_len, copy_len, fits) in [(SLOT, 24, true), (40, 24, true), (32, 24, false), (SLOT, 23, false)] {
            let (slot, mut copy) = (Slot::new(memory.words(), SLOT, slot_len).unwrap(), vec![9; copy_len]);
            let expected = if fits { Ok(Head::new(7, 0, 24)) } else { Err(SlotDrop::Length) };
            assert_eq!(slot.read(slot.tail(), 7, MAX, &mut copy), expected, "{slot_len} {copy_len}");
            assert!(copy.iter().all(|&byte| byte == if fits { 1 } else { 9 }));
        }
    }
}
