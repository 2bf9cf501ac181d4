//! Requests that the store works on: how they are cut into parts, and how the parts are completed.

use std::collections::VecDeque;

use sinew_fabric::verbs::Slice;
use sinew_mem::{AllocError, Frozen, MessageBuffer};
use sinew_remote_memory::{Finished, Job as StoreJob, Refused, Request, Store, StoreError};

use super::budget::ConnectionId;
use crate::protocol::ErrorCode;

/// Bytes of a piece. Longer reads and writes are cut into pieces, so that their data stays in a processor's cache.
pub(super) const PIECE: usize = 256 << 10;
/// Bytes discarded at a time, so that the store can do other work in between.
const DISCARD_STEP: u64 = 16 << 20;
/// Part number of a flush that follows a request's pieces.
const FLUSH: u32 = u32::MAX;

/// The work that a request is for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobKind {
    /// Reads from `at` on. With `in_one`, the reply is sent only when all of its data has been read.
    Read { at: u64, len: u32, in_one: bool },
    /// Writes from `at` on.
    Write { at: u64, len: u32 },
    /// Zeroes the bytes up to `end`, by writing zeros or by discarding. Those before `next` are begun.
    ZeroRange { next: u64, end: u64, is_written: bool },
    /// Waits for earlier writes.
    Flush,
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct Job {
    pub owner: ConnectionId,
    pub cookie: u64,
    pub kind: JobKind,
    pub is_structured: bool,
    is_fua: bool,
    /// Parts that the store has not finished.
    left: u32,
    /// Whether more parts are to come.
    is_open: bool,
    error: Option<ErrorCode>,
    /// Pieces of a read that wait for the others.
    parts: Vec<Option<MessageBuffer>>,
}

/// Result of a part.
#[derive(Debug)]
pub(super) enum PartResult {
    /// Data of a read. The buffer still counts as claimed.
    Data {
        buffer: MessageBuffer,
        at: u64,
    },
    /// Claimed bytes of a read or a write that are free now.
    Freed(usize),
    Nothing,
}

/// All requests in progress.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    jobs: Vec<Job>,
    free: Vec<usize>,
    /// Parts that the store has not accepted yet.
    refused: VecDeque<Request>,
    /// Parts that the store refused, and that are not submitted again.
    failed: Vec<Finished>,
    /// Parts that the store has finished.
    pub finished: Vec<Finished>,
}

fn job_tag(job: usize, part: u32) -> u64 {
    job as u64 | u64::from(part) << 32
}

/// Bytes of piece `number` of a request of `len` bytes.
fn piece_len(len: u32, number: u32) -> usize {
    (len as usize - number as usize * PIECE).min(PIECE)
}

/// Fills `pieces`, which must be empty, with buffers for `len` bytes, the last piece first.
pub(super) fn fill_pieces(store: &impl Store, len: u32, pieces: &mut Vec<MessageBuffer>) -> Result<(), AllocError> {
    for number in (0..len.div_ceil(PIECE as u32)).rev() {
        let len = piece_len(len, number);
        let piece = store.arena().alloc(len, len).inspect_err(|_| pieces.clear())?;
        pieces.push(piece);
    }
    Ok(())
}

fn error_code(error: &StoreError) -> ErrorCode {
    match error {
        StoreError::Full { .. } => ErrorCode::NoSpace,
        _ => ErrorCode::Io,
    }
}

impl Jobs {
    /// Requests in progress.
    pub fn count(&self) -> usize {
        self.jobs.len() - self.free.len()
    }

    pub fn job(&self, job: usize) -> &Job {
        &self.jobs[job]
    }

