//! The area of address space, and the operations on it that every thread may use.

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

/// Most runs of pages that one call drops.
pub const RUNS_MAX: usize = 32;

/// Consecutive pages: the first, and their number.
pub type Run = (u64, usize);

/// Reason why there is no mapping.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The process may not handle faults of system calls.
    #[error(
        "userfaultfd is not permitted: run with the capability CAP_SYS_PTRACE, set the sysctl vm.unprivileged_userfaultfd to 1, or use \
         `MapOptions::user_mode_only`, which needs neither (system calls on missing pages then fail)"
    )]
    NotPermitted,
    /// The process may not handle any faults.
    #[error(
        "userfaultfd is not permitted, not even for faults of the program itself: the container's seccomp profile, or the security module, forbids \
         the system call"
    )]
    Forbidden,
    /// The kernel was built without userfaultfd.
    #[error("the kernel has no userfaultfd (CONFIG_USERFAULTFD)")]
    Absent,
    /// The kernel lacks a feature, usually because it is too old.
    #[error("the kernel's userfaultfd lacks {0}")]
    Lacks(&'static str),
    /// A mapping of no pages, or of more than the address space has.
    #[error("cannot map {0} pages")]
    Pages(u64),
    /// Another error of the system.
    #[error("cannot map far memory: {0}")]
    System(#[from] io::Error),
}

/// Fate of a thread that touches a lost page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// It gets SIGBUS, where the kernel supports that (Linux 6.6); elsewhere it waits.
    #[default]
    Poison,
    /// It waits. The page is retried now and then.
    Wait,
}

/// Options of a mapping.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapOptions {
    /// Handle only faults of the program itself. A system call that is given a missing page fails with EFAULT.
    pub user_mode_only: bool,
    /// Fate of a thread that touches a lost page.
    pub on_loss: OnLoss,
}

/// An area of address space whose pages lie in a [`Store`](sinew_remote_memory::Store), and are read and written by
/// plain loads and stores of any thread.
///
/// A thread that touches a missing page waits until the mapping's [`Handler`](super::Handler) has fetched it: run one,
/// on a thread that itself touches no page of the area. Before there is a handler, and after it has stopped, such a
/// thread waits. Touching a page whose copies are all lost raises SIGBUS, where the kernel supports that (Linux 6.6).
/// On other kernels, and with [`OnLoss::Wait`], the thread waits while the page is retried, and the handler's owner is
/// told and decides. No thread ever gets wrong bytes. There are no signal handlers.
///
/// Clones are the same area, which is unmapped when the last of them and the handler are gone. A child process (`fork`)
/// does not have it.
#[derive(Clone, Debug)]
pub struct FarMapping(Arc<Area>);

/// State shared by the handler and the users of a mapping.
#[derive(Debug)]
pub struct Area {
    start: NonNull<u8>,
    len: usize,
    /// Closed after the area is unmapped: without it, missing pages would read as zeros.
    uffd: Uffd,
    /// A descriptor of this process, for `process_madvise` on itself.
    process: Option<OwnedFd>,
    pub(super) options: MapOptions,
    /// Handlers asked for so far; only the first is made.
    handlers_requested: AtomicU64,
    requests: Mutex<Requests>,
    /// Held while waiting for a flush, so that one thread flushes at a time.
    flushing: Mutex<()>,
    requests_done: Condvar,
}

// SAFETY: `start` is a range of addresses that stays mapped while the area lives. Code that accesses its bytes argues
// for each access.
unsafe impl Send for Area {}
// SAFETY: as above; the other fields are behind locks, atomic, or descriptors that the kernel synchronises.
unsafe impl Sync for Area {}

