//! A packet ring between one producer and one consumer, over 64-byte lines of memory that both can reach.
//!
//! A packet takes one to four consecutive lines. Its first line starts with a word that gives the packet's position in
//! the ring's history, its kind and its length. So a packet of up to 56 bytes is exactly one cache line, which travels
//! once. Publishing is one release store of that word, after the bytes.
//!
//! - A burst is published by its first packet's word, stored last ([`Producer::submit`]); that word also gives the
//!   number of lines in the burst. So a polling consumer sees a whole burst at once and fetches its lines together, and
//!   the two sides do not take lines from each other while the burst is being written.
//! - The bytes of a packet of several lines could look like a word one lap later. The producer remembers such lines,
//!   and clears the word of each before the consumer can come to it. One line is always spare for this.
//! - A packet never wraps: a skip record fills the lines before the ring's end.
//! - Packets longer than [`INLINE_MAX`] leave their bytes in the producer's arena; the ring carries their first bytes
//!   and a [`Far`] description of the rest. [`Producer::revoke`] changes the packet's own word, which the consumer
//!   checks after it has copied: from then on the packet does not count. (Each packet has its own word, so other
//!   packets are not disturbed, and the word lies in the line that the consumer has just read.)
//! - The consumer gives lines back through a position in a line of its own, once per burst ([`Consumer::give_back`]);
//!   the producer keeps a copy and reads the position again when it runs out of room.
//!
//! The other side may be another process, and hostile. Each side keeps its own position in private memory and checks
//! what it reads from the other (words, the position given back). A ring whose other side breaks the rules is *broken*:
//! it yields nothing more and takes nothing more. [`Consumer`] reads such a ring only by copying out with atomic loads.
//! If both sides are safe code of one process ([`pair`]), the bytes can be read in place, because a published line is
//! not written until it is given back.

mod board;
mod consumer;
mod packet;
mod producer;
#[cfg(all(test, not(loom)))]
mod tests;
mod words;

#[cfg(not(loom))]
use std::io;

#[cfg(not(loom))]
use crate::atomic::plain::Arc;
#[cfg(not(loom))]
use crate::region::Region;

pub use board::{BOARD_BYTES, BOARD_LINKS_MAX, Board, Doorbell, Sleeper};
pub use consumer::Consumer;
#[cfg(not(loom))]
pub use packet::InRing;
pub use packet::Taken;
pub use producer::Producer;
pub use words::Words;

/// Bytes of a line.
pub const LINE: usize = 64;
/// Bytes of packet that fill one line.
pub const FULL_LINE: usize = LINE - WORD;
/// Length of the largest packet that travels wholly in the ring, in bytes.
pub const INLINE_MAX: usize = 4 * LINE - WORD;
/// Length of the largest head, in bytes, that a packet with a [`Far`] rest carries in the ring.
pub const FAR_HEAD_MAX: usize = LINE - WORD - FAR_BYTES;
/// The most lines that one packet takes.
pub const PACKET_LINES_MAX: usize = 4;
/// The fewest lines of a ring. (Loom's rings are smaller, so that its search ends.)
pub const LINES_MIN: usize = if cfg!(loom) { 2 } else { 8 };
/// The most lines of a ring (positions are compared by 32 bits).
pub const LINES_MAX: usize = 1 << 26;

const WORD: usize = 8;
const FAR_BYTES: usize = 16;
/// Bytes before the first line, which hold the consumer's position. Two lines, because processors fetch lines in pairs.
const CONTROL_BYTES: usize = 2 * LINE;
const HEAD_WORD: usize = 0;
const FIRST_LINE_WORD: usize = CONTROL_BYTES / 8;

/// Bytes of memory that a ring of `lines` lines needs.
pub const fn bytes_for(lines: usize) -> usize {
    CONTROL_BYTES + lines * LINE
}

/// Whether a ring can have this many lines: a power of two between [`LINES_MIN`] and [`LINES_MAX`].
pub const fn valid_lines(lines: usize) -> bool {
    lines.is_power_of_two() && lines >= LINES_MIN && lines <= LINES_MAX
}

/// Lines that hold at least `packets` packets of any length: four for each, the most that a skip record wastes, and the
/// spare one.
pub const fn lines_for(packets: usize) -> usize {
    let lines = packets * PACKET_LINES_MAX + PACKET_LINES_MAX;
    let lines = if lines < LINES_MIN { LINES_MIN } else { lines };
    lines.next_power_of_two()
}

/// Packets of any length that a ring of `lines` lines holds.
pub const fn packets_for(lines: usize) -> usize {
    (lines - PACKET_LINES_MAX) / PACKET_LINES_MAX
}

/// Reason why a ring does not take a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The consumer has to give back lines first.
    #[error("the ring is full")]
    Full,
    /// More than [`INLINE_MAX`] bytes, or a head of more than [`FAR_HEAD_MAX`].
    #[error("the packet is too long for the ring")]
    TooLong,
    /// The consumer claims to have given back lines that it never had; the ring is of no further use.
    #[error("the other side broke the ring's rules")]
    Broken,
}

/// Description of a packet's bytes that are not in the ring but in the producer's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Far {
    /// Offset of the first byte in the arena's region, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// A ring of `lines` lines (a power of two) in private memory, for two threads of this process.
///
/// ```
/// let (mut producer, mut consumer) = sinew_mem::ring::pair(1024)?;
/// producer.push(b"head", b" and data").unwrap();
/// producer.submit();
/// assert_eq!(consumer.pop(|bytes| bytes.to_vec()).as_deref(), Some(&b"head and data"[..]));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// `InvalidInput` for a number of lines that no ring can have, or the system's error when it has no memory.
#[cfg(not(loom))]
pub fn pair(lines: usize) -> io::Result<(Producer, Consumer)> {
    if !valid_lines(lines) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a ring has {LINES_MIN} to {LINES_MAX} lines, a power of two, not {lines}"),
        ));
    }
    let region = Arc::new(Region::private(bytes_for(lines))?);
    let words = Words::of_region(&region, 0, bytes_for(lines)).expect("the region was made for the ring");
    // SAFETY: fresh memory that only these two reach: one producer and one consumer, both of this process.
    let ends = unsafe { (Producer::new(words.clone(), lines), Consumer::new(words, lines, true)) };
    match ends {
        (Some(producer), Some(consumer)) => Ok((producer, consumer)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}
