//! The service: what a thread needs, besides its table, to execute commands.

use std::sync::Arc;
use std::time::Duration;

use sinew_mem::atomic::{AtomicU32, AtomicUsize};
use sinew_store::cache::{Cache, Item, Key, MissReason, Put, PutError, When};

use super::counters::Counters;
use super::detail::{Detail, Usage};
use super::filler::{Filler, Short};
use super::session::RetrievalOptions;
use super::tokens::Lookahead;
use crate::Partitions;
use crate::memcached::budget::Budget;

/// Limits for clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest item in bytes, as memcached counts it: key, value, and 59 to 63 more. Longer ones are refused.
    pub item_len_max: usize,
    /// Bytes of output from which on no more commands are executed until it is sent.
    pub out_len_max: usize,
    /// Longest value, in bytes, that is put into the output without asking. A longer one needs room
    /// ([`Then::Room`](super::NextStep::Room)), which the caller grants by raising this limit for the next run.
    pub answer_len_max: usize,
    /// Longest line, in bytes, that is checked as a whole; only a list of keys can be that long. A longer list is
    /// answered as it arrives: an error in it does not take back earlier answers.
    pub line_len_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { item_len_max: 1 << 20, out_len_max: 256 << 10, answer_len_max: usize::MAX, line_len_max: 64 << 10 }
    }
}

/// Description of the server, for `stats`. The default describes nothing.
#[derive(Clone, Debug)]
pub struct ServerInfo {
    /// Most connections.
    pub connections_max: usize,
    /// Seconds after which a silent connection is closed; 0 means never.
    pub idle_timeout_s: u32,
    /// Address of the listener: `HOST:PORT`, or `unix:PATH`.
    pub address: String,
    /// Permissions of a Unix socket.
    pub socket_mode: u32,
    /// Whether items are evicted to make room for new ones.
    pub evicts: bool,
    /// Returns the processor time that the process has used, in user and in system mode.
    pub cpu_times: fn() -> [Duration; 2],
}

impl Default for ServerInfo {
    fn default() -> Self {
        Self {
            connections_max: 0,
            idle_timeout_s: 0,
            address: String::new(),
            socket_mode: 0o700,
            evicts: true,
            cpu_times: || [Duration::ZERO; 2],
        }
    }
}

/// State that the threads of a server share.
#[derive(Debug)]
pub struct Shared {
    /// The counters of each thread, by partition.
    pub counters: Box<[Counters]>,
    /// The counts by key prefix.
    pub detail: Detail,
    /// The memory for connections.
    pub budget: Budget,
    /// Open connections.
    pub connections: AtomicUsize,
    /// The level that the last `verbosity` command set.
    pub verbosity: AtomicU32,
    /// Description of the server.
    pub info: ServerInfo,
}

impl Shared {
    /// Shared state of `threads` threads.
    pub fn new(threads: usize, budget: Budget, info: ServerInfo) -> Self {
        Self {
            counters: (0..threads).map(|_| Counters::default()).collect(),
            detail: Detail::new(threads),
            budget,
            connections: AtomicUsize::new(0),
            verbosity: AtomicU32::new(0),
            info,
        }
    }
}

/// Longest relative exptime, in seconds: 30 days. Larger ones are Unix time.
const RELATIVE_MAX_S: i32 = 60 * 60 * 24 * 30;
/// An expiry that has passed: the clock begins with 1.
const EXPIRED: u32 = 1;

/// Marks of items.
pub(super) mod mark {
    /// The item was fetched.
    pub const FETCHED: u8 = sinew_store::cache::FETCHED;
    /// A client was told to recreate the value.
    pub const TOKEN_SENT: u8 = 2;
    /// The value is stale and should be recreated.
    pub const STALE: u8 = 4;
    /// The key was given in base64, and is shown in base64.
    pub const KEY_IN_BASE64: u8 = 8;
}

/// All that a thread needs to serve memcached clients, except for the table.
#[derive(Debug)]
pub struct Service {
    /// Limits for clients.
    pub limits: Limits,
    /// The mapping from keys to partitions.
    pub partitions: Partitions,
    /// The partition that this thread owns.
    pub partition: usize,
    /// Unix time at which the clock passed in was 0, in seconds.
    pub epoch_unix_s: u64,
    /// Unix time at which the server started, in seconds.
    pub began_unix_s: u64,
    /// State shared with the other threads.
    pub shared: Arc<Shared>,
    /// A request to be answered [elsewhere](super::NextStep::HandOver).
    pub request: Vec<u8>,
    /// Time at which all items are to be flushed.
    flush_at_s: Option<u32>,
    pub(super) scratch: Vec<u8>,
    /// Room for answers that are filled in, kept for the next ones.
    room: Vec<u8>,
}

