//! A network in virtual time whose packets are really sent, as datagrams of queue pairs.
//!
//! A loopback network decides which packets arrive, and when: the RPC layer's tests cut its links, kill its ports and
//! inject strangers' bytes. The bytes of each packet that a port sends go through a UD queue pair, and the receiver
//! gets the bytes that came out there. The fabric loses nothing here, since never more packets are in flight than there
//! are receives; a datagram that does not arrive fails its test.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sinew::fabric::layer::{Layer, Layered, OwnedPacket, Pool};
use sinew::fabric::loopback::{LoopbackPort, Network};
use sinew::fabric::verbs::port::{UdPort, UdPortConfig};
use sinew::fabric::verbs::{Device, ProtectionDomain};
use sinew::fabric::{Address, PacketPort, PacketRx, PacketTx, Peer, PortError, RxBurst, TxData, TxPacket};

/// Real time that a packet may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Packets that a queue pair lets wait to be received, and to be sent.
const RECEIVES: usize = 512;
const SENDS: usize = 256;

/// A port of a loopback network whose packets are carried by queue pairs.
pub type Carried<D> = Layered<LoopbackPort, Carrier<D>>;

/// Lets queue pairs of `device` carry the packets of `port`. Without a device, only the loopback network carries them.
///
/// # Errors
///
/// Those of [`UdPort::open`].
pub fn carry<D: ProtectionDomain>(
    port: LoopbackPort,
    device: Option<&impl Device<Domain = D>>,
) -> Result<Carried<D>, PortError> {
    let peer = port.peer();
    let open = |device: &_| {
        let buffer_bytes = 2 * Device::attributes(device).mtu.next_power_of_two();
        let arena_bytes = (RECEIVES + SENDS) * buffer_bytes;
        let config = UdPortConfig { receive_packets: RECEIVES, send_packets: SENDS, arena_bytes, ..Default::default() };
        UdPort::open(device, &config)
    };
    let datagrams = device.map(open).transpose()?;
    STATE.with_borrow_mut(|state| {
        // A port of an earlier network may have been the same peer.
        state.sent.retain(|sent| sent.from != peer && sent.to != peer);
        state.addresses.retain(|(other, _)| *other != peer);
        state.addresses.extend(datagrams.iter().map(|datagrams| (peer, datagrams.address())));
    });
    Layered::wrap(port, Carrier { datagrams, peer, arrived: VecDeque::new() })
}

/// A packet that a queue pair was given.
struct Sent {
    from: Peer,
    to: Peer,
    bytes: Vec<u8>,
}

/// State that the ports of a test's thread share.
#[derive(Default)]
struct SharedState {
    /// Addresses of the queue pairs of the loopback network's peers.
    addresses: Vec<(Peer, Address)>,
    /// Packets in the order of sending. Those that the network loses stay.
    sent: VecDeque<Sent>,
    /// Packets whose bytes came by a queue pair.
    carried: u64,
}

thread_local! {
    static STATE: RefCell<SharedState> = RefCell::default();
}

/// Asserts that packets between two ports are carried.
pub fn assert_carried<D: ProtectionDomain>(network: &Network, mut port_on: impl FnMut(LoopbackPort) -> Carried<D>) {
    let [mut a, mut b] = ["a", "b"].map(|name| port_on(network.port(name).expect("a port")));
    let to = a.resolve(&b.address()).expect("the way to b");
    let tx = a.split().1;
    tx.push(TxPacket { to, head: b"head", data: TxData::Bytes(b" and data") });
    tx.submit();
    let mut burst = RxBurst::new(0);
    b.split().0.receive(&mut burst);
    assert_eq!(burst.packets.iter().map(|packet| packet.head).collect::<Vec<_>>(), [b"head and data"]);
    assert_eq!(STATE.with_borrow(|state| state.carried), 1);
}

/// Carries a port's packets.
pub struct Carrier<D: ProtectionDomain> {
    datagrams: Option<UdPort<D>>,
    /// The port's peer on the loopback network.
    peer: Peer,
    /// Datagrams whose packets the network delivers later, or never.
    arrived: VecDeque<Vec<u8>>,
}

impl<D: ProtectionDomain> Carrier<D> {
    /// Takes in the datagrams that have arrived.
    fn collect(datagrams: &mut UdPort<D>, arrived: &mut VecDeque<Vec<u8>>) {
        loop {
            let mut burst = RxBurst::new(0);
            datagrams.split().0.receive(&mut burst);
            if burst.packets.is_empty() {
                return;
            }
            arrived.extend(burst.packets.iter().map(|packet| packet.head.to_vec()));
        }
    }
}

impl<D: ProtectionDomain> Layer for Carrier<D> {
    fn push(&mut self, packet: TxPacket<'_>, _: u64, tx: &mut dyn PacketTx, _: &mut Pool) {
        tx.push(packet);
        let Some(datagrams) = &mut self.datagrams else { return };
        let address_of = |state: &SharedState| state.addresses.iter().find(|(peer, _)| *peer == packet.to).cloned();
        // Other peers are made by hand, and have no queue pair.
        let Some((_, address)) = STATE.with_borrow(address_of) else { return };
        let bytes = [packet.head, packet.data.as_slice()].concat();
        if bytes.len() > datagrams.caps().packet_len_max {
            return;
        }
        let to = match datagrams.resolve(&address) {
            Ok(to) => to,
            // The other port is being dropped, and both ends say good-bye.
            Err(PortError::NotFound { .. }) => return,
            Err(error) => panic!("the way to a port of this test: {error}"),
        };
        let full = datagrams.stats().dropped_total();
        for attempt in 0.. {
            let tx = datagrams.split().1;
            tx.push(TxPacket { to, head: packet.head, data: TxData::Bytes(packet.data.as_slice()) });
            tx.submit();
            if datagrams.stats().dropped_total() == full + attempt {
                break;
            }
            assert!(attempt < 1000, "the queue pair takes no datagram");
            datagrams.split().1.flush();
        }
        STATE.with_borrow_mut(|state| state.sent.push_back(Sent { from: self.peer, to: packet.to, bytes }));
    }

    fn receive(&mut self, mut packet: OwnedPacket, _: u64, ready: &mut VecDeque<OwnedPacket>, _: &mut Pool) {
        let sent = STATE.with_borrow_mut(|state| {
            let same = |sent: &Sent| sent.from == packet.peer && sent.to == self.peer && sent.bytes == packet.bytes;
            state.sent.iter().position(same).and_then(|at| state.sent.remove(at))
        });
        // A packet that nobody sent was injected.
        if let (Some(sent), Some(datagrams)) = (sent, &mut self.datagrams) {
            let since = Instant::now();
            loop {
                if let Some(at) = self.arrived.iter().position(|bytes| *bytes == sent.bytes) {
                    packet.bytes = self.arrived.remove(at).expect("it is there");
                    STATE.with_borrow_mut(|state| state.carried += 1);
                    break;
                }
                assert!(since.elapsed() < PATIENCE, "a datagram of {} bytes did not come", sent.bytes.len());
                Self::collect(datagrams, &mut self.arrived);
            }
        }
        ready.push_back(packet);
    }

    fn advance(&mut self, _: u64, _: &mut dyn PacketTx, _: &mut VecDeque<OwnedPacket>, _: &mut Pool) -> bool {
        if let Some(datagrams) = &mut self.datagrams {
            Self::collect(datagrams, &mut self.arrived);
        }
        false
    }
}
