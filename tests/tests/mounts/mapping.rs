//! Files mapped into memory.

use std::fs::File;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// A shared mapping of a file, from its beginning.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    pub fn new(file: &File, len: usize) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses addresses that nobody uses, and this mapping is their only owner.
        let start = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }.unwrap();
        Self { start: NonNull::new(start.cast()).unwrap(), len }
    }

    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        assert!(at + bytes.len() <= self.len);
        for (index, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: the byte lies in the mapping. Others may write the file meanwhile, so it is read once, and
            // volatile.
            *byte = unsafe { self.start.as_ptr().add(at + index).read_volatile() };
        }
    }

    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: the byte lies in the mapping, which this process writes through `&mut self` alone.
            unsafe { self.start.as_ptr().add(at + index).write_volatile(*byte) };
        }
    }

    pub fn sync(&self) {
        // SAFETY: the range is all of the mapping.
        unsafe { msync(self.start.as_ptr().cast(), self.len, MsyncFlags::SYNC) }.unwrap();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody has references to the mapping.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
