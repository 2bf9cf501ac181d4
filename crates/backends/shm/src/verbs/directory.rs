//! What a device shows to those that work on its memory: which regions are exposed, which queue pairs listen, and who is at
//! work inside a region just now. One piece of memory, which every initiator maps.
//!
//! An initiator sits down before it works: it writes the region's key to a line of its own, its *seat*, and only then
//! looks whether the region is exposed. Whoever ends an exposure clears the region's entry first and then looks at the seats.
//! Each writes, fences and reads what the other wrote (Dekker), so that at least one of them sees the other. The initiator's
//! fence is made by the other side, where the system has `membarrier`: see [`crate::barrier`].
//!
//! Whoever sits down to change memory also writes by which of our queue pairs he comes, and what he is about to change, and only
//! then looks whether that queue pair still listens to him. So whoever ends a queue pair finds in the same way who may still
//! change something by it, and where.
//!
//! Initiators are processes of one user that mean well. The checks guard against their errors; they are no security boundary,
//! since whoever maps the memory can write it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sinew_fabric::verbs::{Access, QpNumber};
use sinew_mem::{SharedMemory, SharedRows};

/// Threads that can be at work on one device's memory.
pub(crate) const SEATS_MAX: usize = 4096;
/// Regions that one device can expose.
pub(crate) const REGIONS_MAX: usize = 1 << 16;
/// Queue pairs that one device can have.
pub(crate) const QUEUE_PAIRS_MAX: usize = 1 << 16;

const HEADER_BYTES: usize = 4096;
const SEAT_BYTES: usize = 128;
const REGION_BYTES: usize = 32;
/// Two pairs of lines: what initiators look at with every operation, and what receivers write all the time.
const QUEUE_PAIR_BYTES: usize = 256;
const SEATS: usize = HEADER_BYTES;
const REGIONS: usize = SEATS + SEATS_MAX * SEAT_BYTES;
const QUEUE_PAIRS: usize = REGIONS + REGIONS_MAX * REGION_BYTES;

/// Bytes of a directory. Those that nobody touches take no memory.
pub(crate) const DIRECTORY_BYTES: usize = QUEUE_PAIRS + QUEUE_PAIRS_MAX * QUEUE_PAIR_BYTES;

/// Where its parts start.
#[cfg(test)]
pub(crate) const PLACES: [usize; 4] = [0, SEATS, REGIONS, QUEUE_PAIRS];

/// Where [`super::life`] keeps its word.
const LIFE: usize = 0;
const FENCES: usize = 128;
/// Which word of a queue pair counts its receives.
const RECEIVES: usize = QUEUE_PAIR_BYTES / 2 / 8;

/// What others may do, in the low bits of a region's first word.
const ACCESS: u64 = 0b111;
const VALID: u64 = 1 << 63;
/// In a seat's first word: whoever sits there changes memory. The queue pair's number lies above the region's key.
const CHANGES: u64 = 1 << 62;
/// And may do so anywhere in the region: else the next words say where.
const ANYWHERE: u64 = 1 << 61;
const NUMBER: u32 = 32;
/// What of a seat's first word says where somebody is at work.
const PLACE: u64 = VALID | 0xFFFF_FFFF;

fn bits(access: Access) -> u64 {
    u64::from(access.write) | u64::from(access.read) << 1 | u64::from(access.atomic) << 2
}

/// The first word of a region's entry, without what others may do.
#[inline(always)]
const fn region_word(domain: u32, rkey: u32) -> u64 {
    VALID | ((domain & 0xFF_FFFF) as u64) << 24 | ((rkey >> 16) as u64) << 8
}

/// A region as its owner describes it. Its bounds are a claim until they are checked against the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub access: Access,
    /// Where it starts in the device's exposed memory.
    pub start: u64,
    pub len: u64,
}

/// Somebody who was stopped in the midst of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Straggler {
    pub seat: u32,
    /// The seat's first word.
    pub sits: u64,
    /// The bytes of the exposed memory that he changes, the first and how many: a claim. `None`: any of the region's.
    pub bytes: Option<(u64, u64)>,
}

/// What a queue pair shows to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listens {
    /// Not yet: it is on its way to its peer.
    NotYet,
    /// To `peer`.
    To(QpNumber),
    /// Not any more.
    NoLonger,
}

impl Listens {
    /// The word by which queue pair `number` shows it.
    #[inline]
    pub fn word(self, number: QpNumber) -> u64 {
        let (state, peer) = match self {
            Self::NotYet => (1, 0),
            Self::To(QpNumber(peer)) => (2, peer),
            Self::NoLonger => (3, 0),
        };
        state << 56 | u64::from(peer & 0xFF_FFFF) << 24 | u64::from(number.0 & 0xFF_FFFF)
    }

