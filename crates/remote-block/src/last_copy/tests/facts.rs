//! Tests of single facts.

use std::sync::Arc;

use sinew_fabric::{Armed, ManualClock, Readiness};
use sinew_remote_memory::store::BLOCK;
use sinew_remote_memory::{Finished, Job, Status, Store, StoreError};

use super::model::*;
use crate::last_copy::RETRY_NS;
use crate::last_copy::marks::CHUNK;

const CHUNKS: usize = LEN / CHUNK as usize;

fn empty() -> (Arc<Disk>, ManualClock) {
    (Disk::of(Vec::new()), ManualClock::new())
}

/// Makes a store whose last copy is complete.
fn complete(disk: &Arc<Disk>, clock: &ManualClock) -> Copied {
    let mut store = on(disk, Remote::new(), clock, &ManualPool::immediate());
    run_until_idle(&mut store);
    assert!(store.is_complete());
    store
}

fn poll(store: &mut Copied) -> Vec<Finished> {
    let mut finished = Vec::new();
    store.poll(&mut finished, usize::MAX);
    finished
}

#[test]
fn what_the_donors_have_lost_is_read_from_the_file() {
    let (disk, clock) = empty();
    let mut store = on(&disk, Remote::new(), &clock, &ManualPool::immediate());
    write(&mut store, 5000, b"before it was copied").unwrap();
    run_until_idle(&mut store);
    write(&mut store, 300_000, b"after").unwrap();
    run(&mut store, 1, Job::Discard { at: 5007, len: 2 }).result.unwrap();
    store.inner_mut().donors = DonorState::Gone;
    assert_eq!(read(&mut store, 5000, 20).unwrap(), b"before \0\0 was copied");
    assert_eq!(read(&mut store, 299_999, 7).unwrap(), b"\0after\0");
    assert_eq!(store.stats().reads, 2);
    assert!(write(&mut store, 0, b"x").is_err(), "one copy is not what was promised");
}

#[test]
fn of_an_older_file_nothing_is_read_until_it_is_copied() {
    let (disk, clock) = empty();
    let mut store = complete(&disk, &clock);
    write(&mut store, 0, b"older").unwrap();
    drop(store);
    // The same volume, which another writer has written elsewhere.
    let mut remote = Remote::new();
    remote.donors = DonorState::Gone;
    let mut store = on(&disk, remote, &clock, &ManualPool::immediate());
    run_until_idle(&mut store);
    assert!(read(&mut store, 0, 5).is_err() && !store.is_complete());
    store.inner_mut().donors = DonorState::Here;
    for _ in 0..2 {
        clock.advance(RETRY_NS);
        run_until_idle(&mut store);
    }
    store.inner_mut().donors = DonorState::Gone;
    assert_eq!(read(&mut store, 0, 5).unwrap(), [0; 5]);
}

#[test]
fn a_store_is_answered_for_only_while_nobody_can_say_whose_it_is() {
    let (disk, clock) = empty();
    let mut store = complete(&disk, &clock);
    store.inner_mut().donors = DonorState::Silent;
    assert_eq!(read(&mut store, 0, 5).unwrap(), [0; 5]);
    assert!(matches!(write(&mut store, 0, b"x"), Err(StoreError::NoAnswer(_))));
    for (donors, is_fenced) in [(DonorState::TakenOver, true), (DonorState::Over, false)] {
        store.inner_mut().donors = donors;
        for _ in 0..3 {
            let error = read(&mut store, 0, 5).unwrap_err();
            assert_eq!(matches!(error, StoreError::Fenced(_)), is_fenced, "{error}");
            assert_eq!(matches!(error, StoreError::Unavailable(_)), !is_fenced, "{error}");
            assert!(write(&mut store, 0, b"x").is_err() && flush(&mut store).is_err());
        }
    }
    assert_eq!(store.stats().reads, 1);
}

#[test]
fn what_was_never_written_is_copied_once() {
    let (disk, clock) = empty();
    let mut store = complete(&disk, &clock);
    assert_eq!(store.inner().copies.len(), CHUNKS);
    for _ in 0..3 {
        clock.advance(RETRY_NS);
        assert_eq!(read(&mut store, 0, 4096).unwrap(), [0; 4096]);
        run_until_idle(&mut store);
    }
    assert_eq!(store.inner().copies.len(), CHUNKS);
    assert_eq!(store.stats().copied_bytes, LEN as u64);
}

