//! A thread's engine.

use std::collections::VecDeque;
use std::io;

use sinew_fabric::{Armed, Descriptor, Readiness};
use sinew_mem::atomic::{Arc, MutexGuard};

use super::batch::{MergeMethod, MergedRun, Merging, Mode, is_direct, merge, sort};
use super::error::{EngineError, FailureCause};
use super::flight::{Completed, Flight, LoneDone};
use super::inbox::Inbox;
use super::path::{Limits, Path};
use super::request::{Finished, Op, Refused, Request};
use super::shared::Shared;
use super::state::{Buffer, State, TakenRequest};

const NONE: u32 = u32::MAX;

/// How an engine turns requests into operations.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// How requests taken together become operations.
    pub mode: Mode,
    /// Requests that one turn takes at most, and so operations per doorbell (MAX_CHAINING_SIZE).
    pub chain_max: usize,
    /// Longest operation that adjacent requests are merged into, in bytes.
    pub merged_len_max: usize,
    /// Longest request, in bytes, that is copied when there are more adjacent ones than an operation has pieces.
    pub copied_piece_max: usize,
    /// Longest operation, in bytes, unless the path's limit is lower. A longer request is cut into fragments; a read
    /// that is cut is copied.
    pub fragment_len: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            chain_max: 64,
            merged_len_max: 256 << 10,
            copied_piece_max: 4096,
            fragment_len: usize::MAX,
        }
    }
}

/// A thread's engine; see [the module](super).
pub struct Engine<P: Path> {
    path: P,
    shared: Arc<Shared>,
    engine_index: u32,
    inbox: Arc<Inbox>,
    mode: Mode,
    chain_max: usize,
    merging: Merging,
    limits: Limits,
    /// A request of this engine that found no other, and is not posted yet.
    lone_unposted: Option<TakenRequest>,
    /// The operation in flight for such a request, or [`NONE`].
    lone_op: u32,
    /// Whether the last turn left nothing to do: no request taken but not posted, none partly cut, none finished but
    /// not reported, and no broken path. Then there is at most a lone request.
    has_only_lone: bool,
    /// Requests taken from the queue and not posted yet.
    taken: VecDeque<TakenRequest>,
    flight: Flight,
    completed: Vec<Completed>,
    finished: Vec<Finished>,
    /// Finished requests of other engines.
    outgoing: Vec<(Arc<Inbox>, Finished)>,
    error: Option<EngineError>,
}

impl<P: Path> std::fmt::Debug for Engine<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (taken, operations) = (self.taken.len(), self.flight.len());
        f.debug_struct("Engine").field("taken", &taken).field("operations", &operations).finish_non_exhaustive()
    }
}

impl<P: Path> Engine<P> {
    /// Makes an engine of the calling thread, which reaches the donor by `path`.
    ///
    /// # Panics
    ///
    /// If a limit of `config` or of the path is 0.
    pub fn new(shared: &Arc<Shared>, path: P, config: EngineConfig) -> Self {
        let EngineConfig { mode, chain_max, merged_len_max, copied_piece_max, fragment_len } = config;
        let limits = path.limits();
        let limits = Limits { op_len_max: limits.op_len_max.min(fragment_len), ..limits };
        assert!(chain_max > 0 && limits.op_len_max > 0 && limits.pieces_max > 0, "{config:?}, {limits:?}");
        let inbox = Inbox::new(path.waker());
        let engine_index = shared.lock().join(Arc::clone(&inbox));
        Self {
            engine_index,
            inbox,
            mode,
            chain_max,
            merging: Merging { merged_len_max, copied_piece_max },
            limits,
            lone_unposted: None,
            lone_op: NONE,
            has_only_lone: true,
            taken: VecDeque::with_capacity(chain_max),
            flight: Flight::new(limits.depth),
            completed: Vec::with_capacity(chain_max),
            finished: Vec::with_capacity(chain_max),
            outgoing: Vec::new(),
            error: None,
            shared: Arc::clone(shared),
            path,
        }
    }

    /// State shared with the donor's other engines.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The path to the donor, and through it the verbs below. Callers that post there themselves poll for their own
    /// completions, on queues of their own.
    pub fn path(&mut self) -> &mut P {
        &mut self.path
    }

    /// The error that stopped this engine, if any. Its requests are then done by other engines; if there are none, they
    /// end with this error.
    pub fn error(&self) -> Option<&EngineError> {
        self.error.as_ref()
    }

