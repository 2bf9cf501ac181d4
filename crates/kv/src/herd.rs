//! HERD's key-value cache (sigcomm14, section 4): GET, PUT and DELETE over [`sinew_herd`], with one table for each
//! worker.
//!
//! A worker serves a [`CacheService`]; a [`CacheClient`] asks the worker that owns a key. An item, key and value
//! together, has up to [`ITEM_LEN_MAX`] bytes, which fit into the paper's slots of 1 KB. A request carries operation
//! and key length in its kind, and key and value in its body; the kind of an answer is a [`Status`], and its body the
//! value found.

mod client;
mod service;

pub use client::{AskError, CacheClient, Outcome};
pub use service::{CacheService, CacheServiceStats};

use sinew_herd::Layout;

/// Longest key, in bytes; the shortest has 1.
pub const KEY_LEN_MAX: usize = 255;
/// Longest key and value together, in bytes. With its overhead, an answer fits into a datagram of 1 KB.
pub const ITEM_LEN_MAX: usize = 1016;

/// Layout of a request region for this many workers, clients at a time, and requests of one client to one worker.
pub fn layout(workers: usize, clients: usize, window: usize) -> Layout {
    Layout { workers, clients, window, request_len_max: ITEM_LEN_MAX, response_len_max: ITEM_LEN_MAX }
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Get = 1,
    Put = 2,
    Delete = 3,
}

impl Operation {
    /// Encodes the operation with the length of its key, which is at most [`KEY_LEN_MAX`].
    #[inline(always)]
    fn kind(self, key_len: usize) -> u16 {
        self as u16 | (key_len as u16) << 8
    }

    /// Decodes operation and key length; `None` for an unknown operation.
    #[inline(always)]
    fn of(kind: u16) -> Option<(Self, usize)> {
        let operation = match kind & 0xFF {
            1 => Self::Get,
            2 => Self::Put,
            3 => Self::Delete,
            _ => return None,
        };
        Some((operation, usize::from(kind >> 8)))
    }
}

/// Outcome of a request, which is the kind of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The value was found.
    Found = 1,
    /// No item has the key.
    Absent = 2,
    /// The value was stored.
    Stored = 3,
    /// The item was deleted.
    Deleted = 4,
    /// The request is malformed: an unknown operation, or a body that does not match the key length.
    Malformed = 5,
    /// The key belongs to another worker.
    WrongPartition = 6,
    /// The value was not stored: there is no memory for it, or it is longer than the table allows.
    NotStored = 7,
    /// The value found is too long for an answer, so it was not stored over HERD.
    TooLong = 8,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Found,
        Self::Absent,
        Self::Stored,
        Self::Deleted,
        Self::Malformed,
        Self::WrongPartition,
        Self::NotStored,
        Self::TooLong,
    ];

    #[inline(always)]
    fn of(kind: u16) -> Option<Self> {
        Self::ALL.get(usize::from(kind).checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_fixed_and_nonsense_is_none() {
        assert_eq!([Operation::Get, Operation::Put, Operation::Delete].map(|op| op.kind(16)), [0x1001, 0x1002, 0x1003]);
        for operation in [Operation::Get, Operation::Put, Operation::Delete] {
            assert_eq!(Operation::of(operation.kind(KEY_LEN_MAX)), Some((operation, KEY_LEN_MAX)));
        }
        assert!([0, 4, 0xFF, 0x1000].iter().all(|kind| Operation::of(*kind).is_none()));
        for status in Status::ALL {
            assert_eq!(Status::of(status as u16), Some(status));
        }
        assert!([0, 9, u16::MAX].iter().all(|kind| Status::of(*kind).is_none()));
    }
}
