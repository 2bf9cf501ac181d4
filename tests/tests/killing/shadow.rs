//! What pages have to be.

use std::sync::{Mutex, MutexGuard};

use super::pages::{Known, PAGE, version_of};

/// The pages as they should be, by whoever writes, one at a time.
pub struct Shadow {
    pages: Vec<Known>,
    version: u64,
    acked: u64,
    wrong: Option<String>,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

impl Shadow {
    /// Of pages that were never written.
    pub fn new(pages: u64) -> Self {
        Self { pages: vec![Known::default(); pages as usize], version: 0, acked: 0, wrong: None }
    }

    /// A write begins: the version that it writes.
    pub fn begin(&mut self, from: u64, to: u64) -> u64 {
        self.version += 1;
        for page in &mut self.pages[from as usize..to as usize] {
            page.begun = self.version;
        }
        self.version
    }

    /// A write is over. One that was on its way when another server took over may have been made before, and is told late: then it is there for that server.
    pub fn done(&mut self, from: u64, to: u64, version: u64) {
        self.acked += 1;
        for page in &mut self.pages[from as usize..to as usize] {
            page.acked = page.acked.max(version);
        }
    }

    /// What has to be there for a read that begins now.
    pub fn acked_of(&self, from: u64, to: u64) -> Vec<u64> {
        self.pages[from as usize..to as usize].iter().map(|page| page.acked).collect()
    }

    /// What was read. A read that was on its way when another server took over, and is told late, is of no earlier than what had been acknowledged when it began.
    pub fn saw(&mut self, from: u64, bytes: &[u8], floor: Option<&Vec<u64>>) {
        for (index, bytes) in bytes.chunks(PAGE).enumerate() {
            let number = from + index as u64;
            let version = version_of(number, bytes);
            let known = &mut self.pages[number as usize];
            let least = floor.map_or(known.acked, |floor| floor[index]);
            match version.filter(|version| (least..=known.begun).contains(version)) {
                // What was seen once stays.
                Some(version) => known.acked = known.acked.max(version),
                None => {
                    let what = format!("page {number} is {version:?}: {known:?}");
                    self.note(what);
                }
            }
        }
    }

    /// Something is wrong.
    pub fn note(&mut self, wrong: String) {
        self.wrong.get_or_insert(wrong);
    }

    /// What is wrong, once.
    pub fn take_wrong(&mut self) -> Option<String> {
        self.wrong.take()
    }

    /// Writes that were acknowledged.
    pub fn acked(&self) -> u64 {
        self.acked
    }
}
