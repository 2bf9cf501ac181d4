//! The two ways to reach a donor's memory: one-sided verbs of a device, or calls alone.

use std::ops::Deref;

use sinew_fabric::verbs::{Access, Device, Exposed, ProtectionDomain, QpAddress, Straggler, VerbsError};
use sinew_mem::SharedMemory;

use super::protocol::Refusal;
use super::wire::AccessPath;
use crate::engine::DonorQueuePairs;

/// Provider of a donor's memory: any verbs [device](Device), whose callers may also use calls, or [`CallsOnly`].
pub trait MemoryProvider {
    /// The memory, with whatever is needed to lend it.
    type Memory: Deref<Target = SharedMemory>;
    /// One caller's access to the memory, which ends when this is dropped. From then on nothing sent over it changes
    /// the memory, except for [stragglers](Self::stragglers).
    type Grant;

    /// Reserves memory of `len` bytes, all zeros.
    ///
    /// # Errors
    ///
    /// The error of the device or the system.
    fn allocate(&self, len: usize) -> Result<Self::Memory, VerbsError>;

    /// Gives access to a caller with these queue pairs.
    ///
    /// # Errors
    ///
    /// [`Refusal::OtherFabric`] if these queue pairs cannot reach the memory.
    fn lend(&self, memory: &Self::Memory, to: &[QpAddress]) -> Result<(Self::Grant, AccessPath), Refusal>;

    /// Writes that may still land although their access has ended; see [`Exposed::stragglers`].
    fn stragglers(&self, memory: &Self::Memory) -> Option<Vec<Straggler>> {
        let _ = memory;
        Some(Vec::new())
    }

    /// Whether a straggler can change nothing any more.
    fn has_ended(&self, memory: &Self::Memory, straggler: &Straggler) -> bool {
        let _ = (memory, straggler);
        true
    }
}

/// Memory exposed by a device.
pub struct DonorMemory<D: Device> {
    domain: D::Domain,
    memory: <D::Domain as ProtectionDomain>::Exposed,
}

impl<D: Device> Deref for DonorMemory<D> {
    type Target = SharedMemory;

    fn deref(&self) -> &SharedMemory {
        &self.memory
    }
}

impl<D: Device> MemoryProvider for D {
    type Memory = DonorMemory<D>;
    type Grant = DonorQueuePairs<D>;

    fn allocate(&self, len: usize) -> Result<DonorMemory<D>, VerbsError> {
        let domain = self.protection_domain()?;
        let memory = domain.expose(len, Access::ALL)?;
        Ok(DonorMemory { domain, memory })
    }

    fn lend(&self, memory: &DonorMemory<D>, to: &[QpAddress]) -> Result<(DonorQueuePairs<D>, AccessPath), Refusal> {
        let grant = DonorQueuePairs::new(self, &memory.domain, to).map_err(|_| Refusal::OtherFabric)?;
        let path = AccessPath::Verbs { queue_pairs: grant.addresses(), memory: memory.memory.remote() };
        Ok((grant, path))
    }

    fn stragglers(&self, memory: &DonorMemory<D>) -> Option<Vec<Straggler>> {
        memory.memory.stragglers()
    }

    fn has_ended(&self, memory: &DonorMemory<D>, straggler: &Straggler) -> bool {
        memory.memory.is_over(straggler)
    }
}

/// Memory of this process, on a fabric without one-sided verbs.
#[derive(Clone, Copy, Debug)]
pub struct CallsOnly;

/// Memory that only this process can reach.
#[derive(Debug)]
pub struct PrivateMemory(SharedMemory);

impl Deref for PrivateMemory {
    type Target = SharedMemory;

    fn deref(&self) -> &SharedMemory {
        &self.0
    }
}

/// Access over verbs where there are no verbs: it cannot exist.
#[derive(Debug)]
pub enum NoGrant {}

impl MemoryProvider for CallsOnly {
    type Memory = PrivateMemory;
    type Grant = NoGrant;

    fn allocate(&self, len: usize) -> Result<PrivateMemory, VerbsError> {
        let doing = || format!("reserving {len} bytes of memory");
        let memory = SharedMemory::private(len).map_err(|source| VerbsError::System {
            doing: doing(),
            source,
            remedy: Some("give less"),
        })?;
        Ok(PrivateMemory(memory))
    }

    fn lend(&self, _: &PrivateMemory, _: &[QpAddress]) -> Result<(NoGrant, AccessPath), Refusal> {
        Err(Refusal::OtherFabric)
    }
}
