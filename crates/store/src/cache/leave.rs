//! How items leave a table, and what is counted of them.

use super::entry::Entry;
use super::log::place;
use super::table::{Cache, Space};
use super::view::{CLEARED, HEAD, SLOTS, Slot};
use super::{Key, Lost};

/// Items that are spared for one that wants room, at most.
const SPARED_MAX: usize = 4;
/// Words of an item that is spared, at most: what costs more to move than a miss does is not worth it.
const SPARED_WORDS_MAX: usize = 512;
/// Buckets in which expired items are looked for when there is no memory.
const RECLAIM_BUCKETS: usize = 256;

impl Cache {
    /// Forgets every item.
    pub fn clear(&mut self) {
        self.view.control.store(CLEARED, self.version);
        (self.census.items, self.census.words) = (0, 0);
        if let Space::Heap(_) = self.space {
            for bucket in 0..self.view.buckets as usize {
                while let Some(slot) =
                    (bucket * SLOTS..(bucket + 1) * SLOTS).find(|slot| self.view.slot(*slot).is_item())
                {
                    self.remove(bucket, slot);
                }
            }
        }
    }

    /// Forgets the item of `key` if it is over, and says why it is: what to call where [`Cache::get`] found none, for the sake of
    /// [`CacheStats`](super::CacheStats).
    #[inline]
    pub fn forget_lost(&mut self, key: &Key<'_>, now_s: u32) -> Option<Lost> {
        // Without one of the two no item is over that is still there.
        if !self.any_expires && self.cleared() == 0 {
            return None;
        }
        let found = self.view.find(key).filter(|found| self.is_over(&found.entry, now_s))?;
        let lost = if found.entry.version() <= self.cleared() { Lost::Cleared } else { Lost::Expired };
        self.bury(key.bucket(self.view.buckets), found.slot, &found.entry);
        Some(lost)
    }

    /// Items up to this version were cleared.
    pub(super) fn cleared(&self) -> u64 {
        self.view.control.load(CLEARED)
    }

    pub(super) fn is_over(&self, entry: &Entry, now_s: u32) -> bool {
        self.view.is_gone(entry, entry.extras(&self.view.body), now_s)
    }

    pub(super) fn entry_of(&self, slot: Slot) -> Option<Entry> {
        slot.is_item().then(|| Entry::load(&self.view.body, place(slot.position()))).flatten()
    }

    /// Removes an item that is over.
    pub(super) fn bury(&mut self, bucket: usize, slot: usize, entry: &Entry) {
        self.census.leave(entry, self.cleared());
        self.census.reclaim(entry);
        self.remove(bucket, slot);
    }

    /// Counts an item that gives its place to another.
    pub(super) fn count_evicted(&mut self, entry: &Entry, now_s: u32) {
        self.census.leave(entry, self.cleared());
        if self.is_over(entry, now_s) { self.census.reclaim(entry) } else { self.census.evict(entry) }
    }

    /// Forgets the items of a log that an item of `words` more will overwrite, or stores them once more if they were read: all but the one
    /// at `replaced`, which its own successor overwrites.
    pub(super) fn make_way(&mut self, words: usize, replaced: Option<u64>, now_s: u32) {
        let mut spared_max = if self.spares_read { SPARED_MAX } else { 0 };
        while let Space::Log(log) = &self.space
            && let Some(position) = log.in_the_way(words)
        {
            let entry =
                Entry::load(&self.view.body, place(position)).expect("a log has items from its tail to its head");
            if replaced == Some(position) {
                // Nothing may be written over it before its successor is.
                spared_max = 0;
                self.pass(&entry);
            } else if spared_max > 0 && entry.was_read() && entry.room() <= SPARED_WORDS_MAX {
                spared_max -= 1;
                self.spare(position, &entry, now_s);
            } else {
                self.evict(position, &entry, now_s);
                self.pass(&entry);
            }
        }
    }

    fn pass(&mut self, entry: &Entry) {
        if let Space::Log(log) = &mut self.space {
            log.pass(entry.room());
        }
    }

