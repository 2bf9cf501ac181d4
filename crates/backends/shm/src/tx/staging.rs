//! Buffers of the port's own, for long packets whose bytes are not in its arena, or are not shared.

use sinew_mem::ring::FAR_HEAD_MAX;
use sinew_mem::{Arena, Frozen, MessageBuffer};

use crate::PACKET_LEN_MAX;

/// Data of a short buffer, which takes a kilobyte of the arena.
const SHORT_LEN: usize = 960;
const SHORT_BYTES: usize = 1 << 10;
/// Bytes that a buffer for the longest packet takes of the arena, whose blocks have 2^n or 1.5 x 2^n bytes.
const LONG_BYTES: usize = PACKET_LEN_MAX + PACKET_LEN_MAX / 2;

/// Longest packet that is best passed in one piece, in bytes: its copy goes into the ring, or into a short buffer,
/// which is reused, and costs less than a share of its sender's buffer.
pub(crate) const COPY_LEN_MAX: usize = FAR_HEAD_MAX + SHORT_LEN;

/// The buffers. Those that hold packets count by the bytes that they take of the arena.
#[derive(Debug)]
pub(super) struct Staging {
    arena: Arena,
    /// Idle buffers of either length.
    short: Vec<MessageBuffer>,
    long: Vec<MessageBuffer>,
    /// Bytes of the buffers that hold packets.
    used_bytes: usize,
}

impl Staging {
    pub fn new(arena: Arena) -> Self {
        Self { arena, short: Vec::new(), long: Vec::new(), used_bytes: 0 }
    }

    /// Bytes of the buffer for the rest of a packet.
    #[inline]
    pub fn bytes_for(len: usize) -> usize {
        if len <= SHORT_LEN { SHORT_BYTES } else { LONG_BYTES }
    }

    /// Whether a link that holds `held` bytes may take a buffer, which it may while it holds less than is free. So
    /// links whose receivers take nothing never hold all of the arena, however many such links there are, and a single
    /// link can hold half of it.
    #[inline]
    pub fn has_share(&self, held: usize, bytes: usize) -> bool {
        held + bytes <= self.arena.capacity().saturating_sub(self.used_bytes)
    }

    /// Copies both pieces into a buffer, which does not count before [`Self::begin`].
    pub fn copy(&mut self, first: &[u8], second: &[u8]) -> Option<MessageBuffer> {
        let len = first.len() + second.len();
        let idle = if len <= SHORT_LEN { self.short.pop() } else { self.long.pop() };
        let mut buffer = match idle {
            Some(buffer) => buffer,
            None => {
                let capacity = if len <= SHORT_LEN { SHORT_LEN } else { PACKET_LEN_MAX };
                self.arena.alloc(capacity, capacity).ok()?
            }
        };
        let (target, rest) = buffer.resized(len).ok()?.split_at_mut(first.len());
        target.copy_from_slice(first);
        rest.copy_from_slice(second);
        Some(buffer)
    }

    /// Counts a buffer that holds a packet.
    #[inline]
    pub fn begin(&mut self, bytes: usize) {
        self.used_bytes += bytes;
    }

    /// Counts buffers no longer.
    #[inline]
    pub fn end(&mut self, bytes: usize) {
        self.used_bytes -= bytes;
    }

    /// Takes a buffer back for the next packet, if nobody else has a share of it.
    #[inline]
    pub fn recycle(&mut self, buffer: Frozen) {
        if let Ok(buffer) = buffer.thaw() {
            let idle = if buffer.capacity() <= SHORT_LEN { &mut self.short } else { &mut self.long };
            idle.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_take_what_they_count_for() {
        for (len, bytes) in [(0, SHORT_BYTES), (SHORT_LEN, SHORT_BYTES), (SHORT_LEN + 1, LONG_BYTES)] {
            assert_eq!(Staging::bytes_for(len), bytes);
        }
        assert_eq!(Arena::block_len(SHORT_LEN, SHORT_LEN), SHORT_BYTES);
        assert_eq!(Arena::block_len(PACKET_LEN_MAX, PACKET_LEN_MAX), LONG_BYTES);
    }

    #[test]
    fn a_buffer_is_reused_for_packets_of_its_length() {
        let mut staging = Staging::new(Arena::private(1 << 20).unwrap());
        let short = staging.copy(b"head", &[7; SHORT_LEN - 4]).unwrap().freeze();
        let long = staging.copy(b"head", &[7; SHORT_LEN - 3]).unwrap().freeze();
        let [short_at, long_at] = [&short, &long].map(|buffer| buffer.arena_offset());
        staging.recycle(short);
        staging.recycle(long);
        assert_eq!(staging.copy(b"", &[1; SHORT_LEN + 1]).unwrap().arena_offset(), long_at);
        let again = staging.copy(b"a", b"bc").unwrap();
        assert_eq!((again.arena_offset(), &again[..]), (short_at, &b"abc"[..]));
    }
}
