//! The shared part of a packet port's two halves: its sockets, its place, and its neighbours.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::Rc;

use sinew_fabric::frames::MacAddress;
use sinew_fabric::{Dropped, PortStats};
use sinew_mem::atomic::plain::Arc;
use sinew_wire::neighbour::{self, Neighbour, NeighbourMessage};
use sinew_wire::udp::{self, DatagramError, Endpoint};

use crate::interface::{Attachment, Interface};
use crate::memory::{Chunk, Memory};
use crate::neighbour_queries::{NeighbourQueries, QueryAction};
use crate::neighbours::Neighbours;
use crate::queues::{Received, Receiver, Sender};
use crate::sys::netlink::Netlink;

/// Shortest time between questions about neighbours that seem to have moved, by the caller's clock.
const ASK_INTERVAL_NS: u64 = 1_000_000;
/// Most frames that wait for a neighbour's answer.
pub(crate) const WAITING_MAX: usize = 64;

/// A received frame with a datagram for this port.
#[derive(Debug)]
pub(crate) struct ReceivedDatagram {
    pub chunk: Chunk,
    pub from: IpAddr,
    pub port: u16,
    /// Offset of the payload in the chunk.
    pub start: usize,
    pub len: usize,
}

/// A frame to send, complete except for its headers.
#[derive(Debug)]
pub(crate) struct OutgoingDatagram {
    pub chunk: Chunk,
    pub start: usize,
    pub len: usize,
    pub to: IpAddr,
    pub to_port: u16,
    pub packets: u64,
    /// Bytes of the packets.
    pub packet_bytes: u64,
}

/// The place of a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub address: IpAddr,
    pub port: u16,
    pub mac: MacAddress,
    /// Whether the kernel has the address too, and answers for it.
    pub is_kernels: bool,
    pub gateway: Option<IpAddr>,
    /// Bytes of the longest frame.
    pub frame_len_max: usize,
}

/// The shared part of a packet port: see the [module](self).
#[derive(Debug)]
pub(crate) struct Core {
    pub local: Local,
    pub interface: Arc<Interface>,
    pub memory: Arc<Memory>,
    pub attachment: Rc<RefCell<Attachment>>,
    pub receiver: Receiver,
    pub sender: Sender,
    netlink: Netlink,
    neighbours: Neighbours,
    /// Datagrams that arrived while the port polled for neighbours' answers.
    backlog: VecDeque<ReceivedDatagram>,
    /// Frames that wait for their neighbour's answer.
    waiting: VecDeque<OutgoingDatagram>,
    /// Open questions about neighbours, while frames wait.
    queries: NeighbourQueries,
    /// Time of the last question, by the caller's clock.
    asked_ns: u64,
    pub now_ns: u64,
    pub rx_stats: PortStats,
    pub tx_stats: PortStats,
}

fn drop_reason(refusal: DatagramError) -> Dropped {
    match refusal {
        DatagramError::Malformed => Dropped::Malformed,
        DatagramError::NotUdp => Dropped::NotOurs,
        DatagramError::Fragment => Dropped::Fragment,
        DatagramError::BadChecksum => Dropped::BadChecksum,
        DatagramError::Unfinished => Dropped::Unfinished,
    }
}

/// The contents of a received frame.
enum Frame {
    Datagram { from: Endpoint, start: usize, len: usize },
    Neighbour(NeighbourMessage),
    Dropped(Dropped),
}

impl Local {
    fn classify(&self, frame: &[u8]) -> Frame {
        if frame.len() > self.frame_len_max {
            // The kernel expected a device to segment this packet.
            return Frame::Dropped(Dropped::Unfinished);
        }
        match udp::read(frame) {
            Ok(datagram) if (datagram.to.address, datagram.to.port) == (self.address, self.port) => {
                if datagram.from.address == self.address || datagram.from.mac[0] & 1 != 0 {
                    return Frame::Dropped(Dropped::Malformed);
                }
                // The payload's place shows the length of the headers.
                let start = datagram.payload.as_ptr().addr() - frame.as_ptr().addr();
                Frame::Datagram { from: datagram.from, start, len: datagram.payload.len() }
            }
            Ok(_) => Frame::Dropped(Dropped::NotOurs),
            Err(DatagramError::NotUdp) if !self.is_kernels => match neighbour::read(frame) {
                Some(message) => Frame::Neighbour(message),
                None => Frame::Dropped(Dropped::NotOurs),
            },
            Err(refusal) => Frame::Dropped(drop_reason(refusal)),
        }
    }

    fn neighbour(&self) -> Neighbour {
        Neighbour { address: self.address, mac: self.mac.0 }
    }
}

