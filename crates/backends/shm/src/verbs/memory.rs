//! The memory of a device, as its owner sees it: the directory, and the memory from which exposed regions are taken.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::FallocateFlags;
use sinew_fabric::verbs::{Access, QpNumber, RemoteMemory, VerbsError};
use sinew_mem::{Region, SharedMemory};

use super::directory::{DIRECTORY_BYTES, Directory, Entry, QUEUE_PAIRS_MAX, REGIONS_MAX, SEATS_MAX, Straggler};
use super::ranges::{PAGE, Ranges, pages};
use crate::barrier;

/// Time for which the end of an exposure waits for initiators that are inside.
const VACATE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which to wait for changes through queue pairs that are gone.
const STRAGGLER_TIMEOUT: Duration = Duration::from_millis(100);
/// Pause between two checks for initiators.
const CHECK_INTERVAL: Duration = Duration::from_micros(50);

/// The memory of a device. Initiators of other processes map both parts of it completely.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub directory: Directory,
    pub exposed: SharedMemory,
    pub directory_fd: OwnedFd,
    pub exposed_fd: OwnedFd,
    allocator: Mutex<Allocator>,
}

#[derive(Debug)]
struct Allocator {
    ranges: Ranges,
    regions: Keys,
    queue_pairs: Keys,
    seats: Keys,
    /// Ranges that this process no longer uses, but in which a stopped initiator may still work.
    quarantine: Vec<Range>,
}

/// A range of the exposed memory, under its key.
#[derive(Clone, Copy, Debug)]
struct Range {
    rkey: u32,
    start: usize,
    len: usize,
}

/// A pool of keys. A key has 16 bits of index and, above them, a generation that changes with each use of the index.
#[derive(Debug)]
struct Keys {
    free: VecDeque<u32>,
    generations: Vec<u32>,
    max: usize,
    /// Number of generations; 1 for keys that are plain indices.
    generation_count: u32,
}

impl Keys {
    fn new(max: usize, generation_count: u32) -> Self {
        Self { free: VecDeque::new(), generations: Vec::new(), max, generation_count }
    }

    fn take(&mut self) -> Option<u32> {
        if let Some(index) = self.free.pop_front() {
            return Some(self.generations[index as usize] << 16 | index);
        }
        let index = self.generations.len();
        (index < self.max).then(|| {
            // Where there are generations, no key is zero.
            self.generations.push(u32::from(self.generation_count > 1));
            self.generations[index] << 16 | index as u32
        })
    }

    fn give_back(&mut self, key: u32) {
        let index = key & 0xFFFF;
        let Some(generation) = self.generations.get_mut(index as usize) else { return };
        *generation = if *generation + 1 < self.generation_count {
            *generation + 1
        } else {
            u32::from(self.generation_count > 1)
        };
        self.free.push_back(index);
    }

    /// Number of indices ever taken.
    fn used(&self) -> u32 {
        self.generations.len() as u32
    }
}

pub(crate) fn system(doing: &str, source: std::io::Error) -> VerbsError {
    VerbsError::System { doing: doing.to_owned(), source, remedy: None }
}

fn shared(name: &str, bytes: usize) -> Result<(SharedMemory, OwnedFd), VerbsError> {
    let (region, fd) = Region::shared(name, bytes, sinew_mem::Access::ReadWrite).map_err(|source| {
        let remedy = Some("ask for less with `?exposed=BYTES`, or raise `ulimit -v`");
        VerbsError::System { doing: format!("making the {name} memory of a device, {bytes} bytes"), source, remedy }
    })?;
    Ok((whole(region)?, fd))
}

/// A whole region, freshly made here or by another process, as memory that anybody may write at any time.
pub(crate) fn whole(region: Region) -> Result<SharedMemory, VerbsError> {
    region.leave_out_of_dumps();
    let len = region.len();
    // SAFETY: the mapping was just made, and is handed to nobody else, so there can be no slices over it.
    unsafe { SharedMemory::new(Arc::new(region), 0, len) }
        .map_err(|error| system("laying out the memory of a device", std::io::Error::other(error)))
}

impl DeviceMemory {
    /// Makes memory of which `exposed_bytes` bytes can be exposed at a time.
    pub fn new(exposed_bytes: usize) -> Result<Self, VerbsError> {
        let (directory, directory_fd) = shared("sinew-verbs", DIRECTORY_BYTES)?;
        // The first page stays free, so that no address is zero.
        let (exposed, exposed_fd) = shared("sinew-exposed", exposed_bytes + PAGE)?;
        let directory = Directory::new(directory)
            .ok_or_else(|| system("laying out a directory", std::io::ErrorKind::InvalidInput.into()))?;
        if barrier::is_shared() {
            directory.promise_fences();
        }
        let allocator = Mutex::new(Allocator {
            ranges: Ranges::new(PAGE, exposed_bytes),
            regions: Keys::new(REGIONS_MAX, 1 << 16),
            queue_pairs: Keys::new(QUEUE_PAIRS_MAX, 1 << 8),
            seats: Keys::new(SEATS_MAX, 1),
            quarantine: Vec::new(),
        });
        Ok(Self { directory, exposed, directory_fd, exposed_fd, allocator })
    }

