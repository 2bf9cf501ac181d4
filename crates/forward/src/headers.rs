//! Headers on the wire: the offsets of their fields, and the checks that a header is valid. Nothing here decides the
//! fate of a packet.

pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod ndn;

use sinew_fabric::frames::{ETHERNET_HEADER_LEN, MacAddress};
pub use sinew_wire::{arp, discovery};

/// Ethernet types.
pub mod ether_type {
    /// Internet protocol, version 4.
    pub const IPV4: u16 = 0x0800;
    /// Address resolution.
    pub const ARP: u16 = 0x0806;
    /// Internet protocol, version 6.
    pub const IPV6: u16 = 0x86DD;
    /// Named data networking.
    pub const NDN: u16 = 0x8624;
}

/// Protocols of IP.
pub mod protocol {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
}

#[inline(always)]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Reads an array at an offset. The caller has checked the length.
#[inline(always)]
pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

/// The destination of a frame that has at least a header.
#[inline(always)]
pub fn destination(frame: &[u8]) -> MacAddress {
    MacAddress(array_at(frame, 0))
}

/// The source of a frame that has at least a header.
#[inline(always)]
pub fn source(frame: &[u8]) -> MacAddress {
    MacAddress(array_at(frame, 6))
}

/// The Ethernet type of a frame that has at least a header.
#[inline(always)]
pub fn type_of(frame: &[u8]) -> u16 {
    u16_at(frame, 12)
}

/// Writes both addresses of a frame that has at least a header.
#[inline(always)]
pub fn set_addresses(frame: &mut [u8], to: MacAddress, from: MacAddress) {
    frame[..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&from.0);
}

/// A complete Ethernet header.
pub fn ethernet(to: MacAddress, from: MacAddress, ether_type: u16) -> [u8; ETHERNET_HEADER_LEN] {
    let mut header = [0; ETHERNET_HEADER_LEN];
    set_addresses(&mut header, to, from);
    header[12..].copy_from_slice(&ether_type.to_be_bytes());
    header
}
