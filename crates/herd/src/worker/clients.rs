//! The clients of a worker.

use sinew_fabric::verbs::{Destination, QpAddress, ThreadDomain};

use crate::layout::Layout;
use crate::server::ClientId;
use crate::slot::Tail;

/// Number of a client's first request; a slot that was never written has 0.
pub const FIRST_SEQUENCE: u32 = 1;

/// One worker's record of a client, or an empty place for one.
#[derive(Debug)]
pub struct ClientState {
    /// The client's token; 0 if the place is empty.
    pub token: u32,
    /// Number of the client's next request.
    pub next: u32,
    /// Offset in the request region of the client's slots for this worker.
    pub slots_start: usize,
    /// Destination of its answers, if it is known.
    pub to: Option<Destination>,
    answers: Option<QpAddress>,
    /// Tail last refused in the slot of its next request, so that it is counted once.
    pub refused_tail: Tail,
    /// Tail last found out of turn in another slot, so that it is counted once.
    pub out_of_turn_tail: Tail,
}

impl ClientState {
    fn empty(slots_start: usize) -> Self {
        Self {
            token: 0,
            next: FIRST_SEQUENCE,
            slots_start,
            to: None,
            answers: None,
            refused_tail: Tail(0),
            out_of_turn_tail: Tail(0),
        }
    }

    /// Looks up the client's destination again. A client that cannot be reached gets no answers.
    #[cold]
    pub fn resolve_destination(&mut self, thread: &impl ThreadDomain) {
        self.to = self.answers.as_ref().and_then(|answers| thread.destination(answers).ok());
    }
}

/// All places, and the order in which the clients are polled.
pub struct Clients {
    states: Vec<ClientState>,
    present: Vec<u32>,
    /// Index in `present` of the next client to poll.
    next: usize,
    /// Index in `present` of the client whose slots are searched for retransmissions, and the next of its slots.
    check_index: usize,
    check_slot: u32,
}

impl Clients {
    /// The places for the clients of a worker.
    pub fn new(layout: &Layout, worker: usize) -> Self {
        let clients = layout.clients;
        let slots_start = |client| layout.slot_end(worker, client, 0) - layout.slot_len();
        let states = (0..clients).map(|client| ClientState::empty(slots_start(client))).collect();
        Self { states, present: Vec::with_capacity(clients), next: 0, check_index: 0, check_slot: 0 }
    }

    /// Number of clients.
    #[inline(always)]
    pub fn present(&self) -> usize {
        self.present.len()
    }

    #[inline(always)]
    pub fn get(&self, client: u32) -> &ClientState {
        &self.states[client as usize]
    }

    #[inline(always)]
    pub fn get_mut(&mut self, client: u32) -> &mut ClientState {
        &mut self.states[client as usize]
    }

    /// Returns the client whose turn it is; there must be one.
    #[inline(always)]
    pub fn next(&mut self) -> u32 {
        let client = self.present[self.next];
        self.next = if self.next + 1 == self.present.len() { 0 } else { self.next + 1 };
        client
    }

    /// Returns the next client and slot to search for a retransmission.
    pub fn next_to_check(&mut self, window: usize) -> Option<(u32, u32)> {
        if self.check_slot as usize >= window {
            self.check_slot = 0;
            self.check_index += 1;
        }
        if self.check_index >= self.present.len() {
            self.check_index = 0;
        }
        let client = *self.present.get(self.check_index)?;
        self.check_slot += 1;
        Some((client, self.check_slot - 1))
    }

    pub fn join(&mut self, id: ClientId, answers: QpAddress, thread: &impl ThreadDomain) {
        let Some(state) = self.states.get_mut(id.index as usize) else { return };
        *state = ClientState { token: id.token, answers: Some(answers), ..ClientState::empty(state.slots_start) };
        state.resolve_destination(thread);
        if !self.present.contains(&id.index) {
            self.present.push(id.index);
        }
    }

    pub fn leave(&mut self, id: ClientId) {
        if let Some(state) = self.states.get_mut(id.index as usize).filter(|state| state.token == id.token) {
            *state = ClientState::empty(state.slots_start);
            self.present.retain(|client| *client != id.index);
            self.next = 0;
        }
    }
}
