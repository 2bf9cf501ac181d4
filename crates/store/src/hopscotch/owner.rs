//! The owner's side of a hopscotch table.

use sinew_mem::{SharedMemory, prefetch_read};

use super::{CHAIN_MAX, Layout, SLOT_HEAD_LEN, SUM_LEN, Values};
use crate::remote::{Extent, Extents, Table, TableError, word};

/// Slots examined for a free one, counted from the first of a neighbourhood.
const SEARCH_DISTANCE: usize = 512;
/// Records of slots that begin in one cache line, at least.
const ITEMS_PER_LINE: usize = 64 / size_of::<Option<SlotItem>>();

/// The owner's record of a slot's item.
#[derive(Clone, Copy, Debug)]
struct SlotItem {
    hash: u64,
    /// Place of its value, if it lies elsewhere.
    extent: Extent,
}

/// A key's hash, the first slot of its neighbourhood, and the one in which the key was seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Located {
    hash: u64,
    home: u32,
    seen: u32,
}

/// A table, as its owner changes it.
#[derive(Debug)]
pub struct HopscotchTable {
    layout: Layout,
    memory: SharedMemory,
    items_in_slots: Vec<Option<SlotItem>>,
    versions: Vec<u32>,
    /// By slot: the overflow block that continues there, numbered from 1.
    overflow: Vec<u32>,
    blocks_used: u32,
    extents: Extents,
    items: usize,
    /// Buffer for a slot being assembled.
    image: Vec<u8>,
}

impl HopscotchTable {
    /// Makes an empty table in `memory`, which must be all zero, and which nobody else may write.
    ///
    /// # Errors
    ///
    /// [`TableError::Layout`], [`TableError::Memory`].
    pub fn new(layout: Layout, memory: SharedMemory) -> Result<Self, TableError> {
        use crate::remote::Index as _;
        layout.check()?;
        let (need, len) = (layout.memory_len(), memory.len());
        if need > len {
            return Err(TableError::Memory { need, len });
        }
        let slots = layout.slots();
        let extent_bytes = match layout.values {
            Values::Inline => 0,
            Values::OutOfLine(bytes) => bytes,
        };
        Ok(Self {
            layout,
            memory,
            items_in_slots: vec![None; slots],
            versions: vec![0; slots],
            overflow: vec![0; slots],
            blocks_used: 0,
            extents: Extents::new((extent_bytes / 8).min(u32::MAX.into()) as u32),
            items: 0,
            image: vec![0; layout.slot_len()],
        })
    }

    /// The layout that readers need to know.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Overflow blocks in use.
    pub fn overflow_blocks(&self) -> u32 {
        self.blocks_used
    }

    /// Publishes the image as the contents of `slot`.
    fn publish(&mut self, slot: usize, item: Option<SlotItem>) {
        self.items_in_slots[slot] = item;
        self.versions[slot] = self.versions[slot].wrapping_add(1);
        self.image[..4].copy_from_slice(&self.versions[slot].to_le_bytes());
        self.image[4..8].copy_from_slice(&self.overflow[slot].to_le_bytes());
        let (body, sum) = self.image.split_at_mut(self.layout.slot_len() - SUM_LEN);
        sum.copy_from_slice(&self.layout.slot_sum(body, slot).to_le_bytes());
        // Cannot fail: `new` checked that the table fits.
        let _ = self.memory.write(slot * self.layout.slot_len(), &self.image);
    }

    fn load(&mut self, slot: usize) {
        let _ = self.memory.read(slot * self.layout.slot_len(), &mut self.image);
    }

    fn clear(&mut self, slot: usize) {
        self.image.fill(0);
        self.publish(slot, None);
    }

    /// Returns the first slot of the neighbourhood that begins at `home`, and of each overflow block that continues it.
    fn groups(&self, home: usize) -> impl Iterator<Item = usize> + use<'_> {
        std::iter::successors(Some(home), |first| self.layout.block(self.overflow[*first]))
    }

    /// Slots of the neighbourhood of a key, as far as the table has them.
    #[inline(always)]
    fn neighbourhood(&self, located: &Located) -> &[Option<SlotItem>] {
        let home = located.home as usize;
        self.items_in_slots.get(home..home + self.layout.neighbourhood as usize).unwrap_or_default()
    }

    fn find(&mut self, key: &[u8], located: &Located) -> Option<usize> {
        let seen = located.seen as usize;
        if self.has(seen, key, located.hash) { Some(seen) } else { self.search(key, located) }
    }

    /// Searches all slots in which a key can be. Out of line, because most keys are where they were seen.
    #[inline(never)]
    fn search(&mut self, key: &[u8], located: &Located) -> Option<usize> {
        let width = self.layout.neighbourhood as usize;
        let mut first = Some(located.home as usize);
        while let Some(group) = first {
            if let Some(slot) = (group..group + width).find(|slot| self.has(*slot, key, located.hash)) {
                return Some(slot);
            }
            first = self.layout.block(self.overflow[group]);
        }
        None
    }

    /// Whether a slot holds this key.
    #[inline(always)]
    fn has(&mut self, slot: usize, key: &[u8], hash: u64) -> bool {
        if self.items_in_slots[slot].is_none_or(|held| held.hash != hash) {
            return false;
        }
        self.load(slot);
        let found = self.image.get(SLOT_HEAD_LEN..SLOT_HEAD_LEN + key.len());
        word(&self.image, 1) as u32 as usize == key.len() && found == Some(key)
    }

    /// Finds a free slot for a new item.
    fn make_room(&mut self, home: usize) -> Option<usize> {
        self.hop(home).or_else(|| self.spill(home))
    }

    /// Frees a slot of a neighbourhood by letting items hop towards the nearest free one.
    fn hop(&mut self, home: usize) -> Option<usize> {
        let width = self.layout.neighbourhood as usize;
        let end = (home + SEARCH_DISTANCE.max(width)).min(self.layout.main_slots());
        let mut free = (home..end).find(|slot| self.items_in_slots[*slot].is_none())?;
        while free - home >= width {
            // Of the items that may move to the free slot, take the one farthest away.
            let can_reach =
                |slot: usize| self.items_in_slots[slot].is_some_and(|held| free - self.layout.home(held.hash) < width);
            let from = (free + 1 - width..free).find(|slot| can_reach(*slot))?;
            self.load(from);
            let held = self.items_in_slots[from];
            self.publish(free, held);
            self.clear(from);
            free = from;
        }
        Some(free)
    }

    /// Finds a slot of an overflow block, adding a new block if necessary.
    fn spill(&mut self, home: usize) -> Option<usize> {
        let width = self.layout.neighbourhood as usize;
        let free = self
            .groups(home)
            .skip(1)
            .find_map(|first| (first..first + width).find(|slot| self.items_in_slots[*slot].is_none()));
        if free.is_some() {
            return free;
        }
        let groups = self.groups(home).count();
        if self.blocks_used == self.layout.overflow_blocks || groups > CHAIN_MAX as usize {
            return None;
        }
        self.blocks_used += 1;
        let last = self.groups(home).last()?;
        self.overflow[last] = self.blocks_used;
        self.load(last);
        let held = self.items_in_slots[last];
        if held.is_none() {
            self.image.fill(0);
        }
        self.publish(last, held);
        self.layout.block(self.blocks_used)
    }
}

