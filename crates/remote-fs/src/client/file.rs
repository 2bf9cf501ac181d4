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
    losses: Losses,
    /// Its permissions, as the service said last.
    pub mode: u32,
    /// Handles that it is open by.
    pub handles: Vec<Open>,
}

/// A handle that a file is open by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub handle: u64,
    pub writes: bool,
    /// Losses that it was told of.
    told: u64,
}

/// What was written and could not be committed. Each handle is told of each loss once.
#[derive(Default)]
struct Losses {
    count: u64,
    last: Option<Failed>,
    /// Whether some handle was told of the last one.
    is_told: bool,
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
    /// The file is open by one handle more. That is told of the last loss, too, if nobody was.
    pub fn open(&mut self, handle: u64, writes: bool) {
        let told = self.losses.count - u64::from(self.losses.last.is_some() && !self.losses.is_told);
        self.handles.push(Open { handle, writes, told });
    }

    /// Something that was written could not be committed.
    pub fn note_loss(&mut self, error: Failed) {
        self.losses = Losses { count: self.losses.count + 1, last: Some(error), is_told: false };
    }

    /// Tells a handle why something that was written could not be committed since it was told last.
    pub fn tell_loss(&mut self, handle: u64) -> Result<(), Failed> {
        let Some(open) = self.handles.iter_mut().find(|open| open.handle == handle) else { return Ok(()) };
        if open.told == self.losses.count {
            return Ok(());
        }
        open.told = self.losses.count;
        self.losses.is_told = true;
        self.losses.last.clone().map_or(Ok(()), Err)
    }

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
        self.handles.iter().find(|open| open.writes || !for_writing).map(|open| open.handle)
    }

    /// Whether one that was asked by is closed, and there is another to ask by.
    pub fn has_other(&self, handle: u64, for_writing: bool) -> bool {
        self.handles.iter().all(|open| open.handle != handle) && self.handle(for_writing).is_some()
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
        let mut state = State::default();
        state.open(1, true);
        state.open(2, false);
        assert_eq!((state.handle(false), state.has_other(1, false)), (Some(1), false), "it is open");
        state.handles.remove(0);
        assert!(state.has_other(1, false) && !state.has_other(1, true), "none is for writing");
        state.handles.clear();
        assert!(!state.has_other(1, false));
    }

    #[test]
    fn each_handle_is_told_of_each_loss_once() {
        let mut state = State::default();
        state.open(1, true);
        state.open(2, false);
        state.note_loss(Failed::Data);
        assert_eq!((state.tell_loss(1), state.tell_loss(1)), (Err(Failed::Data), Ok(())));
        state.note_loss(Failed::Memory);
        assert_eq!((state.tell_loss(2), state.tell_loss(2)), (Err(Failed::Memory), Ok(())));
        state.open(3, true);
        assert_eq!((state.tell_loss(3), state.tell_loss(1)), (Ok(()), Err(Failed::Memory)));
    }

    #[test]
    fn a_loss_that_nobody_was_told_of_is_told_to_the_next_handle() {
        let mut state = State::default();
        state.note_loss(Failed::Data);
        state.open(1, false);
        assert_eq!((state.tell_loss(1), state.tell_loss(1)), (Err(Failed::Data), Ok(())));
        state.open(2, false);
        assert_eq!(state.tell_loss(2), Ok(()));
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
