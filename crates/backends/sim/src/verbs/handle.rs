//! The common part of a modelled NIC's handles, and the addresses of its queue pairs.

use std::sync::{Arc, Mutex, MutexGuard};

use sinew_fabric::verbs::{Attributes, QpAddress, Registry, Transport, VerbsError};
use sinew_mem::{Arena, Extent};

use crate::network::NetworkId;
use crate::nic::{Regions, locked};

/// One actor's handle of a NIC. It can be sent to other threads, where the network is not found.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub nic: u32,
    pub attributes: Arc<Attributes>,
    pub regions: Arc<Mutex<Regions>>,
    node_place: Arc<NodePlace>,
}

/// The node of a handle, whose actor completions and WRITEs wake.
#[derive(Debug)]
struct NodePlace {
    network: NetworkId,
    node: usize,
    generation: u64,
}

/// Frees the name.
impl Drop for NodePlace {
    fn drop(&mut self) {
        // In a thread without the network, it stays taken.
        if let Some(network) = self.network.find()
            && let Ok(mut world) = network.0.world.try_borrow_mut()
        {
            let now_ns = network.0.clock.event_ns();
            // If the actor crashed, another handle may have the name.
            if world.generation(self.node) == self.generation {
                world.close(self.node, now_ns);
            }
        }
    }
}

impl Handle {
    pub fn new(
        network: NetworkId,
        (node, opening): (usize, u64),
        nic: u32,
        attributes: Attributes,
        regions: Arc<Mutex<Regions>>,
    ) -> Self {
        Self {
            nic,
            attributes: Arc::new(attributes),
            regions,
            node_place: Arc::new(NodePlace { network, node, generation: opening }),
        }
    }

    pub fn network(&self) -> NetworkId {
        self.node_place.network
    }

    /// The node whose actor completions and WRITEs wake.
    pub fn node(&self) -> usize {
        self.node_place.node
    }

    pub fn regions(&self) -> MutexGuard<'_, Regions> {
        locked(&self.regions)
    }
}

/// A protection domain.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    pub handle: Handle,
    number: Arc<Number>,
}

/// The number of a domain, which ends with its last owner.
#[derive(Debug)]
struct Number {
    number: u32,
    regions: Arc<Mutex<Regions>>,
    registered: Registry<()>,
}

impl Drop for Number {
    fn drop(&mut self) {
        locked(&self.regions).end_domain(self.number);
    }
}

impl Domain {
    pub fn new(handle: Handle) -> Self {
        let number = handle.regions().new_domain();
        let regions = Arc::clone(&handle.regions);
        Self { handle, number: Arc::new(Number { number, regions, registered: Registry::default() }) }
    }

    pub fn number(&self) -> u32 {
        self.number.number
    }

    /// Whether a buffer with these contents, whose arena `is_from` recognises, may be used.
    pub fn knows(&self, extent: Extent, is_from: impl Fn(&Arena) -> bool) -> bool {
        self.handle.regions().any_arena(self.number(), is_from) || self.registered().has(extent)
    }

    /// Registered buffers of other arenas.
    pub fn registered(&self) -> &Registry<()> {
        &self.number.registered
    }
}

/// First bytes of the device's part of an address; the node of the NIC follows.
pub(crate) const PORT_MARK: [u8; 4] = *b"sim:";

/// The node of an address's NIC.
pub(crate) fn node_of(address: &QpAddress, transport: Transport) -> Result<u32, VerbsError> {
    let refused = |problem: &str| Err(VerbsError::Address(problem.to_owned()));
    if address.transport != transport {
        return refused("it has another transport");
    }
    match address.port.split_first_chunk::<4>() {
        Some((mark, rest)) if *mark == PORT_MARK && rest.len() == 4 => {
            Ok(u32::from_le_bytes(*rest.first_chunk().expect("4 bytes")))
        }
        _ => refused("it is not the address of a simulated NIC's queue pair"),
    }
}
