//! Mapped memory: private to this process, or a sealed memfd that other processes map.

use std::io;
use std::ptr::NonNull;

#[cfg(not(miri))]
use rustix::fd::{AsFd, OwnedFd};
#[cfg(not(miri))]
use rustix::fs::{MemfdFlags, SealFlags};
#[cfg(not(miri))]
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The smallest page size, in bytes.
pub(crate) const PAGE_LEN_MIN: usize = 4 << 10;
/// The largest page size, in bytes, which is a multiple of every other.
#[cfg(not(miri))]
const PAGE_LEN_MAX: usize = 64 << 10;

/// Access to a mapping of another process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// Reason why memory that another process offered cannot be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The memory is smaller than its owner announced.
    #[error("the shared memory has {actual} bytes where its owner announced {announced}")]
    TooSmall {
        /// Bytes announced.
        announced: u64,
        /// Bytes that the memory has.
        actual: u64,
    },
    /// The memory could still change its size, and an access beyond its end raises SIGBUS. Or it is to be mapped for
    /// reading only, but others could still map it for writing.
    #[error("the shared memory lacks a seal against resizing or, for a read-only mapping, against later writes")]
    NotSealed,
    /// The system refused the mapping.
    #[error("cannot map shared memory: {0}")]
    System(#[from] io::Error),
}

/// A range of mapped memory, zeroed at first and unmapped on drop.
///
/// A region belongs to no thread: code that turns its pointer into references must rule out aliasing.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a region is only an address range; access goes through raw pointers whose users argue for themselves.
unsafe impl Send for Region {}
// SAFETY: as above: `&Region` gives out nothing but the range.
unsafe impl Sync for Region {}

impl Region {
    /// The first byte, aligned to at least 64.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region has no bytes. (It never does: mapping nothing is an error.)
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(not(miri))]
impl Region {
    /// Maps private memory of this process. Pages are backed when first touched.
    ///
    /// # Errors
    ///
    /// The error of `mmap`.
    pub fn private(len: usize) -> io::Result<Self> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        Ok(Self::adopt(start, len))
    }

    /// Makes memory that other processes can map through the returned descriptor. It is sealed against resizing and, if
    /// `peers` is [`Access::ReadOnly`], against every write except through this region.
    ///
    /// # Errors
    ///
    /// The error of `memfd_create`, `ftruncate`, `fcntl` or `mmap`.
    pub fn shared(name: &str, len: usize, peers: Access) -> io::Result<(Self, OwnedFd)> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        let region = Self::map(&fd, len, Access::ReadWrite)?;
        // The write seal comes after our own mapping, which keeps its right to write.
        let mut seals = SealFlags::SHRINK | SealFlags::GROW;
        if peers == Access::ReadOnly {
            seals |= SealFlags::FUTURE_WRITE;
        }
        rustix::fs::fcntl_add_seals(&fd, seals | SealFlags::SEAL)?;
        Ok((region, fd))
    }

    /// Maps memory that another process made with [`Region::shared`], after checking that it is as large as announced
    /// and can never shrink.
    ///
    /// # Errors
    ///
    /// [`MapError`]: too small, not sealed, or refused by the system.
    pub fn of_peer(fd: &OwnedFd, announced_len: usize, access: Access) -> Result<Self, MapError> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(io::Error::from)?;
        let mut needed = SealFlags::SHRINK | SealFlags::GROW;
        if access == Access::ReadOnly {
            // Memory that we map for reading must be writable by its owner alone.
            needed |= SealFlags::FUTURE_WRITE;
        }
        if !seals.contains(needed) {
            return Err(MapError::NotSealed);
        }
        let actual = rustix::fs::fstat(fd).map_err(io::Error::from)?.st_size as u64;
        if actual < announced_len as u64 {
            return Err(MapError::TooSmall { announced: announced_len as u64, actual });
        }
        Ok(Self::map(fd, announced_len, access)?)
    }

    /// Asks for huge pages under the region. A refusal changes speed only.
    pub fn prefer_huge_pages(&self) {
        // SAFETY: the advice names exactly this mapping and changes none of its contents.
        let _ = unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
    }

    /// Makes the system back the first `len` bytes with pages; their contents stay as they are. Returns whether it did
    /// (Linux 5.14).
    pub(crate) fn populate(&self, len: usize) -> bool {
        let len = len.min(self.len);
        // SAFETY: the range lies in this mapping, and the advice changes none of its contents.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), len, Advice::LinuxPopulateWrite) }.is_ok()
    }

    /// Gives the memory from byte `start` on back to the system, in whole pages: a private region then reads as zeros
    /// there until written again. If the system refuses, the bytes stay resident and keep their contents.
    pub(crate) fn give_back(&self, start: usize) {
        let start = start.checked_next_multiple_of(PAGE_LEN_MAX);
        let Some(len) = start.and_then(|start| self.len.checked_sub(start)).filter(|len| *len > 0) else { return };
        // SAFETY: the range ends with this mapping and begins within it.
        let _ = unsafe {
            let start = self.start.as_ptr().add(self.len - len);
            rustix::mm::madvise(start.cast(), len, Advice::LinuxDontNeed)
        };
    }

    /// Keeps the region out of core dumps, which would otherwise touch every page of it. A refusal only makes dumps
    /// larger.
    pub fn leave_out_of_dumps(&self) {
        // SAFETY: the advice names exactly this mapping and changes none of its contents.
        let _ = unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontDump) };
    }

    fn map(fd: impl AsFd, len: usize, access: Access) -> io::Result<Self> {
        let protection = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0)? };
        Ok(Self::adopt(start, len))
    }

    fn adopt(start: *mut core::ffi::c_void, len: usize) -> Self {
        Self { start: NonNull::new(start.cast()).expect("mmap never returns null on success"), len }
    }
}

