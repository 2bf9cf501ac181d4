//! Access to memory: who may reach which.

use sinew_fabric::verbs::{
    Access, Exposed, Operation, ProtectionDomain, QpState, QueuePair, RemoteMemory, Request, Source, Status, Transport,
    Verb,
};

use super::ends::*;
use super::*;

/// Contents of memory that must not change.
const SECRET: u64 = 0x5EC2_E700_0000_0001;
const LEN: usize = 64;

fn guarded<D: Device>(end: &End<D>, access: Access) -> Memory<D> {
    let memory = end.domain.expose(LEN, access).expect("memory to expose");
    for at in (0..LEN).step_by(8) {
        memory.store(at, SECRET).expect("our own memory");
    }
    memory
}

fn operation<F: Fixture>(pair: &Pair<'_, F>, verb: Verb, remote: RemoteMemory, len: usize) -> Operation<'static> {
    let write = |immediate| Operation::Write { source: pair.near.frozen(&vec![0; len]).into(), remote, immediate };
    match verb {
        Verb::Send => pair.send(Source::Empty, None),
        Verb::Write => write(None),
        Verb::WriteWithImmediate => write(Some(1)),
        Verb::Read => Operation::Read { target: pair.near.buffers(&[len]), remote },
        Verb::CompareSwap => {
            Operation::CompareSwap { target: pair.near.buffer(8), remote, expected: SECRET, desired: 0 }
        }
        Verb::FetchAdd => Operation::FetchAdd { target: pair.near.buffer(8), remote, add: 1 },
    }
}

const ONE_SIDED: [Verb; 5] = [Verb::Write, Verb::WriteWithImmediate, Verb::Read, Verb::CompareSwap, Verb::FetchAdd];

/// Asserts that the operation ends with a remote access error, its targets come back, nothing was read or written, and
/// the queue pair is in error.
fn assert_refused<F: Fixture>(
    pair: &mut Pair<'_, F>,
    verb: Verb,
    remote: RemoteMemory,
    len: usize,
    memory: &sinew_mem::SharedMemory,
) {
    pair.far.receive(1, 8);
    let operation = operation(pair, verb, remote, len);
    pair.near.post(Request::new(1, operation));
    let failed = pair.next_sent("an access that is refused");
    assert!(!failed.status.is_success(), "{verb:?} of {len} bytes at {remote:?} was allowed");
    assert_failed(pair.fixture, &failed, Status::RemoteAccess);
    for target in &failed.buffers {
        let leaked = target.chunks(8).any(|word| word == SECRET.to_ne_bytes());
        assert!(!leaked, "{verb:?} read what it may not");
    }
    let takes_targets = matches!(verb, Verb::Read | Verb::CompareSwap | Verb::FetchAdd);
    assert_eq!(failed.buffers.len(), usize::from(takes_targets));
    assert_eq!(pair.near.qp.state(), QpState::Error);
    assert_untouched(memory);
    pair.wait_briefly();
    let delivered = pair.far.received.iter().any(|received| received.status.is_success());
    assert!(!delivered, "{verb:?} was refused, and far was told that it was done");
}

fn assert_untouched(memory: &sinew_mem::SharedMemory) {
    for at in (0..memory.len()).step_by(8) {
        assert_eq!(memory.load(at), Ok(SECRET), "the word at {at}");
    }
}

/// Memory is exposed for what its owner allowed, which works, and for nothing else.
pub fn accesses_that_are_not_allowed_are_refused<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let atomics = fixture.device().attributes().atomics;
    for bits in 0..8 {
        let access = Access { write: bits & 1 != 0, read: bits & 2 != 0, atomic: bits & 4 != 0 };
        if access.atomic && !atomics {
            continue;
        }
        for verb in ONE_SIDED {
            let mut pair = Pair::new(fixture, transport);
            if !pair.near.allows(verb) {
                continue;
            }
            let memory = guarded(&pair.far, access);
            assert_eq!((memory.access(), memory.remote().len), (access, LEN as u64));
            if access.allows(verb) {
                pair.far.receive(1, 8);
                let operation = operation(&pair, verb, memory.remote(), 8);
                pair.near.post(Request::new(1, operation));
                pair.expect_success(1);
            } else {
                assert_refused(&mut pair, verb, memory.remote(), 8, &memory);
            }
        }
    }
}

/// Not one byte outside the memory can be accessed.
pub fn accesses_out_of_bounds_are_refused<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let len = LEN as u64;
    for verb in ONE_SIDED {
        let atomic = matches!(verb, Verb::CompareSwap | Verb::FetchAdd);
        let ranges: &[(u64, usize)] = if atomic {
            &[(len, 8), (0u64.wrapping_sub(8), 8), (1 << 40, 8)]
        } else {
            &[(0, LEN + 1), (1, LEN), (len, 1), (u64::MAX, 2), (1 << 40, 8), (len - 1, 4096)]
        };
        for &(offset, len) in ranges {
            let mut pair = Pair::new(fixture, transport);
            if !pair.near.allows(verb) {
                continue;
            }
            let memory = guarded(&pair.far, all_access(&pair.far.device));
            let remote = memory.remote();
            // The length that a peer claims counts for nothing.
            let address = remote.address.wrapping_add(offset);
            assert_refused(&mut pair, verb, RemoteMemory { address, len: u64::MAX, ..remote }, len, &memory);
        }
    }
    let mut pair = Pair::new(fixture, transport);
    let memory = pair.far.expose(LEN);
    let remote = RemoteMemory { len: 0, ..memory.remote() };
    assert_eq!(pair.write_and_wait(remote, &pattern(1, LEN)), Status::Success, "bounds are those of the owner");
    assert_eq!(read(&memory, 0, LEN), pattern(1, LEN));
}

