//! An NBD server: sockets, a store, and one thread that sleeps on both.
//!
//! ```no_run
//! use sinew_remote_block::{Config, Listener, Server};
//! use sinew_remote_memory::RamStore;
//! # fn serve(clock: impl sinew_fabric::Clock) -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::default();
//! let store = RamStore::new(1 << 30, config.arena_bytes())?;
//! let mut server = Server::open(Listener::bind("unix:/run/memory.sock")?, store, config)?;
//! server.run(&clock, || false)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Design
//!
//! - **Data is copied once on each side of the store.** A read's reply is its buffer, with the reply's header in the
//!   room before the data, and leaves with one system call for all that a turn finished. Long payloads are received
//!   into the buffers that go to the store.
//! - **Long requests are cut into pieces** of 256 KB. The pieces of a structured read are chunks, sent as they come; a
//!   simple read, which must be whole, waits for all of them.
//! - **Bytes in flight are claimed first**, for each connection and for all. A later request does not overtake one that
//!   waits. A connection that holds memory for which others wait, and has made no progress for a second, is closed.
//!   Nothing is allocated once buffers have been made.
//! - **Sockets that had input a moment ago are read without polling first**, so a client with one request at a time
//!   costs two system calls.

mod answers;
mod budget;
mod clients;
mod config;
mod connection;
mod counters;
mod input;
mod jobs;
mod output;
mod sockets;

use std::collections::VecDeque;
use std::io;

use arrayvec::ArrayVec;
use sinew_door::Listener;
use sinew_fabric::readiness::{Alarm, wait_on};
use sinew_fabric::{Clock, Poller, Readiness, Step, Waker};
use sinew_mem::Frozen;
use sinew_remote_memory::Store;

pub use config::{Config, OpenError};
pub use counters::{Closed, Counters};

use crate::protocol::Export;
use budget::Budget;
use connection::Connection;
use jobs::Jobs;
use sockets::{Event, Sockets};

/// Connections whose sockets are read without asking the system, because they had input a moment ago.
const ACTIVE_MAX: usize = 4;
/// Turns between two calls of the system while there are such connections.
const TURNS_BETWEEN_POLLS: u32 = 16;
/// Longest time for which an ending server still answers requests in progress, in ns.
const SHUTDOWN_NS: u64 = 2_000_000_000;
/// Interval between two looks at the store, in ns.
const CALLBACK_NS: u64 = 200_000_000;
/// Finished parts taken from the store in one turn, at most.
const FINISHED_PER_TURN: usize = 1024;

/// An NBD server. It belongs to one thread, which [runs](Server::run) it.
pub struct Server<S> {
    config: Config,
    export: Export,
    store: S,
    sockets: Sockets,
    alarm: Alarm,
    poller: Poller,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    generation: u64,
    /// Connections with something to do.
    to_serve: VecDeque<usize>,
    /// Connections with something to send.
    to_send: Vec<usize>,
    /// Connections that had input a moment ago.
    active: ArrayVec<usize, ACTIVE_MAX>,
    turns: u32,
    /// Times that the store may still be asked about extents in this turn of a connection.
    extent_queries_left: usize,
    /// Connections in their handshake.
    in_handshake: usize,
    jobs: Jobs,
    budget: Budget,
    zeros: Frozen,
    counters: Counters,
    now_ns: u64,
    ticked_ns: u64,
    is_ending: bool,
}

impl<S: Store> Server<S> {
    /// Makes a server of `store`, for clients that connect to `listener`.
    ///
    /// # Errors
    ///
    /// [`OpenError`] if the configuration does not fit the store, or the system fails.
    pub fn open(listener: Listener, store: S, config: Config) -> Result<Self, OpenError> {
        config.check(store.len(), store.arena().capacity())?;
        let mut zeros =
            store.arena().alloc(jobs::PIECE, jobs::PIECE).map_err(|error| io::Error::other(error.to_string()))?;
        zeros[..].fill(0);
        let connections = config.connections_max;
        Ok(Self {
            export: Export { name: config.name.clone(), description: config.description.clone(), len: store.len() },
            sockets: Sockets::new(listener)?,
            alarm: Alarm::new()?,
            poller: Poller::new(config.poller),
            connections: Vec::with_capacity(connections),
            free: Vec::with_capacity(connections),
            generation: 0,
            to_serve: VecDeque::with_capacity(connections),
            to_send: Vec::with_capacity(connections),
            active: ArrayVec::new(),
            turns: 0,
            extent_queries_left: 0,
            in_handshake: 0,
            jobs: Jobs::default(),
            budget: Budget::new(config.memory, connections),
            zeros: zeros.freeze(),
            counters: Counters::default(),
            now_ns: 0,
            ticked_ns: 0,
            is_ending: false,
            store,
            config,
        })
    }

    /// Address to which clients connect.
    pub fn address(&self) -> &str {
        self.sockets.address()
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Ends the server, and returns the store.
    pub fn into_store(self) -> S {
        self.store
    }

    /// Counters of the server.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        self.connections.len() - self.free.len()
    }

    /// Bytes of requests in progress, and of replies not sent yet.
    pub fn memory_used(&self) -> usize {
        self.budget.used()
    }

