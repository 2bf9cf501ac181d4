//! The socket, and every unsafe call on it. What the rest of the crate sees is safe.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::SocketAddr;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use sinew_fabric::Peer;

use crate::peer;

const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;

/// A socket address as the kernel takes it: room for either family.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

const NAME_LEN: libc::socklen_t = size_of::<Name>() as libc::socklen_t;

impl Name {
    /// The peer's address in the family of the socket; `None` when it cannot be said there.
    #[inline]
    pub fn of(peer: Peer, v6: bool) -> Option<Self> {
        match (peer::unpack(peer)?, v6) {
            (SocketAddr::V4(address), false) => Some(Self {
                v4: libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                    sin_zero: [0; 8],
                },
            }),
            (SocketAddr::V4(address), true) => {
                Some(Self::v6(address.ip().to_ipv6_mapped().octets(), address.port(), 0))
            }
            (SocketAddr::V6(address), true) => {
                Some(Self::v6(address.ip().octets(), address.port(), address.scope_id()))
            }
            (SocketAddr::V6(_), false) => None,
        }
    }

    fn v6(octets: [u8; 16], port: u16, scope: u32) -> Self {
        Self {
            v6: libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: port.to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: octets },
                sin6_scope_id: scope,
            },
        }
    }

    pub const fn empty() -> Self {
        // SAFETY: all-zero is a valid socket address of no family.
        unsafe { zeroed() }
    }

    fn len(&self) -> libc::socklen_t {
        // SAFETY: every variant starts with the family, and every byte of the union is initialised.
        match libc::c_int::from(unsafe { self.v4.sin_family }) {
            libc::AF_INET => size_of::<libc::sockaddr_in>() as libc::socklen_t,
            _ => NAME_LEN,
        }
    }

    /// The peer that the kernel named; `None` for a family that is neither.
    #[inline]
    pub fn peer(&self) -> Option<Peer> {
        // SAFETY: every byte of the union is initialised, and both variants are plain integers.
        unsafe {
            match libc::c_int::from(self.v4.sin_family) {
                libc::AF_INET => {
                    Some(peer::pack_v4(u32::from_be(self.v4.sin_addr.s_addr), u16::from_be(self.v4.sin_port)))
                }
                libc::AF_INET6 => Some(peer::pack_v6(
                    u128::from_be_bytes(self.v6.sin6_addr.s6_addr),
                    u16::from_be(self.v6.sin6_port),
                    self.v6.sin6_scope_id,
                )),
                _ => None,
            }
        }
    }
}

/// Aligned room for control messages: three of an integer each, and an extended error with an address.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Control([u8; 128]);

