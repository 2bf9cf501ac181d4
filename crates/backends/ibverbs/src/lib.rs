//! Verbs on RDMA NICs: InfiniBand, RoCE, and soft-RoCE, through libibverbs.
//!
//! An [`IbDevice`] implements [`sinew_fabric::verbs`]. libibverbs is opened on first use, so a program that
//! was built without it can use it where it is installed; elsewhere an error says what to install. [`devices`]
//! lists the machine's devices, and the reasons why some cannot be used.
//!
//! ```no_run
//! use sinew_fabric::verbs::{Device, ProtectionDomain, QpConfig, QueuePair, ThreadDomain, Transport};
//! use sinew_ibverbs::IbDevice;
//!
//! let device = IbDevice::open(&"rxe0".parse()?)?;
//! println!("{}", device.attributes().name);
//! let domain = device.protection_domain()?;
//! let arena = domain.arena(1 << 20)?;
//! let thread = domain.thread()?;
//! let completions = thread.completion_queue(256)?;
//! let config = QpConfig { send_depth: 128, receive_depth: 128, ..QpConfig::new(Transport::Rc) };
//! let mut qp = thread.queue_pair(&config, &completions, &completions)?;
//! println!("tell the peer: {:?}", qp.address());
//! # Ok::<(), sinew_fabric::verbs::VerbsError>(())
//! ```
//!
//! # Choice of a port's name
//!
//! On InfiniBand, peers of the same subnet find a port by its local identifier (LID). On Ethernet, a port has a table
//! of global identifiers (GIDs), one for each IP address of its interface and kind of packet. By default the port uses
//! a RoCE v2 GID with an IPv4 address, or else one with a global IPv6 address, or else a link-local one.
//! [`IbDevice::port`] and the device's name say which; `?gid=3` in a [`Selector`] chooses another.
//!
//! # As a packet port
//!
//! A [`UdPort`](sinew_fabric::verbs::port::UdPort) carries packets over UD queue pairs of a device. [`IbOptions`] reads
//! the device and the port's sizes from an address `ibverbs://HOST:PORT?device=rxe0`. What listens at `HOST:PORT` is up
//! to the program that opens the port.
//!
//! # How requests and datagrams are handled
//!
//! A request is described to the device in memory that the queue pair has from the start; `doorbell` hands over
//! everything pushed as one list. Whatever the requests use stays in a table until the device has completed them, and
//! the device's queue pair is destroyed before that table; a forgotten queue pair keeps everything that it needs. When
//! the device refuses part of a list, the queue pair is stopped: requests that it took are flushed, the refused request
//! fails, and the rest is flushed.
//!
//! Datagrams arrive behind 40 bytes of their sender's addresses, for which each receive has a place of its own, so
//! [`Completion::from`](sinew_fabric::verbs::Completion::from) says where an answer goes. Address handles are kept for
//! at most 65,536 hosts. Asking for a [destination](sinew_fabric::verbs::ThreadDomain::destination) always makes a new
//! one. The handle for answering an unknown sender (one for whom nobody here asked for a destination) is made with the
//! first answer. On Ethernet the kernel may wait a second for a host that does not exist, so at most a tenth of the
//! thread's time goes to such lookups, and a host that was not found is not looked for again for 30 seconds. Answers
//! are refused meanwhile.
//!
//! The data path calls through the operations that the library keeps in the device's context. Their layouts are
//! compared with the system's header where there is one.

mod abi;
mod address;
mod device;
mod domain;
mod gid;
mod library;
mod list;
mod options;
mod port;
mod registration;
mod routes;
mod thread;
mod time_budget;
mod work;
mod work_id;

#[cfg(test)]
extern crate self as sinew_ibverbs;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

pub use device::{IbDevice, Selector};
pub use domain::{IbDomain, IbMemory};
pub use gid::{Gid, GidKind};
pub use list::{DeviceInfo, devices};
pub use options::{IbOptions, SCHEME};
pub use port::{Link, PortInfo};
pub use thread::{IbCompletionQueue, IbQueuePair, IbThread};
