//! Memory that is registered with a protection domain, so that a device may use it, and its lifetime.

use std::ffi::c_void;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, getrlimit};
use sinew_fabric::verbs::{Registry, VerbsError};
use sinew_mem::{Arena, BufferPlace, SharedMemory};

use crate::abi::*;
use crate::device::DeviceInner;
use crate::library::{Library, system};

/// A protection domain, shared by everything made in it.
#[derive(Debug)]
pub(crate) struct DomainInner {
    pub device: Arc<DeviceInner>,
    pd: NonNull<ibv_pd>,
    arenas: Mutex<Vec<RegisteredArena>>,
    /// Buffers of other arenas.
    pub registered: Registry<LocalMemory>,
}

// SAFETY: a protection domain may be used from any thread, as the library's functions on it are (ibverbs(7)).
unsafe impl Send for DomainInner {}
// SAFETY: as above.
unsafe impl Sync for DomainInner {}

/// An arena of a domain. It is kept so that no other arena gets its identity, by which buffers are found.
#[derive(Debug)]
struct RegisteredArena {
    arena: ManuallyDrop<Arena>,
    region: MemoryRegion,
}

/// A range of memory that a device may use, with its keys. It does not deregister itself: its owner keeps the memory
/// mapped, and deregisters it at the end.
#[derive(Debug)]
pub(crate) struct MemoryRegion {
    mr: NonNull<ibv_mr>,
    pub lkey: u32,
    pub rkey: u32,
}

// SAFETY: it names an object of the library's, whose functions may be called from any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Ends the device's use of the memory; returns false if it did not end, and the memory must stay.
    pub fn deregister(&self, library: &Library) -> bool {
        // SAFETY: registered with this library, and deregistered once, by its owner at its end.
        unsafe { (library.ibv_dereg_mr)(self.mr.as_ptr()) == 0 }
    }
}

impl DomainInner {
    pub fn new(device: &Arc<DeviceInner>) -> Result<Self, VerbsError> {
        let pd = device.context.alloc_pd()?;
        Ok(Self { device: Arc::clone(device), pd, arenas: Mutex::new(Vec::new()), registered: Registry::default() })
    }

    pub fn library(&self) -> &'static Library {
        self.device.context.library
    }

    pub fn pd(&self) -> *mut ibv_pd {
        self.pd.as_ptr()
    }

    /// Makes an arena and registers it.
    pub fn arena(&self, bytes: usize) -> Result<Arena, VerbsError> {
        let arena = Arena::private(bytes)
            .map_err(|error| system(format!("mapping {bytes} bytes for messages"), error, None))?;
        let region = arena.region();
        // From here on, its bytes may change without the compiler seeing it.
        region.start().as_ptr().expose_provenance();
        // SAFETY: the arena is kept until it is deregistered. Only posted buffers are written, and their exclusive
        // handles stay in tables of queue pairs until their requests are over.
        let region = unsafe { self.register(region.start().as_ptr(), region.len(), IBV_ACCESS_LOCAL_WRITE)? };
        self.arenas().push(RegisteredArena { arena: ManuallyDrop::new(arena.clone()), region });
        Ok(arena)
    }

    fn arenas(&self) -> MutexGuard<'_, Vec<RegisteredArena>> {
        self.arenas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The registered arenas from the `known`th on, with their local keys.
    pub fn arenas_since(&self, known: usize) -> Vec<(Arena, u32)> {
        let arenas = self.arenas();
        let new = arenas.get(known..).unwrap_or_default();
        new.iter().map(|registered| (Arena::clone(&registered.arena), registered.region.lkey)).collect()
    }

    /// Registers memory.
    ///
    /// # Safety
    ///
    /// The range stays mapped until it is deregistered, and no reference to it is held while a peer or a posted request
    /// may write there.
    pub unsafe fn register(&self, start: *mut u8, len: usize, access: u32) -> Result<MemoryRegion, VerbsError> {
        // SAFETY: our domain, and memory that our caller vouches for.
        let mr = unsafe { (self.library().ibv_reg_mr)(self.pd(), start.cast::<c_void>(), len, access as i32) };
        let Some(mr) = NonNull::new(mr) else {
            let error = io::Error::last_os_error();
            return Err(refused_registration(&self.device.context.name, len, error, memlock_limit()));
        };
        // SAFETY: made just now.
        let (lkey, rkey) = unsafe { (mr.as_ref().lkey, mr.as_ref().rkey) };
        Ok(MemoryRegion { mr, lkey, rkey })
    }
}

