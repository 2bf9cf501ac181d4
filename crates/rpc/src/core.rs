//! The protocol core: what arrives goes in, what must be sent comes out. No port, no clock, no thread.
//!
//! One file per role: [`crate::client`] for calls that we make, [`crate::server`] for calls that we answer,
//! [`crate::management`] for sessions and peers. This one holds what they share and sorts packets among them.

use std::collections::VecDeque;
use std::sync::Arc;

use arrayvec::ArrayVec;
use sinew_fabric::{Clock, Generator, MAX_BURST, PacketTx, Peer, RxBurst, RxPacket, TxPacket};
use sinew_mem::{AllocError, Arena, MessageBuffer};
use sinew_wire::management::Management;
use sinew_wire::{HEADER_LEN, Header, HeaderError, Kind, SessionKey};

use crate::call::{BurstEntry, Returns};
use crate::client::{Clients, Completion};
use crate::config::Config;
use crate::congestion::Pacing;
use crate::management::{CookieJar, SessionEvent};
use crate::nexus::Handlers;
use crate::peers::Peers;
use crate::recovery::Timeout;
use crate::server::Servers;
use crate::stats::{PacketDrop, Stats};

const _: () = assert!(HEADER_LEN == sinew_mem::HEADER_ROOM);

/// Message buffers are laid out so that they can be sent in packets of this size, that of an Ethernet frame, or larger.
const DATA_PER_PACKET_LAID_OUT: usize = 1448;

/// From this many sessions on their state no longer stays in the nearest caches, and prefetching it pays.
const PREFETCH_FROM_SESSIONS: usize = 256;

/// What a packet waiting for the transmit burst is. It names state, and is made from that state when it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxKind {
    Request,
    RequestForResponse,
    Response,
    CreditReturn,
    InProgress,
    CallError,
    CongestionNotice,
}

/// A run of packets waiting for the transmit burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxItem {
    pub kind: TxKind,
    pub slot: u8,
    pub first: u16,
    pub count: u16,
    pub session: u32,
    /// Low bits of the request number, by which an item that outlived its call is known.
    pub number_low: u32,
    /// Whether it was sent before, or answers what was.
    pub is_copy: bool,
}

impl TxItem {
    /// The numbers of its packets. The last can be the largest that there is, so their end is none.
    #[inline(always)]
    pub fn numbers(&self) -> impl Iterator<Item = u16> + use<> {
        let first = self.first;
        (0..self.count).map(move |offset| first + offset)
    }
}

/// What the port below can do, as far as the protocol cares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub copy_len_max: usize,
    pub packet_len_max: usize,
    pub receive_packets: u64,
    pub receive_packets_per_peer: u64,
}

/// The state of one endpoint.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) link: Link,
    pub(crate) arena: Arena,
    pub(crate) generator: Box<dyn Generator>,
    pub(crate) now_ns: u64,
    pub(crate) clients: Clients,
    pub(crate) servers: Servers,
    pub(crate) peers: Peers,
    pub(crate) cookies: CookieJar,
    pub(crate) pacing: Pacing,
    /// Whether round trips are measured.
    pub(crate) times_calls: bool,
    pub(crate) transmit: Vec<TxItem>,
    pub(crate) management: Vec<(Peer, Management)>,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) events: VecDeque<SessionEvent>,
    /// Peers that nothing connects us to any more, for the port to forget.
    pub(crate) forgotten: Vec<Peer>,
    pub(crate) returns: Arc<Returns>,
    pub(crate) stats: Stats,
    pub(crate) committed_packets: u64,
    pub(crate) next_manage_ns: u64,
    pub(crate) last_turn_ns: u64,
    /// Whether the last turn found nothing to do.
    pub(crate) was_idle: bool,
    pub(crate) closing: bool,
}

