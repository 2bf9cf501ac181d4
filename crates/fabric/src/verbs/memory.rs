//! Memory that peers read and write.

use std::ops::Deref;

use sinew_mem::SharedMemory;

use super::types::Access;

/// Handle by which a peer reaches exposed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// Start of the memory, as its owner's device addresses it.
    pub address: u64,
    /// The key that the device checks.
    pub rkey: u32,
    /// Length in bytes.
    pub len: u64,
}

impl RemoteMemory {
    /// Length of [`Self::to_bytes`].
    pub const BYTES: usize = 20;

    /// The part from `offset` on; `None` past its end.
    pub fn at(&self, offset: u64) -> Option<Self> {
        let address = self.address.checked_add(offset)?;
        Some(Self { address, rkey: self.rkey, len: self.len.checked_sub(offset)? })
    }

    /// The handle as bytes, for a peer.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..].copy_from_slice(&self.rkey.to_le_bytes());
        bytes
    }

    /// Reads a handle that a peer sent.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("20 bytes"));
        Self { address: word(0), len: word(8), rkey: u32::from_le_bytes(*bytes[16..].first_chunk().expect("20 bytes")) }
    }
}

/// A request that may still change exposed memory although its queue pair is gone: see [`Exposed::stragglers`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Straggler {
    /// Range of the memory that it may change, in bytes from its start.
    pub range: std::ops::Range<u64>,
    /// The device's own identifier for it.
    pub words: [u64; 5],
}

/// Memory of ours that peers may reach until it is deregistered. It derefs to [`SharedMemory`], through which we read
/// and write it.
pub trait Exposed: Deref<Target = SharedMemory> {
    /// The handle to give to a peer.
    fn remote(&self) -> RemoteMemory;

    /// Access that peers have.
    fn access(&self) -> Access;

    /// Requests that may still change the memory although their queue pair at this device has been reset or dropped: if
    /// initiators move their bytes themselves, one can be stopped in the middle of a request or of a list. Requests
    /// that still make progress are waited for, so this may take some time. Devices that end requests with their queue
    /// pairs have none. `None` when the device cannot tell now.
    fn stragglers(&self) -> Option<Vec<Straggler>> {
        Some(Vec::new())
    }

    /// Whether a straggler can no longer change anything.
    fn is_over(&self, straggler: &Straggler) -> bool {
        let _ = straggler;
        true
    }

    /// Ends the exposure: requests that name the memory from now on fail. Returns the memory when nobody is inside it;
    /// `None` when an initiator has been stopped in the middle of an operation on it: the memory is then kept aside
    /// until that initiator has gone.
    ///
    /// Dropping does the same without handing the memory out.
    fn deregister(self) -> Option<SharedMemory>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_inside_and_survive_the_way() {
        let memory = RemoteMemory { address: 4096, rkey: 9, len: 100 };
        assert_eq!(memory.at(100), Some(RemoteMemory { address: 4196, rkey: 9, len: 0 }));
        assert_eq!(memory.at(101), None);
        assert_eq!(RemoteMemory { address: u64::MAX, ..memory }.at(1), None);
        assert_eq!(RemoteMemory::from_bytes(&memory.to_bytes()), memory);
    }
}
