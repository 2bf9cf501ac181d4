//! Packets for the router itself: address requests, echo requests, and what neighbours announce about themselves.

use std::net::{IpAddr, Ipv6Addr};

use sinew_fabric::frames::MacAddress;
use sinew_wire::checksum::Sum;

use super::Router;
use super::forward::NextHop;
use crate::burst::Outbox;
use crate::counters::Reason;
use crate::headers::arp::{self, Arp};
use crate::headers::discovery::Discovery;
use crate::headers::icmp::{self, Problem, v6};
use crate::headers::ipv4::Ipv4;
use crate::headers::ipv6::{self, Ipv6};
use crate::headers::{self, ether_type, protocol};
use crate::interface::{Interface, is_host};

/// The multicast group of all nodes on a link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);
/// Hop limit of neighbour discovery's packets; a lower one means that the packet passed a router (RFC 4861 7.1).
const HOP_LIMIT: u8 = 255;

/// Asks for the Ethernet address of a neighbour: the whole link, or the last known owner of the address.
pub(super) fn solicit(
    interface: &Interface,
    to: u16,
    address: IpAddr,
    known_mac: Option<MacAddress>,
    outbox: &mut Outbox,
) {
    match address {
        IpAddr::V4(target) => {
            let Some(sender) = interface.v4_for(target) else { return };
            let question = Arp { is_request: true, sender_mac: interface.mac.0, sender, target_mac: [0; 6], target };
            let header = headers::ethernet(known_mac.unwrap_or(MacAddress::BROADCAST), interface.mac, ether_type::ARP);
            outbox.push(to, &[&header, &question.to_bytes()]);
        }
        IpAddr::V6(target) => {
            let group = ipv6::solicited_node(target);
            let (destination, mac) = match known_mac {
                Some(mac) => (target, mac),
                None => (group, MacAddress(ipv6::group_mac(group))),
            };
            let question = Discovery {
                is_solicitation: true,
                is_router: false,
                is_solicited: false,
                overrides: false,
                target,
                mac: Some(interface.mac.0),
            };
            push_neighbour(interface, to, destination, mac, question, outbox);
        }
    }
}

fn push_neighbour(
    interface: &Interface,
    to: u16,
    destination: Ipv6Addr,
    mac: MacAddress,
    message: Discovery,
    outbox: &mut Outbox,
) {
    let source = if message.is_solicitation { interface.link_local() } else { message.target };
    let (mut bytes, len) = message.to_bytes();
    let bytes = &mut bytes[..len];
    icmp::seal_v6(bytes, source, destination);
    let packet = ipv6::header(source, destination, protocol::ICMPV6, HOP_LIMIT, bytes.len());
    outbox.push(to, &[&headers::ethernet(mac, interface.mac, ether_type::IPV6), &packet, bytes]);
}

impl Router {
    /// Learns a neighbour's address from what it announced, and sends the frames that waited for it.
    pub(super) fn learn_neighbour(
        &mut self,
        from: u16,
        address: IpAddr,
        mac: MacAddress,
        now_ns: u64,
        is_new: bool,
        outbox: &mut Outbox,
    ) {
        let interface = &self.interfaces[usize::from(from)];
        if !is_host(address) || !interface.reaches(address) || interface.has(address) {
            return;
        }
        let Self { neighbours, counters, .. } = self;
        neighbours.learn(from, address, mac, now_ns, is_new, |mut frame| {
            frame[..6].copy_from_slice(&mac.0);
            counters.forwarded += 1;
            outbox.push(from, &[&frame]);
        });
    }

    pub(super) fn next_on_link(&mut self, to: u16, address: Ipv6Addr) -> NextHop {
        let neighbour = self.neighbours.find_or_add(to, address.into());
        NextHop::new(to, neighbour)
    }

    pub(super) fn handle_arp(
        &mut self,
        from: u16,
        now_ns: u64,
        packet: &[u8],
        outbox: &mut Outbox,
    ) -> Result<(), Reason> {
        if packet.len() < arp::LEN {
            return Err(Reason::Truncated);
        }
        let message = Arp::read(packet).ok_or(Reason::Arp)?;
        let sender_mac = MacAddress(message.sender_mac);
        let interface = &self.interfaces[usize::from(from)];
        let (mac, is_ours) = (interface.mac, interface.has(message.target.into()));
        self.learn_neighbour(from, message.sender.into(), sender_mac, now_ns, message.is_request && is_ours, outbox);
        if message.is_request && is_ours && sender_mac.is_unicast() {
            let answer = Arp {
                is_request: false,
                sender_mac: mac.0,
                sender: message.target,
                target_mac: message.sender_mac,
                target: message.sender,
            };
            let header = headers::ethernet(sender_mac, mac, ether_type::ARP);
            outbox.push(from, &[&header, &answer.to_bytes()]);
            self.counters.made += 1;
        }
        Ok(())
    }

