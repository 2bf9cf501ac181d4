//! How a session opens: connect, challenge, connect with the cookie, accept.

use std::hash::Hasher;
use std::sync::Arc;

use sinew_fabric::Peer;
use sinew_wire::management::{Accept, Challenge, Connect, Cookie, Offer, Refusal, ending};
use sinew_wire::{HEADER_LEN, Header, Kind, VERSION};

use super::Sessions;
use crate::client::{ClientState, Opening};
use crate::core::Core;
use crate::error::{Cause, ConnectError};
use crate::events::SessionEvent;
use crate::names::SessionId;
use crate::options::ConnectOptions;
use crate::peers::PeerEntry;
use crate::server::ServerSession;
use crate::shared::{DATA_PER_PACKET_MIN, Shared};
use crate::stats::PacketDrop;

/// Cookies are good for this long.
const COOKIE_LIFE_NS: u64 = 10_000_000_000;

/// Packets that a further session with this peer may have on their way to us.
fn available_packets(shared: &Shared, peer_index: Option<u32>) -> u64 {
    if shared.config.overcommit {
        return u64::MAX;
    }
    let reserve = shared.config.management_packets as u64;
    let with_peer = peer_index.map_or(0, |index| shared.peers.get(index).committed);
    let total = shared.link.receive_packets.saturating_sub(reserve + shared.committed_packets);
    total.min(shared.link.receive_packets_per_peer.saturating_sub(reserve + with_peer))
}

/// The credits that a session which a peer asks for can have, or why it cannot be.
fn grant(core: &Core, from: Peer, offered: u16) -> Result<u16, Refusal> {
    let shared = &core.shared;
    let sessions_max = shared.config.sessions_max as u64;
    if core.sessions() as u64 >= sessions_max {
        return Err(Refusal::Sessions { limit: sessions_max });
    }
    let peer = shared.peers.index_of(from);
    let (sessions, committed) = peer.map_or((0, 0), |index| {
        let entry = shared.peers.get(index);
        (u64::from(entry.granted_sessions), entry.granted_packets)
    });
    let share = shared.share_of(sessions_max);
    if sessions >= share {
        return Err(Refusal::PeerSessions { limit: share });
    }
    let credits = u64::from(offered.min(shared.config.credits)).min(available_packets(shared, peer));
    if credits == 0 {
        let packets = shared.link.receive_packets.min(shared.link.receive_packets_per_peer);
        return Err(Refusal::ReceiveCapacity { packets, committed: shared.committed_packets });
    }
    if shared.config.overcommit {
        return Ok(credits as u16);
    }
    let share = shared.share_of(shared.link.receive_packets.saturating_sub(shared.config.management_packets as u64));
    let credits = credits.min(share.saturating_sub(committed));
    if credits == 0 {
        return Err(Refusal::PeerReceiveCapacity { packets: share, committed });
    }
    Ok(credits as u16)
}

impl Sessions {
    fn code(&self, from: Peer, connect: &Connect, made_ns: u64) -> u64 {
        let mut hasher = siphasher::sip::SipHasher24::new_with_keys(self.secret[0], self.secret[1]);
        for word in from.0.into_iter().chain([connect.client_key.0, connect.client_token, made_ns]) {
            hasher.write_u64(word);
        }
        // 0 stands for `none`.
        hasher.finish().max(1)
    }

    fn peer_entry(core: &mut Core, peer: Peer, name: &str) -> u32 {
        if let Some(index) = core.shared.peers.index_of(peer) {
            return index;
        }
        // Zero stands for `unknown`.
        let local_token = core.shared.generator.next_u64().max(1);
        let entry = PeerEntry::new(peer, name, local_token, core.shared.now_ns);
        core.shared.peers.insert(entry, core.shared.now_ns)
    }

    fn commit(core: &mut Core, peer_index: u32, packets: u16) {
        core.shared.committed_packets += u64::from(packets);
        core.shared.peers.get_mut(peer_index).committed += u64::from(packets);
    }

