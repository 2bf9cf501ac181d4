//! The side that answers.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use sinew_rpc::{BurstCalls, EndpointInfo};
use sinew_store::cache::{Cache, CacheConfig, CacheError, KEY_LEN_MAX};

use super::protocol::{Info, KEYS_MAX, Stats, VALUES_AT};
use crate::Partitions;

/// Longest value of a cache that clients over RPC are to use: one that has one message.
pub const VALUE_LEN_MAX: usize = 8 << 20;
/// Bytes of a response to a request for several values, at most, where values may be short.
const RESPONSE_LEN: usize = 1 << 20;
/// What a request to store has beside key and value, at most.
const PUT_HEAD_LEN: usize = 20;

/// A cache that a process serves: as many partitions as it has endpoints.
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
    /// Those that no endpoint has yet, by their numbers.
    unclaimed: Mutex<Vec<Option<Cache>>>,
    partitions: Partitions,
    value_len_max: usize,
}

impl Service {
    /// A cache of so many partitions, which share the items and the memory of `whole` equally.
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

    /// The longest message that endpoints have to take, for `sinew_rpc::Config::message_len_max`.
    pub fn message_len_max(&self) -> usize {
        self.response_len_max().max(PUT_HEAD_LEN + KEY_LEN_MAX + self.shared.value_len_max)
    }

    fn response_len_max(&self) -> usize {
        // The longest value has room in it, whatever is asked for beside it.
        RESPONSE_LEN.max(VALUES_AT + 4 * KEYS_MAX + self.shared.value_len_max)
    }

    /// The handler of [`REQUESTS`](super::REQUESTS) for one endpoint, for `NexusBuilder::handle_burst_with`. The endpoint gets the partition
    /// of its number; if there is none, or another endpoint has it, it refuses what it is asked. Where more is to be done with the partition, see
    /// [`Self::claim`].
    pub fn handler(&self, endpoint: &EndpointInfo) -> impl FnMut(&mut BurstCalls<'_, '_>) + use<> {
        let mut answer = self.claim(endpoint.index).map(|partition| partition.handler());
        move |calls: &mut BurstCalls<'_, '_>| match &mut answer {
            Some(answer) => answer(calls),
            None => super::answer::refuse_all(calls),
        }
    }

    /// The partition of this number, to own on this thread: once.
    pub fn claim(&self, index: usize) -> Option<Partition> {
        let mut unclaimed = self.shared.unclaimed.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = unclaimed.get_mut(index)?.take()?;
        Some(Partition(Rc::new(Owned {
            cache: RefCell::new(cache),
            index,
            partitions: self.shared.partitions.clone(),
            value_len_max: self.shared.value_len_max,
            response_len_max: self.response_len_max(),
            now_s: Cell::new(0),
            refused: Cell::new(0),
        })))
    }
}

/// The time in seconds that items end by, from 1 on, of a clock that counts nanoseconds from 0.
#[inline]
pub fn seconds_of(now_ns: u64) -> u32 {
    (now_ns / 1_000_000_000) as u32 + 1
}

/// A part of the keys and their items, for the use of one thread. Clones are the same partition.
#[derive(Clone)]
pub struct Partition(pub(super) Rc<Owned>);

pub(super) struct Owned {
    pub cache: RefCell<Cache>,
    pub index: usize,
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

    /// Which partition each key belongs to.
    pub fn partitions(&self) -> &Partitions {
        &self.0.partitions
    }

    /// Whether a key is this partition's.
    #[inline(always)]
    pub fn owns(&self, key: &[u8]) -> bool {
        self.0.owns(key)
    }

    /// The table.
    ///
    /// # Panics
    ///
    /// When what an earlier call gave is still held.
    pub fn cache(&self) -> RefMut<'_, Cache> {
        self.0.cache.borrow_mut()
    }

    /// The time, in seconds, as it was last [set](Self::set_now_s).
    #[inline(always)]
    pub fn now_s(&self) -> u32 {
        self.0.now_s.get()
    }

    /// Says what time it is: [`Self::handler`] does so with each burst, and so does whoever uses the partition beside. Items end by it; it
    /// never goes back.
    #[inline(always)]
    pub fn set_now_s(&self, now_s: u32) {
        self.0.now_s.set(now_s.max(self.0.now_s.get()));
    }

    /// The handler of [`REQUESTS`](super::REQUESTS) for the endpoint that owns the partition, for `Rpc::handle_burst`. It takes the time from the
    /// endpoint: [`seconds_of`] its clock.
    pub fn handler(&self) -> impl FnMut(&mut BurstCalls<'_, '_>) + use<> {
        let partition = self.clone();
        move |calls: &mut BurstCalls<'_, '_>| {
            partition.set_now_s(seconds_of(calls.now_ns()));
            partition.answer(calls);
        }
    }

    /// What was counted.
    pub fn stats(&self) -> Stats {
        self.0.stats(&self.0.cache.borrow())
    }

    /// What clients are told.
    pub fn info(&self) -> Info {
        self.0.info()
    }
}

impl Owned {
    #[inline(always)]
    pub fn owns(&self, key: &[u8]) -> bool {
        self.partitions.of(key) == self.index
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
