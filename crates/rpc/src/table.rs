//! Sessions on file, found by the key in a packet's header.

use sinew_wire::SessionKey;

/// What a [`Table`] keeps: something with the key that packets name it by.
pub(crate) trait Keyed {
    fn key(&self) -> SessionKey;
    fn set_key(&mut self, key: SessionKey);
}

/// Entries with a fixed number of slots each, in two flat arrays, so that an index alone says where state lies in memory and
/// it can be prefetched before anything is read.
pub(crate) struct Table<E, S> {
    pub entries: Vec<E>,
    pub slots: Vec<S>,
    free: Vec<u32>,
    slot_bits: u32,
}

/// A key that no packet can find entry `index` by: it names another.
fn unreachable_key(index: usize) -> SessionKey {
    SessionKey::new(index ^ 1, 0)
}

impl<E: Keyed + Default, S: Default> Table<E, S> {
    pub fn new(slots: u16) -> Self {
        Self { entries: Vec::new(), slots: Vec::new(), free: Vec::new(), slot_bits: slots.trailing_zeros() }
    }

    /// Puts a new entry on file under a key with this token.
    pub fn insert(&mut self, token: u64) -> usize {
        let index = match self.free.pop() {
            Some(index) => index as usize,
            None => {
                if self.entries.len() == self.entries.capacity() {
                    sinew_mem::grow_for_random_access(&mut self.entries);
                }
                let slots = 1 << self.slot_bits;
                if self.slots.capacity() - self.slots.len() < slots {
                    sinew_mem::grow_for_random_access(&mut self.slots);
                }
                self.entries.push(E::default());
                self.slots.resize_with(self.slots.len() + slots, S::default);
                self.entries.len() - 1
            }
        };
        self.entries[index] = E::default();
        self.entries[index].set_key(SessionKey::new(index, token));
        index
    }

    /// Takes an entry off file, and drops what its slots hold.
    pub fn remove(&mut self, index: usize) {
        self.remove_with(index, |slot| *slot = S::default());
    }

    /// As [`Self::remove`], where something of a slot outlives its session.
    pub fn remove_with(&mut self, index: usize, reset: impl FnMut(&mut S)) {
        self.entries[index] = E::default();
        self.entries[index].set_key(unreachable_key(index));
        let first = index << self.slot_bits;
        self.slots[first..first + (1 << self.slot_bits)].iter_mut().for_each(reset);
        self.free.push(index as u32);
    }

    #[inline(always)]
    pub fn find(&self, key: SessionKey) -> Option<usize> {
        let index = key.index();
        (self.entries.get(index)?.key() == key).then_some(index)
    }

    /// Where slot `slot` of entry `index` lies.
    #[inline(always)]
    pub fn slot_at(&self, index: usize, slot: usize) -> usize {
        index << self.slot_bits | slot
    }

    #[inline(always)]
    pub fn slot_of_number(&self, number: u64) -> usize {
        number as usize & ((1 << self.slot_bits) - 1)
    }

    pub fn slots_per_entry(&self) -> usize {
        1 << self.slot_bits
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Indices of the entries on file, in ascending order.
    pub fn occupied(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.entries.len()).filter(|&index| self.entries[index].key().index() == index)
    }

    #[inline]
    pub fn prefetch(&self, key: SessionKey, number: u64) {
        let index = key.index();
        if let (Some(entry), Some(slot)) =
            (self.entries.get(index), self.slots.get(self.slot_at(index, self.slot_of_number(number))))
        {
            sinew_mem::prefetch_read(entry);
            sinew_mem::prefetch_read(slot);
        }
    }
}
