//! Files (rdmabox VI-B, Figure 12): one file is written and read in records of several sizes, one after the other, past
//! the kernel's cache. A mount of ours is measured beside this host's own memory (tmpfs), the same memory behind a FUSE
//! file system that passes everything on (bindfs), and nbdkit's memory as a file of nbdfuse.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};

use super::Setting;
use super::contest::{Contest, Peer, Runner, Side, Unit};
use super::mounts::{Mounted, has_fuse, require};

/// Bytes of a record: in the paper 128 KB is the most that one FUSE request writes.
const RECORDS: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 1 << 20];
/// Bytes of the file; fewer for short records, of which there are at most [`RECORDS_MAX`].
const LEN: usize = 256 << 20;
const RECORDS_MAX: usize = 16 << 10;
const PAGE: usize = 4096;
/// Mount point of a file system in memory, on every Linux.
const TMPFS: &str = "/dev/shm";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Ours,
    Memory,
    PassThrough,
    Nbdkit,
}

/// Peers, with checks that they are here.
pub const PEERS: [Peer; 3] = [
    ("tmpfs", || if Path::new(TMPFS).is_dir() { Ok(()) } else { Err(format!("there is no {TMPFS}")) }),
    ("bindfs", || has_fuse().and_then(|()| require(&["bindfs"]))),
    ("nbdfuse", || has_fuse().and_then(|()| require(&["nbdkit", "nbdfuse"]))),
];

/// Contests between file systems.
pub fn contests() -> Vec<Contest> {
    let contest = |record: usize, is_read: bool| {
        let side = |system: &'static str, name: &str, place: Place| Side {
            system,
            name: name.into(),
            counts: 1.0,
            measure: Runner::new(move |_: &Setting| place.measure(record, is_read)),
        };
        Contest {
            title: format!("files, {} KB {}", record >> 10, if is_read { "reads" } else { "writes" }),
            unit: Unit::GigabitPerSecond,
            ours: side("sinew", "sinew", Place::Ours),
            peers: vec![
                side("tmpfs", "tmpfs of this host", Place::Memory),
                side("bindfs", "bindfs on tmpfs", Place::PassThrough),
                side("nbdfuse", "nbdkit memory, by nbdfuse", Place::Nbdkit),
            ],
        }
    };
    RECORDS.iter().flat_map(|record| [false, true].map(|is_read| contest(*record, is_read))).collect()
}

impl Place {
    fn measure(self, record: usize, is_read: bool) -> anyhow::Result<f64> {
        let len = LEN.min(record * RECORDS_MAX);
        let below = Path::new(TMPFS).join(format!("sinew-peers-{}", std::process::id()));
        let mounted = match self {
            Self::Ours => Some(Mounted::ours("files", 2 * len as u64, &[])?),
            Self::Nbdkit => Some(Mounted::nbdkit("files-nbdkit", len as u64)?),
            Self::Memory => None,
            Self::PassThrough => {
                std::fs::create_dir_all(&below).with_context(|| format!("making {}", below.display()))?;
                Some(Mounted::bindfs("files-bindfs", &below)?)
            }
        };
        let file = match (&mounted, self) {
            (Some(mounted), Self::Nbdkit) => mounted.point.join(Mounted::NBD_FILE),
            (Some(mounted), _) => mounted.point.join("file"),
            (None, _) => below.with_extension("file"),
        };
        let figure = measure(file.clone(), record, len, is_read);
        if self != Self::Nbdkit {
            let _ = std::fs::remove_file(file);
        }
        drop(mounted);
        if self == Self::PassThrough {
            let _ = std::fs::remove_dir(&below);
        }
        figure
    }
}

/// Returns gigabits per second.
fn measure(path: PathBuf, record: usize, len: usize, is_read: bool) -> anyhow::Result<f64> {
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(direct);
    let file = options.open(&path).with_context(|| format!("opening {}", path.display()))?;
    let mut memory = vec![1; record + PAGE];
    let start = memory.as_ptr().align_offset(PAGE);
    let buffer = &mut memory[start..start + record];
    // The first write also allocates memory, which is not to be compared.
    write(&file, buffer, len)?;
    let took_s = if is_read { read(&file, buffer, len)? } else { write(&file, buffer, len)? };
    Ok(len as f64 * 8.0 / took_s / 1e9)
}

/// Writes the file in records that begin with their offset; returns the seconds taken.
fn write(file: &File, buffer: &mut [u8], len: usize) -> anyhow::Result<f64> {
    let began = Instant::now();
    for at in (0..len as u64).step_by(buffer.len()) {
        buffer[..8].copy_from_slice(&at.to_le_bytes());
        file.write_all_at(buffer, at)?;
    }
    file.sync_all()?;
    Ok(began.elapsed().as_secs_f64())
}

fn read(file: &File, buffer: &mut [u8], len: usize) -> anyhow::Result<f64> {
    let began = Instant::now();
    for at in (0..len as u64).step_by(buffer.len()) {
        file.read_exact_at(buffer, at)?;
        ensure!(buffer[..8] == at.to_le_bytes(), "the bytes read at {at} are not those written");
    }
    Ok(began.elapsed().as_secs_f64())
}
