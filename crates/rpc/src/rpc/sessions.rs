//! State of a session, found by its name.

use sinew_fabric::{Clock, PacketPort};

use super::{Rpc, SessionCredits};
use crate::client::ClientState;
use crate::events::SessionEvent;
use crate::lanes::LaneId;
use crate::names::{SessionId, SessionSlots};

impl<P: PacketPort, C: Clock> Rpc<P, C> {
    /// Returns the slots of a session of ours; `None` if it has ended, or is about to. This is cheap: two loads, if the
    /// session's state is in the caches.
    #[inline]
    pub fn session_slots(&self, session: SessionId) -> Option<SessionSlots> {
        let clients = &self.core.clients;
        let index = clients.table.find(session.key())?;
        let entry = &clients.table.entries[index];
        match entry.state {
            ClientState::Open => {
                let all = clients.cold.get(index).map_or(0, |cold| cold.slots);
                Some(SessionSlots { free: entry.free_slots.count_ones() as u16, all })
            }
            ClientState::Connecting => Some(SessionSlots::default()),
            ClientState::Disconnecting => None,
        }
    }

    /// Takes the next event of one session out of this lane's queue, ahead of events of other sessions, which stay
    /// where they are. The time it takes is proportional to the number of waiting events.
    pub fn take_session_event(&mut self, lane: LaneId, session: SessionId) -> Option<SessionEvent> {
        let taken = self.core.clients.lanes.take_event(lane, |event| event.session() == session);
        if taken.is_some() && lane == LaneId::MAIN {
            self.sleep.events_seen = 0;
        }
        taken
    }

    /// Returns the credits of a session of ours; `None` unless it is open.
    pub fn session_credits(&self, session: SessionId) -> Option<SessionCredits> {
        let index = self.core.clients.table.find(session.key())?;
        let entry = &self.core.clients.table.entries[index];
        if entry.state != ClientState::Open {
            return None;
        }
        let withheld = entry.limits.withheld.min(entry.credits_max);
        let owed = self.core.clients.owed_credits(index);
        Some(SessionCredits { left: entry.credits, owed, all: entry.credits_max, withheld })
    }
}
