//! A device's protection domains, and the memory that users expose in them.

use std::ops::Deref;
use std::sync::Arc;

use sinew_fabric::verbs::{
    Access, Attributes, Device, Exposed, ProtectionDomain, Registration as Registered, RemoteMemory, VerbsError,
};
use sinew_mem::{Arena, BufferPlace, SharedMemory};

use crate::abi::*;
use crate::device::IbDevice;
use crate::library::system;
use crate::registration::{DomainInner, LocalMemory, Registration};
use crate::thread::IbThread;

/// Memory and queue pairs that may be used together on an [`IbDevice`].
///
/// Arenas are registered as a whole: their memory is backed and locked at once, and stays registered until the domain
/// and everything made from it are gone.
#[derive(Clone, Debug)]
pub struct IbDomain(pub(crate) Arc<DomainInner>);

impl Device for IbDevice {
    type Domain = IbDomain;

    fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    fn protection_domain(&self) -> Result<IbDomain, VerbsError> {
        Ok(IbDomain(Arc::new(DomainInner::new(&self.0)?)))
    }
}

impl ProtectionDomain for IbDomain {
    type Exposed = IbMemory;
    type Thread = IbThread;
    type Registration = Registered<LocalMemory>;

    fn arena(&self, bytes: usize) -> Result<Arena, VerbsError> {
        self.0.arena(bytes)
    }

    fn expose(&self, len: usize, access: Access) -> Result<IbMemory, VerbsError> {
        let device = &self.0.device;
        if access.atomic && !device.attributes.atomics {
            return Err(VerbsError::Device(format!("{} has no atomics", device.context.name)));
        }
        let memory = SharedMemory::private(len)
            .map_err(|error| system(format!("mapping {len} bytes to expose"), error, None))?;
        let flag = |allowed: bool, flag: u32| if allowed { flag } else { 0 };
        // Remote writes need local ones.
        let flags = IBV_ACCESS_LOCAL_WRITE
            | flag(access.write, IBV_ACCESS_REMOTE_WRITE)
            | flag(access.read, IBV_ACCESS_REMOTE_READ)
            | flag(access.atomic, IBV_ACCESS_REMOTE_ATOMIC);
        Ok(IbMemory { registration: Registration::new(&self.0, memory, flags)?, access })
    }

    fn register(&self, place: BufferPlace) -> Result<Registered<LocalMemory>, VerbsError> {
        self.0.registered.register(place, |place| LocalMemory::new(&self.0, place))
    }

    fn thread(&self) -> Result<IbThread, VerbsError> {
        Ok(IbThread::new(Arc::clone(&self.0)))
    }
}

/// Memory of this process that peers can reach through an [`IbDevice`], until it is dropped.
#[derive(Debug)]
pub struct IbMemory {
    registration: Registration,
    access: Access,
}

impl Deref for IbMemory {
    type Target = SharedMemory;

    fn deref(&self) -> &SharedMemory {
        self.registration.memory()
    }
}

impl Exposed for IbMemory {
    fn remote(&self) -> RemoteMemory {
        RemoteMemory { address: self.address() as u64, rkey: self.registration.region.rkey, len: self.len() as u64 }
    }

    fn access(&self) -> Access {
        self.access
    }

    /// Waits for peers' requests in flight to end: the memory always comes back, unless the device fails.
    fn deregister(mut self) -> Option<SharedMemory> {
        self.registration.end().then(|| self.registration.memory().clone())
    }
}
