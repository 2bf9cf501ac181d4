//! A UD queue pair as a packet port, so that everything that runs on packets runs on verbs.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use sinew_mem::{Arena, Frozen, MessageBuffer};

use super::completion::{Completion, Status};
use super::error::VerbsError;
use super::names::Names;
use super::request::{Destination, Operation, Request, Slice, Source};
use super::traits::{CompletionQueue, Device, ProtectionDomain, QueuePair, ThreadDomain};
use super::types::{QpAddress, QpConfig, QpNumber, QpState, Transport};
use crate::address::{Address, AddressError, Peer};
use crate::port::{Caps, Dropped, PacketPort, PacketRx, PacketTx, PortError, PortEvent, PortStats, RxBurst, RxPacket};
use crate::port::{TxData, TxPacket};
use crate::readiness::{Armed, Descriptor, Readiness};
use crate::waker::Waker;

/// Scheme of the port's addresses.
const SCHEME: &str = "ud";
/// The most packets of a receive burst.
const BURST_MAX: usize = 32;
/// Of packets whose completion nobody waits for, the last of this many is signaled.
const SIGNAL_EVERY: u32 = 32;
/// Length in bytes up to which data is copied behind its head; longer data is gathered from its buffer.
const COPY_MAX: usize = 512;
/// Length in bytes up to which packets go inline, if the device allows it.
const INLINE_MAX: usize = 256;
/// The most polls for completions in one `flush`; shares that are left are released by later calls.
const FLUSH_POLLS: usize = 100_000;

/// Configuration of a [`UdPort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdPortConfig {
    /// Packets that can wait to be received.
    pub receive_packets: usize,
    /// Packets that can wait to be sent.
    pub send_packets: usize,
    /// Bytes of address space for message buffers, those of received packets included.
    pub arena_bytes: usize,
    /// The key that datagrams must carry.
    pub qkey: u32,
}

impl Default for UdPortConfig {
    fn default() -> Self {
        Self { receive_packets: 4096, send_packets: 1024, arena_bytes: 1 << 30, qkey: 0x5133 }
    }
}

/// A packet port over a UD queue pair of any verbs device.
///
/// Its address is `ud://` and the queue pair's own address in hexadecimal digits, since the fabric has no names;
/// programs exchange theirs over whatever connects them already. Alternatively the port is given [`Names`]
/// ([`Self::open_named`]).
pub struct UdPort<D: ProtectionDomain> {
    rx: UdRx<D::Thread>,
    tx: UdTx<D::Thread>,
    thread: D::Thread,
    arena: Arena,
    caps: Caps,
    address: Address,
    names: Option<Box<dyn Names>>,
}

type Qp<T> = Rc<RefCell<<T as ThreadDomain>::Qp>>;

/// The receiving half of a [`UdPort`].
pub struct UdRx<T: ThreadDomain> {
    qp: Qp<T>,
    cq: T::Cq,
    completions: Vec<Completion>,
    /// Packets that the last burst lent.
    lent: Vec<(Peer, MessageBuffer)>,
    mtu: usize,
    stats: PortStats,
}

/// The transmitting half of a [`UdPort`].
pub struct UdTx<T: ThreadDomain> {
    qp: Qp<T>,
    cq: T::Cq,
    completions: Vec<Completion>,
    arena: Arena,
    mtu: usize,
    /// Peers that take shorter packets, each with its limit.
    small_peers: Vec<(Peer, usize)>,
    packet_len_min: usize,
    inline_max: usize,
    depth: usize,
    /// Requests pushed and not known to be over, and the number of those since the last signaled one.
    in_flight: usize,
    unsignaled: u32,
    /// For each signaled request in flight, oldest first, the number of requests that it stands for.
    signals: VecDeque<u32>,
    pushed: bool,
    /// Buffers in which packets were assembled, oldest first; the queue pair may still hold a share of each.
    staged: VecDeque<Frozen>,
    stats: PortStats,
}

fn port_error(doing: &str) -> impl Fn(VerbsError) -> PortError {
    move |error| PortError::Unavailable {
        fabric: "verbs",
        reason: format!("{doing}: {error}"),
        remedy: "see `sinew verbs devices`".into(),
    }
}

