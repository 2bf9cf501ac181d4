//! Fuzzes messages between a file system's clients and its service.
#![no_main]

#[allow(dead_code)] // this target uses a part of it
#[path = "../../crates/remote-fs/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::messages(bytes));
