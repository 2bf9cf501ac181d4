//! A bare loop that forwards between two interfaces: two sockets, one memory, and new Ethernet addresses. It reads no
//! packets.

use rustix::fd::OwnedFd;
use sinew_fabric::PortError;
use sinew_fabric::frames::MacAddress;
use sinew_mem::Region;
use sinew_mem::atomic::plain::Arc;

use super::{BURST, CHUNK_LEN, RING, bytes_of};
use crate::bpf;
use crate::interface::{Mode, attach, attach_error, find};
use crate::memory::borrowed;
use crate::ring::{Consumer, Producer};
use crate::sys::bpf as calls;
use crate::sys::netlink::Netlink;
use crate::sys::socket::{BindAddress, Descriptor, QueueRings, Unbound, kick_tx};

/// A socket on queue 0 of an interface.
#[derive(Debug)]
struct ForwarderSide {
    fd: Arc<OwnedFd>,
    rx: Consumer<Descriptor>,
    tx: Producer<Descriptor>,
    rings: QueueRings,
    /// The Ethernet addresses of the interface, and of the host at its other end.
    macs: [MacAddress; 2],
    _attached: OwnedFd,
    _sockets: calls::Map<4>,
}

/// Two sockets on queue 0 of their interfaces, which share one memory. Each sends the frames that came at the other.
#[derive(Debug)]
pub struct BareForwarder {
    sides: [ForwarderSide; 2],
    region: Region,
}

impl ForwarderSide {
    fn open(
        interface: &str,
        mode: Mode,
        neighbour: MacAddress,
        region: &Region,
        shared_with: Option<&Arc<OwnedFd>>,
    ) -> Result<Self, PortError> {
        let doing = format!("opening a bare socket at {interface}");
        let system = |error| attach_error(&doing, error);
        let link = find(&Netlink::open().map_err(system)?, interface)?;
        let sockets = calls::Map::of_sockets(bpf::QUEUES_MAX).map_err(system)?;
        let program = calls::load(&bpf::take_all(rustix::fd::AsRawFd::as_raw_fd(&sockets.fd()))).map_err(system)?;
        let (attached, _) = attach(interface, &link, &program, mode)?;
        let socket = Unbound::new().map_err(system)?;
        if shared_with.is_none() {
            let start = region.start().addr().get() as u64;
            socket.register(start, region.len() as u64, CHUNK_LEN as u32).map_err(system)?;
        }
        let rings = socket.queue_rings(RING).map_err(system)?;
        let (rx, tx) = (socket.rx_ring(RING).map_err(system)?, socket.tx_ring(RING).map_err(system)?);
        let place = BindAddress { interface: link.index, queue: 0 };
        let fd = match shared_with {
            None => socket.bind(place, false),
            Some(with) => socket.bind_sharing(place, borrowed(with)),
        };
        let fd = fd.map_err(|error| system(error.into()))?;
        sockets.set_socket(&bpf::socket_index(0, 0), borrowed(&fd)).map_err(system)?;
        Ok(Self { fd, rx, tx, rings, macs: [link.mac, neighbour], _attached: attached, _sockets: sockets })
    }
}

impl BareForwarder {
    /// Opens sockets at two interfaces. `neighbours` are the hosts at their other ends.
    ///
    /// # Errors
    ///
    /// As [`XdpFrames::open`](crate::XdpFrames::open).
    pub fn open(interfaces: [&str; 2], neighbours: [MacAddress; 2], mode: Mode) -> Result<Self, PortError> {
        let region = Region::private(2 * RING as usize * CHUNK_LEN)
            .map_err(|error| attach_error("mapping memory for bare sockets", error))?;
        region.prefer_huge_pages();
        let first = ForwarderSide::open(interfaces[0], mode, neighbours[0], &region, None)?;
        let second = ForwarderSide::open(interfaces[1], mode, neighbours[1], &region, Some(&first.fd))?;
        let mut sides = [first, second];
        for (end, first) in sides.iter_mut().zip([0, u64::from(RING)]) {
            (first..first + u64::from(RING)).for_each(|chunk| {
                end.rings.fill.push(chunk * CHUNK_LEN as u64);
            });
            end.rings.fill.publish();
        }
        Ok(Self { sides, region })
    }

    /// Forwards the frames that came at each interface to the other; returns how many.
    pub fn turn(&mut self) -> usize {
        self.forward(0) + self.forward(1)
    }

    fn forward(&mut self, from: usize) -> usize {
        let [first, second] = &mut self.sides;
        let (rx, to) = if from == 0 { (first, second) } else { (second, first) };
        reap(to, rx, from);
        let mut count = 0;
        while count < BURST
            && to.tx.free(1) > 0
            && let Some(Descriptor { address, len, .. }) = rx.rx.take()
        {
            // SAFETY: the kernel has given us the frame at this address, so the bytes are ours until it is sent.
            let frame = unsafe { bytes_of(&self.region, address, len as usize) };
            if let Some(addresses) = frame.first_chunk_mut::<12>() {
                addresses[..6].copy_from_slice(&to.macs[1].0);
                addresses[6..].copy_from_slice(&to.macs[0].0);
            }
            to.tx.push(Descriptor { address, len, options: 0 });
            count += 1;
        }
        if count > 0 {
            rx.rx.release();
            to.tx.publish();
            let mut tries = 0;
            while to.tx.waiting() > 0 && tries < 64 {
                let _ = kick_tx(borrowed(&to.fd));
                tries += 1;
                if to.tx.waiting() > 0 {
                    reap(to, rx, from);
                }
            }
        }
        count
    }
}

/// Returns chunks whose frames were sent at `to` to the interface where they were received: at `rx`, number `from`.
fn reap(to: &mut ForwarderSide, rx: &mut ForwarderSide, from: usize) {
    let mut filled = false;
    while let Some(address) = to.rings.completion.take() {
        let chunk = address / CHUNK_LEN as u64;
        // The chunk's owner shows whether the kernel's address is plausible.
        if (chunk >= u64::from(RING)) == (from == 1) {
            filled |= rx.rings.fill.push(chunk * CHUNK_LEN as u64);
        }
    }
    to.rings.completion.release();
    if filled {
        rx.rings.fill.publish();
    }
}