    /// What the word of queue pair `number` says: another's, or none, is that of one which is gone.
    pub fn of_word(word: u64, number: QpNumber) -> Self {
        match word >> 56 {
            1 if word as u32 & 0xFF_FFFF == number.0 => Self::NotYet,
            2 if word as u32 & 0xFF_FFFF == number.0 => Self::To(QpNumber((word >> 24) as u32 & 0xFF_FFFF)),
            _ => Self::NoLonger,
        }
    }
}

/// A device's directory, ours or another's.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    header: SharedMemory,
    seats: SharedRows<{ SEAT_BYTES / 8 }>,
    regions: SharedRows<{ REGION_BYTES / 8 }>,
    queue_pairs: SharedRows<{ QUEUE_PAIR_BYTES / 8 }>,
}

/// A loaded word: what its writer stored before it is visible after.
#[inline(always)]
fn load(word: &AtomicU64) -> u64 {
    // Partner: `store`, here or at another process.
    word.load(Ordering::Acquire)
}

#[inline(always)]
fn store(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Release);
}

impl Directory {
    /// A directory over fresh memory, or memory in which another process has one; `None` when it is too small.
    pub fn new(memory: SharedMemory) -> Option<Self> {
        Some(Self {
            seats: memory.rows(SEATS, SEATS_MAX).ok()?,
            regions: memory.rows(REGIONS, REGIONS_MAX).ok()?,
            queue_pairs: memory.rows(QUEUE_PAIRS, QUEUE_PAIRS_MAX).ok()?,
            header: memory,
        })
    }

    /// The word that says whether the owner lives: see [`super::life`].
    #[inline(always)]
    pub fn life(&self) -> u32 {
        // Partner: the stores of `life::Watch`, of the kernel, and of `set_life`.
        self.life_futex().map_or(0, |word| word.load(Ordering::Acquire))
    }

    pub fn set_life(&self, life: u32) {
        if let Some(word) = self.life_futex() {
            word.store(life, Ordering::Release);
        }
    }

    /// The word, for [`super::life::Watch`].
    #[inline(always)]
    pub fn life_futex(&self) -> Option<&AtomicU32> {
        // SAFETY: the directory's owner and its watchers reach this word by this method alone.
        unsafe { self.header.futex(LIFE) }.ok()
    }

    /// Promises that whoever ends an exposure makes the fences of those who may be inside. Before the directory is shown.
    pub fn promise_fences(&self) {
        let stored = self.header.store(FENCES, 1);
        debug_assert!(stored.is_ok());
    }

