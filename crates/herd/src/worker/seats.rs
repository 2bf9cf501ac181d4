//! The clients of a worker.

use sinew_fabric::verbs::{Destination, QpAddress, ThreadDomain};

use crate::server::ClientId;
use crate::slot::Tail;

/// Number of a client's first request; a slot that was never written has 0.
pub const FIRST_SEQUENCE: u32 = 1;

/// One worker's record of a client, or an empty place for one.
#[derive(Debug)]
pub struct Seat {
    /// The client's token; 0 if the place is empty.
    pub token: u32,
    /// Number of the client's next request.
    pub next: u32,
    /// Destination of its answers, if it is known.
    pub to: Option<Destination>,
    answers: Option<QpAddress>,
    /// Tail last refused in the slot of its next request, so that it is counted once.
    pub refused: Tail,
    /// Tail last found out of turn in another slot, so that it is counted once.
    pub strange: Tail,
}

impl Seat {
    fn empty() -> Self {
        Self { token: 0, next: FIRST_SEQUENCE, to: None, answers: None, refused: Tail(0), strange: Tail(0) }
    }

    /// Looks up the client's destination again. A client that cannot be reached gets no answers.
    #[cold]
    pub fn look_up(&mut self, thread: &impl ThreadDomain) {
        self.to = self.answers.as_ref().and_then(|answers| thread.destination(answers).ok());
    }
}

/// All places, and the order in which the clients are polled.
pub struct Seats {
    seats: Vec<Seat>,
    present: Vec<u32>,
    /// Index in `present` of the next client to poll.
    next: usize,
    /// Index in `present` of the client whose slots are searched for retransmissions, and the next of its slots.
    check: usize,
    check_slot: u32,
}

impl Seats {
    pub fn new(clients: usize) -> Self {
        let seats = (0..clients).map(|_| Seat::empty()).collect();
        Self { seats, present: Vec::with_capacity(clients), next: 0, check: 0, check_slot: 0 }
    }

    /// Number of clients.
    #[inline(always)]
    pub fn present(&self) -> usize {
        self.present.len()
    }

    #[inline(always)]
    pub fn get(&self, client: u32) -> &Seat {
        &self.seats[client as usize]
    }

    #[inline(always)]
    pub fn of(&mut self, client: u32) -> &mut Seat {
        &mut self.seats[client as usize]
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
            self.check += 1;
        }
        if self.check >= self.present.len() {
            self.check = 0;
        }
        let client = *self.present.get(self.check)?;
        self.check_slot += 1;
        Some((client, self.check_slot - 1))
    }

    pub fn join(&mut self, id: ClientId, answers: QpAddress, thread: &impl ThreadDomain) {
        let Some(seat) = self.seats.get_mut(id.index as usize) else { return };
        *seat = Seat { token: id.token, answers: Some(answers), ..Seat::empty() };
        seat.look_up(thread);
        if !self.present.contains(&id.index) {
            self.present.push(id.index);
        }
    }

    pub fn leave(&mut self, id: ClientId) {
        if self.seats.get(id.index as usize).is_some_and(|seat| seat.token == id.token) {
            self.seats[id.index as usize] = Seat::empty();
            self.present.retain(|client| *client != id.index);
            self.next = 0;
        }
    }
}
