//! Users who may write to files through mappings.
//!
//! A program that writes to a file clears the file's set-id bits, unless root runs it. The kernel flags each such
//! `write`, but not pages changed through a mapping: it writes those through any open handle. So mapped writes clear
//! the bits while any user other than root has the file open for writing. (Linux's own file systems keep the bits in
//! that case.)

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;

/// Handles of files that users other than root have open for writing, by inode.
#[derive(Default)]
pub(super) struct Writers(Mutex<HashMap<u64, Vec<u64>>>);

impl Writers {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Vec<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a user opened a file.
    pub fn opened(&self, user: u32, ino: u64, handle: u64, flags: i32) {
        let writes = (flags as u32) & (OFlags::WRONLY | OFlags::RDWR).bits() != 0;
        if writes && user != super::ROOT_USER {
            self.lock().entry(ino).or_default().push(handle);
        }
    }

    /// Records that a handle was closed, and with it every mapping made through it.
    pub fn closed(&self, ino: u64, handle: u64) {
        let mut writers = self.lock();
        let Some(handles) = writers.get_mut(&ino) else { return };
        handles.retain(|open| *open != handle);
        if handles.is_empty() {
            writers.remove(&ino);
        }
    }

    /// Whether users other than root have the file open for writing.
    pub fn has_other_writers(&self, ino: u64) -> bool {
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
        assert!(!writers.has_other_writers(5));
        writers.opened(7, 5, 3, write);
        writers.opened(8, 5, 4, both);
        writers.closed(5, 3);
        assert!(writers.has_other_writers(5) && !writers.has_other_writers(6));
        writers.closed(5, 4);
        writers.closed(5, 4);
        assert!(!writers.has_other_writers(5));
    }
}
