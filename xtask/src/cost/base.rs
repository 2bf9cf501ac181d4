//! The base revision to compare with, in a working tree of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process;

fn git() -> Command {
    let mut command = Command::new("git");
    command.current_dir(process::workspace_root()).stdin(Stdio::null());
    command
}

/// Full name of a revision; `None` where there is no such revision, or no git.
fn name_of(words: &[&str]) -> Option<String> {
    let output = git().args(words).stderr(Stdio::null()).output().ok()?;
    let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !name.is_empty()).then_some(name)
}

/// Returns the revision to compare with: the one asked for, or, for a check, the merge base with `origin/main`. `None`
/// if there is none.
pub fn revision(asked: Option<&str>, check: bool) -> anyhow::Result<Option<String>> {
    if let Some(asked) = asked {
        let name = name_of(&["rev-parse", "--verify", "--quiet", &format!("{asked}^{{commit}}")]);
        return name.map(Some).ok_or_else(|| anyhow::anyhow!("there is no revision {asked}"));
    }
    if !check {
        return Ok(None);
    }
    let base = name_of(&["merge-base", "HEAD", "origin/main"]);
    let head = name_of(&["rev-parse", "HEAD"]);
    if base.is_none() || base == head {
        eprintln!("there is no base revision to compare with: costs are compared with the ledger alone");
        return Ok(None);
    }
    Ok(base)
}

/// A working tree of a revision, removed when dropped. Its build stays, for the next time.
pub struct Checkout {
    folder: PathBuf,
}

impl Checkout {
    /// Checks a revision out; `None` if it has no `xtask/cost` yet.
    pub fn new(revision: &str) -> anyhow::Result<Option<Self>> {
        let folder = process::target_dir().join("cost/base");
        let checkout = Self { folder };
        checkout.remove();
        process::run(
            git().args(["worktree", "add", "--quiet", "--force", "--detach"]).arg(&checkout.folder).arg(revision),
        )?;
        Ok(checkout.folder.join("xtask/cost/Cargo.toml").exists().then_some(checkout))
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Folder of its build.
    pub fn target(&self) -> PathBuf {
        self.folder.with_extension("target")
    }

    /// Removes the working tree, also one that an interrupted run left.
    fn remove(&self) {
        process::works(git().args(["worktree", "remove", "--force"]).arg(&self.folder));
        process::works(git().args(["worktree", "prune"]));
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        self.remove();
    }
}
