//! What a NIC, the bus that it is on and the core that drives it are like, as numbers.

use crate::pcie::PcieLink;

/// A modelled NIC in its host: what [`Profile::read`] makes of a file.
///
/// Times are nanoseconds. Those of a processing unit (PU) are how long the unit is occupied, so that a NIC of `n` units does `n` such things in that time.
/// Files of them are read by [`Profile::read`], and each figure in them has a source ([`Profile::sources`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// One word: what options call it.
    pub name: String,
    /// The hardware, in words.
    pub title: String,
    /// Whether published measurements of it were compared with the model.
    pub is_validated: bool,
    /// Whether it is one of [`Profile::BUILT_IN`]: of another, what it says of itself is its author's word.
    pub is_built_in: bool,
    /// Its bus.
    pub pcie: Pcie,
    /// How its work queue elements are laid out.
    pub wqe: WqeLayout,
    /// Its processing units.
    pub units: Units,
    /// What it remembers.
    pub caches: Caches,
    /// What it is connected to.
    pub link: Link,
    /// A core of its host.
    pub core: Core,
    /// What it costs to register memory.
    pub registration: Registration,
    /// Where all of that is from.
    pub(crate) parameters: Vec<Parameter>,
}

/// A parameter of a profile, and where it is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Table and field of the file: `units.packet_ns`.
    pub path: String,
    /// The value, as a file has it.
    pub value: String,
    /// A data sheet, a paper's section, an estimate with its reason, or a calibration.
    pub source: String,
}

/// The PCI Express link of a NIC, and the memory behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pcie {
    /// Generation and lanes.
    pub link: PcieLink,
    /// From a DMA read's request until its first completion is at the NIC, where nothing else is on the link.
    pub read_latency_ns: u64,
    /// From a write until it is at the other end: MMIO at the NIC, DMA in memory.
    pub write_latency_ns: u64,
}

/// The layout of work queue elements (atc16 2.2.2, Table 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WqeLayout {
    /// Bytes before an inline payload, over RC and UC.
    pub header_connected: usize,
    /// Over UD.
    pub header_datagram: usize,
    /// Bytes of a RECV.
    pub receive: usize,
    /// Bytes that an inline payload can have at most.
    pub inline_max: usize,
    /// Bytes of a message that a completion can hold itself (inline receive); 0 where the NIC cannot.
    pub inline_receive_max: usize,
}

/// The processing units of a NIC: requesters serve its host, responders others. Each queue pair is bound to one of either kind.
///
/// A NIC as a whole does packets and DMA at one rate, whichever units do it. `packet_ns`, `dma_write_ns` and `dma_read_ns` are those of a responder; a
/// requester takes [`Units::requester_factor`] times as long, since there are so many times as many of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Units {
    /// Units that work on requests of the host, and on what comes back for them.
    pub requesters: usize,
    /// Units that work on requests of others.
    pub responders: usize,
    /// A request: its packet is made and sent.
    pub request_ns: f64,
    /// A line of 64 bytes of a work queue element that was fetched by DMA.
    pub fetched_line_ns: f64,
    /// A packet that arrives: its queue pair is found and the packet checked. For requests, responses and acknowledgements alike.
    pub packet_ns: f64,
    /// A DMA write: a payload, or a completion.
    pub dma_write_ns: f64,
    /// A DMA read of a payload.
    pub dma_read_ns: f64,
    /// An atomic, beside its packet: the NIC changes the word itself.
    pub atomic_ns: f64,
    /// How long an atomic holds the lock of its address: a PCIe round trip.
    pub atomic_hold_ns: u64,
    /// Locks, chosen by the low bits of the address; 1: all atomics are serialised.
    pub atomic_locks: u32,
    /// A line that the core writes by MMIO, for the NIC as a whole; 0 where the bus alone limits it.
    pub mmio_line_ns: f64,
    /// Work queue elements that one DMA read fetches at most.
    pub fetch_max: usize,
    /// What NICs add to a packet's way, out of one and into the other together, while no unit is occupied and nothing crosses PCI Express.
    pub pipeline_ns: u64,
    /// READs and atomics that a queue pair can have on their way.
    pub reads_max: usize,
}

