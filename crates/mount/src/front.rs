//! The front for `fuser`: each request of the kernel becomes a call of [`Files`].

mod convert;
mod locks;
mod writers;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig, LockOwner, Notifier,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;

use crate::caller;
use crate::files::{
    AllocateMode, AttributeChange, Attributes, CacheNotifier, DirectoryEntry, Files, Lock, LockFamily, NewNode, Opened,
    RenameOptions, SeekTarget, XattrMode,
};
use convert::{attribute, errno, generation, kind_of_mode, lock_kind, lock_number, mode_of, when};
use locks::WaitingLocks;
use writers::Writers;

/// Longest request, in bytes. The kernel cuts reads and writes of programs into requests of this size.
pub(crate) const REQUEST_MAX: u32 = 1 << 20;
/// Requests that no program waits for, such as read-ahead, in flight at once.
const BACKGROUND_MAX: u16 = 64;

/// Features requested, where the kernel has them. `FUSE_ATOMIC_O_TRUNC` is not among them: with it the kernel has a
/// file emptied before it notices that the file is a running program, and only then refuses to open it.
const CAPABILITIES_WANTED: [InitFlags; 6] = [
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    // Without this, each write asks for an extended attribute first.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];

/// Features with which the file system keeps the locks of files, and not the kernel alone.
const LOCK_CAPABILITIES: [InitFlags; 2] = [InitFlags::FUSE_POSIX_LOCKS, InitFlags::FUSE_FLOCK_LOCKS];

/// Entries of a listing that the front adds itself: `.` and `..`.
const DOT_ENTRIES: u64 = 2;

const FALLOC_KEEP_SIZE: i32 = 1;
const FALLOC_PUNCH_HOLE: i32 = 2;
const FALLOC_ZERO_RANGE: i32 = 16;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// An extended attribute that the kernel removes on behalf of a program that writes to the file. The program itself may
/// lack the right to do so. The kernel has checked permissions already, so the removal is made as root.
const CAPABILITIES: &[u8] = b"security.capability";
/// Number of the root user on Linux, whose writes keep a file's set-id bits.
const ROOT_USER: u32 = 0;

pub(crate) struct Front<F: Files> {
    files: Arc<F>,
    waiting_locks: WaitingLocks<F>,
    writers: Writers,
}

impl<F: Files> Front<F> {
    pub fn new(files: Arc<F>) -> Self {
        Self { waiting_locks: WaitingLocks::new(Arc::clone(&files)), writers: Writers::default(), files }
    }

    fn reply_entry(&self, result: crate::Result<Attributes>, reply: ReplyEntry) {
        match result {
            Ok(attributes) => {
                let lifetimes = self.files.lifetimes();
                let known = attribute(&attributes);
                reply.entry_with_ttls(&lifetimes.attributes, &lifetimes.name, &known, generation(&attributes));
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn reply_attr(&self, result: crate::Result<Attributes>, reply: ReplyAttr) {
        match result {
            Ok(attributes) => reply.attr(&self.files.lifetimes().attributes, &attribute(&attributes)),
            Err(error) => reply.error(errno(error)),
        }
    }
}

fn reply_empty(result: crate::Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

/// Replies with the value of an extended attribute, or with its length if `size` is 0.
fn reply_xattr(result: crate::Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(errno(error)),
    }
}

/// Handle and flags of an opened file. With direct I/O it bypasses the page cache, several requests at a time;
/// otherwise cached data stays if it is still valid.
fn open_reply(opened: Opened, flags: i32) -> (FileHandle, FopenFlags) {
    let is_direct = flags & OFlags::DIRECT.bits() as i32 != 0;
    let mut answer = FopenFlags::empty();
    if is_direct {
        answer |= FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
    }
    if opened.is_unchanged {
        answer |= FopenFlags::FOPEN_KEEP_CACHE;
    }
    (FileHandle(opened.handle), answer)
}

/// Tells the kernel which of its caches are out of date.
pub(crate) struct KernelNotifier(pub Notifier);

impl CacheNotifier for KernelNotifier {
    fn invalidate_attributes(&self, ino: u64) {
        // A negative offset invalidates the attributes alone. That locks no page, so it is safe within a request. An
        // error only means that the kernel has forgotten the inode.
        let _ = self.0.inval_inode(INodeNo(ino), -1, 0);
    }
}

impl<F: Files> Filesystem for Front<F> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in CAPABILITIES_WANTED {
            // Optional: a kernel that lacks one works without.
            let _ = config.add_capabilities(wanted);
        }
        if self.files.shares_locks() {
            for wanted in LOCK_CAPABILITIES {
                let _ = config.add_capabilities(wanted);
            }
        }
        if let Err(most) = config.set_max_write(REQUEST_MAX) {
            let _ = config.set_max_write(most);
        }
        if let Err(most) = config.set_max_readahead(REQUEST_MAX) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn destroy(&mut self) {
        self.waiting_locks.end();
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.reply_entry(self.files.lookup(&caller::caller_of(request), parent.0, name.as_bytes()), reply);
    }

    fn forget(&self, _: &Request, ino: INodeNo, times: u64) {
        self.files.forget(ino.0, times);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        self.reply_attr(self.files.attributes(ino.0, handle.map(|handle| handle.0)), reply);
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mode = mode.map(mode_of);
        let change =
            AttributeChange { mode, uid, gid, size, accessed: accessed.map(when), modified: modified.map(when) };
        let handle = handle.map(|handle| handle.0);
        self.reply_attr(self.files.change(&caller::caller_of(request), ino.0, handle, &change), reply);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.files.read_link(ino.0) {
            Ok(path) => reply.data(&path),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = kind_of_mode(mode) else { return reply.error(Errno::EINVAL) };
        let new = NewNode::Node { kind, device };
        self.reply_entry(
            self.files.make(&caller::caller_of(request), parent.0, name.as_bytes(), new, mode_of(mode)),
            reply,
        );
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let made =
            self.files.make(&caller::caller_of(request), parent.0, name.as_bytes(), NewNode::Directory, mode_of(mode));
        self.reply_entry(made, reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let new = NewNode::Link(target.as_os_str().as_bytes());
        self.reply_entry(self.files.make(&caller::caller_of(request), parent.0, name.as_bytes(), new, 0o777), reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(self.files.unlink(&caller::caller_of(request), parent.0, name.as_bytes()), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(self.files.remove_directory(&caller::caller_of(request), parent.0, name.as_bytes()), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let how = RenameOptions {
            no_replace: flags.contains(RenameFlags::RENAME_NOREPLACE),
            exchange: flags.contains(RenameFlags::RENAME_EXCHANGE),
        };
        let known = RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE;
        if !known.contains(flags) || (how.no_replace && how.exchange) {
            return reply.error(Errno::EINVAL);
        }
        let (from, to) = ((parent.0, name.as_bytes()), (to.0, new_name.as_bytes()));
        reply_empty(self.files.rename(&caller::caller_of(request), from, to, how), reply);
    }

    fn link(&self, request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.reply_entry(self.files.link(&caller::caller_of(request), ino.0, parent.0, name.as_bytes()), reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.files.open(&caller::caller_of(request), ino.0, flags.0) {
            Ok(opened) => {
                self.writers.opened(request.uid(), ino.0, opened.handle, flags.0);
                let (handle, answer) = open_reply(opened, flags.0);
                reply.opened(handle, answer);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.files.create(&caller::caller_of(request), parent.0, name.as_bytes(), mode_of(mode), flags) {
            Ok((attributes, opened)) => {
                self.writers.opened(request.uid(), attributes.ino, opened.handle, flags);
                let (handle, answer) = open_reply(opened, flags);
                // The reply has one lifetime for both: the shorter.
                let lifetimes = self.files.lifetimes();
                let lifetime = lifetimes.attributes.min(lifetimes.name);
                reply.created(&lifetime, &attribute(&attributes), generation(&attributes), handle, answer);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        at: u64,
        len: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.files.read(ino.0, handle.0, at, len as usize, |result| match result {
            Ok(data) => reply.data(data),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        at: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // The kernel does not say which program wrote data through a mapping.
        let is_mapped = flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let drops_privileges =
            flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) || is_mapped && self.writers.has_other_writers(ino.0);
        let mut written = 0;
        loop {
            let (at, rest) = (at + written as u64, &data[written..]);
            match self.files.write(ino.0, handle.0, at, rest, drops_privileges) {
                // The kernel takes a mapping's data for written even if it is told of a part, but heeds an error.
                Ok(more @ 1..) if is_mapped && more < rest.len() => written += more,
                Ok(more) => return reply.written((written + more) as u32),
                Err(error) => return reply.error(errno(error)),
            }
        }
    }

    fn flush(&self, _: &Request, ino: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        reply_empty(self.files.flush(ino.0, handle.0, owner.0), reply);
        self.waiting_locks.retry_now();
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        owner: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.writers.closed(ino.0, handle.0);
        self.files.release(ino.0, handle.0, owner.map(|owner| owner.0));
        reply.ok();
        self.waiting_locks.retry_now();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        reply_empty(self.files.sync(ino.0, handle.0, data_only), reply);
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.files.open_directory(&caller::caller_of(request), ino.0) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        for (at, name) in [".", ".."].into_iter().enumerate().skip(offset as usize) {
            if reply.add(ino, at as u64 + 1, fuser::FileType::Directory, name) {
                return reply.ok();
            }
        }
        let listed =
            self.files.list(ino.0, handle.0, offset.saturating_sub(DOT_ENTRIES), &mut |listed: DirectoryEntry| {
                let name = OsStr::from_bytes(&listed.name);
                let known = attribute(&listed.attributes);
                !reply.add(known.ino, listed.cookie + DOT_ENTRIES, known.kind, name)
            });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdirplus(&self, _: &Request, ino: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let lifetimes = self.files.lifetimes();
        // The reply has one lifetime for both: the shorter.
        let lifetime = lifetimes.attributes.min(lifetimes.name);
        for (at, name) in [".", ".."].into_iter().enumerate().skip(offset as usize) {
            // Of these two the kernel only uses the name and the kind.
            let known = attribute(&convert::dot(ino.0));
            if reply.add(ino, at as u64 + 1, name, &lifetime, &known, fuser::Generation(0)) {
                return reply.ok();
            }
        }
        let listed =
            self.files.list(ino.0, handle.0, offset.saturating_sub(DOT_ENTRIES), &mut |listed: DirectoryEntry| {
                let name = OsStr::from_bytes(&listed.name);
                let known = attribute(&listed.attributes);
                let cookie = listed.cookie + DOT_ENTRIES;
                let is_full = reply.add(known.ino, cookie, name, &lifetime, &known, generation(&listed.attributes));
                if !is_full {
                    self.files.count_lookup(known.ino.0);
                }
                !is_full
            });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn releasedir(&self, _: &Request, ino: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.files.release_directory(ino.0, handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply_empty(self.files.sync_directory(ino.0), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.files.space() {
            Ok(space) => reply.statfs(
                space.blocks,
                space.free,
                space.free,
                space.inodes,
                space.inodes_free,
                space.block,
                space.name_max,
                space.block,
            ),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let how = match flags {
            0 => XattrMode::Any,
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        reply_empty(self.files.set_extended(&caller::caller_of(request), ino.0, name.as_bytes(), value, how), reply);
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        reply_xattr(self.files.extended(&caller::caller_of(request), ino.0, name.as_bytes()), size, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        reply_xattr(self.files.list_extended(&caller::caller_of(request), ino.0), size, reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut caller = caller::caller_of(request);
        if name.as_bytes() == CAPABILITIES {
            caller.uid = ROOT_USER;
        }
        reply_empty(self.files.remove_extended(&caller, ino.0, name.as_bytes()), reply);
    }

    fn getlk(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        owner: LockOwner,
        start: u64,
        last: u64,
        kind: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let Some(kind) = lock_kind(kind) else { return reply.error(Errno::EINVAL) };
        let lock = Lock { owner: owner.0, pid, start, last, kind, family: LockFamily::Fcntl };
        match self.files.test_lock(ino.0, &lock) {
            Ok(None) => reply.locked(start, last, lock_number(crate::files::LockKind::Unlocked), 0),
            Ok(Some(held)) => reply.locked(held.start, held.last, lock_number(held.kind), held.pid),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setlk(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        owner: LockOwner,
        start: u64,
        last: u64,
        kind: i32,
        pid: u32,
        waits: bool,
        reply: ReplyEmpty,
    ) {
        let Some(kind) = lock_kind(kind) else { return reply.error(Errno::EINVAL) };
        let is_whole = (start, last) == (0, i64::MAX as u64);
        let family = if is_whole { caller::lock_family(request.pid()) } else { LockFamily::Fcntl };
        let lock = Lock { owner: owner.0, pid, start, last, kind, family };
        match self.files.set_lock(ino.0, &lock, waits) {
            Err(rustix::io::Errno::AGAIN) => self.waiting_locks.add(ino.0, lock, request.pid(), waits, reply),
            result => {
                reply_empty(result, reply);
                self.waiting_locks.retry_now();
            }
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        at: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let keeps_size = mode & FALLOC_KEEP_SIZE != 0;
        let how = match mode & !FALLOC_KEEP_SIZE {
            0 => AllocateMode::Reserve,
            FALLOC_PUNCH_HOLE if keeps_size => AllocateMode::Punch,
            FALLOC_ZERO_RANGE => AllocateMode::Zero,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let drops_privileges = request.uid() != ROOT_USER;
        reply_empty(self.files.allocate(ino.0, handle.0, (at, len), how, keeps_size, drops_privileges), reply);
    }

    fn lseek(&self, _: &Request, ino: INodeNo, handle: FileHandle, at: i64, whence: i32, reply: ReplyLseek) {
        let target = match whence {
            SEEK_DATA => SeekTarget::Data,
            SEEK_HOLE => SeekTarget::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(at) = u64::try_from(at) else { return reply.error(Errno::ENXIO) };
        match self.files.seek(ino.0, handle.0, at, target) {
            Ok(found) => reply.offset(found as i64),
            Err(error) => reply.error(errno(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_are_opened_for_direct_io_pass_the_page_cache_by() {
        let opened = |is_unchanged| Opened { handle: 5, is_unchanged };
        let direct = OFlags::DIRECT.bits() as i32;
        assert_eq!(open_reply(opened(false), 0), (FileHandle(5), FopenFlags::empty()));
        assert_eq!(open_reply(opened(true), 0).1, FopenFlags::FOPEN_KEEP_CACHE);
        let past = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        assert_eq!(open_reply(opened(false), direct).1, past);
        assert_eq!(open_reply(opened(true), direct).1, past | FopenFlags::FOPEN_KEEP_CACHE);
    }
}
