//! SEND, RECV, and the receive of WRITE with immediate.

use sinew_fabric::verbs::{
    CompletionQueue, Exposed, Opcode, Operation, QpConfig, QpState, QueuePair, Request, Scatter, Slice, Source, Status,
    ThreadDomain, Transport,
};
use sinew_shm::verbs::{Discarded, MTU};

use crate::pair::{NOBODY, Pair, check, config, devices, eventually, pattern};

#[test]
fn messages_of_every_length_arrive_whole_and_in_order() {
    for (name, devices) in devices() {
        for transport in Transport::ALL {
            let mut pair = Pair::new(&devices, &config(transport));
            let mut lens = vec![0, 1, 7, 8, 31, 32, 33, 216, 224, 225, 500, 4096, MTU - 1, MTU];
            if transport != Transport::Ud {
                lens.extend([MTU + 1, 3 * MTU + 77, 1 << 20]);
            }
            for (id, &len) in lens.iter().enumerate() {
                pair.b.post_receive(100 + id as u64, len + id % 3);
            }
            for (id, &len) in lens.iter().enumerate() {
                let immediate = (id % 2 == 0).then_some(id as u32);
                let source = pair.a.filled(&pattern(len, id)).freeze();
                pair.send(id as u64, source.into(), immediate);
            }
            for (id, &len) in lens.iter().enumerate() {
                let got = pair.next_receive();
                check(&got, 100 + id as u64, Opcode::Receive, Status::Success);
                assert_eq!((got.len, got.immediate), (len, (id % 2 == 0).then_some(id as u32)), "{name} {transport:?}");
                assert_eq!(got.buffers[0][..], pattern(len, id), "{name} {transport:?} {len}");
                assert_eq!(got.from.is_some(), transport == Transport::Ud);
            }
            for (id, &len) in lens.iter().enumerate() {
                let sent = pair.next_send();
                check(&sent, id as u64, Opcode::Send, Status::Success);
                assert_eq!(sent.len, len);
            }
        }
    }
}

#[test]
fn pieces_are_gathered_and_scattered() {
    for (name, devices) in devices() {
        for transport in Transport::ALL {
            let mut pair = Pair::new(&devices, &config(transport));
            for (round, scale) in [1, 40, 400, 4000].into_iter().enumerate() {
                let lens = [3 * scale, 0, scale, 5].map(|len| len.min(MTU / 4));
                let buffers: Scatter = lens.iter().map(|&len| pair.b.buffer(len + 1)).collect();
                pair.b.qp.post_receive(9, buffers).unwrap();
                let message = pattern(lens.iter().sum(), round);
                // The source is cut at other places than the target.
                let cuts = [0, 1, message.len() / 2, message.len() / 2, message.len()];
                let whole = pair.a.filled(&message).freeze();
                let pieces =
                    cuts.windows(2).map(|cut| Slice { buffer: whole.clone(), start: cut[0], len: cut[1] - cut[0] });
                pair.send(1, Source::Gather(pieces.collect()), None);
                let got = pair.next_receive();
                let joined: Vec<u8> = got.buffers.iter().flat_map(|buffer| buffer.to_vec()).collect();
                assert_eq!((got.len, &joined), (message.len(), &message), "{name} {transport:?} {scale}");
                assert!(whole.thaw().is_ok(), "no share of the buffer is left");
                pair.next_send();
            }
        }
    }
}

#[test]
fn inline_bytes_are_copied_when_they_are_pushed() {
    for (_, devices) in devices() {
        for transport in Transport::ALL {
            let mut pair = Pair::new(&devices, &config(transport));
            pair.b.post_receive(1, 64);
            let to = pair.to_b();
            let mut bytes = *b"before";
            let operation = Operation::Send { source: Source::Inline(&bytes), immediate: None, to };
            pair.a.qp.push(Request::new(1, operation)).unwrap();
            bytes.fill(b'!');
            pair.turn();
            pair.a.qp.doorbell();
            assert_eq!(pair.next_receive().buffers[0][..], *b"before");
        }
    }
}

