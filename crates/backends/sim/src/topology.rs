//! Description of a simulated network: hosts, switches, and the links between them.

use std::collections::BTreeMap;

/// A host, by its index in [`Topology::hosts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub usize);

/// A switch, by its index in [`Topology::switches`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchId(pub usize);

/// A link, by its index in [`Topology::links`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub usize);

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeId {
    /// A host.
    Host(HostId),
    /// A switch.
    Switch(SwitchId),
}

/// A host: the latencies between its software and the link.
#[derive(Clone, Debug, PartialEq)]
pub struct HostSpec {
    /// Its name, which no other node has.
    pub name: String,
    /// Time from the doorbell to the link, in nanoseconds.
    pub transmit_latency_ns: u64,
    /// Time from the link to the receive queue, in nanoseconds.
    pub receive_latency_ns: u64,
}

/// Sharing of a switch's memory among its output ports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Buffer {
    /// All ports share `bytes`: a port may hold up to `alpha` times the free bytes (dynamic thresholds).
    Shared {
        /// Bytes of all ports together.
        bytes: u64,
        /// Multiple of the free bytes: 8 lets one port alone have eight ninths of the memory.
        alpha: f64,
    },
    /// Each port has `bytes` for itself.
    PerPort {
        /// Bytes of one port.
        bytes: u64,
    },
}

/// Explicit congestion notification: a packet that meets a queue is marked with a probability that rises with the
/// queue's length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ecn {
    /// Below this many queued bytes, no packet is marked.
    pub min_bytes: u64,
    /// From this many queued bytes on, every packet is marked.
    pub max_bytes: u64,
    /// Probability of a mark just below `max_bytes`.
    pub probability: f64,
}

/// Priority flow control: the sender on a link is asked to pause while too many of its bytes wait in the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Once this many bytes from one input port wait, its sender is asked to pause.
    pub off_bytes: u64,
    /// Once no more than this many wait, the sender may go on.
    pub on_bytes: u64,
}

/// A switch.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchSpec {
    /// Its name, which no other node has.
    pub name: String,
    /// Time from a packet's head at an input port to its head at a free output port, in nanoseconds.
    pub latency_ns: u64,
    /// Its memory.
    pub buffer: Buffer,
    /// Its marking of packets, if it marks any.
    pub ecn: Option<Ecn>,
    /// Its requests to senders to pause, if it makes any.
    pub pause: Option<Pause>,
}

/// A full-duplex link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// The nodes that it joins.
    pub ends: [NodeId; 2],
    /// Rate in each direction, in gigabits per second.
    pub rate_gbps: f64,
    /// Delay from one end to the other, in nanoseconds.
    pub delay_ns: u64,
    /// Bytes of the largest packet, without its frame.
    pub mtu: usize,
}

impl LinkSpec {
    /// Whether one of its ends is a host.
    pub(crate) fn is_hosts(&self) -> bool {
        self.ends.iter().any(|end| matches!(end, NodeId::Host(_)))
    }
}

/// A network: hosts, switches, and the links that join them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    /// The hosts.
    pub hosts: Vec<HostSpec>,
    /// The switches.
    pub switches: Vec<SwitchSpec>,
    /// The links.
    pub links: Vec<LinkSpec>,
    /// Bytes on a link that each packet has beside its own: headers of the layers below, checksum, preamble and gap.
    pub frame_bytes: usize,
}

/// Error in a topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A field is out of range.
    #[error("{place}: {field} cannot be {value}: {expected}")]
    Field {
        /// The node or link.
        place: String,
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// Values that it may have.
        expected: &'static str,
    },
    /// Two nodes have the same name.
    #[error("there are two nodes named `{name}`; give each its own")]
    SameName {
        /// The name.
        name: String,
    },
    /// A link leads to a node that does not exist, or back to its own.
    #[error("link {index} joins {ends}: {problem}")]
    Ends {
        /// The link's index.
        index: usize,
        /// Its ends.
        ends: String,
        /// The problem with the ends.
        problem: &'static str,
    },
    /// A host cannot reach another.
    #[error("there is no way from {from} to {to}; join them with links")]
    NoWay {
        /// A host.
        from: String,
        /// Another.
        to: String,
    },
}

/// Range of a link's rate. A packet takes whole picoseconds, in fewer than 64 bits.
pub(crate) const RATE_GBPS_MAX: f64 = 4000.0;
pub(crate) const RATE_GBPS_MIN: f64 = 0.000_01;
/// Longest delay or latency: a second.
const DELAY_NS_MAX: u64 = 1_000_000_000;

impl Topology {
    /// Adds a host.
    pub fn host(&mut self, spec: HostSpec) -> HostId {
        self.hosts.push(spec);
        HostId(self.hosts.len() - 1)
    }

    /// Adds a switch.
    pub fn switch(&mut self, spec: SwitchSpec) -> SwitchId {
        self.switches.push(spec);
        SwitchId(self.switches.len() - 1)
    }

    /// Adds a link.
    pub fn link(&mut self, spec: LinkSpec) -> LinkId {
        self.links.push(spec);
        LinkId(self.links.len() - 1)
    }

