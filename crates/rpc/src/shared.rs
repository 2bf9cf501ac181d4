//! What the roles of an endpoint share: its limits, its memory, its peers, the time, and what waits to be sent.

use std::num::NonZeroU64;

use sinew_fabric::{Generator, PACKET_LEN_MIN, PacketTx, Peer, TxData, TxPacket};
use sinew_mem::{AllocError, Arena, MessageBuffer};
use sinew_wire::HEADER_LEN;
use sinew_wire::management::{CONNECT_LEN, Management};

use crate::config::Config;
use crate::congestion::Pacing;
use crate::peers::{Forgotten, Peers};
use crate::recovery::Timeout;
use crate::stats::Stats;
use crate::transmit::TxItem;

/// A look at the deadlines of so many calls is followed by a rest of this long for each, some twenty times what the look takes.
const DEADLINE_REST_NS: u64 = 100;
const _: () = assert!(HEADER_LEN == sinew_mem::HEADER_ROOM);
/// Packets smaller than this are a way to make us do work, not to talk.
pub(crate) const DATA_PER_PACKET_MIN: u32 = 64;
// On every port a session can open.
const _: () = assert!(PACKET_LEN_MIN >= CONNECT_LEN && PACKET_LEN_MIN >= HEADER_LEN + DATA_PER_PACKET_MIN as usize);

/// Message buffers are laid out so that they can be sent in packets of this size, that of an Ethernet frame, or larger. Layers around
/// the port take their part of it.
const DATA_PER_PACKET_LAID_OUT: usize = 1448;

/// What the port below can do, as far as the protocol cares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub copy_len_max: usize,
    pub packet_len_max: usize,
    /// What layers add to each packet.
    pub overhead: usize,
    pub receive_packets: u64,
    pub receive_packets_per_peer: u64,
}

pub(crate) struct Shared {
    /// The time of this turn, or of the burst that is being taken in.
    pub now_ns: u64,
    pub transmit: Vec<TxItem>,
    /// Packets that are no call's, as they go.
    pub outbox: Vec<(Peer, Management)>,
    pub peers: Peers,
    pub stats: Stats,
    pub config: Config,
    pub link: Link,
    pub arena: Arena,
    pub pacing: Pacing,
    /// Whether there is more to do for a call that is enqueued than to enqueue it: somebody sleeps, or the time matters.
    pub heeds_calls: bool,
    /// Whether round trips are measured.
    pub times_calls: bool,
    pub generator: Box<dyn Generator>,
    /// Receive capacity committed to sessions, in packets.
    pub committed_packets: u64,
    /// When deadlines of calls, in either role, are looked at; `u64::MAX` without any.
    pub deadlines_due_ns: u64,
    /// When the loop next looks at deadlines, late answers and silent peers, whichever is first: one comparison a turn for all.
    pub timers_due_ns: u64,
    /// Not before then: many calls with deadlines close to each other must not be looked at all the time.
    deadlines_rest_ns: u64,
    /// Peers that nothing connects us to any more, for the port to hear of.
    pub forgotten: Vec<Forgotten>,
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
            heeds_calls: config.congestion.is_some(),
            times_calls: config.congestion.is_some() || config.timeout == Timeout::Adaptive,
            config,
            link,
            arena,
            generator,
            committed_packets: 0,
            deadlines_due_ns: u64::MAX,
            timers_due_ns: 0,
            deadlines_rest_ns: 0,
            forgotten: Vec::new(),
        }
    }

    /// Makes a message buffer for this endpoint.
    pub fn alloc(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        self.arena.alloc(len, self.data_per_packet_laid_out())
    }

    pub fn data_per_packet_laid_out(&self) -> usize {
        let of_a_frame = DATA_PER_PACKET_LAID_OUT.saturating_sub(self.link.overhead).max(DATA_PER_PACKET_MIN as usize);
        (self.link.packet_len_max - HEADER_LEN).min(of_a_frame)
    }

    /// The longest data that goes, behind its header, as one piece that the port copies.
    pub fn copied_data_max(&self) -> usize {
        self.link.copy_len_max - HEADER_LEN
    }

    /// Notes when a call's caller waits no longer.
    #[inline(always)]
    pub fn note_deadline(&mut self, deadline_ns: Option<NonZeroU64>) {
        if let Some(deadline_ns) = deadline_ns {
            self.deadlines_due_ns = self.deadlines_due_ns.min(deadline_ns.get().max(self.deadlines_rest_ns));
            self.timers_due_ns = self.timers_due_ns.min(self.deadlines_due_ns);
        }
    }

    /// All deadlines were looked at, among so many calls; the next is at `next_ns`.
    pub fn looked_at_deadlines(&mut self, calls: usize, next_ns: Option<u64>) {
        self.deadlines_rest_ns = self.now_ns + calls as u64 * DEADLINE_REST_NS;
        self.deadlines_due_ns = u64::MAX;
        self.note_deadline(next_ns.and_then(NonZeroU64::new));
    }

    /// What one peer may have of `total`: at least one.
    pub fn share_of(&self, total: u64) -> u64 {
        let share = u128::from(total) * u128::from(self.config.peer_share_percent) / 100;
        (share as u64).max(1)
    }

    /// Bytes of the arena that one peer may have.
    pub fn memory_share(&self) -> usize {
        self.share_of(self.arena.capacity() as u64) as usize
    }

    /// Queues a packet that is no call's.
    pub fn send(&mut self, to: Peer, packet: Management) {
        self.outbox.push((to, packet));
    }

    /// Pushes the packets that are no call's.
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