#[test]
fn nothing_starts_before_its_doorbell() {
    for (name, devices) in devices() {
        for transport in Transport::ALL {
            let mut pair = Pair::new(&devices, &config(transport));
            pair.b.post_receive(1, 64);
            pair.b.post_receive(2, 64);
            let to = pair.to_b();
            for id in [1, 2] {
                let operation = Operation::Send { source: Source::Inline(b"x"), immediate: None, to };
                pair.a.qp.push(Request::new(id, operation)).unwrap();
            }
            pair.turn();
            assert!(pair.b.poll_receives().is_empty() && pair.a.poll_sends().is_empty(), "{name} {transport:?}");
            pair.a.qp.doorbell();
            assert_eq!([1, 2].map(|_| pair.next_receive().id), [1, 2]);
            assert_eq!([1, 2].map(|_| pair.next_send().id), [1, 2]);
        }
    }
}

#[test]
fn a_datagram_says_whom_an_answer_goes_to() {
    for (_, devices) in devices() {
        let mut pair = Pair::new(&devices, &QpConfig { qkey: 77, ..config(Transport::Ud) });
        pair.b.post_receive(1, 64);
        pair.a.post_receive(2, 64);
        pair.send(1, Source::Inline(b"question"), None);
        let from = pair.next_receive().from.unwrap();
        assert_eq!(from.number, pair.a.qp.number());
        let operation = Operation::Send { source: Source::Inline(b"answer"), immediate: Some(3), to: Some(from) };
        pair.b.post(5, operation);
        let answer = eventually("an answer", || pair.a.poll_receives().pop());
        assert_eq!((&answer.buffers[0][..], answer.immediate), (&b"answer"[..], Some(3)));
        assert_eq!(answer.from.unwrap().number, pair.b.qp.number());
    }
}

#[test]
fn a_datagram_with_another_key_or_to_nobody_is_dropped_and_counted() {
    for (_, devices) in devices() {
        let mut pair = Pair::new(&devices, &config(Transport::Ud));
        pair.b.post_receive(1, 64);
        let good = pair.to_b().unwrap();
        for to in [
            sinew_fabric::verbs::Destination { qkey: 1, ..good },
            sinew_fabric::verbs::Destination { number: NOBODY, ..good },
        ] {
            pair.a.post(1, Operation::Send { source: Source::Inline(b"lost"), immediate: None, to: Some(to) });
            check(&pair.next_send(), 1, Opcode::Send, Status::Success);
        }
        pair.send(2, Source::Inline(b"found"), None);
        assert_eq!(pair.next_receive().buffers[0][..], *b"found");
        assert_eq!(pair.b.thread.discarded(Discarded::WrongKey), 1);
        assert_eq!(pair.b.thread.discarded(Discarded::NoSuchQueuePair), 1);
    }
}

#[test]
fn what_unreliable_transports_send_without_a_receive_is_dropped_and_counted() {
    for (name, devices) in devices() {
        for transport in [Transport::Uc, Transport::Ud] {
            let mut pair = Pair::new(&devices, &config(transport));
            pair.send(1, Source::Inline(b"lost"), None);
            check(&pair.next_send(), 1, Opcode::Send, Status::Success);
            eventually("the drop", || {
                pair.turn();
                (pair.b.thread.discarded(Discarded::NoReceive) == 1).then_some(())
            });
            pair.b.post_receive(2, 64);
            pair.send(2, Source::Inline(b"found"), None);
            assert_eq!(pair.next_receive().buffers[0][..], *b"found", "{name} {transport:?}");
        }
    }
}

#[test]
fn a_long_message_that_loses_a_part_leaves_its_receive_to_the_next() {
    for (_, devices) in devices() {
        let mut pair = Pair::new(&devices, &config(Transport::Uc));
        // The first part arrives before there is a receive, the others after it.
        let long = pair.a.filled(&pattern(3 * MTU, 1)).freeze();
        pair.send(1, long.clone().into(), None);
        eventually("the drop", || {
            pair.turn();
            (pair.b.thread.discarded(Discarded::NoReceive) == 1).then_some(())
        });
        pair.b.post_receive(1, 3 * MTU);
        pair.send(2, long.into(), Some(2));
        let got = pair.next_receive();
        assert_eq!((got.immediate, got.len), (Some(2), 3 * MTU));
        assert_eq!(got.buffers[0][..], pattern(3 * MTU, 1));
    }
}

