//! Opening and ending of sessions, and watching of peers, all by packets that belong to no call.
//!
//! Opening takes two round trips, so that a server keeps no state for a client until the client has proved that it
//! receives at its source address: connect, challenge (a cookie), connect with the cookie, accept ([`opening`]). A
//! session ends with its user, its peer or its endpoint ([`ending`], [`farewells`]). A server may call its client if
//! the client asked for that ([`reverse`]).
//!
//! A silent peer is probed, and given up if it stays silent ([`watching`]). Each side has an *incarnation token* for
//! each peer, new whenever it starts to know that peer; a peer whose token has changed no longer knows our sessions.
//!
//! # Opening
//!
//! No answer to a client that has not yet proved its address is longer than the client's packet. Both sides offer
//! credits, slots, and lengths of packets and messages, and the smaller values apply. A session that would exceed the
//! receive capacity is refused with the numbers.
//!
//! # Watching
//!
//! Any valid packet of a peer is a sign of life. A silent peer is pinged, once for all its sessions, fifty times in the
//! second half of `peer_timeout_ns`, and then given up; ports report deaths that they see. A peer that was given up, or
//! that has restarted, answers a ping with another token, and its sessions end with `PeerForgot`, except those that are
//! opening: these go on with the new peer. The end of one session among several is repeated until the other side
//! confirms it, since tokens tell nothing of it.
//!
//! Time during which our own loop did not turn is not counted as a peer's silence, unless the endpoint was asleep until
//! something was due: a sleeping endpoint still hears its peers. A loop that turns checks every few milliseconds
//! whether anything is due, and each check determines until when the endpoint can sleep.
//!
//! Anybody on the network can report that a peer is unreachable (ICMP). Such a peer is pinged at once, and given up
//! after four pings if nothing valid came for 100 ms.
//!
//! # Names of clients
//!
//! Servers know clients by `ClientId`, which is one session. `Config::client_events` reports clients that come and go.
//! A client that left before its arrival was reported is never reported, so at most two events for each session can
//! wait, and no limit is needed.

mod ending;
mod farewells;
mod opening;
mod reverse;
mod versions;
mod watching;

use std::collections::{BTreeMap, VecDeque};

use sinew_fabric::{Generator, Peer, RxPacket};
use sinew_wire::{HEADER_LEN, Header, Kind};

use crate::config::Config;
use crate::core::Core;
use crate::names::SessionId;
use crate::stats::PacketDrop;
use farewells::Farewell;

/// State of opening and ending sessions, and of watching peers.
pub(crate) struct Sessions {
    /// Keys for making and checking cookies.
    secret: [u64; 2],
    /// The session granted to each client, by its peer and its key.
    granted: BTreeMap<(Peer, u64), u32>,
    /// Sessions of ours that are opening or ending.
    in_transition: Vec<SessionId>,
    /// Sessions that were removed here, and perhaps not at the other side.
    farewells: VecDeque<Farewell>,
    /// When a turning loop next checks whether anything is due.
    next_manage_ns: u64,
    /// When something is next due, as far as the last check knew. It may by now be due later; it is due sooner only for
    /// sessions that `seen_pending` does not count.
    due_ns: u64,
    /// Number of sessions that the last check left in [`Self::in_transition`] and in
    /// [`crate::server::Servers::unconfirmed`]. If there are more now, it has not seen some of them.
    seen_pending: [usize; 2],
    last_turn_ns: u64,
    /// Time until which the endpoint's thread sleeps and hears of arrivals: that the loop does not turn meanwhile is no
    /// pause.
    slept_until_ns: u64,
    /// A loop that did not turn for longer than this was stopped.
    pause_ns: u64,
    /// Whether a thread may be sleeping on the endpoint, until the next turn.
    armed: bool,
    /// A turn that begins at least this long after the one before is looked at more closely: after a pause, and always
    /// after a sleep and while the endpoint is armed. One comparison covers all of these.
    noticed_gap_ns: u64,
    closing: bool,
}

impl Sessions {
    pub fn new(config: &Config, generator: &mut dyn Generator, now_ns: u64) -> Self {
        let pause_ns = watching::pause_ns(config);
        Self {
            secret: [generator.next_u64(), generator.next_u64()],
            granted: BTreeMap::new(),
            in_transition: Vec::new(),
            farewells: VecDeque::new(),
            next_manage_ns: now_ns,
            due_ns: u64::MAX,
            seen_pending: [0; 2],
            last_turn_ns: now_ns,
            slept_until_ns: 0,
            pause_ns,
            armed: false,
            noticed_gap_ns: pause_ns.saturating_add(1),
            closing: false,
        }
    }

    /// Handles a packet that belongs to no call.
    #[inline(never)]
    pub fn on_management(&mut self, core: &mut Core, header: &Header, packet: &RxPacket<'_>) -> Result<(), PacketDrop> {
        // Management packets are small enough to arrive whole in the head.
        if packet.tail.is_some() {
            return Err(PacketDrop::Malformed);
        }
        let body = &packet.head[HEADER_LEN..];
        match header.kind {
            Kind::Connect => self.on_connect(core, body, packet.from),
            Kind::Challenge => self.on_challenge(core, header, body, packet.from),
            Kind::Accept => self.on_accept(core, header, body, packet.from),
            Kind::Refuse => self.on_refuse(core, header, body, packet.from),
            Kind::Ping => self.on_ping(core, body, packet.from),
            Kind::Pong => self.on_pong(core, header, body, packet.from),
            _ => self.on_ending(core, header, body, packet.from),
        }
    }
}
