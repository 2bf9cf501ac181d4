//! What every packet port, every frame port, every verbs device and every replicated store must satisfy, whatever carries the packets, as suites of tests.
//!
//! - [`ports`]: the facts about [packet ports](sinew_fabric::PacketPort).
//! - [`frames`]: the facts about [frame ports](sinew_fabric::frames).
//! - [`verbs`]: the facts about [verbs devices](sinew_fabric::verbs).
//! - `history`, a feature: what clients of a key-value store saw, and whether it is linearizable.
//! - [`sealing`]: a layer that transforms every packet, to put around ports under test.
//! - [`skipped`] and [`unique`]: what tests of backends need beside.
//!
//! It is for the tests of crates that implement these or stand on them; no program depends on it.
#![forbid(unsafe_code)]

pub mod frames;
#[cfg(feature = "history")]
pub mod history;
pub mod ports;
mod rounds;
pub mod sealing;
pub mod verbs;

/// A name for a test's port or file that no other test has, of this or another run, in this or another container.
pub fn unique(what: &str) -> String {
    use std::hash::BuildHasher;
    format!("{what}-{:016x}", std::hash::RandomState::new().hash_one(()))
}

/// Says on standard error, past what the harness keeps to itself, that the calling test is skipped, and why. `cargo xtask test` holds it
/// against a list.
pub fn skipped(why: impl std::fmt::Display) {
    let thread = std::thread::current();
    let line = format!("skipped: {why} [{}]\n", thread.name().unwrap_or("?"));
    // Nobody who reads it is no reason to fail.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
}

/// Bytes that differ by number and place.
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
