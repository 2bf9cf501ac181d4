//! The memory of ports: chunks of one length for frames, each with one owner.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Resource, getrlimit};
use sinew_fabric::PortError;
use sinew_mem::Region;
use sinew_mem::atomic::plain::{Arc, AtomicU8, AtomicU32, Ordering};

use crate::sys::socket::Unbound;

/// Bytes that the kernel leaves free before a frame that it writes.
pub(crate) const HEADROOM: usize = 256;

/// Lengths that chunks may have, in bytes.
pub const CHUNK_LENS: [usize; 2] = [2048, 4096];

/// Number of the next memory, which tells it from others.
static NEXT_MEMORY: AtomicU32 = AtomicU32::new(0);

const OWNED_HERE: u8 = 0;
const OWNED_BY_KERNEL: u8 = 1;

/// Memory that the kernel and the ports of one process share. Ports with the same memory pass frames on without a copy.
#[derive(Debug)]
pub struct Memory {
    region: Region,
    number: u32,
    chunk_len: usize,
    free: Mutex<Vec<u32>>,
    /// Owner of each chunk. The kernel can give back only chunks that it owns.
    owners: Box<[AtomicU8]>,
    /// Chunks promised to ports and queues.
    reserved: Mutex<usize>,
    /// Sockets that have the memory, with which further sockets share it.
    sockets: Mutex<Vec<Weak<OwnedFd>>>,
}

/// A chunk that has no other owner. A chunk that is dropped is lost to its memory for good.
#[derive(Debug)]
#[must_use]
pub(crate) struct Chunk {
    index: u32,
    memory: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The shortest length of chunks that hold a frame of an interface with this MTU; the longest there is if none does.
pub(crate) fn chunk_len_for(mtu: usize) -> usize {
    let holds = |&len: &usize| mtu + 14 <= len - HEADROOM;
    CHUNK_LENS.into_iter().find(holds).unwrap_or(CHUNK_LENS[CHUNK_LENS.len() - 1])
}

impl Memory {
    /// Memory of `chunks` chunks, 64 to 2^24, of `chunk_len` bytes, one of [`CHUNK_LENS`]. A frame can be 256 bytes
    /// shorter than a chunk. The memory is pinned when the first port is opened with it.
    ///
    /// # Errors
    ///
    /// [`PortError::Limit`] for lengths and numbers out of range; [`PortError::System`] when there is no address space.
    pub fn new(chunks: usize, chunk_len: usize) -> Result<Arc<Self>, PortError> {
        if !CHUNK_LENS.contains(&chunk_len) || !(64..=1 << 24).contains(&chunks) {
            return Err(PortError::Limit {
                what: format!("{chunks} chunks of {chunk_len} bytes"),
                limit: 1 << 24,
                remedy: "use at least 64 chunks, of 2048 or 4096 bytes".to_owned(),
            });
        }
        let region = Region::private(chunks * chunk_len).map_err(|source| PortError::System {
            doing: format!("mapping {} bytes for frames", chunks * chunk_len),
            source,
        })?;
        region.prefer_huge_pages();
        Ok(Arc::new(Self {
            region,
            // Relaxed: the numbers only have to differ.
            number: NEXT_MEMORY.fetch_add(1, Ordering::Relaxed),
            chunk_len,
            free: Mutex::new((0..chunks as u32).rev().collect()),
            owners: (0..chunks).map(|_| AtomicU8::new(OWNED_HERE)).collect(),
            reserved: Mutex::new(0),
            sockets: Mutex::new(Vec::new()),
        }))
    }

    /// Bytes of a chunk.
    pub fn chunk_len(&self) -> usize {
        self.chunk_len
    }

    /// Number of chunks.
    pub fn chunks(&self) -> usize {
        self.owners.len()
    }

    /// Number of chunks that are free at present.
    pub fn free_chunks(&self) -> usize {
        lock(&self.free).len()
    }

    /// Most bytes of a frame that the kernel writes into a chunk.
    pub fn frame_len_max(&self) -> usize {
        self.chunk_len - HEADROOM
    }

