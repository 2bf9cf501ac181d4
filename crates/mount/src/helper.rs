//! The program that mounts and unmounts for users other than root: `fusermount3`, or `fusermount` of FUSE 2. The crate
//! `fuser` looks for the same two.

use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, io};

/// Names of the program, in the order in which they are looked for.
const NAMES: [&str; 2] = ["fusermount3", "fusermount"];

/// Whether one of them is in PATH.
pub(crate) fn is_installed() -> bool {
    on_path().is_some()
}

/// Unmounts a mount point.
pub(crate) fn unmount(args: &[&str], point: &Path) -> io::Result<()> {
    let program = on_path().unwrap_or(NAMES[0]);
    let output = Command::new(program).args(args).arg(point).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

fn on_path() -> Option<&'static str> {
    let paths = env::var_os("PATH")?;
    NAMES.into_iter().find(|name| env::split_paths(&paths).any(|folder| folder.join(name).is_file()))
}
