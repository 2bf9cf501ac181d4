//! Clients with a simple task: one that writes, and one that asks for a member's status.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_replica::client::{Client, ClientError, RequestOutcome};
use sinew_replica::client_wire::{ClientRequest, Freshness, Status};
use sinew_replica::kv::{Command, CommandResult, Query, QueryResult};
use sinew_replica::wire;
use sinew_rpc::Endpoint;
use sinew_rpc::gate::Key;
use sinew_sim::{Actor, ActorState, SimClock};

use crate::sim::{MS, Sim, SimRpc, next_turn};

/// A client that puts the same key again and again, and reads it now and then.
struct Writer {
    client: Client<SimRpc>,
    clock: SimClock,
    log: Rc<RefCell<Vec<Event>>>,
    next: u64,
    end: u64,
    /// Pause between two requests, in ns.
    pause_ns: u64,
    begin_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Put { value: u64, revision: u64, at_ns: u64 },
    Got { value: Option<u64>, at_ns: u64 },
    Failed(ClientError),
}

impl Event {
    /// When a request was answered.
    pub fn at_ns(&self) -> Option<u64> {
        match self {
            Self::Put { at_ns, .. } | Self::Got { at_ns, .. } => Some(*at_ns),
            Self::Failed(_) => None,
        }
    }
}

const TIMEOUT_NS: u64 = 5_000 * MS;

impl Writer {
    fn begin(&mut self) {
        let mut bytes = Vec::new();
        if self.next.is_multiple_of(4) {
            wire::encode(&Query::Get { key: b"k" }, &mut bytes);
            self.client.read(self.next, Freshness::Linear, &bytes, TIMEOUT_NS).unwrap();
        } else {
            let value = self.next.to_le_bytes();
            wire::encode(&Command::Put { key: b"k", value: &value }, &mut bytes);
            self.client.run(self.next, &bytes, TIMEOUT_NS).unwrap();
        }
        self.next += 1;
    }
}

impl Actor for Writer {
    fn turn(&mut self) -> ActorState {
        let mut busy = self.client.turn();
        let at_ns = self.client.rpc().now_ns();
        while let Some((tag, result)) = self.client.poll() {
            busy = true;
            let event = match result {
                Ok(RequestOutcome::CommandAnswer(done)) => match wire::decode(&done) {
                    Ok(CommandResult::Changed { revision }) => Event::Put { value: tag, revision, at_ns },
                    other => panic!("{other:?}"),
                },
                Ok(RequestOutcome::QueryAnswer(found)) => match wire::decode(&found) {
                    Ok(QueryResult::Item { item, .. }) => {
                        let value = item.map(|item| u64::from_le_bytes(*item.value.first_chunk().unwrap()));
                        Event::Got { value, at_ns }
                    }
                    other => panic!("{other:?}"),
                },
                Ok(other) => panic!("{other:?}"),
                Err(error) => Event::Failed(error),
            };
            self.log.borrow_mut().push(event);
        }
        if self.client.in_flight() == 0 && self.next < self.end && at_ns >= self.begin_ns {
            self.begin();
            self.begin_ns = at_ns + self.pause_ns;
            busy = true;
        }
        let next_ns = self.client.next_turn_ns().unwrap_or(self.begin_ns.max(at_ns + 1000));
        next_turn(busy, next_ns, &self.clock, self.client.rpc())
    }
}

/// A client that waits for a member's status.
struct StatusReader {
    client: Client<SimRpc>,
    clock: SimClock,
    status: Rc<RefCell<Option<Status>>>,
}

impl Actor for StatusReader {
    fn turn(&mut self) -> ActorState {
        let busy = self.client.turn();
        while let Some((_, result)) = self.client.poll() {
            match result {
                Ok(RequestOutcome::Status(status)) => *self.status.borrow_mut() = Some(*status),
                other => panic!("{other:?}"),
            }
        }
        next_turn(busy, self.client.next_turn_ns().unwrap_or(u64::MAX), &self.clock, self.client.rpc())
    }
}

impl Sim {
    pub fn writer(&mut self, end: u64, pause_ns: u64) -> Rc<RefCell<Vec<Event>>> {
        self.writer_with(end, pause_ns, self.key.clone())
    }

    pub fn writer_with(&mut self, end: u64, pause_ns: u64, key: Option<Key>) -> Rc<RefCell<Vec<Event>>> {
        let log = Rc::new(RefCell::new(Vec::new()));
        let host = self.client_host();
        let (client, place) = self.client(host, "client", key);
        let clock = self.clock(host);
        let writer = Writer { client, clock, log: Rc::clone(&log), next: 1, end, pause_ns, begin_ns: 0 };
        self.cluster.add("client", [place], Box::new(writer));
        log
    }

    /// Asks a member for its status. This takes 10 ms.
    pub fn status(&mut self, at: usize) -> Status {
        let host = self.client_host() + 1;
        let name = format!("status-{}", self.cluster.network().now_ns());
        let (mut client, place) = self.client(host, &name, self.key.clone());
        client.ask(0, &ClientRequest::Status, Some(&self.nodes[at].address()), TIMEOUT_NS).unwrap();
        let status = Rc::new(RefCell::new(None));
        let reader = StatusReader { client, clock: self.clock(host), status: Rc::clone(&status) };
        let reader = self.cluster.add(&name, [place], Box::new(reader));
        self.pass_ms(10);
        self.cluster.crash(reader);
        status.take().expect("a member answers at once")
    }
}

/// Checks the log of a single client: each read sees the last put, and each put has a revision one higher than the one
/// before.
pub fn check(log: &[Event]) {
    let (mut last, mut revisions) = (None, 0);
    for event in log {
        match event {
            Event::Put { value, revision, .. } => {
                revisions += 1;
                assert_eq!(*revision, revisions, "a put ran twice, or was lost: {event:?}");
                last = Some(*value);
            }
            Event::Got { value, .. } => assert_eq!(*value, last),
            Event::Failed(error) => panic!("{error}"),
        }
    }
}
