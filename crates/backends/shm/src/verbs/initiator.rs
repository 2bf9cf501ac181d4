//! One-sided operations: the initiator's own thread works in the target's memory.

use std::sync::{Arc, Mutex, PoisonError};

use sinew_fabric::verbs::{QpNumber, RemoteMemory, Status, Verb, VerbsError};
use sinew_mem::ring::Doorbell;
use sinew_mem::{MessageBuffer, SharedMemory, SharedSlice};

use super::address::Home;
use super::control::Client;
use super::directory::{Directory, Entry, Found, Permit};
use super::life;
use super::memory::DeviceMemory;
use crate::barrier;

/// Bytes that are copied between two checks that the region is still exposed, which bounds the wait of an owner that
/// ends the exposure.
pub(crate) const CHUNK: usize = 256 << 10;

/// A device in whose memory this process works: its own, or another's that it maps.
#[derive(Debug)]
pub(crate) struct Target {
    pub directory: Directory,
    exposed: SharedMemory,
    /// Whether its owner executes our fences.
    fenced: bool,
    seats: Seats,
}

#[derive(Debug)]
enum Seats {
    Local(Arc<DeviceMemory>),
    Remote { client: Client, free: Mutex<Vec<u32>> },
}

impl Target {
    fn new(directory: Directory, exposed: SharedMemory, seats: Seats) -> Self {
        let fenced = directory.promises_fences() && barrier::is_shared();
        Self { directory, exposed, fenced, seats }
    }

    /// A device of this process.
    pub fn local(memory: &Arc<DeviceMemory>) -> Self {
        Self::new(memory.directory.clone(), memory.exposed.clone(), Seats::Local(Arc::clone(memory)))
    }

    /// The device of another process that is at `home`.
    pub fn remote(home: &Home) -> Result<Self, VerbsError> {
        let (client, directory, exposed) = Client::connect(home)?;
        Ok(Self::new(directory, exposed, Seats::Remote { client, free: Mutex::default() }))
    }

    /// Takes a seat for one thread.
    pub fn seat(self: &Arc<Self>) -> Result<Seat, VerbsError> {
        let number = match &self.seats {
            Seats::Local(memory) => memory.take_seat(),
            Seats::Remote { client, free } => {
                let left = free.lock().unwrap_or_else(PoisonError::into_inner).pop();
                if left.is_some() { left } else { client.seat()? }
            }
        };
        let seats = super::directory::SEATS_MAX;
        let number =
            number.ok_or(VerbsError::Limit { what: "threads at one device", asked: seats + 1, limit: seats })?;
        Ok(Seat { target: Arc::clone(self), number })
    }
}

/// A thread's seat at a device in whose memory it works.
#[derive(Debug)]
pub(crate) struct Seat {
    pub target: Arc<Target>,
    number: u32,
}

impl Drop for Seat {
    fn drop(&mut self) {
        match &self.target.seats {
            Seats::Local(memory) => memory.give_back_seats([self.number]),
            Seats::Remote { free, .. } => free.lock().unwrap_or_else(PoisonError::into_inner).push(self.number),
        }
    }
}

/// The other queue pair of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemotePair {
    /// Its protection domain.
    pub domain: u32,
    pub number: QpNumber,
    /// Word in its device's directory while it listens to us.
    pub listening: u64,
}

/// Target of an operation: a range of a region, and the queue pair through which it is reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessTarget {
    pub pair: RemotePair,
    pub remote: RemoteMemory,
}

impl Seat {
    /// Sits down, and returns the offset in the exposed memory of byte `done` of the `total` bytes at the place, if
    /// `verb` is allowed there. The offset rests on the owner's claim, which the memory checks against its own bounds.
    /// On success, the work must be followed by [`Self::leave`]; on failure, the seat has been left already.
    #[inline(always)]
    fn enter(
        &self,
        AccessTarget { pair, remote }: AccessTarget,
        verb: Verb,
        (done, total): (usize, usize),
    ) -> Result<usize, Status> {
        if verb == Verb::Read {
            return match self.sit_down(pair.domain, remote.rkey) {
                Some(Found { entry, .. })
                    if entry.access.read && is_inside(remote.address, total, entry.start, entry.len) =>
                {
                    Ok(offset(remote, done))
                }
                _ => {
                    self.leave();
                    Err(Status::RemoteAccess)
                }
            };
        }
        match self.sit_down_to_change(pair, remote.rkey, Some((remote.address, total as u64))) {
            Ok(Found { entry, .. })
                if entry.access.allows(verb) && is_inside(remote.address, total, entry.start, entry.len) =>
            {
                Ok(offset(remote, done))
            }
            refused => {
                self.leave();
                Err(refused.err().unwrap_or(Status::RemoteAccess))
            }
        }
    }

