//! Files that users write and name in options.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use anyhow::{Context, ensure};
use sinew_sim::FileError;

use crate::Usage;

/// Largest file, in bytes: a hundred times what the largest topology that can be simulated needs.
const FILE_LEN_MAX: u64 = 16 << 20;

/// Reads and parses a file. Whatever is wrong with it is reported as wrong usage.
pub fn read<T>(path: &Path, parse: impl FnOnce(&str) -> anyhow::Result<T>) -> anyhow::Result<T> {
    read_up_to(path, FILE_LEN_MAX, parse)
}

/// Like [`read`], for files that are usually large.
pub fn read_up_to<T>(path: &Path, len_max: u64, parse: impl FnOnce(&str) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let bytes = bytes_up_to(path, len_max).with_context(|| format!("reading {}", path.display()));
    let parsed = bytes.and_then(|bytes| {
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            FileError::new(line, "this is not UTF-8 text")
        });
        text.map_err(Into::into).and_then(parse).with_context(|| path.display().to_string())
    });
    parsed.map_err(Usage::of)
}

/// Reads a regular file that is not too large. (Reading a FIFO would wait, and some devices never end.)
pub fn bytes_of(path: &Path) -> anyhow::Result<Vec<u8>> {
    bytes_up_to(path, FILE_LEN_MAX)
}

fn bytes_up_to(path: &Path, len_max: u64) -> anyhow::Result<Vec<u8>> {
    ensure!(fs::metadata(path)?.is_file(), "not a regular file");
    let mut bytes = Vec::new();
    File::open(path)?.take(len_max + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= len_max, "larger than {} MB", len_max >> 20);
    Ok(bytes)
}
