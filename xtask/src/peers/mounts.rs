//! File systems that are mounted for a measurement, and programs that run in the background meanwhile.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::Server;
use crate::process;

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Fails, with a remedy, unless these programs are installed.
pub fn require(programs: &[&str]) -> Result<(), String> {
    let has = |program: &&str| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
    };
    match programs.iter().find(|program| !has(program)) {
        None => Ok(()),
        Some(missing) => {
            Err(format!("there is no {missing}: apt-get install bindfs libnbd-bin nbdkit redis-server util-linux"))
        }
    }
}

/// Fails unless the kernel has FUSE.
pub fn has_fuse() -> Result<(), String> {
    if Path::new("/dev/fuse").exists() { Ok(()) } else { Err("this kernel has no FUSE".into()) }
}

/// Creates a temporary folder of this process's own.
pub fn folder(what: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("sinew-peers-{}-{what}", std::process::id()));
    std::fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
    Ok(path)
}

/// Runs a program to its end and returns its standard output.
pub fn done(words: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("starting {}", words[0]))?;
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(output.status.success(), "{}: {stderr}", words.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Starts a program in the background. Ctrl-C does not reach it, because the system may swap to it.
pub fn start(command: &mut Command) -> anyhow::Result<Child> {
    use std::os::unix::process::CommandExt;
    let shown = process::show(command);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn().with_context(|| format!("starting {shown}"))
}

/// Waits until a condition holds, for at most [`START_TIMEOUT`].
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) -> anyhow::Result<()> {
    let began = Instant::now();
    while !condition() {
        ensure!(began.elapsed() < START_TIMEOUT, "{what}: not there within {START_TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Whether something is mounted at `point`.
fn is_mounted(point: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let point = point.display().to_string();
    table.lines().any(|line| line.split(' ').nth(4) == Some(&point))
}

/// A mount, which is unmounted when dropped.
pub struct Mounted {
    pub point: PathBuf,
    /// Processes behind the mount, ended in this order.
    processes: Vec<Server>,
}

impl Mounted {
    /// Name of nbdfuse's file.
    pub const NBD_FILE: &str = "nbd";

    /// Mounts our file system, with memory for `bytes` of files.
    pub fn ours(what: &str, bytes: u64, options: &[&str]) -> anyhow::Result<Self> {
        let program = process::target_dir().join("release/sinew");
        let address = format!("shm://sinew-peers-{}-{what}", std::process::id());
        let mut service = Command::new(&program);
        service.args(["serve", "files", &address, "--copies", "1", "--memory"]).arg((bytes + (256 << 20)).to_string());
        let service = Server(start(&mut service)?);
        let mut mount = Command::new(&program);
        // The mount waits until the service is up.
        mount.args(["mount", &address]).arg(folder(what)?).args(options);
        let mut mounted = Self::of(what, &mut mount)?;
        mounted.processes.push(service);
        Ok(mounted)
    }

    /// Mounts nbdkit's memory as a file.
    pub fn nbdkit(what: &str, bytes: u64) -> anyhow::Result<Self> {
        let mut command = Command::new("nbdfuse");
        command.arg(folder(what)?.join(Self::NBD_FILE)).args(["--command", "nbdkit", "-s", "memory"]);
        Self::of(what, command.arg(bytes.to_string()))
    }

    /// Mounts another folder through FUSE.
    pub fn bindfs(what: &str, below: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new("bindfs");
        Self::of(what, command.arg("-f").arg(below).arg(folder(what)?))
    }

    fn of(what: &str, command: &mut Command) -> anyhow::Result<Self> {
        let mounted = Self { point: folder(what)?, processes: vec![Server(start(command)?)] };
        wait_for(what, || is_mounted(&mounted.point))?;
        Ok(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if is_mounted(&self.point) {
            let point = self.point.display().to_string();
            // Users other than root unmount with a helper.
            if let Err(error) = done(&["umount", &point]).or_else(|_| done(&["fusermount3", "-u", &point])) {
                eprintln!("peers: {error:#}");
            }
        }
        self.processes.clear();
        let _ = std::fs::remove_dir(&self.point);
    }
}