    /// Operations that this engine has in flight, for its own requests and others'.
    pub fn in_flight(&self) -> usize {
        self.flight.len()
    }

    /// Whether nothing is taken, in flight or waiting to be polled, so that the engine need not be turned. Its own
    /// requests may still be in the queue or with other engines.
    pub fn is_idle(&self) -> bool {
        self.lone_unposted.is_none()
            && self.taken.is_empty()
            && self.flight.len() == 0
            && self.completed.is_empty()
            && self.finished.is_empty()
    }

    /// Submits a request to the queue. The next [`Self::turn`] posts it, or another engine's does. A request that finds
    /// no other unfinished one, of any engine, bypasses the queue: this engine posts it.
    ///
    /// # Errors
    ///
    /// [`Refused`], which gives the request back.
    // The error is as large as the request that it gives back, and boxing it would allocate.
    #[allow(clippy::result_large_err)]
    #[inline]
    pub fn submit(&mut self, request: Request) -> Result<(), Refused> {
        let (at, len) = (request.op.at(), request.op.len() as u64);
        if at.checked_add(len).is_none_or(|end| end > self.shared.len) {
            return Err(Refused::OutOfRange { len: self.shared.len, request });
        }
        if let Op::Write { source, .. } = &request.op
            && !source.is_in_bounds()
        {
            return Err(Refused::BadSlice { request });
        }
        if len == 0 {
            self.finish_empty(request);
            return Ok(());
        }
        let mut state = self.shared.lock();
        if state.unfinished() == 0 && self.shared.depth > 0 && self.error.is_none() {
            self.lone_unposted = Some(state.take_lone(self.engine_index, request));
            return Ok(());
        }
        if state.unfinished() >= self.shared.depth {
            return Err(Refused::Busy { depth: self.shared.depth, request });
        }
        state.submit(self.engine_index, request);
        self.shared.publish(&state);
        Ok(())
    }

    #[inline(never)]
    fn finish_empty(&mut self, Request { tag, op }: Request) {
        let target = match op {
            Op::Read { target, .. } => Some(target),
            Op::Write { .. } => None,
        };
        self.finished.push(Finished { tag, result: Ok(()), target });
    }

    /// Completes what the path has done, and posts what has gathered in the queue, as far as the window and the path
    /// have room. Never blocks. Returns whether there was anything to do.
    #[inline]
    pub fn turn(&mut self, now_ns: u64) -> bool {
        // Without load, most requests are lone, and then each instruction adds to the latency.
        if self.has_only_lone && !self.shared.has_queued() && !self.inbox.has_any() {
            if self.lone_op != NONE {
                return self.complete_lone(now_ns);
            }
            if self.lone_unposted.is_some() && self.post_lone(now_ns) {
                return true;
            }
        }
        self.turn_full(now_ns)
    }

    /// Posts the lone request. Returns false if that takes the full turn.
    #[inline]
    fn post_lone(&mut self, now_ns: u64) -> bool {
        let can_post = self.flight.len() == 0 && self.path.room() > 0 && self.path.error().is_none();
        if !can_post {
            return false;
        }
        let Some(request) = self.lone_unposted.take() else { return false };
        if request.len > self.limits.op_len_max || !is_direct(&self.path, &request) {
            self.lone_unposted = Some(request);
            return false;
        }
        self.inbox.counts.op(request.is_write());
        self.inbox.counts.doorbells.add(1);
        self.lone_op = self.flight.post_one(&mut self.path, now_ns, request);
        self.path.ring();
        true
    }

    /// Completes the lone request in flight, if its operation has finished.
    #[inline]
    fn complete_lone(&mut self, now_ns: u64) -> bool {
        let mut completed = None;
        let busy = self.path.poll(&mut |mut done| {
            completed = Some((done.id, done.error, done.targets.pop()));
            if done.targets.is_empty() {
                // It is empty, and forgetting it saves the drop code.
                std::mem::forget(done.targets);
            }
        });
        let Some((id, error, target)) = completed else {
            return if self.path.error().is_none() { busy } else { self.turn_full(now_ns) };
        };
        self.lone_op = NONE;
        let Some(LoneDone { key, posted_ns }) = self.flight.complete_one(id) else { return busy };
        if error.is_none()
            && let Some(tag) = self.shared.lock().end_lone(posted_ns, now_ns)
        {
            self.finished.push(Finished { tag, result: Ok(()), target });
            return true;
        }
        let buffer = target.map_or(Buffer::None, Buffer::Target);
        self.completed.push(Completed { request: TakenRequest { key, start: 0, len: 0, buffer }, posted_ns, error });
        self.turn_full(now_ns)
    }

