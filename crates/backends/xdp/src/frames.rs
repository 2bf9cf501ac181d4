//! Frame ports: the frames of an interface.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;

use sinew_fabric::frames::{
    ETHERNET_HEADER_LEN, FrameBurst, FrameCaps, FrameFamily, FramePort, FrameRx, FrameTx, LentFrame, MacAddress,
};
use sinew_fabric::{Armed, Descriptor, Dropped, MAX_BURST, PortError, PortStats, Readiness, Waker};
use sinew_mem::atomic::plain::Arc;

use crate::interface::{Attachment, Capture, Granted, InterfaceOptions, needs_of, shared};
use crate::memory::{Chunk, Memory, chunk_len_for};
use crate::queues::{Received, Receiver, SHORT_PAUSE_NS, Sender};
use crate::sleeping::Sleeping;

/// Configuration of a frame port.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FrameOptions {
    /// Options of its interface, which count unless this process has it open already.
    pub interface: InterfaceOptions,
    /// A single queue, so that other threads can have ports at the others; `None`: all queues.
    pub queue: Option<u32>,
    /// Addresses to which the port is limited: it takes only frames to them, with ARP requests and neighbour discovery
    /// about them, and the kernel has the rest. Empty: all frames.
    pub only: Vec<IpAddr>,
}

/// Family of AF_XDP ports' frames. Ports that share a [`Memory`] pass them on without a copy.
#[derive(Clone, Copy, Debug)]
pub struct Xdp;

impl FrameFamily for Xdp {
    type Frame<'a> = XdpFrame<'a>;
}

/// A received frame, in place where the kernel put it.
#[derive(Debug)]
pub struct XdpFrame<'a> {
    lent: &'a mut Lent,
    memory: &'a Arc<Memory>,
}

/// A frame that is lent. Its chunk is gone once it was passed on.
#[derive(Debug)]
struct Lent {
    chunk: Option<Chunk>,
    start: usize,
    len: usize,
}

impl LentFrame for XdpFrame<'_> {
    fn bytes(&self) -> &[u8] {
        let Lent { chunk, start, len } = &*self.lent;
        chunk.as_ref().map_or(&[], |chunk| self.memory.bytes(chunk, *start, *len))
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let Lent { chunk, start, len } = &mut *self.lent;
        chunk.as_mut().map_or(&mut [], |chunk| self.memory.bytes_mut(chunk, *start, *len))
    }
}

/// A port for the frames of an interface.
///
/// ```no_run
/// use sinew_fabric::frames::{FrameBurst, FramePort, FrameRx, FrameTx};
/// use sinew_xdp::{FrameOptions, Memory, XdpFrames};
///
/// let memory = Memory::new(16384, 2048)?;
/// let mut left = XdpFrames::open("veth0", &memory, &FrameOptions::default())?;
/// let mut right = XdpFrames::open("veth1", &memory, &FrameOptions::default())?;
/// let mut burst = FrameBurst::new(0);
/// left.split().0.receive(&mut burst);
/// for frame in burst.frames.drain(..) {
///     right.split().1.forward(frame);
/// }
/// right.split().1.submit();
/// # Ok::<(), sinew_fabric::PortError>(())
/// ```
#[derive(Debug)]
pub struct XdpFrames {
    rx: XdpFramesRx,
    tx: XdpFramesTx,
    sleeping: Sleeping,
    caps: FrameCaps,
    mac: MacAddress,
    granted: Granted,
    attachment: Rc<RefCell<Attachment>>,
}

/// The receiving half of an [`XdpFrames`].
#[derive(Debug)]
pub struct XdpFramesRx {
    receiver: Receiver,
    memory: Arc<Memory>,
    lent: Vec<Lent>,
    stats: PortStats,
}

/// The transmitting half of an [`XdpFrames`].
#[derive(Debug)]
pub struct XdpFramesTx {
    sender: Sender,
    memory: Arc<Memory>,
    frame_len_max: usize,
    stats: PortStats,
}

impl XdpFrames {
    /// Memory for a port that takes all frames at each of these interfaces: as many chunks as the ports and their
    /// queues are promised, each large enough for the longest frame of any.
    ///
    /// # Errors
    ///
    /// [`PortError::NotFound`]: no such interface; or an error of [`Memory::new`].
    pub fn memory_for<'a>(
        interfaces: impl IntoIterator<Item = (&'a str, InterfaceOptions)>,
    ) -> Result<Arc<Memory>, PortError> {
        let (mut all, mut longest) = (0, 0);
        for (name, options) in interfaces {
            let (chunks, mtu) = needs_of(name, options)?;
            all += chunks;
            longest = longest.max(mtu);
        }
        Memory::new(all, chunk_len_for(longest))
    }

