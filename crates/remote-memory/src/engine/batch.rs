//! Batching: which of the requests taken together become one operation, and how.

use std::collections::VecDeque;

use super::path::{Limits, Path};
use super::state::{Buffer, TakenRequest};

/// How requests that are taken together are turned into operations (rdmabox IV-A, Figure 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Each request is an operation with a doorbell of its own.
    Single,
    /// Adjacent requests become one operation; each operation has a doorbell of its own.
    Merge,
    /// Each request is an operation; all operations share one doorbell.
    Doorbell,
    /// Adjacent requests become one operation, and all operations share one doorbell.
    #[default]
    Hybrid,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::Single, Self::Merge, Self::Doorbell, Self::Hybrid];

    /// Whether adjacent requests become one operation.
    #[inline]
    pub fn merges(self) -> bool {
        matches!(self, Self::Merge | Self::Hybrid)
    }

    /// Whether all operations share one doorbell.
    #[inline]
    pub fn chains(self) -> bool {
        matches!(self, Self::Doorbell | Self::Hybrid)
    }
}

/// How an operation gets at the requests' buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MergeMethod {
    /// Each request's buffer is one piece of the operation.
    Gather,
    /// The bytes are copied into one registered buffer, or out of it (preMR).
    Copy,
}

/// The first `requests` of those taken, which become one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MergedRun {
    pub requests: usize,
    pub len: usize,
    pub method: MergeMethod,
}

/// Limits of merging.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merging {
    pub merged_len_max: usize,
    pub copied_piece_max: usize,
}

/// Sorts requests so that adjacent ones come together: reads before writes, each by address.
pub(super) fn sort(taken: &mut VecDeque<TakenRequest>) {
    if taken.len() > 1 {
        taken.make_contiguous().sort_unstable_by_key(|request| (request.is_write(), request.start));
    }
}

#[inline]
pub(super) fn is_direct(path: &impl Path, request: &TakenRequest) -> bool {
    match &request.buffer {
        Buffer::Target(target) => path.takes_target(target),
        Buffer::Source(source) => path.takes_source(source),
        Buffer::None => true,
    }
}

/// Returns the requests that the first operation is made of, where adjacent requests may become one.
pub(super) fn merge(
    path: &impl Path,
    limits: &Limits,
    merging: Merging,
    taken: &VecDeque<TakenRequest>,
) -> Option<MergedRun> {
    let first = taken.front()?;
    let is_write = first.is_write();
    let len_max = merging.merged_len_max.min(limits.op_len_max);
    let (mut requests, mut len, mut end) = (1, first.len, first.end());
    let mut can_copy = first.len <= merging.copied_piece_max;
    let first_is_direct = is_direct(path, first);
    // Requests and bytes up to which the run can be gathered.
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
        MergedRun { requests, len, method: MergeMethod::Gather }
    } else if can_copy || !first_is_direct {
        // Either the first must be copied anyway, or there are more small requests than an operation has pieces.
        let (requests, len) = if can_copy { (requests, len) } else { (1, first.len) };
        MergedRun { requests, len, method: MergeMethod::Copy }
    } else {
        MergedRun { requests: gathered.0, len: gathered.1, method: MergeMethod::Gather }
    };
    Some(run)
}
