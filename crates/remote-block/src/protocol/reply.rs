//! Replies: simple ones, and the chunks of structured ones.

use super::ErrorCode;
use super::constants::{
    REPLY_FLAG_DONE, REPLY_TYPE_BLOCK_STATUS, REPLY_TYPE_ERROR, REPLY_TYPE_OFFSET_DATA, REPLY_TYPE_OFFSET_HOLE,
    SIMPLE_REPLY_MAGIC, STATE_HOLE, STATE_ZERO, STRUCTURED_REPLY_MAGIC,
};
use super::handshake::ALLOCATION_ID;

const SIMPLE_LEN: usize = 16;
const CHUNK_LEN: usize = 20;
/// Bytes before the data of a read, at most.
pub const DATA_FRONT_MAX: usize = CHUNK_LEN + 8;

/// A run of bytes that are all a hole, or all not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusExtent {
    /// Bytes.
    pub len: u32,
    /// Whether they take no memory, and read as zeros.
    pub is_hole: bool,
}

#[inline]
fn simple(error: u32, cookie: u64) -> [u8; SIMPLE_LEN] {
    let mut bytes = [0; SIMPLE_LEN];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

#[inline]
fn chunk(is_last: bool, kind: u16, cookie: u64, len: usize) -> [u8; CHUNK_LEN] {
    let mut bytes = [0; CHUNK_LEN];
    bytes[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&if is_last { REPLY_FLAG_DONE } else { 0 }.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&(len as u32).to_be_bytes());
    bytes
}

/// Appends the reply to a request that succeeded and returns no data. It is a simple reply, which structured sessions
/// allow too.
pub fn put_done(out: &mut Vec<u8>, cookie: u64) {
    out.extend_from_slice(&simple(0, cookie));
}

/// Appends the reply to a request that failed, or was refused.
pub fn put_error(out: &mut Vec<u8>, is_structured: bool, cookie: u64, error: ErrorCode) {
    if !is_structured {
        return out.extend_from_slice(&simple(error as u32, cookie));
    }
    let text = error.text().as_bytes();
    out.extend_from_slice(&chunk(true, REPLY_TYPE_ERROR, cookie, 6 + text.len()));
    out.extend_from_slice(&(error as u32).to_be_bytes());
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text);
}

/// Appends the structured reply to a read of a hole.
pub fn put_hole(out: &mut Vec<u8>, cookie: u64, at: u64, len: u32) {
    out.extend_from_slice(&chunk(true, REPLY_TYPE_OFFSET_HOLE, cookie, 12));
    out.extend_from_slice(&at.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
}

/// Appends the reply to a request for the status of blocks. There must be at least one extent.
pub fn put_status(out: &mut Vec<u8>, cookie: u64, extents: &[StatusExtent]) {
    out.extend_from_slice(&chunk(true, REPLY_TYPE_BLOCK_STATUS, cookie, 4 + 8 * extents.len()));
    out.extend_from_slice(&ALLOCATION_ID.to_be_bytes());
    for extent in extents {
        out.extend_from_slice(&extent.len.to_be_bytes());
        let state = if extent.is_hole { STATE_HOLE | STATE_ZERO } else { 0 };
        out.extend_from_slice(&state.to_be_bytes());
    }
}

/// Writes what precedes `len` bytes of a read's data to the end of `front`, and returns its length. A simple reply is
/// followed by all the data. A chunk of a structured one has the data from `at` on, and is the last one or not.
#[inline]
pub fn data_front(front: &mut [u8], is_structured: bool, cookie: u64, (at, len): (u64, usize), is_last: bool) -> usize {
    let end = front.len();
    if !is_structured {
        front[end - SIMPLE_LEN..].copy_from_slice(&simple(0, cookie));
        return SIMPLE_LEN;
    }
    let before = &mut front[end - DATA_FRONT_MAX..];
    before[..CHUNK_LEN].copy_from_slice(&chunk(is_last, REPLY_TYPE_OFFSET_DATA, cookie, 8 + len));
    before[CHUNK_LEN..].copy_from_slice(&at.to_be_bytes());
    DATA_FRONT_MAX
}
