//! Pattern matching, on one thread (nsdi15 5): rules, payloads, and four ways to find rules in payloads.
//!
//! All of it is made from a seed. There are 23,331 patterns in 450 groups, whose sizes fall as 1 / (rank + 8). Seven
//! patterns in ten are two to four *words* with a mark between them, half of these without regard to case; the others
//! are 4 to 23 arbitrary bytes. Patterns are cut at 40 bytes. There are 4,000 words of three to eight letters; the n-th
//! has frequency 1 / n.
//!
//! There are 65,536 payloads. Half have 64 to 256 bytes, half 512 to 1,460, with all lengths equally frequent. Nine in
//! ten are words and marks, the tenth arbitrary bytes. A group is chosen in proportion to its number of patterns. One
//! payload in 50 has a pattern of its group somewhere; others have one by chance, since the words are the same.

use std::time::{Duration, Instant};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use anyhow::ensure;
use sinew::fabric::{Generator, SeededGenerator};
use sinew::forward::filter::{BATCH, Filter};
use sinew::store::lookup::patterns::Pattern;

/// Way to find patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchMethod {
    /// In large batches, sorted, several payloads at a time.
    Sorted,
    /// Payload after payload, byte after byte.
    Plain,
    /// Several payloads at a time, in order of arrival.
    Interchanged,
    /// By the `aho-corasick` crate: a DFA of the standard kind for each group, with overlapping matches and no
    /// prefilter, payload after payload.
    Crate,
}

impl SearchMethod {
    /// All ways.
    pub const ALL: [Self; 4] = [Self::Sorted, Self::Plain, Self::Interchanged, Self::Crate];
}

/// Sizes of rules and payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Patterns, over all groups.
    pub patterns: usize,
    /// Groups.
    pub groups: usize,
    /// Payloads.
    pub payloads: usize,
}

impl Sizes {
    /// The paper's numbers of patterns and groups.
    pub const PAPER: Self = Self { patterns: 23_331, groups: 450, payloads: 1 << 16 };
}

/// Rules and payloads.
pub struct Patterns {
    filter: Filter,
    crates: Vec<AhoCorasick>,
    /// Bytes of each pattern whose case counts, by group and pattern, to check hits of the crate's automata.
    exact: Vec<Vec<Option<Box<[u8]>>>>,
    payloads: Vec<(u32, Vec<u8>)>,
    hits: Vec<u32>,
    next: usize,
    batch: usize,
}

const WORDS: u64 = 4000;
const MARKS: &[u8] = b" /.=&?-_:;%<>\"\n";
const PATTERN_LEN_MAX: usize = 40;

fn word(draw: &mut SeededGenerator, into: &mut Vec<u8>) {
    // The n-th word has frequency 1 / n: the logarithm of n is uniform.
    let unit = draw.below(1 << 30) as f64 / f64::from(1 << 30);
    let nth = (WORDS as f64).powf(unit) as u64;
    let mut letters = SeededGenerator::new(nth);
    for _ in 0..3 + letters.below(6) {
        into.push(b'a' + letters.below(26) as u8);
    }
}

fn mark(draw: &mut SeededGenerator) -> u8 {
    MARKS[draw.below(MARKS.len() as u64) as usize]
}

fn pattern(draw: &mut SeededGenerator) -> Pattern {
    let mut bytes = Vec::new();
    if draw.below(10) < 7 {
        for _ in 0..2 + draw.below(3) {
            if !bytes.is_empty() {
                bytes.push(mark(draw));
            }
            word(draw, &mut bytes);
        }
        bytes.truncate(PATTERN_LEN_MAX);
        if draw.below(2) == 0 {
            return Pattern::any_case(bytes);
        }
    } else {
        bytes.extend((0..4 + draw.below(20)).map(|_| draw.next_u64() as u8));
    }
    Pattern::exact(bytes)
}

fn payload(draw: &mut SeededGenerator, group: &[Pattern]) -> Vec<u8> {
    let len = if draw.below(2) == 0 { 64 + draw.below(193) } else { 512 + draw.below(949) } as usize;
    let mut bytes = Vec::with_capacity(len + 16);
    let is_text = draw.below(10) < 9;
    while bytes.len() < len {
        if is_text {
            word(draw, &mut bytes);
            bytes.push(mark(draw));
        } else {
            bytes.push(draw.next_u64() as u8);
        }
    }
    bytes.truncate(len);
    if draw.below(50) == 0 && !group.is_empty() {
        let pattern = group[draw.below(group.len() as u64) as usize].bytes();
        let pattern = &pattern[..pattern.len().min(len)];
        let at = draw.below((len - pattern.len()) as u64 + 1) as usize;
        bytes[at..at + pattern.len()].copy_from_slice(pattern);
    }
    bytes
}

impl Patterns {
    /// Makes rules and payloads from a seed.
    ///
    /// # Errors
    ///
    /// The crate cannot make an automaton.
    pub fn new(sizes: Sizes, seed: u64) -> anyhow::Result<Self> {
        let mut draw = SeededGenerator::new(seed);
        let weights: Vec<f64> = (0..sizes.groups).map(|rank| 1.0 / (rank as f64 + 8.0)).collect();
        let total: f64 = weights.iter().sum();
        let mut left = sizes.patterns;
        let mut groups: Vec<Vec<Pattern>> = Vec::with_capacity(sizes.groups);
        for (rank, weight) in weights.iter().enumerate() {
            let count = (sizes.patterns as f64 * weight / total).round().max(1.0) as usize;
            let count = if rank + 1 == sizes.groups { left } else { count.min(left) };
            left -= count;
            groups.push((0..count).map(|_| pattern(&mut draw)).collect());
        }
        Self::of(groups, sizes.payloads, draw)
    }

