//! The interface between front and file system: what the kernel asks, independent of how it asks.
//!
//! Calls come from several threads at once. Errors are the system's error numbers, since those are what programs see.

use std::time::{Duration, SystemTime};

use rustix::io::Errno;

/// Result of a call.
pub type Result<T> = std::result::Result<T, Errno>;

/// The number of the root directory.
pub const ROOT: u64 = 1;

/// The caller of a request, for permission checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// User of the caller.
    pub uid: u32,
    /// Group of the caller.
    pub gid: u32,
    /// Supplementary groups of the caller.
    pub groups: Vec<u32>,
    /// Thread of the caller; 0 when the kernel itself asks.
    pub pid: u32,
}

/// Kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// Attributes of an inode, as `stat` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub ino: u64,
    /// Tells apart inodes that had the same number at different times.
    pub generation: u64,
    /// Kind of the inode.
    pub kind: Kind,
    /// Permissions, with the set-id and sticky bits: 12 bits.
    pub mode: u16,
    /// Number of hard links.
    pub links: u32,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Device number, if the inode is a device.
    pub device: u32,
    /// Size in bytes.
    pub size: u64,
    /// Blocks of 512 bytes allocated.
    pub blocks: u64,
    /// Time of last access.
    pub accessed: SystemTime,
    /// Time of last modification of the contents.
    pub modified: SystemTime,
    /// Time of last change of the contents or attributes.
    pub changed: SystemTime,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeChange {
    /// The current time.
    Now,
    /// The given time.
    At(SystemTime),
}

/// Attributes to change: those that are `Some`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// New permissions.
    pub mode: Option<u16>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size in bytes.
    pub size: Option<u64>,
    /// New time of last access.
    pub accessed: Option<TimeChange>,
    /// New time of last modification.
    pub modified: Option<TimeChange>,
}

/// Inode to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewNode<'a> {
    /// A directory.
    Directory,
    /// A symbolic link to this path.
    Link(&'a [u8]),
    /// A file, pipe, socket or device.
    Node {
        /// Which of them.
        kind: Kind,
        /// Device number, for devices.
        device: u32,
    },
}

/// A file that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Handle that later calls pass.
    pub handle: u64,
    /// Whether data that the kernel has cached of the file is still valid.
    pub is_unchanged: bool,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Position at which a later listing continues after this entry.
    pub cookie: u64,
    /// The name.
    pub name: Vec<u8>,
    /// Attributes of the inode that has the name.
    pub attributes: Attributes,
}

/// Size and use of a file system, as `statfs` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes in a block.
    pub block: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Number of inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// Longest name, in bytes.
    pub name_max: u32,
}

/// Flags of `rename`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameOptions {
    /// The new name must not exist.
    pub no_replace: bool,
    /// The two names are exchanged.
    pub exchange: bool,
}

/// Whether an extended attribute may or must exist before it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// It may exist or not.
    Any,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

/// Kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Shared with other shared locks.
    Shared,
    /// Excludes all other locks.
    Exclusive,
    /// No lock: the range is unlocked.
    Unlocked,
}

/// A lock of a range of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Owner, an identifier that the kernel assigns.
    pub owner: u64,
    /// Process that holds it.
    pub pid: u32,
    /// First byte.
    pub start: u64,
    /// Last byte; `i64::MAX` stands for the end of the file.
    pub last: u64,
    /// Kind of the lock.
    pub kind: LockKind,
    /// Call by which it is set.
    pub family: LockFamily,
}

/// Call by which a lock is set. Locks of the two calls do not conflict with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockFamily {
    /// `fcntl`.
    Fcntl,
    /// `flock`: always the whole file.
    Flock,
    /// One of the two. The kernel's request does not say which, and the calling thread could not be looked at.
    Either,
}

/// Effect of `fallocate` on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Reserves room for it.
    Reserve,
    /// Makes it a hole.
    Punch,
    /// Makes it zeros, with room reserved for it.
    Zero,
}

/// Target of an `lseek`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// Bytes that were written.
    Data,
    /// A hole, or the end of the file.
    Hole,
}

/// Times for which the kernel may trust what it was told without asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLifetimes {
    /// For a name.
    pub name: Duration,
    /// For attributes.
    pub attributes: Duration,
}