    /// Our half of Dekker. Partner: `DeviceMemory::wait_until_vacant`, `stragglers` and `sweep`, which call
    /// `barrier::fence_everywhere`. That call is their fence in any case, and ours too where they promised it.
    #[inline(always)]
    fn fence(&self) {
        if self.target.fenced {
            Doorbell::fenced_by_receiver();
        } else {
            Doorbell::fence();
        }
    }

    /// Sits down, and only then checks whether the region is exposed.
    #[inline(always)]
    fn sit_down(&self, domain: u32, rkey: u32) -> Option<Found<'_>> {
        let directory = &self.target.directory;
        directory.sit_down(self.number, rkey);
        self.fence();
        directory.entry(domain, rkey)
    }

    /// Like [`Self::sit_down`], for changes, for which the queue pair must also still listen.
    #[inline(always)]
    fn sit_down_to_change(&self, pair: RemotePair, rkey: u32, bytes: Option<(u64, u64)>) -> Result<Found<'_>, Status> {
        let directory = &self.target.directory;
        directory.sit_down_to_change(self.number, rkey, pair.number, bytes);
        self.fence();
        if directory.listen_word(pair.number) != pair.listening {
            return Err(Status::RetryExceeded);
        }
        directory.entry(pair.domain, rkey).ok_or(Status::RemoteAccess)
    }

    /// Leaves the seat.
    #[inline(always)]
    fn leave(&self) {
        self.target.directory.stand_up(self.number);
    }

    /// Does `work` with the exposed memory and the offset of the place in it. Nothing in between returns early, so the
    /// seat is left in any case.
    #[inline(always)]
    fn with_region<R>(
        &self,
        place: AccessTarget,
        verb: Verb,
        range: (usize, usize),
        work: impl FnOnce(&SharedMemory, usize) -> Result<R, sinew_mem::OutOfBounds>,
    ) -> Result<R, Status> {
        let offset = self.enter(place, verb, range)?;
        let result = work(&self.target.exposed, offset).map_err(|_| Status::RemoteOperation);
        self.leave();
        result
    }

    /// Writes the pieces, one after another.
    #[inline(always)]
    pub fn write(&self, place: AccessTarget, verb: Verb, pieces: &[&[u8]], total: usize) -> Result<(), Status> {
        match pieces {
            // A zero-length WRITE skips the region check, so it takes the slow path.
            [piece] if (1..=CHUNK).contains(&piece.len()) => {
                self.with_region(place, verb, (0, total), |memory, offset| memory.write(offset, piece))
            }
            _ => self.write_long(place, verb, pieces, total),
        }
    }

    /// Sits down to READ or WRITE in the region of this key; `None` when that is not allowed, for whatever reason.
    #[inline]
    pub fn guard_region(&self, pair: RemotePair, rkey: u32, verb: Verb) -> Option<RegionGuard<'_>> {
        let life = self.target.directory.life();
        if !life::is_alive(life) {
            return None;
        }
        let found = match verb {
            // The permit says whether the peer listens.
            Verb::Read => self.sit_down(pair.domain, rkey),
            _ => self.sit_down_to_change(pair, rkey, None).ok(),
        };
        let guarded = found.filter(|found| found.entry.access.allows(verb)).and_then(|found| {
            let Entry { start, len, .. } = found.entry;
            let bytes = self.target.exposed.slice(usize::try_from(start).ok()?, usize::try_from(len).ok()?).ok()?;
            let permit = self.target.directory.permit(life, (pair.number, pair.listening), found);
            Some(RegionGuard { seat: self, rkey, start, bytes, permit })
        });
        if guarded.is_none() {
            self.leave();
        }
        guarded
    }

    /// Fills a buffer of at most [`CHUNK`] bytes. Returns false when it read nothing, for whatever reason.
    #[inline(always)]
    pub fn read_short(&self, place: AccessTarget, target: &mut [u8]) -> bool {
        let Ok(offset) = self.enter(place, Verb::Read, (0, target.len())) else { return false };
        let read = self.target.exposed.read(offset, target);
        self.leave();
        read.is_ok()
    }

    #[inline(never)]
    fn write_long(&self, place: AccessTarget, verb: Verb, pieces: &[&[u8]], total: usize) -> Result<(), Status> {
        let mut done = 0;
        for piece in pieces {
            for chunk in piece.chunks(CHUNK) {
                self.with_region(place, verb, (done, total), |memory, offset| memory.write(offset, chunk))?;
                done += chunk.len();
            }
        }
        Ok(())
    }

    /// Fills the buffers, one after another.
    #[inline]
    pub fn read(&self, place: AccessTarget, target: &mut [MessageBuffer], total: usize) -> Result<(), Status> {
        let mut done = 0;
        target.iter_mut().try_for_each(|buffer| self.read_piece(place, buffer, &mut done, total))
    }

    /// Fills a range.
    pub fn read_range(&self, place: AccessTarget, range: &mut [u8]) -> Result<(), Status> {
        let total = range.len();
        self.read_piece(place, range, &mut 0, total)
    }

    /// Fills a piece of a READ of `total` bytes, of which `done` are read already.
    #[inline(always)]
    fn read_piece(&self, place: AccessTarget, piece: &mut [u8], done: &mut usize, total: usize) -> Result<(), Status> {
        piece.chunks_mut(CHUNK).try_for_each(|chunk| {
            let len = chunk.len();
            self.with_region(place, Verb::Read, (*done, total), |memory, offset| memory.read(offset, chunk))?;
            *done += len;
            Ok(())
        })
    }

    /// Swaps a word if it has the expected value; returns the value that it had.
    pub fn compare_swap(&self, place: AccessTarget, expected: u64, desired: u64) -> Result<u64, Status> {
        self.with_region(place, Verb::CompareSwap, (0, 8), |memory, offset| {
            memory.compare_swap(offset, expected, desired)
        })
    }

    /// Adds to a word; returns the value that it had.
    pub fn fetch_add(&self, place: AccessTarget, add: u64) -> Result<u64, Status> {
        self.with_region(place, Verb::FetchAdd, (0, 8), |memory, offset| memory.fetch_add(offset, add))
    }
}

