//! The encoding of a request in its slot.
//!
//! ```text
//! ... | body, to a multiple of 8 bytes | token 4 | kind 2 | length 2 | number 4 | attempt 1 | checksum 3 | slot end
//!                                       <------------ head ---------> <------------ tail -------------->
//! ```
//!
//! All numbers are little-endian. The tail is one aligned word, and is written last. The checksum covers everything
//! else: the body, the head, the number and the attempt.

use sinew_mem::SharedMemory;

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
}

#[inline(always)]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The tail of a request: its stamp, and a checksum of 24 bits over whole words. The checksum detects accidents, not
/// forgery.
#[inline(always)]
fn tail_of(body: &[u8], head: u64, stamp: u64) -> Tail {
    const ODD: [u64; 2] = [0x2d35_8dcc_aa6c_78a5, 0x8bb8_4b93_962e_acc9];
    let mut sum = mix(head ^ ODD[0], stamp ^ ODD[1]);
    let (words, _) = body.as_chunks::<8>();
    let (pairs, rest) = words.as_chunks::<2>();
    // The products are independent of `sum` and of each other.
    for [a, b] in pairs {
        sum = sum.rotate_left(7) ^ mix(u64::from_le_bytes(*a) ^ ODD[0], u64::from_le_bytes(*b) ^ ODD[1]);
    }
    if let [last] = rest {
        sum = sum.rotate_left(7) ^ mix(u64::from_le_bytes(*last) ^ ODD[0], ODD[1]);
    }
    // Folded: the halves of a product that are XORed cancel where a factor is complemented, in one window of bits.
    Tail((sum ^ sum << 40) & !Tail::STAMP | stamp)
}

/// Makes a request of the body, which lies before the last [`FOOT_LEN`] bytes of `slot`; the request begins at
/// [`start`]. Zeros must pad the body to a multiple of 8 bytes.
#[inline(always)]
pub(crate) fn seal(slot: &mut [u8], head: Head, sequence: u32, attempt: u8) {
    let (foot, start) = (slot.len() - FOOT_LEN, start(slot.len(), head));
    let (body, place) = slot[start..].split_at_mut(foot - start);
    let tail = tail_of(body, head.0, Tail::stamp(sequence, attempt));
    place[..8].copy_from_slice(&head.0.to_le_bytes());
    place[8..].copy_from_slice(&tail.0.to_le_bytes());
}

/// Start of a request with this head that ends at `end`.
#[inline(always)]
pub(crate) fn start(end: usize, head: Head) -> usize {
    end - FOOT_LEN - head.len().next_multiple_of(8)
}

/// Encodes a request as a client does; its last byte belongs at the end of its slot. For tests of servers.
pub fn build_request(token: u32, sequence: u32, attempt: u8, kind: u16, body: &[u8]) -> Vec<u8> {
    let mut slot = body.to_vec();
    slot.resize(body.len().next_multiple_of(8) + FOOT_LEN, 0);
    let head = Head::new(token, kind, u16::try_from(body.len()).unwrap_or(u16::MAX));
    seal(&mut slot, head, sequence, attempt);
    slot
}

/// The tail of the slot that ends at `end`.
#[inline(always)]
pub(crate) fn tail(memory: &SharedMemory, end: usize) -> Tail {
    // The layout was checked against the memory, so this cannot fail; a slot outside the memory would read as empty.
    Tail(u64::from_le(memory.load(end - 8).unwrap_or(0)))
}

/// The head of the slot that ends at `end`.
#[inline(always)]
pub(crate) fn head(memory: &SharedMemory, end: usize) -> Head {
    Head(u64::from_le(memory.load(end - FOOT_LEN).unwrap_or(0)))
}

/// Copies the request with this tail to `copy`, which must have room for the longest, and checks the copy.
#[inline(always)]
pub(crate) fn read(
    memory: &SharedMemory,
    end: usize,
    tail: Tail,
    token: u32,
    len_max: usize,
    copy: &mut [u8],
) -> Result<Head, SlotDrop> {
    let head = head(memory, end);
    let len = head.len();
    if len > len_max {
        return Err(SlotDrop::Length);
    }
    let body = copy.get_mut(..len.next_multiple_of(8)).ok_or(SlotDrop::Length)?;
    memory.read(end - FOOT_LEN - body.len(), body).map_err(|_| SlotDrop::Length)?;
    if tail_of(body, head.0, tail.0 & Tail::STAMP) != tail {
        return Err(SlotDrop::Torn);
    }
    // The token is checked last, since a torn request may have any token.
    if head.token() != token { Err(SlotDrop::Token) } else { Ok(head) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: usize = 128;
    const MAX: usize = SLOT - FOOT_LEN;

    fn memory(request: &[u8]) -> SharedMemory {
        let memory = SharedMemory::private(SLOT).unwrap();
        memory.write(SLOT - request.len(), request).unwrap();
        memory
    }

    fn get(memory: &SharedMemory, token: u32) -> Result<(Head, Vec<u8>), SlotDrop> {
        let mut copy = [0xEE; MAX];
        let head = read(memory, SLOT, tail(memory, SLOT), token, MAX, &mut copy)?;
        Ok((head, copy[..head.len()].to_vec()))
    }

    #[test]
    fn a_request_of_any_length_is_read_back() {
        for len in 0..=MAX {
            let body: Vec<u8> = (0..len).map(|at| at as u8 + 1).collect();
            let request = build_request(7, 9, 3, 11, &body);
            assert_eq!(request.len(), len.next_multiple_of(8) + FOOT_LEN);
            let memory = memory(&request);
            let tail = tail(&memory, SLOT);
            assert_eq!((tail.sequence(), tail.attempt()), (9, 3));
            let head = Head::new(7, 11, len as u16);
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
            tail_of(&body, 0, Tail::stamp(9, 1))
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
}
