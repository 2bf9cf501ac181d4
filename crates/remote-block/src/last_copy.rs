//! A file on this host as one more copy of a volume: data that no donor has any more is read from it.
//!
//! The file holds the volume's bytes, as any tool reads them, and a trailer of 4 KB that says which volume they are
//! from. A change goes to the file after the volume has made it, and before it is reported to the caller. A flush ends
//! once the volume has flushed and the file has then been synced. When the file is opened it may be older than the
//! volume. So all of it is copied anew in the background, and only bytes that have been copied or written since then
//! are read from it.
//!
//! The trailer is for people, and for the next server that opens the file. It says that the copy is complete only once
//! everything was copied and synced, and for as long as the file lacks no change that the store has made. After a loss
//! of power, each block of a complete file has its state at the last flush or a later one, as with any disk.
//!
//! # Design
//!
//! - **The file follows the store**, and requests that overlap finish in order, so the file is never ahead of the store
//!   and never out of order.
//! - **Valid bytes are marked block by block**, in memory. No block is valid when the file is opened; a block becomes
//!   valid when it was copied in the background or written as a whole. A change that fails puts the blocks that it
//!   touches in doubt: the file answers with their earlier state until a read of them from the store has succeeded.
//!   From then on it does not answer for them until they are copied again. A chunk that cannot be read from the store
//!   is set aside, and one such chunk is tried every five seconds.
//! - **A flush** goes to the store. Once the store has flushed, a thread of a pool syncs the file, since a volume must
//!   send heartbeats meanwhile. At shutdown the volume is flushed through the copy, then left, and then the file is
//!   synced once more.
//! - **The trailer says which volume the file belongs to**: the volume's name, and its number, which was drawn at
//!   random when the volume was made and is kept in its record. It also says whether the copy is complete. It is marked
//!   complete when everything has been copied and a later sync has ended. The mark is removed before a later server
//!   changes the first byte, when the store answers for what was in doubt, and when the file is given up. A later
//!   server trusts none of it, and copies anew.
//! - **The copy answers for what the store has lost** (`StoreError::Lost`), and while too few voters answer to say who
//!   writes to the volume (`StoreError::NoAnswer`). A volume that ended for the latter reason asks its donors every
//!   second what they know, without sending heartbeats. The copy stops answering for good once the donors report a
//!   later epoch of the volume with the same number, or a majority of the voters answers. Donors that have restarted
//!   have forgotten the volume, and do not count.

mod file;
mod marks;
mod medium;
mod syncing;
mod trailer;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use sinew_fabric::readiness::Alarm;
use sinew_fabric::verbs::Slice;
use sinew_fabric::{Armed, Clock, Descriptor, Readiness, WorkerPool};
use sinew_mem::Arena;
use sinew_remote_memory::{Extent, Finished, Job, Refused, Request, Status, Store, StoreError};

pub use file::{LastCopyError, LastCopyFile};
use marks::Marks;
use medium::Medium;
use syncing::Syncing;
pub use trailer::VolumeIdentity;

/// Reads in flight for the copying in the background, at most.
const COPYING_MAX: usize = 2;
/// Results taken from the store at a time.
const POLL_MAX: usize = 256;
/// Time between two attempts to read a chunk that could not be read, in ns.
const RETRY_NS: u64 = 5_000_000_000;

/// A request to the store.
#[derive(Debug)]
enum Submitted {
    Read {
        at: u64,
        len: usize,
    },
    Write {
        at: u64,
        source: Slice,
    },
    Discard {
        at: u64,
        len: u64,
    },
    Flush,
    /// A read that copies a chunk to the file. It is the copy's own.
    Copy {
        chunk: usize,
        /// Whether an earlier read of it failed.
        is_retry: bool,
    },
}

/// Counters of a last copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastCopyStats {
    /// Reads that the store could not answer, but the file did.
    pub reads: u64,
    /// Bytes copied to the file in the background.
    pub copied_bytes: u64,
    /// Times that the file was synced.
    pub syncs: u64,
}

