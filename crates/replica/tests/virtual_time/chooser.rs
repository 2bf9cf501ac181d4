//! Clients that choose requests at random, and record what they asked and were answered.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_conformance::history::{Op, Ret, StoreOp, StoreRet};
use sinew_fabric::{Generator, SeededGenerator};
use sinew_replica::client::{Client, ClientError, RequestOutcome};
use sinew_replica::client_wire::Freshness;
use sinew_rpc::Endpoint;
use sinew_sim::{Actor, ActorState, SimClock};

use crate::operations::{Operations, is_query};
use crate::sim::{MS, SimRpc, next_turn};

/// Time after which a client gives up, and the outcome may be unknown.
const PATIENCE_NS: u64 = 400 * MS;
/// Operations of one run that are given up. Each may run at any later time, which the checker has to try. Later ones
/// are waited for until all is well.
const GIVE_UPS_MAX: u64 = 6;
const LONG_PATIENCE_NS: u64 = 600_000 * MS;
/// Longest pauses between two operations of a client: half of them are short, since a stale read shows only soon after
/// a change.
const PAUSE_MAX_NS: [u64; 2] = [8 * MS, 480 * MS];

/// State that the clients of a run share.
pub struct Shared {
    pub operations: Operations,
    /// Last number of a client, or of a name under which a client continues.
    numbers: u64,
    given_up: u64,
    pub ops: u64,
    pub ended: u64,
    /// Values of changes that did not run, as their clients were told.
    refused: Vec<u64>,
    /// Values that were read.
    read: Vec<u64>,
}

impl Shared {
    pub fn new(ops: u64, clients: usize, operations: Operations) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            operations,
            numbers: clients as u64 - 1,
            given_up: 0,
            ops,
            ended: 0,
            refused: Vec::new(),
            read: Vec::new(),
        }))
    }

    /// A value that was read although its client was told that the change did not run.
    pub fn value_that_was_refused(&self) -> Option<u64> {
        self.refused.iter().copied().find(|value| self.read.contains(value))
    }
}

/// A client that makes one request at a time.
pub struct Chooser {
    pub client: Client<SimRpc>,
    pub clock: SimClock,
    pub random: SeededGenerator,
    pub shared: Rc<RefCell<Shared>>,
    /// Its number in the histories.
    pub number: u64,
    pub pending: Option<StoreOp>,
    pub begin_ns: u64,
}

impl Chooser {
    fn draw(&mut self, below: u64) -> u64 {
        self.random.next_u64() % below
    }

    fn begin(&mut self, now_ns: u64) {
        let shared = Rc::clone(&self.shared);
        let mut shared = shared.borrow_mut();
        if shared.operations.begun == shared.ops {
            self.begin_ns = u64::MAX;
            return;
        }
        let (op, bytes) = shared.operations.begin(self.number, &mut self.random);
        let patience_ns = if shared.given_up < GIVE_UPS_MAX { PATIENCE_NS } else { LONG_PATIENCE_NS };
        let freshness = if self.draw(2) == 0 { Freshness::Lease } else { Freshness::Linear };
        if is_query(&op) {
            self.client.read(0, freshness, &bytes, patience_ns).unwrap();
        } else {
            self.client.run(0, &bytes, patience_ns).unwrap();
        }
        let pause_max_ns = PAUSE_MAX_NS[self.draw(2) as usize];
        self.begin_ns = now_ns + self.draw(pause_max_ns);
        self.pending = Some(op);
    }

    fn end(&mut self, result: Result<RequestOutcome, ClientError>) {
        let op = self.pending.take().expect("one request is in flight");
        let mut shared = self.shared.borrow_mut();
        shared.ended += 1;
        let may_have_run = match result {
            Ok(RequestOutcome::CommandAnswer(answer) | RequestOutcome::QueryAnswer(answer)) => {
                match shared.operations.end(self.number, &op, &answer) {
                    StoreRet::One(Ret::Got(value)) => shared.read.extend(value),
                    StoreRet::All(found) => shared.read.extend(found.values()),
                    _ => {}
                }
                return;
            }
            Err(ClientError::NoAnswer { may_have_run, .. }) => may_have_run,
            Err(ClientError::DiskFull) => false,
            other => panic!("{op:?}: {other:?}"),
        };
        match op {
            StoreOp::One(_, Op::Put(value) | Op::Swap { value: Some(value), .. }) if !may_have_run => {
                shared.refused.push(value);
            }
            _ => {}
        }
        // The request stays open in the history.
        shared.given_up += 1;
        shared.numbers += 1;
        self.number = shared.numbers;
    }
}

impl Actor for Chooser {
    fn turn(&mut self) -> ActorState {
        let mut busy = self.client.turn();
        let now_ns = self.client.rpc().now_ns();
        while let Some((_, result)) = self.client.poll() {
            busy = true;
            self.end(result);
        }
        if self.pending.is_none() && now_ns >= self.begin_ns {
            busy = true;
            self.begin(now_ns);
        }
        let next_ns = self.client.next_turn_ns().unwrap_or(self.begin_ns);
        next_turn(busy, next_ns.max(now_ns + 1000), &self.clock, self.client.rpc())
    }
}