#[test]
fn what_cannot_be_read_is_tried_again_now_and_then_and_comes_when_it_can_be() {
    let (disk, clock) = empty();
    let mut remote = Remote::new();
    remote.donors = DonorState::Gone;
    let mut store = on(&disk, remote, &clock, &ManualPool::immediate());
    run_until_idle(&mut store);
    assert_eq!(store.inner().copies.len(), CHUNKS);
    for tries in 1..4 {
        clock.advance(RETRY_NS - 1);
        run_until_idle(&mut store);
        assert_eq!(store.inner().copies.len(), CHUNKS + tries - 1, "it waits");
        let Armed::Sleep { until_ns } = store.arm(1000).unwrap() else { panic!("there is nothing to do") };
        assert_eq!(until_ns, Some(1001), "it sleeps until the next try");
        store.disarm();
        clock.advance(1);
        run_until_idle(&mut store);
        assert_eq!(store.inner().copies.len(), CHUNKS + tries, "one");
    }
    store.inner_mut().donors = DonorState::Here;
    clock.advance(RETRY_NS);
    run_until_idle(&mut store);
    assert!(store.is_complete(), "the one brought the others");
}

#[test]
fn a_failed_write_puts_in_doubt_what_it_covered_and_nothing_beside_it() {
    let (disk, clock) = empty();
    let mut store = complete(&disk, &clock);
    let blocks: Vec<u8> = (0..4).flat_map(|block| [block + 1; BLOCK]).collect();
    write(&mut store, 0, &blocks).unwrap();
    store.inner_mut().donors = DonorState::Gone;
    // Of two failing changes, the second is done.
    assert!(write(&mut store, 2 * CHUNK, &[9; BLOCK]).is_err());
    assert!(write(&mut store, BLOCK as u64, &[9; BLOCK]).is_err());
    run_until_idle(&mut store);
    assert_eq!(read(&mut store, 0, 4 * BLOCK).unwrap(), blocks, "what was there before counts");
    assert!(store.is_complete(), "nobody has heard of anything else");
    // The store answers for the block beside it, and then for the block itself.
    store.inner_mut().donors = DonorState::Here;
    let (target, beside) = (store.arena().alloc(BLOCK, BLOCK).unwrap(), store.arena().alloc(BLOCK, BLOCK).unwrap());
    submit(&mut store, 4, Job::Read { at: 0, target: beside });
    submit(&mut store, 5, Job::Read { at: BLOCK as u64, target });
    // The copying in the background finds no donors.
    store.inner_mut().donors = DonorState::Gone;
    run_until_idle(&mut store);
    let finished = poll(&mut store);
    assert_eq!(finished[1].target.as_ref().unwrap()[..], [9; BLOCK]);
    assert!(read(&mut store, BLOCK as u64, 1).is_err(), "the store has said what the file does not know");
    assert!(!store.is_complete() && says_complete(&disk.after_a_crash()) == Some(false));
    assert_eq!(read(&mut store, 0, BLOCK).unwrap(), blocks[..BLOCK]);
    assert_eq!(read(&mut store, 2 * BLOCK as u64, 2 * BLOCK).unwrap(), blocks[2 * BLOCK..]);
    // The copying in the background repairs it.
    store.inner_mut().donors = DonorState::Here;
    for _ in 0..2 {
        clock.advance(RETRY_NS);
        run_until_idle(&mut store);
    }
    assert!(store.is_complete());
    store.inner_mut().donors = DonorState::Gone;
    assert_eq!(read(&mut store, BLOCK as u64, BLOCK).unwrap(), [9; BLOCK]);
}

#[test]
fn what_is_written_counts_before_its_chunk_can_be_copied() {
    let (disk, clock) = empty();
    let mut remote = Remote::new();
    remote.donors = DonorState::Gone;
    let mut store = on(&disk, remote, &clock, &ManualPool::immediate());
    run_until_idle(&mut store);
    store.inner_mut().donors = DonorState::Here;
    write(&mut store, 4096, &[5; 4096]).unwrap();
    store.inner_mut().donors = DonorState::Gone;
    assert_eq!(read(&mut store, 4096, 4096).unwrap(), [5; 4096]);
    assert!(read(&mut store, 4095, 2).is_err());
}

