//! Table of a queue pair's unfinished operations.

use std::collections::VecDeque;

use sinew_mem::OwnedRange;

use super::completion::{Completion, Status};
use super::request::{Gather, Operation, Request, Scatter, Source};
use super::types::{Opcode, QpNumber};

/// A request that is not over.
#[derive(Debug)]
pub struct WorkEntry {
    /// Identifier of the request.
    pub id: u64,
    /// Kind of the operation.
    pub opcode: Opcode,
    /// Whether its success gives a completion.
    pub signaled: bool,
    /// Bytes that it moves.
    pub len: usize,
    /// Slices that it reads.
    pub sources: Gather,
    /// Buffers that it writes.
    pub targets: Scatter,
    /// Memory that it reads or writes.
    pub range: Option<OwnedRange>,
}

impl WorkEntry {
    /// The entry of a request, which moves in; the caller copies inline bytes.
    pub fn new(request: Request<'_>) -> Self {
        let Request { id, operation, signaled, .. } = request;
        let (opcode, len) = (operation.opcode(), operation.len());
        let (sources, (targets, range)) = match operation {
            Operation::Send { source: Source::Gather(pieces), .. }
            | Operation::Write { source: Source::Gather(pieces), .. } => (pieces, (Scatter::new(), None)),
            operation => (Gather::new(), operation.into_held()),
        };
        Self { id, opcode, signaled, len, sources, targets, range }
    }

    /// The request's completion; `None` when nobody needs it.
    pub fn complete(self, qp: QpNumber, status: Status) -> Option<Completion> {
        let is_reported = self.signaled || !status.is_success() || !self.targets.is_empty() || self.range.is_some();
        is_reported.then(|| Completion {
            id: self.id,
            qp,
            status,
            opcode: self.opcode,
            len: self.len,
            immediate: None,
            from: None,
            buffers: self.targets,
            range: self.range,
        })
    }
}

/// A queue pair's requests that are not over, oldest first. It holds as many as it was made for, in memory of its own.
#[derive(Debug)]
pub struct WorkTable<T = WorkEntry> {
    entries: VecDeque<T>,
    depth: usize,
    /// Entries ever taken out, which is the number of the oldest.
    retired: u64,
}

impl<T> WorkTable<T> {
    /// A table with room for `depth` operations.
    pub fn new(depth: usize) -> Self {
        Self { entries: VecDeque::with_capacity(depth), depth, retired: 0 }
    }

    /// Whether the table is full.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.depth
    }

    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of entries that fit.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Adds an entry and returns its number: numbers count up from 0.
    ///
    /// # Panics
    ///
    /// When the table is full.
    #[inline]
    pub fn push(&mut self, entry: T) -> u64 {
        assert!(!self.is_full(), "a table of {} entries is full", self.depth);
        self.entries.push_back(entry);
        self.retired + self.entries.len() as u64 - 1
    }

    /// Takes the oldest entry out.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let entry = self.entries.pop_front()?;
        self.retired += 1;
        Some(entry)
    }

    /// Number of the oldest entry, or of the next one if there is none.
    #[inline]
    pub fn oldest(&self) -> u64 {
        self.retired
    }

    /// Entry `number`, if it is there.
    #[inline]
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.entries.get_mut(usize::try_from(number.checked_sub(self.retired)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_numbers_until_they_are_retired_in_order() {
        let mut table = WorkTable::new(2);
        assert_eq!((table.push('a'), table.push('b')), (0, 1));
        assert!(table.is_full());
        assert_eq!((table.pop(), table.push('c')), (Some('a'), 2));
        assert_eq!([0, 1, 3].map(|number| table.get_mut(number).copied()), [None, Some('b'), None]);
        assert_eq!((table.pop(), table.pop(), table.pop()), (Some('b'), Some('c'), None));
        assert_eq!(table.oldest(), 3);
    }

    #[test]
    fn success_is_told_only_when_it_was_asked_for_or_gives_something_back() {
        let arena = sinew_mem::Arena::private(1 << 16).unwrap();
        let send = || Operation::Send { source: Source::Inline(b"abc"), immediate: None, to: None };
        let entry = |request| WorkEntry::new(request);
        let number = QpNumber(1);
        assert!(entry(Request::new(1, send())).complete(number, Status::Success).is_some());
        assert!(entry(Request::new(1, send()).unsignaled()).complete(number, Status::Success).is_none());
        assert!(entry(Request::new(1, send()).unsignaled()).complete(number, Status::Flushed).is_some());
        let read = Operation::FetchAdd {
            target: arena.alloc(8, 8).unwrap(),
            remote: crate::verbs::RemoteMemory { address: 0, rkey: 0, len: 8 },
            add: 1,
        };
        let completion = entry(Request::new(7, read).unsignaled()).complete(number, Status::Success).unwrap();
        assert_eq!((completion.id, completion.len, completion.buffers.len()), (7, 8, 1));
    }
}
