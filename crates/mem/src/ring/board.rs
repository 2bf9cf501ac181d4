//! A board, by which the senders of many rings tell one receiver which rings to look at, and learn when to wake it.
//!
//! Each sender has a bit. A sender that has published sets its bit if it is not set, and only then touches the board's
//! summary, which is the one word that an idle receiver reads. The receiver keeps its own list of the rings whose bits
//! are set, and clears a bit only after the ring has been empty for some time. So a busy ring costs its sender two
//! loads of lines that nobody writes, and an idle ring costs its receiver nothing.
//!
//! Every decision follows Dekker's pattern: each side writes, then fences, then reads what the other wrote. The sender
//! publishes, fences, and reads its bit and the sleep word; the receiver clears the bit (or declares that it sleeps),
//! fences, and looks into the ring once more. At least one of them sees the other. A sender that stops anywhere in
//! between delays its own packets only, since it holds no lock.

use super::words::Words;
use crate::atomic::{AtomicU64, Ordering, fence};

/// The most senders of one board: one bit each, with a summary of one word over them.
pub const BOARD_LINKS_MAX: usize = 64 * 64;
/// Bytes of memory that a board needs.
pub const BOARD_BYTES: usize = 256 + BOARD_LINKS_MAX / 8;

const SLEEP_WORD: usize = 0;
/// Non-zero if the receiver makes the senders' fences for them; written before the board is handed out.
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
    /// A board over fresh, zeroed memory of [`BOARD_BYTES`] bytes; `None` when the memory is smaller.
    ///
    /// # Safety
    ///
    /// Within this process, only boards and doorbells access the memory.
    pub unsafe fn new(words: Words) -> Option<Self> {
        (words.count() >= BOARD_BYTES / 8).then_some(Self { words, sleeps: 0 })
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: callers pass constants or a checked bit index, all inside BOARD_BYTES; there are no slices over a
        // board.
        unsafe { self.words.word(index) }
    }

    /// Whether a sender has set its bit since the last [`Self::collect`].
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.word(SUMMARY_WORD).load(Ordering::Relaxed) != 0
    }

    /// Calls `found` with each sender whose bit is set, in the groups of 64 that the summary names.
    pub fn collect(&self, mut found: impl FnMut(usize)) {
        // Acquire: the bits were set before the summary. Partner: the release in `Doorbell::set`.
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

    /// Sets the bit of `sender`, whose ring the receiver is going to poll without having been rung.
    pub fn set(&self, sender: usize) {
        debug_assert!(sender < BOARD_LINKS_MAX);
        self.word(ACTIVE_WORD + sender / 64 % 64).fetch_or(1 << (sender % 64), Ordering::Relaxed);
    }

    /// Promises that after each [`Self::clear`] or [`Self::sleep`], and before looking into a ring, the receiver makes
    /// the senders' threads execute a full fence (`membarrier`). Senders then need none of their own; see
    /// [`Doorbell::receiver_fences`]. Call this before the board is handed out.
    pub fn promise_fences(&self) {
        self.word(FENCES_WORD).store(1, Ordering::Relaxed);
    }

    /// Clears the bit of `sender`. The caller must look into the ring once more afterwards: a packet published before
    /// its sender could see the cleared bit is visible then.
    pub fn clear(&self, sender: usize) {
        debug_assert!(sender < BOARD_LINKS_MAX);
        self.word(ACTIVE_WORD + sender / 64 % 64).fetch_and(!(1 << (sender % 64)), Ordering::Relaxed);
        // The receiver's half of Dekker's pattern. Partner: the fence in `Doorbell::fence`.
        fence(Ordering::SeqCst);
    }

    /// Declares that the receiver is going to sleep. Before it sleeps it must check [`Self::is_rung`] and all rings
    /// whose bits are set: whatever was published before its sender could see this declaration is visible then.
    pub fn sleep(&mut self) {
        self.sleeps = self.sleeps.wrapping_add(1);
        // An exchange, not a store: the call is rare, and loom orders an exchange among those of `Doorbell::woken`.
        self.word(SLEEP_WORD).swap(self.sleeps << 2 | 1, Ordering::Relaxed);
        // The receiver's half of Dekker's pattern. Partners: the fences in `Doorbell::fence` and `Doorbell::set`.
        fence(Ordering::SeqCst);
    }

    /// Declares that the receiver is awake.
    pub fn end_sleep(&mut self) {
        self.word(SLEEP_WORD).swap(self.sleeps << 2, Ordering::Relaxed);
    }
}

