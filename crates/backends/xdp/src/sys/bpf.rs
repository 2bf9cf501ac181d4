//! The system call `bpf`: maps, programs and links.

use std::io;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;
use crate::bpf::assembler::Instruction;

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE: libc::c_long = 2;
const MAP_DELETE: libc::c_long = 3;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;

const MAP_TYPE_HASH: u32 = 1;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;

const XDP_SKB_MODE: u32 = 2;
const XDP_DRV_MODE: u32 = 4;

/// Bytes of the argument, enough for the fields that are set here.
const ATTR_LEN: usize = 128;

/// The argument of the call, field by field.
struct Attr([u8; ATTR_LEN]);

impl Attr {
    fn new() -> Self {
        Self([0; ATTR_LEN])
    }

    fn u32(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, at: usize, value: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn fd(self, at: usize, fd: BorrowedFd<'_>) -> Self {
        self.u32(at, fd.as_raw_fd() as u32)
    }

    fn name(mut self, at: usize, name: &str) -> Self {
        let len = name.len().min(15);
        self.0[at..at + len].copy_from_slice(&name.as_bytes()[..len]);
        self
    }

    /// # Safety
    ///
    /// The addresses among the fields are of memory that the command may read or write as it does.
    unsafe fn call(&self, command: libc::c_long) -> io::Result<libc::c_int> {
        // SAFETY: the argument is a live block of the given length; the caller vouches for what it points to.
        let status = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_ptr(), ATTR_LEN) };
        check(status as libc::c_int)
    }

    /// # Safety
    ///
    /// As for [`Self::call`]; and the command returns a descriptor.
    unsafe fn call_for_fd(&self, command: libc::c_long) -> io::Result<OwnedFd> {
        // SAFETY: the caller's promises are those of `call`; the descriptor is new, and nothing else owns it.
        unsafe { Ok(OwnedFd::from_raw_fd(self.call(command)?)) }
    }
}

/// A map in the kernel, with keys of `K` bytes and 32-bit values.
#[derive(Debug)]
pub(crate) struct Map<const K: usize>(OwnedFd);

fn create_map(kind: u32, key_len: usize, entries: u32, name: &str) -> io::Result<OwnedFd> {
    let attr = Attr::new().u32(0, kind).u32(4, key_len as u32).u32(8, 4).u32(12, entries).name(28, name);
    // SAFETY: there are no addresses among the fields.
    unsafe { attr.call_for_fd(MAP_CREATE) }
}

impl Map<4> {
    /// A map from numbers to sockets.
    pub fn of_sockets(entries: u32) -> io::Result<Self> {
        Ok(Self(create_map(MAP_TYPE_XSKMAP, 4, entries, "sinew_sockets")?))
    }
}

impl<const K: usize> Map<K> {
    /// A hash map.
    pub fn hash(entries: u32) -> io::Result<Self> {
        Ok(Self(create_map(MAP_TYPE_HASH, K, entries, "sinew_places")?))
    }

    /// Sets the value of a key.
    pub fn set(&self, key: &[u8; K], value: u32) -> io::Result<()> {
        let value = value.to_ne_bytes();
        let attr = self.keyed(key).u64(16, value.as_ptr().addr() as u64);
        // SAFETY: the addresses are of a key and a value with the map's lengths, which live through the call.
        unsafe { attr.call(MAP_UPDATE) }.map(|_| ())
    }

    /// Sets the socket of a key.
    pub fn set_socket(&self, key: &[u8; K], socket: impl AsFd) -> io::Result<()> {
        self.set(key, socket.as_fd().as_raw_fd() as u32)
    }

    /// Removes a key.
    pub fn remove(&self, key: &[u8; K]) -> io::Result<()> {
        // SAFETY: the address is of a key with the map's length, which lives through the call.
        unsafe { self.keyed(key).call(MAP_DELETE) }.map(|_| ())
    }

    fn keyed(&self, key: &[u8; K]) -> Attr {
        key.as_ptr().expose_provenance();
        Attr::new().fd(0, self.0.as_fd()).u64(8, key.as_ptr().addr() as u64)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Loads a program. The error includes the verifier's objections.
pub(crate) fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    let code: Vec<u8> = program.iter().flat_map(|instruction| instruction.to_bytes()).collect();
    let license = c"Dual MIT/GPL";
    let attr = Attr::new()
        .u32(0, PROG_TYPE_XDP)
        .u32(4, program.len() as u32)
        .u64(8, code.as_ptr().addr() as u64)
        .u64(16, license.as_ptr().addr() as u64)
        .name(48, "sinew_frames");
    // SAFETY: the addresses are of the instructions, with the given length, and of a string; both live through the
    // call.
    let loaded = unsafe { attr.call_for_fd(PROG_LOAD) };
    loaded.map_err(|error| {
        if error.raw_os_error() != Some(libc::EINVAL) && error.raw_os_error() != Some(libc::EACCES) {
            return error;
        }
        let mut log = vec![0u8; 1 << 16];
        let attr = Attr(attr.0).u32(24, 1).u32(28, log.len() as u32).u64(32, log.as_mut_ptr().addr() as u64);
        // SAFETY: as above; and the log is a live block of the given length, which nothing reads while it is written.
        if let Ok(fd) = unsafe { attr.call_for_fd(PROG_LOAD) } {
            drop(fd);
        }
        let text = String::from_utf8_lossy(&log);
        let last: Vec<_> = text.trim_end_matches('\0').lines().rev().take(4).collect();
        io::Error::new(error.kind(), format!("{error}: {}", last.into_iter().rev().collect::<Vec<_>>().join("; ")))
    })
}

/// Attaches a program to an interface for as long as the descriptor is open, and at most as long as this process lives.
pub(crate) fn attach(program: &OwnedFd, interface: u32, native: bool) -> io::Result<OwnedFd> {
    let mode = if native { XDP_DRV_MODE } else { XDP_SKB_MODE };
    let attr = Attr::new().fd(0, program.as_fd()).u32(4, interface).u32(8, ATTACH_XDP).u32(12, mode);
    // SAFETY: there are no addresses among the fields.
    unsafe { attr.call_for_fd(LINK_CREATE) }
}
