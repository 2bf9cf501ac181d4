//! Tests of WRITE, READ and atomics in exposed memory, and of the rights that they need.

use sinew_fabric::verbs::{
    Access, Exposed, Opcode, Operation, ProtectionDomain, QpState, QueuePair, RemoteMemory, Request, Scatter, Slice,
    Source, Status, Transport,
};
use sinew_mem::MessageBuffer;

use crate::pair::{End, Pair, check, config, devices, pattern};

fn write<'a>(source: Source<'a>, remote: RemoteMemory) -> Operation<'a> {
    Operation::Write { source, remote, immediate: None }
}

#[test]
fn writes_and_reads_of_every_length_and_alignment() {
    for (name, devices) in devices() {
        let mut pair = Pair::new(&devices, &config(Transport::Rc));
        let exposed = pair.b.expose(1 << 20);
        for (id, len) in [1, 7, 8, 9, 32, 64, 1000, 4096, 300_000, 1_000_000].into_iter().enumerate() {
            for offset in [0, 1, 8, 13, 4095] {
                let remote = exposed.remote().at(offset).unwrap();
                let bytes = pattern(len, id + offset as usize);
                let source = pair.a.filled(&bytes).freeze();
                pair.a.post(1, write(source.into(), remote));
                let mut there = vec![0; len];
                exposed.read(offset as usize, &mut there).unwrap();
                assert!(there == bytes, "{name} {len} at {offset}");
                let target = pair.a.target(len);
                pair.a.post(2, Operation::Read { target, remote });
                check(&pair.next_send(), 1, Opcode::Write, Status::Success);
                let read = pair.next_send();
                check(&read, 2, Opcode::Read, Status::Success);
                assert!(read.len == len && read.buffers[0][..] == bytes, "{name} {len} at {offset}");
            }
        }
    }
}

#[test]
fn one_sided_operations_need_nothing_of_the_other_thread() {
    for (_, devices) in devices() {
        let mut pair = Pair::new(&devices, &config(Transport::Rc));
        let exposed = pair.b.expose(64);
        pair.a.post(1, write(Source::Inline(b"12345678"), exposed.remote()));
        let target = pair.a.target(8);
        pair.a.post(2, Operation::Read { target, remote: exposed.remote() });
        let completions = pair.a.poll_sends();
        assert_eq!(completions.len(), 2);
        assert_eq!(completions[1].buffers[0][..], *b"12345678");
    }
}

#[test]
fn pieces_are_gathered_to_and_scattered_from_one_range() {
    for (_, devices) in devices() {
        let mut pair = Pair::new(&devices, &config(Transport::Rc));
        let exposed = pair.b.expose(4096);
        let whole = pair.a.filled(&pattern(100, 1)).freeze();
        let cut = |start, len| Slice { buffer: whole.clone(), start, len };
        let pieces = [cut(90, 10), cut(0, 0), cut(0, 3), cut(50, 20)];
        let remote = exposed.remote().at(5).unwrap();
        pair.a.post(1, write(Source::Gather(pieces.into_iter().collect()), remote));
        let target: Scatter = [1, 30, 2].map(|len| pair.a.buffer(len)).into_iter().collect();
        pair.a.post(2, Operation::Read { target, remote });
        pair.next_send();
        let read: Vec<u8> = pair.next_send().buffers.iter().flat_map(|buffer| buffer.to_vec()).collect();
        let bytes = pattern(100, 1);
        assert_eq!(read, [&bytes[90..], &bytes[..3], &bytes[50..70]].concat());
    }
}

#[test]
fn atomics_give_back_what_was_there() {
    for (_, devices) in devices() {
        let mut pair = Pair::new(&devices, &config(Transport::Rc));
        let exposed = pair.b.expose(64);
        exposed.store(8, 40).unwrap();
        let remote = exposed.remote().at(8).unwrap();
        let was = |pair: &mut Pair, operation: &dyn Fn(MessageBuffer) -> Operation<'static>| {
            let target = pair.a.buffer(16);
            pair.a.post(3, operation(target));
            let completion = pair.next_send();
            assert_eq!((completion.status, completion.len), (Status::Success, 8));
            u64::from_ne_bytes(completion.buffers[0][..8].try_into().unwrap())
        };
        assert_eq!(was(&mut pair, &|target| Operation::FetchAdd { target, remote, add: 2 }), 40);
        let swap = |expected, desired| move |target| Operation::CompareSwap { target, remote, expected, desired };
        assert_eq!(was(&mut pair, &swap(40, 1)), 42);
        assert_eq!(was(&mut pair, &swap(42, 7)), 42);
        assert_eq!(was(&mut pair, &|target| Operation::FetchAdd { target, remote, add: u64::MAX }), 7);
        assert_eq!(exposed.load(8), Ok(6));
    }
}

