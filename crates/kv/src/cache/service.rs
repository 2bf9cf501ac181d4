//! The server of a cache.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use sinew_rpc::{BurstCalls, EndpointInfo};
use sinew_store::cache::{Cache, CacheConfig, CacheError, KEY_LEN_MAX};

use super::protocol::{Info, KEYS_MAX, Stats, VALUES_AT};
use crate::Partitions;

/// Longest value of a cache served over RPC, in bytes: one that fits a message.
pub const VALUE_LEN_MAX: usize = 8 << 20;
/// Longest response to a request for several values, in bytes, unless the longest value needs more.
const RESPONSE_LEN: usize = 1 << 20;
/// Most bytes of a store request besides key and value.
const PUT_HEAD_LEN: usize = 20;

/// A cache that a process serves, with one partition for each endpoint.
///
/// ```
/// use sinew_kv::cache::{REQUESTS, Service};
/// use sinew_rpc::Nexus;
/// use sinew_store::cache::CacheConfig;
///
/// let service = Service::new(2, &CacheConfig { memory_bytes: 1 << 20, items: 1000, ..CacheConfig::default() })?;
/// let nexus = Nexus::builder().handle_burst_with(REQUESTS, move |endpoint| service.handler(endpoint)).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Service {
    shared: Arc<Shared>,
}

struct Shared {
    /// Partitions that no endpoint has claimed yet, by number.
    unclaimed: Mutex<Vec<Option<Cache>>>,
    partitions: Partitions,
    value_len_max: usize,
}

impl Service {
    /// Makes a cache of `partitions` partitions, which share the items and the memory of `whole` equally.
    ///
    /// # Errors
    ///
    /// [`CacheError`].
    pub fn new(partitions: usize, whole: &CacheConfig) -> Result<Self, CacheError> {
        let partitions = Partitions::new(partitions);
        let caches = (0..partitions.count()).map(|index| {
            let cache = Cache::new(&CacheConfig {
                items: whole.items.div_ceil(partitions.count()),
                memory_bytes: whole.memory_bytes / partitions.count(),
                seed: whole.seed.wrapping_add(index as u64),
                ..whole.clone()
            })?;
            Ok(Some(cache))
        });
        let unclaimed = Mutex::new(caches.collect::<Result<_, CacheError>>()?);
        Ok(Self { shared: Arc::new(Shared { unclaimed, partitions, value_len_max: whole.value_len_max }) })
    }

    /// The longest message that the endpoints must accept, in bytes, for `sinew_rpc::Config::message_len_max`.
    pub fn message_len_max(&self) -> usize {
        self.response_len_max().max(PUT_HEAD_LEN + KEY_LEN_MAX + self.shared.value_len_max)
    }

    fn response_len_max(&self) -> usize {
        // The longest value fits, whatever else the request asks for.
        RESPONSE_LEN.max(VALUES_AT + 4 * KEYS_MAX + self.shared.value_len_max)
    }

    /// The handler of [`REQUESTS`](super::REQUESTS) for one endpoint, for `NexusBuilder::handle_burst_with`. The
    /// endpoint gets the partition with its own number; if there is none, or it has been claimed, the endpoint refuses
    /// all requests. To do more with the partition, see [`Self::claim`].
    pub fn handler(&self, endpoint: &EndpointInfo) -> impl FnMut(&mut BurstCalls<'_, '_>) + use<> {
        let mut answer = self.claim(endpoint.index).map(|partition| partition.handler());
        move |calls: &mut BurstCalls<'_, '_>| match &mut answer {
            Some(answer) => answer(calls),
            None => super::answer::refuse_all(calls),
        }
    }

