//! UD: datagrams from anyone to anyone.

use sinew_fabric::verbs::{
    Destination, Operation, PostError, QpConfig, QpNumber, QpState, QueuePair, Request, Source, Status, ThreadDomain,
    Transport, VerbsError,
};

use super::ends::*;
use super::*;

/// Messages that are shown need no further receives than those that were there, which have their whole length
/// afterwards.
pub fn messages_are_shown_and_their_receives_stay_posted<F: Fixture>(fixture: &F) {
    const RECEIVES: usize = 3;
    const LEN: usize = 64;
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        pair.far.shown = Some(Vec::new());
        for id in 0..RECEIVES {
            pair.far.receive(id as u64, LEN);
        }
        let message = |number: usize| (pattern(number, 8 + 5 * number), Some(number as u32));
        let mut expected = Vec::new();
        for round in 0..4 {
            for number in RECEIVES * round..RECEIVES * (round + 1) {
                let (bytes, immediate) = message(number % 11);
                let operation = pair.send(Source::Inline(&bytes), immediate);
                pair.near.push(Request::new(number as u64, operation));
                expected.push((bytes, immediate));
            }
            pair.near.qp.doorbell();
            for number in RECEIVES * round..RECEIVES * (round + 1) {
                pair.expect_success(number as u64);
            }
            if pair.is_lossy() {
                pair.wait_briefly();
            } else {
                let is_there = |pair: &mut Pair<'_, F>| {
                    pair.far.shown.as_ref().is_some_and(|shown| shown.len() == expected.len()).then_some(())
                };
                pair.eventually("every message is shown", is_there);
            }
        }
        // A message that is too long is not shown. It may break its receiver; else it keeps no others from it.
        if transport == Transport::Ud {
            let long = pair.near.frozen(&pattern(1, LEN + 1));
            let operations = [pair.send(long.into(), None), pair.send(Source::Inline(b"after it"), None)];
            for (id, operation) in (0..).zip(operations) {
                pair.near.post(Request::new(id, operation));
                pair.expect_success(id);
            }
            if pair.is_lossy() {
                pair.wait_briefly();
            } else {
                let is_over = |pair: &mut Pair<'_, F>| {
                    let has_come = pair.far.shown.as_ref().is_some_and(|shown| shown.len() > expected.len());
                    (has_come || pair.far.qp.state() == QpState::Error).then_some(())
                };
                pair.eventually("the message after it, or an error", is_over);
            }
            if pair.far.qp.state() == QpState::Error {
                let shown = pair.far.shown.take().expect("they were shown");
                assert_eq!((&shown, pair.far.received.is_empty()), (&expected, false), "it says why");
                continue;
            }
            expected.push((b"after it".to_vec(), None));
        }
        let failed = pair.far.received.drain(..).map(|completion| completion.status).collect::<Vec<_>>();
        assert!(failed.len() <= 1 && failed.iter().all(|status| *status == Status::LocalLength), "{failed:?}");
        let shown = pair.far.shown.take().expect("they were shown");
        let mut unseen = expected.iter();
        assert!(shown.iter().all(|message| unseen.any(|sent| sent == message)), "in order: {shown:?}");
        for left in 0..RECEIVES - failed.len() {
            let bytes = pattern(left, LEN);
            let received = pair.deliver_any(|pair| pair.send(Source::Inline(&bytes), None));
            assert_message(&received, &bytes, None);
        }
    }
}