    /// Stores the oldest item of the log once more, if it is still the one of its key and not over. Otherwise it is forgotten.
    fn spare(&mut self, position: u64, entry: &Entry, now_s: u32) {
        let Space::Log(log) = &self.space else { return };
        // At the end of the log, it could take the place of others.
        let fits = log.has_room_once_passed(entry.room());
        let is_kept = fits && !self.is_over(entry, now_s);
        let Some((bucket, slot)) = self.slot_of(position, entry).filter(|_| is_kept) else {
            self.evict(position, entry, now_s);
            self.pass(entry);
            return;
        };
        self.moved.resize(entry.room() * 8, 0);
        self.view.body.read(entry.at, &mut self.moved);
        self.pass(entry);
        let Space::Log(log) = &mut self.space else { return };
        let position = log.reserve(entry.room());
        let head = log.head().0;
        // A reader is not to miss it while it lies nowhere.
        self.begin_change(bucket);
        self.view.control.announce(HEAD, head);
        self.view.body.write(place(position), &self.moved);
        entry.moved(place(position)).store_header(&self.view.body);
        self.view.index.store(slot, self.view.slot(slot).moved(position).0);
        self.end_change(bucket);
        self.census.spared += 1;
    }

    /// Bucket and slot of what was appended to the log at `position`, if it is still the item of its key.
    fn slot_of(&mut self, position: u64, entry: &Entry) -> Option<(usize, usize)> {
        let mut bytes = std::mem::take(&mut self.key);
        entry.read_key(&self.view.body, &mut bytes);
        let key = self.hasher.key(&bytes);
        let bucket = key.bucket(self.view.buckets);
        let slot = Slot::item(key.tag(), position);
        let at = self.view.bucket(bucket).iter().position(|other| *other == slot);
        self.key = bytes;
        at.map(|at| (bucket, bucket * SLOTS + at))
    }

    /// Forgets what was appended to the log at `position`, unless that was done before.
    pub(super) fn evict(&mut self, position: u64, entry: &Entry, now_s: u32) {
        if let Some((bucket, slot)) = self.slot_of(position, entry) {
            self.count_evicted(entry, now_s);
            self.remove(bucket, slot);
        }
    }

    /// Empties `slot`, of `bucket` or one that goes on with it, and frees what it pointed to.
    pub(super) fn remove(&mut self, bucket: usize, slot: usize) {
        let position = self.view.slot(slot).position();
        // The last item of the last bucket takes its place, so that buckets to go on with are never empty.
        let (mut before, mut last) = (None, bucket);
        while let Some(next) = self.view.slot(last * SLOTS + SLOTS - 1).linked() {
            before = Some(last);
            last = next;
        }
        let at = self.view.bucket(last).iter().rposition(|slot| slot.is_item()).unwrap_or(0);
        self.begin_change(bucket);
        if before.is_some() {
            self.view.index.store(slot, self.view.index.load(last * SLOTS + at));
            self.view.index.store(last * SLOTS + at, Slot::EMPTY.0);
        } else {
            self.view.index.store(slot, Slot::EMPTY.0);
        }
        if let Some(before) = before.filter(|_| at == 0) {
            self.view.index.store(before * SLOTS + SLOTS - 1, Slot::EMPTY.0);
            self.spares.push(last);
        }
        self.end_change(bucket);
        self.free(position);
    }

    /// Frees items that expired, of some buckets.
    pub(super) fn reclaim(&mut self, now_s: u32) {
        for _ in 0..RECLAIM_BUCKETS.min(self.view.buckets as usize) {
            let bucket = self.cursor;
            self.cursor = (bucket + 1) % self.view.buckets as usize;
            let mut at = bucket;
            let mut slot = 0;
            loop {
                let word = self.view.slot(at * SLOTS + slot);
                if let Some(entry) = self.entry_of(word).filter(|entry| self.is_over(entry, now_s)) {
                    self.bury(bucket, at * SLOTS + slot, &entry);
                    // Another is there now, or the bucket is no more.
                    (at, slot) = (bucket, 0);
                    continue;
                }
                slot += 1;
                if slot == SLOTS {
                    match word.linked() {
                        Some(next) => (at, slot) = (next, 0),
                        None => break,
                    }
                }
            }
        }
    }
}
