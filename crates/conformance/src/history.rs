//! Histories of a key-value store's clients, key by key or of all keys together, checked for linearizability by an
//! independent checker (stateright's).

mod map;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::mpsc;
use std::time::Duration;

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

pub use map::{MapClient, check_map};

/// A request for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets the key's value.
    Put(u64),
    /// Gets the key's value.
    Get,
    /// Takes the key's value away.
    Delete,
    /// Sets the key's value if it has the expected one.
    Swap {
        /// The expected value; `None` for a key without one.
        expect: Option<u64>,
        /// The new value; `None` takes it away.
        value: Option<u64>,
    },
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ret {
    /// The value was set.
    Put,
    /// The key's value.
    Got(Option<u64>),
    /// Whether the key had a value.
    Deleted(bool),
    /// Whether the key had the expected value.
    Swapped(bool),
}

/// One key of a correct store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key(Option<u64>);

impl SequentialSpec for Key {
    type Op = Op;
    type Ret = Ret;

    fn invoke(&mut self, op: &Op) -> Ret {
        match *op {
            Op::Put(value) => {
                self.0 = Some(value);
                Ret::Put
            }
            Op::Get => Ret::Got(self.0),
            Op::Delete => Ret::Deleted(self.0.take().is_some()),
            Op::Swap { expect, value } => {
                let is_so = self.0 == expect;
                if is_so {
                    self.0 = value;
                }
                Ret::Swapped(is_so)
            }
        }
    }
}

/// A request for one key of several, or for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreOp {
    /// A request for this key.
    One(u64, Op),
    /// Gets all keys that have values, with these.
    All,
}

/// An answer to a request for one key of several, or for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRet {
    /// The answer for the key.
    One(Ret),
    /// The keys that have values, with these.
    All(BTreeMap<u64, u64>),
}

/// A correct store of several keys. A request for all of them ties their orders together, so their histories can no
/// longer be checked one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store(BTreeMap<u64, Key>);

impl SequentialSpec for Store {
    type Op = StoreOp;
    type Ret = StoreRet;

    fn invoke(&mut self, op: &StoreOp) -> StoreRet {
        match op {
            StoreOp::One(key, op) => StoreRet::One(self.0.entry(*key).or_default().invoke(op)),
            StoreOp::All => StoreRet::All(self.0.iter().filter_map(|(key, of)| Some((*key, of.0?))).collect()),
        }
    }
}

/// A correct store of some kind, with which histories are compared.
pub trait Model: SequentialSpec<Op: Clone + Debug, Ret: Clone + Debug + PartialEq> + Clone + Debug + Default {
    /// Whether a request changes nothing.
    fn is_read(op: &Self::Op) -> bool;
}

impl Model for Key {
    fn is_read(op: &Op) -> bool {
        *op == Op::Get
    }
}

impl Model for Store {
    fn is_read(op: &StoreOp) -> bool {
        matches!(op, StoreOp::One(_, Op::Get) | StoreOp::All)
    }
}

/// A client's request, or its answer.
type Event<M> = (u64, Result<<M as SequentialSpec>::Op, <M as SequentialSpec>::Ret>);

/// The history of a store, by default of one key, that has no values yet. Each client has one request in flight at a
/// time. A request whose outcome is unknown stays open, and its client goes on under another number.
#[derive(Clone, Debug)]
pub struct History<M: Model = Key>(Vec<Event<M>>);

impl<M: Model> Default for History<M> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<M: Model> History<M> {
    /// Records a client's request.
    pub fn record_call(&mut self, client: u64, op: M::Op) {
        self.0.push((client, Ok(op)));
    }

    /// Records the answer to a client.
    pub fn record_return(&mut self, client: u64, ret: M::Ret) {
        self.0.push((client, Err(ret)));
    }

