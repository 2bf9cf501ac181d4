//! `sinew swap`, under programs that need more memory than they may have.

mod common;
#[allow(dead_code)] // Much of it is for other tests.
mod mounts {
    pub mod remote;
}

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Folder, Server, run, sinew, text};
use mounts::remote::Cluster;
use sinew_conformance::skipped;

/// What a program uses, and what it may have.
const USED: usize = 36 << 20;
const LIMIT: usize = 24 << 20;
const PAGE: usize = 4096;
/// As Linux numbers it.
const CAP_SYS_RESOURCE: u32 = 24;

/// Tells a copy of this program that it is the one that uses memory.
const HOG: &str = "SINEW_TEST_HOG";

/// A control group whose programs may have so much memory; gone when dropped.
struct Group(PathBuf);

impl Group {
    fn new(limit: usize) -> Option<Self> {
        let name = common::unique("sinew-swap");
        let (first, second) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let (parent, file) = if first.join("memory.limit_in_bytes").exists() {
            (first, "memory.limit_in_bytes")
        } else {
            std::fs::write(second.join("cgroup.subtree_control"), "+memory").ok()?;
            (second, "memory.max")
        };
        let group = Self(parent.join(name));
        std::fs::create_dir(&group.0).ok()?;
        std::fs::write(group.0.join(file), limit.to_string()).ok()?;
        Some(group)
    }

    /// Runs a command in it.
    fn run(&self, command: &Command) -> std::process::Output {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.0.join("cgroup.procs"));
        shell.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        run(&mut shell)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        common::eventually("the group's programs are gone", || std::fs::remove_dir(&self.0).is_ok());
    }
}

/// This program again, as one that writes to more memory than it may have, and looks whether all is there.
fn hog() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["the_program_that_needs_memory", "--exact", "--nocapture"]).env(HOG, USED.to_string());
    command
}

#[test]
fn the_program_that_needs_memory() {
    let Some(len) = std::env::var(HOG).ok().and_then(|len| len.parse::<usize>().ok()) else { return };
    let pages = len / PAGE;
    let mut memory = vec![0u64; len / 8];
    let word = |page: usize, round: u64| (page as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ round;
    for round in 0..3 {
        // In order, which the kernel reads ahead for, and at last some here and there: 7919 is prime, so each page has its turn once.
        let steps = if round < 2 { pages } else { pages / 8 };
        for step in 0..steps {
            let page = if round < 2 { step } else { step * 7919 % pages };
            let at = page * PAGE / 8;
            let whole = &mut memory[at..at + PAGE / 8];
            let before = if round == 0 { 0 } else { word(page, round - 1) };
            assert!(whole.iter().all(|found| *found == before), "page {page} in round {round}");
            whole.fill(word(page, round));
        }
    }
    println!("{pages} pages were right");
}

/// What the kernel says of a device that it swaps to.
fn listed(device: &str) -> Option<serde_json::Value> {
    let output = run(&mut sinew(&["swap", "show", "--json"]));
    let list: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    list.into_iter().find(|swap| swap["device"] == device)
}

fn on(args: &[&str]) -> String {
    let output = run(sinew(&["swap", "on", "--json"]).args(args));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let device = said["device"].as_str().unwrap().to_owned();
    let listed = listed(&device).expect("the kernel has it");
    assert_eq!((&listed["priority"], &said["priority"]), (&31_000.into(), &31_000.into()));
    device
}

/// Whether this test may change what the machine swaps to; if not, it says that it is skipped.
fn may_swap() -> bool {
    let may = sinew::host::is_root();
    if !may {
        skipped("not root");
    }
    may
}

fn use_memory() {
    let Some(group) = Group::new(LIMIT) else { return skipped("no control groups of memory") };
    let output = group.run(&hog());
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("pages were right"));
}