    /// Its address and length in bytes, for the kernel.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.region.start().addr().get() as u64, self.region.len() as u64)
    }

    /// Registers it at a socket.
    pub(crate) fn register_at(&self, socket: &Unbound) -> io::Result<()> {
        let (start, len) = self.range();
        socket.register(start, len, self.chunk_len as u32)
    }

    /// A socket that has it, if there is one.
    pub(crate) fn socket(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.sockets).iter().find_map(Weak::upgrade)
    }

    /// Notes a socket that has it.
    pub(crate) fn add_socket(&self, fd: &Arc<OwnedFd>) {
        let mut sockets = lock(&self.sockets);
        sockets.retain(|socket| socket.strong_count() > 0);
        sockets.push(Arc::downgrade(fd));
    }

    /// Promises `chunks` to a port or a queue.
    pub(crate) fn reserve(&self, chunks: usize, user: &str) -> Result<(), PortError> {
        let mut promised = lock(&self.reserved);
        if *promised + chunks > self.chunks() {
            return Err(PortError::Limit {
                what: format!("{chunks} chunks of memory for {user}, beside {} promised to others", *promised),
                limit: self.chunks() as u64,
                remedy: "open the first port of the interface with more (?chunks=NUMBER), or with smaller rings (?ring=NUMBER)".to_owned(),
            });
        }
        *promised += chunks;
        Ok(())
    }

    /// Ends a promise.
    pub(crate) fn unreserve(&self, chunks: usize) {
        let mut promised = lock(&self.reserved);
        *promised = promised.saturating_sub(chunks);
    }

    /// Takes up to `count` free chunks.
    pub(crate) fn take(&self, count: usize, into: &mut Vec<Chunk>) {
        let mut free = lock(&self.free);
        let left = free.len().saturating_sub(count);
        into.extend(free.drain(left..).map(|index| Chunk { index, memory: self.number }));
    }

    /// Gives chunks back.
    pub(crate) fn give_back(&self, chunks: impl Iterator<Item = Chunk>) {
        let mut free = lock(&self.free);
        free.extend(chunks.filter(|chunk| chunk.memory == self.number).map(|chunk| chunk.index));
    }

    fn range_of(&self, chunk: &Chunk, start: usize, len: usize) -> std::ptr::NonNull<[u8]> {
        assert!(chunk.memory == self.number, "a chunk of another memory");
        assert!(start <= self.chunk_len && len <= self.chunk_len - start, "beyond the chunk");
        // SAFETY: a chunk of this memory has an index below the number of chunks, and the range lies in the chunk.
        let first = unsafe { self.region.start().add(chunk.index as usize * self.chunk_len + start) };
        std::ptr::NonNull::slice_from_raw_parts(first, len)
    }

    /// Bytes of a chunk.
    #[inline]
    pub(crate) fn bytes<'a>(&'a self, chunk: &'a Chunk, start: usize, len: usize) -> &'a [u8] {
        // SAFETY: the chunk's owner has its bytes alone: no other part of this process has them, since there is one
        // `Chunk` for each, and the kernel does not, since it has given it back. The mapping is zeroed or written, and
        // lives as long as `self`.
        unsafe { self.range_of(chunk, start, len).as_ref() }
    }

    /// Bytes of a chunk, to write.
    #[inline]
    pub(crate) fn bytes_mut<'a>(&'a self, chunk: &'a mut Chunk, start: usize, len: usize) -> &'a mut [u8] {
        // SAFETY: as in `bytes`; the chunk is borrowed exclusively for as long as its bytes are.
        unsafe { self.range_of(chunk, start, len).as_mut() }
    }

    /// Makes a chunk the kernel's; returns its offset in the memory.
    #[inline]
    pub(crate) fn hand_over(&self, chunk: Chunk) -> u64 {
        assert!(chunk.memory == self.number, "a chunk of another memory");
        // Release: our accesses to the bytes come before. Partner: the swap in `reclaim`, by whichever thread gets
        // the chunk back.
        self.owners[chunk.index as usize].store(OWNED_BY_KERNEL, Ordering::Release);
        u64::from(chunk.index) * self.chunk_len as u64
    }

    /// The chunk that the kernel gives back by an address in it, and the offset of that address in the chunk; `None` if
    /// the chunk was not the kernel's.
    #[inline]
    pub(crate) fn reclaim(&self, address: u64) -> Option<(Chunk, usize)> {
        let index = usize::try_from(address).ok()? / self.chunk_len;
        // Acquire: our accesses come after those before the chunk went to the kernel. Partner: the store in
        // `hand_over`.
        let owner = self.owners.get(index)?.swap(OWNED_HERE, Ordering::AcqRel);
        let chunk = Chunk { index: index as u32, memory: self.number };
        (owner == OWNED_BY_KERNEL).then_some((chunk, address as usize % self.chunk_len))
    }
}

