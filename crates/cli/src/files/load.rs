//! Reads and writes of one large file, bypassing the kernel's cache.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use anyhow::ensure;

/// A kind of load.
pub struct Kind {
    pub name: &'static str,
    pub text: &'static str,
    pub unit: &'static str,
    /// Whether the figure is a time, of which less is better.
    pub is_time: bool,
    act: fn(&mut Load) -> anyhow::Result<f64>,
}

/// All kinds, in the order in which they run: a file is written before it is read.
pub const KINDS: [Kind; 3] = [
    Kind { name: "write-1m", text: "write, 1 MB at a time", unit: "GB/s", is_time: false, act: Load::write },
    Kind { name: "read-1m", text: "read, 1 MB at a time", unit: "GB/s", is_time: false, act: Load::read },
    Kind { name: "read-4k", text: "read, 4 KB at random", unit: "us", is_time: true, act: Load::read_randomly },
];

const MB: usize = 1 << 20;
const PAGE: usize = 4096;

/// A file, and the memory that it is read into.
pub struct Load {
    file: File,
    memory: Vec<u8>,
    start: usize,
    size: usize,
    reads: u32,
}

impl Load {
    pub fn new(point: &Path, size: usize, reads: u32) -> anyhow::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).custom_flags(sinew_mount::O_DIRECT);
        let file = options.open(point.join("file"))?;
        let memory = vec![1; MB + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        Ok(Self { file, memory, start, size: size / MB * MB, reads })
    }

    pub fn run(&mut self, kind: &Kind) -> anyhow::Result<f64> {
        (kind.act)(self)
    }

    fn gb_per_s(&self, since: Instant) -> f64 {
        self.size as f64 / since.elapsed().as_nanos() as f64
    }

    /// Writes the file, with each block's offset in its first bytes. Returns GB/s.
    fn write(&mut self) -> anyhow::Result<f64> {
        let since = Instant::now();
        for at in (0..self.size).step_by(MB) {
            let block = &mut self.memory[self.start..self.start + MB];
            block[..8].copy_from_slice(&(at as u64).to_le_bytes());
            self.file.write_all_at(block, at as u64)?;
        }
        self.file.sync_all()?;
        Ok(self.gb_per_s(since))
    }

    fn read(&mut self) -> anyhow::Result<f64> {
        let since = Instant::now();
        for at in (0..self.size).step_by(MB) {
            let block = &mut self.memory[self.start..self.start + MB];
            self.file.read_exact_at(block, at as u64)?;
            ensure!(block[..8] == (at as u64).to_le_bytes(), "the bytes read at {at} are not those written");
        }
        Ok(self.gb_per_s(since))
    }

    /// The mean time of a read, in microseconds.
    fn read_randomly(&mut self) -> anyhow::Result<f64> {
        let pages = (self.size / PAGE) as u64;
        let mut word = 1u64;
        let since = Instant::now();
        for _ in 0..self.reads {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let offset = (word >> 33) % pages * PAGE as u64;
            self.file.read_exact_at(&mut self.memory[self.start..self.start + PAGE], offset)?;
        }
        Ok(since.elapsed().as_nanos() as f64 / f64::from(self.reads) / 1000.0)
    }
}
