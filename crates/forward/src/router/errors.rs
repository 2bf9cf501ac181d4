//! Packets that the router itself sends: errors, at a bounded rate, and answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sinew_fabric::frames::ETHERNET_HEADER_LEN;

use super::Router;
use super::forward::RouteDecision;
use crate::burst::Outbox;
use crate::counters::Reason;
use crate::headers::icmp::{self, Problem};
use crate::headers::ipv4::{self, Ipv4};
use crate::headers::ipv6::{self, Ipv6};
use crate::headers::{ether_type, protocol};
use crate::interface;

/// Time to live of the router's own packets.
const TTL: u8 = 64;
/// Longest ICMP error for IPv4, in bytes (RFC 1812 4.3.2.3).
const ERROR_LEN_V4: usize = 576;
/// Length of the ICMP header, in bytes.
const ICMP_LEN: usize = 8;

impl Router {
    /// Counts a dropped packet, and sends its sender an error if there is a problem to report.
    #[cold]
    #[expect(clippy::too_many_arguments, reason = "what is known of one packet")]
    pub(super) fn refuse_v4(
        &mut self,
        from: u16,
        now_ns: u64,
        read: &Ipv4,
        packet: &[u8],
        reason: Reason,
        problem: Option<Problem>,
        outbox: &mut Outbox,
    ) {
        self.counters.drop(reason);
        let Some(problem) = problem else { return };
        let is_later_piece = read.fragment & ipv4::OFFSET != 0;
        let kind = packet.get(read.header_len).copied();
        let is_error = read.protocol == protocol::ICMP && kind.is_none_or(icmp::is_error_v4);
        if is_later_piece || is_error || !interface::is_host_v4(read.source) {
            return;
        }
        let own_address = self.interfaces[usize::from(from)].v4_for(read.source);
        let Some(source) = own_address.or_else(|| self.interfaces.iter().find_map(|other| other.v4_for(read.source)))
        else {
            return;
        };
        if !self.errors.take(now_ns) {
            self.counters.errors_suppressed += 1;
            return;
        }
        let mut message = Vec::with_capacity(ERROR_LEN_V4);
        let quoted_max = ERROR_LEN_V4 - ipv4::HEADER_LEN - ICMP_LEN;
        icmp::error(&mut message, problem.v4(), &packet[..read.total_len], quoted_max);
        icmp::seal_v4(&mut message);
        self.send_v4(now_ns, source, read.source, &message, outbox);
    }

    /// The same for IPv6.
    #[cold]
    #[expect(clippy::too_many_arguments, reason = "what is known of one packet")]
    pub(super) fn refuse_v6(
        &mut self,
        from: u16,
        now_ns: u64,
        read: &Ipv6,
        packet: &[u8],
        reason: Reason,
        problem: Option<Problem>,
        outbox: &mut Outbox,
    ) {
        self.counters.drop(reason);
        let Some(problem) = problem else { return };
        // A packet whose contents cannot be read may itself be an error, so it counts as one.
        let is_error = read.upper(packet).map_or(true, |upper| {
            let kind = packet[..read.total_len].get(upper.at).copied();
            upper.protocol == protocol::ICMPV6 && kind.is_none_or(icmp::is_error_v6)
                || upper.is_fragment && upper.protocol == 44
        });
        if is_error || !interface::is_host_v6(read.source) {
            return;
        }
        let own_address = self.interfaces[usize::from(from)].v6_for(read.source);
        let is_known_there =
            |address: &Ipv6Addr| !address.is_unicast_link_local() || read.source.is_unicast_link_local();
        let others = || self.interfaces.iter().map(|other| other.v6_for(read.source));
        let Some(source) = std::iter::once(own_address).chain(others()).find(is_known_there) else { return };
        if !self.errors.take(now_ns) {
            self.counters.errors_suppressed += 1;
            return;
        }
        let mut message = Vec::with_capacity(ipv6::MTU_MIN);
        let quoted_max = ipv6::MTU_MIN - ipv6::HEADER_LEN - ICMP_LEN;
        icmp::error(&mut message, problem.v6(), &packet[..read.total_len], quoted_max);
        self.send_v6(now_ns, from, source, read.source, message, TTL, outbox);
    }