    /// Claims the partition of this number for the calling thread. `None` if there is none, or it has been claimed
    /// already.
    pub fn claim(&self, index: usize) -> Option<Partition> {
        let mut unclaimed = self.shared.unclaimed.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = unclaimed.get_mut(index)?.take()?;
        Some(Partition(Rc::new(Owned {
            cache: RefCell::new(cache),
            index,
            is_whole: self.shared.partitions.count() == 1,
            partitions: self.shared.partitions.clone(),
            value_len_max: self.shared.value_len_max,
            response_len_max: self.response_len_max(),
            now_s: Cell::new(0),
            refused: Cell::new(0),
        })))
    }
}

/// Converts a clock that counts nanoseconds from 0 into the seconds, from 1, by which items expire.
#[inline]
pub fn seconds_of(now_ns: u64) -> u32 {
    (now_ns / 1_000_000_000) as u32 + 1
}

/// One partition of the keys with its items, for use by one thread. Clones are handles to the same partition.
#[derive(Clone)]
pub struct Partition(pub(super) Rc<Owned>);

pub(super) struct Owned {
    pub cache: RefCell<Cache>,
    pub index: usize,
    /// Whether there is no other partition.
    pub is_whole: bool,
    pub partitions: Partitions,
    pub value_len_max: usize,
    pub response_len_max: usize,
    pub now_s: Cell<u32>,
    pub refused: Cell<u64>,
}

impl Partition {
    /// Its number, from 0.
    pub fn index(&self) -> usize {
        self.0.index
    }

    /// The mapping from keys to partitions.
    pub fn partitions(&self) -> &Partitions {
        &self.0.partitions
    }

    /// Whether a key belongs to this partition.
    #[inline(always)]
    pub fn owns(&self, key: &[u8]) -> bool {
        self.0.owns(key)
    }

    /// The table.
    ///
    /// # Panics
    ///
    /// While the result of an earlier call is still held.
    pub fn cache(&self) -> RefMut<'_, Cache> {
        self.0.cache.borrow_mut()
    }

    /// The time, in seconds, as last [set](Self::set_now_s).
    #[inline(always)]
    pub fn now_s(&self) -> u32 {
        self.0.now_s.get()
    }

    /// Sets the time, by which items expire; it never goes back. [`Self::handler`] does so with each burst, and any
    /// other user of the partition must do so too.
    #[inline(always)]
    pub fn set_now_s(&self, now_s: u32) {
        self.0.now_s.set(now_s.max(self.0.now_s.get()));
    }

    /// The handler of [`REQUESTS`](super::REQUESTS) for the endpoint that owns the partition, for `Rpc::handle_burst`.
    /// It takes the time from the endpoint's clock, by [`seconds_of`].
    pub fn handler(&self) -> impl FnMut(&mut BurstCalls<'_, '_>) + use<> {
        let partition = self.clone();
        move |calls: &mut BurstCalls<'_, '_>| {
            partition.set_now_s(seconds_of(calls.now_ns()));
            partition.answer(calls);
        }
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        self.0.stats(&self.0.cache.borrow())
    }

    /// The partition and its limits, as clients are told.
    pub fn info(&self) -> Info {
        self.0.info()
    }
}

impl Owned {
    #[inline(always)]
    pub fn owns(&self, key: &[u8]) -> bool {
        self.is_whole || self.partitions.of(key) == self.index
    }

    pub fn stats(&self, cache: &Cache) -> Stats {
        let stats = cache.stats();
        Stats {
            hits: stats.hits,
            misses: stats.misses,
            items: stats.items as u64,
            stored: stats.stored,
            evictions: stats.evictions,
            used_bytes: stats.used_bytes as u64,
            capacity_bytes: stats.capacity_bytes as u64,
            index_bytes: stats.index_bytes as u64,
            refused: self.refused.get(),
            spared: stats.spared,
        }
    }

    pub fn info(&self) -> Info {
        Info {
            partition: self.index as u16,
            partitions: self.partitions.count() as u16,
            value_len_max: self.value_len_max as u32,
            response_len_max: self.response_len_max as u32,
        }
    }
}
