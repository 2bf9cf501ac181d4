//! The handler of a mapping: it fetches pages that are touched, and evicts those that are not.
//!
//! A page is in one of three states. *Missing*: a thread that touches it waits in the kernel, which sends a message
//! here. *Clean*: it is mapped and protected from writes, and the store has the same bytes. *Dirty*: it is mapped, and
//! was or can be written. A write to a clean page also sends a message, and makes the page dirty.
//!
//! A page is evicted in this order, so that none is torn and nothing is lost: protect it, copy it out, write it to the
//! store; once the write has succeeded, and if no thread has asked to write to it since, drop it. A thread that writes
//! to it in between waits until its message is answered, whatever state the page is in by then.

mod service;
mod write_back;

use std::collections::{BTreeSet, VecDeque};

use sinew_fabric::Clock;
use sinew_fabric::readiness::Alarm;
use sinew_mem::atomic::plain::Arc;
use sinew_mem::{Frozen, MessageBuffer};
use sinew_remote_memory::{Finished, Job, Refused, Request, Store, StoreError};

use super::area::{Area, Control, FarMapping, OnLoss, RUNS_MAX, Run};
use super::uffd::Fault;
use crate::ahead::{AheadWindow, Streams};
use crate::error::FarError;
use crate::frame::NO_PAGE;
use crate::options::{Options, PAGE, Stats};
use crate::policy::Policy;
use crate::table::Table;

/// Pages read or written by one request, at most.
const RUN_MAX: usize = 32;
/// Requests in flight at the store.
const REQUESTS_MAX: usize = 64;
/// Tag of a flush, which is not the index of a request.
const FLUSH_TAG: u64 = u64::MAX;
/// Time after which a page that could not be fetched is requested again, in ns.
const RETRY_NS: u64 = 20_000_000;

/// State of a page in local memory. Frames only count pages: the kernel finds the memory itself.
#[derive(Clone, Copy, Debug)]
struct MappedFrame {
    page: u64,
    is_reading: bool,
    is_writing: bool,
    is_dirty: bool,
    is_hot: bool,
    has_failed: bool,
    /// Whether a thread waits for the page; `wants_write`: whether one waits to write.
    is_awaited: bool,
    wants_write: bool,
    is_ahead: bool,
}

const EMPTY: MappedFrame = MappedFrame {
    page: NO_PAGE,
    is_reading: false,
    is_writing: false,
    is_dirty: false,
    is_hot: false,
    has_failed: false,
    is_awaited: false,
    wants_write: false,
    is_ahead: false,
};

/// A request in flight.
#[derive(Debug)]
struct InFlight {
    page: u64,
    count: usize,
    /// The bytes of a write.
    bytes: Option<Frozen>,
}

/// A thread that waits for a page.
#[derive(Clone, Copy, Debug)]
struct WaitingFault {
    page: u64,
    is_write: bool,
    /// Earliest time of the next attempt.
    retry_at_ns: u64,
}

/// Fetches the pages of a [`FarMapping`] from a store, and writes them back. It belongs to the thread that drives the
/// store; [`Self::run`] is that thread's loop.
///
/// Data that was stored to the mapping and not flushed is lost when the handler is dropped.
pub struct Handler<S> {
    area: Arc<Area>,
    store: S,
    clock: Box<dyn Clock>,
    alarm: Alarm,
    options: Options,
    table: Table,
    frames: Vec<MappedFrame>,
    policy: Policy,
    streams: Streams,
    free: Vec<u32>,
    sent: Vec<Option<InFlight>>,
    unsent: Vec<u32>,
    /// Runs of pages to be dropped by the next call.
    to_drop: Vec<Run>,
    finished: Vec<Finished>,
    /// Faults that wait for room, or for their next attempt.
    waiting: VecDeque<WaitingFault>,
    /// Lost pages that are poisoned: touching one raises SIGBUS.
    lost: BTreeSet<u64>,
    clean_cursor: usize,
    flush: write_back::Flush,
    failed: usize,
    writing: usize,
    failure: Option<FarError>,
    stats: Stats,
}