fn peer_of(to: Destination) -> Peer {
    Peer([to.handle, u64::from(to.number.0) | u64::from(to.qkey) << 32, 0])
}

fn destination_of(peer: Peer) -> Destination {
    let Peer([handle, numbers, _]) = peer;
    Destination { handle, number: QpNumber(numbers as u32), qkey: (numbers >> 32) as u32 }
}

/// The smallest MTU that InfiniBand has.
const MTU_MIN: u32 = 256;

/// The textual address of a queue pair.
pub fn address_of(qp: &QpAddress) -> Address {
    let digits: String = qp.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    Address::new(SCHEME, &digits)
}

/// Reads the textual address of a queue pair.
///
/// # Errors
///
/// [`AddressError`], which says what is wrong with the text.
pub fn read_address(address: &Address) -> Result<QpAddress, AddressError> {
    let malformed = |problem: &str| AddressError::Malformed {
        address: address.to_string(),
        problem: problem.into(),
        expected: "the other port's address, which begins with ud://".into(),
    };
    address.check_scheme(SCHEME, "QUEUE-PAIR as in the other port's address")?;
    address.check_options(&[])?;
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let byte = |&[high, low]: &[u8; 2]| Some(digit(high)? << 4 | digit(low)?);
    let (pairs, rest) = address.rest().as_bytes().as_chunks::<2>();
    let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
    let bytes = bytes.filter(|_| rest.is_empty());
    bytes
        .and_then(|bytes| QpAddress::from_bytes(&bytes))
        .filter(|qp| qp.mtu >= MTU_MIN)
        .ok_or_else(|| malformed("it is not the address of a queue pair"))
}

impl<D: ProtectionDomain> UdPort<D> {
    /// A port on `device`, for the calling thread.
    ///
    /// # Errors
    ///
    /// [`PortError::Unavailable`] with the device's error.
    pub fn open(device: &impl Device<Domain = D>, config: &UdPortConfig) -> Result<Self, PortError> {
        let attributes = device.attributes();
        let domain = device.protection_domain().map_err(port_error("making a protection domain"))?;
        let arena = domain.arena(config.arena_bytes).map_err(port_error("registering message buffers"))?;
        let thread = domain.thread().map_err(port_error("making the thread's queues"))?;
        let send_depth = config.send_packets.min(attributes.queue_depth_max);
        let receive_depth = config.receive_packets.min(attributes.queue_depth_max);
        let open = port_error("making the queue pair");
        let receives = thread.completion_queue(receive_depth).map_err(&open)?;
        let sends = thread.completion_queue(send_depth).map_err(&open)?;
        let qp_config = QpConfig {
            send_depth,
            receive_depth,
            inline_max: attributes.inline_max.min(INLINE_MAX),
            gather_max: 2,
            qkey: config.qkey,
            ..QpConfig::new(Transport::Ud)
        };
        let mut qp = thread.queue_pair(&qp_config, &sends, &receives).map_err(&open)?;
        qp.connect(None).map_err(&open)?;
        for id in 0..receive_depth as u64 {
            let buffer = arena.alloc(attributes.mtu, attributes.mtu).map_err(VerbsError::from).map_err(&open)?;
            qp.post_buffer(id, buffer).map_err(|refused| open(VerbsError::Device(refused.to_string())))?;
        }
        let address = address_of(&qp.address());
        let caps = Caps {
            packet_len_max: attributes.mtu,
            overhead: 0,
            copy_len_max: COPY_MAX.min(attributes.mtu),
            burst_max: BURST_MAX,
            receive_packets: receive_depth,
            receive_packets_per_peer: receive_depth,
            lends_in_place: true,
        };
        let qp = Rc::new(RefCell::new(qp));
        let rx = UdRx {
            qp: Rc::clone(&qp),
            cq: receives,
            completions: Vec::with_capacity(BURST_MAX),
            lent: Vec::with_capacity(BURST_MAX),
            mtu: attributes.mtu,
            stats: PortStats::default(),
        };
        let tx = UdTx {
            qp,
            cq: sends,
            completions: Vec::with_capacity(BURST_MAX),
            arena: arena.clone(),
            mtu: attributes.mtu,
            small_peers: Vec::new(),
            packet_len_min: attributes.mtu,
            inline_max: qp_config.inline_max,
            depth: send_depth,
            in_flight: 0,
            unsignaled: 0,
            signals: VecDeque::with_capacity(send_depth),
            pushed: false,
            staged: VecDeque::with_capacity(send_depth),
            stats: PortStats::default(),
        };
        Ok(Self { rx, tx, thread, arena, caps, address, names: None })
    }

