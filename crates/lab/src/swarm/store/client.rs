//! A client that makes one random request at a time and notes what became of it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use sinew_fabric::{Clock, SeededGenerator};
use sinew_replica::client::{Client, ClientError, RequestOutcome};
use sinew_replica::client_wire::Freshness;
use sinew_replica::kv::{Command, CommandResult, Expect, Query, QueryResult};
use sinew_replica::wire;
use sinew_sim::{Actor, ActorState, SimClock};

use super::order::{Answer, Operation, Outcome, Request};
use crate::programs::{Endpoint, wait};
use crate::swarm::MS;

/// Keys: few, so that requests meet.
const KEYS: u64 = 2;
/// Time after which a client gives up while faults last, and longest pause between two requests.
const PATIENCE_NS: u64 = 400 * MS;
const PAUSE_MAX_NS: u64 = 20 * MS;
/// Time within which every request is answered once all is well.
pub const WELL_NS: u64 = 4_000 * MS;

/// What the clients of a run share.
#[derive(Default)]
pub struct Log {
    pub operations: Vec<Operation>,
    /// Requests that may still begin; `None` while faults last: no limit.
    pub left: Option<u64>,
    /// Requests that are not over.
    pub in_flight: u64,
    /// Values of the keys as last seen.
    seen: BTreeMap<u64, u64>,
    /// Whether all is well, so that no request may fail.
    pub is_well: bool,
    /// Description of the first thing that went wrong.
    pub wrong: Option<String>,
}

impl Log {
    /// Draws a request. Values are numbers of requests, so that no two are alike.
    fn draw(&self, random: &mut SeededGenerator) -> Request {
        let (key, number) = (random.below(KEYS), self.operations.len() as u64 + 1);
        match random.below(8) {
            0 | 1 => Request::Put { key, value: number },
            7 => Request::Delete { key },
            2 | 3 => {
                let expect = match random.below(3) {
                    0 => random.below(number).checked_sub(1),
                    _ => self.seen.get(&key).copied(),
                };
                // One in three takes the value away.
                let value = Some(number).filter(|_| expect.is_none() || random.below(3) > 0);
                Request::Swap { key, expect, value }
            }
            4 => Request::All,
            _ => Request::Get { key },
        }
    }

    fn note(&mut self, request: Request, answer: &Answer) {
        let (key, value) = match (request, answer) {
            (Request::Put { key, value }, _) => (key, Some(value)),
            (Request::Swap { key, value, .. }, Answer::Changed { .. }) => (key, value),
            (Request::Delete { key }, _) => (key, None),
            (Request::Swap { key, .. }, Answer::Differs { found: value })
            | (Request::Get { key }, Answer::Got { value, .. }) => (key, *value),
            _ => return,
        };
        match value {
            Some(value) => self.seen.insert(key, value),
            None => self.seen.remove(&key),
        };
    }
}

/// A client of a store.
pub struct Asker {
    pub client: Client<Endpoint>,
    pub number: u64,
    pub clock: SimClock,
    pub random: SeededGenerator,
    pub log: Rc<RefCell<Log>>,
    /// Place of the request in flight among all operations.
    pub pending: Option<usize>,
    pub begin_ns: u64,
}

impl Asker {
    /// Begins a request, if there are any left.
    fn begin(&mut self, now_ns: u64) -> Result<bool, ClientError> {
        let mut log = self.log.borrow_mut();
        if log.left == Some(0) {
            return Ok(false);
        }
        log.left = log.left.map(|left| left - 1);
        let request = log.draw(&mut self.random);
        let (bytes, is_query) = encode(request);
        let patience_ns = if log.is_well { WELL_NS } else { PATIENCE_NS };
        if is_query {
            let freshness = if self.random.below(2) == 0 { Freshness::Lease } else { Freshness::Linear };
            self.client.read(0, freshness, &bytes, patience_ns)?;
        } else {
            self.client.run(0, &bytes, patience_ns)?;
        }
        self.pending = Some(log.operations.len());
        let (client, outcome) = (self.number, Outcome::Unknown);
        log.operations.push(Operation { client, request, begin_ns: now_ns, end_ns: u64::MAX, outcome });
        log.in_flight += 1;
        self.begin_ns = now_ns + self.random.below(PAUSE_MAX_NS);
        Ok(true)
    }

