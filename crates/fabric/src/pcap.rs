//! A port that records the packets that pass, for Wireshark and similar tools.
//!
//! [`Captured`] wraps any port and writes a pcap file with times in nanoseconds. Fabrics have no Ethernet beneath them,
//! so each packet is given made-up IPv4 and UDP headers with correct lengths and checksums: this port is
//! [`OWN_IPV4`]:[`UDP_PORT`], and each peer gets an address in 10.0.0.0/8 at the same UDP port, in the order in which
//! peers appear ([`CaptureLayer::ipv4_of`] gives it). A peer that was forgotten and comes back gets a new one.
//!
//! Times are those of the bursts, so they start at the origin of the port's clock.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

use crate::address::Peer;
use crate::layer::{Layer, Layered, OwnedPacket, Pool};
use crate::port::{PacketPort, PacketTx, TxPacket};

/// The made-up address of the captured port.
pub const OWN_IPV4: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 254);
/// The made-up UDP port of both sides.
pub const UDP_PORT: u16 = 51_966;

/// Magic number of a pcap file with times in nanoseconds, in the writer's byte order (we write little-endian).
const MAGIC_NANOSECONDS: u32 = 0xA1B2_3C4D;
/// Link type of packets that begin with their IP header.
const LINKTYPE_RAW: u32 = 101;
/// The longest packet length that IPv4 can state, in bytes; longer packets are cut.
const LEN_MAX: usize = 65_535;
/// Length of the times and lengths before each packet, in bytes.
const RECORD_HEADER_LEN: usize = 16;
const IPV4_LEN: usize = 20;
const UDP_LEN: usize = 8;
const HEADERS_LEN: usize = IPV4_LEN + UDP_LEN;
const PROTOCOL_UDP: u8 = 17;
/// The most peers that have addresses of their own at a time, so that strangers cannot fill the memory; further ones
/// share [`OTHERS_IPV4`].
const PEERS_MAX: usize = 1 << 16;
const OTHERS_IPV4: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 253);
/// Number of addresses for peers, from 10.0.0.1 on: all are below [`OTHERS_IPV4`].
const ADDRESSES: u32 = 0xFF_FFFC;
const _: () = assert!(PEERS_MAX < ADDRESSES as usize);

/// A port that records the packets that pass; see the [module](self).
pub type Captured<P, W> = Layered<P, CaptureLayer<W>>;

impl<P: PacketPort, W: io::Write> Layered<P, CaptureLayer<W>> {
    /// Wraps `port` and begins the file. Pass a [`std::io::BufWriter`], since each packet is written at once.
    ///
    /// # Errors
    ///
    /// The writer's error.
    pub fn new(port: P, writer: W) -> io::Result<Self> {
        let file = PcapFile::new(writer, LEN_MAX)?;
        Ok(Self::wrap_unchecked(port, CaptureLayer { file, error: None, peers: HashMap::new(), given: 0 }))
    }

    /// Completes the file with what was captured so far.
    ///
    /// # Errors
    ///
    /// The writer's error, now or when it first failed; nothing was captured after that.
    pub fn finish(&self) -> io::Result<()> {
        self.with_layer(|layer| match layer.error.take() {
            Some(error) => Err(error),
            None => layer.file.writer.flush(),
        })
    }
}

/// A pcap file being written, for code that sees packets pass elsewhere than at a port.
#[derive(Debug)]
pub struct PcapFile<W> {
    writer: W,
    /// The most bytes of a packet that are kept, including its headers.
    kept_len_max: usize,
    /// The record being made; kept to reuse its memory.
    record: Vec<u8>,
    packets: u64,
}

impl<W> PcapFile<W> {
    /// Packets in the file.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// The writer.
    pub fn writer(&self) -> &W {
        &self.writer
    }

    /// Bytes of the file that a packet of this length takes.
    pub fn record_len(&self, packet_len: usize) -> usize {
        RECORD_HEADER_LEN + (HEADERS_LEN + packet_len).min(self.kept_len_max)
    }

    /// Gives back the writer.
    pub fn into_writer(self) -> W {
        self.writer
    }
}

impl<W: io::Write> PcapFile<W> {
    /// Begins a file that keeps at most `kept_len_max` bytes of each packet, including its IPv4 and UDP headers.
    ///
    /// # Errors
    ///
    /// The writer's error.
    pub fn new(mut writer: W, kept_len_max: usize) -> io::Result<Self> {
        let kept_len_max = kept_len_max.clamp(HEADERS_LEN, LEN_MAX);
        write_file_header(&mut writer, kept_len_max as u32)?;
        Ok(Self { writer, kept_len_max, record: Vec::new(), packets: 0 })
    }