    pub fn promises_fences(&self) -> bool {
        self.header.load(FENCES).is_ok_and(|promise| promise != 0)
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

    /// Sits down to change the region by queue pair `by`: these bytes of the exposed memory, its first and how many, or any of the
    /// region's.
    #[inline(always)]
    pub fn sit_down_to_change(&self, seat: u32, rkey: u32, by: QpNumber, bytes: Option<(u64, u64)>) {
        let [word, first, len, ..] = self.seats.row(seat as usize);
        let mut sits = VALID | CHANGES | u64::from(by.0 & 0xFF_FFFF) << NUMBER | u64::from(rkey);
        match bytes {
            Some(bytes) => {
                store(first, bytes.0);
                store(len, bytes.1);
            }
            None => sits |= ANYWHERE,
        }
        store(word, sits);
    }

    /// Leaves the seat. (A release, as every store: what was done from it is over before.)
    #[inline(always)]
    pub fn stand_up(&self, seat: u32) {
        store(self.seat(seat), 0);
    }

    /// Whether whoever has the seat works on the region of `rkey`.
    pub fn is_at_work(&self, seat: u32, rkey: u32) -> bool {
        load(self.seat(seat)) & PLACE == VALID | u64::from(rkey)
    }

    /// What whoever has the seat changes in the region of `rkey` by a queue pair that listens to nobody any more.
    pub fn straggler(&self, seat: u32, rkey: u32) -> Option<Straggler> {
        let [word, first, len, ..] = self.seats.row(seat as usize);
        let sits = load(word);
        let number = QpNumber((sits >> NUMBER) as u32 & 0xFF_FFFF);
        let listens = || matches!(Listens::of_word(self.listens(number), number), Listens::To(_));
        if sits & PLACE != VALID | u64::from(rkey) || sits & CHANGES == 0 || listens() {
            return None;
        }
        let bytes = (sits & ANYWHERE == 0).then(|| (load(first), load(len)));
        Some(Straggler { seat, sits, bytes })
    }

    /// Whether one of them is still where he was found.
    pub fn is_there(&self, straggler: &Straggler) -> bool {
        let [word, first, len, ..] = self.seats.row(straggler.seat as usize);
        load(word) == straggler.sits && straggler.bytes.is_none_or(|bytes| bytes == (load(first), load(len)))
    }

    #[inline(always)]
    fn region(&self, rkey: u32) -> &[AtomicU64; REGION_BYTES / 8] {
        self.regions.row(rkey as usize)
    }

    /// The region of `rkey`, if it is one of protection domain `domain` and exposed.
    #[inline(always)]
    pub fn entry(&self, domain: u32, rkey: u32) -> Option<Entry> {
        let [word, start, len, _] = self.region(rkey);
        let word = load(word);
        if word & !ACCESS != region_word(domain, rkey) {
            return None;
        }
        let access = Access { write: word & 1 != 0, read: word & 2 != 0, atomic: word & 4 != 0 };
        Some(Entry { access, start: load(start), len: load(len) })
    }

    /// Whether the region of `rkey` is still exposed for writing, to protection domain `domain`.
    #[inline(always)]
    pub fn takes_writes(&self, domain: u32, rkey: u32) -> bool {
        let word = load(&self.region(rkey)[0]);
        word & !ACCESS == region_word(domain, rkey) && word & 1 != 0
    }

    /// Exposes a region. Nobody is inside an earlier one of the same index.
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

    /// The word of a queue pair: see [`Listens::word`].
    #[inline(always)]
    pub fn listens(&self, number: QpNumber) -> u64 {
        load(&self.queue_pair(number)[0])
    }

    pub fn set_listens(&self, number: QpNumber, listens: Listens) {
        store(&self.queue_pair(number)[0], listens.word(number));
    }

    /// What only somebody else would write.
    #[cfg(test)]
    pub fn set_word(&self, number: QpNumber, word: u64) {
        store(&self.queue_pair(number)[0], word);
    }

    /// How many receives a queue pair has posted since it was last reset, wrapping.
    #[inline]
    pub fn receives(&self, number: QpNumber) -> u32 {
        load(&self.queue_pair(number)[RECEIVES]) as u32
    }

    #[inline]
    pub fn set_receives(&self, number: QpNumber, receives: u32) {
        store(&self.queue_pair(number)[RECEIVES], u64::from(receives));
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
        assert_eq!(directory.entry(5, 0x0002_FFFF), Some(entry));
        for (domain, rkey) in [(5, 0x0001_FFFF), (5, 0x0002_FFFE), (4, 0x0002_FFFF), (5, 0), (0, 0)] {
            assert_eq!(directory.entry(domain, rkey), None, "{domain} {rkey:x}");
        }
        directory.withdraw(0x0002_FFFF);
        assert_eq!(directory.entry(5, 0x0002_FFFF), None);
    }

    #[test]
    fn a_queue_pair_says_to_whom_it_listens_and_no_other_speaks_for_it() {
        let directory = directory();
        let (number, other) = (QpNumber(0x01_0007), QpNumber(0x02_0007));
        assert_eq!(Listens::of_word(directory.listens(number), number), Listens::NoLonger);
        for listens in [Listens::NotYet, Listens::To(QpNumber(0xFF_FFFF)), Listens::NoLonger] {
            directory.set_listens(number, listens);
            assert_eq!(Listens::of_word(directory.listens(number), number), listens);
            assert_eq!(Listens::of_word(directory.listens(other), other), Listens::NoLonger);
        }
    }

    #[test]
    fn only_changes_by_queue_pairs_that_listen_to_nobody_are_late() {
        let directory = directory();
        let (number, other) = (QpNumber(0x01_0007), QpNumber(0xFF_FFFF));
        directory.set_listens(number, Listens::To(QpNumber(3)));
        directory.sit_down_to_change(1, 9, number, Some((4096, 10)));
        directory.sit_down_to_change(2, 9, other, None);
        directory.sit_down(3, 9);
        directory.sit_down_to_change(4, 8, other, None);
        assert!((1..5).all(|seat| directory.is_at_work(seat, if seat == 4 { 8 } else { 9 })));
        let late = |directory: &Directory| (0..6).filter_map(|seat| directory.straggler(seat, 9)).collect::<Vec<_>>();
        let [found] = late(&directory)[..] else { panic!("{:?}", late(&directory)) };
        assert!((found.seat, found.bytes) == (2, None) && directory.is_there(&found));
        directory.set_listens(number, Listens::NoLonger);
        let found = late(&directory);
        assert_eq!(
            found.iter().map(|late| (late.seat, late.bytes)).collect::<Vec<_>>(),
            [(1, Some((4096, 10))), (2, None)]
        );
        // The next change by the same queue pair is another.
        directory.sit_down_to_change(1, 9, number, Some((4096, 11)));
        directory.stand_up(2);
        assert!(found.iter().all(|found| !directory.is_there(found)));
    }

    #[test]
    fn the_last_seat_region_and_queue_pair_lie_inside() {
        let directory = directory();
        directory.sit_down(SEATS_MAX as u32 - 1, 9);
        assert!(directory.is_at_work(SEATS_MAX as u32 - 1, 9) && !directory.is_at_work(0, 9));
        let last = QpNumber(0xFF_FFFF);
        directory.set_receives(last, 3);
        directory.set_listens(last, Listens::NotYet);
        assert_eq!((directory.receives(last), directory.receives(QpNumber(0))), (3, 0));
        assert!(Directory::new(SharedMemory::private(DIRECTORY_BYTES - 1).unwrap()).is_none());
    }
}