impl Table for HopscotchTable {
    type Located = Located;

    #[inline]
    fn locate(&self, key: &[u8]) -> Located {
        let hash = self.layout.hash(key);
        let home = self.layout.home(hash) as u32;
        Located { hash, home, seen: home }
    }

    #[inline]
    fn prefetch(&self, located: &Located) {
        let items = self.neighbourhood(located);
        items.iter().step_by(ITEMS_PER_LINE).chain(items.last()).for_each(prefetch_read);
    }

    #[inline]
    fn prefetch_item(&self, located: &mut Located) {
        let is_its = |item: &Option<SlotItem>| item.as_ref().is_some_and(|item| item.hash == located.hash);
        if let Some(at) = self.neighbourhood(located).iter().position(is_its) {
            let (slot, len) = (located.home as usize + at, self.layout.slot_len());
            self.memory.prefetch_line(slot * len);
            self.memory.prefetch_line((slot + 1) * len - 1);
            prefetch_read(&self.versions[slot]);
            prefetch_read(&self.overflow[slot]);
            located.seen = slot as u32;
        }
    }

    fn put_located(&mut self, key: &[u8], value: &[u8], located: &Located) -> Result<bool, TableError> {
        let max = self.layout.key_len_max as usize;
        if !(1..=max).contains(&key.len()) {
            return Err(TableError::Key { len: key.len(), max });
        }
        let max = self.layout.value_len_max as usize;
        if value.len() > max {
            return Err(TableError::Value { len: value.len(), max });
        }
        let hash = located.hash;
        let old = self.find(key, located);
        let old_extent = old.and_then(|slot| self.items_in_slots[slot]).map(|held| held.extent);
        let mut new_extent = None;
        let mut extent = Extent::default();
        if matches!(self.layout.values, Values::OutOfLine(_)) {
            new_extent = self.extents.take(value.len());
            // Without memory for another extent, the old one is overwritten if it is long enough; readers notice by the
            // checksum.
            let in_place = old_extent.filter(|extent| extent.units as usize * 8 >= value.len());
            extent = new_extent.or(in_place).ok_or(TableError::NoMemory { len: value.len() })?;
        }
        let Some(slot) = old.or_else(|| self.make_room(located.home as usize)) else {
            if let Some(extent) = new_extent {
                self.extents.free(extent);
            }
            return Err(TableError::Full { items: self.items });
        };
        self.image.fill(0);
        let lens = key.len() as u64 | (value.len() as u64) << 32;
        self.image[8..16].copy_from_slice(&lens.to_le_bytes());
        self.image[SLOT_HEAD_LEN..SLOT_HEAD_LEN + key.len()].copy_from_slice(key);
        let offset = SLOT_HEAD_LEN + self.layout.key_room();
        match self.layout.values {
            Values::Inline => self.image[offset..offset + value.len()].copy_from_slice(value),
            Values::OutOfLine(_) => {
                let start = self.layout.extents_start() as usize + extent.unit as usize * 8;
                let _ = self.memory.write(start, value);
                self.image[offset..offset + 8].copy_from_slice(&u64::from(extent.unit).to_le_bytes());
                let sum = self.layout.value_sum(value, hash);
                self.image[offset + 8..offset + 16].copy_from_slice(&sum.to_le_bytes());
            }
        }
        self.publish(slot, Some(SlotItem { hash, extent }));
        match old_extent {
            Some(old) if new_extent.is_some() => self.extents.free(old),
            Some(_) => {}
            None => self.items += 1,
        }
        Ok(old.is_some())
    }

    fn delete_located(&mut self, key: &[u8], located: &Located) -> bool {
        let Some(slot) = self.find(key, located) else { return false };
        let extent = self.items_in_slots[slot].map(|held| held.extent);
        self.clear(slot);
        if let (Some(extent), Values::OutOfLine(_)) = (extent, self.layout.values) {
            self.extents.free(extent);
        }
        self.items -= 1;
        true
    }

    fn len(&self) -> usize {
        self.items
    }
}
