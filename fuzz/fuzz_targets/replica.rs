//! Fuzzes a member of a replicated store with hostile peers and clients.
#![no_main]

#[path = "../../crates/replica/tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    hostile::messages(bytes);
    hostile::member(bytes);
});
