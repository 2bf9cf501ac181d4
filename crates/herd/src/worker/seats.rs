//! A worker's clients.

use sinew_fabric::verbs::{Destination, QpAddress, ThreadDomain};

use crate::server::ClientId;
use crate::slot::Tail;

/// The number of a client's first request. A slot that was never written has 0.
pub const FIRST_SEQUENCE: u32 = 1;

/// A place for a client.
#[derive(Debug)]
pub struct Seat {
    /// 0: nobody is here.
    pub token: u32,
    /// The number of its next request.
    pub next: u32,
    /// Where its answers go, if that is known.
    pub to: Option<Destination>,
    answers: Option<QpAddress>,
    /// What was refused last in the slot of its next request.
    pub refused: Tail,
    /// What was found last in another slot, and had no business there.
    pub strange: Tail,
}

impl Seat {
    fn empty() -> Self {
        Self { token: 0, next: FIRST_SEQUENCE, to: None, answers: None, refused: Tail(0), strange: Tail(0) }
    }

    /// Finds the way to the client, again. Who cannot be reached has no answers.
    #[cold]
    pub fn look_up(&mut self, thread: &impl ThreadDomain) {
        self.to = self.answers.as_ref().and_then(|answers| thread.destination(answers).ok());
    }
}

/// All places, and in which order the clients are looked at.
pub struct Seats {
    seats: Vec<Seat>,
    present: Vec<u32>,
    /// Who is looked at next.
    next: usize,
    /// Whose slots are looked through for requests that came again, and the next of them.
    check: usize,
    check_slot: u32,
}

impl Seats {
    pub fn new(clients: usize) -> Self {
        let seats = (0..clients).map(|_| Seat::empty()).collect();
        Self { seats, present: Vec::with_capacity(clients), next: 0, check: 0, check_slot: 0 }
    }

    /// Clients that are here.
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

    /// The client whose turn it is. There is one.
    #[inline(always)]
    pub fn next(&mut self) -> u32 {
        let client = self.present[self.next];
        self.next = if self.next + 1 == self.present.len() { 0 } else { self.next + 1 };
        client
    }

    /// The next slot to look at for a request that came again.
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
