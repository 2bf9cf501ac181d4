//! Bare loops over AF_XDP: sockets, their rings and nothing else. Benchmarks measure the ports against them.

mod forward;

use rustix::fd::OwnedFd;
use sinew_fabric::PortError;
use sinew_mem::Region;
use sinew_mem::atomic::plain::Arc;

use crate::bpf;
use crate::interface::{Mode, attach, attach_error, find};
use crate::memory::{HEADROOM, Memory, borrowed};
use crate::ring::{Consumer, Producer};
use crate::sys::bpf as calls;
use crate::sys::netlink::Netlink;
use crate::sys::socket::{BindAddress, Descriptor, QueueRings, Unbound, kick_tx};

pub use forward::BareForwarder;

const CHUNK_LEN: usize = 2048;
const RING: u32 = 1024;
/// The first half of the chunks is for receiving, the second for sending.
const CHUNKS: usize = 2 * RING as usize;
/// Most frames that a turn takes.
const BURST: usize = 64;

/// Bytes of the longest frame.
pub const FRAME_LEN_MAX: usize = CHUNK_LEN - HEADROOM;

/// A socket on queue 0 of an interface, which gets all frames of that queue.
#[derive(Debug)]
pub struct BareSocket {
    fd: Arc<OwnedFd>,
    rx: Consumer<Descriptor>,
    tx: Producer<Descriptor>,
    rings: QueueRings,
    region: Region,
    /// Chunks to send from.
    free: Vec<u64>,
    _attached: OwnedFd,
    _sockets: calls::Map<4>,
}

impl BareSocket {
    /// Opens the socket.
    ///
    /// # Errors
    ///
    /// As [`XdpFrames::open`](crate::XdpFrames::open).
    pub fn open(interface: &str, mode: Mode) -> Result<Self, PortError> {
        let doing = format!("opening a bare socket at {interface}");
        let system = |error| attach_error(&doing, error);
        let link = find(&Netlink::open().map_err(system)?, interface)?;
        let sockets = calls::Map::of_sockets(bpf::QUEUES_MAX).map_err(system)?;
        let program = calls::load(&bpf::take_all(rustix::fd::AsRawFd::as_raw_fd(&sockets.fd()))).map_err(system)?;
        let (attached, _) = attach(interface, &link, &program, mode)?;
        let socket = Unbound::new().map_err(system)?;
        let region = Region::private(CHUNKS * CHUNK_LEN).map_err(system)?;
        region.prefer_huge_pages();
        socket.register(region.start().addr().get() as u64, region.len() as u64, CHUNK_LEN as u32).map_err(system)?;
        let mut rings = socket.queue_rings(RING).map_err(system)?;
        let (rx, tx) = (socket.rx_ring(RING).map_err(system)?, socket.tx_ring(RING).map_err(system)?);
        let place = BindAddress { interface: link.index, queue: 0 };
        let fd = socket.bind(place, false).map_err(|error| system(error.into()))?;
        sockets.set_socket(&bpf::socket_index(0, 0), borrowed(&fd)).map_err(system)?;
        for chunk in 0..u64::from(RING) {
            rings.fill.push(chunk * CHUNK_LEN as u64);
        }
        rings.fill.publish();
        let free = (u64::from(RING)..CHUNKS as u64).map(|chunk| chunk * CHUNK_LEN as u64).collect();
        Ok(Self { fd, rx, tx, rings, region, free, _attached: attached, _sockets: sockets })
    }

    fn bytes(&mut self, address: u64, len: usize) -> &mut [u8] {
        // SAFETY: the kernel has given this chunk back, or never had it.
        unsafe { bytes_of(&self.region, address, len) }
    }

    fn kick(&mut self) {
        self.tx.publish();
        let mut tries = 0;
        while self.tx.waiting() > 0 && tries < 64 {
            let _ = kick_tx(borrowed(&self.fd));
            tries += 1;
            if self.tx.waiting() > 0 {
                self.reap();
            }
        }
    }

    /// Takes back the chunks of sent frames. Those that are for receiving go back to the kernel.
    fn reap(&mut self) {
        let mut filled = false;
        while let Some(address) = self.rings.completion.take() {
            let chunk = address / CHUNK_LEN as u64;
            if chunk < u64::from(RING) {
                filled |= self.rings.fill.push(chunk * CHUNK_LEN as u64);
            } else {
                self.free.push(chunk * CHUNK_LEN as u64);
            }
        }
        self.rings.completion.release();
        if filled {
            self.rings.fill.publish();
        }
    }

    /// Sends up to `count` copies of a frame; returns how many were sent.
    ///
    /// # Panics
    ///
    /// When the frame is longer than [`FRAME_LEN_MAX`].
    pub fn send(&mut self, frame: &[u8], count: usize) -> usize {
        assert!(frame.len() <= FRAME_LEN_MAX);
        if self.free.len() < count {
            self.reap();
        }
        let mut sent = 0;
        while sent < count
            && self.tx.free(1) > 0
            && let Some(address) = self.free.pop()
        {
            self.bytes(address, frame.len()).copy_from_slice(frame);
            self.tx.push(Descriptor { address, len: frame.len() as u32, options: 0 });
            sent += 1;
        }
        if sent > 0 {
            self.kick();
        }
        sent
    }

    /// Takes received frames, and reads the first byte of each. Returns their number, and the sum of those bytes.
    pub fn receive(&mut self) -> (usize, u64) {
        let (mut count, mut sum) = (0, 0);
        while count < BURST
            && let Some(Descriptor { address, .. }) = self.rx.take()
        {
            sum += u64::from(self.bytes(address, 1)[0]);
            self.rings.fill.push(address - address % CHUNK_LEN as u64);
            count += 1;
        }
        if count > 0 {
            self.rx.release();
            self.rings.fill.publish();
        }
        (count, sum)
    }

    /// Sends received frames back from the chunks that they are in, with their addresses exchanged; returns how many.
    pub fn echo(&mut self) -> usize {
        let mut count = 0;
        self.reap();
        while count < BURST
            && self.tx.free(1) > 0
            && let Some(Descriptor { address, len, .. }) = self.rx.take()
        {
            let frame = self.bytes(address, len as usize);
            if let Some((to, rest)) = frame.split_at_mut_checked(6)
                && let Some(from) = rest.get_mut(..6)
            {
                to.swap_with_slice(from);
            }
            self.tx.push(Descriptor { address, len, options: 0 });
            count += 1;
        }
        if count > 0 {
            self.rx.release();
            self.kick();
        }
        count
    }
}

/// The bytes at an address in a region.
///
/// # Safety
///
/// The region is the caller's alone except for chunks that the kernel has, and this range is in none of those. Nothing
/// else accesses these bytes while they are borrowed.
#[allow(clippy::mut_from_ref)]
unsafe fn bytes_of(region: &Region, address: u64, len: usize) -> &mut [u8] {
    let start = address as usize;
    assert!(start <= region.len() && len <= region.len() - start);
    // SAFETY: the range lies in the region, and the caller promised the rest.
    unsafe { std::slice::from_raw_parts_mut(region.start().add(start).as_ptr(), len) }
}

/// Memory for a frame port that is compared with a bare loop: as much as the loop has.
///
/// # Errors
///
/// As [`Memory::new`].
pub fn comparable_memory() -> Result<Arc<Memory>, PortError> {
    Memory::new(4 * CHUNKS, CHUNK_LEN)
}
