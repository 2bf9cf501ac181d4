//! A file of this host as one more copy of a store: what no donor has any more is read from it.
//!
//! The file is the store's bytes, as any tool reads them, and a trailer of 4 KB that says whose they are. A change goes to the file when the store has done it, and
//! before its caller is told. It is the system's to bring it to the disk, which nobody waits for: what a loss of power takes from the file is with the donors. When
//! it is opened, the file may be older than the store, so all of it is copied anew in the background, and of what is not copied yet nothing is read.

mod chunks;
mod file;

use std::collections::VecDeque;
use std::io;

use sinew_fabric::verbs::Slice;
use sinew_fabric::{Armed, Descriptor, Readiness};
use sinew_mem::Arena;
use sinew_remote_memory::{Extent, Finished, Job, Refused, Request, Status, Store, StoreError};

use chunks::Chunks;
pub use file::{LastCopyError, LastCopyFile};

/// Reads of what is copied to the file that are under way at once.
const COPYING_MAX: usize = 2;
/// What is taken of the store at once.
const POLL_MAX: usize = 256;

/// What a request was.
#[derive(Debug)]
enum Asked {
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
    /// A chunk that goes to the file. Nobody asked for it.
    Copy {
        chunk: usize,
    },
}

/// What it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastCopyStats {
    /// Reads that the store could not answer, and the file did.
    pub reads: u64,
    /// Bytes that were copied to the file in the background.
    pub copied_bytes: u64,
}

/// A store with a last copy; see [the module](self).
///
/// A read that the store has lost ([`StoreError::Lost`], [`StoreError::Unavailable`]) is answered from the file. One that the store refuses since another writer has
/// taken it over ([`StoreError::Fenced`]) is not. A host that is cut off from all donors reads what it wrote itself, whoever may have taken the store over there:
/// it cannot know. Changes need the store: without it they fail as before. A file that fails is given up, and the store goes on without.
#[derive(Debug)]
pub struct LastCopy<S> {
    inner: S,
    file: Option<LastCopyFile>,
    /// Why there is none any more.
    given_up: Option<String>,
    chunks: Chunks,
    asked: Vec<Option<(u64, Asked)>>,
    free: Vec<usize>,
    /// Chunks that are on their way to the file.
    copying: usize,
    came: Vec<Finished>,
    finished: VecDeque<Finished>,
    stats: LastCopyStats,
}

impl<S: Store> LastCopy<S> {
    /// Adds a file to a store, whose it is.
    ///
    /// # Panics
    ///
    /// When the file is of another length.
    pub fn new(inner: S, file: LastCopyFile) -> Self {
        assert_eq!(file.len(), inner.len(), "the file was opened for a store of this length");
        Self {
            chunks: Chunks::new(inner.len()),
            file: Some(file),
            given_up: None,
            asked: Vec::new(),
            free: Vec::new(),
            copying: 0,
            came: Vec::new(),
            finished: VecDeque::new(),
            stats: LastCopyStats::default(),
            inner,
        }
    }

    /// The store below.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// The store below. What is submitted to it there, the file does not have.
    pub fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The store below, without the file, which is made to last.
    ///
    /// # Errors
    ///
    /// What the system says; then the file may not have all.
    pub fn into_inner(self) -> (S, io::Result<()>) {
        (self.inner, self.file.map_or(Ok(()), |file| file.sync()))
    }

    /// What it did.
    pub fn stats(&self) -> LastCopyStats {
        self.stats
    }

    /// Whether the file has all that the store has.
    pub fn is_complete(&self) -> bool {
        self.file.is_some() && self.chunks.are_all_copied()
    }

    /// Why the file is not used any more, if so.
    pub fn given_up(&self) -> Option<&str> {
        self.given_up.as_deref()
    }

    fn note(&mut self, tag: u64, asked: Asked) -> u64 {
        let name = self.free.pop().unwrap_or_else(|| {
            self.asked.push(None);
            self.asked.len() - 1
        });
        self.asked[name] = Some((tag, asked));
        name as u64
    }

    fn forget(&mut self, name: u64) -> Option<(u64, Asked)> {
        let asked = self.asked.get_mut(name as usize)?.take()?;
        self.free.push(name as usize);
        Some(asked)
    }

    /// Does something with the file, if it is there still.
    fn with_file<T>(&mut self, what: impl FnOnce(&LastCopyFile) -> io::Result<T>) -> Option<T> {
        let file = self.file.as_ref()?;
        match what(file) {
            Ok(value) => Some(value),
            Err(error) => {
                self.given_up = Some(format!("{}: {error}", file.path().display()));
                self.file = None;
                None
            }
        }
    }

