//! Memory of ours that others may reach.

use std::ops::Deref;

use sinew_fabric::verbs::{Access, Exposed, RemoteMemory};
use sinew_mem::SharedMemory;

use super::device::ShmDevice;

/// Memory that a [`super::ShmDomain`] exposes. Forgetting it leaves it exposed for good.
#[derive(Debug)]
pub struct ShmExposed {
    memory: SharedMemory,
    remote: RemoteMemory,
    access: Access,
    /// Which answers for the memory while it is exposed.
    device: ShmDevice,
}

impl ShmExposed {
    pub(super) fn new(device: ShmDevice, memory: SharedMemory, remote: RemoteMemory, access: Access) -> Self {
        Self { memory, remote, access, device }
    }
}

impl Deref for ShmExposed {
    type Target = SharedMemory;

    fn deref(&self) -> &SharedMemory {
        &self.memory
    }
}

impl Exposed for ShmExposed {
    fn remote(&self) -> RemoteMemory {
        self.remote
    }

    fn access(&self) -> Access {
        self.access
    }

    /// Waits a second at most for those that are inside.
    fn deregister(self) -> Option<SharedMemory> {
        let memory = self.device.memory();
        memory.withdraw(self.remote.rkey);
        memory.wait_until_vacant(self.remote.rkey).then(|| self.memory.clone())
    }
}

impl Drop for ShmExposed {
    fn drop(&mut self) {
        self.device.memory().withdraw(self.remote.rkey);
    }
}
