//! Operations on names, attributes and open files.

use std::sync::{Arc, Mutex, PoisonError};

use sinew_remote_memory::pool::AccessMethod;
use sinew_rpc::Endpoint;

use super::error::ClientError;
use super::file::File;
use super::lane::Lane;
use super::layout::Piece;
use super::shared::{Handle, Listing};
use crate::protocol::{
    Access, Answer, Attr, Caller, Entry, Error, FILE_LEN_MAX, Ino, Lock, LockOwner, Mode, NodeKind, OpenFile, PAGE,
    READDIR_MAX, Request, SetAttr, SetXattr, Space,
};
use crate::space::Purpose;

/// A file that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Handle to use in later calls.
    pub handle: u64,
    /// The file's attributes.
    pub attr: Attr,
    /// Whether data read from the file earlier is still valid.
    pub is_unchanged: bool,
}

/// Change to a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeChange {
    /// Room is reserved for the whole range, which reads as before: what it lacks as zeros. A later write there meets
    /// no lack of room.
    Reserve,
    /// The range reads as zeros and takes no room. Room that was reserved for it is given back.
    Hole,
    /// The range reads as zeros, and room is reserved for it, as by [`Self::Reserve`]. If there is too little, parts of
    /// pages at its ends may read as zeros, and nothing else has changed.
    Zero,
}

/// Target of a search in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// Bytes that were written.
    Data,
    /// A hole, or the end of the file.
    Hole,
}

fn attr(answer: Answer) -> Result<Attr, ClientError> {
    match answer {
        Answer::Attr(attr) => Ok(attr),
        _ => Err(ClientError::UnexpectedAnswer),
    }
}

fn bytes(answer: Answer) -> Result<Vec<u8>, ClientError> {
    match answer {
        Answer::Bytes(bytes) => Ok(bytes),
        _ => Err(ClientError::UnexpectedAnswer),
    }
}

/// How a range of bytes comes to read as zeros.
#[derive(Debug, PartialEq, Eq)]
struct Clearing {
    /// Pages that become a hole: the first, and their number.
    hole: Option<(u64, u64)>,
    /// Bytes beside it, to which zeros are written: start and end.
    zeros: Vec<(u64, u64)>,
}

/// How to clear the bytes from `at` to before `end` of a file of `size` bytes.
fn clearing(at: u64, end: u64, size: u64) -> Clearing {
    let page = PAGE as u64;
    // Nothing is to be written past the end of the file, but room may have been reserved for it.
    let stop = end.min(size);
    let last_of_file = if end >= size { size.div_ceil(page) } else { 0 };
    let (first, last) = (at.div_ceil(page), last_of_file.max(end / page));
    let head = (at, stop.min(first * page));
    let tail = ((last * page).max(head.1).max(at), stop);
    let zeros = [head, tail].into_iter().filter(|(from, to)| from < to).collect();
    Clearing { hole: (first < last).then(|| (first, last - first)), zeros }
}

impl<E: Endpoint, A: AccessMethod> Lane<E, A> {
    pub(super) fn file_of_handle(&self, handle: u64) -> Result<(Arc<File>, Access), ClientError> {
        match self.client.handles().get(&handle) {
            Some(Handle::File { file, access }) => Ok((Arc::clone(file), *access)),
            _ => Err(ClientError::NotOpen),
        }
    }

    /// Attributes with uncommitted changes of this client applied.
    fn as_seen_locally(&self, attr: Attr) -> Attr {
        match self.client.known_file(attr.ino) {
            Some(file) => file.lock().as_seen_locally(attr),
            None => attr,
        }
    }

    fn ask_attr(&mut self, caller: &Caller, request: Request) -> Result<Attr, ClientError> {
        let attr = attr(self.ask(caller, request)?)?;
        Ok(self.as_seen_locally(attr))
    }

    /// Looks up a name.
    ///
    /// # Errors
    ///
    /// [`ClientError`], as for all methods that follow.
    pub fn lookup(&mut self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr, ClientError> {
        self.ask_attr(caller, Request::Lookup { parent, name: name.to_vec() })
    }

    /// Returns an inode's attributes.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn attributes(&mut self, ino: Ino) -> Result<Attr, ClientError> {
        self.ask_attr(&Caller::default(), Request::GetAttr { ino })
    }

