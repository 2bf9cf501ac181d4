//! The sending half: gathers packets into datagrams, and datagrams into system calls.

use sinew_fabric::hold::{HOLD_LEN_MAX, Hold};
use sinew_fabric::{Dropped, PacketTx, Peer, PortStats, TxData, TxPacket};
use sinew_mem::Frozen;
use sinew_mem::atomic::plain::Arc;

use crate::frame::{BATCH_HEADER, BATCH_MAGIC, BATCH_VERSION, FRAME_HEADER, is_batch};
use crate::options::Coalesce;
use crate::path::Paths;
use crate::shared::Shared;
use crate::sys::{Name, SendMemory};
use crate::{SEGMENTS_MAX, peer};

/// Number of gathered messages at which they are sent without waiting for a submit.
const MESSAGES_MAX: usize = 64;
/// Most bytes of one message, cut into datagrams or not: the kernel takes no more than 65,507 at once.
const MESSAGE_LEN_MAX: usize = crate::path::LOCAL_DATAGRAM;
/// Most pieces of one message. A message that reaches this number is closed.
const PIECES_MAX: usize = 256;
/// Shared ranges up to this length, in bytes, are copied behind the packet's head, which is cheaper than a share of the
/// buffer and a piece of its own.
pub(crate) const COPY_LEN_MAX: usize = 1024;
/// Bytes reserved before the first packet of a datagram, in case it becomes a batch.
const BATCH_ROOM: usize = BATCH_HEADER + FRAME_HEADER;
/// Most errors of earlier packets that one call handles before it gives up. The call that shows an error clears it.
const STALE_ERRORS_MAX: usize = 16;

/// Part of a message.
enum Piece {
    /// A range of the message's staging memory.
    Staged { start: usize, len: usize },
    /// A range of a message buffer, of which we hold a share.
    Shared { buffer: Frozen, start: usize, len: usize },
}

/// Data that one call sends to one peer: one datagram, or several that the kernel cuts apart.
struct Message {
    to: Peer,
    name: Name,
    /// Whether more packets may be added.
    open: bool,
    staging: Vec<u8>,
    pieces: Vec<Piece>,
    /// Its datagrams.
    segments: Vec<Segment>,
    /// Bytes of every datagram but the last; 0 while there is but one.
    segment_len: usize,
    /// Bytes in all.
    len: usize,
}

#[derive(Clone, Copy)]
/// A datagram of a message.
struct Segment {
    first_piece: usize,
    /// Bytes of the datagram.
    len: usize,
    packets: u64,
    /// Bytes of its packets.
    packet_bytes: u64,
    batch: bool,
}

impl Message {
    fn new() -> Self {
        Self {
            to: Peer([0; 3]),
            name: Name::empty(),
            open: false,
            // Room for all that it can ever hold, so that no burst allocates; memory is committed when it is used.
            staging: Vec::with_capacity(MESSAGE_LEN_MAX + BATCH_ROOM * SEGMENTS_MAX),
            pieces: Vec::with_capacity(PIECES_MAX),
            segments: Vec::with_capacity(SEGMENTS_MAX),
            segment_len: 0,
            len: 0,
        }
    }

    fn reset(&mut self) {
        self.open = false;
        self.staging.clear();
        self.pieces.clear();
        self.segments.clear();
        self.segment_len = 0;
        self.len = 0;
    }

    /// Appends `bytes` to the staging memory, as part of the current datagram.
    #[inline]
    fn stage(&mut self, bytes: &[u8]) {
        let start = self.staging.len();
        self.staging.extend_from_slice(bytes);
        match self.pieces.last_mut() {
            Some(Piece::Staged { start: piece_start, len }) if *piece_start + *len == start => *len += bytes.len(),
            _ => self.pieces.push(Piece::Staged { start, len: bytes.len() }),
        }
    }

    #[inline]
    fn append(&mut self, packet: &TxPacket<'_>) {
        self.stage(packet.head);
        match packet.data {
            TxData::None => {}
            TxData::Bytes(bytes) => self.stage(bytes),
            TxData::Frozen { len, .. } if len <= COPY_LEN_MAX => self.stage(packet.data.as_slice()),
            TxData::Frozen { buffer, start, len } => {
                self.pieces.push(Piece::Shared { buffer: buffer.clone(), start, len });
            }
        }
    }

