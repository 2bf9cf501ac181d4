//! The socket, and every unsafe call on it. The interface to the rest of the crate is safe.

mod control;
mod errors;
mod name;
mod receive;
mod send;

use std::io;
use std::mem::size_of;
use std::net::SocketAddr;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use sinew_fabric::Peer;

use crate::peer;

use name::NAME_LEN;

pub(crate) use name::Name;
pub(crate) use receive::{ReceiveRing, Received};
pub(crate) use send::SendMemory;

const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;

fn check(status: libc::c_int) -> io::Result<libc::c_int> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(status) }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A bound, non-blocking UDP socket.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    v6: bool,
}

impl Socket {
    /// Binds to `address`. An IPv6 wildcard accepts IPv4 too.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let v6 = address.is_ipv6();
        let socket = Self::unbound(v6)?;
        if v6 {
            let only = libc::c_int::from(!address.ip().is_unspecified());
            socket.set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only)?;
        }
        let name = Name::of(peer::pack(address), v6).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the pointer and length are those of a live socket address.
        check(unsafe { libc::bind(socket.raw(), (&raw const name).cast(), name.len()) })?;
        Ok(socket)
    }

    fn unbound(v6: bool) -> io::Result<Self> {
        let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
        // SAFETY: the call takes no pointers; the new descriptor is ours alone.
        let fd = unsafe {
            OwnedFd::from_raw_fd(check(libc::socket(
                family,
                libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            ))?)
        };
        Ok(Self { fd, v6 })
    }

    /// Whether the kernel expects addresses in IPv6 form.
    pub fn is_v6(&self) -> bool {
        self.v6
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn raw(&self) -> libc::c_int {
        self.fd.as_raw_fd()
    }

    fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the pointer and length are those of a live integer.
        check(unsafe { libc::setsockopt(self.raw(), level, option, (&raw const value).cast(), len) })?;
        Ok(())
    }

    fn get(&self, level: libc::c_int, option: libc::c_int) -> io::Result<libc::c_int> {
        let mut value: libc::c_int = 0;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to the integer.
        check(unsafe { libc::getsockopt(self.raw(), level, option, (&raw mut value).cast(), &raw mut len) })?;
        Ok(value)
    }

    /// Address to which the socket is bound.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let mut name = Name::empty();
        let mut len = NAME_LEN;
        // SAFETY: the kernel writes at most `len` bytes to the name.
        check(unsafe { libc::getsockname(self.raw(), (&raw mut name).cast(), &raw mut len) })?;
        let address = name.peer().and_then(peer::unpack).ok_or(io::ErrorKind::InvalidData)?;
        Ok(address)
    }

    /// Requests a receive buffer of `bytes` in the kernel's accounting, past the system's limit where this user may.
    /// Never shrinks the buffer. Returns the size granted, in the same accounting (the kernel doubles the value that is
    /// set).
    pub fn grow_receive_buffer(&self, bytes: usize) -> io::Result<usize> {
        self.grow(bytes, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)
    }

    /// Like [`Self::grow_receive_buffer`], for the send buffer.
    pub fn grow_send_buffer(&self, bytes: usize) -> io::Result<usize> {
        self.grow(bytes, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)
    }

    fn grow(&self, bytes: usize, force: libc::c_int, usual: libc::c_int) -> io::Result<usize> {
        let half = libc::c_int::try_from(bytes / 2).unwrap_or(libc::c_int::MAX / 2);
        let now = self.get(libc::SOL_SOCKET, usual)?;
        if now < half.saturating_mul(2) && self.set(libc::SOL_SOCKET, force, half).is_err() {
            // Without the privilege the kernel silently grants at most net.core.rmem_max or wmem_max.
            self.set(libc::SOL_SOCKET, usual, half)?;
        }
        Ok(self.get(libc::SOL_SOCKET, usual)?.max(0) as usize)
    }

    /// Sets the receive buffer, even to a smaller size, and returns the size granted.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<usize> {
        self.set_buffer(bytes, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)
    }

    /// Sets the send buffer, even to a smaller size, and returns the size granted.
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<usize> {
        self.set_buffer(bytes, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)
    }

    fn set_buffer(&self, bytes: usize, force: libc::c_int, usual: libc::c_int) -> io::Result<usize> {
        let half = libc::c_int::try_from(bytes / 2).unwrap_or(libc::c_int::MAX / 2);
        if self.set(libc::SOL_SOCKET, force, half).is_err() {
            self.set(libc::SOL_SOCKET, usual, half)?;
        }
        Ok(self.get(libc::SOL_SOCKET, usual)?.max(0) as usize)
    }

    /// Requests the kernel's count of packets that found the receive buffer full. Old kernels lack it.
    pub fn count_overflows(&self) {
        let _ = self.set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
    }

    /// Requests the errors that the network reports about packets sent, each with the address that it concerns.
    pub fn report_errors(&self) {
        let _ = self.set(libc::IPPROTO_IP, libc::IP_RECVERR, 1);
        if self.v6 {
            let _ = self.set(libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1);
        }
    }

    /// Whether the kernel can cut one large send into equal datagrams.
    pub fn can_segment(&self) -> bool {
        self.get(libc::IPPROTO_UDP, UDP_SEGMENT).is_ok()
    }

    /// Allows the kernel to deliver several equally long datagrams of one sender as one. Returns whether it can.
    pub fn join_segments(&self) -> bool {
        self.set(libc::IPPROTO_UDP, UDP_GRO, 1).is_ok()
    }

    /// Makes the kernel refuse to cut sends, as it does for devices that cannot compute checksums.
    #[cfg(test)]
    pub fn refuse_to_segment(&self) {
        self.set(libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).expect("a socket can disable checksums");
    }

    /// Clears the socket's pending error, so that it does not keep the socket ready for ever.
    pub fn clear_error(&self) {
        let _ = self.get(libc::SOL_SOCKET, libc::SO_ERROR);
    }

    /// Sends one datagram. This is the fast path: the kernel copies in only the bytes and the name.
    ///
    /// # Errors
    ///
    /// The system's error number.
    #[inline]
    pub fn send_to(&self, name: &Name, bytes: &[u8]) -> Result<(), i32> {
        // SAFETY: the slice and the name live through the call.
        let sent = unsafe {
            libc::sendto(
                self.raw(),
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                std::ptr::from_ref(name).cast(),
                name.len(),
            )
        };
        if sent < 0 { Err(errno()) } else { Ok(()) }
    }
}

/// Bytes of the largest IP packet on the path to `peer`, according to routes and earlier reports.
pub(crate) fn path_mtu(peer: Peer) -> io::Result<usize> {
    let v6 = matches!(peer::unpack(peer), Some(SocketAddr::V6(_)));
    let probe = Socket::unbound(v6)?;
    let name = Name::of(peer, v6).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: the pointer and length are those of a live socket address. Connecting a datagram socket sends nothing.
    check(unsafe { libc::connect(probe.raw(), (&raw const name).cast(), name.len()) })?;
    let mtu =
        if v6 { probe.get(libc::IPPROTO_IPV6, libc::IPV6_MTU)? } else { probe.get(libc::IPPROTO_IP, libc::IP_MTU)? };
    Ok(mtu.max(0) as usize)
}
