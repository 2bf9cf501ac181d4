//! Requests that change a tree.

use super::commit::Commit;
use super::state::{Context, Tree};
use crate::protocol::{Answer, Error, NodeKind, Pages, Request};

impl Tree {
    /// Performs a request that [changes](Request::changes) something, completely or not at all. Pages that no longer
    /// belong to a file are added to `freed`.
    ///
    /// # Errors
    ///
    /// The reason why the request was refused.
    pub fn change(&mut self, context: Context<'_>, request: &Request, freed: &mut Vec<Pages>) -> Result<Answer, Error> {
        match request {
            Request::SetAttr { ino, set, .. } => self.set_attr(context, *ino, set, freed).map(Answer::Attr),
            Request::Create { parent, name, mode, .. } => {
                self.make_node(context, *parent, name, *mode, (NodeKind::File, 0)).map(Answer::Attr)
            }
            Request::MakeDirectory { parent, name, mode } => {
                self.make_directory(context, *parent, name, *mode).map(Answer::Attr)
            }
            Request::MakeNode { parent, name, mode, kind, rdev } => {
                self.make_node(context, *parent, name, *mode, (*kind, *rdev)).map(Answer::Attr)
            }
            Request::MakeSymlink { parent, name, target } => {
                self.make_symlink(context, *parent, name, target).map(Answer::Attr)
            }
            Request::Link { ino, parent, name } => self.link(context, *ino, *parent, name).map(Answer::Attr),
            Request::Unlink { parent, name } => self.unlink(context, *parent, name).map(Answer::Unlinked),
            Request::RemoveDirectory { parent, name } => {
                self.remove_directory(context, *parent, name).map(Answer::Unlinked)
            }
            Request::Rename { parent, name, new_parent, new_name, flags } => {
                let unlinked = self.rename(context, (*parent, name), (*new_parent, new_name), *flags)?;
                Ok(unlinked.map_or(Answer::Done, Answer::Unlinked))
            }
            Request::Commit { size_min, mtime, holes, extents, .. } => {
                let commit = Commit { size_min: *size_min, mtime: *mtime, holes, extents, allocated: None };
                self.commit(context, commit, freed).map(Answer::Attr)
            }
            Request::Allocate { at, count, hole, size_min, mtime, .. } => {
                let (holes, allocated) = (hole.as_slice(), Some((*at, *count)));
                let commit = Commit { size_min: *size_min, mtime: *mtime, holes, extents: &[], allocated };
                self.commit(context, commit, freed).map(Answer::Attr)
            }
            Request::SetXattr { ino, name, value, how } => {
                self.set_xattr(context, *ino, name, value, *how).map(|()| Answer::Done)
            }
            Request::RemoveXattr { ino, name } => self.remove_xattr(context, *ino, name).map(|()| Answer::Done),
            _ => Err(Error::Invalid),
        }
    }
}

#[cfg(test)]
mod facts;
#[cfg(test)]
mod model;
