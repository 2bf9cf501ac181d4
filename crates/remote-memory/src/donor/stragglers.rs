//! Stragglers: writes in progress by initiators that have lost access, which the device cannot stop. Slabs are moved
//! out of their reach.

use sinew_fabric::verbs::Straggler;
use sinew_mem::SharedMemory;

use super::memory_provider::MemoryProvider;
use super::protocol::{LentSlab, Refusal};
use super::state::Donor;

/// Stragglers, each with the number of the set-aside slab to which it may still write.
#[derive(Debug, Default)]
pub(super) struct SetAside(Vec<(Straggler, u64)>);

impl SetAside {
    /// Moves a volume's slabs out of reach of stragglers, after access to the volume was revoked. They move only if
    /// `may_move` is set: at the beginning of an epoch, when no client has been told yet where they are.
    ///
    /// # Errors
    ///
    /// [`Refusal::WriterStopped`] if a straggler may write to a slab that cannot be moved.
    pub fn evade<L: MemoryProvider>(
        &mut self,
        provider: &L,
        memory: &L::Memory,
        donor: &mut Donor,
        volume: u64,
        may_move: bool,
    ) -> Result<(), Refusal> {
        self.release(provider, memory, donor);
        for straggler in provider.stragglers(memory).ok_or(Refusal::WriterStopped)? {
            for (of, lent) in donor.slabs_overlapping(straggler.range.clone()).collect::<Vec<_>>() {
                let aside = match of {
                    Some(of) if of == volume && !may_move => return Err(Refusal::WriterStopped),
                    Some(of) if of == volume => {
                        let (from, to) = donor.relocate(volume, lent.slab)?;
                        copy_slab(memory, from, to);
                        from.slab
                    }
                    None => lent.slab,
                    Some(_) => continue,
                };
                if !self.0.iter().any(|(known, of)| (known, *of) == (&straggler, aside)) {
                    self.0.push((straggler.clone(), aside));
                }
            }
        }
        Ok(())
    }

    /// Frees the set-aside slabs that no straggler can write to any more.
    pub fn release<L: MemoryProvider>(&mut self, provider: &L, memory: &L::Memory, donor: &mut Donor) {
        let ended: Vec<u64> = {
            let is_over =
                |(straggler, aside): &(Straggler, u64)| provider.has_ended(memory, straggler).then_some(*aside);
            self.0.iter().filter_map(is_over).collect()
        };
        self.0.retain(|(straggler, aside)| !ended.contains(aside) || !provider.has_ended(memory, straggler));
        ended
            .into_iter()
            .filter(|aside| !self.0.iter().any(|(_, of)| of == aside))
            .for_each(|aside| donor.release(aside));
    }
}

