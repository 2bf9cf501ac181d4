//! Writing to files: data stays in this program's memory until it is flushed.

use std::collections::HashMap;
use std::sync::Arc;

use sinew_remote_memory::pool::AccessMethod;
use sinew_rpc::Endpoint;

use super::error::ClientError;
use super::file::{File, FileState};
use super::lane::Lane;
use crate::protocol::{Answer, Error, FILE_LEN_MAX, PAGE, RESERVE_PAGES_MAX, Request, Reservation};
use crate::space::Purpose;

/// Time that a write waits for donors to lend memory, and for other clients to replace pages, besides that after which
/// a client that died with such pages is given up; in ns.
const ROOM_WAIT_NS: u64 = 5_000_000_000;
/// Pause before another request for pages.
const PAUSE_NS: u64 = 1_000_000;

/// Pages as they were before a partial write, each with the name of its contents.
type Bases = HashMap<u64, (Vec<u8>, u64)>;

/// The part of a range that lies in the page of its first byte: the page, the offset in it, and the length.
fn page_part(at: u64, len: usize) -> (u64, usize, usize) {
    let from = (at % PAGE as u64) as usize;
    (at / PAGE as u64, from, len.min(PAGE - from))
}

/// The pages that a range touches: the first, and their number.
fn pages_of(at: u64, len: usize) -> (u64, u64) {
    let first = at / PAGE as u64;
    (first, (at + len as u64).div_ceil(PAGE as u64) - first)
}

/// The pages that a range covers only in part: the first, the last, both or none.
fn partial_pages(at: u64, len: usize) -> impl Iterator<Item = u64> {
    let (first, from, first_len) = page_part(at, len);
    let end = at + len as u64;
    let last = (!end.is_multiple_of(PAGE as u64) && end / PAGE as u64 > first).then_some(end / PAGE as u64);
    (from > 0 || first_len < PAGE).then_some(first).into_iter().chain(last)
}

impl FileState {
    /// Returns a page that must be read before bytes of it are written.
    fn missing_base(&self, at: u64, len: usize, bases: &Bases) -> Option<u64> {
        let is_missing = |page: &u64| {
            if self.dirty.page(*page).is_some() {
                return false;
            }
            match (bases.get(page), self.layout.contents(*page)) {
                (Some((_, had)), Some(has)) => *had != has,
                // It is not read again: if the page has changed meanwhile, the commit is refused.
                (Some(_), None) => false,
                (None, Some(0)) => false,
                (None, _) => true,
            }
        };
        partial_pages(at, len).find(is_missing)
    }
}

impl<E: Endpoint, A: AccessMethod> Lane<E, A> {
    /// Writes bytes to a file that is open for writing. Returns their number, at least 1 unless there are none: fewer
    /// than all where there is no room, or no memory, for the rest.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; nothing was written then.
    pub fn write(&mut self, handle: u64, at: u64, data: &[u8]) -> Result<usize, ClientError> {
        let (file, access) = self.file_of_handle(handle)?;
        if !access.write {
            return Err(ClientError::NotOpen);
        }
        self.write_file(&file, at, data)
    }

    pub(super) fn write_file(&mut self, file: &Arc<File>, at: u64, data: &[u8]) -> Result<usize, ClientError> {
        let end = at.checked_add(data.len() as u64).filter(|end| *end <= FILE_LEN_MAX);
        end.ok_or(ClientError::Refused(Error::FileTooBig))?;
        if data.is_empty() {
            return Ok(0);
        }
        self.make_room(file, data.len())?;
        let (_, count) = pages_of(at, data.len());
        match self.promise(count) {
            Err(ClientError::Refused(Error::NoSpace)) => self.write_what_fits(file, at, data),
            promised => promised.and_then(|()| self.write_reserved(file, at, data, Purpose::Any, count)),
        }
    }

    /// Writes to a full file system: what the file has already, or was promised, can still be written, and what this
    /// client has pages for.
    fn write_what_fits(&mut self, file: &Arc<File>, at: u64, data: &[u8]) -> Result<usize, ClientError> {
        let full = || ClientError::Refused(Error::NoSpace);
        match self.write_over(file, at, data, true) {
            // It has waited long enough.
            Ok(0) => return Err(full()),
            Err(ClientError::Refused(Error::NoSpace)) => {}
            result => return result,
        }
        let (first, count) = pages_of(at, data.len());
        if file.lock().dirty.overlaps(first, count) {
            // Some of the pages were written a moment ago, and are new to the service.
            self.write_out(file)?;
        }
        let mut written = 0;
        // Lengths of parts that may fit, the next one last.
        let mut parts = vec![data.len()];
        while let Some(len) = parts.pop() {
            let (at, part) = (at + written as u64, &data[written..written + len]);
            let (first, count) = pages_of(at, len);
            match self.write_if_it_fits(file, at, part, written == 0) {
                Ok(Some(more)) if more == len => written += more,
                Ok(Some(0)) if written == 0 => return Err(full()),
                Ok(Some(more)) => return Ok(written + more),
                Ok(None) if count > 1 => {
                    let half = ((first + count / 2) * PAGE as u64 - at) as usize;
                    parts.extend([len - half, half]);
                }
                Ok(None) if written == 0 => return Err(full()),
                Err(error) if written == 0 => return Err(error),
                // The program is told when it writes the rest.
                Ok(None) | Err(_) => break,
            }
        }
        Ok(written)
    }

