//! The file of `--notes`: a ceiling on the numbers that a sequencer may have handed out, which survives the server.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use sinew::sequencer::{self, Sequence};

use crate::output;

/// Shortest lease, and the first: a lease is how many numbers the ceiling lies ahead. It is also the gap that a killed
/// server leaves unless it is busy.
const LEASE_MIN: u64 = 1 << 16;
/// Longest lease: the numbers that ranges at their highest rate use up in a second.
const LEASE_MAX: u64 = 1 << 40;
/// A lease that is renewed sooner than this doubles, ...
const RENEW_MIN: Duration = Duration::from_millis(500);
/// ... and one that is renewed later than this halves: a ceiling is noted about once a second, whatever the rate.
const RENEW_MAX: Duration = Duration::from_secs(2);
/// Time between the keeper's checks whether half of the lease is used; also the back-off after a note that could not be
/// written.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Text before the ceiling.
const HEAD: &str = "sinew sequencer: every number below this may have been handed out\n";

/// A file of notes, which is locked against other sequencers.
pub struct CeilingFile {
    path: PathBuf,
    /// Lock on the file beside the notes.
    _lock: File,
    state: Mutex<State>,
}

struct State {
    /// The ceiling in the file.
    written_ceiling: u64,
    lease: u64,
    /// Time when this process last noted a ceiling.
    renewed: Option<Instant>,
    /// Time when a note could not be written; cleared once one is written.
    failed: Option<Instant>,
}

impl CeilingFile {
    /// Opens the file, and reads the ceiling, which is 0 if there are none yet.
    pub fn open(path: &Path) -> anyhow::Result<(Self, u64)> {
        let beside = sibling_path(path, ".lock");
        let lock = File::options().create(true).append(true).open(&beside);
        let lock = lock.with_context(|| format!("--notes: opening {}", beside.display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!("--notes: another sequencer keeps {}; give each its own", path.display())
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("--notes: locking {}", beside.display()));
            }
        }
        let written_ceiling = match fs::read_to_string(path) {
            Ok(text) => read(&text).with_context(|| {
                format!(
                    "--notes: {} is not a note of a sequencer; if you know how far it was, give --first",
                    path.display()
                )
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error).with_context(|| format!("--notes: reading {}", path.display())),
        };
        let state = State { written_ceiling, lease: LEASE_MIN, renewed: None, failed: None };
        Ok((Self { path: path.to_owned(), _lock: lock, state: Mutex::new(state) }, written_ceiling))
    }

    /// Notes a ceiling. Once this returns, the note survives even a loss of power.
    fn write(&self, ceiling: u64) -> anyhow::Result<()> {
        let new = sibling_path(&self.path, ".new");
        let doing = || format!("--notes: writing {}", self.path.display());
        let mut file = File::create(&new).with_context(doing)?;
        file.write_all(format!("{HEAD}{ceiling}\n").as_bytes()).with_context(doing)?;
        file.sync_all().with_context(doing)?;
        fs::rename(&new, &self.path).with_context(doing)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all()).with_context(doing)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a ceiling that is a lease beyond `from`.
    fn renew(&self, state: &mut State, from: u64) -> anyhow::Result<u64> {
        if let Some(renewed) = state.renewed.replace(Instant::now()) {
            state.lease = next_lease(state.lease, renewed.elapsed());
        }
        let ceiling = from.saturating_add(state.lease);
        self.write(ceiling)?;
        state.written_ceiling = ceiling;
        Ok(ceiling)
    }

    /// As [`Self::renew`], but a failure is reported once, and the note is tried again after a back-off.
    fn try_renew(&self, state: &mut State, from: u64) -> Option<u64> {
        if state.failed.is_some_and(|failed| failed.elapsed() < CHECK_INTERVAL) {
            return None;
        }
        let renewed = self.renew(state, from);
        let has_failed = state.failed.take().is_some();
        renewed
            .inspect_err(|error| {
                state.failed = Some(Instant::now());
                if !has_failed {
                    output::complain(output::describe(error));
                }
            })
            .ok()
    }

    /// Allows `sequence` its first numbers.
    pub fn begin(&self, sequence: &Sequence) -> anyhow::Result<()> {
        sequence.raise_ceiling(self.renew(&mut self.state(), sequence.next())?);
        Ok(())
    }

    /// Raises the ceiling of `sequence` once half of the lease is used.
    fn raise(&self, sequence: &Sequence) {
        let mut state = self.state();
        let (next, ceiling) = (sequence.next(), sequence.ceiling());
        if ceiling < u64::MAX
            && ceiling.saturating_sub(next) < state.lease / 2
            && let Some(higher) = self.try_renew(&mut state, next)
        {
            sequence.raise_ceiling(higher);
        }
    }

