//! What all threads of a program have in common.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use sinew_fabric::Address;
use sinew_mem::Arena;
use sinew_mem::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::config::ClientConfig;
use super::file::File;
use super::locks::Locks;
use super::reserve::Reserve;
use super::sequence::Sequences;
use crate::protocol::{Access, Attr, DonorPlace, Entry, Ino, Pages, Place, SECRET_LEN};

/// Who the client is, as the service told it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Identity {
    /// How often it has joined; 0: not yet.
    pub joined: u64,
    pub client: u64,
    pub secret: [u8; SECRET_LEN],
    pub epoch: u32,
    pub volume: u64,
    pub lease_ns: u64,
}

/// What is open by a handle.
#[derive(Clone)]
pub(super) enum Handle {
    File { file: Arc<File>, access: Access },
    Directory { ino: Ino, listing: Arc<Mutex<Listing>> },
}

/// Entries of a directory that were read ahead.
#[derive(Default)]
pub(super) struct Listing {
    /// Behind which entry they begin.
    pub after: u64,
    pub entries: Vec<Entry>,
    pub is_end: bool,
}

/// A client of a file system; see [the module](super). Threads use it by [lanes](super::Lane).
pub struct Client {
    pub(super) config: ClientConfig,
    pub(super) service: Address,
    pub(super) arena: Arena,
    identity: Mutex<Identity>,
    /// Held by whoever joins.
    pub(super) joining: Mutex<()>,
    sequences: Mutex<Sequences>,
    reserve: Mutex<Reserve>,
    /// Pages of commits of which nobody knows whether they were performed, each commit's by itself.
    doubtful: Mutex<Vec<Vec<Pages>>>,
    places: RwLock<HashMap<u32, Arc<Place>>>,
    donors: RwLock<Arc<Vec<DonorPlace>>>,
    files: Mutex<HashMap<u64, Arc<File>>>,
    handles: Mutex<HashMap<u64, Handle>>,
    locks: Mutex<Locks>,
    next_handle: AtomicU64,
    /// Bytes of memory that fresh pages take.
    dirty_bytes: AtomicUsize,
    /// When something was last asked for successfully.
    heard_ns: AtomicU64,
    /// When something was last written.
    wrote_ns: AtomicU64,
    is_ending: AtomicBool,
    has_left: AtomicBool,
    woken: Mutex<bool>,
    wake: Condvar,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("service", &self.service).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// A client of the service at an address, which has not joined yet. Buffers come from `arena`, which the lanes' devices have to know.
    pub fn new(service: Address, arena: &Arena, config: ClientConfig) -> Arc<Self> {
        Arc::new(Self {
            config,
            service,
            arena: arena.clone(),
            identity: Mutex::default(),
            joining: Mutex::default(),
            sequences: Mutex::default(),
            reserve: Mutex::default(),
            doubtful: Mutex::default(),
            places: RwLock::default(),
            donors: RwLock::default(),
            files: Mutex::default(),
            handles: Mutex::default(),
            locks: Mutex::default(),
            next_handle: AtomicU64::new(1),
            dirty_bytes: AtomicUsize::new(0),
            heard_ns: AtomicU64::new(0),
            wrote_ns: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            woken: Mutex::default(),
            wake: Condvar::new(),
        })
    }

    /// How it goes about it.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// Bytes that are not committed.
    pub fn dirty_bytes(&self) -> usize {
        // Relaxed: a figure.
        self.dirty_bytes.load(Ordering::Relaxed)
    }

    /// How long the thread that [tends](super::Lane::tend) the client may sleep before it is to look again.
    pub fn pause(&self) -> Duration {
        let lease_ns = self.identity().lease_ns.max(300_000_000);
        Duration::from_nanos((lease_ns / 6).min(self.config.dirty_age_ns / 2).clamp(1_000_000, 1_000_000_000))
    }

    /// Sleeps until [`Self::wake`], or so long.
    pub fn sleep(&self, pause: Duration) {
        let woken = locked(&self.woken);
        let (mut woken, _) =
            self.wake.wait_timeout_while(woken, pause, |woken| !*woken).unwrap_or_else(PoisonError::into_inner);
        *woken = false;
    }

    /// Ends the sleep of whoever tends the client.
    pub fn wake(&self) {
        *locked(&self.woken) = true;
        self.wake.notify_all();
    }

