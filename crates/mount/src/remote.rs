//! The remote file system behind a mount. Each thread that answers the kernel has its own lane.

use std::any::Any;
use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use rustix::io::Errno;
use sinew_mem::atomic::{AtomicU64, Ordering};
use sinew_remote_fs::client::{Client, ClientError, Lane, RangeChange, Whence};
use sinew_remote_fs::protocol::{
    self, Access, Attr, Error, Ino, LockOwner, NAME_LEN_MAX, NodeKind, PAGE, SetAttr, SetTime, SetXattr, Time,
};
use sinew_remote_memory::donor::LANES_MAX;
use sinew_remote_memory::pool::AccessMethod;
use sinew_rpc::Endpoint;

use crate::files::{
    AllocateMode, AttributeChange, Attributes, CacheLifetimes, CacheNotifier, Caller, DirectoryEntry, Files, Kind,
    Lock, LockFamily, LockKind, NewNode, Opened, RenameOptions, Result, SeekTarget, Space, TimeChange, XattrMode,
};

/// Makes the lane with this number for the calling thread.
pub type MakeLane<E, A> = Box<dyn Fn(&Arc<Client>, u8) -> std::result::Result<Lane<E, A>, String> + Send + Sync>;

/// Flag with which `open` is for execution.
const FOR_EXEC: i32 = 0o40;

thread_local! {
    /// This thread's lanes, by mount.
    static LANES: RefCell<HashMap<u64, Box<dyn Any>>> = RefCell::default();
}

/// Next number for a mount of this process.
static MOUNTS: AtomicU64 = AtomicU64::new(0);

struct RemoteShared<E: Endpoint, A: AccessMethod> {
    id: u64,
    client: Arc<Client>,
    make_lane: MakeLane<E, A>,
    /// Lane numbers not in use.
    free_lanes: Mutex<Vec<u8>>,
    notifier: OnceLock<Arc<dyn CacheNotifier>>,
    lifetimes: CacheLifetimes,
    /// Inodes, each with an owner that has, or had, a lock there of which it is not known by which call it was set.
    locked_by_either: Mutex<HashSet<(u64, u64)>>,
}

/// A thread's lane. Its number becomes free again when the thread ends.
struct ThreadLane<E: Endpoint + 'static, A: AccessMethod + 'static> {
    lane: Lane<E, A>,
    number: u8,
    common: Arc<RemoteShared<E, A>>,
}

impl<E: Endpoint, A: AccessMethod> Drop for ThreadLane<E, A> {
    fn drop(&mut self) {
        self.common.free_lanes().push(self.number);
    }
}

/// The remote file system, as seen by a mount.
pub struct Remote<E: Endpoint + 'static, A: AccessMethod + 'static> {
    common: Arc<RemoteShared<E, A>>,
    /// The thread that tends the client.
    maintenance_thread: Mutex<Option<JoinHandle<()>>>,
}

impl<E: Endpoint, A: AccessMethod> std::fmt::Debug for Remote<E, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("client", &self.common.client).finish_non_exhaustive()
    }
}

impl<E: Endpoint, A: AccessMethod> RemoteShared<E, A> {
    fn free_lanes(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.free_lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn locked_by_either(&self) -> std::sync::MutexGuard<'_, HashSet<(u64, u64)>> {
        self.locked_by_either.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Endpoint + 'static, A: AccessMethod + 'static> Remote<E, A> {
    /// Joins the file system, and starts the thread that tends the client. `make_lane` is called once by each thread.
    ///
    /// # Errors
    ///
    /// A message, when the service cannot be joined or a lane cannot be made.
    pub fn join(
        client: &Arc<Client>,
        make_lane: MakeLane<E, A>,
        lifetimes: CacheLifetimes,
        timeout: Duration,
    ) -> std::result::Result<Self, String> {
        let common = Arc::new(RemoteShared {
            // Relaxed: the numbers only need to differ.
            id: MOUNTS.fetch_add(1, Ordering::Relaxed),
            client: Arc::clone(client),
            make_lane,
            free_lanes: Mutex::new((0..LANES_MAX).rev().collect()),
            notifier: OnceLock::new(),
            lifetimes,
            locked_by_either: Mutex::default(),
        });
        let remote = Self { common, maintenance_thread: Mutex::default() };
        let (sender, receiver) = std::sync::mpsc::channel();
        let common = Arc::clone(&remote.common);
        let run = move || {
            let begun = with_lane(&common, |lane| lane.begin(timeout.as_nanos() as u64));
            let begun = begun.and_then(|begun| begun.map_err(|failed| failed.to_string()));
            let is_good = begun.is_ok();
            // The caller of `join` waits for this.
            let _ = sender.send(begun);
            if is_good {
                run_maintenance(&common);
            }
        };
        let tender = std::thread::Builder::new().name("sinew-tender".to_owned()).spawn(run);
        *remote.maintenance_thread() = Some(tender.map_err(|error| format!("starting a thread: {error}"))?);
        receiver.recv().unwrap_or_else(|_| Err("the thread that joins has ended".to_owned()))?;
        Ok(remote)
    }

    fn maintenance_thread(&self) -> std::sync::MutexGuard<'_, Option<JoinHandle<()>>> {
        self.maintenance_thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Lane<E, A>) -> std::result::Result<T, ClientError>) -> Result<T> {
        match with_lane(&self.common, act) {
            Ok(result) => result.map_err(|failed| errno(&failed)),
            Err(why) => {
                (self.common.client.config().log)(&format!("a thread cannot reach the file system: {why}"));
                Err(Errno::IO)
            }
        }
    }
}

