//! The bytes of one file.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;

use crate::files::{Result, SeekTarget};

/// Bytes in a chunk, which is either allocated as a whole or a hole.
pub(super) const CHUNK: u64 = 1 << 20;
/// Longest file, in bytes.
const LEN_MAX: u64 = 1 << 40;

type Chunk = RwLock<Option<Box<[u8]>>>;

#[derive(Default)]
struct Bytes {
    len: u64,
    chunks: Vec<Chunk>,
}

/// A file's bytes. A read within one chunk is served from its memory without a copy.
#[derive(Default)]
pub(super) struct Data(RwLock<Bytes>);

/// The part of a range that lies in the chunk of its first byte: the chunk's index, and the bounds in it.
fn chunk_part(at: u64, len: u64) -> (usize, usize, usize) {
    let start = at % CHUNK;
    ((at / CHUNK) as usize, start as usize, (start + len).min(CHUNK) as usize)
}

fn read_chunk(chunk: &Chunk) -> RwLockReadGuard<'_, Option<Box<[u8]>>> {
    chunk.read().unwrap_or_else(PoisonError::into_inner)
}

fn write_chunk(chunk: &Chunk) -> RwLockWriteGuard<'_, Option<Box<[u8]>>> {
    chunk.write().unwrap_or_else(PoisonError::into_inner)
}

fn zeros() -> Box<[u8]> {
    vec![0; CHUNK as usize].into()
}

impl Data {
    fn bytes(&self) -> RwLockReadGuard<'_, Bytes> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes_mut(&self) -> RwLockWriteGuard<'_, Bytes> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn len(&self) -> u64 {
        self.bytes().len
    }

    /// Bytes of memory allocated.
    pub fn allocated(&self) -> u64 {
        self.bytes().chunks.iter().filter(|chunk| read_chunk(chunk).is_some()).count() as u64 * CHUNK
    }

    pub fn read(&self, at: u64, len: usize, answer: impl FnOnce(Result<&[u8]>)) {
        let bytes = self.bytes();
        let len = (bytes.len.saturating_sub(at)).min(len as u64);
        let (first, start, end) = chunk_part(at, len);
        if len > 0 && (end - start) as u64 == len {
            return match read_chunk(&bytes.chunks[first]).as_deref() {
                Some(chunk) => answer(Ok(&chunk[start..end])),
                None => answer(Ok(&vec![0; len as usize])),
            };
        }
        let mut gathered = Vec::with_capacity(len as usize);
        while (gathered.len() as u64) < len {
            let had = gathered.len() as u64;
            let (index, start, end) = chunk_part(at + had, len - had);
            match read_chunk(&bytes.chunks[index]).as_deref() {
                Some(chunk) => gathered.extend_from_slice(&chunk[start..end]),
                None => gathered.resize(gathered.len() + end - start, 0),
            }
        }
        answer(Ok(&gathered));
    }

    pub fn write(&self, at: u64, data: &[u8]) -> Result<()> {
        let end = at.checked_add(data.len() as u64).filter(|end| *end <= LEN_MAX).ok_or(Errno::FBIG)?;
        let mut bytes = self.bytes();
        if bytes.len < end {
            drop(bytes);
            self.grow(end)?;
            bytes = self.bytes();
        }
        let mut rest = data;
        while !rest.is_empty() {
            let (index, start, end) = chunk_part(at + (data.len() - rest.len()) as u64, rest.len() as u64);
            let (now, later) = rest.split_at(end - start);
            // The file was truncated meanwhile, as if after this write.
            let Some(chunk) = bytes.chunks.get(index) else { return Ok(()) };
            write_chunk(chunk).get_or_insert_with(zeros)[start..end].copy_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    /// Makes the file at least `len` bytes long.
    pub fn grow(&self, len: u64) -> Result<()> {
        if len > LEN_MAX {
            return Err(Errno::FBIG);
        }
        let mut bytes = self.bytes_mut();
        if len > bytes.len {
            bytes.len = len;
            bytes.chunks.resize_with(len.div_ceil(CHUNK) as usize, Chunk::default);
        }
        Ok(())
    }

    pub fn set_len(&self, len: u64) -> Result<()> {
        let old_len = self.len();
        if len < old_len {
            self.zero(len, old_len - len);
        }
        if len > LEN_MAX {
            return Err(Errno::FBIG);
        }
        let mut bytes = self.bytes_mut();
        bytes.len = len;
        bytes.chunks.resize_with(len.div_ceil(CHUNK) as usize, Chunk::default);
        Ok(())
    }

    /// Zeroes a range. Chunks that it covers become holes.
    pub fn zero(&self, at: u64, len: u64) {
        let bytes = self.bytes();
        let end = at.saturating_add(len).min(bytes.len);
        let mut at = at;
        while at < end {
            let (index, start, stop) = chunk_part(at, end - at);
            let mut chunk = write_chunk(&bytes.chunks[index]);
            let is_all = start == 0 && (stop as u64 == CHUNK || end == bytes.len);
            if is_all {
                *chunk = None;
            } else if let Some(chunk) = chunk.as_deref_mut() {
                chunk[start..stop].fill(0);
            }
            at += (stop - start) as u64;
        }
    }

    pub fn seek(&self, at: u64, target: SeekTarget) -> Result<u64> {
        let bytes = self.bytes();
        if at >= bytes.len {
            return Err(Errno::NXIO);
        }
        let first = (at / CHUNK) as usize;
        let wanted = |chunk: &Chunk| read_chunk(chunk).is_some() == (target == SeekTarget::Data);
        match bytes.chunks[first..].iter().position(wanted) {
            Some(behind) => Ok(at.max((first + behind) as u64 * CHUNK)),
            None if target == SeekTarget::Hole => Ok(bytes.len),
            None => Err(Errno::NXIO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(data: &Data, at: u64, len: usize) -> Vec<u8> {
        let mut got = None;
        data.read(at, len, |result| got = Some(result.unwrap().to_vec()));
        got.unwrap()
    }

    #[test]
    fn bytes_come_back_across_chunks_and_what_was_cut_off_is_zeros() {
        let data = Data::default();
        data.write(CHUNK - 2, b"four").unwrap();
        assert_eq!((data.len(), read(&data, CHUNK - 4, 100)), (CHUNK + 2, b"\0\0four".to_vec()));
        data.set_len(CHUNK + 1).unwrap();
        data.set_len(CHUNK + 3).unwrap();
        assert_eq!(read(&data, CHUNK - 1, 100), b"ou\0\0");
        assert_eq!(read(&data, CHUNK + 3, 100), b"");
        assert!(data.write(u64::MAX, b"x").is_err() && data.set_len(LEN_MAX + 1).is_err());
    }

    #[test]
    fn holes_are_found_and_made() {
        let data = Data::default();
        data.write(2 * CHUNK, b"x").unwrap();
        assert_eq!((data.seek(5, SeekTarget::Hole), data.seek(5, SeekTarget::Data)), (Ok(5), Ok(2 * CHUNK)));
        assert_eq!((data.seek(2 * CHUNK, SeekTarget::Hole), data.allocated()), (Ok(2 * CHUNK + 1), CHUNK));
        data.zero(2 * CHUNK, 5);
        assert_eq!(
            (data.seek(0, SeekTarget::Data), data.allocated(), data.len()),
            (Err(Errno::NXIO), 0, 2 * CHUNK + 1)
        );
        assert_eq!(data.seek(3 * CHUNK, SeekTarget::Hole), Err(Errno::NXIO));
    }
}
