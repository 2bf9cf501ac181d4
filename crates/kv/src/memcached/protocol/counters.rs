//! Counters of a door, as `stats` shows them.

use sinew_mem::atomic::{AtomicU64, Ordering};

/// A counter that one thread changes and others may read.
#[derive(Debug, Default)]
pub struct Counter {
    value: AtomicU64,
    /// Value at the last reset.
    base: AtomicU64,
}

impl Counter {
    /// Value since the last reset.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed).wrapping_sub(self.base.load(Ordering::Relaxed))
    }

    /// Sets the value. Only the owning thread may call it.
    #[inline(always)]
    pub(crate) fn set(&self, value: u64) {
        self.value.store(value, Ordering::Relaxed);
    }

    /// Adds to the value. Only the owning thread may call it, so that no change is lost.
    #[inline(always)]
    pub(crate) fn add(&self, more: u64) {
        self.set(self.value.load(Ordering::Relaxed).wrapping_add(more));
    }

    /// Resets the counter to 0; any thread may call it.
    fn reset(&self) {
        self.base.store(self.value.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one thread's work for memcached clients.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        impl Counters {
            /// All counters, with their names in `stats`.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, &Counter)> {
                [$((stringify!($name), &self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Open connections.
    curr_connections,
    /// Connections accepted.
    total_connections,
    /// Connections rejected because there were too many.
    rejected_connections,
    /// Times that there was no descriptor for a connection, which then waits until another is closed.
    listen_disabled_num,
    /// 1 while connections are accepted; 0 while there is no descriptor for another, and at threads without the
    /// listener.
    accepting_conns,
    /// Times that a connection with more to do yielded to others.
    conn_yields,
    /// Connections closed because they were silent for too long.
    idle_kicks,
    /// Connections closed to free memory, because they were the longest stalled.
    stalled_kicks,
    /// Times that a connection had to wait for memory.
    memory_waits,
    /// Keys asked for.
    cmd_get,
    /// Values to store.
    cmd_set,
    /// `flush_all` commands.
    cmd_flush,
    /// Keys to touch.
    cmd_touch,
    /// Meta commands other than get, set, delete and arithmetic.
    cmd_meta,
    /// Keys asked for that had an item.
    get_hits,
    /// Keys asked for that had none.
    get_misses,
    /// Keys asked for whose item had expired.
    get_expired,
    /// Keys asked for whose item had been flushed.
    get_flushed,
    /// Items deleted.
    delete_hits,
    /// Keys to delete that had no item.
    delete_misses,
    /// Keys to increment that had an item.
    incr_hits,
    /// Keys to increment that had no item.
    incr_misses,
    /// Keys to decrement that had an item.
    decr_hits,
    /// Keys to decrement that had no item.
    decr_misses,
    /// Values stored by compare-and-swap.
    cas_hits,
    /// Keys to compare and swap that had no item.
    cas_misses,
    /// Values not stored because the item had changed.
    cas_badval,
    /// Keys to touch that had an item.
    touch_hits,
    /// Keys to touch that had none.
    touch_misses,
    /// Values refused because they were too long.
    store_too_large,
    /// Values not stored for lack of memory.
    store_no_memory,
    /// Bytes received.
    bytes_read,
    /// Bytes sent.
    bytes_written,
    /// Commands handed over to the thread that owns their key.
    handed_over,
    /// Items in the table.
    curr_items,
    /// Items stored so far.
    total_items,
    /// Items evicted.
    evictions,
    /// Evicted items that had never been fetched.
    evicted_unfetched,
    /// Expired items that were found and removed.
    reclaimed,
    /// Removed expired items that had never been fetched.
    expired_unfetched,
    /// Bytes of items.
    bytes,
    /// Bytes available for items.
    limit_maxbytes,
    /// Bytes of the index that leads to the items.
    hash_bytes,
}

/// The counters that are states, which `stats reset` leaves alone.
const STATES: &[&str] = &["curr_connections", "accepting_conns", "curr_items", "bytes", "limit_maxbytes", "hash_bytes"];

impl Counters {
    /// Resets the counters of events.
    pub fn reset(&self) {
        self.all().filter(|(name, _)| !STATES.contains(name)).for_each(|(_, counter)| counter.reset());
    }
}
