//! The state of a queue pair in its NIC and driver.

use std::collections::VecDeque;

use sinew_fabric::verbs::{Completion, Gather, Opcode, QpConfig, QpNumber, QpState, Scatter, Status, WorkTable};
use sinew_mem::OwnedRange;

use super::buffers::scatter;
use super::wire::Header;

/// The queue pair at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    /// The node of its NIC.
    pub node: u32,
    pub number: u32,
    /// Its epoch, which tells its connections apart.
    pub epoch: u32,
}

/// The action of a request at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkKind {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
}

impl WorkKind {
    /// Whether it brings a result back.
    pub fn has_result(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd)
    }

    fn opcode(self) -> Opcode {
        match self {
            Self::Send => Opcode::Send,
            Self::Write => Opcode::Write,
            Self::Read => Opcode::Read,
            Self::CompareSwap => Opcode::CompareSwap,
            Self::FetchAdd => Opcode::FetchAdd,
        }
    }
}

/// A work queue element.
#[derive(Debug)]
pub(crate) struct Wqe {
    pub id: u64,
    pub kind: WorkKind,
    pub is_signaled: bool,
    pub is_fenced: bool,
    pub is_solicited: bool,
    pub immediate: Option<u32>,
    /// UD: the receiver, and its key.
    pub destination: Option<(Remote, u32)>,
    pub rkey: u32,
    pub address: u64,
    pub operand: u64,
    pub swap: u64,
    pub len: usize,
    pub inline: Vec<u8>,
    pub sources: Gather,
    pub targets: Scatter,
    /// Memory that it writes from, or reads into.
    pub range: Option<OwnedRange>,
    /// Lines of 64 bytes.
    pub lines: usize,
    /// Whether the NIC has to fetch it.
    pub is_fetched: bool,
    /// Number of elements handed to the NIC before it.
    pub handed_before: u64,
    /// The number of its first packet, once that has been sent.
    pub psn: u32,
    /// Bytes of its result that have arrived.
    pub received: usize,
    /// Whether it was sent and awaits its result, as counted in [`Qp::reads_in_flight`].
    pub is_awaited: bool,
    /// Whether all of its result has arrived, and will soon be in memory.
    pub is_result_complete: bool,
    pub is_completed: bool,
}

impl Wqe {
    /// Number of packets of the request.
    pub fn packets(&self, mtu: usize) -> u32 {
        let len = if self.kind.has_result() && self.kind != WorkKind::Read { 0 } else { self.len };
        len.div_ceil(mtu).max(1) as u32
    }

    /// Whether the NIC reads its bytes from memory.
    pub fn is_gathered(&self) -> bool {
        !self.sources.is_empty() || (self.range.is_some() && !self.kind.has_result())
    }

    /// Appends `len` of its bytes, from `offset` on.
    pub fn copy_source(&self, mut offset: usize, len: usize, to: &mut Vec<u8>) {
        let end = to.len() + len;
        let ranges = self.range.as_deref().into_iter();
        let pieces = self.sources.iter().map(|piece| piece.bytes()).chain(ranges).chain([&self.inline[..]]);
        for bytes in pieces {
            let from = offset.min(bytes.len());
            let take = (bytes.len() - from).min(end - to.len());
            to.extend_from_slice(&bytes[from..from + take]);
            offset -= from;
        }
    }

    /// Puts bytes of its result in its memory.
    pub fn put_result(&mut self, offset: usize, bytes: &[u8]) {
        match &mut self.range {
            Some(range) => {
                let place = range.get_mut(offset..).unwrap_or_default();
                let len = place.len().min(bytes.len());
                place[..len].copy_from_slice(&bytes[..len]);
            }
            None => scatter(&mut self.targets, offset, bytes),
        }
    }

    /// Its completion, with what had moved in. None for an unsignaled success that gives nothing back.
    pub fn complete(&mut self, qp: QpNumber, status: Status) -> Option<Completion> {
        let gives_back = !self.targets.is_empty() || self.range.is_some();
        let needs_completion = self.is_signaled || !status.is_success() || gives_back;
        needs_completion.then(|| Completion {
            id: self.id,
            qp,
            status,
            opcode: self.kind.opcode(),
            len: self.len,
            immediate: None,
            from: None,
            buffers: std::mem::take(&mut self.targets),
            range: self.range.take(),
        })
    }
}

