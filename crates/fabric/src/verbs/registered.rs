//! A user's own memory, registered buffer by buffer (rdmabox IV-A: dynMR).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sinew_mem::{BufferPlace, MessageBuffer};

use super::error::VerbsError;
use super::traits::ProtectionDomain;

/// A buffer of the user's, registered with a domain. It is moved in, taken out to be posted, and put back when it
/// returns with its completion. [`Self::end`] gives it back, and is refused while the buffer is out. So nothing is in
/// flight when the registration ends.
///
/// Dropping this ends the registration, wherever the buffer is: a request that has the buffer may then fail.
#[derive(Debug)]
pub struct Registered<R> {
    registration: R,
    memory: Option<MessageBuffer>,
    address: usize,
}

/// Error of a buffer that was not registered.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RegisterError {
    /// The device's error.
    #[source]
    pub error: VerbsError,
    /// The buffer.
    pub memory: MessageBuffer,
}

/// Error of ending a registration while the buffer is out, and may be in flight.
#[derive(Debug, thiserror::Error)]
#[error("the memory was taken out, and may be in flight: put it back when its request is over, then end it")]
pub struct InUse<R> {
    /// The registration, unchanged.
    pub registered: Registered<R>,
}

fn address_of(bytes: &[u8]) -> usize {
    bytes.as_ptr().addr()
}

impl<R> Registered<R> {
    /// Registers a buffer of any arena.
    ///
    /// # Errors
    ///
    /// [`RegisterError`], with the buffer.
    // The error is as large as what it gives back.
    #[allow(clippy::result_large_err)]
    pub fn new<D: ProtectionDomain<Registration = R>>(
        domain: &D,
        memory: MessageBuffer,
    ) -> Result<Self, RegisterError> {
        match domain.register(memory.place()) {
            Ok(registration) => Ok(Self { registration, address: address_of(&memory), memory: Some(memory) }),
            Err(error) => Err(RegisterError { error, memory }),
        }
    }

    /// The buffer, unless it is out.
    pub fn memory(&mut self) -> Option<&mut MessageBuffer> {
        self.memory.as_mut()
    }

    /// The device's registration.
    pub fn registration(&self) -> &R {
        &self.registration
    }

    /// Takes the buffer out, to be posted.
    pub fn take(&mut self) -> Option<MessageBuffer> {
        self.memory.take()
    }

    /// Puts the buffer back.
    ///
    /// # Errors
    ///
    /// The buffer, if it is a different one.
    pub fn put_back(&mut self, memory: MessageBuffer) -> Result<(), MessageBuffer> {
        if address_of(&memory) != self.address {
            return Err(memory);
        }
        self.memory = Some(memory);
        Ok(())
    }

    /// Ends the registration and returns the buffer.
    ///
    /// # Errors
    ///
    /// [`InUse`], with this handle, when the buffer is out.
    pub fn end(mut self) -> Result<MessageBuffer, InUse<R>> {
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
    /// The registration that begins at this address.
    fn find_at(&self, address: usize) -> Option<Arc<RegistrationInner<R>>> {
        // The lock is released before what was found can be dropped, since dropping takes it.
        locked(&self.0).get(&address).and_then(Weak::upgrade)
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
        if let Some(held) = self.find_at(address).filter(|held| held.place.len() >= place.len()) {
            return Ok(Registration(held));
        }
        let held = Arc::new(RegistrationInner { device: make(&place)?, place, places: Arc::downgrade(&self.0) });
        locked(&self.0).insert(address, Arc::downgrade(&held));
        Ok(Registration(held))
    }

    /// Result of `look` on the registration of a buffer with these contents, if there is one.
    pub fn find<T>(&self, contents: &[u8], look: impl FnOnce(&R) -> T) -> Option<T> {
        let held = self.find_at(address_of(contents)).filter(|held| held.place.len() >= contents.len())?;
        Some(look(&held.device))
    }

    /// Whether a buffer with these contents is registered.
    pub fn has(&self, contents: &[u8]) -> bool {
        self.find(contents, |_| ()).is_some()
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
        assert_eq!((registry.find(&buffer, |number| *number), registry.find(&buffer[1..], |_| ())), (Some(1), None));
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
    fn a_refusal_registers_nothing() {
        let arena = Arena::private(1 << 16).unwrap();
        let registry = Registry::<()>::default();
        let buffer = arena.alloc(64, 64).unwrap();
        let refused = registry.register(buffer.place(), |_| Err(VerbsError::Device("full".into())));
        assert!(refused.is_err() && !registry.has(&buffer));
    }
}
