//! The third step: what becomes of a packet whose destination was looked up.

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

/// The next link, and who is there.
pub(super) struct Next {
    pub to: u16,
    neighbour: u32,
}

impl Next {
    pub fn new(to: u16, neighbour: u32) -> Self {
        Self { to, neighbour }
    }
}

/// What a route says.
pub(super) enum Course {
    Local,
    Next(Next),
    /// Nowhere, and what the sender is told, if anything.
    No(Option<Problem>),
}

impl Router {
    #[inline(always)]
    pub(super) fn course(&mut self, hop: Option<usize>, destination: IpAddr) -> Course {
        let Some(number) = hop else { return Course::No(Some(Problem::NoRoute)) };
        match self.fib.hops()[number] {
            Hop::Local => Course::Local,
            Hop::To(Target::Via(to, _)) => Course::Next(Next { to, neighbour: self.gateways[number] }),
            Hop::To(Target::Link(to)) => {
                let neighbour = self.neighbours.find(to, destination);
                Course::Next(Next { to, neighbour })
            }
            Hop::To(Target::Discard) => Course::No(Some(Problem::Prohibited)),
            Hop::Reserved => Course::No(None),
        }
    }

    #[inline(always)]
    pub(super) fn decide_v4<L: LentFrame>(
        &mut self,
        from: u16,
        now_ns: u64,
        frame: &mut L,
        read: &Ipv4,
        hop: Option<u32>,
        outbox: &mut Outbox,
    ) -> Fate {
        let next = match self.course(hop.map(|hop| hop as usize), read.destination.into()) {
            Course::Next(next) => next,
            Course::Local => {
                match self.take_v4(now_ns, read, &frame.bytes()[ETHERNET_HEADER_LEN..], outbox) {
                    Ok(()) => self.counters.taken += 1,
                    Err((reason, problem)) => {
                        let packet = &frame.bytes()[ETHERNET_HEADER_LEN..];
                        self.refuse_v4(from, now_ns, read, packet, reason, problem, outbox);
                    }
                }
                return Fate::Drop;
            }
            Course::No(problem) => {
                let reason = if problem == Some(Problem::NoRoute) { Reason::NoRoute } else { Reason::Prohibited };
                let packet = &frame.bytes()[ETHERNET_HEADER_LEN..];
                self.refuse_v4(from, now_ns, read, packet, reason, problem, outbox);
                return Fate::Drop;
            }
        };
        if read.ttl <= 1 {
            let packet = &frame.bytes()[ETHERNET_HEADER_LEN..];
            self.refuse_v4(from, now_ns, read, packet, Reason::TimeToLive, Some(Problem::TimeExceeded), outbox);
            return Fate::Drop;
        }
        let mtu = self.interfaces[usize::from(next.to)].mtu;
        if read.total_len > mtu {
            self.cut(from, now_ns, frame.bytes(), read, &next, outbox);
            return Fate::Drop;
        }
        ipv4::pass_on(&mut frame.bytes_mut()[ETHERNET_HEADER_LEN..]);
        self.send(
            now_ns,
            frame,
            read.total_len,
            &next,
            |router, bytes, outbox, reason| {
                let packet = &bytes[ETHERNET_HEADER_LEN..];
                let problem = (reason == Reason::Neighbour).then_some(Problem::HostUnreachable);
                router.refuse_v4(from, now_ns, read, packet, reason, problem, outbox);
            },
            outbox,
        )
    }