/// Calls `act` with the calling thread's lane, which is made first if necessary.
fn with_lane<E: Endpoint + 'static, A: AccessMethod + 'static, T>(
    common: &Arc<RemoteShared<E, A>>,
    act: impl FnOnce(&mut Lane<E, A>) -> T,
) -> std::result::Result<T, String> {
    LANES.with_borrow_mut(|lanes| {
        let held = match lanes.entry(common.id) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let number = common.free_lanes().pop().ok_or("more threads than a client has lanes")?;
                let lane =
                    (common.make_lane)(&common.client, number).inspect_err(|_| common.free_lanes().push(number))?;
                entry.insert(Box::new(ThreadLane { lane, number, common: Arc::clone(common) }))
            }
        };
        let held = held.downcast_mut::<ThreadLane<E, A>>().ok_or("the lanes of this mount have another type")?;
        Ok(act(&mut held.lane))
    })
}

/// Keeps the client's session alive, and commits what was written, until the client ends.
fn run_maintenance<E: Endpoint + 'static, A: AccessMethod + 'static>(common: &Arc<RemoteShared<E, A>>) {
    while !common.client.is_ending() {
        common.client.sleep(common.client.pause());
        let _ = with_lane(common, Lane::run_periodic);
    }
    LANES.with_borrow_mut(|lanes| lanes.remove(&common.id));
}

fn errno(failed: &ClientError) -> Errno {
    Errno::from_raw_os_error(failed.errno())
}

fn system_time(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.s.unsigned_abs());
    let second = if time.s < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    second.and_then(|second| second.checked_add(Duration::from_nanos(time.ns.into()))).unwrap_or(UNIX_EPOCH)
}

/// Converts a system time to one of the protocol.
pub fn time_of(time: SystemTime) -> Time {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Time { s: since.as_secs() as i64, ns: since.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            let (s, ns) = (before.as_secs() as i64, before.subsec_nanos());
            if ns == 0 { Time { s: -s, ns: 0 } } else { Time { s: -s - 1, ns: 1_000_000_000 - ns } }
        }
    }
}

fn kind(kind: protocol::Kind) -> Kind {
    match kind {
        protocol::Kind::File => Kind::File,
        protocol::Kind::Directory => Kind::Directory,
        protocol::Kind::Symlink => Kind::Link,
        protocol::Kind::Fifo => Kind::Fifo,
        protocol::Kind::Socket => Kind::Socket,
        protocol::Kind::CharDevice => Kind::CharDevice,
        protocol::Kind::BlockDevice => Kind::BlockDevice,
    }
}

fn attributes(attr: &Attr) -> Attributes {
    Attributes {
        ino: attr.ino.0,
        // Inode numbers are never reused.
        generation: 0,
        kind: kind(attr.kind),
        mode: (attr.mode & 0o7777) as u16,
        links: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        device: attr.rdev,
        size: attr.size,
        blocks: attr.pages * (PAGE as u64 / 512),
        accessed: system_time(attr.atime),
        modified: system_time(attr.mtime),
        changed: system_time(attr.ctime),
    }
}

