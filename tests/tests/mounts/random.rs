//! Random reads, writes, truncations, holes and mappings of one file, compared with bytes in memory.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags};

use super::mapping::Mapping;

const PAGE: usize = 4096;

/// Random words from a seed (SplitMix64).
pub struct Words(pub u64);

impl Words {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ word >> 31
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

fn open(path: &Path, is_direct: bool) -> File {
    let mut options = OpenOptions::new();
    let flags = if is_direct { OFlags::DIRECT } else { OFlags::empty() };
    options.read(true).write(true).create(true).truncate(false).custom_flags(flags.bits() as i32);
    options.open(path).unwrap()
}

/// Makes this many steps on a file of up to `len_max` bytes in a directory.
pub fn run(directory: &Path, seed: u64, steps: usize, len_max: usize) {
    let path = directory.join(format!("random-{seed}"));
    let mut words = Words(seed);
    let mut shadow: Vec<u8> = Vec::new();
    let (mut file, mut direct) = (open(&path, false), open(&path, true));
    let mut aligned = vec![0u8; len_max + 2 * PAGE];
    let start = aligned.as_ptr().align_offset(PAGE);
    for step in 0..steps {
        let at = words.below(len_max);
        let bound = if words.below(4) == 0 { len_max } else { 3 * PAGE };
        let len = 1 + words.below(bound);
        let len = len.min(len_max - at);
        let byte = words.next() as u8;
        let what = words.below(11);
        let place = || format!("seed {seed}, step {step}: {what} at {at}, {len} bytes, of {}", shadow.len());
        let place = place();
        match what {
            0..=2 => {
                let bytes: Vec<u8> = (0..len).map(|index| byte.wrapping_add((index / 7) as u8)).collect();
                file.write_all_at(&bytes, at as u64).expect(&place);
                shadow.resize(shadow.len().max(at + len), 0);
                shadow[at..at + len].copy_from_slice(&bytes);
            }
            3 | 4 => {
                let mut bytes = vec![0; len];
                let count = file.read_at(&mut bytes, at as u64).expect(&place);
                let expected = &shadow[at.min(shadow.len())..(at + len).min(shadow.len())];
                assert!(count == expected.len() && bytes[..count] == *expected, "{place}: read {count}");
            }
            5 => {
                file.set_len(at as u64).expect(&place);
                shadow.resize(at, 0);
            }
            6 => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, flags, at as u64, len as u64).expect(&place);
                let end = (at + len).min(shadow.len());
                if at < end {
                    shadow[at..end].fill(0);
                }
            }
            7 => {
                let (first, count) = (at / PAGE * PAGE, len.div_ceil(PAGE) * PAGE);
                let bytes = &mut aligned[start..start + count];
                let read = direct.read_at(bytes, first as u64).expect(&place);
                let expected = &shadow[first.min(shadow.len())..(first + count).min(shadow.len())];
                assert!(bytes[..read] == *expected, "{place}: {read} bytes read past the cache");
            }
            8 => {
                let (first, count) = (at / PAGE * PAGE, len / PAGE * PAGE);
                let bytes = &mut aligned[start..start + count];
                bytes.fill(byte);
                direct.write_all_at(bytes, first as u64).expect(&place);
                if count > 0 {
                    shadow.resize(shadow.len().max(first + count), 0);
                    shadow[first..first + count].fill(byte);
                }
            }
            9 if !shadow.is_empty() => {
                let mut mapping = Mapping::new(&file, shadow.len());
                let (from, to) = (at.min(shadow.len()), (at + len).min(shadow.len()));
                let mut bytes = vec![0; to - from];
                mapping.read(from, &mut bytes);
                assert!(bytes == shadow[from..to], "{place}: mapped");
                bytes.fill(byte);
                mapping.write(from, &bytes);
                shadow[from..to].fill(byte);
                if byte & 1 == 0 {
                    mapping.sync();
                }
            }
            _ if byte & 1 == 0 => file.sync_data().expect(&place),
            _ => (file, direct) = (open(&path, false), open(&path, true)),
        }
    }
    drop((file, direct));
    assert!(std::fs::read(&path).unwrap() == shadow, "seed {seed}: at the end");
}
