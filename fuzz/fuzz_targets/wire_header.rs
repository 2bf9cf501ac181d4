//! Fuzzes headers.
#![no_main]

#[allow(dead_code)] // this target uses a part of it
#[path = "../../crates/wire/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::header(bytes));
