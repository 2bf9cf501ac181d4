//! The seam: what the kernel asks of a file system, without a word of how it asks.
//!
//! All calls come from several threads at once. Errors are the system's own numbers, since that is what programs get to see.

use std::time::{Duration, SystemTime};

use rustix::io::Errno;

/// What a call comes to.
pub type Result<T> = std::result::Result<T, Errno>;

/// The number of the root directory.
pub const ROOT: u64 = 1;

/// Whoever asks, where permissions count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its further groups.
    pub groups: Vec<u32>,
    /// Its thread; 0 when the kernel itself asks.
    pub pid: u32,
}

/// What an inode is.
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
    /// A device of bytes.
    CharDevice,
    /// A device of blocks.
    BlockDevice,
}

/// What `stat` shows of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its number.
    pub ino: u64,
    /// Tells inodes apart that had the same number one after the other.
    pub generation: u64,
    /// What it is.
    pub kind: Kind,
    /// Permissions, with the set-id and sticky bits: 12 bits.
    pub mode: u16,
    /// Names of it.
    pub links: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Which device it stands for.
    pub device: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes that it takes.
    pub blocks: u64,
    /// When it was last read.
    pub accessed: SystemTime,
    /// When its contents last changed.
    pub modified: SystemTime,
    /// When it last changed.
    pub changed: SystemTime,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The present.
    Now,
    /// This one.
    At(SystemTime),
}

/// Which attributes to change: those that are `Some`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Permissions.
    pub mode: Option<u16>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// When it was last read.
    pub accessed: Option<When>,
    /// When its contents last changed.
    pub modified: Option<When>,
}

/// What to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum New<'a> {
    /// A directory.
    Directory,
    /// A symbolic link to this path.
    Link(&'a [u8]),
    /// A file, pipe, socket or device.
    Node {
        /// Which of them.
        kind: Kind,
        /// Which device it stands for.
        device: u32,
    },
}

/// A file that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The handle that later calls have.
    pub handle: u64,
    /// What the kernel has cached of the file is what it would read now.
    pub is_unchanged: bool,
}

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Where a later listing goes on behind it.
    pub cookie: u64,
    /// The name.
    pub name: Vec<u8>,
    /// What has it.
    pub attributes: Attributes,
}

/// What `statfs` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes of a block.
    pub block: u32,
    /// Blocks.
    pub blocks: u64,
    /// Blocks that nobody has.
    pub free: u64,
    /// Inodes.
    pub inodes: u64,
    /// Inodes that nobody has.
    pub inodes_free: u64,
    /// Bytes of a name at most.
    pub name_max: u32,
}

/// What `rename` is to heed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renaming {
    /// The new name must be free.
    pub no_replace: bool,
    /// The two change places.
    pub exchange: bool,
}

/// Whether an extended attribute may be there, or must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Either.
    Any,
    /// It must be new.
    Create,
    /// It must be there.
    Replace,
}

/// A lock's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// With others.
    Shared,
    /// Alone.
    Exclusive,
    /// None.
    Unlocked,
}

/// A lock of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Whose it is, as the kernel tells owners apart.
    pub owner: u64,
    /// Process that has it.
    pub pid: u32,
    /// First byte.
    pub start: u64,
    /// Last byte: all to the end is `i64::MAX`.
    pub last: u64,
    /// Its kind.
    pub kind: LockKind,
}

/// What `fallocate` is to do with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocating {
    /// Have room for it.
    Reserve,
    /// Make it a hole.
    Punch,
    /// Make it zeros.
    Zero,
}

/// What `lseek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// Bytes that were written.
    Data,
    /// Bytes that were not, or the end.
    Hole,
}

/// How long the kernel may believe what it was told without asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// A name.
    pub name: Duration,
    /// Attributes.
    pub attributes: Duration,
}

/// Tells the kernel that what it has cached is out of date. It may be used in calls of [`Files::open`] and [`Files::attributes`], too: it waits for nothing.
pub trait Stale: Send + Sync {
    /// Attributes of an inode.
    fn attributes(&self, ino: u64);
}

