//! The receiving half: it polls the rings of the hot links. The rare tasks are in `upkeep`.

mod links;
mod processes;
mod threads;
mod upkeep;

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fd::OwnedFd;
use sinew_fabric::{Dropped, PacketRx, Peer, PeerLoss, PortEvent, PortStats, RxBurst, RxPacket};
use sinew_mem::ring::{Board, Consumer, INLINE_MAX, Taken};
use sinew_mem::{Arena, SharedBytes};

use crate::link::{Flags, LinkState, PeerArena, TxInbox};
use crate::peer_source::{PeerSource, Watch};
use crate::{PACKET_LEN_MAX, UPKEEP_EVERY_NS};

/// Most packets of one burst.
pub(crate) const BURST_MAX: usize = 32;
/// Empty polls in a row after which a ring need not be polled any more, if more than [`POLLED_MIN`] are.
const EMPTY_POLLS_MAX: u32 = 1024;
/// Rings that are polled even when they are idle: polling a few costs less than their doorbells would.
pub(crate) const POLLED_MIN: usize = 8;

/// End of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    /// `None` when the user need not be told.
    pub loss: Option<PeerLoss>,
    /// Packets that start at this position or later cannot have been sent before the end.
    pub last_position: u64,
}

/// A link, as the receiving half sees it.
#[derive(Debug)]
pub(crate) struct RxLink {
    pub consumer: Consumer,
    /// The peer's arena; `None` until the peer has announced it. Its ring is not polled before then.
    pub arena: Option<PeerArena>,
    pub empty_polls: u32,
    pub hot: bool,
    pub generation: u64,
    pub ending: Option<Ending>,
    pub flags: Flags,
    pub state: Arc<LinkState>,
    pub peer: Remote,
    /// Name shown to people.
    pub name: String,
    /// The name that was resolved to make this link.
    pub resolved: Option<String>,
}

/// The connection with a link's peer, beside the rings.
#[derive(Debug)]
pub(crate) enum Remote {
    Process { socket: Arc<OwnedFd>, pidfd: Option<OwnedFd> },
    Thread { mailbox: Arc<crate::hub::Mailbox>, link: Arc<sinew_mem::Region> },
}

/// Private memory into which packets of other processes are copied before they are lent.
#[derive(Debug)]
pub(crate) struct BounceBuffer {
    start: NonNull<u8>,
}

const BOUNCE_PACKET: usize = INLINE_MAX.next_multiple_of(64);
const BOUNCE_LAYOUT: std::alloc::Layout = match std::alloc::Layout::from_size_align(BURST_MAX * BOUNCE_PACKET, 64) {
    Ok(layout) => layout,
    Err(_) => panic!("the bounce area has no valid layout"),
};

// SAFETY: the memory belongs to this value alone, like that of a box; only its alignment differs.
unsafe impl Send for BounceBuffer {}

impl BounceBuffer {
    fn new() -> Self {
        // SAFETY: the layout is not empty.
        let start = unsafe { std::alloc::alloc_zeroed(BOUNCE_LAYOUT) };
        let Some(start) = NonNull::new(start) else { std::alloc::handle_alloc_error(BOUNCE_LAYOUT) };
        Self { start }
    }
}

impl Drop for BounceBuffer {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), BOUNCE_LAYOUT) };
    }
}

/// The port's own side of its links: what it announces to peers, and what wakes it.
#[derive(Debug)]
pub(crate) struct LocalSide {
    pub watch: Watch,
    pub arena: Arena,
    /// Lines of each ring that leads to this port.
    pub ring_lines: usize,
}

