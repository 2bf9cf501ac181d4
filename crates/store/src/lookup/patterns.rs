//! Searching texts for patterns: Aho-Corasick automata, of which each text uses one, walked so that their loads overlap
//! (nsdi15 5).
//!
//! An automaton is a table with a row of 256 next states for each state, so that a step is one load, whose address
//! depends on the load before; a next state has two bytes, and no classes of bytes are looked up first. A text that is
//! walked alone ([`Automaton::scan`]) waits for each load. [`scan_all`] walks several texts at once, a byte of each in
//! turn (loop interchange), and takes the next text when one ends. It works best when consecutive texts use the same
//! automaton, whose rows are then in the cache, and when the longest texts come first: callers sort large batches
//! accordingly. The interleaver is not used: rows in use are in the caches, so there is nothing to prefetch, and a
//! switch for each byte would cost more than it hides.
//!
//! States that end a pattern have the highest numbers, so that one comparison tells whether something was found. The
//! rows are the same for upper and lower case, so texts are matched without regard to case; a pattern for which case
//! matters is compared once more where it was found.
//!
//! The automata are built here, not by the aho-corasick crate, whose tables are private: it gives one next state at a
//! time, so a table of this layout would mean building the crate's, with rows of four-byte states over classes of
//! bytes, and walking all of it. The tests compare every hit with the crate's (`tests/patterns.rs`), and `sinew forward
//! patterns` measures it for comparison.
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

/// A pattern, and whether case matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    bytes: Vec<u8>,
    is_exact: bool,
}

impl Pattern {
    /// A pattern that matches exactly these bytes.
    pub fn exact(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), is_exact: true }
    }

    /// A pattern whose ASCII letters match in either case.
    pub fn any_case(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), is_exact: false }
    }

    /// The bytes of the pattern.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether case matters.
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }
}

/// Reason why an automaton cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// A pattern is empty, and would match everywhere.
    #[error("pattern {pattern} is empty, and would be found everywhere")]
    Empty {
        /// Index of the pattern.
        pattern: usize,
    },
    /// The automaton would have too many states.
    #[error("the patterns have more than {STATES_MAX} bytes together: divide them among several automata")]
    TooLarge,
}

/// Most states of an automaton.
pub const STATES_MAX: usize = 1 << 24;

/// The place where a pattern was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hit {
    /// Index of the pattern, in the order given to the automaton.
    pub pattern: u32,
    /// Index of the byte after the match.
    pub end: u32,
}

/// A text, with the automaton that searches it.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The automaton.
    pub automaton: &'a Automaton,
    /// The text, of fewer than 2^32 bytes.
    pub text: &'a [u8],
}

/// The number of a state, in the width that the automaton needs.
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

/// The table of next states.
#[derive(Debug)]
pub(crate) struct Rows<S> {
    rows: Vec<[S; 256]>,
    /// First of the states that end patterns.
    first_match: S,
}

#[derive(Debug)]
pub(crate) enum Table {
    /// Up to 65,536 states.
    Narrow(Rows<u16>),
    Wide(Rows<u32>),
}

/// An automaton, which finds all of its patterns in a text.
#[derive(Debug)]
pub struct Automaton {
    table: Table,
    /// For each state that ends patterns, the start of its patterns in `outputs`; and the end of the last.
    ends: Vec<u32>,
    /// Indices of patterns; those of a state are ordered by length, longest first.
    outputs: Vec<u32>,
    patterns: Vec<Pattern>,
}

impl Automaton {
    /// Builds an automaton for these patterns. A pattern given twice is found twice.
    ///
    /// # Errors
    ///
    /// [`PatternError`].
    pub fn new(patterns: impl IntoIterator<Item = Pattern>) -> Result<Self, PatternError> {
        build::automaton(patterns.into_iter().collect())
    }

    /// The patterns, by index.
    pub fn patterns(&self) -> &[Pattern] {
        &self.patterns
    }

    /// Number of states.
    pub fn states(&self) -> usize {
        match &self.table {
            Table::Narrow(rows) => rows.rows.len(),
            Table::Wide(rows) => rows.rows.len(),
        }
    }

    /// Length of the table, in bytes.
    pub fn bytes(&self) -> usize {
        self.states() * 256 * if matches!(self.table, Table::Narrow(_)) { 2 } else { 4 }
    }

    /// Finds all patterns in a text, byte by byte: the plain form.
    #[inline]
    pub fn scan(&self, text: &[u8], found: impl FnMut(Hit)) {
        scan::plain(self, text, found);
    }

    /// Passes on the patterns that end at `end`, in the `nth` of the states that end any.
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
