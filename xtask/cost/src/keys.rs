//! Keys of a cache, and settings for them.

use sinew_store::cache::CacheConfig;

/// Length of [`key_bytes`].
pub const KEY_LEN: usize = 16;

/// Returns a key of a usual length, a different one for each number.
pub fn key_bytes(number: u64) -> [u8; KEY_LEN] {
    let mut bytes = *b"key-....--------";
    bytes[4..8].copy_from_slice(&(number as u32).to_be_bytes());
    bytes
}

/// Settings of a cache that keeps this many items of these keys: a full index would lose some.
pub fn cache_config(keys: u64) -> CacheConfig {
    CacheConfig { items: 4 * keys as usize, memory_bytes: 128 * keys as usize, seed: 1, ..CacheConfig::default() }
}
