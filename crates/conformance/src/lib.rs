//! Facts that every packet port, frame port, verbs device and replicated store must satisfy, whatever carries the
//! packets, as suites of tests.
//!
//! - [`ports`]: the facts about [packet ports](sinew_fabric::PacketPort).
//! - [`frames`]: the facts about [frame ports](sinew_fabric::frames).
//! - [`verbs`]: the facts about [verbs devices](sinew_fabric::verbs).
//! - `history`, a feature: histories of a key-value store's clients, checked for linearizability.
//! - [`sealing`]: a layer that transforms every packet, to put around ports under test.
//! - [`skipped`] and [`unique`]: helpers for the tests of backends.
//!
//! This crate is for the tests of crates that implement these traits or build on them; no program depends on it.
#![forbid(unsafe_code)]

pub mod frames;
#[cfg(feature = "history")]
pub mod history;
pub mod ports;
mod rounds;
pub mod sealing;
pub mod verbs;

/// A name for a test's port or file that no other test uses, in this or another run, in this or another container.
pub fn unique(what: &str) -> String {
    use std::hash::BuildHasher;
    format!("{what}-{:016x}", std::hash::RandomState::new().hash_one(()))
}

/// Reports on standard error, bypassing the test harness's capture, that the calling test is skipped, and why.
/// `cargo xtask test` compares these reports with a list.
pub fn skipped(why: impl std::fmt::Display) {
    let thread = std::thread::current();
    let line = format!("skipped: {why} [{}]\n", thread.name().unwrap_or("?"));
    // A closed standard error is no reason to fail.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
}

/// Bytes that depend on `number` and on their position.
pub(crate) fn pattern(number: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = (number.wrapping_mul(0x9E37_79B9) >> 7).wrapping_add(at.wrapping_mul(31) ^ (at >> 8)) as u8;
    }
    let number = (number as u64).to_le_bytes();
    let prefix = len.min(8);
    bytes[..prefix].copy_from_slice(&number[..prefix]);
    bytes
}
