//! Uncommitted bytes of a file.
//!
//! They lie in chunks of [`CHUNK_PAGES`] pages, in registered memory, so that a WRITE to a donor can read them there. A
//! chunk that is being flushed no longer changes; data written to it meanwhile lies in a second chunk on top.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use sinew_mem::{AllocError, Arena, Frozen, MessageBuffer};
use sinew_remote_memory::volume::checksum;

use super::reserve::Counts;
use crate::protocol::PAGE;
use crate::space::Purpose;

/// Pages of a chunk.
pub(super) const CHUNK_PAGES: u64 = 64;
const CHUNK: usize = CHUNK_PAGES as usize * PAGE;

/// A page that was written only in part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Partial {
    /// Ranges written, as start and end; ascending, and none touch.
    ranges: Vec<(u16, u16)>,
    /// [Name](crate::protocol::contents_name) of the contents of the page underneath; 0 for a hole.
    pub replaces: u64,
}

impl Partial {
    fn add(&mut self, from: u16, to: u16) {
        let (mut from, mut to) = (from, to);
        self.ranges.retain(|(start, end)| {
            let touches = *start <= to && from <= *end;
            if touches {
                (from, to) = (from.min(*start), to.max(*end));
            }
            !touches
        });
        self.ranges.push((from, to));
        self.ranges.sort_unstable();
    }

    fn is_whole(&self) -> bool {
        self.ranges == [(0, PAGE as u16)]
    }

    /// Returns the page `base` with the bytes written here put over it.
    fn merge_over(&self, ours: &[u8], base: &[u8]) -> Vec<u8> {
        let mut page = base.to_vec();
        for (from, to) in &self.ranges {
            let range = usize::from(*from)..usize::from(*to);
            page[range.clone()].copy_from_slice(&ours[range]);
        }
        page
    }
}

struct Fresh {
    buffer: MessageBuffer,
    mask: u64,
    /// One bit for each page that has room only by overwriting.
    overwrites: u64,
    partial: BTreeMap<u64, Partial>,
}

/// A chunk that is being flushed.
#[derive(Clone)]
pub(super) struct Flushing {
    /// First page of the chunk.
    pub at: u64,
    pub buffer: Frozen,
    /// One bit for each page that was written.
    pub mask: u64,
    /// One bit for each page that has room only by overwriting.
    pub overwrites: u64,
    pub partial: Arc<BTreeMap<u64, Partial>>,
}

impl Flushing {
    /// The purpose for which a page has room.
    pub fn purpose(&self, index: u64) -> Purpose {
        purpose(self.overwrites, index)
    }

    /// The checksums of some of its pages.
    pub fn sums(&self, first: u64, count: u32) -> Vec<u64> {
        (first..first + u64::from(count)).map(|index| checksum(&self.buffer[bytes_of(index)])).collect()
    }
}

/// The uncommitted data of one file.
#[derive(Default)]
pub(super) struct Dirty {
    fresh: BTreeMap<u64, Fresh>,
    flushing: BTreeMap<u64, Flushing>,
}

fn chunk_and_index(page: u64) -> (u64, u64) {
    (page / CHUNK_PAGES, page % CHUNK_PAGES)
}

fn purpose(overwrites: u64, index: u64) -> Purpose {
    if overwrites & (1 << index) != 0 { Purpose::Overwrite } else { Purpose::Any }
}

/// Counts the pages of a mask by their purpose.
fn counts(mask: u64, overwrites: u64) -> Counts {
    let count = |mask: u64| u64::from(mask.count_ones());
    Counts { any: count(mask & !overwrites), overwrite: count(mask & overwrites) }
}

fn bytes_of(index: u64) -> std::ops::Range<usize> {
    let start = index as usize * PAGE;
    start..start + PAGE
}

