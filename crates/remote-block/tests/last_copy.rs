//! A store with a file as its last copy, whose donors go and come.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use sinew_fabric::verbs::Slice;
use sinew_fabric::{Armed, Descriptor, Readiness, SeededGenerator};
use sinew_mem::Arena;
use sinew_remote_block::{LastCopy, LastCopyError, LastCopyFile};
use sinew_remote_memory::{Finished, Job, RamStore, Refused, Request, Status, Store, StoreError};

const LEN: usize = 1 << 20;
const ID: u64 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Donors {
    Here,
    Gone,
    /// Another writer has the store.
    TakenOver,
}

/// A store of donors. Of what is asked for while they are gone, every other change is done and nobody hears of it.
struct Remote {
    inner: RamStore,
    donors: Donors,
    failed: Vec<Finished>,
    changes: u64,
}

impl Readiness for Remote {
    fn descriptor(&self) -> Option<Descriptor> {
        self.inner.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        self.inner.arm(now_ns)
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
        let error = match self.donors {
            Donors::Here => return self.inner.submit(request),
            Donors::Gone => StoreError::Lost { at: 0, why: "a test".to_owned() },
            Donors::TakenOver => StoreError::Fenced("a test".to_owned()),
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
        self.failed.push(Finished { tag, result: Err(error), target: None });
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

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sinew-last-copy-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn open(&self, is_new: bool) -> Result<LastCopy<Remote>, LastCopyError> {
        LastCopyFile::open(&self.0, ID, LEN as u64, is_new).map(|file| LastCopy::new(remote(), file))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn remote() -> Remote {
    Remote { inner: RamStore::new(LEN, 8 << 20).unwrap(), donors: Donors::Here, failed: Vec::new(), changes: 0 }
}

fn run(store: &mut LastCopy<Remote>, tag: u64, job: Job) -> Finished {
    store.submit(Request { tag, job }).unwrap();
    let mut finished = Vec::new();
    while finished.is_empty() {
        store.turn();
        store.poll(&mut finished, 1);
    }
    assert_eq!(finished[0].tag, tag, "tags are the caller's");
    finished.remove(0)
}

fn read(store: &mut LastCopy<Remote>, at: u64, len: usize) -> Result<Vec<u8>, StoreError> {
    let target = store.arena().alloc(len, len).unwrap();
    let finished = run(store, u64::MAX, Job::Read { at, target });
    finished.result.map(|()| finished.target.expect("a read has its target").to_vec())
}

fn write(store: &mut LastCopy<Remote>, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
    let mut buffer = store.arena().alloc(bytes.len(), bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    run(store, 1, Job::Write { at, source: Slice::from(buffer.freeze()) }).result
}

fn donors(store: LastCopy<Remote>, donors: Donors, place: &Place) -> LastCopy<Remote> {
    let (mut inner, synced) = store.into_inner();
    synced.unwrap();
    inner.donors = donors;
    LastCopy::new(inner, LastCopyFile::open(&place.0, ID, LEN as u64, false).unwrap())
}

fn settle(store: &mut LastCopy<Remote>) {
    while store.turn() {}
}

#[test]
fn what_the_donors_have_lost_is_read_from_the_file() {
    let place = Place::new("lost");
    let mut store = place.open(true).unwrap();
    write(&mut store, 5000, b"before it was copied").unwrap();
    settle(&mut store);
    assert!(store.is_complete());
    write(&mut store, 300_000, b"after").unwrap();
    run(&mut store, 1, Job::Discard { at: 5007, len: 2 }).result.unwrap();
    store.inner_mut().donors = Donors::Gone;
    assert_eq!(read(&mut store, 5000, 20).unwrap(), b"before \0\0 was copied");
    assert_eq!(read(&mut store, 299_999, 7).unwrap(), b"\0after\0");
    assert_eq!(store.stats().reads, 2);
    assert!(write(&mut store, 0, b"x").is_err(), "one copy is not what was promised");
    // The file is the device's bytes.
    let (_, synced) = store.into_inner();
    synced.unwrap();
    assert_eq!(&std::fs::read(&place.0).unwrap()[300_000..300_005], b"after");
}

#[test]
fn of_an_older_file_nothing_is_read_until_it_is_copied() {
    let place = Place::new("older");
    let mut store = place.open(true).unwrap();
    write(&mut store, 0, b"older").unwrap();
    settle(&mut store);
    drop(store);
    // The same volume, to which somebody wrote elsewhere.
    let mut store = place.open(false).unwrap();
    store.inner_mut().donors = Donors::Gone;
    assert!(read(&mut store, 0, 5).is_err());
    settle(&mut store);
    assert!(read(&mut store, 0, 5).is_err() && !store.is_complete());
    let mut store = donors(store, Donors::Here, &place);
    settle(&mut store);
    store.inner_mut().donors = Donors::Gone;
    assert_eq!(read(&mut store, 0, 5).unwrap(), [0; 5]);
}

#[test]
fn a_store_that_was_taken_over_is_not_answered_for() {
    let place = Place::new("fenced");
    let mut store = place.open(true).unwrap();
    settle(&mut store);
    store.inner_mut().donors = Donors::TakenOver;
    assert!(matches!(read(&mut store, 0, 5), Err(StoreError::Fenced(_))));
}

#[test]
fn a_file_that_fails_is_given_up_and_the_store_goes_on() {
    let place = Place::new("fails");
    let mut store = place.open(true).unwrap();
    settle(&mut store);
    std::fs::File::options().write(true).open(&place.0).unwrap().set_len(0).unwrap();
    store.inner_mut().donors = Donors::Gone;
    assert!(matches!(read(&mut store, 0, 5), Err(StoreError::Lost { .. })));
    assert!(store.given_up().is_some() && matches!(store.status(), Status::Degraded(_)));
    store.inner_mut().donors = Donors::Here;
    write(&mut store, 0, b"on").unwrap();
    assert_eq!(read(&mut store, 0, 2).unwrap(), b"on");
}

#[test]
fn files_that_are_not_this_volumes_are_refused_and_stay_as_they_are() {
    let place = Place::new("others");
    for contents in [vec![1; 100], vec![0; 4096], vec![2; LEN + 4096]] {
        std::fs::write(&place.0, &contents).unwrap();
        assert!(matches!(place.open(false), Err(LastCopyError::Other { .. })));
        assert_eq!(std::fs::read(&place.0).unwrap(), contents);
    }
    std::fs::remove_file(&place.0).unwrap();
    let store = place.open(true).unwrap();
    assert!(matches!(place.open(false), Err(LastCopyError::InUse { .. })));
    drop(store);
    // It may be all that is left.
    assert!(matches!(place.open(true), Err(LastCopyError::Precious { .. })));
    assert!(matches!(LastCopyFile::open(&place.0, ID + 1, LEN as u64, false), Err(LastCopyError::Other { .. })));
    // Any damage to the trailer.
    let file = std::fs::File::options().write(true).open(&place.0).unwrap();
    for at in [0, 20, 30, 32, 33, 4095] {
        file.write_all_at(&[9], LEN as u64 + at).unwrap();
        assert!(matches!(place.open(false), Err(LastCopyError::Other { .. })), "{at}");
        let mut good = [0; 40];
        good[..16].copy_from_slice(b"sinew last copy\n");
        good[16..24].copy_from_slice(&ID.to_le_bytes());
        good[24..32].copy_from_slice(&(LEN as u64).to_le_bytes());
        file.write_all_at(&good, LEN as u64).unwrap();
        file.write_all_at(&[0; 4056], LEN as u64 + 40).unwrap();
    }
    assert!(place.open(false).is_ok());
}

/// Each byte is what it was, or, after changes that failed, what one of those would have made of it, until it is read: then it is that.
#[test]
fn whatever_comes_and_goes_no_read_finds_what_was_not_written() {
    const PLACES: u64 = 32;
    for seed in 0..40 {
        let mut random = SeededGenerator::new(seed);
        let place = Place::new("random");
        let mut store = place.open(true).unwrap();
        let mut may_be: Vec<Vec<u8>> = vec![vec![0]; PLACES as usize];
        let at_of = |index: u64| index * (LEN as u64 / PLACES);
        for step in 0..400 {
            let index = random.below(PLACES);
            let (at, known) = (at_of(index), &mut may_be[index as usize]);
            match random.below(12) {
                0..=3 => {
                    let value = 1 + random.below(255) as u8;
                    let written = write(&mut store, at, &[value; 8]);
                    if written.is_ok() {
                        known.clear();
                    }
                    known.push(value);
                }
                4 => {
                    let discarded = run(&mut store, 1, Job::Discard { at, len: 8 }).result;
                    if discarded.is_ok() {
                        known.clear();
                    }
                    known.push(0);
                }
                5..=8 => {
                    if let Ok(bytes) = read(&mut store, at, 8) {
                        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "seed {seed}, step {step}");
                        assert!(known.contains(&bytes[0]), "seed {seed}, step {step}: {bytes:?}, {known:?}");
                        // What the donors said is so from now on; the file's word stands until they say otherwise.
                        if store.inner().donors == Donors::Here {
                            *known = vec![bytes[0]];
                        }
                    }
                }
                9 => store.inner_mut().donors = Donors::Gone,
                10 => store.inner_mut().donors = Donors::Here,
                _ => {
                    store.turn();
                }
            }
        }
    }
}
