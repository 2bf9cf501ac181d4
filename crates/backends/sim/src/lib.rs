//! Packet ports on a simulated network of hosts, links and switches, in virtual time.
//!
//! A [`Topology`] says what there is; a [`Network`] moves packets over it; a [`Cluster`] gives each endpoint a core whose time it
//! pays for. Nothing here reads a clock, draws randomness from the system or has a thread: with the same topology, seed and
//! actors everything happens again in the same way, which [`Network::trace_hash`] shows.
//!
//! What is modelled of a network (nsdi19 2.1, 6.1):
//!
//! - **Links** are full duplex, with a rate and a delay. A packet takes as long as its bytes, and those of its frame, take at the
//!   link's rate.
//! - **Switches** forward as soon as a packet's head is there (cut-through), and queue what has to wait for its output port in
//!   a buffer that all ports share by dynamic thresholds, or that each has for itself. They mark packets of long queues (ECN), and
//!   can ask the sender of a link to pause rather than lose packets (priority flow control).
//! - **Routes** are the shortest ones; among equal ones each pair of ports has its own, by hash (ECMP).
//! - **Hosts** have ports, which share the host's links; a port's receive queue has room for so many packets, and what comes on
//!   top is lost.
//! - **Faults**: links that lose, damage, duplicate or reorder packets, each direction by itself; links that are down; hosts
//!   that others do not reach, one way or both; hosts that stand still, crash and come back.
//!
//! What is modelled of a host's programs:
//!
//! - **Cores**: an [`Actor`] has its turns on a core of its own, which is charged for what its ports do ([`Costs`]) and for what the actor
//!   [spends](SimClock::spend_ns). An actor may work on several ports, and its core's time goes on through all of a turn.
//! - **Wakes**: whatever has a [`Waker`](sinew_fabric::Waker), of a port ([`waker`](sinew_fabric::PacketPort::waker)), of an actor
//!   ([`Cluster::waker`]) or of a [`WakeSource`], wakes from wherever it is: the actor has a turn at the time that the waker's core has come to.
//! - **Workers**: a pool for handlers that take long ([`SimWorkers`]), whose jobs are charged to cores of their own.
//!
//! All of this happens in one thread, a turn or a job at a time, and each to its end, so that one may be executed before another that is earlier
//! in virtual time: memory that actors share tells them of things that are yet to come, by a turn's or a job's length at most. What must not be
//! early goes through the network, or [with a wake](sinew_fabric::Waker::wake_with), as answers to deferred calls do, or
//! [takes effect later](sinew_fabric::Waker::take_effect), as results of handles do. Nothing can block: what is waited for happens when the turn is
//! over. Calls that block work on networks without actors only, where time passes while they sleep.

#![forbid(unsafe_code)]

mod capture;
mod cluster;
mod competitor;
mod cores;
mod costs;
mod events;
mod faults;
mod file;
mod flights;
mod hash;
mod lanes;
mod network;
pub mod nic;
mod packets;
pub mod pcie;
mod port;
mod routes;
mod stats;
mod time;
mod topology;
mod topology_file;
pub mod verbs;
mod wakes;
mod workers;
mod world;

pub use capture::{Capture, CaptureConfig};
pub use cluster::{Actor, ActorId, Cluster, Doing, Stuck};
pub use competitor::Competitor;
pub use cores::{CoreShare, CoreTime, IdleCount};
pub use costs::Costs;
pub use faults::LinkFaults;
pub use file::{Fields, FileError, Problem, shortened};
pub use network::Network;
pub use port::{PortConfig, PortId, SimPort, SimRx, SimTx};
pub use stats::{LinkStats, NetworkStats};
pub use time::SimClock;
pub use topology::{
    Buffer, Ecn, HostId, HostSpec, LinkId, LinkSpec, NodeId, Pause, SwitchId, SwitchSpec, Topology, TopologyError,
};
pub use verbs::{SimCq, SimDomain, SimExposed, SimQp, SimThread, SimVerbs};
pub use wakes::WakeSource;
pub use workers::{SimWorkers, WorkersConfig};

/// The scheme of addresses on a simulated network: `sim://PORT`.
pub const SCHEME: &str = "sim";
