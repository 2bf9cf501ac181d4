//! The two ways to access donors' memory: one-sided verbs and calls.

use sinew_fabric::Address;
use sinew_fabric::verbs::{Device, ProtectionDomain, QpAddress, VerbsError};
use sinew_mem::Arena;
use sinew_rpc::{Endpoint, SharedEndpoint};

use crate::donor::AccessPath;
use crate::engine::{Path, RpcPath, RpcPathConfig, VerbsPath, VerbsPathConfig};

/// A means of reading and writing donors' memory, for one thread. Its offer goes to a donor with a call that [requests
/// access](crate::donor::Call::requests_access); together with the donor's answer it becomes a path.
pub trait AccessMethod {
    /// Path to one donor.
    type Path: Path;
    /// This side of a path, until the donor has answered.
    type Offer;

    /// Arena from which the buffers of operations are taken.
    fn arena(&self) -> &Arena;

    /// Makes this side of a path, and the queue pairs that the donor is to know; without any, the donor is asked for
    /// access by calls.
    ///
    /// # Errors
    ///
    /// The reason why no path can be offered.
    fn offer(&self) -> Result<(Self::Offer, Vec<QpAddress>), String>;

    /// Makes the path from the answer of the donor at this address. Returns the path, and the bytes of memory that it
    /// reaches.
    ///
    /// # Errors
    ///
    /// A fault in the answer, or the error of the device.
    fn connect(
        &self,
        donor: &Address,
        offer: Self::Offer,
        access_path: AccessPath,
    ) -> Result<(Self::Path, u64), String>;
}

/// Access by one-sided verbs.
///
/// All requests lie in its one arena, which the device registers at the start. So they are neither copied nor
/// registered one by one (preMR without the copy, rdmabox IV-A), and [`VerbsPathConfig::registration`] has no effect
/// here; it is for engines whose requests lie in other memory.
pub struct Verbs<D: Device> {
    device: D,
    domain: D::Domain,
    arena: Arena,
    config: VerbsPathConfig,
}

impl<D: Device> Verbs<D> {
    /// Access by a device, which registers an arena of `arena_len` bytes.
    ///
    /// # Errors
    ///
    /// The error of the device.
    pub fn new(device: &D, arena_len: usize, config: VerbsPathConfig) -> Result<Self, VerbsError> {
        let domain = device.protection_domain()?;
        let arena = domain.arena(arena_len)?;
        Ok(Self { device: device.clone(), domain, arena, config })
    }
}

impl<D: Device> AccessMethod for Verbs<D> {
    type Path = VerbsPath<D>;
    type Offer = VerbsPath<D>;

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn offer(&self) -> Result<(Self::Offer, Vec<QpAddress>), String> {
        let arenas = std::slice::from_ref(&self.arena);
        let path =
            VerbsPath::new(&self.device, &self.domain, arenas, &self.config).map_err(|error| error.to_string())?;
        let addresses = path.addresses();
        Ok((path, addresses))
    }

    fn connect(
        &self,
        _: &Address,
        mut path: VerbsPath<D>,
        access_path: AccessPath,
    ) -> Result<(Self::Path, u64), String> {
        let AccessPath::Verbs { queue_pairs, memory } = access_path else { return Err(OTHER_ACCESS_PATH.into()) };
        path.connect(&queue_pairs, memory).map_err(|error| error.to_string())?;
        Ok((path, memory.len))
    }
}

const OTHER_ACCESS_PATH: &str = "it offers another kind of access to its memory than was requested";

/// Access by calls that the donor answers, for a fabric without one-sided verbs.
pub struct Calls<E: Endpoint> {
    rpc: SharedEndpoint<E>,
    arena: Arena,
    config: RpcPathConfig,
}

impl<E: Endpoint> Calls<E> {
    /// Access by calls from an endpoint, with an arena of `arena_len` bytes. Each path has a session of its own.
    ///
    /// # Errors
    ///
    /// The system's error if it has no memory.
    pub fn new(rpc: &SharedEndpoint<E>, arena_len: usize, config: RpcPathConfig) -> std::io::Result<Self> {
        Ok(Self { rpc: rpc.share(), arena: Arena::private(arena_len)?, config })
    }
}

impl<E: Endpoint> AccessMethod for Calls<E> {
    type Path = RpcPath<SharedEndpoint<E>>;
    type Offer = ();

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn offer(&self) -> Result<((), Vec<QpAddress>), String> {
        Ok(((), Vec::new()))
    }

    fn connect(&self, donor: &Address, (): (), access_path: AccessPath) -> Result<(Self::Path, u64), String> {
        let AccessPath::Calls { token, len } = access_path else { return Err(OTHER_ACCESS_PATH.into()) };
        let mut rpc = self.rpc.share();
        let session = rpc.begin_connect(donor).map_err(|error| error.to_string())?;
        Ok((RpcPath::connecting(rpc, session, token, &self.config), len))
    }
}
