//! Fuzzes a router, a switch and a forwarder of names with frames.
#![no_main]

#[allow(dead_code)] // this target uses a part of it
#[path = "../../crates/forward/tests/common/mod.rs"]
mod common;
#[path = "../../crates/forward/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::forwarders(bytes));
