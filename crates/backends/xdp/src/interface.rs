//! An interface with ports of this process: the program on it, and the sockets and rings at its queues.
//!
//! An interface has one program, so all ports of a process on it share an [`Interface`]; another process cannot have it
//! meanwhile. The ports at one queue share the rings by which chunks go to the kernel and back, behind a lock that each
//! takes once per burst.

mod holder;
mod registry;

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use sinew_fabric::PortError;
use sinew_fabric::frames::{ETHERNET_HEADER_LEN, MacAddress};
use sinew_mem::atomic::plain::{Arc, AtomicU32, Ordering};

use crate::bpf::{self, KEY_LEN, QUEUES_MAX, SLOTS_MAX};
use crate::memory::{Chunk, Memory, borrowed, registration_error};
use crate::ring::{Consumer, Producer};
use crate::sys::bpf::Map;
use crate::sys::netlink::{Link, Netlink};
use crate::sys::socket::{BindAddress, Descriptor, QueueRings, Unbound, is_zero_copy, kick_rx};
use crate::sys::{bpf as calls, ethtool};

pub(crate) use registry::shared;

/// Most places and whole addresses of all ports of an interface.
const PLACES_MAX: u32 = 4096;
/// Tries, and the pause between them, for a queue that is still being closed: the kernel takes most of a second.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// Entries of the receive ring of the socket that keeps a queue's rings; it receives nothing.
const KEEPER_ENTRIES: u32 = 2;

/// The point at which the program sees an interface's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// `auto`, the faster of the two: generic on virtual pairs (`veth`); elsewhere native, or generic where the driver
    /// cannot.
    #[default]
    Auto,
    /// `native`: in the driver. A `veth` then needs an MTU below 3,520.
    Native,
    /// `generic`: in the kernel's own network stack, which works on every interface.
    Generic,
}

/// The frames that the ports of an interface take from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capture {
    /// All frames, for one port at each queue.
    All,
    /// Frames of the places and addresses that ports ask for.
    Places,
}

/// Configuration of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceOptions {
    /// The point at which the program sees frames.
    pub mode: Mode,
    /// Whether to ask the driver to put frames into our memory itself. Where it cannot, the kernel copies them. This
    /// has not been tested, for lack of a device that can.
    pub zero_copy: bool,
    /// Frames in each ring of a port and of a queue, a power of two.
    pub ring: u32,
}

impl Default for InterfaceOptions {
    fn default() -> Self {
        Self { mode: Mode::Auto, zero_copy: true, ring: 1024 }
    }
}

/// Features that an interface turned out to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Whether the program runs in the driver; if not, it sees frames after the kernel has taken them.
    pub native: bool,
    /// Whether the device puts frames into our memory itself; if not, the kernel copies them.
    pub zero_copy: bool,
    /// Number of queues at which it receives.
    pub queues: u32,
}

/// A queue of an interface.
#[derive(Debug)]
struct Queue {
    /// The socket that the queue's rings belong to, which receives nothing.
    keeper: Arc<OwnedFd>,
    rings: Mutex<QueueRings>,
    /// Chunks that the kernel did not get when it was last given some, because none were free.
    fill_shortfall: AtomicU32,
}

/// An open interface: see the [module](self).
#[derive(Debug)]
pub(crate) struct Interface {
    pub name: String,
    pub link: Link,
    pub memory: Arc<Memory>,
    pub granted: Granted,
    pub capture: Capture,
    options: InterfaceOptions,
    queues: Vec<Queue>,
    places: Option<Map<KEY_LEN>>,
    sockets: Map<4>,
    /// Bits of the slots in use, for [`Capture::Places`], or of the queues in use, for [`Capture::All`].
    used_slots: Mutex<u64>,
    /// The attachment of the program; `None` once it is detached.
    program: Option<OwnedFd>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unavailable_error(reason: String, remedy: &str) -> PortError {
    PortError::Unavailable { fabric: "xdp", reason, remedy: remedy.to_owned() }
}

/// Explains the system's refusal.
pub(crate) fn attach_error(doing: &str, source: std::io::Error) -> PortError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => unavailable_error(
            format!("{doing}: {source}"),
            "run it as root, or with the capabilities CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF; udp:// needs none of them",
        ),
        Some(libc::EAFNOSUPPORT) => {
            unavailable_error("this kernel has no AF_XDP".to_owned(), "use a kernel with CONFIG_XDP_SOCKETS, or udp://")
        }
        _ => PortError::System { doing: doing.to_owned(), source },
    }
}

