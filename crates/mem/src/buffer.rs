//! Message buffers, and the arenas that they come from.
//!
//! A buffer has the layout of nsdi19 4.2.1: the first packet's header directly before the data, the others behind all
//! data. The description of a block lies in front of that header, so a handle is one pointer.
//!
//! On shared memory an arena is a memfd that peers map read-only (sealed against later writes by others), and a large
//! packet travels as a descriptor: the only copy is the receiver's.

mod free;
mod owned;
#[cfg(test)]
mod tests;

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::atomic::plain::{Arc, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(miri))]
use crate::region::Access;
use crate::region::{PAGE_LEN_MIN, Region};
#[cfg(not(miri))]
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use free::{FreeLists, class_for, class_size};
use owned::OwnedMemory;

pub use owned::OwnedRange;

/// Bytes reserved for one packet header in a message buffer.
pub const HEADER_ROOM: usize = 24;
/// Bytes directly before a message's data that go on the wire with it: the first packet's header, then eight bytes for
/// what travels in front of the data.
pub const FRONT_ROOM: usize = HEADER_ROOM + 8;
/// The largest message buffer, in bytes of data.
pub const MAX_DATA_LEN: usize = 1 << 31;

/// Bytes before a block's data: the block's description, then the first packet's header, so that header and data are
/// contiguous and the data starts a cache line.
const HEADROOM: usize = 64;
const FIRST_HEADER: usize = HEADROOM - HEADER_ROOM;
/// Block sizes are multiples of a cache line.
const LINE: usize = 64;
/// Unit, in bytes, of the arena space that a buffer takes: see [`Arena::block_len`].
pub const BLOCK_UNIT: usize = LINE;

/// Description of a block, at its very start. Only the sole holder changes anything but `refs`.
struct Block {
    /// Handles on this block. Decrements release and the last one acquires, so what a holder read or wrote happens
    /// before the block is reused. (Each decrement's partners are the others.)
    refs: AtomicU32,
    class: u32,
    len: u32,
    capacity: u32,
    data_per_packet: u32,
    /// From `Arc::into_raw`: every allocated block keeps its arena alive.
    arena: *const ArenaInner,
}
const _: () = assert!(size_of::<Block>() <= HEADROOM - FRONT_ROOM);

/// Reason why an allocation, or a change of a buffer's size, is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// More than [`MAX_DATA_LEN`] was asked for.
    #[error("a message buffer of {asked} bytes is over the limit of {} bytes", MAX_DATA_LEN)]
    TooLarge {
        /// Bytes asked for.
        asked: usize,
    },
    /// The message is longer than the buffer can hold.
    #[error("a message of {len} bytes does not fit in a buffer of {capacity} bytes; allocate a larger one")]
    PastCapacity {
        /// Length of the message.
        len: usize,
        /// Capacity of the buffer, in bytes.
        capacity: usize,
    },
    /// Packets of this size need more headers than the buffer has room for.
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

struct ArenaInner {
    region: Region,
    id: u64,
    free: Mutex<FreeLists>,
    #[cfg(not(miri))]
    fd: Option<OwnedFd>,
}

/// Registered memory that message buffers come from.
///
/// The address space is reserved when the arena is made. Memory is backed when first touched and kept afterwards, since
/// a first touch costs far more than reuse. Cloning gives another handle on the same arena. Block sizes are `2^n` and
/// `1.5 x 2^n` bytes.
#[derive(Clone)]
pub struct Arena(Arc<ArenaInner>);

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").field("id", &self.0.id).field("capacity", &self.0.region.len()).finish()
    }
}

/// Place of a buffer's bytes, for devices that register memory. The bytes stay mapped for as long as this value lives,
/// whatever becomes of the buffer. Access to the contents stays with the holder of a buffer at this place.
#[derive(Clone, Debug)]
pub struct BufferPlace {
    within: Within,
    len: usize,
}

/// Address and length of a place, which identify it among those that live at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Address of the first byte in memory, as a number.
    pub address: usize,
    /// Length in bytes.
    pub len: usize,
}

