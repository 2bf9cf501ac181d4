//! Sessions that ended here, and whose other side has not confirmed that it heard so.
//!
//! A client that was [dismissed](Sessions::dismiss) and missed it would call in vain for as long as it lives, since its peer is there and
//! answers pings; a server that missed a disconnect would keep the session. So the word is repeated until it is confirmed, or until nothing
//! else connects the two: then they learn it from the next sign of life.

use std::collections::VecDeque;

use sinew_fabric::Peer;
use sinew_wire::management::ending;
use sinew_wire::{Header, Kind, SessionKey};

use super::Sessions;
use crate::client::ClientState;
use crate::core::Core;
use crate::error::Cause;
use crate::stats::PacketDrop;

/// So many are remembered; of more, the oldest are told no more. Who is dismissed by the thousand and confirms nothing means no good.
const REMEMBERED_MAX: usize = 1024;
/// So many are told again in one look, each in its turn.
const TOLD_AT_ONCE: usize = 8;

/// What is said of a session that ended here.
pub(super) struct Farewell {
    /// [`Kind::Reset`] to a client, [`Kind::Disconnect`] to a server.
    kind: Kind,
    to: Peer,
    ours: SessionKey,
    theirs: SessionKey,
    since_ns: u64,
    told_ns: u64,
}

impl Sessions {
    /// Remembers a session that is off file, and of whose end its other side was told at least once.
    pub(super) fn remember(&mut self, core: &Core, kind: Kind, to: Peer, (ours, theirs): (SessionKey, SessionKey)) {
        if core.shared.peers.index_of(to).is_none() {
            return;
        }
        if self.farewells.len() >= REMEMBERED_MAX {
            self.farewells.pop_front();
        }
        let now_ns = core.shared.now_ns;
        self.farewells.push_back(Farewell { kind, to, ours, theirs, since_ns: now_ns, told_ns: now_ns });
        self.note_due(now_ns.saturating_add(core.shared.config.connect_retry_ns));
    }

    /// Tells those again that have not confirmed it. Who was not reached for twice as long as a peer may be silent was given up meanwhile.
    pub(super) fn repeat_farewells(&mut self, core: &mut Core) {
        let shared = &mut core.shared;
        let (now_ns, retry_ns) = (shared.now_ns, shared.config.connect_retry_ns);
        let patience_ns = shared.config.peer_timeout_ns.saturating_mul(2);
        let mut told = VecDeque::new();
        self.farewells.retain(|it| {
            if now_ns.saturating_sub(it.since_ns) >= patience_ns || shared.peers.index_of(it.to).is_none() {
                return false;
            }
            if told.len() == TOLD_AT_ONCE || now_ns.saturating_sub(it.told_ns) < retry_ns {
                return true;
            }
            shared.send(it.to, ending(it.kind, it.theirs, it.ours));
            told.push_back(Farewell { told_ns: now_ns, ..*it });
            false
        });
        // The next look begins with others.
        self.farewells.append(&mut told);
        if let Some(told_ns) = self.farewells.iter().map(|it| it.told_ns).min() {
            self.note_due(told_ns.saturating_add(retry_ns));
        }
    }

    /// The other side has heard that a session is over. Says whether it was being told so.
    pub(super) fn confirm_farewell(&mut self, from: Peer, ours: SessionKey, theirs: SessionKey) -> bool {
        let place = self.farewells.iter().position(|it| (it.to, it.ours, it.theirs) == (from, ours, theirs));
        place.is_some_and(|place| self.farewells.remove(place).is_some())
    }

    /// A server ended a session of ours, which it calls `theirs`. That is confirmed, also where it is no news: the answer may have been lost.
    pub(super) fn on_reset(
        &mut self,
        core: &mut Core,
        header: &Header,
        theirs: SessionKey,
        from: Peer,
    ) -> Result<(), PacketDrop> {
        let found = Self::client_of(core, header, from).map(|index| (index, &core.clients.table.entries[index]));
        let result = match found {
            // It may be about to open as what has ended: we are told again.
            Ok((_, session)) if session.state == ClientState::Connecting => return Err(PacketDrop::Stale),
            Ok((index, session)) if session.remote_key == theirs => {
                self.fail_client(core, index, Cause::PeerClosed);
                Ok(())
            }
            Ok(_) => Err(PacketDrop::Stale),
            Err(reason) => Err(reason),
        };
        // A server that nothing else connects us to does not wait for it.
        if core.shared.peers.index_of(from).is_some() {
            core.shared.send(from, ending(Kind::Disconnected, theirs, header.session));
        }
        result
    }
}