/// The receiving half of a [`crate::ShmPort`].
#[derive(Debug)]
pub struct ShmRx {
    pub(crate) board: Board,
    /// Links by index. An index is reused with another generation.
    pub(crate) links: Vec<Option<Box<RxLink>>>,
    pub(crate) free: Vec<usize>,
    /// Indices of the links that are polled.
    pub(crate) hot: Vec<usize>,
    /// Position in `hot` at which the next turn starts, so that every link comes first now and then.
    next_turn_start: usize,
    bounce: BounceBuffer,
    in_place: bool,
    /// Some hot link has been empty for a long time.
    has_idle_links: bool,
    /// Time of the last upkeep pass, in ns. A pass is also due when the clock runs backwards.
    pub(crate) upkeep_ns: u64,
    pub(crate) peer_source: PeerSource,
    pub(crate) own: LocalSide,
    pub(crate) inbox: Arc<TxInbox>,
    pub(crate) events: VecDeque<PortEvent>,
    pub(crate) generations: u64,
    /// The waker was called since the last wait. (An upkeep pass between the call and the wait clears the event, so it
    /// is noted here.)
    pub(crate) woken: bool,
    /// Number of links that are ending.
    pub(crate) ending: usize,
    /// Link at which the next upkeep pass continues its sweep of the links that are not polled.
    pub(crate) sweep: usize,
    pub(crate) stats: PortStats,
}

impl ShmRx {
    pub(crate) fn new(board: Board, peer_source: PeerSource, own: LocalSide, inbox: Arc<TxInbox>) -> Self {
        Self {
            board,
            links: Vec::new(),
            free: Vec::new(),
            hot: Vec::new(),
            next_turn_start: 0,
            bounce: BounceBuffer::new(),
            in_place: matches!(peer_source, PeerSource::Hub { .. }),
            has_idle_links: false,
            upkeep_ns: UPKEEP_EVERY_NS.wrapping_neg(),
            peer_source,
            own,
            inbox,
            events: VecDeque::new(),
            generations: 0,
            woken: false,
            ending: 0,
            sweep: 0,
            stats: PortStats::default(),
        }
    }

    /// Whether a call of `receive` or `poll_event` would find something.
    pub(crate) fn has_work(&self) -> bool {
        let has_messages = matches!(&self.peer_source, PeerSource::Hub { mailbox, .. } if mailbox.is_pending());
        has_messages
            || self.woken
            || !self.events.is_empty()
            || self.board.is_rung()
            || self.hot.iter().any(|&index| {
                self.links[index].as_ref().is_some_and(|link| link.arena.is_some() && !link.consumer.is_empty())
            })
    }

    /// Starts polling the links whose doorbells rang.
    #[cold]
    #[inline(never)]
    pub(crate) fn collect(&mut self) {
        let Self { board, links, hot, .. } = self;
        board.collect(|index| {
            if let Some(Some(link)) = links.get_mut(index)
                && !link.hot
            {
                link.hot = true;
                link.empty_polls = 0;
                hot.push(index);
            }
        });
    }

    /// Starts polling link `index`.
    pub(crate) fn start_polling(&mut self, index: usize) {
        let Some(Some(link)) = self.links.get_mut(index) else { return };
        link.empty_polls = 0;
        if !link.hot {
            link.hot = true;
            self.board.set(index);
            self.hot.push(index);
        }
    }

    /// Stops polling links that have been empty for a long time.
    #[cold]
    #[inline(never)]
    fn stop_polling_idle(&mut self) {
        self.has_idle_links = false;
        let Self { board, links, hot, .. } = self;
        let mut excess = hot.len().saturating_sub(POLLED_MIN);
        for &index in hot.iter() {
            if let Some(Some(link)) = links.get_mut(index)
                && link.empty_polls > EMPTY_POLLS_MAX
                && excess > 0
            {
                excess -= 1;
                link.empty_polls = 0;
                link.hot = false;
                board.clear(index);
            }
        }
        // One fence serves all of them.
        let fenced = crate::barrier::fence_everywhere();
        hot.retain(|&index| {
            let Some(Some(link)) = links.get_mut(index) else { return false };
            // The sender may have published before it could see the cleared bit; without the fence, this cannot be
            // ruled out.
            if !link.hot && (!fenced || !link.consumer.is_empty()) {
                link.hot = true;
                board.set(index);
            }
            link.hot
        });
    }
}

