//! Ports on a simulated network.

use std::fmt;
use std::io;

use sinew_fabric::{
    Address, Caps, Clock, Descriptor, Dropped, MAX_BURST, PacketPort, PacketRx, PacketTx, Peer, PortError, PortEvent,
    PortStats, Readiness, RxBurst, RxPacket, TxPacket, Waker,
};
use sinew_mem::{Arena, Frozen};

use crate::SCHEME;
use crate::costs::Costs;
use crate::network::Network;
use crate::packets::Packet;
use crate::topology::HostId;
use crate::world::{Sending, World};

/// Configuration of a port.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PortConfig {
    /// Packets that can be waiting at the port before further ones are lost.
    pub receive_packets: usize,
    /// Most packets of a received burst.
    pub burst_max: usize,
    /// Bytes of address space for message buffers. Only the used part takes memory.
    pub arena_bytes: usize,
    /// Costs charged to the core that works on the port.
    pub costs: Costs,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self { receive_packets: 4096, burst_max: 32, arena_bytes: 1 << 30, costs: Costs::default() }
    }
}

/// A port on a [`Network`], from [`Network::open`].
///
/// Packets are copied when they are pushed: the port keeps no share of a buffer.
#[derive(Debug)]
pub struct SimPort {
    rx: SimRx,
    tx: SimTx,
    network: Network,
    index: usize,
    address: Address,
    arena: Arena,
    config: PortConfig,
    packet_len_max: usize,
}

/// Name of a port for a [`Cluster`](crate::Cluster).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortId(pub(crate) usize);

/// The receiving half of a [`SimPort`].
pub struct SimRx {
    network: Network,
    index: usize,
    generation: u64,
    config: PortConfig,
    #[expect(clippy::vec_box)]
    lent: Vec<Box<Packet>>,
}

/// The transmitting half of a [`SimPort`]. Packets leave only when they are submitted.
pub struct SimTx {
    network: Network,
    index: usize,
    /// Tells this port from a later one that takes its name, and with it its place, once this one is closed.
    generation: u64,
    config: PortConfig,
    packet_len_max: usize,
    pending: Sending,
}

impl Network {
    /// Opens a port at `sim://NAME` on a host.
    ///
    /// # Errors
    ///
    /// [`PortError`]: the name is taken, there is no such host, `burst_max` is out of range, or there is no address
    /// space for the arena.
    pub fn open(&self, host: HostId, name: &str, config: PortConfig) -> Result<SimPort, PortError> {
        SimPort::open(self, host, name, config)
    }
}

fn address_of(name: &str) -> Address {
    Address::new(SCHEME, name)
}

impl SimPort {
    fn open(network: &Network, host: HostId, name: &str, config: PortConfig) -> Result<Self, PortError> {
        if config.burst_max == 0 || config.burst_max > MAX_BURST {
            return Err(PortError::Limit {
                what: format!("bursts of {} packets", config.burst_max),
                limit: MAX_BURST as u64,
                remedy: format!("set burst_max to 1..={MAX_BURST}"),
            });
        }
        let mut world = network.0.world.borrow_mut();
        if host.0 >= world.topology.hosts.len() {
            return Err(PortError::Limit {
                what: format!("host number {}", host.0),
                limit: world.topology.hosts.len() as u64,
                remedy: "name a host of the topology".to_owned(),
            });
        }
        let address = address_of(name);
        if world.find(name).is_some() {
            return Err(PortError::Taken { address: address.to_string(), holder: String::new() });
        }
        let arena = Arena::private(config.arena_bytes).map_err(|source| PortError::System {
            doing: format!("reserving {} bytes for the arena of {address}", config.arena_bytes),
            source,
        })?;
        let index = world.open(name, host, config.receive_packets);
        let (packet_len_max, opening) = (world.packet_len_max(host), world.generation(index));
        drop(world);
        let (lent, pending) = (Vec::with_capacity(config.burst_max), Sending::default());
        Ok(Self {
            rx: SimRx { network: network.clone(), index, generation: opening, config, lent },
            tx: SimTx { network: network.clone(), index, generation: opening, config, packet_len_max, pending },
            network: network.clone(),
            index,
            address,
            arena,
            config,
            packet_len_max,
        })
    }

    /// The port's name for a [`Cluster`](crate::Cluster).
    pub fn place(&self) -> PortId {
        PortId(self.index)
    }

    /// The peer by which others know this port.
    pub fn peer(&self) -> Peer {
        World::peer_of(self.index)
    }

    /// The network that the port is on.
    pub fn network(&self) -> &Network {
        &self.network
    }
}

impl Drop for SimPort {
    fn drop(&mut self) {
        self.rx.give_back();
        self.tx.submit();
        let mut world = self.network.0.world.borrow_mut();
        // A host that crashed may be back with a port of the same name before the old port is dropped.
        if world.generation(self.index) == self.tx.generation {
            world.close(self.index, self.network.0.clock.event_ns());
        }
    }
}

impl SimRx {
    fn give_back(&mut self) {
        if !self.lent.is_empty() {
            let mut world = self.network.0.world.borrow_mut();
            self.lent.drain(..).for_each(|packet| world.give_back(packet));
        }
    }
}

