//! Time for which a processor has been idle.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes read of a count, with its end of line.
const COUNT_LEN: usize = 32;

/// Time for which a processor has been idle, as Linux counts it: `/sys/devices/system/cpu/cpuN/cpuidle/state*/time`.
///
/// From it, a thread that sleeps can tell whether something else competes for its processor: the time that the thread
/// leaves is either idle or taken by others (`fabric::reader::Reader::slept`). The kernel updates the count when the
/// processor begins to work again, so a thread on that processor that has just been woken reads a count that includes
/// its sleep.
#[derive(Debug)]
pub struct IdleTime {
    states: Vec<(PathBuf, File)>,
}

impl IdleTime {
    /// Opens the counts of a processor. The calling thread should be [pinned](crate::pin_current_thread) to it.
    ///
    /// # Errors
    ///
    /// `NotFound` where the kernel counts no idle time for this processor, as on many virtual machines; else the error
    /// of the system.
    pub fn of(cpu: usize) -> io::Result<Self> {
        Self::in_folder(Path::new(&format!("/sys/devices/system/cpu/cpu{cpu}/cpuidle")))
    }

    fn in_folder(folder: &Path) -> io::Result<Self> {
        let of_folder = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
        let mut states = Vec::new();
        for entry in fs::read_dir(folder).map_err(of_folder)? {
            let path = entry.map_err(of_folder)?.path().join("time");
            match File::open(&path) {
                Ok(file) => states.push((path, file)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
            }
        }
        if states.is_empty() {
            let text = format!("{}: the kernel counts no idle time of this processor", folder.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        Ok(Self { states })
    }

    /// Idle time in all, in nanoseconds, with a resolution of a microsecond. Each call costs one system call for each
    /// idle state of the processor, of which there are at most nine.
    ///
    /// # Errors
    ///
    /// The error of reading a count, or `InvalidData` when the count is not a number.
    pub fn ns(&self) -> io::Result<u64> {
        let mut sum_ns: u64 = 0;
        for (path, file) in &self.states {
            let mut bytes = [0; COUNT_LEN];
            let len = file.read_at(&mut bytes, 0)?;
            let us = std::str::from_utf8(&bytes[..len]).ok().and_then(|text| text.trim_end().parse::<u64>().ok());
            let us = us.ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{}: not a number of microseconds", path.display()))
            })?;
            sum_ns = sum_ns.saturating_add(us.saturating_mul(1000));
        }
        Ok(sum_ns)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};
    use std::time::Duration;

    use super::*;

    fn folder() -> PathBuf {
        let path = std::env::temp_dir().join(format!("sinew-idle-time-{:016x}", RandomState::new().hash_one(())));
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn the_times_of_all_idle_states_are_one_sum_and_what_is_no_number_is_refused() {
        let folder = folder();
        assert_eq!(IdleTime::in_folder(&folder).unwrap_err().kind(), io::ErrorKind::NotFound, "no state");
        for (state, time) in [("state0", "5\n"), ("state1", "1200\n")] {
            fs::create_dir(folder.join(state)).unwrap();
            fs::write(folder.join(state).join("time"), time).unwrap();
        }
        fs::create_dir(folder.join("driver")).unwrap();
        let idle = IdleTime::in_folder(&folder).unwrap();
        assert_eq!(idle.ns().unwrap(), 1_205_000);
        fs::write(folder.join("state0/time"), "18446744073709551615\n").unwrap();
        assert_eq!(idle.ns().unwrap(), u64::MAX);
        for text in ["", "-3\n", "five\n", "\u{e9}\n", "1 2\n", &"9".repeat(100)] {
            fs::write(folder.join("state0/time"), text).unwrap();
            assert_eq!(idle.ns().unwrap_err().kind(), io::ErrorKind::InvalidData, "{text}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_processor_that_is_not_there_has_none() {
        assert_eq!(IdleTime::of(usize::MAX).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_real_count_never_goes_back_or_it_is_said_that_there_is_none() {
        match IdleTime::of(crate::available_cpus()[0]) {
            Ok(idle) => {
                let counts: Vec<u64> = (0..5)
                    .map(|_| {
                        std::thread::sleep(Duration::from_millis(2));
                        idle.ns().unwrap()
                    })
                    .collect();
                assert!(counts.is_sorted(), "{counts:?}");
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}"),
        }
    }
}
