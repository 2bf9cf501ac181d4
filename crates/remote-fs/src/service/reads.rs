//! Requests that read the durable state.

use std::collections::BTreeSet;

use super::store::Store;
use crate::disk::Disk;
use crate::protocol::{
    Answer, EXTENTS_MAX, Error, Ino, LAYOUT_PAGES_MAX, Layout, Placement, READDIR_MAX, SEGMENTS_MAX,
};

/// Bytes of an answer available for its runs, places or entries.
const ANSWER_ROOM: usize = 768 << 10;
/// Upper bounds in bytes: for a run without its checksums, a segment's place without its copies, a copy, and an entry
/// without its name.
const RUN_LEN: usize = 40;
const PLACE_LEN: usize = 20;
const COPY_LEN: usize = 32;
const ENTRY_LEN: usize = 160;

/// Copies of a segment to allow for: as many as there may be, and those being made.
const COPIES_MAX: usize = 10;

// Reserved pages fit an answer, with the places of their segments, however many copies these have.
const _: () = assert!(EXTENTS_MAX * RUN_LEN + SEGMENTS_MAX * (PLACE_LEN + COPIES_MAX * COPY_LEN) < ANSWER_ROOM);

fn place_len<K: Disk>(store: &Store<K>, segment: u32) -> usize {
    store.state.segments.get(&segment).map_or(0, |segment| PLACE_LEN + COPY_LEN * segment.members.len())
}

pub(super) fn places<K: Disk>(store: &Store<K>, segments: impl IntoIterator<Item = u32>) -> Vec<Placement> {
    let place = |number| Some(store.state.segments.get(&number)?.placement(number));
    segments.into_iter().filter_map(place).collect()
}

pub(super) fn layout<K: Disk>(store: &Store<K>, ino: Ino, at: u64, count: u64) -> Result<Answer, Error> {
    let attr = store.state.tree.attr(ino)?;
    let map = store.state.tree.map(ino)?;
    let end = at.saturating_add(count.min(LAYOUT_PAGES_MAX));
    let mut left = ANSWER_ROOM;
    let mut segments = BTreeSet::new();
    let (runs, listed_end) = map.runs(at, end, |run| {
        let segment = run.pages.segment;
        let place = if segments.insert(segment) { place_len(store, segment) } else { 0 };
        left = left.saturating_sub(RUN_LEN + 8 * run.sums.0.len() + place);
        left > 0
    });
    // A hole may extend beyond the pages that an answer covers.
    let until = if runs.is_empty() && listed_end == end {
        let asked = at.saturating_add(count);
        map.next_stored(end).map_or(asked, |next| next.min(asked))
    } else {
        listed_end
    };
    let segments: BTreeSet<u32> = runs.iter().map(|run| run.pages.segment).collect();
    let places = places(store, segments);
    Ok(Answer::Layout(Layout { version: attr.version, size: attr.size, until, runs, places }))
}

pub(super) fn entries<K: Disk>(store: &Store<K>, ino: Ino, after: u64, count: u32) -> Result<Answer, Error> {
    let mut left = count.clamp(1, READDIR_MAX);
    let mut room = ANSWER_ROOM;
    let (entries, is_end, parent) = store.state.tree.entries(ino, after, |name_len| {
        let len = ENTRY_LEN + name_len;
        let has_room = left > 0 && room >= len;
        left = left.saturating_sub(1);
        room = room.saturating_sub(len);
        has_room
    })?;
    Ok(Answer::Entries { entries, is_end, parent })
}