#[test]
fn a_reliable_message_waits_for_its_receive() {
    for (name, devices) in devices() {
        let mut pair = Pair::new(&devices, &config(Transport::Rc));
        for id in 0..3 {
            pair.send(id, Source::Inline(&[id as u8; 9]), None);
        }
        pair.turn();
        std::thread::sleep(std::time::Duration::from_millis(3));
        pair.turn();
        assert!(pair.a.poll_sends().is_empty(), "{name}");
        for id in 0..3 {
            pair.b.post_receive(id, 9);
            let got = pair.next_receive();
            assert_eq!((got.id, &got.buffers[0][..]), (id, &[id as u8; 9][..]));
            check(&pair.next_send(), id, Opcode::Send, Status::Success);
        }
    }
}

#[test]
fn a_reliable_message_is_given_up_after_as_many_tries_as_it_has() {
    for (_, devices) in devices() {
        for retries in [0, 3] {
            let mut pair = Pair::new(&devices, &QpConfig { rnr_retries: retries, ..config(Transport::Rc) });
            pair.send(1, Source::Inline(b"x"), None);
            pair.send(2, Source::Inline(b"y"), None);
            check(&pair.next_send(), 1, Opcode::Send, Status::RnrRetryExceeded);
            check(&pair.next_send(), 2, Opcode::Send, Status::Flushed);
            assert_eq!(pair.a.qp.state(), QpState::Error);
        }
    }
}

#[test]
fn a_message_that_does_not_fit_ends_both_sides_of_a_connection_and_no_datagram_queue() {
    for (_, devices) in devices() {
        for transport in Transport::ALL {
            let mut pair = Pair::new(&devices, &config(transport));
            pair.b.post_receive(1, 8);
            pair.b.post_receive(2, 64);
            pair.send(1, Source::Inline(b"12345678"), None);
            assert_eq!(pair.next_receive().buffers[0][..], *b"12345678");
            pair.b.post_receive(3, 8);
            pair.send(2, Source::Inline(b"fits"), None);
            pair.send(3, Source::Inline(b"123456789"), None);
            pair.b.post_receive(4, 64);
            pair.send(4, Source::Inline(b"after"), None);
            check(&pair.next_receive(), 2, Opcode::Receive, Status::Success);
            let misfit = pair.next_receive();
            check(&misfit, 3, Opcode::Receive, Status::LocalLength);
            assert_eq!(misfit.buffers.len(), 1, "its buffer comes back");
            let after = pair.next_receive();
            if transport == Transport::Ud {
                check(&after, 4, Opcode::Receive, Status::Success);
                continue;
            }
            check(&after, 4, Opcode::Receive, Status::Flushed);
            assert_eq!(pair.b.qp.state(), QpState::Error);
            eventually("the other end's error", || {
                pair.a.poll_receives();
                (pair.a.qp.state() == QpState::Error).then_some(())
            });
            let ends: Vec<Status> = (0..4).map(|_| pair.next_send().status).collect();
            let third = if transport == Transport::Rc { Status::RemoteInvalidRequest } else { Status::Success };
            let fourth = if transport == Transport::Rc { Status::Flushed } else { Status::Success };
            assert_eq!(ends, [Status::Success, Status::Success, third, fourth]);
        }
    }
}

#[test]
fn a_write_with_immediate_takes_a_receive_and_nothing_of_its_buffer() {
    for (_, devices) in devices() {
        for transport in [Transport::Rc, Transport::Uc] {
            let mut pair = Pair::new(&devices, &config(transport));
            let exposed = pair.b.expose(100);
            pair.b.post_receive(7, 16);
            let operation =
                Operation::Write { source: Source::Inline(b"written"), remote: exposed.remote(), immediate: Some(99) };
            pair.a.post(1, operation);
            let got = pair.next_receive();
            check(&got, 7, Opcode::ReceiveWrite, Status::Success);
            assert_eq!((got.len, got.immediate, &got.buffers[0][..]), (7, Some(99), &b""[..]));
            let mut written = [0; 8];
            exposed.read(0, &mut written).unwrap();
            assert_eq!(&written, b"written\0");
            check(&pair.next_send(), 1, Opcode::Write, Status::Success);
        }
    }
}