    /// Begins a datagram with its first packet.
    #[inline]
    fn begin_segment(&mut self, packet: &TxPacket<'_>, packet_len: usize) {
        // The packet's first byte is in the data only when the head is empty.
        let first = if packet.head.is_empty() { packet.data.as_slice() } else { packet.head };
        let room = self.staging.len();
        self.staging.extend_from_slice(&[0; BATCH_ROOM]);
        // The first piece starts behind the room; once the datagram is a batch, it starts at the room's beginning.
        self.pieces.push(Piece::Staged { start: room + BATCH_ROOM, len: 0 });
        self.segments.push(Segment {
            first_piece: self.pieces.len() - 1,
            len: packet_len,
            packets: 1,
            packet_bytes: packet_len as u64,
            batch: false,
        });
        self.len += packet_len;
        self.append(packet);
        if is_batch(first) {
            self.become_batch();
        }
    }

    /// Turns the current datagram, which is one plain packet, into a batch of that packet.
    fn become_batch(&mut self) {
        let Some(segment) = self.segments.last_mut() else { return };
        let Some(Piece::Staged { start, len }) = self.pieces.get_mut(segment.first_piece) else { return };
        let room = *start - BATCH_ROOM;
        let header = [BATCH_MAGIC, BATCH_VERSION];
        self.staging[room..room + BATCH_HEADER].copy_from_slice(&header);
        self.staging[room + BATCH_HEADER..room + BATCH_ROOM].copy_from_slice(&(segment.len as u16).to_le_bytes());
        *start = room;
        *len += BATCH_ROOM;
        segment.len += BATCH_ROOM;
        segment.batch = true;
        self.len += BATCH_ROOM;
    }

    /// Adds a packet to the current datagram, which becomes a batch.
    #[inline]
    fn add_frame(&mut self, packet: &TxPacket<'_>, packet_len: usize) {
        if self.segments.last().is_some_and(|segment| !segment.batch) {
            self.become_batch();
        }
        self.stage(&(packet_len as u16).to_le_bytes());
        self.append(packet);
        if let Some(segment) = self.segments.last_mut() {
            segment.len += FRAME_HEADER + packet_len;
            segment.packets += 1;
            segment.packet_bytes += packet_len as u64;
        }
        self.len += FRAME_HEADER + packet_len;
    }

    /// Tries to add a packet; returns false when it must go into another message.
    #[inline]
    fn add(&mut self, packet: &TxPacket<'_>, packet_len: usize, datagram_max: usize, rules: Rules) -> bool {
        let Some(&segment) = self.segments.last() else { return false };
        if self.pieces.len() + 4 > PIECES_MAX {
            return false;
        }
        // Datagrams after the first must not be longer than it.
        let limit = if self.segment_len == 0 { datagram_max } else { self.segment_len };
        if rules.frames && packet_len > 0 && segment.packet_bytes > 0 {
            let added = FRAME_HEADER + packet_len + if segment.batch { 0 } else { BATCH_ROOM };
            if segment.len + added <= limit && self.len + added <= MESSAGE_LEN_MAX {
                self.add_frame(packet, packet_len);
                return true;
            }
        }
        let escaped = if is_batch(packet.head) || packet.head.is_empty() { BATCH_ROOM } else { 0 };
        let next_limit = if self.segment_len == 0 { segment.len } else { self.segment_len };
        if rules.segments
            && self.segments.len() < SEGMENTS_MAX
            && segment.len == next_limit
            && next_limit <= datagram_max
            && packet_len > 0
            && packet_len + escaped <= next_limit
            && self.len + packet_len + escaped <= MESSAGE_LEN_MAX
        {
            self.segment_len = next_limit;
            self.begin_segment(packet, packet_len);
            return true;
        }
        false
    }

    fn packets(&self) -> (u64, u64) {
        self.segments
            .iter()
            .fold((0, 0), |(packets, bytes), segment| (packets + segment.packets, bytes + segment.packet_bytes))
    }
}

/// Which ways of gathering packets are in use.
#[derive(Clone, Copy)]
struct Rules {
    frames: bool,
    segments: bool,
}

