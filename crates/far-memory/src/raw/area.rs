//! The area of address space, and what every thread may do with it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use sinew_fabric::Waker;
use sinew_mem::atomic::plain::{Arc, AtomicU64, Ordering};
use sinew_mem::copy::copy_from_shared;

use super::uffd::{OpenError, Uffd};
use crate::error::FarError;
use crate::options::PAGE;

/// Runs of pages that are dropped by one call, at most.
pub const RUNS: usize = 32;

/// Pages in a row: the first, and how many.
pub type Run = (u64, usize);

/// Why there is no mapping.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The process may not handle faults of system calls.
    #[error(
        "userfaultfd is not permitted: run with the capability CAP_SYS_PTRACE, set the sysctl vm.unprivileged_userfaultfd to 1, or take \
         `MapOptions::user_mode_only`, which needs neither (system calls on pages that are not here fail then)"
    )]
    NotPermitted,
    /// The process may handle no faults at all.
    #[error(
        "userfaultfd is not permitted, not even for faults of the program itself: the container's seccomp profile, or the security module, forbids \
         the system call"
    )]
    Forbidden,
    /// The kernel was built without it.
    #[error("the kernel has no userfaultfd (CONFIG_USERFAULTFD)")]
    Absent,
    /// The kernel is too old for something.
    #[error("the kernel's userfaultfd lacks {0}")]
    Lacks(&'static str),
    /// Nothing to map, or more than there is address space.
    #[error("a mapping of {0} pages cannot be had")]
    Pages(u64),
    /// What the system says.
    #[error("cannot map far memory: {0}")]
    System(#[from] io::Error),
}

/// What a thread that touches a lost page gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// SIGBUS, where the kernel can do that (Linux 6.6); else it waits.
    #[default]
    Poison,
    /// It waits. The page is asked for again every now and then.
    Wait,
}

/// What the maker of a mapping decides.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapOptions {
    /// Handle only faults of the program itself. A system call that is given a page that is not here fails with EFAULT.
    pub user_mode_only: bool,
    /// What a thread that touches a lost page gets.
    pub on_loss: OnLoss,
}

/// An area of address space whose pages lie in a [`Store`](sinew_remote_memory::Store), and are read and written by plain loads and stores of any thread.
///
/// A thread that touches a page that is not here waits until the mapping's [`Handler`](super::Handler) has brought it: run one, on a thread that itself touches no page of the
/// area. Before there is one, and after it has stopped, such a thread waits. A page whose copies are all lost kills who touches it with SIGBUS, where the
/// kernel can do so (Linux 6.6); else, and with [`OnLoss::Wait`], who touches it waits while the page is tried again, and the handler's owner is told, who decides. Nobody gets wrong
/// bytes. There are no signal handlers.
///
/// Clones are the same area, which is unmapped when the last of them and the handler are gone. A child process (`fork`) does not have it.
#[derive(Clone, Debug)]
pub struct FarMapping(Arc<Area>);

/// What the handler and the users of a mapping share.
#[derive(Debug)]
pub struct Area {
    start: NonNull<u8>,
    len: usize,
    /// Closed after the area is unmapped: without it, missing pages would be zeros.
    uffd: Uffd,
    /// This process, for what it does to itself.
    process: Option<OwnedFd>,
    pub(super) options: MapOptions,
    /// Whether it has a handler: 0, or 1 for ever.
    taken: AtomicU64,
    asked: Mutex<Asked>,
    /// Held by who waits for a flush.
    flushing: Mutex<()>,
    answered: Condvar,
}

// SAFETY: a range of addresses that is mapped as long as the area lives; who touches its bytes answers for that.
unsafe impl Send for Area {}
// SAFETY: as above; what else it has is behind a lock, or the kernel's.
unsafe impl Sync for Area {}

