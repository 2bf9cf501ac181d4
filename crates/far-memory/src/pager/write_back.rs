//! Write-back of changed pages to the store.
//!
//! When there are more changed pages than a high mark, some are written in the background until a low mark is reached.
//! A clock hand passes over the frames and takes those that were not changed since it last passed, each with its
//! changed neighbours, so that the engine can merge them into one operation. A page is not copied for this: the store
//! has a share of its buffer, and the page gets another buffer only if it is changed meanwhile. The page is clean once
//! the write has succeeded, and dirty again if it failed.

use sinew_fabric::verbs::Slice;
use sinew_remote_memory::{Job, Refused, Request, Store, StoreError};

use super::{Pager, WRITE};
use crate::error::FarError;
use crate::frame::Buffer;
use crate::options::PAGE;

/// Neighbouring pages written together, at most.
const RUN_MAX: u64 = 16;

impl<S: Store> Pager<S> {
    /// The bytes of a local page, to be changed.
    #[inline]
    pub fn bytes_mut(&mut self, at: u32) -> Result<&mut [u8], FarError> {
        if !self.frames[at as usize].is_dirty {
            // Called before the page itself is dirty: its share, once with the store, must not change.
            self.clean_and_poll();
        }
        if !matches!(self.frames[at as usize].buffer, Buffer::Unshared(_)) {
            self.make_writable(at)?;
        }
        self.mark_changed(at);
        let frame = &mut self.frames[at as usize];
        match &mut frame.buffer {
            Buffer::Unshared(buffer) => Ok(buffer),
            _ => Err(FarError::Borrowed { page: frame.page }),
        }
    }

