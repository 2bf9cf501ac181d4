//! Buffers that each link keeps for itself: a short packet that is still too long for the ring is copied into one.
//!
//! A share of the sender's buffer takes locked instructions, and while the peer holds it, the sender must use another
//! buffer for its next message. A copy of up to a kilobyte costs less. But the peer decides when a buffer is free
//! again, so a link has a fixed number of them, made as they are needed, and they go with the link: a peer that takes
//! nothing holds no more than those. A packet that finds none free is lent or staged, as longer packets are.

use std::collections::VecDeque;

use sinew_mem::ring::{FAR_HEAD_MAX, Far, Producer};
use sinew_mem::{Arena, MessageBuffer};

/// Bytes of a packet that a buffer holds, behind those in the ring. With its description it takes a kilobyte of the
/// arena.
const DATA_LEN_MAX: usize = 960;
const BLOCK_LEN: usize = 1 << 10;
/// The most buffers of a link: as many as packets in a burst.
const BUFFERS_MAX: usize = 32;
/// The buffers of all links together take at most this part of the arena.
const ARENA_PART: usize = 8;

/// Longest packet that is copied, in bytes, if all of its head goes into the ring.
pub(crate) const COPIED_LEN_MAX: usize = FAR_HEAD_MAX + DATA_LEN_MAX;

/// Links whose buffers an arena of this capacity has room for.
pub(crate) const fn links_max(arena_capacity: usize) -> usize {
    arena_capacity / ARENA_PART / (BUFFERS_MAX * BLOCK_LEN)
}

/// A buffer that holds a packet, or one that the peer has taken.
#[derive(Debug)]
struct Copied {
    /// Position of the packet in the ring.
    position: u64,
    buffer: MessageBuffer,
}

/// The buffers of one link, in the order of their packets.
#[derive(Debug, Default)]
pub(crate) struct Copies(VecDeque<Copied>);

impl Copies {
    /// Sends a packet by copying it. Returns false, and has no effect, if it is too long or no buffer is free. `arena`
    /// is where a further buffer may come from.
    #[inline]
    pub fn push(&mut self, head: &[u8], data: &[u8], producer: &mut Producer, arena: Option<&Arena>) -> bool {
        let (head, rest) = head.split_at(head.len().min(FAR_HEAD_MAX));
        let len = rest.len() + data.len();
        if len > DATA_LEN_MAX {
            return false;
        }
        let Some(mut buffer) = self.take_free(producer).or_else(|| self.make(arena?)) else { return false };
        let Ok(target) = buffer.resized(len) else { return false };
        let (first, second) = target.split_at_mut(rest.len());
        first.copy_from_slice(rest);
        second.copy_from_slice(data);
        let far = Far { offset: buffer.arena_offset() as u64, len: len as u32 };
        // A buffer whose packet found no room goes back to the arena.
        producer.push_far(head, far).is_ok_and(|position| {
            self.0.push_back(Copied { position, buffer });
            true
        })
    }

    /// The buffer of the oldest packet, if the peer has taken that.
    #[inline(always)]
    fn take_free(&mut self, producer: &mut Producer) -> Option<MessageBuffer> {
        let oldest = self.0.front()?.position;
        // The peer's position is loaded again only if the last one seen does not show the packet as taken.
        let is_taken = oldest < producer.last_given_back() || oldest < producer.given_back();
        self.0.pop_front_if(|_| is_taken).map(|copied| copied.buffer)
    }

    #[cold]
    #[inline(never)]
    fn make(&self, arena: &Arena) -> Option<MessageBuffer> {
        if self.0.len() < BUFFERS_MAX { arena.alloc(DATA_LEN_MAX, DATA_LEN_MAX).ok() } else { None }
    }

    /// Positions of the packets, some of which the peer has taken.
    pub fn positions(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|copied| copied.position)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use sinew_mem::Region;
    use sinew_mem::ring::{Words, bytes_for};

    use super::*;

    const LINES: usize = 256;

