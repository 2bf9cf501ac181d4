//! The messages of an ordered index.
//!
//! Little-endian, packed. A request is its kind, in one byte, and:
//!
//! | request | kind | then |
//! | --- | --- | --- |
//! | get | 1 | the key |
//! | put | 2 | length of the key (2), the key, the value |
//! | delete | 3 | the key |
//! | stats | 4 | |
//! | scan | 5 | limit (4), bound (1) and length (2) of the beginning, bound (1) and length (2) of the end, both keys |
//! | sum | 6 | as for a scan |
//!
//! A bound is 0 for none, 1 for a key that is included, 2 for one that is excluded. A response is its kind and:
//!
//! | response | kind | then |
//! | --- | --- | --- |
//! | none | 0 | |
//! | value | 1 | the value |
//! | done | 2 | whether the key was there before (1) |
//! | stats | 3 | entries, used bytes, memory bytes (8 each), longest value (4) |
//! | entries | 4 | whether there may be more (1), how many (4), for each: lengths of key (2) and value (4), both |
//! | sum | 5 | whether there may be more (1), added (4), passed over (4), sum (16), length of last key (2), that key |
//! | refused | 128 and more | two numbers (8 each) |

use std::ops::Bound;

use sinew_store::ordered::{KEY_LEN_MAX, PutError, Stats};

/// The most entries that one scan or sum looks at.
pub const LIMIT_MAX: u32 = 1 << 20;

const GET: u8 = 1;
const PUT: u8 = 2;
const DELETE: u8 = 3;
const STATS: u8 = 4;
const SCAN: u8 = 5;
const SUM: u8 = 6;

pub(super) const NONE: u8 = 0;
pub(super) const VALUE: u8 = 1;
const DONE: u8 = 2;
const STATS_ARE: u8 = 3;
const ENTRIES: u8 = 4;
const SUM_IS: u8 = 5;

/// Bytes before the entries of a response.
pub(super) const ENTRIES_AT: usize = 6;
/// Bytes of an entry besides its key and value.
pub(super) const ENTRY_HEAD_LEN: usize = 6;
const REFUSAL_LEN: usize = 17;

