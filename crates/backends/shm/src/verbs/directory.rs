//! The directory that a device shows to initiators: which regions are exposed, which queue pairs listen, and which
//! initiators are at work inside a region right now. It is one piece of memory, which every initiator maps.
//!
//! An initiator *sits down* before it works: it writes the region's key to a line of its own, its *seat*, and only then
//! checks whether the region is exposed. An owner that ends an exposure clears the region's entry first and then checks
//! the seats. Each side writes, fences and reads what the other wrote (Dekker's pattern), so at least one of them sees
//! the other. Where the system has `membarrier`, the owner makes the initiator's fence too: see [`crate::barrier`].
//!
//! An initiator that sits down to change memory also writes which range it is about to change, and through which of the
//! owner's queue pairs. Only then does it check whether that queue pair still listens to it. So an owner that ends a
//! queue pair finds, in the same way, which initiators may still change memory through it, and where.
//!
//! Initiators are well-meaning processes of one user. The checks guard against their errors; they are no security
//! boundary, since any process that maps the memory can write it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sinew_fabric::verbs::{Access, QpNumber};
use sinew_mem::{SharedMemory, SharedRef, SharedRows};

/// Most threads that can work on one device's memory.
pub(crate) const SEATS_MAX: usize = 4096;
/// Most regions that one device can expose.
pub(crate) const REGIONS_MAX: usize = 1 << 16;
/// Most queue pairs that one device can have.
pub(crate) const QUEUE_PAIRS_MAX: usize = 1 << 16;

const HEADER_BYTES: usize = 4096;
const SEAT_BYTES: usize = 128;
const REGION_BYTES: usize = 32;
/// Two pairs of cache lines: one that initiators read with every operation, and one to which receivers keep writing.
const QUEUE_PAIR_BYTES: usize = 256;
const SEATS: usize = HEADER_BYTES;
const REGIONS: usize = SEATS + SEATS_MAX * SEAT_BYTES;
const QUEUE_PAIRS: usize = REGIONS + REGIONS_MAX * REGION_BYTES;

/// Bytes of a directory. Untouched ones take no memory.
pub(crate) const DIRECTORY_BYTES: usize = QUEUE_PAIRS + QUEUE_PAIRS_MAX * QUEUE_PAIR_BYTES;

/// Offsets of its parts.
#[cfg(test)]
pub(crate) const PART_OFFSETS: [usize; 4] = [0, SEATS, REGIONS, QUEUE_PAIRS];

/// Offset of the word of [`super::life`].
const LIFE_OFFSET: usize = 0;
/// Offset of the promise of fences.
const FENCES_OFFSET: usize = 128;
/// Index of the word of a queue pair that counts its receives.
const RECEIVES_WORD: usize = QUEUE_PAIR_BYTES / 2 / 8;

/// The accesses that others may make, in the low bits of a region's first word.
const ACCESS_MASK: u64 = 0b111;
/// In the first word of a region or a seat: it is in use.
const VALID: u64 = 1 << 63;
/// In a seat's first word: its thread changes memory. The queue pair's number lies above the region's key.
const CHANGES: u64 = 1 << 62;
/// In a seat's first word: the change may be anywhere in the region. Otherwise the next words give its place.
const WHOLE_REGION: u64 = 1 << 61;
/// In a seat's first word: lowest bit of the queue pair's number.
const QP_NUMBER_SHIFT: u32 = 32;
/// The part of a seat's first word that says in which region its thread is at work.
const REGION_MASK: u64 = VALID | 0xFFFF_FFFF;

fn bits(access: Access) -> u64 {
    u64::from(access.write) | u64::from(access.read) << 1 | u64::from(access.atomic) << 2
}

/// The first word of a region's entry, without the access bits.
#[inline(always)]
const fn region_word(domain: u32, rkey: u32) -> u64 {
    VALID | ((domain & 0xFF_FFFF) as u64) << 24 | ((rkey >> 16) as u64) << 8
}

/// A region as its owner describes it. Its bounds are a claim until they are checked against the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub access: Access,
    /// Offset of its start in the device's exposed memory.
    pub start: u64,
    pub len: u64,
}

/// A region's entry as an initiator found it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a> {
    pub entry: Entry,
    /// The entry's first word, and what it said.
    word: (&'a AtomicU64, u64),
}

/// An initiator that was stopped in the middle of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Straggler {
    pub seat: u32,
    /// The seat's first word.
    pub seat_word: u64,
    /// Bytes of the exposed memory that it changes, as offset and number: its own claim. `None`: any bytes of the
    /// region.
    pub bytes: Option<(u64, u64)>,
}

