//! A board: how the senders of many rings tell one receiver which rings to look at, and when to wake it.
//!
//! Each sender has a bit. A sender that has published sets its bit if it is not set, and only then touches the board's
//! summary, which is the one word that an idle receiver reads. A receiver keeps the rings whose bits are set on a list of its
//! own and clears a bit only after the ring was empty for long. So a busy ring costs its sender two loads of lines that
//! nobody writes, and an idle ring costs its receiver nothing.
//!
//! Every decision is the pattern of Dekker: both sides first write, then fence, then read what the other wrote. The sender
//! publishes, fences, reads bit and sleep word; the receiver clears the bit (or says that it sleeps), fences, looks into the
//! ring once more. At least one of them sees the other. A sender that stops anywhere in between delays its own packets only:
//! nothing here is held.

use super::words::Words;
use crate::atomic::{AtomicU64, Ordering, fence};

/// The most senders of one board: a bit for each, and a summary of one word over them.
pub const BOARD_LINKS_MAX: usize = 64 * 64;
/// Bytes of memory that a board needs.
pub const BOARD_BYTES: usize = 256 + BOARD_LINKS_MAX / 8;

const SLEEP_WORD: usize = 0;
/// Not zero where the receiver makes the senders' fences; written before the board is handed out.
const FENCES_WORD: usize = 1;
const SUMMARY_WORD: usize = 128 / 8;
const ACTIVE_WORD: usize = 256 / 8;

/// The receiver's view of its board.
#[derive(Debug)]
pub struct Board {
    words: Words,
    sleeps: u64,
}

impl Board {
    /// A board over fresh, zeroed memory of [`BOARD_BYTES`] bytes; `None` when it is smaller.
    ///
    /// # Safety
    ///
    /// Within this process the memory is accessed by boards and doorbells only.
    pub unsafe fn new(words: Words) -> Option<Self> {
        (words.count() >= BOARD_BYTES / 8).then_some(Self { words, sleeps: 0 })
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: callers pass constants or a checked bit index, all inside BOARD_BYTES; no slices over a board exist.
        unsafe { self.words.word(index) }
    }

