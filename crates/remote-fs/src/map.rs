//! Map of a file's pages to pages of the donors' memory.
//!
//! A map consists of chunks of 64 pages, each an array of places and checksums. It takes 16 bytes a page, in whatever
//! order a file was written, and one lookup to find or replace a page. If a file was truncated within a page, and
//! extended later, only the first bytes of the page belong to the file. The map lists such pages separately, so that
//! they need not be rewritten.
//!
//! Some holes are *allocated*: room was promised to them (`fallocate`), without saying which pages. The map lists them
//! as ranges.

mod ranges;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::protocol::{PAGE, Pages, Run, Sums, contents_name};
use ranges::Ranges;

/// Pages of a chunk.
const CHUNK: u64 = 64;

/// Place and checksum of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    segment: u32,
    page: u32,
    /// Checksum; 0 for a hole.
    sum: u64,
}

impl Slot {
    const HOLE: Self = Self { segment: 0, page: 0, sum: 0 };

    fn is_hole(self) -> bool {
        self.sum == 0
    }
}

/// The pages of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Run>", into = "Vec<Run>")]
pub struct Map {
    /// Chunks by number; none is empty or ends with a hole.
    chunks: BTreeMap<u64, Vec<Slot>>,
    /// Pages of which only the first bytes belong to the file, with the number of these.
    short: BTreeMap<u64, u16>,
    pages: u64,
    /// Holes to which room was promised.
    allocated: Ranges,
}

/// Adds a page to the freed ones, in one run with its neighbour if possible.
fn free_slot(freed: &mut Vec<Pages>, slot: Slot) {
    match freed.last_mut() {
        Some(last) if last.segment == slot.segment && last.first + last.count == slot.page => last.count += 1,
        _ => freed.push(Pages { segment: slot.segment, first: slot.page, count: 1 }),
    }
}

impl Map {
    /// Number of pages that are not holes.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Number of holes to which room was promised.
    pub fn allocated_pages(&self) -> u64 {
        self.allocated.len()
    }

    /// Number of pages from `at` to before `end` that are stored.
    fn stored(&self, at: u64, end: u64) -> u64 {
        if at >= end {
            return 0;
        }
        let chunks = self.chunks.range(at / CHUNK..=(end - 1) / CHUNK);
        let pages = chunks.flat_map(|(number, chunk)| (number * CHUNK..).zip(chunk));
        pages.filter(|(page, slot)| (at..end).contains(page) && !slot.is_hole()).count() as u64
    }

    /// Number of holes from `at` to before `end` to which no room was promised: what it takes to fill the range.
    pub fn lacking(&self, at: u64, end: u64) -> u64 {
        end.saturating_sub(at) - self.stored(at, end) - self.allocated.count(at, end)
    }

    /// Promises room to the holes from `at` to before `end`.
    pub fn allocate(&mut self, at: u64, end: u64) {
        if at >= end {
            return;
        }
        self.allocated.insert(at, end);
        for (number, chunk) in self.chunks.range(at / CHUNK..=(end - 1) / CHUNK) {
            let stored = (number * CHUNK..).zip(chunk).filter(|(_, slot)| !slot.is_hole());
            stored.for_each(|(page, _)| self.allocated.remove(page, page + 1));
        }
    }

    /// Withdraws the promise of room to all holes from `at` on.
    pub fn forget_allocated(&mut self, at: u64) {
        self.allocated.remove(at, u64::MAX);
    }

    fn slot(&self, at: u64) -> Slot {
        let chunk = self.chunks.get(&(at / CHUNK));
        chunk.and_then(|chunk| chunk.get((at % CHUNK) as usize)).copied().unwrap_or(Slot::HOLE)
    }

    /// Whether the pages from `at` on have the contents with these [names](contents_name); 0 stands for a hole.
    pub fn has(&self, at: u64, names: &Sums) -> bool {
        let name = |at| match self.slot(at) {
            slot if slot.is_hole() => 0,
            slot => contents_name(slot.sum, self.last_len(at).into()),
        };
        (at..).zip(&names.0).all(|(at, expected)| name(at) == *expected)
    }

    /// Sets pages. Replaced pages are added to `freed`.
    pub fn put(&mut self, at: u64, pages: Pages, sums: &Sums, freed: &mut Vec<Pages>) {
        for (index, sum) in sums.0.iter().enumerate().take(pages.count as usize) {
            let at = at + index as u64;
            let chunk = self.chunks.entry(at / CHUNK).or_default();
            let place = (at % CHUNK) as usize;
            if chunk.len() <= place {
                chunk.resize(place + 1, Slot::HOLE);
            }
            let new = Slot { segment: pages.segment, page: pages.first + index as u32, sum: *sum };
            let old = std::mem::replace(&mut chunk[place], new);
            if old.is_hole() {
                self.pages += 1;
            } else {
                free_slot(freed, old);
            }
        }
        let end = at + u64::from(pages.count);
        self.forget_short(at, end);
        self.allocated.remove(at, end);
    }

    /// Makes the pages from `at` to before `end` a hole without a promise of room. Removed pages are added to `freed`.
    pub fn punch(&mut self, at: u64, end: u64, freed: &mut Vec<Pages>) {
        if at >= end {
            return;
        }
        let chunk_numbers: Vec<u64> =
            self.chunks.range(at / CHUNK..=(end - 1) / CHUNK).map(|(number, _)| *number).collect();
        for number in chunk_numbers {
            let Some(chunk) = self.chunks.get_mut(&number) else { continue };
            let base = number * CHUNK;
            let first = at.saturating_sub(base) as usize;
            let last = (end - base).min(chunk.len() as u64) as usize;
            for slot in chunk.get_mut(first..last).unwrap_or_default() {
                if !slot.is_hole() {
                    self.pages -= 1;
                    free_slot(freed, std::mem::replace(slot, Slot::HOLE));
                }
            }
            while chunk.pop_if(|slot| slot.is_hole()).is_some() {}
            if chunk.is_empty() {
                self.chunks.remove(&number);
            }
        }
        self.forget_short(at, end);
        self.allocated.remove(at, end);
    }

