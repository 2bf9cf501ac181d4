//! A disk in memory whose owner can crash.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use sinew_fabric::{Generator, SeededGenerator};

use super::{Disk, DiskError};

/// Unit that survives a crash whole or not at all, in bytes.
const SECTOR: usize = 512;

/// Fault of a disk, from one of its writes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process dies: this and every later write fails.
    Crash,
    /// The disk is full, until [`SimDisk::heal`] or [`SimDisk::crash`] is called.
    Full,
}

/// Contents of a file: its bytes as they are now, and as they were last synced, which survive a crash.
#[derive(Clone, Debug, Default)]
struct Contents {
    bytes: Vec<u8>,
    synced: Vec<u8>,
    /// Length up to which `bytes` and `synced` are equal, so that the sync of a long log copies only what is new.
    same_len: usize,
    /// Length to which the file can grow, in bytes, whatever else is written.
    reserved: u64,
}

#[derive(Debug, Default)]
struct State {
    files: Vec<Contents>,
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    /// Fault to come, with the number of the write at which it begins.
    fault: Option<(u64, Fault)>,
    writes: u64,
    has_crashed: bool,
    /// Bytes that all files may have together.
    capacity: u64,
}

/// A disk whose owner can crash. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct SimDisk(Rc<RefCell<State>>);

impl Contents {
    fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
        (self.same_len, self.reserved) = (self.same_len.min(len), 0);
    }

    fn sync(&mut self) {
        self.synced.truncate(self.same_len);
        self.synced.extend(&self.bytes[self.same_len..]);
        self.same_len = self.bytes.len();
    }
}

impl State {
    /// Counts a write that is about to happen. It fails if the process has crashed or crashes at this write.
    fn write(&mut self) -> Result<(), DiskError> {
        if self.has_crashed {
            return Err(DiskError::Failed("the process has crashed".into()));
        }
        self.writes += 1;
        if let Some((at, Fault::Crash)) = self.fault
            && at == self.writes
        {
            self.has_crashed = true;
            return Err(DiskError::Failed("the process crashes".into()));
        }
        Ok(())
    }

    fn file(&mut self, name: &str) -> Result<&mut Contents, DiskError> {
        let index = *self.names.get(name).ok_or_else(|| DiskError::NotFound(name.to_owned()))?;
        Ok(&mut self.files[index])
    }

    fn grow(&mut self, name: &str, to: u64) -> Result<(), DiskError> {
        let taken: u64 =
            self.names.values().map(|file| self.files[*file].reserved.max(self.files[*file].bytes.len() as u64)).sum();
        let room = self.capacity;
        let is_full = matches!(self.fault, Some((at, Fault::Full)) if self.writes >= at);
        let file = self.file(name)?;
        let more = to.saturating_sub(file.reserved.max(file.bytes.len() as u64));
        if more > 0 && (is_full || taken + more > room) {
            return Err(DiskError::Full);
        }
        file.reserved = file.reserved.max(to);
        Ok(())
    }
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> Self {
        let disk = Self::default();
        disk.0.borrow_mut().capacity = u64::MAX >> 1;
        disk
    }

    /// Sets the fault that begins at the `at`th write from now on, counted from 1. It replaces any fault set before.
    pub fn fail_at(&self, at: u64, fault: Fault) {
        let mut state = self.0.borrow_mut();
        state.fault = Some((state.writes + at, fault));
    }

    /// Removes the fault that was set.
    pub fn heal(&self) {
        self.0.borrow_mut().fault = None;
    }

    /// Writes so far.
    pub fn writes(&self) -> u64 {
        self.0.borrow().writes
    }

    /// Whether the process has crashed.
    pub fn has_crashed(&self) -> bool {
        self.0.borrow().has_crashed
    }

    /// Changes a byte of a file silently, also in what survives a crash.
    pub fn corrupt(&self, name: &str, at: usize) {
        let mut state = self.0.borrow_mut();
        if let Ok(file) = state.file(name)
            && let Some(byte) = file.bytes.get_mut(at)
        {
            *byte ^= 0x55;
            (file.synced, file.same_len) = (file.bytes.clone(), file.bytes.len());
        }
    }

    /// Crashes the disk and lets its owner start again. The seed decides for each sector that was not synced, and for
    /// each name, whether the old or the new one is there.
    pub fn crash(&self, seed: u64) {
        let mut state = self.0.borrow_mut();
        let mut random = SeededGenerator::new(seed);
        let mut coin = move || random.next_u64() >> 63 == 1;
        let State { files, names, synced_names, .. } = &mut *state;
        let all: Vec<String> = names.keys().chain(synced_names.keys()).cloned().collect();
        for name in all {
            let kept = if coin() { names.get(&name).copied() } else { synced_names.get(&name).copied() };
            match kept {
                Some(file) => synced_names.insert(name, file),
                None => synced_names.remove(&name),
            };
        }
        *names = synced_names.clone();
        for file in files.iter_mut() {
            let len = if coin() { file.bytes.len() } else { file.synced.len() };
            let mut kept = vec![0; len];
            for at in (0..len).step_by(SECTOR) {
                let end = (at + SECTOR).min(len);
                let source = if coin() { &file.bytes } else { &file.synced };
                let part = &source[at.min(source.len())..end.min(source.len())];
                kept[at..at + part.len()].copy_from_slice(part);
            }
            *file = Contents { bytes: kept.clone(), same_len: len, synced: kept, reserved: 0 };
        }
        (state.has_crashed, state.fault) = (false, None);
    }
}

