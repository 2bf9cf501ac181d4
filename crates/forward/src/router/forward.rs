//! The third step: deciding the fate of a packet whose destination was looked up.

use std::net::IpAddr;

use sinew_fabric::frames::{ETHERNET_HEADER_LEN, LentFrame, MacAddress};

use super::Router;
use crate::burst::{Fate, Outbox};
use crate::counters::Reason;
use crate::fib::Hop;
use crate::headers::icmp::Problem;
use crate::headers::ipv4::{self, Ipv4};
use crate::headers::ipv6::{self, Ipv6};
use crate::headers::{self, ether_type};
use crate::routes::Target;

/// The next link, and the neighbour on it.
pub(super) struct NextHop {
    pub to: u16,
    neighbour: u32,
}

impl NextHop {
    pub fn new(to: u16, neighbour: u32) -> Self {
        Self { to, neighbour }
    }
}

/// Decision that follows from a route.
pub(super) enum RouteDecision {
    Local,
    Next(NextHop),
    /// Nowhere. The sender is told the problem, if there is one.
    Unroutable(Option<Problem>),
}

/// The header of a packet of either IP version, and the operations that differ between the versions.
pub(super) trait Header {
    fn destination(&self) -> IpAddr;

    /// Bytes of the packet, header included.
    fn total_len(&self) -> usize;

    /// Routers that the packet may still pass, including this one.
    fn hops_left(&self) -> u8;

    /// Whether its source address is valid on one link only, so that no answer could find its way back.
    fn is_link_scope(&self) -> bool;

    /// Decrements the number of routers that a packet may pass.
    fn decrement_hops(packet: &mut [u8]);

    /// Handles a packet for the router itself.
    fn deliver_locally(
        &self,
        router: &mut Router,
        from: u16,
        now_ns: u64,
        packet: &[u8],
        outbox: &mut Outbox,
    ) -> Result<(), (Reason, Option<Problem>)>;

    /// Counts a dropped packet, and sends its sender an error if there is a problem to report.
    #[expect(clippy::too_many_arguments, reason = "what is known of one packet")]
    fn refuse(
        &self,
        router: &mut Router,
        from: u16,
        now_ns: u64,
        packet: &[u8],
        reason: Reason,
        problem: Option<Problem>,
        outbox: &mut Outbox,
    );

    /// Handles a packet longer than the next link's MTU.
    fn exceed_mtu(
        &self,
        router: &mut Router,
        from: u16,
        now_ns: u64,
        packet: &[u8],
        next: &NextHop,
        outbox: &mut Outbox,
    );
}

impl Header for Ipv4 {
    #[inline(always)]
    fn destination(&self) -> IpAddr {
        self.destination.into()
    }

    #[inline(always)]
    fn total_len(&self) -> usize {
        self.total_len
    }

    #[inline(always)]
    fn hops_left(&self) -> u8 {
        self.ttl
    }

    #[inline(always)]
    fn is_link_scope(&self) -> bool {
        false
    }

    #[inline(always)]
    fn decrement_hops(packet: &mut [u8]) {
        ipv4::decrement_ttl(packet);
    }

    fn deliver_locally(
        &self,
        router: &mut Router,
        _: u16,
        now_ns: u64,
        packet: &[u8],
        outbox: &mut Outbox,
    ) -> Result<(), (Reason, Option<Problem>)> {
        router.handle_v4(now_ns, self, packet, outbox)
    }

    fn refuse(
        &self,
        router: &mut Router,
        from: u16,
        now_ns: u64,
        packet: &[u8],
        reason: Reason,
        problem: Option<Problem>,
        outbox: &mut Outbox,
    ) {
        router.refuse_v4(from, now_ns, self, packet, reason, problem, outbox);
    }

