//! State shared by all threads of a program.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use sinew_fabric::Address;
use sinew_mem::Arena;
use sinew_mem::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::config::ClientConfig;
use super::file::File;
use super::locks::HeldLocks;
use super::repeats::{Repeats, Subject};
use super::reserve::Reserves;
use super::sequence::Sequences;
use crate::protocol::{Access, Attr, DonorInfo, Entry, Ino, Pages, Placement, SECRET_LEN};

/// Identity of the client, as assigned by the service.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Identity {
    /// Number of times that it has joined; 0: not yet.
    pub joined: u64,
    pub client: u64,
    pub secret: [u8; SECRET_LEN],
    pub epoch: u32,
    pub volume: u64,
    pub lease_ns: u64,
}

/// Object that is open by a handle.
#[derive(Clone)]
pub(super) enum Handle {
    File { file: Arc<File>, access: Access },
    Directory { ino: Ino, listing: Arc<Mutex<Listing>> },
}

/// Entries of a directory that were fetched ahead.
#[derive(Default)]
pub(super) struct Listing {
    /// Cookie of the entry that they follow.
    pub after: u64,
    pub entries: Vec<Entry>,
    pub is_end: bool,
}

/// A client of a file system; see [the module](super). Each thread uses it through a [lane](super::Lane).
pub struct Client {
    pub(super) config: ClientConfig,
    pub(super) service: Address,
    pub(super) arena: Arena,
    identity: Mutex<Identity>,
    /// Held while a lane joins.
    pub(super) joining: Mutex<()>,
    sequences: Mutex<Sequences>,
    reserve: Mutex<Reserves>,
    repeats: Mutex<Repeats>,
    /// Pages of commits whose outcome is unknown, one list for each commit.
    doubtful: Mutex<Vec<(Identity, Vec<Pages>)>>,
    places: RwLock<HashMap<u32, Arc<Placement>>>,
    donors: RwLock<Arc<Vec<DonorInfo>>>,
    files: Mutex<HashMap<u64, Arc<File>>>,
    handles: Mutex<HashMap<u64, Handle>>,
    locks: Mutex<HeldLocks>,
    next_handle: AtomicU64,
    /// Bytes of memory that uncommitted chunks take.
    dirty_bytes: AtomicUsize,
    /// Time of the last answer from the service.
    last_answer_ns: AtomicU64,
    /// Time of the last write.
    last_write_ns: AtomicU64,
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
    /// A client of the service at an address, which has not joined yet. Buffers come from `arena`, which must be
    /// registered with the lanes' devices.
    pub fn new(service: Address, arena: &Arena, config: ClientConfig) -> Arc<Self> {
        Arc::new(Self {
            config,
            service,
            arena: arena.clone(),
            identity: Mutex::default(),
            joining: Mutex::default(),
            sequences: Mutex::default(),
            reserve: Mutex::default(),
            repeats: Mutex::default(),
            doubtful: Mutex::default(),
            places: RwLock::default(),
            donors: RwLock::default(),
            files: Mutex::default(),
            handles: Mutex::default(),
            locks: Mutex::default(),
            next_handle: AtomicU64::new(1),
            dirty_bytes: AtomicUsize::new(0),
            last_answer_ns: AtomicU64::new(0),
            last_write_ns: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            woken: Mutex::default(),
            wake: Condvar::new(),
        })
    }

    /// The client's configuration.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// Bytes of memory that uncommitted data takes.
    pub fn dirty_bytes(&self) -> usize {
        // Relaxed: a statistic.
        self.dirty_bytes.load(Ordering::Relaxed)
    }

    /// Time that the thread which [tends](super::Lane::run_periodic) the client may sleep between two calls.
    pub fn pause(&self) -> Duration {
        let lease_ns = self.identity().lease_ns.max(300_000_000);
        Duration::from_nanos((lease_ns / 6).min(self.config.dirty_age_ns / 2).clamp(1_000_000, 1_000_000_000))
    }

    /// Sleeps until [`Self::wake`], or for `pause`.
    pub fn sleep(&self, pause: Duration) {
        let woken = locked(&self.woken);
        let (mut woken, _) =
            self.wake.wait_timeout_while(woken, pause, |woken| !*woken).unwrap_or_else(PoisonError::into_inner);
        *woken = false;
    }

    /// Wakes the thread that tends the client.
    pub fn wake(&self) {
        *locked(&self.woken) = true;
        self.wake.notify_all();
    }

