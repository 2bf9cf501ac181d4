//! One file, as far as this client knows it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sinew_mem::MessageBuffer;

use super::dirty::Dirty;
use super::error::Failed;
use super::layout::{Known, Stored};
use crate::protocol::{Attr, Ino, Time};

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
    /// The version that the layout is of, if it is of one alone.
    pub version: Option<u64>,
    /// The version that all that is cached above this client is of.
    pub cached_version: Option<u64>,
    pub dirty: Dirty,
    /// Bytes, as the service said last.
    pub committed_len: u64,
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

    /// Attributes as programs here see them: with what is not committed.
    pub fn seen(&self, attr: Attr) -> Attr {
        if self.dirty.is_empty() {
            return attr;
        }
        let mtime = self.modified.unwrap_or(attr.mtime);
        Attr { size: attr.size.max(self.dirty_len), mtime, ctime: attr.ctime.max(mtime), ..attr }
    }

    /// The service has said what the file is like. Its layout is another one if its version is.
    pub fn hear(&mut self, attr: &Attr) {
        (self.committed_len, self.mode) = (attr.size, attr.mode);
        if self.version != Some(attr.version) {
            self.layout.clear();
            self.version = Some(attr.version);
            if attr.pages == 0 {
                self.layout.set_empty();
            }
        }
    }

    /// A change of our own was made, and the service has said what the file is like now. Returns whether nobody else has changed it meanwhile.
    pub fn hear_own(&mut self, attr: &Attr) -> bool {
        self.committed_len = attr.size;
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

    /// A handle to ask by; for writing, if need be.
    pub fn handle(&self, for_writing: bool) -> Option<u64> {
        self.handles.iter().find(|(_, writes)| *writes || !for_writing).map(|(handle, _)| *handle)
    }
}
