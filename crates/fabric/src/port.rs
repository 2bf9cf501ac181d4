//! The packet port: unreliable datagrams in bursts, owned by one thread.

use arrayvec::ArrayVec;
use sinew_mem::{Arena, Frozen, SharedBytes};

use crate::address::{Address, AddressError, Peer};
use crate::readiness::{self, Readiness};
use crate::waker::Waker;

/// The most packets that one receive burst lends.
pub const MAX_BURST: usize = 64;

/// The least that [`Caps::packet_len_max`] may be, in bytes: what the protocols above need to open a session.
pub const PACKET_LEN_MIN: usize = 96;

/// What a port can do, as data. It affects speed and limits, never soundness.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Caps {
    /// The largest packet, header included, in bytes; at least [`PACKET_LEN_MIN`].
    pub packet_len_max: usize,
    /// Bytes that [layers](crate::layer) around the fabric's own port add to each packet, at most; 0 where there are none. The other
    /// lengths here have them taken off already: the fabric carries up to `packet_len_max + overhead`.
    pub overhead: usize,
    /// Up to this many bytes a packet is best handed over as one borrowed slice, which the port copies; longer data is best
    /// handed over as [`TxData::Frozen`]. At least 24.
    pub copy_len_max: usize,
    /// Packets that a receive burst lends at most; `<= MAX_BURST`.
    pub burst_max: usize,
    /// Packets that can be waiting at this port before further ones are lost, over all senders.
    pub receive_packets: usize,
    /// Packets of one sender that can be waiting, where each sender has a ring of its own; else equal to
    /// [`Caps::receive_packets`].
    pub receive_packets_per_peer: usize,
    /// Whether received bytes are lent from where they arrived rather than copied out first.
    pub lends_in_place: bool,
}

/// The data of a packet to transmit.
#[derive(Clone, Copy, Debug)]
pub enum TxData<'a> {
    /// The packet is its head alone.
    None,
    /// Bytes that the port copies before it returns.
    Bytes(&'a [u8]),
    /// A range of a shared message buffer, of which the port keeps a share until it is done with it.
    Frozen {
        /// The share; the port clones it when it needs it for longer than the call.
        buffer: &'a Frozen,
        /// First byte of the range.
        start: usize,
        /// Bytes in the range.
        len: usize,
    },
}

impl TxData<'_> {
    /// Bytes of data.
    #[inline]
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match *self {
            TxData::None => &[],
            TxData::Bytes(bytes) => bytes,
            TxData::Frozen { buffer, start, len } => &buffer[start..start + len],
        }
    }
}

/// A packet to transmit: a head, which is always copied, and data behind it.
///
/// A small packet is all head: header and data in one piece, as [`sinew_mem::MessageBuffer::first_packet`] lays them out.
#[derive(Clone, Copy, Debug)]
pub struct TxPacket<'a> {
    /// Whom to.
    pub to: Peer,
    /// First bytes of the packet.
    pub head: &'a [u8],
    /// The rest.
    pub data: TxData<'a>,
}

impl TxPacket<'_> {
    /// Bytes on the wire.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.data.len()
    }

    /// Whether the packet has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A received packet, lent until the burst goes.
#[derive(Clone, Copy, Debug)]
pub struct RxPacket<'a> {
    /// Who sent it, as far as the fabric knows.
    pub from: Peer,
    /// First bytes of the packet, in memory that nobody else writes: all of it, or, where `tail` is there, the head that the
    /// sender passed (and at least its first 24 bytes).
    pub head: &'a [u8],
    /// The rest, in memory that the sender may still write.
    pub tail: Option<SharedBytes<'a>>,
}

impl RxPacket<'_> {
    /// Bytes received.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.map_or(0, |tail| tail.len())
    }

    /// Whether the packet has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A received burst and the time that counts as its arrival.
#[derive(Debug)]
pub struct RxBurst<'a> {
    /// When the burst was taken from the fabric, on the clock of the caller.
    pub time_ns: u64,
    /// The packets, in the order of their arrival from each sender.
    pub packets: ArrayVec<RxPacket<'a>, MAX_BURST>,
    /// Which of them met a long queue (ECN), the first in the lowest bit. Only fabrics that know set it.
    pub marked: u64,
}
const _: () = assert!(MAX_BURST <= u64::BITS as usize);

impl RxBurst<'_> {
    /// An empty burst.
    #[inline]
    pub fn new(time_ns: u64) -> Self {
        Self { time_ns, packets: ArrayVec::new_const(), marked: 0 }
    }
}