    /// A port that finds others through `names`, and is itself found at `address` if that has anything after `://`. (A
    /// port that is not found has a `ud://` address, which others can resolve as well.)
    ///
    /// # Errors
    ///
    /// As for [`Self::open`]; also the errors of `names` for the address.
    pub fn open_named(
        device: &impl Device<Domain = D>,
        config: &UdPortConfig,
        address: &Address,
        mut names: Box<dyn Names>,
    ) -> Result<Self, PortError> {
        let mut port = Self::open(device, config)?;
        if !address.rest().is_empty() {
            let qp = port.rx.qp.borrow().address();
            port.address = names.announce(address, &qp)?;
        }
        port.names = Some(names);
        Ok(port)
    }
}

impl<T: ThreadDomain> PacketRx for UdRx<T> {
    fn receive<'a>(&'a mut self, burst: &mut RxBurst<'a>) {
        self.repost_lent();
        let room = BURST_MAX.min(burst.packets.remaining_capacity());
        self.cq.poll(&mut self.completions, room);
        let mut completions = std::mem::take(&mut self.completions);
        for Completion { status, len, from, mut buffers, .. } in completions.drain(..) {
            match (buffers.pop(), from) {
                (Some(buffer), Some(from)) if status.is_success() => {
                    self.stats.rx_packets += 1;
                    self.stats.rx_bytes += len as u64;
                    self.lent.push((peer_of(from), buffer));
                }
                // The sender cannot be answered, or the datagram was received badly (too long for its buffer), which on
                // many devices does not break the queue pair. The next datagram needs the buffer.
                (Some(buffer), _) if status.is_success() || !self.is_broken() => {
                    self.stats.count_dropped(Dropped::Malformed, 1);
                    self.repost(buffer);
                }
                // The queue pair is broken: a buffer posted again would come back for ever.
                _ => self.stats.count_dropped(Dropped::Overflow, 1),
            }
        }
        self.completions = completions;
        for (from, buffer) in &self.lent {
            burst.packets.push(RxPacket { from: *from, head: buffer, tail: None });
        }
    }
}

impl<T: ThreadDomain> UdRx<T> {
    fn is_broken(&self) -> bool {
        self.qp.borrow().state() == QpState::Error
    }

    /// Posts the buffers of the last burst again.
    fn repost_lent(&mut self) {
        let mut buffers = self.lent.drain(..).map(|(_, mut buffer)| {
            let whole = buffer.resize(self.mtu);
            debug_assert!(whole.is_ok(), "it was allocated with this capacity");
            (0, buffer)
        });
        // A refusal ends the list; the receives after it are tried again.
        while self.qp.borrow_mut().post_buffers(buffers.by_ref()).is_err() {
            // As in `repost`.
            self.stats.count_dropped(Dropped::Overflow, 1);
        }
    }

    fn repost(&mut self, mut buffer: MessageBuffer) {
        let whole = buffer.resize(self.mtu);
        debug_assert!(whole.is_ok(), "it was allocated with this capacity");
        if self.qp.borrow_mut().post_buffer(0, buffer).is_err() {
            // The queue pair is broken: nothing more will arrive, and peers notice the silence.
            self.stats.count_dropped(Dropped::Overflow, 1);
        }
    }
}

