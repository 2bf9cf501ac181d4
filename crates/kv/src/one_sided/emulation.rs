//! Searches without a table, as sigcomm14 5.1 emulates them.

use sinew_mem::SharedMemory;
use sinew_store::remote::{Index, Span, Step, Table, TableError};

/// A search of a fixed number of READs of fixed sizes, at places that depend on the key. There is no table: the memory
/// holds words that contain their own index, by which each READ is checked. PUTs are received and forgotten, which
/// gives the emulated design an advantage over a real one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emulation {
    /// Words of the memory, 8 bytes each.
    pub words: u64,
    /// Length of a READ of the index, in bytes.
    pub probe_len: u32,
    /// Keys of ten, from 0 to 10, for which the index is READ twice instead of once.
    pub second_probes_of_ten: u32,
    /// Length of the final READ of the value, in bytes; 0 for none, because the value is in the index.
    pub value_len: u32,
}

/// The state of a search.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    state: u64,
    span: Span,
    probes_left: u32,
    is_value: bool,
}

impl Emulation {
    /// Fills the memory: each word contains its own index.
    pub fn fill(&self, memory: &SharedMemory) {
        for word in 0..self.words.min(memory.len() as u64 / 8) {
            // Within bounds by the range above.
            let _ = memory.store(word as usize * 8, word);
        }
    }

    fn span(&self, state: &mut u64, len: u32) -> Span {
        // splitmix64
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = *state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        let places = self.words - u64::from(len).div_ceil(8) + 1;
        Span { offset: ((u128::from(mixed) * u128::from(places)) >> 64) as u64 * 8, len: len as usize }
    }

    fn is_possible(&self) -> bool {
        let longest = self.probe_len.max(self.value_len);
        self.words <= 1 << 37
            && u64::from(longest).div_ceil(8) <= self.words
            && longest <= 1 << 30
            && self.probe_len > 0
            && self.second_probes_of_ten <= 10
    }
}

impl Index for Emulation {
    type Search = Search;

    fn search(&self, key: &[u8]) -> (Search, Span) {
        let mut state = key.iter().fold(0u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3));
        let span = self.span(&mut state, self.probe_len);
        let probes_left = u32::from(state >> 32 < u64::from(self.second_probes_of_ten) * (1 << 32) / 10);
        (Search { state, span, probes_left, is_value: false }, span)
    }

    fn step<'a>(&self, search: &mut Search, _: &[u8], bytes: &'a [u8]) -> Step<'a> {
        let words = bytes.as_chunks::<8>().0;
        let first = search.span.offset / 8;
        let ends = [(words.first(), first), (words.last(), (first + words.len() as u64).wrapping_sub(1))];
        if ends.iter().any(|(word, at)| word.is_some_and(|word| u64::from_le_bytes(*word) != *at)) {
            return Step::Again(search.span);
        }
        let len = match (search.probes_left, search.is_value) {
            (0, true) => return Step::Found(bytes),
            (0, false) if self.value_len == 0 => return Step::Found(bytes),
            (0, false) => {
                search.is_value = true;
                self.value_len
            }
            _ => {
                search.probes_left -= 1;
                self.probe_len
            }
        };
        search.span = self.span(&mut search.state, len);
        Step::Read(search.span)
    }

    fn read_len_max(&self) -> usize {
        self.probe_len.max(self.value_len) as usize
    }

    fn memory_len(&self) -> usize {
        self.words as usize * 8
    }

    fn describe(&self) -> Vec<u8> {
        let mut bytes = self.words.to_le_bytes().to_vec();
        for part in [self.probe_len, self.second_probes_of_ten, self.value_len] {
            bytes.extend(part.to_le_bytes());
        }
        bytes
    }

    fn from_description(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.split_first_chunk::<8>()?;
        let (parts, []) = rest.as_chunks::<4>() else { return None };
        let [probe_len, second_probes_of_ten, value_len] = *parts else { return None };
        let emulation = Self {
            words: u64::from_le_bytes(*words),
            probe_len: u32::from_le_bytes(probe_len),
            second_probes_of_ten: u32::from_le_bytes(second_probes_of_ten),
            value_len: u32::from_le_bytes(value_len),
        };
        emulation.is_possible().then_some(emulation)
    }
}

/// A placeholder for a table: it accepts every change, and keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTable;

impl Table for NoTable {
    type Located = ();

    fn locate(&self, _: &[u8]) {}

    fn put_located(&mut self, _: &[u8], _: &[u8], (): &()) -> Result<bool, TableError> {
        Ok(false)
    }

    fn delete_located(&mut self, _: &[u8], (): &()) -> bool {
        false
    }

    fn len(&self) -> usize {
        0
    }
}
