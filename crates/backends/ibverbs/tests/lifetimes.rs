//! Lifetimes of devices, domains, queues and buffers, whichever is dropped or forgotten first.

mod common;

use common::{Pair, Side, assert_ok, assert_silent, config, device};
use sinew_fabric::verbs::{
    Access, CompletionQueue, Device, Exposed, Operation, ProtectionDomain, QpConfig, QpState, QueuePair, Request,
    Source, Status, ThreadDomain, Transport,
};
use sinew_mem::Arena;

/// Number of 4 KiB buffers that are free.
fn free(arena: &Arena) -> usize {
    std::iter::from_fn(|| arena.alloc(4096, 4096).ok()).collect::<Vec<_>>().len()
}

#[test]
fn buffers_in_flight_come_back_with_the_end_of_their_queue_pair_and_not_before() {
    for transport in Transport::ALL {
        let Some(pair) = Pair::new(transport) else { return };
        let arena = pair.domain.arena(1 << 18).unwrap();
        let all = free(&arena);
        let mut side = Side::new(&pair.domain, &config(transport));
        side.qp.modify(QpState::Init, None).unwrap();
        for id in 0..10 {
            side.qp.post_buffer(id, arena.alloc(4096, 4096).unwrap()).unwrap();
        }
        assert_eq!(free(&arena), all - 10);
        let Side { qp, receives, thread, .. } = side;
        // Queues and domains are dropped first, and live on in the queue pair.
        drop((receives, thread));
        assert_eq!(free(&arena), all - 10);
        drop(qp);
        assert_eq!(free(&arena), all, "{transport:?}");
    }
}

#[test]
fn a_forgotten_queue_pair_keeps_all_that_it_needs() {
    let Some(mut pair) = Pair::new(Transport::Rc) else { return };
    let arena = pair.domain.arena(1 << 18).unwrap();
    let all = free(&arena);
    let mut side = Side::new(&pair.domain, &config(Transport::Rc));
    side.qp.modify(QpState::Init, None).unwrap();
    side.qp.post_buffer(0, arena.alloc(4096, 4096).unwrap()).unwrap();
    side.qp.modify(QpState::ReadyToReceive, Some(&pair.a.qp.address())).unwrap();
    let remote = side.qp.address();
    let Side { qp, receives, sends, thread } = side;
    std::mem::forget(qp);
    drop((receives, sends, thread));
    assert_eq!(free(&arena), all - 1);
    // Its peer still reaches it.
    pair.a.qp.modify(QpState::Reset, None).unwrap();
    pair.a.qp.connect(Some(&remote)).unwrap();
    pair.a.qp.post(Request::new(1, pair.send(Source::Inline(b"hello")))).unwrap();
    assert_ok(&pair.a.sent());
    assert_eq!(free(&arena), all - 1);
}

#[test]
fn children_keep_their_parents() {
    let Some(device) = device() else { return };
    let domain = device.protection_domain().unwrap();
    let arena = domain.arena(1 << 20).unwrap();
    let memory = domain.expose(64, Access::ALL).unwrap();
    let (mut a, mut b) = (Side::new(&domain, &config(Transport::Rc)), Side::new(&domain, &config(Transport::Rc)));
    drop((device, domain));
    let (to_a, to_b) = (a.qp.address(), b.qp.address());
    a.qp.connect(Some(&to_b)).unwrap();
    b.qp.connect(Some(&to_a)).unwrap();
    let mut source = arena.alloc(5, 5).unwrap();
    source.copy_from_slice(b"alive");
    let (source, remote) = (source.freeze().into(), memory.remote());
    a.qp.post(Request::new(0, Operation::Write { source, remote, immediate: None })).unwrap();
    assert_ok(&a.sent());
    let Side { qp, sends, receives, thread } = a;
    drop((thread, receives, sends, qp));
    let memory = memory.deregister().unwrap();
    drop(b);
    let mut bytes = [0; 5];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"alive");
}

#[test]
fn completions_of_queue_pairs_that_are_gone_are_not_taken_for_others() {
    let Some(pair) = Pair::new(Transport::Rc) else { return };
    let thread = pair.domain.thread().unwrap();
    let mut cq = thread.completion_queue(32).unwrap();
    let config = QpConfig { send_depth: 8, receive_depth: 8, ..config(Transport::Rc) };
    for round in 0..20u64 {
        let mut a = thread.queue_pair(&config, &cq, &cq).unwrap();
        let mut b = thread.queue_pair(&config, &cq, &cq).unwrap();
        let (to_a, to_b) = (a.address(), b.address());
        a.connect(Some(&to_b)).unwrap();
        b.connect(Some(&to_a)).unwrap();
        for id in 0..8 {
            b.post_buffer(id, pair.empty(8)).unwrap();
        }
        for id in 0..8 {
            let send = Operation::Send { source: Source::Inline(b"x"), immediate: None, to: None };
            a.push(Request::new(id, send)).unwrap();
        }
        a.doorbell();
        let first = common::next(&mut cq);
        assert_ok(&first);
        assert!(first.qp == a.number() || first.qp == b.number(), "round {round}");
        // The other completions come before or after both queue pairs are gone.
        if round % 2 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    assert_silent(&mut cq);
}

#[test]
fn the_end_of_a_queue_pair_loses_nothing_of_its_neighbours() {
    let Some(pair) = Pair::new(Transport::Rc) else { return };
    let thread = pair.domain.thread().unwrap();
    let mut cq = thread.completion_queue(32).unwrap();
    let config = QpConfig { send_depth: 8, receive_depth: 8, ..config(Transport::Rc) };
    let mut a = thread.queue_pair(&config, &cq, &cq).unwrap();
    let mut b = thread.queue_pair(&config, &cq, &cq).unwrap();
    let (to_a, to_b) = (a.address(), b.address());
    a.connect(Some(&to_b)).unwrap();
    b.connect(Some(&to_a)).unwrap();
    b.post_buffer(5, pair.empty(8)).unwrap();
    a.post(Request::new(4, Operation::Send { source: Source::Inline(b"x"), immediate: None, to: None })).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    drop(a);
    // The completion was taken from the device by then, so a wait does not sleep.
    cq.wait(None).unwrap();
    let arrived = common::next(&mut cq);
    assert_eq!((arrived.id, arrived.status, arrived.qp), (5, Status::Success, b.number()));
    assert_silent(&mut cq);
}

#[test]
fn what_is_dropped_leaves_no_descriptor_open() {
    let Some(_) = device() else { return };
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let child = std::env::var_os("SINEW_ALONE").is_some();
    if !child {
        // Other tests of this process open and close descriptors too.
        let test = "what_is_dropped_leaves_no_descriptor_open";
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let status = command.args(["--exact", test]).env("SINEW_ALONE", "1").status().unwrap();
        assert!(status.success());
        return;
    }
    drop(Pair::new(Transport::Ud));
    let before = open();
    for transport in Transport::ALL {
        let pair = Pair::new(transport).unwrap();
        pair.domain.expose(4096, Access::ALL).unwrap();
        pair.to_b();
    }
    assert_eq!(open(), before);
}
