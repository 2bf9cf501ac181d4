//! Receives many datagrams in one call.

use std::mem::{size_of, zeroed};

use sinew_fabric::Peer;

use super::control::{Control, each_control};
use super::name::{NAME_LEN, Name};
use super::{Socket, UDP_GRO, errno};

impl Socket {
    /// Receives up to `width` datagrams into the slots of `ring`, from slot 0 on, and returns how many came.
    ///
    /// # Errors
    ///
    /// The system's error number; `EAGAIN` when there are no datagrams.
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
}

/// A datagram in a [`ReceiveRing`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Its sender; `None` for a family that is neither IPv4 nor IPv6.
    pub from: Option<Peer>,
    /// Length in bytes, at most that of a slot.
    pub len: usize,
    /// Bytes of each of the joined datagrams but the last; `len` when it is a single datagram.
    pub segment_len: usize,
    /// Whether it was longer than its slot and was truncated.
    pub truncated: bool,
    /// The kernel's count of packets lost to a full buffer, if it came with this datagram.
    pub overflows: Option<u32>,
}

/// Receive slots, and the kernel's description of each.
pub(crate) struct ReceiveRing {
    bytes: Vec<u8>,
    headers: Vec<libc::mmsghdr>,
    pieces: Vec<libc::iovec>,
    names: Vec<Name>,
    controls: Vec<Control>,
}

// SAFETY: the pointers in headers and pieces point into the ring's own vectors, are written before each call and never
// read after it.
unsafe impl Send for ReceiveRing {}

/// Bytes of a receive slot. No UDP datagram, joined or not, is longer.
const SLOT_LEN: usize = 1 << 16;
/// Distance between the starts of two slots, in bytes. It is a little more than a slot, so that the starts fall into
/// different sets of the cache.
const SLOT_STRIDE: usize = SLOT_LEN + 5 * 64;

impl ReceiveRing {
    /// Creates a ring of `slots` slots, whose memory is committed when first used.
    pub fn new(slots: usize) -> Self {
        Self {
            bytes: vec![0; slots * SLOT_STRIDE],
            // SAFETY: all-zero is a valid header: one that points to nothing.
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

    /// The datagram that the last call received into slot `index`, which must be one of those that it filled.
    #[inline]
    pub fn received(&self, index: usize) -> Received {
        let header = &self.headers[index];
        let len = self.len_of(index);
        let mut received = Received {
            from: self.names[index].peer(),
            len,
            segment_len: len,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
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

    /// Memory of all slots.
    #[inline]
    pub fn slots(&self) -> &[u8] {
        &self.bytes
    }

    /// Offset of slot `index` in [`Self::slots`].
    #[inline]
    pub fn slot_start(index: usize) -> usize {
        index * SLOT_STRIDE
    }
}