/// Makes the part of `taken` that lies in the peer's arena a lent packet; `None` when the sender's claims about it are
/// invalid.
///
/// # Safety
///
/// `taken` came from `link` and is not given back during `'a`, and the link is not dropped during `'a`.
#[inline(always)]
unsafe fn lend_from_arena<'a>(link: &RxLink, taken: &Taken, len: usize, offset: u64) -> Option<SharedBytes<'a>> {
    if len == 0 || len + taken.len() > PACKET_LEN_MAX {
        return None;
    }
    let start = link.arena.as_ref()?.address(offset, len)?;
    // SAFETY: the range lies in the peer's arena, which is mapped while the link exists. Its writer is another process
    // or, in a hub, a thread that revoked the packet before it wrote: the guard then discards the copy. The copy's
    // loads are made in assembly (the packet is longer than any copy that is made of plain words), so the compiler
    // makes no assumptions about them. The guard's word lies in the link's ring.
    Some(unsafe { SharedBytes::new(start, len, link.consumer.guard(taken)) })
}

impl ShmRx {
    /// Does the occasional work before a burst: upkeep when it is due, and new doorbells.
    #[cold]
    #[inline(never)]
    fn prepare_burst(&mut self, time_ns: u64) {
        if self.is_due(time_ns) {
            self.upkeep(Some(time_ns));
        }
        if self.board.is_rung() {
            self.collect();
        }
    }

    #[inline(always)]
    fn is_due(&self, time_ns: u64) -> bool {
        time_ns.wrapping_sub(self.upkeep_ns) >= UPKEEP_EVERY_NS
    }
}

/// Head and tail of `taken`, which is longer than a line, has a part in the arena, or is no packet; else the reason why
/// it is dropped. Bytes in the ring are copied to `bounce` where they are not lent in place.
///
/// # Safety
///
/// As for [`RxLink::drain_as`]; `taken` is the last packet taken from the link.
#[inline(never)]
unsafe fn assemble<'a, const IN_PLACE: bool>(
    link: &RxLink,
    taken: Taken,
    bounce: *mut u8,
) -> Result<(&'a [u8], Option<SharedBytes<'a>>), Dropped> {
    let head: &'a [u8] = if IN_PLACE {
        // SAFETY: as in `drain_as`.
        unsafe { link.consumer.bytes_in_place(&taken) }
    } else {
        // SAFETY: as in `drain_as`, and no packet's copy is longer than BOUNCE_PACKET.
        unsafe {
            link.consumer.copy_out(&taken, bounce);
            std::slice::from_raw_parts(bounce, taken.len())
        }
    };
    if taken.is_revoked() {
        return Err(Dropped::Revoked);
    }
    // SAFETY: the caller's promises are those required here.
    let Some(rest) = (unsafe { link.consumer.far(&taken) }) else { return Ok((head, None)) };
    // SAFETY: the caller's promises are those required here.
    match unsafe { lend_from_arena(link, &taken, rest.len as usize, rest.offset) } {
        None => Err(Dropped::Malformed),
        tail => Ok((head, tail)),
    }
}

/// Consumer of a burst's packets, which are lent for `'a`.
///
/// # Safety
///
/// [`Self::take_next`] returns only the last packet taken from `consumer`, which was not given back. It may lower
/// `room.left` but not raise it, and leaves at least 1 there when it returns a packet.
pub(crate) unsafe trait PacketSink<'a> {
    /// Takes the next packet, which the caller then pushes. Before that it may take others, if `room` allows, that need
    /// not be lent: it copies them from the ring to where they belong.
    #[inline(always)]
    fn take_next(&mut self, _from: Peer, consumer: &mut Consumer, _room: &mut BurstRoom) -> Option<Taken> {
        consumer.take()
    }

    /// Takes a packet in one piece, as nearly all are.
    ///
    /// # Safety
    ///
    /// It has room for one more packet.
    unsafe fn push_whole(&mut self, from: Peer, bytes: &'a [u8]);

    /// Takes a packet whose rest the sender may still write.
    ///
    /// # Safety
    ///
    /// As for [`Self::push_whole`].
    unsafe fn push_with_tail(&mut self, packet: RxPacket<'a>);
}

// SAFETY: it has the default `take_next`, which takes one packet and leaves the room as it is.
unsafe impl<'a> PacketSink<'a> for RxBurst<'a> {
    #[inline(always)]
    unsafe fn push_whole(&mut self, from: Peer, bytes: &'a [u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.push_with_tail(RxPacket { from, head: bytes, tail: None }) };
    }

    #[inline(always)]
    unsafe fn push_with_tail(&mut self, packet: RxPacket<'a>) {
        debug_assert!(!self.packets.is_full());
        // SAFETY: the caller's promise.
        unsafe { self.packets.push_unchecked(packet) };
    }
}

