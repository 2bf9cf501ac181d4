//! Threads that read and write the files of a mount, and know their expected content.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use sinew_fabric::{Generator, SeededGenerator};

use super::own_files::unshare_files;
use super::pages::{PAGE, pages, version_of};
use super::shadow::{Shadow, lock};

/// Number of files.
pub const FILES: usize = 24;
/// Pages of each file.
pub const PAGES: u64 = 48;
/// Most pages that are written at once.
const RUN_MAX: u64 = 24;
/// Most writes to a file between opening and closing it.
const WRITES_MAX: u64 = 4;

/// Expected content of each file. A thread that uses a file holds its lock, so that only one has it open at a time.
pub type Shadows = Arc<Vec<Mutex<Shadow>>>;

pub fn shadows() -> Shadows {
    Arc::new((0..FILES).map(|_| Mutex::new(Shadow::new(PAGES))).collect())
}

/// Path of a file.
pub fn path(point: &Path, file: usize) -> PathBuf {
    point.join(format!("file{file}"))
}

/// Threads that use a mount.
pub struct Writers {
    threads: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    /// Set before the mount is killed: from then on calls may fail.
    may_fail: Arc<AtomicBool>,
    /// Number of times that the mount was stopped past its lease. The outcome of the call that each thread had in
    /// flight may then be unknown, which is an error too.
    stops: Arc<AtomicUsize>,
    /// Set once the service has taken all that a killed mount had sent; writes from then on are later.
    is_heard: Arc<AtomicBool>,
}

impl Writers {
    pub fn start(point: &Path, count: usize, random: &mut SeededGenerator, shadows: &Shadows) -> Self {
        let [is_over, may_fail, is_heard] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        let stops = Arc::new(AtomicUsize::new(0));
        let device = device_of(point);
        let threads = (0..count).map(|number| {
            let writer = Writer {
                point: point.to_owned(),
                device,
                number,
                random: SeededGenerator::new(random.next_u64()),
                shadows: shadows.clone(),
                may_fail: may_fail.clone(),
                stops: stops.clone(),
                is_heard: is_heard.clone(),
            };
            let is_over = is_over.clone();
            std::thread::spawn(move || writer.run(&is_over))
        });
        Self { threads: threads.collect(), is_over, may_fail, stops, is_heard }
    }

    /// Lets calls fail from now on.
    pub fn may_fail(&self) {
        self.may_fail.store(true, Ordering::SeqCst);
    }

    /// Lets the outcome of one call of each thread be unknown.
    pub fn may_be_unknown(&self) {
        self.stops.fetch_add(1, Ordering::SeqCst);
    }

