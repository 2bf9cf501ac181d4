//! Accepting and closing connections.

use std::io::ErrorKind;

use mio::Token;
use sinew_mem::atomic::Ordering;

use super::super::connection::Connection;
use super::super::hand_over::Message;
use super::{Door, FIRST_CONNECTION};
use sinew_door::Stream;

/// Connections accepted in one turn.
const ACCEPTS_PER_TURN: usize = 64;

impl Door {
    pub(super) fn accept(&mut self) -> bool {
        let Some(listener) = self.listener.take() else { return false };
        let mut any = false;
        for _ in 0..ACCEPTS_PER_TURN {
            match listener.accept() {
                Ok(stream) => {
                    any = true;
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
        any
    }

    /// Gives a connection to one of the threads, or rejects it if there are too many.
    fn admit(&mut self, mut stream: Stream) {
        let count = self.service.count();
        let shared = &self.service.shared;
        // Only this thread increments it, and nothing else is published with it.
        if shared.connections.load(Ordering::Relaxed) >= shared.info.connections_max {
            count.total_connections.add(1);
            count.rejected_connections.add(1);
            let _ = stream.write(b"ERROR Too many open connections\r\n");
            return;
        }
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let thread = self.next_thread;
        self.next_thread = (thread + 1) % self.peers.len();
        if thread == self.service.partition {
            self.add_connection(stream);
        } else {
            self.peers[thread].unsent.push_back(Message::Connection(stream));
        }
    }

    /// Adds a connection to this door.
    pub(super) fn add_connection(&mut self, mut stream: Stream) {
        self.service.count().total_connections.add(1);
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        if stream.register(self.poll.registry(), Token(index + FIRST_CONNECTION)).is_err() {
            return self.free_connection(index);
        }
        self.generation += 1;
        let mut connection = Box::new(Connection::new(stream, self.generation));
        connection.last_progress_ns = self.now_ns;
        connection.last_input_s = self.ticked_s;
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
        self.release_memory(&connection);
        self.free_connection(index);
    }

    /// Frees the place of a connection that is gone.
    fn free_connection(&mut self, index: usize) {
        self.free.push(index);
        self.service.shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.publish_connections();
        // A descriptor has become free.
        self.accepting |= std::mem::take(&mut self.accepts_later);
    }

    /// Closes connections that have been silent for too long and are owed nothing.
    pub(super) fn close_idle(&mut self, now_s: u32) {
        let timeout_s = self.service.shared.info.idle_timeout_s;
        if timeout_s == 0 {
            return;
        }
        for index in 0..self.connections.len() {
            let is_idle = |connection: &mut Box<Connection>| {
                connection.is_drained()
                    && connection.memory_needs.is_empty()
                    && now_s.saturating_sub(connection.last_input_s) > timeout_s
            };
            if let Some(connection) = self.connections[index].take_if(is_idle) {
                self.service.count().idle_kicks.add(1);
                self.close(index, connection);
            }
        }
    }
}
