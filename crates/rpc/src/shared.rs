//! State that the roles of an endpoint share: its limits, its memory, its peers, the time, and the packets that wait to
//! be sent.

use std::num::NonZeroU64;

use sinew_fabric::{Generator, PACKET_LEN_MIN, PacketTx, Peer, TxData, TxPacket};
use sinew_mem::{AllocError, Arena, MessageBuffer};
use sinew_wire::HEADER_LEN;
use sinew_wire::management::{CONNECT_LEN, Management};

use crate::config::Config;
use crate::congestion::Pacing;
use crate::peers::{ForgottenPeer, Peers};
use crate::recovery::Timeout;
use crate::stats::Stats;
use crate::transmit::TxItem;

/// Pause after checking deadlines, for each call that was checked, in ns. It is some twenty times what the check of one
/// call takes.
const DEADLINE_PAUSE_NS: u64 = 100;
const _: () = assert!(HEADER_LEN == sinew_mem::HEADER_ROOM);
/// Smallest data per packet that we accept, in bytes: smaller packets only make work for us.
pub(crate) const DATA_PER_PACKET_MIN: u32 = 64;
// A session can open on every port.
const _: () = assert!(PACKET_LEN_MIN >= CONNECT_LEN && PACKET_LEN_MIN >= HEADER_LEN + DATA_PER_PACKET_MIN as usize);

/// Data per packet in the layout of message buffers, in bytes: that of an Ethernet frame. A buffer can be sent in
/// packets of this size or larger. Layers around the port take their overhead out of it.
const DATA_PER_PACKET_LAID_OUT: usize = 1448;

/// Properties of the port that matter to the protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub copy_len_max: usize,
    pub packet_len_max: usize,
    /// Bytes that layers add to each packet.
    pub overhead: usize,
    pub receive_packets: u64,
    pub receive_packets_per_peer: u64,
}

pub(crate) struct Shared {
    /// The time of this turn, or of the burst that is being handled.
    pub now_ns: u64,
    pub transmit: Vec<TxItem>,
    /// Packets that belong to no call, ready to be sent.
    pub outbox: Vec<(Peer, Management)>,
    pub peers: Peers,
    pub stats: Stats,
    pub config: Config,
    pub link: Link,
    pub arena: Arena,
    pub pacing: Pacing,
    /// Whether enqueueing a call takes further work: a thread sleeps on the endpoint, or pacing needs the time.
    pub enqueue_needs_work: bool,
    /// Whether round trips are measured.
    pub times_calls: bool,
    pub generator: Box<dyn Generator>,
    /// Receive capacity committed to sessions, in packets.
    pub committed_packets: u64,
    /// When the deadlines of calls, in either role, are next checked; `u64::MAX` if there are none.
    pub deadlines_due_ns: u64,
    /// When the loop next checks deadlines, late answers and silent peers, whichever is first: one comparison per turn
    /// covers all.
    pub timers_due_ns: u64,
    /// Earliest time of the next check of deadlines: many calls with deadlines close to each other must not be checked
    /// all the time.
    deadlines_not_before_ns: u64,
    /// Peers that no session connects us to any more; the port is to be told.
    pub forgotten: Vec<ForgottenPeer>,
}

impl Shared {
    pub fn new(config: Config, link: Link, arena: Arena, generator: Box<dyn Generator>, now_ns: u64) -> Self {
        Self {
            now_ns,
            transmit: Vec::with_capacity(1024),
            outbox: Vec::new(),
            peers: Peers::default(),
            stats: Stats::default(),
            pacing: Pacing::new(config.congestion, now_ns),
            enqueue_needs_work: config.congestion.is_some(),
            times_calls: config.congestion.is_some() || config.timeout == Timeout::Adaptive,
            config,
            link,
            arena,
            generator,
            committed_packets: 0,
            deadlines_due_ns: u64::MAX,
            timers_due_ns: 0,
            deadlines_not_before_ns: 0,
            forgotten: Vec::new(),
        }
    }

    /// Allocates a message buffer of this endpoint.
    pub fn alloc(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        self.arena.alloc(len, self.data_per_packet_laid_out())
    }

    pub fn data_per_packet_laid_out(&self) -> usize {
        let frame_data_len =
            DATA_PER_PACKET_LAID_OUT.saturating_sub(self.link.overhead).max(DATA_PER_PACKET_MIN as usize);
        (self.link.packet_len_max - HEADER_LEN).min(frame_data_len)
    }

    /// Longest data that can go, behind its header, in one piece that the port copies, in bytes.
    pub fn copied_data_max(&self) -> usize {
        self.link.copy_len_max - HEADER_LEN
    }

    /// Notes the time at which a call's caller stops waiting.
    #[inline(always)]
    pub fn note_deadline(&mut self, deadline_ns: Option<NonZeroU64>) {
        if let Some(deadline_ns) = deadline_ns {
            self.deadlines_due_ns = self.deadlines_due_ns.min(deadline_ns.get().max(self.deadlines_not_before_ns));
            self.timers_due_ns = self.timers_due_ns.min(self.deadlines_due_ns);
        }
    }

    /// Notes that all deadlines were checked, among `calls` calls, and that the next one is at `next_ns`.
    pub fn note_deadlines_checked(&mut self, calls: usize, next_ns: Option<u64>) {
        self.deadlines_not_before_ns = self.now_ns + calls as u64 * DEADLINE_PAUSE_NS;
        self.deadlines_due_ns = u64::MAX;
        self.note_deadline(next_ns.and_then(NonZeroU64::new));
    }

    /// The part of `total` that one peer may have, at least 1.
    pub fn share_of(&self, total: u64) -> u64 {
        let share = u128::from(total) * u128::from(self.config.peer_share_percent) / 100;
        (share as u64).max(1)
    }

    /// Bytes of the arena that one peer may have.
    pub fn memory_share(&self) -> usize {
        self.share_of(self.arena.capacity() as u64) as usize
    }

    /// Queues a packet that belongs to no call.
    pub fn send(&mut self, to: Peer, packet: Management) {
        self.outbox.push((to, packet));
    }

    /// Pushes the packets that belong to no call.
    #[cold]
    pub fn send_outbox(&mut self, tx: &mut impl PacketTx) {
        for (to, packet) in self.outbox.drain(..) {
            tx.push(TxPacket { to, head: packet.as_bytes(), data: TxData::None });
        }
    }

    /// Whether anything waits to be sent.
    #[inline]
    pub fn has_output(&self) -> bool {
        !self.transmit.is_empty() || !self.outbox.is_empty()
    }
}