#[test]
fn a_full_ring_stops_a_reliable_sender_for_a_while_and_loses_nothing() {
    let small = || sinew_shm::verbs::ShmDevice::open(&"shm://?ring=3".parse().unwrap()).unwrap();
    for transport in [Transport::Rc, Transport::Uc] {
        let mut pair = Pair::new(&(small(), small()), &config(transport));
        for id in 0..60 {
            pair.b.post_receive(id, 200);
        }
        for id in 0..60 {
            let bytes = pattern(60, id as usize);
            pair.send(id, Source::Inline(&bytes), None);
        }
        if transport == Transport::Uc {
            assert!(pair.a.thread.discarded(Discarded::Full) > 0);
            continue;
        }
        for id in 0..60 {
            let got = pair.next_receive();
            assert_eq!((got.id, &got.buffers[0][..]), (id, &pattern(60, id as usize)[..]));
        }
        for id in 0..60 {
            check(&pair.next_send(), id, Opcode::Send, Status::Success);
        }
        // A long message is also stopped for a while, part-way through.
        let len = 60 * MTU;
        pair.b.post_receive(60, len);
        let long = pair.a.filled(&pattern(len, 5)).freeze();
        pair.send(60, long.into(), None);
        assert_eq!(pair.next_receive().buffers[0][..], pattern(len, 5));
        check(&pair.next_send(), 60, Opcode::Send, Status::Success);
    }
}

#[test]
fn a_queue_pair_can_be_connected_to_one_of_its_own_thread() {
    for (_, (device, _)) in devices() {
        for transport in Transport::ALL {
            let mut a = crate::pair::End::new(&device, &config(transport));
            let mut other = a.thread.queue_pair(&config(transport), &a.sends, &a.receives).unwrap();
            let (to_a, to_other) = (a.qp.address(), other.address());
            a.qp.connect(Some(&to_other)).unwrap();
            other.connect(Some(&to_a)).unwrap();
            other.post_buffer(4, a.buffer(10)).unwrap();
            let to = (transport == Transport::Ud).then(|| a.thread.destination(&to_other).unwrap());
            a.post(1, Operation::Send { source: Source::Inline(b"self"), immediate: None, to });
            let got = eventually("the message", || a.poll_receives().pop());
            assert_eq!((got.qp, &got.buffers[0][..]), (other.number(), &b"self"[..]));
            eventually("the completion", || a.poll_sends().pop());
        }
    }
}

#[test]
fn sleeping_receivers_and_senders_are_woken() {
    for (_, devices) in devices() {
        for transport in Transport::ALL {
            let config = config(transport);
            let (device, other) = devices.clone();
            let (sender, receiver) = std::sync::mpsc::channel();
            let (answer, answered) = std::sync::mpsc::channel();
            let echo = std::thread::spawn(move || {
                let mut end = crate::pair::End::new(&other, &config);
                sender.send(end.qp.address()).unwrap();
                end.qp.connect(Some(&answered.recv().unwrap())).unwrap();
                for id in 0..4 {
                    end.post_receive(id, 64);
                }
                sender.send(end.qp.address()).unwrap();
                let mut completions = Vec::new();
                for _ in 0..50 {
                    while end.receives.poll(&mut completions, 1) == 0 {
                        end.receives.wait(None).unwrap();
                    }
                    let got = completions.pop().unwrap();
                    let bytes = got.buffers[0].to_vec();
                    end.post(got.id, Operation::Send { source: Source::Inline(&bytes), immediate: None, to: got.from });
                    end.post_receive(got.id, 64);
                    while end.sends.poll(&mut completions, 1) == 0 {
                        end.sends.wait(None).unwrap();
                    }
                    completions.clear();
                }
                // The last answer may still be on its way.
                let _ = answered.recv();
            });
            let mut end = crate::pair::End::new(&device, &config);
            let remote = receiver.recv().unwrap();
            answer.send(end.qp.address()).unwrap();
            end.qp.connect(Some(&remote)).unwrap();
            receiver.recv().unwrap();
            let to = (transport == Transport::Ud).then(|| end.thread.destination(&remote).unwrap());
            let mut completions = Vec::new();
            for round in 0..50u64 {
                if round % 8 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                end.post_receive(round, 64);
                let bytes = round.to_le_bytes();
                end.post(round, Operation::Send { source: Source::Inline(&bytes), immediate: None, to });
                while end.receives.poll(&mut completions, 1) == 0 {
                    end.receives.wait(None).unwrap();
                }
                assert_eq!(completions.pop().unwrap().buffers[0][..], bytes);
                while end.sends.poll(&mut completions, 1) == 0 {
                    end.sends.wait(None).unwrap();
                }
                completions.clear();
            }
            drop(answer);
            echo.join().unwrap();
        }
    }
}
