//! The two ways to reach a donor's memory: one-sided verbs of a device, or calls alone.

use std::ops::Deref;

use sinew_fabric::verbs::{Access, Device, Exposed, ProtectionDomain, QpAddress, Straggler, VerbsError};
use sinew_mem::SharedMemory;

use super::protocol::Refusal;
use super::wire::Way;
use crate::engine::Lending;

/// Provider of a donor's memory: any verbs [device](Device), whose callers may also use calls, or [`CallsAlone`].
pub trait Lends {
    /// The memory, with whatever is needed to lend it.
    type Ground: Deref<Target = SharedMemory>;
    /// One caller's access to the memory, which ends when this is dropped. From then on nothing sent over it changes
    /// the memory, except for [stragglers](Self::stragglers).
    type Lending;

    /// Reserves memory of `len` bytes, all zeros.
    ///
    /// # Errors
    ///
    /// The error of the device or the system.
    fn ground(&self, len: usize) -> Result<Self::Ground, VerbsError>;

    /// Gives access to a caller with these queue pairs.
    ///
    /// # Errors
    ///
    /// [`Refusal::OtherFabric`] if these queue pairs cannot reach the memory.
    fn lend(&self, ground: &Self::Ground, to: &[QpAddress]) -> Result<(Self::Lending, Way), Refusal>;

    /// Writes that may still land although their access has ended; see [`Exposed::stragglers`].
    fn stragglers(&self, ground: &Self::Ground) -> Option<Vec<Straggler>> {
        let _ = ground;
        Some(Vec::new())
    }

    /// Whether a straggler can change nothing any more.
    fn is_over(&self, ground: &Self::Ground, straggler: &Straggler) -> bool {
        let _ = (ground, straggler);
        true
    }
}

/// Memory exposed by a device.
pub struct Grounds<D: Device> {
    domain: D::Domain,
    memory: <D::Domain as ProtectionDomain>::Exposed,
}

impl<D: Device> Deref for Grounds<D> {
    type Target = SharedMemory;

    fn deref(&self) -> &SharedMemory {
        &self.memory
    }
}

impl<D: Device> Lends for D {
    type Ground = Grounds<D>;
    type Lending = Lending<D>;

    fn ground(&self, len: usize) -> Result<Grounds<D>, VerbsError> {
        let domain = self.protection_domain()?;
        let memory = domain.expose(len, Access::ALL)?;
        Ok(Grounds { domain, memory })
    }

    fn lend(&self, ground: &Grounds<D>, to: &[QpAddress]) -> Result<(Lending<D>, Way), Refusal> {
        let lending = Lending::new(self, &ground.domain, to).map_err(|_| Refusal::OtherFabric)?;
        let way = Way::Verbs { queue_pairs: lending.addresses(), memory: ground.memory.remote() };
        Ok((lending, way))
    }

    fn stragglers(&self, ground: &Grounds<D>) -> Option<Vec<Straggler>> {
        ground.memory.stragglers()
    }

    fn is_over(&self, ground: &Grounds<D>, straggler: &Straggler) -> bool {
        ground.memory.is_over(straggler)
    }
}

/// Memory of this process, on a fabric without one-sided verbs.
#[derive(Clone, Copy, Debug)]
pub struct CallsAlone;

/// Memory that only this process can reach.
#[derive(Debug)]
pub struct OwnMemory(SharedMemory);

impl Deref for OwnMemory {
    type Target = SharedMemory;

    fn deref(&self) -> &SharedMemory {
        &self.0
    }
}

/// Access over verbs where there are no verbs: it cannot exist.
#[derive(Debug)]
pub enum NoLending {}

impl Lends for CallsAlone {
    type Ground = OwnMemory;
    type Lending = NoLending;

    fn ground(&self, len: usize) -> Result<OwnMemory, VerbsError> {
        let doing = || format!("reserving {len} bytes of memory");
        let memory = SharedMemory::private(len).map_err(|source| VerbsError::System {
            doing: doing(),
            source,
            remedy: Some("give less"),
        })?;
        Ok(OwnMemory(memory))
    }

    fn lend(&self, _: &OwnMemory, _: &[QpAddress]) -> Result<(NoLending, Way), Refusal> {
        Err(Refusal::OtherFabric)
    }
}