    /// Makes payloads for these groups of patterns, such as a rule file's.
    ///
    /// # Errors
    ///
    /// An automaton cannot be made; there is no pattern.
    pub fn of(groups: Vec<Vec<Pattern>>, payloads: usize, mut draw: SeededGenerator) -> anyhow::Result<Self> {
        let mut of_group = Vec::new();
        (0..).zip(&groups).for_each(|(number, group)| of_group.extend(group.iter().map(|_| number)));
        ensure!(!of_group.is_empty() && payloads > 0, "there are no patterns, or no payloads");
        let payloads: Vec<(u32, Vec<u8>)> = (0..payloads)
            .map(|_| {
                let group: u32 = of_group[draw.below(of_group.len() as u64) as usize];
                (group, payload(&mut draw, &groups[group as usize]))
            })
            .collect();
        let crates = groups.iter().map(|group| {
            let mut builder = AhoCorasick::builder();
            builder.kind(Some(AhoCorasickKind::DFA)).match_kind(MatchKind::Standard).prefilter(false);
            // Patterns whose case counts are checked afterwards, as in our automata.
            Ok(builder.ascii_case_insensitive(true).build(group.iter().map(Pattern::bytes))?)
        });
        let crates = crates.collect::<anyhow::Result<Vec<_>>>()?;
        let of = |pattern: &Pattern| pattern.is_exact().then(|| pattern.bytes().into());
        let exact = groups.iter().map(|group| group.iter().map(of).collect()).collect();
        let filter = Filter::of_groups(groups)?;
        let (hits, batch) = (vec![0; payloads.len()], BATCH.min(payloads.len()));
        let mut patterns = Self { filter, crates, exact, payloads, hits, next: 0, batch };
        let mut hits = vec![0; patterns.payloads.len()];
        for (number, hits) in hits.iter_mut().enumerate() {
            *hits = patterns.hits_by_crate(number);
        }
        patterns.hits = hits;
        Ok(patterns)
    }

    /// Number of automata, of their states, and of the bytes of their tables.
    pub fn size(&self) -> (usize, usize, usize) {
        self.filter.size()
    }

    /// Size of the crate's tables, in bytes.
    pub fn crate_bytes(&self) -> usize {
        self.crates.iter().map(AhoCorasick::memory_usage).sum()
    }

    /// Hits in a thousand bytes.
    pub fn hits_per_kb(&self) -> f64 {
        let bytes: usize = self.payloads.iter().map(|(_, bytes)| bytes.len()).sum();
        f64::from(self.hits.iter().sum::<u32>()) / bytes as f64 * 1000.0
    }

    #[inline]
    fn hits_by_crate(&self, number: usize) -> u32 {
        let (group, text) = &self.payloads[number];
        let exact = &self.exact[*group as usize];
        let hits = self.crates[*group as usize].find_overlapping_iter(text);
        hits.filter(|hit| exact[hit.pattern().as_usize()].as_deref().is_none_or(|bytes| &text[hit.range()] == bytes))
            .count() as u32
    }

    /// Searches payloads for `duration`. Returns Gbps.
    ///
    /// # Errors
    ///
    /// A payload has more or fewer hits than it must have.
    pub fn gbps(&mut self, method: SearchMethod, duration: Duration) -> anyhow::Result<f64> {
        let mut hits = vec![0u32; self.batch];
        let began = Instant::now();
        let (mut bytes, mut good) = (0, true);
        while began.elapsed() < duration {
            let first = if self.next + self.batch > self.payloads.len() { 0 } else { self.next };
            self.next = first + self.batch;
            hits.fill(0);
            let batch = &self.payloads[first..self.next];
            match method {
                SearchMethod::Plain => {
                    for ((group, text), hits) in batch.iter().zip(&mut hits) {
                        self.filter.scan_one(*group, text, |_| *hits += 1);
                    }
                }
                SearchMethod::Sorted | SearchMethod::Interchanged => {
                    let texts: Vec<(u32, &[u8])> = batch.iter().map(|(group, text)| (*group, &**text)).collect();
                    self.filter.scan_assigned(&texts, method == SearchMethod::Sorted, |number, _| hits[number] += 1);
                }
                SearchMethod::Crate => {
                    for (number, hits) in (first..).zip(&mut hits) {
                        *hits = self.hits_by_crate(number);
                    }
                }
            }
            good &= hits[..] == self.hits[first..self.next];
            bytes += batch.iter().map(|(_, text)| text.len()).sum::<usize>();
        }
        ensure!(good, "a payload has the wrong number of hits");
        Ok(bytes as f64 * 8.0 / began.elapsed().as_secs_f64() / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_finds_the_same_and_what_is_wrong_is_noticed() {
        let mut patterns = Patterns::new(Sizes { patterns: 500, groups: 20, payloads: 300 }, 1).unwrap();
        assert!(patterns.hits_per_kb() > 0.0);
        for method in SearchMethod::ALL {
            assert!(patterns.gbps(method, Duration::from_millis(1)).unwrap() > 0.0);
        }
        patterns.hits[0] += 1;
        patterns.next = 0;
        assert!(patterns.gbps(SearchMethod::Sorted, Duration::from_millis(1)).is_err());
    }
}
