//! Control groups: programs that may have so much memory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

const FIRST: &str = "/sys/fs/cgroup/memory";
const SECOND: &str = "/sys/fs/cgroup";
/// How long a group is given to fall below its limit.
const PATIENCE: Duration = Duration::from_secs(60);

/// A group; gone when dropped.
pub struct Group {
    path: PathBuf,
    limit: PathBuf,
}

/// Whether there are such groups.
pub fn present() -> Result<(), String> {
    let remedy = || "no control groups of memory here (cgroup v1's, or v2 with the memory controller)".to_owned();
    Group::new("probe").map(drop).map_err(|_| remedy())
}

impl Group {
    /// A group without a limit.
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let (parent, limit) = if Path::new(FIRST).join("memory.limit_in_bytes").exists() {
            (FIRST, "memory.limit_in_bytes")
        } else {
            // It may be there already.
            let _ = std::fs::write(Path::new(SECOND).join("cgroup.subtree_control"), "+memory");
            (SECOND, "memory.max")
        };
        let path = Path::new(parent).join(format!("sinew-peers-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("making the group {}", path.display()))?;
        let group = Self { limit: path.join(limit), path };
        ensure!(group.limit.exists(), "{} has no limit of memory", group.path.display());
        Ok(group)
    }

    /// What is there may have so much from now on, and what is more is swapped out.
    pub fn limit(&self, bytes: u64) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            // The system refuses while it has not got so much out.
            match std::fs::write(&self.limit, bytes.to_string()) {
                Ok(()) => return Ok(()),
                Err(_) if began.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(100)),
                Err(error) => return Err(error).with_context(|| format!("limiting {}", self.path.display())),
            }
        }
    }

    /// The command, to be run in the group.
    pub fn command(&self, program: &Path, args: &[&str]) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.path.join("cgroup.procs"));
        shell.arg(program).args(args);
        shell
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its programs are gone, though the system may not have noticed.
        let began = Instant::now();
        while std::fs::remove_dir(&self.path).is_err() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
