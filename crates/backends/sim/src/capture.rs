//! Captures of packets on hosts' links, for Wireshark and similar tools.

use std::net::{Ipv4Addr, SocketAddrV4};

use sinew_fabric::pcap::PcapFile;

use crate::packets::Packet;
use crate::topology::HostId;

/// Limits of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureConfig {
    /// Most bytes of each packet that are kept, including 28 of made-up IPv4 and UDP headers.
    pub kept_len_max: usize,
    /// Most bytes of the file: packets that would exceed it are counted, and left out.
    pub file_len_max: usize,
}

impl Default for CaptureConfig {
    fn default() -> Self {
        Self { kept_len_max: 128, file_len_max: 1 << 30 }
    }
}

/// A capture, from [`Network::take_capture`](crate::Network::take_capture).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// A pcap file, with virtual time in nanoseconds. The host with index *n* has the *n+1*st address of 10.0.0.0/8,
    /// and the *n*th port that was opened has the UDP port 1024 + *n*. A packet that a switch marked has met congestion
    /// (ECN). Faults on the captured link itself are not seen.
    pub file: Vec<u8>,
    /// Packets in the file.
    pub packets: u64,
    /// Packets for which the file had no room.
    pub left_out: u64,
}

/// A capture in progress.
#[derive(Debug)]
pub(crate) struct Capturing {
    file: PcapFile<Vec<u8>>,
    len_max: usize,
    /// Whether each host's packets are captured.
    hosts: Vec<bool>,
    left_out: u64,
}

impl Capturing {
    pub fn new(config: CaptureConfig, hosts: Vec<bool>) -> Self {
        let file = PcapFile::new(Vec::new(), config.kept_len_max).expect("memory is written to without errors");
        Self { file, len_max: config.file_len_max, hosts, left_out: 0 }
    }

    pub fn includes(&self, host: HostId) -> bool {
        self.hosts[host.0]
    }

    /// Adds a packet that leaves on a link.
    pub fn add(&mut self, packet: &Packet, [from, to]: [HostId; 2], time_ns: u64) {
        if self.file.writer().len() + self.file.record_len(packet.bytes().len()) > self.len_max {
            self.left_out += 1;
            return;
        }
        let [from, to] = [(from, packet.from), (to, packet.to)].map(|(host, port)| address(host, port));
        let added = self.file.add(time_ns, from, to, [packet.bytes(), &[]], packet.is_marked);
        added.expect("memory is written to without errors");
    }

    pub fn end(self) -> Capture {
        let packets = self.file.packets();
        Capture { file: self.file.into_writer(), packets, left_out: self.left_out }
    }
}

fn address(host: HostId, port: u32) -> SocketAddrV4 {
    let [_, b, c, d] = (host.0 as u32 + 1).to_be_bytes();
    SocketAddrV4::new(Ipv4Addr::new(10, b, c, d), 1024 + (port % (65_536 - 1024)) as u16)
}