/// The sending half of a [`crate::UdpPort`].
pub struct UdpTx {
    shared: Arc<Shared>,
    pub(crate) paths: Paths,
    rules: Rules,
    packet_len_max: usize,
    /// Message slots with their memory; the first `open_count` ones are filled.
    messages: Vec<Message>,
    open_count: usize,
    memory: SendMemory,
    hold: Hold,
    pub(crate) stats: PortStats,
}

impl UdpTx {
    pub(crate) fn new(
        shared: Arc<Shared>,
        paths: Paths,
        coalesce: Coalesce,
        can_segment: bool,
        packet_len_max: usize,
    ) -> Self {
        Self {
            shared,
            paths,
            rules: Rules { frames: coalesce == Coalesce::Frames, segments: can_segment && coalesce != Coalesce::Off },
            packet_len_max,
            messages: (0..MESSAGES_MAX).map(|_| Message::new()).collect(),
            open_count: 0,
            memory: SendMemory::new(MESSAGES_MAX, MESSAGES_MAX * PIECES_MAX),
            hold: Hold::default(),
            stats: PortStats::default(),
        }
    }

    /// Sends everything gathered and empties the slots.
    fn transmit(&mut self) {
        let Self { shared, messages, open_count, stats, paths, .. } = self;
        match &messages[..*open_count] {
            // One pending packet is the usual case of a latency-bound caller: it takes one call and no list.
            [message] if let [Piece::Staged { start, len }] = message.pieces[..] => {
                let bytes = &message.staging[start..start + len];
                let result = send_with_retries(shared, || shared.socket.send_to(&message.name, bytes));
                count_result(stats, paths, message.packets(), result);
            }
            _ => self.transmit_list(),
        }
        for message in &mut self.messages[..self.open_count] {
            message.reset();
        }
        self.open_count = 0;
        self.hold.sent();
    }

    fn transmit_list(&mut self) {
        let Self { shared, messages, open_count, memory, stats, paths, rules, .. } = self;
        let messages = &messages[..*open_count];
        let mut uncut = None;
        {
            let mut list = memory.list();
            for message in messages {
                message.pieces.iter().for_each(|piece| list.piece(message.bytes_of(piece)));
                list.end_message(message.name, message.segment_len);
            }
            let (mut next, mut waited) = (0, false);
            while next < messages.len() {
                match send_with_retries(shared, || shared.socket.send_list(&mut list, next)) {
                    Ok(0) => break,
                    Ok(sent) => {
                        for message in &messages[next..next + sent] {
                            count_result(stats, paths, message.packets(), Ok(()));
                        }
                        next += sent;
                        if next < messages.len() {
                            // An error stopped the call part-way, and the kernel did not keep it.
                            shared.note_error();
                        }
                    }
                    Err(error @ (libc::EIO | libc::EINVAL | libc::EMSGSIZE)) if messages[next].segment_len != 0 => {
                        // Either the device can never cut sends (EIO), or a datagram is over what this path now
                        // carries.
                        rules.segments &= error != libc::EIO;
                        paths.clear();
                        uncut = Some(next);
                        break;
                    }
                    // A full send buffer drains as the device sends. Yielding once is cheap; waiting longer is not for
                    // this layer to do.
                    Err(libc::EAGAIN) if !waited => {
                        waited = true;
                        rustix::thread::sched_yield();
                    }
                    Err(libc::EAGAIN) => {
                        for message in &messages[next..] {
                            count_result(stats, paths, message.packets(), Err(libc::EAGAIN));
                        }
                        break;
                    }
                    Err(error) => {
                        count_result(stats, paths, messages[next].packets(), Err(error));
                        next += 1;
                    }
                }
            }
        }
        for message in uncut.map_or(&[][..], |next| &messages[next..]) {
            send_one_by_one(shared, memory, stats, paths, message);
        }
    }
}

impl Message {
    fn bytes_of<'a>(&'a self, piece: &'a Piece) -> &'a [u8] {
        match piece {
            Piece::Staged { start, len } => &self.staging[*start..start + len],
            Piece::Shared { buffer, start, len } => &buffer[*start..start + len],
        }
    }
}