    /// Adds a packet of two parts. `is_marked` says whether it met congestion. A packet longer than IPv4 can state is
    /// recorded as one of 65,535 bytes. A packet that is not kept whole has no UDP checksum.
    ///
    /// # Errors
    ///
    /// The writer's error.
    pub fn add(
        &mut self,
        time_ns: u64,
        from: SocketAddrV4,
        to: SocketAddrV4,
        parts: [&[u8]; 2],
        is_marked: bool,
    ) -> io::Result<()> {
        let original_len = HEADERS_LEN + parts[0].len() + parts[1].len();
        let stated_len = original_len.min(LEN_MAX);
        let kept_len = original_len.min(self.kept_len_max);
        let record = &mut self.record;
        record.clear();
        let seconds = u32::try_from(time_ns / 1_000_000_000).unwrap_or(u32::MAX);
        for word in [seconds, (time_ns % 1_000_000_000) as u32, kept_len as u32, original_len as u32] {
            record.extend_from_slice(&word.to_le_bytes());
        }
        let start = record.len();
        record.extend_from_slice(&ipv4_header(*from.ip(), *to.ip(), stated_len as u16, is_marked));
        let udp_len = (stated_len - IPV4_LEN) as u16;
        for field in [from.port(), to.port(), udp_len, 0] {
            record.extend_from_slice(&field.to_be_bytes());
        }
        for part in parts {
            let room = start + kept_len - record.len();
            record.extend_from_slice(&part[..part.len().min(room)]);
        }
        if kept_len == stated_len {
            let checksum = udp_checksum(*from.ip(), *to.ip(), &record[start + IPV4_LEN..]);
            record[start + IPV4_LEN + 6..][..2].copy_from_slice(&checksum.to_be_bytes());
        }
        self.packets += 1;
        self.writer.write_all(record)
    }
}

/// The layer of a [`Captured`] port.
#[derive(Debug)]
pub struct CaptureLayer<W> {
    file: PcapFile<W>,
    error: Option<io::Error>,
    peers: HashMap<Peer, Ipv4Addr>,
    /// Addresses given to peers so far.
    given: u64,
}

impl<W> CaptureLayer<W> {
    /// The address that stands for a peer in the file, from its appearance until it is forgotten.
    pub fn ipv4_of(&self, peer: Peer) -> Option<Ipv4Addr> {
        self.peers.get(&peer).copied()
    }

    /// Packets captured.
    pub fn packets(&self) -> u64 {
        self.file.packets()
    }

    /// The writer.
    pub fn writer(&self) -> &W {
        self.file.writer()
    }
}

impl<W: io::Write> CaptureLayer<W> {
    fn peer_ipv4(&mut self, peer: Peer) -> Ipv4Addr {
        if let Some(&ipv4) = self.peers.get(&peer) {
            return ipv4;
        }
        if self.peers.len() >= PEERS_MAX {
            return OTHERS_IPV4;
        }
        let mut ipv4 = self.next_ipv4();
        // Once all addresses have been given out, those that no peer has any longer are given again.
        while self.given > u64::from(ADDRESSES) && self.peers.values().any(|taken| *taken == ipv4) {
            ipv4 = self.next_ipv4();
        }
        self.peers.insert(peer, ipv4);
        ipv4
    }

    fn next_ipv4(&mut self) -> Ipv4Addr {
        let [_, b, c, d] = ((self.given % u64::from(ADDRESSES)) as u32 + 1).to_be_bytes();
        self.given += 1;
        Ipv4Addr::new(10, b, c, d)
    }

    fn capture(&mut self, time_ns: u64, from: Ipv4Addr, to: Ipv4Addr, parts: [&[u8]; 2]) {
        if self.error.is_none() {
            let [from, to] = [from, to].map(|ipv4| SocketAddrV4::new(ipv4, UDP_PORT));
            self.error = self.file.add(time_ns, from, to, parts, false).err();
        }
    }
}

impl<W: io::Write> Layer for CaptureLayer<W> {
    fn forgotten(&mut self, peer: Peer) {
        self.peers.remove(&peer);
    }

    fn push(&mut self, packet: TxPacket<'_>, now_ns: u64, tx: &mut dyn PacketTx, _pool: &mut Pool) {
        let to = self.peer_ipv4(packet.to);
        self.capture(now_ns, OWN_IPV4, to, [packet.head, packet.data.as_slice()]);
        tx.push(packet);
    }

    fn receive(&mut self, packet: OwnedPacket, now_ns: u64, ready: &mut VecDeque<OwnedPacket>, _pool: &mut Pool) {
        let from = self.peer_ipv4(packet.peer);
        self.capture(now_ns, from, OWN_IPV4, [&packet.bytes, &[]]);
        ready.push_back(packet);
    }
}

