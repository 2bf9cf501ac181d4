//! Committing pages to a file.

use super::inode::Body;
use super::permission;
use super::set_attr::check_time;
use super::state::{Context, Tree};
use crate::protocol::{Attr, Error, Extent, FILE_LEN_MAX, PAGE, Pages, Time};

/// The contents of a commit.
#[derive(Clone, Copy)]
pub(super) struct Commit<'a> {
    pub size_min: u64,
    pub mtime: Option<Time>,
    pub holes: &'a [(u64, u64)],
    pub extents: &'a [Extent],
    /// Range to whose pages room is promised: first page, pages.
    pub allocated: Option<(u64, u64)>,
}

impl Tree {
    /// Commits everything or nothing. The caller must have checked that the pages are the client's.
    pub(super) fn commit(
        &mut self,
        context: Context<'_>,
        commit: Commit<'_>,
        freed: &mut Vec<Pages>,
    ) -> Result<Attr, Error> {
        let ino = context.opened.ok_or(Error::BadHandle)?;
        let inode = self.inode_mut(ino)?;
        let size = inode.size.max(commit.size_min);
        if size > FILE_LEN_MAX {
            return Err(Error::FileTooBig);
        }
        commit.mtime.map_or(Ok(()), check_time)?;
        let Body::File(map) = &mut inode.body else { return Err(Error::Invalid) };
        let allocated = commit.allocated.map(|(at, count)| (at, at.saturating_add(count)));
        if allocated.is_some_and(|(_, end)| end > FILE_LEN_MAX / PAGE as u64) {
            return Err(Error::FileTooBig);
        }
        for Extent { at, pages, replaces, sums, .. } in commit.extents {
            if at.saturating_add(pages.count.into()) > size.div_ceil(PAGE as u64)
                || sums.0.len() != pages.count as usize
            {
                return Err(Error::Invalid);
            }
            if replaces.as_ref().is_some_and(|old| !map.has(*at, old)) {
                return Err(Error::PagesChanged);
            }
        }
        let before = map.allocated_pages();
        for (at, count) in commit.holes {
            map.punch(*at, at.saturating_add(*count), freed);
        }
        for Extent { at, pages, sums, .. } in commit.extents {
            map.put(*at, *pages, sums, freed);
        }
        if let Some((at, end)) = allocated {
            map.allocate(at, end);
        }
        let after = map.allocated_pages();
        inode.size = size;
        inode.touch(context.now);
        inode.mtime = commit.mtime.unwrap_or(context.now);
        permission::drop_privileges(inode, context.caller, false);
        self.allocated_pages = self.allocated_pages + after - before;
        self.drop_capabilities(ino);
        self.attr(ino)
    }
}
