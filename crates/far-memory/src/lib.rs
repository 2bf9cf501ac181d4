//! Address space whose pages lie in memory of other hosts, with a bounded number of them in local memory (rdmabox).
//!
//! - [`FarMemory`] and [`FarVec`]: the safe interface. One thread owns them; every access checks in ordinary code
//!   whether its page is local.
//! - [`FarMapping`] and its [`Handler`], on Linux: plain loads and stores from any thread; a handler thread fetches
//!   missing pages (userfaultfd).
//!
//! Both write changed pages back in the background, fetch ahead of sequential readers, and work on any
//! [`Store`](sinew_remote_memory::Store): a volume, or a volume with a file of this host as its last copy (`LastCopy`
//! of `sinew-remote-block`), from which pages are read that all donors have lost. Neither installs signal handlers.

mod ahead;
mod error;
mod extents;
mod frame;
mod guard;
mod memory;
mod options;
mod pager;
mod place;
mod policy;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod raw;
mod table;
mod vec;

pub use error::FarError;
pub use guard::{Pinned, PinnedMut};
pub use memory::FarMemory;
pub use options::{LOCAL_PAGES_MAX, LOCAL_PAGES_MIN, Options, PAGE, Stats};
pub use place::Pod;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
pub use raw::{Control, FarMapping, Handler, MapError, MapOptions, OnLoss};
pub use vec::{FarVec, Iter};
