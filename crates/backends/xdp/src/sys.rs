//! System calls, behind functions that are safe for the rest of the crate.

pub(crate) mod bpf;
pub(crate) mod ethtool;
pub(crate) mod namespace;
pub(crate) mod netlink;
pub(crate) mod socket;

use std::io;

/// Turns `-1` into the system's error.
fn check(status: libc::c_int) -> io::Result<libc::c_int> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(status) }
}
