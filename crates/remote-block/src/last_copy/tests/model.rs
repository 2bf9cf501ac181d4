//! A store whose donors come and go, and a disk that may lose power.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sinew_fabric::verbs::Slice;
use sinew_fabric::{Armed, Descriptor, ManualClock, Readiness, SeededGenerator, WorkerPool};
use sinew_mem::Arena;
use sinew_remote_memory::{Finished, Job, RamStore, Refused, Request, Status, Store, StoreError};

use crate::last_copy::medium::Medium;
use crate::last_copy::trailer::{TRAILER, Trailer};
use crate::{LastCopy, LastCopyFile, VolumeIdentity};

pub const LEN: usize = 1 << 20;
pub const VOLUME: VolumeIdentity = VolumeIdentity { id: 7, number: 70 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DonorState {
    Here,
    /// No donor has the bytes any more.
    Gone,
    /// No donor answers, so it is not known who owns the store.
    Silent,
    /// Another writer has the store.
    TakenOver,
    /// They answer again, but the store has ended.
    Over,
}

/// A store over donors. While they are not there, every other change is done, but reported as failed.
pub struct Remote {
    inner: RamStore,
    pub donors: DonorState,
    failed: VecDeque<Finished>,
    changes: u64,
    /// Offsets of reads of whole chunks, which come from the copying in the background.
    pub copies: Vec<u64>,
}

impl Remote {
    pub fn new() -> Self {
        let inner = RamStore::new(LEN, 8 << 20).unwrap();
        Self { inner, donors: DonorState::Here, failed: VecDeque::new(), changes: 0, copies: Vec::new() }
    }

    /// Changes the store as another writer would.
    pub fn change(&mut self, at: u64, bytes: &[u8]) {
        let mut buffer = self.arena().alloc(bytes.len(), bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        self.inner.submit(Request { tag: 0, job: Job::Write { at, source: Slice::from(buffer.freeze()) } }).unwrap();
        self.forget_all();
    }

    /// Finishes and drops all requests, as if their submitter were gone.
    pub fn forget_all(&mut self) {
        while self.inner.turn() {}
        self.inner.poll(&mut Vec::new(), usize::MAX);
        self.failed.clear();
        self.donors = DonorState::Here;
    }
}

impl Readiness for Remote {
    fn descriptor(&self) -> Option<Descriptor> {
        self.inner.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        self.inner.arm(now_ns)
    }

    fn disarm(&mut self) -> bool {
        self.inner.disarm()
    }
}

impl Store for Remote {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn arena(&self) -> &Arena {
        self.inner.arena()
    }

    fn submit(&mut self, request: Request) -> Result<(), Refused> {
        if let Job::Read { at, target } = &request.job
            && target.len() as u64 == crate::last_copy::marks::CHUNK
        {
            self.copies.push(*at);
        }
        let why = || "a test".to_owned();
        let error = match self.donors {
            DonorState::Here => return self.inner.submit(request),
            DonorState::Gone => StoreError::Lost { at: 0, why: why() },
            DonorState::Silent => StoreError::NoAnswer(why()),
            DonorState::TakenOver => StoreError::Fenced(why()),
            DonorState::Over => StoreError::Unavailable(why()),
        };
        let tag = request.tag;
        if !matches!(request.job, Job::Read { .. } | Job::Flush) {
            self.changes += 1;
            if self.changes.is_multiple_of(2) {
                self.inner.submit(request)?;
                self.inner.turn();
                self.inner.poll(&mut Vec::new(), 1);
            }
        }
        // The target is lost with the operation.
        self.failed.push_back(Finished { tag, result: Err(error), target: None });
        Ok(())
    }

    fn turn(&mut self) -> bool {
        self.inner.turn()
    }

    fn poll(&mut self, finished: &mut Vec<Finished>, max: usize) -> usize {
        let count = self.inner.poll(finished, max);
        let failed = self.failed.len().min(max - count);
        finished.extend(self.failed.drain(..failed));
        count + failed
    }

    fn status(&self) -> Status {
        self.inner.status()
    }
}

/// A disk with a cache: any part of what was not synced may be durable, or none.
#[derive(Debug, Default)]
pub struct Disk(Mutex<Contents>);

#[derive(Debug, Default)]
struct Contents {
    /// Contents as the process sees them.
    bytes: Vec<u8>,
    durable: Vec<u8>,
    /// Writes since the last sync.
    cached: Vec<(usize, Vec<u8>)>,
    /// Writes that still take effect before the process dies.
    writes_left: Option<u64>,
    fails: bool,
    /// Whether it has no room for bytes of the store.
    is_full: bool,
}

/// Bytes that a disk writes as a whole or not at all.
const SECTOR: usize = 512;

fn put(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    bytes.resize(bytes.len().max(at + new.len()), 0);
    bytes[at..at + new.len()].copy_from_slice(new);
}

impl Disk {
    /// Lets `writes` more writes take effect; then the process counts as dead.
    pub fn die_after(&self, writes: u64) {
        self.0.lock().unwrap().writes_left = Some(writes);
    }

    pub fn is_dead(&self) -> bool {
        self.0.lock().unwrap().writes_left == Some(0)
    }

    pub fn fail(&self) {
        self.0.lock().unwrap().fails = true;
    }

    pub fn fill_up(&self) {
        self.0.lock().unwrap().is_full = true;
    }

    /// Contents that survive whatever happens to the machine.
    pub fn durable(&self) -> Vec<u8> {
        self.0.lock().unwrap().durable.clone()
    }

    /// Contents after the process died while the machine went on.
    pub fn after_a_crash(&self) -> Vec<u8> {
        self.0.lock().unwrap().bytes.clone()
    }

    /// Contents after the machine lost its power.
    pub fn after_a_loss_of_power(&self, random: &mut SeededGenerator) -> Vec<u8> {
        let contents = self.0.lock().unwrap();
        let mut bytes = contents.durable.clone();
        // Each sector may have any of its states since the last sync.
        for (at, new) in &contents.cached {
            let mut from = 0;
            while from < new.len() {
                let to = (from + SECTOR - (at + from) % SECTOR).min(new.len());
                if random.below(2) == 0 {
                    put(&mut bytes, at + from, &new[from..to]);
                }
                from = to;
            }
        }
        bytes
    }

    /// A disk with these contents.
    pub fn of(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Contents { durable: bytes.clone(), bytes, ..Contents::default() })))
    }
}

