//! A sequencer's notes: the ceiling of the numbers that it may have handed out, where it survives the server.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, bail};
use sinew::sequencer::Sequence;

use crate::output;

/// Numbers between what is handed out and the ceiling that is noted ahead.
const AHEAD: u64 = 1 << 40;
/// How often the keeper looks whether the ceiling is near: at the most that one server could hand out in ranges, half of what lies
/// ahead lasts ten times as long.
const LOOK: Duration = Duration::from_millis(5);
/// What stands before the ceiling.
const HEAD: &str = "sinew sequencer: every number below this may have been handed out\n";

/// A file of notes, which nobody else may use meanwhile.
pub struct Notes {
    path: PathBuf,
    /// Locked.
    _lock: File,
}

impl Notes {
    /// Opens the notes, and reads the ceiling; 0 where there are none yet.
    pub fn open(path: &Path) -> anyhow::Result<(Self, u64)> {
        let beside = beside(path, ".lock");
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
        let notes = Self { path: path.to_owned(), _lock: lock };
        let ceiling = match fs::read_to_string(path) {
            Ok(text) => read(&text).with_context(|| {
                format!(
                    "--notes: {} is no note of a sequencer; whoever knows how far it was can say --first",
                    path.display()
                )
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error).with_context(|| format!("--notes: reading {}", path.display())),
        };
        Ok((notes, ceiling))
    }

    /// Notes a ceiling. When this returns, it survives even a loss of power.
    pub fn write(&self, ceiling: u64) -> anyhow::Result<()> {
        let new = beside(&self.path, ".new");
        let doing = || format!("--notes: writing {}", self.path.display());
        let mut file = File::create(&new).with_context(doing)?;
        file.write_all(format!("{HEAD}{ceiling}\n").as_bytes()).with_context(doing)?;
        file.sync_all().with_context(doing)?;
        fs::rename(&new, &self.path).with_context(doing)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all()).with_context(doing)
    }

    /// Raises the ceiling of `sequence` so far that nobody waits for the next time.
    pub fn raise(&self, sequence: &Sequence) -> anyhow::Result<()> {
        let (next, ceiling) = (sequence.next(), sequence.ceiling());
        if ceiling < u64::MAX && ceiling - next.min(ceiling) < AHEAD / 2 {
            let higher = next.saturating_add(AHEAD);
            self.write(higher)?;
            sequence.raise_ceiling(higher);
        }
        Ok(())
    }

    /// Keeps the ceiling above `sequence` until `end` closes. What cannot be written is said once, and tried again.
    pub fn keep(&self, sequence: &Sequence, end: &Receiver<()>) {
        let mut has_complained = false;
        while end.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            match self.raise(sequence) {
                Ok(()) => has_complained = false,
                Err(error) if !has_complained => {
                    has_complained = true;
                    output::complain(output::describe(&error));
                }
                Err(_) => {}
            }
        }
    }

    /// Notes exactly how far `sequence` came, once nobody hands out any more of its numbers: the next start leaves no gap.
    pub fn close(self, sequence: &Sequence) -> anyhow::Result<()> {
        self.write(sequence.next())
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
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

    #[test]
    fn what_was_noted_is_never_below_what_was_handed_out() {
        let folder = std::env::temp_dir().join(format!("sinew-notes-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("notes");
        let (notes, first) = Notes::open(&path).unwrap();
        assert_eq!(first, 0);
        assert!(Notes::open(&path).is_err_and(|error| error.to_string().contains("another sequencer")));
        let sequence = Sequence::from_notes(first, Epoch(1), 1 << 20);
        assert_eq!(sequence.take(1), None, "nothing was noted yet");
        notes.raise(&sequence).unwrap();
        for _ in 0..5 {
            // More than half of what lies ahead: time for the next note.
            assert!(sequence.take(AHEAD / 2 + 1).is_some());
            assert!(read(&fs::read_to_string(&path).unwrap()).unwrap() >= sequence.next());
            notes.raise(&sequence).unwrap();
        }
        // Without a farewell, as when it is killed.
        drop(notes);
        let (notes, again) = Notes::open(&path).unwrap();
        assert!((sequence.next()..=sequence.next() + AHEAD).contains(&again));
        notes.close(&sequence).unwrap();
        assert_eq!(Notes::open(&path).unwrap().1, sequence.next());
        for wrong in ["", "5\n", &format!("{HEAD}-1\n"), &format!("{HEAD}5"), HEAD] {
            fs::write(&path, wrong).unwrap();
            assert!(Notes::open(&path).is_err(), "{wrong:?}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