    /// Handles a packet for the router's own address.
    pub(super) fn handle_v4(
        &mut self,
        now_ns: u64,
        read: &Ipv4,
        packet: &[u8],
        outbox: &mut Outbox,
    ) -> Result<(), (Reason, Option<Problem>)> {
        if read.is_fragment() {
            return Err((Reason::Local, None));
        }
        match read.protocol {
            protocol::ICMP => {
                let message = &packet[read.header_len..read.total_len];
                if message.len() < 8 {
                    return Err((Reason::Truncated, None));
                }
                if !Sum::default().with(message).is_right() {
                    return Err((Reason::Checksum, None));
                }
                if message[..2] != [8, 0] {
                    return Err((Reason::Local, None));
                }
                let mut answer = message.to_vec();
                answer[0] = 0;
                icmp::seal_v4(&mut answer);
                self.send_v4(now_ns, read.destination, read.source, &answer, outbox);
                Ok(())
            }
            protocol::UDP | protocol::TCP => Err((Reason::Local, Some(Problem::Port))),
            _ => Err((Reason::Local, Some(Problem::Protocol))),
        }
    }

    /// Handles a packet for one of the router's own addresses that is not link-local.
    pub(super) fn handle_v6(
        &mut self,
        from: u16,
        now_ns: u64,
        read: &Ipv6,
        packet: &[u8],
        outbox: &mut Outbox,
    ) -> Result<(), (Reason, Option<Problem>)> {
        let upper = read.upper(packet).map_err(|reason| (reason, None))?;
        match upper.protocol {
            _ if upper.is_fragment => Err((Reason::Local, None)),
            protocol::ICMPV6 => {
                let message = &packet[upper.at..read.total_len];
                self.handle_icmpv6(from, now_ns, read, message, outbox).map_err(|reason| (reason, None))
            }
            protocol::UDP | protocol::TCP => Err((Reason::Local, Some(Problem::Port))),
            // No next header.
            59 => Err((Reason::Local, None)),
            _ => Err((Reason::Local, Some(Problem::Protocol))),
        }
    }

    /// Handles a packet for a multicast group or a link-local address.
    pub(super) fn handle_link_scope(
        &mut self,
        from: u16,
        now_ns: u64,
        read: &Ipv6,
        packet: &[u8],
        outbox: &mut Outbox,
    ) -> Result<(), Reason> {
        if read.source.is_multicast() {
            return Err(Reason::Source);
        }
        let interface = &self.interfaces[usize::from(from)];
        if !read.destination.is_multicast() && read.destination != interface.link_local() {
            return Err(Reason::Destination);
        }
        let upper = read.upper(packet)?;
        if upper.protocol != protocol::ICMPV6 || upper.is_fragment {
            return Err(if read.destination.is_multicast() { Reason::Destination } else { Reason::Local });
        }
        self.handle_icmpv6(from, now_ns, read, &packet[upper.at..read.total_len], outbox)
    }

    fn handle_icmpv6(
        &mut self,
        from: u16,
        now_ns: u64,
        read: &Ipv6,
        message: &[u8],
        outbox: &mut Outbox,
    ) -> Result<(), Reason> {
        if message.len() < 8 {
            return Err(Reason::Truncated);
        }
        if !icmp::sum_v6(message, read.source, read.destination).is_right() {
            return Err(Reason::Checksum);
        }
        match message[0] {
            v6::ECHO if message[1] == 0 && !read.destination.is_multicast() && is_host(read.source.into()) => {
                let mut answer = message.to_vec();
                answer[0] = v6::ECHO_REPLY;
                self.send_v6(now_ns, from, read.destination, read.source, answer, 64, outbox);
                Ok(())
            }
            v6::SOLICITATION | v6::ADVERTISEMENT => {
                if read.hop_limit != HOP_LIMIT {
                    return Err(Reason::Discovery);
                }
                let discovery = Discovery::read(message).ok_or(Reason::Discovery)?;
                if discovery.is_solicitation {
                    self.answer_solicitation(from, now_ns, read, discovery, outbox)
                } else {
                    if let Some(mac) = discovery.mac {
                        self.learn_neighbour(from, discovery.target.into(), MacAddress(mac), now_ns, false, outbox);
                    }
                    Ok(())
                }
            }
            _ if read.destination.is_multicast() => Err(Reason::Destination),
            _ => Err(Reason::Local),
        }
    }

    fn answer_solicitation(
        &mut self,
        from: u16,
        now_ns: u64,
        read: &Ipv6,
        solicitation: Discovery,
        outbox: &mut Outbox,
    ) -> Result<(), Reason> {
        // A host that has no address yet does not give its Ethernet address, and is answered by multicast to all nodes
        // (RFC 4861 7.2.4).
        let has_no_address = read.source.is_unspecified();
        if has_no_address && solicitation.mac.is_some() || !has_no_address && !is_host(read.source.into()) {
            return Err(Reason::Discovery);
        }
        let interface = &self.interfaces[usize::from(from)];
        if !interface.has(solicitation.target.into()) {
            return Ok(());
        }
        if let Some(mac) = solicitation.mac {
            self.learn_neighbour(from, read.source.into(), MacAddress(mac), now_ns, true, outbox);
        }
        let interface = &self.interfaces[usize::from(from)];
        let answer = Discovery {
            is_solicitation: false,
            is_router: true,
            is_solicited: !has_no_address,
            overrides: true,
            target: solicitation.target,
            mac: Some(interface.mac.0),
        };
        if has_no_address {
            let mac = MacAddress(ipv6::group_mac(ALL_NODES));
            push_neighbour(interface, from, ALL_NODES, mac, answer, outbox);
            self.counters.made += 1;
            return Ok(());
        }
        let (message, len) = answer.to_bytes();
        self.send_v6(now_ns, from, solicitation.target, read.source, message[..len].to_vec(), HOP_LIMIT, outbox);
        Ok(())
    }
}