    /// Begins to open a session with a peer that takes packets of `packet_len_max`.
    pub fn begin_connect(
        &mut self,
        core: &mut Core,
        peer: Peer,
        name: &str,
        packet_len_max: usize,
        options: ConnectOptions,
    ) -> Result<SessionId, ConnectError> {
        core.clients.lanes.check(options.lane).map_err(ConnectError::Lane)?;
        if core.sessions() >= core.shared.config.sessions_max {
            return Err(ConnectError::Sessions { limit: core.shared.config.sessions_max });
        }
        let available = available_packets(&core.shared, core.shared.peers.index_of(peer));
        let credits = u64::from(core.shared.config.credits).min(available) as u16;
        if credits == 0 {
            return Err(ConnectError::ReceiveCapacity {
                packets: core.shared.link.receive_packets.min(core.shared.link.receive_packets_per_peer),
                committed: core.shared.committed_packets,
            });
        }
        let peer_index = Self::peer_entry(core, peer, name);
        let entry = core.shared.peers.get_mut(peer_index);
        entry.sessions += 1;
        entry.initiated = true;
        if entry.name.is_empty() {
            entry.name = Arc::from(name);
        }
        Self::commit(core, peer_index, credits);
        let index = core.clients.insert(core.shared.generator.next_u64());
        let offer = Offer {
            credits,
            slots: core.shared.config.slots,
            data_per_packet: packet_len_max.min(core.shared.link.packet_len_max).saturating_sub(HEADER_LEN) as u32,
            message_len_max: core.shared.config.message_len_max,
        };
        let session = &mut core.clients.table.entries[index];
        session.peer = peer;
        session.peer_index = peer_index;
        session.state = ClientState::Connecting;
        session.credits_max = credits;
        let id = session.id();
        let now_ns = core.shared.now_ns;
        let cold = core.clients.cold(index);
        cold.opening = Some(Opening { since_ns: now_ns, offer, cookie: Cookie::default() });
        cold.lane = options.lane;
        self.attention.push(id);
        Self::send_connect(core, index);
        Ok(id)
    }

    pub(super) fn send_connect(core: &mut Core, index: usize) {
        let now_ns = core.shared.now_ns;
        let session = &core.clients.table.entries[index];
        let (peer, id) = (session.peer, session.id());
        let client_token = core.shared.peers.get(session.peer_index).local_token;
        let cold = core.clients.cold(index);
        // Not for the first time, and without any answer yet.
        let opening_is_repeated =
            cold.last_try_ns != 0 && cold.opening.as_ref().is_some_and(|opening| opening.cookie == Cookie::default());
        cold.last_try_ns = now_ns.max(1);
        let Some(opening) = &cold.opening else { return };
        let connect = Connect { client_key: id.key(), client_token, offer: opening.offer, cookie: opening.cookie };
        core.shared.send(peer, connect.packet());
        if opening_is_repeated {
            // A server of the version before hears nothing of ours. It answers its own, and says by that what it is.
            core.shared.send(peer, connect.packet().of_version(VERSION - 1));
        }
    }

