//! A client of the memcached door.
#![no_main]

#[path = "../../crates/kv/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::memcached(bytes));
