//! Tests of message buffers and arenas.

use super::*;
#[cfg(not(miri))]
use crate::SharedMemory;

fn arena() -> Arena {
    Arena::private(1 << 20).unwrap()
}

#[test]
fn first_header_and_data_are_contiguous_and_other_headers_follow_the_data() {
    let mut buffer = arena().alloc(250, 100).unwrap();
    buffer.fill(&[7; 250]).unwrap();
    for packet in 0..3 {
        buffer.header_mut(packet).fill(packet as u8 + 1);
    }
    assert_eq!(buffer.packets(), 3);
    let first = buffer.first_packet();
    assert_eq!(first.len(), HEADER_ROOM + 100);
    assert!(first[..HEADER_ROOM].iter().all(|&b| b == 1) && first[HEADER_ROOM..].iter().all(|&b| b == 7));
    assert_eq!(buffer.packet_range(2), 200..250);
    assert!(buffer.iter().all(|&b| b == 7));
    assert_eq!((buffer.header(1)[0], buffer.header(2)[23]), (2, 3));
}

#[test]
fn the_front_lies_before_the_data_and_behind_what_is_known_of_the_buffer() {
    let mut buffer = arena().alloc(250, 100).unwrap();
    buffer.fill(&[7; 40]).unwrap();
    buffer.front_mut().fill(9);
    let whole = buffer.front_and_data();
    assert_eq!((&whole[..FRONT_ROOM], &whole[FRONT_ROOM..]), (&[9; FRONT_ROOM][..], &[7; 40][..]));
    assert_eq!((buffer.len(), buffer.data_per_packet()), (40, 100));
}

#[test]
fn what_does_not_fit_in_a_buffer_is_refused_with_its_length_and_the_capacity() {
    let mut buffer = arena().alloc(32, 32).unwrap();
    let capacity = buffer.capacity();
    buffer.fill(&vec![7; capacity]).unwrap();
    let refused = AllocError::PastCapacity { len: capacity + 1, capacity };
    assert_eq!(buffer.fill(&vec![8; capacity + 1]), Err(refused));
    assert_eq!(buffer.resize(capacity + 1), Err(refused));
    assert_eq!(buffer.resized(capacity + 1), Err(refused));
    assert_eq!(buffer.resized(capacity).map(|contents| contents.len()), Ok(capacity));
    assert_eq!(*buffer, vec![7; capacity]);
    assert!(refused.to_string().contains(&format!("buffer of {capacity} bytes")), "{refused}");
    assert_eq!(buffer.set_data_per_packet(1), Err(AllocError::HeadersDoNotFit { data_per_packet: 1, capacity }));
}

#[test]
fn a_full_arena_serves_small_buffers_from_large_ones_that_are_free() {
    let arena = arena();
    let mut large: Vec<_> = std::iter::from_fn(|| arena.alloc(10_000, 10_000).ok()).collect();
    let small: Vec<_> = std::iter::from_fn(|| arena.alloc(10, 10).ok()).collect();
    assert!(large.pop().is_some() && !small.is_empty());
    let parts: Vec<_> = std::iter::from_fn(|| arena.alloc(10, 10).ok()).collect();
    assert!(parts.len() > 50 && arena.alloc(10_000, 10_000).is_err());
    drop(parts);
    assert!(arena.alloc(10_000, 10_000).is_ok());
}

#[test]
fn free_blocks_beside_each_other_become_one() {
    let arena = arena();
    let fill = |len: usize| -> Vec<_> { std::iter::from_fn(|| arena.alloc(len, 1024).ok()).collect() };
    let large = 100_000;
    let most = fill(large).len();
    // Miri takes minutes for thousands of small ones.
    let lens: &[usize] = if cfg!(miri) { &[5_000, 20_000] } else { &[1, 100, 300, 5_000, 1, 20_000] };
    for &len in lens {
        let small = fill(len);
        assert!(small.len() > most);
        drop(small);
    }
    assert!(fill(large).len() + 1 >= most, "what was split is whole again");
    // A block in use in the middle leaves the free space on both sides of it usable.
    let mut small = fill(if cfg!(miri) { 5_000 } else { 100 });
    let kept = small.swap_remove(small.len() / 2);
    drop(small);
    let both = fill(large);
    assert!(both.len() + 2 >= most && both.iter().all(|one| one.arena_offset() != kept.arena_offset()));
}

