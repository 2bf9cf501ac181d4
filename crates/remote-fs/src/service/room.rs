//! What names, and what is kept beside them, may take of the service's memory.

use super::config::Config;
use crate::protocol::{Error, Request};
use crate::tree::Tree;

/// Whether there is room for what a change adds. What is kept already is, whatever the limits are now.
pub(super) fn check(tree: &Tree, config: &Config, request: &Request) -> Result<(), Error> {
    let has_room = match request {
        Request::Create { parent, name, .. }
        | Request::MakeDirectory { parent, name, .. }
        | Request::MakeNode { parent, name, .. }
        | Request::MakeSymlink { parent, name, .. } => {
            // A name that is there is refused for that.
            tree.len() < config.inodes_max || tree.has_name(*parent, name)
        }
        Request::Link { parent, name, .. } => tree.further_names() < config.inodes_max || tree.has_name(*parent, name),
        Request::SetXattr { ino, name, value, .. } => {
            let len = tree.xattrs_len_with(*ino, name, value);
            len <= config.xattrs_len_max || len <= tree.xattrs_len()
        }
        _ => true,
    };
    if has_room { Ok(()) } else { Err(Error::NoSpace) }
}
