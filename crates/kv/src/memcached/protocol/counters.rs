//! What a door counts, and how `stats` tells it.

use sinew_mem::atomic::{AtomicU64, Ordering};

/// A number that one thread changes and others may read.
#[derive(Debug, Default)]
pub struct Counter {
    value: AtomicU64,
    /// What it was when it was reset.
    base: AtomicU64,
}

impl Counter {
    /// Its value.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed).wrapping_sub(self.base.load(Ordering::Relaxed))
    }

    /// Its thread alone calls it.
    #[inline(always)]
    pub(crate) fn set(&self, value: u64) {
        self.value.store(value, Ordering::Relaxed);
    }

    /// Its thread alone calls it: no other's change is lost then.
    #[inline(always)]
    pub(crate) fn add(&self, more: u64) {
        self.set(self.value.load(Ordering::Relaxed).wrapping_add(more));
    }

    /// Has it be 0, for whichever thread.
    fn reset(&self) {
        self.base.store(self.value.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What one thread has done for memcached clients.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        impl Counters {
            /// All of them, with the names that `stats` has for them.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, &Counter)> {
                [$((stringify!($name), &self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Connections that are open.
    curr_connections,
    /// Connections that were accepted.
    total_connections,
    /// Connections that were closed at once, since there were too many.
    rejected_connections,
    /// How often there was no descriptor for a connection: it waits until another is closed.
    listen_disabled_num,
    /// Whether connections are accepted: 0 while there is no descriptor for another, and at threads that accept none.
    accepting_conns,
    /// How often a connection had more to do, and others had their turn first.
    conn_yields,
    /// Connections that were closed since they had said nothing for too long.
    idle_kicks,
    /// Connections that were closed since they had not moved for longest when there was no memory for others.
    stalled_kicks,
    /// How often a connection had to wait for memory.
    memory_waits,
    /// Keys that were asked for.
    cmd_get,
    /// Values that were to be stored.
    cmd_set,
    /// `flush_all`.
    cmd_flush,
    /// Keys that were touched.
    cmd_touch,
    /// Meta commands other than those to get, store, delete and count.
    cmd_meta,
    /// Keys that had an item.
    get_hits,
    /// Keys that had none.
    get_misses,
    /// Keys that had an item whose time was over.
    get_expired,
    /// Keys that had an item that was flushed.
    get_flushed,
    /// Items that were deleted.
    delete_hits,
    /// Keys to delete that had no item.
    delete_misses,
    /// Numbers that were increased.
    incr_hits,
    /// Keys to increase that had no item.
    incr_misses,
    /// Numbers that were decreased.
    decr_hits,
    /// Keys to decrease that had no item.
    decr_misses,
    /// Values that were stored because nobody had changed them.
    cas_hits,
    /// Keys to compare and swap that had no item.
    cas_misses,
    /// Values that were not stored because somebody had changed them.
    cas_badval,
    /// Keys to touch that had an item.
    touch_hits,
    /// Keys to touch that had none.
    touch_misses,
    /// Values that were too long.
    store_too_large,
    /// Values for which there was no memory.
    store_no_memory,
    /// Bytes that came in.
    bytes_read,
    /// Bytes that went out.
    bytes_written,
    /// Commands that went to the thread that owns their key.
    handed_over,
    /// Items there are.
    curr_items,
    /// Items that were stored.
    total_items,
    /// Items that gave their place to others.
    evictions,
    /// Those of them that nobody had asked for.
    evicted_unfetched,
    /// Items that were over when somebody came across them.
    reclaimed,
    /// Those of them that nobody had asked for.
    expired_unfetched,
    /// Bytes of items.
    bytes,
    /// Bytes there are for items.
    limit_maxbytes,
    /// Bytes of the index that leads to the items.
    hash_bytes,
}

/// Of those, what is a state, which `stats reset` leaves alone.
const STATES: &[&str] = &["curr_connections", "accepting_conns", "curr_items", "bytes", "limit_maxbytes", "hash_bytes"];

impl Counters {
    /// Sets to zero what counts events.
    pub fn reset(&self) {
        self.all().filter(|(name, _)| !STATES.contains(name)).for_each(|(_, counter)| counter.reset());
    }
}