impl Medium for Disk {
    fn read(&self, at: u64, target: &mut [u8]) -> io::Result<()> {
        let contents = self.0.lock().unwrap();
        if contents.fails {
            return Err(io::Error::other("told to fail"));
        }
        target.copy_from_slice(&contents.bytes[at as usize..at as usize + target.len()]);
        Ok(())
    }

    fn write(&self, at: u64, new: &[u8]) -> io::Result<()> {
        let mut contents = self.0.lock().unwrap();
        if contents.fails || contents.is_full && (at as usize) < LEN {
            return Err(io::Error::other("told to fail"));
        }
        match &mut contents.writes_left {
            Some(0) => return Ok(()),
            Some(left) => *left -= 1,
            None => {}
        }
        put(&mut contents.bytes, at as usize, new);
        contents.cached.push((at as usize, new.to_vec()));
        Ok(())
    }

    fn clear(&self, at: u64, len: u64) -> io::Result<()> {
        self.write(at, &vec![0; len as usize])
    }

    fn sync(&self) -> io::Result<()> {
        let mut contents = self.0.lock().unwrap();
        if contents.fails {
            return Err(io::Error::other("told to fail"));
        }
        if contents.writes_left != Some(0) {
            contents.durable = contents.bytes.clone();
            contents.cached.clear();
        }
        Ok(())
    }
}