fn protocol_caller(caller: &Caller) -> protocol::Caller {
    let mut groups = caller.groups.clone();
    groups.truncate(protocol::GROUPS_MAX);
    protocol::Caller { uid: caller.uid, gid: caller.gid, groups }
}

fn access(flags: i32) -> Access {
    let flags_of = OFlags::from_bits_retain(flags as u32);
    let both = flags_of.contains(OFlags::RDWR);
    let write = both || flags_of.contains(OFlags::WRONLY);
    Access { read: both || !write, write, execute: flags & FOR_EXEC != 0 }
}

fn set_time(time: TimeChange) -> SetTime {
    match time {
        TimeChange::Now => SetTime::Now,
        TimeChange::At(time) => SetTime::To(time_of(time)),
    }
}

/// Last byte by which the kernel marks a lock to the end of the file.
const LAST_OFFSET: u64 = i64::MAX as u64;

/// A lock as the service has it, by its owner; `None` if it unlocks.
fn lock(ino: u64, lock: &Lock) -> Option<impl Fn(LockOwner) -> protocol::Lock + use<>> {
    let kind = match lock.kind {
        LockKind::Shared => protocol::LockKind::Read,
        LockKind::Exclusive => protocol::LockKind::Write,
        LockKind::Unlocked => return None,
    };
    let (ino, pid, first, last) = (Ino(ino), lock.pid, lock.start, last(lock.last));
    Some(move |owner| protocol::Lock { ino, owner, pid, first, last, kind })
}

/// Owners of a lock: two if it may be of either call, which then excludes the locks of both.
fn owners(lock: &Lock) -> &'static [fn(u64) -> LockOwner] {
    match lock.family {
        LockFamily::Fcntl => &[LockOwner::Posix],
        LockFamily::Flock => &[LockOwner::Flock],
        LockFamily::Either => EITHER,
    }
}

/// A lock by `flock` that cannot be made stricter is lost, and one by `fcntl` stays. So that one comes last.
const EITHER: &[fn(u64) -> LockOwner] = &[LockOwner::Flock, LockOwner::Posix];

fn last(last: u64) -> u64 {
    if last >= LAST_OFFSET { u64::MAX } else { last }
}

/// Owners of what a lock by either call leaves when a lock of the same owner shows which of the two it is.
fn other_owners(lock: &Lock) -> &'static [fn(u64) -> LockOwner] {
    match lock.family {
        LockFamily::Fcntl => &[LockOwner::Flock],
        LockFamily::Flock => &[LockOwner::Posix],
        LockFamily::Either => &[],
    }
}

/// Releases all locks of an owner on a file, by either call.
fn unlock<E: Endpoint, A: AccessMethod>(
    lane: &mut Lane<E, A>,
    ino: u64,
    owner: u64,
) -> std::result::Result<(), ClientError> {
    EITHER.iter().try_for_each(|of| lane.unlock(Ino(ino), of(owner), 0, u64::MAX))
}

/// Refuses a name that is too long, before the service is asked.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_LEN_MAX { Err(Errno::NAMETOOLONG) } else { Ok(()) }
}

impl<E: Endpoint + 'static, A: AccessMethod + 'static> Files for Remote<E, A> {
    fn lifetimes(&self) -> CacheLifetimes {
        self.common.lifetimes
    }

    fn shares_locks(&self) -> bool {
        true
    }

    fn set_notifier(&self, stale: Arc<dyn CacheNotifier>) {
        // Called only once, so the result does not matter.
        let _ = self.common.notifier.set(stale);
    }

    fn lookup(&self, caller: &Caller, parent: u64, name: &[u8]) -> Result<Attributes> {
        check_name(name)?;
        self.with(|lane| lane.lookup(&protocol_caller(caller), Ino(parent), name)).map(|attr| attributes(&attr))
    }

    fn count_lookup(&self, _: u64) {}

    fn forget(&self, ino: u64, _: u64) {
        self.common.client.forget(ino);
    }

    fn attributes(&self, ino: u64, _: Option<u64>) -> Result<Attributes> {
        self.with(|lane| lane.attributes(Ino(ino))).map(|attr| attributes(&attr))
    }

