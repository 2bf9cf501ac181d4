//! Fuzzes an endpoint, as server and as client.
#![no_main]

#[path = "../../crates/rpc/tests/common/mod.rs"]
mod common;
#[path = "../../crates/rpc/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::endpoint(bytes));