impl<T: ThreadDomain> UdTx<T> {
    /// Records which requests are over.
    fn collect_completions(&mut self) {
        self.cq.poll(&mut self.completions, BURST_MAX);
        for completion in self.completions.drain(..) {
            if completion.status != Status::Success {
                // The queue pair is broken, and with it everything in flight.
                self.signals.clear();
                (self.in_flight, self.unsignaled) = (0, 0);
            } else if let Some(count) = self.signals.pop_front() {
                self.in_flight -= count as usize;
            }
        }
    }

    /// The longest packet to a peer, in bytes.
    fn limit_of(&self, peer: Peer) -> usize {
        self.small_peers.iter().find(|(other, _)| *other == peer).map_or(self.mtu, |(_, limit)| *limit)
    }

    /// Notes the longest packet that a peer takes.
    fn set_limit(&mut self, peer: Peer, limit: usize) {
        self.small_peers.retain(|(other, _)| *other != peer);
        if limit < self.mtu {
            self.small_peers.push((peer, limit));
        }
        self.packet_len_min = self.small_peers.iter().map(|(_, limit)| *limit).fold(self.mtu, usize::min);
    }

    /// A buffer in which to assemble a packet.
    fn staging_buffer(&mut self) -> Option<MessageBuffer> {
        if let Some(oldest) = self.staged.pop_front() {
            match oldest.thaw() {
                Ok(buffer) => return Some(buffer),
                Err(held) => self.staged.push_front(held),
            }
        }
        self.arena.alloc(self.mtu, self.mtu).ok()
    }

    fn send(&mut self, packet: &TxPacket<'_>) -> Result<(), Dropped> {
        let len = packet.len();
        if len > self.packet_len_min && len > self.limit_of(packet.to) {
            return Err(Dropped::TooLong);
        }
        if self.in_flight >= self.depth {
            self.qp.borrow_mut().doorbell();
            self.collect_completions();
            if self.in_flight >= self.depth {
                return Err(Dropped::Full);
            }
        }
        let to = Some(destination_of(packet.to));
        let mut is_zero_copy = false;
        let staged;
        let mut inline = [0; INLINE_MAX];
        let source = match packet.data {
            TxData::None if len <= self.inline_max => Source::Inline(packet.head),
            // A device that had to fetch the bytes would take longer by a round trip of its bus.
            data if len <= self.inline_max => {
                let place = &mut inline[..len];
                place[..packet.head.len()].copy_from_slice(packet.head);
                place[packet.head.len()..].copy_from_slice(data.as_slice());
                Source::Inline(place)
            }
            TxData::Frozen { buffer, start, len: data_len } if data_len > COPY_MAX && buffer.is_from(&self.arena) => {
                is_zero_copy = true;
                staged = self.assemble(packet.head, &[])?;
                let data = Slice { buffer: buffer.clone(), start, len: data_len };
                Source::Gather([Slice::from(staged), data].into_iter().collect())
            }
            data => {
                staged = self.assemble(packet.head, data.as_slice())?;
                Source::from(staged)
            }
        };
        // The owner of a long piece wants to know when it is free again.
        self.unsignaled += 1;
        let signaled = is_zero_copy || self.unsignaled >= SIGNAL_EVERY || self.in_flight + 1 >= self.depth;
        let mut request = Request::new(0, Operation::Send { source, immediate: None, to });
        request.signaled = signaled;
        let pushed = self.qp.borrow_mut().push(request);
        if pushed.is_err() {
            self.unsignaled -= 1;
            return Err(Dropped::NoSuchPeer);
        }
        self.in_flight += 1;
        self.pushed = true;
        if signaled {
            self.signals.push_back(self.unsignaled);
            self.unsignaled = 0;
        }
        self.stats.tx_packets += 1;
        self.stats.tx_bytes += len as u64;
        Ok(())
    }

    /// Copies both pieces to a buffer of ours.
    fn assemble(&mut self, head: &[u8], data: &[u8]) -> Result<Frozen, Dropped> {
        let mut buffer = self.staging_buffer().ok_or(Dropped::Full)?;
        buffer.resize(head.len() + data.len()).map_err(|_| Dropped::TooLong)?;
        buffer[..head.len()].copy_from_slice(head);
        buffer[head.len()..].copy_from_slice(data);
        let buffer = buffer.freeze();
        self.staged.push_back(buffer.clone());
        Ok(buffer)
    }

