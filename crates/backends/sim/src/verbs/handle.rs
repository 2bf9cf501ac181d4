//! What handles of a modelled NIC have in common, and addresses of its queue pairs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sinew_fabric::verbs::{Attributes, QpAddress, Transport, VerbsError};
use sinew_mem::Arena;

use crate::network::NetworkId;
use crate::nic::Regions;

/// A NIC, as one actor has it. It can be sent to other threads, where the network is not found.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub network: NetworkId,
    pub nic: u32,
    /// Whom completions and WRITEs wake.
    pub node: usize,
    pub attributes: Arc<Attributes>,
    pub regions: Arc<Mutex<Regions>>,
}

impl Handle {
    pub fn regions(&self) -> MutexGuard<'_, Regions> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A protection domain.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    pub handle: Handle,
    pub number: u32,
}

impl Domain {
    /// Whether some arena of the domain satisfies this.
    pub fn any_arena(&self, is_it: impl Fn(&Arena) -> bool) -> bool {
        self.handle.regions().any_arena(self.number, is_it)
    }
}

/// What the device's part of an address begins with; the node of the NIC follows.
pub(crate) const PORT_MARK: [u8; 4] = *b"sim:";

/// The node of the NIC of an address.
pub(crate) fn node_of(address: &QpAddress, transport: Transport) -> Result<u32, VerbsError> {
    let refused = |problem: &str| Err(VerbsError::Address(problem.to_owned()));
    if address.transport != transport {
        return refused("it is of another transport");
    }
    match address.port.split_first_chunk::<4>() {
        Some((mark, rest)) if *mark == PORT_MARK && rest.len() == 4 => {
            Ok(u32::from_le_bytes(*rest.first_chunk().expect("4 bytes")))
        }
        _ => refused("it is not one of a simulated NIC"),
    }
}
