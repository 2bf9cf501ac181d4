//! Address space whose pages lie in memory of other hosts, with so many of them in local memory (rdmabox).
//!
//! - [`FarMemory`] and [`FarVec`]: the safe face. One thread owns them; every access looks whether its page is here, in ordinary code.
//!
//! Both write changed pages back in the background, fetch ahead of sequential readers, and stand on any
//! [`Store`](sinew_remote_memory::Store). Neither has signal handlers.

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
mod table;
mod vec;

pub use error::FarError;
pub use guard::{Pinned, PinnedMut};
pub use memory::FarMemory;
pub use options::{LOCAL_PAGES_MAX, LOCAL_PAGES_MIN, Options, PAGE, Stats};
pub use place::Pod;
pub use vec::{FarVec, Iter};