/// Datagrams of many queue pairs reach one, and name their senders.
pub fn many_datagrams_come_to_one_queue_pair<F: Fixture>(fixture: &F) {
    let Some(transport) = datagrams(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    let config = pair.near.config;
    let mut senders: Vec<End<F::Device>> = (0..3).map(|_| End::new(fixture.device(), &config)).collect();
    for sender in &mut senders {
        sender.qp.connect(None).expect("UD needs no peer");
    }
    for round in 0..10 {
        for (index, sender) in senders.iter_mut().enumerate() {
            std::mem::swap(&mut pair.near, sender);
            pair.to = destination(&pair.near, &pair.far);
            let bytes = pattern(round * 3 + index, 50);
            let share = pair.near.frozen(&bytes);
            let received = pair.transfer(64, |pair| pair.send(share.clone().into(), Some(index as u32)));
            assert_message(&received, &bytes, Some(index as u32));
            let from = received.from.expect("a datagram says whom an answer goes to");
            assert_eq!(from.number, pair.near.qp.number());
            std::mem::swap(&mut pair.near, sender);
        }
    }
    // Now all at once.
    if pair.is_lossy() {
        return;
    }
    for id in 0..12 {
        pair.far.receive(id, 64);
    }
    for (index, sender) in senders.iter_mut().enumerate() {
        let to = destination(sender, &pair.far);
        for id in 0..4 {
            let bytes = pattern(index, 8 + id as usize);
            let (source, immediate) = (Source::Inline(&bytes), Some(index as u32));
            sender.push(Request::new(id, Operation::Send { source, immediate, to }));
        }
        sender.qp.doorbell();
    }
    let mut next = vec![0; senders.len()];
    for _ in 0..12 {
        let received = pair.next_received("datagrams of three senders");
        let from = received.from.expect("a datagram says whom an answer goes to");
        // Senders on several devices can have the same number.
        let index = received.immediate.expect("every message has one") as usize;
        assert_eq!(from.number, senders[index].qp.number());
        assert_message(&received, &pattern(index, 8 + next[index]), Some(index as u32));
        next[index] += 1;
    }
}

/// An answer goes to [`sinew_fabric::verbs::Completion::from`], if both have the same key.
pub fn an_answer_goes_back_to_the_sender<F: Fixture>(fixture: &F) {
    let Some(transport) = datagrams(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    for round in 0..5 {
        let received = pair.transfer(64, |pair| pair.send(Source::Inline(b"question"), None));
        pair.to = received.from;
        assert!(pair.to.is_some(), "a datagram says whom an answer goes to");
        std::mem::swap(&mut pair.near, &mut pair.far);
        let bytes = pattern(round, 40);
        let share = pair.near.frozen(&bytes);
        let received = pair.transfer(64, |pair| pair.send(share.clone().into(), Some(1)));
        assert_message(&received, &bytes, Some(1));
        // The next question goes to the sender of the answer.
        pair.to = received.from;
        std::mem::swap(&mut pair.near, &mut pair.far);
    }
}

/// A queue pair can send to itself.
pub fn a_datagram_to_oneself_arrives<F: Fixture>(fixture: &F) {
    let Some(transport) = datagrams(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    pair.to = destination(&pair.near, &pair.near);
    if pair.is_lossy() {
        return;
    }
    for id in 0..4 {
        pair.near.receive(id, 64);
        let operation = pair.send(Source::Inline(b"to me"), Some(id as u32));
        pair.near.post(Request::new(id, operation));
        pair.expect_success(id);
        let received = pair.eventually("a datagram to oneself", |pair| pair.near.received.pop_front());
        assert_message(&received, b"to me", Some(id as u32));
        assert_eq!(received.from.expect("from whom").number, pair.near.qp.number());
    }
}

/// A datagram with another key is dropped without notice to either side.
pub fn datagrams_with_the_wrong_key_are_dropped<F: Fixture>(fixture: &F) {
    let Some(transport) = datagrams(fixture) else { return };
    // On some devices, keys with the highest bit set belong to the system.
    for (ours, theirs) in [(0x1111_1111, 0x1111_1110), (0, 1), (0x7FFF_FFFF, 0)] {
        let device = fixture.device();
        let config = config(&device, transport);
        let near = End::new(device, &QpConfig { qkey: ours, ..config });
        let far = End::new(fixture.device(), &QpConfig { qkey: theirs, ..config });
        let mut pair = Pair::of(fixture, near, far);
        assert_eq!(pair.far.qp.address().qkey, theirs);
        let good = pair.to.expect("datagrams have a destination");
        assert_eq!((good.qkey, good.number), (theirs, pair.far.qp.number()));
        pair.far.receive(1, 64);
        pair.to = Some(Destination { qkey: ours, ..good });
        let operation = pair.send(Source::Inline(b"stranger"), None);
        pair.near.post(Request::new(1, operation));
        pair.expect_success(1);
        pair.assert_quiet("the key is another's");
        pair.to = Some(good);
        let received = pair.deliver(1, |pair| pair.send(Source::Inline(b"friend"), None));
        assert_message(&received, b"friend", None);
    }
}

/// A datagram is one packet: one byte more than fits is refused.
pub fn datagrams_over_the_mtu_are_refused<F: Fixture>(fixture: &F) {
    let Some(transport) = datagrams(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    let limit = pair.near.device.attributes().mtu;
    let bytes = pattern(1, limit + 1);
    let operation = pair.send(pair.near.frozen(&bytes).into(), None);
    let refused = pair.near.qp.push(Request::new(1, operation)).expect_err("more than a packet");
    assert_eq!(refused.error, PostError::TooLong { len: limit + 1, limit });
    let share = pair.near.frozen(&bytes[..limit]);
    let received = pair.transfer(limit, |pair| pair.send(share.clone().into(), None));
    assert_message(&received, &bytes[..limit], None);
}

/// Datagrams need a destination, and connected messages must have none.
pub fn datagrams_need_a_destination_and_connections_take_none<F: Fixture>(fixture: &F) {
    for transport in transports(fixture) {
        let mut pair = Pair::new(fixture, transport);
        let unknown = Destination { handle: 0, number: pair.far.qp.number(), qkey: 0 };
        let to = transport.is_connected().then_some(unknown);
        let send = Operation::Send { source: Source::Inline(b"whom?"), immediate: None, to };
        let refused = pair.near.qp.push(Request::new(1, send)).expect_err("a destination, or none");
        assert_eq!(refused.error, PostError::Destination);
        pair.assert_works(1);
    }
}

/// Datagrams can be sent only to the address of a UD queue pair of this fabric.
pub fn an_address_that_is_none_is_no_destination<F: Fixture>(fixture: &F) {
    let Some(transport) = datagrams(fixture) else { return };
    let pair = Pair::new(fixture, transport);
    let good = pair.far.qp.address();
    let mut malformed = good.clone();
    malformed.port.iter_mut().for_each(|byte| *byte = !*byte);
    let mut nothing = good.clone();
    nothing.port.clear();
    let mut wrong = vec![malformed, nothing];
    for transport in connected(fixture) {
        let device = fixture.device();
        let config = config(&device, transport);
        wrong.push(End::new(device, &config).qp.address());
    }
    for address in wrong {
        let refused = pair.near.thread.destination(&address).expect_err("that is no destination");
        assert!(matches!(refused, VerbsError::Address(_)), "{refused}");
    }
}

/// A made-up destination is refused, or leads nowhere.
pub fn made_up_destinations_do_no_harm<F: Fixture>(fixture: &F) {
    let Some(transport) = datagrams(fixture) else { return };
    let mut pair = Pair::new(fixture, transport);
    let good = pair.to.expect("datagrams have a destination");
    pair.far.receive(1, 64);
    let handles = [0, 1, u64::MAX, !good.handle, good.handle ^ 1 << 40, good.handle ^ 1 << 63];
    let mut made_up: Vec<Destination> = handles
        .into_iter()
        .filter(|&handle| handle != good.handle)
        .map(|handle| Destination { handle, ..good })
        .collect();
    made_up.extend([0xFF_FFFE, u32::MAX].map(|number| Destination { number: QpNumber(number), ..good }));
    for to in made_up {
        pair.to = Some(to);
        let operation = pair.send(Source::Inline(b"anybody?"), None);
        if pair.near.qp.post(Request::new(7, operation)).is_ok() {
            assert_eq!(pair.next_sent("a datagram to nobody is over").id, 7, "{to:?}");
        }
        if pair.near.qp.state() == QpState::Error {
            pair.near.qp.modify(QpState::Reset, None).expect("from every state to reset");
            pair.near.qp.connect(None).expect("UD needs no peer");
        }
    }
    pair.wait_briefly();
    pair.to = destination(&pair.near, &pair.far);
    let received = pair.deliver(1, |pair| pair.send(Source::Inline(b"you"), None));
    assert_message(&received, b"you", None);
}
