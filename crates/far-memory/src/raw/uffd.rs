//! The kernel's userfaultfd: what it is asked, and nothing of what for.

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
/// Messages that are read at a time.
pub const MESSAGES: usize = 16;
const _: () = assert!(MESSAGE == 32);
/// `UFFDIO_WRITEPROTECT_MODE_WP`, which the crate of constants has not.
const WP: u64 = 1;
/// `_IOWR(0xAA, 8, struct uffdio_poison)`, nor this.
const POISON: Opcode = rustix::ioctl::opcode::read_write::<sys::uffdio_poison>(0xAA, 8);

/// A fault of some thread, which waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its address, or another of its page.
    pub address: usize,
    /// It wants to write.
    pub is_write: bool,
    /// The page is there, but protected from writes.
    pub is_protected: bool,
}

/// A descriptor of userfaultfd.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    /// What the kernel can do, as it says.
    features: u64,
}

/// Why there is no descriptor.
#[derive(Debug)]
pub enum OpenError {
    /// The caller may not have one.
    NotPermitted,
    /// The kernel has none at all.
    Absent,
    /// It cannot do this.
    Lacks(&'static str),
    /// Anything else.
    Other(Errno),
}

/// What we cannot do without.
const NEEDED: [(u32, &str); 1] = [(sys::UFFD_FEATURE_PAGEFAULT_FLAG_WP, "UFFD_FEATURE_PAGEFAULT_FLAG_WP (Linux 5.7)")];

impl Uffd {
    /// Opens one. `user_mode_only`: faults of system calls are not handled, and no permission is needed.
    pub fn open(user_mode_only: bool) -> Result<Self, OpenError> {
        // What the kernel can do is told to a descriptor that asks for nothing, and each may be asked once.
        let features = Self::open_with(user_mode_only, 0)?.features;
        if let Some((_, name)) = NEEDED.iter().find(|(feature, _)| features & u64::from(*feature) == 0) {
            return Err(OpenError::Lacks(name));
        }
        let wanted = sys::UFFD_FEATURE_PAGEFAULT_FLAG_WP | sys::UFFD_FEATURE_POISON;
        Self::open_with(user_mode_only, features & u64::from(wanted))
    }

    fn open_with(user_mode_only: bool, features: u64) -> Result<Self, OpenError> {
        let only = if user_mode_only { sys::UFFD_USER_MODE_ONLY } else { 0 };
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | UserfaultfdFlags::from_bits_retain(only);
        // SAFETY: what the descriptor can do to memory is done by the calls below alone, each of which argues for itself.
        let fd = unsafe { userfaultfd(flags) }.map_err(|error| match error {
            Errno::PERM | Errno::ACCESS => OpenError::NotPermitted,
            Errno::NOSYS => OpenError::Absent,
            error => OpenError::Other(error),
        })?;
        let mut api = sys::uffdio_api { api: u64::from(sys::UFFD_API), features, ioctls: 0 };
        // SAFETY: the request takes this struct.
        unsafe { update::<{ codes::UFFDIO_API as Opcode }, _>(fd.as_fd(), &mut api) }.map_err(OpenError::Other)?;
        Ok(Self { fd, features: api.features })
    }

    /// Whether pages can be made to kill whoever touches them.
    pub fn can_poison(&self) -> bool {
        self.features & u64::from(sys::UFFD_FEATURE_POISON) != 0
    }

    /// Has faults in a range come here: missing pages, and writes to protected ones.
    ///
    /// # Safety
    ///
    /// The range is a mapping of the caller's, and nobody counts on what the kernel would do at such faults.
    pub unsafe fn register(&self, start: usize, len: usize) -> Result<(), OpenError> {
        let mode = sys::UFFDIO_REGISTER_MODE_MISSING | sys::UFFDIO_REGISTER_MODE_WP;
        let mut register = sys::uffdio_register { range: range(start, len), mode: u64::from(mode), ioctls: 0 };
        // SAFETY: the request takes this struct; what it does to the range is the caller's promise.
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

    /// Reads the faults that wait, and hands them to `each`. Returns whether there were any.
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
            let is = |flag: u32| word(8) & u64::from(flag) != 0;
            each(Fault {
                address: word(16) as usize,
                is_write: is(sys::UFFD_PAGEFAULT_FLAG_WRITE),
                is_protected: is(sys::UFFD_PAGEFAULT_FLAG_WP),
            });
        }
        Ok(len > 0)
    }

    /// Puts pages into a range in which none is, protected from writes or not, and wakes who waits for them. A page that is there stays as it is.
    ///
    /// # Safety
    ///
    /// The range is registered here, and the bytes are what its pages are to hold.
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
            // SAFETY: the request takes this struct; it reads `bytes` and writes pages of the range, of which none is there: the caller's promise.
            match unsafe { update::<{ codes::UFFDIO_COPY as Opcode }, _>(self.fd.as_fd(), &mut copy) } {
                Ok(()) => done = bytes.len(),
                // Some of it was done, or the address space was changing.
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

    /// Ends that, and wakes who waits to write there.
    pub fn unprotect(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.write_protect(start, len, 0)
    }

    fn write_protect(&self, start: usize, len: usize, mode: u64) -> Result<(), Errno> {
        loop {
            let mut protect = sys::uffdio_writeprotect { range: range(start, len), mode };
            // SAFETY: the request takes this struct, and changes no bytes: whoever writes to protected pages waits.
            match unsafe { update::<{ codes::UFFDIO_WRITEPROTECT as Opcode }, _>(self.fd.as_fd(), &mut protect) } {
                Err(Errno::AGAIN) => {}
                result => return result,
            }
        }
    }

    /// Has who waits for a range try again.
    pub fn wake(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut range = range(start, len);
        // SAFETY: the request takes this struct, and changes nothing but who runs.
        unsafe { update::<{ codes::UFFDIO_WAKE as Opcode }, _>(self.fd.as_fd(), &mut range) }
    }

    /// Has every access to a page that is not there end with SIGBUS, that of those who wait among them.
    pub fn poison(&self, start: usize, len: usize) -> Result<(), Errno> {
        loop {
            let mut poison = sys::uffdio_poison { range: range(start, len), mode: 0, updated: 0 };
            // SAFETY: the request takes this struct; pages that are there stay as they are.
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

/// Asks the kernel.
///
/// # Safety
///
/// The request takes a `T` and does nothing to memory that nobody expects.
unsafe fn update<const CODE: Opcode, T>(fd: BorrowedFd<'_>, value: &mut T) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { ioctl(fd, Updater::<CODE, T>::new(value)) }
}
