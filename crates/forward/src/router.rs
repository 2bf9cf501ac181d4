//! A router for IPv4 and IPv6. It takes bursts of frames and decides the fate of each. It does no I/O, and the time is
//! handed in.
//!
//! A burst goes through three steps:
//!
//! 1. The headers of every frame are read and checked.
//! 2. The destinations of all IPv4 packets are looked up together, and so are those of all IPv6 packets, in one of the
//!    [forms](crate::Form).
//! 3. Each frame is forwarded, answered or dropped.
//!
//! Frames of one flow leave in the order in which they arrived.

mod answers;
mod errors;
mod forward;
mod unfinished;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;
use sinew_fabric::MAX_BURST;
use sinew_fabric::frames::{ETHERNET_HEADER_LEN, LentFrame, MacAddress};

use crate::bucket::Bucket;
use crate::burst::{Application, Fate, Fates, Outbox};
use crate::counters::{Counters, Reason};
use crate::fib::{Fib, Hop};
use crate::form::Form;
use crate::headers::ipv4::Ipv4;
use crate::headers::ipv6::Ipv6;
use crate::headers::{self, ether_type};
use crate::interface::{self, Interface, InterfaceError};
use crate::neighbours::{DueAction, NeighbourLimits, Neighbours};
use crate::routes::Target;
use unfinished::UnfinishedChecksums;

/// Configuration of a router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterConfig {
    /// Form of the lookups.
    pub form: Form,
    /// Limits of the neighbour table.
    pub neighbours: NeighbourLimits,
    /// Rate of ICMP errors.
    pub errors: ErrorRate,
}

/// Limits on ICMP errors, over all receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRate {
    /// Errors per second in the long run.
    pub per_s: u32,
    /// Most errors in one burst.
    pub at_once: u32,
}

impl Default for ErrorRate {
    fn default() -> Self {
        Self { per_s: 100, at_once: 50 }
    }
}

/// The router; see the [module](self).
#[derive(Debug)]
pub struct Router {
    interfaces: Vec<Interface>,
    fib: Fib,
    /// For each hop of the tables that is another router, the index of the router's entry among the neighbours.
    gateways: Vec<u32>,
    neighbours: Neighbours,
    errors: Bucket,
    form: Form,
    counters: Counters,
    unfinished: UnfinishedChecksums,
    /// Identification of the last packet that the router fragmented itself.
    identification: u16,
}

/// Packets of a burst to be looked up, each with the index of its frame.
type Packets<P> = ArrayVec<(u16, P), MAX_BURST>;

/// Result of the first step for a frame.
enum FirstStep {
    V4(Ipv4),
    V6(Ipv6),
    /// The frame was for this interface and has been handled.
    Handled,
}

impl Router {
    /// A router with these interfaces, in the order of its ports, and with tables made for them.
    ///
    /// # Errors
    ///
    /// [`InterfaceError`] when [`interface::check`] refuses the interfaces.
    pub fn new(interfaces: Vec<Interface>, fib: Fib, config: RouterConfig) -> Result<Self, InterfaceError> {
        interface::check(&interfaces)?;
        let mut router = Self {
            unfinished: UnfinishedChecksums::new(interfaces.len()),
            interfaces,
            fib: Fib::new(&[], &[]).unwrap_or_else(|_| unreachable!("empty tables have room")),
            gateways: Vec::new(),
            neighbours: Neighbours::new(config.neighbours),
            errors: Bucket::new(config.errors.per_s, config.errors.at_once),
            form: config.form,
            counters: Counters::default(),
            identification: 0,
        };
        router.install(fib);
        Ok(router)
    }

    /// Replaces the tables with others made for the same interfaces. Returns the old ones, which take time to free.
    /// Known neighbours stay.
    pub fn install(&mut self, fib: Fib) -> Fib {
        let gateway = |hop: &Hop| match hop {
            Hop::To(Target::Via(to, gateway)) => Some((*to, *gateway)),
            _ => None,
        };
        self.gateways = self.neighbours.pin(fib.hops().iter().map(gateway));
        std::mem::replace(&mut self.fib, fib)
    }

    /// Its interfaces.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// The current tables.
    pub fn fib(&self) -> &Fib {
        &self.fib
    }

    /// Number of neighbours whose Ethernet address is known, and of frames that wait for an address.
    pub fn neighbours(&self) -> (usize, usize) {
        self.neighbours.len()
    }

    /// An interface at which TCP or UDP packets arrive with an unfinished checksum: the sender's kernel left it to a
    /// device that does not exist, as on virtual pairs. Each interface is reported once. The router forwards such
    /// packets, but their receivers drop them. It examines the first packet of each burst.
    #[inline]
    pub fn take_unfinished(&mut self) -> Option<u16> {
        self.unfinished.take_new()
    }

    /// Enters a neighbour, as if it had announced itself.
    pub fn learn(&mut self, interface: u16, address: IpAddr, mac: MacAddress, now_ns: u64, outbox: &mut Outbox) {
        self.learn_neighbour(interface, address, mac, now_ns, true, outbox);
    }

