//! How a donor's memory is reached: by one-sided verbs of a device, or by calls alone.

use std::ops::Deref;

use sinew_fabric::verbs::{Access, Device, Exposed, ProtectionDomain, QpAddress, Straggler, VerbsError};
use sinew_mem::SharedMemory;

use super::protocol::Refusal;
use super::wire::Way;
use crate::engine::Lending;

/// What gives memory to those who may have it: any verbs [device](Device), whose owners may be reached by calls as well, or [`CallsAlone`].
pub trait Lends {
    /// The memory, and what it takes to give it.
    type Ground: Deref<Target = SharedMemory>;
    /// One caller's way to it, which ends when this is dropped: when it has been, nothing that was sent by that way changes the memory, but for
    /// [stragglers](Self::stragglers).
    type Lending;

    /// Memory of `len` bytes, all zeros.
    ///
    /// # Errors
    ///
    /// What the device or the system says.
    fn ground(&self, len: usize) -> Result<Self::Ground, VerbsError>;

    /// A way for a caller with these queue pairs.
    ///
    /// # Errors
    ///
    /// [`Refusal::OtherFabric`].
    fn lend(&self, ground: &Self::Ground, to: &[QpAddress]) -> Result<(Self::Lending, Way), Refusal>;

    /// What may still change the memory although its way has ended: see [`Exposed::stragglers`].
    fn stragglers(&self, ground: &Self::Ground) -> Option<Vec<Straggler>> {
        let _ = ground;
        Some(Vec::new())
    }

    /// Whether one of them changes nothing any more.
    fn is_over(&self, ground: &Self::Ground, straggler: &Straggler) -> bool {
        let _ = (ground, straggler);
        true
    }
}

/// A device's memory.
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

/// Memory that nobody but this process reaches.
#[derive(Debug)]
pub struct OwnMemory(SharedMemory);

impl Deref for OwnMemory {
    type Target = SharedMemory;

    fn deref(&self) -> &SharedMemory {
        &self.0
    }
}

/// There is none.
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
