//! The machine's limit: random cache lines that are known in advance.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Context;
use sinew::mem::TableWords;

use super::{STRETCH, TRACE, mixed};

/// Words of a cache line.
const LINE: usize = 8;

/// Memory whose lines are read at random.
#[derive(Debug)]
pub struct RandomLines {
    words: TableWords,
    lines: Vec<u32>,
}

impl RandomLines {
    /// Takes `bytes` of memory, at least a line.
    ///
    /// # Errors
    ///
    /// There is not enough.
    pub fn new(bytes: usize) -> anyhow::Result<Self> {
        let count = (bytes / 64).max(1);
        let words = TableWords::zeroed(count * LINE).context("memory for the limit")?;
        (0..count).for_each(|line| words.store(line * LINE, line as u64));
        let place = |at: usize| ((u128::from(mixed(at as u64 + 1)) * count as u128) >> 64) as u32;
        Ok(Self { words, lines: (0..TRACE).map(place).collect() })
    }

    /// Prefetches `width` lines and then reads them, for `duration`. Returns millions of lines a second.
    pub fn mops(&self, width: usize, duration: Duration) -> f64 {
        let began = Instant::now();
        let (mut read, mut at, mut sum) = (0usize, 0, 0u64);
        while began.elapsed() < duration {
            at = if at + STRETCH > self.lines.len() { 0 } else { at };
            for lines in self.lines[at..at + STRETCH].chunks(width) {
                lines.iter().for_each(|line| self.words.prefetch_line(*line as usize * LINE));
                for line in lines {
                    sum = sum.wrapping_add(self.words.load(*line as usize * LINE));
                }
            }
            at += STRETCH;
            read += STRETCH;
        }
        black_box(sum);
        read as f64 / began.elapsed().as_secs_f64() / 1e6
    }
}