/// Requests to a handler.
#[derive(Debug, Default)]
pub struct Requests {
    /// Return from the loop.
    pub stop: bool,
    /// Retry lost pages.
    pub retry_lost: bool,
    /// Flushes requested, and flushes finished.
    pub flushes: (u64, u64),
    /// Error of the last flush, if it failed.
    pub result: Option<FarError>,
    /// Whether a handler has left its loop.
    pub has_stopped: bool,
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it any more.
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
            handlers_requested: AtomicU64::new(0),
            requests: Mutex::default(),
            flushing: Mutex::default(),
            requests_done: Condvar::new(),
        };
        for advice in [Advice::LinuxNoHugepage, Advice::LinuxDontFork] {
            // SAFETY: neither changes bytes of the area.
            match unsafe { madvise(start.as_ptr().cast(), len, advice) } {
                // The kernel has no huge pages.
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

    /// Address of a page.
    pub(super) fn address(&self, page: u64) -> usize {
        self.start.as_ptr().expose_provenance() + page as usize * PAGE
    }

    /// The page that an address lies in, if it is in the area.
    pub(super) fn page(&self, address: usize) -> Option<u64> {
        let offset = address.checked_sub(self.start.as_ptr().addr())?;
        (offset < self.len).then_some((offset / PAGE) as u64)
    }

    /// Copies present pages out, while other threads may read them.
    ///
    /// # Safety
    ///
    /// The pages are present, and protected from writes until this returns.
    pub(super) unsafe fn copy_out(&self, page: u64, target: &mut [u8]) {
        let offset = page as usize * PAGE;
        assert!(offset + target.len() <= self.len, "pages of the area");
        // SAFETY: in bounds; the target is the caller's, and by the caller's promise nobody writes the source.
        unsafe { copy_from_shared(self.start.as_ptr().add(offset), target.as_mut_ptr(), target.len()) };
    }

    /// Drops runs of pages, so that the next access to them faults. Uses one call where the kernel allows it for a
    /// process itself (Linux 6.13), so that other processors are interrupted once and not for each run.
    ///
    /// # Safety
    ///
    /// The pages are protected from writes, or missing, and their contents can be fetched again.
    pub(super) unsafe fn drop_pages(&self, runs: &[Run]) -> io::Result<()> {
        let mut ranges = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; RUNS_MAX];
        for runs in runs.chunks(RUNS_MAX) {
            for (range, (page, count)) in ranges.iter_mut().zip(runs) {
                let offset = *page as usize * PAGE;
                assert!(offset + count * PAGE <= self.len, "pages of the area");
                // SAFETY: in bounds.
                range.iov_base = unsafe { self.start.as_ptr().add(offset).cast() };
                range.iov_len = count * PAGE;
            }
            let ranges = &ranges[..runs.len()];
            let requested_len: usize = ranges.iter().map(|range| range.iov_len).sum();
            // SAFETY: by the caller's promise, the next reader of the pages gets the same bytes again.
            if ranges.len() > 1 && unsafe { self.drop_in_one_call(ranges) } == Some(requested_len) {
                continue;
            }
            for range in ranges {
                // SAFETY: as above; pages already dropped are merely missing.
                unsafe { madvise(range.iov_base, range.iov_len, Advice::LinuxDontNeed) }?;
            }
        }
        Ok(())
    }

    /// Returns the number of bytes dropped, or `None` if the kernel cannot do it.
    ///
    /// # Safety
    ///
    /// As for [`Self::drop_pages`], for ranges of the area.
    unsafe fn drop_in_one_call(&self, ranges: &[libc::iovec]) -> Option<usize> {
        let process = self.process.as_ref()?.as_raw_fd();
        let (count, no_flags) = (ranges.len(), 0 as libc::c_uint);
        // SAFETY: the call only reads the list, which outlives it; the effect on the pages is the caller's promise.
        let dropped = unsafe {
            let advice = libc::MADV_DONTNEED;
            libc::syscall(libc::SYS_process_madvise, process, ranges.as_ptr(), count, advice, no_flags)
        };
        usize::try_from(dropped).ok()
    }

    pub(super) fn lock_requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify_done(&self) {
        self.requests_done.notify_all();
    }

    /// Whether the caller is the first handler.
    pub(super) fn claim_handler(&self) -> bool {
        // Relaxed: only the count matters.
        self.handlers_requested.fetch_add(1, Ordering::Relaxed) == 0
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
    /// Maps an area of `pages` pages. No memory is used for them yet.
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

    /// Address of its first byte. The bytes are valid for as long as the mapping lives, and are those of the store, or
    /// what was stored here since. Accesses from several threads follow the language's rules, as everywhere.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it has no bytes. This is never the case.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The whole area as words that threads share.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the area is mapped while `self` lives, `start` is aligned to a page, and any bytes are valid words.
        // The handler copies pages out under write protection, and puts the same bytes back.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().cast(), self.0.len / 8) }
    }
}

/// A handle by which other threads make requests to a running [`Handler`](super::Handler). Cheap to clone.
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

    /// Makes the handler's loop return; if none is running, the next one returns at once. Faults wait then.
    pub fn stop(&self) {
        self.area.lock_requests().stop = true;
        self.waker.wake();
    }

    /// Writes everything stored before this call to the store, and waits for the store's confirmation.
    ///
    /// # Errors
    ///
    /// [`FarError::WriteBack`]: pages that were not written stay local and changed. [`FarError::Unconfirmed`].
    /// [`FarError::Stopped`]: the handler stopped first.
    pub fn flush(&self) -> Result<(), FarError> {
        let _one_at_a_time = self.area.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut requests = self.area.lock_requests();
        requests.flushes.0 += 1;
        requests.result = None;
        let flush_number = requests.flushes.0;
        drop(requests);
        self.waker.wake();
        let mut requests = self.area.lock_requests();
        while requests.flushes.1 < flush_number {
            if requests.has_stopped {
                return Err(FarError::Stopped);
            }
            requests = self.area.requests_done.wait(requests).unwrap_or_else(PoisonError::into_inner);
        }
        requests.result.take().map_or(Ok(()), Err)
    }

    /// Makes lost pages be requested again when they are next touched: their copies may have come back.
    pub fn retry_lost(&self) {
        self.area.lock_requests().retry_lost = true;
        self.waker.wake();
    }
}
