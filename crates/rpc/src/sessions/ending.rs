//! Ending of a session: by its user, with its endpoint, or with its peer.

use std::sync::Arc;

use sinew_fabric::Peer;
use sinew_wire::management::{read_session_end, session_end};
use sinew_wire::{Header, Kind};

use super::Sessions;
use crate::client::ClientState;
use crate::core::Core;
use crate::error::{Cause, ConnectError};
use crate::events::SessionEvent;
use crate::names::{ClientId, SessionId};
use crate::stats::PacketDrop;

impl Sessions {
    /// Ends a session; its calls complete with [`Cause::Disconnected`]. Returns whether the session existed.
    pub fn disconnect(&mut self, core: &mut Core, id: SessionId) -> bool {
        let Some(index) = core.clients.table.find(id.key()) else { return false };
        if let Some(client) = core.clients.client_called(index) {
            return self.dismiss(core, client);
        }
        match core.clients.table.entries[index].state {
            ClientState::Disconnecting => {}
            ClientState::Connecting => {
                core.clients.end_calls(&mut core.shared, id, Cause::Disconnected);
                Self::end_client(core, index, SessionEvent::Disconnected(id));
            }
            ClientState::Open => {
                core.clients.close(index);
                core.clients.end_calls(&mut core.shared, id, Cause::Disconnected);
                core.clients.cold(index).ending_since_ns = core.shared.now_ns;
                self.in_transition.push(id);
                Self::send_disconnect(core, index);
            }
        }
        true
    }

    /// Ends a client's session; calls back to it complete with [`Cause::Disconnected`]. Returns whether the client
    /// existed.
    pub fn dismiss(&mut self, core: &mut Core, client: ClientId) -> bool {
        let Some(index) = core.servers.table.find(client.key()) else { return false };
        let session = &core.servers.table.entries[index];
        if session.is_reverse {
            return false;
        }
        let (peer, keys) = (session.peer, (session.key, session.remote_key));
        self.reset(core, index, Cause::Disconnected);
        self.remember_farewell(core, Kind::Reset, peer, keys);
        true
    }

    pub(super) fn send_disconnect(core: &mut Core, index: usize) {
        let now_ns = core.shared.now_ns;
        core.clients.cold(index).last_try_ns = now_ns;
        let session = &core.clients.table.entries[index];
        let packet = session_end(Kind::Disconnect, session.remote_key, session.id().key());
        core.shared.send(session.peer, packet);
    }

    pub(super) fn remove_client(core: &mut Core, index: usize) {
        Self::remove_reverse(core, index);
        let session = &core.clients.table.entries[index];
        let (peer_index, credits) = (session.peer_index, session.credits_max);
        core.clients.remove(index);
        Self::release(core, peer_index, credits);
    }

    /// Removes a session of ours, and sends `event` to its lane.
    pub(super) fn end_client(core: &mut Core, index: usize, event: SessionEvent) {
        let lane = core.clients.cold(index).lane;
        Self::remove_client(core, index);
        core.clients.lanes.push_event(lane, event);
    }

    /// Removes a client's session.
    pub(super) fn remove_server(&mut self, core: &mut Core, index: usize, cause: Cause) {
        core.servers.note_left(index, cause);
        Self::end_reverse_client(core, index, cause);
        let session = &core.servers.table.entries[index];
        let (peer_index, credits) = (session.peer_index, session.credits);
        self.granted.remove(&(session.peer, session.remote_key.0));
        core.servers.remove(&mut core.shared, index);
        let entry = core.shared.peers.get_mut(peer_index);
        entry.granted_sessions -= 1;
        entry.granted_packets -= u64::from(credits);
        Self::release(core, peer_index, credits);
    }

    pub(super) fn release(core: &mut Core, peer_index: u32, credits: u16) {
        core.shared.committed_packets -= u64::from(credits);
        if let Some(forgotten) = core.shared.peers.release(peer_index, credits.into()) {
            core.shared.forgotten.push(forgotten);
        }
    }

    /// Ends all sessions at once, and tells the peers.
    pub fn close(&mut self, core: &mut Core) {
        self.closing = true;
        for index in Self::own_clients(core).collect::<Vec<_>>() {
            let session = &core.clients.table.entries[index];
            let (id, open) = (session.id(), session.state != ClientState::Connecting);
            core.clients.end_calls(&mut core.shared, id, Cause::Disconnected);
            if open {
                Self::send_disconnect(core, index);
            }
            Self::remove_client(core, index);
        }
        for index in Self::own_servers(core).collect::<Vec<_>>() {
            self.reset(core, index, Cause::Disconnected);
        }
    }