/// A store with a last copy; see [the module](self).
///
/// A read of bytes that the store has lost ([`StoreError::Lost`]) is answered from the file. So is a read while too few
/// donors answer to tell who owns the store ([`StoreError::NoAnswer`]): a host that is cut off reads what it wrote
/// itself, even if another has taken the store over meanwhile. As soon as the donors say that another writer has the
/// store, or that it has ended, requests get that answer. Changes need the store, and fail without it as before. If the
/// file fails it is given up, and the store goes on without it.
pub struct LastCopy<S, C> {
    inner: S,
    clock: C,
    pool: Arc<dyn WorkerPool>,
    alarm: Alarm,
    file: Option<LastCopyFile>,
    /// Reason why the file was given up, if it was.
    given_up: Option<String>,
    marks: Marks,
    submitted: Vec<Option<(u64, Submitted)>>,
    free: Vec<usize>,
    /// Reads in flight that copy chunks to the file.
    copying: usize,
    /// When a chunk that could not be read is tried again.
    retry_ns: u64,
    /// Flushes that the store has finished, which wait for the next sync of the file.
    awaiting_sync: Vec<Finished>,
    syncing: Option<Syncing>,
    arrived: Vec<Finished>,
    finished: VecDeque<Finished>,
    stats: LastCopyStats,
}

impl<S: std::fmt::Debug, C> std::fmt::Debug for LastCopy<S, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LastCopy").field("inner", &self.inner).field("file", &self.file).finish_non_exhaustive()
    }
}

impl<S: Store, C: Clock> LastCopy<S, C> {
    /// Adds a file to the store that it is a copy of. `pool` syncs the file, because a sync takes long.
    ///
    /// # Errors
    ///
    /// The system's error if it has no descriptors left.
    ///
    /// # Panics
    ///
    /// If the file was opened for another length.
    pub fn new(inner: S, file: LastCopyFile, clock: C, pool: Arc<dyn WorkerPool>) -> io::Result<Self> {
        assert_eq!(file.len(), inner.len(), "the file was opened for a store of this length");
        let alarm = Alarm::new()?;
        if let Some(descriptor) = inner.descriptor() {
            alarm.watch(descriptor)?;
        }
        Ok(Self {
            marks: Marks::new(inner.len()),
            file: Some(file),
            alarm,
            given_up: None,
            submitted: Vec::new(),
            free: Vec::new(),
            copying: 0,
            retry_ns: 0,
            awaiting_sync: Vec::new(),
            syncing: None,
            arrived: Vec::new(),
            finished: VecDeque::new(),
            stats: LastCopyStats::default(),
            inner,
            clock,
            pool,
        })
    }

    /// The store below.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// The store below. The file misses what is submitted to it directly.
    pub fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the store below, and the result of a last sync of the file. The file lacks what is not flushed, so flush
    /// first, and let the store finish.
    ///
    /// # Errors
    ///
    /// The system's error; the file may then be incomplete.
    pub fn into_inner(self) -> (S, io::Result<()>) {
        (self.inner, self.file.map_or(Ok(()), |file| file.medium().sync()))
    }

    /// Counters of the last copy.
    pub fn stats(&self) -> LastCopyStats {
        self.stats
    }

    /// Whether the file has everything that the store has, and its trailer says so.
    pub fn is_complete(&self) -> bool {
        self.file.as_ref().is_some_and(LastCopyFile::is_marked)
    }

    /// Reason why the file was given up, if it was.
    pub fn given_up(&self) -> Option<&str> {
        self.given_up.as_deref()
    }