/// A thread at work in a region that others may write, to READ or to WRITE there. It leaves the region when this is
/// dropped, and an owner that ends the exposure waits until then.
#[derive(Debug)]
pub(crate) struct RegionGuard<'a> {
    seat: &'a Seat,
    pub rkey: u32,
    /// Where the region starts in the exposed memory, and its bytes there: its owner's claim, which the memory checked.
    start: u64,
    bytes: SharedSlice<'a>,
    permit: Permit<'a>,
}

impl RegionGuard<'_> {
    /// Offset of an address in the region. An address before the start wraps round, to an offset that is out of bounds.
    #[inline(always)]
    fn offset(&self, address: u64) -> usize {
        usize::try_from(address.wrapping_sub(self.start)).unwrap_or(usize::MAX)
    }

    /// Whether the permit still holds. It never comes back once it has ended, so if it holds now, it held for all work
    /// so far. Unchecked WRITEs after its end are like a copy during which it ended: the owner waits until this guard
    /// is dropped, or keeps the memory aside.
    #[inline(always)]
    pub fn holds(&self) -> bool {
        self.permit.holds()
    }

    /// Writes some bytes. Returns false, having written nothing, if they are out of bounds or, for a WRITE that reports
    /// its completion, if the permit has ended.
    #[inline(always)]
    pub fn write(&self, address: u64, bytes: &[u8], is_reported: bool) -> bool {
        (!is_reported || self.holds()) && self.bytes.write(self.offset(address), bytes).is_ok()
    }

    /// Fills `target`. Returns false, having read nothing, if its bytes are out of bounds or the permit has ended.
    #[inline(always)]
    pub fn read(&self, address: u64, target: &mut [u8]) -> bool {
        self.holds() && self.bytes.read(self.offset(address), target).is_ok()
    }
}

impl Drop for RegionGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.seat.leave();
    }
}

/// Offset of byte `done` of a place in the exposed memory, which checks it.
#[inline(always)]
fn offset(remote: RemoteMemory, done: usize) -> usize {
    let offset = usize::try_from(remote.address).ok().and_then(|address| address.checked_add(done));
    offset.unwrap_or(usize::MAX)
}

