//! A check that all of an arena is free.

use sinew_mem::Arena;

/// The layout of buffers does not matter here: each counts as one packet.
const PACKET: usize = usize::MAX;
/// Longer than any message of the swarm with its headers, in bytes.
const BLOCK_MAX: usize = 1 << 20;

/// Bytes of an arena that are still in use. Nobody else may use the arena meanwhile.
pub fn missing(arena: &Arena) -> usize {
    let touched = arena.touched();
    let least = Arena::block_len(0, PACKET);
    let longest = (0..least).rev().find(|capacity| Arena::block_len(*capacity, PACKET) == least);
    let head_len = least - longest.unwrap_or(0);
    let (mut taken, mut free, mut capacity) = (Vec::new(), 0, 0);
    while Arena::block_len(capacity, PACKET) <= BLOCK_MAX {
        // Free blocks of this size are handed out before memory that was never used.
        let before = arena.touched();
        while let Ok(buffer) = arena.alloc(capacity, PACKET)
            && arena.touched() == before
        {
            free += buffer.block_len();
            taken.push(buffer);
        }
        // The least capacity that is too large for a block of this size.
        capacity = Arena::block_len(capacity, PACKET) - head_len + 1;
    }
    touched.saturating_sub(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_back_is_missing() {
        let arena = Arena::private(8 << 20).unwrap();
        let buffers: Vec<_> =
            [0, 100, 100, 5_000, 150_000].iter().map(|len| arena.alloc(*len, 1_000).unwrap()).collect();
        let all: usize = buffers.iter().map(|buffer| buffer.block_len()).sum();
        assert_eq!(missing(&arena), all);
        let mut buffers = buffers.into_iter();
        let first = buffers.next();
        drop(buffers);
        assert_eq!(missing(&arena), first.map_or(0, |buffer| buffer.block_len()));
        assert_eq!(missing(&arena), 0);
    }
}