    fn change(&self, caller: &Caller, ino: u64, handle: Option<u64>, change: &AttributeChange) -> Result<Attributes> {
        let AttributeChange { mode, uid, gid, size, accessed, modified } = *change;
        let (mode, atime, mtime) = (mode.map(u32::from), accessed.map(set_time), modified.map(set_time));
        let set = SetAttr { mode, uid, gid, size, atime, mtime };
        self.with(|lane| lane.set_attributes(&protocol_caller(caller), Ino(ino), set, handle))
            .map(|attr| attributes(&attr))
    }

    fn read_link(&self, ino: u64) -> Result<Vec<u8>> {
        self.with(|lane| lane.read_link(Ino(ino)))
    }

    fn make(&self, caller: &Caller, parent: u64, name: &[u8], new: NewNode<'_>, mode: u16) -> Result<Attributes> {
        check_name(name)?;
        let (caller, parent, mode) = (protocol_caller(caller), Ino(parent), u32::from(mode));
        let node_kind = |kind: Kind| match kind {
            Kind::File => Ok(NodeKind::File),
            Kind::Fifo => Ok(NodeKind::Fifo),
            Kind::Socket => Ok(NodeKind::Socket),
            Kind::CharDevice => Ok(NodeKind::CharDevice),
            Kind::BlockDevice => Ok(NodeKind::BlockDevice),
            Kind::Directory | Kind::Link => Err(Errno::INVAL),
        };
        let made = match new {
            NewNode::Directory => self.with(|lane| lane.make_directory(&caller, parent, name, mode)),
            NewNode::Link(path) => self.with(|lane| lane.make_link(&caller, parent, name, path)),
            NewNode::Node { kind, device } => {
                let kind = node_kind(kind)?;
                self.with(|lane| lane.make_node(&caller, parent, name, mode, (kind, device)))
            }
        };
        made.map(|attr| attributes(&attr))
    }

    fn unlink(&self, caller: &Caller, parent: u64, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.with(|lane| lane.unlink(&protocol_caller(caller), Ino(parent), name))
    }

    fn remove_directory(&self, caller: &Caller, parent: u64, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.with(|lane| lane.remove_directory(&protocol_caller(caller), Ino(parent), name))
    }

    fn rename(&self, caller: &Caller, from: (u64, &[u8]), to: (u64, &[u8]), how: RenameOptions) -> Result<()> {
        check_name(from.1).and(check_name(to.1))?;
        let flags = u32::from(how.no_replace) | u32::from(how.exchange) << 1;
        self.with(|lane| lane.rename(&protocol_caller(caller), (Ino(from.0), from.1), (Ino(to.0), to.1), flags))
    }

    fn link(&self, caller: &Caller, ino: u64, parent: u64, name: &[u8]) -> Result<Attributes> {
        check_name(name)?;
        self.with(|lane| lane.link(&protocol_caller(caller), Ino(ino), Ino(parent), name)).map(|attr| attributes(&attr))
    }

    fn open(&self, caller: &Caller, ino: u64, flags: i32) -> Result<Opened> {
        let truncates = flags & OFlags::TRUNC.bits() as i32 != 0;
        let opened = self.with(|lane| lane.open(&protocol_caller(caller), Ino(ino), access(flags), truncates))?;
        if !opened.is_unchanged
            && let Some(stale) = self.common.notifier.get()
        {
            stale.invalidate_attributes(ino);
        }
        Ok(Opened { handle: opened.handle, is_unchanged: opened.is_unchanged })
    }

    fn create(&self, caller: &Caller, parent: u64, name: &[u8], mode: u16, flags: i32) -> Result<(Attributes, Opened)> {
        check_name(name)?;
        let (caller, access) = (protocol_caller(caller), access(flags));
        let is_exclusive = flags & OFlags::EXCL.bits() as i32 != 0;
        let truncates = flags & OFlags::TRUNC.bits() as i32 != 0;
        let opened = self.with(|lane| {
            loop {
                match lane.create(&caller, Ino(parent), name, mode.into(), access) {
                    // Another host created it first.
                    Err(ClientError::Refused(Error::Exists)) if !is_exclusive => {}
                    result => return result,
                }
                match lane.lookup(&caller, Ino(parent), name) {
                    Ok(attr) => return lane.open(&caller, attr.ino, access, truncates),
                    Err(ClientError::Refused(Error::NotFound)) => {}
                    Err(error) => return Err(error),
                }
            }
        })?;
        Ok((attributes(&opened.attr), Opened { handle: opened.handle, is_unchanged: opened.is_unchanged }))
    }

