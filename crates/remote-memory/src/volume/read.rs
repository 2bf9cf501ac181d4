//! Reads: from one copy, with its checksums verified, and from another if that is bad.

use sinew_mem::MessageBuffer;

use super::core::{Destination, Owner, Piece, Volume, lane_bit};
use super::donors::Donors;
use super::map::Place;
use super::requests::{Edge, Kind, NewRequest};
use super::slot::checksum;
use crate::engine::Op;
use crate::store::{BLOCK, StoreError};

const PAGE: u64 = BLOCK as u64;
/// Pages read into one separate buffer, at most.
const STAGED_MAX: u32 = 256;

impl<D: Donors> Volume<D> {
    pub(super) fn start_read(&mut self, key: u32) {
        let live = self.requests.get_mut(key);
        let (at, len, pages) = (live.at, live.len, live.pages());
        live.parts = 1;
        let (place, count) = self.map.extent(pages.clone());
        let is_whole = at.is_multiple_of(PAGE) && len == u64::from(count) * PAGE;
        if let (Some(place), true) = (place, is_whole) {
            let target = self.requests.get_mut(key).target.take();
            self.read_piece(key, Destination::Target, pages.start, place, count, target);
            return self.complete_part(key, None);
        }
        let mut page = pages.start;
        while page < pages.end {
            let (place, count) = self.map.extent(page..pages.end);
            match place {
                None => self.read_unwritten(key, page..page + u64::from(count)),
                Some(place) => {
                    for from in (0..count).step_by(STAGED_MAX as usize) {
                        let count = STAGED_MAX.min(count - from);
                        self.read_piece(
                            key,
                            Destination::Staged,
                            page + u64::from(from),
                            place.plus(from),
                            count,
                            None,
                        );
                    }
                }
            }
            page += u64::from(count);
        }
        self.complete_part(key, None);
    }

    /// Whether it is unknown if the page was ever written.
    pub(super) fn is_unknown(&self, page: u64) -> bool {
        self.map.place(page).is_none() && self.segments[self.home_segment(page).0 as usize].is_unknown
    }

    pub(super) fn unknown(&self, page: u64) -> StoreError {
        StoreError::Lost {
            at: page * PAGE,
            why: format!("its donors did not answer when the volume was opened: {}", self.describe_down()),
        }
    }

    /// Fills in zeros for pages that were never written.
    fn read_unwritten(&mut self, key: u32, pages: std::ops::Range<u64>) {
        if let Some(page) = self.has_unknown.then(|| pages.clone().find(|page| self.is_unknown(*page))).flatten() {
            let error = self.unknown(page);
            self.requests.get_mut(key).error.get_or_insert(error);
            return;
        }
        let live = self.requests.get_mut(key);
        live.is_from_map = true;
        let from = (pages.start * PAGE).max(live.at) - live.at;
        let to = (pages.end * PAGE).min(live.at + live.len) - live.at;
        if let Some(target) = &mut live.target {
            target[from as usize..to as usize].fill(0);
        }
    }

    pub(super) fn read_piece(
        &mut self,
        key: u32,
        destination: Destination,
        page: u64,
        place: Place,
        count: u32,
        buffer: Option<MessageBuffer>,
    ) {
        self.requests.get_mut(key).parts += 1;
        self.stats.pages_read += u64::from(count);
        let piece =
            self.pieces.insert(Piece { key, destination, page, place, count, tried: 0, was_bad: false, buffer });
        self.read_copy(piece);
    }

    /// Reads a piece from a copy that has not been tried.
    pub(super) fn read_copy(&mut self, key: u32) {
        let Some(piece) = self.pieces.get(key) else { return };
        if let Some(error) = self.ended.clone() {
            return self.fail_piece(key, error);
        }
        let mut tried = piece.tried;
        if !self.trusted.is_empty() {
            for page in piece.page..piece.page + u64::from(piece.count) {
                tried |= self.trusted.get(&page).map_or(0, |good| !good);
            }
        }
        let segment = &self.segments[piece.place.segment as usize];
        let copies = segment.copies.len().max(1);
        let rotated = (0..copies).map(|index| (index + self.next_copy) % copies);
        let reachable_copy = |index: usize| {
            let copy = segment.copies.get(index)?;
            copy.lane.filter(|lane| tried & lane_bit(*lane) == 0).map(|lane| (lane, copy.base))
        };
        let Some((lane, base)) = rotated.clone().find_map(reachable_copy) else {
            if self.voting.durable < self.voting.generation {
                // Another writer may have the volume by now; the voters will tell.
                return self.deferred.push_back(key);
            }
            let why = if piece.was_bad {
                "what its donors hold is not what was written".to_owned()
            } else {
                format!("its donors do not answer: {}", self.describe_down())
            };
            let error = StoreError::Lost { at: piece.page * PAGE, why };
            return self.fail_piece(key, error);
        };
        self.next_copy = self.next_copy.wrapping_add(1);
        let (place, len) = (piece.place, piece.count as usize * BLOCK);
        let Some(piece) = self.pieces.get_mut(key) else { return };
        let target = match piece.buffer.take() {
            Some(buffer) => buffer,
            None => match self.donors.arena().alloc(len, len) {
                Ok(buffer) => buffer,
                Err(_) => return self.deferred.push_back(key),
            },
        };
        self.send(lane, Owner::Piece(key), Op::Read { at: base + self.shape.page_at(place.slot), target });
    }