    /// Writes bytes if there is room for all of them; `None`: there is not. Like [`Self::write_over`], it may write
    /// only a part of those for which the file has pages.
    fn write_if_it_fits(
        &mut self,
        file: &Arc<File>,
        at: u64,
        data: &[u8],
        may_wait: bool,
    ) -> Result<Option<usize>, ClientError> {
        let (first, count) = pages_of(at, data.len());
        if self.replaces(file, first, count)? {
            return self.write_over(file, at, data, may_wait).map(Some);
        }
        let missing = self.client.reserve().of(Purpose::Any).promise(count);
        if missing > 0 {
            return Ok(None);
        }
        self.write_reserved(file, at, data, Purpose::Any, count).map(Some)
    }

    /// Writes to pages that a file has, or that room was promised to. There may be room for a part of them at a time.
    /// If it `may_wait`, it waits for the first such part, and never for the others. Returns the number of bytes
    /// written; 0 if no page came back in time.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] if the file lacks a page; and others. Nothing was written then.
    fn write_over(&mut self, file: &Arc<File>, at: u64, data: &[u8], may_wait: bool) -> Result<usize, ClientError> {
        let mut written = 0;
        while written < data.len() {
            let (at, rest) = (at + written as u64, &data[written..]);
            let (first, count) = pages_of(at, rest.len());
            let may_wait = may_wait && written == 0;
            let result = self.promise_overwrite(file, first, count, may_wait).and_then(|promised| {
                if promised == 0 {
                    return Ok(0);
                }
                let len = rest.len().min(((first + promised) * PAGE as u64 - at) as usize);
                self.write_reserved(file, at, &rest[..len], Purpose::Overwrite, promised)
            });
            match result {
                Ok(0) => break,
                Ok(more) => written += more,
                Err(error) if written == 0 => return Err(error),
                // The program is told when it writes the rest.
                Err(_) => break,
            }
        }
        Ok(written)
    }

    /// Writes to `promised` pages, and withdraws the promise of those that are not needed.
    fn write_reserved(
        &mut self,
        file: &Arc<File>,
        at: u64,
        data: &[u8],
        purpose: Purpose,
        promised: u64,
    ) -> Result<usize, ClientError> {
        let (new, written) = self.write_promised(file, at, data, promised, purpose);
        self.client.reserve().of(purpose).withdraw(promised - new);
        written
    }

    /// Promises pages to a write that needs no new room. Returns the number of pages; 0 if there are none. If it
    /// `may_wait`, it waits for other clients' pages to come back; otherwise it only writes out this client's own data.
    fn promise_overwrite(
        &mut self,
        file: &Arc<File>,
        first: u64,
        count: u64,
        may_wait: bool,
    ) -> Result<u64, ClientError> {
        // A client that dies with pages has to be given up first.
        let until = self.now_ns() + self.client.identity().lease_ns + ROOM_WAIT_NS;
        let mut has_written_out = false;
        loop {
            let waits = may_wait && has_written_out;
            let missing = count.saturating_sub(self.client.reserve().of(Purpose::Overwrite).spare());
            self.reserve_overwrite(file, (first, count), missing, waits)?;
            let promised = self.client.reserve().of(Purpose::Overwrite).promise_some(count);
            if promised > 0 {
                return Ok(promised);
            }
            if self.now_ns() > until || has_written_out && !may_wait {
                return Ok(0);
            }
            // Pages come back as soon as others have been replaced.
            for other in self.client.dirty_files() {
                // Its program is told at the next sync.
                let _ = self.write_out(&other);
            }
            has_written_out = true;
        }
    }

    /// Reserves up to `missing` pages to overwrite pages of a file: `count` from page `first` on. There may be none,
    /// also if it `waits` for a moment.
    pub(super) fn reserve_overwrite(
        &mut self,
        file: &File,
        (first, count): (u64, u64),
        missing: u64,
        waits: bool,
    ) -> Result<(), ClientError> {
        let until = self.now_ns() + self.client.config.service_timeout_ns;
        let of = |pages: u64| pages.min(RESERVE_PAGES_MAX.into()) as u32;
        loop {
            let handle = file.lock().handle(true).ok_or(ClientError::NotOpen)?;
            let request = Request::ReserveOverwrite { handle, at: first, count: of(count), pages: of(missing), waits };
            return match self.ask_as_root(request) {
                Ok(Answer::Reserved(fresh)) => self.add_reserved(Purpose::Overwrite, fresh, until),
                Ok(_) => Err(ClientError::UnexpectedAnswer),
                Err(ClientError::Refused(Error::BadHandle)) if file.lock().has_other(handle, true) => continue,
                Err(error) => Err(error),
            };
        }
    }

