//! The other direction of a session, in which its server calls its client.
//!
//! A client asks for it when it connects ([`crate::ConnectOptions::call_back`]). It reserves a session in its role as
//! server, the server opens one in its role as client, and the session's handshake tells each side the other's key. The
//! direction has credits and slots of its own, and ends with the session: no packet concerns this direction alone.
//!
//! # Why a pair of ordinary entries
//!
//! The direction is one entry among the server's own sessions, and one among those that the client answers on. So calls
//! back are calls in every respect: handlers, deadlines, lanes, cancellation and congestion control need not know of
//! them. The exchange of keys takes only words that handshake packets have anyway. The client's entry is under no key
//! until the session is accepted, so a call back that overtakes the accept is dropped as one of an unknown session, and
//! is retransmitted. The client's key depends on the server's key of the session, because a connect can be granted
//! twice, and late calls of a session that never opened must not be taken for those of the next.
//!
//! The pair has credits of its own, up to half of what there is for the session, because a server that calls must not
//! take the credits with which its client waits for answers.

use sinew_fabric::Peer;
use sinew_wire::management::{Accept, Features, ReverseOffer};

use super::Sessions;
use crate::client::ReverseSession;
use crate::core::Core;
use crate::error::Cause;
use crate::lanes::LaneId;
use crate::names::ClientId;
use crate::server::ServerSession;

/// Splits the packets that may be in flight to us between a session and its other direction, which gets what it asks
/// for, up to half.
pub(super) fn split(available: u64, credits: u16, back: u16) -> (u16, u16) {
    let back = u64::from(back).min(available / 2);
    (u64::from(credits).min(available - back) as u16, back as u16)
}

impl Sessions {
    /// At the client: reserves a session for the calls of a server that is about to be asked. No packet finds it yet.
    pub(super) fn reserve_reverse(core: &mut Core, peer: Peer, peer_index: u32, credits: u16) -> ReverseSession {
        let session = ServerSession { peer, peer_index, is_reverse: true, ..ServerSession::default() };
        let (index, key) = core.servers.reserve(&mut core.shared, session);
        core.shared.peers.get_mut(peer_index).sessions += 1;
        Self::commit(core, peer_index, credits);
        ReverseSession { index, key, credits }
    }

    /// Whether an answer grants calls back exactly if they were asked for, and no more credits than that.
    pub(super) fn is_reverse_grant_valid(offered: Option<ReverseSession>, accept: &Accept) -> bool {
        match (offered, accept.reverse_offer) {
            (None, None) => true,
            (Some(offered), Some(granted)) => granted.credits <= offered.credits && granted.slots.is_power_of_two(),
            _ => false,
        }
    }

    /// At the client: starts accepting the server's calls. The grant has passed [`Self::is_reverse_grant_valid`].
    pub(super) fn open_reverse(core: &mut Core, client: usize, accept: &Accept) {
        let session = &core.clients.table.entries[client];
        let (id, peer_index) = (session.id(), session.peer_index);
        let (Some(reverse), Some(granted)) = (&mut core.clients.cold(client).reverse, accept.reverse_offer) else {
            return;
        };
        let unused = u64::from(reverse.credits - granted.credits);
        reverse.credits = granted.credits;
        let ReverseSession { index, key, credits } = *reverse;
        let key = key.in_session(accept.server_key);
        core.shared.committed_packets -= unused;
        core.shared.peers.get_mut(peer_index).committed -= unused;
        core.servers.open_reverse(&core.shared, (index, key), id, |session| {
            session.remote_key = granted.key;
            session.credits = credits;
            session.data_per_packet = accept.granted.data_per_packet;
            session.message_len_max = accept.granted.message_len_max;
        });
    }

    /// At the client: removes the other direction, along with its session.
    pub(super) fn remove_reverse(core: &mut Core, client: usize) {
        let peer_index = core.clients.table.entries[client].peer_index;
        if let Some(reverse) = core.clients.cold(client).reverse.take() {
            core.servers.remove(&mut core.shared, reverse.index);
            Self::release(core, peer_index, reverse.credits);
        }
    }

    /// At the server: opens the direction in which it calls a client that has asked for that.
    pub(super) fn open_reverse_client(
        core: &mut Core,
        server: usize,
        offer: ReverseOffer,
        credits: u16,
        features: Features,
    ) {
        let session = &core.servers.table.entries[server];
        let remote_key = offer.key.in_session(session.key);
        let (client, peer, peer_index) = (ClientId(session.key.0), session.peer, session.peer_index);
        let (data_per_packet, message_len_max) = (session.data_per_packet, session.message_len_max);
        let index = core.clients.insert(core.shared.generator.next_u64());
        let slots = offer.slots.min(core.shared.config.slots);
        core.clients.open(&mut core.shared, index, slots, |session| {
            (session.peer, session.peer_index) = (peer, peer_index);
            session.remote_key = remote_key;
            (session.credits, session.credits_max) = (credits, credits);
            session.data_per_packet = data_per_packet;
            session.message_len_max = message_len_max;
            session.features = features;
        });
        let cold = core.clients.cold(index);
        // The owner learns of the client from its client events, if it wants to.
        (cold.lane, cold.client_called) = (LaneId::NOBODY, Some(client));
        core.servers.set_session_to(server, core.clients.table.entries[index].id());
        let entry = core.shared.peers.get_mut(peer_index);
        entry.sessions += 1;
        entry.granted_sessions += 1;
        entry.granted_packets += u64::from(credits);
        Self::commit(core, peer_index, credits);
    }

    /// At the server: ends the direction along with the client's session, and its calls with `cause`.
    pub(super) fn end_reverse_client(core: &mut Core, server: usize, cause: Cause) {
        let session = &core.servers.table.entries[server];
        let (client, peer_index) = (ClientId(session.key.0), session.peer_index);
        let Ok(id) = core.servers.session_to(client) else { return };
        let Some(index) = core.clients.table.find(id.key()) else { return };
        core.clients.end_calls(&mut core.shared, id, cause);
        let credits = core.clients.table.entries[index].credits_max;
        core.clients.remove(index);
        let entry = core.shared.peers.get_mut(peer_index);
        entry.granted_sessions -= 1;
        entry.granted_packets -= u64::from(credits);
        Self::release(core, peer_index, credits);
    }

    /// At the server: the terms of the direction, as it states them when it accepts a session.
    pub(super) fn reverse_offer_of(core: &Core, server: usize) -> Option<ReverseOffer> {
        let id = core.servers.session_to(ClientId(core.servers.table.entries[server].key.0)).ok()?;
        let session = &core.clients.table.entries[core.clients.table.find(id.key())?];
        Some(ReverseOffer { key: id.key(), credits: session.credits_max, slots: core.shared.config.slots })
    }
}