    pub(super) fn fail_piece(&mut self, key: u32, error: StoreError) {
        let Some(piece) = self.pieces.remove(key) else { return };
        if piece.destination == Destination::Target {
            self.requests.get_mut(piece.key).target = piece.buffer;
        }
        self.complete_part(piece.key, Some(error));
    }

    /// Handles the end of a piece's read.
    pub(super) fn complete_piece(&mut self, key: u32, lane: u8, failed: bool, target: Option<MessageBuffer>) {
        let Some(piece) = self.pieces.get_mut(key) else { return };
        let Some(buffer) = target else {
            // The buffer was lost with the failed operation; the next attempt allocates another.
            piece.tried |= lane_bit(lane);
            return self.read_copy(key);
        };
        if failed {
            piece.tried |= lane_bit(lane);
            piece.buffer = Some(buffer);
            return self.read_copy(key);
        }
        let (page, count) = (piece.page, piece.count);
        let is_good = |index: u32| {
            let sum = self.map.sum(page + u64::from(index));
            let from = index as usize * BLOCK;
            sum == 0 || checksum(&buffer[from..from + BLOCK]) == sum
        };
        let bad = if (0..count).all(is_good) { None } else { Some((0..count).map(is_good).collect::<Vec<_>>()) };
        match bad {
            None => self.deliver_piece(key, buffer),
            Some(good) => self.reread_bad_pages(key, lane, buffer, &good),
        }
    }

    /// Takes over a piece whose pages are all good.
    fn deliver_piece(&mut self, key: u32, buffer: MessageBuffer) {
        let Some(piece) = self.pieces.remove(key) else { return };
        self.deliver_pages(&piece, 0..piece.count, &buffer);
        let live = self.requests.get_mut(piece.key);
        match piece.destination {
            Destination::Target => live.target = Some(buffer),
            Destination::Staged => {}
            Destination::Edge(index) => {
                live.edges[usize::from(index)] = Some(Edge { page: piece.page, staged: Some(buffer), frozen: None });
            }
        }
        if piece.was_bad && live.kind != Kind::Refresh {
            self.refresh(piece.page);
        }
        self.complete_part(piece.key, None);
    }

    fn deliver_pages(&mut self, piece: &Piece, pages: std::ops::Range<u32>, buffer: &[u8]) {
        if piece.destination != Destination::Staged {
            return;
        }
        let live = self.requests.get_mut(piece.key);
        let (at, end) = (live.at, live.at + live.len);
        let Some(target) = &mut live.target else { return };
        let first = piece.page * PAGE;
        let from = at.max(first + u64::from(pages.start) * PAGE);
        let to = end.min(first + u64::from(pages.end) * PAGE);
        target[(from - at) as usize..(to - at) as usize]
            .copy_from_slice(&buffer[(from - first) as usize..(to - first) as usize]);
    }

    /// Handles a piece with pages that are bad in this copy: each is read from another copy.
    #[inline(never)]
    fn reread_bad_pages(&mut self, key: u32, lane: u8, buffer: MessageBuffer, good: &[bool]) {
        self.stats.bad_pages += good.iter().filter(|good| !**good).count() as u64;
        let Some(piece) = self.pieces.get_mut(key) else { return };
        if piece.count == 1 {
            (piece.tried, piece.was_bad, piece.buffer) = (piece.tried | lane_bit(lane), true, Some(buffer));
            return self.read_copy(key);
        }
        let Some(mut piece) = self.pieces.remove(key) else { return };
        let owner = piece.key;
        if piece.destination == Destination::Target {
            self.requests.get_mut(owner).target = Some(buffer);
            piece.destination = Destination::Staged;
        } else {
            for (index, good) in good.iter().enumerate() {
                let index = index as u32;
                if *good {
                    self.deliver_pages(&piece, index..index + 1, &buffer);
                }
            }
        }
        for (index, _) in good.iter().enumerate().filter(|(_, good)| !**good) {
            let index = index as u32;
            self.requests.get_mut(owner).parts += 1;
            let one = self.pieces.insert(Piece {
                key: owner,
                destination: Destination::Staged,
                page: piece.page + u64::from(index),
                place: piece.place.plus(index),
                count: 1,
                tried: piece.tried | lane_bit(lane),
                was_bad: true,
                buffer: None,
            });
            self.read_copy(one);
        }
        self.complete_part(owner, None);
    }

    /// Has a page rewritten, from a good copy.
    pub(super) fn refresh(&mut self, page: u64) {
        self.stats.refreshed += 1;
        let (at, len) = (page * PAGE, PAGE);
        self.requests.submit(NewRequest { tag: 0, kind: Kind::Refresh, at, len, source: None, target: None });
    }
}
