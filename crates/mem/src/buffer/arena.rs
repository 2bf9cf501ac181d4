//! Arenas: the memory that message buffers come from.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(not(miri))]
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use super::free::{FreeLists, class_for, class_size};
use super::{Block, HEADER_ROOM, HEADROOM, MAX_DATA_LEN, MessageBuffer};
use crate::atomic::plain::{Arc, AtomicU32, AtomicU64, Ordering};
#[cfg(not(miri))]
use crate::region::Access;
use crate::region::Region;

/// Why no message buffer could be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// More than [`MAX_DATA_LEN`].
    #[error("a message buffer of {asked} bytes is over the limit of {} bytes", MAX_DATA_LEN)]
    TooLarge {
        /// Bytes asked for.
        asked: usize,
    },
    /// More than this buffer holds.
    #[error("a message of {len} bytes does not fit in a buffer of {capacity} bytes; allocate a larger one")]
    PastCapacity {
        /// Length of the message.
        len: usize,
        /// Capacity of the buffer, in bytes.
        capacity: usize,
    },
    /// Packets of this size are more than the buffer has room for the headers of.
    #[error(
        "a buffer of {capacity} bytes has no room for the headers of packets of {data_per_packet} bytes; allocate it for such packets"
    )]
    HeadersDoNotFit {
        /// Bytes of data in a packet.
        data_per_packet: usize,
        /// Capacity of the buffer, in bytes.
        capacity: usize,
    },
    /// The arena has no room left.
    #[error(
        "no room for a message buffer of {asked} bytes: the arena of {capacity} bytes is in use; open it larger or drop buffers"
    )]
    ArenaFull {
        /// Bytes asked for.
        asked: usize,
        /// Bytes of the whole arena.
        capacity: usize,
    },
}

pub(super) struct ArenaInner {
    pub(super) region: Region,
    id: u64,
    free: Mutex<FreeLists>,
    #[cfg(not(miri))]
    fd: Option<OwnedFd>,
}

/// Registered memory that message buffers come from.
///
/// The address space is reserved when the arena is made; memory is backed when it is first touched and kept afterwards,
/// since a first touch costs far more than reuse. Cloning gives another handle on the same arena. Blocks come in sizes of
/// 2^n and 1.5 x 2^n.
#[derive(Clone)]
pub struct Arena(pub(super) Arc<ArenaInner>);

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").field("id", &self.0.id).field("capacity", &self.0.region.len()).finish()
    }
}

/// The class of the blocks that hold a buffer of this capacity.
fn class_of(capacity: usize, data_per_packet: usize) -> u32 {
    let further_headers = capacity.div_ceil(data_per_packet).saturating_sub(1);
    class_for(HEADROOM + capacity.next_multiple_of(8) + further_headers * HEADER_ROOM)
}

impl Arena {
    /// An arena in private memory of this process.
    ///
    /// # Errors
    ///
    /// What the system says when it has no address space to give.
    pub fn private(capacity: usize) -> io::Result<Self> {
        Ok(Self::over(
            Region::private(capacity)?,
            #[cfg(not(miri))]
            None,
        ))
    }

    /// An arena that other processes may map, for reading only, through [`Arena::fd`].
    ///
    /// # Errors
    ///
    /// What the system says.
    #[cfg(not(miri))]
    pub fn shared(name: &str, capacity: usize) -> io::Result<Self> {
        let (region, fd) = Region::shared(name, capacity, Access::ReadOnly)?;
        Ok(Self::over(region, Some(fd)))
    }

    fn over(region: Region, #[cfg(not(miri))] fd: Option<OwnedFd>) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        region.prefer_huge_pages();
        Self(Arc::new(ArenaInner {
            region,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            free: Mutex::default(),
            #[cfg(not(miri))]
            fd,
        }))
    }

    /// Reserved bytes.
    pub fn capacity(&self) -> usize {
        self.0.region.len()
    }

    /// Bytes that blocks were ever made of: no more than these are backed by memory, but for what is left of the last page.
    pub fn touched(&self) -> usize {
        self.0.free().fresh
    }

    /// The memory, for ports that register it with a device or lend it to another process.
    pub fn region(&self) -> &Region {
        &self.0.region
    }

    /// The descriptor to map this arena through, when it is a shared one.
    #[cfg(not(miri))]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd.as_ref().map(AsFd::as_fd)
    }

    /// Bytes of an arena that a buffer of this capacity takes, with room for its headers, for packets of `data_per_packet` bytes.
    ///
    /// # Panics
    ///
    /// When `data_per_packet` is 0.
    pub fn block_len(capacity: usize, data_per_packet: usize) -> usize {
        class_size(class_of(capacity, data_per_packet))
    }

    /// Makes a message buffer of length `capacity`, which is sent as packets of `data_per_packet` bytes.
    ///
    /// The bytes are unspecified (zeros, or what an earlier buffer held). Takes a lock: allocate up front and reuse.
    ///
    /// # Errors
    ///
    /// [`AllocError`].
    ///
    /// # Panics
    ///
    /// When `data_per_packet` is 0.
    pub fn alloc(&self, capacity: usize, data_per_packet: usize) -> Result<MessageBuffer, AllocError> {
        assert!(data_per_packet > 0, "a packet carries at least one byte");
        if capacity > MAX_DATA_LEN {
            return Err(AllocError::TooLarge { asked: capacity });
        }
        let (offset, class) = self
            .0
            .free()
            .take(class_of(capacity, data_per_packet), self.capacity())
            .ok_or(AllocError::ArenaFull { asked: capacity, capacity: self.capacity() })?;
        // SAFETY: `take` gave us this block alone: `class_size(class)` bytes inside the region, aligned to a line.
        let block = unsafe {
            let block = self.0.region.start().add(offset).cast::<Block>();
            block.write(Block {
                refs: AtomicU32::new(1),
                class,
                len: capacity as u32,
                capacity: capacity as u32,
                data_per_packet: u32::try_from(data_per_packet).unwrap_or(u32::MAX),
                arena: Arc::into_raw(Arc::clone(&self.0)),
            });
            block
        };
        Ok(MessageBuffer { block })
    }
}

impl ArenaInner {
    fn free(&self) -> MutexGuard<'_, FreeLists> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn give_back(&self, offset: usize, class: u32) {
        self.free().give_back(offset, class);
    }
}
