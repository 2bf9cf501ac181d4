//! The traits of verbs for devices and domains.

use sinew_fabric::verbs::{Access, Attributes, Device, ProtectionDomain, Registration, VerbsError};
use sinew_mem::{Arena, BufferPlace};

use super::device::{ShmDevice, ShmDomain};
use super::exposed::ShmExposed;
use super::thread::ShmThread;

impl Device for ShmDevice {
    type Domain = ShmDomain;

    fn attributes(&self) -> &Attributes {
        self.limits()
    }

    fn protection_domain(&self) -> Result<ShmDomain, VerbsError> {
        Ok(ShmDomain::new(self))
    }
}

impl ProtectionDomain for ShmDomain {
    type Exposed = ShmExposed;
    type Thread = ShmThread;
    type Registration = Registration<()>;

    fn arena(&self, bytes: usize) -> Result<Arena, VerbsError> {
        self.new_arena(bytes)
    }

    fn expose(&self, len: usize, access: Access) -> Result<ShmExposed, VerbsError> {
        let (memory, remote) = self.device().memory().expose(self.number(), len, access)?;
        Ok(ShmExposed::new(self.device().clone(), memory, remote, access))
    }

    /// Initiators move their bytes themselves, so registering only records the place.
    fn register(&self, place: BufferPlace) -> Result<Registration<()>, VerbsError> {
        self.registered().register(place, |_| Ok(()))
    }

    fn thread(&self) -> Result<ShmThread, VerbsError> {
        ShmThread::new(self.clone())
    }
}