/// A sleeping receiver, as a sender saw it. Wake it, then report that with [`Doorbell::woken`].
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
    /// The doorbell of `sender` on a board; `None` when the memory is too small or the board has no such bit.
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

    /// Whether the receiver has promised to make this sender's fences ([`Board::promise_fences`]). [`Self::ring`] then
    /// needs no [`Self::fence`] before it, if the sender's process has registered for `membarrier`.
    pub fn receiver_fences(&self) -> bool {
        // SAFETY: as in `ring`.
        unsafe { self.words.word(FENCES_WORD) }.load(Ordering::Relaxed) != 0
    }

    /// Orders everything published so far before the loads of [`Self::ring`], for the compiler alone. It replaces
    /// [`Self::fence`] if the receiver makes the fences.
    #[inline(always)]
    #[allow(clippy::disallowed_methods)] // a fence for the compiler, which loom does not model
    pub fn fenced_by_receiver() {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }

    /// Orders everything published so far before the loads of [`Self::ring`]. One call serves the doorbells of many
    /// rings.
    #[inline(always)]
    pub fn fence() {
        // The sender's half of Dekker's pattern. Partners: the fences in `Board::clear` and `Board::sleep`.
        #[cfg(not(all(target_arch = "x86_64", not(miri), not(loom))))]
        fence(Ordering::SeqCst);
        // The same in fewer cycles than the MFENCE that a compiler emits: any locked instruction orders all earlier
        // stores before all later loads, and assembly that may touch memory orders them for the compiler.
        #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
        // SAFETY: the instruction ORs zero into a word below the stack pointer that nobody uses.
        unsafe {
            core::arch::asm!("lock or dword ptr [rsp - 64], 0");
        }
    }

    /// Whether [`Self::ring`] would do nothing, because the receiver is awake and polls this sender's ring. Call it
    /// where [`Self::ring`] would be called.
    #[inline(always)]
    pub fn needs_no_ring(&self) -> bool {
        // SAFETY: as in `ring`.
        let (active, sleep) = unsafe { (self.words.word(self.word), self.words.word(SLEEP_WORD)) };
        active.load(Ordering::Relaxed) & self.bit != 0 && sleep.load(Ordering::Relaxed) & 3 != 1
    }

    /// Tells the receiver to look at this sender's ring; returns the receiver if it sleeps and must be woken. Call this
    /// after publishing and then [`Self::fence`].
    #[inline]
    pub fn ring(&self) -> Option<Sleeper> {
        // SAFETY: `new` checked the indices; there are no slices over a board.
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
        // SAFETY: as in `ring`. Release: the bit is set before the summary says so. Partner: the acquire in
        // `Board::collect`.
        unsafe { self.words.word(SUMMARY_WORD) }.fetch_or(1 << (self.word - ACTIVE_WORD), Ordering::Release);
        // The receiver may have read the summary before it declared its sleep: our load of the sleep word must come
        // after the summary's change. Partner: the fence in `Board::sleep`.
        fence(Ordering::SeqCst);
    }

    /// Reports that `sleeper` has been woken, so that other senders need not wake it. Call this *after* sending the
    /// wake-up: if a sender stops in between, others merely send one more.
    pub fn woken(&self, sleeper: Sleeper) {
        // SAFETY: as in `ring`. The word holds the number of the sleep, so a late call does not touch a later sleep.
        let _ = unsafe { self.words.word(SLEEP_WORD) }.compare_exchange(
            sleeper.0,
            sleeper.0 + 1,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}