impl Service {
    /// The service of a thread that owns all keys.
    pub fn alone(epoch_unix_s: u64) -> Self {
        let shared = Shared::new(1, Budget::new(0), ServerInfo::default());
        Self::new(Partitions::new(1), 0, epoch_unix_s, Arc::new(shared))
    }

    /// The service of the thread that owns `partition`.
    ///
    /// # Panics
    ///
    /// When `shared` was not made for as many threads as there are partitions.
    pub fn new(partitions: Partitions, partition: usize, epoch_unix_s: u64, shared: Arc<Shared>) -> Self {
        let threads = shared.counters.len();
        assert!(threads == partitions.count() && partition < threads, "each partition has its counters");
        Self {
            limits: Limits::default(),
            partitions,
            partition,
            epoch_unix_s,
            began_unix_s: epoch_unix_s,
            shared,
            request: Vec::new(),
            flush_at_s: None,
            scratch: Vec::new(),
            room: Vec::new(),
        }
    }

    /// The counters of this thread.
    #[inline(always)]
    pub fn count(&self) -> &Counters {
        &self.shared.counters[self.partition]
    }

    /// Executes a delayed `flush_all` that is due. Call it whenever the clock has advanced.
    pub fn tick(&mut self, cache: &mut Cache, now_s: u32) {
        if self.flush_at_s.is_some_and(|at_s| at_s <= now_s) {
            self.flush_at_s = None;
            cache.clear();
        }
    }

    pub(super) fn flush(&mut self, cache: &mut Cache, at_s: u32, now_s: u32) {
        self.flush_at_s = Some(at_s);
        self.tick(cache, now_s);
    }

    /// Publishes the table's counters for other threads to read.
    pub fn publish(&self, cache: &Cache) {
        let stats = cache.stats();
        let count = self.count();
        count.curr_items.set(stats.items as u64);
        count.total_items.set(stats.stored);
        count.evictions.set(stats.evictions);
        count.evicted_unfetched.set(stats.evicted_unfetched);
        count.reclaimed.set(stats.reclaimed);
        count.expired_unfetched.set(stats.expired_unfetched);
        count.bytes.set(stats.item_bytes as u64);
        count.limit_maxbytes.set(stats.capacity_bytes as u64);
        count.hash_bytes.set(stats.index_bytes as u64);
    }

    /// Converts a client's `exptime` into the time of expiry by our clock.
    pub(super) fn expires_s(&self, exptime: i32, now_s: u32) -> u32 {
        match exptime {
            0 => 0,
            ..0 => EXPIRED,
            1..=RELATIVE_MAX_S => now_s.saturating_add(exptime as u32),
            _ => u32::try_from((exptime as u64).saturating_sub(self.epoch_unix_s)).unwrap_or(u32::MAX).max(EXPIRED),
        }
    }
}

/// Result of storing a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// Stored; the new version.
    Yes(u64),
    Exists,
    NotFound,
    /// The condition does not hold.
    Unmet,
    /// There is no memory for it.
    NoMemory,
}

/// One run of executing commands.
pub(super) struct Work<'w, 'i> {
    pub service: &'w mut Service,
    pub cache: &'w mut Cache,
    pub now_s: u32,
    pub out: &'w mut Vec<u8>,
    pub lookahead: Lookahead<'i>,
    /// The command comes from another thread, which has counted commands that concern no key.
    pub is_handed_over: bool,
    /// Operations are counted by key prefix.
    pub has_detail: bool,
}

impl<'w, 'i> Work<'w, 'i> {
    pub fn new(service: &'w mut Service, cache: &'w mut Cache, now_s: u32, out: &'w mut Vec<u8>) -> Self {
        let has_detail = service.shared.detail.is_on();
        Self { service, cache, now_s, out, lookahead: Lookahead::default(), is_handed_over: false, has_detail }
    }

    pub fn limits(&self) -> &Limits {
        &self.service.limits
    }

