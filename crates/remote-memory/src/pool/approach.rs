//! How the memory of donors is reached.

use sinew_fabric::Address;
use sinew_fabric::verbs::{Device, ProtectionDomain, QpAddress, VerbsError};
use sinew_mem::Arena;
use sinew_rpc::{Endpoint, SharedEndpoint};

use crate::donor::Way;
use crate::engine::{Path, RpcPath, RpcPathConfig, VerbsPath, VerbsPathConfig};

/// A means of reading and writing donors' memory, for one thread: what it offers goes to a donor with a call that [asks for a way](crate::donor::Call::asks_for_way), and with the donor's
/// answer becomes a path.
pub trait Approach {
    /// The way to one donor.
    type Path: Path;
    /// This side of a way that has no answer yet.
    type Offer;

    /// Where buffers of operations come from.
    fn arena(&self) -> &Arena;

    /// This side of a way, and what to tell the donor of it: nothing asks for a way by calls.
    ///
    /// # Errors
    ///
    /// Why there is none.
    fn offer(&self) -> Result<(Self::Offer, Vec<QpAddress>), String>;

    /// The way, when the donor at an address has answered, and the bytes of memory that it leads to.
    ///
    /// # Errors
    ///
    /// What is wrong with the answer, or with the device.
    fn connect(&self, donor: &Address, offer: Self::Offer, way: Way) -> Result<(Self::Path, u64), String>;
}

/// By one-sided verbs.
///
/// All requests lie in its one arena, which the device has registered from the beginning: they are neither copied nor registered (preMR without the copy, rdmabox
/// IV-A). So the size from which on registering is cheaper ([`VerbsPathConfig::registering`]) never matters to a pool, whatever its config says; it is for engines that are
/// given memory of others.
pub struct Verbs<D: Device> {
    device: D,
    domain: D::Domain,
    arena: Arena,
    config: VerbsPathConfig,
}

impl<D: Device> Verbs<D> {
    /// By a device, with an arena of `arena_len` bytes that it registers.
    ///
    /// # Errors
    ///
    /// What the device says.
    pub fn new(device: &D, arena_len: usize, config: VerbsPathConfig) -> Result<Self, VerbsError> {
        let domain = device.protection_domain()?;
        let arena = domain.arena(arena_len)?;
        Ok(Self { device: device.clone(), domain, arena, config })
    }
}

impl<D: Device> Approach for Verbs<D> {
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

    fn connect(&self, _: &Address, mut path: VerbsPath<D>, way: Way) -> Result<(Self::Path, u64), String> {
        let Way::Verbs { queue_pairs, memory } = way else { return Err(OTHER_WAY.into()) };
        path.connect(&queue_pairs, memory).map_err(|error| error.to_string())?;
        Ok((path, memory.len))
    }
}

const OTHER_WAY: &str = "it says another way to its memory than it was asked for";

/// By calls that the donor answers, where a fabric has no one-sided verbs.
pub struct Calls<E: Endpoint> {
    rpc: SharedEndpoint<E>,
    arena: Arena,
    config: RpcPathConfig,
}

impl<E: Endpoint> Calls<E> {
    /// By an endpoint, with an arena of `arena_len` bytes. Each way has a session of its own.
    ///
    /// # Errors
    ///
    /// What the system says when it has no memory.
    pub fn new(rpc: &SharedEndpoint<E>, arena_len: usize, config: RpcPathConfig) -> std::io::Result<Self> {
        Ok(Self { rpc: rpc.share(), arena: Arena::private(arena_len)?, config })
    }
}

impl<E: Endpoint> Approach for Calls<E> {
    type Path = RpcPath<SharedEndpoint<E>>;
    type Offer = ();

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn offer(&self) -> Result<((), Vec<QpAddress>), String> {
        Ok(((), Vec::new()))
    }

    fn connect(&self, donor: &Address, (): (), way: Way) -> Result<(Self::Path, u64), String> {
        let Way::Calls { token, len } = way else { return Err(OTHER_WAY.into()) };
        let mut rpc = self.rpc.share();
        let session = rpc.begin_connect(donor).map_err(|error| error.to_string())?;
        Ok((RpcPath::connecting(rpc, session, token, &self.config), len))
    }
}
