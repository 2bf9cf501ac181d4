//! The network as its builders and observers see it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::rc::{Rc, Weak};

use sinew_fabric::{Clock, PortStats};
use sinew_mem::atomic::plain::{Arc, AtomicU64, Ordering};

use crate::capture::{Capture, CaptureConfig, Capturing};
use crate::events::Event;
use crate::faults::LinkFaults;
use crate::stats::{LinkStats, NetworkStats};
use crate::time::SimClock;
use crate::topology::{HostId, LinkId, Topology, TopologyError};
use crate::wakes::{WakeSource, Wakes};
use crate::world::{NOT_BESIDE_ACTORS, World};

pub(crate) struct Shared {
    pub clock: SimClock,
    pub wakes: Arc<Wakes>,
    pub world: RefCell<World>,
    /// Whether a cluster has actors or workers here, whose turns and jobs are among the events.
    pub is_driven: Cell<bool>,
    id: NetworkId,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A thread that is ending has lost its list, and needs none.
        let _ = NETWORKS.try_with(|networks| networks.borrow_mut().remove(&self.id.0));
    }
}

thread_local! {
    /// The networks of this thread. A handle that was sent to another thread looks here for its network, and finds
    /// none.
    static NETWORKS: RefCell<BTreeMap<u64, Weak<Shared>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Name of a network for handles that can leave its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NetworkId(u64);

impl NetworkId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the numbers only have to differ.
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The network, if it still exists and belongs to the calling thread.
    pub fn find(self) -> Option<Network> {
        NETWORKS.with(|networks| networks.borrow().get(&self.0)?.upgrade()).map(Network)
    }
}

/// A simulated network. Clones are the same network.
#[derive(Clone)]
pub struct Network(pub(crate) Rc<Shared>);

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("now_ns", &self.0.clock.now_ns()).field("stats", &self.stats()).finish()
    }
}

impl Network {
    /// An idle network at time 0. Everything random follows from `seed`.
    pub fn new(topology: Topology, seed: u64) -> Result<Self, TopologyError> {
        let clock = SimClock::default();
        let wakes = Wakes::new(clock.clone());
        let world = RefCell::new(World::new(topology, seed, Arc::clone(&wakes))?);
        let id = NetworkId::next();
        let shared = Rc::new(Shared { clock, wakes, world, is_driven: Cell::new(false), id });
        NETWORKS.with(|networks| networks.borrow_mut().insert(id.0, Rc::downgrade(&shared)));
        Ok(Self(shared))
    }

    pub(crate) fn id(&self) -> NetworkId {
        self.0.id
    }

    /// The clock that all participants share.
    pub fn clock(&self) -> SimClock {
        self.0.clock.clone()
    }

    /// The virtual time, in ns.
    pub fn now_ns(&self) -> u64 {
        self.0.clock.now_ns()
    }

    /// A source of wakes for an actor without a port: see [`WakeSource`].
    pub fn wake_source(&self) -> WakeSource {
        WakeSource::new(self.0.wakes.source())
    }

    /// Runs the network until `end_ns`, without any actor. Where a [`Cluster`](crate::Cluster) has actors on the
    /// network, use [its own method](crate::Cluster::run_until) instead: turns and wakes that fall due during this one
    /// are late, and happen once the cluster runs again.
    pub fn run_until(&self, end_ns: u64) {
        let mut world = self.0.world.borrow_mut();
        if self.0.is_driven.get() {
            self.run_beside_actors(&mut world, end_ns);
        } else {
            while self.next(&mut world, end_ns) {}
        }
        drop(world);
        if end_ns > self.0.clock.event_ns() {
            self.0.clock.advance_to(end_ns);
        }
    }

    /// Runs until `end_ns`, putting off the cluster's events.
    fn run_beside_actors(&self, world: &mut World, end_ns: u64) {
        let mut overdue = Vec::new();
        while let Some((time_ns, event)) = world.events.pop_until(end_ns) {
            self.0.clock.advance_to(time_ns);
            match event {
                Event::Turn { .. } => overdue.push(event),
                _ => world.handle(time_ns, event),
            }
        }
        overdue.into_iter().for_each(|turn| world.events.add(end_ns, turn));
        if !world.touched.is_empty() {
            self.0.wakes.force_read();
        }
    }

    /// Implements `wait` for anything that has a node. Where a cluster's actor works on the node, notes when the actor
    /// wants its next turn at the latest. Otherwise runs the network until `is_over`, or until the time-out. Returns
    /// false only if the network ran out of events before that, with no time-out.
    pub(crate) fn wait_at(
        &self,
        node: usize,
        timeout_ns: Option<u64>,
        mut is_over: impl FnMut(&mut World) -> bool,
    ) -> io::Result<bool> {
        let clock = &self.0.clock;
        let deadline_ns = timeout_ns.and_then(|timeout_ns| clock.now_ns().checked_add(timeout_ns));
        let mut world = self.0.world.borrow_mut();
        if world.nodes[node].actor.is_some() {
            return world.nodes[node].request_turn(deadline_ns, clock.event_ns()).map(|()| true);
        }
        let mut has_timed_out = is_over(&mut world);
        drop(world);
        if !has_timed_out && self.0.is_driven.get() {
            if timeout_ns != Some(0) {
                return Err(io::Error::new(ErrorKind::Unsupported, NOT_BESIDE_ACTORS));
            }
            // Run whatever is due, except actors' turns.
            self.run_until(clock.event_ns());
            return Ok(true);
        }
        while !has_timed_out {
            if !self.step(deadline_ns.unwrap_or(u64::MAX)) {
                if let Some(deadline_ns) = deadline_ns {
                    self.run_until(deadline_ns);
                }
                return Ok(deadline_ns.is_some());
            }
            has_timed_out = is_over(&mut self.0.world.borrow_mut());
        }
        Ok(true)
    }

