//! Pages of a store in a bounded number of local frames: lookup, fetching and eviction.
//!
//! Everything here is ordinary code of one thread. A missing page is requested from the store, together with those
//! fetched ahead of a sequential reader, and waited for. A frame's buffer moves into the store's read and comes back
//! with the page in it, so nothing is copied.
//!
//! [`write_back`] holds the other direction.

mod write_back;

use sinew_fabric::{Armed, Clock};
use sinew_mem::MessageBuffer;
use sinew_remote_memory::{Finished, Job, Refused, Request, Store, StoreError};

use crate::ahead::{AheadWindow, Streams};
use crate::error::FarError;
use crate::frame::{Buffer, Frame, NO_PAGE};
use crate::options::{Options, PAGE, Stats};
use crate::policy::Policy;
use crate::table::Table;

/// Idle turns before the thread goes to sleep.
const TURNS_BEFORE_SLEEP: u32 = 4096;
/// Finished requests taken at a time.
const POLL_MAX: usize = 64;
/// Tag of a request: its kind, and the frame in the low 32 bits.
const READ: u64 = 0;
const WRITE: u64 = 1 << 32;
const FLUSH_OR_DISCARD: u64 = 2 << 32;

/// Pages of a store in local frames.
pub struct Pager<S> {
    store: S,
    clock: Box<dyn Clock>,
    pub(crate) options: Options,
    table: Table,
    frames: Vec<Frame>,
    policy: Policy,
    streams: Streams,
    /// Frames without pages.
    free: Vec<u32>,
    finished: Vec<Finished>,
    /// The page that was used last, and its frame.
    last_used: (u64, u32),
    /// Pages being written.
    writing: usize,
    /// Pages being fetched.
    reading: usize,
    /// Dirty pages whose last write failed.
    failed: usize,
    /// Frame at which the background writer continues.
    clean_cursor: usize,
    /// The page that is waited for, and the error if its fetch failed.
    awaited: (u64, Option<StoreError>),
    /// The last write error not yet reported, and its page.
    write_error: Option<(u64, StoreError)>,
    /// Result of the flush or discard that is waited for.
    control_result: Option<Result<(), StoreError>>,
    stats: Stats,
}

impl<S: Store> Pager<S> {
    /// A pager over all whole pages of a store. `clock` is read when the thread sleeps.
    pub fn new(store: S, options: Options, clock: Box<dyn Clock>) -> Result<Self, FarError> {
        options.check()?;
        let frames = (0..options.local_pages).map(|_| Buffer::alloc(store.arena()).map(Frame::new));
        let frames = frames.collect::<Result<Vec<_>, _>>()?;
        let pages = usize::try_from(store.len() / PAGE as u64)
            .map_err(|_| FarError::Options("a store of more pages than this machine can count".into()))?;
        Ok(Self {
            clock,
            table: Table::new(pages, options.local_pages as u32),
            policy: Policy::new(frames.len(), 2 * options.ahead_pages),
            streams: Streams::new(options.ahead_pages),
            free: (0..frames.len() as u32).rev().collect(),
            frames,
            finished: Vec::with_capacity(POLL_MAX),
            last_used: (NO_PAGE, 0),
            writing: 0,
            reading: 0,
            failed: 0,
            clean_cursor: 0,
            awaited: (NO_PAGE, None),
            write_error: None,
            control_result: None,
            stats: Stats::default(),
            options,
            store,
        })
    }

    /// Number of pages in the store.
    pub fn pages(&self) -> u64 {
        self.table.pages()
    }