impl Core {
    pub fn new(local: Local, attachment: Attachment, netlink: Netlink) -> Self {
        let interface = Arc::clone(&attachment.interface);
        let attachment = Rc::new(RefCell::new(attachment));
        Self {
            local,
            memory: Arc::clone(&interface.memory),
            interface,
            receiver: Receiver::new(&attachment),
            sender: Sender::new(&attachment),
            attachment,
            netlink,
            neighbours: Neighbours::new(),
            backlog: VecDeque::new(),
            waiting: VecDeque::new(),
            asked_ns: 0,
            queries: NeighbourQueries::default(),
            now_ns: 0,
            rx_stats: PortStats::default(),
            tx_stats: PortStats::default(),
        }
    }

    /// Takes up to `packets_max` received datagrams, the earliest first.
    #[inline]
    pub fn receive(&mut self, packets_max: usize, into: &mut Vec<ReceivedDatagram>) {
        while into.len() < packets_max
            && let Some(arrived) = self.backlog.pop_front()
        {
            into.push(arrived);
        }
        if into.len() < packets_max {
            self.process_frames(packets_max - into.len(), |arrived| into.push(arrived));
        }
        if !self.waiting.is_empty() {
            self.send_waiting();
        }
    }

    /// Takes received frames, answers those about neighbours, and hands datagrams to `each`.
    #[inline]
    fn process_frames(&mut self, packets_max: usize, mut each: impl FnMut(ReceivedDatagram)) {
        let Self { local, memory, receiver, sender, neighbours, rx_stats, now_ns, .. } = self;
        let now_ns = *now_ns;
        // Most bursts have nothing to answer, and an empty list takes no memory.
        let mut answers = Vec::new();
        receiver.receive(packets_max, |Received { chunk, start, len }| {
            match local.classify(memory.bytes(&chunk, start, len)) {
                Frame::Datagram { from, start: payload_start, len } => {
                    neighbours.learn(from.address, MacAddress(from.mac), now_ns);
                    each(ReceivedDatagram {
                        chunk,
                        from: from.address,
                        port: from.port,
                        start: start + payload_start,
                        len,
                    });
                    return None;
                }
                Frame::Dropped(reason) => rx_stats.count_dropped(reason, 1),
                Frame::Neighbour(NeighbourMessage::Answer(Neighbour { address, mac })) => {
                    if local.gateway == Some(address) {
                        neighbours.set_gateway(neighbours.get(address), MacAddress(mac), now_ns);
                    }
                    neighbours.set_answer(address, MacAddress(mac), now_ns);
                }
                Frame::Neighbour(NeighbourMessage::Question { about, from }) if about == local.address => {
                    if !from.address.is_unspecified() && from.address != local.address {
                        neighbours.learn(from.address, MacAddress(from.mac), now_ns);
                    }
                    answers.extend(neighbour::answer(local.neighbour(), from));
                }
                Frame::Neighbour(_) => rx_stats.count_dropped(Dropped::NotOurs, 1),
            }
            Some(chunk)
        });
        if !answers.is_empty() {
            answers.iter().for_each(|answer| send_frame(sender, memory, answer.bytes()));
            sender.submit();
        }
    }

    /// Polls for neighbours' answers, and keeps the datagrams that arrive meanwhile, up to a burst of them.
    fn poll_answers(&mut self) {
        let room = sinew_fabric::MAX_BURST.saturating_sub(self.backlog.len());
        if room > 0 {
            let mut arrived = Vec::new();
            self.process_frames(room, |each| arrived.push(each));
            self.backlog.extend(arrived);
        }
    }

    /// Whether datagrams or frames wait to be received.
    pub fn has_news(&self) -> bool {
        !self.backlog.is_empty() || self.receiver.has_news()
    }

    /// Whether frames wait for an answer.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Time until a neighbour is to be asked for again, if frames wait for one.
    pub fn waiting_pause_ns(&self, now_ns: u64) -> Option<u64> {
        self.is_waiting().then(|| self.queries.pause_ns(now_ns).unwrap_or(0))
    }

    /// Sends a frame, at once or when its neighbour is known.
    #[inline]
    pub fn send(&mut self, ready: OutgoingDatagram) {
        match self.neighbours.mac_for_send(ready.to, self.now_ns) {
            Some(mac) => self.send_to(ready, mac),
            None => self.wait_for_neighbour(ready),
        }
    }

    #[inline]
    fn send_to(&mut self, ready: OutgoingDatagram, mac: MacAddress) {
        let OutgoingDatagram { mut chunk, start, len, to, to_port, packets, packet_bytes } = ready;
        let from = Endpoint { mac: self.local.mac.0, address: self.local.address, port: self.local.port };
        let to = Endpoint { mac: mac.0, address: to, port: to_port };
        udp::write_headers(self.memory.bytes_mut(&mut chunk, start, len), &from, &to);
        if self.sender.push(chunk, start, len) {
            self.tx_stats.tx_packets += packets;
            self.tx_stats.tx_bytes += packet_bytes;
        } else {
            self.tx_stats.count_dropped(Dropped::Full, packets);
        }
    }