/// Why a port dropped packets, each a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Dropped {
    /// Sending: the peer's ring or the socket's buffer was full.
    Full,
    /// Sending: the peer is gone or was never there.
    NoSuchPeer,
    /// Sending: longer than [`Caps::packet_len_max`].
    TooLong,
    /// Receiving: a length, offset or index made no sense.
    Malformed,
    /// Receiving: the sender took the packet back before it was read.
    Revoked,
    /// Receiving: lost before this port could take it (a full receive buffer, as far as the system tells).
    Overflow,
    /// On purpose, by a fault injector.
    Injected,
    /// Receiving: a layer's seal on the packet is not that of its bytes. They were changed on their way, or made up.
    BadSeal,
    /// Receiving: a layer has let the same packet through before, or the packet is too old for it to tell.
    Replayed,
    /// Receiving: a checksum is not that of the packet. It was changed on its way, or made up.
    BadChecksum,
    /// Receiving: the sender's kernel left the checksum, or the cutting into packets, to a device that is none, as between virtual interfaces.
    /// `ethtool -K INTERFACE tx off gso off tso off` at the sender's interface has the kernel do it.
    Unfinished,
    /// Receiving: a part of a packet that was cut on its way, where the port takes whole ones alone.
    Fragment,
    /// Receiving: for an address or a protocol that is not this port's.
    NotOurs,
}

impl Dropped {
    /// All reasons.
    pub const ALL: [Self; 13] = [
        Self::Full,
        Self::NoSuchPeer,
        Self::TooLong,
        Self::Malformed,
        Self::Revoked,
        Self::Overflow,
        Self::Injected,
        Self::BadSeal,
        Self::Replayed,
        Self::BadChecksum,
        Self::Unfinished,
        Self::Fragment,
        Self::NotOurs,
    ];

    /// The reason's name, as metrics show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::NoSuchPeer => "no_such_peer",
            Self::TooLong => "too_long",
            Self::Malformed => "malformed",
            Self::Revoked => "revoked",
            Self::Overflow => "overflow",
            Self::Injected => "injected",
            Self::BadSeal => "bad_seal",
            Self::Replayed => "replayed",
            Self::BadChecksum => "bad_checksum",
            Self::Unfinished => "unfinished",
            Self::Fragment => "fragment",
            Self::NotOurs => "not_ours",
        }
    }
}

/// What went through a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Packets handed to receivers.
    pub rx_packets: u64,
    /// Bytes in them, as they were handed over.
    pub rx_bytes: u64,
    /// Packets taken for sending and not dropped.
    pub tx_packets: u64,
    /// Bytes in them, with those that layers added.
    pub tx_bytes: u64,
    dropped: [u64; Dropped::ALL.len()],
}

impl PortStats {
    /// Packets dropped for a reason.
    pub fn dropped(&self, reason: Dropped) -> u64 {
        self.dropped[reason as usize]
    }

    /// Packets dropped in all.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Counts `packets` more.
    #[inline]
    pub fn count_dropped(&mut self, reason: Dropped, packets: u64) {
        self.dropped[reason as usize] += packets;
    }

    /// The sum of both (a port keeps one for each half).
    pub fn merged(mut self, other: &Self) -> Self {
        self.rx_packets += other.rx_packets;
        self.rx_bytes += other.rx_bytes;
        self.tx_packets += other.tx_packets;
        self.tx_bytes += other.tx_bytes;
        for (mine, theirs) in self.dropped.iter_mut().zip(other.dropped) {
            *mine += theirs;
        }
        self
    }
}

/// How a port knows that a peer is gone, or why it supposes so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerLoss {
    /// Its process ended.
    ProcessDied,
    /// The way to it is closed: it closed its port, or broke the fabric's rules and was cut off for that.
    Closed,
    /// Something says that nobody listens there. A hint: on a network anybody may have made that up, of anybody, and packets
    /// to the peer may still arrive. Who is told asks the peer before giving it up.
    Unreachable,
    /// It is there, and one of the two sides has no room for the other: links, memory or descriptors.
    Refused,
}

impl PeerLoss {
    /// Whether the port knows; else it was only told, and the peer may be well.
    pub const fn is_certain(self) -> bool {
        !matches!(self, Self::Unreachable)
    }
}

/// Something that happened beside packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// A peer is gone: packets to this `Peer` will not arrive again, if the loss [is certain](PeerLoss::is_certain).
    PeerLost {
        /// Which.
        peer: Peer,
        /// How it is known.
        loss: PeerLoss,
    },
}