    /// Hosts at one switch that is never full, for tests.
    pub fn star(hosts: usize, rate_gbps: f64, delay_ns: u64, mtu: usize) -> Self {
        let mut topology = Self { frame_bytes: 66, ..Self::default() };
        let switch = topology.switch(SwitchSpec {
            name: "switch".to_owned(),
            latency_ns: 300,
            buffer: Buffer::PerPort { bytes: u64::MAX },
            ecn: None,
            pause: None,
        });
        for index in 0..hosts {
            let host = topology.host(HostSpec {
                name: format!("node{index}"),
                transmit_latency_ns: 300,
                receive_latency_ns: 300,
            });
            topology.link(LinkSpec { ends: [NodeId::Host(host), NodeId::Switch(switch)], rate_gbps, delay_ns, mtu });
        }
        topology
    }

    /// The name of a node, or its number where it does not exist.
    pub fn name_of(&self, node: NodeId) -> String {
        let name = match node {
            NodeId::Host(HostId(index)) => self.hosts.get(index).map(|host| &host.name),
            NodeId::Switch(SwitchId(index)) => self.switches.get(index).map(|switch| &switch.name),
        };
        name.cloned().unwrap_or_else(|| format!("{node:?}, which does not exist"))
    }

    /// The host of this name.
    pub fn find_host(&self, name: &str) -> Option<HostId> {
        self.hosts.iter().position(|host| host.name == name).map(HostId)
    }

    pub(crate) fn has(&self, node: NodeId) -> bool {
        match node {
            NodeId::Host(HostId(index)) => index < self.hosts.len(),
            NodeId::Switch(SwitchId(index)) => index < self.switches.len(),
        }
    }

    /// Refuses fields that are out of range. (Whether all hosts reach each other is checked when a network is made of
    /// it.)
    pub(crate) fn check(&self) -> Result<(), TopologyError> {
        let mut names = BTreeMap::new();
        let switches = self.switches.iter().map(|switch| &switch.name);
        for name in self.hosts.iter().map(|host| &host.name).chain(switches) {
            if names.insert(name, ()).is_some() {
                return Err(TopologyError::SameName { name: name.clone() });
            }
        }
        if self.frame_bytes > 10_000 {
            return Err(field("the topology", "frame_bytes", self.frame_bytes, "0 to 10000"));
        }
        for host in &self.hosts {
            check_delay(&host.name, "transmit_latency_ns", host.transmit_latency_ns)?;
            check_delay(&host.name, "receive_latency_ns", host.receive_latency_ns)?;
        }
        self.switches.iter().try_for_each(check_switch)?;
        let mtu_of_hosts = self.links.iter().filter(|link| link.is_hosts()).map(|link| link.mtu).max().unwrap_or(0);
        for (index, link) in self.links.iter().enumerate() {
            self.check_link(index, link, mtu_of_hosts)?;
        }
        Ok(())
    }

    /// Checks a link. `mtu_of_hosts` is the largest `mtu` of a host's link.
    pub(crate) fn check_link(&self, index: usize, link: &LinkSpec, mtu_of_hosts: usize) -> Result<(), TopologyError> {
        let ends = link.ends.map(|end| self.name_of(end)).join(" and ");
        let problem = if link.ends[0] == link.ends[1] {
            Some("they are one node")
        } else if !link.ends.iter().all(|end| self.has(*end)) {
            Some("one of them does not exist")
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(TopologyError::Ends { index, ends, problem });
        }
        let place = format!("the link of {ends}");
        if !(RATE_GBPS_MIN..=RATE_GBPS_MAX).contains(&link.rate_gbps) {
            return Err(field(&place, "rate_gbps", link.rate_gbps, "0.00001 to 4000"));
        }
        // A packet that asks for a session has 96 bytes.
        if !(96..=1 << 20).contains(&link.mtu) {
            return Err(field(&place, "mtu", link.mtu, "96 to 1048576 bytes"));
        }
        if !link.is_hosts() && link.mtu < mtu_of_hosts {
            return Err(field(&place, "mtu", link.mtu, "at least the largest mtu of a host's link"));
        }
        check_delay(&place, "delay_ns", link.delay_ns)
    }
}

fn check_switch(switch: &SwitchSpec) -> Result<(), TopologyError> {
    check_delay(&switch.name, "latency_ns", switch.latency_ns)?;
    match switch.buffer {
        Buffer::Shared { alpha, .. } if !(alpha > 0.0 && alpha.is_finite()) => {
            return Err(field(&switch.name, "alpha", alpha, "a number above 0"));
        }
        Buffer::Shared { bytes: 0, .. } => {
            return Err(field(&switch.name, "shared_bytes", 0, "at least room for a packet"));
        }
        Buffer::PerPort { bytes: 0 } => {
            return Err(field(&switch.name, "per_port_bytes", 0, "at least room for a packet"));
        }
        _ => {}
    }
    if let Some(Ecn { min_bytes, max_bytes, probability }) = switch.ecn {
        if min_bytes > max_bytes {
            return Err(field(&switch.name, "min_bytes", min_bytes, "no more than max_bytes"));
        }
        if !(0.0..=1.0).contains(&probability) {
            return Err(field(&switch.name, "probability", probability, "0 to 1"));
        }
    }
    match switch.pause {
        Some(Pause { off_bytes, on_bytes }) if on_bytes >= off_bytes => {
            Err(field(&switch.name, "on_bytes", on_bytes, "less than off_bytes"))
        }
        _ => Ok(()),
    }
}

fn field(place: &str, field: &'static str, value: impl ToString, expected: &'static str) -> TopologyError {
    TopologyError::Field { place: place.to_owned(), field, value: value.to_string(), expected }
}

fn check_delay(place: &str, name: &'static str, ns: u64) -> Result<(), TopologyError> {
    if ns <= DELAY_NS_MAX { Ok(()) } else { Err(field(place, name, ns, "at most a second")) }
}
