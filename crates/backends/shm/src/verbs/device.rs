//! Devices and protection domains.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sinew_fabric::verbs::{Attributes, GATHER_MAX, QpNumber, Registry, VerbsError};
use sinew_fabric::{Address, AddressError};
use sinew_mem::Arena;

use super::address::{DEVICE_NAME_MAX, Home, port_name};
use super::control::Server;
use super::directory::QUEUE_PAIRS_MAX;
use super::initiator::Target;
use super::life;
use super::memory::{DeviceMemory, system};
use super::ranges::PAGE;
use crate::hub::Hub;
use crate::options::{self, ARENA_BYTES_MAX, RING_PACKETS_DEFAULT, RING_PACKETS_MAX};
use crate::port::ShmPort;

/// Most bytes of a UD message. Messages of connected transports are cut into packets of this size.
pub const MTU: usize = 16 << 10;
/// Most bytes of a message on a connected transport.
pub const MESSAGE_LEN_MAX: usize = 1 << 30;
/// Bytes of address space for exposed memory, unless the address says otherwise. It uses memory only where it is used.
pub const EXPOSED_BYTES_DEFAULT: usize = 64 << 30;
/// The most address space for exposed memory, in bytes.
pub const EXPOSED_BYTES_MAX: usize = 16 << 40;
/// Bytes of address space from which a thread sends packets that are too long for a ring.
const STAGING_BYTES: usize = 256 << 20;
const INLINE_MAX: usize = 1024;
const QUEUE_DEPTH_MAX: usize = 1 << 16;

/// A device over shared memory. See the [module's documentation](super).
#[derive(Clone, Debug)]
pub struct ShmDevice(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    attributes: Attributes,
    /// Name under which other processes find it.
    name: String,
    incarnation: u64,
    scope: Scope,
    ring_packets: usize,
    memory: Arc<DeviceMemory>,
    local_target: Arc<Target>,
    /// The devices of other processes whose memory we hold.
    remote_targets: Mutex<HashMap<u64, Weak<Target>>>,
    domains: AtomicU32,
    ports: AtomicU32,
    keys: AtomicU32,
}

/// Set of threads or processes that can reach a device.
#[derive(Debug)]
enum Scope {
    Threads(Hub),
    Processes { _server: Server },
}

/// A random number: the standard library takes its hash keys from the system.
fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

impl ShmDevice {
    /// Creates a device for the threads of this process.
    ///
    /// # Errors
    ///
    /// [`VerbsError::System`]: there is no memory, or no address space.
    pub fn threads() -> Result<Self, VerbsError> {
        let memory = Arc::new(DeviceMemory::new(EXPOSED_BYTES_DEFAULT)?);
        // The owner dies together with all observers.
        memory.directory.set_life(life::SAME_PROCESS);
        let scope = Scope::Threads(Hub::new());
        Ok(Self::with(memory, scope, random(), "threads".to_owned(), RING_PACKETS_DEFAULT))
    }

