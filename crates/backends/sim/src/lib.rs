//! Packet ports on a simulated network of hosts, links and switches, in virtual time.
//!
//! A [`Topology`] describes the network; a [`Network`] moves packets over it; a [`Cluster`] gives each endpoint a core
//! and charges the core for the endpoint's work. Nothing here reads a clock, draws randomness from the system or starts
//! a thread: the same topology, seed and actors give the same run, which [`Network::trace_hash`] shows.
//!
//! The model of a network (nsdi19 2.1, 6.1):
//!
//! - **Links** are full duplex, with a rate and a delay. A packet occupies the link for as long as its bytes and
//!   its frame's overhead take at the link's rate.
//! - **Switches** forward a packet as soon as its head has arrived (cut-through). Packets that must wait for their
//!   output port are queued in a buffer that all ports share by dynamic thresholds, or in a buffer of that port alone.
//!   Switches mark packets in long queues (ECN), and can ask the sender on a link to pause rather than lose packets
//!   (priority flow control).
//! - **Routes** are shortest paths; among equal ones, a hash picks one for each pair of ports (ECMP).
//! - **Hosts** have ports, which share the host's links. A port's receive queue holds a fixed number of packets, and
//!   further ones are lost.
//! - **Faults**: links that lose, damage, duplicate or reorder packets, each direction by itself; links that are down;
//!   hosts that others cannot reach, in one direction or both; hosts that stall, crash and come back.
//!
//! The model of a host's programs:
//!
//! - **Cores**: an [`Actor`] has its turns on a core of its own, which is charged for what its ports do ([`Costs`]) and
//!   for what the actor [spends](SimClock::spend_ns). An actor may work on several ports; its core's time runs on
//!   through the whole turn.
//! - **Wakes**: anything that has a [`Waker`](sinew_fabric::Waker), of a port
//!   ([`waker`](sinew_fabric::PacketPort::waker)), of an actor ([`Cluster::waker`]) or of a [`WakeSource`], can wake an
//!   actor from anywhere: the actor has a turn at the time that the core which calls the waker has reached.
//! - **Workers**: a pool for slow handlers ([`SimWorkers`]), whose jobs are charged to cores of their own.
//!
//! Everything runs in one thread, one turn or job at a time, each to its end. A turn or job may therefore run before
//! another that is earlier in virtual time, and memory that actors share may show them the future, by the length of a
//! turn or a job at most. An effect that must not be seen early goes through the network, or [with a
//! wake](sinew_fabric::Waker::wake_with), as answers to deferred calls do, or [takes effect
//! later](sinew_fabric::Waker::take_effect), as results of handles do. Nothing can block in a turn: whatever a turn
//! waits for happens only after the turn. Blocking calls work only on networks without actors, where time passes while
//! they sleep.
//!
//! # Calibration
//!
//! What a simulated core pays for is one table, [`Costs`], for all experiments; what a cluster is like is its topology
//! file. Both name a source for each figure, or call it a calibration. The cost of a packet is calibrated to the rate
//! of one thread with batches of three (nsdi19 6.2), then the latency of CX4's hosts to the latency of one call (Table
//! 2), and the cost of copying to the 75 Gbps of one thread on CX5 (nsdi19 6.4). The experiments `nsdi19-fig4` and
//! `nsdi19-table4` show these figures, which therefore prove nothing; the rates and latencies of a hundred nodes
//! (`nsdi19-fig5`), and the effect of losses on large requests, are predictions. A million sessions, which are two
//! million ends, take some 5 GB in `nsdi19-fig5`. Once they are open, their memory is gathered on huge pages
//! (`sinew_host::collapse_to_huge_pages`), which gives a tenth to a third more packets per second with 40 nodes of ten
//! threads.
//!
//! # Order in virtual time
//!
//! A wake carries the time that the waking core has reached, because code may run before code that is earlier in
//! virtual time. An effect that the woken actor must not see early travels with the wake; one that others look for
//! takes effect at that time without a wake. Wakes are handled in the order of their times, then of their actors; among
//! other events of the same nanosecond they keep the place at which they were scheduled. Code that would wait for ever
//! (at a port of no actor, in an actor's turn, in a worker's job) gets an error instead. A pool's job runs when it
//! begins, and its core is charged for what it spends.
//!
//! # Speed
//!
//! Events take most of a simulation's time. A packet behind others on a link is given its departure time at once, so
//! queues need no events unless switches pause their neighbours, and only a link's first packet has an event. At a host
//! whose program is an actor, an arrival needs no event either: the packet is there when the actor next looks. A flight
//! holds all that switches must know of a packet, and keeps one place in memory from end to end; the packet itself is
//! touched only at its ends. A lane's faults, and captures of its packets, are behind one flag that is usually false.
//! Polls that find nothing are not simulated, but counted: a core polls whenever it does not work
//! ([`Cluster::core_time`]).
//!
//! A packet of a small cluster takes some 1,900 instructions (`cargo xtask cost --row simulator`). With 100 nodes of
//! ten threads, whose million sessions fill 5 GB, it waits for memory most of the time, though what coming turns read
//! is prefetched, which made it 1.1 to 1.25 times as fast: 0.25 and 0.30 M packets were delivered in a second of CPU
//! time, where 0.23 and 0.24 were without (alternating runs of `cargo run --release -p sinew-lab --example simulator
//! -- 100x10:500`, on a virtual machine with two processors of an AMD EPYC).

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
pub use cluster::{Actor, ActorId, ActorState, Cluster, PrefetchStep, Stuck};
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

/// Scheme of addresses on a simulated network: `sim://PORT`.
pub const SCHEME: &str = "sim";