    /// A producer, and the word by which its peer says what it has taken.
    fn producer() -> (Producer, Words) {
        let region = Arc::new(Region::private(bytes_for(LINES)).unwrap());
        let words = Words::of_region(&region, 0, bytes_for(LINES)).unwrap();
        // SAFETY: nobody else has the region.
        (unsafe { Producer::new(words.clone(), LINES) }.unwrap(), words)
    }

    fn give_back(words: &Words, position: u64) {
        // SAFETY: the first word of a ring is the position given back.
        unsafe { words.word(0) }.store(position, Ordering::Release);
    }

    #[test]
    fn a_buffer_takes_a_kilobyte_of_the_arena_and_a_part_of_it_is_enough_for_few_links() {
        assert_eq!(Arena::block_len(DATA_LEN_MAX, DATA_LEN_MAX), BLOCK_LEN);
        assert_eq!(links_max(ARENA_PART * BUFFERS_MAX * BLOCK_LEN - 1), 0);
        assert_eq!(links_max(ARENA_PART * BUFFERS_MAX * BLOCK_LEN), 1);
    }

    #[test]
    fn both_sides_of_the_longest_packet() {
        let (arena, (mut producer, _)) = (Arena::private(1 << 20).unwrap(), producer());
        let mut copies = Copies::default();
        for (head, data, good) in [(FAR_HEAD_MAX, DATA_LEN_MAX, true), (FAR_HEAD_MAX, DATA_LEN_MAX + 1, false)]
            .into_iter()
            .chain([(COPIED_LEN_MAX, 0, true), (COPIED_LEN_MAX + 1, 0, false), (0, DATA_LEN_MAX, true)])
        {
            let pushed = copies.push(&vec![1; head], &vec![2; data], &mut producer, Some(&arena));
            assert_eq!(pushed, good, "{head} and {data}");
        }
    }

    #[test]
    fn a_buffer_is_used_again_only_once_the_peer_has_its_packet() {
        let (arena, (mut producer, words)) = (Arena::private(1 << 20).unwrap(), producer());
        let mut copies = Copies::default();
        let mut push = |copies: &mut Copies, arena| {
            copies.push(b"head", &[7; 500], &mut producer, arena).then(|| {
                let last = copies.0.back().unwrap();
                (last.position, last.buffer.arena_offset())
            })
        };
        let first: Vec<_> = (0..BUFFERS_MAX).map(|_| push(&mut copies, Some(&arena)).unwrap()).collect();
        assert!(first.iter().all(|(position, _)| copies.positions().any(|other| other == *position)));
        assert_eq!(push(&mut copies, Some(&arena)), None, "a link has no more buffers than that");
        give_back(&words, 2);
        let again = [push(&mut copies, None).unwrap(), push(&mut copies, None).unwrap()];
        assert_eq!(again.map(|(_, offset)| offset), [first[0].1, first[1].1]);
        assert_eq!(push(&mut copies, None), None);
        // What the peer cannot have taken frees nothing, and neither does what it says from then on.
        for lie in [1, 1 << 50, u64::MAX] {
            give_back(&words, lie);
            assert_eq!(push(&mut copies, None), None, "{lie}");
        }
        let taken = arena.touched();
        drop(copies);
        let all: Vec<_> = (0..BUFFERS_MAX).map(|_| arena.alloc(DATA_LEN_MAX, DATA_LEN_MAX).unwrap()).collect();
        assert_eq!((all.len(), arena.touched()), (BUFFERS_MAX, taken), "the buffers went back");
    }

    #[test]
    fn without_memory_nothing_is_copied() {
        let (mut producer, _) = producer();
        let arena = Arena::private(4096).unwrap();
        let all: Vec<_> = std::iter::from_fn(|| arena.alloc(8, 8).ok()).collect();
        assert!(!Copies::default().push(b"", &[7; 500], &mut producer, Some(&arena)));
        assert!(!Copies::default().push(b"", &[7; 500], &mut producer, None));
        drop(all);
        assert!(Copies::default().push(b"", &[7; 500], &mut producer, Some(&arena)));
    }
}
