//! Messages of two-sided gets: a request, and its answer.
//!
//! A request is one SEND of 44 bytes, an answer one SEND of 16 bytes and the object:
//!
//! ```text
//! request  0 magic u16   2 version u8  3 accesses u8   4 len u32  8 number u64  16 hop_len u32  20 zero u32  24 start
//! answer   0 number u64  8 version u8  9 status u8    10 access u16  12 len u32  16 object
//! ```
//!
//! If the answer has an object, `access` describes the server's processor: 0 for unknown, 1 if it is the server's
//! alone, 2 if a program competes with the server for it. Other values mean nothing.
//!
//! All words are little-endian. A request's number has the index of a place in the reader's window in its low 16 bits,
//! and above them the number of times that the place was used. So numbers never repeat, and an answer that comes after
//! its get ended is recognised as late.

use super::object::Object;
use crate::verbs::RemoteMemory;

const MAGIC: u16 = 0x5344;
const VERSION: u8 = 1;
/// Length of a request in bytes.
pub(super) const REQUEST_LEN: usize = 24 + RemoteMemory::BYTES;
/// Length in bytes of an answer before its object.
pub(super) const ANSWER_LEN: usize = 16;

/// Reason why a server refused a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The message is not a request of this release.
    #[error("the request is malformed")]
    Malformed,
    /// The number is outside the window, or was used before.
    #[error("the request's number is out of the window, or was used before")]
    Number,
    /// There are no accesses, or too many.
    #[error("the request has no access, or too many")]
    Accesses,
    /// An access is too long, or empty.
    #[error("an access is too long, or empty")]
    Len,
    /// An access does not lie within one region.
    #[error("an access lies outside the exposed memory")]
    OutOfBounds,
    /// The bytes of an access lead nowhere.
    #[error("the bytes of an access do not say where the next one goes")]
    NoNext,
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Self; 6] =
        [Self::Malformed, Self::Number, Self::Accesses, Self::Len, Self::OutOfBounds, Self::NoNext];

    /// Index in [`Self::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GetRequest {
    pub number: u64,
    pub object: Object,
}

