//! The receiving half of a packet port, which lends the packets in datagrams.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_fabric::datagrams::{Reading, Segments};
use sinew_fabric::{MAX_BURST, PacketRx, PortStats, RxBurst, sockets};
use sinew_mem::atomic::plain::Arc;
use std::net::IpAddr;

use crate::core::{Core, ReceivedDatagram};
use crate::memory::Memory;

/// The receiving half of a [`crate::XdpPort`].
#[derive(Debug)]
pub struct XdpRx {
    core: Rc<RefCell<Core>>,
    memory: Arc<Memory>,
    packet_len_max: usize,
    /// Datagrams at hand. The first `at` of them are or were lent.
    arrived: Vec<ReceivedDatagram>,
    at: usize,
    reading: Reading,
    pub(crate) stats: PortStats,
}

impl XdpRx {
    pub(crate) fn new(core: &Rc<RefCell<Core>>, packet_len_max: usize) -> Self {
        Self {
            memory: Arc::clone(&core.borrow().memory),
            core: Rc::clone(core),
            packet_len_max,
            arrived: Vec::with_capacity(MAX_BURST),
            at: 0,
            reading: Reading::default(),
            stats: PortStats::default(),
        }
    }

    /// Whether there are packets to lend that the kernel does not know of.
    pub(crate) fn has_news(&self) -> bool {
        self.at < self.arrived.len()
    }
}

impl PacketRx for XdpRx {
    #[inline]
    fn receive<'a>(&'a mut self, burst: &mut RxBurst<'a>) {
        let Self { core, memory, packet_len_max, arrived, at, reading, stats } = self;
        if *at >= arrived.len() {
            let core = &mut *core.borrow_mut();
            core.now_ns = burst.time_ns;
            core.receiver.give_back(arrived.drain(..).map(|arrived| arrived.chunk));
            *at = 0;
            core.receive(MAX_BURST, arrived);
        }
        let arrived: &'a [ReceivedDatagram] = arrived;
        while !burst.packets.is_full()
            && let Some(ReceivedDatagram { chunk, from, port, start, len }) = arrived.get(*at)
        {
            let from = match *from {
                IpAddr::V4(address) => sockets::pack_v4(address.into(), *port),
                IpAddr::V6(address) => sockets::pack_v6(address.into(), *port, 0),
            };
            let segments = Segments { from, bytes: memory.bytes(chunk, *start, *len), segment_len: (*len).max(1) };
            if reading.lend(segments, *packet_len_max, stats, &mut burst.packets) {
                *reading = Reading::default();
                *at += 1;
            }
        }
    }
}

impl Drop for XdpRx {
    fn drop(&mut self) {
        self.memory.give_back(self.arrived.drain(..).map(|arrived| arrived.chunk));
    }
}