impl Control {
    pub const fn empty() -> Self {
        Self([0; 128])
    }
}

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
    /// Binds to `address`. An IPv6 wildcard takes IPv4 too.
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
        // SAFETY: no pointers; the new descriptor is ours.
        let fd = unsafe {
            OwnedFd::from_raw_fd(check(libc::socket(
                family,
                libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            ))?)
        };
        Ok(Self { fd, v6 })
    }

    /// Whether addresses are given to the kernel in IPv6's form.
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

    /// Where the socket is bound.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let mut name = Name::empty();
        let mut len = NAME_LEN;
        // SAFETY: the kernel writes at most `len` bytes to the name.
        check(unsafe { libc::getsockname(self.raw(), (&raw mut name).cast(), &raw mut len) })?;
        let address = name.peer().and_then(peer::unpack).ok_or(io::ErrorKind::InvalidData)?;
        Ok(address)
    }

    /// Asks for a receive buffer whose kernel accounting comes to `bytes`, past the system's limit where this user may.
    /// Returns what was granted, in the same accounting (the kernel doubles what is set).
    pub fn grow_receive_buffer(&self, bytes: usize) -> io::Result<usize> {
        self.grow(bytes, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)
    }

    /// As [`Self::grow_receive_buffer`], for sending.
    pub fn grow_send_buffer(&self, bytes: usize) -> io::Result<usize> {
        self.grow(bytes, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)
    }

    fn grow(&self, bytes: usize, force: libc::c_int, usual: libc::c_int) -> io::Result<usize> {
        let half = libc::c_int::try_from(bytes / 2).unwrap_or(libc::c_int::MAX / 2);
        let now = self.get(libc::SOL_SOCKET, usual)?;
        if now < half.saturating_mul(2) && self.set(libc::SOL_SOCKET, force, half).is_err() {
            // Without the privilege the kernel grants what net.core.rmem_max / wmem_max allow, and says nothing.
            self.set(libc::SOL_SOCKET, usual, half)?;
        }
        Ok(self.get(libc::SOL_SOCKET, usual)?.max(0) as usize)
    }

    /// Sets the receive buffer, smaller ones too, and returns what was granted.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<usize> {
        self.set_buffer(bytes, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)
    }

    /// Sets the send buffer, smaller ones too, and returns what was granted.
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

    /// Asks for the kernel's count of packets that found the receive buffer full. Old kernels do not have it.
    pub fn count_overflows(&self) {
        let _ = self.set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
    }

    /// Asks for the errors that the network reports about what was sent, with the address that each is about.
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

    /// Lets the kernel hand over several equal datagrams of one sender as one. Says whether it will.
    pub fn join_segments(&self) -> bool {
        self.set(libc::IPPROTO_UDP, UDP_GRO, 1).is_ok()
    }

    /// Makes the kernel refuse to cut sends, as it does for devices that cannot compute checksums.
    #[cfg(test)]
    pub fn refuse_to_segment(&self) {
        self.set(libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).expect("a socket may leave out checksums");
    }

    /// Takes and forgets the socket's pending error, so that readiness does not report it for ever.
    pub fn clear_error(&self) {
        let _ = self.get(libc::SOL_SOCKET, libc::SO_ERROR);
    }

    /// Sends one datagram. The fast path: nothing for the kernel to copy in but the bytes and the name.
    ///
    /// # Errors
    ///
    /// The error number.
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

    /// Sends the messages gathered in `list` from number `from` on and returns how many went. After an error in the midst the
    /// kernel says how many went before it; the error shows when the rest is tried.
    ///
    /// # Errors
    ///
    /// The error number, when not even the first went.
    pub fn send_list(&self, list: &mut SendList<'_>, from: usize) -> Result<usize, i32> {
        list.link(from);
        let count = list.messages.len() - from;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `link` has just made every header from `from` on point to names, pieces and control blocks that `list`
        // borrows or owns, with their lengths.
        let sent = unsafe {
            match &mut list.memory.headers[from..list.messages.len()] {
                [one] => {
                    let sent = libc::sendmsg(self.raw(), &raw const one.msg_hdr, flags);
                    if sent < 0 { -1 } else { 1 }
                }
                headers => libc::sendmmsg(self.raw(), headers.as_mut_ptr(), count as libc::c_uint, flags as _),
            }
        };
        if sent < 0 { Err(errno()) } else { Ok(sent as usize) }
    }

    /// Receives up to `width` datagrams into the slots of `ring`, from slot 0 on, and returns how many came.
    ///
    /// # Errors
    ///
    /// The error number; `EAGAIN` when there are none.
    #[inline]
    pub fn receive(&self, ring: &mut ReceiveRing, width: usize) -> Result<usize, i32> {
        let width = width.clamp(1, ring.headers.len());
        ring.link(width);
        // SAFETY: `link` has just made the headers point to slots of `ring`, each with its true length.
        let got = unsafe {
            if width == 1 {
                let header = &mut ring.headers[0];
                let got = libc::recvmsg(self.raw(), &raw mut header.msg_hdr, libc::MSG_DONTWAIT);
                header.msg_len = got.max(0) as libc::c_uint;
                if got < 0 { -1 } else { 1 }
            } else {
                let headers = ring.headers.as_mut_ptr();
                libc::recvmmsg(
                    self.raw(),
                    headers,
                    width as libc::c_uint,
                    libc::MSG_DONTWAIT as _,
                    std::ptr::null_mut(),
                )
            }
        };
        if got < 0 { Err(errno()) } else { Ok(got as usize) }
    }

    /// Takes one error that the network reported about an earlier packet, and whom that was for.
    pub fn take_error(&self) -> Option<NetworkError> {
        let mut name = Name::empty();
        let mut control = Control::empty();
        // SAFETY: all-zero is a valid `msghdr`: no buffers.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_name = (&raw mut name).cast();
        header.msg_namelen = NAME_LEN;
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = size_of::<Control>() as _;
        // SAFETY: the header points to the live name and control block; there is no room for the packet, which is cut.
        if unsafe { libc::recvmsg(self.raw(), &raw mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) } < 0 {
            return None;
        }
        let mut error = NetworkError { peer: name.peer(), errno: 0, mtu: None };
        each_control(&header, |level, kind, data| {
            let is_error = matches!(
                (level, kind),
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
            );
            if is_error && data.len() >= size_of::<libc::sock_extended_err>() {
                // SAFETY: there are enough bytes, and any bytes are a valid `sock_extended_err`.
                let extended: libc::sock_extended_err =
                    unsafe { data.as_ptr().cast::<libc::sock_extended_err>().read_unaligned() };
                error.errno = extended.ee_errno as i32;
                if error.errno == libc::EMSGSIZE {
                    error.mtu = Some(extended.ee_info as usize);
                }
            }
        });
        Some(error)
    }
}