/// Finds the interface of this name.
pub(crate) fn find(netlink: &Netlink, name: &str) -> Result<Link, PortError> {
    netlink.link(name).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => PortError::NotFound {
            address: format!("xdp://{name}"),
            looked_in: "the network interfaces of this host (`ip link` lists them)".to_owned(),
        },
        _ if error.raw_os_error() == Some(libc::ENODEV) => PortError::NotFound {
            address: format!("xdp://{name}"),
            looked_in: "the network interfaces of this host (`ip link` lists them)".to_owned(),
        },
        _ => PortError::System { doing: format!("asking for the interface {name}"), source: error },
    })
}

/// Number of queues at an interface that ports use, at most [`QUEUES_MAX`].
fn queues_of(name: &str, link: &Link) -> u32 {
    ethtool::rx_queues(name).unwrap_or(link.rx_queues).clamp(1, QUEUES_MAX)
}

/// Chunks promised to the queues of an interface, and to a port that is at all of them.
pub(crate) fn chunks_promised(queues: usize, ring: usize) -> (usize, usize) {
    (queues * ring, queues * (ring + ring / 2))
}

/// Memory for a port at all queues of an interface: the number of chunks, including those of the queues, and the MTU.
pub(crate) fn needs_of(name: &str, options: InterfaceOptions) -> Result<(usize, usize), PortError> {
    let netlink = Netlink::open().map_err(|error| attach_error("asking the kernel", error))?;
    let link = find(&netlink, name)?;
    let (kernel, port) = chunks_promised(queues_of(name, &link) as usize, options.ring as usize);
    Ok((kernel + port, link.mtu))
}

impl Interface {
    /// Opens an interface that this process does not have open.
    fn open(
        name: &str,
        link: Link,
        memory: Arc<Memory>,
        capture: Capture,
        options: InterfaceOptions,
    ) -> Result<Self, PortError> {
        let refused = |doing: &str, source| attach_error(&format!("{doing} at {name}"), source);
        let queues = queues_of(name, &link);
        let sockets = Map::of_sockets(QUEUES_MAX * SLOTS_MAX).map_err(|error| refused("making a map", error))?;
        let socket_map = rustix::fd::AsRawFd::as_raw_fd(&sockets.fd());
        let (places, code) = match capture {
            Capture::All => (None, bpf::take_all(socket_map)),
            Capture::Places => {
                let places = Map::hash(PLACES_MAX).map_err(|error| refused("making a map", error))?;
                let code = bpf::take_places(rustix::fd::AsRawFd::as_raw_fd(&places.fd()), socket_map);
                (Some(places), code)
            }
        };
        let program = calls::load(&code).map_err(|error| refused("loading a program", error))?;
        let (attached, native) = attach(name, &link, &program, options.mode)?;
        let mut interface = Self {
            name: name.to_owned(),
            granted: Granted { native, zero_copy: false, queues },
            link,
            memory,
            capture,
            options,
            queues: Vec::new(),
            places,
            sockets,
            used_slots: Mutex::new(0),
            program: Some(attached),
        };
        interface.memory.reserve((queues * options.ring) as usize, "the queues of an interface").inspect_err(|_| {
            // Dropping the interface must not end a promise that was not made.
            interface.granted.queues = 0;
        })?;
        let zero_copy = options.zero_copy && native && interface.can_zero_copy();
        for queue in 0..queues {
            let queue = interface.open_queue(queue, zero_copy)?;
            interface.queues.push(queue);
        }
        interface.granted.zero_copy =
            interface.queues.first().is_some_and(|queue| is_zero_copy(borrowed(&queue.keeper)));
        for queue in 0..interface.queues.len() {
            interface.fill(queue, &mut Vec::new());
        }
        Ok(interface)
    }

