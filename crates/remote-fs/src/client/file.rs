//! One file, as this client knows it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sinew_mem::MessageBuffer;

use super::dirty::Dirty;
use super::error::ClientError;
use super::layout::{LayoutCache, Stored};
use crate::protocol::{Attr, Ino, Layout, Time};

/// One file. It is kept while it is open, and for as long as the program refers to it.
pub(super) struct File {
    pub ino: Ino,
    state: Mutex<FileState>,
    /// Pages that were read ahead. Held during that read, so that a reader who wants them waits for it.
    pub ahead: Mutex<Option<ReadAhead>>,
    /// Held while dirty data is written: one writer at a time, so that commits keep the order of the writes.
    pub flushing: Mutex<()>,
}

/// Pages that were read ahead, and checked.
pub(super) struct ReadAhead {
    /// Their identity: whatever happens to the file, these pages have these bytes.
    pub stored: Stored,
    pub buffer: MessageBuffer,
}

#[derive(Default)]
pub(super) struct FileState {
    /// Known places of its pages, for `version`.
    pub layout: LayoutCache,
    /// Newest version that the service has reported; the known layout is of this version. Versions grow. Answers to
    /// several lanes can arrive in any order, so an answer about an earlier version is out of date.
    pub version: Option<u64>,
    /// Version of the data cached above this client.
    pub cached_version: Option<u64>,
    pub dirty: Dirty,
    /// Length in bytes at `version`, as the service reported it.
    pub committed_len: u64,
    /// Time of modification that the service reported with it.
    committed_time: Option<Time>,
    /// Length in bytes that uncommitted writes reach.
    pub dirty_len: u64,
    /// Time of the last uncommitted write.
    pub modified: Option<Time>,
    /// Time since which there has been something to commit, in ns on the endpoint's clock.
    pub dirty_since_ns: u64,
    /// End of the last read, at which a sequential read continues.
    pub read_until: u64,
    losses: Losses,
    /// Mode, as the service last reported it.
    pub mode: u32,
    /// Handles by which it is open.
    pub handles: Vec<OpenHandle>,
}

/// A handle by which a file is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenHandle {
    pub handle: u64,
    pub writes: bool,
    /// Losses already reported to this handle.
    losses_reported: u64,
}

/// Written data that could not be committed. Each handle is told of each loss once.
#[derive(Default)]
struct Losses {
    count: u64,
    last: Option<ClientError>,
    /// Whether a handle was told of the last loss.
    is_reported: bool,
}

impl File {
    pub fn new(ino: Ino) -> Self {
        Self { ino, state: Mutex::default(), ahead: Mutex::default(), flushing: Mutex::default() }
    }

    pub fn ahead(&self) -> MutexGuard<'_, Option<ReadAhead>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn lock(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileState {
    /// Adds a handle. It will be told of the last loss, too, if no handle was.
    pub fn open(&mut self, handle: u64, writes: bool) {
        let losses_reported = self.losses.count - u64::from(self.losses.last.is_some() && !self.losses.is_reported);
        self.handles.push(OpenHandle { handle, writes, losses_reported });
    }

    /// Records that some written data could not be committed.
    pub fn record_loss(&mut self, error: ClientError) {
        self.losses = Losses { count: self.losses.count + 1, last: Some(error), is_reported: false };
    }

    /// Returns the last loss as an error if this handle was not told of it.
    pub fn take_loss(&mut self, handle: u64) -> Result<(), ClientError> {
        let Some(open) = self.handles.iter_mut().find(|open| open.handle == handle) else { return Ok(()) };
        if open.losses_reported == self.losses.count {
            return Ok(());
        }
        open.losses_reported = self.losses.count;
        self.losses.is_reported = true;
        self.losses.last.clone().map_or(Ok(()), Err)
    }

    /// Length in bytes, including uncommitted writes.
    pub fn len(&self) -> u64 {
        if self.dirty.is_empty() { self.committed_len } else { self.committed_len.max(self.dirty_len) }
    }

    /// Whether a reported version is older than the newest one known.
    pub fn is_outdated(&self, version: u64) -> bool {
        self.version.is_some_and(|newest| version < newest)
    }

