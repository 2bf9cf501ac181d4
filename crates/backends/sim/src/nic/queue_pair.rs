//! What a NIC, and its driver, know of a queue pair.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use sinew_fabric::verbs::{
    Completion, GATHER_MAX, Opcode, QpConfig, QpNumber, QpState, Scatter, Slice, Status, WorkTable,
};

use super::wire::Header;

/// The queue pair at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    /// The node of its NIC.
    pub node: u32,
    pub number: u32,
    /// Which of the connections that it had one after another.
    pub epoch: u32,
}

/// What a request does at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
}

impl Doing {
    pub fn brings(self) -> bool {
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
    pub doing: Doing,
    pub is_signaled: bool,
    pub is_fenced: bool,
    pub is_solicited: bool,
    pub immediate: Option<u32>,
    /// UD: whom to, and the key.
    pub to: Option<(Remote, u32)>,
    pub rkey: u32,
    pub address: u64,
    pub operand: u64,
    pub swap: u64,
    pub len: usize,
    pub inline: Vec<u8>,
    pub sources: ArrayVec<Slice, GATHER_MAX>,
    pub targets: Scatter,
    /// Lines of 64 bytes.
    pub lines: usize,
    /// Whether the NIC has to fetch it.
    pub is_fetched: bool,
    /// How many elements the NIC was given before it.
    pub born: u64,
    /// The number of its first packet, once it was sent.
    pub psn: u32,
    /// Bytes of its result that have come.
    pub received: usize,
    /// Whether it was sent and its result has not come: it is among those of [`Qp::reading`].
    pub is_awaited: bool,
    /// Whether all of its result has come, to be in memory soon.
    pub is_brought: bool,
    pub is_over: bool,
}

impl Wqe {
    /// Packets of a message of so many bytes.
    pub fn packets(&self, mtu: usize) -> u32 {
        let len = if self.doing.brings() && self.doing != Doing::Read { 0 } else { self.len };
        len.div_ceil(mtu).max(1) as u32
    }

    /// Its completion, which has its targets; none where nobody needs to hear of it.
    pub fn complete(&mut self, qp: QpNumber, status: Status) -> Option<Completion> {
        let is_told = self.is_signaled || !status.is_success() || !self.targets.is_empty();
        is_told.then(|| Completion {
            id: self.id,
            qp,
            status,
            opcode: self.doing.opcode(),
            len: self.len,
            immediate: None,
            from: None,
            buffers: std::mem::take(&mut self.targets),
        })
    }
}

/// A receive that was posted.
#[derive(Debug)]
pub(crate) struct Receive {
    pub id: u64,
    pub buffers: Scatter,
}

/// A receive that a message is being written to.
#[derive(Debug)]
pub(crate) struct Filling {
    pub receive: Receive,
    /// Which message, of those that began.
    pub message: u64,
    /// Bytes of it that have come.
    pub arrived: usize,
}

/// What goes back to a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    /// An answer that is not there yet.
    Awaited,
    /// An acknowledgement, or a refusal, that goes at this time at the earliest.
    Told { header: Header, goes_ps: u64 },
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub config: QpConfig,
    pub number: QpNumber,
    pub domain: u32,
    pub state: QpState,
    /// Goes up with each reset, and from one queue pair to the next that has its place.
    pub epoch: u32,
    /// The units that it is bound to, a requester and a responder, once there was work for them.
    pub units: [Option<u32>; 2],
    /// The handle that it belongs to, and its completion queues.
    pub node: usize,
    pub send_cq: u32,
    pub receive_cq: u32,
    pub remote: Option<Remote>,
    /// Bytes of its packets at most, which are what its NIC can have, and its peer's.
    pub nic_mtu: usize,
    pub mtu: usize,

    /// Requests that are not over. Of them the first `started` numbers were started by a doorbell, the first `arrived` are at the NIC, and those before
    /// `next` were sent, `next` itself up to `offset`.
    pub sends: WorkTable<Wqe>,
    pub started: u64,
    pub arrived: u64,
    pub next: u64,
    pub offset: usize,
    /// Before this one, requests have the numbers of their packets; before that one, their arrival is known.
    pub numbered: u64,
    pub acked: u64,
    /// Doorbells whose elements have not come, and the last element that a core wrote itself.
    pub fetches: u32,
    pub early: u64,
    /// Whether the element at hand had to be fetched again.
    pub is_missed: bool,
    /// A request that failed, and how: told once those before it are over.
    pub failing: Option<(u64, Status)>,
    /// Requests whose places are held, and of those that are over, how many no completion has told of.
    pub held: usize,
    pub untold: usize,
    /// Whether a unit has work for it.
    pub is_queued: bool,
    /// Whether it must not send before a while.
    pub is_resting: bool,
    pub psn: u32,
    /// READs and atomics on their way.
    pub reading: usize,
    /// Payloads that are being fetched, and when the last of them is there.
    pub fetching: u32,
    pub sent_ps: u64,
    /// When the last of their requests is at the memory, and when the last result is there.
    pub asked_ps: u64,
    pub brought_ps: u64,
    pub tries: u8,
    pub not_ready_tries: u8,
    /// Whether a timer runs, and whether anything has come back since it began.
    pub is_timed: bool,
    pub has_progress: bool,

