//! Control messages: the kernel's information about a datagram.

/// Aligned room for control messages: three with an integer each, and an extended error with an address.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control([u8; 128]);

impl Control {
    pub const fn empty() -> Self {
        Self([0; 128])
    }
}

/// Calls `visit` with the level, type and data of each control message that came with a datagram.
#[inline]
pub(super) fn each_control(header: &libc::msghdr, mut visit: impl FnMut(libc::c_int, libc::c_int, &[u8])) {
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
