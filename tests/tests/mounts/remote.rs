//! Donors, a service and mounts, each a process of its own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::rights::can_mount;
use crate::common::{Folder, PATIENCE, Process, Server, sinew, unique};

/// A file system: its donors, and its service.
pub struct Cluster {
    pub donors: Vec<Option<Server>>,
    pub service: Option<Server>,
    pub address: String,
    options: Vec<String>,
    pub folder: Folder,
}

impl Cluster {
    /// Starts this many donors, and a service that keeps this many copies, with its names on a disk if `is_kept`.
    pub fn new(donors: usize, copies: usize, is_kept: bool) -> Self {
        Self::over("shm", donors, copies, is_kept)
    }

    /// As [`Self::new`], on this fabric.
    pub fn over(fabric: &str, donors: usize, copies: usize, is_kept: bool) -> Self {
        let donor = |_| {
            let address = new_address(fabric, "donor");
            let mut command = sinew(&["serve", "memory", &address, "--child", "--memory", "320M"]);
            Server::of(command.args(openness(fabric)))
        };
        Self::with_donors(fabric, (0..donors).map(donor).collect(), copies, is_kept)
    }

    /// As [`Self::over`], with these donors.
    pub fn with_donors(fabric: &str, donors: Vec<Server>, copies: usize, is_kept: bool) -> Self {
        let folder = Folder::new();
        let mut options: Vec<String> =
            donors.iter().flat_map(|donor| ["--donor".into(), donor.address.clone()]).collect();
        options.extend(["--copies".into(), copies.to_string()]);
        options.extend(openness(fabric).iter().map(|option| option.to_string()));
        if is_kept {
            options.extend(["--data".into(), folder.0.join("data").display().to_string()]);
        }
        let address = new_address(fabric, "files");
        let donors = donors.into_iter().map(Some).collect();
        let mut cluster = Self { donors, service: None, address, options, folder };
        cluster.start_service();
        cluster
    }

    pub fn start_service(&mut self) {
        let mut command = sinew(&["serve", "files", &self.address, "--child"]);
        let service = Server::of(command.args(&self.options));
        // The system chose its UDP port when it first started.
        self.address.clone_from(&service.address);
        self.service = Some(service);
    }

    /// Kills the service, without a chance to put anything in order.
    pub fn kill_service(&mut self) {
        kill(&mut self.service);
    }

    pub fn kill_donor(&mut self, index: usize) {
        kill(&mut self.donors[index]);
    }

    /// Mounts the file system at a folder of this name; `None` where nothing can be mounted.
    pub fn mount(&self, name: &str, options: &[&str]) -> Option<Mounted> {
        let point = self.folder.0.join(name);
        std::fs::create_dir_all(&point).unwrap();
        Mounted::start(&self.address, &point, options)
    }
}

/// An address that no other server has.
fn new_address(fabric: &str, what: &str) -> String {
    match fabric {
        "shm" => format!("shm://{}", unique(what)),
        // All of the arena is locked in memory, of which the guest has little.
        "ibverbs" => "ibverbs://127.0.0.1:0?arena=67108864".into(),
        _ => format!("{fabric}://127.0.0.1:0"),
    }
}

/// Options of a server that other hosts could reach.
fn openness(fabric: &str) -> &'static [&'static str] {
    if fabric == "ibverbs" { &["--open"] } else { &[] }
}

fn kill(server: &mut Option<Server>) {
    if let Some(server) = server.take() {
        server.process.signal(Signal::KILL);
    }
}

/// A mount.
pub struct Mounted {
    pub process: Process,
    pub point: PathBuf,
}

impl Mounted {
    /// Mounts a file system at an existing folder; `None` where nothing can be mounted.
    pub fn start(address: &str, point: &Path, options: &[&str]) -> Option<Self> {
        Self::start_by(address, point, options, |command| command)
    }

    /// As [`Self::start`], by the command that `wrap` makes of the usual one.
    pub fn start_by(
        address: &str,
        point: &Path,
        options: &[&str],
        wrap: impl FnOnce(Command) -> Command,
    ) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let mut command = sinew(&["mount", address, &point.display().to_string(), "--json"]);
        command.args(options);
        let log = std::fs::File::create(point.with_extension("log")).unwrap();
        let child = wrap(command).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut process = Process(child);
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let log = std::fs::read_to_string(point.with_extension("log")).unwrap();
        assert!(line.contains("\"mounted\""), "{line}: {log}");
        Some(Self { process, point: point.to_owned() })
    }

    /// Returns the mount's standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.point.with_extension("log")).unwrap()
    }

    /// Ends the mount as Ctrl-C does.
    pub fn end(mut self) {
        self.process.signal(Signal::INT);
        assert!(self.process.wait().success(), "{}", self.log());
        assert!(!is_mounted(&self.point));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.process.signal(Signal::KILL);
        let _ = self.process.0.wait();
        wait_until(|| !is_mounted(&self.point));
    }
}

/// Whether something is mounted at `point`, according to the system.
pub fn is_mounted(point: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == Some(&point.display().to_string()))
}

pub fn wait_until(mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "it does not come to that");
        std::thread::sleep(Duration::from_millis(20));
    }
}