impl Units {
    /// How many times as long as a responder a requester takes for packets and DMA.
    pub fn requester_factor(&self) -> f64 {
        self.requesters as f64 / self.responders as f64
    }
}

/// What a NIC remembers; the rest is in its host's memory, a DMA read away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// Queue pairs whose requester's state it has.
    pub requester_states: usize,
    /// Queue pairs whose responder's state it has.
    pub responder_states: usize,
    /// DMA reads, one after the other, that bring a requester's state which it does not have.
    pub state_reads: usize,
    /// Work queue elements.
    pub wqes: usize,
    /// Pages whose addresses it can translate.
    pub translations: usize,
    /// Bytes of such a page.
    pub page_bytes: u64,
}

/// How packets are framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// InfiniBand: local route header, base transport header, two checksums.
    InfiniBand,
    /// RDMA over Converged Ethernet, version 1: in Ethernet frames with a global route header.
    RoceV1,
    /// Version 2: in UDP.
    RoceV2,
}

/// What a NIC is connected to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// How packets are framed.
    pub framing: Framing,
    /// Bits of data in a second, over all ports together, physical encoding excluded.
    pub rate_gbps: f64,
    /// Bytes of a packet's payload.
    pub mtu: usize,
    /// A switch, from port to port.
    pub switch_ns: u64,
    /// A cable.
    pub cable_ns: u64,
}

/// A core of the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Core {
    /// How many there are.
    pub count: usize,
    /// Making a work queue element.
    pub post_ns: u64,
    /// Writing a line of 64 bytes by MMIO.
    pub mmio_line_ns: u64,
    /// Ringing a doorbell.
    pub doorbell_ns: u64,
    /// Posting a receive.
    pub receive_ns: u64,
    /// Taking a completion.
    pub completion_ns: u64,
    /// A look at a completion queue, or at memory, that finds nothing.
    pub look_ns: u64,
    /// Copying a line of 64 bytes.
    pub copy_line_ns: u64,
    /// An access to memory that no cache has.
    pub memory_ns: u64,
    /// A word that other cores change as well: from one to the next.
    pub contended_ns: u64,
    /// An interrupt: from the completion until the thread that sleeps on it runs.
    pub interrupt_ns: u64,
    /// How long a thread of another program runs, where one competes for the core, before the scheduler lets one run that polls: see
    /// [`Competitor`](crate::Competitor).
    pub time_slice_ns: u64,
}

/// Registering memory (rdmabox IV-A, Figure 5).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Registration {
    /// A call.
    pub call_ns: u64,
    /// A page of 4 KB.
    pub page_ns: u64,
    /// Bytes that a core copies in a nanosecond, which is what registering is weighed against.
    pub copy_bytes_per_ns: f64,
}

impl Framing {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::InfiniBand, Self::RoceV1, Self::RoceV2];

    /// As files have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "infiniband",
            Self::RoceV1 => "roce-v1",
            Self::RoceV2 => "roce-v2",
        }
    }
}

impl Profile {
    /// Every parameter with its source, in the order of files.
    pub fn sources(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The published measurements that parameters are calibrated on, each once: those alone prove nothing where the model meets them.
    /// What another profile was calibrated on is not among them.
    pub fn calibrations(&self) -> Vec<&str> {
        self.rows_after("calibrated on ")
    }

    /// The published measurements that parameters were estimated in view of, each once: these prove less than they seem to where the model meets them. What
    /// another profile was estimated by is not among them.
    pub fn in_view(&self) -> Vec<&str> {
        self.rows_after("estimate in view of ")
    }

    /// The rows that sources name which begin so: `calibrated on ROW, ROW: how`.
    fn rows_after(&self, words: &str) -> Vec<&str> {
        let all = self.parameters.iter().filter_map(|it| rows_of(&it.source, words));
        let mut all: Vec<&str> = all.flat_map(|rows| rows.split(", ")).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

fn rows_of<'a>(source: &'a str, words: &str) -> Option<&'a str> {
    source.strip_prefix(words)?.split(':').next().filter(|rows| !rows.is_empty())
}
