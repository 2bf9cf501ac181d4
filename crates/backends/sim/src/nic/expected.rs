//! Expected traffic of requests on the PCIe links of both hosts, if the NICs' caches never miss (atc16 3.1, 3.2, 5.1,
//! Figures 4, 5, 6 and 13a).
//!
//! Anything that a processor counts beyond that is due to misses (atc16 3.5).

use std::iter::Sum;
use std::ops::{Add, Mul};

use sinew_fabric::verbs::{Transport, Verb};

use super::profile::Profile;
use super::wqe::{IMMEDIATE, Source};
use crate::pcie::{self, LINE, Traffic};

/// Bytes of a completion.
pub const CQE: usize = 64;
/// Most bytes of a message that a completion of one line can hold; an assumption. Longer ones take two lines.
const IN_ONE_CQE: usize = 32;
/// Bytes that an atomic changes.
const WORD: usize = 8;

/// Ways for elements to reach the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// The core writes them (Mellanox: BlueFlame).
    Mmio,
    /// The core rings a doorbell once for all of them, and the NIC reads them.
    Doorbell,
}

/// A batch of equal requests of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// The verb of all of them.
    pub verb: Verb,
    /// The transport of their queue pair.
    pub transport: Transport,
    /// Bytes of payload; 8 for an atomic.
    pub len: usize,
    /// Location of the payload.
    pub source: Source,
    /// The way in which they are posted.
    pub post: Post,
    /// Number of requests.
    pub count: usize,
    /// Number of signaled requests.
    pub signaled: usize,
    /// Whether the responder's completions hold short messages themselves (inline receive).
    pub inline_receive: bool,
    /// Offset within a line at which payloads begin, at both hosts. Payloads at 0 touch the fewest lines.
    pub place: usize,
}

/// The name of a verb, as the papers write it.
pub fn verb_name(verb: Verb) -> &'static str {
    match verb {
        Verb::Send => "SEND",
        Verb::Write => "WRITE",
        Verb::WriteWithImmediate => "WRITE with immediate",
        Verb::Read => "READ",
        Verb::CompareSwap => "compare-and-swap",
        Verb::FetchAdd => "fetch-and-add",
    }
}

/// The name of a transport, as the papers write it.
pub fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Rc => "RC",
        Transport::Uc => "UC",
        Transport::Ud => "UD",
    }
}

/// Reason why no NIC could be asked for some requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestsError {
    /// The transport does not carry the verb (Table 1 of atc16).
    #[error("{} cannot carry a {}: RC carries all verbs, UC only SEND and WRITE, UD only SEND", transport_name(*transport), verb_name(*verb))]
    Transport {
        /// The verb.
        verb: Verb,
        /// The transport.
        transport: Transport,
    },
    /// The payload is longer than the NIC's limit, or the verb has none of its own.
    #[error("a {} cannot have {len} B inline: only SEND and WRITE can, up to {inline_max} B; leave the payload in memory", verb_name(*verb))]
    Inline {
        /// The verb.
        verb: Verb,
        /// Bytes of its payload.
        len: usize,
        /// This NIC's limit, in bytes.
        inline_max: usize,
    },
    /// A header has 4 bytes for a payload, and only for a message's.
    #[error("a {} cannot have {len} B in its header: only a SEND can, up to {IMMEDIATE} B", verb_name(*verb))]
    Header {
        /// The verb.
        verb: Verb,
        /// Bytes of its payload.
        len: usize,
    },
    /// The payload's length does not suit the verb.
    #[error("a {} cannot have a payload of {len} B: {expected}", verb_name(*verb))]
    Len {
        /// The verb.
        verb: Verb,
        /// Bytes of its payload.
        len: usize,
        /// Lengths that it may have.
        expected: &'static str,
    },
    /// Over UD, a message must fit in a packet.
    #[error("{len} B are more than a datagram carries: at most {mtu} B")]
    Datagram {
        /// Bytes of the payload.
        len: usize,
        /// Most bytes of a packet's payload.
        mtu: usize,
    },
    /// The responder's completions cannot hold the message.
    #[error("completions cannot hold {len} B: at most a SEND of {max} B on this NIC (0: none)")]
    InlineReceive {
        /// Bytes of the payload.
        len: usize,
        /// This NIC's limit, in bytes.
        max: usize,
    },
    /// The batch is empty, or exceeds what queues hold.
    #[error("a batch cannot have {count} requests: 1 to {}", Requests::COUNT_MAX)]
    Count {
        /// Number of requests.
        count: usize,
    },
    /// More requests are to be signaled than there are.
    #[error("{signaled} of {count} requests cannot be signaled")]
    Signaled {
        /// Number of requests to be signaled.
        signaled: usize,
        /// Number of requests.
        count: usize,
    },
}

