//! AF_XDP sockets and their rings.

use std::io;
use std::ptr::NonNull;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpOptionsFlags, XdpRingOffset, XdpStatistics,
    XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, socket_with, sockopt};
use sinew_mem::atomic::plain::{Arc, AtomicU32};

use crate::ring::{Consumer, Producer, RingMemory};

// Offsets at which the rings are mapped.
const RX_RING: u64 = 0;
const TX_RING: u64 = 0x8000_0000;
const FILL_RING: u64 = 0x1_0000_0000;
const COMPLETION_RING: u64 = 0x1_8000_0000;

/// A frame in a ring.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Descriptor {
    pub address: u64,
    pub len: u32,
    pub options: u32,
}

/// The rings by which free chunks go to the kernel and back: one pair for each queue of an interface.
#[derive(Debug)]
pub(crate) struct QueueRings {
    /// Chunks into which the kernel puts frames.
    pub fill: Producer<u64>,
    /// Chunks whose frames the kernel has sent.
    pub completion: Consumer<u64>,
}

/// Interface and queue to which a socket is bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BindAddress {
    pub interface: u32,
    pub queue: u32,
}

/// A socket that is not yet bound.
#[derive(Debug)]
pub(crate) struct Unbound {
    fd: OwnedFd,
}

struct Mapped {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is only an address range; each use of it argues for itself.
unsafe impl Send for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map_ring`, and the ring that uses it is dropped with it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl Unbound {
    pub fn new() -> io::Result<Self> {
        let fd = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self { fd })
    }

    /// Registers memory at this socket: its address, its length and that of a chunk.
    pub fn register(&self, addr: u64, len: u64, chunk_size: u32) -> io::Result<()> {
        let region =
            XdpUmemReg { addr, len, chunk_size, headroom: 0, flags: XdpUmemRegFlags::empty(), tx_metadata_len: 0 };
        Ok(sockopt::set_xdp_umem_reg(&self.fd, region)?)
    }

    /// Makes the rings of its queue.
    pub fn queue_rings(&self, entries: u32) -> io::Result<QueueRings> {
        sockopt::set_xdp_umem_fill_ring_size(&self.fd, entries)?;
        sockopt::set_xdp_umem_completion_ring_size(&self.fd, entries)?;
        let offsets = sockopt::xdp_mmap_offsets(&self.fd)?;
        Ok(QueueRings {
            fill: Producer::new(self.map_ring(&offsets.fr, FILL_RING, entries)?),
            completion: Consumer::new(self.map_ring(&offsets.cr, COMPLETION_RING, entries)?),
        })
    }

    /// Makes the ring of received frames.
    pub fn rx_ring(&self, entries: u32) -> io::Result<Consumer<Descriptor>> {
        sockopt::set_xdp_rx_ring_size(&self.fd, entries)?;
        let offsets = sockopt::xdp_mmap_offsets(&self.fd)?;
        Ok(Consumer::new(self.map_ring(&offsets.rx, RX_RING, entries)?))
    }

    /// Makes the ring of frames to send.
    pub fn tx_ring(&self, entries: u32) -> io::Result<Producer<Descriptor>> {
        sockopt::set_xdp_tx_ring_size(&self.fd, entries)?;
        let offsets = sockopt::xdp_mmap_offsets(&self.fd)?;
        Ok(Producer::new(self.map_ring(&offsets.tx, TX_RING, entries)?))
    }

    fn map_ring<T: Copy + Send>(&self, at: &XdpRingOffset, place: u64, entries: u32) -> io::Result<RingMemory<T>> {
        let slots_len = entries as usize * size_of::<T>();
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "the kernel describes an impossible ring");
        let words = [Some(at.producer), Some(at.consumer), at.flags];
        let end = words.iter().flatten().map(|&word| word.saturating_add(4)).max().unwrap_or(0);
        let len = usize::try_from(end.max(at.desc.saturating_add(slots_len as u64))).map_err(|_| bad())?;
        let aligned =
            words.iter().flatten().all(|word| word % 4 == 0) && at.desc.is_multiple_of(align_of::<T>() as u64);
        if len > 1 << 30 || !aligned || !entries.is_power_of_two() {
            return Err(bad());
        }
        // SAFETY: a new mapping of a ring at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                &self.fd,
                place,
            )?
        };
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(bad)?;
        // SAFETY: every offset, with the length of what is there, was checked to lie in the mapping.
        let at_offset = |offset: u64| unsafe { start.add(offset as usize) };
        let word = |offset| at_offset(offset).cast::<AtomicU32>();
        let keeper = Box::new(Mapped { start, len });
        // SAFETY: the words and slots lie aligned in the mapping, which `keeper` unmaps. This type maps each ring of a
        // socket only once: its methods make the ring, which the kernel refuses to do twice. A slot is a number or a
        // descriptor, of which any bytes are one.
        Ok(unsafe {
            RingMemory::new(
                [word(at.producer), word(at.consumer)],
                at.flags.map(word),
                at_offset(at.desc).cast(),
                entries,
                keeper,
            )
        })
    }

    /// Binds a socket that has memory and the rings of its queue.
    pub fn bind(self, place: BindAddress, zero_copy: bool) -> Result<Arc<OwnedFd>, Errno> {
        let copy_mode = if zero_copy { SocketAddrXdpFlags::XDP_ZEROCOPY } else { SocketAddrXdpFlags::XDP_COPY };
        let flags = copy_mode | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        bind(&self.fd, &SocketAddrXdp::new(flags, place.interface, place.queue))?;
        Ok(Arc::new(self.fd))
    }

    /// Binds a socket that has its memory from another. If it is the first at its queue it brings the queue's rings;
    /// otherwise it uses those that are there.
    pub fn bind_sharing(self, place: BindAddress, with: BorrowedFd<'_>) -> Result<Arc<OwnedFd>, Errno> {
        let addr = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, place.interface, place.queue);
        bind(&self.fd, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: with })?;
        Ok(Arc::new(self.fd))
    }
}

/// Makes the kernel send the frames in the socket's ring. It takes about thirty frames per call.
#[inline]
pub(crate) fn kick_tx(fd: impl AsFd) -> Result<(), Errno> {
    rustix::net::send(fd, &[], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(|_| ())
}

/// Makes the kernel look at the chunks that it was given.
#[inline]
pub(crate) fn kick_rx(fd: impl AsFd) {
    // The result only says that there is nothing to read.
    let _ = rustix::net::recv(fd, &mut [0u8; 0][..], RecvFlags::DONTWAIT);
}

/// Whether frames go between the device and the memory without a copy.
pub(crate) fn is_zero_copy(fd: impl AsFd) -> bool {
    sockopt::xdp_options(fd).is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
}

/// The kernel's counters of the socket.
pub(crate) fn statistics(fd: impl AsFd) -> io::Result<XdpStatistics> {
    Ok(sockopt::xdp_statistics(fd)?)
}