#[cfg(not(miri))]
impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and every borrower keeps the region alive.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Stand-in for miri, which has no mappings: private regions come from the allocator, and shared ones do not exist.
#[cfg(miri)]
impl Region {
    fn layout(len: usize) -> io::Result<std::alloc::Layout> {
        std::alloc::Layout::from_size_align(len, 4096).map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    /// Takes private memory of this process.
    ///
    /// # Errors
    ///
    /// `OutOfMemory`, or `InvalidInput` for no bytes.
    pub fn private(len: usize) -> io::Result<Self> {
        if len == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let layout = Self::layout(len)?;
        // SAFETY: the layout has a non-zero size.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        NonNull::new(start).map(|start| Self { start, len }).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Does nothing: miri has no huge pages.
    pub fn prefer_huge_pages(&self) {}

    /// Does nothing: miri's memory is backed.
    pub(crate) fn populate(&self, _len: usize) -> bool {
        true
    }

    /// Does nothing: miri has no pages to give back.
    pub(crate) fn give_back(&self, _start: usize) {}
}

#[cfg(miri)]
impl Drop for Region {
    fn drop(&mut self) {
        let layout = Self::layout(self.len).expect("the region was allocated with this layout");
        // SAFETY: allocated in `private` with the same layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) };
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_cannot_shrink_and_peers_cannot_map_it_for_writing() {
        let (_region, fd) = Region::shared("test", 8192, Access::ReadOnly).unwrap();
        assert!(rustix::fs::ftruncate(&fd, 4096).is_err());
        assert!(Region::of_peer(&fd, 8192, Access::ReadOnly).is_ok());
        assert!(matches!(Region::of_peer(&fd, 8192, Access::ReadWrite), Err(MapError::System(_))));
    }

    #[test]
    fn memory_smaller_than_announced_is_refused() {
        let (_region, fd) = Region::shared("test", 4096, Access::ReadWrite).unwrap();
        assert!(matches!(
            Region::of_peer(&fd, 8192, Access::ReadWrite),
            Err(MapError::TooSmall { announced: 8192, actual: 4096 })
        ));
    }

    #[test]
    fn unsealed_memory_is_refused() {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        assert!(matches!(Region::of_peer(&fd, 4096, Access::ReadWrite), Err(MapError::NotSealed)));
    }
}