    /// Whether the client is about to leave.
    pub fn is_ending(&self) -> bool {
        // Relaxed: nothing else is read because of it.
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Whether the service has been told that the client leaves.
    pub(super) fn has_left(&self) -> bool {
        // Relaxed: a lane that still sends requests gets an error, or a new identity.
        self.has_left.load(Ordering::Relaxed)
    }

    pub(super) fn leave(&self) {
        self.has_left.store(true, Ordering::Relaxed);
    }

    pub(super) fn mark_ended(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Forgets an inode that the program no longer refers to, unless it is open or has uncommitted data.
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

    /// Logs a message, unless there was one of the same kind a short while ago. Then it is counted.
    pub(super) fn log_rarely(&self, subject: Subject, now_ns: u64, text: &str) {
        if locked(&self.repeats).note(subject, now_ns, text) {
            self.log(text);
        }
    }

    /// Logs how many messages were counted instead of logged.
    pub(super) fn log_repeats(&self, now_ns: u64) {
        let due = locked(&self.repeats).due(now_ns);
        due.iter().for_each(|text| self.log(text));
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

    pub(super) fn reserve(&self) -> MutexGuard<'_, Reserves> {
        locked(&self.reserve)
    }

    pub(super) fn doubtful(&self) -> MutexGuard<'_, Vec<(Identity, Vec<Pages>)>> {
        locked(&self.doubtful)
    }

    pub(super) fn locks(&self) -> MutexGuard<'_, HeldLocks> {
        locked(&self.locks)
    }

    pub(super) fn handles(&self) -> MutexGuard<'_, HashMap<u64, Handle>> {
        locked(&self.handles)
    }

    pub(super) fn new_handle(&self) -> u64 {
        // Relaxed: the numbers only need to differ.
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds a handle to a file. While it is open the file is not forgotten.
    pub(super) fn add_handle(&self, attr: &Attr, handle: u64, access: Access) -> Arc<File> {
        // Held until the file has its handle, so that `forget` cannot come in between.
        let mut files = locked(&self.files);
        let file = files.entry(attr.ino.0).or_insert_with(|| Arc::new(File::new(attr.ino)));
        let mut state = file.lock();
        state.apply_attr(attr);
        state.open(handle, access.write);
        drop(state);
        Arc::clone(file)
    }

    /// The file, if the client has state for it.
    pub(super) fn known_file(&self, ino: Ino) -> Option<Arc<File>> {
        locked(&self.files).get(&ino.0).cloned()
    }

    /// All files with uncommitted data.
    pub(super) fn dirty_files(&self) -> Vec<Arc<File>> {
        let files: Vec<_> = locked(&self.files).values().cloned().collect();
        files.into_iter().filter(|file| !file.lock().dirty.is_empty()).collect()
    }

    pub(super) fn count_dirty(&self, before: usize, after: usize) {
        // Relaxed: a statistic.
        self.dirty_bytes.fetch_add(after, Ordering::Relaxed);
        self.dirty_bytes.fetch_sub(before, Ordering::Relaxed);
    }

    pub(super) fn note_answer(&self, now_ns: u64) {
        // Relaxed: a superfluous heartbeat does no harm.
        self.last_answer_ns.fetch_max(now_ns, Ordering::Relaxed);
    }

    pub(super) fn last_answer_ns(&self) -> u64 {
        self.last_answer_ns.load(Ordering::Relaxed)
    }

    pub(super) fn note_write(&self, now_ns: u64) {
        // Relaxed: only used to judge idleness.
        self.last_write_ns.fetch_max(now_ns, Ordering::Relaxed);
    }

    pub(super) fn last_write_ns(&self) -> u64 {
        self.last_write_ns.load(Ordering::Relaxed)
    }

    pub(super) fn place(&self, segment: u32) -> Option<Arc<Placement>> {
        self.places.read().unwrap_or_else(PoisonError::into_inner).get(&segment).cloned()
    }

    /// Takes over places that the service reported, unless a later generation is known.
    pub(super) fn learn_placements(&self, places: &[Placement]) {
        if places.is_empty() {
            return;
        }
        let mut placements = self.places.write().unwrap_or_else(PoisonError::into_inner);
        for place in places {
            let is_old = placements.get(&place.segment).is_some_and(|known| known.generation > place.generation);
            if !is_old {
                placements.insert(place.segment, Arc::new(place.clone()));
            }
        }
    }

    pub(super) fn forget_places(&self) {
        self.places.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(super) fn donors(&self) -> Arc<Vec<DonorInfo>> {
        Arc::clone(&self.donors.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_donors(&self, donors: Vec<DonorInfo>) {
        *self.donors.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(donors);
    }
}