/// Copies a slab, half-finished writes included.
fn copy_slab(memory: &SharedMemory, from: LentSlab, to: LentSlab) {
    let mut bytes = vec![0; 256 << 10];
    let mut at = 0;
    while at < from.len {
        let part = &mut bytes[..(from.len - at).min(256 << 10) as usize];
        // A donor's slabs lie in its memory.
        let copied =
            memory.read((from.base + at) as usize, part).and_then(|()| memory.write((to.base + at) as usize, part));
        debug_assert!(copied.is_ok());
        at += part.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use sinew_fabric::SeededGenerator;
    use sinew_fabric::verbs::{QpAddress, VerbsError};

    use super::super::memory_provider::{CallsOnly, NoGrant, PrivateMemory};
    use super::super::protocol::{Answer, Call};
    use super::super::service::{Service, ServiceConfig};
    use super::super::state::DonorLimits;
    use super::super::wire::AccessPath;
    use super::*;

    const SLAB: u64 = 300 << 10;

    /// A device whose initiators can be stopped in the middle of a write.
    #[derive(Clone, Default)]
    struct Stopping(Rc<RefCell<Vec<Straggler>>>);

    impl MemoryProvider for Stopping {
        type Memory = PrivateMemory;
        type Grant = NoGrant;

        fn allocate(&self, len: usize) -> Result<PrivateMemory, VerbsError> {
            CallsOnly.allocate(len)
        }

        fn lend(&self, _: &PrivateMemory, _: &[QpAddress]) -> Result<(NoGrant, AccessPath), Refusal> {
            Err(Refusal::OtherFabric)
        }

        fn stragglers(&self, _: &PrivateMemory) -> Option<Vec<Straggler>> {
            Some(self.0.borrow().clone())
        }

        fn has_ended(&self, _: &PrivateMemory, straggler: &Straggler) -> bool {
            !self.0.borrow().contains(straggler)
        }
    }

    struct World {
        lends: Stopping,
        ground: PrivateMemory,
        donor: Donor,
        asides: SetAside,
    }

    impl World {
        /// Two volumes with one slab each, filled with the volume's number, and room for `more` further slabs.
        fn new(more: u64) -> Self {
            let lends = Stopping::default();
            let len = (2 + more) * SLAB;
            let ground = lends.allocate(len as usize).unwrap();
            let mut donor = Donor::new(1, len, DonorLimits::default());
            for volume in 1..3 {
                donor.handle(&Call::Fence { volume, epoch: 1 }).unwrap();
                let taken = donor.handle(&Call::Take { volume, epoch: 1, len: SLAB }).unwrap();
                let Answer::Taken { lent, .. } = taken else { panic!("{taken:?}") };
                ground.write(lent.base as usize, &[volume as u8; SLAB as usize]).unwrap();
            }
            Self { lends, ground, donor, asides: SetAside::default() }
        }

        fn stop(&self, at: u64, word: u64) {
            self.lends.0.borrow_mut().push(Straggler { range: at..at + 4096, words: [word; 5] });
        }

        fn settle(&mut self, volume: u64, may: bool) -> Result<(), Refusal> {
            self.asides.evade(&self.lends, &self.ground, &mut self.donor, volume, may)
        }

        fn slab(&self, volume: u64) -> LentSlab {
            self.donor.slabs_of(volume).next().unwrap()
        }

        fn holds(&self, volume: u64) -> bool {
            let mut bytes = vec![0; SLAB as usize];
            self.ground.read(self.slab(volume).base as usize, &mut bytes).unwrap();
            bytes.iter().all(|byte| *byte == volume as u8)
        }
    }

    #[test]
    fn a_slab_in_which_somebody_was_stopped_lies_elsewhere_with_all_that_it_holds() {
        let mut world = World::new(1);
        let (old, other) = (world.slab(1), world.slab(2));
        world.stop(old.base + 8192, 1);
        world.stop(old.base + 9000, 2);
        assert_eq!(world.settle(2, true), Ok(()));
        assert_eq!((world.slab(1), world.slab(2)), (old, other), "it is another volume's");
        assert_eq!(world.settle(1, true), Ok(()));
        assert!(world.slab(1).base != old.base && world.slab(1).slab == old.slab && world.slab(2) == other);
        // The late write lands.
        world.ground.write(old.base as usize + 8192, &[9; 4096]).unwrap();
        assert!(world.holds(1) && world.holds(2));
        let (lent, free) = (world.donor.lent_bytes(), world.donor.free_bytes());
        assert_eq!((lent, free), (2 * SLAB, 0));
        // The next writer finds the slab in its new place; the old place is free once both stragglers are done.
        let moved = world.slab(1);
        assert_eq!((world.settle(1, true), world.slab(1)), (Ok(()), moved));
        for left in (0..2).rev() {
            world.lends.0.borrow_mut().pop();
            world.asides.release(&world.lends, &world.ground, &mut world.donor);
            assert_eq!(world.donor.zeroing_bytes(), if left == 0 { SLAB } else { 0 });
        }
    }

    #[test]
    fn where_a_slab_cannot_move_nobody_new_gets_it_until_the_late_one_is_gone() {
        for (more, may, has_client) in [(0, true, false), (1, false, false), (1, true, true)] {
            let mut world = World::new(more);
            if has_client {
                world.donor.handle(&Call::Admit { volume: 1, epoch: 1, client: 1, lane: 0 }).unwrap();
            }
            let old = world.slab(1);
            world.stop(old.base, 1);
            for _ in 0..2 {
                assert_eq!(world.settle(1, may), Err(Refusal::WriterStopped), "{more} {may} {has_client}");
            }
            assert_eq!((world.slab(1), world.donor.free_bytes()), (old, more * SLAB));
            world.lends.0.borrow_mut().clear();
            assert_eq!(world.settle(1, may), Ok(()));
        }
    }
    #[test]
    fn a_slab_moves_as_an_epoch_begins_and_not_within_it() {
        let lends = Stopping::default();
        let config = ServiceConfig::new(4 * SLAB as usize, None);
        let mut service = Service::new(&lends, config, Box::new(SeededGenerator::new(1))).unwrap();
        let mut ask = |call: Call| service.call(&call, &[]).map(|(answer, _)| answer);
        ask(Call::Fence { volume: 1, epoch: 1 }).unwrap();
        let Ok(Answer::Taken { lent, .. }) = ask(Call::Take { volume: 1, epoch: 1, len: SLAB }) else {
            panic!("it has room")
        };
        ask(Call::Admit { volume: 1, epoch: 1, client: 1, lane: 0 }).unwrap();
        // The only client is stopped in the middle of a write, and expelled. Nobody has access any more, but the writer
        // still relies on the place that it was told.
        lends.0.borrow_mut().push(Straggler { range: lent.base..lent.base + 4096, words: [1; 5] });
        for call in [Call::Expel { volume: 1, epoch: 1, client: 1 }, Call::Fence { volume: 1, epoch: 1 }] {
            assert_eq!(ask(call), Err(Refusal::WriterStopped));
        }
        ask(Call::Admit { volume: 1, epoch: 1, client: 2, lane: 0 }).unwrap();
        let mut slabs = |epoch| match ask(Call::Fence { volume: 1, epoch }) {
            Ok(Answer::Fenced { slabs, .. }) => slabs,
            other => panic!("{other:?}"),
        };
        let moved = slabs(2);
        assert!(moved.len() == 1 && moved[0].slab == lent.slab && moved[0].base != lent.base, "{moved:?}");
        assert_eq!(slabs(2), moved, "nothing of it lies where somebody may write");
    }
}