/// Room left for a burst.
#[derive(Clone, Copy)]
struct Room {
    /// Packets.
    left: usize,
    /// Start of the free part of the bounce area.
    bounce: *mut u8,
}

/// Packets that may still be taken in a burst, and bytes of those that were.
pub(crate) struct BurstRoom {
    pub left: usize,
    pub bytes: usize,
}

impl RxLink {
    /// Takes packets and pushes them to `sink`, until there are no more, or no room; returns the room that is left.
    /// (Packets are lent for as long as the burst: `'a`.)
    ///
    /// # Safety
    ///
    /// Nothing of this link is given back during `'a`, the link is not dropped, and nobody else accesses the bounce
    /// area. `room.left` exceeds neither the packets for which the bounce area has room from `room.bounce` on, nor
    /// those for which `sink` has. `IN_PLACE` is true only for the links of a hub.
    #[inline(never)]
    unsafe fn drain_as<'a, const IN_PLACE: bool>(
        &mut self,
        index: usize,
        room: Room,
        sink: &mut impl PacketSink<'a>,
        stats: &mut PortStats,
    ) -> Room {
        let from = Peer([index as u64, self.generation, 0]);
        let Room { left, mut bounce } = room;
        let (mut burst, mut dropped) = (BurstRoom { left, bytes: 0 }, 0);
        while burst.left > 0
            && let Some(taken) = sink.take_next(from, &mut self.consumer, &mut burst)
        {
            burst.left -= 1;
            let target = bounce;
            if !IN_PLACE {
                let len = if taken.is_plain_line() { 64 } else { taken.copy_len().next_multiple_of(64) };
                // SAFETY: the area has room for `room.left` packets, and none is longer than BOUNCE_PACKET.
                bounce = unsafe { target.add(len) };
            }
            if !taken.is_plain_line() && !taken.is_whole() {
                // SAFETY: the caller's promises are those required here.
                match unsafe { assemble::<IN_PLACE>(self, taken, target) } {
                    Ok((head, tail)) => {
                        let packet = RxPacket { from, head, tail };
                        burst.bytes += packet.len();
                        // SAFETY: `room.left` was not 0, which is the caller's promise.
                        unsafe { sink.push_with_tail(packet) };
                    }
                    Err(reason) => {
                        stats.count_dropped(reason, 1);
                        dropped += 1;
                    }
                }
                continue;
            }
            let packet: &'a [u8] = if IN_PLACE {
                // SAFETY: the ring is in private memory, and its lines stay unchanged during `'a`.
                unsafe { self.consumer.bytes_in_place(&taken) }
            } else {
                // SAFETY: the target is ours, and nobody writes it again during `'a`.
                unsafe {
                    self.consumer.copy_out(&taken, target);
                    std::slice::from_raw_parts(target, taken.len())
                }
            };
            burst.bytes += packet.len();
            // SAFETY: as above.
            unsafe { sink.push_whole(from, packet) };
        }
        let BurstRoom { left, bytes } = burst;
        if left != room.left {
            self.empty_polls = 0;
            stats.rx_packets += (room.left - left - dropped) as u64;
            stats.rx_bytes += bytes as u64;
        }
        Room { left, bounce }
    }

    /// Like [`Self::drain_as`], with `IN_PLACE` chosen at run time.
    ///
    /// # Safety
    ///
    /// As for [`Self::drain_as`]; `in_place` is true only for the links of a hub.
    #[inline(always)]
    unsafe fn drain<'a>(
        &mut self,
        in_place: bool,
        index: usize,
        room: Room,
        sink: &mut impl PacketSink<'a>,
        stats: &mut PortStats,
    ) -> Room {
        // SAFETY: the caller's promises are those required here.
        unsafe {
            if in_place {
                self.drain_as::<true>(index, room, sink, stats)
            } else {
                self.drain_as::<false>(index, room, sink, stats)
            }
        }
    }

    /// Notes that the link was empty. Returns true when it has been so for a long time.
    #[inline(always)]
    fn was_empty(&mut self) -> bool {
        self.empty_polls = self.empty_polls.saturating_add(1);
        self.empty_polls > EMPTY_POLLS_MAX
    }
}

