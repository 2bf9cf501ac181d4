//! Checks of a file system while no service runs: its stored names, and every page of every copy.
//!
//! - [`read`]: reads what a disk holds, without changing it.
//! - [`names`]: finds inconsistencies within what was read.
//! - [`PageCheck`]: reads all pages of files from all donors, and compares them with their checksums. It fences the
//!   donors under the epoch that the next service takes, which cuts off a service that still has them.

mod pages;

use std::collections::BTreeMap;

use crate::disk::Disk;
use crate::durable_state::DurableState;
use crate::journal::{History, Journal};
use crate::protocol::{Ino, Pages};
use crate::service::OpenError;
use crate::tree::{Body, Inconsistency};
pub use pages::{PageCheck, Progress};

fn donors(count: usize) -> String {
    match count {
        0 => "no donor".to_owned(),
        1 => "1 donor".to_owned(),
        _ => format!("{count} donors"),
    }
}

/// A fault that a check found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Finding {
    /// A fault in the tree of names.
    #[error(transparent)]
    Names(#[from] Inconsistency),
    /// A page belongs to two files, or twice to one.
    #[error("inode {} has page {page} of segment {segment}, and so has inode {}", ino.0, other.0)]
    Shared {
        /// The file found later.
        ino: Ino,
        /// The file that had the page first.
        other: Ino,
        /// Number of the segment.
        segment: u32,
        /// Index of the page in it.
        page: u32,
    },
    /// A file has pages of a segment that does not exist or is shorter.
    #[error("inode {} has pages {}+{} of segment {}, which does not have them", ino.0, pages.first, pages.count, pages.segment)]
    NoPages {
        /// Number of the file.
        ino: Ino,
        /// The pages.
        pages: Pages,
    },
    /// A segment has fewer copies than it should.
    #[error("segment {segment} lacks copies: there should be {copies}, and there is a whole one at {}", donors(*whole))]
    Copies {
        /// Number of the segment.
        segment: u32,
        /// Copies that have all pages.
        whole: usize,
        /// Copies that it should have.
        copies: usize,
    },
    /// Files were promised more room than there is free memory. (Nothing is lost, but writes may find no room.)
    #[error("{promised} pages were promised to files, and {free} are free")]
    Promised {
        /// Pages that were promised, and not written yet.
        promised: u64,
        /// Pages of segments that no file has.
        free: u64,
    },
    /// A donor does not answer, or has restarted, so its copies are lost.
    #[error("donor {donor} has none of its copies: {why}")]
    Donor {
        /// Address of the donor.
        donor: String,
        /// Reason, and the number of copies lost.
        why: String,
    },
    /// A copy of a page is wrong, or could not be read.
    #[error("inode {}, page {at} of the file: the copy at {donor} is wrong", ino.0)]
    Page {
        /// Number of the file.
        ino: Ino,
        /// Index of the page in the file.
        at: u64,
        /// Address of the donor that has the copy.
        donor: String,
    },
    /// No copy of a page is correct and readable.
    #[error("inode {}, page {at} of the file: no copy of it is right", ino.0)]
    Lost {
        /// Number of the file.
        ino: Ino,
        /// Index of the page in the file.
        at: u64,
    },
}

/// Reads what a disk holds, without changing it. `None` if it holds no file system.
///
/// # Errors
///
/// [`OpenError`] if the disk cannot be read, or what it holds cannot be interpreted.
pub fn read(disk: impl Disk) -> Result<Option<DurableState>, OpenError> {
    let History { snapshot, records } = Journal::read(disk)?;
    let Some(snapshot) = snapshot else { return Ok(None) };
    let mut state = DurableState::read(&snapshot).ok_or_else(|| OpenError::Unknown("the snapshot".into()))?;
    for (index, record) in records.iter().enumerate() {
        let why = |error| OpenError::Unknown(format!("record {} after the snapshot: {error}", index + 1));
        state.replay(record).map_err(why)?;
    }
    Ok(Some(state))
}

/// Finds the inconsistencies in what a disk holds, if each segment should have `copies` copies.
pub fn names(kept: &DurableState, copies: usize) -> Vec<Finding> {
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
    let all: u64 = kept.segments.values().map(|segment| u64::from(segment.pages)).sum();
    let (promised, free) = (kept.tree.allocated_pages(), all.saturating_sub(owners.len() as u64));
    if promised > free {
        findings.push(Finding::Promised { promised, free });
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