/// A file system, as the kernel asks for it.
pub trait Files: Send + Sync + 'static {
    /// How long the kernel may believe what it was told.
    fn lifetimes(&self) -> Lifetimes;

    /// Whether locks are its to keep: else the kernel keeps them, for this mount alone.
    fn shares_locks(&self) -> bool;

    /// Where to say that the kernel's caches are out of date; told once, before anything else.
    fn hear(&self, stale: std::sync::Arc<dyn Stale>);

    /// What has a name. Whoever gets attributes from here, [`Self::make`], [`Self::create`], [`Self::link`] or, by way of [`Self::list`], [`Self::found`] knows the inode once more.
    ///
    /// # Errors
    ///
    /// As `stat`.
    fn lookup(&self, who: &Caller, parent: u64, name: &[u8]) -> Result<Attributes>;

    /// The kernel has been told of the inode by a listing, as if it had looked it up.
    fn found(&self, ino: u64);

    /// The kernel forgets that it was told so often of the inode.
    fn forget(&self, ino: u64, times: u64);

    /// Attributes.
    ///
    /// # Errors
    ///
    /// As `stat`.
    fn attributes(&self, ino: u64, handle: Option<u64>) -> Result<Attributes>;

    /// Changes attributes, and says what they are then.
    ///
    /// # Errors
    ///
    /// As `chmod`, `chown`, `truncate` and `utimensat`.
    fn change(&self, who: &Caller, ino: u64, handle: Option<u64>, change: &Change) -> Result<Attributes>;

    /// Where a symbolic link leads.
    ///
    /// # Errors
    ///
    /// As `readlink`.
    fn read_link(&self, ino: u64) -> Result<Vec<u8>>;

    /// Makes something other than an open file.
    ///
    /// # Errors
    ///
    /// As `mkdir`, `symlink` and `mknod`.
    fn make(&self, who: &Caller, parent: u64, name: &[u8], new: New<'_>, mode: u16) -> Result<Attributes>;

    /// Takes a name of something other than a directory away.
    ///
    /// # Errors
    ///
    /// As `unlink`.
    fn unlink(&self, who: &Caller, parent: u64, name: &[u8]) -> Result<()>;

    /// Takes an empty directory away.
    ///
    /// # Errors
    ///
    /// As `rmdir`.
    fn remove_directory(&self, who: &Caller, parent: u64, name: &[u8]) -> Result<()>;

    /// Renames.
    ///
    /// # Errors
    ///
    /// As `renameat2`.
    fn rename(&self, who: &Caller, from: (u64, &[u8]), to: (u64, &[u8]), how: Renaming) -> Result<()>;

    /// Gives an inode a further name.
    ///
    /// # Errors
    ///
    /// As `link`.
    fn link(&self, who: &Caller, ino: u64, parent: u64, name: &[u8]) -> Result<Attributes>;

    /// Opens a file; `flags` are those of `open`, without `O_CREAT` and `O_EXCL`. With `O_TRUNC` it is empty then.
    ///
    /// # Errors
    ///
    /// As `open`.
    fn open(&self, who: &Caller, ino: u64, flags: i32) -> Result<Opened>;

    /// Makes a file and opens it.
    ///
    /// # Errors
    ///
    /// As `open`.
    fn create(&self, who: &Caller, parent: u64, name: &[u8], mode: u16, flags: i32) -> Result<(Attributes, Opened)>;

    /// Reads up to `len` bytes, fewer only at the end of the file, and gives them to `answer`, once. What it does after that, nobody waits for.
    fn read(&self, ino: u64, handle: u64, at: u64, len: usize, answer: impl FnOnce(Result<&[u8]>));

    /// Writes all of the bytes. `drops_privileges`: the set-id bits of the file go.
    ///
    /// # Errors
    ///
    /// As `write`.
    fn write(&self, ino: u64, handle: u64, at: u64, data: &[u8], drops_privileges: bool) -> Result<()>;

    /// A descriptor of the file was closed: what was written is to be where it belongs, and POSIX locks of this owner go.
    ///
    /// # Errors
    ///
    /// As `close`.
    fn flush(&self, ino: u64, handle: u64, owner: u64) -> Result<()>;

    /// What was written survives from now on.
    ///
    /// # Errors
    ///
    /// As `fsync`.
    fn sync(&self, ino: u64, handle: u64, data_only: bool) -> Result<()>;

    /// The last descriptor of a handle was closed. `owner`: its locks go.
    fn release(&self, ino: u64, handle: u64, owner: Option<u64>);

    /// Opens a directory for listing.
    ///
    /// # Errors
    ///
    /// As `opendir`.
    fn open_directory(&self, who: &Caller, ino: u64) -> Result<u64>;

    /// Gives the names of a directory behind a cookie, 0 for all, to `add`, until that returns false or there are no more. `.` and `..` are not among them.
    ///
    /// # Errors
    ///
    /// As `readdir`.
    fn list(&self, ino: u64, handle: u64, cookie: u64, add: &mut dyn FnMut(Listed) -> bool) -> Result<()>;

    /// A directory is listed no more.
    fn release_directory(&self, ino: u64, handle: u64);

    /// What was changed in a directory survives from now on.
    ///
    /// # Errors
    ///
    /// As `fsync`.
    fn sync_directory(&self, ino: u64) -> Result<()>;

    /// How much room there is.
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
    fn set_extended(&self, who: &Caller, ino: u64, name: &[u8], value: &[u8], how: Setting) -> Result<()>;

    /// An extended attribute.
    ///
    /// # Errors
    ///
    /// As `getxattr`.
    fn extended(&self, who: &Caller, ino: u64, name: &[u8]) -> Result<Vec<u8>>;

    /// The names of all extended attributes, each with a NUL behind it.
    ///
    /// # Errors
    ///
    /// As `listxattr`.
    fn list_extended(&self, who: &Caller, ino: u64) -> Result<Vec<u8>>;

    /// Takes an extended attribute away.
    ///
    /// # Errors
    ///
    /// As `removexattr`.
    fn remove_extended(&self, who: &Caller, ino: u64, name: &[u8]) -> Result<()>;

    /// A lock that stands in the way of this one, if there is one.
    ///
    /// # Errors
    ///
    /// As `fcntl(F_GETLK)`.
    fn test_lock(&self, ino: u64, lock: &Lock) -> Result<Option<Lock>>;

    /// Sets or removes a lock, and never waits.
    ///
    /// # Errors
    ///
    /// As `fcntl(F_SETLK)`: [`Errno::AGAIN`] when another is in the way.
    fn set_lock(&self, ino: u64, lock: &Lock) -> Result<()>;

    /// Reserves, punches or zeroes a range: from where on, and how many bytes. `keeps_size`: the file does not grow. `drops_privileges`: its set-id bits go.
    ///
    /// # Errors
    ///
    /// As `fallocate`.
    fn allocate(
        &self,
        ino: u64,
        handle: u64,
        range: (u64, u64),
        how: Allocating,
        keeps_size: bool,
        drops_privileges: bool,
    ) -> Result<()>;

    /// The first data or hole at `at` or behind it.
    ///
    /// # Errors
    ///
    /// As `lseek`: [`Errno::NXIO`] when there is none.
    fn seek(&self, ino: u64, handle: u64, at: u64, what: Sought) -> Result<u64>;

    /// The file system is unmounted: what is not written yet is to be.
    fn end(&self);
}
