//! A router of IPv4 and IPv6: bursts of frames in, and what becomes of each out. No I/O, and the time is handed in.
//!
//! A burst goes through in three steps: every frame's headers are read and checked; all destinations are looked up, in one of the [forms](crate::Form); each
//! frame is sent on, answered or dropped. So the look-ups of a burst are together, whatever the frames are, and frames leave in the order in which they came.

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
use crate::neighbours::{Due, NeighbourLimits, Neighbours};
use crate::routes::Target;
use unfinished::Unfinished;

/// How a router works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterConfig {
    /// How destinations are looked up.
    pub form: Form,
    /// What is kept of neighbours.
    pub neighbours: NeighbourLimits,
    /// How often errors are sent.
    pub errors: ErrorRate,
}

/// How often errors are sent, to all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRate {
    /// In the long run.
    pub per_s: u32,
    /// At once.
    pub at_once: u32,
}

impl Default for ErrorRate {
    fn default() -> Self {
        Self { per_s: 100, at_once: 50 }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Router {
    interfaces: Vec<Interface>,
    fib: Fib,
    /// Of each hop of the tables that is another router, its place among the neighbours.
    gateways: Vec<u32>,
    neighbours: Neighbours,
    errors: Bucket,
    form: Form,
    counters: Counters,
    unfinished: Unfinished,
    /// Of the next packet that is cut into pieces.
    identification: u16,
}

/// Packets of a burst that are looked up, with the frames that they lie in.
type Packets<P> = ArrayVec<(u16, P), MAX_BURST>;

/// What the first step finds in a frame.
enum Read {
    V4(Ipv4),
    V6(Ipv6),
    /// It was for this interface, and is done.
    Taken,
}

impl Router {
    /// A router with these interfaces, in the order of its ports, and tables made for them.
    ///
    /// # Errors
    ///
    /// [`InterfaceError`].
    pub fn new(interfaces: Vec<Interface>, fib: Fib, config: RouterConfig) -> Result<Self, InterfaceError> {
        interface::check(&interfaces)?;
        let mut router = Self {
            unfinished: Unfinished::new(interfaces.len()),
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

    /// Goes on with other tables, made for the same interfaces; returns the old ones, which take time to be freed. What is known of neighbours stays.
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

    /// Its tables.
    pub fn fib(&self) -> &Fib {
        &self.fib
    }

    /// Neighbours whose Ethernet address is known, and frames that wait for others'.
    pub fn neighbours(&self) -> (usize, usize) {
        self.neighbours.len()
    }

    /// An interface at which packets of TCP or UDP come whose checksum their sender's kernel left to a device that is none, as on virtual pairs; each interface
    /// once. The router passes them on, and whoever gets them drops them. It looks at the first packet of each burst.
    #[inline]
    pub fn take_unfinished(&mut self) -> Option<u16> {
        self.unfinished.take()
    }

    /// Makes a neighbour known, as if it had said who it is.
    pub fn learn(&mut self, interface: u16, address: IpAddr, mac: MacAddress, now_ns: u64, outbox: &mut Outbox) {
        self.hear(interface, address, mac, now_ns, true, outbox);
    }

    /// The first step: reads a frame, and does what needs no look-up.
    #[inline]
    fn read(&mut self, from: u16, now_ns: u64, frame: &[u8], outbox: &mut Outbox) -> Result<Read, Reason> {
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
                // What all of a link heard is not forwarded (RFC 1812 5.3.4).
                if !is_own || !interface::is_host_v4(read.destination) {
                    return Err(Reason::Destination);
                }
                Ok(Read::V4(read))
            }
            ether_type::IPV6 => {
                let read = Ipv6::read(packet)?;
                if read.destination.is_multicast() || read.destination.is_unicast_link_local() {
                    self.take_of_link(from, now_ns, &read, packet, outbox)?;
                    return Ok(Read::Taken);
                }
                if !interface::is_host_v6(read.source) {
                    return Err(Reason::Source);
                }
                if !is_own || !interface::is_host_v6(read.destination) {
                    return Err(Reason::Destination);
                }
                Ok(Read::V6(read))
            }
            ether_type::ARP => self.take_arp(from, now_ns, packet, outbox).map(|()| Read::Taken),
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
                Ok(Read::V4(read)) => v4.push((at, read)),
                Ok(Read::V6(read)) => v6.push((at, read)),
                Ok(Read::Taken) => self.counters.taken += 1,
                Err(reason) => self.counters.drop(reason),
            }
        }
        let mut hops = [None; MAX_BURST];
        if let Some((at, read)) = v4.first() {
            let packet = &frames[usize::from(*at)].bytes()[ETHERNET_HEADER_LEN..];
            self.unfinished.note(from, unfinished::of_v4(read, packet));
            let addresses: ArrayVec<Ipv4Addr, MAX_BURST> = v4.iter().map(|(_, read)| read.destination).collect();
            self.fib.look_up_v4(self.form, &addresses, &mut hops[..addresses.len()]);
            for ((at, read), hop) in v4.iter().zip(hops) {
                let at = usize::from(*at);
                fates[at] = self.decide(from, now_ns, &mut frames[at], read, hop, outbox);
            }
        }
        if let Some((at, read)) = v6.first() {
            let packet = &frames[usize::from(*at)].bytes()[ETHERNET_HEADER_LEN..];
            self.unfinished.note(from, unfinished::of_v6(read, packet));
            let addresses: ArrayVec<Ipv6Addr, MAX_BURST> = v6.iter().map(|(_, read)| read.destination).collect();
            self.fib.look_up_v6(self.form, &addresses, &mut hops[..addresses.len()]);
            for ((at, read), hop) in v6.iter().zip(hops) {
                let at = usize::from(*at);
                fates[at] = self.decide(from, now_ns, &mut frames[at], read, hop, outbox);
            }
        }
        // Who was not known is asked for at once.
        self.tick(now_ns, outbox);
    }

    fn tick(&mut self, now_ns: u64, outbox: &mut Outbox) {
        let mut given_up = Vec::new();
        let Self { neighbours, interfaces, counters, .. } = self;
        neighbours.tick(now_ns, |due| match due {
            Due::Ask(to, address, mac) => {
                answers::ask(&interfaces[usize::from(to)], to, address, mac, outbox);
                counters.made += 1;
            }
            Due::GiveUp(frames) => given_up.extend(frames),
        });
        for frame in given_up {
            self.give_up(now_ns, &frame, outbox);
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
