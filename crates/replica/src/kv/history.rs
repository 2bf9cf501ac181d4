//! The latest changes, for watches.

use std::collections::VecDeque;
use std::sync::Arc;

use super::key::Key;
use super::messages::{Change, QueryResult};
use super::{ANSWER_LEN_MAX, ITEM_LEN};

/// Changes kept, at most.
const CHANGES_MAX: usize = 1 << 16;
/// Bytes of keys and values kept, at most.
const LEN_MAX: usize = 32 << 20;

#[derive(Clone, Debug)]
struct Entry {
    key: Key,
    value: Option<Arc<[u8]>>,
}

impl Entry {
    fn len(&self) -> usize {
        self.key.bytes().len() + self.value.as_ref().map_or(0, |value| value.len())
    }
}

/// The latest changes, one per revision.
#[derive(Clone, Debug, Default)]
pub struct RecentChanges {
    /// Revision before the first change kept.
    before: u64,
    entries: VecDeque<Entry>,
    len: usize,
}

impl RecentChanges {
    /// A history that begins after a revision.
    pub fn after(revision: u64) -> Self {
        Self { before: revision, ..Self::default() }
    }

    /// Adds the next change.
    pub fn push(&mut self, revision: u64, key: Key, value: Option<Arc<[u8]>>) {
        debug_assert_eq!(revision, self.before + self.entries.len() as u64 + 1);
        let entry = Entry { key, value };
        self.len += entry.len();
        self.entries.push_back(entry);
        while self.entries.len() > CHANGES_MAX || self.len > LEN_MAX {
            let Some(gone) = self.entries.pop_front() else { break };
            self.len -= gone.len();
            self.before += 1;
        }
    }

    /// Returns changes from revision `from` on, of keys with this prefix; `None` if there are none yet.
    pub fn since(&self, prefix: &[u8], from: u64, limit: usize) -> Option<QueryResult<'_>> {
        let from = from.max(1);
        if from <= self.before {
            return Some(QueryResult::Compacted { oldest: self.before + 1 });
        }
        let (mut changes, mut len, mut next) = (Vec::new(), 0, from);
        let skip = (from - self.before - 1) as usize;
        for (entry, revision) in self.entries.iter().skip(skip).zip(from..) {
            if entry.key.bytes().starts_with(prefix) {
                len += entry.len() + ITEM_LEN;
                if changes.len() >= limit || (!changes.is_empty() && len > ANSWER_LEN_MAX) {
                    break;
                }
                changes.push(Change { revision, key: entry.key.bytes(), value: entry.value.as_deref() });
            }
            next = revision + 1;
        }
        (!changes.is_empty()).then_some(QueryResult::Changes { changes, next })
    }
}