/// The descriptor of a socket, for the kernel.
pub(crate) fn borrowed(fd: &Arc<OwnedFd>) -> BorrowedFd<'_> {
    (**fd).as_fd()
}

/// Turns the system's refusal to register memory into an error that names the remedy.
pub(crate) fn registration_error(source: io::Error, len: u64) -> PortError {
    let is_short = matches!(source.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM));
    if let Some(limit) = getrlimit(Resource::Memlock).current.filter(|_| is_short) {
        return PortError::Limit {
            what: format!("pinning {len} bytes for frames"),
            limit,
            remedy: "raise the limit on locked memory (ulimit -l), or use fewer chunks (?chunks=NUMBER)".to_owned(),
        };
    }
    PortError::System { doing: "registering memory for frames".to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_comes_back_from_the_kernel_once_and_only_if_it_went() {
        let memory = Memory::new(64, 2048).unwrap();
        let mut chunks = Vec::new();
        memory.take(2, &mut chunks);
        let first = memory.hand_over(chunks.pop().unwrap());
        let (chunk, offset) = memory.reclaim(first + 300).unwrap();
        assert_eq!(offset, 300);
        assert!(memory.reclaim(first).is_none(), "twice");
        assert!(memory.reclaim(5 * 2048).is_none(), "it never went");
        assert!(memory.reclaim(64 * 2048).is_none() && memory.reclaim(u64::MAX).is_none(), "beyond the memory");
        memory.give_back(chunks.into_iter().chain([chunk]));
        assert_eq!(memory.free_chunks(), 64);
    }

    #[test]
    fn no_more_is_promised_than_there_is() {
        let memory = Memory::new(100, 4096).unwrap();
        memory.reserve(60, "a").unwrap();
        let error = memory.reserve(41, "b").unwrap_err().to_string();
        assert!(error.contains("chunks="), "{error}");
        memory.reserve(40, "b").unwrap();
        memory.unreserve(60);
        memory.reserve(60, "c").unwrap();
    }

    #[test]
    #[should_panic(expected = "another memory")]
    fn a_chunk_of_another_memory_is_refused() {
        let (one, other) = (Memory::new(64, 2048).unwrap(), Memory::new(64, 2048).unwrap());
        let mut chunks = Vec::new();
        one.take(1, &mut chunks);
        other.bytes(&chunks[0], 0, 1);
    }

    #[test]
    fn lengths_that_cannot_be_are_refused() {
        for (chunks, chunk_len) in [(63, 2048), (64, 2047), (64, 8192), ((1 << 24) + 1, 2048)] {
            assert!(Memory::new(chunks, chunk_len).is_err());
        }
        let memory = Memory::new(64, 2048).unwrap();
        let mut chunks = Vec::new();
        memory.take(1, &mut chunks);
        assert_eq!(memory.bytes_mut(&mut chunks[0], 48, 2000).len(), 2000);
        assert!(std::panic::catch_unwind(|| memory.bytes(&chunks[0], 49, 2000).len()).is_err());
    }
}