/// A range of keys.
pub type Range<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Returns the range of all keys that begin with `prefix`. The buffer `end` receives the end of the range.
///
/// ```
/// use std::ops::Bound;
/// use sinew_kv::ordered::prefix_range;
///
/// let mut end = Vec::new();
/// assert_eq!(prefix_range(b"a\xff", &mut end), (Bound::Included(&b"a\xff"[..]), Bound::Excluded(&b"b"[..])));
/// assert_eq!(prefix_range(b"\xff", &mut end), (Bound::Included(&b"\xff"[..]), Bound::Unbounded));
/// ```
pub fn prefix_range<'a>(prefix: &'a [u8], end: &'a mut Vec<u8>) -> Range<'a> {
    let kept = prefix.iter().rposition(|byte| *byte != u8::MAX).map_or(0, |last| last + 1);
    end.clear();
    end.extend_from_slice(&prefix[..kept]);
    let to = match end.last_mut() {
        Some(last) => {
            *last += 1;
            Bound::Excluded(&end[..])
        }
        None => Bound::Unbounded,
    };
    (Bound::Included(prefix), to)
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Asks for the value of a key.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// Stores a value.
    Put {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Asks for the index's counters.
    Stats,
    /// Asks for the entries of a range, in order.
    Scan {
        /// The range.
        range: Range<'a>,
        /// Most entries; the response holds only as many as fit into it.
        limit: u32,
    },
    /// Asks for the sum of those values of a range that are numbers of eight bytes, little-endian (nsdi19 7.2).
    Sum {
        /// The range.
        range: Range<'a>,
        /// Most entries to look at.
        limit: u32,
    },
}

/// A response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response<'a> {
    /// No entry has the key.
    None,
    /// The value.
    Value(&'a [u8]),
    /// The entry was stored or removed.
    Done {
        /// Whether the key was there before.
        existed: bool,
    },
    /// The index's counters.
    Stats {
        /// The counters.
        stats: Stats,
        /// Longest value that the service accepts, in bytes.
        value_len_max: u32,
    },
    /// Entries of a range.
    Entries(Entries<'a>),
    /// A sum.
    Sum(Sum<'a>),
    /// The request was refused.
    Refused(Refusal),
}

/// A sum over a part of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum<'a> {
    /// The sum.
    pub sum: u128,
    /// Values added.
    pub added: u32,
    /// Entries passed over, because their values are not eight bytes long.
    pub passed_over: u32,
    /// The last key that was looked at if `more` is set; else empty.
    pub last: &'a [u8],
    /// Whether the limit ended the sum: the range may go on after `last`.
    pub more: bool,
}

/// Entries in the order of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries<'a> {
    /// Whether the limit, or the room in the response, ended the scan: the range may go on after the last key.
    pub more: bool,
    count: u32,
    bytes: &'a [u8],
}

/// Reason why a service refused a request. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request could not be read.
    #[error("the index did not understand the request; use the same release on both sides")]
    Malformed,
    /// The index refused to store the entry.
    #[error(transparent)]
    Put(#[from] PutError),
    /// The value is too long.
    #[error("a value of {len} B is longer than the index takes: {max} B")]
    ValueTooLong {
        /// Length of the value, in bytes.
        len: u64,
        /// Longest value that the service accepts, in bytes.
        max: u64,
    },
    /// The limit of a scan or sum is 0 or too large.
    #[error("a scan or sum takes 1 to {LIMIT_MAX} entries, not {limit}; for more, ask again from behind the last key")]
    Limit {
        /// The limit in the request.
        limit: u32,
    },
}

/// Bytes that are not a valid request or response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Malformed {
    /// Description of the fault.
    pub what: &'static str,
}

const SHORT: Malformed = Malformed { what: "it ends too early" };
const LONG: Malformed = Malformed { what: "it does not end where it should" };
/// A client would ask for the next part for ever.
const IDLE: Malformed = Malformed { what: "it is to go on, but has looked at nothing" };
const UNKNOWN: Malformed = Malformed { what: "it is of an unknown kind" };

/// Reads numbers and bytes from the front of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn bool(&mut self) -> Result<bool, Malformed> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(Malformed { what: "a truth value is neither 0 nor 1" }),
        }
    }

    fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(LONG) }
    }
}

fn bound_head(bound: Bound<&[u8]>) -> (u8, &[u8]) {
    match bound {
        Bound::Unbounded => (0, &[]),
        Bound::Included(key) => (1, key),
        Bound::Excluded(key) => (2, key),
    }
}

