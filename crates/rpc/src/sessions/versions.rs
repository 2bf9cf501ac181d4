//! Peers that speak another version of the protocol. Who asked hears of it, as far as their version has words for it: a client of ours is told
//! both versions; one of a version before the third, that the server closes, which is the nearest that it understands.

use sinew_fabric::RxPacket;
use sinew_wire::management::{Connect, Refusal};
use sinew_wire::{HEADER_LEN, Header, Kind, VERSION};

use super::Sessions;
use crate::client::ClientState;
use crate::core::Core;
use crate::error::{Cause, ConnectError};
use crate::events::SessionEvent;

/// The first version that knows of refusals for its version.
const TELLS_VERSIONS: u8 = 3;

impl Sessions {
    /// Takes in a packet of another version: who asks for a session is refused in that version, and a session that we asked for fails with what
    /// the server speaks.
    #[cold]
    pub fn on_other_version(&mut self, core: &mut Core, packet: &RxPacket<'_>) {
        let Some((version, header)) = Header::read_other_version(packet.head) else { return };
        match header.kind {
            Kind::Connect if packet.tail.is_none() => {
                let Some(connect) = Connect::read(&packet.head[HEADER_LEN..]) else { return };
                let refusal =
                    if version < TELLS_VERSIONS { Refusal::Closing } else { Refusal::Version { version: VERSION } };
                core.shared.send(packet.from, refusal.packet(connect.client_key).of_version(version));
            }
            // The answer to what we asked in that version, with the key that we gave. (A server of ours refuses that.)
            Kind::Challenge => {
                if let Ok(index) = Self::client_of(core, &header, packet.from) {
                    Self::fail_version(core, index, version);
                }
            }
            _ => {}
        }
    }

    /// A session that opens cannot: its server speaks another version.
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
