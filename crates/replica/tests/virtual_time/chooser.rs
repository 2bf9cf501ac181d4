//! Clients that choose requests at random, and record what they asked and were answered.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use sinew_conformance::history::{History, Op, Ret, Store, StoreOp, StoreRet};
use sinew_fabric::{Generator, SeededGenerator};
use sinew_replica::client::{Client, ClientError, RequestOutcome};
use sinew_replica::client_wire::Freshness;
use sinew_replica::kv::{Command, CommandResult, Expect, Query, QueryResult};
use sinew_replica::wire;
use sinew_rpc::Endpoint;
use sinew_sim::{Actor, ActorState, SimClock};

use crate::sim::{MS, SimRpc, next_turn};

const KEYS: u64 = 2;
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
    /// Whether there are ranges, so that the history of all keys is one.
    has_ranges: bool,
    /// One for all keys, or one for each.
    pub histories: Vec<History<Store>>,
    value_len: usize,
    /// Values of the keys as last seen.
    seen: BTreeMap<u64, u64>,
    /// Last number of a client, or of a name under which a client continues.
    numbers: u64,
    given_up: u64,
    pub ops: u64,
    pub begun: u64,
    pub answered: u64,
    pub ended: u64,
    /// Values of changes that did not run, as their clients were told.
    refused: Vec<u64>,
    /// Values that were read.
    read: Vec<u64>,
}