/// Steps of requests that cross the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The core writes the elements.
    WqesByMmio,
    /// The core rings the doorbell.
    Doorbell,
    /// The NIC reads the elements.
    WqeFetch,
    /// The NIC reads the payloads of SENDs or WRITEs.
    PayloadRead,
    /// The NIC writes the results of READs or atomics.
    ResultWrite,
    /// The NIC writes completions of the requester.
    Completion,
    /// The NIC reads elements of receives.
    ReceiveFetch,
    /// The NIC writes payloads that have arrived.
    PayloadWrite,
    /// The NIC reads the memory that READs ask for.
    MemoryRead,
    /// The NIC reads the words of atomics.
    AtomicRead,
    /// The NIC writes the words of atomics.
    AtomicWrite,
    /// The NIC writes completions of receives, which may hold the messages.
    ReceiveCompletion,
}

impl Step {
    /// Description of the step.
    pub fn text(self) -> &'static str {
        match self {
            Self::WqesByMmio => "the core writes the WQEs (MMIO)",
            Self::Doorbell => "the core rings the doorbell (MMIO)",
            Self::WqeFetch => "the NIC reads the WQEs (DMA)",
            Self::PayloadRead => "the NIC reads the payloads (DMA)",
            Self::ResultWrite => "the NIC writes the results (DMA)",
            Self::Completion => "the NIC writes completions (DMA)",
            Self::ReceiveFetch => "the NIC reads the RECVs (DMA)",
            Self::PayloadWrite => "the NIC writes the payloads (DMA)",
            Self::MemoryRead => "the NIC reads the memory (DMA)",
            Self::AtomicRead => "the NIC reads the words (DMA)",
            Self::AtomicWrite => "the NIC writes the words (DMA)",
            Self::ReceiveCompletion => "the NIC writes RECV completions (DMA)",
        }
    }
}

/// Traffic on a link, counted both as programs and as processors count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crossings {
    /// Lines and doorbells that cores write.
    pub mmio_writes: u64,
    /// DMA reads, however long.
    pub dma_reads: u64,
    /// DMA writes, however long.
    pub dma_writes: u64,
    /// Lines that DMA reads touch, which a processor counts as `PCIeRdCur` (atc16 2.1, footnote 2).
    pub lines_read: u64,
    /// Lines that DMA writes touch, which a processor counts as `PCIeItoM`.
    pub lines_written: u64,
    /// Packets and bytes on the link.
    pub traffic: Traffic,
}

/// Traffic on a link for each request, or in each second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Lines and doorbells that cores write.
    pub mmio_writes: f64,
    /// DMA reads.
    pub dma_reads: f64,
    /// DMA writes.
    pub dma_writes: f64,
    /// Lines that DMA reads touch, which a processor counts as `PCIeRdCur`.
    pub lines_read: f64,
    /// Lines that DMA writes touch, which a processor counts as `PCIeItoM`.
    pub lines_written: f64,
    /// Bytes from the host to the NIC.
    pub bytes_to_nic: f64,
    /// Bytes from the NIC to the host.
    pub bytes_to_host: f64,
}

