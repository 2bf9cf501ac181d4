//! Clients as their server sees them: their names, the sessions over which they can be called, and their coming and
//! leaving.

use std::collections::VecDeque;

use super::Servers;
use crate::error::{CallBackError, Cause};
use crate::events::ClientEvent;
use crate::names::{ClientId, SessionId};
use crate::server::ServerSession;
use crate::shared::Shared;
use sinew_wire::SessionKey;

/// Events of clients that came and left, if these are wanted.
#[derive(Default)]
pub(super) struct ClientEvents {
    events: VecDeque<ClientEvent>,
    /// Number of events at which those of clients that came and left unreported are dropped, so that sessions bound the
    /// number of events.
    len_max: usize,
    /// Whether there are events since the owner was last asked to look.
    is_news: bool,
}

impl Servers {
    /// Inserts a session that no packet finds before [`Self::open_reverse`]; returns its index and its key.
    pub fn reserve(&mut self, shared: &mut Shared, session: ServerSession) -> (usize, SessionKey) {
        let index = self.put(shared, session);
        (index, self.table.hide(index))
    }

    /// Opens a [reserved](Self::reserve) session; `grant` fills in what its client grants. `session` is our own session
    /// with that client.
    pub fn open_reverse(
        &mut self,
        shared: &Shared,
        (index, key): (usize, SessionKey),
        session: SessionId,
        grant: impl FnOnce(&mut ServerSession),
    ) {
        self.table.show(index, key);
        grant(&mut self.table.entries[index]);
        self.set_session_to(index, session);
        // Confirmed at once: its key went only to the server, which has proved that it receives at its source address.
        self.confirm(shared, index);
    }

    /// The session over which a client can be called.
    pub fn session_to(&self, client: ClientId) -> Result<SessionId, CallBackError> {
        let index = self.table.find(client.key()).ok_or(CallBackError::NoSuchClient)?;
        self.cold[index].session.ok_or(CallBackError::NotTaken)
    }

    pub fn set_session_to(&mut self, index: usize, session: SessionId) {
        self.cold[index].session = Some(session);
    }

    /// Notes that a client came.
    pub fn note_came(&mut self, shared: &Shared, index: usize) {
        if shared.config.client_events {
            let event = ClientEvent::Came(ClientId(self.table.entries[index].key.0));
            self.push_client_event(event);
        }
    }

    /// Notes that a client leaves, whose session still exists. A client whose coming was not reported is not reported
    /// now.
    pub fn note_left(&mut self, index: usize, cause: Cause) {
        if self.cold[index].is_reported {
            let client = ClientId(self.table.entries[index].key.0);
            self.push_client_event(ClientEvent::Left { client, cause });
        }
    }

    fn push_client_event(&mut self, event: ClientEvent) {
        let table = &self.table;
        let ClientEvents { events, len_max, is_news } = &mut self.client_events;
        if events.len() >= *len_max {
            events.retain(|event| !matches!(event, ClientEvent::Came(client) if table.find(client.key()).is_none()));
            *len_max = 2 * events.len() + 64;
        }
        events.push_back(event);
        *is_news = true;
    }

    /// Whether events wait, and some of them came or were taken since this was last asked.
    pub fn take_client_news(&mut self) -> bool {
        std::mem::take(&mut self.client_events.is_news) && !self.client_events.events.is_empty()
    }

    /// Returns the next event of a client that came or left.
    pub fn poll_client_event(&mut self) -> Option<ClientEvent> {
        loop {
            let event = self.client_events.events.pop_front()?;
            // The owner takes events, so those that still wait are worth a wake-up again.
            self.client_events.is_news = true;
            let ClientEvent::Came(client) = event else { return Some(event) };
            if let Some(index) = self.table.find(client.key()) {
                self.cold[index].is_reported = true;
                return Some(event);
            }
        }
    }

    /// Number of events that wait to be taken.
    pub fn client_events_len(&self) -> usize {
        self.client_events.events.len()
    }
}