impl Drop for DomainInner {
    fn drop(&mut self) {
        let library = self.library();
        for registered in self.arenas.get_mut().unwrap_or_else(PoisonError::into_inner) {
            if registered.region.deregister(library) {
                // SAFETY: the last use of the handle. (An arena whose memory the device may still write is kept for
                // good.)
                unsafe { ManuallyDrop::drop(&mut registered.arena) };
            }
        }
        // SAFETY: everything made in the domain holds it by an `Arc`, so nothing is left.
        let status = unsafe { (library.ibv_dealloc_pd)(self.pd()) };
        debug_assert!(status == 0 || std::thread::panicking(), "the domain still has objects: error {status}");
    }
}

/// A buffer's memory that the device may use until this is dropped.
#[derive(Debug)]
pub struct LocalMemory {
    place: BufferPlace,
    region: MemoryRegion,
    domain: Arc<DomainInner>,
}

impl LocalMemory {
    pub(crate) fn new(domain: &Arc<DomainInner>, place: &BufferPlace) -> Result<Self, VerbsError> {
        let start = place.start().as_ptr();
        // As for an arena: its bytes may change without the compiler seeing it.
        start.expose_provenance();
        // SAFETY: we keep the place, and with it its memory, until it is deregistered. Only posted buffers are written,
        // and their exclusive handles stay in tables of queue pairs until their requests are over. Devices refuse an
        // empty range; at least a byte of its memory lies behind every place.
        let region = unsafe { domain.register(start, place.len().max(1), IBV_ACCESS_LOCAL_WRITE)? };
        Ok(Self { place: place.clone(), region, domain: Arc::clone(domain) })
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.region.lkey
    }
}

impl Drop for LocalMemory {
    fn drop(&mut self) {
        if !self.region.deregister(self.domain.library()) {
            // The device may still write there, so it stays mapped for good.
            std::mem::forget(self.place.clone());
        }
    }
}

/// Bytes of memory that this process may lock, if there is a limit.
fn memlock_limit() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

fn refused_registration(name: &str, len: usize, error: io::Error, limit: Option<u64>) -> VerbsError {
    let locked = match (error.raw_os_error(), limit) {
        (Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN), Some(limit)) => Some(limit),
        _ => None,
    };
    let mut doing = format!("registering {len} bytes with {name}");
    if let Some(limit) = locked {
        doing += &format!(" (this process may lock {limit})");
    }
    let remedy = "raise the limit of locked memory: `ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, --ulimit \
                  memlock=-1 for a container; or ask for less";
    system(doing, error, locked.map(|_| remedy))
}

/// Shared memory that a device may use until this is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    memory: SharedMemory,
    pub region: MemoryRegion,
    domain: Arc<DomainInner>,
    ended: bool,
}

impl Registration {
    pub fn new(domain: &Arc<DomainInner>, memory: SharedMemory, access: u32) -> Result<Self, VerbsError> {
        let start = std::ptr::with_exposed_provenance_mut(memory.address());
        // SAFETY: we keep the memory until it is deregistered, and there are no references to such memory. It has at
        // least a word even where its length is 0; devices refuse an empty range.
        let region = unsafe { domain.register(start, memory.len().max(1), access)? };
        Ok(Self { memory, region, domain: Arc::clone(domain), ended: false })
    }

    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Ends the device's use of the memory; returns false if it could not be ended.
    pub fn end(&mut self) -> bool {
        if !self.ended {
            self.ended = self.region.deregister(self.domain.library());
        }
        self.ended
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.end() {
            // The device may still write there, so it stays mapped for good.
            std::mem::forget(self.memory.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_may_not_be_locked_is_explained() {
        let refused = |number: i32, limit| {
            refused_registration("rxe0", 1 << 30, io::Error::from_raw_os_error(number), limit).to_string()
        };
        let why = refused(libc::ENOMEM, Some(65_536));
        assert!(why.contains("1073741824") && why.contains("65536") && why.contains("ulimit -l unlimited"), "{why}");
        assert!(!refused(libc::ENOMEM, None).contains("ulimit"), "without a limit it is something else");
        assert!(!refused(libc::EINVAL, Some(65_536)).contains("ulimit"));
    }
}