    /// Forwards it in fragments unless it forbids that.
    #[cold]
    fn exceed_mtu(
        &self,
        router: &mut Router,
        from: u16,
        now_ns: u64,
        packet: &[u8],
        next: &NextHop,
        outbox: &mut Outbox,
    ) {
        let mtu = router.interfaces[usize::from(next.to)].mtu;
        if self.fragment & ipv4::DONT_FRAGMENT != 0 {
            router.refuse_v4(from, now_ns, self, packet, Reason::TooBig, Some(Problem::TooBig { mtu }), outbox);
            return;
        }
        let mut passed_on = packet[..self.total_len].to_vec();
        ipv4::decrement_ttl(&mut passed_on);
        ipv4::fragment(&passed_on, self, mtu, |header, piece| {
            router.emit(now_ns, next, ether_type::IPV4, &[header, piece], outbox);
        });
    }
}

impl Header for Ipv6 {
    #[inline(always)]
    fn destination(&self) -> IpAddr {
        self.destination.into()
    }

    #[inline(always)]
    fn total_len(&self) -> usize {
        self.total_len
    }

    #[inline(always)]
    fn hops_left(&self) -> u8 {
        self.hop_limit
    }

    /// See RFC 4291, section 2.5.6.
    #[inline(always)]
    fn is_link_scope(&self) -> bool {
        self.source.is_unicast_link_local()
    }

    #[inline(always)]
    fn decrement_hops(packet: &mut [u8]) {
        ipv6::decrement_hop_limit(packet);
    }

    fn deliver_locally(
        &self,
        router: &mut Router,
        from: u16,
        now_ns: u64,
        packet: &[u8],
        outbox: &mut Outbox,
    ) -> Result<(), (Reason, Option<Problem>)> {
        router.handle_v6(from, now_ns, self, packet, outbox)
    }

    fn refuse(
        &self,
        router: &mut Router,
        from: u16,
        now_ns: u64,
        packet: &[u8],
        reason: Reason,
        problem: Option<Problem>,
        outbox: &mut Outbox,
    ) {
        router.refuse_v6(from, now_ns, self, packet, reason, problem, outbox);
    }

    /// Refuses it: only the sender may fragment an IPv6 packet.
    #[cold]
    fn exceed_mtu(
        &self,
        router: &mut Router,
        from: u16,
        now_ns: u64,
        packet: &[u8],
        next: &NextHop,
        outbox: &mut Outbox,
    ) {
        let problem = Some(Problem::TooBig { mtu: router.interfaces[usize::from(next.to)].mtu });
        router.refuse_v6(from, now_ns, self, packet, Reason::TooBig, problem, outbox);
    }
}

/// The packet in a frame.
fn packet_of(frame: &impl LentFrame) -> &[u8] {
    &frame.bytes()[ETHERNET_HEADER_LEN..]
}

impl Router {
    #[inline(always)]
    pub(super) fn route(&mut self, hop: Option<usize>, destination: IpAddr) -> RouteDecision {
        let Some(number) = hop else { return RouteDecision::Unroutable(Some(Problem::NoRoute)) };
        match self.fib.hops()[number] {
            Hop::Local => RouteDecision::Local,
            Hop::To(Target::Via(to, _)) => RouteDecision::Next(NextHop { to, neighbour: self.gateways[number] }),
            Hop::To(Target::Link(to)) => {
                let neighbour = self.neighbours.find_or_add(to, destination);
                RouteDecision::Next(NextHop { to, neighbour })
            }
            Hop::To(Target::Discard) => RouteDecision::Unroutable(Some(Problem::Prohibited)),
            Hop::Reserved => RouteDecision::Unroutable(None),
        }
    }