/// Whether `len` bytes from `address` lie in the `region_len` bytes from `start`.
#[inline(always)]
fn is_inside(address: u64, len: usize, start: u64, region_len: u64) -> bool {
    address.checked_sub(start).is_some_and(|offset| offset <= region_len && len as u64 <= region_len - offset)
}

#[cfg(test)]
mod tests {
    use sinew_fabric::verbs::{Access, Scatter};
    use sinew_mem::Arena;

    use super::super::directory::ListenState;
    use super::*;

    fn target() -> (Arc<DeviceMemory>, Seat) {
        let memory = Arc::new(DeviceMemory::new(1 << 20).unwrap());
        memory.directory.set_life(life::SAME_PROCESS);
        memory.directory.set_listen_state(PEER, LISTENS);
        let seat = Arc::new(Target::local(&memory)).seat().unwrap();
        (memory, seat)
    }

    const PEER: QpNumber = QpNumber(0x01_0005);
    const LISTENS: ListenState = ListenState::To(QpNumber(0x01_0004));

    /// Through a queue pair that listens.
    fn remote_pair(domain: u32) -> RemotePair {
        RemotePair { domain, number: PEER, listening: LISTENS.word(PEER) }
    }

    fn write(seat: &Seat, domain: u32, remote: RemoteMemory, bytes: &[u8]) -> Result<(), Status> {
        seat.write(AccessTarget { pair: remote_pair(domain), remote }, Verb::Write, &[bytes], bytes.len())
    }

    #[test]
    fn both_sides_of_every_bound() {
        for (address, len, good) in
            [(100, 10, true), (100, 11, false), (99, 1, false), (110, 0, true), (111, 0, false), (109, 1, true)]
        {
            assert_eq!(is_inside(address, len, 100, 10), good, "{address} {len}");
        }
        assert!(!is_inside(u64::MAX, 2, 100, 10) && !is_inside(100, usize::MAX, 100, 10));
    }

    #[test]
    fn only_what_is_exposed_in_this_way_to_this_domain_can_be_reached() {
        let (memory, seat) = target();
        let (bytes, remote) = memory.expose(3, 64, Access::WRITE).unwrap();
        assert_eq!(write(&seat, 3, remote, &[7; 64]), Ok(()));
        assert_eq!(bytes.load(56), Ok(0x0707_0707_0707_0707));
        let refused = Err(Status::RemoteAccess);
        assert_eq!(write(&seat, 3, remote, &[8; 65]), refused);
        assert_eq!(write(&seat, 2, remote, &[8; 64]), refused);
        assert_eq!(write(&seat, 3, RemoteMemory { rkey: remote.rkey + (1 << 16), ..remote }, &[8; 8]), refused);
        assert_eq!(write(&seat, 3, RemoteMemory { address: remote.address - 1, ..remote }, &[8; 8]), refused);
        let mut target = Scatter::new();
        target.push(Arena::private(4096).unwrap().alloc(8, 8).unwrap());
        assert_eq!(seat.read(AccessTarget { pair: remote_pair(3), remote }, &mut target, 8), refused);
        assert_eq!(seat.fetch_add(AccessTarget { pair: remote_pair(3), remote }, 1), Err(Status::RemoteAccess));
        memory.withdraw(remote.rkey);
        assert_eq!(write(&seat, 3, remote, &[8; 8]), refused);
        assert_eq!(bytes.load(0), Ok(0x0707_0707_0707_0707));
    }

    #[test]
    fn whoever_sits_in_a_region_writes_nothing_once_its_exposure_ended() {
        let (memory, seat) = target();
        let (bytes, remote) = memory.expose(3, 64, Access::WRITE).unwrap();
        assert!(seat.guard_region(remote_pair(2), remote.rkey, Verb::Write).is_none());
        let guard = seat.guard_region(remote_pair(3), remote.rkey, Verb::Write).unwrap();
        assert!(guard.write(remote.address, &[7; 8], true) && !guard.write(remote.address + 57, &[8; 8], true));
        memory.withdraw(remote.rkey);
        assert!(!guard.write(remote.address, &[8; 8], true));
        assert_eq!(bytes.load(0), Ok(0x0707_0707_0707_0707));
    }