impl Dirty {
    /// Whether there is no uncommitted data.
    pub fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.flushing.is_empty()
    }

    /// Whether some data is being flushed, or could not be thawed for lack of memory.
    pub fn has_flushing(&self) -> bool {
        !self.flushing.is_empty()
    }

    /// Whether some data is not being flushed.
    pub fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Bytes of memory that the chunks take.
    pub fn bytes(&self) -> usize {
        (self.fresh.len() + self.flushing.len()) * CHUNK
    }

    /// The page as last written here, if it was.
    pub fn page(&self, page: u64) -> Option<&[u8]> {
        let (chunk, index) = chunk_and_index(page);
        if let Some(fresh) = self.fresh.get(&chunk)
            && fresh.mask & (1 << index) != 0
        {
            return Some(&fresh.buffer[bytes_of(index)]);
        }
        self.flushing_page(page)
    }

    fn flushing_page(&self, page: u64) -> Option<&[u8]> {
        let (chunk, index) = chunk_and_index(page);
        let frosted = self.flushing.get(&chunk).filter(|frosted| frosted.mask & (1 << index) != 0)?;
        Some(&frosted.buffer[bytes_of(index)])
    }

    /// Whether a page of the range was written here.
    pub fn overlaps(&self, at: u64, count: u64) -> bool {
        if self.is_empty() || count == 0 {
            return false;
        }
        let last = at + count - 1;
        let chunks = chunk_and_index(at).0..=chunk_and_index(last).0;
        let hit = |chunk: u64, mask: u64| {
            let first = chunk * CHUNK_PAGES;
            (0..CHUNK_PAGES).any(|index| mask & (1 << index) != 0 && (at..=last).contains(&(first + index)))
        };
        self.fresh.range(chunks.clone()).any(|(chunk, fresh)| hit(*chunk, fresh.mask))
            || self.flushing.range(chunks).any(|(chunk, frosted)| hit(*chunk, frosted.mask))
    }

    /// Number of pages in the range that are not among the fresh ones.
    pub fn new_pages(&self, at: u64, count: u64) -> u64 {
        (at..at + count).filter(|page| !self.is_fresh(*page)).count() as u64
    }

    fn is_fresh(&self, page: u64) -> bool {
        let (chunk, index) = chunk_and_index(page);
        self.fresh.get(&chunk).is_some_and(|fresh| fresh.mask & (1 << index) != 0)
    }

    /// Writes bytes of one page. If they are not the whole page, and the page was not written here before, `base` is
    /// the page underneath and its checksum; `None` for a hole. `purpose` is that of the room for the page, unless it
    /// is among the fresh ones already, and has room.
    ///
    /// # Errors
    ///
    /// When there is no memory for a chunk.
    pub fn write(
        &mut self,
        arena: &Arena,
        page: u64,
        from: usize,
        data: &[u8],
        base: Option<(&[u8], u64)>,
        purpose: Purpose,
    ) -> Result<(), AllocError> {
        let (chunk, index) = chunk_and_index(page);
        let is_whole = data.len() == PAGE;
        let older_copy = self.flushing.get(&chunk).filter(|frosted| frosted.mask & (1 << index) != 0);
        let fresh = match self.fresh.entry(chunk) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let buffer = arena.alloc(CHUNK, CHUNK)?;
                entry.insert(Fresh { buffer, mask: 0, overwrites: 0, partial: BTreeMap::new() })
            }
        };
        let target = &mut fresh.buffer[bytes_of(index)];
        if is_whole {
            target.copy_from_slice(data);
            fresh.partial.remove(&index);
        } else {
            let is_new = fresh.mask & (1 << index) == 0;
            if is_new {
                let replaces = match (older_copy, base) {
                    (Some(frosted), _) => {
                        target.copy_from_slice(&frosted.buffer[bytes_of(index)]);
                        // All of its bytes belong to the file, unless it is cut after the commit.
                        checksum(target)
                    }
                    (None, Some((bytes, contents))) => {
                        target.copy_from_slice(bytes);
                        contents
                    }
                    (None, None) => {
                        target.fill(0);
                        0
                    }
                };
                fresh.partial.insert(index, Partial { ranges: Vec::new(), replaces });
            }
            target[from..from + data.len()].copy_from_slice(data);
            if let Some(partial) = fresh.partial.get_mut(&index) {
                partial.add(from as u16, (from + data.len()) as u16);
                if partial.is_whole() {
                    fresh.partial.remove(&index);
                }
            }
        }
        if fresh.mask & (1 << index) == 0 && purpose == Purpose::Overwrite {
            fresh.overwrites |= 1 << index;
        }
        fresh.mask |= 1 << index;
        Ok(())
    }

    /// Begins to flush fresh data, at most `chunks_max` chunks. Nothing may be in the course of being flushed.
    pub fn freeze(&mut self, chunks_max: usize) -> Vec<Flushing> {
        let chunks: Vec<u64> = self.fresh.keys().take(chunks_max).copied().collect();
        let mut frozen = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let Some(Fresh { buffer, mask, overwrites, partial }) = self.fresh.remove(&chunk) else { continue };
            let (at, buffer) = (chunk * CHUNK_PAGES, buffer.freeze());
            let frosted = Flushing { at, buffer, mask, overwrites, partial: Arc::new(partial) };
            self.flushing.insert(chunk, frosted.clone());
            frozen.push(frosted);
        }
        frozen
    }

    /// Drops the flushed data, which is now committed.
    pub fn committed(&mut self) {
        self.flushing.clear();
    }

    /// Makes data that was not committed fresh again, beneath what was written meanwhile. The pages that were written
    /// again have room twice, so that of the later ones is added to `spare`.
    ///
    /// # Errors
    ///
    /// When there is no memory: the rest still counts as being flushed.
    pub fn unfreeze(&mut self, arena: &Arena, spare: &mut Counts) -> Result<(), AllocError> {
        while let Some((&chunk, frosted)) = self.flushing.first_key_value() {
            let frosted = frosted.clone();
            let (buffer, partial) = (arena.alloc(CHUNK, CHUNK)?, (*frosted.partial).clone());
            let mut older = Fresh { buffer, mask: frosted.mask, overwrites: frosted.overwrites, partial };
            older.buffer.copy_from_slice(&frosted.buffer);
            self.flushing.remove(&chunk);
            if let Some(newer) = self.fresh.remove(&chunk) {
                for index in (0..CHUNK_PAGES).filter(|index| newer.mask & (1 << index) != 0) {
                    older.buffer[bytes_of(index)].copy_from_slice(&newer.buffer[bytes_of(index)]);
                    // A partial page derived from the older one lies over the page that the older one lay over.
                    match (newer.partial.get(&index), older.partial.get_mut(&index)) {
                        (None, _) => drop(older.partial.remove(&index)),
                        (Some(newer), Some(older)) => newer.ranges.iter().for_each(|(from, to)| older.add(*from, *to)),
                        (Some(newer), None) if older.mask & (1 << index) == 0 => {
                            older.partial.insert(index, newer.clone());
                        }
                        (Some(_), None) => {}
                    }
                }
                let both = counts(older.mask & newer.mask, newer.overwrites);
                spare.any += both.any;
                spare.overwrite += both.overwrite;
                older.overwrites |= newer.overwrites & !older.mask;
                older.mask |= newer.mask;
            }
            self.fresh.insert(chunk, older);
        }
        Ok(())
    }

    /// Fresh pages that were written only in part, with the name of the contents of the page underneath.
    pub fn partials(&self) -> Vec<(u64, u64)> {
        let of = |(chunk, fresh): (&u64, &Fresh)| {
            let first = chunk * CHUNK_PAGES;
            fresh.partial.iter().map(|(index, partial)| (first + index, partial.replaces)).collect::<Vec<_>>()
        };
        self.fresh.iter().flat_map(of).collect()
    }

    /// Puts the written bytes of a fresh page over the page that the file has now.
    pub fn rebase(&mut self, page: u64, base: &[u8], contents: u64) {
        let (chunk, index) = chunk_and_index(page);
        let Some(fresh) = self.fresh.get_mut(&chunk) else { return };
        let Some(partial) = fresh.partial.get_mut(&index) else { return };
        let merged = partial.merge_over(&fresh.buffer[bytes_of(index)], base);
        partial.replaces = contents;
        fresh.buffer[bytes_of(index)].copy_from_slice(&merged);
    }

    /// The fresh pages that have room for a purpose, as runs: first page and number, up to [`CHUNK_PAGES`].
    pub fn runs_for(&self, wanted: Purpose) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (chunk, fresh) in &self.fresh {
            let is_it = |index: &u64| fresh.mask & (1 << index) != 0 && purpose(fresh.overwrites, *index) == wanted;
            for index in (0..CHUNK_PAGES).filter(is_it) {
                let page = chunk * CHUNK_PAGES + index;
                match runs.last_mut().filter(|(first, count)| index > 0 && first + count == page) {
                    Some((_, count)) => *count += 1,
                    None => runs.push((page, 1)),
                }
            }
        }
        runs
    }

    /// Records for which purpose the fresh pages of a range have room. Returns the number of those that had it for
    /// another.
    pub fn set_purpose(&mut self, at: u64, count: u64, purpose: Purpose) -> u64 {
        let mut changed = 0;
        for page in at..at + count {
            let (chunk, index) = chunk_and_index(page);
            let Some(fresh) = self.fresh.get_mut(&chunk).filter(|fresh| fresh.mask & (1 << index) != 0) else {
                continue;
            };
            let before = fresh.overwrites;
            match purpose {
                Purpose::Any => fresh.overwrites &= !(1 << index),
                Purpose::Overwrite => fresh.overwrites |= 1 << index,
            }
            changed += u64::from(before != fresh.overwrites);
        }
        changed
    }

    /// Discards the fresh pages for which there is no room if there is none for new ones: those that replace nothing,
    /// or if there are none, all. Returns their number.
    pub fn discard_roomless(&mut self) -> Counts {
        let mut any = 0;
        self.fresh.retain(|_, fresh| {
            any += counts(fresh.mask, fresh.overwrites).any;
            fresh.mask &= fresh.overwrites;
            fresh.partial.retain(|index, _| fresh.mask & (1 << index) != 0);
            fresh.mask != 0
        });
        if any > 0 { Counts { any, overwrite: 0 } } else { self.discard() }
    }

    /// Discards everything; nothing may be in the course of being flushed. Returns the number of pages discarded.
    pub fn discard(&mut self) -> Counts {
        let fresh = std::mem::take(&mut self.fresh).into_values().map(|fresh| (fresh.mask, fresh.overwrites));
        let flushing = std::mem::take(&mut self.flushing).into_values().map(|chunk| (chunk.mask, chunk.overwrites));
        fresh.chain(flushing).fold(Counts::default(), |mut all, (mask, overwrites)| {
            let Counts { any, overwrite } = counts(mask, overwrites);
            all.any += any;
            all.overwrite += overwrite;
            all
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena() -> Arena {
        Arena::private(32 << 20).unwrap()
    }

    fn page(byte: u8) -> Vec<u8> {
        vec![byte; PAGE]
    }

    #[test]
    fn the_last_write_is_read_whatever_is_being_written() {
        let (mut dirty, arena) = (Dirty::default(), arena());
        dirty.write(&arena, 70, 0, &page(1), None, Purpose::Any).unwrap();
        assert_eq!(dirty.freeze(9).len(), 1);
        dirty.write(&arena, 70, 10, b"xyz", None, Purpose::Any).unwrap();
        let mut expected = page(1);
        expected[10..13].copy_from_slice(b"xyz");
        assert_eq!(dirty.page(70), Some(&expected[..]));
        assert_eq!(dirty.partials(), [(70, checksum(&page(1)))]);
        dirty.committed();
        assert_eq!((dirty.page(70), dirty.page(71)), (Some(&expected[..]), None));
        assert!(dirty.overlaps(60, 20) && !dirty.overlaps(71, 20) && !dirty.overlaps(0, 70));
    }

    #[test]
    fn what_could_not_be_committed_lies_beneath_what_was_written_meanwhile() {
        let (mut dirty, arena) = (Dirty::default(), arena());
        dirty.write(&arena, 1, 0, b"older", Some((&page(9), 5)), Purpose::Any).unwrap();
        dirty.write(&arena, 2, 0, &page(2), None, Purpose::Any).unwrap();
        dirty.write(&arena, 3, 0, &page(3), None, Purpose::Any).unwrap();
        dirty.freeze(9);
        dirty.write(&arena, 1, 2, b"NEW", None, Purpose::Any).unwrap();
        dirty.write(&arena, 2, 0, b"part", None, Purpose::Any).unwrap();
        dirty.write(&arena, 4, 0, &page(4), None, Purpose::Any).unwrap();
        let mut spare = Counts::default();
        dirty.unfreeze(&arena, &mut spare).unwrap();
        assert_eq!(spare, Counts { any: 2, overwrite: 0 }, "pages 1 and 2 had room twice");
        assert_eq!(&dirty.page(1).unwrap()[..6], b"olNEW\x09");
        assert_eq!(&dirty.page(2).unwrap()[..5], b"part\x02");
        assert_eq!((dirty.page(3), dirty.page(4)), (Some(&page(3)[..]), Some(&page(4)[..])));
        assert_eq!(dirty.partials(), [(1, 5)], "page 2 was whole before");
        dirty.rebase(1, &page(7), 6);
        assert_eq!((&dirty.page(1).unwrap()[..6], dirty.partials()), (&b"olNEW\x07"[..], vec![(1, 6)]));
        assert_eq!((dirty.discard(), dirty.is_empty()), (Counts { any: 4, overwrite: 0 }, true));
    }

    #[test]
    fn what_there_was_no_memory_to_thaw_is_not_forgotten() {
        let (mut dirty, arena) = (Dirty::default(), Arena::private(16 * CHUNK).unwrap());
        for page in [0, CHUNK_PAGES] {
            dirty.write(&arena, page, 0, &[1; PAGE], None, Purpose::Any).unwrap();
        }
        let frozen = dirty.freeze(9);
        let all: Vec<_> = std::iter::from_fn(|| arena.alloc(CHUNK, CHUNK).ok()).collect();
        let mut spare = Counts::default();
        assert!(!all.is_empty() && dirty.unfreeze(&arena, &mut spare).is_err());
        assert!(dirty.has_flushing() && !dirty.has_fresh() && dirty.page(0) == Some(&[1; PAGE][..]));
        drop((all, frozen));
        dirty.unfreeze(&arena, &mut spare).unwrap();
        assert!(!dirty.has_flushing() && dirty.has_fresh() && dirty.page(CHUNK_PAGES) == Some(&[1; PAGE][..]));
        assert_eq!(dirty.discard().total(), 2);
    }

    #[test]
    fn a_page_keeps_the_room_that_it_was_first_written_with() {
        let (mut dirty, arena) = (Dirty::default(), arena());
        let write = |dirty: &mut Dirty, at, purpose| dirty.write(&arena, at, 0, &page(1), None, purpose).unwrap();
        write(&mut dirty, 0, Purpose::Overwrite);
        write(&mut dirty, 0, Purpose::Any);
        write(&mut dirty, 1, Purpose::Any);
        write(&mut dirty, 1, Purpose::Overwrite);
        let frozen = dirty.freeze(9);
        assert_eq!((frozen[0].purpose(0), frozen[0].purpose(1)), (Purpose::Overwrite, Purpose::Any));
        write(&mut dirty, 0, Purpose::Any);
        write(&mut dirty, 1, Purpose::Overwrite);
        write(&mut dirty, 2, Purpose::Overwrite);
        let mut spare = Counts::default();
        dirty.unfreeze(&arena, &mut spare).unwrap();
        assert_eq!(spare, Counts { any: 1, overwrite: 1 });
        assert_eq!(dirty.discard(), Counts { any: 1, overwrite: 2 });
    }

    #[test]
    fn without_room_for_new_pages_those_that_replace_others_stay() {
        let (mut dirty, arena) = (Dirty::default(), arena());
        let last = 2 * CHUNK_PAGES;
        for at in [0, 1, 2, CHUNK_PAGES - 1, CHUNK_PAGES, last] {
            dirty.write(&arena, at, 7, &[at as u8; 9], None, Purpose::Overwrite).unwrap();
        }
        let runs = [(0, 3), (CHUNK_PAGES - 1, 1), (CHUNK_PAGES, 1), (last, 1)];
        assert_eq!((dirty.runs_for(Purpose::Overwrite), dirty.runs_for(Purpose::Any)), (runs.to_vec(), vec![]));
        // Some are holes now.
        assert_eq!((dirty.set_purpose(1, 1, Purpose::Any), dirty.set_purpose(0, 3, Purpose::Any)), (1, 2));
        assert_eq!((dirty.set_purpose(2, 9, Purpose::Overwrite), dirty.set_purpose(last, 1, Purpose::Any)), (1, 1));
        assert_eq!(dirty.runs_for(Purpose::Any), [(0, 2), (last, 1)]);
        assert_eq!(dirty.discard_roomless(), Counts { any: 3, overwrite: 0 });
        assert_eq!((dirty.page(1), dirty.page(last), dirty.bytes()), (None, None, 2 * CHUNK));
        assert_eq!(dirty.partials(), [(2, 0), (CHUNK_PAGES - 1, 0), (CHUNK_PAGES, 0)]);
        // If not even those have room, they go too.
        assert_eq!(dirty.discard_roomless(), Counts { any: 0, overwrite: 3 });
        assert!(dirty.is_empty());
    }

    #[test]
    fn parts_that_make_a_page_together_are_a_whole_one() {
        let (mut dirty, arena) = (Dirty::default(), arena());
        dirty.write(&arena, 0, 0, &page(1)[..100], None, Purpose::Any).unwrap();
        dirty.write(&arena, 0, 200, &page(1)[200..], None, Purpose::Any).unwrap();
        assert_eq!(dirty.partials(), [(0, 0)]);
        dirty.write(&arena, 0, 50, &page(2)[..150], None, Purpose::Any).unwrap();
        assert!(dirty.partials().is_empty());
        assert_eq!((dirty.new_pages(0, 3), dirty.bytes()), (2, CHUNK));
    }
}
