//! Whether a file system is as it should be, while no service has it: what is kept, and every page of every copy.
//!
//! - [`read`]: what a disk keeps, which it leaves as it is.
//! - [`names`]: what is wrong with that by itself.
//! - [`PageCheck`]: reads all that files have, at all donors, and compares it with its checksums. It takes the donors from whatever service has them, under the epoch that the next service has.

mod pages;

use std::collections::BTreeMap;

use crate::disk::Disk;
use crate::journal::{History, Journal};
use crate::kept::Kept;
use crate::protocol::{Ino, Pages};
use crate::service::OpenError;
use crate::tree::{Body, Wrong};
pub use pages::{PageCheck, Progress};

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Finding {
    /// With names.
    #[error(transparent)]
    Names(#[from] Wrong),
    /// Two files have a page, or one has it twice.
    #[error("inode {} has page {page} of segment {segment}, which inode {} has, too", ino.0, other.0)]
    Shared {
        /// One.
        ino: Ino,
        /// The other.
        other: Ino,
        /// Which segment.
        segment: u32,
        /// Which page of it.
        page: u32,
    },
    /// A file has pages of a segment that is not there, or has fewer.
    #[error("inode {} has pages {}+{} of segment {}, which has none such", ino.0, pages.first, pages.count, pages.segment)]
    NoPages {
        /// Which file.
        ino: Ino,
        /// Which pages.
        pages: Pages,
    },
    /// Fewer donors have a segment than should.
    #[error("segment {segment} has {whole} whole copies of {copies}")]
    Copies {
        /// Which.
        segment: u32,
        /// Copies with all pages.
        whole: usize,
        /// Copies that there should be.
        copies: usize,
    },
    /// A donor does not answer, or another run of it does.
    #[error("donor {donor} has none of its copies: {why}")]
    Donor {
        /// Its address.
        donor: String,
        /// What became of it.
        why: String,
    },
    /// A page is not what it should be.
    #[error("inode {}, page {at} of the file: the copy at {donor} is wrong", ino.0)]
    Page {
        /// Which file.
        ino: Ino,
        /// Which page of it.
        at: u64,
        /// Where.
        donor: String,
    },
    /// No copy of a page is right, or could be read.
    #[error("inode {}, page {at} of the file: no copy of it is right", ino.0)]
    Lost {
        /// Which file.
        ino: Ino,
        /// Which page of it.
        at: u64,
    },
}

/// What a disk keeps. Nothing is changed there. `None` when there is no file system.
///
/// # Errors
///
/// [`OpenError`].
pub fn read(disk: impl Disk) -> Result<Option<Kept>, OpenError> {
    let History { snapshot, records } = Journal::read(disk)?;
    let Some(snapshot) = snapshot else { return Ok(None) };
    let mut kept = Kept::read(&snapshot).ok_or_else(|| OpenError::Unknown("the snapshot".into()))?;
    for (index, record) in records.iter().enumerate() {
        let why = |error| OpenError::Unknown(format!("record {} behind the snapshot: {error}", index + 1));
        kept.replay(record).map_err(why)?;
    }
    Ok(Some(kept))
}

/// What is wrong with what is kept, by itself, when there should be so many copies.
pub fn names(kept: &Kept, copies: usize) -> Vec<Finding> {
    let mut findings: Vec<Finding> = kept.tree.check().into_iter().map(Finding::from).collect();
    let mut owners: BTreeMap<(u32, u32), Ino> = BTreeMap::new();
    for (ino, inode) in kept.tree.inodes() {
        let Body::File(map) = inode.body() else { continue };
        for run in map.all() {
            let pages = run.pages;
            let end = pages.first.checked_add(pages.count);
            let has_them =
                kept.segments.get(&pages.segment).is_some_and(|segment| end.is_some_and(|end| end <= segment.pages));
            if !has_them {
                findings.push(Finding::NoPages { ino, pages });
                continue;
            }
            for page in pages.first..pages.first + pages.count {
                if let Some(other) = owners.insert((pages.segment, page), ino) {
                    findings.push(Finding::Shared { ino, other, segment: pages.segment, page });
                }
            }
        }
    }
    for (segment, known) in &kept.segments {
        let whole = known.members.iter().filter(|member| member.is_whole).count();
        if whole < copies {
            findings.push(Finding::Copies { segment: *segment, whole, copies });
        }
    }
    findings
}

#[cfg(test)]
mod tests;