impl Shared {
    pub fn new(ops: u64, clients: usize, has_ranges: bool, value_len: usize) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            has_ranges,
            histories: vec![History::default(); if has_ranges { 1 } else { KEYS as usize }],
            value_len,
            seen: BTreeMap::new(),
            numbers: clients as u64 - 1,
            given_up: 0,
            ops,
            begun: 0,
            answered: 0,
            ended: 0,
            refused: Vec::new(),
            read: Vec::new(),
        }))
    }

    /// The history that an operation belongs to.
    fn history(&mut self, op: &StoreOp) -> &mut History<Store> {
        match op {
            StoreOp::One(key, _) if !self.has_ranges => &mut self.histories[*key as usize],
            _ => &mut self.histories[0],
        }
    }

    /// A value that was read although its client was told that the change did not run.
    pub fn value_that_was_refused(&self) -> Option<u64> {
        self.refused.iter().copied().find(|value| self.read.contains(value))
    }

    /// Notes what an answer says of the keys.
    fn note(&mut self, op: &StoreOp, ret: &StoreRet) {
        match (op, ret) {
            (StoreOp::One(key, Op::Put(value)), _)
            | (StoreOp::One(key, Op::Swap { value: Some(value), .. }), StoreRet::One(Ret::Swapped(true))) => {
                self.seen.insert(*key, *value);
            }
            (StoreOp::One(key, Op::Swap { value: None, .. }), StoreRet::One(Ret::Swapped(true)))
            | (StoreOp::One(key, Op::Delete), _) => _ = self.seen.remove(key),
            (_, StoreRet::One(Ret::Got(value))) => self.read.extend(value),
            (_, StoreRet::All(found)) => self.read.extend(found.values()),
            _ => {}
        }
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

    fn draw_op(&mut self, shared: &Shared) -> StoreOp {
        let (key, value) = (self.draw(KEYS), shared.begun);
        let op = match self.draw(7) {
            0 | 1 => Op::Put(value),
            2 => Op::Delete,
            3 => {
                let expect = match self.draw(2) {
                    0 => shared.seen.get(&key).copied(),
                    _ => Some(self.draw(value)).filter(|expect| *expect > 0),
                };
                // One in four takes the value away.
                Op::Swap { expect, value: Some(value).filter(|_| expect.is_none() || self.draw(4) > 0) }
            }
            4 if shared.has_ranges => return StoreOp::All,
            _ => Op::Get,
        };
        StoreOp::One(key, op)
    }

    fn begin(&mut self, now_ns: u64) {
        let shared = Rc::clone(&self.shared);
        let mut shared = shared.borrow_mut();
        if shared.begun == shared.ops {
            self.begin_ns = u64::MAX;
            return;
        }
        shared.begun += 1;
        let op = self.draw_op(&shared);
        shared.history(&op).record_call(self.number, op.clone());
        let patience_ns = if shared.given_up < GIVE_UPS_MAX { PATIENCE_NS } else { LONG_PATIENCE_NS };
        let bytes = encode(&op, shared.value_len);
        let freshness = if self.draw(2) == 0 { Freshness::Lease } else { Freshness::Linear };
        match op {
            StoreOp::One(_, Op::Get) | StoreOp::All => self.client.read(0, freshness, &bytes, patience_ns).unwrap(),
            StoreOp::One(..) => self.client.run(0, &bytes, patience_ns).unwrap(),
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
            Ok(answer) => {
                let ret = decode(&op, &answer);
                shared.note(&op, &ret);
                shared.answered += 1;
                return shared.history(&op).record_return(self.number, ret);
            }
            Err(ClientError::NoAnswer { may_have_run, .. }) => may_have_run,
            Err(ClientError::DiskFull) => false,
            Err(other) => panic!("{op:?}: {other:?}"),
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

fn key_bytes(key: u64) -> [u8; 2] {
    [b'k', key as u8]
}

/// The command or query for an operation. Values have this length.
fn encode(op: &StoreOp, value_len: usize) -> Vec<u8> {
    let value_bytes = |number: u64| {
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.resize(value_len, 0);
        bytes
    };
    let mut bytes = Vec::new();
    match op {
        StoreOp::All => wire::encode(&Query::Range { from: b"k", to: Some(b"l"), limit: 100 }, &mut bytes),
        StoreOp::One(key, Op::Get) => wire::encode(&Query::Get { key: &key_bytes(*key) }, &mut bytes),
        StoreOp::One(key, Op::Put(value)) => {
            wire::encode(&Command::Put { key: &key_bytes(*key), value: &value_bytes(*value) }, &mut bytes);
        }
        StoreOp::One(key, Op::Delete) => wire::encode(&Command::Delete { key: &key_bytes(*key) }, &mut bytes),
        StoreOp::One(key, Op::Swap { expect, value }) => {
            let (key, expect, value) = (key_bytes(*key), expect.map(value_bytes), value.map(value_bytes));
            let expect = expect.as_ref().map_or(Expect::Nothing, |expect| Expect::Value(expect));
            wire::encode(&Command::Swap { key: &key, expect, value: value.as_deref() }, &mut bytes);
        }
    }
    bytes
}

/// The result of an operation.
fn decode(op: &StoreOp, answer: &RequestOutcome) -> StoreRet {
    let value_of = |value: &[u8]| u64::from_le_bytes(*value.first_chunk().unwrap());
    match (answer, op) {
        (RequestOutcome::CommandAnswer(done), StoreOp::One(_, op)) => {
            StoreRet::One(match (wire::decode(done).unwrap(), op) {
                (CommandResult::Changed { .. }, Op::Put(_)) => Ret::Put,
                (CommandResult::Changed { .. }, Op::Delete) => Ret::Deleted(true),
                (CommandResult::KeyMissing, Op::Delete) => Ret::Deleted(false),
                (CommandResult::Changed { .. }, Op::Swap { .. }) => Ret::Swapped(true),
                (CommandResult::Differs { .. }, Op::Swap { .. }) => Ret::Swapped(false),
                other => panic!("{other:?}"),
            })
        }
        (RequestOutcome::QueryAnswer(found), _) => match wire::decode(found).unwrap() {
            QueryResult::Item { item, .. } => StoreRet::One(Ret::Got(item.map(|item| value_of(item.value)))),
            QueryResult::Items { items, more: false, .. } => {
                StoreRet::All(items.iter().map(|item| (u64::from(item.key[1]), value_of(item.value))).collect())
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}
