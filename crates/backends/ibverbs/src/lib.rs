//! Verbs on RDMA NICs: InfiniBand, RoCE, and soft-RoCE, through libibverbs.
//!
//! An [`IbDevice`] implements [`sinew_fabric::verbs`]. The library is opened when it is first needed, so that a program which was
//! built without it uses it where it is, and is told what to install where it is not. [`devices`] lists what there is, and why
//! something cannot be used.
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
//! # Which name of a port
//!
//! On InfiniBand peers of the same subnet find a port by its local identifier (LID). On Ethernet a port has a table of global identifiers (GIDs), one for each
//! IP address of its interface and kind of packet; by default the port goes by a RoCE v2 one with an IPv4 address, then a global
//! IPv6 address, then one of the link. [`IbDevice::port`] and the device's name say which; `?gid=3` in a [`Selector`] takes another.
//!
//! # As a packet port
//!
//! A [`UdPort`](sinew_fabric::verbs::port::UdPort) carries packets by UD queue pairs of a device. [`IbOptions`] says which device and
//! how large, from an address `ibverbs://HOST:PORT?device=rxe0`; what stands at that place is for whoever opens the port.
//!
//! # What is where
//!
//! A request is described to the device in memory that the queue pair has from the start; `doorbell` hands over all that was
//! pushed as one list. What the requests use lies in a table until the device has said that they are over, and the device's queue
//! pair is destroyed before that table is; one that is forgotten keeps all that it needs. When the device refuses part of a
//! list, the queue pair is stopped: what was taken is flushed, the refused request fails, the rest is flushed.
//!
//! Datagrams arrive behind 40 bytes of their sender's addresses, for which each receive has a place of its own; so
//! [`Completion::from`](sinew_fabric::verbs::Completion::from) says whom an answer goes to. Address handles are kept for 65,536 hosts
//! at most. A [destination](sinew_fabric::verbs::ThreadDomain::destination) has a new one whenever it is asked for. That of an answer to
//! somebody whom nobody here asked for is made with the first answer; on Ethernet the kernel may wait a second for a host that does not
//! exist, so a tenth of the thread's time at most goes there, and a host that was not found is not looked for again for 30 seconds. Answers
//! are refused meanwhile.

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
mod strangers;
mod thread;
mod ways;
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