    /// Decides the fate of a packet whose destination was looked up.
    #[inline(always)]
    pub(super) fn decide<H: Header, L: LentFrame>(
        &mut self,
        from: u16,
        now_ns: u64,
        frame: &mut L,
        read: &H,
        hop: Option<u32>,
        outbox: &mut Outbox,
    ) -> Fate {
        let next = match self.route(hop.map(|hop| hop as usize), read.destination()) {
            RouteDecision::Next(next) => next,
            RouteDecision::Local => {
                match read.deliver_locally(self, from, now_ns, packet_of(frame), outbox) {
                    Ok(()) => self.counters.handled_locally += 1,
                    Err((reason, problem)) => {
                        read.refuse(self, from, now_ns, packet_of(frame), reason, problem, outbox);
                    }
                }
                return Fate::Drop;
            }
            RouteDecision::Unroutable(problem) => {
                let reason = if problem == Some(Problem::NoRoute) { Reason::NoRoute } else { Reason::Prohibited };
                read.refuse(self, from, now_ns, packet_of(frame), reason, problem, outbox);
                return Fate::Drop;
            }
        };
        if read.is_link_scope() {
            self.counters.drop(Reason::Source);
            return Fate::Drop;
        }
        if read.hops_left() <= 1 {
            let problem = Some(Problem::TimeExceeded);
            read.refuse(self, from, now_ns, packet_of(frame), Reason::TimeToLive, problem, outbox);
            return Fate::Drop;
        }
        if read.total_len() > self.interfaces[usize::from(next.to)].mtu {
            read.exceed_mtu(self, from, now_ns, packet_of(frame), &next, outbox);
            return Fate::Drop;
        }
        H::decrement_hops(&mut frame.bytes_mut()[ETHERNET_HEADER_LEN..]);
        self.send(from, now_ns, frame, read, &next, outbox)
    }

    /// Sends a frame to the next hop, or keeps it until the neighbour's address is known.
    #[inline(always)]
    fn send<H: Header, L: LentFrame>(
        &mut self,
        from: u16,
        now_ns: u64,
        frame: &mut L,
        read: &H,
        next: &NextHop,
        outbox: &mut Outbox,
    ) -> Fate {
        let total_len = read.total_len();
        let own_mac = self.interfaces[usize::from(next.to)].mac;
        let Some(mac) = self.neighbours.mac(next.neighbour, now_ns) else {
            headers::set_addresses(frame.bytes_mut(), MacAddress::default(), own_mac);
            let bytes = frame.bytes();
            if let Err(reason) =
                self.neighbours.enqueue(next.neighbour, now_ns, bytes[..ETHERNET_HEADER_LEN + total_len].to_vec())
            {
                let problem = (reason == Reason::Neighbour).then_some(Problem::HostUnreachable);
                read.refuse(self, from, now_ns, &bytes[ETHERNET_HEADER_LEN..], reason, problem, outbox);
            }
            return Fate::Drop;
        };
        let bytes = frame.bytes_mut();
        headers::set_addresses(bytes, mac, own_mac);
        self.counters.forwarded += 1;
        // A frame can be too long by its padding alone, which is cut off.
        if bytes.len() > self.interfaces[usize::from(next.to)].frame_len_max() {
            return Fate::Shorten(next.to, (ETHERNET_HEADER_LEN + total_len) as u16);
        }
        Fate::Forward(next.to)
    }

    /// Sends a packet of the router's own to a next hop.
    pub(super) fn emit(&mut self, now_ns: u64, next: &NextHop, ether_type: u16, pieces: &[&[u8]], outbox: &mut Outbox) {
        let own_mac = self.interfaces[usize::from(next.to)].mac;
        self.counters.made += 1;
        match self.neighbours.mac(next.neighbour, now_ns) {
            Some(mac) => {
                let header = headers::ethernet(mac, own_mac, ether_type);
                outbox.push(next.to, &[&[&header[..]], pieces].concat());
            }
            None => {
                let header = headers::ethernet(MacAddress::default(), own_mac, ether_type);
                let frame = [&[&header[..]], pieces].concat().concat();
                if let Err(reason) = self.neighbours.enqueue(next.neighbour, now_ns, frame) {
                    self.counters.drop(reason);
                }
            }
        }
    }
}