    fn record_submitted(&mut self, tag: u64, request: Submitted) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.submitted.push(None);
            self.submitted.len() - 1
        });
        self.submitted[slot] = Some((tag, request));
        slot as u64
    }

    fn take_submitted(&mut self, slot: u64) -> Option<(u64, Submitted)> {
        let request = self.submitted.get_mut(slot as usize)?.take()?;
        self.free.push(slot as usize);
        Some(request)
    }

    /// Calls `work` with the file, if there still is one. An error gives the file up.
    fn with_file<T>(&mut self, work: impl FnOnce(&mut LastCopyFile) -> io::Result<T>) -> Option<T> {
        match work(self.file.as_mut()?) {
            Ok(value) => Some(value),
            Err(error) => {
                self.give_up(&error);
                None
            }
        }
    }

    fn with_medium<T>(&mut self, work: impl FnOnce(&dyn Medium) -> io::Result<T>) -> Option<T> {
        self.with_file(|file| work(&**file.medium()))
    }

    /// Goes on without the file. The file lacks all later changes, so it is marked as incomplete before a caller is
    /// told of any.
    fn give_up(&mut self, error: &dyn std::fmt::Display) {
        let Some(mut file) = self.file.take() else { return };
        let marked = file.mark(false).and_then(|()| file.medium().sync());
        let path = file.path().display();
        self.given_up = Some(match marked {
            Ok(()) => format!("{path}: {error}"),
            Err(again) => format!(
                "{path}: {error}; and it cannot be marked as incomplete ({again}): remove it, or it may be taken for a complete copy"
            ),
        });
        // The store has flushed these, and there is nothing else to wait for.
        let waiting = self.syncing.take().map(|syncing| syncing.flushes);
        self.finished.extend(waiting.into_iter().flatten().chain(self.awaiting_sync.drain(..)));
    }

    /// Marks the file as incomplete if it lacks a change.
    fn mark_incomplete(&mut self) {
        if self.marks.is_complete() {
            return;
        }
        // The sync in progress does not cover the changes that will complete the file again.
        if let Some(syncing) = &mut self.syncing {
            syncing.was_complete = false;
        }
        if self.is_complete() {
            self.with_file(|file| file.mark(false));
        }
    }

    /// Begins to copy what the file lacks. Returns whether there was anything to begin.
    fn copy(&mut self) -> bool {
        let mut any = false;
        while self.file.is_some() && self.copying < COPYING_MAX {
            let Some((chunk, is_retry)) = self.next_chunk() else { break };
            let range = self.marks.range(chunk);
            let len = (range.end - range.start) as usize;
            let Ok(target) = self.inner.arena().alloc(len, len) else {
                self.marks.requeue(chunk);
                break;
            };
            let tag = self.record_submitted(0, Submitted::Copy { chunk, is_retry });
            match self.inner.submit(Request { tag, job: Job::Read { at: range.start, target } }) {
                Ok(()) => {
                    self.copying += 1;
                    any = true;
                }
                Err(_) => {
                    self.take_submitted(tag);
                    self.marks.requeue(chunk);
                    break;
                }
            }
        }
        any
    }

    /// Takes a chunk to be copied, and whether it is a retry. A chunk that could not be read is retried only now and
    /// then, because reading it may fail for ever.
    fn next_chunk(&mut self) -> Option<(usize, bool)> {
        if let Some(chunk) = self.marks.next_missing() {
            return Some((chunk, false));
        }
        if !self.marks.has_unreadable() {
            return None;
        }
        let now_ns = self.clock.now_ns();
        if now_ns < self.retry_ns {
            return None;
        }
        self.retry_ns = now_ns.saturating_add(RETRY_NS);
        Some((self.marks.next_unreadable()?, true))
    }

    fn on_copied(&mut self, chunk: usize, is_retry: bool, finished: &Finished) {
        self.copying -= 1;
        let range = self.marks.range(chunk);
        let (Ok(()), Some(bytes)) = (&finished.result, &finished.target) else {
            if !self.marks.has_unreadable() {
                self.retry_ns = self.clock.now_ns().saturating_add(RETRY_NS);
            }
            return self.marks.set_unreadable(chunk);
        };
        let (at, is_zero) = (range.start, bytes.iter().all(|byte| *byte == 0));
        let written = self.with_medium(|medium| match is_zero {
            true => medium.clear(at, bytes.len() as u64),
            false => medium.write(at, bytes),
        });
        if written.is_some() {
            self.stats.copied_bytes += range.end - range.start;
            self.marks.set_copied(chunk);
            if is_retry {
                self.marks.requeue_unreadable();
            }
        }
    }

    /// Handles a result of the store: makes the same change to the file, or reads from the file what the store could
    /// not.
    fn complete(&mut self, mut finished: Finished) {
        let Some((tag, request)) = self.take_submitted(finished.tag) else { return };
        finished.tag = tag;
        let is_done = finished.result.is_ok();
        match request {
            Submitted::Copy { chunk, is_retry } => return self.on_copied(chunk, is_retry, &finished),
            // All changes that were submitted before this flush have finished, and have reached the file.
            Submitted::Flush if is_done && self.file.is_some() => return self.awaiting_sync.push(finished),
            Submitted::Flush => {}
            Submitted::Read { at, len } => match finished.result {
                Ok(()) => self.marks.clear_doubt(at, len as u64),
                Err(StoreError::Lost { .. } | StoreError::NoAnswer(_)) => self.read_from_file(at, len, &mut finished),
                Err(_) => {}
            },
            Submitted::Write { at, source } if is_done => {
                if self.with_medium(|medium| medium.write(at, source.bytes())).is_some() {
                    self.marks.set_changed(at, source.len as u64);
                }
            }
            Submitted::Discard { at, len } if is_done => {
                if self.with_medium(|medium| medium.clear(at, len)).is_some() {
                    self.marks.set_changed(at, len);
                }
            }
            Submitted::Write { at, source } => self.marks.set_doubtful(at, source.len as u64),
            Submitted::Discard { at, len } => self.marks.set_doubtful(at, len),
        }
        self.mark_incomplete();
        self.finished.push_back(finished);
    }

    fn read_from_file(&mut self, at: u64, len: usize, finished: &mut Finished) {
        if !self.marks.has(at, len as u64) {
            return;
        }
        // A store may lose the buffer of a failed read.
        let target = finished.target.take().or_else(|| self.inner.arena().alloc(len, len).ok());
        let Some(mut target) = target else { return };
        if self.with_medium(|medium| medium.read(at, &mut target)).is_some() {
            finished.result = Ok(());
            self.stats.reads += 1;
        }
        finished.target = Some(target);
    }

    /// Ends a finished sync, and begins the next one if it is needed. Returns whether there was anything to do.
    fn sync(&mut self) -> bool {
        let mut any = false;
        if let Some(result) = self.syncing.as_ref().and_then(Syncing::result)
            && let Some(Syncing { flushes, was_complete, .. }) = self.syncing.take()
        {
            any = true;
            self.finished.extend(flushes);
            match result {
                // The file may have later changes or not, as with any disk. But it must not be marked as complete if a
                // change has failed since.
                Ok(()) if was_complete && self.marks.is_complete() && !self.is_complete() => {
                    self.with_file(|file| file.mark(true));
                }
                Ok(()) => {}
                Err(error) => self.give_up(&error),
            }
        }
        let is_complete = self.marks.is_complete();
        let is_wanted = !self.awaiting_sync.is_empty() || is_complete && !self.is_complete();
        if self.syncing.is_none()
            && is_wanted
            && let Some(file) = &self.file
        {
            let flushes = std::mem::take(&mut self.awaiting_sync);
            self.stats.syncs += 1;
            self.syncing = Some(Syncing::begin(file.medium(), &*self.pool, self.alarm.waker(), flushes, is_complete));
            any = true;
        }
        any
    }
}