#[derive(Clone, Debug)]
enum Within {
    Arena { arena: Arena, offset: usize },
    Owned(Arc<OwnedMemory>),
}

impl BufferPlace {
    pub(crate) fn owned(memory: Arc<OwnedMemory>) -> Self {
        Self { len: memory.extent().len, within: Within::Owned(memory) }
    }

    /// The first byte.
    pub fn start(&self) -> NonNull<u8> {
        match &self.within {
            // SAFETY: the offset lies in the arena.
            Within::Arena { arena, offset } => unsafe { arena.region().start().add(*offset) },
            Within::Owned(memory) => memory.start(),
        }
    }

    /// Address of the first byte in memory, as a number.
    pub fn address(&self) -> usize {
        self.start().as_ptr().addr()
    }

    /// Bytes that the buffer can hold.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer can hold no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its extent.
    pub fn extent(&self) -> Extent {
        Extent { address: self.address(), len: self.len }
    }
}

/// Size class of the blocks that hold a buffer of this capacity.
fn class_of(capacity: usize, data_per_packet: usize) -> u32 {
    let further_headers = capacity.div_ceil(data_per_packet).saturating_sub(1);
    class_for(HEADROOM + capacity.next_multiple_of(8) + further_headers * HEADER_ROOM)
}

impl Arena {
    /// An arena in private memory of this process.
    ///
    /// # Errors
    ///
    /// The system's error when it has no address space to give.
    pub fn private(capacity: usize) -> io::Result<Self> {
        Ok(Self::over(
            Region::private(capacity)?,
            #[cfg(not(miri))]
            None,
        ))
    }

    /// An arena that other processes may map read-only through [`Arena::fd`].
    ///
    /// # Errors
    ///
    /// The system's error.
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

    /// Reserved address space, in bytes.
    pub fn capacity(&self) -> usize {
        self.0.region.len()
    }

    /// Bytes that blocks were ever made from. No more than these are backed by memory, up to the end of the last page.
    pub fn touched(&self) -> usize {
        self.0.free().fresh
    }

    /// Makes the system back the first `len` bytes that blocks are made from, and all blocks made so far (these only
    /// from Linux 5.14 on). A process that must not wait for memory later calls this when it starts.
    pub fn back(&self, len: usize) {
        let free = self.0.free();
        let end = len.max(free.fresh).min(self.capacity());
        if self.0.region.populate(end) {
            return;
        }
        // An older system has no such call: a page is backed by writing to it. Blocks that were made are left out,
        // since only their holders may write to them.
        for offset in (free.fresh.next_multiple_of(PAGE_LEN_MIN)..end).step_by(PAGE_LEN_MIN) {
            // SAFETY: the offset lies in the region, and no block has the byte, as none is made while we hold the lock.
            // The write is volatile because nobody reads it.
            unsafe { self.0.region.start().add(offset).write_volatile(0) };
        }
    }

    /// The memory, for ports that register it with a device or lend it to another process.
    pub fn region(&self) -> &Region {
        &self.0.region
    }

    /// The descriptor through which others map this arena, if it is a shared one.
    #[cfg(not(miri))]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd.as_ref().map(AsFd::as_fd)
    }

    /// Arena bytes that a buffer of this capacity takes, including room for the headers of packets of `data_per_packet`
    /// bytes.
    ///
    /// # Panics
    ///
    /// When `data_per_packet` is 0.
    pub fn block_len(capacity: usize, data_per_packet: usize) -> usize {
        class_size(class_of(capacity, data_per_packet))
    }

    /// Makes a message buffer of length `capacity`, to be sent as packets of `data_per_packet` bytes.
    ///
    /// The bytes are unspecified (zeros, or what an earlier buffer held). This takes a lock: allocate up front and
    /// reuse.
    ///
    /// # Errors
    ///
    /// [`AllocError`]: the buffer would be too large, or the arena is full.
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

    fn give_back(&self, offset: usize, class: u32) {
        self.free().give_back(offset, class);
    }
}

