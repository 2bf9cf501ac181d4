//! Fuzzes an ordered index with hostile clients, and its client with a hostile index.
#![no_main]

#[path = "../../crates/kv/tests/hostile/index.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::index(bytes));