    fn end(&mut self, result: Result<RequestOutcome, ClientError>, now_ns: u64) {
        let Some(pending) = self.pending.take() else { return };
        let mut log = self.log.borrow_mut();
        log.in_flight -= 1;
        let request = log.operations[pending].request;
        let outcome = match result {
            Ok(RequestOutcome::CommandAnswer(bytes) | RequestOutcome::QueryAnswer(bytes)) => {
                decode(request, &bytes).map(Outcome::Answered).ok_or_else(|| format!("{request:?} got {bytes:?}"))
            }
            Err(ClientError::NoAnswer { may_have_run, .. }) if !log.is_well => {
                Ok(if may_have_run { Outcome::Unknown } else { Outcome::NotRun })
            }
            other => Err(format!("{request:?} ended with {other:?}")),
        };
        match outcome {
            Ok(outcome) => {
                if let Outcome::Answered(answer) = &outcome {
                    log.note(request, answer);
                    log.operations[pending].end_ns = now_ns;
                }
                log.operations[pending].outcome = outcome;
            }
            Err(wrong) => _ = log.wrong.get_or_insert(wrong),
        }
    }
}

impl Drop for Asker {
    /// With its host, the request of a client goes, too; its outcome stays unknown.
    fn drop(&mut self) {
        if self.pending.is_some() {
            self.log.borrow_mut().in_flight -= 1;
        }
    }
}

impl Actor for Asker {
    fn turn(&mut self) -> ActorState {
        let mut busy = self.client.turn();
        while let Some((_, result)) = self.client.poll() {
            busy = true;
            self.end(result, self.clock.now_ns());
        }
        let now_ns = self.clock.now_ns();
        if self.pending.is_none() && now_ns >= self.begin_ns {
            match self.begin(now_ns) {
                Ok(has_begun) => busy |= has_begun,
                Err(error) => _ = self.log.borrow_mut().wrong.get_or_insert(format!("a request was refused: {error}")),
            }
        }
        // It looks now and then whether there are requests again.
        let next_ns = self.client.next_turn_ns().unwrap_or(self.begin_ns.max(now_ns + MS));
        wait(busy, self.client.rpc(), Some(next_ns))
    }
}

pub fn key_bytes(key: u64) -> [u8; 2] {
    [b'k', key as u8]
}

/// Number of a key or a value.
pub fn number(bytes: &[u8]) -> Option<u64> {
    match bytes {
        [b'k', key] => Some(u64::from(*key)),
        _ => Some(u64::from_le_bytes(*bytes.as_array()?)),
    }
}

/// The command or query for a request, and whether it is a query.
fn encode(request: Request) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let is_query = match request {
        Request::All => {
            wire::encode(&Query::Range { from: b"k", to: Some(b"l"), limit: 100 }, &mut bytes);
            true
        }
        Request::Get { key } => {
            wire::encode(&Query::Get { key: &key_bytes(key) }, &mut bytes);
            true
        }
        Request::Put { key, value } => {
            wire::encode(&Command::Put { key: &key_bytes(key), value: &value.to_le_bytes() }, &mut bytes);
            false
        }
        Request::Delete { key } => {
            wire::encode(&Command::Delete { key: &key_bytes(key) }, &mut bytes);
            false
        }
        Request::Swap { key, expect, value } => {
            let (expect, value) = (expect.map(u64::to_le_bytes), value.map(u64::to_le_bytes));
            let expect = expect.as_ref().map_or(Expect::Nothing, |expect| Expect::Value(expect));
            let value = value.as_ref().map(|value| &value[..]);
            wire::encode(&Command::Swap { key: &key_bytes(key), expect, value }, &mut bytes);
            false
        }
    };
    (bytes, is_query)
}

/// The answer to a request, if it is one.
fn decode(request: Request, bytes: &[u8]) -> Option<Answer> {
    if !matches!(request, Request::Get { .. } | Request::All) {
        return match wire::decode(bytes).ok()? {
            CommandResult::Changed { revision } => Some(Answer::Changed { revision }),
            CommandResult::KeyMissing => Some(Answer::Missing),
            CommandResult::Differs { found: None } => Some(Answer::Differs { found: None }),
            CommandResult::Differs { found: Some(item) } => Some(Answer::Differs { found: Some(number(item.value)?) }),
            _ => None,
        };
    }
    match wire::decode(bytes).ok()? {
        QueryResult::Item { revision, item: None } => Some(Answer::Got { revision, value: None }),
        QueryResult::Item { revision, item: Some(item) } => {
            Some(Answer::Got { revision, value: Some(number(item.value)?) })
        }
        QueryResult::Items { revision, items, more: false } => {
            let values = items.iter().map(|item| Some((number(item.key)?, number(item.value)?)));
            Some(Answer::GotAll { revision, values: values.collect::<Option<_>>()? })
        }
        _ => None,
    }
}
