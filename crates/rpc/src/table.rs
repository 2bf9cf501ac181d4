//! Table of sessions, found by the key in a packet's header.
//!
//! A session key is a 24-bit index and a 40-bit random token in one word, so one comparison checks both. A packet must
//! also come from the session's peer.

use sinew_fabric::Peer;
use sinew_wire::SessionKey;

use crate::stats::PacketDrop;

/// An entry of a [`Table`]: it has the key by which packets name it, and the peer that they come from.
pub(crate) trait Entry {
    fn key(&self) -> SessionKey;
    fn set_key(&mut self, key: SessionKey);
    fn peer(&self) -> &Peer;

    /// Whether `from` is the entry's peer.
    #[inline(always)]
    fn is_from(&self, from: &Peer) -> bool {
        // Compares without a branch for each word, since they are nearly always equal.
        let [a, b, c] = self.peer().0;
        (a ^ from.0[0]) | (b ^ from.0[1]) | (c ^ from.0[2]) == 0
    }
}

/// A slot of a session, as an index into the table's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(pub u32);

impl SlotId {
    #[inline(always)]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Entries with a fixed number of slots each, in two flat arrays: an index alone gives the address of the state, which
/// can be prefetched before anything is read.
pub(crate) struct Table<E, S> {
    pub entries: Vec<E>,
    pub slots: Vec<S>,
    free: Vec<u32>,
    slot_bits: u32,
    slot_mask: u64,
}

/// A slot and the entry that it belongs to.
pub(crate) struct SlotRef<'a, E, S> {
    pub entry: &'a mut E,
    pub slot: &'a mut S,
}

/// Returns a key under which no packet finds entry `index`: the key names another entry.
fn unreachable_key(index: usize) -> SessionKey {
    SessionKey::new(index ^ 1, 0)
}

impl<E: Entry + Default, S: Default> Table<E, S> {
    pub fn new(slots: u16) -> Self {
        Self {
            entries: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            slot_bits: slots.trailing_zeros(),
            slot_mask: u64::from(slots) - 1,
        }
    }

    /// Inserts a new entry under a key with this token, and returns its index.
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

    /// Hides an entry from packets until [`Self::show`]; returns its key.
    pub fn hide(&mut self, index: usize) -> SessionKey {
        let key = self.entries[index].key();
        self.entries[index].set_key(unreachable_key(index));
        key
    }

    /// Makes packets find the entry under this key.
    pub fn show(&mut self, index: usize, key: SessionKey) {
        self.entries[index].set_key(key);
    }

    /// Removes an entry, and drops what its slots hold.
    pub fn remove(&mut self, index: usize) {
        self.remove_with(index, |slot| *slot = S::default());
    }

    /// As [`Self::remove`], but `reset` clears each slot and may leave parts that outlive the session.
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

    /// Returns slot `slot` of entry `index`.
    #[inline(always)]
    pub fn slot(&self, index: usize, slot: usize) -> SlotId {
        SlotId((index << self.slot_bits | slot) as u32)
    }

    /// Returns the slot of entry `index` that a request of this number uses.
    #[inline(always)]
    pub fn slot_of(&self, index: usize, number: u64) -> SlotId {
        self.slot(index, self.position_of_number(number))
    }

    /// Returns the entry that a slot belongs to.
    #[inline(always)]
    pub fn entry_of(&self, id: SlotId) -> usize {
        id.index() >> self.slot_bits
    }

    /// Returns a slot's position within its entry.
    #[inline(always)]
    pub fn position_of(&self, id: SlotId) -> usize {
        id.index() & self.slot_mask as usize
    }

    /// Returns the position, within its entry, of the slot that a request of this number uses.
    #[inline(always)]
    pub fn position_of_number(&self, number: u64) -> usize {
        (number & self.slot_mask) as usize
    }

    /// The slots of entry `index`.
    pub fn slots_of(&self, index: usize) -> impl Iterator<Item = SlotId> + use<E, S> {
        let first = index << self.slot_bits;
        (first..first + (1 << self.slot_bits)).map(|at| SlotId(at as u32))
    }

    /// Finds an entry by a packet's key, and checks that the packet comes from the entry's peer.
    #[inline(always)]
    pub fn find_from(&self, key: SessionKey, from: Peer) -> Result<usize, PacketDrop> {
        let index = self.find(key).ok_or(PacketDrop::UnknownSession)?;
        if self.entries[index].is_from(&from) { Ok(index) } else { Err(PacketDrop::WrongSource) }
    }

    #[inline(always)]
    pub fn slots_per_entry(&self) -> usize {
        self.slot_mask as usize + 1
    }

    /// Returns the entry that a packet names, which must come from the entry's peer, and the slot that its request
    /// number uses.
    #[inline(always)]
    pub fn find_slot(&mut self, key: SessionKey, number: u64, from: &Peer) -> Option<SlotRef<'_, E, S>> {
        let index = key.index();
        let id = self.slot_of(index, number);
        let entry = self.entries.get_mut(index).filter(|entry| entry.key() == key && entry.is_from(from))?;
        Some(SlotRef { entry, slot: self.slots.get_mut(id.index())? })
    }

    /// Returns a slot, and the entry that it belongs to.
    #[inline(always)]
    pub fn slot_ref(&mut self, id: SlotId) -> Option<SlotRef<'_, E, S>> {
        let index = self.entry_of(id);
        Some(SlotRef { entry: self.entries.get_mut(index)?, slot: self.slots.get_mut(id.index())? })
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Indices of the entries in use, in ascending order.
    pub fn occupied(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.entries.len()).filter(|&index| self.entries[index].key().index() == index)
    }

    #[inline]
    pub fn prefetch(&self, key: SessionKey, number: u64) {
        let index = key.index();
        if let (Some(entry), Some(slot)) =
            (self.entries.get(index), self.slots.get(self.slot_of(index, number).index()))
        {
            sinew_mem::prefetch_read(entry);
            sinew_mem::prefetch_read(slot);
        }
    }
}
