//! Frame ports of several kinds behind one type, for code that forwards between them. This costs a copy of each
//! received frame, which ports of one kind do not need.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use super::cable::{Copied, CopiedFrame, lend};
use super::{FrameBurst, FrameCaps, FramePort, FrameRx, FrameTx, LentFrame, MacAddress};
use crate::MAX_BURST;
use crate::port::PortStats;
use crate::readiness::{Armed, Descriptor, Readiness};
use crate::waker::Waker;

/// A frame port with any kind of frames.
trait Frames: Readiness {
    /// Receives a burst and hands it to `take`, frame by frame; returns the time of its arrival.
    fn receive(&mut self, time_ns: u64, take: &mut dyn FnMut(&[u8])) -> u64;
    fn push(&mut self, head: &[u8], rest: &[u8]);
    fn submit(&mut self);
    fn caps(&self) -> FrameCaps;
    fn mac(&self) -> MacAddress;
    fn waker(&self) -> Waker;
    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()>;
    fn stats(&self) -> PortStats;
}

impl<P: FramePort> Frames for P {
    fn receive(&mut self, time_ns: u64, take: &mut dyn FnMut(&[u8])) -> u64 {
        let mut burst = FrameBurst::new(time_ns);
        self.split().0.receive(&mut burst);
        burst.frames.iter().for_each(|frame| take(frame.bytes()));
        burst.time_ns
    }

    fn push(&mut self, head: &[u8], rest: &[u8]) {
        self.split().1.push(head, rest);
    }

    fn submit(&mut self) {
        self.split().1.submit();
    }

    fn caps(&self) -> FrameCaps {
        FramePort::caps(self)
    }

    fn mac(&self) -> MacAddress {
        FramePort::mac(self)
    }

    fn waker(&self) -> Waker {
        FramePort::waker(self)
    }

    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        FramePort::wait(self, timeout_ns)
    }

    fn stats(&self) -> PortStats {
        FramePort::stats(self)
    }
}

type Shared = Rc<RefCell<Box<dyn Frames>>>;

/// A frame port of any kind.
pub struct AnyPort {
    rx: AnyRx,
    tx: AnyTx,
}

/// The receiving half of an [`AnyPort`].
pub struct AnyRx {
    port: Shared,
    memory: Vec<u8>,
}

/// The transmitting half of an [`AnyPort`].
pub struct AnyTx {
    port: Shared,
}

impl AnyPort {
    /// Wraps `port`.
    pub fn new(port: impl FramePort + 'static) -> Self {
        let port: Shared = Rc::new(RefCell::new(Box::new(port)));
        let caps = port.borrow().caps();
        let memory = Vec::with_capacity(caps.burst_max * caps.frame_len_max);
        Self { rx: AnyRx { port: Rc::clone(&port), memory }, tx: AnyTx { port } }
    }
}

impl std::fmt::Debug for AnyPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnyPort").field("mac", &FramePort::mac(self)).finish_non_exhaustive()
    }
}

impl FrameRx for AnyRx {
    type Family = Copied;

    fn receive<'a>(&'a mut self, burst: &mut FrameBurst<'a, Copied>) {
        let Self { port, memory } = self;
        memory.clear();
        let mut ends = arrayvec::ArrayVec::<usize, MAX_BURST>::new();
        burst.time_ns = port.borrow_mut().receive(burst.time_ns, &mut |frame| {
            memory.extend_from_slice(frame);
            ends.push(memory.len());
        });
        lend(memory, ends, burst);
    }
}

impl FrameTx for AnyTx {
    type Family = Copied;

    fn push(&mut self, head: &[u8], rest: &[u8]) {
        self.port.borrow_mut().push(head, rest);
    }

    fn forward(&mut self, frame: CopiedFrame<'_>) {
        self.push(frame.bytes(), &[]);
    }

    fn submit(&mut self) {
        self.port.borrow_mut().submit();
    }
}

impl Readiness for AnyPort {
    fn descriptor(&self) -> Option<Descriptor> {
        self.tx.port.borrow().descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        self.tx.port.borrow_mut().arm(now_ns)
    }

    fn disarm(&mut self) -> bool {
        self.tx.port.borrow_mut().disarm()
    }
}

impl FramePort for AnyPort {
    type Family = Copied;
    type Rx = AnyRx;
    type Tx = AnyTx;

    fn caps(&self) -> FrameCaps {
        FrameCaps { forwards_in_place: false, ..self.tx.port.borrow().caps() }
    }

    fn mac(&self) -> MacAddress {
        self.tx.port.borrow().mac()
    }

    fn split(&mut self) -> (&mut AnyRx, &mut AnyTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn waker(&self) -> Waker {
        self.tx.port.borrow().waker()
    }

    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        self.tx.port.borrow_mut().wait(timeout_ns)
    }

    fn stats(&self) -> PortStats {
        self.tx.port.borrow().stats()
    }
}
