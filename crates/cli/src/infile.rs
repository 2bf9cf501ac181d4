//! Files that people have written, and that options name.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use anyhow::{Context, ensure};
use sinew_sim::FileError;

use crate::Usage;

/// Bytes of a file, at most: a hundred times what the largest topology that can be simulated needs.
const FILE_LEN_MAX: u64 = 16 << 20;

/// Reads a file. What is wrong with it is wrong usage.
pub fn read<T>(path: &Path, parse: impl FnOnce(&str) -> anyhow::Result<T>) -> anyhow::Result<T> {
    read_up_to(path, FILE_LEN_MAX, parse)
}

/// As [`read`], of files of which large ones are usual.
pub fn read_up_to<T>(path: &Path, len_max: u64, parse: impl FnOnce(&str) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let bytes = bytes_up_to(path, len_max).with_context(|| format!("reading {}", path.display()));
    let parsed = bytes.and_then(|bytes| {
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            FileError::new(line, "this is no text in UTF-8")
        });
        text.map_err(Into::into).and_then(parse).with_context(|| path.display().to_string())
    });
    parsed.map_err(Usage::of)
}

/// What a regular file holds, which is not too large. (A FIFO would be waited for, and some devices never end.)
pub fn bytes_of(path: &Path) -> anyhow::Result<Vec<u8>> {
    bytes_up_to(path, FILE_LEN_MAX)
}

fn bytes_up_to(path: &Path, len_max: u64) -> anyhow::Result<Vec<u8>> {
    ensure!(fs::metadata(path)?.is_file(), "it is no regular file");
    let mut bytes = Vec::new();
    File::open(path)?.take(len_max + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= len_max, "it has more than {} MB", len_max >> 20);
    Ok(bytes)
}
