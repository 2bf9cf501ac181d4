//! Reading from files.

use std::sync::Arc;

use sinew_mem::{Arena, MessageBuffer};
use sinew_remote_memory::pool::AccessMethod;
use sinew_rpc::Endpoint;

use super::error::ClientError;
use super::file::{File, FileState, ReadAhead};
use super::lane::Lane;
use super::layout::{Piece, Stored};
use crate::protocol::PAGE;

/// Attempts to read a range whose pages are being replaced.
const ATTEMPTS: u32 = 64;

/// Shortest read, in bytes, that triggers read-ahead.
const AHEAD_MIN: usize = 128 << 10;

/// Sources of a range to read.
enum ReadPlan {
    /// The range is empty.
    Nothing,
    /// The place of this page must be asked for first.
    Unknown(u64),
    /// The whole range is stored consecutively, from this page on.
    One(u64, Stored),
    /// The bytes that are available here, and the pieces to fetch into the gaps, each with its first page.
    Several(MessageBuffer, Vec<(u64, Stored)>),
}

/// The first page of a range, and the page after its last.
fn pages(at: u64, len: usize) -> (u64, u64) {
    (at / PAGE as u64, (at + len as u64).div_ceil(PAGE as u64))
}

impl FileState {
    /// Whether a read continues the previous one and is long enough for read-ahead. Remembers where it ends.
    fn note_sequential(&mut self, at: u64, len: usize) -> bool {
        let follows = self.read_until == at && len >= AHEAD_MIN;
        self.read_until = at + len as u64;
        follows
    }

    fn plan(&self, at: u64, len: usize, arena: &Arena) -> Result<ReadPlan, ClientError> {
        let (first, end) = pages(at, len);
        if len == 0 {
            return Ok(ReadPlan::Nothing);
        }
        let is_mixed = self.dirty.overlaps(first, end - first);
        if !is_mixed {
            match self.layout.piece(first, end - first) {
                Piece::Unknown => return Ok(ReadPlan::Unknown(first)),
                Piece::Stored(stored) if stored.sums.len() as u64 == end - first => {
                    return Ok(ReadPlan::One(first, stored));
                }
                _ => {}
            }
        }
        // From the arena, since a client for paging must not need the system's memory.
        let len = (end - first) as usize * PAGE;
        let mut bytes = arena.alloc(len, len).map_err(|_| ClientError::NoMemory)?;
        bytes[..].fill(0);
        let mut pieces = Vec::new();
        let mut page = first;
        while page < end {
            let start = (page - first) as usize * PAGE;
            if let Some(ours) = self.dirty.page(page) {
                bytes[start..start + PAGE].copy_from_slice(ours);
                page += 1;
                continue;
            }
            let clean = match is_mixed {
                true => (page..end).take_while(|page| self.dirty.page(*page).is_none()).count() as u64,
                false => end - page,
            };
            page += match self.layout.piece(page, clean) {
                Piece::Unknown => return Ok(ReadPlan::Unknown(page)),
                Piece::Hole { count } => count,
                Piece::Stored(stored) => {
                    let count = stored.sums.len() as u64;
                    pieces.push((page, stored));
                    count
                }
            };
        }
        Ok(ReadPlan::Several(bytes, pieces))
    }
}

/// Zeroes the bytes of the last page that do not belong to the file.
fn zero_tail(buffer: &mut MessageBuffer, stored: &Stored) {
    if stored.last_len < PAGE {
        let end = buffer.len();
        buffer[end - PAGE + stored.last_len..].fill(0);
    }
}

impl<E: Endpoint, A: AccessMethod> Lane<E, A> {
    /// Reads up to `len` bytes of an open file, fewer only at its end, and passes them to `answer` exactly once.
    pub fn read(&mut self, handle: u64, at: u64, len: usize, answer: impl FnOnce(Result<&[u8], ClientError>)) {
        let file = match self.file_of_handle(handle) {
            Ok((file, access)) if access.read || access.execute || access.write => file,
            Ok(_) => return answer(Err(ClientError::NotOpen)),
            Err(error) => return answer(Err(error)),
        };
        self.read_file(&file, at, len, answer);
    }