    /// Writes to `count` pages that are promised. Returns the number of those that had no uncommitted data before and
    /// have now, for which the promise stays, and the number of bytes written: fewer than all if memory runs out.
    fn write_promised(
        &mut self,
        file: &Arc<File>,
        at: u64,
        data: &[u8],
        count: u64,
        purpose: Purpose,
    ) -> (u64, Result<usize, ClientError>) {
        let mut bases = Bases::new();
        loop {
            let mut state = file.lock();
            if let Some(page) = state.missing_base(at, data.len(), &bases) {
                drop(state);
                match self.committed_page(file, page) {
                    Ok(base) => drop(bases.insert(page, base)),
                    Err(error) => return (0, Err(error)),
                }
                continue;
            }
            let now_ns = self.now_ns();
            let first = at / PAGE as u64;
            let new = state.dirty.new_pages(first, count);
            let before = state.dirty.bytes();
            let is_first = state.dirty.is_empty();
            let mut rest = data;
            let mut from = at;
            while !rest.is_empty() {
                let (page, offset, len) = page_part(from, rest.len());
                let base = bases.get(&page).map(|(bytes, contents)| (&bytes[..], *contents));
                let wrote = state.dirty.write(&self.client.arena, page, offset, &rest[..len], base, purpose);
                if wrote.is_err() {
                    break;
                }
                (from, rest) = (from + len as u64, &rest[len..]);
            }
            let new = new - state.dirty.new_pages(first, count);
            if from > at {
                if is_first {
                    state.dirty_since_ns = now_ns;
                    state.dirty_len = 0;
                }
                state.dirty_len = state.dirty_len.max(from);
                state.modified = Some((self.client.config.wall)());
            }
            self.client.count_dirty(before, state.dirty.bytes());
            drop(state);
            self.client.note_write(now_ns);
            if self.client.dirty_bytes() > self.client.config.dirty_bytes_max / 4 {
                self.client.wake();
            }
            let written = data.len() - rest.len();
            return (new, if written > 0 { Ok(written) } else { Err(ClientError::NoMemory) });
        }
    }

    /// Waits until there is room for the data to be written.
    fn make_room(&mut self, file: &Arc<File>, len: usize) -> Result<(), ClientError> {
        let max = self.client.config.dirty_bytes_max;
        if self.client.dirty_bytes() + len <= max {
            return Ok(());
        }
        self.write_out(file)?;
        if self.client.dirty_bytes() + len > max {
            for other in self.client.dirty_files() {
                // Its program is told at the next sync.
                let _ = self.write_out(&other);
            }
        }
        Ok(())
    }

    /// Reserves pages if necessary, and promises `pages` of them to this write.
    fn promise(&mut self, pages: u64) -> Result<(), ClientError> {
        loop {
            let missing = self.client.reserve().of(Purpose::Any).promise(pages);
            if missing == 0 {
                return Ok(());
            }
            self.reserve(missing)?;
        }
    }

    /// Reserves pages, and some ahead. The service may grant fewer than are missing.
    pub(super) fn reserve(&mut self, missing: u64) -> Result<(), ClientError> {
        let ahead = u64::from(self.client.config.reserve_pages);
        let pages = missing.max(ahead).min(RESERVE_PAGES_MAX.into()) as u32;
        let until = self.now_ns() + self.client.config.service_timeout_ns;
        let until_room = self.now_ns() + ROOM_WAIT_NS;
        loop {
            let Answer::Reserved(fresh) = self.ask_as_root(Request::Reserve { pages })? else {
                return Err(ClientError::UnexpectedAnswer);
            };
            if !fresh.runs.is_empty() {
                return self.add_reserved(Purpose::Any, fresh, until);
            }
            if self.now_ns() > until_room {
                return Err(ClientError::Refused(Error::NoSpace));
            }
            self.pause(PAUSE_NS);
        }
    }

    /// Adds pages that the service has just reserved.
    fn add_reserved(&mut self, purpose: Purpose, fresh: Reservation, until: u64) -> Result<(), ClientError> {
        self.client.learn_placements(&fresh.places);
        let mut now = self.client.identity();
        if fresh.epoch > now.epoch {
            // Another lane is joining a service that has restarted.
            self.join(now.joined, until)?;
            now = self.client.identity();
        }
        // Pages that an earlier service granted, or that were granted to an earlier client, are not ours. The caller
        // asks again.
        if (fresh.epoch, fresh.client) == (now.epoch, now.client) {
            self.client.reserve().of(purpose).add(now.joined, fresh.runs);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_written_in_part_are_the_ends_of_a_range() {
        let of = |at, len| partial_pages(at, len).collect::<Vec<_>>();
        let page = PAGE as u64;
        assert_eq!(of(0, PAGE), [0; 0]);
        assert_eq!(of(page, 3 * PAGE), [0; 0]);
        assert_eq!((of(5, 6), of(0, 6), of(page - 1, 1)), (vec![0], vec![0], vec![0]));
        assert_eq!((of(5, PAGE), of(0, PAGE + 1), of(page - 1, 2)), (vec![0, 1], vec![1], vec![0, 1]));
        assert_eq!((of(5, 2 * PAGE - 5), of(5, 3 * PAGE)), (vec![0], vec![0, 3]));
    }
}
