//! Write-back of a mapping's changed pages to the store, in the background and by flushes.

use sinew_fabric::verbs::Slice;
use sinew_remote_memory::{Job, Refused, Request, Store, StoreError};

use super::{FLUSH_TAG, Handler, InFlight, RUN_MAX, system};
use crate::error::FarError;
use crate::options::PAGE;

/// A flush in progress: it passes over all frames once, and waits for the writes that it and others have sent.
#[derive(Debug, Default)]
pub struct Flush {
    /// Number of the last flush request that it answers; 0: no flush is in progress.
    covers_up_to: u64,
    /// The next frame to look at.
    at: usize,
    /// `Stats::writes_failed` when the flush began.
    failures: u64,
    /// Error of the last write that failed since.
    error: Option<FarError>,
    /// Whether the writes that were in flight when the flush was requested have finished.
    has_begun: bool,
    /// Whether the store was asked to confirm.
    is_confirming: bool,
}

impl<S: Store> Handler<S> {
    pub(super) fn mark_changed(&mut self, at: u32) {
        let frame = &mut self.frames[at as usize];
        frame.is_hot = true;
        self.stats.dirty += usize::from(!std::mem::replace(&mut frame.is_dirty, true));
    }

    fn can_be_written(&self, page: u64, is_again: bool) -> bool {
        let frame = (page < self.area.pages()).then(|| self.table.frame(page)).flatten();
        let frame = frame.map(|frame| &self.frames[frame as usize]);
        frame.is_some_and(|frame| frame.is_dirty && !frame.is_writing && (is_again || !frame.has_failed))
    }

    /// Begins to write some pages back, if too many are changed or room is wanted. Returns whether it has.
    pub(super) fn clean(&mut self, is_urgent: bool) -> Result<bool, FarError> {
        let untried = self.stats.dirty.saturating_sub(if is_urgent { 0 } else { self.failed });
        let low = if is_urgent { 0 } else { self.options.dirty_low };
        if untried == 0 || !is_urgent && untried <= self.options.dirty_high {
            return Ok(false);
        }
        let (mut begun, wanted) = (0, untried - low.min(untried));
        for _ in 0..2 * self.frames.len() {
            if begun >= wanted || self.writing >= self.options.writes_max {
                break;
            }
            let at = self.clean_cursor;
            self.clean_cursor = if at + 1 == self.frames.len() { 0 } else { at + 1 };
            let is_hot = std::mem::take(&mut self.frames[at].is_hot);
            let page = self.frames[at].page;
            if is_hot && !is_urgent || !self.can_be_written(page, is_urgent) {
                continue;
            }
            match self.write_around(page, is_urgent)? {
                0 => break,
                more => begun += more,
            }
        }
        Ok(begun > 0)
    }

    /// Writes a changed page with its changed neighbours by one request. Returns the number of pages, or 0 if there is
    /// no room for the request.
    fn write_around(&mut self, page: u64, retries: bool) -> Result<usize, FarError> {
        let Some(tag) = self.unsent.last().copied() else { return Ok(0) };
        let run_max = RUN_MAX.min(self.options.writes_max.saturating_sub(self.writing).max(1)) as u64;
        let below = (1..run_max).take_while(|by| page >= *by && self.can_be_written(page - by, retries)).count() as u64;
        let above = (1..run_max - below).take_while(|by| self.can_be_written(page + by, retries)).count() as u64;
        let (first, count) = (page - below, (below + above + 1) as usize);
        let Ok(mut bytes) = self.store.arena().alloc(count * PAGE, count * PAGE) else { return Ok(0) };
        self.area.uffd().protect(self.area.address(first), count * PAGE).map_err(system)?;
        // SAFETY: the pages are present, since they are changed, and from now on they stay protected from writes until
        // this thread unprotects them.
        unsafe { self.area.copy_out(first, &mut bytes) };
        let bytes = bytes.freeze();
        let job = Job::Write { at: first * PAGE as u64, source: Slice::from(bytes.clone()) };
        let result = self.store.submit(Request { tag: u64::from(tag), job });
        if matches!(result, Err(Refused::Busy(_))) {
            // The pages stay changed and protected. A thread that stores to one faults first, which is harmless.
            return Ok(0);
        }
        let sent = InFlight { page: first, count, bytes: Some(bytes) };
        for page in first..first + count as u64 {
            let Some(frame) = self.table.frame(page) else { continue };
            let frame = &mut self.frames[frame as usize];
            (frame.is_dirty, frame.is_writing) = (false, true);
            self.failed -= usize::from(std::mem::take(&mut frame.has_failed));
        }
        self.stats.dirty -= count;
        self.writing += count;
        if let Err(Refused::Never { error, .. }) = result {
            self.on_written(&sent, Err(error));
            return Ok(count);
        }
        self.unsent.pop();
        self.sent[tag as usize] = Some(sent);
        Ok(count)
    }

