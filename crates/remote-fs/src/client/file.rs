//! One file, as far as this client knows it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sinew_mem::MessageBuffer;

use super::dirty::Dirty;
use super::error::Failed;
use super::layout::{Known, Stored};
use crate::protocol::{Attr, Ino, Layout, Time};

/// One file. It is there while it is open, and for as long as the program knows of it.
pub(super) struct File {
    pub ino: Ino,
    state: Mutex<State>,
    /// Pages that were read before anybody asked for them. Held while they are read: who asks meanwhile waits for them.
    pub ahead: Mutex<Option<Ahead>>,
    /// Held by whoever writes what is dirty: one at a time, so that commits keep the order of writes.
    pub flushing: Mutex<()>,
}

/// Pages that were read ahead, and checked.
pub(super) struct Ahead {
    /// Which they are: whatever becomes of the file, these have these bytes.
    pub stored: Stored,
    pub buffer: MessageBuffer,
}

#[derive(Default)]
pub(super) struct State {
    /// Where its pages lie, of this version or an earlier one.
    pub layout: Known,
    /// The newest version that the service has spoken of. The layout is of it, as far as it is known. Versions grow, and answers that several lanes were given come in any order: what is
    /// said of an earlier one is out of date.
    pub version: Option<u64>,
    /// The version that all that is cached above this client is of.
    pub cached_version: Option<u64>,
    pub dirty: Dirty,
    /// Bytes, as the service said of that version.
    pub committed_len: u64,
    /// When the contents were changed last, as it said with them.
    committed_time: Option<Time>,
    /// Bytes, as far as something was written that is not committed.
    pub dirty_len: u64,
    /// When it was last written here, and this is not committed.
    pub modified: Option<Time>,
    /// Since when there is something to commit, on the endpoint's clock.
    pub dirty_since_ns: u64,
    /// Where the next read begins, if reads are one behind the other.
    pub read_until: u64,
    /// Why what was written could not be committed: for whoever asks next.
    pub error: Option<Failed>,
    /// Its permissions, as the service said last.
    pub mode: u32,
    /// Handles that it is open by, each with whether it is for writing.
    pub handles: Vec<(u64, bool)>,
}

impl File {
    pub fn new(ino: Ino) -> Self {
        Self { ino, state: Mutex::default(), ahead: Mutex::default(), flushing: Mutex::default() }
    }

    pub fn ahead(&self) -> MutexGuard<'_, Option<Ahead>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Bytes.
    pub fn len(&self) -> u64 {
        if self.dirty.is_empty() { self.committed_len } else { self.committed_len.max(self.dirty_len) }
    }

    /// Whether something that the service said is of an earlier version than what it said before.
    pub fn is_outdated(&self, version: u64) -> bool {
        self.version.is_some_and(|newest| version < newest)
    }

    /// Attributes as programs here see them: with what is not committed, and what was committed since the service said so.
    pub fn seen(&self, mut attr: Attr) -> Attr {
        if let Some(newest) = self.version.filter(|newest| attr.version < *newest) {
            (attr.version, attr.size) = (newest, self.committed_len);
            attr.mtime = self.committed_time.unwrap_or(attr.mtime);
            attr.ctime = attr.ctime.max(attr.mtime);
        }
        if self.dirty.is_empty() {
            return attr;
        }
        let mtime = self.modified.unwrap_or(attr.mtime);
        Attr { size: attr.size.max(self.dirty_len), mtime, ctime: attr.ctime.max(mtime), ..attr }
    }

    /// The service has said what the file is like. Its layout is another one if its version is.
    pub fn hear(&mut self, attr: &Attr) {
        self.mode = attr.mode;
        if self.is_outdated(attr.version) {
            return;
        }
        (self.committed_len, self.committed_time) = (attr.size, Some(attr.mtime));
        if self.version != Some(attr.version) {
            self.layout.clear();
            self.version = Some(attr.version);
            if attr.pages == 0 {
                self.layout.set_empty();
            }
        }
    }

    /// The service has said where pages lie. What it said of an earlier version says nothing of them now.
    pub fn hear_layout(&mut self, layout: &Layout) {
        if self.version != Some(layout.version) {
            self.layout.clear();
            self.version = Some(layout.version);
            (self.committed_len, self.committed_time) = (layout.size, None);
        }
    }

    /// A change of our own was made, and the service has said what the file is like now. Returns whether nobody else has changed it meanwhile.
    pub fn hear_own(&mut self, attr: &Attr) -> bool {
        if self.is_outdated(attr.version) {
            return false;
        }
        (self.committed_len, self.committed_time) = (attr.size, Some(attr.mtime));
        let next = |version: Option<u64>| version.is_some_and(|version| version + 1 == attr.version);
        let is_alone = next(self.version);
        if next(self.cached_version) {
            self.cached_version = Some(attr.version);
        }
        if !is_alone {
            self.layout.clear();
        }
        self.version = Some(attr.version);
        is_alone
    }

    /// A handle to ask by; for writing, if need be. Another lane may close it at any time.
    pub fn handle(&self, for_writing: bool) -> Option<u64> {
        self.handles.iter().find(|(_, writes)| *writes || !for_writing).map(|(handle, _)| *handle)
    }

    /// Whether one that was asked by is closed, and there is another to ask by.
    pub fn has_other(&self, handle: u64, for_writing: bool) -> bool {
        self.handles.iter().all(|(of, _)| *of != handle) && self.handle(for_writing).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Kind;

    fn attr(version: u64, size: u64) -> Attr {
        let time = Time { s: version as i64, ns: 0 };
        Attr {
            ino: Ino(7),
            kind: Kind::File,
            mode: 0o600,
            links: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            pages: size.div_ceil(4096),
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            version,
        }
    }

    #[test]
    fn an_answer_that_a_commit_has_overtaken_brings_no_old_size_back() {
        let mut state = State::default();
        state.hear(&attr(1, 0));
        // Another lane was told of version 1 and is slow to say so, while what was written is committed.
        assert!(state.hear_own(&attr(2, 5000)));
        assert_eq!(state.seen(attr(1, 0)).size, 5000);
        assert_eq!(
            state.seen(attr(1, 0)),
            Attr { atime: attr(1, 0).atime, pages: 0, btime: attr(1, 0).btime, ..attr(2, 5000) }
        );
        state.hear(&attr(1, 0));
        assert_eq!((state.len(), state.version), (5000, Some(2)));
        assert_eq!(state.seen(attr(3, 10)), attr(3, 10), "somebody else has made it shorter");
    }

    #[test]
    fn a_handle_that_is_closed_while_it_is_asked_by_has_another_in_its_place_if_there_is_one() {
        let mut state = State { handles: vec![(1, true), (2, false)], ..State::default() };
        assert_eq!((state.handle(false), state.has_other(1, false)), (Some(1), false), "it is open");
        state.handles.remove(0);
        assert!(state.has_other(1, false) && !state.has_other(1, true), "none is for writing");
        state.handles.clear();
        assert!(!state.has_other(1, false));
    }

    #[test]
    fn own_changes_whose_answers_change_places_leave_the_later_one() {
        let mut state = State::default();
        state.hear(&attr(1, 0));
        assert!(!state.hear_own(&attr(3, 100)), "version 2 is another lane's");
        assert!(!state.hear_own(&attr(2, 5000)));
        assert_eq!((state.len(), state.version), (100, Some(3)));
        assert_eq!(state.seen(attr(2, 5000)).size, 100);
    }
}