    /// Whether the driver would put frames into our memory itself. This is tried with a small memory, which is cheap to
    /// pin.
    fn can_zero_copy(&self) -> bool {
        let Ok(memory) = Memory::new(64, self.memory.chunk_len()) else { return false };
        let trying = || {
            let socket = Unbound::new()?;
            memory.register_at(&socket)?;
            let _rings = (socket.queue_rings(64)?, socket.rx_ring(64)?);
            Ok::<_, std::io::Error>(socket.bind(BindAddress { interface: self.link.index, queue: 0 }, true)?)
        };
        trying().is_ok()
    }

    fn open_queue(&self, queue: u32, zero_copy: bool) -> Result<Queue, PortError> {
        let place = BindAddress { interface: self.link.index, queue };
        let doing = format!("opening queue {queue} of {}", self.name);
        for tries in 0.. {
            let socket = Unbound::new().map_err(|error| attach_error(&doing, error))?;
            let registered = self.memory.socket();
            if registered.is_none() {
                self.memory.register_at(&socket).map_err(|error| match error.raw_os_error() {
                    Some(libc::EPERM) => attach_error(&doing, error),
                    _ => registration_error(error, self.memory.range().1),
                })?;
            }
            let system = |error| attach_error(&doing, error);
            let rings = socket.queue_rings(self.options.ring).map_err(system)?;
            // A socket must have a receive ring, though this one is not used.
            drop(socket.rx_ring(KEEPER_ENTRIES).map_err(system)?);
            let bound = match &registered {
                Some(with) => socket.bind_sharing(place, borrowed(with)),
                None => socket.bind(place, zero_copy),
            };
            match bound {
                Ok(keeper) => {
                    self.memory.add_socket(&keeper);
                    return Ok(Queue { keeper, rings: Mutex::new(rings), fill_shortfall: AtomicU32::new(0) });
                }
                // The queue was closed a moment ago, by us or by a process that ended.
                Err(Errno::BUSY) if tries < BUSY_TRIES => std::thread::sleep(BUSY_PAUSE),
                Err(Errno::BUSY) => {
                    return Err(PortError::Taken {
                        address: format!("queue {queue} of {}", self.name),
                        holder: " by another AF_XDP socket".to_owned(),
                    });
                }
                Err(error) => return Err(attach_error(&doing, error.into())),
            }
        }
        unreachable!("the loop ends by itself")
    }

    /// Bytes of the longest frame that can be sent and received.
    pub fn frame_len_max(&self) -> usize {
        (self.link.mtu + ETHERNET_HEADER_LEN).min(self.memory.frame_len_max())
    }

    pub fn mac(&self) -> MacAddress {
        self.link.mac
    }

    /// Frames in each ring.
    pub fn ring(&self) -> u32 {
        self.options.ring
    }

    /// Chunks that a queue has lacked since it was last filled, because none were free.
    #[inline]
    pub fn missing(&self, queue: usize) -> usize {
        // Relaxed: a hint; the next look sees a newer value.
        self.queues.get(queue).map_or(0, |queue| queue.fill_shortfall.load(Ordering::Relaxed) as usize)
    }

    /// Takes back the chunks of frames that were sent at a queue, and gives the kernel as many chunks as it has room
    /// for: first those in `chunks`, then free ones. Chunks that it could not give are [missing](Self::missing).
    pub fn fill(&self, queue: usize, chunks: &mut Vec<Chunk>) {
        let Some(queue) = self.queues.get(queue) else { return };
        let mut rings = lock(&queue.rings);
        self.reap(&mut rings, chunks);
        let room = rings.fill.free(self.options.ring) as usize;
        let mut missing = 0;
        if room > 0 {
            if chunks.len() < room {
                self.memory.take(room - chunks.len(), chunks);
            }
            let left = chunks.len().saturating_sub(room);
            missing = room - (chunks.len() - left);
            for chunk in chunks.drain(left..) {
                rings.fill.push(self.memory.hand_over(chunk));
            }
            rings.fill.publish();
        }
        // Relaxed: a hint; callers that fill are ordered by the lock.
        queue.fill_shortfall.store(missing as u32, Ordering::Relaxed);
        let sleeps = self.granted.zero_copy && rings.fill.needs_wakeup();
        drop(rings);
        if !chunks.is_empty() {
            self.memory.give_back(chunks.drain(..));
        }
        if sleeps {
            kick_rx(borrowed(&queue.keeper));
        }
    }

