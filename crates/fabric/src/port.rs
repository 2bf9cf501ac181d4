//! The packet port: unreliable datagrams in bursts, owned by one thread.
//!
//! # Design
//!
//! - **A port splits** into a receiving and a transmitting half ([`PacketPort::split`]), so that handlers can answer
//!   while the burst that they read is lent.
//! - **A burst is lent**, and no packet outlives it: [`PacketRx::receive`] gives the previous burst back. A packet is a
//!   *head*, in memory that nobody else writes, and, where the sender can still write the rest, a *tail*
//!   ([`SharedBytes`]). A tail can only be copied out, and the copy fails if the sender has revoked the bytes
//!   meanwhile.
//! - **Data to send** is a borrowed slice, which the port copies, or a [`Frozen`] share of a message buffer, which the
//!   port may keep. Only the sole holder of a buffer can thaw it.
//! - **[`PacketTx::flush`] and [`PacketTx::reclaim`] end shares.** After either, no packet sent earlier can deliver
//!   bytes of a buffer that is being reused. `flush` alone would be enough, but on shared memory it revokes every
//!   packet that the peer has not copied yet, those of other calls too, and each of these then costs a retransmission
//!   time-out. `reclaim` revokes the packets of one buffer only.
//! - **[`PacketTx::submit_soon`] stands beside [`PacketTx::submit`]** because some ports make expensive system calls.
//!   Such a port may hold small packets back for as long as every turn of the loop brings more. Kernel UDP does so for
//!   up to 6 us, which triples the rate in small batches.
//! - **[`Peer`] is 24 opaque bytes**, not an associated type. An IPv6 socket address fits, and so do a link's index and
//!   generation. So ports need no table of unknown senders, wrappers and enums of ports need no conversion, and the
//!   protocol core is not generic.
//! - **[`Caps`] is data**: packet sizes, receive capacity, burst size. No code depends on which kind of port it has.
//! - **Anything that can be waited for has a descriptor** ([`Readiness`]). Simulated ports have none, and say so.

use arrayvec::ArrayVec;
use sinew_mem::{Arena, Frozen, SharedBytes};

use crate::address::{Address, AddressError, Peer};
use crate::readiness::{self, Readiness};
use crate::waker::Waker;

/// The most packets that one receive burst lends.
pub const MAX_BURST: usize = 64;

/// The least [`Caps::packet_len_max`], in bytes: what the protocols above need to open a session.
pub const PACKET_LEN_MIN: usize = 96;

/// Capabilities of a port, as data. They affect speed and limits, never soundness.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Caps {
    /// The largest packet, header included, in bytes; at least [`PACKET_LEN_MIN`].
    pub packet_len_max: usize,
    /// The most bytes that [layers](crate::layer) around the fabric's own port add to each packet; 0 without layers.
    /// The other lengths here exclude them already: the fabric carries up to `packet_len_max + overhead`.
    pub overhead: usize,
    /// Length in bytes up to which a packet is best passed as one borrowed slice, which the port copies; longer data is
    /// best passed as [`TxData::Frozen`]. At least 24.
    pub copy_len_max: usize,
    /// The most packets that a receive burst lends; `<= MAX_BURST`.
    pub burst_max: usize,
    /// Packets that can be waiting at this port before further ones are lost, over all senders.
    pub receive_packets: usize,
    /// Packets of one sender that can be waiting, if each sender has a ring of its own; otherwise equal to
    /// [`Caps::receive_packets`].
    pub receive_packets_per_peer: usize,
    /// Whether received bytes are lent where they arrived rather than copied out first.
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
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether there is no data.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The data.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match *self {
            TxData::None => &[],
            TxData::Bytes(bytes) => bytes,
            TxData::Frozen { buffer, start, len } => &buffer[start..start + len],
        }
    }
}

/// A packet to transmit: a head, which is always copied, and data after it.
///
/// A small packet is all head: header and data in one piece, as [`sinew_mem::MessageBuffer::first_packet`] lays them
/// out.
#[derive(Clone, Copy, Debug)]
pub struct TxPacket<'a> {
    /// The receiver.
    pub to: Peer,
    /// First bytes of the packet.
    pub head: &'a [u8],
    /// The rest.
    pub data: TxData<'a>,
}

impl TxPacket<'_> {
    /// Length on the wire, in bytes.
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

/// A received packet, lent until the burst is dropped.
#[derive(Clone, Copy, Debug)]
pub struct RxPacket<'a> {
    /// The sender, as far as the fabric knows.
    pub from: Peer,
    /// First bytes of the packet, in memory that nobody else writes: the whole packet or, if there is a `tail`, the
    /// head that the sender passed (at least the packet's first 24 bytes).
    pub head: &'a [u8],
    /// The rest, in memory that the sender may still write.
    pub tail: Option<SharedBytes<'a>>,
}