    /// Opens a device that processes of this user can reach: `shm://name` or `shm://`, with the options of the
    /// [module](super).
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoDevice`]: the address is not an `shm` one, or its options are invalid; [`VerbsError::Limit`]:
    /// the name is too long; [`VerbsError::Device`]: the name is taken or invalid, or there is no directory for names;
    /// [`VerbsError::System`].
    pub fn open(address: &Address) -> Result<Self, VerbsError> {
        let no_device = |error: AddressError| VerbsError::NoDevice(error.to_string());
        address.check_scheme("shm", "NAME").map_err(no_device)?;
        address.check_options(&["ring", "exposed"]).map_err(no_device)?;
        let number = |name, default, min, max| options::number(address, name, default, min, max).map_err(no_device);
        let ring_packets = number("ring", RING_PACKETS_DEFAULT, 1, RING_PACKETS_MAX)?;
        let exposed_bytes = number("exposed", EXPOSED_BYTES_DEFAULT, PAGE, EXPOSED_BYTES_MAX)?;
        let incarnation = random();
        let name = match address.rest() {
            "" => format!("p{}-{:08x}", std::process::id(), incarnation as u32),
            name if name.len() <= DEVICE_NAME_MAX => name.to_owned(),
            name => {
                let len = name.len();
                return Err(VerbsError::Limit { what: "bytes of a device's name", asked: len, limit: DEVICE_NAME_MAX });
            }
        };
        let memory = Arc::new(DeviceMemory::new(exposed_bytes.next_multiple_of(PAGE))?);
        let server = Server::start(&memory, incarnation, &name)?;
        Ok(Self::with(memory, Scope::Processes { _server: server }, incarnation, name, ring_packets))
    }

    fn with(memory: Arc<DeviceMemory>, scope: Scope, incarnation: u64, name: String, ring_packets: usize) -> Self {
        let attributes = Attributes {
            name: match &scope {
                Scope::Threads(_) => "shared memory, between threads".to_owned(),
                Scope::Processes { .. } => format!("shared memory, shm://{name}"),
            },
            mtu: MTU,
            message_len_max: MESSAGE_LEN_MAX,
            inline_max: INLINE_MAX,
            gather_max: GATHER_MAX,
            queue_depth_max: QUEUE_DEPTH_MAX,
            reads_max: QUEUE_DEPTH_MAX,
            atomics: true,
            line_rate_bps: None,
        };
        let own = Arc::new(Target::local(&memory));
        Self(Arc::new(Inner {
            attributes,
            name,
            incarnation,
            scope,
            ring_packets,
            memory,
            local_target: own,
            remote_targets: Mutex::default(),
            domains: AtomicU32::new(1),
            ports: AtomicU32::new(0),
            keys: AtomicU32::new(random() as u32),
        }))
    }

    /// Regions whose exposure has ended and whose memory cannot be reused yet, because an initiator was stopped inside.
    pub fn quarantined(&self) -> usize {
        self.0.memory.quarantined()
    }

    pub(super) fn memory(&self) -> &Arc<DeviceMemory> {
        &self.0.memory
    }

    /// The memory of the device of `home`.
    pub(super) fn target(&self, home: &Home) -> Result<Arc<Target>, VerbsError> {
        let inner = &*self.0;
        if home.incarnation == inner.incarnation {
            return Ok(Arc::clone(&inner.local_target));
        }
        if let Scope::Threads(_) = inner.scope {
            let reason =
                "it belongs to another device, and this one reaches only its own process: open both with a name";
            return Err(VerbsError::Address(reason.to_owned()));
        }
        let mut theirs = inner.remote_targets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(target) = theirs.get(&home.incarnation).and_then(Weak::upgrade) {
            return Ok(target);
        }
        let target = Arc::new(Target::remote(home)?);
        theirs.retain(|_, target| target.strong_count() > 0);
        theirs.insert(home.incarnation, Arc::downgrade(&target));
        Ok(target)
    }

    /// Opens a port for one more thread, and returns it with its number.
    pub(super) fn port(&self) -> Result<(ShmPort, u32), VerbsError> {
        let number = self.0.ports.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}?ring={}&arena={STAGING_BYTES}", port_name(&self.0.name, number), self.0.ring_packets);
        let port = match &self.0.scope {
            Scope::Threads(hub) => hub.port(&name),
            Scope::Processes { .. } => {
                let address: Address = format!("shm://{name}")
                    .parse()
                    .map_err(|error: AddressError| VerbsError::Device(error.to_string()))?;
                ShmPort::open(&address)
            }
        };
        Ok((port.map_err(|error| VerbsError::Device(error.to_string()))?, number))
    }

    /// Location of one of our queue pairs.
    pub(super) fn home(&self, domain: u32, key: u32, port: u32) -> Home {
        Home { incarnation: self.0.incarnation, domain, key, port, device: self.0.name.clone() }
    }

    /// A new key, which no packet of an earlier connection carries.
    pub(super) fn key(&self) -> u32 {
        self.0.keys.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn number(&self) -> Result<QpNumber, VerbsError> {
        let limit = QUEUE_PAIRS_MAX;
        self.0.memory.take_number().ok_or(VerbsError::Limit { what: "queue pairs", asked: limit + 1, limit })
    }

    pub(super) fn limits(&self) -> &Attributes {
        &self.0.attributes
    }
}

/// A protection domain of a [`ShmDevice`].
#[derive(Clone, Debug)]
pub struct ShmDomain(Arc<Domain>);

#[derive(Debug)]
struct Domain {
    device: ShmDevice,
    number: u32,
    arenas: Mutex<Vec<Arena>>,
    /// Registered buffers of other arenas.
    registered: Registry<()>,
}

impl ShmDomain {
    pub(super) fn new(device: &ShmDevice) -> Self {
        let number = device.0.domains.fetch_add(1, Ordering::Relaxed) & 0xFF_FFFF;
        Self(Arc::new(Domain {
            device: device.clone(),
            number,
            arenas: Mutex::default(),
            registered: Registry::default(),
        }))
    }

    /// Makes an arena whose buffers may be used in this domain.
    pub(super) fn new_arena(&self, bytes: usize) -> Result<Arena, VerbsError> {
        if bytes > ARENA_BYTES_MAX {
            return Err(VerbsError::Limit { what: "bytes of an arena", asked: bytes, limit: ARENA_BYTES_MAX });
        }
        let arena = Arena::private(bytes.max(PAGE)).map_err(|source| system("making an arena", source))?;
        self.0.arenas.lock().unwrap_or_else(PoisonError::into_inner).push(arena.clone());
        Ok(arena)
    }

    pub(super) fn device(&self) -> &ShmDevice {
        &self.0.device
    }

    pub(super) fn number(&self) -> u32 {
        self.0.number
    }

    pub(super) fn registered(&self) -> &Registry<()> {
        &self.0.registered
    }

    /// The arenas whose buffers may be used.
    pub(super) fn arenas(&self) -> Vec<Arena> {
        self.0.arenas.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
