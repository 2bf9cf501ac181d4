//! Sessions that ended here, but whose other side has not confirmed that it knows.
//!
//! A client that was [dismissed](Sessions::dismiss) and missed the packet would go on calling without an answer for as
//! long as it lives, since its peer is alive and answers pings. A server that missed a disconnect would keep the
//! session. So the packet is repeated until it is confirmed, or until no other session connects the two: then they
//! learn of the end from the next ping or connect.

use std::collections::VecDeque;

use sinew_fabric::Peer;
use sinew_wire::management::session_end;
use sinew_wire::{Header, Kind, SessionKey};

use super::Sessions;
use crate::client::ClientState;
use crate::core::Core;
use crate::error::Cause;
use crate::stats::PacketDrop;

/// Number of farewells that are remembered; beyond that, the oldest are dropped. A peer that has thousands of
/// sessions dismissed and confirms none of that is hostile.
const FAREWELLS_MAX: usize = 1024;
/// Number of farewells that are repeated in one check, in turn.
const REPEATS_PER_TURN: usize = 8;

/// A session that ended here, and the packet that says so.
pub(super) struct Farewell {
    /// [`Kind::Reset`] to a client, [`Kind::Disconnect`] to a server.
    kind: Kind,
    to: Peer,
    ours: SessionKey,
    theirs: SessionKey,
    since_ns: u64,
    last_sent_ns: u64,
}

impl Sessions {
    /// Remembers a session that was removed, and whose other side was told so at least once.
    pub(super) fn remember_farewell(
        &mut self,
        core: &Core,
        kind: Kind,
        to: Peer,
        (ours, theirs): (SessionKey, SessionKey),
    ) {
        if core.shared.peers.index_of(to).is_none() {
            return;
        }
        if self.farewells.len() >= FAREWELLS_MAX {
            self.farewells.pop_front();
        }
        let now_ns = core.shared.now_ns;
        self.farewells.push_back(Farewell { kind, to, ours, theirs, since_ns: now_ns, last_sent_ns: now_ns });
        self.note_due(now_ns.saturating_add(core.shared.config.connect_retry_ns));
    }

    /// Repeats farewells that were not confirmed. A peer that was not reached for twice the peer time-out has been
    /// given up meanwhile.
    pub(super) fn repeat_farewells(&mut self, core: &mut Core) {
        let shared = &mut core.shared;
        let (now_ns, retry_ns) = (shared.now_ns, shared.config.connect_retry_ns);
        let patience_ns = shared.config.peer_timeout_ns.saturating_mul(2);
        let mut repeated = VecDeque::new();
        self.farewells.retain(|farewell| {
            if now_ns.saturating_sub(farewell.since_ns) >= patience_ns || shared.peers.index_of(farewell.to).is_none() {
                return false;
            }
            if repeated.len() == REPEATS_PER_TURN || now_ns.saturating_sub(farewell.last_sent_ns) < retry_ns {
                return true;
            }
            shared.send(farewell.to, session_end(farewell.kind, farewell.theirs, farewell.ours));
            repeated.push_back(Farewell { last_sent_ns: now_ns, ..*farewell });
            false
        });
        // The next check begins with the others.
        self.farewells.append(&mut repeated);
        if let Some(last_sent_ns) = self.farewells.iter().map(|farewell| farewell.last_sent_ns).min() {
            self.note_due(last_sent_ns.saturating_add(retry_ns));
        }
    }

    /// Notes that the other side knows that a session is over. Returns whether the farewell was still being repeated.
    pub(super) fn confirm_farewell(&mut self, from: Peer, ours: SessionKey, theirs: SessionKey) -> bool {
        let index = self
            .farewells
            .iter()
            .position(|farewell| (farewell.to, farewell.ours, farewell.theirs) == (from, ours, theirs));
        index.is_some_and(|index| self.farewells.remove(index).is_some())
    }

    /// Handles a server's notice that it ended a session of ours, which the server calls `theirs`. The notice is
    /// confirmed even if it is no news: the last confirmation may have been lost.
    pub(super) fn on_reset(
        &mut self,
        core: &mut Core,
        header: &Header,
        theirs: SessionKey,
        from: Peer,
    ) -> Result<(), PacketDrop> {
        let found = Self::client_of(core, header, from).map(|index| (index, &core.clients.table.entries[index]));
        let result = match found {
            // The connect may yet be answered with the session that has ended; the server repeats the reset then.
            Ok((_, session)) if session.state == ClientState::Connecting => return Err(PacketDrop::Stale),
            Ok((index, session)) if session.remote_key == theirs => {
                self.fail_client(core, index, Cause::PeerClosed);
                Ok(())
            }
            Ok(_) => Err(PacketDrop::Stale),
            Err(reason) => Err(reason),
        };
        // A server with which we have no other session does not wait for the confirmation.
        if core.shared.peers.index_of(from).is_some() {
            core.shared.send(from, session_end(Kind::Disconnected, theirs, header.session));
        }
        result
    }
}
