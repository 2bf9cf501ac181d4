//! Addresses and peers, from resolving to closing.

use sinew_fabric::port::PortEvent;

use super::*;

/// Peers that no port has, including some that look like a port's.
const MADE_UP: [Peer; 4] =
    [Peer([u64::MAX; 3]), Peer([0; 3]), Peer([u64::MAX, 0, 0]), Peer([0, u64::MAX, 0x8000_0000_0000_0000])];

/// Resolving an address where nobody is fails, with an error that names the address.
pub fn a_missing_peer_is_an_error_that_says_so<F: Fixture>(fixture: &mut F) {
    let Some(address) = fixture.absent_address() else { return };
    let error = fixture.open().resolve(&address).expect_err("nobody is there");
    let text = error.to_string();
    assert!(text.contains(address.rest()), "the error names what was asked for: {text}");
}

/// A port does not take another fabric's address for its own.
pub fn an_address_of_another_fabric_is_an_error<F: Fixture>(fixture: &mut F) {
    let mut port = fixture.open();
    let rest = port.address().rest().to_owned();
    let error = port.resolve(&Address::new("no-such-fabric", &rest)).expect_err("that is no address of this fabric");
    assert!(!error.to_string().is_empty());
}

/// An option that the fabric does not know is refused rather than ignored.
pub fn an_unknown_option_is_an_error<F: Fixture>(fixture: &mut F) {
    let (mut a, b) = pair(fixture);
    let address = b.address().to_string();
    let separator = if address.contains('?') { '&' } else { '?' };
    let address: Address = format!("{address}{separator}no-such-option=1").parse().expect("this reads as an address");
    let error = a.resolve(&address).expect_err("there is no such option");
    assert!(error.to_string().contains("no-such-option"), "{error}");
}

/// Every peer has a description, even a made-up one.
pub fn peers_can_be_described<F: Fixture>(fixture: &mut F) {
    let (mut a, b) = pair(fixture);
    let peer = resolve(&mut a, &b);
    assert!(a.describe(peer).starts_with(b.address().scheme()), "{}", a.describe(peer));
    for peer in MADE_UP {
        assert!(!a.describe(peer).is_empty());
    }
}

/// A packet's sender can be answered, and is the peer that the other side resolved.
pub fn replies_reach_the_sender<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let b_of_a = resolve(&mut a, &b);
    let a_of_b = send_until_received(fixture, &mut a, b_of_a, &mut b);
    assert_eq!(
        send_until_received(fixture, &mut b, a_of_b, &mut a),
        b_of_a,
        "a reply comes from the peer that was resolved"
    );
    assert_eq!(resolve(&mut a, &b), b_of_a, "a peer that is known resolves to the same");
    assert_eq!(send_until_received(fixture, &mut a, b_of_a, &mut b), a_of_b, "a sender stays the same peer");
}

/// Two senders' packets come as two orderly streams, each under its own peer.
pub fn two_senders_do_not_mix<F: Fixture>(fixture: &mut F) {
    let mut receiver = fixture.open();
    let (mut b, mut c) = pair(fixture);
    let (to_of_b, b_peer) = introduce(fixture, &mut b, &mut receiver);
    let (to_of_c, c_peer) = introduce(fixture, &mut c, &mut receiver);
    assert_ne!(b_peer, c_peer);
    for round in 0..20 {
        let (mut from_b, mut from_c) = (Vec::new(), Vec::new());
        let per_sender = 8.min(receiver.caps().receive_packets / 2).min(receiver.caps().receive_packets_per_peer);
        for number in round * 100..round * 100 + per_sender {
            from_b.push(pattern(number, 40));
            send(&mut b, to_of_b, &from_b[from_b.len() - 1], MODES[number % 3]);
            from_c.push(pattern(1_000_000 + number, 50));
            send(&mut c, to_of_c, &from_c[from_c.len() - 1], MODES[(number + 1) % 3]);
        }
        let got = collect(fixture, &mut receiver, 2 * per_sender);
        let (got_b, got_c): (Vec<_>, Vec<_>) = got.into_iter().partition(|(_, bytes)| number_of(bytes) < 1_000_000);
        assert_arrived(fixture, &got_b, b_peer, &from_b);
        assert_arrived(fixture, &got_c, c_peer, &from_c);
    }
}

