//! The cache's table: GETs of keys of 16 bytes and values of 32, which are copied out and checked.

use sinew::store::cache::{Cache, CacheConfig, Item, Key, Put};
use sinew_interleave::{Batch, switch};

use super::{Form, Lookups, WIDTH_MAX};
use crate::workload::{KEY_LEN, check_value, fill_value, key_bytes};

const VALUE_LEN: usize = 32;
/// Time that the table is given, in seconds: nothing expires here.
const NOW_S: u32 = 1;

/// MICA's table, filled.
#[derive(Debug)]
pub struct Mica {
    cache: Cache,
    keys: u64,
}

impl Mica {
    /// A table with `keys` items.
    ///
    /// # Errors
    ///
    /// There is no memory for it.
    pub fn new(keys: usize) -> anyhow::Result<Self> {
        let memory_bytes = keys * (16 + KEY_LEN + VALUE_LEN) + (1 << 20);
        // The buckets have spare room, so that all keys looked up are there.
        let config = CacheConfig { items: 2 * keys, memory_bytes, value_len_max: VALUE_LEN, ..CacheConfig::default() };
        let mut cache = Cache::new(&config)?;
        let hasher = cache.hasher().clone();
        let mut value = [0; VALUE_LEN];
        for key in 0..keys as u64 {
            fill_value(&mut value, key, 0);
            cache.put(&hasher.key(&key_bytes(key)), &value, &Put::default(), NOW_S)?;
        }
        Ok(Self { cache, keys: keys as u64 })
    }

    #[inline(always)]
    fn is_right(&self, key: u64, item: Option<Item<'_>>) -> bool {
        let mut value = [0; VALUE_LEN];
        item.is_some_and(|item| {
            item.value_len() == VALUE_LEN && {
                item.copy_to(&mut value);
                check_value(&value, key)
            }
        })
    }
}

impl Lookups for Mica {
    type Key = u64;
    /// Whether the value was the right one.
    type Found = bool;

    fn draw(&self, random: u64) -> (u64, bool) {
        let key = random % self.keys;
        let found = self.cache.peek(&self.cache.hasher().key(&key_bytes(key)), NOW_S);
        (key, found.is_some())
    }

    fn bytes(&self) -> usize {
        let stats = self.cache.stats();
        stats.index_bytes + stats.used_bytes
    }

    fn look_up(&self, form: Form, width: usize, keys: &[u64], found: &mut [bool]) {
        let hasher = self.cache.hasher();
        match form {
            Form::Plain => {
                for (key, found) in keys.iter().zip(found) {
                    *found = self.is_right(*key, self.cache.get(&hasher.key(&key_bytes(*key)), NOW_S));
                }
            }
            Form::Interleaved => {
                let batch = Batch::<WIDTH_MAX>::of_width(width).unwrap_or_default();
                batch.run(keys.iter().copied(), found, async |key| {
                    let bytes = key_bytes(key);
                    let mut hashed = hasher.key(&bytes);
                    // Like `Cache::get_all`, but copies the value before its line is evicted.
                    self.cache.prefetch_bucket(&hashed);
                    switch().await;
                    self.cache.prefetch_item(&mut hashed);
                    switch().await;
                    self.is_right(key, self.cache.get(&hashed, NOW_S))
                });
            }
            Form::Grouped => {
                for (keys, found) in keys.chunks(width).zip(found.chunks_mut(width)) {
                    let mut bytes = [[0; KEY_LEN]; WIDTH_MAX];
                    for (bytes, key) in bytes.iter_mut().zip(keys) {
                        *bytes = key_bytes(*key);
                    }
                    let mut hashed: [Key<'_>; WIDTH_MAX] = [hasher.key(&bytes[0]); WIDTH_MAX];
                    for (key, bytes) in hashed.iter_mut().zip(&bytes[..keys.len()]) {
                        *key = hasher.key(bytes);
                        self.cache.prefetch_bucket(key);
                    }
                    hashed[..keys.len()].iter_mut().for_each(|key| self.cache.prefetch_item(key));
                    for ((key, hashed), found) in keys.iter().zip(&hashed).zip(found) {
                        *found = self.is_right(*key, self.cache.get(hashed, NOW_S));
                    }
                }
            }
        }
    }
}
