//! The common part of a table's writer and its readers: the table's memory, and how an item is found there.

use sinew_mem::TableWords;

use super::entry::{Entry, Extras};
use super::key::{Key, TAG_MAX};
use super::log::{Head, POSITION_BITS, offset_of};

/// Slots of a bucket, which is one cache line.
pub(crate) const SLOTS: usize = 8;
/// Longest chain of buckets, in a table that does not evict.
pub(crate) const CHAIN_MAX: usize = 64;

/// Index of the control word that holds the head of the log.
pub(crate) const HEAD: usize = 0;
/// Index of the control word that holds the version up to which items were cleared.
pub(crate) const CLEARED: usize = 1;
/// Control words; together they are a cache line.
pub(crate) const CONTROL_WORDS: usize = 8;

/// A word of the index: nothing (0), an item's tag and position, or, in the last slot of a bucket, the next bucket of
/// the chain. The highest bit is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub u64);

const IS_ITEM: u64 = 1 << POSITION_BITS;

impl Slot {
    pub const EMPTY: Self = Self(0);

    #[inline(always)]
    pub fn item(tag: u16, position: u64) -> Self {
        debug_assert!(tag <= TAG_MAX);
        Self(u64::from(tag) << (POSITION_BITS + 1) | IS_ITEM | position)
    }

    /// The same item at another position.
    pub fn moved(self, position: u64) -> Self {
        Self(self.0 & !(IS_ITEM - 1) | position)
    }

    pub fn link(bucket: usize) -> Self {
        Self(bucket as u64)
    }

    #[inline(always)]
    pub fn is_item(self) -> bool {
        self.0 & IS_ITEM != 0
    }

    #[inline(always)]
    fn has_tag(self, tag: u16) -> bool {
        self.0 ^ Self::item(tag, 0).0 < IS_ITEM
    }

    /// Position of the item in the slot.
    #[inline(always)]
    pub fn position(self) -> u64 {
        self.0 & (IS_ITEM - 1)
    }

    #[inline(always)]
    pub fn linked(self) -> Option<usize> {
        (!self.is_item() && self != Self::EMPTY).then_some(self.0 as usize)
    }
}

/// Returns a bit mask of the slots that hold an item with `tag`. It has no branches: eight of them would often be
/// mispredicted.
#[inline(always)]
fn match_tags(slots: impl DoubleEndedIterator<Item = u64>, tag: u16) -> u32 {
    let wanted = Slot::item(tag, 0).0;
    // If only the position differs, the xor is below IS_ITEM, and it never reaches the highest bit: subtracting IS_ITEM
    // then sets that bit, which is shifted into the mask. That takes four instructions a slot.
    let matching = slots.rev().fold(0, |matching, slot| matching << 1 | (slot ^ wanted).wrapping_sub(IS_ITEM) >> 63);
    matching as u32
}

/// A found item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundItem {
    /// Index of its slot.
    pub slot: usize,
    pub position: u64,
    pub entry: Entry,
}

/// As [`View::is_dead`], where items up to the version `cleared` were cleared.
#[inline(always)]
pub(crate) fn is_dead_at(cleared: u64, entry: &Entry, extras: Extras, now_s: u32) -> bool {
    entry.version() <= cleared || extras.expires_s != 0 && extras.expires_s <= now_s
}

/// The memory of a table, shared by its writer and its readers.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// The buckets, followed by spare ones for chaining in a table that does not evict.
    pub index: TableWords,
    /// Number of buckets without the spare ones.
    pub buckets: u32,
    /// The log or the heap.
    pub body: TableWords,
    pub control: TableWords,
    /// Versions, each of several buckets, for readers; `None` where only the writer reads.
    pub versions: Option<TableWords>,
    /// Whether the body is a log.
    pub evicts: bool,
}

impl View {
    #[inline(always)]
    pub fn head(&self) -> Head {
        Head(self.control.load(HEAD))
    }

    #[inline(always)]
    pub fn slot(&self, index: usize) -> Slot {
        Slot(self.index.load(index))
    }

    #[inline(always)]
    pub fn bucket(&self, bucket: usize) -> [Slot; SLOTS] {
        self.index.load_array(bucket * SLOTS).map(Slot)
    }

    /// Finds the item with `key`, which may be [gone](View::is_dead).
    #[inline(always)]
    pub fn find(&self, key: &Key<'_>) -> Option<FoundItem> {
        self.find_at(self.head(), key)
    }

