//! Peers that speak another version of the protocol. The side that asked for the session is told so, as far as its
//! version allows: a client of version 3 or later is told our version; an older one is told that the server is closing,
//! which is the nearest message that it understands.

use sinew_fabric::RxPacket;
use sinew_wire::management::{Connect, Refusal};
use sinew_wire::{HEADER_LEN, Header, Kind, VERSION};

use super::Sessions;
use crate::client::ClientState;
use crate::core::Core;
use crate::error::{Cause, ConnectError};
use crate::events::SessionEvent;

/// First version that has refusals because of the version.
const VERSION_REFUSALS_SINCE: u8 = 3;

impl Sessions {
    /// Handles a packet of another version. A request for a session is refused in that version; a session that we asked
    /// for fails, and its error names the server's version.
    #[cold]
    pub fn on_other_version(&mut self, core: &mut Core, packet: &RxPacket<'_>) {
        let Some((version, header)) = Header::read_other_version(packet.head) else { return };
        match header.kind {
            Kind::Connect if packet.tail.is_none() => {
                let Some(connect) = Connect::read(&packet.head[HEADER_LEN..]) else { return };
                let refusal = if version < VERSION_REFUSALS_SINCE {
                    Refusal::Closing
                } else {
                    Refusal::Version { version: VERSION }
                };
                core.shared.send(packet.from, refusal.encode(connect.client_key).with_version(version));
            }
            // The answer to a connect that we sent in that version, with our key. (A server of our version refuses such
            // a connect.)
            Kind::Challenge => {
                if let Ok(index) = Self::client_of(core, &header, packet.from) {
                    Self::fail_version(core, index, version);
                }
            }
            _ => {}
        }
    }

    /// Fails a session that is opening, because its server speaks another version.
    pub(super) fn fail_version(core: &mut Core, index: usize, theirs: u8) {
        let session = &core.clients.table.entries[index];
        if session.state != ClientState::Connecting {
            return;
        }
        let (session, peer_index) = (session.id(), session.peer_index);
        let peer = std::sync::Arc::clone(&core.shared.peers.get(peer_index).name);
        core.clients.end_calls(&mut core.shared, session, Cause::SessionRefused);
        let error = ConnectError::PeerVersion { peer, theirs, ours: VERSION };
        Self::end_client(core, index, SessionEvent::ConnectFailed { session, error });
    }
}
