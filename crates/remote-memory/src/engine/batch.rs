//! What is made of requests that were taken together: which of them become one operation, and how.

use std::collections::VecDeque;

use super::path::{Limits, Path};
use super::state::{Buffer, Carried};

/// What becomes of requests that gathered (rdmabox IV-A, Figure 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Each is an operation with a doorbell of its own.
    Single,
    /// Adjacent ones become one operation; each operation has a doorbell of its own.
    Merge,
    /// Each is an operation; all of them have one doorbell.
    Doorbell,
    /// Adjacent ones become one operation, and all operations have one doorbell.
    #[default]
    Hybrid,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Single, Self::Merge, Self::Doorbell, Self::Hybrid];

    /// Whether adjacent requests become one operation.
    #[inline]
    pub fn merges(self) -> bool {
        matches!(self, Self::Merge | Self::Hybrid)
    }

    /// Whether operations have one doorbell.
    #[inline]
    pub fn chains(self) -> bool {
        matches!(self, Self::Doorbell | Self::Hybrid)
    }
}

/// How an operation has its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Each request's buffer is a piece of it.
    Gather,
    /// They are copied into one registered buffer, or out of it (preMR).
    Copy,
}

/// The first so many of those that were taken become one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub requests: usize,
    pub len: usize,
    pub how: How,
}

/// Limits of merging.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merging {
    pub merged_len_max: usize,
    pub copied_piece_max: usize,
}

/// Brings adjacent requests together: reads, then writes, each by address.
pub(super) fn sort(taken: &mut VecDeque<Carried>) {
    if taken.len() > 1 {
        taken.make_contiguous().sort_unstable_by_key(|request| (request.is_write(), request.start));
    }
}

#[inline]
pub(super) fn is_direct(path: &impl Path, request: &Carried) -> bool {
    match &request.buffer {
        Buffer::Target(target) => path.takes_target(target),
        Buffer::Source(source) => path.takes_source(source),
        Buffer::None => true,
    }
}

/// What the first operation is made of, where adjacent requests may become one.
pub(super) fn merge(path: &impl Path, limits: &Limits, merging: Merging, taken: &VecDeque<Carried>) -> Option<Run> {
    let first = taken.front()?;
    let is_write = first.is_write();
    let len_max = merging.merged_len_max.min(limits.op_len_max);
    let (mut requests, mut len, mut end) = (1, first.len, first.end());
    let mut can_copy = first.len <= merging.copied_piece_max;
    let first_is_direct = is_direct(path, first);
    // The run as far as it can be gathered: its requests and bytes.
    let mut gathered = (1, first.len);
    let mut all_direct = first_is_direct;
    for next in taken.iter().skip(1) {
        if next.start != end || next.is_write() != is_write || len + next.len > len_max {
            break;
        }
        all_direct &= is_direct(path, next);
        can_copy &= next.len <= merging.copied_piece_max;
        let can_gather = all_direct && requests < limits.pieces_max;
        if !can_copy && !can_gather {
            break;
        }
        (requests, len, end) = (requests + 1, len + next.len, next.end());
        if can_gather {
            gathered = (requests, len);
        }
    }
    let run = if gathered.0 == requests && first_is_direct {
        Run { requests, len, how: How::Gather }
    } else if can_copy || !first_is_direct {
        // One that must be copied anyway, or so many small ones.
        let (requests, len) = if can_copy { (requests, len) } else { (1, first.len) };
        Run { requests, len, how: How::Copy }
    } else {
        Run { requests: gathered.0, len: gathered.1, how: How::Gather }
    };
    Some(run)
}
