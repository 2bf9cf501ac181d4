//! One suite of facts that every packet port must satisfy, whatever moves the packets.
//!
//! A backend writes a [`Fixture`], which opens ports that can reach each other, and instantiates the suite:
//!
//! ```text
//! sinew_conformance::port_tests!(MyFixture::new());
//! ```
//!
//! This makes a `#[test]` of each fact; [`run_all`] runs them all in one. The expression is evaluated for each fact.
//! The facts are plain functions: where a backend leaves out one that its port cannot satisfy, the omission is visible.
//!
//! The ports of one fixture are used from one thread. Nothing spins: a fact that expects a packet waits on its port
//! until the fixture's patience, by the fixture's own clock, runs out.

mod delivery;
mod peers;
mod readiness;
mod sharing;
#[cfg(test)]
mod tests;
mod waiting;

use sinew_fabric::address::{Address, Peer};
use sinew_fabric::port::{PacketPort, PacketRx, PacketTx, RxBurst, RxPacket, TxData, TxPacket};
use sinew_mem::Frozen;

use crate::pattern;

pub use delivery::*;
pub use peers::*;
pub use readiness::*;
pub use sharing::*;
pub use waiting::*;

/// Promises of a fixture's fabric beyond what every port must keep.
#[derive(Clone, Copy, Debug)]
pub struct Expectations {
    /// Whether packets may be lost although the receiver had room. Contents and order are checked all the same.
    pub lossy: bool,
    /// Whether a port is told ([`sinew_fabric::PortEvent::PeerLost`]) when a peer with which it exchanged packets
    /// closes. If so, the loss it is told of must be certain ([`sinew_fabric::PeerLoss::is_certain`]).
    pub reports_closed_peers: bool,
    /// Whether the clock runs by itself, so that other threads can wake a port while it waits.
    pub real_time: bool,
    /// Time allowed for anything that must happen, in nanoseconds. Only failures take that long.
    pub patience_ns: u64,
}

impl Default for Expectations {
    fn default() -> Self {
        Self { lossy: false, reports_closed_peers: true, real_time: true, patience_ns: 10_000_000_000 }
    }
}

/// Source of the ports that the facts are checked on.
pub trait Fixture {
    /// The port under test.
    type Port: PacketPort;

    /// Opens a port, at an address of its own, that can reach this fixture's other ports and be reached by them.
    fn open(&mut self) -> Self::Port;

    /// Time on the clock by which deadlines and bursts are measured, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Promises of this fabric.
    fn expectations(&self) -> Expectations;

    /// An address where nobody is, on fabrics that can know that.
    fn absent_address(&self) -> Option<Address> {
        None
    }
}

