//! A map that several clients use at once, and a check of what each of them saw of each key.

use std::sync::Barrier;
use std::thread;

use sinew_fabric::{Generator, SeededGenerator};
use sinew_mem::atomic::plain::{AtomicU64, Ordering};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

/// Requests of each client in a round. The time of a check grows fast with them.
const REQUESTS: u64 = 4;

/// A client of a map from bytes to numbers.
pub trait MapClient: Send {
    /// Returns a key's value.
    fn get(&mut self, key: &[u8]) -> Option<u64>;

    /// Sets a key's value. Returns whether it had one.
    fn put(&mut self, key: &[u8], value: u64) -> bool;

    /// Removes a key. Returns whether it was there.
    fn delete(&mut self, key: &[u8]) -> bool;
}

/// A request for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Op {
    Get,
    Put(u64),
    Delete,
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ret {
    Got(Option<u64>),
    Existed(bool),
}

/// One key of a correct map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Key(Option<u64>);

impl SequentialSpec for Key {
    type Op = Op;
    type Ret = Ret;

    fn invoke(&mut self, op: &Op) -> Ret {
        match *op {
            Op::Get => Ret::Got(self.0),
            Op::Put(value) => Ret::Existed(self.0.replace(value).is_some()),
            Op::Delete => Ret::Existed(self.0.take().is_some()),
        }
    }
}

/// A request or an answer, and its place among those of all clients.
struct Event {
    place: u64,
    client: u64,
    event: Result<Op, Ret>,
}

/// Has up to three clients, each in a thread of its own, get, put and delete a key at the same time, and checks that
/// the answers are linearizable. Each round has a key of its own; beside it the clients put and delete others, so that
/// a tree changes its shape. `seed` determines the requests, but not how they overlap.
///
/// # Errors
///
/// The first history that no correct map has.
pub fn check_map<C: MapClient>(clients: &mut [C], rounds: u64, seed: u64) -> Result<(), String> {
    for round in 0..rounds {
        let (order, together) = (AtomicU64::new(0), Barrier::new(clients.len()));
        let mut events = thread::scope(|scope| {
            let threads = clients.iter_mut().zip(0..).map(|(client, number)| {
                let (order, together) = (&order, &together);
                let random = SeededGenerator::new(seed ^ (round << 8) ^ number);
                scope.spawn(move || {
                    together.wait();
                    run_client(client, number, round, order, random)
                })
            });
            let threads: Vec<_> = threads.collect();
            let joined = threads.into_iter().map(|thread| thread.join().expect("a client panicked"));
            joined.flatten().collect::<Vec<Event>>()
        });
        events.sort_unstable_by_key(|event| event.place);
        let mut history = LinearizabilityTester::new(Key::default());
        for Event { client, event, .. } in events {
            let recorded = match event {
                Ok(op) => history.on_invoke(client, op),
                Err(ret) => history.on_return(client, ret),
            };
            recorded.expect("a client has one request in flight");
        }
        if !history.is_consistent() {
            return Err(format!("round {round}, seed {seed}: {history:?}"));
        }
    }
    Ok(())
}

fn run_client(
    client: &mut impl MapClient,
    number: u64,
    round: u64,
    order: &AtomicU64,
    mut random: SeededGenerator,
) -> Vec<Event> {
    let mut events = Vec::new();
    // Each step happens before all that have later places. Partner: itself, in other threads.
    let next_place = || order.fetch_add(1, Ordering::AcqRel);
    let name = format!("{round:06}");
    for request in 0..REQUESTS {
        let drawn = random.next_u64();
        let beside = format!("{name}/{number}/{request}");
        client.put(beside.as_bytes(), drawn);
        let op = match drawn >> 32 & 3 {
            0 => Op::Get,
            1 => Op::Delete,
            _ => Op::Put(number * REQUESTS + request),
        };
        events.push(Event { place: next_place(), client: number, event: Ok(op.clone()) });
        let ret = match op {
            Op::Get => Ret::Got(client.get(name.as_bytes())),
            Op::Put(value) => Ret::Existed(client.put(name.as_bytes(), value)),
            Op::Delete => Ret::Existed(client.delete(name.as_bytes())),
        };
        events.push(Event { place: next_place(), client: number, event: Err(ret) });
        if drawn >> 40 & 1 == 0 {
            client.delete(beside.as_bytes());
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What is wrong with a map, in one of seven requests.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Fault {
        Nothing,
        StaleGet,
        LostPut,
        LostDelete,
        WrongAnswer,
    }

    #[derive(Default)]
    struct State {
        now: BTreeMap<Vec<u8>, u64>,
        before: BTreeMap<Vec<u8>, u64>,
        requests: u64,
    }

    #[derive(Clone)]
    struct Client {
        state: Arc<Mutex<State>>,
        fault: Fault,
    }

    impl Client {
        fn change<R>(&self, fault: Fault, key: &[u8], change: impl FnOnce(&mut State, bool) -> R) -> R {
            let mut state = self.state.lock().unwrap();
            state.requests += 1;
            let is_wrong = self.fault == fault && state.requests.is_multiple_of(7);
            let old = state.now.get(key).copied();
            let result = change(&mut state, is_wrong);
            if state.now.get(key).copied() != old {
                match old {
                    Some(old) => _ = state.before.insert(key.to_vec(), old),
                    None => _ = state.before.remove(key),
                }
            }
            result
        }
    }

    impl MapClient for Client {
        fn get(&mut self, key: &[u8]) -> Option<u64> {
            self.change(Fault::StaleGet, key, |state, is_wrong| {
                if is_wrong { state.before.get(key).copied() } else { state.now.get(key).copied() }
            })
        }

        fn put(&mut self, key: &[u8], value: u64) -> bool {
            let answers_wrongly = self.change(Fault::WrongAnswer, key, |_, is_wrong| is_wrong);
            self.change(Fault::LostPut, key, |state, is_wrong| {
                let existed = state.now.contains_key(key);
                if !is_wrong {
                    state.now.insert(key.to_vec(), value);
                }
                existed != answers_wrongly
            })
        }

        fn delete(&mut self, key: &[u8]) -> bool {
            self.change(Fault::LostDelete, key, |state, is_wrong| {
                if is_wrong { state.now.contains_key(key) } else { state.now.remove(key).is_some() }
            })
        }
    }

    #[test]
    fn a_map_passes_and_one_with_a_fault_is_found_out() {
        let of = |fault| {
            let client = Client { state: Arc::default(), fault };
            check_map(&mut [client.clone(), client.clone(), client], 200, 1)
        };
        assert_eq!(of(Fault::Nothing), Ok(()));
        for fault in [Fault::StaleGet, Fault::LostPut, Fault::LostDelete, Fault::WrongAnswer] {
            assert!(of(fault).is_err(), "{fault:?}");
        }
    }
}