impl<'a> Request<'a> {
    /// Reads a request.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    #[inline]
    pub fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (&kind, rest) = bytes.split_first().ok_or(SHORT)?;
        match kind {
            GET => Ok(Self::Get { key: rest }),
            DELETE => Ok(Self::Delete { key: rest }),
            PUT => {
                let mut rest = Reader(rest);
                let key_len = rest.u16()?;
                Ok(Self::Put { key: rest.take(key_len.into())?, value: rest.0 })
            }
            STATS if rest.is_empty() => Ok(Self::Stats),
            STATS => Err(LONG),
            SCAN => Self::read_range(rest).map(|(range, limit)| Self::Scan { range, limit }),
            SUM => Self::read_range(rest).map(|(range, limit)| Self::Sum { range, limit }),
            _ => Err(UNKNOWN),
        }
    }

    fn read_range(bytes: &'a [u8]) -> Result<(Range<'a>, u32), Malformed> {
        let mut rest = Reader(bytes);
        let limit = rest.u32()?;
        let heads = [(rest.array()?, rest.u16()?), (rest.array()?, rest.u16()?)];
        let mut bound = |([kind], len): ([u8; 1], u16)| {
            let key = rest.take(len.into())?;
            match kind {
                0 if len == 0 => Ok(Bound::Unbounded),
                1 => Ok(Bound::Included(key)),
                2 => Ok(Bound::Excluded(key)),
                _ => Err(Malformed { what: "a bound is of an unknown kind" }),
            }
        };
        let range = (bound(heads[0])?, bound(heads[1])?);
        rest.end()?;
        Ok((range, limit))
    }

    /// Appends the request to `bytes`. Its keys must be no longer than [`KEY_LEN_MAX`].
    pub fn write(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Get { key } => {
                bytes.push(GET);
                bytes.extend_from_slice(key);
            }
            Self::Delete { key } => {
                bytes.push(DELETE);
                bytes.extend_from_slice(key);
            }
            Self::Put { key, value } => {
                bytes.push(PUT);
                bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
                bytes.extend_from_slice(key);
                bytes.extend_from_slice(value);
            }
            Self::Stats => bytes.push(STATS),
            Self::Scan { range, limit } => Self::write_range(bytes, SCAN, *range, *limit),
            Self::Sum { range, limit } => Self::write_range(bytes, SUM, *range, *limit),
        }
    }

    fn write_range(bytes: &mut Vec<u8>, kind: u8, (from, to): Range<'_>, limit: u32) {
        bytes.push(kind);
        bytes.extend_from_slice(&limit.to_le_bytes());
        let bounds = [bound_head(from), bound_head(to)];
        for (kind, key) in bounds {
            bytes.push(kind);
            bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
        }
        for (_, key) in bounds {
            bytes.extend_from_slice(key);
        }
    }

    /// Refuses keys that are longer than an index accepts.
    pub(super) fn check(&self) -> Result<(), PutError> {
        let of = |bound: Bound<&'a [u8]>| bound_head(bound).1.len();
        let len = match self {
            Self::Get { key } | Self::Delete { key } | Self::Put { key, .. } => key.len(),
            Self::Scan { range, .. } | Self::Sum { range, .. } => of(range.0).max(of(range.1)),
            Self::Stats => 0,
        };
        if len <= KEY_LEN_MAX { Ok(()) } else { Err(PutError::KeyTooLong { len }) }
    }
}

impl<'a> Response<'a> {
    /// Reads a response.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    #[inline]
    pub fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (&kind, rest) = bytes.split_first().ok_or(SHORT)?;
        if kind == VALUE {
            return Ok(Self::Value(rest));
        }
        if kind >= 128 {
            return Refusal::read(kind, rest).map(Self::Refused);
        }
        let mut rest = Reader(rest);
        let response = match kind {
            NONE => Self::None,
            DONE => Self::Done { existed: rest.bool()? },
            STATS_ARE => Self::Stats {
                stats: Stats { entries: rest.u64()?, used_bytes: rest.u64()?, memory_bytes: rest.u64()? },
                value_len_max: rest.u32()?,
            },
            ENTRIES => return Entries::read(rest).map(Self::Entries),
            SUM_IS => {
                let (more, added, passed_over) = (rest.bool()?, rest.u32()?, rest.u32()?);
                let sum = rest.array().map(u128::from_le_bytes)?;
                let last_len = rest.u16()?;
                if more && added == 0 && passed_over == 0 {
                    return Err(IDLE);
                }
                Self::Sum(Sum { sum, added, passed_over, last: rest.take(last_len.into())?, more })
            }
            _ => return Err(UNKNOWN),
        };
        rest.end()?;
        Ok(response)
    }

    /// Appends the response to `bytes`.
    pub fn write(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::None => bytes.push(NONE),
            Self::Value(value) => {
                bytes.push(VALUE);
                bytes.extend_from_slice(value);
            }
            Self::Done { existed } => bytes.extend_from_slice(&[DONE, u8::from(*existed)]),
            Self::Stats { stats, value_len_max } => {
                bytes.push(STATS_ARE);
                for count in [stats.entries, stats.used_bytes, stats.memory_bytes] {
                    bytes.extend_from_slice(&count.to_le_bytes());
                }
                bytes.extend_from_slice(&value_len_max.to_le_bytes());
            }
            Self::Entries(entries) => {
                write_entries_head(bytes);
                bytes.extend_from_slice(entries.bytes);
                end_entries(bytes, entries.count, entries.more);
            }
            Self::Sum(sum) => {
                bytes.extend_from_slice(&[SUM_IS, u8::from(sum.more)]);
                bytes.extend_from_slice(&sum.added.to_le_bytes());
                bytes.extend_from_slice(&sum.passed_over.to_le_bytes());
                bytes.extend_from_slice(&sum.sum.to_le_bytes());
                bytes.extend_from_slice(&(sum.last.len() as u16).to_le_bytes());
                bytes.extend_from_slice(sum.last);
            }
            Self::Refused(refusal) => bytes.extend_from_slice(&refusal.to_bytes()),
        }
    }
}