    /// Truncates the file to `len` bytes. If it is extended later, the rest reads as zeros. Removed pages are added to
    /// `freed`.
    pub fn cut(&mut self, len: u64, freed: &mut Vec<Pages>) {
        let page = PAGE as u64;
        self.punch(len.div_ceil(page), u64::MAX, freed);
        let (at, bytes) = (len / page, (len % page) as u16);
        if bytes > 0 && !self.slot(at).is_hole() {
            let short = self.short.entry(at).or_insert(bytes);
            *short = bytes.min(*short);
        }
    }

    fn forget_short(&mut self, at: u64, end: u64) {
        while let Some((&short, _)) = self.short.range(at..end).next() {
            self.short.remove(&short);
        }
    }

    fn last_len(&self, at: u64) -> u16 {
        self.short.get(&at).copied().unwrap_or(PAGE as u16)
    }

    /// Returns the pages from `at` to before `end` as runs in order, and the page at which the answer ends: `end`, or
    /// an earlier one if `go_on` returned false for the last complete run.
    pub fn runs(&self, at: u64, end: u64, mut go_on: impl FnMut(&Run) -> bool) -> (Vec<Run>, u64) {
        let mut runs: Vec<Run> = Vec::new();
        if at >= end {
            return (runs, end);
        }
        for (&number, chunk) in self.chunks.range(at / CHUNK..=(end - 1) / CHUNK) {
            let base = number * CHUNK;
            for (place, slot) in (base..end).zip(chunk) {
                if place < at || slot.is_hole() {
                    continue;
                }
                let last_len = self.last_len(place);
                if let Some(run) = runs.last_mut()
                    && run.at + u64::from(run.pages.count) == place
                    && run.pages.segment == slot.segment
                    && run.pages.first + run.pages.count == slot.page
                    && usize::from(run.last_len) == PAGE
                {
                    run.pages.count += 1;
                    run.sums.0.push(slot.sum);
                    run.last_len = last_len;
                    continue;
                }
                if runs.last().is_some_and(|run| !go_on(run)) {
                    return (runs, place);
                }
                let pages = Pages { segment: slot.segment, first: slot.page, count: 1 };
                runs.push(Run { at: place, pages, last_len, sums: Sums(vec![slot.sum]) });
            }
        }
        (runs, end)
    }

    /// Passes the stored pages of up to `chunks_max` chunks to `each`, from that of page `at` on: segment, page in it,
    /// checksum. Returns the number of chunks, and the page to go on from unless these were the last.
    pub fn visit(&self, at: u64, chunks_max: usize, mut each: impl FnMut(u32, u32, u64)) -> (usize, Option<u64>) {
        let mut chunks = self.chunks.range(at / CHUNK..);
        let mut visited = 0;
        for (_, chunk) in chunks.by_ref().take(chunks_max) {
            chunk.iter().filter(|slot| !slot.is_hole()).for_each(|slot| each(slot.segment, slot.page, slot.sum));
            visited += 1;
        }
        (visited, chunks.next().map(|(number, _)| number * CHUNK))
    }

    /// Returns the first page at or after `at` that is not a hole.
    pub fn next_stored(&self, at: u64) -> Option<u64> {
        let chunks = self.chunks.range(at / CHUNK..);
        let mut pages = chunks.flat_map(|(number, chunk)| (number * CHUNK..).zip(chunk));
        pages.find(|(page, slot)| *page >= at && !slot.is_hole()).map(|(page, _)| page)
    }

    /// Returns all stored pages as runs.
    pub fn all(&self) -> Vec<Run> {
        self.runs(0, u64::MAX, |_| true).0
    }
}

/// A run without checksums stands for allocated pages. Versions that know none leave it out.
fn allocated_run(at: u64, count: u32) -> Run {
    Run { at, pages: Pages { segment: 0, first: 0, count }, last_len: PAGE as u16, sums: Sums::default() }
}

impl From<Map> for Vec<Run> {
    fn from(map: Map) -> Self {
        let mut runs = map.all();
        for (first, end) in map.allocated.iter() {
            let mut at = first;
            while at < end {
                let count = u32::try_from(end - at).unwrap_or(u32::MAX);
                runs.push(allocated_run(at, count));
                at += u64::from(count);
            }
        }
        runs
    }
}

impl From<Vec<Run>> for Map {
    /// Reads runs from an untrusted source; invalid ones are left out.
    fn from(runs: Vec<Run>) -> Self {
        let (mut map, mut freed) = (Self::default(), Vec::new());
        for Run { at, pages, last_len, sums } in runs {
            let Some(last) = at.checked_add(u64::from(pages.count)).and_then(|end| end.checked_sub(1)) else {
                continue;
            };
            if sums.0.is_empty() {
                map.allocate(at, last + 1);
                continue;
            }
            if pages.first.checked_add(pages.count).is_none() || sums.0.len() != pages.count as usize {
                continue;
            }
            map.put(at, pages, &sums, &mut freed);
            if usize::from(last_len) < PAGE {
                map.short.insert(last, last_len);
            }
        }
        map
    }
}

#[cfg(test)]
mod tests;
