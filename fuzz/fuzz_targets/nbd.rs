//! Fuzzes the NBD server with a hostile client.
#![no_main]

#[path = "../../crates/remote-block/tests/common/mod.rs"]
mod common;
#[allow(dead_code)] // this target uses a part of it
#[path = "../../crates/remote-block/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::client(bytes));
