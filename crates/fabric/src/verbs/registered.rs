//! A user's own memory, registered piece by piece (rdmabox IV-A: dynMR).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sinew_mem::{BufferPlace, Extent, MessageBuffer, OwnedRange};

use super::error::VerbsError;
use super::traits::ProtectionDomain;

/// Memory that a user can register: a message buffer of any arena, or an [`OwnedRange`] of a vector or of a buffer.
pub trait Registrable {
    /// Its place.
    fn place(&self) -> BufferPlace;

    /// Extent of its place.
    fn extent(&self) -> Extent;

    /// Whether it is all of the memory at its place.
    fn is_whole(&self) -> bool;
}

impl Registrable for MessageBuffer {
    fn place(&self) -> BufferPlace {
        self.place()
    }

    fn extent(&self) -> Extent {
        self.extent()
    }

    fn is_whole(&self) -> bool {
        true
    }
}

impl Registrable for OwnedRange {
    fn place(&self) -> BufferPlace {
        self.place()
    }

    fn extent(&self) -> Extent {
        self.extent()
    }

    fn is_whole(&self) -> bool {
        self.is_whole()
    }
}

/// Memory of the user's, registered with a domain. It is moved in, taken out to be posted, and put back when it returns
/// with its completion. A range can be split while it is out, and its parts posted; it is put back once they are joined
/// again. [`Self::end`] gives the memory back, and is refused while it is out. So nothing is in flight when the
/// registration ends.
///
/// Dropping this ends the registration, wherever the memory is: a request that has the memory may then fail. It has to
/// be dropped where a part does not come back, because its queue pair was reset or dropped.
#[derive(Debug)]
pub struct Registered<R, M = MessageBuffer> {
    registration: R,
    memory: Option<M>,
    extent: Extent,
}

/// Error of memory that was not registered.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RegisterError<M: std::fmt::Debug = MessageBuffer> {
    /// The device's error, or [`VerbsError::Part`].
    #[source]
    pub error: VerbsError,
    /// The memory.
    pub memory: M,
}

/// Error of ending a registration while the buffer is out, and may be in flight.
#[derive(Debug, thiserror::Error)]
#[error("the memory was taken out, and may be in flight: put it back when its request is over, then end it")]
pub struct InUse<R, M = MessageBuffer> {
    /// The registration, unchanged.
    pub registered: Registered<R, M>,
}

impl<R, M: Registrable + std::fmt::Debug> Registered<R, M> {
    /// Registers memory.
    ///
    /// # Errors
    ///
    /// [`RegisterError`], with the memory.
    // The error is as large as what it gives back.
    #[allow(clippy::result_large_err)]
    pub fn new<D: ProtectionDomain<Registration = R>>(domain: &D, memory: M) -> Result<Self, RegisterError<M>> {
        if !memory.is_whole() {
            return Err(RegisterError { error: VerbsError::Part, memory });
        }
        match domain.register(memory.place()) {
            Ok(registration) => Ok(Self { registration, extent: memory.extent(), memory: Some(memory) }),
            Err(error) => Err(RegisterError { error, memory }),
        }
    }

    /// The memory, unless it is out.
    pub fn memory(&mut self) -> Option<&mut M> {
        self.memory.as_mut()
    }

    /// The device's registration.
    pub fn registration(&self) -> &R {
        &self.registration
    }

    /// Takes the memory out, to be posted.
    pub fn take(&mut self) -> Option<M> {
        self.memory.take()
    }

    /// Puts the memory back.
    ///
    /// # Errors
    ///
    /// The memory, if it is different, or a part.
    pub fn put_back(&mut self, memory: M) -> Result<(), M> {
        if memory.extent() != self.extent || !memory.is_whole() {
            return Err(memory);
        }
        self.memory = Some(memory);
        Ok(())
    }

    /// Ends the registration and returns the memory.
    ///
    /// # Errors
    ///
    /// [`InUse`], with this handle, when the memory is out, or a part that was split off.
    pub fn end(mut self) -> Result<M, InUse<R, M>> {
        match self.memory.take_if(|memory| memory.extent() == self.extent && memory.is_whole()) {
            Some(memory) => Ok(memory),
            None => Err(InUse { registered: self }),
        }
    }
}

/// By their extents, each of which is unique: a place stays mapped for as long as it is registered.
type RegistrationMap<R> = Mutex<BTreeMap<Extent, Weak<RegistrationInner<R>>>>;

/// The memory that a domain has registered besides its arenas, for backends. `R` is the device's handle of each
/// registration, and ends it when dropped.
#[derive(Debug)]
pub struct Registry<R>(Arc<RegistrationMap<R>>);

/// One registration. Clones are handles on the same one.
#[derive(Debug)]
pub struct Registration<R>(Arc<RegistrationInner<R>>);

#[derive(Debug)]
struct RegistrationInner<R> {
    // Dropped first: the device must be done with the memory before it can go.
    device: R,
    place: BufferPlace,
    places: Weak<RegistrationMap<R>>,
}