impl ShmRx {
    /// The room of a burst of at most `packets_max` packets.
    #[inline(always)]
    fn room(&self, packets_max: usize) -> Room {
        Room { left: BURST_MAX.min(packets_max), bounce: self.bounce.start.as_ptr() }
    }

    /// Receives from one link after another, starting with a different one at each call. Returns the number of packets.
    ///
    /// # Safety
    ///
    /// As for [`Self::receive_each`].
    #[inline(never)]
    unsafe fn drain_links<'a>(&'a mut self, packets_max: usize, sink: &mut impl PacketSink<'a>) -> usize {
        let polled = self.hot.len();
        // A few links are polled even when they are idle, so nobody need count for how long they are.
        let is_idleness_counted = polled > POLLED_MIN;
        let mut position = if self.next_turn_start < polled { self.next_turn_start } else { 0 };
        self.next_turn_start = position + 1;
        let whole = self.room(packets_max);
        let mut room = whole;
        for _ in 0..polled {
            let Some(&index) = self.hot.get(position) else { break };
            position += 1;
            if position == polled {
                position = 0;
            }
            let Some(Some(link)) = self.links.get_mut(index) else { continue };
            // SAFETY: the previous burst borrowed `self`, so nothing that it lent is alive; and this burst has lent
            // nothing of a link that it has yet to reach.
            unsafe { link.consumer.give_back() };
            if room.left == 0 || link.arena.is_none() {
                continue;
            }
            if link.consumer.looks_empty() {
                self.has_idle_links |= is_idleness_counted && link.was_empty();
                continue;
            }
            // SAFETY: packets lent now are given back by the next call at the earliest. That call needs `self`, and so
            // does dropping a link or writing to the bounce area, which has room for BURST_MAX packets.
            let then = unsafe { link.drain(self.in_place, index, room, sink, &mut self.stats) };
            // The new word may not have belonged to a packet.
            self.has_idle_links |= is_idleness_counted && then.left == room.left && link.was_empty();
            room = then;
        }
        if self.has_idle_links {
            self.stop_polling_idle();
        }
        whole.left - room.left
    }

    /// Receives a burst of at most `packets_max` packets, and passes each to `sink` as it is taken, so a caller that
    /// keeps none of them needs no list. They are lent as those of [`PacketRx::receive`] are. Returns the number taken.
    ///
    /// # Safety
    ///
    /// `sink` has room for `packets_max` packets.
    #[inline(always)]
    pub(crate) unsafe fn receive_each<'a>(
        &'a mut self,
        time_ns: u64,
        packets_max: usize,
        sink: &mut impl PacketSink<'a>,
    ) -> usize {
        if self.is_due(time_ns) || self.board.is_rung() {
            self.prepare_burst(time_ns);
        }
        // A single link is by far the most common case, in which a turn needs no loop.
        let [index] = self.hot[..] else {
            // SAFETY: the caller's promise.
            return unsafe { self.drain_links(packets_max, sink) };
        };
        let room = self.room(packets_max);
        let Some(Some(link)) = self.links.get_mut(index) else { return 0 };
        let link = &mut **link;
        // SAFETY: the previous burst borrowed `self`, so nothing that it lent is alive.
        unsafe { link.consumer.give_back() };
        if link.consumer.has_nothing_new() || link.arena.is_none() {
            return 0;
        }
        // SAFETY: as in `drain_links`.
        let then = unsafe { link.drain(self.in_place, index, room, sink, &mut self.stats) };
        room.left - then.left
    }
}

impl PacketRx for ShmRx {
    #[inline(always)]
    fn receive<'a>(&'a mut self, burst: &mut RxBurst<'a>) {
        // This comes first, while the compiler knows that a new burst is empty.
        let packets_max = burst.packets.remaining_capacity();
        // SAFETY: that is the burst's room.
        unsafe { self.receive_each(burst.time_ns, packets_max, burst) };
    }
}