    pub(super) fn on_connect(&mut self, core: &mut Core, body: &[u8], from: Peer) -> Result<(), PacketDrop> {
        let connect = Connect::read(body).ok_or(PacketDrop::Malformed)?;
        if connect.offer.data_per_packet < DATA_PER_PACKET_MIN || connect.client_token == 0 {
            return Err(PacketDrop::Malformed);
        }
        if self.closing {
            core.shared.send(from, Refusal::Closing.packet(connect.client_key));
            return Ok(());
        }
        let Cookie { code, made_ns } = connect.cookie;
        let fresh = made_ns <= core.shared.now_ns && core.shared.now_ns - made_ns <= COOKIE_LIFE_NS;
        let right = code == self.code(from, &connect, made_ns);
        // Another incarnation than the one that we know is a later one only if it asked later: else it is a delayed packet.
        let overtaken =
            core.shared.peers.index_of(from).map(|index| core.shared.peers.get(index)).is_some_and(|entry| {
                entry.remote_token != 0 && entry.remote_token != connect.client_token && made_ns <= entry.known_since_ns
            });
        if !fresh || !right || overtaken {
            // Nothing is kept: the client repeats itself with the cookie.
            let cookie = Cookie { code: self.code(from, &connect, core.shared.now_ns), made_ns: core.shared.now_ns };
            core.shared.send(from, Challenge { cookie }.packet(connect.client_key));
            return if code == 0 { Ok(()) } else { Err(PacketDrop::BadCookie) };
        }
        if let Some(&index) = self.granted.get(&(from, connect.client_key.0)) {
            Self::send_accept(core, index as usize);
            return Ok(());
        }
        if let Some(index) = core.shared.peers.index_of(from) {
            let known = core.shared.peers.get(index).remote_token;
            if known != 0 && known != connect.client_token {
                self.forget_established(core, index);
            }
        }
        let credits = match grant(core, from, connect.offer.credits) {
            Ok(credits) => credits,
            Err(refusal) => {
                core.shared.send(from, refusal.packet(connect.client_key));
                return Ok(());
            }
        };
        let peer_index = Self::peer_entry(core, from, "");
        let shared = &mut core.shared;
        let entry = shared.peers.get_mut(peer_index);
        entry.know(connect.client_token, shared.now_ns);
        entry.round_trip_ns = shared.now_ns.saturating_sub(made_ns);
        entry.sessions += 1;
        entry.granted_sessions += 1;
        entry.granted_packets += u64::from(credits);
        shared.peers.heard(peer_index, shared.now_ns);
        let own_data = (shared.link.packet_len_max - HEADER_LEN) as u32;
        let data_per_packet = connect.offer.data_per_packet.min(own_data);
        let message_len_max = connect.offer.message_len_max.min(shared.config.message_len_max);
        let session = ServerSession {
            peer: from,
            remote_key: connect.client_key,
            peer_index,
            data_per_packet,
            message_len_max,
            credits,
            ..ServerSession::default()
        };
        Self::commit(core, peer_index, credits);
        let index = core.servers.insert(&mut core.shared, session);
        self.granted.insert((from, connect.client_key.0), index as u32);
        Self::send_accept(core, index);
        Ok(())
    }

    pub(super) fn send_accept(core: &mut Core, index: usize) {
        let session = &core.servers.table.entries[index];
        let entry = core.shared.peers.get(session.peer_index);
        let accept = Accept {
            server_key: session.key,
            server_token: entry.local_token,
            client_token: entry.remote_token,
            granted: Offer {
                credits: session.credits,
                slots: core.shared.config.slots,
                data_per_packet: session.data_per_packet,
                message_len_max: session.message_len_max,
            },
        };
        let (to, packet) = (session.peer, accept.packet(session.remote_key));
        core.shared.send(to, packet);
    }

    /// Finds the client session that a management packet is for.
    pub(super) fn client_of(core: &Core, header: &Header, from: Peer) -> Result<usize, PacketDrop> {
        core.clients.table.checked(header.session, from)
    }

    pub(super) fn on_challenge(
        &mut self,
        core: &mut Core,
        header: &Header,
        body: &[u8],
        from: Peer,
    ) -> Result<(), PacketDrop> {
        let challenge = Challenge::read(body).ok_or(PacketDrop::Malformed)?;
        let index = Self::client_of(core, header, from)?;
        let Some(opening) = &mut core.clients.cold(index).opening else { return Err(PacketDrop::Stale) };
        if opening.cookie == challenge.cookie {
            return Err(PacketDrop::Stale);
        }
        opening.cookie = challenge.cookie;
        core.shared.peers.heard(core.clients.table.entries[index].peer_index, core.shared.now_ns);
        Self::send_connect(core, index);
        Ok(())
    }

