//! Expected content of pages.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use super::pages::{Known, PAGE, version_of};

/// The pages as they should be. Only one thread writes at a time.
pub struct Shadow {
    pages: Vec<Known>,
    version: u64,
    acked: u64,
    error: Option<String>,
    history: VecDeque<String>,
}

/// Uses remembered, at most.
const HISTORY_LEN: usize = 8;

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

impl Shadow {
    /// Starts with pages that were never written.
    pub fn new(pages: u64) -> Self {
        Self {
            pages: vec![Known::default(); pages as usize],
            version: 0,
            acked: 0,
            error: None,
            history: VecDeque::new(),
        }
    }

    /// Notes that a write begins. Returns the version to write.
    pub fn begin_write(&mut self, from: u64, to: u64) -> u64 {
        self.version += 1;
        for page in &mut self.pages[from as usize..to as usize] {
            page.begun = self.version;
        }
        self.version
    }

    /// Notes that a write has finished. A write in flight when another server took over may have taken effect before
    /// that, and be reported late; then the new server has it.
    pub fn ack_write(&mut self, from: u64, to: u64, version: u64) {
        self.acked += 1;
        for page in &mut self.pages[from as usize..to as usize] {
            page.acked = page.acked.max(version);
        }
    }

    /// Returns the versions that a read beginning now must at least return.
    pub fn acked_versions(&self, from: u64, to: u64) -> Vec<u64> {
        self.pages[from as usize..to as usize].iter().map(|page| page.acked).collect()
    }

    /// Checks what was read. A read in flight when another server took over, and reported late, must be at least as new
    /// as `floor`: what had been acknowledged when it began.
    pub fn record_read(&mut self, from: u64, bytes: &[u8], floor: Option<&Vec<u64>>) {
        for (index, bytes) in bytes.chunks(PAGE).enumerate() {
            let number = from + index as u64;
            let version = version_of(number, bytes);
            let known = &mut self.pages[number as usize];
            let least = floor.map_or(known.acked, |floor| floor[index]);
            match version.filter(|version| (least..=known.begun).contains(version)) {
                // A version that was seen once stays.
                Some(version) => known.acked = known.acked.max(version),
                None => {
                    let what = format!("page {number} is {version:?}: {known:?}");
                    self.record_error(what);
                }
            }
        }
    }

    /// Notes a use of the pages, to be told with an error.
    pub fn note(&mut self, what: String) {
        self.history.truncate(HISTORY_LEN - 1);
        self.history.push_front(what);
    }

    /// Notes that something is wrong.
    pub fn record_error(&mut self, error: String) {
        let history: String = self.history.iter().map(|what| format!("\n  before: {what}")).collect();
        self.error.get_or_insert_with(|| error + &history);
    }

    /// Whether something was wrong.
    pub fn is_wrong(&self) -> bool {
        self.error.is_some()
    }

    /// Adds to what was wrong.
    pub fn explain_error(&mut self, more: &str) {
        self.error.iter_mut().for_each(|error| error.push_str(more));
    }

    /// Takes the first thing that was wrong, if any.
    pub fn take_error(&mut self) -> Option<String> {
        self.error.take()
    }

    /// Writes that were acknowledged.
    pub fn acked(&self) -> u64 {
        self.acked
    }
}
