//! How items leave a table, and how that is counted.

use sinew_mem::TableWords;

use super::entry::Entry;
use super::log::offset_of;
use super::oldest::OldItem;
use super::table::{Cache, Space};
use super::view::{CLEARED, HEAD, SLOTS, Slot};
use super::{Key, KnownKey, MissReason};

/// Most items spared for each new one.
const SPARED_MAX: usize = 4;
/// Longest item that is spared, in words: moving a longer one costs more than a miss.
const SPARED_WORDS_MAX: usize = 512;
/// Buckets searched for expired items when memory runs out.
const RECLAIM_BUCKETS: usize = 256;

/// The item at a position between a log's tail and its head.
fn entry_at(body: &TableWords, position: u64) -> Entry {
    Entry::load(body, offset_of(position)).expect("a log has items from its tail to its head")
}

impl Cache {
    /// Removes every item.
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

    /// Removes the item of `key` if it has expired or was cleared, and says which. Call it when [`Cache::get`] has
    /// found nothing, to keep [`CacheStats`](super::CacheStats) exact.
    #[inline]
    pub fn remove_dead_item(&mut self, key: &Key<'_>, now_s: u32) -> Option<MissReason> {
        // If no item ever expires and nothing was cleared, there is nothing to remove.
        if !self.any_expires && self.cleared() == 0 {
            return None;
        }
        let found = self.view.find(key).filter(|found| self.is_dead(&found.entry, now_s))?;
        let reason = if found.entry.version() <= self.cleared() { MissReason::Cleared } else { MissReason::Expired };
        self.remove_dead(key.bucket(self.view.buckets), found.slot, &found.entry);
        Some(reason)
    }

    /// Version up to which items have been cleared.
    pub(super) fn cleared(&self) -> u64 {
        self.view.control.load(CLEARED)
    }

    pub(super) fn is_dead(&self, entry: &Entry, now_s: u32) -> bool {
        self.view.is_dead(entry, entry.extras(&self.view.body), now_s)
    }

    pub(super) fn entry_of(&self, slot: Slot) -> Option<Entry> {
        slot.is_item().then(|| Entry::load(&self.view.body, offset_of(slot.position()))).flatten()
    }

    /// Removes an item that has expired or was cleared.
    pub(super) fn remove_dead(&mut self, bucket: usize, slot: usize, entry: &Entry) {
        self.census.leave(entry, self.cleared());
        self.census.reclaim(entry);
        self.remove(bucket, slot);
    }

    /// Counts an item that is evicted to make room for another.
    pub(super) fn count_evicted(&mut self, entry: &Entry, now_s: u32) {
        self.census.leave(entry, self.cleared());
        if self.is_dead(entry, now_s) { self.census.reclaim(entry) } else { self.census.evict(entry) }
    }

    /// Makes room in the log for an item of `words` words: evicts the items in the way, or appends those again that
    /// were read. The item at `replaced` is left alone, since its own successor overwrites it.
    pub(super) fn evict_for(&mut self, words: usize, replaced: Option<u64>, now_s: u32) {
        let mut spared_max = if self.spares_read { SPARED_MAX } else { 0 };
        while let Space::Log(log) = &self.space
            && let Some(position) = log.blocking_item(words)
        {
            // Each bucket is looked up when its item leaves. Without a prefetch, that miss would take longer than all
            // else that a PUT does.
            let key = self.oldest.take(position, log, |position| {
                let entry = entry_at(&self.view.body, position);
                entry.read_key(&self.view.body, &mut self.key);
                let key = self.hasher.key(&self.key);
                self.view.prefetch_bucket(&key);
                OldItem { position, words: entry.room(), key: key.known() }
            });
            let entry = entry_at(&self.view.body, position);
            if replaced == Some(position) {
                // Nothing may overwrite it before its successor does.
                spared_max = 0;
                self.advance_tail(&entry);
            } else if spared_max > 0 && entry.was_read() && entry.room() <= SPARED_WORDS_MAX {
                spared_max -= usize::from(self.keep_item(position, &entry, key, now_s));
            } else {
                self.evict(position, &entry, key, now_s);
                self.advance_tail(&entry);
            }
        }
    }