impl RxPacket<'_> {
    /// Length in bytes.
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
    /// Time at which the burst was taken from the fabric, on the caller's clock.
    pub time_ns: u64,
    /// The packets, in the order of their arrival from each sender.
    pub packets: ArrayVec<RxPacket<'a>, MAX_BURST>,
    /// Packets that met a long queue (ECN), one bit each, the first in the lowest bit. Only fabrics that know set them.
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

/// Reason why a port dropped a packet; each has a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Dropped {
    /// Sending: the peer's ring or the socket's buffer was full.
    Full,
    /// Sending: the peer is gone or was never there.
    NoSuchPeer,
    /// Sending: longer than [`Caps::packet_len_max`].
    TooLong,
    /// Receiving: a length, offset or index was invalid.
    Malformed,
    /// Receiving: the sender revoked the packet before it was read.
    Revoked,
    /// Receiving: lost before this port could take it (a full receive buffer, as far as the system tells).
    Overflow,
    /// Dropped on purpose, by a fault injector.
    Injected,
    /// Receiving: a layer's seal does not match the packet's bytes, which were changed on the way or forged.
    BadSeal,
    /// Receiving: a layer has let the same packet through before, or the packet is too old for it to tell.
    Replayed,
    /// Receiving: a checksum does not match the packet, which was changed on the way or forged.
    BadChecksum,
    /// Receiving: the sender's kernel left the checksum, or the segmentation, to a device that does not do it, as
    /// between virtual interfaces. `ethtool -K INTERFACE tx off gso off tso off` at the sender's interface makes the
    /// kernel do it.
    Unfinished,
    /// Receiving: a fragment of a packet, at a port that takes only whole ones.
    Fragment,
    /// Receiving: a packet for an address or a protocol that is not this port's.
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

/// Traffic of a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Packets handed to receivers.
    pub rx_packets: u64,
    /// Bytes in those packets, as handed over.
    pub rx_bytes: u64,
    /// Packets accepted for sending and not dropped.
    pub tx_packets: u64,
    /// Bytes in those packets, including those that layers added.
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

    /// Counts `packets` more drops for a reason.
    #[inline]
    pub fn count_dropped(&mut self, reason: Dropped, packets: u64) {
        self.dropped[reason as usize] += packets;
    }

    /// The sum of both counters. (A port keeps one for each half.)
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

/// Loss of a peer, as the port knows or supposes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerLoss {
    /// Its process ended.
    ProcessDied,
    /// The link to it is closed: the peer closed its port, or broke the fabric's rules and was cut off for that.
    Closed,
    /// Something says that nobody listens there. This is a hint: on a network anybody may have forged it, about
    /// anybody, and packets to the peer may still arrive. The protocol above asks the peer before giving it up.
    Unreachable,
    /// The peer is there, but one of the two sides has no room for the other: links, memory or descriptors.
    Refused,
}

impl PeerLoss {
    /// Whether the port knows this for certain. If not, it was only told, and the peer may be well.
    pub const fn is_certain(self) -> bool {
        !matches!(self, Self::Unreachable)
    }
}

/// An event other than a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// A peer is gone: if the loss [is certain](PeerLoss::is_certain), packets to this `Peer` will never arrive again.
    PeerLost {
        /// The peer.
        peer: Peer,
        /// Kind of the loss.
        loss: PeerLoss,
    },
}

/// Reason why a port cannot be opened, or a name cannot be resolved. Every message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The text is not an address of this fabric.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Nobody is at the address.
    #[error("no server at {address}: looked in {looked_in}; start it first, or check the name")]
    NotFound {
        /// The name that was asked for.
        address: String,
        /// Place where the address was looked up.
        looked_in: String,
    },
    /// The address names a host that cannot be looked up.
    #[error("{address}: there is no host `{host}` ({source}); check the name, or write its IP address")]
    UnknownHost {
        /// The whole address.
        address: String,
        /// The host in it.
        host: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Somebody has the address already.
    #[error("{address} is taken{holder}; choose another name or stop its owner")]
    Taken {
        /// The name that was asked for.
        address: String,
        /// The holder, as ` by ...`, if known.
        holder: String,
    },
    /// A limit was reached.
    #[error("{what}: the limit is {limit}; {remedy}")]
    Limit {
        /// The quantity that was asked for.
        what: String,
        /// The limit.
        limit: u64,
        /// What to do.
        remedy: String,
    },
    /// The port's packets are too small for any protocol above.
    #[error(
        "packets of {packet_len_max} bytes at {address}, of which layers add {overhead}, are too small: protocols need {} bytes besides those; open the port with larger packets",
        PACKET_LEN_MIN
    )]
    PacketsTooSmall {
        /// The port.
        address: String,
        /// The largest packet that the fabric carries there, in bytes.
        packet_len_max: usize,
        /// Bytes that layers add to each packet.
        overhead: usize,
    },
    /// This machine or user cannot use the fabric.
    #[error("{fabric} cannot be used here: {reason}; {remedy}")]
    Unavailable {
        /// The fabric.
        fabric: &'static str,
        /// Reason for that.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// The system refused.
    #[error("{doing}: {source}")]
    System {
        /// What was being done, and to what.
        doing: String,
        /// The system's error.
        source: std::io::Error,
    },
}