fn write_file_header(writer: &mut impl io::Write, kept_len_max: u32) -> io::Result<()> {
    let mut header = Vec::with_capacity(24);
    header.extend_from_slice(&MAGIC_NANOSECONDS.to_le_bytes());
    // Version 2.4, then the time zone and its accuracy, which nobody uses.
    header.extend_from_slice(&2u16.to_le_bytes());
    header.extend_from_slice(&4u16.to_le_bytes());
    for word in [0, 0, kept_len_max, LINKTYPE_RAW] {
        header.extend_from_slice(&word.to_le_bytes());
    }
    writer.write_all(&header)
}

fn ipv4_header(from: Ipv4Addr, to: Ipv4Addr, total_len: u16, is_marked: bool) -> [u8; IPV4_LEN] {
    let mut header = [0; IPV4_LEN];
    // Version 4, five words of header, do not fragment, 64 hops.
    header[0] = 0x45;
    // ECN: congestion experienced.
    header[1] = if is_marked { 0b11 } else { 0 };
    header[2..4].copy_from_slice(&total_len.to_be_bytes());
    header[6] = 0x40;
    header[8] = 64;
    header[9] = PROTOCOL_UDP;
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let checksum = folded(sum_words(&header));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

/// The UDP checksum of a datagram whose checksum field is zero, including the pseudo-header.
fn udp_checksum(from: Ipv4Addr, to: Ipv4Addr, datagram: &[u8]) -> u16 {
    let pseudo = sum_words(&from.octets()) + sum_words(&to.octets()) + u64::from(PROTOCOL_UDP) + datagram.len() as u64;
    match folded(pseudo + sum_words(datagram)) {
        // Zero would mean that there is no checksum.
        0 => 0xFFFF,
        checksum => checksum,
    }
}

fn sum_words(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let sum: u64 = words.iter().map(|&word| u64::from(u16::from_be_bytes(word))).sum();
    sum + rest.first().map_or(0, |&last| u64::from(last) << 8)
}

fn folded(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum >> 16) + (sum & 0xFFFF);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopback::{LoopbackConfig, Network};
    use crate::port::{PacketRx, RxBurst, TxData};
    use crate::time::ManualClock;

    struct Parsed {
        time_ns: u64,
        from: Ipv4Addr,
        to: Ipv4Addr,
        payload: Vec<u8>,
        original_len: usize,
    }

    /// Reads a file back by the definition of the format, checking every length and checksum.
    fn parse(mut file: &[u8]) -> Vec<Parsed> {
        fn take<'a>(file: &mut &'a [u8], len: usize) -> &'a [u8] {
            let (taken, rest) = file.split_at(len);
            *file = rest;
            taken
        }
        fn le32(file: &mut &[u8]) -> u32 {
            u32::from_le_bytes(take(file, 4).try_into().unwrap())
        }
        fn be16(bytes: &[u8], at: usize) -> u16 {
            u16::from_be_bytes([bytes[at], bytes[at + 1]])
        }
        fn checksum_holds(words: impl Iterator<Item = u16>) -> bool {
            let mut sum: u32 = words.map(u32::from).sum();
            while sum > 0xFFFF {
                sum = (sum >> 16) + (sum & 0xFFFF);
            }
            sum == 0xFFFF
        }
        fn words(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
            bytes.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
        }
        assert_eq!(le32(&mut file), 0xA1B2_3C4D);
        assert_eq!(take(&mut file, 4), [2, 0, 4, 0]);
        take(&mut file, 8);
        assert_eq!((le32(&mut file), le32(&mut file)), (65_535, 101));
        let mut packets = Vec::new();
        while !file.is_empty() {
            let (seconds, ns) = (le32(&mut file), le32(&mut file));
            assert!(ns < 1_000_000_000);
            let (kept, original_len) = (le32(&mut file) as usize, le32(&mut file) as usize);
            let packet = take(&mut file, kept);
            assert_eq!((packet[0], packet[9]), (0x45, 17));
            assert_eq!(usize::from(be16(packet, 2)), kept);
            assert!(checksum_holds(words(&packet[..20])));
            let udp = &packet[20..];
            assert_eq!((be16(udp, 0), be16(udp, 2)), (UDP_PORT, UDP_PORT));
            assert_eq!(usize::from(be16(udp, 4)), udp.len());
            let pseudo = words(&packet[12..20]).chain([17, udp.len() as u16]);
            assert!(be16(udp, 6) != 0 && checksum_holds(pseudo.chain(words(udp))));
            let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap());
            packets.push(Parsed {
                time_ns: u64::from(seconds) * 1_000_000_000 + u64::from(ns),
                from: address(12),
                to: address(16),
                payload: udp[8..].to_vec(),
                original_len,
            });
        }
        packets
    }

    #[test]
    fn the_file_holds_both_directions_with_times_and_right_checksums() {
        let network = Network::new(ManualClock::new());
        let mut captured = Captured::new(network.port("alice").unwrap(), Vec::new()).unwrap();
        let mut bob = network.port("bob").unwrap();
        let to = captured.resolve(&bob.address()).unwrap();
        captured.split().0.receive(&mut RxBurst::new(3_000_000_001));
        captured.split().1.push(TxPacket { to, head: b"head", data: TxData::Bytes(b"data!") });
        captured.split().1.submit();
        bob.split().1.push(TxPacket { to: network.peer("alice").unwrap(), head: b"", data: TxData::None });
        bob.split().1.submit();
        network.inject("alice", Network::stranger(1), b"odd");
        captured.split().0.receive(&mut RxBurst::new(5_999_999_999));
        captured.finish().unwrap();

        let (file, bob_ipv4) = captured.with_layer(|layer| (layer.writer().clone(), layer.ipv4_of(to).unwrap()));
        let packets = parse(&file);
        assert_eq!(captured.with_layer(|layer| layer.packets()), 3);
        let seen: Vec<_> = packets.iter().map(|p| (p.time_ns, p.from, p.to, p.payload.as_slice())).collect();
        assert_eq!(
            seen,
            [
                (3_000_000_001, OWN_IPV4, bob_ipv4, b"headdata!" as &[u8]),
                (5_999_999_999, bob_ipv4, OWN_IPV4, b"" as &[u8]),
                (5_999_999_999, Ipv4Addr::new(10, 0, 0, 2), OWN_IPV4, b"odd" as &[u8]),
            ]
        );
    }

    #[test]
    fn peers_that_are_forgotten_make_room_and_no_two_have_one_address() {
        let network = Network::new(ManualClock::new());
        let mut captured = Captured::new(network.port("a").unwrap(), io::sink()).unwrap();
        let meet = |captured: &mut Captured<_, io::Sink>, number| {
            network.inject("a", Network::stranger(number), b"x");
            captured.split().0.receive(&mut RxBurst::new(0));
            captured.with_layer(|layer| layer.ipv4_of(Network::stranger(number)))
        };
        let at = |number: u32| Some(Ipv4Addr::from(10 << 24 | number));
        assert_eq!([1, 2].map(|number| meet(&mut captured, number)), [at(1), at(2)]);
        captured.forget(Network::stranger(1));
        assert_eq!(captured.with_layer(|layer| layer.ipv4_of(Network::stranger(1))), None);
        assert_eq!([3, 1, 2].map(|number| meet(&mut captured, number)), [at(3), at(4), at(2)]);
        // As many peers as can have addresses at a time.
        (4..=PEERS_MAX as u32).for_each(|number| assert!(meet(&mut captured, number).is_some()));
        assert_eq!(meet(&mut captured, 1 << 20), None, "it shares one");
        captured.peer_left(Network::stranger(3));
        assert_eq!(meet(&mut captured, 1 << 20), at(PEERS_MAX as u32 + 2));
        // Once all addresses have been given out, those that nobody has are given again.
        captured.with_layer(|layer| layer.given = u64::from(ADDRESSES));
        captured.peer_left(Network::stranger(5));
        assert_eq!(meet(&mut captured, 1 << 21), at(1));
        captured.peer_left(Network::stranger(6));
        assert_eq!(meet(&mut captured, 1 << 22), at(3), "the second still has its own");
    }

    #[test]
    fn packets_longer_than_ipv4_can_state_are_cut() {
        let network = Network::new(ManualClock::new());
        let config = LoopbackConfig { packet_len_max: 100_000, ..LoopbackConfig::default() };
        let mut captured = Captured::new(network.port_with("a", config).unwrap(), Vec::new()).unwrap();
        for len in [65_535 - 28, 65_535 - 27, 70_000] {
            network.inject("a", Network::stranger(0), &vec![0xFF; len]);
        }
        captured.split().0.receive(&mut RxBurst::new(0));
        let packets = parse(&captured.with_layer(|layer| layer.writer().clone()));
        let lens: Vec<_> = packets.iter().map(|p| (p.payload.len() + 28, p.original_len)).collect();
        assert_eq!(lens, [(65_535, 65_535), (65_535, 65_536), (65_535, 70_028)]);
    }

    #[test]
    fn a_full_disk_ends_the_capture_and_not_the_traffic() {
        let network = Network::new(ManualClock::new());
        let mut room = [0u8; 30];
        let mut captured = Captured::new(network.port("a").unwrap(), &mut room[..]).unwrap();
        for _ in 0..2 {
            network.inject("a", Network::stranger(0), b"x");
            let mut burst = RxBurst::new(0);
            captured.split().0.receive(&mut burst);
            assert_eq!(burst.packets.len(), 1);
        }
        assert!(captured.finish().is_err());
    }
}