/// Packets to peers that never existed are counted somewhere, and disturb nobody.
pub fn made_up_peers_do_no_harm<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (to, _) = introduce(fixture, &mut a, &mut b);
    let before = a.stats();
    for peer in MADE_UP {
        for mode in MODES {
            send(&mut a, peer, &pattern(1, 64), mode);
        }
        let _ = a.packet_len_max(peer);
        a.forget(peer);
    }
    send_until_received(fixture, &mut a, to, &mut b);
    let after = a.stats();
    let counted = (after.tx_packets + after.dropped_total()) - (before.tx_packets + before.dropped_total());
    assert!(counted > (MADE_UP.len() * MODES.len()) as u64, "a packet to nobody went uncounted: {after:?}");
    assert!(drain(fixture, &mut b).is_empty());
}

/// A port hears that a peer with which it exchanged packets has closed, if the fabric promises that.
pub fn a_closed_peer_is_reported<F: Fixture>(fixture: &mut F) {
    if !fixture.expectations().reports_closed_peers {
        return;
    }
    let (mut a, mut b) = pair(fixture);
    let (peer, _) = introduce(fixture, &mut a, &mut b);
    assert_eq!(a.poll_event(), None);
    drop(b);
    let deadline_ns = fixture.now_ns() + fixture.expectations().patience_ns;
    loop {
        match a.poll_event() {
            Some(PortEvent::PeerLost { peer: lost_peer, loss }) => {
                assert_eq!(lost_peer, peer);
                assert!(loss.is_certain(), "the port knows that the peer closed, and says {loss:?}");
                break;
            }
            None => assert!(fixture.now_ns() < deadline_ns, "nobody said that the peer closed"),
        }
        receive(fixture, &mut a);
        a.wait(Some(1_000_000)).expect("waiting works");
    }
    assert_eq!(a.poll_event(), None, "a peer is lost once");
}

/// Packets to a peer that closed go nowhere, and other peers are still served.
pub fn a_closed_peer_does_no_harm<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let mut c = fixture.open();
    let (peer, _) = introduce(fixture, &mut a, &mut b);
    drop(b);
    for number in 0..100 {
        send(&mut a, peer, &pattern(number, 100), MODES[number % 3]);
        receive(fixture, &mut a);
        a.poll_event();
    }
    a.split().1.flush();
    introduce(fixture, &mut a, &mut c);
}

/// A peer that was forgotten can come back.
pub fn a_forgotten_peer_comes_back_by_sending<F: Fixture>(fixture: &mut F) {
    let (mut a, mut b) = pair(fixture);
    let (peer, _) = introduce(fixture, &mut a, &mut b);
    a.forget(peer);
    a.forget(peer);
    let deadline_ns = fixture.now_ns() + fixture.expectations().patience_ns;
    let bytes = pattern(7, 64);
    let from = loop {
        assert!(fixture.now_ns() < deadline_ns, "a forgotten peer cannot come back");
        // The peer may have lost its link to the port that forgot it, and resolves it again.
        receive(fixture, &mut b);
        let to = resolve(&mut b, &a);
        send(&mut b, to, &bytes, Mode::Head);
        a.wait(Some(1_000_000)).expect("waiting works");
        if let Some((from, got)) = receive(fixture, &mut a).pop() {
            assert_eq!(got, bytes);
            break from;
        }
    };
    drain(fixture, &mut b);
    drain(fixture, &mut a);
    send_until_received(fixture, &mut a, from, &mut b);
}
