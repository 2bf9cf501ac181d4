//! What the traits of verbs make of a device: its domains, and what those give.

use sinew_fabric::verbs::{Access, Attributes, Device, ProtectionDomain, VerbsError};
use sinew_mem::Arena;

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

    fn arena(&self, bytes: usize) -> Result<Arena, VerbsError> {
        self.new_arena(bytes)
    }

    fn expose(&self, len: usize, access: Access) -> Result<ShmExposed, VerbsError> {
        let (memory, remote) = self.device().memory().expose(self.number(), len, access)?;
        Ok(ShmExposed::new(self.device().clone(), memory, remote, access))
    }

    fn thread(&self) -> Result<ShmThread, VerbsError> {
        ShmThread::new(self.clone())
    }
}
