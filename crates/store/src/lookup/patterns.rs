//! Patterns in texts: Aho and Corasick's automata, one of several for each text, walked so that their loads overlap (nsdi15 5).
//!
//! An automaton is a table with a row of 256 next states for each state, so that a step is one load, whose address depends on the load before. Walked alone
//! ([`Automaton::scan`]) a text waits for each of them. [`scan_all`] walks several texts at once, a byte of each in turn (loop interchange), and takes the next text when one ends. It
//! helps when texts that follow each other are of one automaton, whose rows are in the cache then, and begin with the longest: callers sort large batches so.
//!
//! States that end a pattern have the highest numbers, so that one comparison tells whether something was found. Texts are compared without regard to case by rows that
//! are the same for both cases; a pattern for which it counts is compared once more where it was found.
//!
//! The automata are built here and not taken from the aho-corasick crate, whose tables are its own business: it tells one next state at a time, so a table of this layout would be made by
//! building the crate's, with rows of four-byte states over classes of bytes, and walking all of it. The crate is what the tests compare every hit with (`tests/patterns.rs`), and what
//! `sinew forward patterns` measures beside.
//!
//! ```
//! use sinew_store::lookup::patterns::{Automaton, Job, Pattern, scan_all};
//!
//! let patterns = [Pattern::exact(b"cat"), Pattern::any_case(b"AT")];
//! let automaton = Automaton::new(patterns)?;
//! let texts: [&[u8]; 2] = [b"a cat", b"Cat"];
//! let jobs = texts.map(|text| Job { automaton: &automaton, text });
//! let mut found = Vec::new();
//! scan_all(&jobs, |text, hit| found.push((text, hit.pattern, hit.end)));
//! found.sort();
//! assert_eq!(found, [(0, 0, 5), (0, 1, 5), (1, 1, 3)]);
//! # Ok::<(), sinew_store::lookup::patterns::PatternError>(())
//! ```

mod build;
mod scan;

pub use scan::{LANES, scan_all, scan_in_order};

/// A pattern, and whether case counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    bytes: Vec<u8>,
    is_exact: bool,
}

impl Pattern {
    /// A pattern that is these very bytes.
    pub fn exact(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), is_exact: true }
    }

    /// A pattern whose letters of ASCII are found in either case.
    pub fn any_case(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), is_exact: false }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether case counts.
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }
}

/// Why there is no such automaton.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// A pattern is everywhere.
    #[error("pattern {pattern} is empty, and would be found everywhere")]
    Empty {
        /// Its number.
        pattern: usize,
    },
    /// There are too many states.
    #[error("the patterns have more than {STATES_MAX} bytes together: divide them among several automata")]
    TooLarge,
}

/// States of an automaton.
pub const STATES_MAX: usize = 1 << 24;

/// Where a pattern was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hit {
    /// The pattern's number, in the order in which the automaton was given them.
    pub pattern: u32,
    /// Where it ends: the index of the byte behind it.
    pub end: u32,
}

/// A text, and what it is searched with.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The automaton.
    pub automaton: &'a Automaton,
    /// The text, of fewer than 2^32 bytes.
    pub text: &'a [u8],
}

/// A number of a state, in the width that the automaton needs.
pub(crate) trait State: Copy + Default + Ord + std::fmt::Debug + 'static {
    fn of(state: usize) -> Self;
    fn index(self) -> usize;
}

impl State for u16 {
    fn of(state: usize) -> Self {
        state as Self
    }

    #[inline(always)]
    fn index(self) -> usize {
        self.into()
    }
}

impl State for u32 {
    fn of(state: usize) -> Self {
        state as Self
    }

    #[inline(always)]
    fn index(self) -> usize {
        self as usize
    }
}

/// Next states.
#[derive(Debug)]
pub(crate) struct Rows<S> {
    rows: Vec<[S; 256]>,
    /// From this one on states end patterns.
    first_match: S,
}

#[derive(Debug)]
pub(crate) enum Table {
    /// Up to 65,536 states.
    Narrow(Rows<u16>),
    Wide(Rows<u32>),
}

/// Finds all of its patterns in a text.
#[derive(Debug)]
pub struct Automaton {
    table: Table,
    /// Where the patterns of each state that ends some begin in `outputs`; one more for the end.
    ends: Vec<u32>,
    /// Numbers of patterns, the longest first.
    outputs: Vec<u32>,
    patterns: Vec<Pattern>,
}

impl Automaton {
    /// An automaton for these patterns. The same pattern may be given twice, and is found twice.
    ///
    /// # Errors
    ///
    /// [`PatternError`].
    pub fn new(patterns: impl IntoIterator<Item = Pattern>) -> Result<Self, PatternError> {
        build::automaton(patterns.into_iter().collect())
    }

    /// Its patterns, by number.
    pub fn patterns(&self) -> &[Pattern] {
        &self.patterns
    }

    /// States there are.
    pub fn states(&self) -> usize {
        match &self.table {
            Table::Narrow(rows) => rows.rows.len(),
            Table::Wide(rows) => rows.rows.len(),
        }
    }

    /// Bytes of its table.
    pub fn bytes(&self) -> usize {
        self.states() * 256 * if matches!(self.table, Table::Narrow(_)) { 2 } else { 4 }
    }

    /// Finds all patterns in a text, byte by byte: the plain form.
    #[inline]
    pub fn scan(&self, text: &[u8], found: impl FnMut(Hit)) {
        scan::plain(self, text, found);
    }

    /// Hands on the patterns that end in a state, the `nth` of those that end any, at `end`.
    #[cold]
    #[inline(never)]
    fn report(&self, nth: usize, text: &[u8], end: usize, found: &mut impl FnMut(Hit)) {
        for pattern in &self.outputs[self.ends[nth] as usize..self.ends[nth + 1] as usize] {
            let Pattern { bytes, is_exact } = &self.patterns[*pattern as usize];
            if !is_exact || text[..end].ends_with(bytes) {
                found(Hit { pattern: *pattern, end: end as u32 });
            }
        }
    }
}