    /// Makes the buffer of a local page unshared. The bytes of a page that is being written are copied.
    pub(super) fn make_writable(&mut self, at: u32) -> Result<(), FarError> {
        loop {
            let frame = &mut self.frames[at as usize];
            if frame.buffer.unshare() {
                return Ok(());
            }
            // Bytes held by a guard, even a forgotten one, do not change.
            let (false, Some(bytes)) = (frame.pins > 0, frame.buffer.bytes()) else {
                return Err(FarError::Borrowed { page: frame.page });
            };
            match Buffer::alloc(self.store.arena()) {
                Ok(mut copy) => {
                    copy.copy_from_slice(bytes);
                    frame.buffer = Buffer::Unshared(copy);
                    return Ok(());
                }
                Err(_) if frame.is_writing => self.wait()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Marks a page as changed.
    #[inline]
    pub(super) fn mark_changed(&mut self, at: u32) {
        let frame = &mut self.frames[at as usize];
        frame.is_hot = true;
        self.stats.dirty += usize::from(!std::mem::replace(&mut frame.is_dirty, true));
    }

    /// Writes some pages back if too many are changed, and takes the results of earlier writes.
    pub(super) fn clean_and_poll(&mut self) {
        if self.clean_some() {
            self.turn();
        }
    }

    /// Begins to write some pages back if too many are changed. Returns whether it has.
    pub(super) fn clean_some(&mut self) -> bool {
        let untried = self.stats.dirty - self.failed.min(self.stats.dirty);
        if untried <= self.options.dirty_high || self.writing >= self.options.writes_max {
            return false;
        }
        let count = (untried - self.options.dirty_low).min(self.options.writes_max - self.writing);
        self.clean(count, false) > 0
    }

    /// Begins to write about `count` pages. If urgent, these include pages changed a moment ago and pages whose last
    /// write failed. Returns the number of pages.
    pub(super) fn clean(&mut self, count: usize, is_urgent: bool) -> usize {
        let mut begun = 0;
        for _ in 0..2 * self.frames.len() {
            if begun >= count {
                break;
            }
            let at = self.clean_cursor;
            self.clean_cursor = if at + 1 == self.frames.len() { 0 } else { at + 1 };
            let frame = &mut self.frames[at];
            let is_hot = std::mem::take(&mut frame.is_hot);
            if !frame.can_be_written() || !is_urgent && (is_hot || frame.has_failed) {
                continue;
            }
            let page = frame.page;
            match self.clean_around(page, is_urgent) {
                0 => break,
                more => begun += more,
            }
        }
        begun
    }

    /// Begins to write a page and those of its neighbours that can be written; pages whose last write failed are
    /// included if `retries`. Returns the number of pages.
    fn clean_around(&mut self, page: u64, retries: bool) -> usize {
        let is_dirty = |page: u64| {
            let frame = (page < self.pages()).then(|| self.table.frame(page)).flatten();
            let frame = frame.map(|frame| &self.frames[frame as usize]);
            frame.is_some_and(|frame| frame.can_be_written() && (retries || !frame.has_failed))
        };
        let below = (1..RUN_MAX).take_while(|by| page >= *by && is_dirty(page - by)).count() as u64;
        let above = (1..RUN_MAX - below).take_while(|by| is_dirty(page + by)).count() as u64;
        let mut begun = 0;
        for page in page - below..=page + above {
            let frame = self.table.frame(page);
            if !frame.is_some_and(|frame| self.begin_write(frame)) {
                break;
            }
            begun += 1;
        }
        begun
    }

    /// Begins to write a page that can be written. False when the store has no room for the request now.
    fn begin_write(&mut self, at: u32) -> bool {
        let frame = &mut self.frames[at as usize];
        let Some(share) = frame.buffer.share() else { return false };
        let job = Job::Write { at: frame.page * PAGE as u64, source: Slice::from(share) };
        let result = self.store.submit(Request { tag: WRITE | u64::from(at), job });
        if matches!(result, Err(Refused::Busy(_))) {
            return false;
        }
        frame.is_dirty = false;
        self.stats.dirty -= 1;
        frame.is_writing = true;
        self.failed -= usize::from(std::mem::take(&mut frame.has_failed));
        self.writing += 1;
        if let Err(Refused::Never { error, .. }) = result {
            self.on_written(at, Err(error));
        }
        true
    }

    pub(super) fn on_written(&mut self, at: u32, result: Result<(), StoreError>) {
        self.writing -= 1;
        let frame = &mut self.frames[at as usize];
        frame.is_writing = false;
        match result {
            Ok(()) => self.stats.written += 1,
            Err(error) => {
                self.stats.writes_failed += 1;
                self.stats.dirty += usize::from(!std::mem::replace(&mut frame.is_dirty, true));
                self.failed += usize::from(!std::mem::replace(&mut frame.has_failed, true));
                self.write_error = Some((frame.page, error));
            }
        }
    }

    /// Takes the last write error, if it was not reported yet.
    pub fn write_failure(&mut self) -> Option<FarError> {
        let (page, source) = self.write_error.take()?;
        Some(FarError::WriteBack { page, pages: self.failed, source })
    }

    /// Writes every changed page, and has the store confirm that they have reached all their destinations.
    ///
    /// # Errors
    ///
    /// As for [`FarMemory::flush`](crate::FarMemory::flush). Pages that were not written stay local and changed.
    pub fn flush(&mut self) -> Result<(), FarError> {
        // Writes in flight may hold old bytes of pages changed since.
        while self.writing > 0 {
            self.wait()?;
        }
        self.write_error = None;
        let mut borrowed = None;
        for at in 0..self.frames.len() {
            loop {
                // After one page has failed, failed pages are not retried.
                let retries = self.write_error.is_none();
                let frame = &self.frames[at];
                if !frame.can_be_written() || !retries && frame.has_failed {
                    break;
                }
                let page = frame.page;
                if self.clean_around(page, retries) == 0 || self.writing >= self.options.writes_max {
                    self.wait()?;
                }
            }
            let frame = &self.frames[at];
            if frame.pins > 0 && matches!(frame.buffer, Buffer::LentOut) {
                borrowed = Some(frame.page);
            }
        }
        while self.writing > 0 {
            self.wait()?;
        }
        if let Some(error) = self.write_failure() {
            return Err(error);
        }
        if let Some(page) = borrowed {
            return Err(FarError::Borrowed { page });
        }
        self.submit_and_wait(Job::Flush)?.map_err(FarError::Unconfirmed)
    }
}