    fn wait_for_neighbour(&mut self, ready: OutgoingDatagram) {
        let to = ready.to;
        if self.waiting.len() == WAITING_MAX {
            // The oldest frame has waited longest.
            if let Some(oldest) = self.waiting.pop_front() {
                self.tx_stats.count_dropped(Dropped::NoSuchPeer, oldest.packets);
                self.sender.give_back(oldest.chunk);
            }
        }
        self.waiting.push_back(ready);
        if self.queries.begin(to, self.now_ns) {
            self.ask(to);
            self.send_waiting();
        }
    }

    /// Polls for neighbours' answers, and sends the frames that waited for them.
    #[cold]
    pub fn send_waiting(&mut self) {
        self.poll_answers();
        let Self { queries, neighbours, .. } = self;
        queries.retain(|to| neighbours.get(to).is_none());
        let mut given_up = Vec::new();
        for due in self.queries.take_due(self.now_ns) {
            match due {
                QueryAction::Ask(to) => self.ask(to),
                QueryAction::GiveUp(to) => given_up.push(to),
            }
        }
        for _ in 0..self.waiting.len() {
            let Some(ready) = self.waiting.pop_front() else { break };
            match self.neighbours.get(ready.to) {
                Some(mac) => self.send_to(ready, mac),
                None if given_up.contains(&ready.to) => {
                    self.tx_stats.count_dropped(Dropped::NoSuchPeer, ready.packets);
                    self.sender.give_back(ready.chunk);
                }
                None => self.waiting.push_back(ready),
            }
        }
        if self.waiting.is_empty() {
            self.queries.retain(|_| false);
        }
        self.sender.submit();
    }

    /// Finds out the Ethernet address for packets to `to`, or begins to.
    pub fn ask(&mut self, to: IpAddr) {
        self.asked_ns = self.now_ns;
        let index = self.interface.link.index;
        if self.local.is_kernels {
            // An address without a route is assumed to be on the link.
            let hop = self.netlink.route(to, Some(index)).ok().and_then(|route| route.gateway).unwrap_or(to);
            if let Some(mac) = self.netlink.neighbour(index, hop) {
                self.neighbours.set_answer(to, mac, self.now_ns);
            }
            // The kernel does not see our packets, so it is told that the neighbour is in use, and then checks whether
            // the neighbour is still there. An error is harmless: the kernel may be asking already.
            let _ = self.netlink.probe(index, hop);
            return;
        }
        let hop = self.local.gateway.unwrap_or(to);
        // An unknown host is reached through the gateway, if the gateway's address is known. A known host is asked for
        // because its address seems stale; then the gateway's may be stale too, so the gateway is asked.
        let is_unknown = self.neighbours.get(to).is_none();
        let gateway_mac = if is_unknown && hop != to { self.neighbours.mac_for_send(hop, self.now_ns) } else { None };
        if let Some(mac) = gateway_mac {
            self.neighbours.set_answer(to, mac, self.now_ns);
        } else if let Some(question) = neighbour::question(self.local.neighbour(), hop) {
            send_frame(&mut self.sender, &self.memory, question.bytes());
            self.sender.submit();
        }
    }

    /// Polls for neighbours' answers; returns whether the Ethernet address for packets to `to` is known.
    pub fn is_resolved(&mut self, to: IpAddr) -> bool {
        self.poll_answers();
        self.neighbours.get(to).is_some()
    }

    /// Asks again for a neighbour that seems to have moved, or was not heard from for long. Only one is asked for at a
    /// time, with a pause, since each may take several system calls.
    #[inline]
    pub fn ask_stale(&mut self) {
        if self.now_ns.saturating_sub(self.asked_ns) >= ASK_INTERVAL_NS
            && let Some(address) = self.neighbours.take_stale()
        {
            self.ask(address);
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let chunks = self.backlog.drain(..).map(|arrived| arrived.chunk);
        self.memory.give_back(chunks.chain(self.waiting.drain(..).map(|ready| ready.chunk)));
    }
}

fn send_frame(sender: &mut Sender, memory: &Memory, bytes: &[u8]) {
    if let Some(mut chunk) = sender.chunk() {
        memory.bytes_mut(&mut chunk, 0, bytes.len()).copy_from_slice(bytes);
        // If there is no room, the frame is dropped: the question will be asked again.
        sender.push(chunk, 0, bytes.len());
    }
}