    #[inline(never)]
    fn turn_full(&mut self, now_ns: u64) -> bool {
        self.lone_op = NONE;
        let busy = self.turn_once(now_ns);
        self.has_only_lone = self.taken.is_empty()
            && self.completed.is_empty()
            && !self.flight.is_fragmenting()
            && self.error.is_none()
            && self.path.error().is_none();
        busy
    }

    #[inline]
    fn turn_once(&mut self, now_ns: u64) -> bool {
        let Self { path, shared, engine_index, inbox, taken, flight, completed, finished, outgoing, .. } = self;
        let mut state: Option<MutexGuard<'_, State>> = None;
        let mut busy = path.poll(&mut |mut done| {
            let Some(LoneDone { key, posted_ns }) = flight.complete_one(done.id) else {
                // There may be much to copy, which must not be done under the lock.
                if let Some(state) = state.take() {
                    shared.publish(&state);
                }
                return flight.complete_others(done, completed);
            };
            let state = state.get_or_insert_with(|| shared.lock());
            let times = if done.error.is_none() { Some((posted_ns, now_ns)) } else { None };
            let (owner, tag) = state.complete(key, times);
            let result = match done.error {
                None => Ok(()),
                Some(why) => note_failure(state, shared, *why),
            };
            let one = Finished { tag, result, target: done.targets.pop() };
            if owner == *engine_index {
                finished.push(one);
            } else {
                route(state, owner, one, outgoing);
            }
        });
        if inbox.has_any() {
            inbox.take(finished);
            busy = true;
        }
        if path.error().is_some() {
            drop(state);
            return self.turn_broken(now_ns) || busy;
        }
        let has_room = path.room() > 0 && taken.len() < self.chain_max;
        let mut alone = self.lone_unposted.take();
        if state.is_some() || !completed.is_empty() || (has_room && shared.has_queued()) {
            let mut state = state.unwrap_or_else(|| shared.lock());
            if !completed.is_empty() {
                complete_all(&mut state, *engine_index, shared, completed, now_ns, finished, outgoing);
            }
            if has_room && state.has_queued() {
                if alone.is_none() {
                    alone = state.take_first();
                }
                if alone.is_some() {
                    if state.has_queued() || !taken.is_empty() || flight.is_fragmenting() {
                        take_more(&mut state, &mut alone, taken, self.chain_max);
                    } else {
                        state.count_taken(1);
                    }
                }
            }
            shared.publish(&state);
            drop(state);
            if !outgoing.is_empty() {
                self.deliver();
            }
        } else {
            drop(state);
        }
        if let Some(request) = alone {
            if has_room && request.len <= self.limits.op_len_max && is_direct(&self.path, &request) {
                self.inbox.counts.op(request.is_write());
                self.inbox.counts.doorbells.add(1);
                self.flight.post_one(&mut self.path, now_ns, request);
                self.path.ring();
                return true;
            }
            self.taken.push_back(request);
        }
        if !self.taken.is_empty() || self.flight.is_fragmenting() {
            busy |= self.post(now_ns);
        }
        busy
    }

    /// Moves up to `max` finished requests of this engine to `finished`, and returns their number.
    #[inline]
    pub fn poll(&mut self, finished: &mut Vec<Finished>, max: usize) -> usize {
        let count = self.finished.len().min(max);
        if count == self.finished.len() {
            finished.append(&mut self.finished);
        } else {
            finished.extend(self.finished.drain(..count));
        }
        count
    }

    #[inline(never)]
    fn deliver(&mut self) {
        self.outgoing.drain(..).for_each(|(inbox, finished)| Inbox::put(&inbox, finished));
    }