    #[inline(always)]
    pub(super) fn decide_v6<L: LentFrame>(
        &mut self,
        from: u16,
        now_ns: u64,
        frame: &mut L,
        read: &Ipv6,
        hop: Option<u32>,
        outbox: &mut Outbox,
    ) -> Fate {
        let next = match self.course(hop.map(|hop| hop as usize), read.destination.into()) {
            Course::Next(next) => next,
            Course::Local => {
                match self.take_v6(from, now_ns, read, &frame.bytes()[ETHERNET_HEADER_LEN..], outbox) {
                    Ok(()) => self.counters.taken += 1,
                    Err((reason, problem)) => {
                        let packet = &frame.bytes()[ETHERNET_HEADER_LEN..];
                        self.refuse_v6(from, now_ns, read, packet, reason, problem, outbox);
                    }
                }
                return Fate::Drop;
            }
            Course::No(problem) => {
                let reason = if problem == Some(Problem::NoRoute) { Reason::NoRoute } else { Reason::Prohibited };
                let packet = &frame.bytes()[ETHERNET_HEADER_LEN..];
                self.refuse_v6(from, now_ns, read, packet, reason, problem, outbox);
                return Fate::Drop;
            }
        };
        // Its answer would not find the way back (RFC 4291 2.5.6).
        if read.source.is_unicast_link_local() {
            self.counters.drop(Reason::Source);
            return Fate::Drop;
        }
        let mtu = self.interfaces[usize::from(next.to)].mtu;
        let refused = if read.hop_limit <= 1 {
            Some((Reason::TimeToLive, Problem::TimeExceeded))
        } else if read.total_len > mtu {
            Some((Reason::TooBig, Problem::TooBig { mtu }))
        } else {
            None
        };
        if let Some((reason, problem)) = refused {
            let packet = &frame.bytes()[ETHERNET_HEADER_LEN..];
            self.refuse_v6(from, now_ns, read, packet, reason, Some(problem), outbox);
            return Fate::Drop;
        }
        ipv6::pass_on(&mut frame.bytes_mut()[ETHERNET_HEADER_LEN..]);
        self.send(
            now_ns,
            frame,
            read.total_len,
            &next,
            |router, bytes, outbox, reason| {
                let packet = &bytes[ETHERNET_HEADER_LEN..];
                let problem = (reason == Reason::Neighbour).then_some(Problem::HostUnreachable);
                router.refuse_v6(from, now_ns, read, packet, reason, problem, outbox);
            },
            outbox,
        )
    }

    /// Sends a frame to the next hop, or keeps it until that is known.
    #[inline(always)]
    fn send<L: LentFrame>(
        &mut self,
        now_ns: u64,
        frame: &mut L,
        total_len: usize,
        next: &Next,
        refuse: impl FnOnce(&mut Self, &[u8], &mut Outbox, Reason),
        outbox: &mut Outbox,
    ) -> Fate {
        let own = self.interfaces[usize::from(next.to)].mac;
        let Some(mac) = self.neighbours.mac(next.neighbour, now_ns) else {
            headers::address(frame.bytes_mut(), MacAddress::default(), own);
            let bytes = frame.bytes();
            if let Err(reason) =
                self.neighbours.wait(next.neighbour, now_ns, bytes[..ETHERNET_HEADER_LEN + total_len].to_vec())
            {
                refuse(self, bytes, outbox, reason);
            }
            return Fate::Drop;
        };
        let bytes = frame.bytes_mut();
        headers::address(bytes, mac, own);
        self.counters.forwarded += 1;
        // What pads a frame need not fit.
        if bytes.len() > self.interfaces[usize::from(next.to)].frame_len_max() {
            return Fate::Shorten(next.to, (ETHERNET_HEADER_LEN + total_len) as u16);
        }
        Fate::Forward(next.to)
    }

    /// Sends a packet that is too long for the next link in pieces, if it may be cut.
    #[cold]
    fn cut(&mut self, from: u16, now_ns: u64, frame: &[u8], read: &Ipv4, next: &Next, outbox: &mut Outbox) {
        let mtu = self.interfaces[usize::from(next.to)].mtu;
        let packet = &frame[ETHERNET_HEADER_LEN..];
        if read.fragment & ipv4::DONT_FRAGMENT != 0 {
            self.refuse_v4(from, now_ns, read, packet, Reason::TooBig, Some(Problem::TooBig { mtu }), outbox);
            return;
        }
        let mut passed_on = packet[..read.total_len].to_vec();
        ipv4::pass_on(&mut passed_on);
        ipv4::fragment(&passed_on, read, mtu, |header, piece| {
            self.emit(now_ns, next, ether_type::IPV4, &[header, piece], outbox);
        });
    }

    /// Sends a packet of the router's own making to a next hop.
    pub(super) fn emit(&mut self, now_ns: u64, next: &Next, ether_type: u16, pieces: &[&[u8]], outbox: &mut Outbox) {
        let own = self.interfaces[usize::from(next.to)].mac;
        self.counters.made += 1;
        match self.neighbours.mac(next.neighbour, now_ns) {
            Some(mac) => {
                let header = headers::ethernet(mac, own, ether_type);
                outbox.push(next.to, &[&[&header[..]], pieces].concat());
            }
            None => {
                let header = headers::ethernet(MacAddress::default(), own, ether_type);
                let frame = [&[&header[..]], pieces].concat().concat();
                if let Err(reason) = self.neighbours.wait(next.neighbour, now_ns, frame) {
                    self.counters.drop(reason);
                }
            }
        }
    }
}
