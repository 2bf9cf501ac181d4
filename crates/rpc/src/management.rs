//! Sessions opening and ending, and peers that fall silent: all in packets of the port itself.
//!
//! Opening takes two round trips, so that a server keeps nothing for a client that has not shown that it receives at the
//! address that it sends from: connect, challenge (a cookie), connect with the cookie, accept.
//!
//! A peer is asked for a sign of life when it was silent, and given up when it stays so. Each side has an *incarnation token*
//! for each peer, fresh whenever it starts to know that peer; a peer whose token has changed no longer knows our sessions.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::Arc;

use sinew_fabric::{Generator, Peer, PeerLoss, RxPacket};
use sinew_wire::management::{
    Accept, Challenge, Connect, Cookie, Life, Management, Offer, Refusal, ending, read_ending,
};
use sinew_wire::{HEADER_LEN, Header, Kind, SessionKey};

use crate::client::{ClientState, SessionId};
use crate::congestion::Limits;
use crate::core::Core;
use crate::error::{Cause, ConnectError};
use crate::peers::PeerEntry;
use crate::server::ServerSession;
use crate::stats::PacketDrop;

/// Cookies are good for this long.
const COOKIE_LIFE_NS: u64 = 10_000_000_000;
/// A client that never used an accepted session is reminded of it this often.
const REMIND_NS: u64 = 1_000_000_000;
/// Packets smaller than this are a way to make us do work, not to talk.
const DATA_PER_PACKET_MIN: u32 = 64;

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

/// A session that is being opened.
pub(crate) struct Opening {
    since_ns: u64,
    offer: Offer,
    cookie: Cookie,
}

/// Makes and checks cookies, and remembers which sessions were granted to whom.
pub(crate) struct CookieJar {
    secret: [u64; 2],
    granted: BTreeMap<(Peer, u64), u32>,
    /// Sessions of ours that open or end.
    attention: Vec<SessionId>,
}

impl CookieJar {
    pub fn new(generator: &mut dyn Generator) -> Self {
        Self { secret: [generator.next_u64(), generator.next_u64()], granted: BTreeMap::new(), attention: Vec::new() }
    }

    fn code(&self, from: Peer, connect: &Connect, made_ns: u64) -> u64 {
        let mut hasher = siphasher::sip::SipHasher24::new_with_keys(self.secret[0], self.secret[1]);
        for word in from.0.into_iter().chain([connect.client_key.0, connect.client_token, made_ns]) {
            hasher.write_u64(word);
        }
        // 0 stands for `none`.
        hasher.finish().max(1)
    }
}

/// A loop that stands still for longer was stopped. Shorter sleeps are a part of the round trips that it sees.
const PAUSE_NS: u64 = 5_000_000;

impl Core {
    /// Starts a turn of the loop at `now_ns`.
    #[inline]
    pub(crate) fn begin_turn(&mut self, now_ns: u64) {
        let gap = now_ns.saturating_sub(self.last_turn_ns);
        if gap > self.config.probe_interval_ns {
            // We were stopped, or our user was busy: nobody was silent, we did not listen.
            self.peers.excuse(gap);
        }
        if gap > self.config.retransmit_timeout_ns.max(PAUSE_NS) {
            self.clients.excuse();
        }
        self.last_turn_ns = now_ns;
        self.now_ns = now_ns;
    }