/// State of a queue pair that others can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenState {
    /// It is not connected to its peer yet.
    NotYet,
    /// It listens to this peer.
    To(QpNumber),
    /// It no longer listens.
    NoLonger,
}

impl ListenState {
    /// The word by which queue pair `number` shows this state.
    #[inline]
    pub fn word(self, number: QpNumber) -> u64 {
        let (state, peer) = match self {
            Self::NotYet => (1, 0),
            Self::To(QpNumber(peer)) => (2, peer),
            Self::NoLonger => (3, 0),
        };
        state << 56 | u64::from(peer & 0xFF_FFFF) << 24 | u64::from(number.0 & 0xFF_FFFF)
    }

    /// The state in the word of queue pair `number`. A word of another queue pair, or an invalid one, means that this
    /// one is gone.
    pub fn of_word(word: u64, number: QpNumber) -> Self {
        match word >> 56 {
            1 if word as u32 & 0xFF_FFFF == number.0 => Self::NotYet,
            2 if word as u32 & 0xFF_FFFF == number.0 => Self::To(QpNumber((word >> 24) as u32 & 0xFF_FFFF)),
            _ => Self::NoLonger,
        }
    }
}

/// The words that allowed an operation, each with what it said. The owner changes one of them when it ends the exposure
/// or the queue pair, and the kernel when the owner dies. So while none has changed the operation is still allowed, and
/// three comparisons tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permit<'a> {
    life: (&'a AtomicU32, u32),
    listens: (&'a AtomicU64, u64),
    region: (&'a AtomicU64, u64),
}

impl Permit<'_> {
    /// Whether none of the words has changed.
    #[inline(always)]
    pub fn holds(&self) -> bool {
        let ((life, lived), (listens, listened), (region, was)) = (self.life, self.listens, self.region);
        // Partner: as in `Directory::life`.
        life.load(Ordering::Acquire) == lived && load(listens) == listened && load(region) == was
    }
}

/// The words of a queue pair in its device's directory.
pub(crate) type PairWords = SharedRef<[AtomicU64; QUEUE_PAIR_BYTES / 8]>;

/// A device's directory, ours or another's.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    header: SharedMemory,
    life: SharedRef<AtomicU32>,
    seats: SharedRows<{ SEAT_BYTES / 8 }>,
    regions: SharedRows<{ REGION_BYTES / 8 }>,
    queue_pairs: SharedRows<{ QUEUE_PAIR_BYTES / 8 }>,
}

/// Loads a word. Everything that its writer stored before it is visible afterwards.
#[inline(always)]
fn load(word: &AtomicU64) -> u64 {
    // Partner: `store`, in this process or another.
    word.load(Ordering::Acquire)
}

#[inline(always)]
fn store(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Release);
}

impl Directory {
    /// A directory over fresh memory, or over memory in which another process has one; `None` when the memory is too
    /// small.
    pub fn new(memory: SharedMemory) -> Option<Self> {
        Some(Self {
            seats: memory.rows(SEATS, SEATS_MAX).ok()?,
            regions: memory.rows(REGIONS, REGIONS_MAX).ok()?,
            queue_pairs: memory.rows(QUEUE_PAIRS, QUEUE_PAIRS_MAX).ok()?,
            // SAFETY: the directory's owner and its observers reach this word by this handle alone.
            life: unsafe { memory.futex_ref(LIFE_OFFSET) }.ok()?,
            header: memory,
        })
    }

    /// The word that says whether the owner lives: see [`super::life`].
    #[inline(always)]
    pub fn life(&self) -> u32 {
        // Partner: the stores of `life::RobustWord`, of the kernel, and of `set_life`.
        self.life.load(Ordering::Acquire)
    }

    pub fn set_life(&self, life: u32) {
        self.life.store(life, Ordering::Release);
    }

    /// The same word, for [`super::life::RobustWord`] and for connections.
    pub fn life_futex(&self) -> &SharedRef<AtomicU32> {
        &self.life
    }

    /// Promises that the owner, when it ends an exposure, makes the fences of those who may be inside. To be called
    /// before the directory is shared.
    pub fn promise_fences(&self) {
        let stored = self.header.store(FENCES_OFFSET, 1);
        debug_assert!(stored.is_ok());
    }

    pub fn promises_fences(&self) -> bool {
        self.header.load(FENCES_OFFSET).is_ok_and(|promise| promise != 0)
    }

    #[inline(always)]
    fn seat(&self, seat: u32) -> &AtomicU64 {
        &self.seats.row(seat as usize)[0]
    }

    /// Sits down in seat `seat` to read the region of `rkey`.
    #[inline(always)]
    pub fn sit_down(&self, seat: u32, rkey: u32) {
        store(self.seat(seat), VALID | u64::from(rkey));
    }

