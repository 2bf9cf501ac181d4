//! Sessions opening and ending, and peers that fall silent: all in packets of the port itself.
//!
//! Opening takes two round trips, so that a server keeps nothing for a client that has not shown that it receives at the
//! address that it sends from: connect, challenge (a cookie), connect with the cookie, accept ([`opening`]). A session ends with its user, its
//! peer or its endpoint ([`ending`], [`farewells`]). A server may call its client where that was asked for ([`back`]).
//!
//! A peer is asked for a sign of life when it was silent, and given up when it stays so ([`watching`]). Each side has an *incarnation token*
//! for each peer, fresh whenever it starts to know that peer; a peer whose token has changed no longer knows our sessions.

mod back;
mod ending;
mod farewells;
mod opening;
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

/// What an endpoint knows of its sessions' beginnings and ends.
pub(crate) struct Sessions {
    /// Makes and checks cookies.
    secret: [u64; 2],
    /// Which session was granted to whom.
    granted: BTreeMap<(Peer, u64), u32>,
    /// Sessions of ours that open or end.
    attention: Vec<SessionId>,
    /// Sessions that are off file here, and maybe not at the other side.
    farewells: VecDeque<Farewell>,
    /// When a loop that turns looks next whether anything is due.
    next_manage_ns: u64,
    /// When something is due next, as far as the last look knew: it may be due later by now, and sooner only where `unseen` says so.
    due_ns: u64,
    /// How many sessions the last look left to [`Self::attention`] and [`crate::server::Servers::unconfirmed`]. With more of them there are some
    /// that it has not seen.
    seen: [usize; 2],
    last_turn_ns: u64,
    /// Until then somebody sleeps on the endpoint, and hears what arrives: that no loop turns meanwhile is no pause.
    listens_until_ns: u64,
    /// A loop that did not turn for longer was stopped.
    pause_ns: u64,
    /// Somebody sleeps on the endpoint, which the next turn ends.
    armed: bool,
    /// Of a turn that begins so long after the one before, or longer, notice is taken: after a pause, and always after a sleep and where
    /// the endpoint is armed. One comparison for all.
    noticed_gap_ns: u64,
    closing: bool,
}

impl Sessions {
    pub fn new(config: &Config, generator: &mut dyn Generator, now_ns: u64) -> Self {
        let pause_ns = watching::pause_ns(config);
        Self {
            secret: [generator.next_u64(), generator.next_u64()],
            granted: BTreeMap::new(),
            attention: Vec::new(),
            farewells: VecDeque::new(),
            next_manage_ns: now_ns,
            due_ns: u64::MAX,
            seen: [0; 2],
            last_turn_ns: now_ns,
            listens_until_ns: 0,
            pause_ns,
            armed: false,
            noticed_gap_ns: pause_ns.saturating_add(1),
            closing: false,
        }
    }

    /// Takes in a packet that is no call's.
    #[inline(never)]
    pub fn on_management(&mut self, core: &mut Core, header: &Header, packet: &RxPacket<'_>) -> Result<(), PacketDrop> {
        // Management packets are small enough to arrive as a head.
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