    /// Returns a waker that ends a sleep, so that [`Self::run`] checks whether it is to end.
    pub fn waker(&self) -> Waker {
        self.alarm.waker()
    }

    /// Serves until `is_over` returns true. Then it answers requests in progress, refuses new ones, and closes all
    /// connections.
    ///
    /// # Errors
    ///
    /// The system's error, if it cannot sleep.
    pub fn run(&mut self, clock: &impl Clock, is_over: impl Fn() -> bool) -> io::Result<()> {
        self.run_with_callback(clock, is_over, |_| {})
    }

    /// As [`Self::run`], and shows the store to `look` a few times a second while there is work, and once afterwards.
    ///
    /// # Errors
    ///
    /// As for [`Self::run`].
    pub fn run_with_callback(
        &mut self,
        clock: &impl Clock,
        is_over: impl Fn() -> bool,
        mut look: impl FnMut(&mut S),
    ) -> io::Result<()> {
        let mut shutdown_ns = None;
        let mut next_callback_ns = 0;
        // Whether there was work since the last look.
        let mut has_worked = true;
        let mut now_ns = clock.now_ns();
        loop {
            let found = self.turn(now_ns);
            // A turn may last longer than the thread spins, so idle time starts at its end.
            now_ns = clock.now_ns();
            has_worked |= found;
            if now_ns >= next_callback_ns {
                look(&mut self.store);
                has_worked = false;
                next_callback_ns = now_ns.saturating_add(CALLBACK_NS);
            }
            if is_over() {
                self.is_ending = true;
                let ends_ns = *shutdown_ns.get_or_insert(now_ns.saturating_add(SHUTDOWN_NS));
                if self.is_idle() || now_ns >= ends_ns {
                    self.close_all();
                    return Ok(());
                }
            }
            if self.poller.step(now_ns, found) == Step::Block {
                let look_ns = has_worked.then_some(next_callback_ns);
                self.sleep(now_ns, shutdown_ns.into_iter().chain(look_ns).min())?;
                now_ns = clock.now_ns();
            }
        }
    }

    /// Sleeps until there is something to do, or until `shutdown_ns`.
    fn sleep(&mut self, now_ns: u64, ends_ns: Option<u64>) -> io::Result<()> {
        self.active.clear();
        if !self.to_serve.is_empty() {
            return Ok(());
        }
        let until_ns = self.next_tick_ns().into_iter().chain(ends_ns).min();
        let sources: &mut [&mut dyn Readiness] = &mut [&mut self.sockets, &mut self.store, &mut self.alarm];
        wait_on(sources, now_ns, until_ns).map(|_| ())
    }

    /// Does the work that is due, without waiting for more. Returns whether there was any.
    pub fn turn(&mut self, now_ns: u64) -> bool {
        self.now_ns = now_ns;
        let mut found = self.poll_sockets();
        self.tick();
        for _ in 0..self.to_serve.len() {
            let Some(index) = self.to_serve.pop_front() else { break };
            if self.serve(index) {
                found = true;
                self.note_active(index);
            }
        }
        found |= self.jobs.retry(&mut self.store);
        found |= self.store.turn();
        found |= self.handle_finished();
        found |= self.send_queued();
        self.grant();
        found
    }

    /// Finds the sockets that have events.
    fn poll_sockets(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        if !self.active.is_empty() && !self.turns.is_multiple_of(TURNS_BETWEEN_POLLS) {
            for at in 0..self.active.len() {
                let index = self.active[at];
                if let Some(Some(connection)) = self.connections.get_mut(index) {
                    connection.readable |= !connection.ending;
                    self.enqueue(index);
                }
            }
            return false;
        }
        let mut found = false;
        self.sockets.poll();
        while let Some(event) = self.sockets.next() {
            match event {
                Event::Listener => found |= self.accept(),
                Event::Connection { index, readable, hung_up, gone } => {
                    if let Some(Some(connection)) = self.connections.get_mut(index) {
                        connection.readable |= readable && !connection.ending;
                        connection.hung_up |= hung_up;
                        connection.is_gone |= gone;
                        if connection.blocked {
                            self.queue_send(index);
                        }
                        self.enqueue(index);
                    }
                }
            }
        }
        found
    }

    fn note_active(&mut self, index: usize) {
        if self.active.contains(&index) {
            return;
        }
        if self.active.is_full() {
            // There are too many to try each, so the system is asked instead.
            self.active.clear();
        } else {
            self.active.push(index);
        }
    }

    fn enqueue(&mut self, index: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(index)
            && !std::mem::replace(&mut connection.is_queued, true)
        {
            self.to_serve.push_back(index);
        }
    }

    fn queue_send(&mut self, index: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(index)
            && !std::mem::replace(&mut connection.is_send_queued, true)
        {
            self.to_send.push(index);
        }
    }

    /// Whether everything is answered and sent.
    fn is_idle(&self) -> bool {
        let mut connections = self.connections.iter().flatten();
        self.jobs.count() == 0 && self.to_serve.is_empty() && connections.all(|connection| connection.is_done())
    }
}