/// The receiving half of a port.
pub trait PacketRx {
    /// Lends the next packets, at most [`Caps::burst_max`], by pushing them to `burst`. Never blocks.
    ///
    /// This call gives back to the fabric what the previous call lent, so the polling loop also keeps the ring from
    /// filling up. `burst.time_ns` is the caller's clock; a port that knows the time of arrival better overwrites it.
    fn receive<'a>(&'a mut self, burst: &mut RxBurst<'a>);
}

/// The transmitting half of a port.
pub trait PacketTx {
    /// Queues one packet, which may wait for [`Self::submit`].
    ///
    /// Datagrams are unreliable: a packet that cannot be sent is dropped and counted ([`PortStats`]).
    fn push(&mut self, packet: TxPacket<'_>);

    /// Makes everything that was pushed visible to its receivers: the doorbell at the end of a burst.
    fn submit(&mut self);

    /// As [`Self::submit`], but the port may hold small packets back for some microseconds, if more of them would then
    /// share the cost of a system call. The caller must call this again soon, in every turn of its loop, with the time,
    /// until it blocks: then it calls `submit`.
    #[inline]
    fn submit_soon(&mut self, now_ns: u64) {
        let _ = now_ns;
        self.submit();
    }

    /// Ends every share that this port still holds. Afterwards no earlier packet can deliver bytes of a buffer that is
    /// being reused: it was delivered already, or never will be.
    ///
    /// The call is bounded and never waits for a peer. It is meant for retransmissions, cancellations and failures, not
    /// for the usual case (nsdi19 4.2.2).
    fn flush(&mut self);

    /// Ends the shares that this port holds of one buffer, as [`Self::flush`] does for all. Packets of other buffers
    /// are not disturbed if the port can tell them apart. Cheap when the peer has taken the packets already.
    fn reclaim(&mut self, buffer: &Frozen) {
        let _ = buffer;
        self.flush();
    }
}

/// A packet port.
///
/// A thread sleeps on one port with [`Self::wait`], or on several things at once through [`Readiness`].
pub trait PacketPort: Readiness {
    /// The receiving half.
    type Rx: PacketRx;
    /// The transmitting half.
    type Tx: PacketTx;

    /// Capabilities of the port.
    fn caps(&self) -> Caps;

    /// Address at which others reach this port.
    fn address(&self) -> Address;

    /// The arena whose buffers this port sends without copying.
    fn arena(&self) -> &Arena;

    /// Turns an address into a peer to send to. May do a bounded amount of work in the system (a lookup, a connect).
    ///
    /// # Errors
    ///
    /// [`PortError`], which says where it looked.
    fn resolve(&mut self, address: &Address) -> Result<Peer, PortError>;

    /// A peer's address, for people.
    fn describe(&self, peer: Peer) -> String;

    /// The longest packet to `peer` in bytes, which may be less than [`Caps::packet_len_max`].
    fn packet_len_max(&self, peer: Peer) -> usize {
        let _ = peer;
        self.caps().packet_len_max
    }

    /// Both halves of the port, so that packets can be sent while a burst is lent.
    fn split(&mut self) -> (&mut Self::Rx, &mut Self::Tx);

    /// The next event, if there is one. Ports notice events while they receive and wait.
    fn poll_event(&mut self) -> Option<PortEvent>;

    /// Reports that nothing will be sent to or expected from `peer` any more, so that the port can drop what it keeps
    /// for it. The peer may still come back by sending.
    fn forget(&mut self, peer: Peer) {
        let _ = peer;
    }

    /// Reports that the protocol above no longer keeps anything of `peer`, which opened the link between the two and
    /// may use it again. Unlike [`Self::forget`], this leaves the link open. [Layers](crate::layer) drop what they keep
    /// of the peer.
    fn peer_left(&mut self, peer: Peer) {
        let _ = peer;
    }

    /// A waker, by which other threads wake this port.
    fn waker(&self) -> Waker;

    /// Blocks until a packet or an event may be there, the waker is called, or `timeout_ns` has passed (`None`: no
    /// time-out). May return early. It arms the port, sleeps on its descriptor, and disarms it; a port without a
    /// descriptor waits in its own way.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
        readiness::wait(self, timeout_ns)
    }

    /// Traffic so far.
    fn stats(&self) -> PortStats;
}