#[test]
fn counts_of_many_threads_add_up() {
    for (_, (device, other)) in devices() {
        let owner = End::new(&device, &config(Transport::Rc));
        let exposed = owner.expose(8);
        let remote = exposed.remote();
        let config = config(Transport::Rc);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let mut listener = owner.thread_end(&config);
                let (sender, receiver) = std::sync::mpsc::channel();
                let address = listener.qp.address();
                let other = other.clone();
                let adder = scope.spawn(move || {
                    let mut end = End::new(&other, &config);
                    sender.send(end.qp.address()).unwrap();
                    end.qp.connect(Some(&address)).unwrap();
                    let mut target = Some(end.buffer(8));
                    for id in 0..2000 {
                        let target_now = target.take().unwrap();
                        end.post(id, Operation::FetchAdd { target: target_now, remote, add: 1 });
                        let mut completion = crate::pair::eventually("a sum", || end.poll_sends().pop());
                        assert_eq!(completion.status, Status::Success);
                        target = completion.buffers.pop();
                    }
                });
                listener.qp.connect(Some(&receiver.recv().unwrap())).unwrap();
                adder.join().unwrap();
            }
        });
        assert_eq!(exposed.load(0), Ok(6000));
    }
}

/// Posts a request that must be refused, and connects the pair again.
fn refused(name: &str, pair: &mut Pair, operation: Operation<'_>) {
    let transport = pair.a.qp.transport();
    pair.a.post(1, operation);
    pair.a.post(2, write(Source::Inline(b"after"), RemoteMemory { address: 0, rkey: 0, len: 0 }));
    assert_eq!(pair.next_send().status, Status::RemoteAccess, "{name} {transport:?}");
    assert_eq!(pair.next_send().status, Status::Flushed, "{name}");
    assert_eq!(pair.a.qp.state(), QpState::Error, "{name}");
    // Both ends are reset and connected again.
    for end in [&mut pair.a, &mut pair.b] {
        end.qp.modify(QpState::Reset, None).unwrap();
        end.poll_sends();
        end.poll_receives();
    }
    pair.connect();
}

#[test]
fn wrong_keys_bounds_and_accesses_are_refused() {
    for (name, devices) in devices() {
        for transport in [Transport::Rc, Transport::Uc] {
            let mut pair = Pair::new(&devices, &config(transport));
            let exposed = pair.b.domain.expose(100, Access::WRITE).unwrap();
            let good = exposed.remote();
            for remote in [
                RemoteMemory { rkey: good.rkey ^ 1, ..good },
                RemoteMemory { rkey: good.rkey ^ 1 << 16, ..good },
                RemoteMemory { rkey: 0, ..good },
                RemoteMemory { address: good.address + 96, ..good },
                RemoteMemory { address: good.address - 1, ..good },
                RemoteMemory { address: u64::MAX, ..good },
                RemoteMemory { address: 0, ..good },
            ] {
                refused(name, &mut pair, write(Source::Inline(b"12345"), remote));
            }
            if transport == Transport::Rc {
                let target = pair.a.target(8);
                refused(name, &mut pair, Operation::Read { target, remote: good });
                let target = pair.a.buffer(8);
                refused(name, &mut pair, Operation::FetchAdd { target, remote: good, add: 1 });
            }
            // Another domain's memory, of the same device.
            let other_domain = End::new(&pair.b.device, &config(transport));
            refused(name, &mut pair, write(Source::Inline(b"x"), other_domain.expose(100).remote()));
            let bytes = [0; 100].map(|_: u8| 9);
            let source = pair.a.filled(&bytes).freeze();
            pair.a.post(1, write(source.into(), good));
            check(&pair.next_send(), 1, Opcode::Write, Status::Success);
            let mut there = [0; 100];
            exposed.read(0, &mut there).unwrap();
            assert_eq!(there, bytes);
        }
    }
}

#[test]
fn memory_whose_exposure_ended_is_refused_and_its_owner_keeps_it() {
    for (name, devices) in devices() {
        let mut pair = Pair::new(&devices, &config(Transport::Rc));
        for drop_it in [false, true] {
            let exposed = pair.b.expose(64);
            let remote = exposed.remote();
            pair.a.post(1, write(Source::Inline(b"12345678"), remote));
            check(&pair.next_send(), 1, Opcode::Write, Status::Success);
            let memory = if drop_it {
                drop(exposed);
                None
            } else {
                Some(exposed.deregister().expect("nobody is inside"))
            };
            refused(name, &mut pair, write(Source::Inline(b"87654321"), remote));
            // A later exposure has another key.
            let later = pair.b.expose(64);
            refused(name, &mut pair, write(Source::Inline(b"87654321"), remote));
            assert_eq!(later.load(0), Ok(0));
            if let Some(memory) = memory {
                assert_eq!(memory.load(0), Ok(u64::from_ne_bytes(*b"12345678")));
            }
        }
    }
}