    /// Sits down to change the region through queue pair `by`: these bytes of the exposed memory (offset and number),
    /// or any bytes of the region.
    #[inline(always)]
    pub fn sit_down_to_change(&self, seat: u32, rkey: u32, by: QpNumber, bytes: Option<(u64, u64)>) {
        let [word, first, len, ..] = self.seats.row(seat as usize);
        let mut seat_word = VALID | CHANGES | u64::from(by.0 & 0xFF_FFFF) << QP_NUMBER_SHIFT | u64::from(rkey);
        match bytes {
            Some(bytes) => {
                store(first, bytes.0);
                store(len, bytes.1);
            }
            None => seat_word |= WHOLE_REGION,
        }
        store(word, seat_word);
    }

    /// Leaves the seat. (This is a release, like every store: all work done from the seat is complete before it.)
    #[inline(always)]
    pub fn stand_up(&self, seat: u32) {
        store(self.seat(seat), 0);
    }

    /// Whether the seat's thread is at work on the region of `rkey`.
    pub fn is_at_work(&self, seat: u32, rkey: u32) -> bool {
        load(self.seat(seat)) & REGION_MASK == VALID | u64::from(rkey)
    }

    /// The change that the seat's thread makes to the region of `rkey` through a queue pair that no longer listens to
    /// anybody; `None` if it makes none.
    pub fn straggler(&self, seat: u32, rkey: u32) -> Option<Straggler> {
        let [word, first, len, ..] = self.seats.row(seat as usize);
        let seat_word = load(word);
        let number = QpNumber((seat_word >> QP_NUMBER_SHIFT) as u32 & 0xFF_FFFF);
        let listens = || matches!(ListenState::of_word(self.listen_word(number), number), ListenState::To(_));
        if seat_word & REGION_MASK != VALID | u64::from(rkey) || seat_word & CHANGES == 0 || listens() {
            return None;
        }
        let bytes = (seat_word & WHOLE_REGION == 0).then(|| (load(first), load(len)));
        Some(Straggler { seat, seat_word, bytes })
    }

    /// Whether a straggler is still where it was found.
    pub fn is_unchanged(&self, straggler: &Straggler) -> bool {
        let [word, first, len, ..] = self.seats.row(straggler.seat as usize);
        load(word) == straggler.seat_word && straggler.bytes.is_none_or(|bytes| bytes == (load(first), load(len)))
    }

    #[inline(always)]
    fn region(&self, rkey: u32) -> &[AtomicU64; REGION_BYTES / 8] {
        self.regions.row(rkey as usize)
    }