    fn read(&self, _: u64, handle: u64, at: u64, len: usize, answer: impl FnOnce(Result<&[u8]>)) {
        let mut answer = Some(answer);
        let read = self.with(|lane| {
            lane.read(handle, at, len, |result| {
                if let Some(answer) = answer.take() {
                    answer(result.map_err(|failed| errno(&failed)));
                }
            });
            Ok(())
        });
        if let (Err(error), Some(answer)) = (read, answer.take()) {
            answer(Err(error));
        }
    }

    fn write(&self, ino: u64, handle: u64, at: u64, data: &[u8], drops_privileges: bool) -> Result<usize> {
        self.with(|lane| {
            let written = lane.write(handle, at, data)?;
            if drops_privileges {
                lane.drop_privileges(handle, Ino(ino))?;
            }
            Ok(written)
        })
    }

    fn flush(&self, ino: u64, handle: u64, owner: u64) -> Result<()> {
        self.common.locked_by_either().remove(&(ino, owner));
        self.with(|lane| {
            let unlocked = unlock(lane, ino, owner);
            lane.sync(handle).and(unlocked)
        })
    }

    fn sync(&self, _: u64, handle: u64, _: bool) -> Result<()> {
        self.with(|lane| lane.sync(handle))
    }

    fn release(&self, ino: u64, handle: u64, owner: Option<u64>) {
        if let Some(owner) = owner {
            self.common.locked_by_either().remove(&(ino, owner));
        }
        // Nothing to report: `flush` reported what could not be written.
        let _ = self.with(|lane| {
            let unlocked = owner.map_or(Ok(()), |owner| unlock(lane, ino, owner));
            lane.close(handle).and(unlocked)
        });
    }

    fn open_directory(&self, caller: &Caller, ino: u64) -> Result<u64> {
        self.with(|lane| lane.open_directory(&protocol_caller(caller), Ino(ino)))
    }

    fn list(&self, _: u64, handle: u64, cookie: u64, add: &mut dyn FnMut(DirectoryEntry) -> bool) -> Result<()> {
        self.with(|lane| {
            lane.list(handle, cookie, &mut |entry| {
                let attributes = attributes(&entry.attr);
                add(DirectoryEntry { cookie: entry.cookie, name: entry.name.clone(), attributes })
            })
        })
    }

    fn release_directory(&self, _: u64, handle: u64) {
        // The reply cannot carry an error.
        let _ = self.with(|lane| lane.close(handle));
    }

    fn sync_directory(&self, _: u64) -> Result<()> {
        // The service stored each change on its disk before it answered.
        Ok(())
    }

    fn space(&self) -> Result<Space> {
        let space = self.with(Lane::space)?;
        Ok(Space {
            block: PAGE as u32,
            blocks: space.pages,
            free: space.free_pages,
            inodes: space.inodes_max.max(space.inodes),
            inodes_free: space.inodes_max.saturating_sub(space.inodes),
            name_max: NAME_LEN_MAX as u32,
        })
    }

    fn set_extended(&self, caller: &Caller, ino: u64, name: &[u8], value: &[u8], how: XattrMode) -> Result<()> {
        let how = match how {
            XattrMode::Any => SetXattr::Any,
            XattrMode::Create => SetXattr::Create,
            XattrMode::Replace => SetXattr::Replace,
        };
        self.with(|lane| lane.set_extended(&protocol_caller(caller), Ino(ino), name, value, how))
    }

    fn extended(&self, caller: &Caller, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        self.with(|lane| lane.extended(&protocol_caller(caller), Ino(ino), name))
    }

    fn list_extended(&self, caller: &Caller, ino: u64) -> Result<Vec<u8>> {
        self.with(|lane| lane.list_extended(&protocol_caller(caller), Ino(ino)))
    }

    fn remove_extended(&self, caller: &Caller, ino: u64, name: &[u8]) -> Result<()> {
        self.with(|lane| lane.remove_extended(&protocol_caller(caller), Ino(ino), name))
    }

