//! Output of a connection: short replies, which are kept together, and buffers of the store's data, each with its reply
//! header in front.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};

use arrayvec::ArrayVec;
use sinew_door::Stream;
use sinew_mem::{FRONT_ROOM, MessageBuffer};

use super::budget::claim_of;
use crate::protocol::DATA_FRONT_MAX;

const _: () = assert!(DATA_FRONT_MAX <= FRONT_ROOM);

/// Pieces handed to the system at once, at most.
const PIECES_MAX: usize = 64;
/// Capacity kept for short replies, in bytes.
const BYTES_KEPT: usize = 16 << 10;

#[derive(Debug)]
enum Item {
    /// This many bytes of the short replies.
    Bytes(usize),
    /// A buffer, and the length of the part in front of its data that is sent too.
    Data(MessageBuffer, usize),
}

impl Item {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(len) => *len,
            Self::Data(buffer, front) => front + buffer.len(),
        }
    }
}

/// Output waiting to be sent.
#[derive(Debug, Default)]
pub(super) struct Output {
    items: VecDeque<Item>,
    bytes: Vec<u8>,
    /// Bytes of the short replies that belong to items already sent.
    bytes_sent: usize,
    /// Bytes of the first item that were sent.
    sent: usize,
    /// Bytes claimed by the buffers in it.
    claimed: usize,
}

/// Result of sending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    /// Bytes sent.
    pub len: usize,
    /// Claimed bytes that are free now, because their buffers were sent.
    pub freed: usize,
    /// Whether the system accepts no more for now.
    pub is_blocked: bool,
}

impl Output {
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes of short replies waiting.
    pub fn short_len(&self) -> usize {
        self.bytes.len() - self.bytes_sent
    }

    /// Bytes claimed by the buffers in it.
    pub fn claimed(&self) -> usize {
        self.claimed
    }

    /// Appends what `put` writes to the short replies.
    pub fn put(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        put(&mut self.bytes);
        let len = self.bytes.len() - before;
        match self.items.back_mut() {
            _ if len == 0 => {}
            Some(Item::Bytes(last)) => *last += len,
            _ => self.items.push_back(Item::Bytes(len)),
        }
    }

    /// Appends a buffer, to be sent with `front` bytes in front of its data.
    pub fn put_data(&mut self, buffer: MessageBuffer, front: usize) {
        self.claimed += claim_of(buffer.len());
        self.items.push_back(Item::Data(buffer, front));
    }

    /// Sends what the system accepts, up to about `len` bytes.
    ///
    /// # Errors
    ///
    /// The system's error; the client is gone then.
    pub fn send(&mut self, stream: &mut Stream, len: usize) -> io::Result<Sent> {
        let mut sent = Sent::default();
        while sent.len < len && !self.is_empty() {
            let (room, result) = self.send_once(stream);
            match result {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => {
                    sent.len += len;
                    sent.freed += self.advance(len);
                    // Offering the rest again at once would not help.
                    if len < room {
                        sent.is_blocked = true;
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    sent.is_blocked = true;
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Offers the first pieces to the system. Returns their length, and the system's result.
    fn send_once(&self, stream: &mut Stream) -> (usize, io::Result<usize>) {
        let mut pieces = ArrayVec::<IoSlice<'_>, PIECES_MAX>::new();
        let (mut start, mut bytes, mut room) = (self.sent, self.bytes_sent, 0);
        for item in self.items.iter().take(PIECES_MAX) {
            let piece = match item {
                Item::Bytes(len) => {
                    let piece = &self.bytes[bytes..bytes + len];
                    bytes += len;
                    piece
                }
                Item::Data(buffer, front) => &buffer.front_and_data()[FRONT_ROOM - front..],
            };
            pieces.push(IoSlice::new(&piece[start..]));
            room += piece.len() - start;
            start = 0;
        }
        let result = match &pieces[..] {
            [one] => stream.write(one),
            several => stream.write_pieces(several),
        };
        (room, result)
    }

    /// Removes `len` sent bytes. Returns the claimed bytes that are free now.
    fn advance(&mut self, len: usize) -> usize {
        let mut freed = 0;
        self.sent += len;
        while let Some(item) = self.items.front() {
            let item_len = item.len();
            if item_len > self.sent {
                break;
            }
            self.sent -= item_len;
            match self.items.pop_front() {
                Some(Item::Bytes(len)) => self.bytes_sent += len,
                Some(Item::Data(buffer, _)) => freed += claim_of(buffer.len()),
                None => {}
            }
        }
        if self.bytes_sent == self.bytes.len() && !self.bytes.is_empty() {
            self.bytes.clear();
            self.bytes_sent = 0;
            if self.bytes.capacity() > BYTES_KEPT {
                self.bytes.shrink_to(BYTES_KEPT);
            }
        }
        self.claimed -= freed;
        freed
    }
}