#[test]
fn lists_that_are_performed_at_once_end_with_the_exposure() {
    for (name, devices) in devices() {
        // A region is entered for 64 WRITEs, which count only if it is still exposed after them.
        for (end_at, counted) in [(5, 0), (70, 64)] {
            let mut pair = Pair::new(&devices, &config(Transport::Rc));
            let mut exposed = Some(pair.b.expose(1024));
            let (remote, word) = (exposed.as_ref().unwrap().remote(), [7; 8]);
            let writes = (0..100).map(|number| {
                exposed.take_if(|_| number == end_at);
                (&word[..], remote.at(number * 8).unwrap())
            });
            assert_eq!(pair.a.qp.write_at_once(writes), counted, "{name}, ended at {end_at}");
            pair.a.post(1, write(Source::Inline(&word), remote));
            check(&pair.next_send(), 1, Opcode::Write, Status::RemoteAccess);
        }
        let mut pair = Pair::new(&devices, &config(Transport::Rc));
        let mut exposed = Some(pair.b.expose(1024));
        let remote = exposed.as_ref().unwrap().remote();
        let reads: Vec<_> = (0..20).map(|id| (id, pair.a.buffer(8), remote.at(id * 8).unwrap())).collect();
        let reads = reads.into_iter().inspect(|(id, ..)| _ = exposed.take_if(|_| *id == 5));
        let mut done = Vec::new();
        pair.a.qp.post_reads(reads, |id, buffer| done.push((id, buffer))).unwrap();
        assert!(done.iter().map(|(id, _)| *id).eq(0..5), "{name}: {done:?}");
        check(&pair.next_send(), 5, Opcode::Read, Status::RemoteAccess);
        (6..20).for_each(|id| check(&pair.next_send(), id, Opcode::Read, Status::Flushed));
    }
}

#[test]
fn a_write_of_nothing_checks_nothing() {
    for (_, devices) in devices() {
        let mut pair = Pair::new(&devices, &config(Transport::Rc));
        pair.a.post(1, write(Source::Empty, RemoteMemory { address: 7, rkey: 7, len: 0 }));
        check(&pair.next_send(), 1, Opcode::Write, Status::Success);
    }
}

#[test]
fn a_write_is_there_before_the_message_that_tells_of_it() {
    for (_, (device, other)) in devices() {
        for transport in [Transport::Rc, Transport::Uc] {
            const ROUNDS: u64 = 300;
            let config = config(transport);
            let mut end = End::new(&device, &config);
            let exposed = end.expose(64);
            let remote = exposed.remote();
            let address = end.qp.address();
            let (sender, receiver) = std::sync::mpsc::channel();
            let (begin, begun) = std::sync::mpsc::channel();
            let other = other.clone();
            let writer = std::thread::spawn(move || {
                let mut end = End::new(&other, &config);
                sender.send(end.qp.address()).unwrap();
                end.qp.connect(Some(&address)).unwrap();
                begun.recv().unwrap();
                for round in 1..=ROUNDS {
                    let bytes = [round.to_ne_bytes(); 8].concat();
                    end.qp.push(Request::new(0, write(Source::Inline(&bytes), remote)).unsignaled()).unwrap();
                    let send = Operation::Send { source: Source::Inline(&bytes[..8]), immediate: None, to: None };
                    // One round at a time.
                    end.post_receive(1, 8);
                    end.post(1, send);
                    crate::pair::eventually("the answer", || end.poll_receives().pop());
                    end.poll_sends();
                }
            });
            end.qp.connect(Some(&receiver.recv().unwrap())).unwrap();
            end.post_receive(0, 8);
            begin.send(()).unwrap();
            for round in 1..=ROUNDS {
                let got = crate::pair::eventually("the message", || end.poll_receives().pop());
                assert_eq!(got.buffers[0][..], round.to_ne_bytes());
                assert!((0..8).all(|word| exposed.load(word * 8) == Ok(round)));
                if round < ROUNDS {
                    end.post_receive(round, 8);
                }
                end.post(1, Operation::Send { source: Source::Empty, immediate: None, to: None });
                end.poll_sends();
            }
            writer.join().unwrap();
        }
    }
}
