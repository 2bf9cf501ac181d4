//! The client of DrTM-KV's store.

use sinew_fabric::verbs::{Device, Operation, QueuePair, RefusedRequest, RemoteMemory, Request, Source};
use sinew_herd::RequestError;
use sinew_mem::{Arena, Frozen, MessageBuffer};
use sinew_store::locked::{Layout, LockWord, Search};
use sinew_store::remote::{Index, Span, Step};

use super::locations::Locations;
use super::{EXISTS, LOCK_LEN, NOT_HELD};
use crate::one_sided::{
    self, AskError, Change, ClientError, Cq, Domain, Hello, Outcome, Qp, Reads, Status, Thread, Welcome, check_key,
};

/// Doublings of a back-off, at most.
const DOUBLINGS_MAX: u32 = 7;
/// Longest WRITE that is sent inline with its request, in bytes.
const INLINE_MAX: usize = 64;

/// Limits of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// As for any client whose GETs are READs; the window counts all requests, not only GETs.
    pub reads: one_sided::ClientConfig,
    /// Locations that the client remembers, 16 bytes each.
    pub locations: usize,
    /// Conflicts with other requests after which a PUT or DELETE ends as [`Status::Contended`].
    pub conflicts_max: u32,
    /// Back-off after the first conflict with a held lock, in nanoseconds; it doubles up to 128 times that, less a
    /// random part of up to half.
    pub back_off_ns: u64,
}

impl ClientConfig {
    /// Limits of 32 conflicts, which take a millisecond or more, and a back-off of 500 ns.
    pub fn new(reads: one_sided::ClientConfig, locations: usize) -> Self {
        Self { reads, locations, conflicts_max: 32, back_off_ns: 500 }
    }
}

/// Counters of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// Requests completed.
    pub done: u64,
    /// GETs among them.
    pub gets: u64,
    /// READs.
    pub reads: u64,
    /// READs that found a change under way, or an item that had moved.
    pub reads_repeated: u64,
    /// Compare-and-swaps.
    pub atomics: u64,
    /// WRITEs.
    pub writes: u64,
    /// Attempts to lock that found the lock held by another request, of this client or of another.
    pub conflicts: u64,
    /// Retries, after conflicts and after values that others had changed meanwhile.
    pub retries: u64,
    /// Calls to the owner.
    pub calls: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    Get,
    Put,
    Delete,
}

/// The operation that a request has in flight, or will start after a wait.
#[derive(Clone, Copy, Debug)]
enum Action {
    Read(Span),
    /// Compare-and-swap of the lock word, expected as it was last seen.
    Lock(u32, LockWord),
    /// WRITE of the value, and compare-and-swap of the lock word that this client holds.
    Store(u32, LockWord),
    /// Call to the owner to insert the item.
    Insert,
    /// Call to the owner to remove the item of a record that this client has locked.
    Remove(u32, LockWord),
}

/// The state of a request.
struct PendingRequest {
    kind: RequestKind,
    tag: u64,
    asked_ns: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    search: Search,
    /// Time at which the current search began.
    search_ns: u64,
    action: Action,
    conflicts: u32,
    /// Absent while a READ or a compare-and-swap uses it.
    buffer: Option<MessageBuffer>,
    /// Data of the WRITE.
    image: Vec<u8>,
    /// A share of the same data, if it is too long to be sent inline.
    staged: Option<Frozen>,
}

/// A compare-and-swap of a record's lock word.
struct Swap {
    slot: usize,
    target: MessageBuffer,
    remote: RemoteMemory,
    expected: LockWord,
    desired: LockWord,
}

/// A client that is not connected yet.
pub struct Joining<D: Device> {
    inner: one_sided::Joining<D>,
    config: ClientConfig,
}

impl<D: Device> Joining<D> {
    /// Makes the queues of a client for the calling thread, and its introduction to the owner.
    ///
    /// # Errors
    ///
    /// As for [`one_sided::Joining::prepare`].
    pub fn prepare(device: &D, domain: &Domain<D>, config: &ClientConfig) -> Result<(Self, Hello), ClientError> {
        let (inner, hello) = one_sided::Joining::with_depth(device, domain, &config.reads, 2)?;
        Ok((Self { inner, config: *config }, hello))
    }

