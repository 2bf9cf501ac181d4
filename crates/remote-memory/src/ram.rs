//! A store in this process's own memory: a baseline for other stores, and a store for tests of code that uses one.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use sinew_fabric::readiness::Alarm;
use sinew_fabric::{Armed, Descriptor, Readiness, Waker};
use sinew_mem::{Arena, SharedMemory};

use crate::store::{BLOCK, Extent, Finished, Job, Refused, Request, Status, Store, check, extent_of_pages};

/// Requests that can be held at once, waiting for a turn or for a poll.
const WAITING_MAX: usize = 4096;
/// Bytes after which a turn ends, so that the completions can be handled before more is copied.
const BYTES_PER_TURN: u64 = 32 << 10;
const PAGE: u64 = BLOCK as u64;

/// A store in this process's own memory.
#[derive(Debug)]
pub struct RamStore {
    memory: SharedMemory,
    /// A bit for each page, set if it may hold anything but zeros.
    written: Vec<u64>,
    arena: Arena,
    alarm: Alarm,
    waiting: VecDeque<Request>,
    finished: VecDeque<Finished>,
}

impl RamStore {
    /// Makes a store of `len` bytes, all zero, with an arena of `arena_bytes` for buffers. The system supplies memory
    /// as it is first written.
    ///
    /// # Errors
    ///
    /// The system's error, if it supplies no memory or no alarm.
    pub fn new(len: usize, arena_bytes: usize) -> io::Result<Self> {
        Ok(Self {
            memory: SharedMemory::private(len)?,
            written: vec![0; len.div_ceil(BLOCK).div_ceil(64)],
            arena: Arena::private(arena_bytes)?,
            alarm: Alarm::new()?,
            // They never grow: a host may swap to this store.
            waiting: VecDeque::with_capacity(WAITING_MAX),
            finished: VecDeque::with_capacity(WAITING_MAX),
        })
    }

    /// The bytes that it stores.
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Returns a waker that ends a sleep on the store.
    pub fn waker(&self) -> Waker {
        self.alarm.waker()
    }

    fn run(&mut self, Request { tag, job }: Request) -> Finished {
        const ZEROS: [u8; BLOCK] = [0; BLOCK];
        const CHECKED: &str = "the range was checked when the request was submitted";
        let mut target = None;
        match job {
            Job::Read { at, target: mut buffer } => {
                self.memory.read(at as usize, &mut buffer).expect(CHECKED);
                target = Some(buffer);
            }
            Job::Write { at, source } => {
                self.mark(at / PAGE..(at + source.len as u64).div_ceil(PAGE), true);
                self.memory.write(at as usize, source.bytes()).expect(CHECKED);
            }
            Job::Discard { at, len } => {
                // The last page of a store may be short.
                let all = at + len == self.len();
                let whole = if all { (at + len).div_ceil(PAGE) } else { (at + len) / PAGE };
                self.mark(at.div_ceil(PAGE)..whole, false);
                let end = (at + len) as usize;
                for from in (at as usize..end).step_by(BLOCK) {
                    self.memory.write(from, &ZEROS[..BLOCK.min(end - from)]).expect(CHECKED);
                }
            }
            Job::Flush => {}
        }
        Finished { tag, result: Ok(()), target }
    }

    fn mark(&mut self, pages: Range<u64>, is_written: bool) {
        for page in pages {
            let (word, bit) = (page as usize / 64, 1 << (page % 64));
            self.written[word] = if is_written { self.written[word] | bit } else { self.written[word] & !bit };
        }
    }

    fn is_written(&self, page: u64) -> bool {
        self.written[page as usize / 64] >> (page % 64) & 1 == 1
    }
}

impl Readiness for RamStore {
    fn descriptor(&self) -> Option<Descriptor> {
        Some(self.alarm.descriptor())
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        if self.waiting.is_empty() && self.finished.is_empty() { self.alarm.arm(now_ns) } else { Ok(Armed::Ready) }
    }

    fn disarm(&mut self) -> bool {
        self.alarm.disarm()
    }
}

