//! Thin wrappers of the kernel's userfaultfd calls.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use linux_raw_sys::general as sys;
use linux_raw_sys::ioctl as codes;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

use crate::options::PAGE;

/// Bytes of a message.
const MESSAGE: usize = size_of::<sys::uffd_msg>();
/// Messages read at a time.
pub const MESSAGES: usize = 16;
const _: () = assert!(MESSAGE == 32);
/// `UFFDIO_WRITEPROTECT_MODE_WP`, which `linux-raw-sys` lacks.
const WP: u64 = 1;
/// `_IOWR(0xAA, 8, struct uffdio_poison)`, which it lacks, too.
const POISON: Opcode = rustix::ioctl::opcode::read_write::<sys::uffdio_poison>(0xAA, 8);

/// A fault of a thread, which waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The address that faulted, or another in the same page.
    pub address: usize,
    /// The access is a write.
    pub is_write: bool,
    /// The page is present, but protected from writes.
    pub is_protected: bool,
}

/// A userfaultfd descriptor.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    /// Features that the kernel reports.
    features: u64,
}

/// Reason why there is no descriptor.
#[derive(Debug)]
pub enum OpenError {
    /// The caller may not have one.
    NotPermitted,
    /// The kernel has no userfaultfd.
    Absent,
    /// The kernel lacks this feature.
    Lacks(&'static str),
    /// Anything else.
    Other(Errno),
}

/// Features required of the kernel.
const FEATURES_NEEDED: [(u32, &str); 1] =
    [(sys::UFFD_FEATURE_PAGEFAULT_FLAG_WP, "UFFD_FEATURE_PAGEFAULT_FLAG_WP (Linux 5.7)")];

impl Uffd {
    /// Opens a descriptor. With `user_mode_only`, faults of system calls are not handled, and no permission is needed.
    pub fn open(user_mode_only: bool) -> Result<Self, OpenError> {
        // A descriptor that requests no features reports all that the kernel has, and a descriptor can be asked only
        // once.
        let features = Self::open_with(user_mode_only, 0)?.features;
        if let Some((_, name)) = FEATURES_NEEDED.iter().find(|(feature, _)| features & u64::from(*feature) == 0) {
            return Err(OpenError::Lacks(name));
        }
        let wanted = sys::UFFD_FEATURE_PAGEFAULT_FLAG_WP | sys::UFFD_FEATURE_POISON;
        Self::open_with(user_mode_only, features & u64::from(wanted))
    }

    fn open_with(user_mode_only: bool, features: u64) -> Result<Self, OpenError> {
        let only = if user_mode_only { sys::UFFD_USER_MODE_ONLY } else { 0 };
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | UserfaultfdFlags::from_bits_retain(only);
        // SAFETY: the descriptor affects memory only through the calls below, each of which argues for itself.
        let fd = unsafe { userfaultfd(flags) }.map_err(|error| match error {
            Errno::PERM | Errno::ACCESS => OpenError::NotPermitted,
            Errno::NOSYS => OpenError::Absent,
            error => OpenError::Other(error),
        })?;
        let mut api = sys::uffdio_api { api: u64::from(sys::UFFD_API), features, ioctls: 0 };
        // SAFETY: this request takes this struct.
        unsafe { update::<{ codes::UFFDIO_API as Opcode }, _>(fd.as_fd(), &mut api) }.map_err(OpenError::Other)?;
        Ok(Self { fd, features: api.features })
    }

    /// Whether pages can be poisoned, so that touching them raises SIGBUS.
    pub fn can_poison(&self) -> bool {
        self.features & u64::from(sys::UFFD_FEATURE_POISON) != 0
    }

    /// Directs faults in a range to this descriptor: missing pages, and writes to protected ones.
    ///
    /// # Safety
    ///
    /// The range is a mapping of the caller's, and nothing relies on the kernel's own handling of such faults.
    pub unsafe fn register(&self, start: usize, len: usize) -> Result<(), OpenError> {
        let mode = sys::UFFDIO_REGISTER_MODE_MISSING | sys::UFFDIO_REGISTER_MODE_WP;
        let mut register = sys::uffdio_register { range: range(start, len), mode: u64::from(mode), ioctls: 0 };
        // SAFETY: this request takes this struct; the effect on the range is the caller's promise.
        unsafe { update::<{ codes::UFFDIO_REGISTER as Opcode }, _>(self.fd.as_fd(), &mut register) }
            .map_err(OpenError::Other)?;
        let has = |number: u32| register.ioctls & (1 << number) != 0;
        match () {
            () if !has(sys::_UFFDIO_COPY) => Err(OpenError::Lacks("UFFDIO_COPY")),
            () if !has(sys::_UFFDIO_WRITEPROTECT) => {
                Err(OpenError::Lacks("UFFDIO_WRITEPROTECT (Linux 5.7; ARM: 6.10)"))
            }
            () => Ok(()),
        }
    }

