//! Messages of two ports over the socket between them: a hello, its answer (a welcome or a refusal), then wake-ups
//! (bells).
//!
//! Each message is one datagram of a sequenced-packet socket, so it arrives whole or not at all.

use std::io;
use std::mem::MaybeUninit;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use sinew_mem::ring;

use crate::options::{ARENA_BYTES_MAX, RING_LINES_MAX};

const MAGIC: u32 = u32::from_le_bytes(*b"SNWS");
const VERSION: u16 = 1;
const HELLO_BYTES: usize = 40;
/// Descriptors that a hello carries: the link's memory, the arena, the board.
pub(crate) const HELLO_FDS: usize = 3;
/// Descriptors that a welcome carries: the arena, the board.
pub(crate) const WELCOME_FDS: usize = 2;

/// A side's announcement about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub lines_to_acceptor: usize,
    pub lines_to_initiator: usize,
    pub arena_bytes: usize,
    /// Bit of the sender's board that the receiver is to set.
    pub bit: usize,
}

/// Reason why the acceptor refuses a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It has no room for another link.
    Links = 1,
    /// The ring that leads to it is smaller than it announced (the name changed hands in between).
    Ring = 2,
    /// It could not read the hello, or could not map the memory that came with it.
    Hello = 3,
}

/// A message as received.
#[derive(Debug)]
pub(crate) enum Message {
    /// The initiator's first message.
    Hello(Hello, Vec<OwnedFd>),
    /// The acceptor's answer.
    Welcome(Hello, Vec<OwnedFd>),
    /// The acceptor's refusal.
    Refused,
    /// A wake-up: the rings are to be checked.
    Bell,
    /// The other side closed the socket.
    Closed,
    /// No message has arrived.
    Nothing,
    /// Descriptors came, but this process has as many open as it may.
    NoRoom,
    /// Anything else.
    Malformed,
}

fn encode(kind: u16, hello: &Hello) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..8].copy_from_slice(&kind.to_le_bytes());
    for (index, value) in
        [hello.lines_to_acceptor, hello.lines_to_initiator, hello.arena_bytes, hello.bit].into_iter().enumerate()
    {
        bytes[8 + index * 8..16 + index * 8].copy_from_slice(&(value as u64).to_le_bytes());
    }
    bytes
}

fn decode(bytes: &[u8]) -> Option<(u16, Hello)> {
    let bytes: &[u8; HELLO_BYTES] = bytes.try_into().ok()?;
    let magic = u32::from_le_bytes(bytes[0..4].try_into().ok()?);
    let version = u16::from_le_bytes(bytes[4..6].try_into().ok()?);
    let kind = u16::from_le_bytes(bytes[6..8].try_into().ok()?);
    let word = |index: usize| Some(u64::from_le_bytes(bytes[8 + index * 8..16 + index * 8].try_into().ok()?));
    let number =
        |index: usize, max: usize| word(index).filter(|&value| value <= max as u64).map(|value| value as usize);
    let hello = Hello {
        lines_to_acceptor: number(0, RING_LINES_MAX)?,
        lines_to_initiator: number(1, RING_LINES_MAX)?,
        arena_bytes: number(2, ARENA_BYTES_MAX)?,
        bit: number(3, ring::BOARD_LINKS_MAX - 1)?,
    };
    let good = magic == MAGIC
        && version == VERSION
        && ring::valid_lines(hello.lines_to_acceptor)
        && ring::valid_lines(hello.lines_to_initiator)
        && hello.arena_bytes > 0;
    good.then_some((kind, hello))
}

const KIND_HELLO: u16 = 1;
const KIND_WELCOME: u16 = 2;
const BELL: u8 = b'b';
const REFUSED: u8 = b'r';

