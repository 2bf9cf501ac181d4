//! Limits on the service's memory for names, inodes and extended attributes.

use super::config::Config;
use crate::protocol::{Error, Request};
use crate::tree::Tree;

/// Checks that there is room for what a request adds. Existing data stays, even if it exceeds lowered limits.
pub(super) fn check(tree: &Tree, config: &Config, request: &Request) -> Result<(), Error> {
    let has_room = match request {
        Request::Create { parent, name, .. }
        | Request::MakeDirectory { parent, name, .. }
        | Request::MakeNode { parent, name, .. }
        | Request::MakeSymlink { parent, name, .. } => {
            // An existing name is refused as such, later on.
            tree.len() < config.inodes_max || tree.has_name(*parent, name)
        }
        Request::Link { parent, name, .. } => tree.extra_links() < config.inodes_max || tree.has_name(*parent, name),
        Request::SetXattr { ino, name, value, .. } => {
            let len = tree.xattrs_len_with(*ino, name, value);
            len <= config.xattrs_len_max || len <= tree.xattrs_len()
        }
        _ => true,
    };
    if has_room { Ok(()) } else { Err(Error::NoSpace) }
}