/// Sends the datagrams of a message one by one, without having the kernel cut them.
fn send_one_by_one(
    shared: &Shared,
    memory: &mut SendMemory,
    stats: &mut PortStats,
    paths: &mut Paths,
    message: &Message,
) {
    for (index, segment) in message.segments.iter().enumerate() {
        let end = message.segments.get(index + 1).map_or(message.pieces.len(), |next| next.first_piece);
        let mut list = memory.list();
        message.pieces[segment.first_piece..end].iter().for_each(|piece| list.piece(message.bytes_of(piece)));
        list.end_message(message.name, 0);
        let result = send_with_retries(shared, || shared.socket.send_list(&mut list, 0)).map(|_| ());
        count_result(stats, paths, (segment.packets, segment.packet_bytes), result);
    }
}

/// Repeats a call while it only reports errors of earlier packets.
fn send_with_retries<T>(shared: &Shared, mut call: impl FnMut() -> Result<T, i32>) -> Result<T, i32> {
    let mut result = call();
    for _ in 0..STALE_ERRORS_MAX {
        match result {
            Err(libc::EINTR) => {}
            // A socket that reports errors fails its next call with the last one; the current packet is not the cause.
            Err(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EPROTO | libc::ENOPROTOOPT) => {
                shared.note_error();
            }
            _ => break,
        }
        result = call();
    }
    result
}

/// Counts a message's packets as sent or as dropped.
fn count_result(stats: &mut PortStats, paths: &mut Paths, (packets, bytes): (u64, u64), result: Result<(), i32>) {
    let reason = match result {
        Ok(()) => {
            stats.tx_packets += packets;
            stats.tx_bytes += bytes;
            return;
        }
        Err(libc::EMSGSIZE) => {
            paths.clear();
            Dropped::TooLong
        }
        Err(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Dropped::Full,
        Err(_) => Dropped::NoSuchPeer,
    };
    stats.count_dropped(reason, packets);
}

impl PacketTx for UdpTx {
    #[inline]
    fn push(&mut self, packet: TxPacket<'_>) {
        let len = packet.len();
        if len > self.packet_len_max {
            self.stats.count_dropped(Dropped::TooLong, 1);
            return;
        }
        if self.rules.frames || self.rules.segments {
            // The newest message to this peer is the only one that may grow, so a peer's packets stay in order.
            let found = self.messages[..self.open_count].iter_mut().rev().find(|message| message.to == packet.to);
            if let Some(message) = found.filter(|message| message.open) {
                let path = self.paths.get(packet.to);
                if message.add(&packet, len, path.datagram_max, self.rules) {
                    return;
                }
                message.open = false;
                // The message is full: its receiver can begin while the rest is gathered.
                if message.len + len > MESSAGE_LEN_MAX {
                    self.transmit();
                }
            }
        }
        // Nothing can be sent to port 0, which a forged packet may name as its sender.
        let name = Name::of(packet.to, self.shared.socket.is_v6()).filter(|_| peer::port_of(packet.to) != 0);
        let Some(name) = name else {
            self.stats.count_dropped(Dropped::NoSuchPeer, 1);
            return;
        };
        if self.open_count == MESSAGES_MAX {
            self.transmit();
        }
        let message = &mut self.messages[self.open_count];
        self.open_count += 1;
        message.to = packet.to;
        message.name = name;
        message.open = true;
        message.begin_segment(&packet, len);
    }

    #[inline]
    fn submit_soon(&mut self, now_ns: u64) {
        let packets =
            self.messages[..self.open_count].iter().flat_map(|message| &message.segments).map(|each| each.packets);
        let waits = self.hold.should_hold(packets.sum(), now_ns);
        let small = |message: &Message| {
            message.open && message.len <= HOLD_LEN_MAX && matches!(message.pieces[..], [Piece::Staged { .. }])
        };
        if self.open_count > 0 && !(waits && self.rules.frames && self.messages[..self.open_count].iter().all(small)) {
            self.transmit();
        }
    }

    #[inline]
    fn submit(&mut self) {
        if self.open_count > 0 {
            self.transmit();
        }
    }

    /// The kernel copies what it sends, so all shares of buffers end once everything gathered is sent.
    fn flush(&mut self) {
        self.submit();
    }
}

impl std::fmt::Debug for UdpTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpTx").field("pending", &self.open_count).field("stats", &self.stats).finish_non_exhaustive()
    }
}