    pub(super) fn on_accept(
        &mut self,
        core: &mut Core,
        header: &Header,
        body: &[u8],
        from: Peer,
    ) -> Result<(), PacketDrop> {
        let accept = Accept::read(body).ok_or(PacketDrop::Malformed)?;
        let index = match Self::client_of(core, header, from) {
            Ok(index) => index,
            Err(reason) => {
                // A delayed connect was granted after we gave it up: nobody here will use the session.
                core.shared.send(from, ending(Kind::Disconnect, accept.server_key, header.session));
                return Err(reason);
            }
        };
        let session = &core.clients.table.entries[index];
        let (peer_index, state, remote_key, id) = (session.peer_index, session.state, session.remote_key, session.id());
        if accept.client_token != core.shared.peers.get(peer_index).local_token {
            return Err(PacketDrop::Stale);
        }
        if state != ClientState::Connecting {
            if accept.server_key == remote_key && state == ClientState::Open {
                core.shared.send(from, ending(Kind::Confirm, remote_key, id.key()));
            }
            return Err(PacketDrop::Stale);
        }
        let Some(offer) = core.clients.cold(index).opening.as_ref().map(|opening| opening.offer) else {
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
        let known = core.shared.peers.get(peer_index).remote_token;
        if known != 0 && known != accept.server_token {
            self.forget_established(core, peer_index);
        }
        let asked_ns = core.clients.cold(index).last_try_ns;
        let entry = core.shared.peers.get_mut(peer_index);
        entry.know(accept.server_token, core.shared.now_ns);
        entry.round_trip_ns = core.shared.now_ns.saturating_sub(asked_ns);
        entry.committed -= u64::from(offer.credits - granted.credits);
        core.shared.committed_packets -= u64::from(offer.credits - granted.credits);
        core.shared.peers.heard(peer_index, core.shared.now_ns);
        core.clients.cold(index).opening = None;
        let slots = granted.slots.min(core.shared.config.slots);
        core.clients.open(&mut core.shared, index, slots, |session| {
            session.remote_key = accept.server_key;
            session.credits = granted.credits;
            session.credits_max = granted.credits;
            session.data_per_packet = granted.data_per_packet;
            session.message_len_max = granted.message_len_max;
        });
        let lane = core.clients.cold(index).lane;
        core.clients.lanes.tell(lane, SessionEvent::Connected(id));
        core.clients.start_queued(&mut core.shared, index);
        Ok(())
    }

    pub(super) fn on_refuse(
        &mut self,
        core: &mut Core,
        header: &Header,
        body: &[u8],
        from: Peer,
    ) -> Result<(), PacketDrop> {
        let refusal = Refusal::read(header.message_len, body).ok_or(PacketDrop::Malformed)?;
        let index = Self::client_of(core, header, from)?;
        let session = &core.clients.table.entries[index];
        if session.state != ClientState::Connecting {
            return Err(PacketDrop::Stale);
        }
        let (id, peer) = (session.id(), Arc::clone(&core.shared.peers.get(session.peer_index).name));
        core.clients.end_calls(&mut core.shared, id, Cause::PeerClosed);
        let error = match refusal {
            Refusal::ReceiveCapacity { packets, committed } => {
                ConnectError::PeerReceiveCapacity { peer, packets, committed }
            }
            Refusal::Sessions { limit } => ConnectError::PeerSessions { peer, limit },
            Refusal::Closing => ConnectError::Failed { peer, cause: Cause::PeerClosed },
            Refusal::PeerSessions { limit } => ConnectError::PeerShare { peer, limit, of: "sessions" },
            Refusal::Version { version } => ConnectError::PeerVersion { peer, theirs: version, ours: VERSION },
            Refusal::PeerReceiveCapacity { packets, .. } => {
                ConnectError::PeerShare { peer, limit: packets, of: "packets of its receive capacity" }
            }
        };
        Self::end_client(core, index, SessionEvent::ConnectFailed { session: id, error });
        Ok(())
    }
}