impl<S: Store> Handler<S> {
    /// The handler of a mapping, whose pages are the first ones of the store. [`Options::pinned_pages`] has no effect
    /// here.
    ///
    /// # Errors
    ///
    /// [`FarError::Options`] when the store is smaller than the mapping, the mapping has or had a handler, or the
    /// options are invalid. [`FarError::Buffers`] when the store's arena has no room for the buffer of the largest
    /// request; for full speed it needs room for a few requests of 32 pages, and some of one. [`FarError::System`] when
    /// the system refuses an alarm.
    pub fn new(
        mapping: &FarMapping,
        store: S,
        options: Options,
        clock: impl Clock + 'static,
    ) -> Result<Self, FarError> {
        options.check()?;
        let area = Arc::clone(mapping.area());
        let store_pages = store.len() / PAGE as u64;
        if store_pages < area.pages() {
            let what = format!("a store of {store_pages} pages is smaller than the mapping of {}", area.pages());
            return Err(FarError::Options(what));
        }
        if !area.claim_handler() {
            return Err(FarError::Options("the mapping has, or had, another handler".into()));
        }
        // Buffers are allocated for each request, so this only tries the largest.
        drop(store.arena().alloc(RUN_MAX * PAGE, RUN_MAX * PAGE)?);
        let frames = options.local_pages;
        Ok(Self {
            table: Table::new(area.pages() as usize, frames as u32),
            area,
            store,
            clock: Box::new(clock),
            alarm: Alarm::new().map_err(FarError::System)?,
            policy: Policy::new(frames, 2 * options.ahead_pages),
            streams: Streams::new(options.ahead_pages),
            frames: vec![EMPTY; frames],
            free: (0..frames as u32).rev().collect(),
            sent: std::iter::repeat_with(|| None).take(REQUESTS_MAX).collect(),
            unsent: (0..REQUESTS_MAX as u32).collect(),
            to_drop: Vec::with_capacity(RUNS_MAX),
            finished: Vec::with_capacity(REQUESTS_MAX),
            waiting: VecDeque::with_capacity(REQUESTS_MAX),
            lost: BTreeSet::new(),
            clean_cursor: 0,
            flush: write_back::Flush::default(),
            failed: 0,
            writing: 0,
            failure: None,
            stats: Stats::default(),
            options,
        })
    }

    /// A handle for other threads' requests to this handler.
    pub fn control(&self) -> Control {
        Control::new(Arc::clone(&self.area), self.alarm.waker())
    }

    /// Counts of operations, and of pages that are local now.
    pub fn stats(&self) -> Stats {
        Stats { local: self.frames.len() - self.free.len(), ..self.stats }
    }

    /// Returns the store. What was not flushed is lost.
    pub fn into_store(self) -> S {
        self.store
    }

    /// Handles the fault of a thread that waits for a page.
    fn fault(&mut self, Fault { address, is_write, is_protected }: Fault, now_ns: u64) -> Result<(), FarError> {
        let Some(page) = self.area.page(address) else { return Ok(()) };
        let address = self.area.address(page);
        match self.table.frame(page) {
            Some(frame) if self.frames[frame as usize].is_reading => {
                let frame = &mut self.frames[frame as usize];
                self.stats.waited += u64::from(!frame.is_awaited);
                frame.is_awaited = true;
                frame.wants_write |= is_write;
                Ok(())
            }
            // A store to a page that is clean, or was when it faulted. A write-back in flight no longer covers
            // everything.
            Some(frame) if is_write || is_protected => {
                self.mark_changed(frame);
                self.policy.touch(frame);
                self.area.uffd().unprotect(address, PAGE).map_err(system)
            }
            // The page has arrived in the meantime.
            Some(_) => self.area.uffd().wake(address, PAGE).map_err(system),
            None if self.lost.contains(&page) => self.area.uffd().wake(address, PAGE).map_err(system),
            None => {
                self.stats.missing += 1;
                let ahead = self.streams.on_miss(page);
                self.begin_fault(WaitingFault { page, is_write: is_write || is_protected, retry_at_ns: now_ns }, ahead)
            }
        }
    }

    /// Requests a page that a thread waits for, or queues the thread until there is room.
    fn begin_fault(&mut self, waiting: WaitingFault, ahead: Option<AheadWindow>) -> Result<(), FarError> {
        if !self.fetch(waiting.page, 1)? {
            self.waiting.push_back(waiting);
            return Ok(());
        }
        let frame = self.table.frame(waiting.page).expect("it was asked for");
        let frame = &mut self.frames[frame as usize];
        (frame.is_awaited, frame.wants_write) = (true, waiting.is_write);
        if let Some(ahead) = ahead {
            self.fetch_ahead(ahead)?;
        }
        Ok(())
    }