impl Crossings {
    /// The average of each request, where this is the traffic of `requests` together.
    pub fn per_request(&self, requests: usize) -> Rates {
        let each = |all: u64| all as f64 / requests as f64;
        Rates {
            mmio_writes: each(self.mmio_writes),
            dma_reads: each(self.dma_reads),
            dma_writes: each(self.dma_writes),
            lines_read: each(self.lines_read),
            lines_written: each(self.lines_written),
            bytes_to_nic: each(self.traffic.to_device.bytes),
            bytes_to_host: each(self.traffic.to_host.bytes),
        }
    }
}

impl Mul<f64> for Rates {
    type Output = Self;

    /// The traffic per second, where this is each request's and `requests` are made per second.
    fn mul(self, requests: f64) -> Self {
        Self {
            mmio_writes: self.mmio_writes * requests,
            dma_reads: self.dma_reads * requests,
            dma_writes: self.dma_writes * requests,
            lines_read: self.lines_read * requests,
            lines_written: self.lines_written * requests,
            bytes_to_nic: self.bytes_to_nic * requests,
            bytes_to_host: self.bytes_to_host * requests,
        }
    }
}

impl Add for Crossings {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            mmio_writes: self.mmio_writes + other.mmio_writes,
            dma_reads: self.dma_reads + other.dma_reads,
            dma_writes: self.dma_writes + other.dma_writes,
            lines_read: self.lines_read + other.lines_read,
            lines_written: self.lines_written + other.lines_written,
            traffic: self.traffic + other.traffic,
        }
    }
}

impl Sum for Crossings {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// A host's traffic for a batch, step by step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected(Vec<(Step, Crossings)>);

impl Expected {
    /// The steps, in order; steps without traffic are left out.
    pub fn steps(&self) -> &[(Step, Crossings)] {
        &self.0
    }

    /// All steps together.
    pub fn sum(&self) -> Crossings {
        self.0.iter().map(|(_, crossings)| *crossings).sum()
    }

    fn mmio(&mut self, step: Step, writes: usize, traffic: Traffic) {
        self.0.push((step, Crossings { mmio_writes: writes as u64, traffic, ..Crossings::default() }));
    }

    /// Adds `count` DMA reads of `len` bytes each, from `place` within a line on.
    fn read(&mut self, step: Step, nic: &Profile, count: usize, len: usize, place: usize) {
        let (traffic, lines) = (nic.pcie.link.dma_read(len) * count as u64, pcie::lines_at(place, len) * count);
        if lines > 0 {
            let crossings =
                Crossings { dma_reads: count as u64, lines_read: lines as u64, traffic, ..Crossings::default() };
            self.0.push((step, crossings));
        }
    }

    /// Adds `count` DMA writes of `len` bytes each, from `place` within a line on.
    fn write(&mut self, step: Step, nic: &Profile, count: usize, len: usize, place: usize) {
        let (traffic, lines) = (nic.pcie.link.dma_write(len) * count as u64, pcie::lines_at(place, len) * count);
        if lines > 0 {
            let crossings =
                Crossings { dma_writes: count as u64, lines_written: lines as u64, traffic, ..Crossings::default() };
            self.0.push((step, crossings));
        }
    }

    /// Adds DMA reads of `count` elements, of which one read brings at most `fetch_max`.
    fn fetch(&mut self, step: Step, nic: &Profile, count: usize, len: usize) {
        let at_once = nic.units.fetch_max.clamp(1, count);
        let mut all = Self::default();
        all.read(step, nic, count / at_once, at_once * len, 0);
        all.read(step, nic, 1, count % at_once * len, 0);
        if !all.0.is_empty() {
            self.0.push((step, all.sum()));
        }
    }
}

impl Requests {
    /// Most requests of a batch: the capacity of a long send queue.
    pub const COUNT_MAX: usize = 32_768;
    /// Most bytes of a message: 2 GiB, as in InfiniBand.
    const LEN_MAX: usize = 1 << 31;

