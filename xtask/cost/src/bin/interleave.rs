//! Interleaved lookups, beside the state machine that a careful programmer would write for the same table.

use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::ensure;
use sinew_cost::{Count, Operation, operation};
use sinew_fabric::{Generator, SeededGenerator};
use sinew_interleave::{Batch, fetch, interleave, prefetch};

const OPERATIONS: &[Operation] = &[
    operation("lookup in chains, plain", &["lookup"], |count| {
        lookups(count, |table, keys, values| keys.iter().zip(values).for_each(|(key, value)| *value = table.get(*key)))
    }),
    operation("lookup in chains, a state machine by hand of width 16", &["lookup"], |count| lookups(count, by_hand)),
    operation("lookup in chains, states by hand in the engine, width 16", &["lookup"], |count| {
        lookups(count, in_engine)
    }),
    operation("lookup in chains, async lookups of width 16", &["lookup"], |count| lookups(count, as_futures)),
    operation("lookup in chains, the attribute of width 16", &["lookup"], |count| {
        lookups(count, |table, keys, values| {
            table.get_all(keys.iter().copied(), values);
        })
    }),
];

fn main() -> anyhow::Result<()> {
    sinew_cost::main(OPERATIONS)
}

const WIDTH: usize = 16;
const BATCH: usize = 64;
const ROUNDS: usize = 256;
const KEYS: u64 = 1 << 14;
/// Four keys share a chain.
const HEADS: usize = KEYS as usize / 4;
/// End of a chain.
const NONE: u32 = u32::MAX;

struct Node {
    key: u64,
    value: u64,
    next: u32,
}

/// A hash table with chains.
struct Table {
    heads: Vec<u32>,
    nodes: Vec<Node>,
}

#[inline(always)]
fn head_of(key: u64) -> usize {
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52) as usize % HEADS
}

impl Table {
    fn filled() -> Self {
        let mut table = Self { heads: vec![NONE; HEADS], nodes: Vec::new() };
        for key in 0..KEYS {
            let next = std::mem::replace(&mut table.heads[head_of(key)], key as u32);
            table.nodes.push(Node { key, value: !key, next });
        }
        table
    }

    #[interleave(batch = get_all, width = 16)]
    #[inline(always)]
    fn get(&self, #[each] key: u64) -> Option<u64> {
        let head = head_of(key);
        fetch!(&self.heads[head]);
        let mut at = self.heads[head];
        while at != NONE {
            fetch!(&self.nodes[at as usize]);
            let node = &self.nodes[at as usize];
            if node.key == key {
                return Some(node.value);
            }
            at = node.next;
        }
        None
    }
}

fn as_futures(table: &Table, keys: &[u64], values: &mut [Option<u64>]) {
    Batch::<WIDTH>::new().run(keys.iter().copied(), values, async |key| {
        let head = head_of(key);
        fetch(&table.heads[head]).await;
        let mut at = table.heads[head];
        while at != NONE {
            fetch(&table.nodes[at as usize]).await;
            let node = &table.nodes[at as usize];
            if node.key == key {
                return Some(node.value);
            }
            at = node.next;
        }
        None
    });
}

/// A lookup as a future whose states are written by hand.
struct ByHand<'a> {
    table: &'a Table,
    state: State,
    key: u64,
}

impl Future for ByHand<'_> {
    type Output = Option<u64>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let table = self.table;
        let at = match self.state {
            State::Idle => {
                let head = head_of(self.key);
                prefetch(&table.heads[head]);
                self.state = State::Head { head };
                return Poll::Pending;
            }
            State::Head { head } => table.heads[head],
            State::Node { node } => {
                let node = &table.nodes[node as usize];
                if node.key == self.key {
                    return Poll::Ready(Some(node.value));
                }
                node.next
            }
        };
        if at == NONE {
            return Poll::Ready(None);
        }
        prefetch(&table.nodes[at as usize]);
        self.state = State::Node { node: at };
        Poll::Pending
    }
}

fn in_engine(table: &Table, keys: &[u64], values: &mut [Option<u64>]) {
    Batch::<WIDTH>::new().run(keys.iter().copied(), values, |key| ByHand { table, state: State::Idle, key });
}

/// Place that a lookup by hand has reached.
#[derive(Clone, Copy)]
enum State {
    Idle,
    Head { head: usize },
    Node { node: u32 },
}

#[derive(Clone, Copy)]
struct Lookup {
    state: State,
    key: u64,
    number: usize,
}

fn by_hand(table: &Table, keys: &[u64], values: &mut [Option<u64>]) {
    let mut lookups = [Lookup { state: State::Idle, key: 0, number: 0 }; WIDTH];
    let mut next = 0;
    let mut begin = |lookup: &mut Lookup| {
        let Some(key) = keys.get(next) else {
            lookup.state = State::Idle;
            return false;
        };
        let head = head_of(*key);
        prefetch(&table.heads[head]);
        *lookup = Lookup { state: State::Head { head }, key: *key, number: next };
        next += 1;
        true
    };
    let mut live = lookups.iter_mut().map(&mut begin).filter(|begun| *begun).count();
    while live > 0 {
        for lookup in &mut lookups {
            let at = match lookup.state {
                State::Idle => continue,
                State::Head { head } => table.heads[head],
                State::Node { node } => {
                    let node = &table.nodes[node as usize];
                    if node.key == lookup.key {
                        values[lookup.number] = Some(node.value);
                        live -= usize::from(!begin(lookup));
                        continue;
                    }
                    node.next
                }
            };
            if at == NONE {
                values[lookup.number] = None;
                live -= usize::from(!begin(lookup));
            } else {
                prefetch(&table.nodes[at as usize]);
                lookup.state = State::Node { node: at };
            }
        }
    }
}

fn lookups(count: &mut Count, look_up: impl Fn(&Table, &[u64], &mut [Option<u64>])) -> anyhow::Result<()> {
    let table = Table::filled();
    let mut generator = SeededGenerator::new(1);
    count.rounds(ROUNDS, ROUNDS, |count| {
        // One in nine is absent.
        let keys: [u64; BATCH] = std::array::from_fn(|_| generator.next_u64() % (KEYS + KEYS / 8));
        let mut values = [None; BATCH];
        count.step("lookup", BATCH, || look_up(&table, &keys, &mut values));
        let good = keys.iter().zip(values).filter(|(key, value)| *value == (**key < KEYS).then_some(!**key)).count();
        ensure!(good == BATCH, "{good} of {BATCH} lookups");
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::OPERATIONS;

    #[test]
    fn two_runs_are_equal() {
        sinew_cost::check_that_runs_are_equal(OPERATIONS);
    }
}