impl<R> Default for Registry<R> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<R> Clone for Registration<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

fn locked<R>(places: &RegistrationMap<R>) -> MutexGuard<'_, BTreeMap<Extent, Weak<RegistrationInner<R>>>> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R> Registry<R> {
    fn registration_of(&self, extent: Extent) -> Option<Arc<RegistrationInner<R>>> {
        // The lock is released before what was found can be dropped, since dropping takes it.
        locked(&self.0).get(&extent).and_then(Weak::upgrade)
    }

    /// Registers a place with `make`, or returns its existing registration.
    ///
    /// # Errors
    ///
    /// Errors of `make`.
    pub fn register(
        &self,
        place: BufferPlace,
        make: impl FnOnce(&BufferPlace) -> Result<R, VerbsError>,
    ) -> Result<Registration<R>, VerbsError> {
        let extent = place.extent();
        if let Some(held) = self.registration_of(extent) {
            return Ok(Registration(held));
        }
        let held = Arc::new(RegistrationInner { device: make(&place)?, place, places: Arc::downgrade(&self.0) });
        locked(&self.0).insert(extent, Arc::downgrade(&held));
        Ok(Registration(held))
    }

    /// Result of `look` on the registration of the memory with this extent, if there is one.
    pub fn find<T>(&self, extent: Extent, look: impl FnOnce(&R) -> T) -> Option<T> {
        Some(look(&self.registration_of(extent)?.device))
    }

    /// Whether the memory with this extent is registered.
    pub fn has(&self, extent: Extent) -> bool {
        self.find(extent, |_| ()).is_some()
    }
}

impl<R> Drop for RegistrationInner<R> {
    fn drop(&mut self) {
        let Some(places) = self.places.upgrade() else { return };
        let mut places = locked(&places);
        let extent = self.place.extent();
        // It may have been registered anew by now.
        if places.get(&extent).is_some_and(|held| std::ptr::eq(held.as_ptr(), self)) {
            places.remove(&extent);
        }
    }
}

#[cfg(test)]
mod tests {
    use sinew_mem::Arena;

    use super::*;

    #[test]
    fn a_place_is_registered_once_and_found_as_long_as_somebody_has_it() {
        let arena = Arena::private(1 << 16).unwrap();
        let registry = Registry::default();
        let buffer = arena.alloc(4096, 4096).unwrap();
        let mut made = 0;
        let mut register = || {
            registry.register(buffer.place(), |_| {
                made += 1;
                Ok(made)
            })
        };
        let (first, second) = (register().unwrap(), register().unwrap());
        assert_eq!(registry.find(buffer.extent(), |number| *number), Some(1));
        drop(first);
        assert!(registry.has(buffer.extent()));
        drop(second);
        assert!(!registry.has(buffer.extent()) && locked(&registry.0).is_empty());
    }

    #[test]
    fn one_place_is_registered_once_and_stays_mapped() {
        let arena = Arena::private(1 << 16).unwrap();
        let registry = Registry::default();
        let buffer = arena.alloc(64, 64).unwrap();
        let old = registry.register(buffer.place(), |_| Ok(1)).unwrap();
        let place = buffer.place();
        assert_eq!(registry.register(place.clone(), |_| Ok(2)).unwrap().0.device, 1);
        drop(buffer);
        drop(arena);
        // The memory stays as long as it is registered.
        assert_eq!(place.address(), old.0.place.address());
    }

    #[test]
    fn every_part_is_found_by_its_memory_and_places_that_overlap_stay_apart() {
        let registry = Registry::default();
        let mut low = OwnedRange::from(vec![1; 100]);
        let high = OwnedRange::from(vec![2; 100]);
        let held = registry.register(low.place(), |_| Ok(1)).unwrap();
        let part = low.split_off(40);
        assert!(registry.has(low.extent()) && registry.has(part.extent()) && !registry.has(high.extent()));
        drop(held);
        assert!(!registry.has(part.extent()));
        // A place may outlive its buffer, whose block is then used for others.
        let arena = Arena::private(1 << 16).unwrap();
        let long = arena.alloc(100, 100).unwrap();
        let of_long = registry.register(long.place(), |_| Ok(3)).unwrap();
        let (address, extent) = (long.extent().address, long.extent());
        drop(long);
        let short = arena.alloc(90, 90).unwrap();
        assert_eq!(short.extent().address, address, "else there is nothing to confuse");
        assert!(!registry.has(short.extent()));
        let of_short = registry.register(short.place(), |_| Ok(4)).unwrap();
        drop(of_long);
        assert_eq!((registry.find(short.extent(), |number| *number), registry.has(extent)), (Some(4), false));
        drop(of_short);
    }

    #[test]
    fn a_refusal_registers_nothing() {
        let arena = Arena::private(1 << 16).unwrap();
        let registry = Registry::<()>::default();
        let buffer = arena.alloc(64, 64).unwrap();
        let refused = registry.register(buffer.place(), |_| Err(VerbsError::Device("full".into())));
        assert!(refused.is_err() && !registry.has(buffer.extent()));
    }
}