    /// Whether the output is full, so that the rest of the input has to wait.
    #[inline(always)]
    pub fn is_output_full(&self) -> bool {
        self.out.len() >= self.limits().out_len_max
    }

    /// The partition of `key`, if this thread does not own it.
    #[inline(always)]
    pub fn remote_owner(&self, key: &[u8]) -> Option<usize> {
        let owner = self.service.partitions.of(key);
        (owner != self.service.partition).then_some(owner)
    }

    pub fn push_line(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// Whether an item is longer than clients may store.
    pub fn is_too_large(&self, key_len: usize, value_len: usize, flags: u32) -> bool {
        // memcached's header, the version, and the terminators of key and value.
        let item_overhead = 48 + 8 + 1 + 2 + if flags == 0 { 0 } else { 4 };
        item_overhead + key_len + value_len > self.limits().item_len_max
    }

    /// Appends the item of one key of a list, if there is one.
    ///
    /// # Errors
    ///
    /// The room that the answer needs; then nothing was done.
    #[inline(always)]
    pub fn get(&mut self, bytes: &'i [u8], keys: RetrievalOptions) -> Result<(), usize> {
        let key = self.lookahead.key(self.cache, bytes);
        let hit = self.fill(|work, filler| work.push_item(&key, keys.versions, Short::new(b"\r\n"), filler))?;
        if let Some(exptime) = keys.touch {
            let count = self.service.count();
            count.cmd_touch.add(1);
            if hit { &count.touch_hits } else { &count.touch_misses }.add(1);
            if hit {
                let expires_s = self.service.expires_s(exptime, self.now_s);
                // The item exists; if the table has no memory to touch it, the touch is skipped.
                let _ = self.cache.touch(&key, None, Some(expires_s), self.now_s);
            }
        } else {
            self.count_gets(1, hit.into());
        }
        Ok(())
    }

    /// Answers the [lone `get`s](Lookahead::take_get) at the beginning of `rest`, as far as they were read ahead.
    /// Returns the bytes consumed and, if there is too little room for the next answer, the room that it needs.
    pub fn answer_lone_gets(&mut self, rest: &'i [u8]) -> (usize, Option<usize>) {
        const END: Short = Short::new(b"\r\nEND\r\n");
        const MISS: Short = Short::new(b"END\r\n");
        let (mut consumed, mut gets, mut hits, mut room) = (0, 0, 0, None);
        self.fill(|work, filler| {
            while filler.len() < work.limits().out_len_max
                && let Some((key, len)) = work.lookahead.take_get(&rest[consumed..])
                && work.remote_owner(key.bytes()).is_none()
            {
                match work.push_item(&key, false, END, filler) {
                    Ok(true) => hits += 1,
                    Ok(false) => filler.append(size_of::<u64>(), |place| place.put_short(MISS)),
                    Err(len) => {
                        room = Some(len);
                        break;
                    }
                }
                gets += 1;
                consumed += len;
            }
        });
        self.count_gets(gets, hits);
        (consumed, room)
    }

    /// Has the output filled in by `fill`.
    #[inline(always)]
    fn fill<T>(&mut self, fill: impl FnOnce(&mut Self, &mut Filler<'_>) -> T) -> T {
        let (mut out, mut room) = (std::mem::take(self.out), std::mem::take(&mut self.service.room));
        let result = fill(self, &mut Filler::new(&mut out, &mut room));
        (*self.out, self.service.room) = (out, room);
        result
    }

    fn count_gets(&self, gets: u64, hits: u64) {
        let count = self.service.count();
        count.cmd_get.add(gets);
        count.get_hits.add(hits);
        count.get_misses.add(gets - hits);
    }

    /// Appends the item of a key and `end`, the end of its value's line and what follows, if there is an item; returns
    /// whether there is.
    ///
    /// # Errors
    ///
    /// As for [`Self::get`].
    #[inline(always)]
    fn push_item(
        &mut self,
        key: &Key<'_>,
        with_version: bool,
        end: Short,
        out: &mut Filler<'_>,
    ) -> Result<bool, usize> {
        let bytes = key.bytes();
        let hit = if let Some(item) = self.cache.get(key, self.now_s) {
            if item.value_len() > self.service.limits.answer_len_max {
                return Err(item.value_len());
            }
            push_value(out, bytes, &item, with_version, end);
            set_fetched(&item);
            true
        } else {
            self.count_miss_reason(key);
            false
        };
        if self.has_detail {
            self.count_use(bytes, if hit { Usage::Hit } else { Usage::Miss });
        }
        Ok(hit)
    }

    /// Counts the reason why a key asked for has lost its item, if it has.
    pub fn count_miss_reason(&mut self, key: &Key<'_>) {
        match self.cache.remove_dead_item(key, self.now_s) {
            None => {}
            Some(MissReason::Expired) => self.service.count().get_expired.add(1),
            Some(MissReason::Cleared) => self.service.count().get_flushed.add(1),
        }
    }

    /// Counts an operation by its key's prefix, while this is switched on.
    #[inline(always)]
    pub fn count_use(&self, key: &[u8], usage: Usage) {
        if self.has_detail {
            self.service.shared.detail.count(self.service.partition, key, usage);
        }
    }

    /// Stores a value under a condition.
    pub fn put(&mut self, key: &Key<'_>, value: &[u8], put: &Put) -> Stored {
        self.service.count().cmd_set.add(1);
        let stored = match self.cache.put(key, value, put, self.now_s) {
            Ok(version) => Stored::Yes(version),
            Err(PutError::Changed { .. }) => Stored::Exists,
            Err(PutError::Present) => Stored::Unmet,
            Err(PutError::Absent) if matches!(put.when, When::Version(_)) => Stored::NotFound,
            Err(PutError::Absent) => Stored::Unmet,
            Err(PutError::Full { .. } | PutError::ValueTooLong { .. } | PutError::KeyTooLong { .. }) => {
                Stored::NoMemory
            }
        };
        let count = self.service.count();
        match stored {
            Stored::NoMemory => count.store_no_memory.add(1),
            _ if !matches!(put.when, When::Version(_)) => {}
            Stored::Yes(_) => count.cas_hits.add(1),
            Stored::Exists => count.cas_badval.add(1),
            _ => count.cas_misses.add(1),
        }
        stored
    }

    /// Appends `more` to the value of an item, or prepends it; if `version` is given, the item must have it.
    pub fn extend(&mut self, key: &Key<'_>, more: &[u8], is_append: bool, version: Option<u64>) -> Stored {
        self.service.count().cmd_set.add(1);
        let Some(item) = self.cache.peek(key, self.now_s) else { return Stored::Unmet };
        if version.is_some_and(|version| version != item.version()) {
            return Stored::Exists;
        }
        if self.is_too_large(key.bytes().len(), item.value_len() + more.len(), item.flags()) {
            return Stored::Unmet;
        }
        let changed = self.cache.modify(key, self.now_s, |value| {
            let at = if is_append { value.len() } else { 0 };
            value.splice(at..at, more.iter().copied());
            Ok::<(), std::convert::Infallible>(())
        });
        match changed {
            Ok(version) => {
                // To memcached this is a new item.
                self.mark(key, 0);
                Stored::Yes(version)
            }
            Err(_) => Stored::Unmet,
        }
    }

    /// Replaces the marks of an item.
    pub fn mark(&self, key: &Key<'_>, marks: u8) {
        if let Some(item) = self.cache.peek(key, self.now_s).filter(|item| item.marks() != marks) {
            item.mark(marks);
        }
    }
}

/// Marks an item as fetched.
#[inline(always)]
pub(super) fn set_fetched(item: &Item<'_>) {
    if item.marks() & mark::FETCHED == 0 {
        item.mark(item.marks() | mark::FETCHED);
    }
}

/// Appends an item, and `end` after its value.
#[inline(always)]
fn push_value(out: &mut Filler<'_>, key: &[u8], item: &Item<'_>, with_version: bool, end: Short) {
    const START: Short = Short::new(b"VALUE ");
    const LINE_END: Short = Short::new(b"\r\n");
    /// Bytes beside key and value: start, three numbers with their spaces, the line's end, and what follows the value.
    const REST_MAX: usize = 6 + 3 * 21 + 2 + 8;
    out.append(key.len() + item.value_len() + REST_MAX, |place| {
        place.put_short(START);
        place.put(key);
        place.put_number(item.flags().into());
        place.put_number(item.value_len() as u64);
        if with_version {
            place.put_number(item.version());
        }
        place.put_short(LINE_END);
        item.copy_to(place.next(item.value_len()));
        place.put_short(end);
    });
}
