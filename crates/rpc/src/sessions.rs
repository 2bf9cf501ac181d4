//! Sessions opening and ending, and peers that fall silent: all in packets of the port itself.
//!
//! Opening takes two round trips, so that a server keeps nothing for a client that has not shown that it receives at the
//! address that it sends from: connect, challenge (a cookie), connect with the cookie, accept ([`opening`]). A session ends with its user, its
//! peer or its endpoint ([`ending`]).
//!
//! A peer is asked for a sign of life when it was silent, and given up when it stays so ([`watching`]). Each side has an *incarnation token*
//! for each peer, fresh whenever it starts to know that peer; a peer whose token has changed no longer knows our sessions.

mod ending;
mod opening;
mod watching;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use sinew_fabric::{Generator, Peer, RxPacket};
use sinew_wire::{HEADER_LEN, Header, Kind};

use crate::config::Config;
use crate::core::Core;
use crate::error::{Cause, ConnectError};
use crate::names::SessionId;
use crate::stats::PacketDrop;

/// Something that happened to a session of ours.
#[derive(Debug)]
pub enum SessionEvent {
    /// It is open; queued calls are on their way.
    Connected(SessionId),
    /// It could not be opened.
    ConnectFailed {
        /// Which.
        session: SessionId,
        /// Why.
        error: ConnectError,
    },
    /// It is gone; its calls have completed with an error.
    Lost {
        /// Which.
        session: SessionId,
        /// Whom it was with.
        peer: Arc<str>,
        /// Why.
        cause: Cause,
    },
    /// It ended as asked.
    Disconnected(SessionId),
}

/// What an endpoint knows of its sessions' beginnings and ends.
pub(crate) struct Sessions {
    /// Makes and checks cookies.
    secret: [u64; 2],
    /// Which session was granted to whom.
    granted: BTreeMap<(Peer, u64), u32>,
    /// Sessions of ours that open or end.
    attention: Vec<SessionId>,
    pub events: VecDeque<SessionEvent>,
    next_manage_ns: u64,
    last_turn_ns: u64,
    /// A loop that did not turn for longer was stopped.
    pause_ns: u64,
    closing: bool,
}

impl Sessions {
    pub fn new(config: &Config, generator: &mut dyn Generator, now_ns: u64) -> Self {
        Self {
            secret: [generator.next_u64(), generator.next_u64()],
            granted: BTreeMap::new(),
            attention: Vec::new(),
            events: VecDeque::new(),
            next_manage_ns: now_ns,
            last_turn_ns: now_ns,
            pause_ns: watching::pause_ns(config),
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
