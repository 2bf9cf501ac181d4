//! Who may write to files through mappings.
//!
//! A program that writes to a file takes its set-id bits away, unless root runs it. The kernel says so of each `write`, and not of pages that were changed through a mapping: it writes
//! them by whatever handle there is. So the bits go when anybody else than root has the file open for writing. (Linux' own file systems leave them in that case.)

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;

/// Handles by which others than root have files open for writing.
#[derive(Default)]
pub(super) struct Writers(Mutex<HashMap<u64, Vec<u64>>>);

impl Writers {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Vec<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A user has opened a file by a handle.
    pub fn opened(&self, user: u32, ino: u64, handle: u64, flags: i32) {
        let writes = (flags as u32) & (OFlags::WRONLY | OFlags::RDWR).bits() != 0;
        if writes && user != super::ROOT_USER {
            self.lock().entry(ino).or_default().push(handle);
        }
    }

    /// A handle is closed, and no mapping made by it is left.
    pub fn closed(&self, ino: u64, handle: u64) {
        let mut writers = self.lock();
        let Some(handles) = writers.get_mut(&ino) else { return };
        handles.retain(|open| *open != handle);
        if handles.is_empty() {
            writers.remove(&ino);
        }
    }

    /// Whether others than root have it open for writing.
    pub fn has_others(&self, ino: u64) -> bool {
        self.lock().contains_key(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_other_writers_until_the_last_of_them_closes_it() {
        let writers = Writers::default();
        let [read, write, both] = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR].map(|flags| flags.bits() as i32);
        writers.opened(0, 5, 1, both);
        writers.opened(7, 5, 2, read);
        assert!(!writers.has_others(5));
        writers.opened(7, 5, 3, write);
        writers.opened(8, 5, 4, both);
        writers.closed(5, 3);
        assert!(writers.has_others(5) && !writers.has_others(6));
        writers.closed(5, 4);
        writers.closed(5, 4);
        assert!(!writers.has_others(5));
    }
}
