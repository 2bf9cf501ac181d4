//! What there is to know of a session, by its name.

use sinew_fabric::{Clock, PacketPort};

use super::{Rpc, SessionCredits};
use crate::client::ClientState;
use crate::events::SessionEvent;
use crate::lanes::LaneId;
use crate::names::{SessionId, SessionSlots};

impl<P: PacketPort, C: Clock> Rpc<P, C> {
    /// The slots of a session of ours; none of one that has ended, or is about to. Cheap: two loads, for a session whose state is near.
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

    /// The next event of one session, which is told to this lane, out of its turn; events of others stay where they are. Takes time in proportion to
    /// those that wait.
    pub fn take_session_event(&mut self, lane: LaneId, session: SessionId) -> Option<SessionEvent> {
        let taken = self.core.clients.lanes.take_event(lane, |event| event.session() == session);
        if taken.is_some() && lane == LaneId::MAIN {
            self.sleep.events_told = 0;
        }
        taken
    }

    /// The credits of a session of ours that is open; none of another.
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
