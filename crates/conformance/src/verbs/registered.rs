//! A user's own memory, registered buffer by buffer.

use sinew_fabric::verbs::{
    Exposed, Operation, PostError, ProtectionDomain, QueuePair, Registered, Request, Scatter, Transport,
};
use sinew_mem::{Arena, MessageBuffer};

use super::ends::*;
use super::*;

type OfDomain<D> = <Domain<D> as ProtectionDomain>::Registration;

fn private() -> Arena {
    Arena::private(1 << 20).expect("an arena")
}

fn filled(arena: &Arena, bytes: &[u8]) -> MessageBuffer {
    let mut buffer = arena.alloc(bytes.len(), bytes.len().max(1)).expect("room");
    buffer.copy_from_slice(bytes);
    buffer
}

fn registered<D: Device>(end: &End<D>, memory: MessageBuffer) -> Registered<OfDomain<D>> {
    Registered::new(&end.domain, memory).expect("memory to register")
}

fn only(buffer: MessageBuffer) -> Scatter {
    [buffer].into_iter().collect()
}

/// A WRITE reads from registered memory, a READ writes to it, and a message is received in it: a few bytes, a page, and
/// many pages.
pub fn registered_memory_is_read_and_written_where_it_lies<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        for len in [8, 4096, 100_000] {
            let mut pair = Pair::large(fixture, transport);
            let arena = private();
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
            if transport == Transport::Rc {
                let memory = pair.far.expose(len);
                let mut source = registered(&pair.near, filled(&arena, &bytes));
                let mut target = registered(&pair.near, filled(&arena, &vec![0; len]));
                let lent = source.take().expect("it is there").freeze();
                let write = Operation::Write { source: lent.clone().into(), remote: memory.remote(), immediate: None };
                pair.near.post(Request::new(1, write));
                pair.expect_success(1);
                let into = only(target.take().expect("it is there"));
                pair.near.post(Request::new(2, Operation::Read { target: into, remote: memory.remote() }));
                let read = pair.next_sent("a READ to registered memory").buffers.pop().expect("the target");
                assert!(*read == *bytes, "{len} bytes");
                target.put_back(read).expect("it is the same");
                source.put_back(lent.thaw().expect("nobody else has it")).expect("it is the same");
                assert!(*target.end().expect("it is back") == *bytes && *source.end().expect("it is back") == *bytes);
            }
            let len = len.min(pair.near.device.attributes().mtu);
            let mut target = registered(&pair.far, filled(&arena, &vec![0; len]));
            let into = only(target.take().expect("it is there"));
            pair.far.qp.post_receive(7, into).expect("a registered receive");
            let mut source = registered(&pair.near, filled(&arena, &bytes[..len]));
            let lent = source.take().expect("it is there").freeze();
            let send = pair.send(lent.clone().into(), None);
            pair.near.post(Request::new(3, send));
            pair.expect_success(3);
            if pair.is_lossy() {
                continue;
            }
            let mut received = pair.next_received("a message to registered memory");
            assert!(received.buffers.pop().is_some_and(|buffer| *buffer == bytes[..len]));
        }
    }
}

/// It is not given back while its user has taken it out, nor while a queue pair has it.
pub fn registered_memory_is_not_given_back_while_it_is_out<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    let memory = pair.far.expose(64);
    let arena = private();
    let mut target = registered(&pair.near, filled(&arena, &[0; 64]));
    let into = only(target.take().expect("it is there"));
    assert!(target.take().is_none());
    pair.near.push(Request::new(1, Operation::Read { target: into, remote: memory.remote() }));
    let target = target.end().expect_err("it is pushed").registered;
    pair.near.qp.doorbell();
    let mut target = target.end().expect_err("it is in flight").registered;
    let read = pair.next_sent("a READ to registered memory").buffers.pop().expect("the target");
    let another = target.put_back(filled(&arena, &[1; 64])).expect_err("it is another");
    assert_eq!(*another, [1; 64]);
    let mut target = target.end().expect_err("nothing was put back").registered;
    target.put_back(read).expect("it is the same");
    assert_eq!(*target.end().expect("it is back"), [0; 64]);
}

/// Such memory is foreign before its registration, and again after it has ended.
pub fn memory_is_foreign_again_when_its_registration_has_ended<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    let remote = pair.far.expose(64).remote();
    let arena = private();
    let refused = |pair: &mut Pair<'_, F>, buffer: MessageBuffer| {
        let read = Operation::Read { target: only(buffer), remote };
        let mut refused = pair.near.qp.push(Request::new(1, read)).expect_err("a foreign target");
        assert_eq!(refused.error, PostError::ForeignBuffer);
        refused.buffers.pop().expect("the target")
    };
    let buffer = filled(&arena, &[0; 64]);
    let buffer = refused(&mut pair, buffer);
    let registered = registered(&pair.near, buffer);
    // Another buffer of the same arena is not registered, nor is this one at the other end.
    refused(&mut pair, filled(&arena, &[0; 64]));
    let buffer = registered.end().expect("it is there");
    refused(&mut pair, buffer);
    pair.assert_works(2);
}

/// Registered memory stays usable after its arena and everything else in it are gone.
pub fn memory_that_is_registered_outlives_its_arena<F: Fixture>(fixture: &F) {
    let Some(transport) = reliable(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    let memory = pair.far.expose(64);
    memory.write(0, &[9; 64]).expect("our own memory");
    let arena = private();
    let buffer = filled(&arena, &[0; 64]);
    let registration = pair.near.domain.register(buffer.place()).expect("memory to register");
    drop((arena, buffer));
    // Nobody has a buffer there. The registration exists all the same, and ends.
    drop(registration);
    let arena = private();
    let mut target = registered(&pair.near, filled(&arena, &[0; 64]));
    drop(arena);
    let into = only(target.take().expect("it is there"));
    pair.near.post(Request::new(1, Operation::Read { target: into, remote: memory.remote() }));
    let read = pair.next_sent("a READ to registered memory").buffers.pop().expect("the target");
    target.put_back(read).expect("it is the same");
    assert_eq!(*target.end().expect("it is back"), [9; 64]);
}