/// A posted receive.
#[derive(Debug)]
pub(crate) struct Receive {
    pub id: u64,
    pub buffers: Scatter,
}

/// A receive that a message is being written to.
#[derive(Debug)]
pub(crate) struct Filling {
    pub receive: Receive,
    /// The message's number, by the order in which messages began.
    pub message: u64,
    /// Bytes of the message that have arrived.
    pub arrived: usize,
}

/// A reply to a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    /// An answer that memory has not given yet.
    Awaited,
    /// An acknowledgement or a refusal, to be sent no earlier than this.
    Ready { header: Header, earliest_ps: u64 },
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub config: QpConfig,
    pub number: QpNumber,
    pub domain: u32,
    pub state: QpState,
    /// Rises with each reset, and with each new queue pair in the same place.
    pub epoch: u32,
    /// The requester and the responder that it is bound to, each from its first work on.
    pub units: [Option<u32>; 2],
    /// The node of the handle that it belongs to.
    pub node: usize,
    pub send_cq: u32,
    pub receive_cq: u32,
    pub remote: Option<Remote>,
    /// Most bytes of a packet's payload that its NIC can send.
    pub nic_mtu: usize,
    /// Most bytes of a packet's payload: the lesser of both NICs' limits.
    pub mtu: usize,

    /// Requests that are not over. Those with numbers below `started` were started by a doorbell, those below `arrived`
    /// are at the NIC, and those below `next` were sent, as was `next` itself up to `offset`.
    pub sends: WorkTable<Wqe>,
    pub started: u64,
    pub arrived: u64,
    pub next: u64,
    pub offset: usize,
    /// Requests before this one have their packets' numbers.
    pub numbered: u64,
    /// Requests before this one are known to have arrived.
    pub acked: u64,
    /// Doorbells whose elements have not arrived.
    pub fetches: u32,
    /// The requests before this one that a core wrote to the NIC itself have arrived.
    pub mmio_arrived: u64,
    /// Whether the element of the next packet had to be fetched again.
    pub wqe_missed: bool,
    /// A request that failed, and its status, to be completed once those before it are over.
    pub failing: Option<(u64, Status)>,
    /// Places of requests that are taken until a completion is polled.
    pub held: usize,
    /// Requests that are over and that no completion has accounted for yet.
    pub unaccounted: usize,
    /// Whether its unit has work for it in its queue.
    pub is_queued: bool,
    /// Whether it waits before it sends again, since its peer was not ready to receive.
    pub in_rnr_backoff: bool,
    pub psn: u32,
    /// READs and atomics in flight.
    pub reads_in_flight: usize,
    /// Packets that wait for a payload to be fetched, their own or an earlier one.
    pub payload_fetches: u32,
    /// When the last of them can be sent.
    pub sendable_ps: u64,
    /// When the last request for a payload reaches memory.
    pub read_issued_ps: u64,
    /// When the last result is in memory.
    pub result_written_ps: u64,
    pub tries: u8,
    pub rnr_tries: u8,
    /// Whether the retransmission timer runs.
    pub is_timed: bool,
    /// Whether anything has come back since the timer began.
    pub has_progress: bool,

    pub receives: VecDeque<Receive>,
    pub receives_held: usize,
    pub expected: u32,
    /// Whether a packet beyond the expected one has already been refused.
    pub has_refused: bool,
    pub filling: VecDeque<Filling>,
    /// Messages that have begun.
    pub messages: u64,
    /// Whether a SEND is being received, and has missed no packet.
    pub in_message: bool,
    /// UC: whether the next packet may continue a message.
    pub continues_message: bool,
    /// Whether a message was too long: all packets after it are dropped.
    pub drops_all: bool,
    /// Time at which everything that the peer has written is in memory.
    pub visible_ps: u64,
    /// Time at which memory is read for the last of the peer's requests.
    pub read_ps: u64,
    /// Replies to the peer, in order. All wait behind an answer that memory has not given yet.
    pub replies: VecDeque<Reply>,
    /// The last atomics: the number of the packet, and the word that was there before.
    pub atomics: VecDeque<(u32, u64)>,
}