/// Drops one handle on a block, and frees the block if it was the last.
///
/// # Safety
///
/// `block` must come from `Arena::alloc`, and the caller must own one of its counted handles, which ends here.
unsafe fn release(block: NonNull<Block>) {
    // SAFETY: the caller's handle keeps the block alive until the decrement.
    if unsafe { block.as_ref() }.refs.fetch_sub(1, Ordering::Release) != 1 {
        return;
    }
    fence(Ordering::Acquire);
    // SAFETY: the last handle is ours, so nobody else looks at the block; `alloc` took the count on the arena that ends
    // here.
    unsafe {
        let Block { arena, class, .. } = block.read();
        let arena = Arc::from_raw(arena);
        let offset = block.as_ptr().addr() - arena.region.start().as_ptr().addr();
        arena.give_back(offset, class);
    }
}

// Accessors of both kinds of handle.
macro_rules! block_accessors {
    () => {
        fn block(&self) -> &Block {
            // SAFETY: our handle keeps the block alive, and its fields change only through an exclusive handle.
            unsafe { self.block.as_ref() }
        }

        fn bytes(&self) -> NonNull<u8> {
            self.block.cast()
        }

        /// Bytes that the buffer can hold.
        #[inline]
        pub fn capacity(&self) -> usize {
            self.block().capacity as usize
        }

        /// Arena bytes that the buffer takes, which is more than its capacity.
        #[inline]
        pub fn block_len(&self) -> usize {
            class_size(self.block().class)
        }

        /// Bytes of data in each packet but the last.
        #[inline]
        pub fn data_per_packet(&self) -> usize {
            self.block().data_per_packet as usize
        }

        /// Packets that the current contents take: at least one, since an empty message still needs a header.
        #[inline]
        pub fn packets(&self) -> usize {
            let block = self.block();
            if block.len <= block.data_per_packet {
                return 1;
            }
            block.len.div_ceil(block.data_per_packet) as usize
        }

        /// Range of the contents that packet `index` carries.
        #[inline]
        pub fn packet_range(&self, index: usize) -> Range<usize> {
            let block = self.block();
            let start = (index * block.data_per_packet as usize).min(block.len as usize);
            start..(start + block.data_per_packet as usize).min(block.len as usize)
        }

        /// Whether the buffer came from `arena`.
        #[inline]
        pub fn is_from(&self, arena: &Arena) -> bool {
            std::ptr::eq(self.block().arena, Arc::as_ptr(&arena.0))
        }

        /// Offset of the contents in the arena's region, in bytes.
        #[inline]
        pub fn arena_offset(&self) -> usize {
            // SAFETY: the block holds a count on its arena.
            let start = unsafe { &*self.block().arena }.region.start();
            self.bytes().as_ptr().addr() + HEADROOM - start.as_ptr().addr()
        }

        /// Extent of the buffer's place.
        #[inline]
        pub fn extent(&self) -> Extent {
            // SAFETY: the data lies in the block.
            let start = unsafe { self.bytes().add(HEADROOM) };
            Extent { address: start.as_ptr().addr(), len: self.capacity() }
        }

        /// Place of the buffer's bytes, over its whole capacity.
        pub fn place(&self) -> BufferPlace {
            let arena = self.block().arena;
            // SAFETY: the pointer came from `Arc::into_raw`, and our block holds a count on the arena; the new handle
            // takes one of its own.
            let arena = unsafe {
                Arc::increment_strong_count(arena);
                Arena(Arc::from_raw(arena))
            };
            BufferPlace { within: Within::Arena { arena, offset: self.arena_offset() }, len: self.capacity() }
        }

        #[inline]
        fn header_offset(&self, index: usize) -> usize {
            if index == 0 {
                return FIRST_HEADER;
            }
            let block = self.block();
            let packets = (block.capacity.div_ceil(block.data_per_packet) as usize).max(1);
            assert!(index < packets, "packet {index} of a buffer of {packets} packets");
            HEADROOM + (block.capacity as usize).next_multiple_of(8) + (index - 1) * HEADER_ROOM
        }

        /// The header of packet `index`.
        ///
        /// # Panics
        ///
        /// When the buffer's capacity has no such packet.
        #[inline]
        pub fn header(&self, index: usize) -> &[u8; HEADER_ROOM] {
            let offset = self.header_offset(index);
            // SAFETY: the offset lies in the block, and headers change only through an exclusive handle.
            unsafe { self.bytes().add(offset).cast().as_ref() }
        }

        /// The first packet as it goes on the wire: its header with the data right behind it, in one piece
        /// (nsdi19 4.2.1).
        #[inline]
        pub fn first_packet(&self) -> &[u8] {
            let block = self.block();
            let len = HEADER_ROOM + block.len.min(block.data_per_packet) as usize;
            // SAFETY: header and data are contiguous in the block.
            unsafe { std::slice::from_raw_parts(self.bytes().as_ptr().add(FIRST_HEADER), len) }
        }
    };
}

