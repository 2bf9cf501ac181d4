//! Memory that packets live in: message buffers and the arenas they come from, mappings shared with other processes,
//! and the one facade through which Sinew uses atomics.
//!
//! This is one of the few crates where unsafe code is allowed. What it offers is safe:
//!
//! - [`Arena`] hands out [`MessageBuffer`]s. A buffer is exclusive; [`MessageBuffer::freeze`] turns it into a counted,
//!   read-only [`Frozen`] that a port may keep while it transmits, and only the sole holder can [`Frozen::thaw`] it.
//!   Forgetting a handle leaks memory and never frees it.
//! - [`OwnedRange`] is bytes of a buffer or of a vector, which can be split into parts that are held apart and joined
//!   again.
//! - [`SharedBytes`] is memory that another process may be writing *now*. It has no slice view: it can only be copied
//!   out, and the copy fails if the sender has revoked the bytes.
//! - [`Region`] is a mapping: private, or a sealed memfd that other processes map.
//! - [`TableWords`] is memory for tables that one thread writes and others may read.
//! - [`ring`] is the packet ring between one producer and one consumer, and the board that many rings share.
//! - [`WakeCell`] tells wakers whether a thread sleeps.

pub mod atomic;
mod buffer;
pub mod copy;
mod hints;
mod memory;
mod region;
pub mod ring;
mod shared;
mod small;
mod wake;
mod words;

pub use buffer::{
    AllocError, Arena, BLOCK_UNIT, BufferPlace, Extent, FRONT_ROOM, Frozen, HEADER_ROOM, MAX_DATA_LEN, MessageBuffer,
    OwnedRange,
};
pub use hints::{grow_for_random_access, prefetch_read, room_for_random_access, zeros_for_random_access};
pub use memory::{OutOfBounds, SharedMemory, SharedRef, SharedRows, SharedSlice};
pub use region::{Access, MapError, Region};
pub use shared::{Guard, Revoked, SharedBytes};
pub use small::copy_small;
pub use wake::WakeCell;
pub use words::{Stamp, TableWords};
