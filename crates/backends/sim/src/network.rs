//! The network as those see it who build and watch it.

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
    /// Whether a cluster has actors or workers here, whose turns and jobs are among what happens.
    pub is_driven: Cell<bool>,
    id: NetworkId,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A thread that ends has no list any more, and needs none.
        let _ = NETWORKS.try_with(|networks| networks.borrow_mut().remove(&self.id.0));
    }
}

thread_local! {
    /// The networks of this thread: handles that may be sent to other threads find theirs here, and there none.
    static NETWORKS: RefCell<BTreeMap<u64, Weak<Shared>>> = const { RefCell::new(BTreeMap::new()) };
}

/// What a network is known by where its handle cannot go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NetworkId(u64);

impl NetworkId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // They only have to differ.
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The network, if it is there still and the calling thread's.
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
    /// A network that is idle, at time 0. Whatever is drawn follows from `seed`.
    ///
    /// # Errors
    ///
    /// [`TopologyError`].
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

    /// The clock of all who take part.
    pub fn clock(&self) -> SimClock {
        self.0.clock.clone()
    }

    /// The time.
    pub fn now_ns(&self) -> u64 {
        self.0.clock.now_ns()
    }

    /// Something that wakes an actor without a port: see [`WakeSource`].
    pub fn wake_source(&self) -> WakeSource {
        WakeSource::new(self.0.wakes.source())
    }

    /// Lets what happens until `end_ns` happen, without any actor, and the time be `end_ns`. Where a [`Cluster`](crate::Cluster) has
    /// actors on the network, let time pass with [its own](crate::Cluster::run_until): turns and wakes that were due meanwhile are late, and had when
    /// the cluster goes on.
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

    /// What happens until `end_ns` but for the cluster's part, which is put off.
    fn run_beside_actors(&self, world: &mut World, end_ns: u64) {
        let mut late = Vec::new();
        while let Some((time_ns, event)) = world.events.pop_until(end_ns) {
            self.0.clock.advance_to(time_ns);
            match event {
                Event::Turn { .. } => late.push(event),
                _ => world.happen(time_ns, event),
            }
        }
        late.into_iter().for_each(|turn| world.events.add(end_ns, turn));
        if !world.touched.is_empty() {
            self.0.wakes.look();
        }
    }

    /// What `wait` of something that has a node comes to. Where a cluster's actor works there: says when it wants its next turn at the latest. Else lets things
    /// happen until `is_over`, or until the time-out; returns whether it was over, or time passed.
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
            return world.nodes[node].wants_turn_by(deadline_ns, clock.event_ns()).map(|()| true);
        }
        let mut over = is_over(&mut world);
        drop(world);
        if !over && self.0.is_driven.get() {
            if timeout_ns != Some(0) {
                return Err(io::Error::new(ErrorKind::Unsupported, NOT_BESIDE_ACTORS));
            }
            // What is due, but for actors' turns.
            self.run_until(clock.event_ns());
            return Ok(true);
        }
        while !over {
            if !self.step(deadline_ns.unwrap_or(u64::MAX)) {
                if let Some(deadline_ns) = deadline_ns {
                    self.run_until(deadline_ns);
                }
                return Ok(deadline_ns.is_some());
            }
            over = is_over(&mut self.0.world.borrow_mut());
        }
        Ok(true)
    }

    /// The next thing happens, if it does by `end_ns`. Not beside actors: turns are nobody's here.
    pub(crate) fn step(&self, end_ns: u64) -> bool {
        self.next(&mut self.0.world.borrow_mut(), end_ns)
    }

    fn next(&self, world: &mut World, end_ns: u64) -> bool {
        let Some((time_ns, event)) = world.events.pop_until(end_ns) else { return false };
        self.0.clock.advance_to(time_ns);
        if !matches!(event, Event::Turn { .. }) {
            world.happen(time_ns, event);
            world.touched.clear();
        }
        true
    }

    /// What happened so far.
    pub fn stats(&self) -> NetworkStats {
        self.0.world.borrow_mut().stats(self.0.clock.event_ns())
    }

    /// What the port of this name did; none where there was never one.
    pub fn port_stats(&self, name: &str) -> Option<PortStats> {
        self.0.world.borrow_mut().stats_of(name, self.0.clock.event_ns())
    }

    /// What a link did, from its first end to its second, and from its second to its first.
    ///
    /// # Panics
    ///
    /// When there is no such link.
    pub fn link_stats(&self, link: LinkId) -> [LinkStats; 2] {
        let world = self.0.world.borrow();
        [0, 1].map(|direction| world.lane_stats(lane(link, direction), self.0.clock.event_ns()))
    }

    /// The most bytes that waited for a link since this was last asked, in the order of [`Self::link_stats`].
    ///
    /// # Panics
    ///
    /// When there is no such link.
    pub fn take_queued_max(&self, link: LinkId) -> [u64; 2] {
        let mut world = self.0.world.borrow_mut();
        [0, 1].map(|direction| world.take_queued_max(lane(link, direction), self.0.clock.event_ns()))
    }

    /// Packets on their way, waiting ones included.
    pub fn in_flight(&self) -> usize {
        self.0.world.borrow().in_flight()
    }

    /// A number that depends on every packet that arrived or was lost, and when: equal runs have equal ones.
    pub fn trace_hash(&self) -> u64 {
        self.0.world.borrow_mut().trace_hash(self.0.clock.event_ns())
    }

    /// A random number, from the network's seed.
    pub fn random(&self) -> u64 {
        self.0.world.borrow_mut().random()
    }

    /// From now on this goes wrong on a link: from its first end to its second (0), or back (1).
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

    /// Whether a link carries anything from its first end to its second (0), or back (1). What waits for a link that goes down has had its turn
    /// foreseen, and still comes.
    ///
    /// # Panics
    ///
    /// When there is no such link or direction.
    pub fn set_link_up(&self, link: LinkId, direction: usize, up: bool) {
        self.0.world.borrow_mut().set_up(lane(link, direction), up);
    }

    /// From now on packets are captured that these hosts send or are sent, each once: when it leaves its sender, or for a host of these from another.
    /// Packets between ports of one host pass no link. What was captured before is gone.
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

    /// Ends the capture, if there is one.
    pub fn take_capture(&self) -> Option<Capture> {
        self.0.world.borrow_mut().set_capturing(None).map(Capturing::end)
    }

    /// Whether packets from one host to another are lost, while both reach others, and the way back is as it was.
    pub fn set_cut(&self, from: HostId, to: HostId, cut: bool) {
        self.0.world.borrow_mut().set_cut(from, to, cut, self.0.clock.event_ns());
    }

    /// The hosts' names, and the links: as it was given.
    pub fn topology(&self) -> Topology {
        self.0.world.borrow().topology.clone()
    }
}

fn lane(link: LinkId, direction: usize) -> u32 {
    assert!(direction < 2, "a link has two directions");
    2 * link.0 as u32 + direction as u32
}
