//! Services and their clients on modelled NICs: the code that serves and loads real fabrics, as actors of a simulated
//! cluster.
//!
//! [`Hosts`] is a server's host and those of its clients, each with a NIC. The services are HERD's [`cache`],
//! sequencers ([`sequencer`]), an ordered [`index`], a replicated store ([`replica`]), stores that clients READ
//! ([`store`]), and remote procedure calls over datagrams ([`rpc`]). Verbs charge their cores themselves; [`charges`]
//! holds the other costs of a worker's core.
//!
//! An endpoint on such a NIC pays `Costs::beside` for the protocol alone. A write late in a core's turn crosses the
//! bus at the time of the write.

pub mod cache;
pub mod charges;
mod drivers;
mod hosts;
pub mod index;
pub mod replica;
pub mod rpc;
pub mod sequencer;
pub mod store;
#[cfg(test)]
mod tests;
mod windowed;
mod workers;

pub use drivers::{Driven, DriverResults};
pub use hosts::Hosts;
pub use windowed::Windowed;
pub use workers::{Serving, Working};
