//! Profiles: a NIC, its bus and a core of its host, in numbers.

use crate::pcie::PcieLink;

/// A modelled NIC in its host, as [`Profile::read`] reads it from a file.
///
/// Times are nanoseconds. A time of a processing unit (PU) is how long the unit is occupied, so a NIC with `n` units
/// does `n` such things in that time. Each figure in a file has a source ([`Profile::sources`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// One word, by which options name it.
    pub name: String,
    /// The hardware, in words.
    pub title: String,
    /// Whether the model was compared with published measurements of the NIC.
    pub is_validated: bool,
    /// Whether it is one of [`Profile::BUILT_IN`]. For any other, statements about it are its author's alone.
    pub is_built_in: bool,
    /// Its bus.
    pub pcie: Pcie,
    /// The layout of its work queue elements.
    pub wqe: WqeLayout,
    /// Its processing units.
    pub units: Units,
    /// Its caches.
    pub caches: Caches,
    /// Its link to the network.
    pub link: Link,
    /// A core of its host.
    pub core: Core,
    /// Cost of registering memory.
    pub registration: Registration,
    /// All parameters, with their sources.
    pub(crate) parameters: Vec<Parameter>,
}

/// A parameter of a profile, with its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Table and field in the file, such as `units.packet_ns`.
    pub path: String,
    /// The value, as written in a file.
    pub value: String,
    /// A data sheet, a paper's section, an estimate with its reason, or a calibration.
    pub source: String,
}

/// The PCI Express link of a NIC, and the memory behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pcie {
    /// Generation and lanes.
    pub link: PcieLink,
    /// Time from a DMA read's request until its first completion is at the NIC, with nothing else on the link.
    pub read_latency_ns: u64,
    /// Time of a write to the other end: MMIO to the NIC, DMA to memory.
    pub write_latency_ns: u64,
}

/// The layout of work queue elements (atc16 2.2.2, Table 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WqeLayout {
    /// Bytes before an inline payload, over RC and UC.
    pub header_connected: usize,
    /// Bytes before an inline payload, over UD.
    pub header_datagram: usize,
    /// Bytes of a RECV.
    pub receive: usize,
    /// Most bytes of an inline payload.
    pub inline_max: usize,
    /// Most bytes of a message that a completion can hold itself (inline receive); 0 where the NIC cannot do this.
    pub inline_receive_max: usize,
}

/// The processing units of a NIC: requesters serve its host, responders serve others. Each queue pair is bound to one
/// of each.
///
/// A NIC as a whole handles packets and DMA at one rate, whichever units do so. `packet_ns`, `dma_write_ns` and
/// `dma_read_ns` are a responder's times; a requester's are [`Units::requester_factor`] times as long, since there are
/// that many times as many requesters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Units {
    /// Units that work on requests of the host, and on the replies to them.
    pub requesters: usize,
    /// Units that work on requests of others.
    pub responders: usize,
    /// Time to make and send the packet of a request.
    pub request_ns: f64,
    /// Time for each line of 64 bytes of a work queue element that was fetched by DMA.
    pub fetched_line_ns: f64,
    /// Time to find the queue pair of a packet that arrives, and to check the packet; the same for requests, responses
    /// and acknowledgements.
    pub packet_ns: f64,
    /// Time of a DMA write: a payload, or a completion.
    pub dma_write_ns: f64,
    /// Time of a DMA read of a payload.
    pub dma_read_ns: f64,
    /// Time of an atomic, beside its packet: the NIC changes the word itself.
    pub atomic_ns: f64,
    /// Time for which an atomic holds the lock of its address: a PCIe round trip.
    pub atomic_hold_ns: u64,
    /// Number of locks, chosen by the low bits of the address; 1 serialises all atomics.
    pub atomic_locks: u32,
    /// Time for each line that a core writes by MMIO, for the NIC as a whole; 0 where the bus alone limits it.
    pub mmio_line_ns: f64,
    /// Most work queue elements that one DMA read fetches.
    pub fetch_max: usize,
    /// Time that two NICs add to a packet's way, out of one and into the other together, while no unit is occupied and
    /// nothing crosses PCI Express.
    pub pipeline_ns: u64,
    /// Most READs and atomics of a queue pair in flight.
    pub reads_max: usize,
}

impl Units {
    /// Ratio of a requester's time for packets and DMA to a responder's.
    pub fn requester_factor(&self) -> f64 {
        self.requesters as f64 / self.responders as f64
    }
}