/// What the network reported about an earlier packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkError {
    /// Whom the packet was for.
    pub peer: Option<Peer>,
    /// What went wrong.
    pub errno: i32,
    /// The size that would have fitted the path.
    pub mtu: Option<usize>,
}

/// Bytes of the largest IP packet on the way to `peer`, as routes and earlier reports have it.
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

/// Walks the control messages that came with a datagram.
#[inline]
fn each_control(header: &libc::msghdr, mut visit: impl FnMut(libc::c_int, libc::c_int, &[u8])) {
    // SAFETY: the header was filled by the kernel, whose control messages lie within `msg_controllen` bytes of a live
    // block; the macros step from one to the next within it.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while !at.is_null() {
            let message = &*at;
            let overhead = libc::CMSG_LEN(0) as usize;
            let len = (message.cmsg_len as usize).saturating_sub(overhead);
            visit(message.cmsg_level, message.cmsg_type, std::slice::from_raw_parts(libc::CMSG_DATA(at), len));
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
}

/// What a message to send consists of, for [`Socket::send_list`].
pub(crate) struct OutMessage {
    /// Whom to.
    pub name: Name,
    /// Its pieces: a range of [`SendMemory::pieces`].
    pub pieces: std::ops::Range<usize>,
    /// Bytes of each datagram but the last, when the kernel shall cut it; else 0.
    pub segment_len: usize,
}

/// Memory for system calls that send, kept between them.
pub(crate) struct SendMemory {
    headers: Vec<libc::mmsghdr>,
    controls: Vec<Control>,
    pieces: Vec<libc::iovec>,
    messages: Vec<OutMessage>,
}

// SAFETY: the pointers in headers and pieces are written from live borrows before each call and never read after it.
unsafe impl Send for SendMemory {}

impl SendMemory {
    /// Room for `messages` messages of `pieces` pieces in all. Room grows when that is not enough.
    pub fn new(messages: usize, pieces: usize) -> Self {
        Self {
            // SAFETY: all-zero is a valid header: nothing.
            headers: vec![unsafe { zeroed() }; messages],
            controls: vec![Control::empty(); messages],
            pieces: Vec::with_capacity(pieces),
            messages: Vec::with_capacity(messages),
        }
    }

    /// An empty list, whose pieces live at least as long as `'a`.
    pub fn list<'a>(&'a mut self) -> SendList<'a> {
        self.pieces.clear();
        self.messages.clear();
        let Self { messages, .. } = self;
        let messages = std::mem::take(messages);
        SendList { memory: self, messages }
    }
}

/// Messages being gathered for [`Socket::send_list`].
pub(crate) struct SendList<'a> {
    memory: &'a mut SendMemory,
    messages: Vec<OutMessage>,
}

impl<'a> SendList<'a> {
    /// Adds a piece to the message being gathered.
    #[inline]
    pub fn piece(&mut self, bytes: &'a [u8]) {
        self.memory.pieces.push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
    }

    /// Ends the message: all pieces since the last end, sent to `name`, and cut into datagrams of `segment_len` bytes when
    /// that is not 0.
    #[inline]
    pub fn end_message(&mut self, name: Name, segment_len: usize) {
        let start = self.messages.last().map_or(0, |message| message.pieces.end);
        self.messages.push(OutMessage { name, pieces: start..self.memory.pieces.len(), segment_len });
    }

    /// Makes the headers from `from` on point to what they send.
    fn link(&mut self, from: usize) {
        let SendMemory { headers, controls, pieces, .. } = &mut *self.memory;
        if headers.len() < self.messages.len() {
            // SAFETY: all-zero is a valid header: nothing.
            headers.resize(self.messages.len(), unsafe { zeroed() });
            controls.resize(self.messages.len(), Control::empty());
        }
        for (index, message) in self.messages.iter_mut().enumerate().skip(from) {
            let header = &mut headers[index].msg_hdr;
            header.msg_name = (&raw mut message.name).cast();
            header.msg_namelen = message.name.len();
            header.msg_iov = pieces[message.pieces.clone()].as_mut_ptr();
            header.msg_iovlen = message.pieces.len() as _;
            header.msg_control = std::ptr::null_mut();
            header.msg_controllen = 0;
            header.msg_flags = 0;
            if message.segment_len != 0 {
                header.msg_control = (&raw mut controls[index]).cast();
                // SAFETY: the control block is aligned and larger than one message of two bytes.
                unsafe {
                    header.msg_controllen = libc::CMSG_SPACE(size_of::<u16>() as u32) as _;
                    let control = libc::CMSG_FIRSTHDR(header);
                    (*control).cmsg_level = libc::IPPROTO_UDP;
                    (*control).cmsg_type = UDP_SEGMENT;
                    (*control).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
                    libc::CMSG_DATA(control).cast::<u16>().write_unaligned(message.segment_len as u16);
                }
            }
        }
    }
}

