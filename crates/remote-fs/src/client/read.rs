//! Reading.

use std::sync::Arc;

use sinew_mem::MessageBuffer;
use sinew_remote_memory::pool::Approach;
use sinew_rpc::Endpoint;

use super::error::Failed;
use super::file::{Ahead, File, State};
use super::lane::Lane;
use super::layout::{Piece, Stored};
use crate::protocol::PAGE;

/// Attempts at a range whose pages are replaced by others meanwhile.
const ATTEMPTS: u32 = 64;

/// Reads of fewer bytes are not read ahead of.
const AHEAD_MIN: usize = 128 << 10;

/// Where a range is read from.
enum Plan {
    /// It has no bytes.
    Nothing,
    /// Where this page lies has to be asked first.
    Unknown(u64),
    /// All of it lies in a row.
    One(u64, Stored),
    /// These bytes are there already, and the pieces go in between, each from its page on.
    Several(Vec<u8>, Vec<(u64, Stored)>),
}

/// Pages from the first one of a range to the one behind its last.
fn pages(at: u64, len: usize) -> (u64, u64) {
    (at / PAGE as u64, (at + len as u64).div_ceil(PAGE as u64))
}

impl State {
    /// Whether a read begins where the last one ended, and is long.
    fn follows(&mut self, at: u64, len: usize) -> bool {
        let follows = self.read_until == at && len >= AHEAD_MIN;
        self.read_until = at + len as u64;
        follows
    }

    fn plan(&self, at: u64, len: usize) -> Plan {
        let (first, end) = pages(at, len);
        if len == 0 {
            return Plan::Nothing;
        }
        let is_mixed = self.dirty.overlaps(first, end - first);
        if !is_mixed {
            match self.layout.piece(first, end - first) {
                Piece::Unknown => return Plan::Unknown(first),
                Piece::Stored(stored) if stored.sums.len() as u64 == end - first => return Plan::One(first, stored),
                _ => {}
            }
        }
        let mut bytes = vec![0; (end - first) as usize * PAGE];
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
                Piece::Unknown => return Plan::Unknown(page),
                Piece::Hole { count } => count,
                Piece::Stored(stored) => {
                    let count = stored.sums.len() as u64;
                    pieces.push((page, stored));
                    count
                }
            };
        }
        Plan::Several(bytes, pieces)
    }
}

/// What lies behind the bytes that count of a page reads as zeros.
fn cut(buffer: &mut MessageBuffer, stored: &Stored) {
    if stored.last_len < PAGE {
        let end = buffer.len();
        buffer[end - PAGE + stored.last_len..].fill(0);
    }
}

impl<E: Endpoint, A: Approach> Lane<E, A> {
    /// Reads up to `len` bytes of an open file, fewer only at its end, and gives them to `answer`, once.
    pub fn read(&mut self, handle: u64, at: u64, len: usize, answer: impl FnOnce(Result<&[u8], Failed>)) {
        let file = match self.open_file(handle) {
            Ok((file, access)) if access.read || access.execute || access.write => file,
            Ok(_) => return answer(Err(Failed::NotOpen)),
            Err(error) => return answer(Err(error)),
        };
        self.read_file(&file, at, len, answer);
    }

    pub(super) fn read_file(
        &mut self,
        file: &Arc<File>,
        at: u64,
        len: usize,
        answer: impl FnOnce(Result<&[u8], Failed>),
    ) {
        let mut answer = Some(answer);
        let mut tell = |result: Result<&[u8], Failed>| {
            if let Some(answer) = answer.take() {
                answer(result);
            }
        };
        for _ in 0..ATTEMPTS {
            let (plan, len) = {
                let state = file.lock();
                let len = len.min(usize::try_from(state.len().saturating_sub(at)).unwrap_or(usize::MAX));
                (state.plan(at, len), len)
            };
            let start = (at % PAGE as u64) as usize;
            match plan {
                Plan::Nothing => return tell(Ok(&[])),
                Plan::Unknown(page) => {
                    if let Err(error) = self.learn_layout(file, page) {
                        return tell(Err(error));
                    }
                }
                Plan::One(first, stored) => match self.fetch_or_take(file, first, &stored) {
                    Ok(Some(mut buffer)) => {
                        cut(&mut buffer, &stored);
                        let is_next = file.lock().follows(at, len);
                        tell(Ok(&buffer[start..start + len]));
                        drop(buffer);
                        if is_next {
                            self.read_ahead(file, at + len as u64, len);
                        }
                        return;
                    }
                    Ok(None) => {}
                    Err(error) => return tell(Err(error)),
                },
                Plan::Several(mut bytes, pieces) => {
                    let first = at / PAGE as u64;
                    let fill = |lane: &mut Self| {
                        for (page, stored) in &pieces {
                            let Some(mut buffer) = lane.fetch(file, *page, stored)? else { return Ok(false) };
                            cut(&mut buffer, stored);
                            let start = (page - first) as usize * PAGE;
                            bytes[start..start + buffer.len()].copy_from_slice(&buffer);
                        }
                        Ok(true)
                    };
                    let mut fill = fill;
                    match fill(self) {
                        Ok(true) => return tell(Ok(&bytes[start..start + len])),
                        Ok(false) => {}
                        Err(error) => return tell(Err(error)),
                    }
                }
            }
        }
        self.client.log(&format!("file {} changes faster than it can be read", file.ino.0));
        tell(Err(Failed::Data));
    }

    /// Pages that were read ahead, or have to be read now.
    fn fetch_or_take(&mut self, file: &Arc<File>, at: u64, stored: &Stored) -> Result<Option<MessageBuffer>, Failed> {
        if stored.sums.len() >= AHEAD_MIN / PAGE {
            let taken = file.ahead().take_if(|ahead| ahead.stored == *stored);
            if let Some(Ahead { buffer, .. }) = taken {
                return Ok(Some(buffer));
            }
        }
        self.fetch(file, at, stored)
    }

    /// Reads what is likely to be asked for next, while whoever asked is busy with what it got.
    fn read_ahead(&mut self, file: &Arc<File>, at: u64, len: usize) {
        let Ok(mut ahead) = file.ahead.try_lock() else { return };
        let stored = {
            let state = file.lock();
            let len = len.min(usize::try_from(state.len().saturating_sub(at)).unwrap_or(usize::MAX));
            let Plan::One(_, stored) = state.plan(at, len) else { return };
            stored
        };
        // What goes wrong is found out by who asks for it.
        if stored.sums.len() >= AHEAD_MIN / PAGE
            && let Ok(Ok(buffer)) = self.fetch_once(&stored)
        {
            *ahead = Some(Ahead { stored, buffer });
        }
    }

    /// One page as the file has it at the donors, with its checksum: 0 for a hole.
    pub(super) fn committed_page(&mut self, file: &Arc<File>, page: u64) -> Result<(Vec<u8>, u64), Failed> {
        for _ in 0..ATTEMPTS {
            let piece = file.lock().layout.piece(page, 1);
            match piece {
                Piece::Unknown => self.learn_layout(file, page)?,
                Piece::Hole { .. } => return Ok((vec![0; PAGE], 0)),
                Piece::Stored(stored) => {
                    if let Some(mut buffer) = self.fetch(file, page, &stored)? {
                        cut(&mut buffer, &stored);
                        return Ok((buffer.to_vec(), stored.sums[0]));
                    }
                }
            }
        }
        Err(Failed::Data)
    }
}