    /// Takes back the chunks of frames that were sent at a queue.
    pub fn complete(&self, queue: usize, chunks: &mut Vec<Chunk>) {
        if let Some(queue) = self.queues.get(queue) {
            self.reap(&mut lock(&queue.rings), chunks);
        }
    }

    fn reap(&self, rings: &mut QueueRings, chunks: &mut Vec<Chunk>) {
        if rings.completion.available() == 0 {
            return;
        }
        while let Some(address) = rings.completion.take() {
            chunks.extend(self.memory.reclaim(address).map(|(chunk, _)| chunk));
        }
        rings.completion.release();
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        self.memory.unreserve((self.granted.queues * self.options.ring) as usize);
        // No frame may come to sockets that are being closed.
        self.program = None;
        let mut chunks = Vec::new();
        for Queue { keeper, rings, .. } in self.queues.drain(..) {
            let mut rings = rings.into_inner().unwrap_or_else(PoisonError::into_inner);
            drop(keeper);
            // Chunks that the kernel has not used are free again, since it has no socket left to use them for.
            while let Some(address) = rings.completion.take().or_else(|| rings.fill.take_back()) {
                chunks.extend(self.memory.reclaim(address).map(|(chunk, _)| chunk));
            }
        }
        self.memory.give_back(chunks.into_iter());
    }
}

pub(crate) fn attach(name: &str, link: &Link, program: &OwnedFd, mode: Mode) -> Result<(OwnedFd, bool), PortError> {
    let modes: &[bool] = match mode {
        Mode::Native => &[true],
        Mode::Generic => &[false],
        Mode::Auto if link.kind == "veth" => &[false, true],
        Mode::Auto => &[true, false],
    };
    let mut last = None;
    for &native in modes {
        match calls::attach(program, link.index, native) {
            Ok(attached) => return Ok((attached, native)),
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap_or_else(|| std::io::ErrorKind::Unsupported.into());
    Err(match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => PortError::Taken {
            address: format!("the interface {name}"),
            holder: holder::describe(Netlink::open().and_then(|netlink| netlink.link(name)).ok()),
        },
        Some(libc::ERANGE | libc::EINVAL | libc::EOPNOTSUPP) if mode == Mode::Native => unavailable_error(
            format!("the driver of {name} takes no program: {error} (its MTU is {})", link.mtu),
            "set an MTU below 3520 if it is a veth, or use ?mode=generic",
        ),
        _ => attach_error(&format!("attaching a program to {name}"), error),
    })
}

/// The sockets of one port at an interface: one at each of its queues.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub interface: Arc<Interface>,
    pub sockets: Vec<Socket>,
    /// Time in ns after which the kernel is to be called again for frames that it left in the first socket's ring;
    /// `None` if it left none.
    pub unsent_pause_ns: Option<u64>,
    slot: u32,
    /// Its bits of [`Interface::used_slots`].
    slot_bits: u64,
    keys: Vec<[u8; KEY_LEN]>,
    reserved: usize,
}

/// A socket with its rings.
#[derive(Debug)]
pub(crate) struct Socket {
    /// `None` once it is closed.
    pub fd: Option<Arc<OwnedFd>>,
    pub queue: usize,
    pub rx: Consumer<Descriptor>,
    pub tx: Producer<Descriptor>,
}

