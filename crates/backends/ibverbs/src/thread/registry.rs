//! The queue pairs of a thread, found by their work requests' identifiers.

use std::rc::{Rc, Weak};

use sinew_fabric::verbs::VerbsError;

use super::qp::QpInner;
use crate::work_id::{QPS_MAX, WorkId};

#[derive(Debug)]
struct QpSlot {
    generation: u32,
    qp: Weak<QpInner>,
}

/// The queue pairs of a thread.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    slots: Vec<QpSlot>,
    free: Vec<usize>,
}

impl Registry {
    /// Reserves a slot for a queue pair that is being made; returns it with its generation.
    pub fn reserve(&mut self) -> Result<(usize, u32), VerbsError> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < QPS_MAX => {
                self.slots.push(QpSlot { generation: 0, qp: Weak::new() });
                self.slots.len() - 1
            }
            None => {
                return Err(VerbsError::Limit { what: "queue pairs of a thread", asked: QPS_MAX + 1, limit: QPS_MAX });
            }
        };
        Ok((slot, self.slots[slot].generation))
    }

    pub fn set(&mut self, slot: usize, qp: &Rc<QpInner>) {
        self.slots[slot].qp = Rc::downgrade(qp);
    }

    /// Disowns everything that the queue pair has posted so far; returns its new generation.
    pub fn renew(&mut self, slot: usize) -> u32 {
        let slot = &mut self.slots[slot];
        slot.generation = (slot.generation + 1) & WorkId::GENERATION_MASK;
        slot.generation
    }

    pub fn free(&mut self, slot: usize) {
        self.renew(slot);
        self.slots[slot].qp = Weak::new();
        self.free.push(slot);
    }

    /// The queue pair of a completion; `None` if it is gone or was reset.
    #[inline]
    pub fn find(&self, id: WorkId) -> Option<Rc<QpInner>> {
        self.slots.get(id.slot).filter(|slot| slot.generation == id.generation)?.qp.upgrade()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_is_used_again_has_another_generation() {
        let mut registry = Registry::default();
        let (slot, first) = registry.reserve().unwrap();
        registry.free(slot);
        assert_eq!(registry.reserve().unwrap(), (slot, first + 1));
        assert_eq!(registry.reserve().unwrap(), (slot + 1, 0));
        registry.slots[slot].generation = WorkId::GENERATION_MASK;
        assert_eq!(registry.renew(slot), 0);
    }
}