    /// Checks that a NIC could be asked for these requests.
    ///
    /// # Errors
    ///
    /// [`RequestsError`], with the reason why it could not.
    pub fn check(&self, nic: &Profile) -> Result<(), RequestsError> {
        let Self { verb, transport, len, source, count, signaled, .. } = *self;
        let is_atomic = matches!(verb, Verb::CompareSwap | Verb::FetchAdd);
        if !transport.allows(verb) {
            return Err(RequestsError::Transport { verb, transport });
        }
        if is_atomic && len != WORD {
            return Err(RequestsError::Len { verb, len, expected: "it is 8 B" });
        }
        if len > Self::LEN_MAX {
            return Err(RequestsError::Len { verb, len, expected: "at most 2 GiB" });
        }
        if source == Source::Inline && !nic.wqe.can_inline(verb, len) {
            return Err(RequestsError::Inline { verb, len, inline_max: nic.wqe.inline_max });
        }
        if source == Source::Header && (verb != Verb::Send || len > IMMEDIATE) {
            return Err(RequestsError::Header { verb, len });
        }
        if !transport.is_connected() && len > nic.link.mtu {
            return Err(RequestsError::Datagram { len, mtu: nic.link.mtu });
        }
        let is_held = verb == Verb::Send && len <= nic.wqe.inline_receive_max;
        if self.inline_receive && !is_held {
            return Err(RequestsError::InlineReceive { len, max: nic.wqe.inline_receive_max });
        }
        if !(1..=Self::COUNT_MAX).contains(&count) {
            return Err(RequestsError::Count { count });
        }
        if signaled > count {
            return Err(RequestsError::Signaled { signaled, count });
        }
        Ok(())
    }

    /// Bytes of each element.
    pub fn wqe_len(&self, nic: &Profile) -> usize {
        nic.wqe.request_len(self.verb, self.transport, self.source, self.len)
    }

    /// The traffic on the link of the requester's host.
    pub fn at_requester(&self, nic: &Profile) -> Expected {
        let Self { verb, len, count, place, .. } = *self;
        let (link, wqe_len) = (nic.pcie.link, self.wqe_len(nic));
        let mut expected = Expected::default();
        match self.post {
            Post::Mmio => {
                let lines = pcie::lines(wqe_len) * count;
                expected.mmio(Step::WqesByMmio, lines, link.wqes_by_mmio(count, wqe_len));
            }
            Post::Doorbell => {
                expected.mmio(Step::Doorbell, 1, link.doorbell());
                expected.fetch(Step::WqeFetch, nic, count, pcie::lines(wqe_len) * LINE);
            }
        }
        match verb {
            Verb::Send | Verb::Write | Verb::WriteWithImmediate if self.source == Source::Memory => {
                expected.read(Step::PayloadRead, nic, count, len, place);
            }
            Verb::Send | Verb::Write | Verb::WriteWithImmediate => {}
            Verb::Read => expected.write(Step::ResultWrite, nic, count, len, place),
            Verb::CompareSwap | Verb::FetchAdd => expected.write(Step::ResultWrite, nic, count, WORD, 0),
        }
        expected.write(Step::Completion, nic, self.signaled, CQE, 0);
        expected
    }

