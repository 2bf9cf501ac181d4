//! Services of the machine that Sinew runs on: the real clock, the system's randomness, worker threads, processor
//! placement, signals, and, over TCP, a rendezvous and names for ports built on queue pairs.
//!
//! Library code is handed a clock, a generator and a worker pool and never makes its own, so that it also runs in
//! virtual time. A real program gets them from this crate:
//!
//! ```
//! use sinew_fabric::{Clock, Generator, WorkerPool};
//! use sinew_host::{HostClock, SystemEntropy, ThreadPool};
//!
//! let clock = HostClock::new();
//! let mut entropy = SystemEntropy::new()?;
//! let pool = ThreadPool::new("jobs", 2, 64)?;
//! let began_ns = clock.now_ns();
//! let token = entropy.next_u64();
//! pool.submit(Box::new(move || println!("{token} at {began_ns}"))).ok();
//! # Ok::<(), std::io::Error>(())
//! ```

mod clock;
mod cpu;
mod descriptors;
mod entropy;
mod huge_pages;
mod idle;
mod idle_time;
mod interrupt;
mod lobby;
mod malloc;
mod names;
mod paging;
mod pinned;
mod pool;
mod process;
mod rendezvous;

pub use clock::{HostClock, serialize};
pub use cpu::{available_cpus, pin_current_thread};
pub use descriptors::{lengthen_backlog, raise_descriptor_limit};
pub use entropy::SystemEntropy;
pub use huge_pages::collapse_to_huge_pages;
pub use idle::{IdleStatesError, IdleStatesOff, hold_idle_states_off};
pub use idle_time::IdleTime;
pub use interrupt::{Interrupt, WakeOnInterrupt};
pub use lobby::{Lobby, LobbyLimits};
pub use malloc::give_back_long_buffers;
pub use names::TcpNames;
pub use paging::{PagingError, reserve_room, serve_paging};
pub use pinned::{Pinned, pin_pages};
pub use pool::ThreadPool;
pub use process::{cpu_times, is_root, kill_with_parent, set_nice};
pub use rendezvous::{Rendezvous, RendezvousError, RendezvousLimits, RendezvousListener};