    pub(super) fn on_written(&mut self, sent: &InFlight, result: Result<(), StoreError>) {
        self.writing -= sent.count;
        for page in sent.page..sent.page + sent.count as u64 {
            let Some(at) = self.table.frame(page) else { continue };
            let frame = &mut self.frames[at as usize];
            frame.is_writing = false;
            if result.is_err() {
                self.failed += usize::from(!std::mem::replace(&mut frame.has_failed, true));
                self.stats.dirty += usize::from(!std::mem::replace(&mut frame.is_dirty, true));
            }
        }
        match result {
            Ok(()) => self.stats.written += sent.count as u64,
            Err(source) => {
                self.stats.writes_failed += sent.count as u64;
                let failure = Some(FarError::WriteBack { page: sent.page, pages: self.failed, source });
                if self.is_flushing() { self.flush.error = failure } else { self.failure = failure }
            }
        }
    }

    /// Begins a flush if one was requested and none is in progress.
    pub(super) fn begin_flush(&mut self, requested: u64, finished: u64) {
        if self.flush.covers_up_to == 0 && requested > finished {
            self.flush = Flush { covers_up_to: requested, ..Flush::default() };
        }
    }

    pub(super) fn is_flushing(&self) -> bool {
        self.flush.covers_up_to != 0
    }

    /// Continues a flush. Returns whether it made progress.
    pub(super) fn continue_flush(&mut self) -> Result<bool, FarError> {
        if !self.is_flushing() || self.flush.is_confirming {
            return Ok(false);
        }
        if !self.flush.has_begun {
            // Earlier writes that fail are retried, and do not count as failures of the flush.
            if self.writing > 0 {
                return Ok(false);
            }
            self.flush = Flush {
                covers_up_to: self.flush.covers_up_to,
                failures: self.stats.writes_failed,
                has_begun: true,
                ..Flush::default()
            };
        }
        let mut moved = false;
        while let Some(frame) = self.frames.get(self.flush.at) {
            // A write in flight may be older than the flush.
            if frame.is_writing {
                return Ok(moved);
            }
            let is_again = self.stats.writes_failed == self.flush.failures;
            if self.can_be_written(frame.page, is_again) {
                let page = frame.page;
                if self.writing >= self.options.writes_max || self.write_around(page, is_again)? == 0 {
                    return Ok(moved);
                }
            }
            self.flush.at += 1;
            moved = true;
        }
        if self.writing > 0 {
            return Ok(moved);
        }
        if self.stats.writes_failed != self.flush.failures {
            let error = self.flush.error.take();
            self.end_flush(error);
            return Ok(true);
        }
        match self.store.submit(Request { tag: FLUSH_TAG, job: Job::Flush }) {
            Ok(()) => self.flush.is_confirming = true,
            Err(Refused::Never { error, .. }) => self.end_flush(Some(FarError::Unconfirmed(error))),
            Err(_) => return Ok(moved),
        }
        Ok(true)
    }

    pub(super) fn on_flush_confirmed(&mut self, result: Result<(), StoreError>) {
        self.end_flush(result.err().map(FarError::Unconfirmed));
    }

    /// Abandons a flush in progress. Threads that wait for it are told that the handler has stopped.
    pub(super) fn fail_flush(&mut self) {
        self.flush = Flush::default();
    }

    fn end_flush(&mut self, error: Option<FarError>) {
        if !self.is_flushing() {
            return;
        }
        let mut requests = self.area.lock_requests();
        requests.flushes.1 = requests.flushes.1.max(self.flush.covers_up_to);
        requests.result = error;
        drop(requests);
        self.flush.covers_up_to = 0;
        self.area.notify_done();
    }
}
