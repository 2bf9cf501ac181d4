//! Connections: their beginning and end, and the closing of those that hold others up.

use sinew_remote_memory::Store;

use super::Server;
use super::budget::{ConnectionId, claim_of};
use super::connection::{Connection, Payload, Phase};
use super::counters::Closed;

/// Connections accepted in one turn, at most.
const ACCEPTS_PER_TURN: usize = 64;
/// Longest handshake, in ns.
const HANDSHAKE_NS: u64 = 10_000_000_000;
/// Time without progress, in ns, after which a connection that holds memory for which others wait is closed.
const NO_PROGRESS_NS: u64 = 1_000_000_000;
/// Interval between searches for such connections, in ns.
const TICK_NS: u64 = 100_000_000;

impl<S: Store> Server<S> {
    /// Accepts waiting clients. Returns whether there were any.
    pub(super) fn accept(&mut self) -> bool {
        for count in 0..ACCEPTS_PER_TURN {
            let Some(mut stream) = self.sockets.accept() else { return count > 0 };
            if self.connections() >= self.config.connections_max || self.is_ending {
                self.counters.refused_connections += 1;
                continue;
            }
            let index = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            if self.sockets.register(&mut stream, index).is_err() {
                self.free.push(index);
                continue;
            }
            self.generation += 1;
            self.counters.connections += 1;
            self.in_handshake += 1;
            let name = ConnectionId { index, generation: self.generation };
            self.connections[index] = Some(Box::new(Connection::new(name, stream, self.now_ns)));
            self.enqueue(index);
        }
        self.sockets.keep_accepting();
        true
    }

    /// Closes a connection. The store finishes its requests, but nobody is told.
    pub(super) fn close(&mut self, connection: Box<Connection>, why: Closed) {
        self.counters.count_closed(why);
        if matches!(connection.phase, Phase::Handshake(_)) {
            self.in_handshake -= 1;
        }
        let mut freed = connection.granted + connection.out.claimed();
        if let Payload::Write { job, .. } = &connection.payload {
            freed += connection.pieces.iter().map(|piece| claim_of(piece.len())).sum::<usize>();
            self.jobs.abandon(*job);
        }
        self.budget.give_back(freed);
        if connection.is_waiting_for_memory {
            self.budget.remove(connection.id);
        }
        let index = connection.id.index;
        self.active.retain(|hot| *hot != index);
        drop(connection);
        self.free.push(index);
        // A descriptor is free again.
        self.sockets.keep_accepting();
    }

    pub(super) fn close_all(&mut self) {
        for index in 0..self.connections.len() {
            if let Some(connection) = self.connections[index].take() {
                self.close(connection, Closed::Ended);
            }
        }
    }

    /// Gives free memory to the connections that wait for it, in order.
    pub(super) fn grant(&mut self) {
        while let Some(waiter) = self.budget.next() {
            match self.connections.get_mut(waiter.owner.index) {
                Some(Some(connection)) if connection.id == waiter.owner => {
                    connection.is_waiting_for_memory = false;
                    connection.granted = waiter.len;
                    self.enqueue(waiter.owner.index);
                }
                _ => self.budget.give_back(waiter.len),
            }
        }
    }

    /// When the next tick is due, if one is needed.
    pub(super) fn next_tick_ns(&self) -> Option<u64> {
        (self.in_handshake > 0 || self.budget.has_waiting()).then(|| self.ticked_ns.saturating_add(TICK_NS))
    }

    /// Closes connections that hold others up.
    pub(super) fn tick(&mut self) {
        if self.now_ns < self.ticked_ns.saturating_add(TICK_NS) {
            return;
        }
        self.ticked_ns = self.now_ns;
        if self.in_handshake == 0 && !self.budget.has_waiting() {
            return;
        }
        let has_waiters = self.budget.has_waiting();
        for index in 0..self.connections.len() {
            let Some(connection) = &self.connections[index] else { continue };
            let idle_ns = self.now_ns.saturating_sub(connection.last_progress_ns);
            let why = match connection.phase {
                Phase::Handshake(_) if idle_ns >= HANDSHAKE_NS => Closed::HandshakeTimedOut,
                Phase::Requests(_) if has_waiters && idle_ns >= NO_PROGRESS_NS && connection.has_open_request() => {
                    Closed::Stalled
                }
                _ => continue,
            };
            if let Some(connection) = self.connections[index].take() {
                self.close(connection, why);
            }
        }
    }
}