    /// Commits what was written to a file, before a change that comes after it, or a look at what the file has. The
    /// program is told of what is lost at its next sync.
    ///
    /// # Errors
    ///
    /// The reason why some data is neither committed nor lost, for example a lack of memory. It would be committed
    /// after the change, and undo it.
    fn write_out_first(&mut self, file: &Arc<File>) -> Result<(), ClientError> {
        let written = self.write_out(file);
        if file.lock().dirty.is_empty() { Ok(()) } else { written }
    }

    /// Sets attributes. If the size is set through an open handle, `handle` is that handle; it is used only if it is
    /// open for writing.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn set_attributes(
        &mut self,
        caller: &Caller,
        ino: Ino,
        set: SetAttr,
        handle: Option<u64>,
    ) -> Result<Attr, ClientError> {
        let file = self.client.known_file(ino);
        let handle = handle.filter(|handle| self.file_of_handle(*handle).is_ok_and(|(_, access)| access.write));
        let request = Request::SetAttr { ino, set, handle };
        let attr = match &file {
            // Until the request is done nothing may be committed, and afterwards there is nothing left to commit.
            Some(file) if set.size == Some(0) => {
                let _one = file.flushing.lock().unwrap_or_else(PoisonError::into_inner);
                let attr = attr(self.ask(caller, request)?)?;
                self.discard(file);
                attr
            }
            _ => {
                if let Some(file) = &file {
                    // Earlier writes come first, and their time is older.
                    let written = self.write_out_first(file);
                    if set.size.is_some() || set.mtime.is_some() {
                        written?;
                    }
                }
                attr(self.ask(caller, request)?)?
            }
        };
        if let Some(file) = file {
            let mut state = file.lock();
            state.mode = attr.mode;
            if set.size.is_none() {
                return Ok(state.as_seen_locally(attr));
            }
            state.apply_own_change(&attr);
            state.layout.clear();
            if attr.pages == 0 && !state.is_outdated(attr.version) {
                state.layout.set_empty();
            }
        }
        Ok(self.as_seen_locally(attr))
    }

    /// Clears the set-id bits of a file that a user other than root has written to. The group's bit stays if the group
    /// may not execute the file.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn drop_privileges(&mut self, handle: u64, ino: Ino) -> Result<(), ClientError> {
        // Most files have none, and had none when they were opened.
        if self.file_of_handle(handle)?.0.lock().mode & 0o6000 == 0 {
            return Ok(());
        }
        let attr = attr(self.ask_as_root(Request::GetAttr { ino })?)?;
        let group = if attr.mode & 0o010 != 0 { 0o2000 } else { 0 };
        let mode = attr.mode & !(0o4000 | group);
        if mode != attr.mode {
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            self.ask_as_root(Request::SetAttr { ino, set, handle: None })?;
        }
        if let Some(file) = self.client.known_file(ino) {
            file.lock().mode = mode;
        }
        Ok(())
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn read_link(&mut self, ino: Ino) -> Result<Vec<u8>, ClientError> {
        bytes(self.ask_as_root(Request::ReadLink { ino })?)
    }

    /// Makes a directory.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn make_directory(
        &mut self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mode: Mode,
    ) -> Result<Attr, ClientError> {
        self.ask_attr(caller, Request::MakeDirectory { parent, name: name.to_vec(), mode })
    }

    /// Makes a file without opening it, or a special file.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn make_node(
        &mut self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mode: Mode,
        (kind, rdev): (NodeKind, u32),
    ) -> Result<Attr, ClientError> {
        self.ask_attr(caller, Request::MakeNode { parent, name: name.to_vec(), mode, kind, rdev })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn make_link(&mut self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr, ClientError> {
        self.ask_attr(caller, Request::MakeSymlink { parent, name: name.to_vec(), target: target.to_vec() })
    }

    /// Gives an inode another name.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn link(&mut self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr, ClientError> {
        self.ask_attr(caller, Request::Link { ino, parent, name: name.to_vec() })
    }

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn unlink(&mut self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<(), ClientError> {
        self.ask(caller, Request::Unlink { parent, name: name.to_vec() }).map(|_| ())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn remove_directory(&mut self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<(), ClientError> {
        self.ask(caller, Request::RemoveDirectory { parent, name: name.to_vec() }).map(|_| ())
    }

    /// Renames a file or directory. `flags` are those of `renameat2`.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn rename(
        &mut self,
        caller: &Caller,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        flags: u32,
    ) -> Result<(), ClientError> {
        let (name, new_name) = (name.to_vec(), new_name.to_vec());
        self.ask(caller, Request::Rename { parent, name, new_parent, new_name, flags }).map(|_| ())
    }

    /// Opens a file, and empties it if `truncates`.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn open(&mut self, caller: &Caller, ino: Ino, access: Access, truncates: bool) -> Result<Opened, ClientError> {
        let handle = self.client.new_handle();
        let joined = self.client.identity().joined;
        let mut attr = attr(self.ask(caller, Request::Open { handle, ino, access })?)?;
        let file = self.opened(handle, &attr, access);
        self.ensure_open(OpenFile { handle, ino, access }, joined)?;
        if truncates {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            match self.set_attributes(caller, ino, set, Some(handle)) {
                Ok(now) => attr = now,
                Err(error) => {
                    // The open is undone.
                    let _ = self.close(handle);
                    return Err(error);
                }
            }
        }
        let mut state = file.lock();
        let attr = state.as_seen_locally(attr);
        let is_unchanged = state.cached_version == Some(attr.version);
        state.cached_version = Some(attr.version);
        Ok(Opened { handle, attr, is_unchanged })
    }

    /// Makes sure that the service knows a handle. If the client joined again since `joined`, it may have been opened
    /// under the old identity.
    fn ensure_open(&mut self, OpenFile { handle, ino, access }: OpenFile, joined: u64) -> Result<(), ClientError> {
        let mut seen = joined;
        while self.client.identity().joined != seen {
            seen = self.client.identity().joined;
            if let Err(error) = self.ask_as_root(Request::Open { handle, ino, access }) {
                // The open is undone.
                let _ = self.close(handle);
                return Err(error);
            }
        }
        Ok(())
    }

    fn opened(&mut self, handle: u64, attr: &Attr, access: Access) -> Arc<File> {
        let file = self.client.add_handle(attr, handle, access);
        self.client.handles().insert(handle, Handle::File { file: Arc::clone(&file), access });
        file
    }

    /// Makes a file and opens it.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn create(
        &mut self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mode: Mode,
        access: Access,
    ) -> Result<Opened, ClientError> {
        let handle = self.client.new_handle();
        let request = Request::Create { parent, name: name.to_vec(), mode, handle, access };
        let joined = self.client.identity().joined;
        let attr = attr(self.ask(caller, request)?)?;
        let file = self.opened(handle, &attr, access);
        self.ensure_open(OpenFile { handle, ino: attr.ino, access }, joined)?;
        file.lock().cached_version = Some(attr.version);
        Ok(Opened { handle, attr, is_unchanged: true })
    }

    /// Commits what was written to an open file, so that it is durable.
    ///
    /// # Errors
    ///
    /// [`ClientError`]: the reason why some data written so far is lost.
    pub fn sync(&mut self, handle: u64) -> Result<(), ClientError> {
        let (file, _) = self.file_of_handle(handle)?;
        let written = self.write_out(&file);
        file.lock().take_loss(handle).and(written)
    }

    /// Closes a file or a directory.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; the handle is closed even so.
    pub fn close(&mut self, handle: u64) -> Result<(), ClientError> {
        let open = self.client.handles().get(&handle).cloned();
        let mut result = Ok(());
        if let Some(Handle::File { file, access }) = &open {
            // Another handle open for writing may be closed at the same time.
            if access.write {
                result = self.write_out(file);
            }
            let is_last = {
                let mut state = file.lock();
                if access.write {
                    result = state.take_loss(handle).and(result);
                }
                state.handles.retain(|open| open.handle != handle);
                state.handles.is_empty()
            };
            if is_last {
                *file.ahead() = None;
            }
        }
        self.client.handles().remove(&handle);
        if open.is_some() {
            result = result.and(self.ask_as_root(Request::Close { handle }).map(|_| ()));
        }
        result
    }

    /// Opens a directory.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn open_directory(&mut self, caller: &Caller, ino: Ino) -> Result<u64, ClientError> {
        let handle = self.client.new_handle();
        let access = Access { read: true, ..Access::default() };
        let joined = self.client.identity().joined;
        self.ask(caller, Request::Open { handle, ino, access })?;
        let listing = Arc::new(Mutex::new(Listing::default()));
        self.client.handles().insert(handle, Handle::Directory { ino, listing });
        self.ensure_open(OpenFile { handle, ino, access }, joined)?;
        Ok(handle)
    }

    /// Passes the entries of an open directory after the cookie `after` (0 for all) to `add`, until that returns false
    /// or there are no more.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn list(&mut self, handle: u64, after: u64, add: &mut dyn FnMut(&Entry) -> bool) -> Result<(), ClientError> {
        let listing = match self.client.handles().get(&handle) {
            Some(Handle::Directory { listing, .. }) => Arc::clone(listing),
            _ => return Err(ClientError::NotOpen),
        };
        let mut listing = listing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut after = after;
        loop {
            let place = listing.entries.partition_point(|entry| entry.cookie <= after);
            let is_here = after > 0 && (listing.after <= after && (place < listing.entries.len() || listing.is_end));
            if !is_here {
                let answer = self.ask_as_root(Request::ReadDirectory { handle, after, count: READDIR_MAX })?;
                let Answer::Entries { entries, is_end, .. } = answer else { return Err(ClientError::UnexpectedAnswer) };
                if entries.first().is_some_and(|entry| entry.cookie <= after) || entries.is_empty() && !is_end {
                    return Err(ClientError::UnexpectedAnswer);
                }
                *listing = Listing { after, entries, is_end };
            }
            let from = listing.entries.partition_point(|entry| entry.cookie <= after);
            for entry in &listing.entries[from..] {
                if !add(entry) {
                    return Ok(());
                }
                after = entry.cookie;
            }
            if listing.is_end {
                return Ok(());
            }
        }
    }

    /// Returns the total and free room.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn space(&mut self) -> Result<Space, ClientError> {
        match self.ask_as_root(Request::Statfs)? {
            Answer::Space(mut space) => {
                // Spare reservations of this client count as free.
                space.free_pages += self.client.reserve().of(Purpose::Any).spare();
                Ok(space)
            }
            _ => Err(ClientError::UnexpectedAnswer),
        }
    }

    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn extended(&mut self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>, ClientError> {
        bytes(self.ask(caller, Request::GetXattr { ino, name: name.to_vec() })?)
    }

    /// Returns the names of extended attributes, each followed by a NUL.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn list_extended(&mut self, caller: &Caller, ino: Ino) -> Result<Vec<u8>, ClientError> {
        bytes(self.ask(caller, Request::ListXattr { ino })?)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn set_extended(
        &mut self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<(), ClientError> {
        let (name, value) = (name.to_vec(), value.to_vec());
        self.ask(caller, Request::SetXattr { ino, name, value, how }).map(|_| ())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn remove_extended(&mut self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<(), ClientError> {
        self.ask(caller, Request::RemoveXattr { ino, name: name.to_vec() }).map(|_| ())
    }

    /// Locks a range, without waiting for it. `waits`: the owner waits, and its program asks again until it has the
    /// lock; if it gives up, it asks once more without `waits`.
    ///
    /// # Errors
    ///
    /// [`ClientError`]: [`Error::WouldBlock`] when another lock conflicts, and [`Error::Deadlock`] if the owner `waits`
    /// for itself in the end.
    pub fn lock(&mut self, lock: Lock, waits: bool) -> Result<(), ClientError> {
        let mut joined = self.client.identity().joined;
        self.ask_as_root(Request::Lock { lock, waits })?;
        self.client.locks().add(lock);
        // The lock may have been granted before the client joined again, and forgotten then.
        while self.client.identity().joined != joined {
            joined = self.client.identity().joined;
            if let Err(error) = self.ask_as_root(Request::Lock { lock, waits: false }) {
                self.client.locks().remove(lock.ino, lock.owner, lock.first, lock.last);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns a lock that conflicts with this one, if there is one.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn test_lock(&mut self, lock: Lock) -> Result<Option<Lock>, ClientError> {
        match self.ask_as_root(Request::TestLock(lock))? {
            Answer::LockConflict(lock) => Ok(lock),
            _ => Err(ClientError::UnexpectedAnswer),
        }
    }

    /// Releases an owner's locks in a range.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn unlock(&mut self, ino: Ino, owner: LockOwner, first: u64, last: u64) -> Result<(), ClientError> {
        if !self.client.locks().has(ino, owner) {
            return Ok(());
        }
        loop {
            let joined = self.client.identity().joined;
            self.ask_as_root(Request::Unlock { ino, owner, first, last })?;
            self.client.locks().remove(ino, owner, first, last);
            if self.client.identity().joined == joined {
                return Ok(());
            }
        }
    }

    /// Reserves a range of a file that is open for writing, or makes it read as zeros. Unless `keeps_size`, the file is
    /// extended to the end of the range.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn change_range(
        &mut self,
        handle: u64,
        at: u64,
        len: u64,
        how: RangeChange,
        keeps_size: bool,
    ) -> Result<(), ClientError> {
        let (file, access) = self.file_of_handle(handle)?;
        if !access.write {
            return Err(ClientError::NotOpen);
        }
        let end = at.checked_add(len).filter(|end| *end <= FILE_LEN_MAX).ok_or(Error::FileTooBig)?;
        if len == 0 {
            return Err(Error::Invalid.into());
        }
        self.write_out_first(&file)?;
        let page = PAGE as u64;
        let mut cleared = None;
        if how != RangeChange::Reserve {
            let size = attr(self.ask_as_root(Request::GetAttr { ino: file.ino })?)?.size;
            let Clearing { hole, zeros } = clearing(at, end, size);
            cleared = hole;
            for (from, to) in zeros {
                // They lie in one page, so all are written, or none.
                self.write_file(&file, from, &[0; PAGE][..(to - from) as usize])?;
            }
            self.write_out(&file)?;
        }
        let size_min = if keeps_size { 0 } else { end };
        let mtime = Some((self.client.config.wall)());
        let request = match how {
            RangeChange::Hole => {
                let holes = cleared.into_iter().collect();
                Request::Commit { handle, size_min, mtime, holes, extents: Vec::new() }
            }
            RangeChange::Reserve | RangeChange::Zero => {
                let (at, end) = (at / page, end.div_ceil(page));
                Request::Allocate { handle, at, count: end - at, hole: cleared, size_min, mtime }
            }
        };
        let mut answer = self.ask_as_root(request.clone());
        if matches!(answer, Err(ClientError::Refused(Error::NoSpace))) {
            // What this client has reserved ahead counts as free, so it may be used for this.
            let identity = self.client.identity();
            if self.give_back_spare(&identity, Purpose::Any) {
                answer = self.ask_as_root(request);
            }
        }
        let attr = attr(answer?)?;
        let mut state = file.lock();
        if !state.apply_own_change(&attr) || cleared.is_some() {
            state.layout.clear();
        }
        Ok(())
    }

    /// Returns the offset of the first data or hole of an open file at or after `at`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn seek(&mut self, handle: u64, at: u64, whence: Whence) -> Result<Option<u64>, ClientError> {
        let (file, _) = self.file_of_handle(handle)?;
        self.write_out_first(&file)?;
        let page = PAGE as u64;
        let mut from = at;
        loop {
            let len = file.lock().len();
            if from >= len {
                return Ok((whence == Whence::Hole && at < len).then_some(len));
            }
            let end = len.div_ceil(page);
            let piece = file.lock().layout.piece(from / page, end - from / page);
            let (count, is_data) = match piece {
                Piece::Unknown => {
                    self.learn_layout(&file, from / page)?;
                    continue;
                }
                Piece::Hole { count } => (count, false),
                Piece::Stored(stored) => (stored.sums.len() as u64, true),
            };
            if is_data == (whence == Whence::Data) {
                return Ok(Some(from));
            }
            from = (from / page + count) * page;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Ranges = Vec<(u64, u64)>;

    fn cleared(at: u64, end: u64, size: u64) -> (Option<(u64, u64)>, Ranges) {
        let Clearing { hole, zeros } = clearing(at, end, size);
        (hole, zeros)
    }

    #[test]
    fn a_range_is_cleared_by_a_hole_and_zeros_beside_it() {
        let page = PAGE as u64;
        let size = 10 * page - 7;
        let of = |at, end| cleared(at, end, size);
        assert_eq!(of(page, 3 * page), (Some((1, 2)), vec![]));
        assert_eq!(of(5, 3 * page + 9), (Some((1, 2)), vec![(5, page), (3 * page, 3 * page + 9)]));
        assert_eq!((of(5, 9), of(0, 9)), ((None, vec![(5, 9)]), (None, vec![(0, 9)])));
        assert_eq!(of(page - 1, page + 1), (None, vec![(page - 1, page), (page, page + 1)]));
        // The last page has nothing past the end.
        assert_eq!((of(9 * page, size), of(9 * page, size - 1).0), ((Some((9, 1)), vec![]), None));
    }

    #[test]
    fn room_past_the_end_of_a_file_is_given_back_by_a_hole() {
        let page = PAGE as u64;
        assert_eq!(cleared(0, 100 * page, 0), (Some((0, 100)), vec![]));
        assert_eq!(cleared(page + 1, 100 * page - 3, 9), (Some((2, 97)), vec![]), "whole pages");
        assert_eq!(cleared(3, 100 * page, page + 9), (Some((1, 99)), vec![(3, page)]));
    }
}
