//! A working queue pair allocates nothing, whatever is posted to it.

mod common;
#[path = "../../../../xtask/cost/src/counting.rs"]
mod counting;

use common::Pair;
use counting::allocations;
use sinew_fabric::verbs::{
    Access, Completion, CompletionQueue, Exposed, Operation, ProtectionDomain, QueuePair, Request, Source, Transport,
};

/// Takes completions until there are `count`.
fn take(cq: &mut impl CompletionQueue, completions: &mut Vec<Completion>, count: usize) {
    while completions.len() < count {
        let missing = count - completions.len();
        if cq.poll(completions, missing) == 0 {
            cq.wait(Some(1_000_000_000)).unwrap();
        }
    }
    assert!(completions.iter().all(|completion| completion.status.is_success()), "{completions:?}");
}

#[test]
fn posting_and_polling_allocate_nothing() {
    for transport in Transport::ALL {
        let Some(mut pair) = Pair::new(transport) else { return };
        let memory = pair.domain.expose(4096, Access::ALL).unwrap();
        let (to, remote) = (pair.to_b(), memory.remote());
        let frozen = pair.buffer(&[7; 1000]).freeze();
        let mut targets: Vec<_> = (0..8).map(|_| pair.empty(1000)).collect();
        let mut words: Vec<_> = (0..2).map(|_| pair.empty(8)).collect();
        let mut completions: Vec<Completion> = Vec::with_capacity(64);
        let mut before = 0;
        for round in 0..10 {
            // The first round's allocations are the library's and the arenas'.
            if round == 1 {
                before = allocations();
            }
            for (id, mut target) in targets.drain(..).enumerate() {
                target.resize(1000).unwrap();
                pair.b.qp.post_buffer(id as u64, target).unwrap();
            }
            for id in 0..8u64 {
                let source = if id % 2 == 0 { Source::Inline(b"inline") } else { frozen.clone().into() };
                let send = Operation::Send { source, immediate: Some(id as u32), to };
                let mut request = Request::new(id, send);
                request.signaled = id == 7;
                pair.a.qp.push(request).unwrap();
            }
            if transport == Transport::Rc {
                let target = words.pop().unwrap();
                let add = Operation::FetchAdd { target, remote, add: 1 };
                pair.a.qp.push(Request::new(8, add)).unwrap();
                let target = [words.pop().unwrap()].into_iter().collect();
                pair.a.qp.push(Request::new(9, Operation::Read { target, remote })).unwrap();
            }
            pair.a.qp.doorbell();
            take(&mut pair.b.receives, &mut completions, 8);
            targets.extend(completions.drain(..).flat_map(|completion| completion.buffers));
            take(&mut pair.a.sends, &mut completions, if transport == Transport::Rc { 3 } else { 1 });
            words.extend(completions.drain(..).flat_map(|completion| completion.buffers));
        }
        assert_eq!(allocations() - before, 0, "{transport:?}");
    }
}