    /// Returns the client, once the owner has welcomed it.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn join(self, welcome: &Welcome) -> Result<DrtmClient<D>, ClientError> {
        let Self { mut inner, config } = self;
        let (table, holder) = welcome.table.split_last_chunk::<2>().ok_or(ClientError::Table)?;
        let layout: Layout = inner.index(table, welcome)?;
        let calls = inner.calls.join(&welcome.calls)?;
        inner.qp.connect(Some(&welcome.reads))?;
        let new_pending = |buffer| PendingRequest {
            kind: RequestKind::Get,
            tag: 0,
            asked_ns: 0,
            key: Vec::with_capacity(64),
            value: Vec::with_capacity(64),
            search: layout.search_hash(0).0,
            search_ns: 0,
            action: Action::Insert,
            conflicts: 0,
            buffer: Some(buffer),
            image: Vec::with_capacity(INLINE_MAX),
            staged: None,
        };
        let pending: Vec<_> = inner.buffers.into_iter().map(new_pending).collect();
        Ok(DrtmClient {
            layout,
            holder: u16::from_le_bytes(*holder),
            locations: Locations::new(config.locations),
            free: (0..pending.len()).rev().collect(),
            waiting: Vec::with_capacity(pending.len()),
            answered: Vec::with_capacity(pending.len()),
            reads: Reads::new(welcome.memory, pending.len()),
            writes: Vec::with_capacity(pending.len()),
            swaps: Vec::with_capacity(pending.len()),
            pending,
            qp: inner.qp,
            cq: inner.cq,
            _thread: inner.thread,
            arena: inner.arena,
            memory: welcome.memory,
            is_broken: false,
            random: u64::from(welcome.reads.number.0) << 16 | u64::from(u16::from_le_bytes(*holder)),
            config,
            stats: ClientStats::default(),
            calls,
        })
    }
}

/// A client, which belongs to one thread. Requests start with [`DrtmClient::flush`] and end in [`DrtmClient::poll`].
/// Requests for the same key that are in flight together may be executed in any order.
pub struct DrtmClient<D: Device> {
    layout: Layout,
    /// This client's number in lock words.
    holder: u16,
    locations: Locations,
    pending: Vec<PendingRequest>,
    free: Vec<usize>,
    /// Requests that wait, each with the time at which it goes on.
    waiting: Vec<(u64, usize)>,
    /// Answered calls: the request, and the kind of the answer.
    answered: Vec<(usize, u16)>,
    /// By request, and also what compare-and-swaps returned.
    reads: Reads,
    /// WRITEs and compare-and-swaps that the next doorbell starts. A record is written before it is unlocked.
    writes: Vec<(usize, RemoteMemory)>,
    swaps: Vec<Swap>,
    qp: Qp<D>,
    cq: Cq<D>,
    _thread: Thread<D>,
    arena: Arena,
    memory: RemoteMemory,
    is_broken: bool,
    random: u64,
    config: ClientConfig,
    stats: ClientStats,
    calls: sinew_herd::Client<D>,
}

impl<D: Device> DrtmClient<D> {
    /// Counters so far.
    pub fn stats(&self) -> &ClientStats {
        &self.stats
    }

    /// Layout of the owner's table.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The number by which lock words name this client.
    pub fn holder(&self) -> u16 {
        self.holder
    }