/// Head of an answer, without the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnswerHead {
    pub number: u64,
    /// Reason why there is no object, and the access at which it arose.
    pub refusal: Option<(Refusal, u16)>,
    /// With an object: whether a program competes with the server's thread for its processor, if that is known.
    pub is_shared: Option<bool>,
    /// Length of the object in bytes.
    pub len: u32,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl GetRequest {
    pub fn to_bytes(self) -> [u8; REQUEST_LEN] {
        let Self { number, object } = self;
        let mut bytes = [0; REQUEST_LEN];
        bytes[..2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[2] = VERSION;
        bytes[3] = object.accesses.min(255) as u8;
        bytes[4..8].copy_from_slice(&object.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        bytes[16..20].copy_from_slice(&object.hop_len.to_le_bytes());
        bytes[24..].copy_from_slice(&object.start.to_bytes());
        bytes
    }

    /// Reads a request; `None` when it is malformed.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REQUEST_LEN] = bytes.try_into().ok()?;
        let is_ours = bytes[..2] == MAGIC.to_le_bytes() && bytes[2] == VERSION && bytes[20..24] == [0; 4];
        let start = RemoteMemory::from_bytes(bytes.last_chunk()?);
        let object = Object { start, accesses: bytes[3].into(), hop_len: word(bytes, 16)?, len: word(bytes, 4)? };
        is_ours.then_some(Self { number: long(bytes, 8)?, object })
    }
}

impl AnswerHead {
    pub fn to_bytes(self) -> [u8; ANSWER_LEN] {
        let mut bytes = [0; ANSWER_LEN];
        let load = self.is_shared.map_or(0, |is_shared| 1 + u16::from(is_shared));
        let (status, access) = self.refusal.map_or((0, load), |(refusal, access)| (refusal as u8 + 1, access));
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8] = VERSION;
        bytes[9] = status;
        bytes[10..12].copy_from_slice(&access.to_le_bytes());
        bytes[12..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Reads an answer's head, and the object; `None` when they are malformed.
    pub fn from_bytes(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, object) = bytes.split_first_chunk::<ANSWER_LEN>()?;
        let access = u16::from_le_bytes([head[10], head[11]]);
        let (refusal, is_shared) = match (head[9], access) {
            (0, 1) => (None, Some(false)),
            (0, 2) => (None, Some(true)),
            (0, _) => (None, None),
            (status, _) => (Some((*Refusal::ALL.get(usize::from(status) - 1)?, access)), None),
        };
        let answer = Self { number: long(head, 0)?, refusal, is_shared, len: word(head, 12)? };
        let is_whole = answer.len as usize == object.len() && (refusal.is_none() || object.is_empty());
        (head[8] == VERSION && is_whole).then_some((answer, object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: RemoteMemory = RemoteMemory { address: 0x0102_0304_0506_0708, rkey: 9, len: 77 };
    const REQUEST: GetRequest = GetRequest {
        number: 0x1122_3344_5566_7788,
        object: Object { start: START, accesses: 3, hop_len: 8, len: 4096 },
    };

    #[test]
    fn the_layout_is_fixed() {
        let bytes = REQUEST.to_bytes();
        let head =
            [0x44, 0x53, 1, 3, 0, 0x10, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 8, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(bytes[..24], head);
        assert_eq!(bytes[24..], START.to_bytes());
        let answer = AnswerHead { number: 2, refusal: Some((Refusal::NoNext, 5)), is_shared: None, len: 0 };
        assert_eq!(answer.to_bytes(), [2, 0, 0, 0, 0, 0, 0, 0, 1, 6, 5, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn requests_survive_the_way_and_others_are_refused() {
        let bytes = REQUEST.to_bytes();
        assert_eq!(GetRequest::from_bytes(&bytes), Some(REQUEST));
        for len in 0..REQUEST_LEN {
            assert_eq!(GetRequest::from_bytes(&bytes[..len]), None, "{len}");
        }
        assert_eq!(GetRequest::from_bytes(&[&bytes[..], &[0]].concat()), None);
        for at in [0, 1, 2, 20, 23] {
            let mut bytes = bytes;
            bytes[at] ^= 1;
            assert_eq!(GetRequest::from_bytes(&bytes), None, "{at}");
        }
    }

    #[test]
    fn answers_survive_the_way_and_others_are_refused() {
        for (is_shared, code) in [(None, 0), (Some(false), 1), (Some(true), 2), (None, 3), (None, u16::MAX)] {
            let found = AnswerHead { number: 7, refusal: None, is_shared, len: 0 };
            let mut bytes = AnswerHead { is_shared: None, ..found }.to_bytes();
            bytes[10..12].copy_from_slice(&code.to_le_bytes());
            assert_eq!(AnswerHead::from_bytes(&bytes), Some((found, &[][..])), "{code}");
            assert!(code > 2 || bytes == found.to_bytes(), "{code}");
        }
        let found = AnswerHead { number: 7, refusal: None, is_shared: None, len: 3 };
        let bytes = [&found.to_bytes()[..], b"abc"].concat();
        assert_eq!(AnswerHead::from_bytes(&bytes), Some((found, &b"abc"[..])));
        for len in 0..bytes.len() {
            assert_eq!(AnswerHead::from_bytes(&bytes[..len]), None, "{len}");
        }
        for refusal in Refusal::ALL {
            let answer = AnswerHead { number: 7, refusal: Some((refusal, 2)), is_shared: None, len: 0 };
            assert_eq!(AnswerHead::from_bytes(&answer.to_bytes()), Some((answer, &[][..])));
            assert_eq!(Refusal::ALL[refusal.index()], refusal);
        }
        for (at, byte) in [(8, 2), (9, 7), (9, 1), (12, 4)] {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            assert_eq!(AnswerHead::from_bytes(&bytes), None, "{at}");
        }
    }
}
