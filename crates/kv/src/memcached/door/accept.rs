//! Accepting and closing connections.

use std::io::ErrorKind;

use mio::Token;
use sinew_mem::atomic::Ordering;

use super::super::connection::Connection;
use super::super::hand_over::Message;
use super::{CONNECTIONS, Door};
use sinew_door::Stream;

/// Connections accepted in one turn.
const ACCEPTS_PER_TURN: usize = 64;

impl Door {
    pub(super) fn accept(&mut self) -> bool {
        let Some(listener) = self.listener.take() else { return false };
        let mut found = false;
        for _ in 0..ACCEPTS_PER_TURN {
            match listener.accept() {
                Ok(stream) => {
                    found = true;
                    self.admit(stream);
                }
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.accepting = false;
                    let is_out_of_descriptors = error.kind() != ErrorKind::WouldBlock;
                    let count = self.service.count();
                    if is_out_of_descriptors {
                        // Out of descriptors until a connection is closed.
                        self.accepts_later = true;
                        count.listen_disabled_num.add(1);
                    }
                    count.accepting_conns.set(u64::from(!is_out_of_descriptors));
                    break;
                }
            }
        }
        self.listener = Some(listener);
        found
    }

    /// Gives a connection to one of the threads, or rejects it if there are too many.
    fn admit(&mut self, mut stream: Stream) {
        let count = self.service.count();
        let shared = &self.service.shared;
        // Only this thread increments it, and nothing else is published with it.
        if shared.connections.load(Ordering::Relaxed) >= shared.about.connections_max {
            count.total_connections.add(1);
            count.rejected_connections.add(1);
            let _ = stream.write(b"ERROR Too many open connections\r\n");
            return;
        }
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let to = self.next_thread;
        self.next_thread = (to + 1) % self.others.len();
        if to == self.service.partition {
            self.hold(stream);
        } else {
            self.others[to].unsent.push_back(Message::Connection(stream));
        }
    }

    /// Adds a connection to this door.
    pub(super) fn hold(&mut self, mut stream: Stream) {
        self.service.count().total_connections.add(1);
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        if stream.register(self.poll.registry(), Token(index + CONNECTIONS)).is_err() {
            return self.let_go(index);
        }
        self.generation += 1;
        let mut connection = Box::new(Connection::new(stream, self.generation));
        connection.moved_ns = self.now_ns;
        connection.heard_s = self.ticked_s;
        connection.queued = true;
        self.connections[index] = Some(connection);
        self.queue.push_back(index);
        self.publish_connections();
    }

    fn publish_connections(&self) {
        self.service.count().curr_connections.set((self.connections.len() - self.free.len()) as u64);
    }

    /// Closes a connection.
    pub(super) fn close(&mut self, index: usize, connection: Box<Connection>) {
        self.forget(&connection);
        self.let_go(index);
    }

    /// Frees the place of a connection that is gone.
    fn let_go(&mut self, index: usize) {
        self.free.push(index);
        self.service.shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.publish_connections();
        // A descriptor has become free.
        self.accepting |= std::mem::take(&mut self.accepts_later);
    }

    /// Closes connections that have been silent for too long and are owed nothing.
    pub(super) fn close_idle(&mut self, now_s: u32) {
        let timeout_s = self.service.shared.about.idle_timeout_s;
        if timeout_s == 0 {
            return;
        }
        for index in 0..self.connections.len() {
            let is_idle = |connection: &mut Box<Connection>| {
                connection.is_drained()
                    && connection.starving.is_empty()
                    && now_s.saturating_sub(connection.heard_s) > timeout_s
            };
            if let Some(connection) = self.connections[index].take_if(is_idle) {
                self.service.count().idle_kicks.add(1);
                self.close(index, connection);
            }
        }
    }
}