impl Store for RamStore {
    fn len(&self) -> u64 {
        self.memory.len() as u64
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn submit(&mut self, request: Request) -> Result<(), Refused> {
        if let Err(error) = check(&request.job, self.len()) {
            return Err(Refused::Never { error, request });
        }
        if self.waiting.len() + self.finished.len() >= WAITING_MAX {
            return Err(Refused::Busy(request));
        }
        self.waiting.push_back(request);
        Ok(())
    }

    fn turn(&mut self) -> bool {
        let some = !self.waiting.is_empty();
        let mut len = 0;
        while len < BYTES_PER_TURN
            && let Some(request) = self.waiting.pop_front()
        {
            len += request.job.len();
            let finished = self.run(request);
            self.finished.push_back(finished);
        }
        some
    }

    fn poll(&mut self, finished: &mut Vec<Finished>, max: usize) -> usize {
        let count = max.min(self.finished.len());
        finished.extend(self.finished.drain(..count));
        count
    }

    fn extent(&self, at: u64, len: u64) -> Extent {
        let found = extent_of_pages(at, len, |page| !self.is_written(page));
        let end = at + found.len;
        let changes = |Request { job, .. }: &Request| match job {
            Job::Write { at: from, source } => *from < end && at < from + source.len as u64,
            _ => false,
        };
        Extent { is_hole: found.is_hole && !self.waiting.iter().any(changes), ..found }
    }

    fn status(&self) -> Status {
        Status::Whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreError;
    use sinew_fabric::verbs::Slice;

    fn store() -> RamStore {
        RamStore::new(4 * BLOCK, 1 << 20).unwrap()
    }

    fn write(store: &RamStore, at: u64, bytes: &[u8]) -> Request {
        let mut buffer = store.arena().alloc(bytes.len(), bytes.len().max(1)).unwrap();
        buffer.copy_from_slice(bytes);
        Request { tag: at, job: Job::Write { at, source: Slice::from(buffer.freeze()) } }
    }

    fn read(store: &mut RamStore, at: u64, len: usize) -> Vec<u8> {
        let target = store.arena().alloc(len, len.max(1)).unwrap();
        store.submit(Request { tag: 7, job: Job::Read { at, target } }).unwrap();
        assert!(store.turn());
        let mut finished = Vec::new();
        store.poll(&mut finished, usize::MAX);
        finished.pop().unwrap().target.unwrap().to_vec()
    }

    #[test]
    fn a_read_sees_what_was_submitted_before_it() {
        let mut store = store();
        store.submit(write(&store, 4090, b"across blocks")).unwrap();
        assert_eq!(read(&mut store, 4089, 15), b"\0across blocks\0");
        store.submit(Request { tag: 0, job: Job::Discard { at: 4092, len: 2 * BLOCK as u64 } }).unwrap();
        assert_eq!(read(&mut store, 4090, 4), b"ac\0\0");
    }

    #[test]
    fn what_does_not_lie_in_the_store_is_refused_with_its_request() {
        let mut store = store();
        let len = store.len();
        for (at, good) in [(len - 1, true), (len, false), (u64::MAX, false)] {
            let refused = store.submit(write(&store, at, b"x")).err();
            assert_eq!(refused.is_none(), good, "{at}");
            if let Some(refused) = refused {
                let Refused::Never { error, request } = refused else { panic!("{refused:?}") };
                assert_eq!((error, request.tag), (StoreError::OutOfRange { at, asked: 1, len }, at));
            }
        }
    }

    #[test]
    fn pages_are_holes_until_they_are_written_and_once_they_are_discarded() {
        let mut store = RamStore::new(4 * BLOCK + 10, 1 << 20).unwrap();
        let extents = |store: &RamStore| {
            let (mut at, mut found) = (0, Vec::new());
            while at < store.len() {
                let Extent { len, is_hole } = store.extent(at, store.len() - at);
                found.push((at, is_hole));
                at += len;
            }
            found
        };
        assert_eq!(extents(&store), [(0, true)]);
        // Also before its turn.
        store.submit(write(&store, 2 * PAGE - 1, b"xy")).unwrap();
        assert!(!store.extent(2 * PAGE - 1, 1).is_hole && !store.extent(2 * PAGE, 1).is_hole);
        assert!(store.turn());
        assert_eq!(extents(&store), [(0, true), (PAGE, false), (3 * PAGE, true)]);
        assert_eq!(store.extent(PAGE + 5, 10), Extent { len: 10, is_hole: false });
        // Of a page that is discarded in part, the rest stays.
        store.submit(Request { tag: 0, job: Job::Discard { at: PAGE + 1, len: 2 * PAGE } }).unwrap();
        assert!(store.turn());
        assert_eq!(extents(&store), [(0, true), (PAGE, false), (2 * PAGE, true)]);
        store.submit(write(&store, 4 * PAGE, b"z")).unwrap();
        let len = store.len();
        store.submit(Request { tag: 0, job: Job::Discard { at: 0, len } }).unwrap();
        assert!(store.turn());
        assert_eq!(extents(&store), [(0, true)]);
    }

    #[test]
    fn a_turn_copies_a_few_pages_and_leaves_the_rest_to_the_next() {
        let mut store = RamStore::new(1 << 20, 4 << 20).unwrap();
        let pages = BYTES_PER_TURN as usize / BLOCK;
        for tag in 0..2 * pages as u64 {
            store.submit(write(&store, tag * BLOCK as u64, &[7; BLOCK])).unwrap();
        }
        let mut finished = Vec::new();
        assert!(store.turn());
        assert_eq!(store.poll(&mut finished, usize::MAX), pages);
        assert_eq!(store.arm(0).unwrap(), Armed::Ready, "nobody sleeps on the rest");
        assert!(store.turn() && !store.turn());
        assert_eq!(store.poll(&mut finished, usize::MAX), pages);
        assert!(finished.iter().map(|one| one.tag).is_sorted());
        // A longer request is done in one turn.
        store.submit(write(&store, 0, &[7; 3 * BYTES_PER_TURN as usize])).unwrap();
        assert!(store.turn() && !store.turn());
    }

    #[test]
    fn a_full_store_gives_requests_back() {
        let mut store = store();
        for tag in 0..WAITING_MAX as u64 {
            store.submit(Request { tag, job: Job::Flush }).unwrap();
        }
        let refused = store.submit(Request { tag: 1, job: Job::Flush });
        assert!(matches!(refused, Err(Refused::Busy(Request { tag: 1, .. }))));
        assert!(store.turn() && !store.turn());
        let mut finished = Vec::new();
        assert_eq!(store.poll(&mut finished, 10), 10);
        assert!(store.submit(Request { tag: 1, job: Job::Flush }).is_ok());
    }
}