/// What a handler is asked to do.
#[derive(Debug, Default)]
pub struct Asked {
    /// To return from its loop.
    pub stop: bool,
    /// To try lost pages again.
    pub forgive: bool,
    /// Flushes that were asked for, and those that are over.
    pub flushes: (u64, u64),
    /// How the last one ended.
    pub result: Option<FarError>,
    /// Whether a handler has left its loop.
    pub has_stopped: bool,
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody has it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

impl Area {
    fn new(pages: u64, options: MapOptions) -> Result<Self, MapError> {
        let len = usize::try_from(pages).ok().and_then(|pages| pages.checked_mul(PAGE)).filter(|len| *len > 0);
        let len = len.ok_or(MapError::Pages(pages))?;
        let uffd = Uffd::open(options.user_mode_only).map_err(|error| of_open(error, options.user_mode_only))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let start = NonNull::new(start.map_err(io::Error::from)?.cast()).ok_or(MapError::Pages(pages))?;
        let area = Self {
            start,
            len,
            uffd,
            process: pidfd_open(getpid(), PidfdFlags::empty()).ok(),
            options,
            taken: AtomicU64::new(0),
            asked: Mutex::default(),
            flushing: Mutex::default(),
            answered: Condvar::new(),
        };
        for advice in [Advice::LinuxNoHugepage, Advice::LinuxDontFork] {
            // SAFETY: neither changes bytes of the area.
            match unsafe { madvise(start.as_ptr().cast(), len, advice) } {
                // A kernel without huge pages.
                Err(rustix::io::Errno::INVAL) if matches!(advice, Advice::LinuxNoHugepage) => {}
                result => result.map_err(io::Error::from)?,
            }
        }
        // SAFETY: the mapping is ours, and nobody has touched it yet.
        unsafe { area.uffd.register(area.address(0), len) }.map_err(|error| of_open(error, options.user_mode_only))?;
        Ok(area)
    }

    pub(super) fn uffd(&self) -> &Uffd {
        &self.uffd
    }

    pub(super) fn pages(&self) -> u64 {
        (self.len / PAGE) as u64
    }

    /// Where a page starts.
    pub(super) fn address(&self, page: u64) -> usize {
        self.start.as_ptr().expose_provenance() + page as usize * PAGE
    }

    /// The page of an address of the area.
    pub(super) fn page(&self, address: usize) -> Option<u64> {
        let at = address.checked_sub(self.start.as_ptr().addr())?;
        (at < self.len).then_some((at / PAGE) as u64)
    }

    /// Copies pages that are here out, while others may read them.
    ///
    /// # Safety
    ///
    /// They are here and protected from writes until this returns.
    pub(super) unsafe fn copy_out(&self, page: u64, target: &mut [u8]) {
        let at = page as usize * PAGE;
        assert!(at + target.len() <= self.len, "pages of the area");
        // SAFETY: in bounds; the target is the caller's, and nobody writes the source: the caller's promise.
        unsafe { copy_from_shared(self.start.as_ptr().add(at), target.as_mut_ptr(), target.len()) };
    }

    /// Has runs of pages here no more: the next access to them is a fault. By one call, where the kernel does that for a process itself (Linux 6.13), so
    /// that other processors are interrupted once and not for each.
    ///
    /// # Safety
    ///
    /// They are protected from writes, or missing, and what they hold can be fetched again.
    pub(super) unsafe fn drop_pages(&self, runs: &[Run]) -> io::Result<()> {
        let mut ranges = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; RUNS];
        for runs in runs.chunks(RUNS) {
            for (range, (page, count)) in ranges.iter_mut().zip(runs) {
                let at = *page as usize * PAGE;
                assert!(at + count * PAGE <= self.len, "pages of the area");
                // SAFETY: in bounds.
                range.iov_base = unsafe { self.start.as_ptr().add(at).cast() };
                range.iov_len = count * PAGE;
            }
            let ranges = &ranges[..runs.len()];
            let wanted: usize = ranges.iter().map(|range| range.iov_len).sum();
            // SAFETY: who reads the pages next gets the same bytes again: the caller's promise.
            if ranges.len() > 1 && unsafe { self.drop_at_once(ranges) } == Some(wanted) {
                continue;
            }
            for range in ranges {
                // SAFETY: as above; those that are gone already are missing.
                unsafe { madvise(range.iov_base, range.iov_len, Advice::LinuxDontNeed) }?;
            }
        }
        Ok(())
    }