impl PacketRx for SimRx {
    fn receive<'a>(&'a mut self, burst: &mut RxBurst<'a>) {
        self.give_back();
        let (clock, costs) = (&self.network.0.clock, &self.config.costs);
        let room = self.config.burst_max.min(burst.packets.remaining_capacity());
        let mut world = self.network.0.world.borrow_mut();
        if world.generation(self.index) == self.generation {
            world.take_arrived(self.index, clock.event_ns(), room, &mut self.lent);
        }
        drop(world);
        let mut spent_ns = costs.turn_ns;
        for packet in &self.lent {
            let (from, head) = (World::peer_of(packet.from as usize), packet.bytes());
            spent_ns += costs.receive_ns + costs.copy_ns(head.len());
            burst.marked |= u64::from(packet.is_marked) << burst.packets.len();
            burst.packets.push(RxPacket { from, head, tail: None });
        }
        clock.spend_ns(spent_ns);
    }
}

impl PacketTx for SimTx {
    fn push(&mut self, packet: TxPacket<'_>) {
        let mut world = self.network.0.world.borrow_mut();
        if packet.len() > self.packet_len_max {
            world.nodes[self.index].stats.count_dropped(Dropped::TooLong, 1);
            return;
        }
        let Some(to) = world.index_of(packet.to) else {
            world.nodes[self.index].stats.count_dropped(Dropped::NoSuchPeer, 1);
            return;
        };
        let costs = &self.config.costs;
        self.network.0.clock.spend_ns(costs.transmit_ns);
        world.pack(self.index, to, packet.head, packet.data.as_slice(), &mut self.pending);
    }

    fn submit(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let clock = &self.network.0.clock;
        clock.spend_ns(self.config.costs.doorbell_ns);
        let sending = std::mem::take(&mut self.pending);
        self.network.0.world.borrow_mut().submit(self.index, self.generation, sending, clock.now_ns());
    }

    /// Does nothing: data was copied when it was pushed.
    fn flush(&mut self) {}

    fn reclaim(&mut self, _: &Frozen) {}
}

/// No descriptor: the network's time passes only while a port waits, or in turns of a cluster's actors.
impl Readiness for SimPort {
    fn descriptor(&self) -> Option<Descriptor> {
        None
    }
}

impl PacketPort for SimPort {
    type Rx = SimRx;
    type Tx = SimTx;

    fn caps(&self) -> Caps {
        Caps {
            packet_len_max: self.packet_len_max,
            overhead: 0,
            copy_len_max: self.packet_len_max,
            burst_max: self.config.burst_max,
            receive_packets: self.config.receive_packets,
            receive_packets_per_peer: self.config.receive_packets,
            lends_in_place: false,
        }
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn resolve(&mut self, address: &Address) -> Result<Peer, PortError> {
        address.check_scheme(SCHEME, "PORT")?;
        address.check_options(&[])?;
        let world = self.network.0.world.borrow();
        world.find(address.rest()).map(World::peer_of).ok_or_else(|| PortError::NotFound {
            address: address.to_string(),
            looked_in: format!("the simulated network, which has {} ports", world.nodes.len()),
        })
    }

    fn describe(&self, peer: Peer) -> String {
        let world = self.network.0.world.borrow();
        match world.index_of(peer) {
            Some(index) => address_of(&world.nodes[index].name).to_string(),
            None => format!("an unknown simulated peer {:x?}", peer.0),
        }
    }

    fn packet_len_max(&self, peer: Peer) -> usize {
        let world = self.network.0.world.borrow();
        let theirs = world.index_of(peer).map(|index| world.packet_len_max(world.nodes[index].host));
        theirs.map_or(self.packet_len_max, |theirs| theirs.min(self.packet_len_max))
    }

    fn split(&mut self) -> (&mut SimRx, &mut SimTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn poll_event(&mut self) -> Option<PortEvent> {
        // As on a NIC with unreliable datagrams, only a peer's silence shows that it is gone.
        None
    }

    /// Returns a waker in virtual time: see [`Cluster::waker`](crate::Cluster::waker).
    fn waker(&self) -> Waker {
        Waker::new(self.network.0.world.borrow().nodes[self.index].source.clone())
    }

    /// Waits for a packet. Where a [`Cluster`](crate::Cluster)'s actor works on the port, this only notes when the
    /// actor wants its next turn at the latest, and returns at once. Otherwise it runs the network until a packet
    /// arrives anywhere on it, until a wake, or until the time-out.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::Unsupported`]: the wait would never end. It has two causes. A port without an actor waits while
    /// a cluster has actors or workers on the network, which get their turns
    /// [from the cluster alone](crate::Cluster::run_until). Or an actor waits within its turn, as blocking calls do,
    /// although nothing happens before the turn is over; this is refused after a thousand waits in one turn.
    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        let delivered = self.network.0.world.borrow().delivered();
        let is_over = |world: &mut World| {
            let node = &world.nodes[self.index];
            node.source.take() || !node.waiting.is_empty() || world.delivered() != delivered
        };
        self.network.wait_at(self.index, timeout_ns, is_over).map(|_| ())
    }

    fn stats(&self) -> PortStats {
        self.network.0.world.borrow_mut().port_stats(self.index, self.network.0.clock.event_ns())
    }
}

impl fmt::Debug for SimRx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimRx").field("index", &self.index).field("lent", &self.lent.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for SimTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimTx")
            .field("index", &self.index)
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}
