//! Fuzzes the memcached door with a hostile client.
#![no_main]

#[path = "../../crates/kv/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::memcached(bytes));
