//! Walking texts through automata, one alone or several in turn.

use super::{Automaton, Hit, Job, Rows, State, Table};

/// Texts walked at once.
pub const LANES: usize = 8;

pub(super) fn plain(automaton: &Automaton, text: &[u8], mut found: impl FnMut(Hit)) {
    match &automaton.table {
        Table::Narrow(rows) => walk(automaton, rows, text, 0, 0, &mut found),
        Table::Wide(rows) => walk(automaton, rows, text, 0, 0, &mut found),
    }
}

/// Walks the rest of a text, from `at` on.
#[inline(always)]
fn walk<S: State>(
    automaton: &Automaton,
    rows: &Rows<S>,
    text: &[u8],
    at: usize,
    mut state: S,
    found: &mut impl FnMut(Hit),
) {
    for (step, byte) in text[at..].iter().enumerate() {
        state = rows.rows[state.index()][usize::from(*byte)];
        if state >= rows.first_match {
            automaton.report(state.index() - rows.first_match.index(), text, at + step + 1, found);
        }
    }
}

/// Finds all patterns in all texts, [`LANES`] texts at a time, and passes each hit to `found` with the number of its
/// text. Hits in one text come in the order of their ends; the texts come in any order. Texts of narrow automata come
/// before those of wide ones.
pub fn scan_all(jobs: &[Job<'_>], found: impl FnMut(usize, Hit)) {
    scan_in_order(jobs, 0..jobs.len(), found);
}

/// As [`scan_all`], for the texts with these numbers, in this order.
///
/// # Panics
///
/// When a number is not that of a job.
pub fn scan_in_order(jobs: &[Job<'_>], order: impl IntoIterator<Item = usize>, mut found: impl FnMut(usize, Hit)) {
    let mut wide = Vec::new();
    let mut narrow = order.into_iter().filter_map(|number| {
        let Job { automaton, text } = jobs[number];
        match &automaton.table {
            Table::Narrow(rows) => Some(Lane { number, automaton, rows, text, at: 0, state: 0 }),
            Table::Wide(rows) => {
                wide.push(Lane { number, automaton, rows, text, at: 0, state: 0 });
                None
            }
        }
    });
    scan_interleaved(&mut narrow, &mut found);
    scan_interleaved(&mut wide.into_iter(), &mut found);
}

/// A text in progress.
#[derive(Clone, Copy)]
struct Lane<'a, S> {
    number: usize,
    automaton: &'a Automaton,
    rows: &'a Rows<S>,
    text: &'a [u8],
    at: usize,
    state: S,
}

impl<S: State> Lane<'_, S> {
    fn left(&self) -> usize {
        self.text.len() - self.at
    }

    fn finish(&self, found: &mut impl FnMut(usize, Hit)) {
        walk(self.automaton, self.rows, self.text, self.at, self.state, &mut |hit| found(self.number, hit));
    }
}

/// Walks texts, as many at once as there are lanes.
fn scan_interleaved<'a, S: State>(texts: &mut impl Iterator<Item = Lane<'a, S>>, found: &mut impl FnMut(usize, Hit)) {
    let Some(first) = texts.next() else { return };
    let mut lanes = [first; LANES];
    let mut count = 1;
    for lane in texts.by_ref().take(LANES - 1) {
        lanes[count] = lane;
        count += 1;
    }
    while count == LANES {
        step(&mut lanes, found);
        // Finished texts make room for the next.
        let mut at = 0;
        while at < count {
            if lanes[at].left() > 0 {
                at += 1;
            } else if let Some(next) = texts.next() {
                lanes[at] = next;
            } else {
                count -= 1;
                lanes[at] = lanes[count];
            }
        }
    }
    // The last texts: in fours, together up to the end of the shortest, and then one by one.
    for lanes in lanes[..count].chunks_mut(4) {
        if let Some(four) = lanes.first_chunk_mut::<4>() {
            step(four, found);
        }
        lanes.iter().for_each(|lane| lane.finish(found));
    }
}

/// Advances all lanes to the end of the shortest, one byte of each in turn.
#[inline]
fn step<S: State, const N: usize>(lanes: &mut [Lane<'_, S>; N], found: &mut impl FnMut(usize, Hit)) {
    let steps = lanes.iter().map(Lane::left).min().unwrap_or(0);
    let texts: [&[u8]; N] = std::array::from_fn(|lane| &lanes[lane].text[lanes[lane].at..][..steps]);
    let tables: [&[[S; 256]]; N] = std::array::from_fn(|lane| &lanes[lane].rows.rows[..]);
    let firsts: [S; N] = std::array::from_fn(|lane| lanes[lane].rows.first_match);
    let mut states: [S; N] = std::array::from_fn(|lane| lanes[lane].state);
    for step in 0..steps {
        for lane in 0..N {
            let state = tables[lane][states[lane].index()][usize::from(texts[lane][step])];
            states[lane] = state;
            if state >= firsts[lane] {
                let Lane { number, automaton, text, at, .. } = lanes[lane];
                let nth = state.index() - firsts[lane].index();
                automaton.report(nth, text, at + step + 1, &mut |hit| found(number, hit));
            }
        }
    }
    for (lane, state) in lanes.iter_mut().zip(states) {
        lane.at += steps;
        lane.state = state;
    }
}
