//! Words of memory that several queue pairs and threads work on.

use sinew_fabric::verbs::{
    Access, Exposed, Operation, PostError, ProtectionDomain, QueuePair, RemoteMemory, Request, Verb,
};

use super::ends::*;
use super::*;

/// Number of threads that work on the same memory.
const THREADS: usize = 3;
/// The most requests that each has in flight.
const WINDOW: usize = 8;

/// An atomic's word is aligned, and its result needs 8 bytes.
pub fn misaligned_atomics_and_short_targets_are_refused<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    if !pair.near.allows(Verb::FetchAdd) {
        return;
    }
    let memory = pair.far.expose(64);
    let remote = memory.remote();
    let cases = (1..8).map(|offset| (offset, 8)).chain((0..8).map(|len| (0, len)));
    for (offset, len) in cases {
        let remote = remote.at(offset).expect("inside the memory");
        let (add, swap) = (pair.near.buffer(len), pair.near.buffer(len));
        for operation in [
            Operation::FetchAdd { target: add, remote, add: 1 },
            Operation::CompareSwap { target: swap, remote, expected: 0, desired: 1 },
        ] {
            let refused = pair.near.qp.push(Request::new(1, operation)).expect_err("no word, or no room for one");
            assert_eq!((refused.error, refused.buffers.len()), (PostError::Atomic, 1), "{len} bytes for {offset}");
        }
    }
    pair.assert_works(1);
    assert_eq!(read(&memory, 0, 64), [0; 64]);
}

fn atomics_between_threads<F: Fixture>(fixture: &F) -> bool {
    reliable(fixture).is_some()
        && fixture.device().attributes().atomics
        && fixture.expectations().real_time.holds_or_report("atomics of several threads")
}

/// Posts `count` requests, a few at a time, and passes their completions to `completed`.
fn work<D: Device>(
    near: &mut End<D>,
    watch: Watch<'_>,
    count: usize,
    mut request: impl FnMut(&End<D>, usize) -> Operation<'static>,
    mut completed: impl FnMut(usize, &sinew_fabric::verbs::Completion),
) {
    let (mut posted, mut over) = (0, 0);
    while over < count {
        while posted < count && posted < over + WINDOW {
            let operation = request(near, posted);
            near.push(Request::new(posted as u64, operation));
            posted += 1;
        }
        near.qp.doorbell();
        let completion = eventually(watch, &mut [near], "a request is over", |ends| ends[0].sent.pop_front());
        assert_eq!((completion.id, completion.status), (over as u64, sinew_fabric::verbs::Status::Success));
        completed(over, &completion);
        over += 1;
    }
}

/// No addition by several queue pairs and threads is lost, and each returns a different number.
pub fn concurrent_additions_lose_none<F: Fixture>(fixture: &F) {
    const EACH: usize = 300;
    if !atomics_between_threads(fixture) {
        return;
    }
    let server = Server::new(fixture.device());
    let memory = server.domain.expose(8, Access::ALL).expect("memory to expose");
    let remote = memory.remote();
    let tickets = |_: usize, near: &mut End<F::Device>, watch: Watch<'_>| {
        let mut tickets = Vec::new();
        let add = |near: &End<F::Device>, _| Operation::FetchAdd { target: near.buffer(8), remote, add: 1 };
        work(near, watch, EACH, add, |_, completion| tickets.push(word(completion)));
        assert!(tickets.is_sorted(), "those of one queue pair come one after the other");
        tickets
    };
    let mut tickets = server.serve(fixture, Transport::Rc, THREADS, tickets, |_| {}).concat();
    tickets.sort_unstable();
    assert!(tickets.into_iter().eq(0..(THREADS * EACH) as u64), "an addition was lost, or done twice");
    assert_eq!(memory.load(0), Ok((THREADS * EACH) as u64));
}

/// Of several swaps of a word that was empty, one wins, and the others learn the winner.
pub fn one_of_many_swaps_wins<F: Fixture>(fixture: &F) {
    const WORDS: usize = 200;
    if !atomics_between_threads(fixture) {
        return;
    }
    let server = Server::new(fixture.device());
    let memory = server.domain.expose(8 * WORDS, Access::ALL).expect("memory to expose");
    let remote = memory.remote();
    let swaps = |index: usize, near: &mut End<F::Device>, watch: Watch<'_>| {
        let mut found = Vec::new();
        let swap = |near: &End<F::Device>, at: usize| {
            let remote = remote.at(8 * at as u64).expect("inside the memory");
            let (target, desired) = (near.buffer(8), index as u64 + 1);
            Operation::CompareSwap { target, remote, expected: 0, desired }
        };
        work(near, watch, WORDS, swap, |_, completion| found.push(word(completion)));
        found
    };
    let found = server.serve(fixture, Transport::Rc, THREADS, swaps, |_| {});
    for at in 0..WORDS {
        let winner = memory.load(8 * at).expect("inside the memory");
        assert!((1..=THREADS as u64).contains(&winner));
        for (index, found) in found.iter().enumerate() {
            let expected = if index as u64 + 1 == winner { 0 } else { winner };
            assert_eq!(found[at], expected, "what thread {index} found in word {at}");
        }
    }
}