    /// Reads the waiting faults, at most [`MESSAGES`], and hands them to `each`. Returns whether there were any.
    pub fn faults(&self, mut each: impl FnMut(Fault)) -> io::Result<bool> {
        let mut bytes = [0; MESSAGES * MESSAGE];
        let len = match rustix::io::read(&self.fd, &mut bytes) {
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        for message in bytes[..len].as_chunks::<MESSAGE>().0 {
            if u32::from(message[0]) != sys::UFFD_EVENT_PAGEFAULT {
                continue;
            }
            let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| message[at + byte]));
            let has_flag = |flag: u32| word(8) & u64::from(flag) != 0;
            each(Fault {
                address: word(16) as usize,
                is_write: has_flag(sys::UFFD_PAGEFAULT_FLAG_WRITE),
                is_protected: has_flag(sys::UFFD_PAGEFAULT_FLAG_WP),
            });
        }
        Ok(len > 0)
    }

    /// Puts pages into a range that has none, write-protected or not, and wakes the threads that wait for them. A page
    /// already present stays as it is.
    ///
    /// # Safety
    ///
    /// The range is registered here, and the bytes are what its pages must hold.
    pub unsafe fn copy(&self, start: usize, bytes: &[u8], protect: bool) -> Result<(), Errno> {
        let mode = if protect { sys::UFFDIO_COPY_MODE_WP } else { 0 };
        let mut done = 0;
        while done < bytes.len() {
            let mut copy = sys::uffdio_copy {
                dst: (start + done) as u64,
                src: bytes[done..].as_ptr().expose_provenance() as u64,
                len: (bytes.len() - done) as u64,
                mode: u64::from(mode),
                copy: 0,
            };
            // SAFETY: this request takes this struct; it reads `bytes` and writes pages of the range, none of which is
            // present: the caller's promise.
            match unsafe { update::<{ codes::UFFDIO_COPY as Opcode }, _>(self.fd.as_fd(), &mut copy) } {
                Ok(()) => done = bytes.len(),
                // Part of it was done, or the address space was changing.
                Err(Errno::AGAIN) => done += usize::try_from(copy.copy).unwrap_or(0),
                Err(Errno::EXIST) => {
                    self.wake(start + done, PAGE)?;
                    done += PAGE;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Protects a range from writes.
    pub fn protect(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.write_protect(start, len, WP)
    }

    /// Ends write protection, and wakes the threads that wait to write there.
    pub fn unprotect(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.write_protect(start, len, 0)
    }

    fn write_protect(&self, start: usize, len: usize, mode: u64) -> Result<(), Errno> {
        loop {
            let mut protect = sys::uffdio_writeprotect { range: range(start, len), mode };
            // SAFETY: this request takes this struct, and changes no bytes: a thread that writes to a protected page
            // waits.
            match unsafe { update::<{ codes::UFFDIO_WRITEPROTECT as Opcode }, _>(self.fd.as_fd(), &mut protect) } {
                Err(Errno::AGAIN) => {}
                result => return result,
            }
        }
    }

    /// Makes the threads that wait for a range retry their access.
    pub fn wake(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut range = range(start, len);
        // SAFETY: this request takes this struct, and only makes threads runnable.
        unsafe { update::<{ codes::UFFDIO_WAKE as Opcode }, _>(self.fd.as_fd(), &mut range) }
    }

    /// Makes every access to a missing page of the range end with SIGBUS, including those of threads that wait already.
    pub fn poison(&self, start: usize, len: usize) -> Result<(), Errno> {
        loop {
            let mut poison = sys::uffdio_poison { range: range(start, len), mode: 0, updated: 0 };
            // SAFETY: this request takes this struct; pages that are present stay as they are.
            match unsafe { update::<POISON, _>(self.fd.as_fd(), &mut poison) } {
                Err(Errno::AGAIN) => {}
                result => return result,
            }
        }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn range(start: usize, len: usize) -> sys::uffdio_range {
    sys::uffdio_range { start: start as u64, len: len as u64 }
}

/// Makes a request of the kernel.
///
/// # Safety
///
/// The request takes a `T`, and its effect on memory is one that the memory's users expect.
unsafe fn update<const CODE: Opcode, T>(fd: BorrowedFd<'_>, value: &mut T) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { ioctl(fd, Updater::<CODE, T>::new(value)) }
}