pub(crate) fn send_hello(socket: impl AsFd, hello: &Hello, fds: [BorrowedFd<'_>; HELLO_FDS]) -> io::Result<()> {
    send(socket, &encode(KIND_HELLO, hello), &fds)
}

pub(crate) fn send_welcome(socket: impl AsFd, hello: &Hello, fds: [BorrowedFd<'_>; WELCOME_FDS]) -> io::Result<()> {
    send(socket, &encode(KIND_WELCOME, hello), &fds)
}

pub(crate) fn send_refusal(socket: impl AsFd, reason: Refusal) -> io::Result<()> {
    send(socket, &[REFUSED, reason as u8], &[])
}

/// Wakes the peer if it sleeps. Never blocks: when the socket is full, enough wake-ups are on their way.
pub(crate) fn send_bell(socket: impl AsFd) {
    let _ = rustix::net::send(socket, &[BELL], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Sends one datagram, with at most [`HELLO_FDS`] descriptors. Never blocks.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HELLO_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[io::IoSlice::new(bytes)], &mut control, flags)?;
    Ok(())
}

/// Receives the next datagram and its descriptors. A datagram longer than `bytes` is truncated. When this process has
/// no room for the descriptors, the error is `EMFILE`.
pub(crate) fn receive_bytes(socket: impl AsFd, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HELLO_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [io::IoSliceMut::new(bytes)], &mut control, flags)?;
    // All descriptors are owned here, so that a refused message leaves none open.
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    match received.flags.contains(ReturnFlags::CTRUNC) {
        true if fds.len() < HELLO_FDS => Err(Errno::MFILE),
        true => Err(Errno::MSGSIZE),
        false => Ok((received.bytes, fds)),
    }
}

pub(crate) fn receive(socket: impl AsFd) -> Message {
    // The buffer is one byte longer than the longest message, so that a truncated message is recognised as too long.
    let mut bytes = [0; HELLO_BYTES + 1];
    let mut received = receive_bytes(&socket, &mut bytes);
    if matches!(received, Err(Errno::CONNRESET)) {
        // The kernel reports this once, before data that had arrived, when the peer closed its end without reading all
        // of ours: for example, what we sent after a hello that it refused.
        received = receive_bytes(&socket, &mut bytes);
    }
    let (len, fds) = match received {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Message::Nothing,
        Err(Errno::MFILE) => return Message::NoRoom,
        Err(Errno::MSGSIZE) => return Message::Malformed,
        Err(_) => return Message::Closed,
    };
    match (&bytes[..len], fds.len()) {
        ([], 0) => Message::Closed,
        ([BELL], 0) => Message::Bell,
        ([REFUSED, _], 0) => Message::Refused,
        (bytes, fd_count) => match (decode(bytes), fd_count) {
            (Some((KIND_HELLO, hello)), HELLO_FDS) => Message::Hello(hello, fds),
            (Some((KIND_WELCOME, hello)), WELCOME_FDS) => Message::Welcome(hello, fds),
            _ => Message::Malformed,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello { lines_to_acceptor: 8192, lines_to_initiator: 64, arena_bytes: 4096, bit: 7 };

    #[test]
    fn a_refusal_is_read_though_its_sender_left_what_we_sent_unread() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        send_bell(&ours);
        send_refusal(&theirs, Refusal::Links).unwrap();
        drop(theirs);
        assert!(matches!(receive(&ours), Message::Refused));
        assert!(matches!(receive(&ours), Message::Closed));
    }

    #[test]
    fn a_hello_reads_as_it_was_written() {
        assert_eq!(decode(&encode(KIND_WELCOME, &HELLO)), Some((KIND_WELCOME, HELLO)));
    }

    #[test]
    fn hellos_with_impossible_numbers_are_refused() {
        let good = encode(KIND_HELLO, &HELLO);
        assert!(decode(&good[..HELLO_BYTES - 1]).is_none());
        for (offset, value) in [(0, 9u64), (8, 100), (8, 1 << 40), (16, 0), (24, 0), (24, u64::MAX), (32, 4096)] {
            let mut bad = good;
            bad[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
            assert!(decode(&bad).is_none(), "{offset}: {value}");
        }
    }
}