    fn begin(&mut self, owner: ConnectionId, cookie: u64, kind: JobKind, is_structured: bool, is_fua: bool) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.jobs.push(Job {
                owner,
                cookie,
                kind,
                is_structured,
                is_fua,
                left: 0,
                is_open: false,
                error: None,
                parts: Vec::new(),
            });
            self.jobs.len() - 1
        });
        let job = &mut self.jobs[index];
        (job.owner, job.cookie, job.kind, job.is_structured, job.is_fua) = (owner, cookie, kind, is_structured, is_fua);
        (job.left, job.is_open, job.error) = (0, false, None);
        index
    }

    fn submit(&mut self, store: &mut impl Store, job: usize, part: u32, job_for_store: StoreJob) {
        self.jobs[job].left += 1;
        self.submit_or_hold(store, Request { tag: job_tag(job, part), job: job_for_store });
    }

    fn submit_or_hold(&mut self, store: &mut impl Store, request: Request) {
        if !self.refused.is_empty() {
            return self.refused.push_back(request);
        }
        match store.submit(request) {
            Ok(()) => {}
            Err(Refused::Busy(request)) => self.refused.push_back(request),
            Err(Refused::Never { error, request }) => self.fail(error, request),
            Err(_) => unreachable!("a store refuses in no other way"),
        }
    }

    fn fail(&mut self, error: StoreError, Request { tag, job }: Request) {
        let target = if let StoreJob::Read { target, .. } = job { Some(target) } else { None };
        self.failed.push(Finished { tag, result: Err(error), target });
    }

    /// Submits parts for which the store had no room. Returns whether it accepted any.
    pub fn retry(&mut self, store: &mut impl Store) -> bool {
        let mut has_submitted = false;
        while let Some(request) = self.refused.pop_front() {
            match store.submit(request) {
                Ok(()) => has_submitted = true,
                Err(Refused::Busy(request)) => {
                    self.refused.push_front(request);
                    break;
                }
                Err(Refused::Never { error, request }) => self.fail(error, request),
                Err(_) => unreachable!("a store refuses in no other way"),
            }
        }
        has_submitted
    }

    /// Moves finished parts to `finished`. Returns whether there are any.
    pub fn poll(&mut self, store: &mut impl Store, max: usize) -> bool {
        store.poll(&mut self.finished, max);
        self.finished.append(&mut self.failed);
        !self.finished.is_empty()
    }

    /// Begins a read into `pieces`, which it empties.
    pub fn read(
        &mut self,
        store: &mut impl Store,
        owner: ConnectionId,
        cookie: u64,
        (at, len, in_one): (u64, u32, bool),
        is_structured: bool,
        pieces: &mut Vec<MessageBuffer>,
    ) {
        let in_one = in_one && pieces.len() > 1;
        let job = self.begin(owner, cookie, JobKind::Read { at, len, in_one }, is_structured, false);
        if in_one {
            self.jobs[job].parts.resize_with(pieces.len(), || None);
        }
        let mut number = 0;
        while let Some(target) = pieces.pop() {
            self.submit(store, job, number, StoreJob::Read { at: at + number as u64 * PIECE as u64, target });
            number += 1;
        }
    }

    /// Begins a write, whose pieces follow.
    pub fn write(
        &mut self,
        owner: ConnectionId,
        cookie: u64,
        at: u64,
        len: u32,
        is_fua: bool,
        is_structured: bool,
    ) -> usize {
        let job = self.begin(owner, cookie, JobKind::Write { at, len }, is_structured, is_fua);
        self.jobs[job].is_open = true;
        job
    }

    /// Writes one piece, perhaps the last.
    pub fn write_piece(
        &mut self,
        store: &mut impl Store,
        job: usize,
        number: u32,
        piece: MessageBuffer,
        is_last: bool,
    ) {
        let JobKind::Write { at, .. } = self.jobs[job].kind else { return };
        let at = at + number as u64 * PIECE as u64;
        self.submit(store, job, number, StoreJob::Write { at, source: Slice::from(piece.freeze()) });
        if is_last {
            self.jobs[job].is_open = false;
            self.flush_if_fua(store, job);
        }
    }

    /// Flushes the store after the job, if the client asked for that.
    fn flush_if_fua(&mut self, store: &mut impl Store, job: usize) {
        if self.jobs[job].is_fua {
            self.submit(store, job, FLUSH, StoreJob::Flush);
        }
    }

    /// Ends a write whose last pieces will not come.
    pub fn abandon(&mut self, job: usize) {
        self.jobs[job].is_open = false;
        self.jobs[job].is_fua = false;
        if self.jobs[job].left == 0 {
            self.free.push(job);
        }
    }

    /// Begins a flush.
    pub fn flush(&mut self, store: &mut impl Store, owner: ConnectionId, cookie: u64, is_structured: bool) {
        let job = self.begin(owner, cookie, JobKind::Flush, is_structured, false);
        self.submit(store, job, 0, StoreJob::Flush);
    }

    /// Begins to zero bytes, one step after the other.
    pub fn zero_range(
        &mut self,
        (store, zeros): (&mut impl Store, &Frozen),
        owner: ConnectionId,
        cookie: u64,
        (next, len, is_written): (u64, u32, bool),
        is_fua: bool,
        is_structured: bool,
    ) {
        let end = next + u64::from(len);
        let job = self.begin(owner, cookie, JobKind::ZeroRange { next, end, is_written }, is_structured, is_fua);
        self.step(store, zeros, job);
    }

    fn step(&mut self, store: &mut impl Store, zeros: &Frozen, job: usize) {
        let JobKind::ZeroRange { next: at, end, is_written } = self.jobs[job].kind else { return };
        let len = (end - at).min(if is_written { zeros.len() as u64 } else { DISCARD_STEP });
        let next = at + len;
        self.jobs[job].kind = JobKind::ZeroRange { next, end, is_written };
        self.jobs[job].is_open = next < end;
        let store_job = match is_written {
            true => StoreJob::Write { at, source: Slice { buffer: zeros.clone(), start: 0, len: len as usize } },
            false => StoreJob::Discard { at, len },
        };
        self.submit(store, job, 0, store_job);
        if next == end {
            self.flush_if_fua(store, job);
        }
    }

    /// Takes a finished part. Returns its job and its result.
    pub fn complete_part(&mut self, store: &mut impl Store, zeros: &Frozen, finished: Finished) -> (usize, PartResult) {
        let (index, part) = ((finished.tag & u64::from(u32::MAX)) as usize, (finished.tag >> 32) as u32);
        let job = &mut self.jobs[index];
        job.left -= 1;
        if let Err(error) = &finished.result {
            job.error.get_or_insert(error_code(error));
        }
        let result = match job.kind {
            _ if part == FLUSH => PartResult::Nothing,
            JobKind::Read { at, len, in_one } => match finished.target {
                Some(buffer) if finished.result.is_ok() && in_one => {
                    job.parts[part as usize] = Some(buffer);
                    PartResult::Nothing
                }
                Some(buffer) if finished.result.is_ok() => {
                    PartResult::Data { buffer, at: at + part as u64 * PIECE as u64 }
                }
                _ => PartResult::Freed(super::budget::claim_of(piece_len(len, part))),
            },
            JobKind::Write { len, .. } => PartResult::Freed(super::budget::claim_of(piece_len(len, part))),
            JobKind::ZeroRange { .. } => {
                if job.is_open && job.error.is_none() {
                    self.step(store, zeros, index);
                } else {
                    job.is_open = false;
                }
                PartResult::Nothing
            }
            JobKind::Flush => PartResult::Nothing,
        };
        (index, result)
    }

    /// Result of a job, once it has ended.
    pub fn result(&self, job: usize) -> Option<Result<(), ErrorCode>> {
        let job = &self.jobs[job];
        (job.left == 0 && !job.is_open).then(|| job.error.map_or(Ok(()), Err))
    }

    /// Takes the pieces of a read that waited for each other, in order.
    pub fn parts(&mut self, job: usize) -> impl Iterator<Item = MessageBuffer> + '_ {
        self.jobs[job].parts.drain(..).flatten()
    }

    /// Frees the place of a finished job.
    pub fn free_job(&mut self, job: usize) {
        self.jobs[job].parts.clear();
        self.free.push(job);
    }
}