    /// Our sessions, except those over which clients are called: these end with the clients' sessions.
    fn own_clients(core: &Core) -> impl Iterator<Item = usize> + '_ {
        core.clients.table.occupied().filter(|&index| core.clients.client_called(index).is_none())
    }

    /// Our clients' sessions, except those over which our servers call us: these end with our sessions.
    fn own_servers(core: &Core) -> impl Iterator<Item = usize> + '_ {
        core.servers.table.occupied().filter(|&index| !core.servers.table.entries[index].is_reverse)
    }

    /// Ends a session that a client has with us, and tells the client.
    pub(super) fn reset(&mut self, core: &mut Core, index: usize, cause: Cause) {
        let session = &core.servers.table.entries[index];
        let packet = session_end(Kind::Reset, session.remote_key, session.key);
        core.shared.send(session.peer, packet);
        self.remove_server(core, index, cause);
    }

    /// Gives a peer up: calls to it complete with `cause`, and the memory of its sessions is freed.
    pub(super) fn fail_peer(&mut self, core: &mut Core, peer_index: u32, cause: Cause) {
        core.shared.stats.peers_lost += 1;
        let (clients, servers) = Self::sessions_with(core, peer_index);
        self.fail_sessions(core, clients, servers, cause);
    }

    /// Ends the sessions with a peer that has restarted or given us up, and so knows none of them. Sessions that are
    /// opening go on, with the peer's new incarnation.
    pub(super) fn forget_established(&mut self, core: &mut Core, peer_index: u32) {
        let (mut clients, servers) = Self::sessions_with(core, peer_index);
        clients.retain(|&index| core.clients.table.entries[index].state != ClientState::Connecting);
        core.shared.stats.peers_lost += u64::from(!clients.is_empty() || !servers.is_empty());
        self.fail_sessions(core, clients, servers, Cause::PeerForgot);
    }

    /// Sessions that we have with a peer, and those that it has with us.
    fn sessions_with(core: &Core, peer_index: u32) -> (Vec<usize>, Vec<usize>) {
        let ours = Self::own_clients(core).filter(|&index| core.clients.table.entries[index].peer_index == peer_index);
        let theirs =
            Self::own_servers(core).filter(|&index| core.servers.table.entries[index].peer_index == peer_index);
        (ours.collect(), theirs.collect())
    }

    fn fail_sessions(&mut self, core: &mut Core, clients: Vec<usize>, servers: Vec<usize>, cause: Cause) {
        for index in servers {
            self.remove_server(core, index, cause);
        }
        for index in clients {
            self.fail_client(core, index, cause);
        }
    }

    pub(super) fn fail_client(&mut self, core: &mut Core, index: usize, cause: Cause) {
        let session = &core.clients.table.entries[index];
        let (id, state) = (session.id(), session.state);
        let peer = Arc::clone(&core.shared.peers.get(session.peer_index).name);
        core.clients.end_calls(&mut core.shared, id, cause);
        let event = match state {
            ClientState::Connecting => {
                SessionEvent::ConnectFailed { session: id, error: ConnectError::Failed { peer, cause } }
            }
            ClientState::Open => SessionEvent::Lost { session: id, peer, cause },
            ClientState::Disconnecting => SessionEvent::Disconnected(id),
        };
        Self::end_client(core, index, event);
    }

    /// Handles confirm, disconnect, disconnected and reset. The header names our session, the body the peer's.
    pub(super) fn on_ending(
        &mut self,
        core: &mut Core,
        header: &Header,
        body: &[u8],
        from: Peer,
    ) -> Result<(), PacketDrop> {
        let theirs = read_session_end(body).ok_or(PacketDrop::Malformed)?;
        match header.kind {
            Kind::Confirm | Kind::Disconnect => {
                let index = match core.servers.table.find_from(header.session, from) {
                    Ok(index) if core.servers.table.entries[index].is_reverse => {
                        return Err(PacketDrop::UnknownSession);
                    }
                    Ok(index) if core.servers.table.entries[index].remote_key == theirs => index,
                    Ok(_) => return Err(PacketDrop::UnknownSession),
                    Err(reason) => {
                        if header.kind == Kind::Disconnect {
                            // The session is gone already: our answer was lost.
                            core.shared.send(from, session_end(Kind::Disconnected, theirs, header.session));
                        }
                        return Err(reason);
                    }
                };
                core.shared.peers.note_heard(core.servers.table.entries[index].peer_index, core.shared.now_ns);
                core.servers.confirm(&core.shared, index);
                if header.kind == Kind::Disconnect {
                    core.shared.send(from, session_end(Kind::Disconnected, theirs, header.session));
                    self.remove_server(core, index, Cause::PeerClosed);
                }
                Ok(())
            }
            Kind::Reset => self.on_reset(core, header, theirs, from),
            Kind::Disconnected if self.confirm_farewell(from, header.session, theirs) => Ok(()),
            _ => {
                let index = Self::client_of(core, header, from)?;
                let session = &core.clients.table.entries[index];
                if session.remote_key != theirs || session.state == ClientState::Connecting {
                    return Err(PacketDrop::Stale);
                }
                if session.state == ClientState::Disconnecting {
                    let id = session.id();
                    Self::end_client(core, index, SessionEvent::Disconnected(id));
                }
                Ok(())
            }
        }
    }
}
