//! The memory between two ports, and the state that each half of a port keeps about it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fd::{AsFd, OwnedFd};
use sinew_mem::ring::{self, Consumer, Doorbell, Producer, Words};
use sinew_mem::{Access, Arena, Frozen, Region};

use crate::copies::Copies;
use crate::hello;

/// Bytes of the flags of both sides, at the start of a link's memory.
const FLAGS_BYTES: usize = 256;
/// Flag: a side closed the link on purpose, so that the end of its socket does not mean its death.
const CLOSED: u64 = 1;

/// A port's side of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// It resolved the other's name and made the memory.
    Initiator,
    /// Its name was resolved by the other.
    Acceptor,
}

/// Sizes of the two rings, each as its receiver wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lines {
    pub to_acceptor: usize,
    pub to_initiator: usize,
}

impl Lines {
    pub fn bytes(self) -> usize {
        FLAGS_BYTES + ring::bytes_for(self.to_acceptor) + ring::bytes_for(self.to_initiator)
    }
}

impl Side {
    pub fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Acceptor,
            Self::Acceptor => Self::Initiator,
        }
    }
}

/// Flags of the two sides: each has a word, which the other reads.
#[derive(Clone, Debug)]
pub(crate) struct Flags {
    words: Words,
    /// The side that this port is.
    pub side: Side,
}

impl Flags {
    fn word(&self, side: Side) -> &std::sync::atomic::AtomicU64 {
        let index = if side == Side::Initiator { 0 } else { FLAGS_BYTES / 16 };
        // SAFETY: both indices lie in the FLAGS_BYTES that `ends` checked; nobody takes slices of them.
        unsafe { self.words.word(index) }
    }

    fn theirs(&self) -> u64 {
        self.word(self.side.other()).load(Ordering::Acquire)
    }

    /// Tells the other side that this one closes the link on purpose. Partner: `other_has_closed`.
    pub fn close(&self) {
        self.word(self.side).fetch_or(CLOSED, Ordering::Release);
    }

    pub fn other_has_closed(&self) -> bool {
        self.theirs() & CLOSED != 0
    }
}

/// One side's ends of a link: its producer, its consumer and the flags.
pub(crate) struct Ends {
    pub producer: Producer,
    pub consumer: Consumer,
    pub flags: Flags,
}

/// Makes the ends of `side` in `region`; `None` when the region is smaller than the rings.
///
/// # Safety
///
/// This is called once for each side of a region, and `trusted` is true only for private memory.
pub(crate) unsafe fn ends(region: &Arc<Region>, lines: Lines, side: Side, trusted: bool) -> Option<Ends> {
    let flags = Words::of_region(region, 0, FLAGS_BYTES)?;
    let to_acceptor = Words::of_region(region, FLAGS_BYTES, ring::bytes_for(lines.to_acceptor))?;
    let offset = FLAGS_BYTES + ring::bytes_for(lines.to_acceptor);
    let to_initiator = Words::of_region(region, offset, ring::bytes_for(lines.to_initiator))?;
    let (sent, send_lines, received, receive_lines) = match side {
        Side::Initiator => (to_acceptor, lines.to_acceptor, to_initiator, lines.to_initiator),
        Side::Acceptor => (to_initiator, lines.to_initiator, to_acceptor, lines.to_acceptor),
    };
    // SAFETY: each side makes one producer and one consumer, of different rings; nobody else in this process has any.
    let (producer, consumer) =
        unsafe { (Producer::new(sent, send_lines)?, Consumer::new(received, receive_lines, trusted)?) };
    Some(Ends { producer, consumer, flags: Flags { words: flags, side } })
}

/// The arena that a peer sends from.
#[derive(Debug)]
pub(crate) enum PeerArena {
    /// The arena of another process, mapped for reading.
    Mapped(Region),
    /// The arena of a port in this process.
    Own(Arena),
}

impl PeerArena {
    pub fn of_peer(fd: &OwnedFd, bytes: usize) -> io::Result<Self> {
        map_peer(fd, bytes, Access::ReadOnly).map(Self::Mapped)
    }

    #[inline]
    fn region(&self) -> &Region {
        match self {
            Self::Mapped(region) => region,
            Self::Own(arena) => arena.region(),
        }
    }

    /// The address of `len` bytes at `offset`, if they lie in the arena.
    #[inline]
    pub fn address(&self, offset: u64, len: usize) -> Option<*const u8> {
        let region = self.region();
        let offset = usize::try_from(offset).ok()?;
        if len > region.len() || offset > region.len() - len {
            return None;
        }
        // SAFETY: the offset lies in the region.
        Some(unsafe { region.start().as_ptr().add(offset) })
    }
}

/// Maps memory that a peer sent, after checks beyond those of [`Region::of_peer`].
pub(crate) fn map_peer(fd: &OwnedFd, bytes: usize, access: Access) -> io::Result<Region> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    // Huge-page files have seals too, but touching a page raises SIGBUS when no huge page is left.
    if rustix::fs::fstatfs(fd)?.f_type as u64 != TMPFS_MAGIC {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the descriptor is not ordinary shared memory (tmpfs)",
        ));
    }
    Region::of_peer(fd, bytes, access).map_err(|error| match error {
        sinew_mem::MapError::System(source) => source,
        other => io::Error::other(other),
    })
}

/// Means by which a sleeping peer is woken.
#[derive(Clone, Debug)]
pub(crate) enum Wake {
    /// A byte over the link's socket. (A write to an eventfd of the peer's could be made to block by the peer, whereas
    /// a send can be told not to. The socket also saves a descriptor.)
    Socket(Arc<OwnedFd>),
    /// The eventfd of a port of this process.
    Event(Arc<OwnedFd>),
}