    /// As [`View::find`], where the log has this head.
    #[inline(always)]
    pub fn find_at(&self, head: Head, key: &Key<'_>) -> Option<FoundItem> {
        let bucket = key.bucket(self.buckets);
        // First where it was last seen; with no hint, that is the bucket's first slot.
        let hinted = self.item_at_slot(head, bucket * SLOTS + key.hint as usize, key);
        if hinted.is_some() {
            return hinted;
        }
        self.item_at_slot(head, self.search(head, bucket, key)?, key)
    }

    /// Returns the index of the slot of the item with `key`. Out of line, because most keys are found by their hint.
    #[inline(never)]
    fn search(&self, head: Head, bucket: usize, key: &Key<'_>) -> Option<usize> {
        let mut bucket = bucket;
        for _ in 0..CHAIN_MAX {
            let mut matching = match_tags(self.index.iter_array::<SLOTS>(bucket * SLOTS), key.tag());
            while matching != 0 {
                let index = bucket * SLOTS + matching.trailing_zeros() as usize;
                if self.item_at_slot(head, index, key).is_some() {
                    return Some(index);
                }
                matching &= matching - 1;
            }
            bucket = self.slot(bucket * SLOTS + SLOTS - 1).linked()?;
        }
        None
    }

    /// Returns the item in the slot at `index`, if it has `key`.
    #[inline(always)]
    fn item_at_slot(&self, head: Head, index: usize, key: &Key<'_>) -> Option<FoundItem> {
        let slot = self.slot(index);
        // Compare the tag first: reading another key's item would be a needless cache miss.
        if !slot.has_tag(key.tag()) || self.evicts && !head.is_live(slot.position()) {
            return None;
        }
        let entry = Entry::load(&self.body, offset_of(slot.position()))?;
        entry.has_key(&self.body, key.bytes()).then_some(FoundItem { slot: index, position: slot.position(), entry })
    }

    /// Whether an item has expired, or was cleared after it was stored.
    #[inline(always)]
    pub fn is_dead(&self, entry: &Entry, extras: Extras, now_s: u32) -> bool {
        is_dead_at(self.cleared(), entry, extras, now_s)
    }

    /// Version up to which items were cleared.
    #[inline(always)]
    pub fn cleared(&self) -> u64 {
        self.control.load(CLEARED)
    }

    /// Prefetches the bucket of `key`.
    #[inline(always)]
    pub fn prefetch_bucket(&self, key: &Key<'_>) {
        self.index.prefetch_line(key.bucket(self.buckets) * SLOTS);
    }

    /// Prefetches the beginning of the item that probably has `key`.
    #[inline(always)]
    pub fn prefetch_item(&self, key: &mut Key<'_>) {
        let bucket = key.bucket(self.buckets) * SLOTS;
        let matching = match_tags(self.index.iter_array::<SLOTS>(bucket), key.tag());
        if matching != 0 {
            key.hint = matching.trailing_zeros();
            self.body.prefetch_line(offset_of(self.slot(bucket + key.hint as usize).position()));
        }
    }

    /// Prefetches the line behind the beginning of the item that [`Self::prefetch_item`] saw: short items end there.
    #[inline(always)]
    pub fn prefetch_item_end(&self, key: &Key<'_>) {
        let slot = self.slot(key.bucket(self.buckets) * SLOTS + key.hint as usize);
        self.body.prefetch_line(offset_of(slot.position()) + SLOTS - 1);
    }

    /// Index of the version that protects `bucket`.
    #[inline(always)]
    pub fn version_of(versions: &TableWords, bucket: usize) -> usize {
        bucket & (versions.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_say_what_they_are() {
        let last = (1 << POSITION_BITS) - 1;
        for (tag, position) in [(0, 0), (0, 1), (TAG_MAX, last), (0, last), (TAG_MAX, 0), (0x5555, 1)] {
            let slot = Slot::item(tag, position);
            assert!(slot.is_item());
            let slots = [0, slot.0, 1, slot.0, 0, 0, Slot::item(!tag & TAG_MAX, position).0, Slot::link(7).0];
            let with = |tag| match_tags(slots.into_iter(), tag);
            assert_eq!((with(tag), with(!tag & TAG_MAX)), (0b1010, 0b100_0000));
            assert_eq!((slot.position(), slot.linked()), (position, None));
        }
        assert!(!Slot::EMPTY.is_item());
        assert_eq!(Slot::EMPTY.linked(), None);
        let link = Slot::link(1 << 35);
        assert!(!link.is_item());
        assert_eq!(link.linked(), Some(1 << 35));
    }
}