    pub receives: VecDeque<Receive>,
    pub receives_held: usize,
    pub expected: u32,
    /// Whether what is behind the expected packet was refused already.
    pub has_refused: bool,
    pub filling: VecDeque<Filling>,
    /// Messages that began.
    pub messages: u64,
    /// Whether a SEND is being received, of which no packet was missed.
    pub in_message: bool,
    /// UC: whether what comes next goes on with a message.
    pub goes_on: bool,
    /// Whether a message was too long: nothing is heard from then on.
    pub is_deaf: bool,
    /// When what others brought is in memory, and when the last that they asked of memory is asked.
    pub visible_ps: u64,
    pub read_ps: u64,
    /// What goes back to the peer, in order, behind an answer that memory has not given yet.
    pub replies: VecDeque<Reply>,
    /// The last atomics: number of the packet, and the word that was there.
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
            early: 0,
            is_missed: false,
            failing: None,
            held: 0,
            untold: 0,
            is_queued: false,
            is_resting: false,
            psn: 0,
            reading: 0,
            fetching: 0,
            sent_ps: 0,
            asked_ps: 0,
            brought_ps: 0,
            tries: 0,
            not_ready_tries: 0,
            is_timed: false,
            has_progress: false,
            receives: VecDeque::new(),
            receives_held: 0,
            expected: 0,
            has_refused: false,
            filling: VecDeque::new(),
            messages: 0,
            in_message: false,
            goes_on: false,
            is_deaf: false,
            visible_ps: 0,
            read_ps: 0,
            replies: VecDeque::new(),
            atomics: VecDeque::new(),
        }
    }

    /// As if it were new, but for its number and for the places that are held until completions are polled. Those that no completion tells of are free.
    pub fn reset(&mut self) {
        let Self { config, number, domain, units, node, send_cq, receive_cq, nic_mtu, .. } = *self;
        let (epoch, held, receives_held) = (self.epoch.wrapping_add(1), self.held - self.untold, self.receives_held);
        *self = Self {
            epoch,
            units,
            held,
            receives_held,
            ..Self::new(config, number, domain, node, nic_mtu, [send_cq, receive_cq])
        };
    }

    /// Whether it takes what comes from this queue pair.
    pub fn hears(&self, remote: Remote) -> bool {
        matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend)
            && (!self.config.transport.is_connected()
                || self.remote.is_some_and(|peer| (peer.node, peer.number) == (remote.node, remote.number)))
    }

    /// A message that begins, or a WRITE with immediate, takes a receive.
    pub fn fill(&mut self, receive: Receive) {
        self.filling.push_back(Filling { receive, message: self.messages, arrived: 0 });
        self.messages += 1;
    }

    /// The rest of the message that is being received, if one is, does not come: the next has its receive.
    pub fn end_message(&mut self) {
        if std::mem::take(&mut self.in_message)
            && let Some(filling) = self.filling.pop_back()
        {
            self.receives.push_front(filling.receive);
        }
    }

    /// When what the bus has written by `at_ps` is seen: not before what came earlier, which the bus may have written later.
    pub fn seen_ps(&mut self, at_ps: u64) -> u64 {
        self.visible_ps = self.visible_ps.max(at_ps);
        self.visible_ps
    }

    /// When memory is asked what a request reads, which is there by `at_ps`: behind what came earlier.
    pub fn looks_ps(&mut self, at_ps: u64, is_first: bool) -> u64 {
        let after_ps = if is_first { self.visible_ps } else { 0 };
        self.read_ps = self.read_ps.max(at_ps).max(after_ps);
        self.read_ps
    }

    /// Whether it can send a packet now.
    pub fn can_send(&mut self, reads_max: usize) -> bool {
        if self.state != QpState::ReadyToSend || self.is_resting {
            return false;
        }
        // What is to be sent again may be over meanwhile, and told of, or over behind something that is not.
        if self.next < self.sends.oldest() {
            (self.next, self.offset) = (self.sends.oldest(), 0);
        }
        let is_done = |wqe: &mut Wqe| wqe.is_over || wqe.is_brought;
        while self.next < self.arrived && self.sends.get_mut(self.next).is_some_and(is_done) {
            (self.next, self.offset) = (self.next + 1, 0);
        }
        // What is before a request that failed has to be over, for which it may have to be sent again.
        let end = self.failing.map_or(self.arrived, |(number, _)| number.min(self.arrived));
        if self.next >= end {
            return false;
        }
        let (reading, offset, next) = (self.reading, self.offset, self.next);
        let Some(wqe) = self.sends.get_mut(next) else { return false };
        offset > 0 || !(wqe.is_fenced && reading > 0 || wqe.doing.brings() && reading >= reads_max)
    }
}