    /// Posts what was taken, as far as the path has room.
    #[inline(never)]
    fn post(&mut self, now_ns: u64) -> bool {
        if self.mode.merges() {
            sort(&mut self.taken);
        }
        let mut pushed = 0;
        while self.path.room() > 0 && self.post_next(now_ns) {
            pushed += 1;
            if !self.mode.chains() {
                self.path.ring();
            }
        }
        let counts = &self.inbox.counts;
        if self.mode.chains() && pushed > 0 {
            self.path.ring();
            counts.doorbells.add(1);
            counts.chained.add(pushed - 1);
        } else {
            counts.doorbells.add(pushed);
        }
        // Requests that could not be posted at all have failed.
        pushed > 0 || !self.completed.is_empty()
    }

    /// Posts one more operation. Returns false if there is none, or no memory now to copy it to.
    fn post_next(&mut self, now_ns: u64) -> bool {
        let counts = &self.inbox.counts;
        if self.flight.is_fragmenting() {
            return self.post_fragment(now_ns);
        }
        let Some(first) = self.taken.front() else { return false };
        let is_write = first.is_write();
        if first.len > self.limits.op_len_max {
            if let Some(request) = self.taken.pop_front() {
                self.flight.start_fragmenting(request, now_ns);
            }
            return self.post_fragment(now_ns);
        }
        let first_is_direct = is_direct(&self.path, first);
        let alone = MergedRun {
            requests: 1,
            len: first.len,
            method: if first_is_direct { MergeMethod::Gather } else { MergeMethod::Copy },
        };
        let merged = if self.mode.merges() { merge(&self.path, &self.limits, self.merging, &self.taken) } else { None };
        let mut run = merged.unwrap_or(alone);
        let mut staged = None;
        if run.method == MergeMethod::Copy {
            match self.path.stage(run.len) {
                Ok(buffer) => staged = Some(buffer),
                Err(_) if first_is_direct => run = alone,
                Err(_) if self.flight.len() > 0 => return false,
                Err(error) => {
                    let request = self.taken.pop_front();
                    let error = Some(Box::new(FailureCause::from(error)));
                    self.completed.extend(request.map(|request| Completed { request, posted_ns: now_ns, error }));
                    return false;
                }
            }
        }
        if run.requests > 1 {
            counts.merged.add(run.requests as u64);
        }
        if run.method == MergeMethod::Copy {
            counts.copied.add(run.requests as u64);
        }
        counts.op(is_write);
        let requests = self.taken.drain(..run.requests);
        match staged {
            Some(staged) => self.flight.post_copied(&mut self.path, now_ns, requests, staged),
            None => self.flight.post_gathered(&mut self.path, now_ns, requests),
        }
        true
    }

    fn post_fragment(&mut self, now_ns: u64) -> bool {
        match self.flight.post_fragment(&mut self.path, now_ns, self.limits.op_len_max) {
            Ok(is_write) => {
                self.inbox.counts.op(is_write);
                return true;
            }
            Err(_) if self.flight.len() > 0 => {}
            Err(error) => self.completed.extend(self.flight.stop_fragmenting(error.into())),
        }
        false
    }

    /// Deals with a broken path: other engines take over the requests, or they fail.
    #[inline(never)]
    fn turn_broken(&mut self, now_ns: u64) -> bool {
        let Some(why) = self.path.error().cloned() else { return false };
        let mut busy = !self.completed.is_empty();
        if self.flight.is_fragmenting() {
            self.completed.extend(self.flight.stop_fragmenting(why.clone()));
        }
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        if self.error.is_none() {
            self.error = Some(EngineError::new(&shared.donor, why.clone()));
            state.working_engines -= 1;
            busy = true;
        }
        while let Some(request) = self.taken.pop_back().or_else(|| self.lone_unposted.take()) {
            state.give_back(request);
        }
        complete_all(
            &mut state,
            self.engine_index,
            &shared,
            &mut self.completed,
            now_ns,
            &mut self.finished,
            &mut self.outgoing,
        );
        busy |= self.hand_over_requests(&mut state, &why);
        shared.publish(&state);
        drop(state);
        self.deliver();
        busy
    }

    /// Wakes other engines for what is in the queue. If none can reach the donor, ends all requests in it. Returns
    /// whether any ended.
    fn hand_over_requests(&mut self, state: &mut State, why: &FailureCause) -> bool {
        if !state.has_no_engine() {
            if state.working_engines > 0 && state.queued() > 0 {
                state.inboxes().filter(|inbox| !Arc::ptr_eq(inbox, &self.inbox)).for_each(|inbox| inbox.wake());
            }
            return false;
        }
        let error = EngineError::new(&self.shared.donor, why.clone());
        let ended = state.end_all(|tag, target| Finished { tag, result: Err(error.clone()), target });
        let has_ended = !ended.is_empty();
        for (owner, finished) in ended {
            if owner == self.engine_index {
                self.finished.push(finished);
            } else if let Some(inbox) = state.inbox(owner) {
                self.outgoing.push((Arc::clone(inbox), finished));
            }
        }
        has_ended
    }
}