    /// Whether a single correct store could have handled these requests in some order that agrees with when each began
    /// and ended. The time that this takes grows fast with the number of overlapping requests.
    ///
    /// # Panics
    ///
    /// When a client had two requests in flight at a time, or had an answer without a request.
    pub fn is_linearizable(&self) -> bool {
        let mut open = BTreeMap::new();
        for (place, (client, event)) in self.0.iter().enumerate() {
            match event {
                Ok(op) => _ = open.insert(client, (place, op)),
                Err(_) => _ = open.remove(client),
            }
        }
        // A read without an answer has told nothing and changed nothing, but the checker would try it everywhere.
        let idle: BTreeSet<_> = open.values().filter(|(_, op)| M::is_read(op)).map(|(place, _)| *place).collect();
        let mut tester = LinearizabilityTester::new(M::default());
        for (place, (client, event)) in self.0.iter().enumerate() {
            if idle.contains(&place) {
                continue;
            }
            let recorded = match event {
                Ok(op) => tester.on_invoke(*client, op.clone()),
                Err(ret) => tester.on_return(*client, ret.clone()),
            };
            recorded.expect("a client has one request in flight at a time");
        }
        tester.is_consistent()
    }
}

/// Checks that each of these histories is linearizable.
///
/// # Panics
///
/// When one is not, when the checker takes longer than `limit`, and as [`History::is_linearizable`] does.
pub fn check<M>(histories: Vec<History<M>>, limit: Duration)
where
    M: Model<Op: Send, Ret: Send> + 'static,
{
    let (say, hear) = mpsc::channel();
    // The checker cannot be stopped. If it takes too long, it ends with the process.
    let checker = std::thread::spawn(move || {
        let wrong = histories.into_iter().find(|history| !history.is_linearizable());
        let _ = say.send(wrong);
    });
    match hear.recv_timeout(limit) {
        Ok(None) => {}
        Ok(Some(wrong)) => panic!("not linearizable: {wrong:?}"),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the checker does not come to an end within {limit:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match checker.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("it says what it found before it ends"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_linearizable<M: Model>(parts: &[&[Event<M>]]) -> bool {
        let mut history = History::<M>::default();
        for (client, event) in parts.concat() {
            match event {
                Ok(op) => history.record_call(client, op),
                Err(ret) => history.record_return(client, ret),
            }
        }
        history.is_linearizable()
    }

    fn put(client: u64, value: u64) -> [Event<Key>; 2] {
        [(client, Ok(Op::Put(value))), (client, Err(Ret::Put))]
    }

    fn get(client: u64, value: Option<u64>) -> [Event<Key>; 2] {
        [(client, Ok(Op::Get)), (client, Err(Ret::Got(value)))]
    }

    fn swap(client: u64, value: u64) -> [Event<Key>; 2] {
        [(client, Ok(Op::Swap { expect: None, value: Some(value) })), (client, Err(Ret::Swapped(true)))]
    }

    fn delete(client: u64, had_value: bool) -> [Event<Key>; 2] {
        [(client, Ok(Op::Delete)), (client, Err(Ret::Deleted(had_value)))]
    }

    #[test]
    fn the_checker_finds_histories_that_are_wrong() {
        let is_linearizable = is_linearizable::<Key>;
        assert!(is_linearizable(&[&put(1, 1), &put(1, 2), &get(2, Some(2))]));
        // A stale read, a lost put, a value from nowhere, and a value that was seen and then unseen again.
        assert!(!is_linearizable(&[&put(1, 1), &put(1, 2), &get(2, Some(1))]));
        assert!(!is_linearizable(&[&put(1, 1), &get(2, None)]));
        assert!(!is_linearizable(&[&get(2, Some(7))]));
        let open = [(3, Ok(Op::Put(3)))];
        let open_get = [(4, Ok(Op::Get))];
        assert!(is_linearizable(&[&open_get, &put(1, 1), &open, &get(2, Some(1)), &get(2, Some(3))]));
        assert!(!is_linearizable(&[&open_get, &put(1, 1), &open, &get(2, Some(3)), &get(2, Some(1))]));
        // Only one of the two can have succeeded.
        assert!(is_linearizable(&[&swap(1, 1)]) && !is_linearizable(&[&swap(1, 1), &swap(2, 2)]));
        // A value that was deleted and is seen again, and one that was deleted twice.
        assert!(is_linearizable(&[&delete(1, false), &put(1, 1), &delete(2, true), &get(1, None), &swap(1, 2)]));
        assert!(!is_linearizable(&[&put(1, 1), &delete(2, true), &get(1, Some(1))]));
        assert!(!is_linearizable(&[&put(1, 1), &delete(1, true), &delete(2, true)]));
        let taken = [(1, Ok(Op::Swap { expect: Some(1), value: None })), (1, Err(Ret::Swapped(true)))];
        assert!(is_linearizable(&[&put(1, 1), &taken, &get(2, None)]));
        assert!(!is_linearizable(&[&put(1, 1), &taken, &get(2, Some(1))]));
    }

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn histories_that_are_right_pass() {
        check(vec![History::<Key>(put(1, 1).into()), History::default()], LIMIT);
    }

    #[test]
    #[should_panic(expected = "not linearizable")]
    fn a_history_that_is_wrong_fails() {
        check(vec![History::default(), History::<Key>(get(1, Some(1)).into())], LIMIT);
    }

    #[test]
    #[should_panic(expected = "does not come to an end")]
    fn a_check_that_takes_too_long_fails() {
        // Puts that all overlap, none of which made the value that was read: each order is tried.
        let mut history = History::<Key>::default();
        (1..10).for_each(|client| history.record_call(client, Op::Put(client)));
        (1..10).for_each(|client| history.record_return(client, Ret::Put));
        for event in get(1, Some(99)) {
            history.0.push(event);
        }
        check(vec![history], Duration::from_millis(1));
    }

    #[test]
    #[should_panic(expected = "one request in flight")]
    fn a_client_with_two_requests_in_flight_is_a_mistake() {
        let mut history = History::<Key>::default();
        (0..2).for_each(|_| history.record_call(1, Op::Put(1)));
        check(vec![history], LIMIT);
    }

    #[test]
    fn the_checker_finds_ranges_that_never_were() {
        let put = |client, key, value| {
            let (op, ret) = (StoreOp::One(key, Op::Put(value)), StoreRet::One(Ret::Put));
            [(client, Ok(op)), (client, Err(ret))]
        };
        let all = |client, found: &[(u64, u64)]| {
            let found = found.iter().copied().collect();
            [(client, Ok(StoreOp::All)), (client, Err(StoreRet::All(found)))]
        };
        let is_linearizable = is_linearizable::<Store>;
        assert!(is_linearizable(&[&all(1, &[]), &put(1, 1, 5), &put(1, 2, 6), &all(2, &[(1, 5), (2, 6)])]));
        // It has the later value without the earlier one, a key that nobody put, or lacks one that is there.
        assert!(!is_linearizable(&[&put(1, 1, 5), &put(1, 2, 6), &all(2, &[(2, 6)])]));
        assert!(!is_linearizable(&[&put(1, 1, 5), &all(2, &[(1, 5), (2, 6)])]));
        assert!(!is_linearizable(&[&put(1, 1, 5), &all(2, &[])]));
        // Two ranges that overlap two puts, and of which each lacks what the other has. Key by key, that is possible.
        let together = |found: [&[(u64, u64)]; 2]| {
            let all = [put(1, 1, 5), put(2, 2, 6), all(3, found[0]), all(4, found[1])];
            let [begun, ended] = [0, 1].map(|at| all.clone().map(|events| events[at].clone()));
            is_linearizable(&[&begun, &ended])
        };
        assert!(together([&[(1, 5)], &[(1, 5), (2, 6)]]));
        assert!(!together([&[(1, 5)], &[(2, 6)]]));
    }
}