    /// The region of `rkey`, if it is exposed and belongs to protection domain `domain`.
    #[inline(always)]
    pub fn entry(&self, domain: u32, rkey: u32) -> Option<Found<'_>> {
        let [place, start, len, _] = self.region(rkey);
        let word = load(place);
        if word & !ACCESS_MASK != region_word(domain, rkey) {
            return None;
        }
        let access = Access { write: word & 1 != 0, read: word & 2 != 0, atomic: word & 4 != 0 };
        Some(Found { entry: Entry { access, start: load(start), len: load(len) }, word: (place, word) })
    }

    /// Permit to work in a region through queue pair `number`, for as long as these words say what they were found to
    /// say: that the owner lives, that the queue pair listens, and what the region's entry is.
    #[inline(always)]
    pub fn permit<'a>(&'a self, life: u32, (number, listens): (QpNumber, u64), found: Found<'a>) -> Permit<'a> {
        Permit { life: (&self.life, life), listens: (&self.queue_pair(number)[0], listens), region: found.word }
    }

    /// Exposes a region. Nobody may be inside an earlier one with the same index.
    pub fn expose(&self, domain: u32, rkey: u32, entry: Entry) {
        let [word, start, len, _] = self.region(rkey);
        store(start, entry.start);
        store(len, entry.len);
        store(word, region_word(domain, rkey) | bits(entry.access));
    }

    /// Ends the exposure of the region of `rkey`.
    pub fn withdraw(&self, rkey: u32) {
        store(&self.region(rkey)[0], 0);
    }

    #[inline(always)]
    fn queue_pair(&self, number: QpNumber) -> &[AtomicU64; QUEUE_PAIR_BYTES / 8] {
        self.queue_pairs.row(number.0 as usize)
    }

    /// The words of a queue pair, for a connection to it: the first is that of [`Self::listen_word`].
    pub fn pair_words(&self, number: QpNumber) -> PairWords {
        self.queue_pairs.row_ref(number.0 as usize)
    }

    /// The word of a queue pair: see [`ListenState::word`].
    #[inline(always)]
    pub fn listen_word(&self, number: QpNumber) -> u64 {
        load(&self.queue_pair(number)[0])
    }

    pub fn set_listen_state(&self, number: QpNumber, listens: ListenState) {
        store(&self.queue_pair(number)[0], listens.word(number));
    }

    /// Writes a word that no owner would write.
    #[cfg(test)]
    pub fn set_word(&self, number: QpNumber, word: u64) {
        store(&self.queue_pair(number)[0], word);
    }

    /// Receives that a queue pair has posted since its last reset; the count wraps.
    #[inline]
    pub fn receives(&self, number: QpNumber) -> u32 {
        load(&self.queue_pair(number)[RECEIVES_WORD]) as u32
    }

    #[inline]
    pub fn set_receives(&self, number: QpNumber, receives: u32) {
        store(&self.queue_pair(number)[RECEIVES_WORD], u64::from(receives));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> Directory {
        Directory::new(SharedMemory::private(DIRECTORY_BYTES).unwrap()).unwrap()
    }

    #[test]
    fn a_region_is_found_by_its_own_key_and_domain_alone() {
        let directory = directory();
        let entry = Entry { access: Access { write: true, read: false, atomic: true }, start: 4096, len: 77 };
        directory.expose(5, 0x0002_FFFF, entry);
        let found = |domain, rkey| directory.entry(domain, rkey).map(|found| found.entry);
        assert_eq!(found(5, 0x0002_FFFF), Some(entry));
        for (domain, rkey) in [(5, 0x0001_FFFF), (5, 0x0002_FFFE), (4, 0x0002_FFFF), (5, 0), (0, 0)] {
            assert_eq!(found(domain, rkey), None, "{domain} {rkey:x}");
        }
        directory.withdraw(0x0002_FFFF);
        assert_eq!(found(5, 0x0002_FFFF), None);
    }

    #[test]
    fn a_queue_pair_says_to_whom_it_listens_and_no_other_speaks_for_it() {
        let directory = directory();
        let (number, other) = (QpNumber(0x01_0007), QpNumber(0x02_0007));
        assert_eq!(ListenState::of_word(directory.listen_word(number), number), ListenState::NoLonger);
        for listens in [ListenState::NotYet, ListenState::To(QpNumber(0xFF_FFFF)), ListenState::NoLonger] {
            directory.set_listen_state(number, listens);
            assert_eq!(ListenState::of_word(directory.listen_word(number), number), listens);
            assert_eq!(ListenState::of_word(directory.listen_word(other), other), ListenState::NoLonger);
        }
    }

    #[test]
    fn only_changes_by_queue_pairs_that_listen_to_nobody_are_late() {
        let directory = directory();
        let (number, other) = (QpNumber(0x01_0007), QpNumber(0xFF_FFFF));
        directory.set_listen_state(number, ListenState::To(QpNumber(3)));
        directory.sit_down_to_change(1, 9, number, Some((4096, 10)));
        directory.sit_down_to_change(2, 9, other, None);
        directory.sit_down(3, 9);
        directory.sit_down_to_change(4, 8, other, None);
        assert!((1..5).all(|seat| directory.is_at_work(seat, if seat == 4 { 8 } else { 9 })));
        let late = |directory: &Directory| (0..6).filter_map(|seat| directory.straggler(seat, 9)).collect::<Vec<_>>();
        let [found] = late(&directory)[..] else { panic!("{:?}", late(&directory)) };
        assert!((found.seat, found.bytes) == (2, None) && directory.is_unchanged(&found));
        directory.set_listen_state(number, ListenState::NoLonger);
        let found = late(&directory);
        assert_eq!(
            found.iter().map(|late| (late.seat, late.bytes)).collect::<Vec<_>>(),
            [(1, Some((4096, 10))), (2, None)]
        );
        // The next change through the same queue pair is a different one.
        directory.sit_down_to_change(1, 9, number, Some((4096, 11)));
        directory.stand_up(2);
        assert!(found.iter().all(|found| !directory.is_unchanged(found)));
    }

    #[test]
    fn the_last_seat_region_and_queue_pair_lie_inside() {
        let directory = directory();
        directory.sit_down(SEATS_MAX as u32 - 1, 9);
        assert!(directory.is_at_work(SEATS_MAX as u32 - 1, 9) && !directory.is_at_work(0, 9));
        let last = QpNumber(0xFF_FFFF);
        directory.set_receives(last, 3);
        directory.set_listen_state(last, ListenState::NotYet);
        assert_eq!((directory.receives(last), directory.receives(QpNumber(0))), (3, 0));
        assert!(Directory::new(SharedMemory::private(DIRECTORY_BYTES - 1).unwrap()).is_none());
    }
}