#[test]
fn a_file_that_is_given_up_is_marked_before_the_first_change_that_it_lacks() {
    let (disk, clock) = empty();
    let mut store = complete(&disk, &clock);
    flush(&mut store).unwrap();
    assert_eq!(says_complete(&disk.durable()), Some(true));
    disk.fill_up();
    write(&mut store, 0, b"on").unwrap();
    assert_eq!((says_complete(&disk.durable()), store.is_complete()), (Some(false), false));
    assert!(store.given_up().is_some() && matches!(store.status(), Status::Degraded(_)));
    assert_eq!(read(&mut store, 0, 2).unwrap(), b"on", "the store goes on");
    flush(&mut store).unwrap();
    store.inner_mut().donors = DonorState::Gone;
    assert!(read(&mut store, 0, 2).is_err());
    // If even that fails, the message says what to do.
    let mut store = complete(&Disk::of(Vec::new()), &clock);
    assert!(flush(&mut store).is_ok());
    let disk = Disk::of(Vec::new());
    let mut store = complete(&disk, &clock);
    disk.fail();
    flush(&mut store).unwrap();
    assert!(store.given_up().unwrap().contains("remove it"), "{:?}", store.given_up());
}

#[test]
fn a_flush_is_over_when_the_file_was_synced_after_all_before_it() {
    let ((disk, clock), later) = (empty(), Arc::new(ManualPool::default()));
    let mut store = on(&disk, Remote::new(), &clock, &later);
    run_until_idle(&mut store);
    assert!(!store.is_complete(), "it is not there for certain");
    let job = write_job(&store, 100, b"first");
    submit(&mut store, 1, job);
    submit(&mut store, 2, Job::Flush);
    run_until_idle(&mut store);
    assert_eq!(
        poll(&mut store).iter().map(|one| one.tag).collect::<Vec<_>>(),
        [1],
        "a sync is under way, that began before"
    );
    let job = write_job(&store, 200, b"second");
    submit(&mut store, 3, job);
    run_until_idle(&mut store);
    assert_eq!(says_complete(&disk.after_a_crash()), Some(false));
    assert_eq!(later.work(), 1);
    run_until_idle(&mut store);
    assert_eq!(poll(&mut store).iter().map(|one| one.tag).collect::<Vec<_>>(), [3]);
    // Everything was there when that sync began, so now it is durable.
    assert!(store.is_complete() && says_complete(&disk.after_a_crash()) == Some(true));
    assert_eq!(says_complete(&disk.durable()), Some(false), "the mark is with the flush, which is on its way");
    assert_eq!(later.work(), 1);
    run_until_idle(&mut store);
    assert_eq!(poll(&mut store).iter().map(|one| one.tag).collect::<Vec<_>>(), [2]);
    assert_eq!(&disk.durable()[100..105], b"first");
    assert_eq!(says_complete(&disk.durable()), Some(true));
    submit(&mut store, 4, Job::Flush);
    run_until_idle(&mut store);
    // A thread that dies during the sync leaves no flush waiting.
    later.drop_jobs();
    run_until_idle(&mut store);
    assert_eq!(poll(&mut store).len(), 1);
    assert!(store.given_up().is_some());
}

#[test]
fn what_the_file_comes_to_lack_while_it_is_synced_keeps_it_from_being_marked() {
    let ((disk, clock), later) = (empty(), Arc::new(ManualPool::default()));
    let mut store = on(&disk, Remote::new(), &clock, &later);
    run_until_idle(&mut store);
    store.inner_mut().donors = DonorState::Gone;
    assert!(write(&mut store, 0, b"x").is_err());
    run_until_idle(&mut store);
    store.inner_mut().donors = DonorState::Here;
    assert!(read(&mut store, 0, 1).is_ok());
    clock.advance(RETRY_NS);
    run_until_idle(&mut store);
    // It has been copied anew, but not synced yet.
    later.work();
    store.turn();
    assert_eq!(says_complete(&disk.after_a_crash()), Some(false));
    run_until_idle(&mut store);
    later.work();
    run_until_idle(&mut store);
    assert_eq!(says_complete(&disk.after_a_crash()), Some(true));
}

#[test]
fn a_sync_that_ends_wakes_whoever_sleeps() {
    let ((disk, clock), later) = (empty(), Arc::new(ManualPool::default()));
    let mut store = on(&disk, Remote::new(), &clock, &later);
    run_until_idle(&mut store);
    let descriptor = store.descriptor().unwrap();
    assert!(matches!(store.arm(0).unwrap(), Armed::Sleep { .. }) && !descriptor.wait(Some(0)).unwrap());
    later.work();
    assert!(descriptor.wait(Some(0)).unwrap());
    assert!(store.disarm());
    assert_eq!(store.arm(0).unwrap(), Armed::Ready, "it is not told yet");
    run_until_idle(&mut store);
    assert!(store.is_complete() && matches!(store.arm(0).unwrap(), Armed::Sleep { .. }));
    // Nor is a wake-up from the store lost.
    store.disarm();
    submit(&mut store, 1, Job::Flush);
    assert_eq!(store.arm(0).unwrap(), Armed::Ready);
}