#[test]
fn a_file_is_swap_to_a_program_that_needs_it_and_goes_again() {
    if !may_swap() {
        return;
    }
    let folder = Folder::new();
    let path = folder.0.join("swap");
    let file = path.to_str().unwrap();
    let device = on(&[file, "--size", "256M", "--priority", "31000"]);
    use_memory();
    let again = run(&mut sinew(&["swap", "on", file, "--size", "256M"]));
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("is there already"), "{}", text(&again.stderr));
    let off = run(&mut sinew(&["swap", "off", file, "--remove"]));
    assert!(off.status.success(), "{}", text(&off.stderr));
    assert!(listed(&device).is_none() && !path.exists());
    let off = run(&mut sinew(&["swap", "off", &device]));
    assert_eq!(off.status.code(), Some(1), "it has let go of the device");
}

#[test]
fn a_file_that_something_is_in_is_no_swap_unless_that_is_meant() {
    if !may_swap() {
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let path = folder.0.join("letters");
    let file = path.to_str().unwrap();
    std::fs::write(&path, vec![b'a'; 2 << 20]).unwrap();
    let refused = |why: &str| {
        let output = run(&mut sinew(&["swap", "on", file]));
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
        let loops = run(Command::new("losetup").args(["-j", file]));
        assert_eq!(text(&loops.stdout), "", "the device was let go");
    };
    refused("can be read by others");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    refused("something other than swap is on the device");
    assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == b'a'));
    let device = on(&[file, "--overwrite", "--priority", "31000"]);
    assert!(run(&mut sinew(&["swap", "off", &device])).status.success());
}

#[test]
fn a_file_in_remote_memory_is_swap_to_a_program_that_needs_it() {
    if !may_swap() {
        return;
    }
    let cluster = Cluster::new(2, 2, false);
    let Some(mounted) = cluster.mount("a", &["--for-paging"]) else { return };
    let file = mounted.point.join("swap").display().to_string();
    let device = on(&[&file, "--size", "128M", "--priority", "31000"]);
    use_memory();
    let off = run(&mut sinew(&["swap", "off", &file, "--remove"]));
    assert!(off.status.success(), "{}", text(&off.stderr));
    assert!(listed(&device).is_none() && std::fs::read_dir(&mounted.point).unwrap().next().is_none());
    mounted.end();
}

#[test]
fn a_served_block_device_is_swap_to_a_program_that_needs_it() {
    if !may_swap() {
        return;
    }
    if !run(Command::new("sh").args(["-c", "modprobe nbd"])).status.success() {
        return skipped("no nbd in this kernel");
    }
    let folder = Folder::new();
    let at = format!("unix:{}", folder.0.join("socket").display());
    let server =
        Server::of(&mut sinew(&["serve", "block", "--child", "--memory", "256M", "--at", &at, "--for-paging"]));
    let device = on(&[&at, "--priority", "31000"]);
    use_memory();
    let off = run(&mut sinew(&["swap", "off", &at]));
    assert!(off.status.success(), "{}", text(&off.stderr));
    assert!(listed(&device).is_none());
    drop(server);
}

#[test]
fn a_server_for_paging_has_its_memory_locked_and_is_not_ended_for_memory() {
    if !may_swap() {
        return;
    }
    let folder = Folder::new();
    let at = format!("unix:{}", folder.0.join("socket").display());
    let server = Server::of(&mut sinew(&["serve", "block", "--child", "--memory", "64M", "--at", &at, "--for-paging"]));
    let of = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", server.process.0.id())).unwrap();
    let status = of("status");
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
    assert!(!value("VmLck:").starts_with("0 "), "{status}");
    // Root of a container may lack the right.
    let rights = u64::from_str_radix(value("CapEff:"), 16).unwrap();
    let may_tell_the_kernel = rights & 1 << CAP_SYS_RESOURCE != 0;
    assert_eq!(of("oom_score_adj").trim() == "-1000", may_tell_the_kernel, "{status}");
}