impl Qp {
    pub fn new(config: QpConfig, number: QpNumber, domain: u32, node: usize, mtu: usize, queues: [u32; 2]) -> Self {
        Self {
            config,
            number,
            domain,
            state: QpState::Reset,
            epoch: 0,
            units: [None; 2],
            node,
            send_cq: queues[0],
            receive_cq: queues[1],
            remote: None,
            nic_mtu: mtu,
            mtu,
            sends: WorkTable::new(config.send_depth),
            started: 0,
            arrived: 0,
            next: 0,
            offset: 0,
            numbered: 0,
            acked: 0,
            fetches: 0,
            mmio_arrived: 0,
            wqe_missed: false,
            failing: None,
            held: 0,
            unaccounted: 0,
            is_queued: false,
            in_rnr_backoff: false,
            psn: 0,
            reads_in_flight: 0,
            payload_fetches: 0,
            sendable_ps: 0,
            read_issued_ps: 0,
            result_written_ps: 0,
            tries: 0,
            rnr_tries: 0,
            is_timed: false,
            has_progress: false,
            receives: VecDeque::new(),
            receives_held: 0,
            expected: 0,
            has_refused: false,
            filling: VecDeque::new(),
            messages: 0,
            in_message: false,
            continues_message: false,
            drops_all: false,
            visible_ps: 0,
            read_ps: 0,
            replies: VecDeque::new(),
            atomics: VecDeque::new(),
        }
    }

    /// Resets it to a new state, except for its number and for the places that are held until completions are polled.
    /// Places that no completion will account for become free.
    pub fn reset(&mut self) {
        let Self { config, number, domain, units, node, send_cq, receive_cq, nic_mtu, .. } = *self;
        let (epoch, held, receives_held) =
            (self.epoch.wrapping_add(1), self.held - self.unaccounted, self.receives_held);
        *self = Self {
            epoch,
            units,
            held,
            receives_held,
            ..Self::new(config, number, domain, node, nic_mtu, [send_cq, receive_cq])
        };
    }

    /// Whether it accepts packets from this queue pair.
    pub fn accepts(&self, remote: Remote) -> bool {
        matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend)
            && (!self.config.transport.is_connected()
                || self.remote.is_some_and(|peer| (peer.node, peer.number) == (remote.node, remote.number)))
    }

    /// Assigns a receive to a message that begins, or to a WRITE with immediate.
    pub fn fill(&mut self, receive: Receive) {
        self.filling.push_back(Filling { receive, message: self.messages, arrived: 0 });
        self.messages += 1;
    }

    /// Abandons the message that is being received, if any: the next message has its receive.
    pub fn end_message(&mut self) {
        if std::mem::take(&mut self.in_message)
            && let Some(filling) = self.filling.pop_back()
        {
            self.receives.push_front(filling.receive);
        }
    }

    /// Returns when a write that reaches memory by `at_ps` is seen: no earlier than the writes before it, which the bus
    /// may have finished later.
    pub fn order_write(&mut self, at_ps: u64) -> u64 {
        self.visible_ps = self.visible_ps.max(at_ps);
        self.visible_ps
    }

    /// Returns when memory is read for a request that reaches it by `at_ps`: no earlier than for the requests before
    /// it, and, for a request's first part, once all writes before it are seen.
    pub fn order_read(&mut self, at_ps: u64, is_first: bool) -> u64 {
        let after_ps = if is_first { self.visible_ps } else { 0 };
        self.read_ps = self.read_ps.max(at_ps).max(after_ps);
        self.read_ps
    }

    /// Whether it can send a packet now.
    pub fn can_send(&mut self, reads_max: usize) -> bool {
        if self.state != QpState::ReadyToSend || self.in_rnr_backoff {
            return false;
        }
        // A request to be retransmitted may be over by now: retired already, or waiting behind one that is not over.
        if self.next < self.sends.oldest() {
            (self.next, self.offset) = (self.sends.oldest(), 0);
        }
        let is_done = |wqe: &mut Wqe| wqe.is_completed || wqe.is_result_complete;
        while self.next < self.arrived && self.sends.get_mut(self.next).is_some_and(is_done) {
            (self.next, self.offset) = (self.next + 1, 0);
        }
        // Requests before a failed one must end first, and may have to be retransmitted for that.
        let end = self.failing.map_or(self.arrived, |(number, _)| number.min(self.arrived));
        if self.next >= end {
            return false;
        }
        let (reading, offset, next) = (self.reads_in_flight, self.offset, self.next);
        let Some(wqe) = self.sends.get_mut(next) else { return false };
        offset > 0 || !(wqe.is_fenced && reading > 0 || wqe.kind.has_result() && reading >= reads_max)
    }
}