impl<S: Store, C: Clock> Readiness for LastCopy<S, C> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.inner.descriptor().map(|_| self.alarm.descriptor())
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        if !self.finished.is_empty() || !self.alarm.set() {
            return Ok(Armed::Ready);
        }
        // A sync that ended before the alarm was set woke nothing.
        let is_over = self.syncing.as_ref().is_some_and(|syncing| syncing.result().is_some());
        let armed = if is_over { Ok(Armed::Ready) } else { self.inner.arm(now_ns) };
        let retry_ns = (self.file.is_some() && self.marks.has_unreadable()).then_some(self.retry_ns);
        let retry = Armed::Sleep { until_ns: retry_ns }.on_clock(self.clock.now_ns(), now_ns);
        match (armed, retry) {
            (Ok(Armed::Sleep { until_ns }), Armed::Sleep { until_ns: retry_ns }) => {
                Ok(Armed::Sleep { until_ns }.min_deadline(retry_ns))
            }
            (other, _) => {
                self.alarm.clear();
                other
            }
        }
    }

    fn disarm(&mut self) -> bool {
        self.alarm.clear() | self.inner.disarm()
    }
}

impl<S: Store, C: Clock> Store for LastCopy<S, C> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn arena(&self) -> &Arena {
        self.inner.arena()
    }

    fn submit(&mut self, Request { tag, job }: Request) -> Result<(), Refused> {
        let asked = match &job {
            Job::Read { at, target } => Submitted::Read { at: *at, len: target.len() },
            Job::Write { at, source } => Submitted::Write { at: *at, source: source.clone() },
            Job::Discard { at, len } => Submitted::Discard { at: *at, len: *len },
            Job::Flush => Submitted::Flush,
        };
        let store_tag = self.record_submitted(tag, asked);
        self.inner.submit(Request { tag: store_tag, job }).map_err(|refused| {
            self.take_submitted(store_tag);
            match refused {
                Refused::Busy(request) => Refused::Busy(Request { tag, ..request }),
                Refused::Never { error, request } => Refused::Never { error, request: Request { tag, ..request } },
                other => other,
            }
        })
    }

    fn turn(&mut self) -> bool {
        let mut found = self.inner.turn();
        let mut came = std::mem::take(&mut self.arrived);
        found |= self.inner.poll(&mut came, POLL_MAX) > 0;
        came.drain(..).for_each(|finished| self.complete(finished));
        self.arrived = came;
        found |= self.sync();
        found | self.copy()
    }

    fn poll(&mut self, finished: &mut Vec<Finished>, max: usize) -> usize {
        let count = max.min(self.finished.len());
        finished.extend(self.finished.drain(..count));
        count
    }

    fn extent(&self, at: u64, len: u64) -> Extent {
        self.inner.extent(at, len)
    }

    fn status(&self) -> Status {
        match (self.inner.status(), &self.given_up) {
            (Status::Whole | Status::FewVoters(_), Some(why)) => {
                Status::Degraded(format!("the last copy is given up: {why}"))
            }
            (status, _) => status,
        }
    }
}