    fn allocator(&self) -> MutexGuard<'_, Allocator> {
        self.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exposes `len` bytes, all zero, to initiators of protection domain `domain`.
    pub fn expose(
        self: &Arc<Self>,
        domain: u32,
        len: usize,
        access: Access,
    ) -> Result<(SharedMemory, RemoteMemory), VerbsError> {
        let mut allocator = self.allocator();
        self.sweep(&mut allocator);
        let limit = |what, asked, limit| VerbsError::Limit { what, asked, limit };
        let rkey = allocator.regions.take().ok_or_else(|| limit("exposed regions", REGIONS_MAX + 1, REGIONS_MAX))?;
        let Some(start) = allocator.ranges.take(len) else {
            allocator.regions.give_back(rkey);
            return Err(limit("bytes of one exposed region", len, allocator.ranges.longest()));
        };
        drop(allocator);
        let lease = Lease { memory: Arc::clone(self), range: Range { rkey, start, len } };
        let part = self.exposed.part(start, len, lease);
        let memory = part.map_err(|error| system("taking exposed memory", std::io::Error::other(error)))?;
        self.directory.expose(domain, rkey, Entry { access, start: start as u64, len: len as u64 });
        Ok((memory, RemoteMemory { address: start as u64, rkey, len: len as u64 }))
    }

    /// Ends the exposure of a region: initiators that sit down from now on are refused.
    pub fn withdraw(&self, rkey: u32) {
        self.directory.withdraw(rkey);
    }