    #[test]
    fn whoever_was_stopped_by_the_end_of_its_queue_pair_is_found_where_it_is() {
        let (memory, seat) = target();
        let (bytes, remote) = memory.expose(3, 4096, Access::ALL).unwrap();
        let place =
            AccessTarget { pair: remote_pair(3), remote: RemoteMemory { address: remote.address + 64, ..remote } };
        let healthy = seat.target.seat().unwrap();
        // Both checked that their queue pairs listen, and neither has left yet.
        let other = QpNumber(0x01_0006);
        memory.directory.set_listen_state(other, LISTENS);
        let to_other = RemotePair { number: other, listening: LISTENS.word(other), ..remote_pair(3) };
        seat.enter(place, Verb::Write, (0, 100)).unwrap();
        healthy.enter(AccessTarget { pair: to_other, ..place }, Verb::Write, (0, 100)).unwrap();
        assert_eq!(memory.stragglers(remote.rkey, &[]), Some(Vec::new()));
        memory.directory.set_listen_state(PEER, ListenState::NoLonger);
        let [late] = memory.stragglers(remote.rkey, &[]).unwrap()[..] else {
            panic!("the one whose queue pair is gone is late")
        };
        assert_eq!(late.bytes, Some((remote.address + 64, 100)));
        seat.leave();
        assert!(!memory.is_unchanged(&late) && memory.stragglers(remote.rkey, &[late]) == Some(Vec::new()));
        // Later changes have no effect, however they are made.
        assert_eq!(write(&seat, 3, remote, &[8; 8]), Err(Status::RetryExceeded));
        assert_eq!(seat.fetch_add(place, 1), Err(Status::RetryExceeded));
        assert!(seat.guard_region(remote_pair(3), remote.rkey, Verb::Write).is_none());
        assert!((0..512).all(|word| bytes.load(word * 8) == Ok(0)));
    }

    #[test]
    fn an_initiator_that_stays_stopped_is_waited_for_once() {
        let (memory, seat) = target();
        let (_bytes, remote) = memory.expose(3, 4096, Access::ALL).unwrap();
        seat.enter(AccessTarget { pair: remote_pair(3), remote }, Verb::Write, (0, 100)).unwrap();
        memory.directory.set_listen_state(PEER, ListenState::NoLonger);
        let waited = |known: &[_]| {
            let since = std::time::Instant::now();
            let late = memory.stragglers(remote.rkey, known).unwrap();
            (late, since.elapsed() >= std::time::Duration::from_millis(100))
        };
        let (late, first) = waited(&[]);
        assert!(first && late.len() == 1);
        // The system may suspend this thread for as long as that wait, though not every time.
        let again = (0..20).any(|_| waited(&late) == (late.clone(), false));
        assert!(again);
        seat.leave();
    }