impl Drop for SendList<'_> {
    fn drop(&mut self) {
        // The vector goes back, so that the next list needs no memory.
        self.memory.messages = std::mem::take(&mut self.messages);
    }
}

/// A datagram in a [`ReceiveRing`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Who sent it; `None` for a family that is neither IPv4 nor IPv6.
    pub from: Option<Peer>,
    /// Bytes of it.
    pub len: usize,
    /// Bytes of each joined datagram but the last; `len` when it is one alone.
    pub segment_len: usize,
    /// Whether it was longer than its slot and is cut.
    pub cut: bool,
    /// The kernel's count of packets lost to a full buffer, where it came along.
    pub overflows: Option<u32>,
}

/// Receive slots and what the kernel says about each.
pub(crate) struct ReceiveRing {
    bytes: Vec<u8>,
    headers: Vec<libc::mmsghdr>,
    pieces: Vec<libc::iovec>,
    names: Vec<Name>,
    controls: Vec<Control>,
}

// SAFETY: the pointers in headers and pieces point into the ring's own vectors, are written before each call and never read
// after it.
unsafe impl Send for ReceiveRing {}

/// Bytes of a receive slot: no UDP datagram, joined or not, is longer.
const SLOT_LEN: usize = 1 << 16;
/// Slots are set apart by a little more than their length, so that their beginnings fall into different sets of the cache.
const SLOT_STRIDE: usize = SLOT_LEN + 5 * 64;

impl ReceiveRing {
    /// A ring of `slots` slots. Their memory is backed when first used.
    pub fn new(slots: usize) -> Self {
        Self {
            bytes: vec![0; slots * SLOT_STRIDE],
            // SAFETY: all-zero is a valid header: nothing.
            headers: vec![unsafe { zeroed() }; slots],
            pieces: vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; slots],
            names: vec![Name::empty(); slots],
            controls: vec![Control::empty(); slots],
        }
    }

    fn link(&mut self, width: usize) {
        for index in 0..width {
            let slot = &mut self.bytes[index * SLOT_STRIDE..][..SLOT_LEN];
            self.pieces[index] = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: SLOT_LEN };
            let header = &mut self.headers[index];
            header.msg_len = 0;
            header.msg_hdr.msg_name = (&raw mut self.names[index]).cast();
            header.msg_hdr.msg_namelen = NAME_LEN;
            header.msg_hdr.msg_iov = &raw mut self.pieces[index];
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = (&raw mut self.controls[index]).cast();
            header.msg_hdr.msg_controllen = size_of::<Control>() as _;
            header.msg_hdr.msg_flags = 0;
        }
    }

    /// Bytes that the last call received into slot `index`.
    #[inline]
    pub fn len_of(&self, index: usize) -> usize {
        (self.headers[index].msg_len as usize).min(SLOT_LEN)
    }

    /// What the last call received into slot `index`, which must be one of those that it filled.
    #[inline]
    pub fn received(&self, index: usize) -> Received {
        let header = &self.headers[index];
        let len = self.len_of(index);
        let mut received = Received {
            from: self.names[index].peer(),
            len,
            segment_len: len,
            cut: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            overflows: None,
        };
        if header.msg_hdr.msg_controllen != 0 {
            each_control(&header.msg_hdr, |level, kind, data| match (level, kind) {
                (libc::IPPROTO_UDP, UDP_GRO) => {
                    let value = data.first_chunk::<4>().map_or(0, |value| i32::from_ne_bytes(*value));
                    if value > 0 {
                        received.segment_len = value as usize;
                    }
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    received.overflows = data.first_chunk::<4>().map(|value| u32::from_ne_bytes(*value));
                }
                _ => {}
            });
        }
        received
    }

    /// The slots' memory.
    #[inline]
    pub fn slots(&self) -> &[u8] {
        &self.bytes
    }

    /// Where slot `index` begins in [`Self::slots`].
    #[inline]
    pub fn slot_start(index: usize) -> usize {
        index * SLOT_STRIDE
    }
}