/// The list of facts, written once. It is passed to a macro, after that macro's own arguments.
#[doc(hidden)]
#[macro_export]
macro_rules! __port_facts {
    ($consumer:path, $($arguments:tt)*) => {
        $consumer! { $($arguments)*;
            capabilities_make_sense
            packets_of_every_length_arrive_intact
            packets_of_one_sender_arrive_in_order
            packets_over_the_limit_are_counted_and_not_sent
            a_burst_lends_at_most_burst_max_packets
            an_empty_burst_changes_nothing
            counters_add_up
            room_comes_back_once_a_burst_is_given_back
            a_flood_loses_packets_and_nothing_else
            borrowed_data_may_be_reused_right_after_push
            a_lent_burst_stays_readable_while_packets_are_sent
            shares_end_with_flush_after_delivery
            shares_end_with_flush_before_delivery
            shares_of_one_buffer_end_with_reclaim
            a_reused_buffer_never_arrives_as_the_old_packet
            a_reused_buffer_never_shows_in_a_lent_burst
            shares_of_a_foreign_arena_arrive_too
            a_missing_peer_is_an_error_that_says_so
            an_address_of_another_fabric_is_an_error
            an_unknown_option_is_an_error
            peers_can_be_described
            replies_reach_the_sender
            two_senders_do_not_mix
            made_up_peers_do_no_harm
            a_closed_peer_is_reported
            a_closed_peer_does_no_harm
            a_forgotten_peer_comes_back_by_sending
            a_wait_keeps_its_timeout
            a_wait_ends_when_a_packet_is_there
            a_wake_before_the_wait_is_not_lost
            wakes_from_another_thread_are_not_lost
            a_waker_outlives_its_port
            an_armed_port_is_readable_once_a_packet_comes
            a_packet_just_before_arming_is_not_slept_through
            arming_submits_what_is_held_back
            a_waker_makes_an_armed_port_readable
            wakes_from_another_thread_end_a_sleep_on_the_descriptor
            a_descriptor_outlives_its_port
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __port_facts_as_tests {
    ($fixture:expr; $($fact:ident)*) => {
        $(
            #[test]
            fn $fact() {
                $crate::ports::$fact(&mut $fixture);
            }
        )*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __port_facts_in_turn {
    ($fixture:expr; $($fact:ident)*) => {
        $( $crate::ports::$fact($fixture); )*
    };
}

/// Makes a test of each fact of the [suite](crate::ports). The expression makes a new fixture for each.
#[macro_export]
macro_rules! port_tests {
    ($fixture:expr) => {
        $crate::__port_facts!($crate::__port_facts_as_tests, $fixture);
    };
}

/// Checks every fact, one after the other.
///
/// # Panics
///
/// At the first fact that does not hold.
pub fn run_all<F: Fixture>(fixture: &mut F) {
    crate::__port_facts!(crate::__port_facts_in_turn, fixture);
}

/// Form in which a packet's bytes are passed to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// All bytes in the head.
    Head,
    /// A head of 24 bytes, and the rest borrowed.
    Borrowed,
    /// A head of 24 bytes, and the rest a range of a share.
    Shared,
}

const MODES: [Mode; 3] = [Mode::Head, Mode::Borrowed, Mode::Shared];
/// Length of the head, in bytes, if there is data too.
const HEAD_LEN: usize = 24;
/// Offset of the data in a shared buffer. It is not 0, so that a port that ignores the range is caught.
const SHARED_START: usize = 3;

type Received = (Peer, Vec<u8>);

/// The number in a [`pattern`] of at least 8 bytes.
fn number_of(bytes: &[u8]) -> usize {
    u64::from_le_bytes(bytes[..8].try_into().expect("numbered packets have 8 bytes")) as usize
}

fn pair<F: Fixture>(fixture: &mut F) -> (F::Port, F::Port) {
    (fixture.open(), fixture.open())
}

fn resolve<P: PacketPort>(port: &mut P, other: &P) -> Peer {
    let address = other.address();
    port.resolve(&address).unwrap_or_else(|error| panic!("{address} must resolve: {error}"))
}

/// A share whose contents from [`SHARED_START`] on are `bytes`.
fn share<P: PacketPort>(port: &P, bytes: &[u8]) -> Frozen {
    let mut buffer = port.arena().alloc(SHARED_START + bytes.len(), 1024).expect("the arena has room for a packet");
    buffer[SHARED_START..].copy_from_slice(bytes);
    buffer[..SHARED_START].fill(0xEE);
    buffer.freeze()
}

fn push_share<P: PacketPort>(port: &mut P, to: Peer, head: &[u8], buffer: &Frozen) {
    let len = buffer.len() - SHARED_START;
    port.split().1.push(TxPacket { to, head, data: TxData::Frozen { buffer, start: SHARED_START, len } });
}

fn push<P: PacketPort>(port: &mut P, to: Peer, bytes: &[u8], mode: Mode) {
    if mode == Mode::Head {
        port.split().1.push(TxPacket { to, head: bytes, data: TxData::None });
        return;
    }
    let (head, data) = bytes.split_at(HEAD_LEN);
    if mode == Mode::Borrowed {
        port.split().1.push(TxPacket { to, head, data: TxData::Bytes(data) });
    } else {
        let buffer = share(port, data);
        push_share(port, to, head, &buffer);
    }
}

fn send<P: PacketPort>(port: &mut P, to: Peer, bytes: &[u8], mode: Mode) {
    push(port, to, bytes, mode);
    port.split().1.submit();
}

/// A packet's bytes; `None` when its sender revoked them.
fn bytes_of(packet: &RxPacket<'_>) -> Option<Vec<u8>> {
    let mut bytes = packet.head.to_vec();
    if let Some(tail) = packet.tail {
        assert!(packet.head.len() >= HEAD_LEN, "a packet with a tail has its first {HEAD_LEN} bytes in the head");
        bytes.resize(packet.len(), 0);
        tail.copy_to(&mut bytes[packet.head.len()..]).ok()?;
    }
    Some(bytes)
}

/// One burst, copied.
fn receive<F: Fixture>(fixture: &F, port: &mut F::Port) -> Vec<Received> {
    let burst_max = port.caps().burst_max;
    let mut burst = RxBurst::new(fixture.now_ns());
    port.split().0.receive(&mut burst);
    assert!(burst.packets.len() <= burst_max, "{} packets lent, {burst_max} allowed", burst.packets.len());
    burst.packets.iter().filter_map(|packet| Some((packet.from, bytes_of(packet)?))).collect()
}

/// Receives until there are `count` packets or patience runs out.
fn collect<F: Fixture>(fixture: &F, port: &mut F::Port, count: usize) -> Vec<Received> {
    let deadline_ns = fixture.now_ns().saturating_add(patience_for_missing_ns(fixture));
    let mut all = Vec::new();
    loop {
        let burst = receive(fixture, port);
        let idle = burst.is_empty();
        all.extend(burst);
        if all.len() >= count || fixture.now_ns() >= deadline_ns {
            return all;
        }
        if idle {
            port.wait(Some(1_000_000)).expect("waiting works");
        }
    }
}

/// Time to wait for a packet, in nanoseconds: shorter on a lossy fabric, where a missing packet may be lost.
fn patience_for_missing_ns<F: Fixture>(fixture: &F) -> u64 {
    let Expectations { lossy, patience_ns, .. } = fixture.expectations();
    if lossy { patience_ns / 20 } else { patience_ns }
}

/// Receives for as long as packets keep coming, and a little longer.
fn drain<F: Fixture>(fixture: &F, port: &mut F::Port) -> Vec<Received> {
    let mut all = Vec::new();
    let mut quiet = 0;
    while quiet < 5 {
        let burst = receive(fixture, port);
        if burst.is_empty() {
            quiet += 1;
            port.wait(Some(1_000_000)).expect("waiting works");
        } else {
            quiet = 0;
        }
        all.extend(burst);
    }
    all
}

/// Asserts that what arrived is what was sent: all of it, in order, or, on a lossy fabric, some of it, in order.
fn assert_arrived<F: Fixture>(fixture: &F, got: &[Received], from: Peer, sent: &[Vec<u8>]) {
    assert!(got.iter().all(|(sender, _)| *sender == from), "all packets come from {from:?}: {:?}", senders(got));
    if fixture.expectations().lossy {
        assert_subsequence(got, sent);
        return;
    }
    for (index, (bytes, (_, arrived))) in sent.iter().zip(got).enumerate() {
        assert_eq!(arrived.len(), bytes.len(), "length of packet {index} of {}", sent.len());
        assert!(arrived == bytes, "packet {index} of {} bytes arrived with other contents", bytes.len());
    }
    assert_eq!(got.len(), sent.len(), "packets that arrived, and were sent");
}

/// Asserts that everything that arrived was sent, in that order.
fn assert_subsequence(got: &[Received], sent: &[Vec<u8>]) {
    let mut rest = sent.iter();
    for (index, (_, bytes)) in got.iter().enumerate() {
        assert!(
            rest.any(|candidate| candidate == bytes),
            "packet {index} that arrived was not sent after the one before"
        );
    }
}

fn senders(got: &[Received]) -> Vec<Peer> {
    let mut senders: Vec<Peer> = got.iter().map(|(from, _)| *from).collect();
    senders.sort();
    senders.dedup();
    senders
}

/// Sends a packet and its answer, so that both ports know each other. Returns the peer that each is to the other.
fn introduce<F: Fixture>(fixture: &F, a: &mut F::Port, b: &mut F::Port) -> (Peer, Peer) {
    let b_of_a = resolve(a, b);
    let a_of_b = send_until_received(fixture, a, b_of_a, b);
    send_until_received(fixture, b, a_of_b, a);
    (b_of_a, a_of_b)
}

/// Sends one packet, repeatedly if it may be lost, and returns the peer that it came from.
fn send_until_received<F: Fixture>(fixture: &F, sender: &mut F::Port, to: Peer, receiver: &mut F::Port) -> Peer {
    let bytes = pattern(fixture.now_ns() as usize | 1, 40);
    let attempts = if fixture.expectations().lossy { 100 } else { 1 };
    for _ in 0..attempts {
        send(sender, to, &bytes, Mode::Head);
        if let Some((from, _)) = collect(fixture, receiver, 1).into_iter().find(|(_, got)| *got == bytes) {
            return from;
        }
    }
    panic!("a packet between two living ports must arrive");
}