/// What an image's trailer says about completeness; `None` if it has no valid trailer.
pub fn says_complete(image: &[u8]) -> Option<bool> {
    let trailer: &[u8; TRAILER] = image.get(LEN..)?.try_into().ok()?;
    Trailer::read(trailer).filter(|trailer| trailer.volume == VOLUME).map(|trailer| trailer.is_complete)
}

/// A pool that runs its jobs when it is told to.
#[derive(Default)]
pub struct ManualPool(Mutex<Vec<sinew_fabric::Job>>, Mutex<bool>);

impl ManualPool {
    /// Runs all jobs, and returns their number.
    pub fn work(&self) -> usize {
        let jobs = std::mem::take(&mut *self.0.lock().unwrap());
        jobs.into_iter().map(|job| job()).count()
    }

    /// Drops all jobs, as a dying thread does.
    pub fn drop_jobs(&self) {
        self.0.lock().unwrap().clear();
    }

    /// Makes a pool that runs each job at once.
    pub fn immediate() -> Arc<Self> {
        Arc::new(Self(Mutex::default(), Mutex::new(true)))
    }
}

impl WorkerPool for ManualPool {
    fn submit(&self, job: sinew_fabric::Job) -> Result<(), sinew_fabric::Job> {
        if *self.1.lock().unwrap() {
            job();
        } else {
            self.0.lock().unwrap().push(job);
        }
        Ok(())
    }
}

pub type Copied = LastCopy<Remote, ManualClock>;

pub fn wrap(remote: Remote, file: LastCopyFile, clock: &ManualClock) -> Copied {
    LastCopy::new(remote, file, clock.clone(), ManualPool::immediate()).unwrap()
}

/// Makes a last copy on a disk that is empty, or has one of the same volume.
pub fn on(disk: &Arc<Disk>, remote: Remote, clock: &ManualClock, pool: &Arc<ManualPool>) -> Copied {
    let medium: Arc<dyn Medium> = Arc::clone(disk) as _;
    let file = LastCopyFile::with_medium(medium, "a disk".into(), VOLUME, LEN as u64).unwrap();
    LastCopy::new(remote, file, clock.clone(), Arc::clone(pool) as _).unwrap()
}

pub struct TempPath(pub PathBuf);

impl TempPath {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sinew-last-copy-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn open(&self) -> Result<LastCopyFile, crate::LastCopyError> {
        LastCopyFile::open(&self.0, VOLUME, LEN as u64)
    }

    pub fn copy(&self) -> Copied {
        wrap(Remote::new(), self.open().unwrap(), &ManualClock::new())
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn submit(store: &mut Copied, tag: u64, job: Job) {
    store.submit(Request { tag, job }).unwrap();
}

pub fn run(store: &mut Copied, tag: u64, job: Job) -> Finished {
    submit(store, tag, job);
    let mut finished = Vec::new();
    while finished.is_empty() {
        store.turn();
        store.poll(&mut finished, 1);
    }
    assert_eq!(finished[0].tag, tag, "tags are the caller's");
    finished.remove(0)
}

pub fn read(store: &mut Copied, at: u64, len: usize) -> Result<Vec<u8>, StoreError> {
    let target = store.arena().alloc(len, len).unwrap();
    let finished = run(store, u64::MAX, Job::Read { at, target });
    finished.result.map(|()| finished.target.expect("a read returns its target").to_vec())
}

pub fn write_job(store: &Copied, at: u64, bytes: &[u8]) -> Job {
    let mut buffer = store.arena().alloc(bytes.len(), bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    Job::Write { at, source: Slice::from(buffer.freeze()) }
}

pub fn write(store: &mut Copied, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
    let job = write_job(store, at, bytes);
    run(store, 1, job).result
}

pub fn flush(store: &mut Copied) -> Result<(), StoreError> {
    run(store, 2, Job::Flush).result
}

/// Turns the store until it has nothing to do.
pub fn run_until_idle(store: &mut Copied) {
    for _ in 0..100_000 {
        if !store.turn() {
            return;
        }
    }
    panic!("the store does not come to rest");
}
