//! Control groups, which limit the memory of programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

const CGROUP_V1: &str = "/sys/fs/cgroup/memory";
const CGROUP_V2: &str = "/sys/fs/cgroup";
/// Time that a group is given to fall below its limit.
const SHRINK_TIMEOUT: Duration = Duration::from_secs(60);

/// A group, removed when dropped.
pub struct Group {
    path: PathBuf,
    limit: PathBuf,
}

/// Fails unless this system has control groups for memory.
pub fn present() -> Result<(), String> {
    let remedy = || "no control groups for memory here (cgroup v1's, or v2 with the memory controller)".to_owned();
    Group::new("probe").map(drop).map_err(|_| remedy())
}

impl Group {
    /// Creates a group without a limit.
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let (parent, limit) = if Path::new(CGROUP_V1).join("memory.limit_in_bytes").exists() {
            (CGROUP_V1, "memory.limit_in_bytes")
        } else {
            // An error is ignored, since the controller may be enabled already.
            let _ = std::fs::write(Path::new(CGROUP_V2).join("cgroup.subtree_control"), "+memory");
            (CGROUP_V2, "memory.max")
        };
        let path = Path::new(parent).join(format!("sinew-peers-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("making the group {}", path.display()))?;
        let group = Self { limit: path.join(limit), path };
        ensure!(group.limit.exists(), "{} has no memory limit", group.path.display());
        Ok(group)
    }

    /// Limits the memory of the group's programs to `bytes` from now on; whatever exceeds it is swapped out.
    pub fn limit(&self, bytes: u64) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            // The system refuses until it has swapped enough out.
            match std::fs::write(&self.limit, bytes.to_string()) {
                Ok(()) => return Ok(()),
                Err(_) if began.elapsed() < SHRINK_TIMEOUT => std::thread::sleep(Duration::from_millis(100)),
                Err(error) => return Err(error).with_context(|| format!("limiting {}", self.path.display())),
            }
        }
    }

    /// Returns a command that runs a program in the group.
    pub fn command(&self, program: &Path, args: &[&str]) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.path.join("cgroup.procs"));
        shell.arg(program).args(args);
        shell
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group's programs have ended, but the system may not have noticed yet.
        let began = Instant::now();
        while std::fs::remove_dir(&self.path).is_err() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
