//! Opening of a session: connect, challenge, connect with the cookie, accept.

use std::hash::Hasher;
use std::sync::Arc;

use sinew_fabric::Peer;
use sinew_wire::management::{Accept, Challenge, Connect, Cookie, Features, Offer, Refusal, ReverseOffer, session_end};
use sinew_wire::{HEADER_LEN, Header, Kind, VERSION};

use super::Sessions;
use super::reverse::split;
use crate::client::{ClientState, Opening, ReverseSession};
use crate::core::Core;
use crate::error::{Cause, ConnectError};
use crate::events::SessionEvent;
use crate::names::SessionId;
use crate::options::ConnectOptions;
use crate::peers::PeerEntry;
use crate::server::ServerSession;
use crate::shared::{DATA_PER_PACKET_MIN, Shared};
use crate::stats::PacketDrop;

/// Time for which a cookie is valid.
const COOKIE_LIFE_NS: u64 = 10_000_000_000;

/// Number of packets that a further session with this peer may have in flight to us.
fn available_packets(shared: &Shared, peer_index: Option<u32>) -> u64 {
    if shared.config.overcommit {
        return u64::MAX;
    }
    let reserve = shared.config.management_packets as u64;
    let with_peer = peer_index.map_or(0, |index| shared.peers.get(index).committed);
    let total = shared.link.receive_packets.saturating_sub(reserve + shared.committed_packets);
    total.min(shared.link.receive_packets_per_peer.saturating_sub(reserve + with_peer))
}

/// Returns the credits that a requested session can have, and those of the other direction if it is asked for; or the
/// reason for refusing it.
fn grant_credits(core: &Core, from: Peer, connect: &Connect) -> Result<(u16, u16), Refusal> {
    let shared = &core.shared;
    let limit = shared.config.credits;
    let offered = connect.offer.credits.min(limit);
    let back = connect.reverse_offer.map_or(0, |back| back.credits.min(limit));
    let sessions_needed = 1 + u64::from(back > 0);
    let sessions_max = shared.config.sessions_max as u64;
    if core.sessions() as u64 + sessions_needed > sessions_max {
        return Err(Refusal::Sessions { limit: sessions_max });
    }
    let peer = shared.peers.index_of(from);
    let (sessions, committed) = peer.map_or((0, 0), |index| {
        let entry = shared.peers.get(index);
        (u64::from(entry.granted_sessions), entry.granted_packets)
    });
    let share = shared.share_of(sessions_max);
    if sessions + sessions_needed > share {
        return Err(Refusal::PeerSessions { limit: share });
    }
    let suffices = |(granted, granted_back)| granted > 0 && (granted_back > 0 || back == 0);
    let available = available_packets(shared, peer);
    let granted = split(available, offered, back);
    if !suffices(granted) {
        let packets = shared.link.receive_packets.min(shared.link.receive_packets_per_peer);
        return Err(Refusal::ReceiveCapacity { packets, committed: shared.committed_packets });
    }
    if shared.config.overcommit {
        return Ok(granted);
    }
    let share = shared.share_of(shared.link.receive_packets.saturating_sub(shared.config.management_packets as u64));
    let granted = split(available.min(share.saturating_sub(committed)), offered, back);
    if !suffices(granted) {
        return Err(Refusal::PeerReceiveCapacity { packets: share, committed });
    }
    Ok(granted)
}

impl Sessions {
    fn cookie_code(&self, from: Peer, connect: &Connect, made_ns: u64) -> u64 {
        let mut hasher = siphasher::sip::SipHasher24::new_with_keys(self.secret[0], self.secret[1]);
        for word in from.0.into_iter().chain([connect.client_key.0, connect.client_token, made_ns]) {
            hasher.write_u64(word);
        }
        // 0 means that there is no cookie.
        hasher.finish().max(1)
    }

