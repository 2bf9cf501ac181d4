//! Operations of clients that choose at random, as requests and as histories. Members without a network below them
//! (`src/member/tests/swarm.rs`) and members over the RPC layer (`tests/virtual_time`) get the same ones.

use std::collections::BTreeMap;

use sinew_conformance::history::{History, Op, Ret, Store, StoreOp, StoreRet};
use sinew_fabric::{Generator, SeededGenerator};
use sinew_replica::kv::{Command, CommandResult, Expect, Query, QueryResult};
use sinew_replica::wire;

const KEYS: u64 = 2;

/// Length of a value, which is a number, and of values that fill the room that a journal reserves.
pub const NUMBER_LEN: usize = 8;
pub const LONG_LEN: usize = 300_000;

/// Operations of one run, and what became of them.
pub struct Operations {
    /// Whether there are ranges, so that the history of all keys is one.
    has_ranges: bool,
    value_len: usize,
    /// One for all keys, or one for each.
    pub histories: Vec<History<Store>>,
    /// Values of the keys as last seen.
    seen: BTreeMap<u64, u64>,
    pub begun: u64,
    pub answered: u64,
}

impl Operations {
    pub fn new(has_ranges: bool, value_len: usize) -> Self {
        Self {
            has_ranges,
            value_len,
            histories: vec![History::default(); if has_ranges { 1 } else { KEYS as usize }],
            seen: BTreeMap::new(),
            begun: 0,
            answered: 0,
        }
    }

    /// Draws a client's next operation. Returns it with the command or query for it.
    pub fn begin(&mut self, client: u64, random: &mut SeededGenerator) -> (StoreOp, Vec<u8>) {
        self.begun += 1;
        let op = self.draw(random);
        self.history(&op).record_call(client, op.clone());
        let bytes = encode(&op, self.value_len);
        (op, bytes)
    }

    fn draw(&self, random: &mut SeededGenerator) -> StoreOp {
        let mut draw = |below: u64| random.next_u64() % below;
        let (key, value) = (draw(KEYS), self.begun);
        let op = match draw(7) {
            0 | 1 => Op::Put(value),
            2 => Op::Delete,
            3 => {
                let expect = match draw(2) {
                    0 => self.seen.get(&key).copied(),
                    _ => Some(draw(value)).filter(|expect| *expect > 0),
                };
                // One in four takes the value away.
                Op::Swap { expect, value: Some(value).filter(|_| expect.is_none() || draw(4) > 0) }
            }
            4 if self.has_ranges => return StoreOp::All,
            _ => Op::Get,
        };
        StoreOp::One(key, op)
    }

    /// Records the answer to a client's operation, and returns it.
    #[track_caller]
    pub fn end(&mut self, client: u64, op: &StoreOp, answer: &[u8]) -> StoreRet {
        let ret = decode(op, answer);
        match (op, &ret) {
            (StoreOp::One(key, Op::Put(value)), _)
            | (StoreOp::One(key, Op::Swap { value: Some(value), .. }), StoreRet::One(Ret::Swapped(true))) => {
                self.seen.insert(*key, *value);
            }
            (StoreOp::One(key, Op::Swap { value: None, .. }), StoreRet::One(Ret::Swapped(true)))
            | (StoreOp::One(key, Op::Delete), _) => _ = self.seen.remove(key),
            _ => {}
        }
        self.answered += 1;
        self.history(op).record_return(client, ret.clone());
        ret
    }

    /// The history that an operation belongs to.
    fn history(&mut self, op: &StoreOp) -> &mut History<Store> {
        match op {
            StoreOp::One(key, _) if !self.has_ranges => &mut self.histories[*key as usize],
            _ => &mut self.histories[0],
        }
    }
}

/// Whether an operation is a query, and no command.
pub fn is_query(op: &StoreOp) -> bool {
    matches!(op, StoreOp::One(_, Op::Get) | StoreOp::All)
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

/// The result of an operation, from the answer to its command or query.
#[track_caller]
fn decode(op: &StoreOp, answer: &[u8]) -> StoreRet {
    let value_of = |value: &[u8]| u64::from_le_bytes(*value.first_chunk().unwrap());
    if is_query(op) {
        return match wire::decode(answer).unwrap() {
            QueryResult::Item { item, .. } => StoreRet::One(Ret::Got(item.map(|item| value_of(item.value)))),
            QueryResult::Items { items, more: false, .. } => {
                StoreRet::All(items.iter().map(|item| (u64::from(item.key[1]), value_of(item.value))).collect())
            }
            other => panic!("{op:?}: {other:?}"),
        };
    }
    StoreRet::One(match (wire::decode(answer).unwrap(), op) {
        (CommandResult::Changed { .. }, StoreOp::One(_, Op::Put(_))) => Ret::Put,
        (CommandResult::Changed { .. }, StoreOp::One(_, Op::Delete)) => Ret::Deleted(true),
        (CommandResult::KeyMissing, StoreOp::One(_, Op::Delete)) => Ret::Deleted(false),
        (CommandResult::Changed { .. }, StoreOp::One(_, Op::Swap { .. })) => Ret::Swapped(true),
        (CommandResult::Differs { .. }, StoreOp::One(_, Op::Swap { .. })) => Ret::Swapped(false),
        other => panic!("{op:?}: {other:?}"),
    })
}