    /// Waits until nobody is inside a withdrawn region. Returns false when an initiator does not leave within
    /// [`VACATE_TIMEOUT`], or the system cannot make the fences.
    pub fn wait_until_vacant(&self, rkey: u32) -> bool {
        // One fence is enough: an initiator that sits down later sees that the region is withdrawn.
        if !barrier::fence_everywhere() {
            return false;
        }
        let seats = self.allocator().seats.used();
        let since = Instant::now();
        while self.is_anybody_inside(seats, rkey) {
            if since.elapsed() >= VACATE_TIMEOUT {
                return false;
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
        true
    }

    /// Initiators that may still change the region of `rkey` through a queue pair that no longer listens. Waits up to
    /// [`STRAGGLER_TIMEOUT`] for them to finish, unless they are all `known`: an initiator that stays stopped
    /// costs its target one wait, however often the target asks. `None`: the system cannot make the fences, so this
    /// cannot be determined now.
    pub fn stragglers(&self, rkey: u32, known: &[Straggler]) -> Option<Vec<Straggler>> {
        // One fence is enough: an initiator that sits down later sees that its queue pair is gone.
        if !barrier::fence_everywhere() {
            return None;
        }
        let seats = self.allocator().seats.used();
        let mut stragglers: Vec<_> = (0..seats).filter_map(|seat| self.directory.straggler(seat, rkey)).collect();
        // By the seat alone: the rest is what the initiator claims.
        let is_known = |late: &Straggler| known.iter().any(|known| known.seat == late.seat);
        let since = Instant::now();
        while !stragglers.iter().all(is_known) && since.elapsed() < STRAGGLER_TIMEOUT {
            std::thread::sleep(CHECK_INTERVAL);
            stragglers.retain(|straggler| self.is_unchanged(straggler));
        }
        Some(stragglers)
    }

    /// Whether a straggler is still where it was found. Meaningful only after [`Self::stragglers`].
    pub fn is_unchanged(&self, straggler: &Straggler) -> bool {
        self.directory.is_unchanged(straggler)
    }

    /// Whether one of the first `seats` is at work on a region. Meaningful only after [`barrier::fence_everywhere`].
    fn is_anybody_inside(&self, seats: u32, rkey: u32) -> bool {
        (0..seats).any(|seat| self.directory.is_at_work(seat, rkey))
    }

    /// Frees the ranges of the quarantine that have no initiator inside any more.
    fn sweep(&self, allocator: &mut Allocator) {
        if allocator.quarantine.is_empty() || !barrier::fence_everywhere() {
            return;
        }
        let seats = allocator.seats.used();
        for range in std::mem::take(&mut allocator.quarantine) {
            if self.is_anybody_inside(seats, range.rkey) {
                allocator.quarantine.push(range);
            } else {
                self.free(allocator, range);
            }
        }
    }

    fn free(&self, allocator: &mut Allocator, Range { rkey, start, len }: Range) {
        let bytes = pages(len).unwrap_or(len);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // The next owner must find zeros; until then the pages belong to the system.
        if rustix::fs::fallocate(&self.exposed_fd, flags, start as u64, bytes as u64).is_err() {
            let zeros = [0; PAGE];
            for page in (start..start + bytes).step_by(PAGE) {
                let _ = self.exposed.write(page, &zeros);
            }
        }
        allocator.ranges.give_back(start, len);
        allocator.regions.give_back(rkey);
    }

    /// Number of ranges in quarantine, which wait for stopped initiators.
    pub fn quarantined(&self) -> usize {
        let mut allocator = self.allocator();
        self.sweep(&mut allocator);
        allocator.quarantine.len()
    }

    /// Takes a seat for one more initiator.
    pub fn take_seat(&self) -> Option<u32> {
        self.allocator().seats.take()
    }

    /// Takes back the seats of initiators that are gone, even if they were at work.
    pub fn give_back_seats(&self, seats: impl IntoIterator<Item = u32>) {
        let mut allocator = self.allocator();
        for seat in seats {
            self.directory.stand_up(seat);
            allocator.seats.give_back(seat);
        }
        self.sweep(&mut allocator);
    }

    /// Takes a number for a queue pair.
    pub fn take_number(&self) -> Option<QpNumber> {
        self.allocator().queue_pairs.take().map(QpNumber)
    }

    pub fn give_back_number(&self, number: QpNumber) {
        self.allocator().queue_pairs.give_back(number.0);
    }
}

/// The owner's use of a range. It ends with the last handle on the memory, not with the exposure.
struct Lease {
    memory: Arc<DeviceMemory>,
    range: Range,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.memory.withdraw(self.range.rkey);
        let mut allocator = self.memory.allocator();
        allocator.quarantine.push(self.range);
        self.memory.sweep(&mut allocator);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Arc<DeviceMemory> {
        Arc::new(DeviceMemory::new(64 * PAGE).unwrap())
    }

    #[test]
    fn memory_that_was_exposed_before_is_zero_again_and_has_another_key() {
        let memory = memory();
        let (bytes, first) = memory.expose(1, 100, Access::ALL).unwrap();
        bytes.write(0, &[7; 100]).unwrap();
        drop(bytes);
        let (bytes, second) = memory.expose(1, 100, Access::ALL).unwrap();
        assert_eq!((first.address, first.rkey & 0xFFFF), (second.address, second.rkey & 0xFFFF));
        assert_ne!(first.rkey, second.rkey);
        let mut read = [9; 100];
        bytes.read(0, &mut read).unwrap();
        assert_eq!(read, [0; 100]);
    }

    #[test]
    fn a_handle_on_the_memory_keeps_it_from_the_next_owner() {
        let memory = memory();
        let (bytes, first) = memory.expose(1, 10, Access::ALL).unwrap();
        memory.withdraw(first.rkey);
        assert!(memory.wait_until_vacant(first.rkey));
        let (_other, second) = memory.expose(1, 10, Access::ALL).unwrap();
        assert_ne!(first.address, second.address);
        drop(bytes);
        let (_third, third) = memory.expose(1, 10, Access::ALL).unwrap();
        assert_eq!(first.address, third.address);
    }

    #[test]
    fn a_range_with_somebody_inside_is_kept_aside_until_he_is_gone() {
        let memory = memory();
        let (bytes, first) = memory.expose(1, 10, Access::ALL).unwrap();
        let (seat, other) = (memory.take_seat().unwrap(), memory.take_seat().unwrap());
        memory.directory.sit_down(seat, first.rkey);
        memory.directory.sit_down(other, first.rkey + 1);
        memory.withdraw(first.rkey);
        assert!(!memory.wait_until_vacant(first.rkey));
        drop(bytes);
        assert_eq!(memory.quarantined(), 1);
        let (_other, second) = memory.expose(1, 10, Access::ALL).unwrap();
        assert_ne!(first.address, second.address);
        memory.give_back_seats([seat]);
        assert_eq!(memory.quarantined(), 0);
    }

    #[test]
    fn more_than_there_is_is_refused_with_the_limit() {
        let memory = memory();
        let (_bytes, _) = memory.expose(1, 60 * PAGE, Access::READ).unwrap();
        let error = memory.expose(1, 5 * PAGE, Access::READ).unwrap_err();
        assert!(matches!(error, VerbsError::Limit { limit, .. } if limit == 4 * PAGE), "{error}");
        assert!(memory.expose(1, 4 * PAGE, Access::READ).is_ok());
        assert!(memory.expose(1, usize::MAX, Access::READ).is_err());
    }

    #[test]
    fn keys_are_never_zero_and_change_with_each_use() {
        let mut keys = Keys::new(2, 4);
        let seen: Vec<u32> = (0..4)
            .map(|_| {
                let key = keys.take().unwrap();
                keys.give_back(key);
                key
            })
            .collect();
        assert_eq!(seen, [1 << 16, 2 << 16, 3 << 16, 1 << 16]);
        assert_eq!((keys.take(), keys.take(), keys.take()), (Some(2 << 16), Some(1 << 16 | 1), None));
    }
}