    fn test_lock(&self, ino: u64, wanted: &Lock) -> Result<Option<Lock>> {
        let Some(of) = lock(ino, wanted) else { return Ok(None) };
        let conflict = self.with(|lane| lane.test_lock(of(LockOwner::Posix(wanted.owner))))?;
        Ok(conflict.map(|held| Lock {
            owner: 0,
            family: LockFamily::Fcntl,
            pid: held.pid,
            start: held.first,
            last: held.last.min(LAST_OFFSET),
            kind: match held.kind {
                protocol::LockKind::Read => LockKind::Shared,
                protocol::LockKind::Write => LockKind::Exclusive,
            },
        }))
    }

    fn set_lock(&self, ino: u64, wanted: &Lock, waits: bool) -> Result<()> {
        // `flock` is told of no deadlock.
        let waits = waits && wanted.family == LockFamily::Fcntl;
        let (start, end) = (wanted.start, last(wanted.last));
        let mut owners = owners(wanted).iter().map(|owner| owner(wanted.owner));
        let may_be_either = wanted.family == LockFamily::Either && wanted.kind != LockKind::Unlocked;
        if may_be_either {
            self.common.locked_by_either().insert((ino, wanted.owner));
        }
        self.with(|lane| match lock(ino, wanted) {
            Some(of) => {
                let mut held = None;
                owners.try_for_each(|owner| {
                    lane.lock(of(owner), waits).inspect_err(|_| {
                        // If this fails, the lock ends with the file's last descriptor.
                        held.map(|held| lane.unlock(Ino(ino), held, start, end));
                    })?;
                    held = Some(owner);
                    Ok(())
                })
            }
            None => owners.try_for_each(|owner| lane.unlock(Ino(ino), owner, start, end)),
        })?;
        if !may_be_either && self.common.locked_by_either().remove(&(ino, wanted.owner)) {
            // The rest of a lock of the whole file, which nobody would release before the file is closed.
            let rest = other_owners(wanted);
            let free =
                self.with(|lane| rest.iter().try_for_each(|of| lane.unlock(Ino(ino), of(wanted.owner), 0, u64::MAX)));
            if free.is_err() {
                // The next call tries again.
                self.common.locked_by_either().insert((ino, wanted.owner));
            }
        }
        Ok(())
    }

    fn allocate(
        &self,
        ino: u64,
        handle: u64,
        (at, len): (u64, u64),
        how: AllocateMode,
        keeps_size: bool,
        drops_privileges: bool,
    ) -> Result<()> {
        let change = match how {
            AllocateMode::Reserve => RangeChange::Reserve,
            AllocateMode::Punch => RangeChange::Hole,
            AllocateMode::Zero => RangeChange::Zero,
        };
        self.with(|lane| {
            lane.change_range(handle, at, len, change, keeps_size)?;
            if drops_privileges {
                lane.drop_privileges(handle, Ino(ino))?;
            }
            Ok(())
        })
    }

    fn seek(&self, _: u64, handle: u64, at: u64, target: SeekTarget) -> Result<u64> {
        let whence = match target {
            SeekTarget::Data => Whence::Data,
            SeekTarget::Hole => Whence::Hole,
        };
        self.with(|lane| lane.seek(handle, at, whence))?.ok_or(Errno::NXIO)
    }

    fn unmounted(&self) {
        // Data that could not be written is reported in the log.
        let _ = self.with(Lane::end);
        LANES.with_borrow_mut(|lanes| lanes.remove(&self.common.id));
        if let Some(tender) = self.maintenance_thread().take() {
            let _ = tender.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_as_they_were_before_1970_too() {
        for (s, ns) in [(0, 0), (5, 999_999_999), (-7, 3), (-1, 0), (i64::MAX, 0), (i64::MAX, 999_999_999)] {
            assert_eq!(time_of(system_time(Time { s, ns })), Time { s, ns });
        }
        assert_eq!(system_time(Time { s: i64::MAX, ns: 1_000_000_000 }), UNIX_EPOCH, "no time that the system knows");
    }

    #[test]
    fn flags_say_what_a_file_is_opened_for() {
        let of = |flags: OFlags, more: i32| access(flags.bits() as i32 | more);
        let read = Access { read: true, ..Access::default() };
        assert_eq!((of(OFlags::RDONLY, 0), of(OFlags::RDONLY, FOR_EXEC)), (read, Access { execute: true, ..read }));
        assert_eq!(of(OFlags::WRONLY, 0), Access { write: true, ..Access::default() });
        assert_eq!(of(OFlags::RDWR, 0), Access { write: true, ..read });
    }
}