    /// Lets threads begin nothing more.
    pub fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Waits for the threads to end: after their current step, or when that fails. For a killed mount, call this once
    /// the service has answered another mount since: until then, a thread in the middle of a step holds its file.
    pub fn end(self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.is_heard.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

struct Writer {
    point: PathBuf,
    /// The mount's device number.
    device: u64,
    number: usize,
    random: SeededGenerator,
    shadows: Shadows,
    may_fail: Arc<AtomicBool>,
    stops: Arc<AtomicUsize>,
    is_heard: Arc<AtomicBool>,
}

impl Writer {
    fn run(mut self, is_over: &AtomicBool) {
        unshare_files();
        let shadows = self.shadows.clone();
        let mut unknown = 0;
        while !is_over.load(Ordering::SeqCst) {
            let file = self.random.below(FILES as u64) as usize;
            // The holder may be at a mount that is stopped.
            let Ok(mut shadow) = shadows[file].try_lock() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            let done = self.step(file, &mut shadow);
            if let Err(error) = done {
                let is_io = error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
                if is_io && unknown < self.stops.load(Ordering::SeqCst) && !self.may_fail.load(Ordering::SeqCst) {
                    unknown = self.stops.load(Ordering::SeqCst);
                    continue;
                }
                if !self.may_fail.load(Ordering::SeqCst) {
                    return shadow.record_error(format!("file {file} at {}: {error}", self.point.display()));
                }
                while !self.is_heard.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return;
            }
        }
    }

    fn step(&mut self, file: usize, shadow: &mut MutexGuard<'_, Shadow>) -> io::Result<()> {
        let path = path(&self.point, file);
        match self.random.below(10) {
            0..=3 => check_file(&path, self.device, shadow),
            4..=7 => self.overwrite(&path, shadow),
            _ => self.replace(&path, shadow),
        }
    }

    /// Writes to several places, and then syncs or only closes.
    fn overwrite(&mut self, path: &Path, shadow: &mut Shadow) -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let number = inode_at(&file, self.device)?;
        let mut written = Vec::new();
        for _ in 0..1 + self.random.below(WRITES_MAX) {
            let from = self.random.below(PAGES);
            let to = (from + 1 + self.random.below(RUN_MAX)).min(PAGES);
            let version = shadow.begin_write(from, to);
            file.write_all_at(&pages(from..to, version), from * PAGE as u64)?;
            written.push((from, to, version));
        }
        let syncs = self.random.below(3) > 0;
        if syncs {
            file.sync_all()?;
        }
        drop(file);
        shadow.note(format!("{} (inode {number}), synced {syncs}: {written:?}", path.display()));
        // Closing the file reports no error here, but it has committed the writes if the mount has not been killed by
        // now.
        if syncs || !self.may_fail.load(Ordering::SeqCst) {
            written.into_iter().for_each(|(from, to, version)| shadow.ack_write(from, to, version));
            Ok(())
        } else {
            Err(io::Error::other("the mount was killed before the file was closed"))
        }
    }

    /// Writes a new file and renames it over the old one.
    fn replace(&mut self, path: &Path, shadow: &mut Shadow) -> io::Result<()> {
        let new = path.with_extension(format!("new{}", self.number));
        let file = File::create(&new)?;
        let number = inode_at(&file, self.device)?;
        let version = shadow.begin_write(0, PAGES);
        if self.random.below(2) == 0 {
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, PAGES * PAGE as u64)?;
        }
        file.write_all_at(&pages(0..PAGES, version), 0)?;
        file.sync_all()?;
        drop(file);
        fs::rename(&new, path)?;
        inode_at(&File::open(path)?, self.device)?;
        shadow.note(format!("{} (inode {number}) is new: version {version}", path.display()));
        shadow.ack_write(0, PAGES, version);
        Ok(())
    }
}

/// Device number of what is mounted at a directory.
fn device_of(point: &Path) -> u64 {
    fs::metadata(point).unwrap().dev()
}

/// The inode of a file, which must be on this device: where a mount was killed and has been unmounted, paths lead to
/// the directory below it.
fn inode_at(file: &File, device: u64) -> io::Result<u64> {
    let found = file.metadata()?;
    if found.dev() == device { Ok(found.ino()) } else { Err(io::Error::other("the mount is gone")) }
}

/// Reads a file, which must hold everything that was acknowledged.
fn check_file(path: &Path, device: u64, shadow: &mut Shadow) -> io::Result<()> {
    let mut file = File::open(path)?;
    let number = inode_at(&file, device)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    if bytes.len() != PAGES as usize * PAGE {
        shadow.record_error(format!("{} has {} bytes", path.display(), bytes.len()));
    }
    let was_wrong = shadow.is_wrong();
    shadow.record_read(0, &bytes, None);
    if shadow.is_wrong() && !was_wrong {
        let cached = versions(&File::open(path)?)?;
        let stored = versions(&OpenOptions::new().read(true).custom_flags(DIRECT).open(path)?)?;
        let path = path.display();
        shadow
            .explain_error(&format!("\n  read at {path} (inode {number}), then {cached:?}, past the cache {stored:?}"));
    }
    Ok(())
}

/// The flag with which a file is read past the kernel's cache.
const DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

/// Versions of the first pages of a file.
fn versions(file: &File) -> io::Result<Vec<Option<u64>>> {
    let mut bytes = vec![0; 4 * PAGE];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes.chunks(PAGE).enumerate().map(|(page, bytes)| version_of(page as u64, bytes)).collect())
}

/// Creates all files.
pub fn make(point: &Path, shadows: &Shadows) {
    for (file, shadow) in shadows.iter().enumerate() {
        let mut shadow = lock(shadow);
        let version = shadow.begin_write(0, PAGES);
        let made = File::create(path(point, file)).unwrap();
        made.write_all_at(&pages(0..PAGES, version), 0).unwrap();
        made.sync_all().unwrap();
        shadow.ack_write(0, PAGES, version);
    }
}

/// Checks all files, through a mount that works.
pub fn check_all_files(point: &Path, shadows: &Shadows) {
    for (file, shadow) in shadows.iter().enumerate() {
        let mut shadow = lock(shadow);
        check_file(&path(point, file), device_of(point), &mut shadow).unwrap();
        let wrong = shadow.take_error();
        assert!(wrong.is_none(), "file {file} at {}: {wrong:?}", point.display());
    }
}