/// Takes further requests from the queue, until `max` are taken.
#[inline(never)]
fn take_more(state: &mut State, first: &mut Option<TakenRequest>, taken: &mut VecDeque<TakenRequest>, max: usize) {
    let before = taken.len();
    taken.extend(first.take());
    while taken.len() < max
        && let Some(request) = state.take_first()
    {
        taken.push_back(request);
    }
    state.count_taken((taken.len() - before) as u64);
}

#[inline(never)]
fn note_failure(state: &mut State, shared: &Shared, why: FailureCause) -> Result<(), EngineError> {
    state.stats.failed += 1;
    Err(EngineError::new(&shared.donor, why))
}

#[inline(never)]
fn route(state: &State, owner: u32, one: Finished, outgoing: &mut Vec<(Arc<Inbox>, Finished)>) {
    if let Some(inbox) = state.inbox(owner) {
        outgoing.push((Arc::clone(inbox), one));
    }
}

/// Completes requests that have finished, and sorts them by owner: into `finished` or `outgoing`.
#[inline(never)]
fn complete_all(
    state: &mut State,
    engine_index: u32,
    shared: &Shared,
    completed: &mut Vec<Completed>,
    now_ns: u64,
    finished: &mut Vec<Finished>,
    outgoing: &mut Vec<(Arc<Inbox>, Finished)>,
) {
    for Completed { request, posted_ns, error } in completed.drain(..) {
        let times = error.is_none().then_some((posted_ns, now_ns));
        let (owner, tag) = state.complete(request.key, times);
        let result = error.map_or(Ok(()), |why| note_failure(state, shared, *why));
        let one = Finished { tag, result, target: request.into_target() };
        if owner == engine_index {
            finished.push(one);
        } else {
            route(state, owner, one, outgoing);
        }
    }
}

impl<P: Path> Readiness for Engine<P> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.path.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        let armed = self.path.arm(now_ns)?;
        let can_post = self.error.is_none() && self.path.room() > 0;
        let has_work = !self.finished.is_empty()
            || !self.completed.is_empty()
            || self.inbox.has_any()
            || self.lone_unposted.is_some()
            || can_post
                && (!self.taken.is_empty() || self.flight.is_fragmenting() || self.shared.lock().has_something())
            || self.error.is_some() && self.shared.lock().has_no_engine();
        if has_work && armed != Armed::Ready {
            self.path.disarm();
            return Ok(Armed::Ready);
        }
        Ok(armed)
    }

    fn disarm(&mut self) -> bool {
        self.path.disarm()
    }
}

impl<P: Path> Drop for Engine<P> {
    fn drop(&mut self) {
        self.path.close();
        let Self { path, flight, completed, .. } = self;
        path.poll(&mut |mut done| {
            // Whatever error the device reports, the cause is that the engine was dropped.
            done.error = done.error.take().map(|_| Box::new(FailureCause::Dropped));
            let Some(LoneDone { key, posted_ns }) = flight.complete_one(done.id) else {
                return flight.complete_others(done, completed);
            };
            let buffer = done.targets.pop().map_or(Buffer::None, Buffer::Target);
            let request = TakenRequest { key, start: 0, len: 0, buffer };
            completed.push(Completed { request, posted_ns, error: done.error });
        });
        completed.extend(flight.abandon(&FailureCause::Dropped));
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        while let Some(request) = self.taken.pop_back().or_else(|| self.lone_unposted.take()) {
            state.give_back(request);
        }
        complete_all(
            &mut state,
            self.engine_index,
            &shared,
            &mut self.completed,
            0,
            &mut self.finished,
            &mut self.outgoing,
        );
        if self.error.is_none() {
            state.working_engines -= 1;
        }
        state.leave(self.engine_index);
        self.hand_over_requests(&mut state, &FailureCause::NotConnected);
        shared.publish(&state);
        drop(state);
        self.deliver();
    }
}