    /// Whether a sender has set a bit since [`Self::collect`].
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.word(SUMMARY_WORD).load(Ordering::Relaxed) != 0
    }

    /// Calls `found` with each sender whose bit is set, in those words that the summary points at.
    pub fn collect(&self, mut found: impl FnMut(usize)) {
        // Acquire: the bits were set before the summary. Partner: the release in `Doorbell::ring`.
        let mut summary = self.word(SUMMARY_WORD).swap(0, Ordering::Acquire);
        while summary != 0 {
            let group = summary.trailing_zeros() as usize;
            summary &= summary - 1;
            let mut bits = self.word(ACTIVE_WORD + group).load(Ordering::Relaxed);
            while bits != 0 {
                found(group * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    /// Sets the bit of `sender`, which the receiver is going to watch on its own account.
    pub fn set(&self, sender: usize) {
        debug_assert!(sender < BOARD_LINKS_MAX);
        self.word(ACTIVE_WORD + sender / 64 % 64).fetch_or(1 << (sender % 64), Ordering::Relaxed);
    }

    /// Promises that whoever calls [`Self::clear`] or [`Self::sleep`] makes the senders' threads execute a full fence
    /// afterwards, before looking into a ring (`membarrier`). Senders then need none of their own; see
    /// [`Doorbell::receiver_fences`]. To be called before the board is handed out.
    pub fn promise_fences(&self) {
        self.word(FENCES_WORD).store(1, Ordering::Relaxed);
    }

    /// Clears the bit of `sender`. Whoever calls this looks into the ring once more afterwards: a packet published before
    /// the sender could see the cleared bit is visible then.
    pub fn clear(&self, sender: usize) {
        debug_assert!(sender < BOARD_LINKS_MAX);
        self.word(ACTIVE_WORD + sender / 64 % 64).fetch_and(!(1 << (sender % 64)), Ordering::Relaxed);
        // The receiver's half of Dekker. Partner: the fence in `Doorbell::ring`.
        fence(Ordering::SeqCst);
    }

    /// Says that the receiver is going to sleep. Before it does it must look at [`Self::is_rung`] and into all rings whose
    /// bits are set: whatever was published before the sender could see this is visible then.
    pub fn sleep(&mut self) {
        self.sleeps = self.sleeps.wrapping_add(1);
        // An exchange, not a store: it is rare, and has a place among the exchanges of `Doorbell::woken` that loom knows.
        self.word(SLEEP_WORD).swap(self.sleeps << 2 | 1, Ordering::Relaxed);
        // The receiver's half of Dekker. Partner: the fence in `Doorbell::ring`.
        fence(Ordering::SeqCst);
    }

    /// Says that the receiver is awake.
    pub fn awake(&mut self) {
        self.word(SLEEP_WORD).swap(self.sleeps << 2, Ordering::Relaxed);
    }
}

/// A receiver that sleeps, as a sender saw it: wake it, then say so with [`Doorbell::woken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Sleeper(u64);

/// A sender's view of its receiver's board.
#[derive(Clone, Debug)]
pub struct Doorbell {
    words: Words,
    word: usize,
    bit: u64,
}

impl Doorbell {
    /// The doorbell of `sender` on a board; `None` when the memory is too small or there is no such bit.
    ///
    /// # Safety
    ///
    /// As for [`Board::new`].
    pub unsafe fn new(words: Words, sender: usize) -> Option<Self> {
        (words.count() >= BOARD_BYTES / 8 && sender < BOARD_LINKS_MAX).then(|| Self {
            words,
            word: ACTIVE_WORD + sender / 64,
            bit: 1 << (sender % 64),
        })
    }

    /// Whether the receiver has promised to make this sender's fences ([`Board::promise_fences`]): [`Self::ring`] then needs
    /// no [`Self::fence`] before it, if the sender's process has registered for that.
    pub fn receiver_fences(&self) -> bool {
        // SAFETY: as in `ring`.
        unsafe { self.words.word(FENCES_WORD) }.load(Ordering::Relaxed) != 0
    }

    /// Orders everything published so far before the looks of [`Self::ring`], for the compiler alone: where the receiver makes
    /// the fence.
    #[inline(always)]
    #[allow(clippy::disallowed_methods)] // a fence for the compiler, which loom does not model
    pub fn fenced_by_receiver() {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }

    /// Orders everything published so far before the looks of [`Self::ring`]. One call serves the doorbells of many rings.
    #[inline(always)]
    pub fn fence() {
        // The sender's half of Dekker. Partners: the fences in `Board::clear` and `Board::sleep`.
        #[cfg(not(all(target_arch = "x86_64", not(miri), not(loom))))]
        fence(Ordering::SeqCst);
        // The same in fewer cycles than the MFENCE that a compiler makes of it: any locked instruction orders all earlier
        // stores before all later loads, and assembly that may touch memory orders them for the compiler.
        #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
        // SAFETY: adds nothing to a word below the stack pointer that nobody uses.
        unsafe {
            core::arch::asm!("lock or dword ptr [rsp - 64], 0");
        }
    }

    /// Whether [`Self::ring`] would do nothing: the receiver polls this sender's ring and is awake. To be called when that is.
    #[inline(always)]
    pub fn needs_no_ring(&self) -> bool {
        // SAFETY: as in `ring`.
        let (active, sleep) = unsafe { (self.words.word(self.word), self.words.word(SLEEP_WORD)) };
        active.load(Ordering::Relaxed) & self.bit != 0 && sleep.load(Ordering::Relaxed) & 3 != 1
    }

    /// Tells the receiver to look at this sender's ring. To be called after [`Self::fence`], which comes after the publishing.
    #[inline]
    pub fn ring(&self) -> Option<Sleeper> {
        // SAFETY: `new` checked the indices; no slices over a board exist.
        let (active, sleep) = unsafe { (self.words.word(self.word), self.words.word(SLEEP_WORD)) };
        if active.load(Ordering::Relaxed) & self.bit == 0 {
            self.set(active);
        }
        let seen = sleep.load(Ordering::Relaxed);
        (seen & 3 == 1).then_some(Sleeper(seen))
    }

    #[cold]
    #[inline(never)]
    fn set(&self, active: &AtomicU64) {
        active.fetch_or(self.bit, Ordering::Relaxed);
        // SAFETY: as in `ring`. Release: the bit is set before the summary says so. Partner: the acquire in `Board::collect`.
        unsafe { self.words.word(SUMMARY_WORD) }.fetch_or(1 << (self.word - ACTIVE_WORD), Ordering::Release);
        // The receiver may have looked at the summary before it said that it sleeps: our read of the sleep word comes after.
        fence(Ordering::SeqCst);
    }

    /// Says that `sleeper` has been woken, so that other senders need not. To be called *after* the wake-up was sent: a
    /// sender that is stopped in between only lets others send one more.
    pub fn woken(&self, sleeper: Sleeper) {
        // SAFETY: as in `ring`. The number of the sleep is in the word, so that a late call does not touch a later sleep.
        let _ = unsafe { self.words.word(SLEEP_WORD) }.compare_exchange(
            sleeper.0,
            sleeper.0 + 1,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}