/// Tells the kernel that its cache is out of date. This never waits, so [`Files::open`] and [`Files::attributes`] may
/// call it, too.
pub trait CacheNotifier: Send + Sync {
    /// The attributes of this inode are out of date.
    fn invalidate_attributes(&self, ino: u64);
}

/// A file system, as the kernel sees it.
pub trait Files: Send + Sync + 'static {
    /// Times for which the kernel may trust what it was told.
    fn lifetimes(&self) -> CacheLifetimes;

    /// Whether the file system keeps the locks. If not, the kernel keeps them, for this mount alone.
    fn shares_locks(&self) -> bool;

    /// Hands over the object that tells the kernel of stale caches. Called once, before anything else.
    fn set_notifier(&self, stale: std::sync::Arc<dyn CacheNotifier>);

    /// Looks up a name. The kernel holds one more reference to the inode after each answer with its attributes from
    /// here, [`Self::make`], [`Self::create`] or [`Self::link`], and after each call of [`Self::count_lookup`].
    ///
    /// # Errors
    ///
    /// As `stat`.
    fn lookup(&self, caller: &Caller, parent: u64, name: &[u8]) -> Result<Attributes>;

    /// Records that a listing told the kernel of the inode, which counts as a lookup.
    fn count_lookup(&self, ino: u64);

    /// Drops `times` references of the kernel's to the inode.
    fn forget(&self, ino: u64, times: u64);

    /// Returns the attributes of an inode.
    ///
    /// # Errors
    ///
    /// As `stat`.
    fn attributes(&self, ino: u64, handle: Option<u64>) -> Result<Attributes>;

    /// Changes attributes, and returns the new ones.
    ///
    /// # Errors
    ///
    /// As `chmod`, `chown`, `truncate` and `utimensat`.
    fn change(&self, caller: &Caller, ino: u64, handle: Option<u64>, change: &AttributeChange) -> Result<Attributes>;

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    ///
    /// As `readlink`.
    fn read_link(&self, ino: u64) -> Result<Vec<u8>>;

    /// Makes an inode without opening it.
    ///
    /// # Errors
    ///
    /// As `mkdir`, `symlink` and `mknod`.
    fn make(&self, caller: &Caller, parent: u64, name: &[u8], new: NewNode<'_>, mode: u16) -> Result<Attributes>;

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    ///
    /// As `unlink`.
    fn unlink(&self, caller: &Caller, parent: u64, name: &[u8]) -> Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// As `rmdir`.
    fn remove_directory(&self, caller: &Caller, parent: u64, name: &[u8]) -> Result<()>;

    /// Renames a file or directory.
    ///
    /// # Errors
    ///
    /// As `renameat2`.
    fn rename(&self, caller: &Caller, from: (u64, &[u8]), to: (u64, &[u8]), how: RenameOptions) -> Result<()>;

    /// Gives an inode another name.
    ///
    /// # Errors
    ///
    /// As `link`.
    fn link(&self, caller: &Caller, ino: u64, parent: u64, name: &[u8]) -> Result<Attributes>;

    /// Opens a file. `flags` are those of `open`, without `O_CREAT` and `O_EXCL`. `O_TRUNC` empties the file.
    ///
    /// # Errors
    ///
    /// As `open`.
    fn open(&self, caller: &Caller, ino: u64, flags: i32) -> Result<Opened>;

    /// Makes a file and opens it.
    ///
    /// # Errors
    ///
    /// As `open`.
    fn create(&self, caller: &Caller, parent: u64, name: &[u8], mode: u16, flags: i32) -> Result<(Attributes, Opened)>;

    /// Reads up to `len` bytes, fewer only at the end of the file, and passes them to `answer` exactly once. Work after
    /// that, such as read-ahead, does not delay the program that reads.
    fn read(&self, ino: u64, handle: u64, at: u64, len: usize, answer: impl FnOnce(Result<&[u8]>));

    /// Writes bytes, and returns their number: at least 1 unless there are none, and fewer than all only where the rest
    /// cannot be written. `drops_privileges`: the file loses its set-id bits.
    ///
    /// # Errors
    ///
    /// As `write`.
    fn write(&self, ino: u64, handle: u64, at: u64, data: &[u8], drops_privileges: bool) -> Result<usize>;

    /// Called when a descriptor of the file is closed: completes writes, and releases the POSIX locks of this owner.
    ///
    /// # Errors
    ///
    /// As `close`.
    fn flush(&self, ino: u64, handle: u64, owner: u64) -> Result<()>;

    /// Makes everything written durable.
    ///
    /// # Errors
    ///
    /// As `fsync`.
    fn sync(&self, ino: u64, handle: u64, data_only: bool) -> Result<()>;

    /// Called when the last descriptor of a handle is closed. Releases the locks of `owner`, if given, by either call.
    fn release(&self, ino: u64, handle: u64, owner: Option<u64>);

    /// Opens a directory for listing.
    ///
    /// # Errors
    ///
    /// As `opendir`.
    fn open_directory(&self, caller: &Caller, ino: u64) -> Result<u64>;

    /// Passes the entries of a directory that come after a cookie (0 for all) to `add`, until that returns false or
    /// there are no more. `.` and `..` are not included.
    ///
    /// # Errors
    ///
    /// As `readdir`.
    fn list(&self, ino: u64, handle: u64, cookie: u64, add: &mut dyn FnMut(DirectoryEntry) -> bool) -> Result<()>;

    /// Closes a directory that was opened for listing.
    fn release_directory(&self, ino: u64, handle: u64);

    /// Makes the changes to a directory durable.
    ///
    /// # Errors
    ///
    /// As `fsync`.
    fn sync_directory(&self, ino: u64) -> Result<()>;

    /// Returns the total and free room.
    ///
    /// # Errors
    ///
    /// As `statfs`.
    fn space(&self) -> Result<Space>;

    /// Sets an extended attribute.
    ///
    /// # Errors
    ///
    /// As `setxattr`.
    fn set_extended(&self, caller: &Caller, ino: u64, name: &[u8], value: &[u8], how: XattrMode) -> Result<()>;

    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    ///
    /// As `getxattr`.
    fn extended(&self, caller: &Caller, ino: u64, name: &[u8]) -> Result<Vec<u8>>;

    /// Returns the names of all extended attributes, each followed by a NUL.
    ///
    /// # Errors
    ///
    /// As `listxattr`.
    fn list_extended(&self, caller: &Caller, ino: u64) -> Result<Vec<u8>>;

    /// Removes an extended attribute.
    ///
    /// # Errors
    ///
    /// As `removexattr`.
    fn remove_extended(&self, caller: &Caller, ino: u64, name: &[u8]) -> Result<()>;

    /// Returns a lock that conflicts with this one, if there is one.
    ///
    /// # Errors
    ///
    /// As `fcntl(F_GETLK)`.
    fn test_lock(&self, ino: u64, lock: &Lock) -> Result<Option<Lock>>;

    /// Sets or removes a lock, without waiting for it. `waits`: the caller waits for it, and this is called again until
    /// it has the lock. Once a caller has given up, this is called a last time, without `waits`.
    ///
    /// # Errors
    ///
    /// As `fcntl(F_SETLK)`: [`Errno::AGAIN`] when another lock conflicts. If the caller `waits`, [`Errno::DEADLK`] may
    /// say that it would wait for itself in the end.
    fn set_lock(&self, ino: u64, lock: &Lock, waits: bool) -> Result<()>;

    /// Reserves, punches or zeroes a range, given by its first byte and its length. `keeps_size`: the file does not
    /// grow. `drops_privileges`: it loses its set-id bits.
    ///
    /// # Errors
    ///
    /// As `fallocate`.
    fn allocate(
        &self,
        ino: u64,
        handle: u64,
        range: (u64, u64),
        how: AllocateMode,
        keeps_size: bool,
        drops_privileges: bool,
    ) -> Result<()>;

    /// Returns the offset of the first data or hole at or after `at`.
    ///
    /// # Errors
    ///
    /// As `lseek`: [`Errno::NXIO`] when there is none.
    fn seek(&self, ino: u64, handle: u64, at: u64, target: SeekTarget) -> Result<u64>;

    /// Called at unmount: writes what is not yet written.
    fn unmounted(&self);
}