    /// The first step: reads a frame, and handles it if it needs no lookup.
    #[inline]
    fn read(&mut self, from: u16, now_ns: u64, frame: &[u8], outbox: &mut Outbox) -> Result<FirstStep, Reason> {
        let own = self.interfaces[usize::from(from)].mac;
        if frame.len() < ETHERNET_HEADER_LEN {
            return Err(Reason::Truncated);
        }
        let to = headers::destination(frame);
        let is_own = to == own;
        if !is_own && to.is_unicast() {
            return Err(Reason::NotForUs);
        }
        if !headers::source(frame).is_unicast() {
            return Err(Reason::Source);
        }
        let packet = &frame[ETHERNET_HEADER_LEN..];
        match headers::type_of(frame) {
            ether_type::IPV4 => {
                let read = Ipv4::read(packet)?;
                if !interface::is_host_v4(read.source) {
                    return Err(Reason::Source);
                }
                // Packets sent to the whole link are not forwarded (RFC 1812 5.3.4).
                if !is_own || !interface::is_host_v4(read.destination) {
                    return Err(Reason::Destination);
                }
                Ok(FirstStep::V4(read))
            }
            ether_type::IPV6 => {
                let read = Ipv6::read(packet)?;
                if read.destination.is_multicast() || read.destination.is_unicast_link_local() {
                    self.handle_link_scope(from, now_ns, &read, packet, outbox)?;
                    return Ok(FirstStep::Handled);
                }
                if !interface::is_host_v6(read.source) {
                    return Err(Reason::Source);
                }
                if !is_own || !interface::is_host_v6(read.destination) {
                    return Err(Reason::Destination);
                }
                Ok(FirstStep::V6(read))
            }
            ether_type::ARP => self.handle_arp(from, now_ns, packet, outbox).map(|()| FirstStep::Handled),
            _ => Err(Reason::Type),
        }
    }
}

impl Application for Router {
    fn process<L: LentFrame>(
        &mut self,
        from: u16,
        now_ns: u64,
        frames: &mut [L],
        fates: &mut Fates,
        outbox: &mut Outbox,
    ) {
        let mut v4 = Packets::<Ipv4>::new();
        let mut v6 = Packets::<Ipv6>::new();
        fates.clear();
        self.counters.received += frames.len() as u64;
        for (at, frame) in (0..).zip(frames.iter()) {
            fates.push(Fate::Drop);
            match self.read(from, now_ns, frame.bytes(), outbox) {
                Ok(FirstStep::V4(read)) => v4.push((at, read)),
                Ok(FirstStep::V6(read)) => v6.push((at, read)),
                Ok(FirstStep::Handled) => self.counters.handled_locally += 1,
                Err(reason) => self.counters.drop(reason),
            }
        }
        let mut hops = [None; MAX_BURST];
        if let Some((at, read)) = v4.first() {
            let packet = &frames[usize::from(*at)].bytes()[ETHERNET_HEADER_LEN..];
            self.unfinished.count(from, unfinished::of_v4(read, packet));
            let addresses: ArrayVec<Ipv4Addr, MAX_BURST> = v4.iter().map(|(_, read)| read.destination).collect();
            self.fib.look_up_v4(self.form, &addresses, &mut hops[..addresses.len()]);
            for ((at, read), hop) in v4.iter().zip(hops) {
                let at = usize::from(*at);
                fates[at] = self.decide(from, now_ns, &mut frames[at], read, hop, outbox);
            }
        }
        if let Some((at, read)) = v6.first() {
            let packet = &frames[usize::from(*at)].bytes()[ETHERNET_HEADER_LEN..];
            self.unfinished.count(from, unfinished::of_v6(read, packet));
            let addresses: ArrayVec<Ipv6Addr, MAX_BURST> = v6.iter().map(|(_, read)| read.destination).collect();
            self.fib.look_up_v6(self.form, &addresses, &mut hops[..addresses.len()]);
            for ((at, read), hop) in v6.iter().zip(hops) {
                let at = usize::from(*at);
                fates[at] = self.decide(from, now_ns, &mut frames[at], read, hop, outbox);
            }
        }
        // Solicits the unknown neighbours of this burst at once.
        self.tick(now_ns, outbox);
    }

    fn tick(&mut self, now_ns: u64, outbox: &mut Outbox) {
        let mut given_up = Vec::new();
        let Self { neighbours, interfaces, counters, .. } = self;
        neighbours.tick(now_ns, |due| match due {
            DueAction::Solicit(to, address, mac) => {
                answers::solicit(&interfaces[usize::from(to)], to, address, mac, outbox);
                counters.made += 1;
            }
            DueAction::GiveUp(frames) => given_up.extend(frames),
        });
        for frame in given_up {
            self.drop_unresolved(now_ns, &frame, outbox);
        }
        for _ in 0..self.neighbours.take_displaced() {
            self.counters.drop(Reason::QueueFull);
        }
    }

    fn next_ns(&self) -> Option<u64> {
        self.neighbours.next_ns()
    }

    fn set_form(&mut self, form: Form) {
        self.form = form;
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