    /// The traffic on the link of the responder's host, whose NIC is `nic`. Its receives were posted in batches of
    /// `count`, too.
    pub fn at_responder(&self, nic: &Profile) -> Expected {
        let Self { verb, len, count, place, .. } = *self;
        // Bytes in the header do not count as payload.
        let arrived = if self.source == Source::Header { 0 } else { len };
        let mut expected = Expected::default();
        match verb {
            Verb::Write => expected.write(Step::PayloadWrite, nic, count, arrived, place),
            Verb::Read => expected.read(Step::MemoryRead, nic, count, len, place),
            Verb::CompareSwap | Verb::FetchAdd => {
                expected.read(Step::AtomicRead, nic, count, WORD, 0);
                expected.write(Step::AtomicWrite, nic, count, WORD, 0);
            }
            Verb::Send | Verb::WriteWithImmediate => {
                expected.fetch(Step::ReceiveFetch, nic, count, nic.wqe.receive);
                let in_completion = if self.inline_receive { arrived } else { 0 };
                expected.write(Step::PayloadWrite, nic, count, arrived - in_completion, place);
                let completion = if in_completion > IN_ONE_CQE { 2 * CQE } else { CQE };
                expected.write(Step::ReceiveCompletion, nic, count, completion, 0);
            }
        }
        expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cib() -> Profile {
        Profile::built_in("cib").unwrap()
    }

    fn cx3() -> Profile {
        Profile::built_in("cx3").unwrap()
    }

    /// A batch of SENDs over UD by doorbell, unsignaled.
    const SENDS: Requests = Requests {
        verb: Verb::Send,
        transport: Transport::Ud,
        len: 4,
        source: Source::Inline,
        post: Post::Doorbell,
        count: 2,
        signaled: 0,
        inline_receive: false,
        place: 0,
    };

    fn steps(expected: &Expected) -> Vec<(Step, u64, u64)> {
        let of = |(step, all): &(Step, Crossings)| {
            (*step, all.mmio_writes + all.dma_reads + all.dma_writes, all.lines_read + all.lines_written)
        };
        expected.steps().iter().map(of).collect()
    }

    #[test]
    fn two_elements_cross_as_in_figure_4() {
        let by = |post| steps(&Requests { post, ..SENDS }.at_requester(&cib()));
        assert_eq!(by(Post::Mmio), [(Step::WqesByMmio, 4, 0)]);
        assert_eq!(by(Post::Doorbell), [(Step::Doorbell, 1, 0), (Step::WqeFetch, 1, 4)]);
        // An older NIC reads them one by one.
        assert_eq!(steps(&SENDS.at_requester(&cx3())), [(Step::Doorbell, 1, 0), (Step::WqeFetch, 2, 4)]);
    }

    #[test]
    fn a_batch_of_65_byte_elements_crosses_as_in_appendix_a() {
        let batch = Requests { verb: Verb::Write, transport: Transport::Uc, len: 29, count: 10, ..SENDS };
        let bytes = |post| Requests { post, ..batch }.at_requester(&cib()).sum().traffic.to_device.bytes;
        assert_eq!((batch.wqe_len(&cib()), bytes(Post::Mmio), bytes(Post::Doorbell)), (65, 1800, 1534));
    }

    #[test]
    fn optimisations_of_sends_leave_out_what_figure_5_says() {
        let by_memory = Requests { source: Source::Memory, signaled: 2, ..SENDS };
        let all = [(Step::Doorbell, 1, 0), (Step::WqeFetch, 1, 4), (Step::PayloadRead, 2, 2), (Step::Completion, 2, 2)];
        assert_eq!(steps(&by_memory.at_requester(&cib())), all);
        let unsignaled = Requests { signaled: 0, ..by_memory };
        assert_eq!(steps(&unsignaled.at_requester(&cib())), all[..3]);
        assert_eq!(steps(&SENDS.at_requester(&cib())), all[..2], "inline");
        let header_only = Requests { source: Source::Header, ..SENDS };
        assert_eq!(steps(&header_only.at_requester(&cib()))[1], (Step::WqeFetch, 1, 2));
    }

    #[test]
    fn optimisations_of_receives_leave_out_what_figure_6_says() {
        let (fetch, completion) = ((Step::ReceiveFetch, 2, 2), (Step::ReceiveCompletion, 2, 2));
        let at_responder = |requests: Requests| steps(&requests.at_responder(&cx3()));
        assert_eq!(at_responder(SENDS), [fetch, (Step::PayloadWrite, 2, 2), completion]);
        assert_eq!(at_responder(Requests { source: Source::Header, ..SENDS }), [fetch, completion]);
        let inline = Requests { inline_receive: true, ..SENDS };
        assert_eq!(at_responder(inline), [fetch, completion]);
        let long = at_responder(Requests { len: 64, ..inline });
        assert_eq!(long, [fetch, (Step::ReceiveCompletion, 2, 4)], "a completion of two lines");
        // Four elements of receives fill a line, which a NIC that fetches many at once reads at once.
        let four = Requests { count: 4, ..SENDS }.at_responder(&cib());
        assert_eq!(steps(&four)[0], (Step::ReceiveFetch, 1, 1));
    }

    #[test]
    fn memory_verbs_cost_their_responder_one_transaction_and_atomics_two() {
        let rc = Requests { transport: Transport::Rc, count: 1, source: Source::Memory, len: 8, ..SENDS };
        let at = |verb| {
            let sum = Requests { verb, ..rc }.at_responder(&cib()).sum();
            (sum.dma_reads, sum.dma_writes, sum.lines_read, sum.lines_written)
        };
        assert_eq!([at(Verb::Write), at(Verb::Read)], [(0, 1, 0, 1), (1, 0, 1, 0)]);
        assert_eq!([at(Verb::CompareSwap), at(Verb::FetchAdd)], [(1, 1, 1, 1); 2]);
        assert_eq!(steps(&Requests { verb: Verb::WriteWithImmediate, ..rc }.at_responder(&cib())).len(), 3);
        let of_read = Requests { verb: Verb::Read, post: Post::Mmio, signaled: 1, ..rc }.at_requester(&cib());
        assert_eq!(steps(&of_read), [(Step::WqesByMmio, 1, 0), (Step::ResultWrite, 1, 1), (Step::Completion, 1, 1)]);
    }

    #[test]
    fn a_payload_across_the_end_of_a_line_is_two_lines() {
        let lines = |place, len| {
            let write = Requests { verb: Verb::Write, transport: Transport::Rc, place, len, count: 3, ..SENDS };
            write.at_responder(&cib()).sum().lines_written
        };
        assert_eq!([lines(0, 4), lines(62, 4), lines(0, 64), lines(1, 64), lines(0, 0)], [3, 6, 3, 6, 0]);
    }

    #[test]
    fn of_a_batch_each_request_has_its_part() {
        let batch = Requests { count: 16, ..SENDS }.at_requester(&cib()).sum();
        let each = batch.per_request(16);
        assert_eq!((each.mmio_writes, each.dma_reads, each.lines_read), (1.0 / 16.0, 1.0 / 16.0, 2.0));
        let second = each * 100.0;
        assert_eq!((second.lines_read, second.dma_writes, second.dma_reads), (200.0, 0.0, 6.25));
        assert_eq!(each.bytes_to_nic, 150.0 + 34.0 / 16.0);
    }

    #[test]
    fn what_no_nic_could_be_asked_for_is_refused() {
        let (cib, cx3) = (cib(), cx3());
        let rc = Requests { transport: Transport::Rc, ..SENDS };
        for bad in [
            Requests { verb: Verb::Write, ..SENDS },
            Requests { verb: Verb::Read, transport: Transport::Uc, ..SENDS },
            Requests { len: 257, ..SENDS },
            Requests { len: 5, source: Source::Header, ..SENDS },
            Requests { verb: Verb::Write, source: Source::Header, ..rc },
            Requests { verb: Verb::Read, ..rc },
            Requests { verb: Verb::FetchAdd, len: 4, source: Source::Memory, ..rc },
            Requests { len: 4097, source: Source::Memory, ..SENDS },
            Requests { len: usize::MAX, source: Source::Memory, ..rc },
            Requests { inline_receive: true, len: 65, ..SENDS },
            Requests { count: 0, ..SENDS },
            Requests { count: Requests::COUNT_MAX + 1, ..SENDS },
            Requests { signaled: 3, ..SENDS },
        ] {
            assert!(bad.check(&cx3).is_err(), "{bad:?}");
        }
        assert!(Requests { inline_receive: true, ..SENDS }.check(&cib).is_err());
        for good in [
            SENDS,
            Requests { inline_receive: true, len: 64, ..SENDS },
            Requests { len: 4096, source: Source::Memory, ..SENDS },
            Requests { signaled: 2, count: 2, len: 256, ..SENDS },
        ] {
            assert_eq!(good.check(&cx3), Ok(()), "{good:?}");
        }
    }
}