    pub(super) fn read_file(
        &mut self,
        file: &Arc<File>,
        at: u64,
        len: usize,
        answer: impl FnOnce(Result<&[u8], ClientError>),
    ) {
        let mut answer = Some(answer);
        let mut answer_once = |result: Result<&[u8], ClientError>| {
            if let Some(answer) = answer.take() {
                answer(result);
            }
        };
        for _ in 0..ATTEMPTS {
            let (plan, len) = {
                let state = file.lock();
                let len = len.min(usize::try_from(state.len().saturating_sub(at)).unwrap_or(usize::MAX));
                (state.plan(at, len, &self.client.arena), len)
            };
            let plan = match plan {
                Ok(plan) => plan,
                Err(error) => return answer_once(Err(error)),
            };
            let start = (at % PAGE as u64) as usize;
            match plan {
                ReadPlan::Nothing => return answer_once(Ok(&[])),
                ReadPlan::Unknown(page) => {
                    if let Err(error) = self.learn_layout(file, page) {
                        return answer_once(Err(error));
                    }
                }
                ReadPlan::One(first, stored) => match self.fetch_or_take_ahead(file, first, &stored) {
                    Ok(Some(mut buffer)) => {
                        zero_tail(&mut buffer, &stored);
                        let is_next = file.lock().note_sequential(at, len);
                        answer_once(Ok(&buffer[start..start + len]));
                        drop(buffer);
                        if is_next {
                            self.read_ahead(file, at + len as u64, len);
                        }
                        return;
                    }
                    Ok(None) => {}
                    Err(error) => return answer_once(Err(error)),
                },
                ReadPlan::Several(mut bytes, pieces) => {
                    let first = at / PAGE as u64;
                    let fill = |lane: &mut Self| {
                        for (page, stored) in &pieces {
                            let Some(mut buffer) = lane.fetch(file, *page, stored)? else { return Ok(false) };
                            zero_tail(&mut buffer, stored);
                            let start = (page - first) as usize * PAGE;
                            bytes[start..start + buffer.len()].copy_from_slice(&buffer);
                        }
                        Ok(true)
                    };
                    let mut fill = fill;
                    match fill(self) {
                        Ok(true) => return answer_once(Ok(&bytes[start..start + len])),
                        Ok(false) => {}
                        Err(error) => return answer_once(Err(error)),
                    }
                }
            }
        }
        self.client.log(&format!("file {} changes faster than it can be read", file.ino.0));
        answer_once(Err(ClientError::Unreadable));
    }

    /// Takes pages that were read ahead, or reads them now.
    fn fetch_or_take_ahead(
        &mut self,
        file: &Arc<File>,
        at: u64,
        stored: &Stored,
    ) -> Result<Option<MessageBuffer>, ClientError> {
        if stored.sums.len() >= AHEAD_MIN / PAGE {
            let taken = file.ahead().take_if(|ahead| ahead.stored == *stored);
            if let Some(ReadAhead { buffer, .. }) = taken {
                return Ok(Some(buffer));
            }
        }
        self.fetch(file, at, stored)
    }

    /// Reads the likely next range, while the program works on this one.
    fn read_ahead(&mut self, file: &Arc<File>, at: u64, len: usize) {
        let Ok(mut ahead) = file.ahead.try_lock() else { return };
        let stored = {
            let state = file.lock();
            let len = len.min(usize::try_from(state.len().saturating_sub(at)).unwrap_or(usize::MAX));
            let Ok(ReadPlan::One(_, stored)) = state.plan(at, len, &self.client.arena) else { return };
            stored
        };
        // An error here will show again when the range is read.
        if stored.sums.len() >= AHEAD_MIN / PAGE
            && let Ok(Ok(buffer)) = self.fetch_once(&stored)
        {
            *ahead = Some(ReadAhead { stored, buffer });
        }
    }

    /// Returns one page as committed, and the [name](crate::protocol::contents_name) of its contents: zeros and 0 for a
    /// hole.
    pub(super) fn committed_page(&mut self, file: &Arc<File>, page: u64) -> Result<(Vec<u8>, u64), ClientError> {
        for _ in 0..ATTEMPTS {
            let piece = file.lock().layout.piece(page, 1);
            match piece {
                Piece::Unknown => self.learn_layout(file, page)?,
                Piece::Hole { .. } => return Ok((vec![0; PAGE], 0)),
                Piece::Stored(stored) => {
                    if let Some(mut buffer) = self.fetch(file, page, &stored)? {
                        zero_tail(&mut buffer, &stored);
                        return Ok((buffer.to_vec(), stored.contents()));
                    }
                }
            }
        }
        Err(ClientError::Unreadable)
    }
}