impl Core {
    pub(crate) fn new(
        config: Config,
        link: Link,
        arena: Arena,
        mut generator: Box<dyn Generator>,
        returns: Arc<Returns>,
        now_ns: u64,
    ) -> Self {
        Self {
            clients: Clients::new(&config, now_ns),
            servers: Servers::new(&config),
            cookies: CookieJar::new(&mut *generator),
            pacing: Pacing::new(config.congestion, now_ns),
            times_calls: config.congestion.is_some() || config.timeout == Timeout::Adaptive,
            config,
            link,
            arena,
            generator,
            now_ns,
            peers: Peers::default(),
            transmit: Vec::with_capacity(1024),
            management: Vec::new(),
            completions: VecDeque::with_capacity(1024),
            events: VecDeque::new(),
            forgotten: Vec::new(),
            returns,
            stats: Stats::default(),
            committed_packets: 0,
            next_manage_ns: now_ns,
            last_turn_ns: now_ns,
            was_idle: true,
            closing: false,
        }
    }

    /// Makes a message buffer for this endpoint.
    pub(crate) fn alloc(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        self.arena.alloc(len, self.data_per_packet_laid_out())
    }

    pub(crate) fn data_per_packet_laid_out(&self) -> usize {
        (self.link.packet_len_max - HEADER_LEN).min(DATA_PER_PACKET_LAID_OUT)
    }

    /// Takes in a received burst: answers go to the transmit queue, requests to their handlers.
    pub(crate) fn handle_burst(&mut self, burst: &RxBurst<'_>, handlers: &mut Handlers, clock: &dyn Clock) {
        if self.config.tuning.prefetch_sessions
            && self.clients.table.len() + self.servers.table.len() > PREFETCH_FROM_SESSIONS
        {
            self.prefetch(burst);
        }
        let mut batched: ArrayVec<BurstEntry<'_>, MAX_BURST> = ArrayVec::new_const();
        for packet in &burst.packets {
            if !self.config.tuning.batched_clock {
                self.now_ns = clock.now_ns();
            }
            if let Err(reason) = self.handle_packet(packet, handlers, &mut batched) {
                self.stats.count_drop(reason);
            }
        }
        if !batched.is_empty() {
            handlers.run_bursts(self, batched);
        }
        if burst.marked != 0 {
            self.note_marks(burst);
        }
    }

    /// Slows sessions of ours whose packets met long queues, and tells clients of theirs.
    #[cold]
    fn note_marks(&mut self, burst: &RxBurst<'_>) {
        let marked = burst.packets.iter().enumerate().filter(|(at, _)| burst.marked & 1 << at != 0);
        for (_, packet) in marked {
            let Ok(header) = Header::read(packet.head) else { continue };
            match header.kind {
                Kind::Request | Kind::RequestForResponse => self.queue_congestion_notice(&header, packet),
                Kind::Response | Kind::CreditReturn => {
                    if let Ok(index) = Self::checked(&self.clients.table, header.session, packet.from) {
                        self.marked(index);
                    }
                }
                _ => {}
            }
        }
    }