impl Disk for SimDisk {
    fn names(&mut self) -> Result<Vec<String>, DiskError> {
        Ok(self.0.borrow().names.keys().cloned().collect())
    }

    fn read(&mut self, name: &str) -> Result<Vec<u8>, DiskError> {
        self.0.borrow_mut().file(name).map(|file| file.bytes.clone())
    }

    fn create(&mut self, name: &str) -> Result<(), DiskError> {
        let mut state = self.0.borrow_mut();
        state.write()?;
        state.files.push(Contents::default());
        let file = state.files.len() - 1;
        state.names.insert(name.to_owned(), file);
        Ok(())
    }

    fn reserve(&mut self, name: &str, more: u64) -> Result<(), DiskError> {
        let mut state = self.0.borrow_mut();
        state.write()?;
        let len = state.file(name)?.bytes.len() as u64;
        state.grow(name, len + more)
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
        let mut state = self.0.borrow_mut();
        let len = state.file(name)?.bytes.len() + bytes.len();
        // A process that dies during a write leaves a part of it.
        let written = match state.write() {
            Ok(()) => bytes,
            Err(error) => {
                let part = bytes.len() / 2;
                state.file(name)?.append(&bytes[..part]);
                return Err(error);
            }
        };
        state.grow(name, len as u64)?;
        state.file(name)?.append(written);
        Ok(())
    }

    fn truncate(&mut self, name: &str, len: u64) -> Result<(), DiskError> {
        let mut state = self.0.borrow_mut();
        state.write()?;
        state.file(name)?.truncate(len as usize);
        Ok(())
    }

    fn sync(&mut self, name: &str) -> Result<(), DiskError> {
        let mut state = self.0.borrow_mut();
        state.write()?;
        state.file(name)?.sync();
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        let mut state = self.0.borrow_mut();
        state.write()?;
        let file = state.names.remove(from).ok_or_else(|| DiskError::NotFound(from.to_owned()))?;
        state.names.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        let mut state = self.0.borrow_mut();
        state.write()?;
        state.names.remove(name).map(|_| ()).ok_or_else(|| DiskError::NotFound(name.to_owned()))
    }

    fn sync_names(&mut self) -> Result<(), DiskError> {
        let mut state = self.0.borrow_mut();
        state.write()?;
        state.synced_names = state.names.clone();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_what_the_last_sync_saw() {
        let mut random = SeededGenerator::new(3);
        let (mut file, mut synced) = (Contents::default(), Vec::new());
        for step in 0..1000 {
            let word = random.next_u64();
            let len = (word >> 8) as usize % 300;
            match word % 4 {
                0 | 1 => file.append(&vec![step as u8; len]),
                2 => file.truncate(file.bytes.len().saturating_sub(len)),
                _ => {
                    file.sync();
                    synced.clone_from(&file.bytes);
                }
            }
            assert_eq!(file.synced, synced, "step {step}");
        }
    }

    #[test]
    fn all_facts_of_disks_hold() {
        crate::disk::facts::all(SimDisk::new);
    }

    #[test]
    fn what_was_made_to_last_does_and_of_the_rest_any_part_may_be_there() {
        let (mut kept_some, mut lost_some, mut kept_name, mut lost_name) = (false, false, false, false);
        for seed in 0..64 {
            let mut disk = SimDisk::new();
            disk.create("a").unwrap();
            disk.append("a", &[1; 700]).unwrap();
            disk.sync("a").unwrap();
            disk.sync_names().unwrap();
            disk.append("a", &[2; 2000]).unwrap();
            disk.create("b").unwrap();
            disk.crash(seed);
            let bytes = disk.read("a").unwrap();
            assert_eq!(bytes[..700], [1; 700]);
            kept_some |= bytes[700..].contains(&2);
            lost_some |= bytes.len() == 700 || bytes[700..].contains(&0);
            let has_b = disk.read("b").is_ok();
            kept_name |= has_b;
            lost_name |= !has_b;
        }
        assert!(kept_some && lost_some && kept_name && lost_name);
    }

    #[test]
    fn a_full_disk_takes_what_was_reserved_and_no_more() {
        let mut disk = SimDisk::new();
        disk.create("a").unwrap();
        disk.reserve("a", 100).unwrap();
        disk.fail_at(1, Fault::Full);
        disk.append("a", &[1; 100]).unwrap();
        assert_eq!(disk.append("a", &[1]), Err(DiskError::Full));
        assert_eq!(disk.reserve("a", 1), Err(DiskError::Full));
        disk.heal();
        disk.append("a", &[1]).unwrap();
        assert_eq!(disk.read("a").unwrap().len(), 101);
    }
}