    /// Opens a port at the interface of this name, with frames in `memory`. If this process has the interface open
    /// already, it keeps its present memory.
    ///
    /// # Errors
    ///
    /// [`PortError::NotFound`]: no such interface. [`PortError::Taken`]: another program, or another port, has its
    /// frames. [`PortError::Limit`]: not enough memory. [`PortError::Unavailable`]: this user, kernel or interface
    /// lacks something that is needed.
    pub fn open(interface: &str, memory: &Arc<Memory>, options: &FrameOptions) -> Result<Self, PortError> {
        let take = if options.only.is_empty() { Capture::All } else { Capture::Places };
        let interface = shared(interface, take, options.interface, |_, _| Ok(Arc::clone(memory)))?;
        let mut attachment = Attachment::new(Arc::clone(&interface), options.queue)?;
        for &address in &options.only {
            if !attachment.take_place(address, None)? {
                return Err(PortError::Taken {
                    address: format!("the address {address} at {}", interface.name),
                    holder: " by another port of this process".to_owned(),
                });
            }
        }
        let sleeping = Sleeping::new(&attachment)?;
        let memory = Arc::clone(&interface.memory);
        let frame_len_max = interface.frame_len_max();
        let caps = FrameCaps {
            frame_len_max,
            burst_max: MAX_BURST,
            receive_frames: interface.ring() as usize / 2,
            forwards_in_place: true,
        };
        let (mac, granted) = (interface.mac(), interface.granted);
        let attachment = Rc::new(RefCell::new(attachment));
        Ok(Self {
            rx: XdpFramesRx {
                receiver: Receiver::new(&attachment),
                memory: Arc::clone(&memory),
                lent: Vec::with_capacity(MAX_BURST),
                stats: PortStats::default(),
            },
            tx: XdpFramesTx { sender: Sender::new(&attachment), memory, frame_len_max, stats: PortStats::default() },
            sleeping,
            caps,
            mac,
            granted,
            attachment,
        })
    }

    /// The abilities of its interface.
    pub fn granted(&self) -> Granted {
        self.granted
    }

    /// The memory of its frames.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.rx.memory
    }
}

impl FrameRx for XdpFramesRx {
    type Family = Xdp;

    #[inline]
    fn receive<'a>(&'a mut self, burst: &mut FrameBurst<'a, Xdp>) {
        let Self { receiver, memory, lent, stats } = self;
        receiver.give_back(lent.drain(..).filter_map(|lent| lent.chunk));
        receiver.receive(MAX_BURST, |Received { chunk, start, len }| match len >= ETHERNET_HEADER_LEN {
            true => {
                stats.rx_packets += 1;
                stats.rx_bytes += len as u64;
                lent.push(Lent { chunk: Some(chunk), start, len });
                None
            }
            false => {
                stats.count_dropped(Dropped::Malformed, 1);
                Some(chunk)
            }
        });
        let memory = &*memory;
        burst.frames.extend(lent.iter_mut().map(|lent| XdpFrame { lent, memory }));
    }
}

impl Drop for XdpFramesRx {
    fn drop(&mut self) {
        self.memory.give_back(self.lent.drain(..).filter_map(|lent| lent.chunk));
    }
}

impl FrameTx for XdpFramesTx {
    type Family = Xdp;

    #[inline]
    fn push(&mut self, head: &[u8], rest: &[u8]) {
        let len = head.len() + rest.len();
        let reason = match len {
            ..ETHERNET_HEADER_LEN => Dropped::Malformed,
            _ if len > self.frame_len_max => Dropped::TooLong,
            _ => match self.sender.chunk() {
                None => Dropped::Full,
                Some(mut chunk) => {
                    let bytes = self.memory.bytes_mut(&mut chunk, 0, len);
                    bytes[..head.len()].copy_from_slice(head);
                    bytes[head.len()..].copy_from_slice(rest);
                    return self.send(chunk, 0, len);
                }
            },
        };
        self.stats.count_dropped(reason, 1);
    }

    #[inline]
    fn forward(&mut self, frame: XdpFrame<'_>) {
        if Arc::ptr_eq(frame.memory, &self.memory) && frame.lent.len <= self.frame_len_max {
            let Lent { chunk, start, len } = frame.lent;
            if let Some(chunk) = chunk.take() {
                self.send(chunk, *start, *len);
            }
        } else {
            self.push(frame.bytes(), &[]);
        }
    }

    #[inline]
    fn submit(&mut self) {
        self.sender.submit();
    }
}

impl XdpFramesTx {
    #[inline]
    fn send(&mut self, chunk: Chunk, start: usize, len: usize) {
        match self.sender.push(chunk, start, len) {
            true => {
                self.stats.tx_packets += 1;
                self.stats.tx_bytes += len as u64;
            }
            false => self.stats.count_dropped(Dropped::Full, 1),
        }
    }
}

impl Readiness for XdpFrames {
    fn descriptor(&self) -> Option<Descriptor> {
        Some(self.sleeping.descriptor())
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        self.tx.submit();
        if self.rx.receiver.has_news() || !self.sleeping.set()? {
            return Ok(Armed::Ready);
        }
        let short = self.rx.receiver.is_short().then_some(SHORT_PAUSE_NS);
        let pause = short.into_iter().chain(self.tx.sender.unsent_pause_ns()).min();
        Ok(Armed::Sleep { until_ns: pause.map(|pause| now_ns.saturating_add(pause)) })
    }

    fn disarm(&mut self) -> bool {
        self.sleeping.clear()
    }
}

impl FramePort for XdpFrames {
    type Family = Xdp;
    type Rx = XdpFramesRx;
    type Tx = XdpFramesTx;

    fn caps(&self) -> FrameCaps {
        self.caps
    }

    fn mac(&self) -> MacAddress {
        self.mac
    }

    #[inline]
    fn split(&mut self) -> (&mut XdpFramesRx, &mut XdpFramesTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn waker(&self) -> Waker {
        self.sleeping.waker()
    }

    /// Counters of the port. Frames for which the kernel had no room count as [`Dropped::Overflow`], and those longer
    /// than a chunk takes as [`Dropped::Unfinished`].
    fn stats(&self) -> PortStats {
        let mut stats = self.rx.stats.merged(&self.tx.stats);
        let lost = self.attachment.borrow().lost();
        stats.count_dropped(Dropped::Overflow, lost.no_room);
        stats.count_dropped(Dropped::Unfinished, lost.too_long);
        stats.count_dropped(Dropped::Malformed, self.rx.receiver.refused());
        stats
    }
}