/// A key that nobody gave out opens nothing, however close it is to a real one.
pub fn made_up_keys_are_refused<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    for flipped in [1, 1 << 8, 1 << 16, 1 << 31, u32::MAX] {
        for verb in [Verb::Write, Verb::Read] {
            let mut pair = Pair::new(fixture, transport);
            let memory = guarded(&pair.far, all_access(&pair.far.device));
            let remote = memory.remote();
            let made_up = RemoteMemory { rkey: remote.rkey ^ flipped, ..remote };
            assert_refused(&mut pair, verb, made_up, 8, &memory);
        }
    }
}

/// A queue pair reaches only the memory of its peer's domain.
pub fn memory_of_another_domain_is_refused<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    for verb in [Verb::Write, Verb::Read] {
        let mut pair = Pair::new(fixture, transport);
        let other = pair.far.device.protection_domain().expect("a protection domain");
        let memory = other.expose(LEN, Access { atomic: false, ..Access::ALL }).expect("memory to expose");
        for at in (0..LEN).step_by(8) {
            memory.store(at, SECRET).expect("our own memory");
        }
        assert_refused(&mut pair, verb, memory.remote(), 8, &memory);
    }
}

/// Once its exposure has ended, memory is out of reach for peers that hold its key: while it is its owner's again, when
/// it is gone, and when something else is at its address.
pub fn memory_that_is_no_longer_exposed_is_refused<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    for verb in [Verb::Write, Verb::Read, Verb::FetchAdd] {
        for is_dropped in [false, true] {
            let mut pair = Pair::new(fixture, transport);
            if !pair.near.allows(verb) {
                continue;
            }
            let memory = guarded(&pair.far, all_access(&pair.far.device));
            let remote = memory.remote();
            // Before that, the access works.
            let operation = operation(&pair, Verb::Read, remote, LEN);
            pair.near.post(Request::new(1, operation));
            pair.expect_success(1);
            if is_dropped {
                drop(memory);
                let others: Vec<_> = (0..4).map(|_| guarded(&pair.far, all_access(&pair.far.device))).collect();
                assert_refused(&mut pair, verb, remote, 8, &others[0]);
                others.iter().for_each(|other| assert_untouched(other));
            } else {
                let kept = memory.deregister().expect("nobody is inside");
                assert_refused(&mut pair, verb, remote, 8, &kept);
            }
        }
    }
}

/// UC: a WRITE that is not allowed need not be reported. It writes nothing all the same, and allowed ones keep working,
/// unless it was reported to the sender.
pub fn unreliable_writes_that_are_not_allowed_write_nothing<F: Fixture>(fixture: &F) {
    for transport in connected(fixture).into_iter().filter(|&transport| transport != Transport::Rc) {
        for wrong in 0..4 {
            let mut pair = Pair::new(fixture, transport);
            let access = if wrong == 0 { Access::READ } else { Access::WRITE };
            let memory = guarded(&pair.far, access);
            let remote = memory.remote();
            let (remote, len) = match wrong {
                1 => (RemoteMemory { rkey: !remote.rkey, ..remote }, 8),
                2 => (remote, LEN + 8),
                3 => (RemoteMemory { address: remote.address - 8, ..remote }, 16),
                _ => (remote, 8),
            };
            let operation = operation(&pair, Verb::Write, remote, len);
            pair.near.post(Request::new(1, operation));
            let sent = pair.next_sent("a WRITE is over");
            assert!([Status::Success, Status::RemoteAccess].contains(&sent.status), "{sent:?}");
            pair.wait_briefly();
            assert_untouched(&memory);
            assert!(pair.far.received.is_empty());
            if sent.status.is_success() {
                assert_eq!((pair.near.qp.state(), pair.far.qp.state()), (QpState::ReadyToSend, QpState::ReadyToSend));
                pair.assert_works(wrong);
            }
        }
    }
}

/// Exposed memory shows nothing of earlier contents, and its owner can read and write it from the start.
pub fn exposed_memory_begins_as_zeros<F: Fixture>(fixture: &F) {
    let device = fixture.device();
    let domain = device.protection_domain().expect("a protection domain");
    for len in [0, 1, 8, 100, 4096, 70_000] {
        for _ in 0..3 {
            let memory = domain.expose(len, Access::READ).expect("memory to expose");
            assert_eq!((memory.len(), memory.remote().len), (len, len as u64));
            assert!(read(&memory, 0, len).iter().all(|&byte| byte == 0), "{len} bytes");
            memory.write(0, &vec![FILL; len]).expect("our own memory");
            assert!(read(&memory, 0, len).iter().all(|&byte| byte == FILL));
            if len == 100 {
                let memory = memory.deregister().expect("nobody is inside");
                assert_eq!(read(&memory, 0, len), [FILL; 100], "it comes back as it was");
            }
        }
    }
}