    #[test]
    fn no_write_lands_once_the_end_of_its_queue_pair_was_waited_for() {
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
        for fenced in [true, false] {
            let memory = Arc::new(DeviceMemory::new(1 << 20).unwrap());
            let own = Target::local(&memory);
            let target = Arc::new(Target { fenced: fenced && own.fenced, ..own });
            let (bytes, remote) = memory.expose(1, 512, Access::WRITE).unwrap();
            let (round, written, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let seat = target.seat().unwrap();
                        while !stop.load(Ordering::Relaxed) {
                            let listening = ListenState::To(QpNumber(round.load(Ordering::Acquire) as u32)).word(PEER);
                            let pair = RemotePair { domain: 1, number: PEER, listening };
                            let place = AccessTarget { pair, remote };
                            while seat.write(place, Verb::Write, &[&[0xFF; 512]], 512).is_ok() {
                                written.fetch_add(1, Ordering::Relaxed);
                            }
                            std::thread::yield_now();
                        }
                    });
                }
                let mut landed = None;
                for number in 1..100 {
                    let before = written.load(Ordering::Relaxed);
                    round.store(number, Ordering::Release);
                    memory.directory.set_listen_state(PEER, ListenState::To(QpNumber(number as u32)));
                    while written.load(Ordering::Relaxed) == before {
                        std::thread::yield_now();
                    }
                    memory.directory.set_listen_state(PEER, ListenState::NoLonger);
                    // This takes several tries where a writer does not get a processor.
                    while memory.stragglers(remote.rkey, &[]).is_none_or(|late| !late.is_empty()) {}
                    bytes.write(0, &[0; 512]).unwrap();
                    (0..5).for_each(|_| std::thread::yield_now());
                    let mut read = [1; 512];
                    bytes.read(0, &mut read).unwrap();
                    if read != [0; 512] {
                        landed = Some(number);
                        break;
                    }
                }
                // The writers must end in any case.
                stop.store(true, Ordering::Relaxed);
                assert_eq!(landed, None, "a write landed in this round, fenced by the owner: {fenced}");
            });
        }
    }

    #[test]
    fn a_directory_that_lies_leads_to_no_other_memory() {
        let (memory, seat) = target();
        let len = memory.exposed.len() as u64;
        for (start, region_len) in [(len - 8, 64), (u64::MAX - 63, 64), (0, u64::MAX)] {
            memory.directory.expose(1, 0x0009_0009, Entry { access: Access::ALL, start, len: region_len });
            let remote = RemoteMemory { address: start.max(len - 8), rkey: 0x0009_0009, len: 64 };
            assert_eq!(write(&seat, 1, remote, &[1; 16]), Err(Status::RemoteOperation), "{start} {region_len}");
            assert!(!memory.directory.is_at_work(0, 0x0009_0009));
        }
    }

    #[test]
    fn long_writes_and_reads_go_through_in_pieces() {
        let (memory, seat) = target();
        let (_bytes, remote) = memory.expose(1, 900_000, Access::ALL).unwrap();
        let (first, second): (Vec<u8>, Vec<u8>) =
            ((0..300_001u32).map(|at| at as u8).collect(), (0..599_999u32).map(|at| (at * 7) as u8).collect());
        let place = AccessTarget { pair: remote_pair(1), remote };
        seat.write(place, Verb::Write, &[&first, &second], 900_000).unwrap();
        let arena = Arena::private(8 << 20).unwrap();
        let mut target: Scatter = [450_000, 450_000].iter().map(|&len| arena.alloc(len, len).unwrap()).collect();
        seat.read(place, &mut target, 900_000).unwrap();
        let all = [first, second].concat();
        assert!(target[0][..] == all[..450_000] && target[1][..] == all[450_000..]);
    }

    #[test]
    fn seats_are_taken_again_once_their_threads_are_gone() {
        let (memory, seat) = target();
        let target = Arc::clone(&seat.target);
        let first = seat.number;
        drop(seat);
        assert_eq!(target.seat().unwrap().number, first);
        assert_eq!(memory.quarantined(), 0);
    }

    #[test]
    fn no_write_lands_once_the_end_of_an_exposure_was_waited_for() {
        use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
        // Runs with the fences made by the owner, where it can, and with the initiator's own.
        for fenced in [true, false] {
            let memory = Arc::new(DeviceMemory::new(1 << 20).unwrap());
            memory.directory.set_listen_state(PEER, LISTENS);
            let own = Target::local(&memory);
            let target = Arc::new(Target { fenced: fenced && own.fenced, ..own });
            let (remote, stop, written) = (Mutex::new(None), AtomicBool::new(false), AtomicUsize::new(0));
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let seat = target.seat().unwrap();
                        while !stop.load(Ordering::Relaxed) {
                            let now = *remote.lock().unwrap();
                            let Some(remote) = now else {
                                std::thread::yield_now();
                                continue;
                            };
                            // Write for as long as it is allowed, and a little longer.
                            while write(&seat, 1, remote, &[0xFF; 512]).is_ok() {
                                written.fetch_add(1, Ordering::Relaxed);
                            }
                            std::thread::yield_now();
                        }
                    });
                }
                let mut landed = None;
                for round in 0..100 {
                    let (bytes, exposed) = memory.expose(1, 512, Access::WRITE).unwrap();
                    let before = written.load(Ordering::Relaxed);
                    *remote.lock().unwrap() = Some(exposed);
                    while written.load(Ordering::Relaxed) == before {
                        std::thread::yield_now();
                    }
                    memory.withdraw(exposed.rkey);
                    // This fails after a second, and is tried again, where a writer does not get a processor.
                    while !memory.wait_until_vacant(exposed.rkey) {}
                    bytes.write(0, &[0; 512]).unwrap();
                    for _ in 0..5 {
                        std::thread::yield_now();
                    }
                    let mut read = [1; 512];
                    bytes.read(0, &mut read).unwrap();
                    *remote.lock().unwrap() = None;
                    if read != [0; 512] {
                        landed = Some(round);
                        break;
                    }
                }
                // The writers must end in any case.
                stop.store(true, Ordering::Relaxed);
                assert_eq!(landed, None, "a write landed in this round, fenced by the owner: {fenced}");
            });
        }
    }
}
