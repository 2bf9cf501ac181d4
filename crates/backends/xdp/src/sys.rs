//! System calls. What the rest of the crate sees is safe.

pub(crate) mod bpf;
pub(crate) mod ethtool;
pub(crate) mod namespace;
pub(crate) mod netlink;
pub(crate) mod socket;

use std::io;

/// A `-1` as the error that it stands for.
fn check(status: libc::c_int) -> io::Result<libc::c_int> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(status) }
}