impl Wake {
    #[cold]
    #[inline(never)]
    pub fn wake(&self) {
        match self {
            Self::Socket(socket) => hello::send_bell(socket),
            Self::Event(event) => wake_event(event),
        }
    }
}

pub(crate) fn wake_event(event: &OwnedFd) {
    // The only possible failure is a full counter, in which case the port is being woken already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// State of a link that both halves of a port share.
#[derive(Debug)]
pub(crate) struct LinkState {
    /// The sending half found that the peer broke the rules.
    pub broken: AtomicBool,
    /// Dropped when neither half uses the link's memory any more.
    _claim: Option<Claim>,
}

impl LinkState {
    pub fn new(claim: Option<Claim>) -> Self {
        Self { broken: AtomicBool::new(false), _claim: claim }
    }
}

/// A claim on one side of a link's memory, exclusive among all ports of this process. Without it, a peer could pass the
/// same memory to two of our ports, and each would write to it as if it were its own.
#[derive(Debug)]
pub(crate) struct Claim {
    memory: Inode,
    side: Side,
}

/// Device and inode of a link's memory.
type Inode = (u64, u64);

static CLAIMS: Mutex<BTreeMap<Inode, Vec<(Side, Lines)>>> = Mutex::new(BTreeMap::new());

impl Claim {
    /// Claims `side` of the memory behind `fd`; `None` when that side is in use, or the other side is in use with
    /// another layout.
    pub fn new(fd: impl AsFd, side: Side, lines: Lines) -> io::Result<Option<Self>> {
        let stat = rustix::fs::fstat(fd)?;
        let memory = (stat.st_dev, stat.st_ino);
        let mut claims = CLAIMS.lock().unwrap_or_else(PoisonError::into_inner);
        let sides = claims.entry(memory).or_default();
        if sides.iter().any(|(used, of)| *used == side || *of != lines) {
            return Ok(None);
        }
        sides.push((side, lines));
        Ok(Some(Self { memory, side }))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = CLAIMS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sides) = claims.get_mut(&self.memory) {
            sides.retain(|(side, _)| *side != self.side);
            if sides.is_empty() {
                claims.remove(&self.memory);
            }
        }
    }
}

/// A share of a buffer that the port holds until the peer has taken the packet.
#[derive(Debug)]
pub(crate) struct Lent {
    /// Position of the packet in the ring.
    pub position: u64,
    pub buffer: Frozen,
    /// Whether the buffer is one of the port's own, which it reuses.
    pub staging: bool,
}

/// A link, as the sending half sees it.
#[derive(Debug)]
pub(crate) struct TxLink {
    pub generation: u64,
    pub producer: Producer,
    /// `None` until the peer has announced its board.
    pub doorbell: Option<Doorbell>,
    /// Whether the peer makes the fence between our publishing and our look at its board.
    pub fenced: bool,
    pub wake: Wake,
    pub touched: bool,
    pub lent: VecDeque<Lent>,
    /// Number of the shares that are of the port's own buffers.
    pub staged: usize,
    /// Packets that were copied, in buffers of the link's own.
    pub copies: Copies,
    pub state: Arc<LinkState>,
}

impl Drop for TxLink {
    fn drop(&mut self) {
        // The peer may be alive and copying, so its packets are revoked before our shares and buffers end.
        let lent = self.lent.iter().map(|lent| lent.position);
        for position in lent.chain(self.copies.positions()) {
            // SAFETY: `push_far` returned the position.
            unsafe { self.producer.revoke(position) };
        }
        Producer::revoked();
    }
}

/// Changes of links that the receiving half, which manages them, passes to the sending half.
#[derive(Debug)]
pub(crate) enum TxChange {
    Add(usize, Box<TxLink>),
    Attach(usize, u64, Doorbell),
    Remove(usize, u64),
}

/// Inbox of the sending half for changes of links. It checks one flag, and takes the lock only when links change.
#[derive(Debug, Default)]
pub(crate) struct TxInbox {
    pending: AtomicBool,
    changes: Mutex<Vec<TxChange>>,
}

impl TxInbox {
    pub fn post(&self, change: TxChange) {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).push(change);
        self.pending.store(true, Ordering::Release);
    }

    #[inline(always)]
    pub fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    pub fn take(&self) -> Vec<TxChange> {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.pending.store(false, Ordering::Relaxed);
        std::mem::take(&mut changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_side_of_a_links_memory_is_in_use_once_and_both_sides_agree_on_its_layout() {
        let lines = Lines { to_acceptor: 64, to_initiator: 128 };
        let (_region, fd) = Region::shared("test", lines.bytes(), Access::ReadWrite).unwrap();
        let again = fd.try_clone().unwrap();
        let claim = |fd: &OwnedFd, side, lines| Claim::new(fd, side, lines).unwrap();
        let acceptor = claim(&fd, Side::Acceptor, lines);
        assert!(acceptor.is_some() && claim(&again, Side::Acceptor, lines).is_none());
        let other_layout = Lines { to_acceptor: 128, to_initiator: 64 };
        assert!(claim(&again, Side::Initiator, other_layout).is_none());
        // The initiator is a port that resolved another port of its own process.
        let initiator = claim(&again, Side::Initiator, lines);
        assert!(initiator.is_some());
        drop(acceptor);
        assert!(claim(&fd, Side::Initiator, lines).is_none());
        drop(initiator);
        assert!(claim(&fd, Side::Acceptor, other_layout).is_some(), "nobody uses it any more");
    }
}