/// Appends the head of a response with entries, for [`end_entries`] to fill in.
pub(super) fn write_entries_head(bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&[0; ENTRIES_AT]);
}

/// Appends an entry.
pub(super) fn write_entry(bytes: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
}

/// Fills in the head of `bytes`, which is one response with `count` entries.
pub(super) fn end_entries(bytes: &mut [u8], count: u32, more: bool) {
    if let Some(head) = bytes.first_chunk_mut::<ENTRIES_AT>() {
        head[..2].copy_from_slice(&[ENTRIES, u8::from(more)]);
        head[2..].copy_from_slice(&count.to_le_bytes());
    }
}

impl<'a> Entries<'a> {
    fn read(mut rest: Reader<'a>) -> Result<Self, Malformed> {
        let (more, count) = (rest.bool()?, rest.u32()?);
        let entries = Self { more, count, bytes: rest.0 };
        // Each entry is checked once here, so that reading it later cannot fail.
        for _ in 0..count {
            read_entry(&mut rest)?;
        }
        rest.end()?;
        Ok(entries)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns keys and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let mut rest = Reader(self.bytes);
        std::iter::from_fn(move || read_entry(&mut rest).ok())
    }
}

fn read_entry<'a>(rest: &mut Reader<'a>) -> Result<(&'a [u8], &'a [u8]), Malformed> {
    let (key_len, value_len) = (rest.u16()?, rest.u32()?);
    Ok((rest.take(key_len.into())?, rest.take(value_len as usize)?))
}

impl Refusal {
    fn to_bytes(self) -> [u8; REFUSAL_LEN] {
        let (kind, first, second) = match self {
            Self::Malformed => (128, 0, 0),
            Self::Put(PutError::Full { memory_bytes }) => (129, memory_bytes, 0),
            Self::Put(PutError::KeyTooLong { len }) => (130, len as u64, 0),
            Self::ValueTooLong { len, max } => (131, len, max),
            Self::Limit { limit } => (132, limit.into(), 0),
        };
        let mut bytes = [kind; REFUSAL_LEN];
        bytes[1..9].copy_from_slice(&u64::to_le_bytes(first));
        bytes[9..].copy_from_slice(&u64::to_le_bytes(second));
        bytes
    }

    fn read(kind: u8, bytes: &[u8]) -> Result<Self, Malformed> {
        let mut rest = Reader(bytes);
        let (first, second) = (rest.u64()?, rest.u64()?);
        rest.end()?;
        match kind {
            128 => Ok(Self::Malformed),
            129 => Ok(PutError::Full { memory_bytes: first }.into()),
            130 => Ok(PutError::KeyTooLong { len: first as usize }.into()),
            131 => Ok(Self::ValueTooLong { len: first, max: second }),
            132 => Ok(Self::Limit { limit: u32::try_from(first).unwrap_or(u32::MAX) }),
            _ => Err(UNKNOWN),
        }
    }
}