    fn ring_doorbell(&mut self) {
        if std::mem::take(&mut self.pushed) {
            self.qp.borrow_mut().doorbell();
        }
    }
}

impl<T: ThreadDomain> PacketTx for UdTx<T> {
    fn push(&mut self, packet: TxPacket<'_>) {
        if let Err(reason) = self.send(&packet) {
            self.stats.count_dropped(reason, 1);
        }
    }

    fn submit(&mut self) {
        self.ring_doorbell();
        if !self.signals.is_empty() {
            self.collect_completions();
        }
    }

    /// Waits for the device to have read the signaled packets, which include all long pieces. That takes microseconds
    /// and depends on no peer; a device that takes longer keeps its shares, which then cannot be thawed.
    fn flush(&mut self) {
        self.ring_doorbell();
        for _ in 0..FLUSH_POLLS {
            if self.signals.is_empty() {
                break;
            }
            self.collect_completions();
            if !self.cq.passes_time() {
                break;
            }
        }
    }
}

impl<D: ProtectionDomain> Readiness for UdPort<D> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.rx.cq.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> std::io::Result<Armed> {
        self.tx.submit();
        self.rx.cq.arm(now_ns)
    }

    fn disarm(&mut self) -> bool {
        self.rx.cq.disarm()
    }
}

impl<D: ProtectionDomain> PacketPort for UdPort<D> {
    type Rx = UdRx<D::Thread>;
    type Tx = UdTx<D::Thread>;

    fn caps(&self) -> Caps {
        self.caps
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn resolve(&mut self, address: &Address) -> Result<Peer, PortError> {
        let to = match &mut self.names {
            Some(names) if address.scheme() != SCHEME => names.look_up(address)?,
            _ => read_address(address)?,
        };
        let peer = self.thread.destination(&to).map(peer_of).map_err(|error| PortError::NotFound {
            address: address.to_string(),
            looked_in: format!("the verbs device: {error}"),
        })?;
        self.tx.set_limit(peer, to.mtu as usize);
        Ok(peer)
    }

    fn packet_len_max(&self, peer: Peer) -> usize {
        self.tx.limit_of(peer)
    }

    fn forget(&mut self, peer: Peer) {
        self.tx.set_limit(peer, self.tx.mtu);
    }

    fn describe(&self, peer: Peer) -> String {
        let to = destination_of(peer);
        let scheme = self.names.as_ref().map_or(SCHEME, |names| names.scheme());
        format!("{scheme}:{}@{:x}", to.number, to.handle)
    }

    fn split(&mut self) -> (&mut Self::Rx, &mut Self::Tx) {
        (&mut self.rx, &mut self.tx)
    }

    fn poll_event(&mut self) -> Option<PortEvent> {
        None
    }

    fn waker(&self) -> Waker {
        self.rx.cq.waker()
    }

    fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<()> {
        self.tx.submit();
        self.rx.cq.wait(timeout_ns)
    }

    fn stats(&self) -> PortStats {
        self.rx.stats.merged(&self.tx.stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrayvec::ArrayVec;

    #[test]
    fn an_address_is_read_as_it_was_written() {
        let qp = QpAddress {
            number: QpNumber(77),
            transport: Transport::Ud,
            first_packet: 1,
            qkey: 2,
            mtu: 4096,
            port: ArrayVec::try_from(&b"x"[..]).unwrap(),
        };
        let address = address_of(&qp);
        assert_eq!(read_address(&address), Ok(qp));
        let of_another_fabric = Address::new("udp", address.rest()).to_string();
        let with_option = format!("{address}?speed=9");
        for bad in ["ud://", "ud://0", "ud://zz", "ud://00", "ud://+1+1", &of_another_fabric, &with_option] {
            assert!(read_address(&bad.parse().unwrap()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_peer_is_its_destination() {
        let to = Destination { handle: u64::MAX, number: QpNumber(0xFF_FFFF), qkey: u32::MAX };
        assert_eq!(destination_of(peer_of(to)), to);
    }
}