/// One message, exclusively owned: its data as one slice, with room for the headers of its packets.
///
/// The layout is that of nsdi19 4.2.1: the first header is directly before the data and the other headers are after all
/// data. So the data is contiguous for its user, and a small message is contiguous with its header for the port.
pub struct MessageBuffer {
    block: NonNull<Block>,
}

// SAFETY: a handle is exclusive (or, for `&`, read-only), and the count behind it is atomic.
unsafe impl Send for MessageBuffer {}
// SAFETY: as above.
unsafe impl Sync for MessageBuffer {}

impl MessageBuffer {
    block_accessors!();

    /// Sets the length of the contents. Newly visible bytes are unspecified, as after [`Arena::alloc`].
    ///
    /// # Errors
    ///
    /// [`AllocError::PastCapacity`]; nothing changes then.
    #[inline]
    pub fn resize(&mut self, len: usize) -> Result<(), AllocError> {
        if len > self.capacity() {
            return Err(AllocError::PastCapacity { len, capacity: self.capacity() });
        }
        // SAFETY: the handle is exclusive.
        unsafe { self.block.as_mut() }.len = len as u32;
        Ok(())
    }

    /// As [`Self::resize`], and returns the contents: so the compiler knows their length, which it cannot see from the
    /// block.
    ///
    /// # Errors
    ///
    /// As for [`Self::resize`].
    #[inline]
    pub fn resized(&mut self, len: usize) -> Result<&mut [u8], AllocError> {
        self.resize(len)?;
        // SAFETY: `resize` checked that `len` bytes behind the headroom are ours, and the handle is exclusive.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.bytes().as_ptr().add(HEADROOM), len) })
    }

    /// Shortens the contents to `len` bytes; does nothing if they are no longer than that.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            // SAFETY: the handle is exclusive.
            unsafe { self.block.as_mut() }.len = len as u32;
        }
    }

    /// Sets the contents to `data`.
    ///
    /// # Errors
    ///
    /// [`AllocError::PastCapacity`]; nothing changes then.
    #[inline]
    pub fn fill(&mut self, data: &[u8]) -> Result<(), AllocError> {
        crate::copy_small(self.resized(data.len())?, data);
        Ok(())
    }

    /// Splits the message into packets of another size.
    ///
    /// # Errors
    ///
    /// [`AllocError::HeadersDoNotFit`] when the buffer has no room beside the data for that many headers; nothing
    /// changes then.
    ///
    /// # Panics
    ///
    /// When `data_per_packet` is 0.
    pub fn set_data_per_packet(&mut self, data_per_packet: usize) -> Result<(), AllocError> {
        assert!(data_per_packet > 0, "a packet carries at least one byte");
        let (class, capacity) = (self.block().class, self.capacity());
        let further_headers = capacity.div_ceil(data_per_packet).saturating_sub(1);
        if HEADROOM + capacity.next_multiple_of(8) + further_headers * HEADER_ROOM > class_size(class) {
            return Err(AllocError::HeadersDoNotFit { data_per_packet, capacity });
        }
        // SAFETY: the handle is exclusive.
        unsafe { self.block.as_mut() }.data_per_packet = u32::try_from(data_per_packet).unwrap_or(u32::MAX);
        Ok(())
    }

    /// The header of packet `index`, writable.
    ///
    /// # Panics
    ///
    /// When the buffer's capacity has no such packet.
    #[inline]
    pub fn header_mut(&mut self, index: usize) -> &mut [u8; HEADER_ROOM] {
        let offset = self.header_offset(index);
        // SAFETY: the offset lies in the block, and the handle is exclusive.
        unsafe { self.bytes().add(offset).cast().as_mut() }
    }

    /// The bytes that go out in one piece with the data, directly before it: a header and eight more. They overlap the
    /// first packet's [header](Self::header), so a message uses either the front or the header.
    #[inline]
    pub fn front_mut(&mut self) -> &mut [u8; FRONT_ROOM] {
        // SAFETY: the bytes before the data lie in the block, behind its description, and the handle is exclusive.
        unsafe { self.bytes().add(HEADROOM - FRONT_ROOM).cast().as_mut() }
    }

    /// The front and all data behind it, in one piece: the whole of a message that is one packet.
    #[inline]
    pub fn front_and_data(&self) -> &[u8] {
        // SAFETY: front and data are contiguous in the block.
        unsafe {
            std::slice::from_raw_parts(
                self.bytes().as_ptr().add(HEADROOM - FRONT_ROOM),
                FRONT_ROOM + self.block().len as usize,
            )
        }
    }

    /// Prefetches the buffer's description and the first bytes of its contents.
    #[inline]
    pub fn prefetch(&self) {
        // SAFETY: every block has its headroom and at least one line of data; nothing is read here.
        crate::prefetch_read(unsafe { self.block.cast::<MaybeUninit<[u8; HEADROOM + LINE]>>().as_ref() });
    }

    /// Gives up the right to write, so that the contents can be shared with a port.
    #[inline]
    pub fn freeze(self) -> Frozen {
        let block = self.block;
        std::mem::forget(self);
        Frozen { block }
    }
}

