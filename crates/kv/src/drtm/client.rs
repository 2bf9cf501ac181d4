//! The client of DrTM-KV's store.

use sinew_fabric::verbs::{
    Completion, CompletionQueue, Device, Operation, QueuePair, RemoteMemory, Request, Scatter, Source,
};
use sinew_herd::RequestError;
use sinew_mem::{Arena, Frozen, MessageBuffer};
use sinew_store::locked::{Layout, LockWord, Search};
use sinew_store::remote::{Index, Span, Step};

use super::locations::Locations;
use super::{EXISTS, LOCK_LEN, NOT_HELD};
use crate::one_sided::{
    self, AskError, BURST, Change, ClientError, Cq, Domain, Hello, Outcome, Qp, Status, Thread, Welcome, check_key,
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
    pub again: u64,
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
enum Ask {
    Get,
    Put,
    Delete,
}

/// The operation that a request has in flight, or will start after a wait.
#[derive(Clone, Copy, Debug)]
enum Act {
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
struct Asked {
    ask: Ask,
    tag: u64,
    asked_ns: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    search: Search,
    /// Time at which the current search began.
    search_ns: u64,
    act: Act,
    conflicts: u32,
    /// Absent while a READ or a compare-and-swap uses it.
    buffer: Option<MessageBuffer>,
    /// Data of the WRITE, if it is too long to be sent inline.
    staged: Option<Frozen>,
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
        let asked = |buffer| Asked {
            ask: Ask::Get,
            tag: 0,
            asked_ns: 0,
            key: Vec::with_capacity(64),
            value: Vec::with_capacity(64),
            search: layout.search(&[]).0,
            search_ns: 0,
            act: Act::Insert,
            conflicts: 0,
            buffer: Some(buffer),
            staged: None,
        };
        let asked: Vec<_> = inner.buffers.into_iter().map(asked).collect();
        Ok(DrtmClient {
            layout,
            holder: u16::from_le_bytes(*holder),
            locations: Locations::new(config.locations),
            free: (0..asked.len()).rev().collect(),
            waiting: Vec::with_capacity(asked.len()),
            answered: Vec::with_capacity(BURST),
            asked,
            completions: Vec::with_capacity(BURST),
            image: Vec::new(),
            qp: inner.qp,
            cq: inner.cq,
            _thread: inner.thread,
            arena: inner.arena,
            memory: welcome.memory,
            is_pushed: false,
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
    asked: Vec<Asked>,
    free: Vec<usize>,
    /// Requests that wait, each with the time at which it goes on.
    waiting: Vec<(u64, usize)>,
    /// Answered calls: the request, and the kind of the answer.
    answered: Vec<(usize, u16)>,
    completions: Vec<Completion>,
    /// Scratch for the data of a WRITE.
    image: Vec<u8>,
    qp: Qp<D>,
    cq: Cq<D>,
    _thread: Thread<D>,
    arena: Arena,
    memory: RemoteMemory,
    is_pushed: bool,
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
        self.asked.len() - self.free.len()
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
        self.ask(Ask::Get, tag, key, &[], now_ns)
    }

    /// Stores a value: in place if the key has an item, else by a message to the owner.
    ///
    /// # Errors
    ///
    /// [`AskError`]; then nothing was asked.
    #[inline]
    pub fn put(&mut self, tag: u64, key: &[u8], value: &[u8], now_ns: u64) -> Result<(), AskError> {
        self.ask(Ask::Put, tag, key, value, now_ns)
    }

    /// Deletes an item: locks its record, and asks the owner to remove it.
    ///
    /// # Errors
    ///
    /// [`AskError`]; then nothing was asked.
    pub fn delete(&mut self, tag: u64, key: &[u8], now_ns: u64) -> Result<(), AskError> {
        self.ask(Ask::Delete, tag, key, &[], now_ns)
    }

    #[inline]
    fn ask(&mut self, ask: Ask, tag: u64, key: &[u8], value: &[u8], now_ns: u64) -> Result<(), AskError> {
        check_key(key)?;
        let (len, max) = (key.len() + value.len(), self.config.reads.owner.item_len_max);
        if len > max {
            return Err(AskError::Request(RequestError::TooLong { len, max }));
        }
        let Some(slot) = self.free.pop() else { return Err(AskError::Full) };
        let asked = &mut self.asked[slot];
        (asked.ask, asked.tag, asked.asked_ns, asked.conflicts) = (ask, tag, now_ns, 0);
        asked.key.clear();
        asked.key.extend_from_slice(key);
        asked.value.clear();
        asked.value.extend_from_slice(value);
        let act = if value.len() > self.layout.value_len_max as usize {
            // Too long for the table: the owner's refusal gives the answer.
            Act::Insert
        } else {
            self.first(slot, true, now_ns)
        };
        if self.act(slot, act) {
            return Ok(());
        }
        self.free.push(slot);
        Err(AskError::Request(RequestError::Refused))
    }

    /// Returns the first operation of a request. `may_lock` permits locking a remembered record without a READ before.
    #[inline(always)]
    fn first(&mut self, slot: usize, may_lock: bool, now_ns: u64) -> Act {
        let asked = &mut self.asked[slot];
        asked.search_ns = now_ns;
        let (search, span) = self.layout.search(&asked.key);
        let location = self.locations.get(search.hash()).filter(|(record, _)| *record < self.layout.records);
        asked.search = search;
        match location {
            None => Act::Read(span),
            Some((record, version)) if may_lock && asked.ask != Ask::Get => Act::Lock(record, LockWord::free(version)),
            Some((record, _)) => {
                let (search, span) = self.layout.search_record(&asked.key, record);
                asked.search = search;
                Act::Read(span)
            }
        }
    }

    /// Starts an operation, or lets it wait until a call to the owner can be made; returns false if the connection
    /// accepts no more.
    #[inline]
    fn act(&mut self, slot: usize, act: Act) -> bool {
        self.asked[slot].act = act;
        match act {
            Act::Read(span) => self.read(slot, span),
            Act::Lock(record, lock) => self.compare_swap(slot, record, lock, lock.held_by(self.holder)),
            Act::Store(record, lock) => self.store(slot, record, lock),
            Act::Insert | Act::Remove(..) => match self.call(slot) {
                Err(RequestError::Full) => {
                    self.waiting.push((0, slot));
                    true
                }
                called => called.is_ok(),
            },
        }
    }

    fn read(&mut self, slot: usize, span: Span) -> bool {
        let Some(mut buffer) = self.asked[slot].buffer.take() else { return false };
        let Some(remote) = self.memory.at(span.offset).filter(|_| buffer.resize(span.len).is_ok()) else {
            self.asked[slot].buffer = Some(buffer);
            return false;
        };
        let mut target = Scatter::new();
        target.push(buffer);
        self.stats.reads += 1;
        self.push(slot, Operation::Read { target, remote })
    }

    fn compare_swap(&mut self, slot: usize, record: u32, expected: LockWord, desired: LockWord) -> bool {
        let Some(mut target) = self.asked[slot].buffer.take() else { return false };
        let place = self.memory.at(self.layout.record_span(record).offset);
        let Some(remote) = place.filter(|_| target.resize(size_of::<u64>()).is_ok()) else {
            self.asked[slot].buffer = Some(target);
            return false;
        };
        self.stats.atomics += 1;
        let (expected, desired) = (expected.0, desired.0);
        self.push(slot, Operation::CompareSwap { target, remote, expected, desired })
    }

    #[inline(always)]
    fn push(&mut self, slot: usize, operation: Operation<'_>) -> bool {
        self.is_pushed = true;
        match self.qp.push(Request::new(slot as u64, operation)) {
            Ok(()) => true,
            Err(mut refused) => {
                self.asked[slot].buffer = refused.buffers.pop();
                false
            }
        }
    }

    /// Updates the value and unlocks the record. The connection executes both in order.
    fn store(&mut self, slot: usize, record: u32, lock: LockWord) -> bool {
        let asked = &mut self.asked[slot];
        let next = lock.next();
        let at = self.layout.image(&mut self.image, asked.search.hash(), record, next.version(), &asked.value);
        let Some(remote) = self.memory.at(at) else { return false };
        let source = if self.image.len() <= INLINE_MAX {
            Source::Inline(&self.image)
        } else {
            // The WRITE that used this buffer has completed.
            let kept = asked.staged.take().and_then(|staged| staged.thaw().ok());
            let fresh = || self.arena.alloc(self.config.reads.read_len_max, self.config.reads.read_len_max).ok();
            let Some(mut buffer) = kept.or_else(fresh) else { return false };
            if buffer.fill(&self.image).is_err() {
                return false;
            }
            let staged = buffer.freeze();
            asked.staged = Some(staged.clone());
            staged.into()
        };
        let write = Operation::Write { source, remote, immediate: None };
        self.stats.writes += 1;
        self.qp.push(Request::new(slot as u64, write).unsignaled()).is_ok()
            && self.compare_swap(slot, record, lock, next)
    }

    fn call(&mut self, slot: usize) -> Result<(), RequestError> {
        let Asked { key, value, act, asked_ns, .. } = &self.asked[slot];
        let mut tail = [0; LOCK_LEN];
        let (change, rest) = match act {
            Act::Remove(record, lock) => {
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
        if std::mem::take(&mut self.is_pushed) {
            self.qp.doorbell();
        }
        self.calls.flush();
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
            count += usize::from(self.called(slot, kind, now_ns, &mut take)?);
        }
        self.answered.clear();
        if !self.waiting.is_empty() {
            self.resume(now_ns)?;
        }
        self.cq.poll(&mut self.completions, BURST);
        let mut completions = std::mem::take(&mut self.completions);
        let mut failed = None;
        for mut completion in completions.drain(..) {
            if failed.is_some() {
                continue;
            }
            if !completion.status.is_success() {
                failed = Some(ClientError::Read(completion.status));
                continue;
            }
            let Some(buffer) = completion.buffers.pop() else { continue };
            match self.advance(completion.id as usize, buffer, now_ns, &mut take) {
                Ok(ended) => count += usize::from(ended),
                Err(error) => failed = Some(error),
            }
        }
        self.completions = completions;
        self.flush();
        failed.map_or(Ok(count), Err)
    }

    /// Resumes the requests that have waited long enough.
    fn resume(&mut self, now_ns: u64) -> Result<(), ClientError> {
        let mut at = 0;
        for _ in 0..self.waiting.len() {
            let (due_ns, slot) = self.waiting[at];
            if due_ns > now_ns {
                at += 1;
                continue;
            }
            // A request that must wait again is put at the end.
            self.waiting.remove(at);
            let act = self.asked[slot].act;
            self.go_on(slot, act)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn go_on(&mut self, slot: usize, act: Act) -> Result<bool, ClientError> {
        if self.act(slot, act) { Ok(false) } else { Err(ClientError::Broken) }
    }

    /// Ends a request and reports its status; always returns true, for "ended".
    fn end(&mut self, slot: usize, status: Option<Status>, take: &mut impl FnMut(Outcome<'_>)) -> bool {
        let asked = &self.asked[slot];
        self.stats.done += 1;
        self.stats.gets += u64::from(asked.ask == Ask::Get);
        take(Outcome { tag: asked.tag, status, value: &[], asked_ns: asked.asked_ns });
        self.free.push(slot);
        true
    }

    /// Processes the owner's answer; returns whether the request has ended.
    fn called(
        &mut self,
        slot: usize,
        kind: u16,
        now_ns: u64,
        take: &mut impl FnMut(Outcome<'_>),
    ) -> Result<bool, ClientError> {
        let Some(asked) = self.asked.get_mut(slot) else { return Ok(false) };
        let hash = asked.search.hash();
        match (asked.act, kind) {
            // Another client has inserted the key in the meantime.
            (Act::Insert, EXISTS) if asked.conflicts < self.config.conflicts_max => {
                asked.conflicts += 1;
                self.stats.retries += 1;
                let act = self.first(slot, false, now_ns);
                self.go_on(slot, act)
            }
            (Act::Insert, EXISTS) => Ok(self.end(slot, Some(Status::Contended), take)),
            (_, NOT_HELD) => Ok(self.end(slot, Some(Status::Torn), take)),
            _ => {
                if kind == Status::Deleted as u16 {
                    self.locations.forget(hash);
                }
                // `Found` comes only from the READs of a GET, never from the owner.
                Ok(self.end(slot, Status::of(kind).filter(|status| *status != Status::Found), take))
            }
        }
    }

    /// Processes a completed READ or compare-and-swap; returns whether the request has ended.
    #[inline]
    fn advance(
        &mut self,
        slot: usize,
        buffer: MessageBuffer,
        now_ns: u64,
        take: &mut impl FnMut(Outcome<'_>),
    ) -> Result<bool, ClientError> {
        let Some(asked) = self.asked.get_mut(slot) else { return Ok(false) };
        let hash = asked.search.hash();
        let was = LockWord(buffer.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word)));
        let act = match (asked.act, asked.ask) {
            (Act::Read(_), ask) => match self.layout.step(&mut asked.search, &asked.key, &buffer) {
                Step::Read(span) => Act::Read(span),
                Step::Again(span) => {
                    self.stats.again += 1;
                    if now_ns.saturating_sub(asked.search_ns) >= self.config.reads.give_up_ns {
                        asked.buffer = Some(buffer);
                        return Ok(self.end(slot, Some(Status::Torn), take));
                    }
                    Act::Read(span)
                }
                Step::Found(value) => {
                    let Some((record, lock)) = asked.search.found() else { return Ok(false) };
                    self.locations.put(hash, record, lock.version());
                    if ask == Ask::Get {
                        let (tag, asked_ns) = (asked.tag, asked.asked_ns);
                        take(Outcome { tag, status: Some(Status::Found), value, asked_ns });
                        asked.buffer = Some(buffer);
                        self.stats.done += 1;
                        self.stats.gets += 1;
                        self.free.push(slot);
                        return Ok(true);
                    }
                    if lock.holder().is_some() {
                        asked.buffer = Some(buffer);
                        return self.conflict(slot, true, now_ns, take);
                    }
                    Act::Lock(record, lock)
                }
                Step::Missing if ask == Ask::Put => Act::Insert,
                Step::Missing => {
                    asked.buffer = Some(buffer);
                    self.locations.forget(hash);
                    return Ok(self.end(slot, Some(Status::Absent), take));
                }
            },
            (Act::Lock(_, lock), _) if was != lock => {
                asked.buffer = Some(buffer);
                let is_held = was.holder().is_some_and(|holder| holder != LockWord::OWNER);
                return self.conflict(slot, is_held, now_ns, take);
            }
            (Act::Lock(record, lock), Ask::Delete) => Act::Remove(record, lock.held_by(self.holder)),
            (Act::Lock(record, lock), _) => Act::Store(record, lock.held_by(self.holder)),
            (Act::Store(record, lock), _) => {
                asked.buffer = Some(buffer);
                let status = if was == lock { Status::Stored } else { Status::Torn };
                self.locations.put(hash, record, lock.next().version());
                return Ok(self.end(slot, Some(status), take));
            }
            (Act::Insert | Act::Remove(..), _) => return Ok(false),
        };
        asked.buffer = Some(buffer);
        self.go_on(slot, act)
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
        let asked = &mut self.asked[slot];
        self.stats.conflicts += u64::from(is_held);
        asked.conflicts += 1;
        let conflicts = asked.conflicts;
        if conflicts > self.config.conflicts_max {
            return Ok(self.end(slot, Some(Status::Contended), take));
        }
        self.stats.retries += 1;
        let act = self.first(slot, false, now_ns);
        if !is_held {
            return self.go_on(slot, act);
        }
        // xorshift64
        self.random |= 1;
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let longest = self.config.back_off_ns << (conflicts - 1).min(DOUBLINGS_MAX);
        let wait_ns = longest / 2 + self.random % (longest / 2 + 1);
        let due_ns = now_ns.saturating_add(wait_ns);
        let asked = &mut self.asked[slot];
        (asked.act, asked.search_ns) = (act, due_ns);
        self.waiting.push((due_ns, slot));
        Ok(false)
    }
}