    /// When the loop must turn next although nothing arrives.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        let watch = self.clients.table.len() + self.servers.table.len() > 0;
        let manage = watch.then_some(self.next_manage_ns);
        manage.into_iter().chain(self.clients.next_scan_ns()).chain(self.pacing.next_ns()).min()
    }

    fn send(&mut self, to: Peer, packet: Management) {
        self.management.push((to, packet));
    }

    /// Packets that a further session with this peer may have on their way to us.
    fn available_packets(&self, peer_index: Option<u32>) -> u64 {
        if self.config.overcommit {
            return u64::MAX;
        }
        let reserve = self.config.management_packets as u64;
        let with_peer = peer_index.map_or(0, |index| self.peers.get(index).committed);
        let total = self.link.receive_packets.saturating_sub(reserve + self.committed_packets);
        total.min(self.link.receive_packets_per_peer.saturating_sub(reserve + with_peer))
    }

    fn commit(&mut self, peer_index: u32, packets: u16) {
        self.committed_packets += u64::from(packets);
        self.peers.get_mut(peer_index).committed += u64::from(packets);
    }

    fn peer_entry(&mut self, peer: Peer, name: &str) -> u32 {
        if let Some(index) = self.peers.index_of(peer) {
            return index;
        }
        // Zero stands for `unknown`.
        let local_token = self.generator.next_u64().max(1);
        let entry = PeerEntry {
            peer,
            name: Arc::from(name),
            local_token,
            remote_token: 0,
            known_since_ns: 0,
            last_ping_ns: self.now_ns,
            initiated: false,
            sessions: 0,
            committed: 0,
        };
        self.peers.insert(entry, self.now_ns)
    }

    fn sessions(&self) -> usize {
        self.clients.table.len() + self.servers.table.len()
    }

    /// Begins to open a session with a peer that takes packets of `packet_len_max`.
    pub(crate) fn begin_connect(
        &mut self,
        peer: Peer,
        name: &str,
        packet_len_max: usize,
    ) -> Result<SessionId, ConnectError> {
        if self.sessions() >= self.config.sessions_max {
            return Err(ConnectError::Sessions { limit: self.config.sessions_max });
        }
        let available = self.available_packets(self.peers.index_of(peer));
        let credits = u64::from(self.config.credits).min(available) as u16;
        if credits == 0 {
            return Err(ConnectError::ReceiveCapacity {
                packets: self.link.receive_packets.min(self.link.receive_packets_per_peer),
                committed: self.committed_packets,
            });
        }
        let peer_index = self.peer_entry(peer, name);
        let entry = self.peers.get_mut(peer_index);
        entry.sessions += 1;
        entry.initiated = true;
        if entry.name.is_empty() {
            entry.name = Arc::from(name);
        }
        self.commit(peer_index, credits);
        let index = self.clients.table.insert(self.generator.next_u64());
        let offer = Offer {
            credits,
            slots: self.config.slots,
            data_per_packet: packet_len_max.min(self.link.packet_len_max).saturating_sub(HEADER_LEN) as u32,
            message_len_max: self.config.message_len_max,
        };
        let session = &mut self.clients.table.entries[index];
        session.peer = peer;
        session.peer_index = peer_index;
        session.state = ClientState::Connecting;
        session.credits_max = credits;
        let id = session.id();
        let now_ns = self.now_ns;
        let cold = self.clients.cold(index);
        *cold = Default::default();
        cold.opening = Some(Opening { since_ns: now_ns, offer, cookie: Cookie::default() });
        self.cookies.attention.push(id);
        self.send_connect(index);
        Ok(id)
    }

    fn send_connect(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let session = &self.clients.table.entries[index];
        let (peer, id) = (session.peer, session.id());
        let client_token = self.peers.get(session.peer_index).local_token;
        let cold = self.clients.cold(index);
        cold.last_try_ns = now_ns;
        let Some(opening) = &cold.opening else { return };
        let connect = Connect { client_key: id.key(), client_token, offer: opening.offer, cookie: opening.cookie };
        self.send(peer, connect.packet());
    }

    /// Ends a session; its calls complete with [`Cause::Disconnected`]. Returns whether there was such a session.
    pub(crate) fn disconnect(&mut self, id: SessionId) -> bool {
        let Some(index) = self.clients.table.find(id.key()) else { return false };
        match self.clients.table.entries[index].state {
            ClientState::Disconnecting => {}
            ClientState::Connecting => {
                self.cancel(id, Cause::Disconnected, |_, _| true);
                self.remove_client(index);
                self.events.push_back(SessionEvent::Disconnected(id));
            }
            ClientState::Open => {
                self.clients.table.entries[index].state = ClientState::Disconnecting;
                self.cancel(id, Cause::Disconnected, |_, _| true);
                self.clients.cold(index).ending_since_ns = self.now_ns;
                self.cookies.attention.push(id);
                self.send_disconnect(index);
            }
        }
        true
    }

    fn send_disconnect(&mut self, index: usize) {
        let now_ns = self.now_ns;
        self.clients.cold(index).last_try_ns = now_ns;
        let session = &self.clients.table.entries[index];
        let packet = ending(Kind::Disconnect, session.remote_key, session.id().key());
        self.send(session.peer, packet);
    }

    fn remove_client(&mut self, index: usize) {
        let session = &self.clients.table.entries[index];
        let (peer_index, credits) = (session.peer_index, session.credits_max);
        self.clients.remove(index);
        self.release(peer_index, credits);
    }

    fn remove_server(&mut self, index: usize) {
        let session = &self.servers.table.entries[index];
        let (peer_index, credits) = (session.peer_index, session.credits);
        self.cookies.granted.remove(&(session.peer, session.remote_key.0));
        self.servers.table.remove(index);
        self.release(peer_index, credits);
    }

    fn release(&mut self, peer_index: u32, credits: u16) {
        self.committed_packets -= u64::from(credits);
        if let Some(forgotten) = self.peers.release(peer_index, credits.into()) {
            self.forgotten.push(forgotten);
        }
    }

    /// Ends everything at once, and tells the peers.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        let clients: Vec<_> = self.clients.table.occupied().collect();
        for index in clients {
            let session = &self.clients.table.entries[index];
            let (id, open) = (session.id(), session.state != ClientState::Connecting);
            self.cancel(id, Cause::Disconnected, |_, _| true);
            if open {
                self.send_disconnect(index);
            }
            self.remove_client(index);
        }
        let servers: Vec<_> = self.servers.table.occupied().collect();
        for index in servers {
            let session = &self.servers.table.entries[index];
            let packet = ending(Kind::Reset, session.remote_key, session.id());
            self.send(session.peer, packet);
            self.remove_server(index);
        }
    }

    /// Gives a peer up: calls to it complete with `cause`, and what its sessions held is free.
    pub(crate) fn fail_peer(&mut self, peer_index: u32, cause: Cause) {
        self.stats.peers_lost += 1;
        let clients: Vec<_> =
            self.clients.table.occupied().filter(|&i| self.clients.table.entries[i].peer_index == peer_index).collect();
        let servers: Vec<_> =
            self.servers.table.occupied().filter(|&i| self.servers.table.entries[i].peer_index == peer_index).collect();
        for index in servers {
            self.remove_server(index);
        }
        for index in clients {
            self.fail_client(index, cause);
        }
    }

    fn fail_client(&mut self, index: usize, cause: Cause) {
        let session = &self.clients.table.entries[index];
        let (id, state) = (session.id(), session.state);
        let peer = Arc::clone(&self.peers.get(session.peer_index).name);
        self.cancel(id, cause, |_, _| true);
        self.remove_client(index);
        self.events.push_back(match state {
            ClientState::Connecting => {
                SessionEvent::ConnectFailed { session: id, error: ConnectError::Failed { peer, cause } }
            }
            ClientState::Open => SessionEvent::Lost { session: id, peer, cause },
            ClientState::Disconnecting => SessionEvent::Disconnected(id),
        });
    }

    /// Takes in what the port knows about a peer.
    pub(crate) fn peer_lost(&mut self, peer: Peer, loss: PeerLoss) {
        if let Some(index) = self.peers.index_of(peer) {
            let cause = match loss {
                PeerLoss::ProcessDied => Cause::PeerDied,
                PeerLoss::Closed => Cause::PeerClosed,
                PeerLoss::Unreachable => Cause::PeerUnreachable,
                PeerLoss::Refused => Cause::PeerRefused,
            };
            self.fail_peer(index, cause);
        }
    }

    pub(crate) fn on_management(&mut self, header: &Header, packet: &RxPacket<'_>) -> Result<(), PacketDrop> {
        // Management packets are small enough to arrive as a head.
        if packet.tail.is_some() {
            return Err(PacketDrop::Malformed);
        }
        let body = &packet.head[HEADER_LEN..];
        match header.kind {
            Kind::Connect => self.on_connect(body, packet.from),
            Kind::Challenge => self.on_challenge(header, body, packet.from),
            Kind::Accept => self.on_accept(header, body, packet.from),
            Kind::Refuse => self.on_refuse(header, body, packet.from),
            Kind::Ping => self.on_ping(body, packet.from),
            Kind::Pong => self.on_pong(header, body, packet.from),
            _ => self.on_ending(header, body, packet.from),
        }
    }

    fn on_connect(&mut self, body: &[u8], from: Peer) -> Result<(), PacketDrop> {
        let connect = Connect::read(body).ok_or(PacketDrop::Malformed)?;
        if connect.offer.data_per_packet < DATA_PER_PACKET_MIN || connect.client_token == 0 {
            return Err(PacketDrop::Malformed);
        }
        if self.closing {
            self.send(from, Refusal::Closing.packet(connect.client_key));
            return Ok(());
        }
        let Cookie { code, made_ns } = connect.cookie;
        let fresh = made_ns <= self.now_ns && self.now_ns - made_ns <= COOKIE_LIFE_NS;
        let right = code == self.cookies.code(from, &connect, made_ns);
        // Another incarnation than the one that we know is a later one only if it asked later: else it is a delayed packet.
        let overtaken = self.peers.index_of(from).map(|index| self.peers.get(index)).is_some_and(|entry| {
            entry.remote_token != 0 && entry.remote_token != connect.client_token && made_ns <= entry.known_since_ns
        });
        if !fresh || !right || overtaken {
            // Nothing is kept: the client repeats itself with the cookie.
            let cookie = Cookie { code: self.cookies.code(from, &connect, self.now_ns), made_ns: self.now_ns };
            self.send(from, Challenge { cookie }.packet(connect.client_key));
            return if code == 0 { Ok(()) } else { Err(PacketDrop::BadCookie) };
        }
        if let Some(&index) = self.cookies.granted.get(&(from, connect.client_key.0)) {
            self.send_accept(index as usize);
            return Ok(());
        }
        if let Some(index) = self.peers.index_of(from) {
            let known = self.peers.get(index).remote_token;
            if known != 0 && known != connect.client_token {
                // The peer started anew and knows nothing of what it had with us.
                self.fail_peer(index, Cause::PeerForgot);
            }
        }
        if self.sessions() >= self.config.sessions_max {
            let limit = self.config.sessions_max as u64;
            self.send(from, Refusal::Sessions { limit }.packet(connect.client_key));
            return Ok(());
        }
        let credits = u64::from(connect.offer.credits.min(self.config.credits))
            .min(self.available_packets(self.peers.index_of(from))) as u16;
        if credits == 0 {
            let packets = self.link.receive_packets.min(self.link.receive_packets_per_peer);
            let refusal = Refusal::ReceiveCapacity { packets, committed: self.committed_packets };
            self.send(from, refusal.packet(connect.client_key));
            return Ok(());
        }
        let peer_index = self.peer_entry(from, "");
        let entry = self.peers.get_mut(peer_index);
        entry.know(connect.client_token, self.now_ns);
        entry.sessions += 1;
        self.peers.heard(peer_index, self.now_ns);
        self.commit(peer_index, credits);
        let index = self.servers.table.insert(self.generator.next_u64());
        let own_data = (self.link.packet_len_max - HEADER_LEN) as u32;
        let session = &mut self.servers.table.entries[index];
        *session = ServerSession {
            remote_key: connect.client_key,
            peer: from,
            peer_index,
            data_per_packet: connect.offer.data_per_packet.min(own_data),
            message_len_max: connect.offer.message_len_max.min(self.config.message_len_max),
            credits,
            confirmed: false,
            noticed_ns: 0,
            ..std::mem::take(session)
        };
        let key = session.id();
        self.servers.unconfirmed.push((key, self.now_ns));
        self.cookies.granted.insert((from, connect.client_key.0), index as u32);
        self.send_accept(index);
        Ok(())
    }

    fn send_accept(&mut self, index: usize) {
        let session = &self.servers.table.entries[index];
        let entry = self.peers.get(session.peer_index);
        let accept = Accept {
            server_key: session.id(),
            server_token: entry.local_token,
            client_token: entry.remote_token,
            granted: Offer {
                credits: session.credits,
                slots: self.config.slots,
                data_per_packet: session.data_per_packet,
                message_len_max: session.message_len_max,
            },
        };
        let (to, packet) = (session.peer, accept.packet(session.remote_key));
        self.send(to, packet);
    }

    /// Finds the client session that a management packet is for.
    fn client_of(&self, header: &Header, from: Peer) -> Result<usize, PacketDrop> {
        Self::checked(&self.clients.table, header.session, from)
    }

    fn on_challenge(&mut self, header: &Header, body: &[u8], from: Peer) -> Result<(), PacketDrop> {
        let challenge = Challenge::read(body).ok_or(PacketDrop::Malformed)?;
        let index = self.client_of(header, from)?;
        let Some(opening) = &mut self.clients.cold(index).opening else { return Err(PacketDrop::Stale) };
        if opening.cookie == challenge.cookie {
            return Err(PacketDrop::Stale);
        }
        opening.cookie = challenge.cookie;
        self.send_connect(index);
        Ok(())
    }

    fn on_accept(&mut self, header: &Header, body: &[u8], from: Peer) -> Result<(), PacketDrop> {
        let accept = Accept::read(body).ok_or(PacketDrop::Malformed)?;
        let index = match self.client_of(header, from) {
            Ok(index) => index,
            Err(reason) => {
                // A delayed connect was granted after we gave it up: nobody here will use the session.
                self.send(from, ending(Kind::Disconnect, accept.server_key, header.session));
                return Err(reason);
            }
        };
        let session = &self.clients.table.entries[index];
        let (peer_index, state, remote_key, id) = (session.peer_index, session.state, session.remote_key, session.id());
        if accept.client_token != self.peers.get(peer_index).local_token {
            return Err(PacketDrop::Stale);
        }
        if state != ClientState::Connecting {
            if accept.server_key == remote_key && state == ClientState::Open {
                self.send(from, ending(Kind::Confirm, remote_key, id.key()));
            }
            return Err(PacketDrop::Stale);
        }
        let Some(offer) = self.clients.cold(index).opening.as_ref().map(|opening| opening.offer) else {
            return Err(PacketDrop::Stale);
        };
        let granted = accept.granted;
        if granted.credits > offer.credits
            || granted.data_per_packet > offer.data_per_packet
            || granted.data_per_packet < DATA_PER_PACKET_MIN.min(offer.data_per_packet)
            || granted.message_len_max > offer.message_len_max
            || !granted.slots.is_power_of_two()
        {
            return Err(PacketDrop::Malformed);
        }
        let known = self.peers.get(peer_index).remote_token;
        if known != 0 && known != accept.server_token {
            self.forget_others(peer_index, index);
        }
        let entry = self.peers.get_mut(peer_index);
        entry.know(accept.server_token, self.now_ns);
        entry.committed -= u64::from(offer.credits - granted.credits);
        self.committed_packets -= u64::from(offer.credits - granted.credits);
        self.peers.heard(peer_index, self.now_ns);
        self.clients.cold(index).opening = None;
        let slots = u32::from(granted.slots.min(self.config.slots));
        let session = &mut self.clients.table.entries[index];
        session.remote_key = accept.server_key;
        session.credits = granted.credits;
        session.credits_max = granted.credits;
        session.data_per_packet = granted.data_per_packet;
        session.message_len_max = granted.message_len_max;
        session.free_slots = u64::MAX >> (64 - slots);
        session.state = ClientState::Open;
        session.limits = Limits::default();
        self.pacing.begin(index);
        self.events.push_back(SessionEvent::Connected(id));
        self.start_queued(index);
        Ok(())
    }

    /// The peer has started anew: sessions with what it was before are gone, but for the one that is opening.
    fn forget_others(&mut self, peer_index: u32, opening: usize) {
        let others: Vec<_> = self
            .clients
            .table
            .occupied()
            .filter(|&i| {
                let session = &self.clients.table.entries[i];
                i != opening && session.peer_index == peer_index && session.state != ClientState::Connecting
            })
            .collect();
        for index in others {
            self.fail_client(index, Cause::PeerForgot);
        }
        let theirs: Vec<_> =
            self.servers.table.occupied().filter(|&i| self.servers.table.entries[i].peer_index == peer_index).collect();
        for index in theirs {
            self.remove_server(index);
        }
    }

    fn on_refuse(&mut self, header: &Header, body: &[u8], from: Peer) -> Result<(), PacketDrop> {
        let refusal = Refusal::read(header.message_len, body).ok_or(PacketDrop::Malformed)?;
        let index = self.client_of(header, from)?;
        let session = &self.clients.table.entries[index];
        if session.state != ClientState::Connecting {
            return Err(PacketDrop::Stale);
        }
        let (id, peer) = (session.id(), Arc::clone(&self.peers.get(session.peer_index).name));
        self.cancel(id, Cause::PeerClosed, |_, _| true);
        self.remove_client(index);
        let error = match refusal {
            Refusal::ReceiveCapacity { packets, committed } => {
                ConnectError::PeerReceiveCapacity { peer, packets, committed }
            }
            Refusal::Sessions { limit } => ConnectError::PeerSessions { peer, limit },
            Refusal::Closing => ConnectError::Failed { peer, cause: Cause::PeerClosed },
        };
        self.events.push_back(SessionEvent::ConnectFailed { session: id, error });
        Ok(())
    }

    /// Confirm, disconnect, disconnected, reset: the header names our session, the body the peer's.
    fn on_ending(&mut self, header: &Header, body: &[u8], from: Peer) -> Result<(), PacketDrop> {
        let theirs = read_ending(body).ok_or(PacketDrop::Malformed)?;
        match header.kind {
            Kind::Confirm | Kind::Disconnect => {
                let index = match Self::checked(&self.servers.table, header.session, from) {
                    Ok(index) if self.servers.table.entries[index].remote_key == theirs => index,
                    Ok(_) => return Err(PacketDrop::UnknownSession),
                    Err(reason) => {
                        if header.kind == Kind::Disconnect {
                            // Gone already: the answer was lost.
                            self.send(from, ending(Kind::Disconnected, theirs, header.session));
                        }
                        return Err(reason);
                    }
                };
                let session = &mut self.servers.table.entries[index];
                self.peers.heard(session.peer_index, self.now_ns);
                session.confirmed = true;
                if header.kind == Kind::Disconnect {
                    self.send(from, ending(Kind::Disconnected, theirs, header.session));
                    self.remove_server(index);
                }
                Ok(())
            }
            _ => {
                let index = self.client_of(header, from)?;
                let session = &self.clients.table.entries[index];
                if session.remote_key != theirs || session.state == ClientState::Connecting {
                    return Err(PacketDrop::Stale);
                }
                if header.kind == Kind::Reset {
                    self.fail_client(index, Cause::PeerClosed);
                } else if session.state == ClientState::Disconnecting {
                    let id = session.id();
                    self.remove_client(index);
                    self.events.push_back(SessionEvent::Disconnected(id));
                }
                Ok(())
            }
        }
    }

    fn on_ping(&mut self, body: &[u8], from: Peer) -> Result<(), PacketDrop> {
        let life = Life::read(body).ok_or(PacketDrop::Malformed)?;
        let ours = match self.peers.index_of(from) {
            Some(index) => {
                let ours = self.peers.get(index).local_token;
                if life.receiver_token == ours {
                    self.peers.heard(index, self.now_ns);
                }
                ours
            }
            None => 0,
        };
        // The token that the asker took for ours comes back in the key's place: it dates the answer.
        let header = Header::management(Kind::Pong, SessionKey(life.receiver_token), 0);
        self.send(from, Management::new(header, &[ours, life.sender_token]));
        Ok(())
    }

    fn on_pong(&mut self, header: &Header, body: &[u8], from: Peer) -> Result<(), PacketDrop> {
        let life = Life::read(body).ok_or(PacketDrop::Malformed)?;
        let index = self.peers.index_of(from).ok_or(PacketDrop::UnknownSession)?;
        let entry = self.peers.get(index);
        // The echo of our token shows that the answer is to a question of ours.
        if life.receiver_token != entry.local_token {
            return Err(PacketDrop::Stale);
        }
        let (known, asked_with) = (entry.remote_token, header.session.0);
        self.peers.heard(index, self.now_ns);
        if known != asked_with {
            // Asked before an accept or connect told us what we know now.
            return Err(PacketDrop::Stale);
        }
        if known != 0 && life.sender_token != known {
            self.fail_peer(index, Cause::PeerForgot);
        }
        Ok(())
    }

    /// Repeats what was not answered, asks the silent, gives up the dead. Does something every few milliseconds only.
    #[inline]
    pub(crate) fn manage(&mut self) {
        if self.now_ns >= self.next_manage_ns {
            self.manage_now();
        }
    }

    fn manage_now(&mut self) {
        let config = &self.config;
        self.next_manage_ns = self.now_ns + (config.connect_retry_ns / 2).min(config.probe_interval_ns / 4).max(1);
        self.repeat_unanswered();
        self.remind_unconfirmed();
        for index in 0..self.peers.index_end() {
            if !self.peers.is_known(index) {
                continue;
            }
            let silence = self.peers.silence_ns(index, self.now_ns);
            if silence >= self.config.peer_timeout_ns {
                self.fail_peer(index, Cause::PeerSilent);
                continue;
            }
            let (now_ns, interval) = (self.now_ns, self.config.probe_interval_ns);
            let entry = self.peers.get_mut(index);
            if silence >= interval && now_ns.saturating_sub(entry.last_ping_ns) >= interval {
                entry.last_ping_ns = now_ns;
                let life = Life { sender_token: entry.local_token, receiver_token: entry.remote_token };
                let to = entry.peer;
                self.send(to, life.packet(Kind::Ping));
            }
        }
    }

    fn repeat_unanswered(&mut self) {
        let watched = std::mem::take(&mut self.cookies.attention);
        for id in watched {
            let Some(index) = self.clients.table.find(id.key()) else { continue };
            let (now_ns, retry_ns, timeout_ns) =
                (self.now_ns, self.config.connect_retry_ns, self.config.connect_timeout_ns);
            let session = &self.clients.table.entries[index];
            let (state, peer_index) = (session.state, session.peer_index);
            let cold = self.clients.cold(index);
            let late = now_ns.saturating_sub(cold.last_try_ns) >= retry_ns;
            match state {
                ClientState::Open => continue,
                ClientState::Connecting => {
                    let since = cold.opening.as_ref().map_or(now_ns, |opening| opening.since_ns);
                    if now_ns.saturating_sub(since) >= timeout_ns {
                        let peer = Arc::clone(&self.peers.get(peer_index).name);
                        self.cancel(id, Cause::PeerSilent, |_, _| true);
                        self.remove_client(index);
                        let error = ConnectError::TimedOut { peer, timeout_ms: timeout_ns / 1_000_000 };
                        self.events.push_back(SessionEvent::ConnectFailed { session: id, error });
                        continue;
                    }
                    if late {
                        self.send_connect(index);
                    }
                }
                ClientState::Disconnecting => {
                    if now_ns.saturating_sub(cold.ending_since_ns) >= timeout_ns {
                        self.remove_client(index);
                        self.events.push_back(SessionEvent::Disconnected(id));
                        continue;
                    }
                    if late {
                        self.send_disconnect(index);
                    }
                }
            }
            self.cookies.attention.push(id);
        }
    }

    fn remind_unconfirmed(&mut self) {
        let mut waiting = std::mem::take(&mut self.servers.unconfirmed);
        waiting.retain_mut(|(key, since_ns)| {
            let Some(index) = self.servers.table.find(*key) else { return false };
            if self.servers.table.entries[index].confirmed {
                return false;
            }
            if self.now_ns.saturating_sub(*since_ns) >= REMIND_NS {
                *since_ns = self.now_ns;
                self.send_accept(index);
            }
            true
        });
        waiting.append(&mut self.servers.unconfirmed);
        self.servers.unconfirmed = waiting;
    }
}

/// The key under which a server session is known.
impl ServerSession {
    pub(crate) fn id(&self) -> SessionKey {
        crate::table::Keyed::key(self)
    }
}