impl Deref for MessageBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= capacity` bytes behind the headroom are ours.
        unsafe { std::slice::from_raw_parts(self.bytes().as_ptr().add(HEADROOM), self.block().len as usize) }
    }
}

impl DerefMut for MessageBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the handle is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.bytes().as_ptr().add(HEADROOM), self.block().len as usize) }
    }
}

impl Drop for MessageBuffer {
    fn drop(&mut self) {
        // SAFETY: this handle is counted and ends here.
        unsafe { release(self.block) }
    }
}

impl std::fmt::Debug for MessageBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageBuffer").field("len", &self.len()).field("capacity", &self.capacity()).finish()
    }
}

/// A counted, read-only share of a message buffer. A port keeps one for as long as it may still read the bytes.
pub struct Frozen {
    block: NonNull<Block>,
}

// SAFETY: the contents are read-only while shares exist, and the count is atomic.
unsafe impl Send for Frozen {}
// SAFETY: as above.
unsafe impl Sync for Frozen {}

impl Frozen {
    block_accessors!();

    /// Takes the buffer back for writing.
    ///
    /// # Errors
    ///
    /// The share itself, when other shares exist.
    #[inline]
    pub fn thaw(self) -> Result<MessageBuffer, Self> {
        // Acquire: what other holders read happens before we write. Partner: the decrement in `release`.
        if self.block().refs.load(Ordering::Acquire) != 1 {
            return Err(self);
        }
        let block = self.block;
        std::mem::forget(self);
        Ok(MessageBuffer { block })
    }
}

impl Clone for Frozen {
    #[inline]
    fn clone(&self) -> Self {
        // Relaxed: a new share is made from one that is already held, so nothing needs ordering.
        let before = self.block().refs.fetch_add(1, Ordering::Relaxed);
        // Forgotten clones must not wrap the count, which would free the block too early.
        if before > u32::MAX / 2 {
            std::process::abort();
        }
        Self { block: self.block }
    }
}

impl Deref for Frozen {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: as for `MessageBuffer`; nobody writes while shares exist.
        unsafe { std::slice::from_raw_parts(self.bytes().as_ptr().add(HEADROOM), self.block().len as usize) }
    }
}

impl Drop for Frozen {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this handle is counted and ends here.
        unsafe { release(self.block) }
    }
}

impl std::fmt::Debug for Frozen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frozen").field("len", &self.len()).finish()
    }
}
