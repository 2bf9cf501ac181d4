//! Histories of a key-value store's clients, key by key, checked for linearizability by an independent checker
//! (stateright's).

mod map;

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

pub use map::{MapClient, check_map};

/// A request for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets the key's value.
    Put(u64),
    /// Gets the key's value.
    Get,
    /// Sets the key's value if it has the expected one.
    Swap {
        /// The expected value; `None` for a key without one.
        expect: Option<u64>,
        /// The new value.
        value: u64,
    },
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ret {
    /// The value was set.
    Put,
    /// The key's value.
    Got(Option<u64>),
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
            Op::Swap { expect, value } => {
                let is_so = self.0 == expect;
                if is_so {
                    self.0 = Some(value);
                }
                Ret::Swapped(is_so)
            }
        }
    }
}

/// The history of a key that nobody has put yet. Each client has one request in flight at a time. A request whose
/// outcome is unknown stays open, and its client goes on under another number.
#[derive(Clone, Debug)]
pub struct History(LinearizabilityTester<u64, Key>);

impl Default for History {
    fn default() -> Self {
        Self(LinearizabilityTester::new(Key::default()))
    }
}

impl History {
    /// Records a client's request.
    ///
    /// # Panics
    ///
    /// When the client has a request in flight already.
    pub fn record_call(&mut self, client: u64, op: Op) {
        self.0.on_invoke(client, op).expect("a client has one request in flight");
    }

    /// Records the answer to a client.
    ///
    /// # Panics
    ///
    /// When the client has no request in flight.
    pub fn record_return(&mut self, client: u64, ret: Ret) {
        self.0.on_return(client, ret).expect("a client that is answered has asked");
    }

    /// Whether a single key could have handled these requests in some order that agrees with when each began and ended.
    /// The time that this takes grows fast with the number of overlapping requests.
    pub fn is_linearizable(&self) -> bool {
        self.0.is_consistent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Event = (u64, Result<Op, Ret>);

    fn is_linearizable(parts: &[&[Event]]) -> bool {
        let mut history = History::default();
        for (client, event) in parts.concat() {
            match event {
                Ok(op) => history.record_call(client, op),
                Err(ret) => history.record_return(client, ret),
            }
        }
        history.is_linearizable()
    }

    fn put(client: u64, value: u64) -> [Event; 2] {
        [(client, Ok(Op::Put(value))), (client, Err(Ret::Put))]
    }

    fn get(client: u64, value: Option<u64>) -> [Event; 2] {
        [(client, Ok(Op::Get)), (client, Err(Ret::Got(value)))]
    }

    fn swap(client: u64, value: u64) -> [Event; 2] {
        [(client, Ok(Op::Swap { expect: None, value })), (client, Err(Ret::Swapped(true)))]
    }

    #[test]
    fn the_checker_finds_histories_that_are_wrong() {
        assert!(is_linearizable(&[&put(1, 1), &put(1, 2), &get(2, Some(2))]));
        // A stale read, a lost put, a value from nowhere, and a value that was seen and then unseen again.
        assert!(!is_linearizable(&[&put(1, 1), &put(1, 2), &get(2, Some(1))]));
        assert!(!is_linearizable(&[&put(1, 1), &get(2, None)]));
        assert!(!is_linearizable(&[&get(2, Some(7))]));
        let open = [(3, Ok(Op::Put(3)))];
        assert!(is_linearizable(&[&put(1, 1), &open, &get(2, Some(1)), &get(2, Some(3))]));
        assert!(!is_linearizable(&[&put(1, 1), &open, &get(2, Some(3)), &get(2, Some(1))]));
        // Only one of the two can have succeeded.
        assert!(is_linearizable(&[&swap(1, 1)]) && !is_linearizable(&[&swap(1, 1), &swap(2, 2)]));
    }
}
