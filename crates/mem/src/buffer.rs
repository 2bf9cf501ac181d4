//! Message buffers: one message each, with room for the headers of its packets.

mod arena;
mod free;
#[cfg(test)]
mod tests;

use std::mem::{MaybeUninit, size_of};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

use crate::atomic::plain::{Arc, AtomicU32, Ordering, fence};

use arena::ArenaInner;
use free::class_size;

pub use arena::{AllocError, Arena};

/// Bytes reserved for one packet header in a message buffer.
pub const HEADER_ROOM: usize = 24;
/// Bytes directly before a message's data that go on the wire with it: the first packet's header, and eight bytes behind that
/// header for what travels in front of the data.
pub const FRONT_ROOM: usize = HEADER_ROOM + 8;
/// The largest message buffer, in bytes of data.
pub const MAX_DATA_LEN: usize = 1 << 31;

/// Bytes before a block's data: what we know about the block, then the first packet's header, so that header and data are
/// contiguous and the data starts a cache line.
const HEADROOM: usize = 64;
const FIRST_HEADER: usize = HEADROOM - HEADER_ROOM;
/// Block sizes are multiples of a cache line.
const LINE: usize = 64;
/// Bytes that a buffer takes of an arena are a multiple of this: see [`Arena::block_len`].
pub const BLOCK_UNIT: usize = LINE;

/// What is known about a block, at its very start. Only the sole holder changes anything but `refs`.
struct Block {
    /// Handles on this block. Decrements release, the last one acquires: what a holder read or wrote happens before the
    /// block is reused. (The partner of each is the others.)
    refs: AtomicU32,
    class: u32,
    len: u32,
    capacity: u32,
    data_per_packet: u32,
    /// From `Arc::into_raw`: every block that is out keeps its arena.
    arena: *const ArenaInner,
}
const _: () = assert!(size_of::<Block>() <= HEADROOM - FRONT_ROOM);

/// Drops one handle on a block, and frees it when that was the last.
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
    // SAFETY: the last handle is ours, so nobody else looks at the block; its arena's count was taken in `alloc`.
    unsafe {
        let Block { arena, class, .. } = block.read();
        let arena = Arc::from_raw(arena);
        let offset = block.as_ptr().addr() - arena.region.start().as_ptr().addr();
        arena.give_back(offset, class);
    }
}

// What both kinds of handle can see.
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

        /// Bytes of the arena that the buffer takes: more than it can hold.
        #[inline]
        pub fn block_len(&self) -> usize {
            class_size(self.block().class)
        }

        /// Bytes of data in each packet but the last.
        #[inline]
        pub fn data_per_packet(&self) -> usize {
            self.block().data_per_packet as usize
        }

        /// Packets that the current contents take: at least one, since an empty message is a header.
        #[inline]
        pub fn packets(&self) -> usize {
            let block = self.block();
            if block.len <= block.data_per_packet {
                return 1;
            }
            block.len.div_ceil(block.data_per_packet) as usize
        }

        /// The data of packet `index`, as a range of the contents.
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

        /// Where the contents start in the arena's region, in bytes.
        #[inline]
        pub fn arena_offset(&self) -> usize {
            // SAFETY: the block holds a count on its arena.
            let start = unsafe { &*self.block().arena }.region.start();
            self.bytes().as_ptr().addr() + HEADROOM - start.as_ptr().addr()
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

        /// The first packet as it goes on the wire: its header and the data right behind it, in one piece (nsdi19 4.2.1).
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
/// The layout is that of nsdi19 4.2.1: the first header directly before the data, the other headers after all data, so that
/// the data is contiguous for its user and a small message is contiguous with its header for the port.
pub struct MessageBuffer {
    block: NonNull<Block>,
}

// SAFETY: a handle is exclusive (or, for `&`, read-only), and the count behind it is atomic.
unsafe impl Send for MessageBuffer {}
// SAFETY: as above.
unsafe impl Sync for MessageBuffer {}

impl MessageBuffer {
    block_accessors!();

    /// Sets the length of the contents. Bytes that become visible are unspecified, as after [`Arena::alloc`].
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

    /// Sets the contents to `data`.
    ///
    /// # Errors
    ///
    /// [`AllocError::PastCapacity`]; nothing changes then.
    #[inline]
    pub fn fill(&mut self, data: &[u8]) -> Result<(), AllocError> {
        self.resize(data.len())?;
        crate::copy_small(self, data);
        Ok(())
    }

    /// Splits the message into packets of another size.
    ///
    /// # Errors
    ///
    /// [`AllocError::HeadersDoNotFit`]: the buffer has no room for the headers of so many packets beside the data; nothing changes then.
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

    /// The header of packet `index`, to write.
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

    /// What goes before the data in one piece with it: a header and eight bytes more. It overlaps the [header](Self::header) of the
    /// first packet, so a message has either one or the other.
    #[inline]
    pub fn front_mut(&mut self) -> &mut [u8; FRONT_ROOM] {
        // SAFETY: the bytes before the data lie in the block behind what is known about it, and the handle is exclusive.
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

    /// Starts to bring near what is known about the buffer and the first bytes of its contents.
    #[inline]
    pub fn prefetch(&self) {
        // SAFETY: every block has its headroom and one line of data at least; nothing is read here.
        crate::prefetch_read(unsafe { self.block.cast::<MaybeUninit<[u8; HEADROOM + LINE]>>().as_ref() });
    }

    /// Gives up writing, so that the contents can be shared with a port.
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
    /// The share itself, when it is not the only one.
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
        // Relaxed: a new share is made from one that is already held.
        let before = self.block().refs.fetch_add(1, Ordering::Relaxed);
        // Forgotten clones must not wrap the count into a premature free.
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
