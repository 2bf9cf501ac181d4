//! The forwarding tables of a router: built as a whole from interfaces and routes, and never changed.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sinew_store::lookup::RouteError;
use sinew_store::lookup::ipv4::Ipv4Table;
use sinew_store::lookup::ipv6::Ipv6Table;

use crate::form::{Form, look_up};
use crate::interface::{Interface, Network};
use crate::routes::{LineError, Route, Target};

/// Location of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Hop {
    /// The router itself.
    Local,
    /// The route's target.
    To(Target),
    /// Nowhere: it is the first or last address of a network, and senders are not told about packets to it (RFC 1122
    /// 3.2.2).
    Reserved,
}

/// Tables of both families. Their next hops are indices into one list.
#[derive(Debug)]
pub struct Fib {
    v4: Option<Ipv4Table>,
    v6: Option<Ipv6Table>,
    hops: Vec<Hop>,
    routes: usize,
}

/// Upper bound on the groups that a prefix of this length needs.
fn group_count(len: u8) -> usize {
    usize::from(len.saturating_sub(24)).div_ceil(8)
}

/// An entry to be added.
struct Entry {
    prefix: Network,
    hop: Hop,
    line: usize,
}

impl Fib {
    /// Builds the tables of a router with these interfaces and routes. The networks and addresses of the interfaces are
    /// entered, too. A route takes precedence over the network of an interface with the same prefix.
    ///
    /// # Errors
    ///
    /// [`LineError`], with the line of a route for which the tables have no room.
    pub fn new(interfaces: &[Interface], routes: &[Route]) -> Result<Self, LineError> {
        let mut entries = Vec::new();
        for (at, interface) in (0..).zip(interfaces) {
            for network in &interface.networks {
                let link = Hop::To(Target::Link(at));
                entries.push(Entry {
                    prefix: Network { address: network.prefix(), len: network.len },
                    hop: link,
                    line: 0,
                });
            }
        }
        let configured = |route: &Route| Entry { prefix: route.prefix, hop: Hop::To(route.target), line: route.line };
        entries.extend(routes.iter().map(configured));
        // Reserved addresses come behind the routes, so that no route replaces them.
        for network in interfaces.iter().flat_map(|interface| &interface.networks) {
            let whole = |address: IpAddr| Network { address, len: if address.is_ipv4() { 32 } else { 128 } };
            let reserved =
                network.reserved().map(|edge| Entry { prefix: whole(edge.into()), hop: Hop::Reserved, line: 0 });
            entries.extend(reserved);
        }
        for network in interfaces.iter().flat_map(|interface| &interface.networks) {
            let len = if network.address.is_ipv4() { 32 } else { 128 };
            entries.push(Entry { prefix: Network { address: network.address, len }, hop: Hop::Local, line: 0 });
        }
        Self::from_entries(&entries, routes.len())
    }

    fn from_entries(entries: &[Entry], routes: usize) -> Result<Self, LineError> {
        let room = |is_v4: bool| {
            let family = entries.iter().filter(|entry| entry.prefix.address.is_ipv4() == is_v4);
            family.fold(None, |sum: Option<usize>, entry| Some(sum.unwrap_or(0) + group_count(entry.prefix.len)))
        };
        let groups_max = (1 << 22) - (1 << 16);
        let none = |error: RouteError| LineError { line: 0, problem: error.to_string() };
        let v4 = room(true).map(|groups| Ipv4Table::new(groups.min(groups_max))).transpose().map_err(none)?;
        let v6 = room(false).map(|groups| Ipv6Table::new(groups.min(groups_max))).transpose().map_err(none)?;
        let mut fib = Self { v4, v6, hops: Vec::new(), routes };
        let mut numbers = HashMap::new();
        // Short prefixes first: their wide ranges have no groups yet. The sort is stable, so equal prefixes keep their
        // order.
        let mut order: Vec<&Entry> = entries.iter().collect();
        order.sort_by_key(|entry| entry.prefix.len);
        for Entry { prefix, hop, line } in order {
            let next = numbers.len();
            let number = *numbers.entry(*hop).or_insert(next);
            if number == next {
                fib.hops.push(*hop);
            }
            // The table refuses a number that exceeds its limit.
            let number = number.min(u32::MAX as usize) as u32;
            let stored = match prefix.address {
                IpAddr::V4(address) => fib.v4.as_mut().map(|table| table.insert(address, prefix.len, number)),
                IpAddr::V6(address) => fib.v6.as_mut().map(|table| table.insert(address, prefix.len, number)),
            };
            stored.transpose().map_err(|error| LineError { line: *line, problem: error.to_string() })?;
        }
        Ok(fib)
    }

    /// Number of routes, without the entries that follow from interfaces.
    pub fn routes(&self) -> usize {
        self.routes
    }

    /// Size of the tables in bytes.
    pub fn bytes(&self) -> usize {
        let groups = self.v4.as_ref().map(Ipv4Table::groups).into_iter().chain(self.v6.as_ref().map(Ipv6Table::groups));
        groups.map(|groups| (64 << 20) + groups * 1024).sum()
    }

    pub(crate) fn hops(&self) -> &[Hop] {
        &self.hops
    }

    #[inline(always)]
    pub(crate) fn look_up_v4(&self, form: Form, addresses: &[Ipv4Addr], found: &mut [Option<u32>]) {
        match &self.v4 {
            Some(table) => look_up!(table, form, addresses, found),
            None => found.fill(None),
        }
    }

    #[inline(always)]
    pub(crate) fn look_up_v6(&self, form: Form, addresses: &[Ipv6Addr], found: &mut [Option<u32>]) {
        match &self.v6 {
            Some(table) => look_up!(table, form, addresses, found),
            None => found.fill(None),
        }
    }

    /// The hop of one destination, and that hop's index.
    pub(crate) fn hop(&self, address: IpAddr) -> Option<(usize, Hop)> {
        let number = match address {
            IpAddr::V4(address) => self.v4.as_ref()?.get(address)?,
            IpAddr::V6(address) => self.v6.as_ref()?.get(address)?,
        } as usize;
        Some((number, *self.hops.get(number)?))
    }
}