    #[inline]
    fn handle_packet<'a>(
        &mut self,
        packet: &'a RxPacket<'a>,
        handlers: &mut Handlers,
        batched: &mut ArrayVec<BurstEntry<'a>, MAX_BURST>,
    ) -> Result<(), PacketDrop> {
        let header = Header::read(packet.head).map_err(|error| match error {
            HeaderError::Truncated => PacketDrop::Truncated,
            HeaderError::WrongMagic => PacketDrop::WrongMagic,
            HeaderError::WrongVersion(_) => PacketDrop::WrongVersion,
            HeaderError::UnknownKind(_) => PacketDrop::UnknownKind,
        })?;
        match header.kind {
            Kind::Request => self.on_request(&header, packet, handlers, batched),
            Kind::Response => self.on_response(&header, packet),
            Kind::CreditReturn => self.on_credit_return(&header, packet),
            Kind::RequestForResponse => self.on_request_for_response(&header, packet),
            Kind::InProgress => self.on_in_progress(&header, packet),
            Kind::CallError => self.on_call_error(&header, packet),
            Kind::CongestionNotice => self.on_congestion_notice(&header, packet),
            _ => self.on_management(&header, packet),
        }
    }

    /// Starts the memory reads that handling the burst will need, all at once (with 20,000 sessions they miss the caches).
    fn prefetch(&self, burst: &RxBurst<'_>) {
        for packet in &burst.packets {
            let Ok(header) = Header::read(packet.head) else { continue };
            match header.kind {
                Kind::Request | Kind::RequestForResponse => {
                    self.servers.table.prefetch(header.session, header.request_number);
                }
                _ => self.clients.table.prefetch(header.session, header.request_number),
            }
        }
        // The slots lead on to the buffers that responses will be written to: their reads overlap in turn.
        for packet in &burst.packets {
            match Header::read(packet.head) {
                Ok(header) if header.kind == Kind::Request => self.prefetch_response(&header),
                _ => {}
            }
        }
    }

    /// Whether [`Self::transmit`] has anything to send.
    #[inline]
    pub(crate) fn has_output(&self) -> bool {
        !self.transmit.is_empty() || !self.management.is_empty()
    }

    /// Whether the loop, or the endpoint's user, has something to do already.
    pub(crate) fn has_work(&self) -> bool {
        self.has_output()
            || !self.completions.is_empty()
            || !self.clients.reclaiming.is_empty()
            || self.returns.waiting()
    }

    /// Pushes everything that waits, as one burst. Its submission is the caller's.
    pub(crate) fn transmit(&mut self, tx: &mut impl PacketTx) {
        let items = std::mem::take(&mut self.transmit);
        for item in &items {
            match item.kind {
                TxKind::Request => self.send_requests(item, tx),
                TxKind::RequestForResponse => self.send_request_for_response(item, tx),
                TxKind::Response => self.send_responses(item, tx),
                TxKind::CreditReturn | TxKind::InProgress | TxKind::CallError | TxKind::CongestionNotice => {
                    self.send_server_note(item, tx);
                }
            }
        }
        self.transmit = items;
        self.transmit.clear();
        for (to, packet) in self.management.drain(..) {
            tx.push(TxPacket { to, head: packet.as_bytes(), data: sinew_fabric::TxData::None });
        }
    }

    /// Finds the session of a packet in one of the tables and checks that it comes from the session's peer.
    #[inline(always)]
    pub(crate) fn checked<E: crate::table::Keyed + HasPeer + Default, S: Default>(
        table: &crate::table::Table<E, S>,
        key: SessionKey,
        from: Peer,
    ) -> Result<usize, PacketDrop> {
        let index = table.find(key).ok_or(PacketDrop::UnknownSession)?;
        if table.entries[index].peer() == from { Ok(index) } else { Err(PacketDrop::WrongSource) }
    }
}

pub(crate) trait HasPeer {
    fn peer(&self) -> Peer;
}

/// The data of packet `number` of a message is this range.
#[inline(always)]
pub(crate) fn packet_range(message_len: usize, data_per_packet: usize, number: usize) -> std::ops::Range<usize> {
    let start = (number * data_per_packet).min(message_len);
    start..(start + data_per_packet).min(message_len)
}

/// Packets of a message.
#[inline(always)]
pub(crate) fn packets_of(message_len: usize, data_per_packet: usize) -> usize {
    if message_len <= data_per_packet { 1 } else { message_len.div_ceil(data_per_packet) }
}

/// Copies a packet's data, whose length was checked, to `target`.
#[inline(always)]
pub(crate) fn copy_data(packet: &RxPacket<'_>, target: &mut [u8]) -> Result<(), PacketDrop> {
    let in_head = &packet.head[HEADER_LEN..];
    match packet.tail {
        None => target.copy_from_slice(in_head),
        Some(tail) => {
            let (first, rest) = target.split_at_mut(in_head.len());
            first.copy_from_slice(in_head);
            tail.copy_to(rest).map_err(|_| PacketDrop::Revoked)?;
        }
    }
    Ok(())
}