/// Sizes of a NIC's caches. Everything else is in its host's memory, a DMA read away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// Queue pairs whose requester's state fits.
    pub requester_states: usize,
    /// Queue pairs whose responder's state fits.
    pub responder_states: usize,
    /// DMA reads, one after the other, that fetch a requester's state on a miss.
    pub state_reads: usize,
    /// Work queue elements that fit.
    pub wqes: usize,
    /// Pages whose translations fit.
    pub translations: usize,
    /// Bytes of a page.
    pub page_bytes: u64,
}

/// Framings of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// InfiniBand: local route header, base transport header, two checksums.
    InfiniBand,
    /// RDMA over Converged Ethernet, version 1: in Ethernet frames with a global route header.
    RoceV1,
    /// RoCE version 2: in UDP.
    RoceV2,
}

/// A NIC's link to the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Framing of its packets.
    pub framing: Framing,
    /// Gigabits of data per second, over all ports together, physical encoding excluded.
    pub rate_gbps: f64,
    /// Most bytes of a packet's payload.
    pub mtu: usize,
    /// Delay of a switch, from port to port.
    pub switch_ns: u64,
    /// Delay of a cable.
    pub cable_ns: u64,
}

/// A core of the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Core {
    /// Number of cores.
    pub count: usize,
    /// Time to make a work queue element.
    pub post_ns: u64,
    /// Time to write a line of 64 bytes by MMIO.
    pub mmio_line_ns: u64,
    /// Time to ring a doorbell.
    pub doorbell_ns: u64,
    /// Time to post a receive.
    pub receive_ns: u64,
    /// Time to take a completion.
    pub completion_ns: u64,
    /// Time to look at a completion queue, or at memory, and find nothing.
    pub look_ns: u64,
    /// Time to copy a line of 64 bytes.
    pub copy_line_ns: u64,
    /// Time of an access to memory that is in no cache.
    pub memory_ns: u64,
    /// Time for a word that other cores change as well to pass from one core to the next.
    pub contended_ns: u64,
    /// Time of an interrupt: from the completion until the thread that sleeps on it runs.
    pub interrupt_ns: u64,
    /// Time for which a competing program's thread runs before the scheduler lets a polling thread run: see
    /// [`Competitor`](crate::Competitor).
    pub time_slice_ns: u64,
    /// Whether it writes the element of a request that has a doorbell to itself to the NIC (BlueFlame), as libraries of
    /// user space may. Otherwise it rings the doorbell, and the NIC fetches the element, as Linux's kernel driver of
    /// ConnectX-3 has it (`mlx4_ib_post_send`). Not in files: it is the program's property, and true unless an
    /// experiment says otherwise.
    pub writes_elements: bool,
}

/// Costs of registering memory (rdmabox IV-A, Figure 5).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Registration {
    /// Time of a call.
    pub call_ns: u64,
    /// Time for each page of 4 KB.
    pub page_ns: u64,
    /// Bytes that a core copies in a nanosecond, to compare copying with registering.
    pub copy_bytes_per_ns: f64,
}

impl Framing {
    /// All framings.
    pub const ALL: [Self; 3] = [Self::InfiniBand, Self::RoceV1, Self::RoceV2];

    /// The name in files.
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

    /// The published measurements that this profile's own parameters are calibrated on, each once. Where the model
    /// meets them, they alone prove nothing. Calibrations of other profiles are not included.
    pub fn calibrations(&self) -> Vec<&str> {
        self.rows_after("calibrated on ")
    }

    /// The published measurements in view of which this profile's own parameters were estimated, each once. Where the
    /// model meets them, they prove less than they seem to. Estimates of other profiles are not included.
    pub fn in_view(&self) -> Vec<&str> {
        self.rows_after("estimate in view of ")
    }

    /// The rows named in sources that begin with `words`, as in `calibrated on ROW, ROW: how`.
    fn rows_after(&self, words: &str) -> Vec<&str> {
        let all = self.parameters.iter().filter_map(|parameter| rows_of(&parameter.source, words));
        let mut all: Vec<&str> = all.flat_map(|rows| rows.split(", ")).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

fn rows_of<'a>(source: &'a str, words: &str) -> Option<&'a str> {
    source.strip_prefix(words)?.split(':').next().filter(|rows| !rows.is_empty())
}