    /// Keeps the ceiling above `sequence` until `end` closes.
    pub fn keep(&self, sequence: &Sequence, end: &Receiver<()>) {
        while end.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            self.raise(sequence);
        }
    }

    /// Notes exactly how far `sequence` came, once its numbers are no longer handed out, so that the next start leaves
    /// no gap.
    pub fn close(&self, sequence: &Sequence) -> anyhow::Result<()> {
        self.write(sequence.next())
    }
}

impl sequencer::CeilingStore for CeilingFile {
    fn raise(&self, needed: u64) -> Option<u64> {
        let mut state = self.state();
        // Another thread, or the keeper, may have noted enough while this one waited.
        if state.written_ceiling >= needed { Some(state.written_ceiling) } else { self.try_renew(&mut state, needed) }
    }
}

/// The lease that follows one that lasted this long.
fn next_lease(lease: u64, lasted: Duration) -> u64 {
    let next = if lasted < RENEW_MIN {
        lease.saturating_mul(2)
    } else if lasted > RENEW_MAX {
        lease / 2
    } else {
        lease
    };
    next.clamp(LEASE_MIN, LEASE_MAX)
}

fn sibling_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn read(text: &str) -> Option<u64> {
    text.strip_prefix(HEAD)?.strip_suffix('\n')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sinew::sequencer::Epoch;
    use std::sync::Arc;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("sinew-notes-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn noted(path: &Path) -> u64 {
        read(&fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn what_was_noted_is_never_below_what_was_handed_out() {
        let folder = folder("below");
        let path = folder.join("notes");
        let (notes, first) = CeilingFile::open(&path).unwrap();
        assert_eq!(first, 0);
        assert!(CeilingFile::open(&path).is_err_and(|error| error.to_string().contains("another sequencer")));
        let notes = Arc::new(notes);
        let sequence = Sequence::with_ceiling_store(first, Epoch(1), 1 << 20, notes.clone());
        notes.begin(&sequence).unwrap();
        assert_eq!(sequence.ceiling(), LEASE_MIN);
        for count in [1, LEASE_MIN / 2 + 1, LEASE_MIN, 10 * LEASE_MIN, 1 << 30, 1] {
            // Either the keeper was in time, or the call met the ceiling.
            assert!(sequence.take(count).is_some());
            assert!(noted(&path) >= sequence.next() && noted(&path) == sequence.ceiling());
            notes.raise(&sequence);
            assert!(noted(&path) >= sequence.next() && noted(&path) == sequence.ceiling());
        }
        let gap = noted(&path) - sequence.next();
        assert!(gap <= LEASE_MIN << 12, "{gap}: doubled with each note at most");
        // Closed without a last note, as when the server is killed.
        let next = sequence.next();
        drop((notes, sequence));
        let (notes, again) = CeilingFile::open(&path).unwrap();
        assert_eq!(again, next + gap);
        let sequence = Sequence::new(next, Epoch(1), 1);
        notes.close(&sequence).unwrap();
        drop(notes);
        assert_eq!(CeilingFile::open(&path).unwrap().1, next);
        for wrong in ["", "5\n", &format!("{HEAD}-1\n"), &format!("{HEAD}5"), HEAD] {
            fs::write(&path, wrong).unwrap();
            assert!(CeilingFile::open(&path).is_err(), "{wrong:?}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn without_a_place_to_note_nothing_more_is_handed_out_until_there_is_one() {
        let folder = folder("gone");
        let path = folder.join("notes");
        let (notes, first) = CeilingFile::open(&path).unwrap();
        let notes = Arc::new(notes);
        let sequence = Sequence::with_ceiling_store(first, Epoch(1), 1 << 20, notes.clone());
        notes.begin(&sequence).unwrap();
        let left = sequence.ceiling();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!((sequence.take(left), sequence.take(1), sequence.take(1)), (Some(0), None, None));
        fs::create_dir_all(&folder).unwrap();
        std::thread::sleep(2 * CHECK_INTERVAL);
        assert_eq!((sequence.take(1), noted(&path)), (Some(left), sequence.ceiling()));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_lease_lasts_about_a_second_whatever_the_rate() {
        for rate in [0.0, 1e3, 1e6, 1e8, 1e11] {
            let (mut lease, mut seconds) = (LEASE_MIN, 0.0);
            // Half of a lease is used when it is renewed.
            for _ in 0..40 {
                seconds = lease as f64 / 2.0 / rate;
                lease = next_lease(lease, Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
            }
            assert!(
                lease == LEASE_MIN && seconds > 0.5 || (0.4..=2.1).contains(&seconds),
                "{rate}: {lease}, {seconds} s"
            );
            assert!(lease as f64 <= LEASE_MIN as f64 + 4.0 * rate, "{rate}: {lease}");
        }
        assert_eq!(next_lease(LEASE_MAX, Duration::ZERO), LEASE_MAX);
    }
}
