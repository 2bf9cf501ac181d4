//! Keys of a cache, and settings for them.

use sinew_store::cache::CacheConfig;

const KEY_LEN: usize = 16;

/// Keys of a length that is usual, of which no two are the same.
pub fn key_bytes(number: u64) -> [u8; KEY_LEN] {
    let mut bytes = *b"key-....--------";
    bytes[4..8].copy_from_slice(&(number as u32).to_be_bytes());
    bytes
}

/// Settings with which so many items of these are all kept: an index that is full loses some.
pub fn cache_config(keys: u64) -> CacheConfig {
    CacheConfig { items: 4 * keys as usize, memory_bytes: 128 * keys as usize, seed: 1, ..CacheConfig::default() }
}