/// Why a port could not be opened, or a name not be resolved. Every message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The text is no address of this fabric.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Nobody is there.
    #[error("no server at {address}: looked in {looked_in}; start it first, or check the name")]
    NotFound {
        /// The name that was asked for.
        address: String,
        /// Where it would have been.
        looked_in: String,
    },
    /// The address names a host that cannot be looked up.
    #[error("{address}: there is no host `{host}` ({source}); check the name, or write its IP address")]
    UnknownHost {
        /// The whole address.
        address: String,
        /// The host in it.
        host: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Somebody has it already.
    #[error("{address} is taken{holder}; choose another name or stop its owner")]
    Taken {
        /// The name that was asked for.
        address: String,
        /// Who holds it, as ` by ...`, when that is known.
        holder: String,
    },
    /// A limit was reached.
    #[error("{what}: the limit is {limit}; {remedy}")]
    Limit {
        /// What was asked for.
        what: String,
        /// The limit.
        limit: u64,
        /// What to do.
        remedy: String,
    },
    /// Packets that no protocol above could use.
    #[error(
        "packets of {packet_len_max} bytes at {address}, of which layers add {overhead}, are too small: {} bytes beside those are needed; open the port with larger packets",
        PACKET_LEN_MIN
    )]
    PacketsTooSmall {
        /// The port.
        address: String,
        /// The largest packet that the fabric carries there, in bytes.
        packet_len_max: usize,
        /// Bytes that layers add to each.
        overhead: usize,
    },
    /// This machine or user cannot use the fabric.
    #[error("{fabric} cannot be used here: {reason}; {remedy}")]
    Unavailable {
        /// The fabric.
        fabric: &'static str,
        /// Why.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// The system refused.
    #[error("{doing}: {source}")]
    System {
        /// What was being done, to what.
        doing: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The receiving half of a port.
pub trait PacketRx {
    /// Lends the next packets, at most [`Caps::burst_max`], by pushing them to `burst`. Never blocks.
    ///
    /// What the previous call lent is given back to the fabric by this call, so the loop that polls is also what keeps the
    /// ring empty. `burst.time_ns` is the caller's clock; a port with a better time of arrival sets it.
    fn receive<'a>(&'a mut self, burst: &mut RxBurst<'a>);
}

/// The transmitting half of a port.
pub trait PacketTx {
    /// Takes one packet. It may wait for [`Self::submit`] before it goes.
    ///
    /// Datagrams are unreliable: a packet that cannot be sent is dropped and counted ([`PortStats`]).
    fn push(&mut self, packet: TxPacket<'_>);

    /// Makes everything that was pushed visible to its receivers: the doorbell at the end of a burst.
    fn submit(&mut self);

    /// As [`Self::submit`], but the port may hold small packets back for some microseconds where more of them would share the
    /// price of a system call. Whoever uses it calls it again soon, every turn of its loop, with the time, until it blocks:
    /// then `submit`.
    #[inline]
    fn submit_soon(&mut self, now_ns: u64) {
        let _ = now_ns;
        self.submit();
    }

    /// Ends every share that this port still holds. Afterwards nothing sent earlier can deliver bytes of a buffer that is
    /// being reused: it was delivered already, or never will be.
    ///
    /// Bounded, and never waits for a peer. For retransmissions, cancellations and failures, not for the usual case
    /// (nsdi19 4.2.2).
    fn flush(&mut self);

    /// Ends the shares that this port holds of one buffer, as [`Self::flush`] does for all: packets of other buffers are
    /// not disturbed where the port can tell them apart. Cheap when the peer has taken the packets already.
    fn reclaim(&mut self, buffer: &Frozen) {
        let _ = buffer;
        self.flush();
    }
}

/// A packet port.
///
/// A thread sleeps on it alone by [`Self::wait`], or on several things at once by what it has of [`Readiness`].
pub trait PacketPort: Readiness {
    /// The receiving half.
    type Rx: PacketRx;
    /// The transmitting half.
    type Tx: PacketTx;

    /// What the port can do.
    fn caps(&self) -> Caps;

    /// Where others reach this port.
    fn address(&self) -> Address;

    /// The arena whose buffers this port sends without copying.
    fn arena(&self) -> &Arena;

    /// Turns an address into a peer to send to. May do a bounded amount of work in the system (a look-up, a connect).
    ///
    /// # Errors
    ///
    /// [`PortError`], which says where it looked.
    fn resolve(&mut self, address: &Address) -> Result<Peer, PortError>;

    /// A peer's address, to show to people.
    fn describe(&self, peer: Peer) -> String;

    /// The largest packet towards `peer`, which may be less than [`Caps::packet_len_max`].
    fn packet_len_max(&self, peer: Peer) -> usize {
        let _ = peer;
        self.caps().packet_len_max
    }

    /// Both halves, so that packets can be sent while a burst is lent.
    fn split(&mut self) -> (&mut Self::Rx, &mut Self::Tx);

    /// The next event, if one was noticed. Ports notice while they receive and wait.
    fn poll_event(&mut self) -> Option<PortEvent>;

    /// Says that nothing will be sent to or expected from `peer` any more, so that the port can drop what it keeps for it.
    /// The peer may still come back by sending.
    fn forget(&mut self, peer: Peer) {
        let _ = peer;
    }

    /// Says that the protocol above keeps nothing of `peer` any more, which opened the way between the two, and may use it again: unlike
    /// [`Self::forget`], this leaves the way open. [Layers](crate::layer) drop what they keep of the peer.
    fn peer_left(&mut self, peer: Peer) {
        let _ = peer;
    }

    /// Wakes this port from other threads.
    fn waker(&self) -> Waker;

    /// Blocks until a packet or an event may be there, the waker was called, or `timeout_ns` passed (`None`: no time-out).
    /// May return early. Arms the port, sleeps on its descriptor, and disarms it; a port without one does it in its own way.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
        readiness::wait(self, timeout_ns)
    }

    /// What went through so far.
    fn stats(&self) -> PortStats;
}
