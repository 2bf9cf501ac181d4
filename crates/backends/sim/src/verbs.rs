//! Verbs on modelled NICs, in virtual time.
//!
//! [`Network::attach_nic`] puts a NIC with a [`Profile`] into a host, and [`Network::verbs`] opens it: a [`SimVerbs`] is a
//! [`Device`](sinew_fabric::verbs::Device), one for each actor that works with it, and all that are opened on a host share its NIC. What a verb costs the core
//! is charged to the actor that posts or polls; what it costs the NIC takes its time there. Completions, and WRITEs into memory that was exposed through a
//! handle, wake the actor that [has](crate::Cluster::add) its [place](SimVerbs::place).
//!
//! Handles of a device and of a domain can be sent to other threads, as the traits want it, and are good for nothing there: a simulation has one thread, and
//! [`ProtectionDomain::thread`](sinew_fabric::verbs::ProtectionDomain::thread) says so.

mod device;
mod handle;
mod pair;
mod queues;

pub use device::{SimDomain, SimExposed, SimVerbs};
pub use pair::SimQp;
pub use queues::{SimCq, SimThread};

#[allow(unused_imports)] // Named for the documentation above.
use crate::{network::Network, nic::Profile};