/// The owner of the memory can work on its words too, if the fabric promises that.
pub fn remote_and_local_atomics_are_one<F: Fixture>(fixture: &F) {
    const EACH: usize = 300;
    if !atomics_between_threads(fixture)
        || !fixture.expectations().processor_atomics.holds_or_report("atomics with the owner's")
    {
        return;
    }
    let server = Server::new(fixture.device());
    let memory = server.domain.expose(8, Access::ALL).expect("memory to expose");
    let remote = memory.remote();
    let mut own = 0;
    let adds = |_: usize, near: &mut End<F::Device>, watch: Watch<'_>| {
        let add = |near: &End<F::Device>, _| Operation::FetchAdd { target: near.buffer(8), remote, add: 1 };
        work(near, watch, EACH, add, |_, _| {});
    };
    server.serve(fixture, Transport::Rc, THREADS, adds, |_| {
        for turn in 0..2000 {
            memory.fetch_add(0, 1 << 32).expect("inside the memory");
            own += 1u64;
            if turn % 20 == 0 {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(memory.load(0), Ok((own << 32) + (THREADS * EACH) as u64));
}

/// Length in bytes of the memory in which words must not tear.
const REGION: usize = 4096;

fn write<D: Device>(near: &End<D>, remote: RemoteMemory, number: u64) -> Operation<'static> {
    let words = (number << 32 | number).to_ne_bytes().repeat(REGION / 8);
    Operation::Write { source: near.frozen(&words).into(), remote, immediate: None }
}

/// Calls `look` many times, over long enough for sleeping writers to be woken.
fn watch_for_a_while(mut look: impl FnMut()) {
    for turn in 0..60 {
        look();
        if turn % 10 == 9 {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }
}

fn assert_whole(word: u64) {
    assert_eq!(word >> 32, word & 0xFFFF_FFFF, "a word is torn: {word:#x}");
}

/// A reader of a word that others write, remotely or as its owner, sees a value that was written.
pub fn words_never_tear<F: Fixture>(fixture: &F) {
    const ROUNDS: usize = 150;
    let Expectations { real_time, whole_words, .. } = fixture.expectations();
    if reliable(fixture).is_none()
        || !real_time.holds_or_report("words of several threads")
        || !whole_words.holds_or_report("whole words")
    {
        return;
    }
    let server = Server::new(fixture.device());
    let memory = server.domain.expose(REGION, all_access(&server.device)).expect("memory to expose");
    let remote = memory.remote();
    let accesses = |index: usize, near: &mut End<F::Device>, watch: Watch<'_>| {
        let access = |near: &End<F::Device>, round: usize| match index {
            0 => Operation::Read { target: near.buffers(&[REGION]), remote },
            _ => write(near, remote, (round * THREADS + index) as u64),
        };
        work(near, watch, ROUNDS, access, |_, completion| {
            let words = completion.buffers.iter().flat_map(|buffer| buffer.as_chunks::<8>().0);
            words.for_each(|word| assert_whole(u64::from_ne_bytes(*word)));
        });
    };
    server.serve(fixture, Transport::Rc, THREADS, accesses, |_| {
        watch_for_a_while(|| {
            for at in (0..REGION).step_by(8) {
                assert_whole(memory.load(at).expect("inside the memory"));
            }
        });
    });
}

/// A reader that sees a word of a WRITE sees all words before it.
pub fn a_write_appears_in_ascending_order<F: Fixture>(fixture: &F) {
    const ROUNDS: usize = 400;
    let Expectations { real_time, ascending_writes, .. } = fixture.expectations();
    if !real_time.holds_or_report("WRITEs that others watch")
        || !ascending_writes.holds_or_report("WRITEs in ascending order")
    {
        return;
    }
    for transport in connected(fixture) {
        let server = Server::new(fixture.device());
        let memory = server.domain.expose(REGION, all_access(&server.device)).expect("memory to expose");
        let remote = memory.remote();
        let writes = |_: usize, near: &mut End<F::Device>, watch: Watch<'_>| {
            work(near, watch, ROUNDS, |near, round| write(near, remote, round as u64 + 1), |_, _| {});
        };
        server.serve(fixture, transport, 1, writes, |_| {
            watch_for_a_while(|| {
                // In descending order: once a word is visible, so is everything at lower addresses.
                let mut right = 0;
                for at in (0..REGION).step_by(520).rev() {
                    let left = memory.load(at).expect("inside the memory");
                    assert!(left >= right, "{transport:?}: the word at {at} appeared after one behind it");
                    right = left;
                }
            });
        });
    }
}