impl Attachment {
    /// Attaches a port to an interface: at all its queues, or at one, for an interface whose frames are all taken.
    pub fn new(interface: Arc<Interface>, queue: Option<u32>) -> Result<Self, PortError> {
        let name = &interface.name;
        let queues = match queue {
            None => 0..interface.granted.queues,
            Some(queue) if queue < interface.granted.queues => queue..queue + 1,
            Some(queue) => {
                return Err(PortError::Limit {
                    what: format!("queue {queue} of {name}"),
                    limit: interface.granted.queues.into(),
                    remedy: "name one of its queues, numbered from 0".to_owned(),
                });
            }
        };
        let used = interface.take_slot(queues.clone())?;
        let slot = if interface.capture == Capture::All { 0 } else { used.trailing_zeros() };
        let ring = interface.options.ring;
        let (_, promised) = chunks_promised(queues.len(), ring as usize);
        // From here on, dropping it gives back what it has.
        let mut attachment = Self {
            interface: Arc::clone(&interface),
            sockets: Vec::new(),
            unsent_pause_ns: None,
            slot,
            slot_bits: used,
            keys: Vec::new(),
            reserved: 0,
        };
        interface.memory.reserve(promised, "a port")?;
        attachment.reserved = promised;
        let doing = format!("opening a socket at {name}");
        let system = |error| attach_error(&doing, error);
        for queue in queues {
            let unbound = Unbound::new().map_err(system)?;
            let (rx, tx) = (unbound.rx_ring(ring).map_err(system)?, unbound.tx_ring(ring / 2).map_err(system)?);
            let place = BindAddress { interface: interface.link.index, queue };
            let with = &interface.queues[queue as usize].keeper;
            let fd = unbound.bind_sharing(place, borrowed(with)).map_err(|error| system(error.into()))?;
            interface.sockets.set_socket(&bpf::socket_index(slot, queue), borrowed(&fd)).map_err(system)?;
            attachment.sockets.push(Socket { fd: Some(fd), queue: queue as usize, rx, tx });
        }
        Ok(attachment)
    }

    /// Takes the frames for an address and a UDP port, or for a whole address; returns false if another port has them.
    pub fn take_place(&mut self, address: IpAddr, udp_port: Option<u16>) -> Result<bool, PortError> {
        let Some(places) = &self.interface.places else { return Ok(false) };
        let key = bpf::key(address, udp_port);
        if !registry::claim(&self.interface, key) {
            return Ok(false);
        }
        self.keys.push(key);
        places.set(&key, self.slot).map_err(|error| attach_error("noting a place in the program's map", error))?;
        Ok(true)
    }
}

impl Interface {
    /// Takes a slot and returns its bit, or, where all frames are taken, takes the queues and returns their bits.
    fn take_slot(&self, queues: std::ops::Range<u32>) -> Result<u64, PortError> {
        let mut used = lock(&self.used_slots);
        let wanted = match self.capture {
            Capture::All => queues.fold(0, |bits, queue| bits | 1 << queue),
            Capture::Places => !*used & used.wrapping_add(1),
        };
        if wanted == 0 || *used & wanted != 0 {
            return Err(match self.capture {
                Capture::All => PortError::Taken {
                    address: format!("every frame of {}", self.name),
                    holder: " by another frame port of this process".to_owned(),
                },
                Capture::Places => PortError::Limit {
                    what: format!("one more port on {}", self.name),
                    limit: SLOTS_MAX.into(),
                    remedy: "close another port of this process there".to_owned(),
                },
            });
        }
        *used |= wanted;
        Ok(wanted)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let interface = &self.interface;
        if let Some(places) = &interface.places {
            for key in &self.keys {
                // A key that was never set needs no removal.
                let _ = places.remove(key);
                registry::unclaim(interface, key);
            }
        }
        let mut chunks = Vec::new();
        for socket in &mut self.sockets {
            let _ = interface.sockets.remove(&bpf::socket_index(self.slot, socket.queue as u32));
            // A closed socket receives nothing, so the chunks in its rings are ours again.
            socket.fd = None;
            while let Some(descriptor) = socket.rx.take() {
                chunks.extend(interface.memory.reclaim(descriptor.address).map(|(chunk, _)| chunk));
            }
            while let Some(descriptor) = socket.tx.take_back() {
                chunks.extend(interface.memory.reclaim(descriptor.address).map(|(chunk, _)| chunk));
            }
        }
        interface.memory.give_back(chunks.into_iter());
        interface.memory.unreserve(self.reserved);
        *lock(&interface.used_slots) &= !self.slot_bits;
    }
}