    fn peer_entry(core: &mut Core, peer: Peer, name: &str) -> u32 {
        if let Some(index) = core.shared.peers.index_of(peer) {
            return index;
        }
        // 0 means that the token is not known.
        let local_token = core.shared.generator.next_u64().max(1);
        let entry = PeerEntry::new(peer, name, local_token, core.shared.now_ns);
        core.shared.peers.insert(entry, core.shared.now_ns)
    }

    pub(super) fn commit(core: &mut Core, peer_index: u32, packets: u16) {
        core.shared.committed_packets += u64::from(packets);
        core.shared.peers.get_mut(peer_index).committed += u64::from(packets);
    }

    /// Begins to open a session with a peer that accepts packets of `packet_len_max` bytes.
    pub fn begin_connect(
        &mut self,
        core: &mut Core,
        peer: Peer,
        name: &str,
        packet_len_max: usize,
        options: ConnectOptions,
    ) -> Result<SessionId, ConnectError> {
        core.clients.lanes.check(options.lane).map_err(ConnectError::Lane)?;
        let sessions_needed = 1 + usize::from(options.call_back > 0);
        if core.sessions() + sessions_needed > core.shared.config.sessions_max {
            return Err(ConnectError::Sessions { limit: core.shared.config.sessions_max });
        }
        let available = available_packets(&core.shared, core.shared.peers.index_of(peer));
        let (credits, back) = split(available, core.shared.config.credits, options.call_back);
        if credits == 0 || (back == 0 && options.call_back > 0) {
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
        let back = (back > 0).then(|| Self::reserve_reverse(core, peer, peer_index, back));
        let cold = core.clients.cold(index);
        cold.opening = Some(Opening { since_ns: now_ns, offer, cookie: Cookie::default() });
        (cold.lane, cold.reverse) = (options.lane, back);
        self.in_transition.push(id);
        Self::send_connect(core, index);
        Ok(id)
    }

    pub(super) fn send_connect(core: &mut Core, index: usize) {
        let now_ns = core.shared.now_ns;
        let session = &core.clients.table.entries[index];
        let (peer, id) = (session.peer, session.id());
        let client_token = core.shared.peers.get(session.peer_index).local_token;
        let cold = core.clients.cold(index);
        // Whether connect was sent before, and not answered yet.
        let opening_is_repeated =
            cold.last_try_ns != 0 && cold.opening.as_ref().is_some_and(|opening| opening.cookie == Cookie::default());
        cold.last_try_ns = now_ns.max(1);
        let Some(opening) = &cold.opening else { return };
        let slots = core.shared.config.slots;
        let call_back = cold.reverse.map(|ReverseSession { key, credits, .. }| ReverseOffer { key, credits, slots });
        let Opening { offer, cookie, .. } = *opening;
        let connect = Connect {
            client_key: id.key(),
            client_token,
            offer,
            cookie,
            reverse_offer: call_back,
            features: Features::SUPPORTED,
        };
        core.shared.send(peer, connect.encode());
        if opening_is_repeated {
            // A server of the previous version ignores packets of ours. It answers packets of its own version, and that
            // answer reveals its version.
            core.shared.send(peer, connect.encode().with_version(VERSION - 1));
        }
    }

    pub(super) fn on_connect(&mut self, core: &mut Core, body: &[u8], from: Peer) -> Result<(), PacketDrop> {
        let connect = Connect::read(body).ok_or(PacketDrop::Malformed)?;
        if connect.offer.data_per_packet < DATA_PER_PACKET_MIN
            || connect.client_token == 0
            || connect.reverse_offer.is_some_and(|back| !back.slots.is_power_of_two())
        {
            return Err(PacketDrop::Malformed);
        }
        if self.closing {
            core.shared.send(from, Refusal::Closing.encode(connect.client_key));
            return Ok(());
        }
        let Cookie { code, made_ns } = connect.cookie;
        let is_fresh = made_ns <= core.shared.now_ns && core.shared.now_ns - made_ns <= COOKIE_LIFE_NS;
        let is_code_valid = code == self.cookie_code(from, &connect, made_ns);
        // An incarnation other than the one that we know is newer only if it asked later; otherwise this is a delayed
        // packet.
        let is_overtaken =
            core.shared.peers.index_of(from).map(|index| core.shared.peers.get(index)).is_some_and(|entry| {
                entry.remote_token != 0 && entry.remote_token != connect.client_token && made_ns <= entry.known_since_ns
            });
        if !is_fresh || !is_code_valid || is_overtaken {
            // No state is kept: the client repeats its connect with the cookie.
            let cookie =
                Cookie { code: self.cookie_code(from, &connect, core.shared.now_ns), made_ns: core.shared.now_ns };
            core.shared.send(from, Challenge { cookie }.encode(connect.client_key));
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
        let (credits, back_credits) = match grant_credits(core, from, &connect) {
            Ok(granted) => granted,
            Err(refusal) => {
                core.shared.send(from, refusal.encode(connect.client_key));
                return Ok(());
            }
        };
        let peer_index = Self::peer_entry(core, from, "");
        let shared = &mut core.shared;
        let entry = shared.peers.get_mut(peer_index);
        entry.set_remote_token(connect.client_token, shared.now_ns);
        entry.round_trip_ns = shared.now_ns.saturating_sub(made_ns);
        entry.sessions += 1;
        entry.granted_sessions += 1;
        entry.granted_packets += u64::from(credits);
        shared.peers.note_heard(peer_index, shared.now_ns);
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
        if let Some(reverse_offer) = connect.reverse_offer {
            Self::open_reverse_client(core, index, reverse_offer, back_credits, connect.features);
        }
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
            reverse_offer: Self::reverse_offer_of(core, index),
            features: Features::SUPPORTED,
        };
        let (to, packet) = (session.peer, accept.encode(session.remote_key));
        core.shared.send(to, packet);
    }

    /// Finds the client session that a management packet is about.
    pub(super) fn client_of(core: &Core, header: &Header, from: Peer) -> Result<usize, PacketDrop> {
        let index = core.clients.table.find_from(header.session, from)?;
        // A session over which a client is called begins and ends with that client's own session.
        if core.clients.client_called(index).is_some() { Err(PacketDrop::UnknownSession) } else { Ok(index) }
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
        core.shared.peers.note_heard(core.clients.table.entries[index].peer_index, core.shared.now_ns);
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
                core.shared.send(from, session_end(Kind::Disconnect, accept.server_key, header.session));
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
                core.shared.send(from, session_end(Kind::Confirm, remote_key, id.key()));
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
            || !Self::is_reverse_grant_valid(core.clients.cold(index).reverse, &accept)
        {
            return Err(PacketDrop::Malformed);
        }
        let known = core.shared.peers.get(peer_index).remote_token;
        if known != 0 && known != accept.server_token {
            self.forget_established(core, peer_index);
        }
        let sent_ns = core.clients.cold(index).last_try_ns;
        let entry = core.shared.peers.get_mut(peer_index);
        entry.set_remote_token(accept.server_token, core.shared.now_ns);
        entry.round_trip_ns = core.shared.now_ns.saturating_sub(sent_ns);
        entry.committed -= u64::from(offer.credits - granted.credits);
        core.shared.committed_packets -= u64::from(offer.credits - granted.credits);
        core.shared.peers.note_heard(peer_index, core.shared.now_ns);
        core.clients.cold(index).opening = None;
        let slots = granted.slots.min(core.shared.config.slots);
        core.clients.open(&mut core.shared, index, slots, |session| {
            session.remote_key = accept.server_key;
            session.credits = granted.credits;
            session.credits_max = granted.credits;
            session.data_per_packet = granted.data_per_packet;
            session.message_len_max = granted.message_len_max;
            session.features = accept.features;
        });
        Self::open_reverse(core, index, &accept);
        let lane = core.clients.cold(index).lane;
        core.clients.lanes.push_event(lane, SessionEvent::Connected(id));
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
        let cause = if refusal == Refusal::Closing { Cause::PeerClosed } else { Cause::SessionRefused };
        core.clients.end_calls(&mut core.shared, id, cause);
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