    /// Requests pages ahead of a reader, neighbouring ones by one request, as far as there is room.
    fn fetch_ahead(&mut self, ahead: AheadWindow) -> Result<(), FarError> {
        let mut run: Option<(u64, u64)> = None;
        for page in ahead.pages(self.area.pages()) {
            if self.table.frame(page).is_some() || self.lost.contains(&page) {
                continue;
            }
            run = match run {
                Some((first, last)) if page == last + 1 && ((page - first) as usize) < RUN_MAX => Some((first, page)),
                Some((first, last)) if page + 1 == first && ((last - page) as usize) < RUN_MAX => Some((page, last)),
                other => {
                    if !self.fetch_run(other)? {
                        return Ok(());
                    }
                    Some((page, page))
                }
            };
        }
        self.fetch_run(run).map(|_| ())
    }

    fn fetch_run(&mut self, run: Option<(u64, u64)>) -> Result<bool, FarError> {
        let Some((first, last)) = run else { return Ok(true) };
        let count = (last - first + 1) as usize;
        if !self.fetch(first, count)? {
            return Ok(false);
        }
        for page in first..=last {
            let frame = self.table.frame(page).expect("it was asked for");
            self.frames[frame as usize].is_ahead = true;
        }
        self.stats.fetched_ahead += count as u64;
        Ok(true)
    }

    /// Requests consecutive pages that are not local. False if there is no room now.
    fn fetch(&mut self, page: u64, count: usize) -> Result<bool, FarError> {
        let Some(tag) = self.unsent.last().copied() else { return Ok(false) };
        if !self.make_room(count)? {
            return Ok(false);
        }
        let Ok(target) = self.store.arena().alloc(count * PAGE, count * PAGE) else { return Ok(false) };
        let job = Job::Read { at: page * PAGE as u64, target };
        match self.store.submit(Request { tag: u64::from(tag), job }) {
            Ok(()) => {}
            Err(Refused::Busy(_)) => return Ok(false),
            Err(Refused::Never { error, .. }) => return Err(FarError::of_fetch(page, error)),
            Err(refused) => unreachable!("no other reason is known: {refused}"),
        }
        self.unsent.pop();
        self.sent[tag as usize] = Some(InFlight { page, count, bytes: None });
        for page in page..page + count as u64 {
            let frame = self.free.pop().expect("there is room");
            let is_back = self.table.insert(page, frame);
            self.frames[frame as usize] = MappedFrame { page, is_reading: true, ..EMPTY };
            self.policy.insert(frame, is_back);
        }
        Ok(true)
    }

    /// Evicts clean pages until `count` frames are free. False if there are not enough.
    fn make_room(&mut self, count: usize) -> Result<bool, FarError> {
        while self.free.len() < count {
            let frames = &self.frames;
            let is_evictable = |frame: &MappedFrame| !frame.is_reading && !frame.is_writing && !frame.is_dirty;
            let Some(at) = self.policy.victim(|frame| is_evictable(&frames[frame as usize])) else { break };
            let MappedFrame { page, is_ahead, .. } = self.frames[at as usize];
            self.table.evict(page);
            self.stats.evicted += 1;
            self.stats.unused += u64::from(is_ahead);
            self.frames[at as usize] = EMPTY;
            self.free.push(at);
            match self.to_drop.last_mut() {
                Some((first, count)) if page == *first + *count as u64 => *count += 1,
                Some((first, count)) if page + 1 == *first => (*first, *count) = (page, *count + 1),
                _ => {
                    if self.to_drop.len() == RUNS_MAX {
                        self.drop_evicted()?;
                    }
                    self.to_drop.push((page, 1));
                }
            }
        }
        self.drop_evicted()?;
        Ok(self.free.len() >= count)
    }

    fn drop_evicted(&mut self) -> Result<(), FarError> {
        // SAFETY: the pages are clean: they have been protected from writes since before they were copied out or put
        // in, and the store has the same bytes. A thread waiting to write to one has changed nothing yet, and its
        // message will find the page missing.
        unsafe { self.area.drop_pages(&self.to_drop) }.map_err(FarError::System)?;
        self.to_drop.clear();
        Ok(())
    }

