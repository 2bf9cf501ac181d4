//! The receiving half: polling the rings that are active. What happens rarely is in `upkeep`.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fd::OwnedFd;
use sinew_fabric::{Dropped, MAX_BURST, PacketRx, Peer, PeerLoss, PortEvent, PortStats, RxBurst, RxPacket};
use sinew_mem::SharedBytes;
use sinew_mem::ring::{Board, Consumer, INLINE_MAX, Taken};

use crate::door::Door;
use crate::link::{Flags, LinkState, PeerArena, TxInbox};
use crate::upkeep::Own;
use crate::{LOOK_EVERY_NS, PACKET_LEN_MAX};

/// Packets of one burst.
pub(crate) const BURST_MAX: usize = 32;
/// A ring that was found empty this often in a row need not be polled any more...
const EMPTY_POLLS_MAX: u32 = 1024;
/// ...when more than this many are. (A few idle rings cost less to poll than their doorbells.)
pub(crate) const HOT_MIN: usize = 8;

/// How a link goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    /// `None` when nobody needs to be told.
    pub loss: Option<PeerLoss>,
    /// Packets that start here or later cannot have been sent before the end.
    pub last_position: u64,
}

/// A link, as the receiving half has it.
#[derive(Debug)]
pub(crate) struct RxLink {
    pub consumer: Consumer,
    /// `None` until the other side has told us its own; its ring is not polled before.
    pub arena: Option<PeerArena>,
    pub empty_polls: u32,
    pub hot: bool,
    pub generation: u64,
    pub ending: Option<Ending>,
    pub flags: Flags,
    pub state: Arc<LinkState>,
    pub peer: Remote,
    /// For people.
    pub name: String,
    /// The name that was resolved to make this link.
    pub resolved: Option<String>,
}

/// How links are managed, beside their rings.
#[derive(Debug)]
pub(crate) enum Remote {
    Process { socket: Arc<OwnedFd>, pidfd: Option<OwnedFd> },
    Thread { mailbox: Arc<crate::hub::Mailbox>, link: Arc<sinew_mem::Region> },
}

/// Private memory that packets of other processes are copied to before they are lent.
#[derive(Debug)]
pub(crate) struct Bounce {
    start: NonNull<u8>,
}

const BOUNCE_PACKET: usize = INLINE_MAX.next_multiple_of(64);
const BOUNCE_LAYOUT: std::alloc::Layout = match std::alloc::Layout::from_size_align(BURST_MAX * BOUNCE_PACKET, 64) {
    Ok(layout) => layout,
    Err(_) => panic!("the bounce area has a layout"),
};

// SAFETY: the memory belongs to this value alone; it is a box with another alignment.
unsafe impl Send for Bounce {}

impl Bounce {
    fn new() -> Self {
        // SAFETY: the layout is not empty.
        let start = unsafe { std::alloc::alloc_zeroed(BOUNCE_LAYOUT) };
        let Some(start) = NonNull::new(start) else { std::alloc::handle_alloc_error(BOUNCE_LAYOUT) };
        Self { start }
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), BOUNCE_LAYOUT) };
    }
}

/// The receiving half of a [`crate::ShmPort`].
#[derive(Debug)]
pub struct ShmRx {
    pub(crate) board: Board,
    /// By index. An index is used again, with another generation.
    pub(crate) links: Vec<Option<Box<RxLink>>>,
    pub(crate) free: Vec<usize>,
    /// Indices of the links that are polled.
    pub(crate) hot: Vec<usize>,
    /// Where in `hot` the next turn starts, so that everyone is first now and then.
    turn: usize,
    bounce: Bounce,
    in_place: bool,
    /// Some hot link has been empty for long.
    quiet: bool,
    pub(crate) looked_ns: Option<u64>,
    pub(crate) door: Door,
    pub(crate) own: Own,
    pub(crate) inbox: Arc<TxInbox>,
    pub(crate) events: VecDeque<PortEvent>,
    pub(crate) generations: u64,
    /// The waker was called since the last wait. (A look between the call and the wait reads it.)
    pub(crate) woken: bool,
    /// Links that are ending.
    pub(crate) ending: usize,
    /// Where the next look goes on looking at links that are not polled.
    pub(crate) sweep: usize,
    pub(crate) stats: PortStats,
}

