//! Files as memory.

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
        // SAFETY: the system chooses a place that nobody has, and this is its only owner.
        let start = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }.unwrap();
        Self { start: NonNull::new(start.cast()).unwrap(), len }
    }

    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        assert!(at + bytes.len() <= self.len);
        for (index, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: it lies in the mapping. Others may write the file meanwhile, so each byte is read once, and as it is.
            *byte = unsafe { self.start.as_ptr().add(at + index).read_volatile() };
        }
    }

    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: it lies in the mapping, which is written through this alone.
            unsafe { self.start.as_ptr().add(at + index).write_volatile(*byte) };
        }
    }

    pub fn sync(&self) {
        // SAFETY: it is all of the mapping.
        unsafe { msync(self.start.as_ptr().cast(), self.len, MsyncFlags::SYNC) }.unwrap();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody has references to it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