    /// Begins to copy what the file lacks. Returns whether there was anything to begin.
    fn copy(&mut self) -> bool {
        let mut any = false;
        while self.file.is_some() && self.copying < COPYING_MAX {
            let Some(chunk) = self.chunks.next_missing() else { break };
            let range = self.chunks.range(chunk);
            let len = (range.end - range.start) as usize;
            let Ok(target) = self.inner.arena().alloc(len, len) else {
                self.chunks.put_back(chunk);
                break;
            };
            let tag = self.note(0, Asked::Copy { chunk });
            match self.inner.submit(Request { tag, job: Job::Read { at: range.start, target } }) {
                Ok(()) => {
                    self.copying += 1;
                    any = true;
                }
                Err(_) => {
                    self.forget(tag);
                    self.chunks.put_back(chunk);
                    break;
                }
            }
        }
        any
    }

    fn copied(&mut self, chunk: usize, finished: &Finished) {
        self.copying -= 1;
        let range = self.chunks.range(chunk);
        let (Ok(()), Some(bytes)) = (&finished.result, &finished.target) else { return self.chunks.fail(chunk) };
        let (at, is_zero) = (range.start, bytes.iter().all(|byte| *byte == 0));
        let written = self.with_file(|file| match is_zero {
            true => file.clear(at, bytes.len() as u64),
            false => file.write(at, bytes),
        });
        if written.is_none() {
            return;
        }
        self.stats.copied_bytes += range.end - range.start;
        if self.chunks.copied(chunk) {
            self.with_file(LastCopyFile::note_complete);
        }
    }

    /// Does to the file what the store has done, or has the file do what the store could not.
    fn take(&mut self, mut finished: Finished) {
        let Some((tag, asked)) = self.forget(finished.tag) else { return };
        finished.tag = tag;
        match asked {
            Asked::Copy { chunk } => return self.copied(chunk, &finished),
            Asked::Flush => {}
            Asked::Read { at, len } => match finished.result {
                Ok(()) => self.chunks.answers(at, len as u64),
                Err(StoreError::Lost { .. } | StoreError::Unavailable(_)) => self.read(at, len, &mut finished),
                Err(_) => {}
            },
            Asked::Write { at, source } => {
                let len = source.len as u64;
                if finished.result.is_err() {
                    self.chunks.doubt(at, len);
                } else if self.chunks.touches_copied(at, len) {
                    self.with_file(|file| file.write(at, source.bytes()));
                }
            }
            Asked::Discard { at, len } => {
                if finished.result.is_err() {
                    self.chunks.doubt(at, len);
                } else if self.chunks.touches_copied(at, len) {
                    self.with_file(|file| file.clear(at, len));
                }
            }
        }
        self.finished.push_back(finished);
    }

    fn read(&mut self, at: u64, len: usize, finished: &mut Finished) {
        if !self.chunks.has(at, len as u64) {
            return;
        }
        // A store may lose the buffer with the operation that failed.
        let target = finished.target.take().or_else(|| self.inner.arena().alloc(len, len).ok());
        let Some(mut target) = target else { return };
        if self.with_file(|file| file.read(at, &mut target)).is_some() {
            finished.result = Ok(());
            self.stats.reads += 1;
        }
        finished.target = Some(target);
    }
}

impl<S: Store> Readiness for LastCopy<S> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.inner.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        if self.finished.is_empty() { self.inner.arm(now_ns) } else { Ok(Armed::Ready) }
    }

    fn disarm(&mut self) -> bool {
        self.inner.disarm()
    }
}

impl<S: Store> Store for LastCopy<S> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn arena(&self) -> &Arena {
        self.inner.arena()
    }

    fn submit(&mut self, Request { tag, job }: Request) -> Result<(), Refused> {
        let asked = match &job {
            Job::Read { at, target } => Asked::Read { at: *at, len: target.len() },
            Job::Write { at, source } => Asked::Write { at: *at, source: source.clone() },
            Job::Discard { at, len } => Asked::Discard { at: *at, len: *len },
            Job::Flush => Asked::Flush,
        };
        let name = self.note(tag, asked);
        self.inner.submit(Request { tag: name, job }).map_err(|refused| {
            self.forget(name);
            match refused {
                Refused::Busy(request) => Refused::Busy(Request { tag, ..request }),
                Refused::Never { error, request } => Refused::Never { error, request: Request { tag, ..request } },
                other => other,
            }
        })
    }

    fn turn(&mut self) -> bool {
        let mut found = self.inner.turn();
        let mut came = std::mem::take(&mut self.came);
        found |= self.inner.poll(&mut came, POLL_MAX) > 0;
        came.drain(..).for_each(|finished| self.take(finished));
        self.came = came;
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
            (Status::Whole, Some(why)) => Status::Degraded(format!("the last copy is given up: {why}")),
            (status, _) => status,
        }
    }
}