    /// Whether it is about to leave.
    pub fn is_ending(&self) -> bool {
        // Relaxed: nothing is read on the strength of it.
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Whether the service has been told that it goes.
    pub(super) fn has_left(&self) -> bool {
        // Relaxed: whoever still asks gets an error, or is taken for another client.
        self.has_left.load(Ordering::Relaxed)
    }

    pub(super) fn leave(&self) {
        self.has_left.store(true, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// The program does not know the inode any more: nothing need be remembered of it.
    pub fn forget(&self, ino: u64) {
        let mut files = locked(&self.files);
        let is_unused = files.get(&ino).is_some_and(|file| {
            let state = file.lock();
            state.handles.is_empty() && state.dirty.is_empty()
        });
        if is_unused {
            files.remove(&ino);
        }
    }

    pub(super) fn log(&self, text: &str) {
        (self.config.log)(text);
    }

    pub(super) fn identity(&self) -> Identity {
        *locked(&self.identity)
    }

    pub(super) fn set_identity(&self, identity: Identity) {
        *locked(&self.identity) = identity;
    }

    pub(super) fn sequences(&self) -> MutexGuard<'_, Sequences> {
        locked(&self.sequences)
    }

    pub(super) fn reserve(&self) -> MutexGuard<'_, Reserve> {
        locked(&self.reserve)
    }

    pub(super) fn doubtful(&self) -> MutexGuard<'_, Vec<Vec<Pages>>> {
        locked(&self.doubtful)
    }

    pub(super) fn locks(&self) -> MutexGuard<'_, Locks> {
        locked(&self.locks)
    }

    pub(super) fn handles(&self) -> MutexGuard<'_, HashMap<u64, Handle>> {
        locked(&self.handles)
    }

    pub(super) fn new_handle(&self) -> u64 {
        // Relaxed: numbers need to differ, no more.
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// A file that was opened by a handle. From now on it is not forgotten.
    pub(super) fn opened(&self, attr: &Attr, handle: u64, access: Access) -> Arc<File> {
        // Held until the file has its handle: `forget` must not come between.
        let mut files = locked(&self.files);
        let file = files.entry(attr.ino.0).or_insert_with(|| Arc::new(File::new(attr.ino)));
        let mut state = file.lock();
        state.hear(attr);
        state.open(handle, access.write);
        drop(state);
        Arc::clone(file)
    }

    /// The file, if something is known of it.
    pub(super) fn known_file(&self, ino: Ino) -> Option<Arc<File>> {
        locked(&self.files).get(&ino.0).cloned()
    }

    /// All files that have something to commit.
    pub(super) fn dirty_files(&self) -> Vec<Arc<File>> {
        let files: Vec<_> = locked(&self.files).values().cloned().collect();
        files.into_iter().filter(|file| !file.lock().dirty.is_empty()).collect()
    }

    pub(super) fn changed_dirty(&self, before: usize, after: usize) {
        // Relaxed: a figure.
        self.dirty_bytes.fetch_add(after, Ordering::Relaxed);
        self.dirty_bytes.fetch_sub(before, Ordering::Relaxed);
    }

    pub(super) fn heard(&self, now_ns: u64) {
        // Relaxed: a figure, and a heartbeat too many does no harm.
        self.heard_ns.fetch_max(now_ns, Ordering::Relaxed);
    }

    pub(super) fn heard_ns(&self) -> u64 {
        self.heard_ns.load(Ordering::Relaxed)
    }

    pub(super) fn wrote(&self, now_ns: u64) {
        // Relaxed: a figure.
        self.wrote_ns.fetch_max(now_ns, Ordering::Relaxed);
    }

    pub(super) fn wrote_ns(&self) -> u64 {
        self.wrote_ns.load(Ordering::Relaxed)
    }

    pub(super) fn place(&self, segment: u32) -> Option<Arc<Place>> {
        self.places.read().unwrap_or_else(PoisonError::into_inner).get(&segment).cloned()
    }

    /// What the service says of segments, unless something later is known.
    pub(super) fn learn(&self, places: &[Place]) {
        if places.is_empty() {
            return;
        }
        let mut known = self.places.write().unwrap_or_else(PoisonError::into_inner);
        for place in places {
            let is_old = known.get(&place.segment).is_some_and(|known| known.generation > place.generation);
            if !is_old {
                known.insert(place.segment, Arc::new(place.clone()));
            }
        }
    }

    pub(super) fn forget_places(&self) {
        self.places.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(super) fn donors(&self) -> Arc<Vec<DonorPlace>> {
        Arc::clone(&self.donors.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_donors(&self, donors: Vec<DonorPlace>) {
        *self.donors.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(donors);
    }
}