    fn advance_tail(&mut self, entry: &Entry) {
        if let Space::Log(log) = &mut self.space {
            log.advance_tail(entry.room());
        }
    }

    /// Appends the oldest item of the log again if its key's slot still points to it, it has not expired, and it fits;
    /// otherwise removes it. Returns whether it was appended.
    fn keep_item(&mut self, position: u64, entry: &Entry, key: KnownKey, now_s: u32) -> bool {
        let Space::Log(log) = &self.space else { return false };
        // Appending the item at the end of the log might displace others.
        let fits = log.fits_after_advance(entry.room());
        let may_keep = fits && !self.is_dead(entry, now_s);
        let Some((bucket, slot)) = self.slot_of(position, key).filter(|_| may_keep) else {
            self.evict(position, entry, key, now_s);
            self.advance_tail(entry);
            return false;
        };
        self.advance_tail(entry);
        let Space::Log(log) = &mut self.space else { return false };
        let position = log.reserve(entry.room());
        let head = log.head().0;
        // A reader must not miss the item while it moves from its old place to its new one.
        self.begin_bucket_write(bucket);
        self.view.control.announce(HEAD, head);
        entry.move_to(&self.view.body, offset_of(position));
        self.view.index.store(slot, self.view.slot(slot).moved(position).0);
        self.end_bucket_write(bucket);
        self.census.spared += 1;
        true
    }

    /// Bucket and slot of the item appended to the log at `position`, if its key's slot still points to it.
    fn slot_of(&self, position: u64, key: KnownKey) -> Option<(usize, usize)> {
        let key = key.with_bytes(&[]);
        let bucket = key.bucket(self.view.buckets);
        let slot = Slot::item(key.tag(), position);
        let at = self.view.bucket(bucket).iter().position(|other| *other == slot)?;
        Some((bucket, bucket * SLOTS + at))
    }

    /// Evicts the item appended to the log at `position`, unless it is gone already.
    pub(super) fn evict(&mut self, position: u64, entry: &Entry, key: KnownKey, now_s: u32) {
        if let Some((bucket, slot)) = self.slot_of(position, key) {
            self.count_evicted(entry, now_s);
            self.remove(bucket, slot);
        }
    }

    /// Empties `slot`, which is in `bucket` or in one chained to it, and frees the slot's item.
    pub(super) fn remove(&mut self, bucket: usize, slot: usize) {
        let position = self.view.slot(slot).position();
        // The last item of the last bucket moves into the slot, so that chained buckets are never empty.
        let (mut before, mut last) = (None, bucket);
        while let Some(next) = self.view.slot(last * SLOTS + SLOTS - 1).linked() {
            before = Some(last);
            last = next;
        }
        let at = self.view.bucket(last).iter().rposition(|slot| slot.is_item()).unwrap_or(0);
        self.begin_bucket_write(bucket);
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
        self.end_bucket_write(bucket);
        self.free(position);
    }

    /// Frees the expired items of the next few buckets.
    pub(super) fn reclaim(&mut self, now_s: u32) {
        for _ in 0..RECLAIM_BUCKETS.min(self.view.buckets as usize) {
            let bucket = self.cursor;
            self.cursor = (bucket + 1) % self.view.buckets as usize;
            let mut current = bucket;
            let mut slot = 0;
            loop {
                let word = self.view.slot(current * SLOTS + slot);
                if let Some(entry) = self.entry_of(word).filter(|entry| self.is_dead(entry, now_s)) {
                    self.remove_dead(bucket, current * SLOTS + slot, &entry);
                    // Another item has taken the slot, or the bucket has been freed.
                    (current, slot) = (bucket, 0);
                    continue;
                }
                slot += 1;
                if slot == SLOTS {
                    match word.linked() {
                        Some(next) => (current, slot) = (next, 0),
                        None => break,
                    }
                }
            }
        }
    }
}
