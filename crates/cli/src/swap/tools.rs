//! The system's own programs, which know how to set up its devices.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Folders of administrators' programs, which not every PATH has.
const FOLDERS: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin";

/// Programs, and the Debian packages that contain them.
const PACKAGES: &[(&str, &str)] = &[
    ("losetup", "mount"),
    ("mkswap", "util-linux"),
    ("nbd-client", "nbd-client"),
    ("swapoff", "mount"),
    ("swapon", "mount"),
];

fn paths() -> String {
    match std::env::var("PATH") {
        Ok(paths) if !paths.is_empty() => format!("{paths}:{FOLDERS}"),
        _ => FOLDERS.to_owned(),
    }
}

/// Checks that all of these programs exist, and that this user may use them.
///
/// # Errors
///
/// A program is missing; the error names its package. Or the user is not root.
pub fn require(programs: &[&str]) -> anyhow::Result<()> {
    let paths = paths();
    for program in programs {
        if std::env::split_paths(&paths).any(|folder| folder.join(program).is_file()) {
            continue;
        }
        let package = PACKAGES.iter().find(|(name, _)| name == program).map_or(*program, |(_, package)| package);
        bail!("{program} is not on this machine: install it (Debian's package is {package})");
    }
    if !sinew::host::is_root() {
        bail!("only root can change what the kernel swaps to: run it with sudo");
    }
    Ok(())
}

/// Runs a program to its end, and returns its output.
///
/// # Errors
///
/// It failed; the error has its message.
pub fn done<S: AsRef<OsStr>>(command: &[S]) -> anyhow::Result<String> {
    let (program, args) = command.split_first().context("a command has a name")?;
    let shown = command.iter().map(|word| word.as_ref().to_string_lossy()).collect::<Vec<_>>().join(" ");
    let output = Command::new(program).args(args).env("PATH", paths()).env("LC_ALL", "C").stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("running {shown}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let messages = [&output.stderr, &output.stdout].map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
    let message = messages.iter().find(|text| !text.is_empty()).map_or("without a message", String::as_str);
    bail!("{shown}: {} ({message})", output.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_here_is_named_with_its_package() {
        let error = require(&["no-program-of-this-name"]).unwrap_err().to_string();
        assert!(error.contains("no-program-of-this-name is not on this machine"), "{error}");
    }

    #[test]
    fn what_a_program_that_failed_said_is_told() {
        assert_eq!(done(&["sh", "-c", "echo well"]).unwrap(), "well");
        let error = done(&["sh", "-c", "echo why >&2; exit 3"]).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("(why)"), "{error}");
    }
}
