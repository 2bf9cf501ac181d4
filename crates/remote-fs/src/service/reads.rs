//! What is read of what is kept.

use std::collections::BTreeSet;

use super::store::Store;
use crate::disk::Disk;
use crate::protocol::{Answer, Error, Ino, LAYOUT_PAGES_MAX, Layout, Place, READDIR_MAX};

/// Bytes of an answer that are left for what is told one by one.
const ROOM: usize = 768 << 10;
/// Bytes that a run takes beside its checksums, a place of a copy, and an entry beside its name, at most.
const RUN_LEN: usize = 40;
const ENTRY_LEN: usize = 160;

pub(super) fn places<K: Disk>(store: &Store<K>, segments: impl IntoIterator<Item = u32>) -> Vec<Place> {
    let place = |number| Some(store.kept.segments.get(&number)?.place(number));
    segments.into_iter().filter_map(place).collect()
}

pub(super) fn layout<K: Disk>(store: &Store<K>, ino: Ino, at: u64, count: u64) -> Result<Answer, Error> {
    let attr = store.kept.tree.attr(ino)?;
    let map = store.kept.tree.map(ino)?;
    let end = at.saturating_add(count.min(LAYOUT_PAGES_MAX));
    let mut left = ROOM;
    let (runs, told) = map.runs(at, end, |run| {
        left = left.saturating_sub(RUN_LEN + 8 * run.sums.0.len());
        left > 0
    });
    // A hole may go on for longer than pages are told of.
    let until = if runs.is_empty() && told == end {
        let asked = at.saturating_add(count);
        map.first_from(end).map_or(asked, |next| next.min(asked))
    } else {
        told
    };
    let segments: BTreeSet<u32> = runs.iter().map(|run| run.pages.segment).collect();
    let places = places(store, segments);
    Ok(Answer::Layout(Layout { version: attr.version, size: attr.size, until, runs, places }))
}

pub(super) fn entries<K: Disk>(store: &Store<K>, ino: Ino, after: u64, count: u32) -> Result<Answer, Error> {
    let mut left = count.clamp(1, READDIR_MAX);
    let mut room = ROOM;
    let (entries, is_end, parent) = store.kept.tree.entries(ino, after, |name_len| {
        let len = ENTRY_LEN + name_len;
        let goes_on = left > 0 && room >= len;
        left = left.saturating_sub(1);
        room = room.saturating_sub(len);
        goes_on
    })?;
    Ok(Answer::Entries { entries, is_end, parent })
}
