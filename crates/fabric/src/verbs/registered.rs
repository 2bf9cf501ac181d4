//! A user's own memory, registered piece by piece (rdmabox IV-A: dynMR).

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sinew_mem::{BufferPlace, MessageBuffer, OwnedRange};

use super::error::VerbsError;
use super::traits::ProtectionDomain;

/// Memory that a user can register: a message buffer of any arena, or an [`OwnedRange`] of a vector or of a buffer.
pub trait Registrable: Deref<Target = [u8]> {
    /// Its place.
    fn place(&self) -> BufferPlace;

    /// Whether it is all of the memory at its place.
    fn is_whole(&self) -> bool;
}

impl Registrable for MessageBuffer {
    fn place(&self) -> BufferPlace {
        self.place()
    }

    fn is_whole(&self) -> bool {
        true
    }
}

impl Registrable for OwnedRange {
    fn place(&self) -> BufferPlace {
        self.place()
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
/// Dropping this ends the registration, wherever the memory is: a request that has the memory may then fail.
#[derive(Debug)]
pub struct Registered<R, M = MessageBuffer> {
    registration: R,
    memory: Option<M>,
    address: usize,
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

fn address_of(bytes: &[u8]) -> usize {
    bytes.as_ptr().addr()
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
            Ok(registration) => Ok(Self { registration, address: address_of(&memory), memory: Some(memory) }),
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
        if address_of(&memory) != self.address || !memory.is_whole() {
            return Err(memory);
        }
        self.memory = Some(memory);
        Ok(())
    }

    /// Ends the registration and returns the memory.
    ///
    /// # Errors
    ///
    /// [`InUse`], with this handle, when the memory is out.
    pub fn end(mut self) -> Result<M, InUse<R, M>> {
        match self.memory.take() {
            Some(memory) => Ok(memory),
            None => Err(InUse { registered: self }),
        }
    }
}

type RegistrationMap<R> = Mutex<BTreeMap<usize, Weak<RegistrationInner<R>>>>;

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

fn locked<R>(places: &RegistrationMap<R>) -> MutexGuard<'_, BTreeMap<usize, Weak<RegistrationInner<R>>>> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R> Registry<R> {
    /// The registration in which these bytes lie. (Places do not overlap, except that one may be longer than another
    /// with the same start, whose place it then takes.)
    fn find_at(&self, address: usize, len: usize) -> Option<Arc<RegistrationInner<R>>> {
        // The lock is released before what was found can be dropped, since dropping takes it.
        let held = locked(&self.0).range(..=address).next_back().and_then(|(_, held)| held.upgrade());
        held.filter(|held| held.place.len().checked_sub(address - held.place.address()).is_some_and(|room| len <= room))
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
        let address = place.address();
        if let Some(held) = self.find_at(address, place.len()) {
            return Ok(Registration(held));
        }
        let held = Arc::new(RegistrationInner { device: make(&place)?, place, places: Arc::downgrade(&self.0) });
        locked(&self.0).insert(address, Arc::downgrade(&held));
        Ok(Registration(held))
    }

    /// Result of `look` on the registration of the memory in which these bytes lie, if there is one.
    pub fn find<T>(&self, bytes: &[u8], look: impl FnOnce(&R) -> T) -> Option<T> {
        Some(look(&self.find_at(address_of(bytes), bytes.len())?.device))
    }

    /// Whether the memory in which these bytes lie is registered.
    pub fn has(&self, bytes: &[u8]) -> bool {
        self.find(bytes, |_| ()).is_some()
    }
}

impl<R> Drop for RegistrationInner<R> {
    fn drop(&mut self) {
        let Some(places) = self.places.upgrade() else { return };
        let mut places = locked(&places);
        let address = self.place.address();
        // A longer buffer may have taken its place by now.
        if places.get(&address).is_some_and(|held| std::ptr::eq(held.as_ptr(), self)) {
            places.remove(&address);
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
        assert_eq!(
            (registry.find(&buffer, |number| *number), registry.find(&buffer[1..], |number| *number)),
            (Some(1), Some(1))
        );
        drop(first);
        assert!(registry.has(&buffer));
        drop(second);
        assert!(!registry.has(&buffer) && locked(&registry.0).is_empty());
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
    fn bytes_are_registered_only_where_all_of_them_lie_in_the_memory() {
        let registry = Registry::default();
        let (mut low, high) = (OwnedRange::from(vec![1; 100]), OwnedRange::from(vec![2; 100]));
        let held = registry.register(low.place(), |_| Ok(1)).unwrap();
        let part = low.split_off(40);
        assert!(registry.has(&low) && registry.has(&part) && registry.has(&part[60..]) && !registry.has(&high));
        let other = registry.register(high.place(), |_| Ok(2)).unwrap();
        assert_eq!([&low, &part, &high].map(|bytes| registry.find(bytes, |number| *number)), [1, 1, 2].map(Some));
        drop(held);
        assert!(!registry.has(&part) && registry.has(&high));
        drop(other);
    }

    #[test]
    fn a_refusal_registers_nothing() {
        let arena = Arena::private(1 << 16).unwrap();
        let registry = Registry::<()>::default();
        let buffer = arena.alloc(64, 64).unwrap();
        let refused = registry.register(buffer.place(), |_| Err(VerbsError::Device("full".into())));
        assert!(refused.is_err() && !registry.has(&buffer));
    }
}