    /// Returns the bytes that were dropped, if the kernel can do it.
    ///
    /// # Safety
    ///
    /// As for [`Self::drop_pages`], of ranges of the area.
    unsafe fn drop_at_once(&self, ranges: &[libc::iovec]) -> Option<usize> {
        let process = self.process.as_ref()?.as_raw_fd();
        let (count, no_flags) = (ranges.len(), 0 as libc::c_uint);
        // SAFETY: the call reads the list, which lives; what it does to the pages is the caller's promise.
        let dropped = unsafe {
            let advice = libc::MADV_DONTNEED;
            libc::syscall(libc::SYS_process_madvise, process, ranges.as_ptr(), count, advice, no_flags)
        };
        usize::try_from(dropped).ok()
    }

    pub(super) fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell_answered(&self) {
        self.answered.notify_all();
    }

    /// Whether the caller is the first handler.
    pub(super) fn take(&self) -> bool {
        // Relaxed: it is the count alone that matters.
        self.taken.fetch_add(1, Ordering::Relaxed) == 0
    }
}

fn of_open(error: OpenError, user_mode_only: bool) -> MapError {
    match error {
        OpenError::NotPermitted if user_mode_only => MapError::Forbidden,
        OpenError::NotPermitted => MapError::NotPermitted,
        OpenError::Absent => MapError::Absent,
        OpenError::Lacks(what) => MapError::Lacks(what),
        OpenError::Other(error) => MapError::System(error.into()),
    }
}

impl FarMapping {
    /// An area of so many pages. None of its memory is taken yet.
    ///
    /// # Errors
    ///
    /// [`MapError`]: what is missing, and how to get it.
    pub fn new(pages: u64, options: MapOptions) -> Result<Self, MapError> {
        Area::new(pages, options).map(|area| Self(Arc::new(area)))
    }

    pub(super) fn area(&self) -> &Arc<Area> {
        &self.0
    }

    /// Where it starts. Bytes are valid for as long as the mapping lives, and are what the store holds, or what was stored there since. Accesses from several
    /// threads follow the language's rules, as anywhere.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it has none, which no mapping has.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// All of it as words that threads share.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped while `self` lives and aligned to a page; any bytes are words. The handler copies them out under write protection, and puts the same back.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().cast(), self.0.len / 8) }
    }
}

/// What other threads ask of a running [`Handler`](super::Handler). Cheap to clone.
#[derive(Clone)]
pub struct Control {
    area: Arc<Area>,
    waker: Waker,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

impl Control {
    pub(super) fn new(area: Arc<Area>, waker: Waker) -> Self {
        Self { area, waker }
    }

    /// Has the handler's loop return, or its next one at once. Faults wait then.
    pub fn stop(&self) {
        self.area.asked().stop = true;
        self.waker.wake();
    }

    /// Writes what was stored before to the store, and waits until it has confirmed that.
    ///
    /// # Errors
    ///
    /// [`FarError::WriteBack`]: what was not written stays local and changed. [`FarError::Unconfirmed`]. [`FarError::Stopped`]: the handler stopped before.
    pub fn flush(&self) -> Result<(), FarError> {
        let _one_at_a_time = self.area.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut asked = self.area.asked();
        asked.flushes.0 += 1;
        asked.result = None;
        let mine = asked.flushes.0;
        drop(asked);
        self.waker.wake();
        let mut asked = self.area.asked();
        while asked.flushes.1 < mine {
            if asked.has_stopped {
                return Err(FarError::Stopped);
            }
            asked = self.area.answered.wait(asked).unwrap_or_else(PoisonError::into_inner);
        }
        asked.result.take().map_or(Ok(()), Err)
    }

    /// Has pages that were found lost be asked for again when they are touched next: their copies may have come back.
    pub fn forgive(&self) {
        self.area.asked().forgive = true;
        self.waker.wake();
    }
}