    /// Requests in flight.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.pending.len() - self.free.len()
    }

    /// Whether another request would be accepted.
    #[inline]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Asks for the value of a key.
    ///
    /// # Errors
    ///
    /// [`AskError`]; then nothing was asked.
    #[inline]
    pub fn get(&mut self, tag: u64, key: &[u8], now_ns: u64) -> Result<(), AskError> {
        self.request(RequestKind::Get, tag, key, &[], now_ns)
    }

    /// Stores a value: in place if the key has an item, else by a message to the owner.
    ///
    /// # Errors
    ///
    /// [`AskError`]; then nothing was asked.
    #[inline]
    pub fn put(&mut self, tag: u64, key: &[u8], value: &[u8], now_ns: u64) -> Result<(), AskError> {
        self.request(RequestKind::Put, tag, key, value, now_ns)
    }

    /// Deletes an item: locks its record, and asks the owner to remove it.
    ///
    /// # Errors
    ///
    /// [`AskError`]; then nothing was asked.
    pub fn delete(&mut self, tag: u64, key: &[u8], now_ns: u64) -> Result<(), AskError> {
        self.request(RequestKind::Delete, tag, key, &[], now_ns)
    }

    #[inline]
    fn request(&mut self, kind: RequestKind, tag: u64, key: &[u8], value: &[u8], now_ns: u64) -> Result<(), AskError> {
        check_key(key)?;
        let (len, max) = (key.len() + value.len(), self.config.reads.owner.item_len_max);
        if len > max {
            return Err(AskError::Request(RequestError::TooLong { len, max }));
        }
        let Some(slot) = self.free.pop() else { return Err(AskError::Full) };
        let pending = &mut self.pending[slot];
        (pending.kind, pending.tag, pending.asked_ns, pending.conflicts) = (kind, tag, now_ns, 0);
        pending.key.clear();
        pending.key.extend_from_slice(key);
        pending.value.clear();
        pending.value.extend_from_slice(value);
        let action = if value.len() > self.layout.value_len_max as usize {
            // Too long for the table: the owner's refusal gives the answer.
            Action::Insert
        } else {
            self.first_action(slot, true, now_ns)
        };
        if self.perform(slot, action) {
            return Ok(());
        }
        self.free.push(slot);
        Err(AskError::Request(RequestError::Refused))
    }

    /// Returns the first operation of a request. `may_lock` permits locking a remembered record without a READ before.
    #[inline(always)]
    fn first_action(&mut self, slot: usize, may_lock: bool, now_ns: u64) -> Action {
        let pending = &mut self.pending[slot];
        pending.search_ns = now_ns;
        let hash = self.layout.hash(&pending.key);
        let location = self.locations.get(hash).filter(|(record, _)| *record < self.layout.records);
        let (search, span) = match location {
            None => self.layout.search_hash(hash),
            Some((record, _)) => self.layout.search_record(hash, record),
        };
        pending.search = search;
        match location {
            Some((record, version)) if may_lock && pending.kind != RequestKind::Get => {
                Action::Lock(record, LockWord::free(version))
            }
            _ => Action::Read(span),
        }
    }

    /// Has the next doorbell start an operation, or lets it wait until a call to the owner can be made; returns false
    /// if that is impossible.
    #[inline]
    fn perform(&mut self, slot: usize, action: Action) -> bool {
        self.pending[slot].action = action;
        match action {
            Action::Read(span) => self.read(slot, span),
            Action::Lock(record, lock) => self.compare_swap(slot, record, lock, lock.held_by(self.holder)),
            Action::Store(record, lock) => self.store(slot, record, lock),
            Action::Insert | Action::Remove(..) => match self.call(slot) {
                Err(RequestError::Full) => {
                    self.waiting.push((0, slot));
                    true
                }
                called => called.is_ok(),
            },
        }
    }

    #[inline(always)]
    fn read(&mut self, slot: usize, span: Span) -> bool {
        let pending = &mut self.pending[slot];
        let Some(buffer) = pending.buffer.take() else { return false };
        match self.reads.add(slot, span, buffer) {
            Ok(()) => true,
            Err(buffer) => {
                pending.buffer = Some(buffer);
                false
            }
        }
    }

    fn compare_swap(&mut self, slot: usize, record: u32, expected: LockWord, desired: LockWord) -> bool {
        let Some(mut target) = self.pending[slot].buffer.take() else { return false };
        let location = self.memory.at(self.layout.record_span(record).offset);
        let Some(remote) = location.filter(|_| target.resize(size_of::<u64>()).is_ok()) else {
            self.pending[slot].buffer = Some(target);
            return false;
        };
        self.swaps.push(Swap { slot, target, remote, expected, desired });
        true
    }

    /// Updates the value and unlocks the record. The connection executes both in order.
    fn store(&mut self, slot: usize, record: u32, lock: LockWord) -> bool {
        let pending = &mut self.pending[slot];
        let next = lock.next();
        let (hash, version) = (pending.search.hash(), next.version());
        let offset = self.layout.image(&mut pending.image, hash, record, version, &pending.value);
        let Some(remote) = self.memory.at(offset) else { return false };
        if pending.image.len() > INLINE_MAX && !self.stage(slot) {
            return false;
        }
        self.writes.push((slot, remote));
        self.compare_swap(slot, record, lock, next)
    }

    /// Copies the data of a WRITE to a buffer; returns false if there is no memory.
    fn stage(&mut self, slot: usize) -> bool {
        let pending = &mut self.pending[slot];
        // The WRITE that used this buffer has completed.
        let kept = pending.staged.take().and_then(|staged| staged.thaw().ok());
        let len_max = self.config.reads.read_len_max;
        let Some(mut buffer) = kept.or_else(|| self.arena.alloc(len_max, len_max).ok()) else { return false };
        let is_filled = buffer.fill(&pending.image).is_ok();
        pending.staged = is_filled.then(|| buffer.freeze());
        is_filled
    }

    fn call(&mut self, slot: usize) -> Result<(), RequestError> {
        let PendingRequest { key, value, action, asked_ns, .. } = &self.pending[slot];
        let mut tail = [0; LOCK_LEN];
        let (change, rest) = match action {
            Action::Remove(record, lock) => {
                tail[..4].copy_from_slice(&record.to_le_bytes());
                tail[4..].copy_from_slice(&lock.0.to_le_bytes());
                (Change::Delete, &tail[..])
            }
            _ => (Change::Put, &value[..]),
        };
        let len = key.len() + rest.len();
        self.calls.request_with(0, slot as u64, change.kind(key.len()), len, *asked_ns, |body| {
            let (first, second) = body.split_at_mut(key.len());
            first.copy_from_slice(key);
            second.copy_from_slice(rest);
        })?;
        self.stats.calls += 1;
        Ok(())
    }

    /// Starts the requests made so far.
    #[inline]
    pub fn flush(&mut self) {
        if !self.is_broken {
            self.is_broken = self.post().is_err();
        }
        self.calls.flush();
    }

    /// Posts the operations that are due, with one doorbell, and stops at the first that the device refuses: a record
    /// that was not written must not be unlocked.
    #[inline(always)]
    fn post(&mut self) -> Result<(), RefusedRequest> {
        let reads = if self.swaps.is_empty() { self.reads.post(&mut self.qp) } else { self.post_updates() };
        self.stats.reads += reads? as u64;
        Ok(())
    }

    /// Posts WRITEs, then READs, and last the compare-and-swaps, which ring the doorbell. Returns the number of READs.
    fn post_updates(&mut self) -> Result<usize, RefusedRequest> {
        let Self { qp, writes, pending, swaps, reads, .. } = self;
        self.stats.writes += writes.len() as u64;
        let image = |slot: usize| Some(&pending[slot].image[..]).filter(|image| image.len() <= INLINE_MAX);
        let done = qp.write_at_once(writes.iter().map_while(|&(slot, remote)| Some((image(slot)?, remote))));
        for (slot, remote) in writes.drain(..).skip(done) {
            let source = match (image(slot), &pending[slot].staged) {
                (None, Some(staged)) => Source::from(staged.clone()),
                _ => Source::Inline(&pending[slot].image),
            };
            let write = Operation::Write { source, remote, immediate: None };
            qp.push(Request::new(slot as u64, write).unsignaled())?;
        }
        let count = reads.post_before_others(qp)?;
        self.stats.atomics += swaps.len() as u64;
        let requests = swaps.drain(..).map(|Swap { slot, target, remote, expected, desired }| {
            reads.expect();
            let (expected, desired) = (expected.0, desired.0);
            Request::new(slot as u64, Operation::CompareSwap { target, remote, expected, desired })
        });
        qp.post_list(requests)?;
        Ok(count)
    }

    /// Takes completed operations, starts the ones that follow, and passes each ended request to `take`. Returns the
    /// number of requests that ended. Never blocks.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; then connect again. Requests in flight may have been executed or not.
    #[inline]
    pub fn poll(&mut self, now_ns: u64, mut take: impl FnMut(Outcome<'_>)) -> Result<usize, ClientError> {
        let mut count = 0;
        let answered = &mut self.answered;
        self.calls.poll(now_ns, |answer| answered.push((answer.tag as usize, answer.kind)))?;
        for at in 0..self.answered.len() {
            let (slot, kind) = self.answered[at];
            count += usize::from(self.on_call_answer(slot, kind, now_ns, &mut take)?);
        }
        self.answered.clear();
        if !self.waiting.is_empty() {
            self.resume(now_ns)?;
        }
        let polled = self.reads.poll(&mut self.cq);
        let mut done = std::mem::take(&mut self.reads.done);
        for (slot, buffer) in done.drain(..) {
            count += usize::from(self.on_read(slot, buffer, now_ns, &mut take)?);
        }
        self.reads.done = done;
        polled.map_err(ClientError::Read)?;
        self.flush();
        if self.is_broken { Err(ClientError::Broken) } else { Ok(count) }
    }

    /// Resumes the requests that have waited long enough.
    fn resume(&mut self, now_ns: u64) -> Result<(), ClientError> {
        let mut index = 0;
        for _ in 0..self.waiting.len() {
            let (due_ns, slot) = self.waiting[index];
            if due_ns > now_ns {
                index += 1;
                continue;
            }
            // A request that must wait again is put at the end.
            self.waiting.remove(index);
            let action = self.pending[slot].action;
            self.perform_next(slot, action)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn perform_next(&mut self, slot: usize, action: Action) -> Result<bool, ClientError> {
        if self.perform(slot, action) { Ok(false) } else { Err(ClientError::Broken) }
    }

    /// Ends a request and reports its status; always returns true, for "ended".
    fn complete(&mut self, slot: usize, status: Option<Status>, take: &mut impl FnMut(Outcome<'_>)) -> bool {
        let pending = &self.pending[slot];
        self.stats.done += 1;
        self.stats.gets += u64::from(pending.kind == RequestKind::Get);
        take(Outcome { tag: pending.tag, status, value: &[], asked_ns: pending.asked_ns });
        self.free.push(slot);
        true
    }

    /// Processes the owner's answer; returns whether the request has ended.
    fn on_call_answer(
        &mut self,
        slot: usize,
        kind: u16,
        now_ns: u64,
        take: &mut impl FnMut(Outcome<'_>),
    ) -> Result<bool, ClientError> {
        let Some(pending) = self.pending.get_mut(slot) else { return Ok(false) };
        let hash = pending.search.hash();
        match (pending.action, kind) {
            // Another client has inserted the key in the meantime.
            (Action::Insert, EXISTS) if pending.conflicts < self.config.conflicts_max => {
                pending.conflicts += 1;
                self.stats.retries += 1;
                let action = self.first_action(slot, false, now_ns);
                self.perform_next(slot, action)
            }
            (Action::Insert, EXISTS) => Ok(self.complete(slot, Some(Status::Contended), take)),
            (_, NOT_HELD) => Ok(self.complete(slot, Some(Status::Torn), take)),
            _ => {
                if kind == Status::Deleted as u16 {
                    self.locations.forget(hash);
                }
                // `Found` comes only from the READs of a GET, never from the owner.
                Ok(self.complete(slot, Status::of(kind).filter(|status| *status != Status::Found), take))
            }
        }
    }

    /// Processes a completed READ or compare-and-swap; returns whether the request has ended.
    #[inline]
    fn on_read(
        &mut self,
        slot: usize,
        buffer: MessageBuffer,
        now_ns: u64,
        take: &mut impl FnMut(Outcome<'_>),
    ) -> Result<bool, ClientError> {
        let Some(pending) = self.pending.get_mut(slot) else { return Ok(false) };
        let hash = pending.search.hash();
        let lock_before = LockWord(buffer.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word)));
        let action = match (pending.action, pending.kind) {
            (Action::Read(_), kind) => match self.layout.step(&mut pending.search, &pending.key, &buffer) {
                Step::Read(span) => Action::Read(span),
                Step::Again(span) => {
                    self.stats.reads_repeated += 1;
                    if now_ns.saturating_sub(pending.search_ns) >= self.config.reads.give_up_ns {
                        pending.buffer = Some(buffer);
                        return Ok(self.complete(slot, Some(Status::Torn), take));
                    }
                    Action::Read(span)
                }
                Step::Found(value) => {
                    let Some((record, lock)) = pending.search.found() else { return Ok(false) };
                    self.locations.put(hash, record, lock.version());
                    if kind == RequestKind::Get {
                        let (tag, asked_ns) = (pending.tag, pending.asked_ns);
                        take(Outcome { tag, status: Some(Status::Found), value, asked_ns });
                        pending.buffer = Some(buffer);
                        self.stats.done += 1;
                        self.stats.gets += 1;
                        self.free.push(slot);
                        return Ok(true);
                    }
                    if lock.holder().is_some() {
                        pending.buffer = Some(buffer);
                        return self.conflict(slot, true, now_ns, take);
                    }
                    Action::Lock(record, lock)
                }
                Step::Missing if kind == RequestKind::Put => Action::Insert,
                Step::Missing => {
                    pending.buffer = Some(buffer);
                    self.locations.forget(hash);
                    return Ok(self.complete(slot, Some(Status::Absent), take));
                }
            },
            (Action::Lock(_, lock), _) if lock_before != lock => {
                pending.buffer = Some(buffer);
                let is_held = lock_before.holder().is_some_and(|holder| holder != LockWord::OWNER);
                return self.conflict(slot, is_held, now_ns, take);
            }
            (Action::Lock(record, lock), RequestKind::Delete) => Action::Remove(record, lock.held_by(self.holder)),
            (Action::Lock(record, lock), _) => Action::Store(record, lock.held_by(self.holder)),
            (Action::Store(record, lock), _) => {
                pending.buffer = Some(buffer);
                let status = if lock_before == lock { Status::Stored } else { Status::Torn };
                self.locations.put(hash, record, lock.next().version());
                return Ok(self.complete(slot, Some(status), take));
            }
            (Action::Insert | Action::Remove(..), _) => return Ok(false),
        };
        pending.buffer = Some(buffer);
        self.perform_next(slot, action)
    }

    /// Handles a conflict: READs the record again, after a back-off if the lock is held.
    #[cold]
    fn conflict(
        &mut self,
        slot: usize,
        is_held: bool,
        now_ns: u64,
        take: &mut impl FnMut(Outcome<'_>),
    ) -> Result<bool, ClientError> {
        let pending = &mut self.pending[slot];
        self.stats.conflicts += u64::from(is_held);
        pending.conflicts += 1;
        let conflicts = pending.conflicts;
        if conflicts > self.config.conflicts_max {
            return Ok(self.complete(slot, Some(Status::Contended), take));
        }
        self.stats.retries += 1;
        let action = self.first_action(slot, false, now_ns);
        if !is_held {
            return self.perform_next(slot, action);
        }
        // xorshift64
        self.random |= 1;
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let longest = self.config.back_off_ns << (conflicts - 1).min(DOUBLINGS_MAX);
        let wait_ns = longest / 2 + self.random % (longest / 2 + 1);
        let due_ns = now_ns.saturating_add(wait_ns);
        let pending = &mut self.pending[slot];
        (pending.action, pending.search_ns) = (action, due_ns);
        self.waiting.push((due_ns, slot));
        Ok(false)
    }
}