    /// Drops a frame that waited for a neighbour that did not answer, and sends its sender an error. The router's own
    /// packets are only counted.
    pub(super) fn drop_unresolved(&mut self, now_ns: u64, frame: &[u8], outbox: &mut Outbox) {
        let (packet, problem) = (&frame[ETHERNET_HEADER_LEN..], Some(Problem::HostUnreachable));
        if let Ok(read) = Ipv4::read(packet)
            && !self.is_own(read.source.into())
        {
            let from = self.reverse_interface(read.source.into());
            self.refuse_v4(from, now_ns, &read, packet, Reason::Neighbour, problem, outbox);
        } else if let Ok(read) = Ipv6::read(packet)
            && !self.is_own(read.source.into())
        {
            let from = self.reverse_interface(read.source.into());
            self.refuse_v6(from, now_ns, &read, packet, Reason::Neighbour, problem, outbox);
        } else {
            self.counters.drop(Reason::Neighbour);
        }
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.interfaces.iter().any(|interface| interface.has(address))
    }

    /// The interface towards a source, or 0 if no route leads there.
    fn reverse_interface(&mut self, source: IpAddr) -> u16 {
        let hop = self.fib.hop(source).map(|(number, _)| number);
        if let RouteDecision::Next(next) = self.route(hop, source) { next.to } else { 0 }
    }

    /// Sends an ICMP message.
    pub(super) fn send_v4(&mut self, now_ns: u64, source: Ipv4Addr, to: Ipv4Addr, message: &[u8], outbox: &mut Outbox) {
        let hop = self.fib.hop(to.into()).map(|(number, _)| number);
        let RouteDecision::Next(next) = self.route(hop, to.into()) else { return };
        let header = ipv4::header(source, to, protocol::ICMP, TTL, message.len());
        let mtu = self.interfaces[usize::from(next.to)].mtu;
        if header.len() + message.len() <= mtu {
            self.emit(now_ns, &next, ether_type::IPV4, &[&header, message], outbox);
            return;
        }
        let mut packet = [&header[..], message].concat();
        self.identification = self.identification.wrapping_add(1);
        packet[4..6].copy_from_slice(&self.identification.to_be_bytes());
        packet[6..8].fill(0);
        ipv4::seal(&mut packet[..ipv4::HEADER_LEN]);
        let Ok(read) = Ipv4::read(&packet) else { return };
        ipv4::fragment(&packet, &read, mtu, |header, piece| {
            self.emit(now_ns, &next, ether_type::IPV4, &[header, piece], outbox);
        });
    }

    /// Sends an ICMPv6 message after writing its checksum. A link-local destination is reached through `from`.
    #[expect(clippy::too_many_arguments, reason = "what a packet is made of")]
    pub(super) fn send_v6(
        &mut self,
        now_ns: u64,
        from: u16,
        source: Ipv6Addr,
        to: Ipv6Addr,
        mut message: Vec<u8>,
        hop_limit: u8,
        outbox: &mut Outbox,
    ) {
        let next = if to.is_unicast_link_local() {
            self.next_on_link(from, to)
        } else {
            let hop = self.fib.hop(to.into()).map(|(number, _)| number);
            let RouteDecision::Next(next) = self.route(hop, to.into()) else { return };
            next
        };
        if ipv6::HEADER_LEN + message.len() > self.interfaces[usize::from(next.to)].mtu {
            self.counters.drop(Reason::TooBig);
            return;
        }
        icmp::seal_v6(&mut message, source, to);
        let header = ipv6::header(source, to, protocol::ICMPV6, hop_limit, message.len());
        self.emit(now_ns, &next, ether_type::IPV6, &[&header, &message], outbox);
    }
}