    /// Runs the next event, if it is due by `end_ns`. Turns are dropped, so this must not be used beside actors.
    pub(crate) fn step(&self, end_ns: u64) -> bool {
        self.next(&mut self.0.world.borrow_mut(), end_ns)
    }

    fn next(&self, world: &mut World, end_ns: u64) -> bool {
        let Some((time_ns, event)) = world.events.pop_until(end_ns) else { return false };
        self.0.clock.advance_to(time_ns);
        if !matches!(event, Event::Turn { .. }) {
            world.handle(time_ns, event);
            world.touched.clear();
        }
        true
    }

    /// The network's counters so far.
    pub fn stats(&self) -> NetworkStats {
        self.0.world.borrow_mut().stats(self.0.clock.event_ns())
    }

    /// Counters of the port of this name; none if there never was one.
    pub fn port_stats(&self, name: &str) -> Option<PortStats> {
        self.0.world.borrow_mut().stats_of(name, self.0.clock.event_ns())
    }

    /// Counters of a link: from its first end to its second, and from its second to its first.
    pub fn link_stats(&self, link: LinkId) -> [LinkStats; 2] {
        let world = self.0.world.borrow();
        [0, 1].map(|direction| world.lane_stats(lane(link, direction), self.0.clock.event_ns()))
    }

    /// The most bytes that were queued for a link since the last call, in the order of [`Self::link_stats`].
    pub fn take_queued_max(&self, link: LinkId) -> [u64; 2] {
        let mut world = self.0.world.borrow_mut();
        [0, 1].map(|direction| world.take_queued_max(lane(link, direction), self.0.clock.event_ns()))
    }

    /// Packets in flight, queued ones included.
    pub fn in_flight(&self) -> usize {
        self.0.world.borrow().in_flight()
    }

    /// Hash over every packet that arrived or was lost, and over when: equal runs have equal hashes.
    pub fn trace_hash(&self) -> u64 {
        self.0.world.borrow_mut().trace_hash(self.0.clock.event_ns())
    }

    /// A random number that follows from the network's seed.
    pub fn random(&self) -> u64 {
        self.0.world.borrow_mut().random()
    }

    /// Sets the faults of a link from now on: from its first end to its second (0), or back (1).
    ///
    /// # Panics
    ///
    /// When there is no such link or direction.
    pub fn set_faults(&self, link: LinkId, direction: usize, faults: LinkFaults) {
        self.0.world.borrow_mut().set_faults(lane(link, direction), faults);
    }

    /// As [`Self::set_faults`], on all links in both directions.
    pub fn set_all_faults(&self, faults: LinkFaults) {
        let links = self.0.world.borrow().topology.links.len();
        for link in 0..links {
            (0..2).for_each(|direction| self.set_faults(LinkId(link), direction, faults));
        }
    }

    /// Sets whether a link carries packets from its first end to its second (0), or back (1). Packets that are queued
    /// when a link goes down still arrive, unless a switch of the network has [`Pause`](crate::Pause): then they are
    /// lost.
    ///
    /// # Panics
    ///
    /// When there is no such link or direction.
    pub fn set_link_up(&self, link: LinkId, direction: usize, up: bool) {
        self.0.world.borrow_mut().set_up(lane(link, direction), up);
    }

    /// Captures from now on the packets that these hosts send or are sent, each once: as it leaves its sender, or, for
    /// a packet from another host, on a link to or from one of these. Packets between ports of one host cross no link.
    /// An earlier capture is discarded.
    ///
    /// # Panics
    ///
    /// When there is no such host.
    pub fn capture(&self, hosts: &[HostId], config: CaptureConfig) {
        let mut world = self.0.world.borrow_mut();
        let mut is_captured = vec![false; world.topology.hosts.len()];
        hosts.iter().for_each(|host| is_captured[host.0] = true);
        world.set_capturing(Some(Capturing::new(config, is_captured)));
    }

    /// Ends the capture and returns it, if there is one.
    pub fn take_capture(&self) -> Option<Capture> {
        self.0.world.borrow_mut().set_capturing(None).map(Capturing::end)
    }

    /// Sets whether packets from one host to another are lost, while both still reach other hosts and the opposite
    /// direction is unaffected.
    pub fn set_cut(&self, from: HostId, to: HostId, cut: bool) {
        self.0.world.borrow_mut().set_cut(from, to, cut, self.0.clock.event_ns());
    }

    /// The network's topology. A host with a NIC has latencies of 0 in it: the NIC models them.
    pub fn topology(&self) -> Topology {
        self.0.world.borrow().topology.clone()
    }
}

fn lane(link: LinkId, direction: usize) -> u32 {
    assert!(direction < 2, "a link has two directions");
    2 * link.0 as u32 + direction as u32
}