    /// Attributes as programs here see them: with uncommitted changes, and with commits made since the service reported
    /// them.
    pub fn as_seen_locally(&self, mut attr: Attr) -> Attr {
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

    /// Takes over attributes that the service reported. A new version invalidates the layout.
    pub fn apply_attr(&mut self, attr: &Attr) {
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

    /// Prepares for a layout that the service reported. If its version differs, what was known of the pages is
    /// forgotten.
    pub fn apply_layout(&mut self, layout: &Layout) {
        if self.version != Some(layout.version) {
            self.layout.clear();
            self.version = Some(layout.version);
            (self.committed_len, self.committed_time) = (layout.size, None);
        }
    }

    /// Takes over the attributes that follow a change of our own. Returns whether no other client has changed the file
    /// in between.
    pub fn apply_own_change(&mut self, attr: &Attr) -> bool {
        if self.is_outdated(attr.version) {
            return false;
        }
        (self.committed_len, self.committed_time) = (attr.size, Some(attr.mtime));
        let next = |version: Option<u64>| version.is_some_and(|version| version + 1 == attr.version);
        let is_only_change = next(self.version);
        if next(self.cached_version) {
            self.cached_version = Some(attr.version);
        }
        if !is_only_change {
            self.layout.clear();
        }
        self.version = Some(attr.version);
        is_only_change
    }

    /// A handle for requests, open for writing if required. Another lane may close it at any time.
    pub fn handle(&self, for_writing: bool) -> Option<u64> {
        self.handles.iter().find(|open| open.writes || !for_writing).map(|open| open.handle)
    }

    /// Whether the handle of a request has been closed, and there is another to use instead.
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
        let mut state = FileState::default();
        state.apply_attr(&attr(1, 0));
        // Another lane got the attributes of version 1 and is slow to apply them, while written data is committed.
        assert!(state.apply_own_change(&attr(2, 5000)));
        assert_eq!(state.as_seen_locally(attr(1, 0)).size, 5000);
        assert_eq!(
            state.as_seen_locally(attr(1, 0)),
            Attr { atime: attr(1, 0).atime, pages: 0, btime: attr(1, 0).btime, ..attr(2, 5000) }
        );
        state.apply_attr(&attr(1, 0));
        assert_eq!((state.len(), state.version), (5000, Some(2)));
        assert_eq!(state.as_seen_locally(attr(3, 10)), attr(3, 10), "somebody else has made it shorter");
    }

    #[test]
    fn a_handle_that_is_closed_while_it_is_asked_by_has_another_in_its_place_if_there_is_one() {
        let mut state = FileState::default();
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
        let mut state = FileState::default();
        state.open(1, true);
        state.open(2, false);
        state.record_loss(ClientError::Unreadable);
        assert_eq!((state.take_loss(1), state.take_loss(1)), (Err(ClientError::Unreadable), Ok(())));
        state.record_loss(ClientError::NoMemory);
        assert_eq!((state.take_loss(2), state.take_loss(2)), (Err(ClientError::NoMemory), Ok(())));
        state.open(3, true);
        assert_eq!((state.take_loss(3), state.take_loss(1)), (Ok(()), Err(ClientError::NoMemory)));
    }

    #[test]
    fn a_loss_that_nobody_was_told_of_is_told_to_the_next_handle() {
        let mut state = FileState::default();
        state.record_loss(ClientError::Unreadable);
        state.open(1, false);
        assert_eq!((state.take_loss(1), state.take_loss(1)), (Err(ClientError::Unreadable), Ok(())));
        state.open(2, false);
        assert_eq!(state.take_loss(2), Ok(()));
    }

    #[test]
    fn own_changes_whose_answers_change_places_leave_the_later_one() {
        let mut state = FileState::default();
        state.apply_attr(&attr(1, 0));
        assert!(!state.apply_own_change(&attr(3, 100)), "version 2 is another lane's");
        assert!(!state.apply_own_change(&attr(2, 5000)));
        assert_eq!((state.len(), state.version), (100, Some(3)));
        assert_eq!(state.as_seen_locally(attr(2, 5000)).size, 100);
    }
}
