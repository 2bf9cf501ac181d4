//! Sends many messages in one call.

use std::mem::{size_of, zeroed};

use super::control::Control;
use super::name::Name;
use super::{Socket, UDP_SEGMENT, errno};

impl Socket {
    /// Sends the messages gathered in `list`, from index `from` on, and returns how many were sent. After an error
    /// part-way the kernel returns only the number sent before it; the error appears when the rest is tried.
    ///
    /// # Errors
    ///
    /// The system's error number, when not even the first message could be sent.
    pub fn send_list(&self, list: &mut SendList<'_>, from: usize) -> Result<usize, i32> {
        list.link(from);
        let count = list.messages.len() - from;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `link` has just made every header from `from` on point to names, pieces and control blocks that
        // `list` borrows or owns, with their lengths.
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
}

/// A message to send, for [`Socket::send_list`].
pub(crate) struct OutMessage {
    /// Destination.
    pub name: Name,
    /// Its pieces: a range of [`SendMemory::pieces`].
    pub pieces: std::ops::Range<usize>,
    /// Bytes of each datagram but the last, when the kernel is to cut the message; else 0.
    pub segment_len: usize,
}

/// Memory for sending calls, kept between them.
pub(crate) struct SendMemory {
    headers: Vec<libc::mmsghdr>,
    controls: Vec<Control>,
    pieces: Vec<libc::iovec>,
    messages: Vec<OutMessage>,
}

// SAFETY: the pointers in headers and pieces are written from live borrows before each call and never read after it.
unsafe impl Send for SendMemory {}

impl SendMemory {
    /// Allocates room for `messages` messages of `pieces` pieces in all. The room grows when that is not enough.
    pub fn new(messages: usize, pieces: usize) -> Self {
        Self {
            // SAFETY: all-zero is a valid header: one that points to nothing.
            headers: vec![unsafe { zeroed() }; messages],
            controls: vec![Control::empty(); messages],
            pieces: Vec::with_capacity(pieces),
            messages: Vec::with_capacity(messages),
        }
    }

    /// An empty list, whose pieces must live at least as long as `'a`.
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

    /// Ends the message: all pieces since the end of the previous one go to `name`, cut into datagrams of `segment_len`
    /// bytes unless that is 0.
    #[inline]
    pub fn end_message(&mut self, name: Name, segment_len: usize) {
        let start = self.messages.last().map_or(0, |message| message.pieces.end);
        self.messages.push(OutMessage { name, pieces: start..self.memory.pieces.len(), segment_len });
    }

    /// Makes the headers from index `from` on point to the names and pieces of their messages.
    fn link(&mut self, from: usize) {
        let SendMemory { headers, controls, pieces, .. } = &mut *self.memory;
        if headers.len() < self.messages.len() {
            // SAFETY: all-zero is a valid header: one that points to nothing.
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
        // The vector is returned, so that the next list allocates nothing.
        self.memory.messages = std::mem::take(&mut self.messages);
    }
}