    fn handle_finished(&mut self, Finished { tag, result, target }: Finished, now_ns: u64) -> Result<(), FarError> {
        if tag == FLUSH_TAG {
            self.on_flush_confirmed(result);
            return Ok(());
        }
        // A store that answers twice changes nothing.
        let Some(sent) = self.sent.get_mut(tag as usize).and_then(Option::take) else { return Ok(()) };
        self.unsent.push(tag as u32);
        if sent.bytes.is_some() {
            self.on_written(&sent, result);
            return Ok(());
        }
        match (target, result) {
            (Some(target), Ok(())) if target.len() == sent.count * PAGE => self.on_read(&sent, &target),
            (_, Err(error)) => self.on_read_failed(&sent, error, now_ns),
            _ => self.on_read_failed(&sent, StoreError::Unavailable("the store kept the buffer".into()), now_ns),
        }
    }

    /// Maps pages that were read: write-protected, unless a writer waits for the page.
    fn on_read(&mut self, sent: &InFlight, bytes: &MessageBuffer) -> Result<(), FarError> {
        self.stats.fetched += sent.count as u64;
        let wants_write_at = |handler: &Self, at: usize| {
            let frame = handler.table.frame(sent.page + at as u64);
            frame.is_some_and(|frame| handler.frames[frame as usize].wants_write)
        };
        let mut from = 0;
        while from < sent.count {
            let is_write = wants_write_at(self, from);
            let to = if is_write {
                from + 1
            } else {
                (from + 1..sent.count).find(|at| wants_write_at(self, *at)).unwrap_or(sent.count)
            };
            let start = self.area.address(sent.page + from as u64);
            // SAFETY: the pages are missing, and these are their whole bytes, as the store has them.
            unsafe { self.area.uffd().copy(start, &bytes[from * PAGE..to * PAGE], !is_write) }.map_err(system)?;
            for page in sent.page + from as u64..sent.page + to as u64 {
                let frame = self.table.frame(page).expect("a page that is fetched has a frame");
                let state = &mut self.frames[frame as usize];
                state.is_ahead &= !state.is_awaited;
                (state.is_reading, state.is_awaited, state.wants_write) = (false, false, false);
                if is_write {
                    self.mark_changed(frame);
                }
            }
            from = to;
        }
        Ok(())
    }

    /// Handles pages that could not be fetched. Those that nobody waits for are forgotten. The others are requested one
    /// by one; a page that then fails is lost, or retried later.
    fn on_read_failed(&mut self, sent: &InFlight, error: StoreError, now_ns: u64) -> Result<(), FarError> {
        self.stats.fetches_failed += 1;
        for page in sent.page..sent.page + sent.count as u64 {
            let frame = self.table.frame(page).expect("a page that is fetched has a frame");
            let MappedFrame { is_awaited, wants_write, .. } = self.frames[frame as usize];
            self.table.remove(page);
            self.policy.remove(frame);
            self.frames[frame as usize] = EMPTY;
            self.free.push(frame);
            if !is_awaited {
                continue;
            }
            let mut retry_at_ns = now_ns;
            if sent.count == 1 {
                let is_lost = matches!(error, StoreError::Lost { .. });
                self.failure = Some(FarError::of_fetch(page, error.clone()));
                if is_lost && self.area.options.on_loss == OnLoss::Poison && self.area.uffd().can_poison() {
                    self.lost.insert(page);
                    self.area.uffd().poison(self.area.address(page), PAGE).map_err(system)?;
                    continue;
                }
                retry_at_ns += RETRY_NS;
            }
            self.waiting.push_back(WaitingFault { page, is_write: wants_write, retry_at_ns });
        }
        Ok(())
    }

    /// Makes lost pages be requested again when they are next touched.
    fn retry_lost(&mut self) -> Result<(), FarError> {
        while let Some(page) = self.lost.pop_first() {
            // SAFETY: there is no page, only the mark that raises SIGBUS.
            unsafe { self.area.drop_pages(&[(page, 1)]) }.map_err(FarError::System)?;
        }
        self.waiting.iter_mut().for_each(|waiting| waiting.retry_at_ns = 0);
        Ok(())
    }
}

impl<S> std::fmt::Debug for Handler<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handler").field("area", &self.area).field("stats", &self.stats).finish_non_exhaustive()
    }
}

fn system(error: rustix::io::Errno) -> FarError {
    FarError::System(error.into())
}
