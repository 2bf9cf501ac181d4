//! Services and their clients on modelled NICs: the code that serves and loads real fabrics, as actors of a simulated cluster.
//!
//! [`Hosts`] is a server's host and those of its clients, each with a NIC. What runs on them is a [`cache`] of HERD's, a [`sequencer`], an [`index`], members
//! of a [`replica`], a [`store`] that clients READ, or [remote procedure calls](rpc) over datagrams. Verbs charge their cores themselves; what a worker does beside them is [`charges`].

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

pub use drivers::{Driven, Found};
pub use hosts::Hosts;
pub use windowed::Windowed;
pub use workers::{Serving, Working};