impl ShmRx {
    pub(crate) fn new(board: Board, door: Door, own: Own, inbox: Arc<TxInbox>) -> Self {
        Self {
            board,
            links: Vec::new(),
            free: Vec::new(),
            hot: Vec::new(),
            turn: 0,
            bounce: Bounce::new(),
            in_place: matches!(door, Door::Hub { .. }),
            quiet: false,
            looked_ns: None,
            door,
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
        let letters = matches!(&self.door, Door::Hub { mailbox, .. } if mailbox.is_pending());
        letters
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

    /// Polls link `index` from now on.
    pub(crate) fn heat(&mut self, index: usize) {
        let Some(Some(link)) = self.links.get_mut(index) else { return };
        link.empty_polls = 0;
        if !link.hot {
            link.hot = true;
            self.board.set(index);
            self.hot.push(index);
        }
    }

    /// Stops polling links that have been empty for long.
    #[cold]
    #[inline(never)]
    fn cool(&mut self) {
        self.quiet = false;
        let Self { board, links, hot, .. } = self;
        let mut excess = hot.len().saturating_sub(HOT_MIN);
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
        // One fence for all of them.
        let fenced = crate::barrier::fence_everywhere();
        hot.retain(|&index| {
            let Some(Some(link)) = links.get_mut(index) else { return false };
            // The sender may have published before it could see the cleared bit; without the fence, nobody knows.
            if !link.hot && (!fenced || !link.consumer.is_empty()) {
                link.hot = true;
                board.set(index);
            }
            link.hot
        });
    }
}

/// Makes a lent packet of `taken`; `None` when its sender's claims make no sense.
///
/// # Safety
///
/// `taken` came from `link` and is not given back during `'a`, nor is the link dropped.
#[inline(always)]
unsafe fn far<'a>(link: &RxLink, taken: &Taken, len: usize, offset: u64) -> Option<SharedBytes<'a>> {
    if len == 0 || len + taken.len() > PACKET_LEN_MAX {
        return None;
    }
    let start = link.arena.as_ref()?.address(offset, len)?;
    // SAFETY: the range lies in the peer's arena, which is mapped while the link exists. Who writes there is another process,
    // or, in a hub, a thread that revoked the packet first: the guard then discards the copy, whose loads are made by assembly
    // (the packet is longer than any copy that is made of plain words), so that no compiler reasons about them. The guard's
    // word lies in the link's ring.
    Some(unsafe { SharedBytes::new(start, len, link.consumer.guard(taken)) })
}

impl PacketRx for ShmRx {
    #[inline]
    fn receive<'a>(&'a mut self, burst: &mut RxBurst<'a>) {
        if self.looked_ns.is_none_or(|looked| burst.time_ns.wrapping_sub(looked) >= LOOK_EVERY_NS) {
            self.look(Some(burst.time_ns));
        }
        if self.board.is_rung() {
            self.collect();
        }
        let room = BURST_MAX.min(burst.packets.remaining_capacity()).min(MAX_BURST);
        let lent_before = burst.packets.len();
        let mut left = room;
        let mut bounce = self.bounce.start.as_ptr();
        let mut bytes = 0;
        let hot = self.hot.len();
        if self.turn >= hot {
            self.turn = 0;
        }
        let mut at = self.turn;
        self.turn += 1;
        for _ in 0..hot {
            let index = self.hot[at];
            at += 1;
            if at == hot {
                at = 0;
            }
            let Some(Some(link)) = self.links.get_mut(index) else { continue };
            // SAFETY: the previous burst borrowed `self`, so nothing that it lent is alive.
            unsafe { link.consumer.give_back() };
            if link.arena.is_none() || left == 0 {
                continue;
            }
            let left_before = left;
            while left > 0 {
                let Some(taken) = link.consumer.take() else { break };
                left -= 1;
                let head: &'a [u8] = if self.in_place {
                    // SAFETY: a ring in private memory, whose lines are given back by the next call, which needs `self`.
                    unsafe { link.consumer.bytes_in_place(&taken) }
                } else {
                    // SAFETY: each of at most BURST_MAX packets moves `bounce` on by at most BOUNCE_PACKET. The area is written
                    // by the next call only, which needs `self`.
                    unsafe {
                        let target = bounce;
                        link.consumer.copy_out(&taken, target);
                        bounce = bounce.add(taken.copy_len().next_multiple_of(64));
                        std::slice::from_raw_parts(target, taken.len())
                    }
                };
                let mut tail = None;
                if let Some(rest) = taken.far() {
                    // SAFETY: given back by the next call at the earliest, which needs `self`, as dropping the link does.
                    tail = unsafe { far(link, &taken, rest.len as usize, rest.offset) };
                    if tail.is_none() {
                        self.stats.count_dropped(Dropped::Malformed, 1);
                        continue;
                    }
                } else if taken.is_revoked() {
                    self.stats.count_dropped(Dropped::Revoked, 1);
                    continue;
                }
                let packet = RxPacket { from: Peer([index as u64, link.generation, 0]), head, tail };
                bytes += packet.len() as u64;
                burst.packets.push(packet);
            }
            if left == left_before {
                link.empty_polls += 1;
                if link.empty_polls > EMPTY_POLLS_MAX && hot > HOT_MIN {
                    self.quiet = true;
                }
            } else {
                link.empty_polls = 0;
            }
        }
        self.stats.rx_packets += (burst.packets.len() - lent_before) as u64;
        self.stats.rx_bytes += bytes;
        if self.quiet {
            self.cool();
        }
    }
}
