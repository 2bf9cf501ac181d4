//! Building the table of an automaton from patterns: a trie, the state that each state falls back to, and all next
//! states.

use std::collections::VecDeque;

use super::{Automaton, Pattern, PatternError, Rows, STATES_MAX, State, Table};

const NONE: u32 = u32::MAX;

/// A state of the trie.
struct Node {
    /// First child, and next sibling: a linked list of children, which takes little memory.
    child: u32,
    sibling: u32,
    /// The byte that leads to this state.
    byte: u8,
    /// The state for the longest proper suffix of this state's text.
    fall: u32,
    /// The patterns that are this state's text.
    own: Vec<u32>,
    /// Number of patterns that end in this state, including those of the states that it falls back to.
    count: u32,
}

struct Trie(Vec<Node>);

impl Trie {
    fn add(&mut self, byte: u8) -> u32 {
        self.0.push(Node { child: NONE, sibling: NONE, byte, fall: 0, own: Vec::new(), count: 0 });
        self.0.len() as u32 - 1
    }

    fn child(&self, state: u32, byte: u8) -> Option<u32> {
        self.children(state).find(|child| self.0[*child as usize].byte == byte)
    }

    fn children(&self, state: u32) -> impl Iterator<Item = u32> {
        let some = |state: u32| (state != NONE).then_some(state);
        std::iter::successors(some(self.0[state as usize].child), move |child| some(self.0[*child as usize].sibling))
    }

    fn insert(&mut self, bytes: &[u8], pattern: u32) -> Result<(), PatternError> {
        let mut at = 0;
        for byte in bytes.iter().map(u8::to_ascii_lowercase) {
            at = match self.child(at, byte) {
                Some(child) => child,
                None if self.0.len() == STATES_MAX => return Err(PatternError::TooLarge),
                None => {
                    let child = self.add(byte);
                    self.0[child as usize].sibling = std::mem::replace(&mut self.0[at as usize].child, child);
                    child
                }
            };
        }
        self.0[at as usize].own.push(pattern);
        Ok(())
    }
}

pub(super) fn automaton(patterns: Vec<Pattern>) -> Result<Automaton, PatternError> {
    let mut trie = Trie(Vec::new());
    trie.add(0);
    for (at, pattern) in patterns.iter().enumerate() {
        if pattern.bytes.is_empty() {
            return Err(PatternError::Empty { pattern: at });
        }
        trie.insert(&pattern.bytes, at as u32)?;
    }
    let order = compute_fallbacks(&mut trie);
    // States that end no pattern come first, then the others, both by depth.
    let (plain, ending): (Vec<u32>, Vec<u32>) = order.iter().partition(|state| trie.0[**state as usize].count == 0);
    let mut number = vec![0; trie.0.len()];
    plain.iter().chain(&ending).enumerate().for_each(|(new, old)| number[*old as usize] = new);
    let (mut ends, mut outputs) = (vec![0], Vec::new());
    for state in &ending {
        let mut at = *state;
        while at != 0 && trie.0[at as usize].count > 0 {
            outputs.extend(&trie.0[at as usize].own);
            at = trie.0[at as usize].fall;
        }
        ends.push(outputs.len() as u32);
    }
    let table = if trie.0.len() <= 1 << 16 {
        Table::Narrow(rows(&trie, &order, &number, plain.len()))
    } else {
        Table::Wide(rows(&trie, &order, &number, plain.len()))
    };
    Ok(Automaton { table, ends, outputs, patterns })
}

/// Computes the state that each state falls back to; returns all states by depth.
fn compute_fallbacks(trie: &mut Trie) -> Vec<u32> {
    let mut order = Vec::with_capacity(trie.0.len());
    let mut queue = VecDeque::from([0]);
    while let Some(state) = queue.pop_front() {
        order.push(state);
        let children: Vec<u32> = trie.children(state).collect();
        for child in children {
            let byte = trie.0[child as usize].byte;
            let mut fallback = 0;
            if state != 0 {
                let mut at = trie.0[state as usize].fall;
                fallback = loop {
                    match trie.child(at, byte) {
                        Some(longer) => break longer,
                        None if at == 0 => break 0,
                        None => at = trie.0[at as usize].fall,
                    }
                };
            }
            let count = trie.0[child as usize].own.len() as u32 + trie.0[fallback as usize].count;
            (trie.0[child as usize].fall, trie.0[child as usize].count) = (fallback, count);
            queue.push_back(child);
        }
    }
    order
}

fn rows<S: State>(trie: &Trie, order: &[u32], number: &[usize], plain: usize) -> Rows<S> {
    let mut rows = sinew_mem::room_for_random_access(order.len());
    rows.resize(order.len(), [S::default(); 256]);
    for state in order {
        let node = &trie.0[*state as usize];
        // By default a state goes where its fall-back state goes, whose row has been filled already.
        let mut row = if *state == 0 { [S::default(); 256] } else { rows[number[node.fall as usize]] };
        for child in trie.children(*state) {
            let (byte, next) = (trie.0[child as usize].byte, S::of(number[child as usize]));
            row[usize::from(byte)] = next;
            row[usize::from(byte.to_ascii_uppercase())] = next;
        }
        rows[number[*state as usize]] = row;
    }
    Rows { rows, first_match: S::of(plain) }
}
