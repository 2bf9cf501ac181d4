//! Our memory that others may access.

use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use sinew_fabric::verbs::{Access, Exposed, RemoteMemory, Straggler};
use sinew_mem::SharedMemory;

use super::device::ShmDevice;
use super::directory;

/// Memory that a [`super::ShmDomain`] exposes. Forgetting it leaves it exposed for good.
#[derive(Debug)]
pub struct ShmExposed {
    memory: SharedMemory,
    remote: RemoteMemory,
    access: Access,
    /// Initiators that did not finish while they were waited for: they are not waited for again.
    known_stragglers: Mutex<Vec<directory::Straggler>>,
    /// The device that manages the memory while it is exposed.
    device: ShmDevice,
}

impl ShmExposed {
    pub(super) fn new(device: ShmDevice, memory: SharedMemory, remote: RemoteMemory, access: Access) -> Self {
        Self { memory, remote, access, known_stragglers: Mutex::default(), device }
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

    /// Initiators move their bytes themselves, and may be stopped between their check of the queue pair and the end of
    /// a copy. Waits up to 100 ms for each initiator that has not been waited for before.
    fn stragglers(&self) -> Option<Vec<Straggler>> {
        let (start, len) = (self.remote.address, self.remote.len);
        let to_public = |late: directory::Straggler| {
            let (first, bytes) = late.bytes.unwrap_or((start, len));
            // The range is the initiators' own claim; their writes are checked against the region.
            let first = first.saturating_sub(start).min(len);
            let range = first..first.saturating_add(bytes).min(len);
            let (at, count) = late.bytes.unwrap_or_default();
            let words = [u64::from(late.seat), late.seat_word, u64::from(late.bytes.is_some()), at, count];
            Straggler { range, words }
        };
        let mut known = self.known_stragglers.lock().unwrap_or_else(PoisonError::into_inner);
        *known = self.device.memory().stragglers(self.remote.rkey, &known)?;
        Some(known.iter().copied().map(to_public).collect())
    }

    fn is_over(&self, straggler: &Straggler) -> bool {
        let [seat, seat_word, has_bytes, at, count] = straggler.words;
        let Some(seat) = u32::try_from(seat).ok().filter(|seat| (*seat as usize) < directory::SEATS_MAX) else {
            return true;
        };
        let bytes = (has_bytes > 0).then_some((at, count));
        !self.device.memory().is_unchanged(&directory::Straggler { seat, seat_word, bytes })
    }

    /// Waits at most a second for initiators that are inside.
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