#[test]
fn blocks_never_overlap_whatever_is_taken_and_given_back() {
    let arena = arena();
    let (mut held, mut state) = (Vec::<MessageBuffer>::new(), 7u64);
    for step in 0..if cfg!(miri) { 300 } else { 30_000 } {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (pick, len) = ((state >> 33) as usize, 1usize << ((state >> 20) % if cfg!(miri) { 9 } else { 17 }));
        match arena.alloc(len + pick % len, 1024) {
            Ok(mut buffer) => {
                buffer.fill(&vec![step as u8; buffer.len()]).unwrap();
                held.push(buffer);
            }
            Err(_) => (0..held.len() / 2).for_each(|_| drop(held.swap_remove(pick % held.len()))),
        }
        if step % 3 == 0 && !held.is_empty() {
            let buffer = held.swap_remove(pick % held.len());
            assert!(buffer.iter().all(|&byte| byte == buffer[0]));
        }
    }
    assert!(held.iter().all(|buffer| buffer.iter().all(|&byte| byte == buffer[0])));
}

#[test]
fn only_the_sole_holder_thaws() {
    let frozen = arena().alloc(64, 64).unwrap().freeze();
    let share = frozen.clone();
    let frozen = frozen.thaw().unwrap_err();
    drop(share);
    assert!(frozen.thaw().is_ok());
}

#[test]
fn freed_blocks_are_reused_and_forgotten_ones_are_not() {
    let arena = Arena::private(4096).unwrap();
    for _ in 0..100 {
        arena.alloc(1000, 100).unwrap();
    }
    let kept: Vec<_> = (0..2).map(|_| arena.alloc(1000, 100).unwrap()).collect();
    assert_eq!(arena.alloc(1000, 100).unwrap_err(), AllocError::ArenaFull { asked: 1000, capacity: 4096 });
    std::mem::forget(kept);
    assert!(arena.alloc(1000, 100).is_err());
}

#[test]
fn an_empty_message_is_one_packet_without_data() {
    let mut buffer = arena().alloc(0, 100).unwrap();
    assert_eq!((buffer.packets(), buffer.packet_range(0), buffer.len()), (1, 0..0, 0));
    assert_eq!(buffer.first_packet().len(), HEADER_ROOM);
    assert!(buffer.resize(1).is_err());
}

#[test]
fn buffers_outlive_their_arena_handle_and_cross_threads() {
    let mut buffer = arena().alloc(10, 100).unwrap();
    buffer.fill(b"0123456789").unwrap();
    let frozen = buffer.freeze();
    let share = frozen.clone();
    std::thread::spawn(move || assert_eq!(&share[..], b"0123456789")).join().unwrap();
    assert!(frozen.thaw().is_ok());
}

/// Bytes of the mapping that holds an address that the system backs; `None` where it does not tell.
#[cfg(not(miri))]
fn backed(address: usize) -> Option<usize> {
    let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let mut lines = maps.lines().skip_while(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let of = |text| usize::from_str_radix(text, 16).ok();
        !range.and_then(|(start, end)| Some(of(start)?..of(end)?)).is_some_and(|range| range.contains(&address))
    });
    let rss = lines.find_map(|line| line.strip_prefix("Rss:"))?;
    Some(rss.trim().strip_suffix(" kB")?.parse::<usize>().ok()? << 10)
}

#[cfg(not(miri))]
#[test]
fn memory_that_is_backed_early_holds_what_it_held_and_blocks_made_of_it_need_no_more() {
    const LEN: usize = 8 << 20;
    let arena = Arena::shared("backed", LEN).unwrap();
    let mut before = arena.alloc(1000, 1000).unwrap();
    before.fill(&[7; 1000]).unwrap();
    // Its bytes are not written to.
    let _made = arena.alloc(1 << 20, 1 << 20).unwrap();
    arena.back(3 << 20);
    let start = arena.region().start().as_ptr().addr();
    let Some(bytes) = backed(start) else { return };
    assert!((3 << 20..LEN).contains(&bytes), "{bytes}");
    let mut buffers: Vec<_> = (0..10).map(|_| arena.alloc(64 << 10, 64 << 10).unwrap()).collect();
    buffers.iter_mut().for_each(|buffer| buffer[..].fill(1));
    assert!(backed(start) == Some(bytes) && before[..] == [7; 1000]);
    arena.back(usize::MAX);
    assert_eq!(backed(start), Some(LEN));

    let memory = SharedMemory::private(LEN).unwrap();
    memory.store(4096, 5).unwrap();
    memory.back();
    // A part at either end may be a mapping of its own.
    assert!(backed(memory.address() + LEN / 2).is_some_and(|bytes| bytes >= LEN / 2));
    assert_eq!(memory.load(4096), Ok(5));
}
