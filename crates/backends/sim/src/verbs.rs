//! Verbs on modelled NICs, in virtual time.
//!
//! [`Network::attach_nic`] puts a NIC with a [`Profile`] into a host, and [`Network::verbs`] opens it. A [`SimVerbs`]
//! is a [`Device`](sinew_fabric::verbs::Device), one for each actor that works with it; all devices opened on a host
//! share its NIC. A verb's cost to the core is charged to the actor that posts or polls; its cost to the NIC takes time
//! there. Completions, and WRITEs into memory that was exposed through a handle, wake the actor that was
//! [added](crate::Cluster::add) with the handle's [place](SimVerbs::place).
//!
//! Handles of a device and of a domain can be sent to other threads, as the traits require, but do not work there: a
//! simulation has one thread, and [`ProtectionDomain::thread`](sinew_fabric::verbs::ProtectionDomain::thread) says so.

mod device;
mod handle;
mod pair;
mod queues;

pub use device::{SimDomain, SimExposed, SimVerbs};
pub use pair::SimQp;
pub use queues::{SimCq, SimThread};

#[allow(unused_imports)] // Named for the documentation above.
use crate::{network::Network, nic::Profile};