    /// Counts of operations, and of pages that are local now.
    pub fn stats(&self) -> Stats {
        Stats { local: self.frames.len() - self.free.len() - self.reading, ..self.stats }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the store, once no request is in flight.
    pub fn into_store(mut self) -> Result<S, FarError> {
        while self.reading + self.writing > 0 {
            self.wait()?;
        }
        Ok(self.store)
    }

    /// Whether a page is local.
    pub fn is_local(&self, page: u64) -> bool {
        page < self.pages() && self.table.frame(page).is_some_and(|frame| !self.frames[frame as usize].is_reading)
    }

    /// Makes a page local, and counts this as a use. Returns its frame.
    #[inline]
    pub fn get(&mut self, page: u64) -> Result<u32, FarError> {
        if self.last_used.0 == page { Ok(self.last_used.1) } else { self.find(page) }
    }

    /// The bytes of a frame.
    #[inline]
    pub fn bytes(&self, frame: u32) -> Result<&[u8], FarError> {
        let frame = &self.frames[frame as usize];
        // `ok_or` would construct the error first, and drop it.
        let Some(bytes) = frame.buffer.bytes() else { return Err(FarError::Borrowed { page: frame.page }) };
        Ok(bytes)
    }

    fn find(&mut self, page: u64) -> Result<u32, FarError> {
        match self.table.frame(page) {
            Some(frame) if !self.frames[frame as usize].is_reading => {}
            Some(_) => {
                self.stats.waited += 1;
                self.wait_for(page)?;
            }
            None => self.fetch(page)?,
        }
        // The page is local: the wait ended with it there, and nothing was fetched since.
        let Some(frame) = self.table.frame(page) else { return Err(self.evicted_before_use(page)) };
        self.note_use(page, frame);
        Ok(frame)
    }

    fn evicted_before_use(&self, page: u64) -> FarError {
        FarError::Fetch { page, source: StoreError::Unavailable("it was evicted before it was used".into()) }
    }

    /// Records the use of a page other than the last one used.
    fn note_use(&mut self, page: u64, frame: u32) {
        self.last_used = (page, frame);
        let Frame { is_fresh, is_ahead, mark, .. } = &mut self.frames[frame as usize];
        if std::mem::take(is_fresh) {
            *is_ahead = false;
        } else {
            self.policy.touch(frame);
        }
        let mark = std::mem::take(mark);
        if mark != 0
            && let Some(ahead) = self.streams.on_mark(page, mark - 1)
        {
            // Pinned, so that the page is not evicted for them.
            self.frames[frame as usize].pins += 1;
            self.fetch_ahead(ahead);
            self.frames[frame as usize].pins -= 1;
            self.store.turn();
        }
    }

    /// Fetches a page that is not local, and waits for it.
    fn fetch(&mut self, page: u64) -> Result<(), FarError> {
        self.stats.missing += 1;
        let frame = self.wait_for_frame()?;
        self.submit_read(page, frame)?;
        if let Some(ahead) = self.streams.on_miss(page) {
            self.fetch_ahead(ahead);
        }
        self.clean_some();
        self.wait_for(page)
    }

    /// Requests a page into a frame. Waits until the store takes the request.
    fn submit_read(&mut self, page: u64, frame: u32) -> Result<(), FarError> {
        loop {
            match self.begin_read(page, frame) {
                SubmitOutcome::Submitted => return Ok(()),
                SubmitOutcome::Busy => {
                    if let Err(error) = self.wait() {
                        self.free.push(frame);
                        return Err(error);
                    }
                }
                SubmitOutcome::Rejected(error) => return Err(FarError::of_fetch(page, error)),
            }
        }
    }

    /// Requests a page into a frame without a page. If the store can never take the request, the frame is freed.
    fn begin_read(&mut self, page: u64, at: u32) -> SubmitOutcome {
        let frame = &mut self.frames[at as usize];
        let target = frame.buffer.take_unshared().expect("a free frame is handed out with its buffer");
        let job = Job::Read { at: page * PAGE as u64, target };
        let (begun, request) = match self.store.submit(Request { tag: READ | u64::from(at), job }) {
            Ok(()) => {
                let is_back = self.table.insert(page, at);
                (frame.page, frame.is_reading, frame.is_fresh) = (page, true, true);
                self.policy.insert(at, is_back);
                self.reading += 1;
                return SubmitOutcome::Submitted;
            }
            Err(Refused::Busy(request)) => (SubmitOutcome::Busy, request),
            Err(Refused::Never { error, request }) => {
                self.free.push(at);
                (SubmitOutcome::Rejected(error), request)
            }
            Err(refused) => unreachable!("no other reason is known: {refused}"),
        };
        if let Job::Read { target, .. } = request.job {
            frame.buffer = Buffer::Unshared(target);
        }
        begun
    }

    /// Requests pages ahead of a reader, as far as there is room without waiting.
    fn fetch_ahead(&mut self, ahead: AheadWindow) {
        for page in ahead.pages(self.pages()) {
            if self.table.frame(page).is_none() && !self.begin_prefetch(page) {
                break;
            }
        }
        let (page, stream) = ahead.mark;
        if page < self.pages()
            && let Some(frame) = self.table.frame(page)
        {
            self.frames[frame as usize].mark = stream + 1;
        }
    }

    /// Requests a page that is not local, if there is room without waiting.
    fn begin_prefetch(&mut self, page: u64) -> bool {
        let Some(frame) = self.try_free_frame() else { return false };
        match self.begin_read(page, frame) {
            SubmitOutcome::Submitted => {
                self.frames[frame as usize].is_ahead = true;
                self.stats.fetched_ahead += 1;
                true
            }
            SubmitOutcome::Busy => {
                self.free.push(frame);
                false
            }
            SubmitOutcome::Rejected(_) => false,
        }
    }

    /// Requests the pages that are not local, in order and as far as there is room, without waiting for them.
    pub fn prefetch(&mut self, pages: impl Iterator<Item = u64>) {
        for page in pages {
            if self.table.frame(page).is_none() && !self.begin_prefetch(page) {
                break;
            }
        }
        self.store.turn();
    }

    /// A frame with a buffer and without a page, if one can be had without waiting.
    fn try_free_frame(&mut self) -> Option<u32> {
        let index = match self.free.pop() {
            Some(frame) => frame,
            None => self.evict()?,
        };
        if self.frames[index as usize].buffer.unshare() || self.replace_buffer(index) {
            return Some(index);
        }
        // Put behind the other free frames until its buffer comes back.
        self.free.insert(0, index);
        None
    }

    /// Evicts a page, and returns its frame.
    fn evict(&mut self) -> Option<u32> {
        let frames = &self.frames;
        let index = self.policy.victim(|frame| frames[frame as usize].is_evictable())?;
        let frame = &self.frames[index as usize];
        self.table.evict(frame.page);
        self.stats.evicted += 1;
        self.stats.unused += u64::from(frame.is_ahead);
        self.reset_frame(index);
        Some(index)
    }

    /// Gives a new buffer to a frame whose old one is still shared or was never returned. False if the arena has none.
    fn replace_buffer(&mut self, at: u32) -> bool {
        let Ok(buffer) = Buffer::alloc(self.store.arena()) else { return false };
        self.frames[at as usize].buffer = Buffer::Unshared(buffer);
        true
    }

    /// Resets the state of a frame whose page has gone.
    fn reset_frame(&mut self, at: u32) {
        let frame = &mut self.frames[at as usize];
        if self.last_used.0 == frame.page {
            self.last_used.0 = NO_PAGE;
        }
        self.failed -= usize::from(std::mem::take(&mut frame.has_failed));
        (frame.page, frame.mark, frame.is_hot, frame.is_fresh, frame.is_ahead) = (NO_PAGE, 0, false, false, false);
    }

    /// Returns a frame without a page. Waits until there is one.
    fn wait_for_frame(&mut self) -> Result<u32, FarError> {
        let failures = self.stats.writes_failed;
        loop {
            if let Some(frame) = self.try_free_frame() {
                return Ok(frame);
            }
            if self.stats.writes_failed != failures
                && let Some(error) = self.write_failure()
            {
                return Err(error);
            }
            if self.writing == 0 && self.clean(self.options.writes_max, true) == 0 && self.reading == 0 {
                let (pinned, max) = (self.stats.pinned, self.options.pinned_pages);
                return Err(FarError::TooManyPins { asked: 1, pinned, max });
            }
            self.wait()?;
        }
    }

    /// Waits until a requested page is local.
    fn wait_for(&mut self, page: u64) -> Result<(), FarError> {
        self.awaited = (page, None);
        loop {
            match self.table.frame(page) {
                Some(frame) if self.frames[frame as usize].is_reading => self.wait()?,
                Some(_) => return Ok(()),
                None => {
                    let error = self.awaited.1.take();
                    return Err(
                        error.map_or_else(|| self.evicted_before_use(page), |error| FarError::of_fetch(page, error))
                    );
                }
            }
        }
    }

    /// Runs one turn of the store, and takes what it has finished. Returns whether there was anything.
    pub fn turn(&mut self) -> bool {
        let turned = self.store.turn();
        let mut finished = std::mem::take(&mut self.finished);
        let has_finished = self.store.poll(&mut finished, POLL_MAX) > 0;
        for finished in finished.drain(..) {
            self.handle_finished(finished);
        }
        self.finished = finished;
        turned || has_finished
    }

    /// Waits for progress of the store: spins for a while, then sleeps.
    fn wait(&mut self) -> Result<(), FarError> {
        for _ in 0..TURNS_BEFORE_SLEEP {
            if self.turn() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let now_ns = self.clock.now_ns();
        let armed = match self.store.arm(now_ns) {
            Ok(armed @ Armed::Sleep { .. }) => armed,
            Ok(Armed::Ready) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
                std::thread::yield_now();
                return Ok(());
            }
            Err(error) => return Err(FarError::Sleep(error)),
        };
        let slept = self.store.descriptor().map(|descriptor| descriptor.wait(armed.timeout_ns(now_ns)));
        self.store.disarm();
        slept.transpose().map(|_| ()).map_err(FarError::Sleep)
    }

    fn handle_finished(&mut self, Finished { tag, result, target }: Finished) {
        let index = tag as u32;
        match tag & !u64::from(u32::MAX) {
            READ if self.frames.get(index as usize).is_some_and(|frame| frame.is_reading) => {
                self.on_read(index, result, target)
            }
            WRITE if self.frames.get(index as usize).is_some_and(|frame| frame.is_writing) => {
                self.on_written(index, result)
            }
            FLUSH_OR_DISCARD => self.control_result = Some(result),
            // Not a request in flight: a store that answers twice changes nothing.
            _ => {}
        }
    }

    fn on_read(&mut self, at: u32, result: Result<(), StoreError>, target: Option<MessageBuffer>) {
        self.reading -= 1;
        let target = target.filter(|target| target.len() == PAGE);
        let result = match (&target, result) {
            (None, Ok(())) => Err(StoreError::Unavailable("the store kept the buffer".into())),
            (_, result) => result,
        };
        let frame = &mut self.frames[at as usize];
        frame.is_reading = false;
        match target {
            Some(target) => frame.buffer = Buffer::Unshared(target),
            None => frame.buffer = Buffer::LentOut,
        }
        match result {
            Ok(()) => self.stats.fetched += 1,
            Err(error) => {
                self.stats.fetches_failed += 1;
                let page = frame.page;
                if page == self.awaited.0 {
                    self.awaited.1 = Some(error);
                }
                self.table.remove(page);
                self.policy.remove(at);
                self.reset_frame(at);
                self.free.push(at);
            }
        }
    }

    /// Whether a guard may pin a local page.
    pub fn may_pin(&self, frame: u32) -> bool {
        self.frames[frame as usize].pins > 0 || self.stats.pinned < self.options.pinned_pages
    }

    /// Pins a local page for a guard.
    pub fn pin(&mut self, frame: u32) {
        let pins = &mut self.frames[frame as usize].pins;
        self.stats.pinned += usize::from(*pins == 0);
        *pins += 1;
    }

    /// Removes a guard's pin.
    pub fn unpin(&mut self, frame: u32) {
        let pins = &mut self.frames[frame as usize].pins;
        *pins -= 1;
        self.stats.pinned -= usize::from(*pins == 0);
    }

    /// A share of a page's bytes.
    pub fn share(&mut self, frame: u32) -> Result<sinew_mem::Frozen, FarError> {
        let frame = &mut self.frames[frame as usize];
        frame.buffer.share().ok_or(FarError::Borrowed { page: frame.page })
    }

    /// Takes the bytes of a page for a guard that writes. [`Self::give_back`] returns them.
    pub fn lend(&mut self, at: u32) -> Result<MessageBuffer, FarError> {
        self.make_writable(at)?;
        let frame = &mut self.frames[at as usize];
        frame.buffer.take_unshared().ok_or(FarError::Borrowed { page: frame.page })
    }

    /// Ends [`Self::lend`].
    pub fn give_back(&mut self, frame: u32, buffer: MessageBuffer) {
        self.frames[frame as usize].buffer = Buffer::Unshared(buffer);
        self.mark_changed(frame);
        self.clean_and_poll();
    }

    /// Drops pages from local memory, with any changes to them.
    ///
    /// # Errors
    ///
    /// [`FarError::Borrowed`] if a guard holds one of them.
    pub fn drop_pages(&mut self, pages: std::ops::Range<u64>) -> Result<(), FarError> {
        for page in pages {
            while let Some(at) = self.table.frame(page) {
                let frame = &mut self.frames[at as usize];
                if frame.pins > 0 {
                    return Err(FarError::Borrowed { page });
                }
                if frame.is_reading || frame.is_writing {
                    self.wait()?;
                    continue;
                }
                self.stats.dirty -= usize::from(std::mem::take(&mut frame.is_dirty));
                self.table.remove(page);
                self.policy.remove(at);
                self.reset_frame(at);
                self.free.push(at);
            }
        }
        Ok(())
    }

    /// Marks pages as no longer needed, so that changes to them are not written. Returns whether they are free of
    /// guards.
    pub fn discard_changes(&mut self, pages: std::ops::Range<u64>) -> bool {
        let mut is_free = true;
        for page in pages {
            let Some(frame) = self.table.frame(page).map(|at| &mut self.frames[at as usize]) else { continue };
            is_free &= frame.pins == 0;
            self.stats.dirty -= usize::from(std::mem::take(&mut frame.is_dirty));
            self.failed -= usize::from(std::mem::take(&mut frame.has_failed));
        }
        is_free
    }

    /// Makes a range of pages read as zeros.
    pub fn zero(&mut self, pages: std::ops::Range<u64>) -> Result<(), FarError> {
        self.drop_pages(pages.clone())?;
        let bytes = PAGE as u64;
        let job = Job::Discard { at: pages.start * bytes, len: (pages.end - pages.start) * bytes };
        self.submit_and_wait(job)?.map_err(|source| FarError::Fetch { page: pages.start, source })
    }

    /// Submits a flush or a discard to the store, and waits for it.
    fn submit_and_wait(&mut self, job: Job) -> Result<Result<(), StoreError>, FarError> {
        let mut request = Request { tag: FLUSH_OR_DISCARD, job };
        self.control_result = None;
        loop {
            match self.store.submit(request) {
                Ok(()) => break,
                Err(Refused::Busy(refused)) => {
                    request = refused;
                    self.wait()?;
                }
                Err(Refused::Never { error, .. }) => return Ok(Err(error)),
                Err(refused) => unreachable!("no other reason is known: {refused}"),
            }
        }
        loop {
            if let Some(result) = self.control_result.take() {
                return Ok(result);
            }
            self.wait()?;
        }
    }
}

/// Outcome of submitting a request.
enum SubmitOutcome {
    Submitted,
    /// The store has no room for another request now.
    Busy,
    Rejected(StoreError),
}
