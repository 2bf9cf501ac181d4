//! `sinew swap`, under programs that need more memory than they may have.

mod common;
#[path = "common/pressure.rs"]
#[allow(dead_code)] // The longer hunts use the rest of it.
mod pressure;
#[allow(dead_code)] // Other tests use the rest of it.
mod mounts {
    pub mod remote;
}

use std::io::Write;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::rights::has_capability;
use common::{Folder, Server, run, sinew, text, unique};
use mounts::remote::{Cluster, Mounted};
use pressure::{Group, hog};
use sinew_conformance::skipped;

/// Memory that a program uses, and memory that it may have.
const USED: usize = 36 << 20;
const LIMIT: usize = 24 << 20;
/// Number of the capability on Linux.
const CAP_SYS_RESOURCE: u32 = 24;

#[test]
fn the_program_that_needs_memory() {
    pressure::use_memory_if_told();
}

/// Returns what the kernel reports of a device that it swaps to.
fn listed(device: &str) -> Option<serde_json::Value> {
    let output = run(&mut sinew(&["swap", "show", "--json"]));
    let list: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    list.into_iter().find(|swap| swap["device"] == device)
}

fn on(args: &[&str]) -> String {
    let output = run(sinew(&["swap", "on", "--json"]).args(args));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let reported: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let device = reported["device"].as_str().unwrap().to_owned();
    let listed = listed(&device).expect("the kernel has it");
    assert_eq!((&listed["priority"], &reported["priority"]), (&31_000.into(), &31_000.into()));
    device
}

/// Tests that swap do so one after the other: the kernel spreads pages over devices of one priority.
static SWAP: Mutex<()> = Mutex::new(());

/// Gives this test the machine's swap; if it may not change that, reports the test as skipped.
fn may_swap() -> Option<MutexGuard<'static, ()>> {
    if sinew::host::is_root() {
        return Some(SWAP.lock().unwrap_or_else(PoisonError::into_inner));
    }
    skipped("not root");
    None
}

/// Pages that the kernel has ever swapped out.
fn swapped_out() -> u64 {
    let counters = std::fs::read_to_string("/proc/vmstat").unwrap();
    counters.lines().find_map(|line| line.strip_prefix("pswpout ")?.parse().ok()).unwrap()
}

fn use_memory() {
    let Some(group) = Group::new(LIMIT) else { return skipped("no control groups of memory") };
    let before = swapped_out();
    let output = run(&mut group.with(&hog("the_program_that_needs_memory", USED)));
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("pages were right"));
    assert!(swapped_out() - before > 1000, "it had more memory than it should");
}

#[test]
fn a_file_is_swap_to_a_program_that_needs_it_and_goes_again() {
    let Some(_swap) = may_swap() else { return };
    let folder = Folder::new();
    let path = folder.0.join("swap");
    let file = path.to_str().unwrap();
    let device = on(&[file, "--size", "256M", "--priority", "31000"]);
    use_memory();
    let again = run(&mut sinew(&["swap", "on", file, "--size", "256M"]));
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("exists already"), "{}", text(&again.stderr));
    let twice = run(&mut sinew(&["swap", "on", file]));
    assert_eq!(twice.status.code(), Some(1), "two devices over one file would overwrite each other's pages");
    assert!(text(&twice.stderr).contains(&format!("in use already, by {device}")), "{}", text(&twice.stderr));
    let off = run(&mut sinew(&["swap", "off", file, "--remove"]));
    assert!(off.status.success(), "{}", text(&off.stderr));
    assert!(listed(&device).is_none() && !path.exists());
    let off = run(&mut sinew(&["swap", "off", &device]));
    assert_eq!(off.status.code(), Some(1), "it has let go of the device");
}

#[test]
fn swap_that_its_file_system_has_no_room_for_is_refused() {
    let Some(_swap) = may_swap() else { return };
    let folder = Folder::new();
    let path = folder.0.join("swap");
    let output = run(&mut sinew(&["swap", "on", path.to_str().unwrap(), "--size", "900000G"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("too little for swap"), "{}", text(&output.stderr));
    assert!(!path.exists());
}

#[test]
fn a_file_that_keeps_a_second_device_is_not_removed() {
    let Some(_swap) = may_swap() else { return };
    let folder = Folder::new();
    let path = folder.0.join("swap");
    let file = path.to_str().unwrap();
    on(&[file, "--size", "2M", "--priority", "31000"]);
    let output = run(Command::new("losetup").args(["--find", "--show", file]));
    let second = text(&output.stdout).trim().to_owned();
    let off = run(&mut sinew(&["swap", "off", file, "--remove"]));
    assert!(run(Command::new("losetup").args(["-d", &second])).status.success());
    assert_eq!(off.status.code(), Some(1));
    assert!(text(&off.stderr).contains(&format!("is used by {second}")), "{}", text(&off.stderr));
    assert!(path.exists());
}

#[test]
fn a_file_that_something_is_in_is_no_swap_unless_that_is_meant() {
    let Some(_swap) = may_swap() else { return };
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
fn a_loop_device_that_somebody_else_has_set_up_stays() {
    let Some(_swap) = may_swap() else { return };
    let folder = Folder::new();
    let path = folder.0.join("letters");
    let file = path.to_str().unwrap();
    std::fs::write(&path, vec![b'a'; 2 << 20]).unwrap();
    let output = run(Command::new("losetup").args(["--find", "--show", file]));
    let Some(device) = text(&output.stdout).lines().next().map(str::to_owned) else {
        return skipped("no loop device");
    };
    for what in [&*device, file] {
        let output = run(&mut sinew(&["swap", "off", what]));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains(&*device) && stderr.contains(file) && stderr.contains("was not set up by sinew swap on"),
            "{stderr}"
        );
        let still = run(Command::new("losetup").args(["-j", file]));
        assert!(text(&still.stdout).contains(&*device));
    }
    assert!(run(Command::new("losetup").args(["-d", &device])).status.success());
    // A device that was once ours, but now has another file, stays as well.
    let ours = folder.0.join("swap");
    let on = on(&[ours.to_str().unwrap(), "--size", "2M", "--priority", "31000"]);
    assert!(run(Command::new("swapoff").arg(&on)).status.success());
    assert!(run(Command::new("losetup").args(["-d", &on])).status.success());
    let again = run(Command::new("losetup").args([&on, file]));
    if again.status.success() {
        let output = run(&mut sinew(&["swap", "off", &on]));
        let stderr = text(&output.stderr);
        assert!(output.status.code() == Some(1) && stderr.contains(file) && stderr.contains("is now over"), "{stderr}");
        assert!(run(Command::new("losetup").args(["-d", &on])).status.success());
    }
}

#[test]
fn a_file_in_remote_memory_is_swap_to_a_program_that_needs_it() {
    let Some(_swap) = may_swap() else { return };
    for fabric in ["shm", "udp"] {
        let cluster = Cluster::over(fabric, 2, 2, false);
        let Some(mounted) = cluster.mount("a", &["--for-paging"]) else { return };
        let file = mounted.point.join("swap").display().to_string();
        let device = on(&[&file, "--size", "128M", "--priority", "31000"]);
        use_memory();
        let off = run(&mut sinew(&["swap", "off", &file, "--remove"]));
        assert!(off.status.success(), "{}", text(&off.stderr));
        assert!(listed(&device).is_none() && std::fs::read_dir(&mounted.point).unwrap().next().is_none());
        mounted.end();
    }
}

#[test]
fn swap_has_its_room_when_its_file_system_is_full() {
    let Some(_swap) = may_swap() else { return };
    let cluster = Cluster::new(2, 2, false);
    let Some(mounted) = cluster.mount("a", &["--for-paging"]) else { return };
    let file = mounted.point.join("swap").display().to_string();
    on(&[&file, "--size", "128M", "--priority", "31000"]);
    let mut other = std::fs::File::create(mounted.point.join("other")).unwrap();
    for part in [1 << 20, 4096] {
        let full = loop {
            if let Err(error) = other.write_all(&vec![7; part]) {
                break error;
            }
        };
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{full}");
    }
    drop(other);
    // The second time, pages replace others.
    use_memory();
    use_memory();
    let off = run(&mut sinew(&["swap", "off", &file, "--remove"]));
    assert!(off.status.success(), "{}", text(&off.stderr));
    mounted.end();
}

#[test]
fn a_served_block_device_is_swap_to_a_program_that_needs_it() {
    let Some(_swap) = may_swap() else { return };
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

/// More memory that a server gets once it serves: the kernel's, for messages on their way.
const MORE: usize = 2 << 20;

/// A group for a server, without a limit so far. Where the kernel may not be told that it serves paging, a server that
/// gets no more memory could wait for itself.
fn group_of_server() -> Option<Group> {
    if !has_capability(CAP_SYS_RESOURCE) {
        skipped("no CAP_SYS_RESOURCE");
        return None;
    }
    let group = Group::new(1 << 40);
    if group.is_none() {
        skipped("no control groups of memory");
    }
    group
}

/// A donor whose memory is its own, whoever writes to it first.
fn donor_for_paging() -> Server {
    let address = format!("shm://{}", unique("donor"));
    Server::of(&mut sinew(&["serve", "memory", &address, "--child", "--memory", "160M", "--for-paging"]))
}

#[test]
fn a_file_in_remote_memory_is_swap_though_its_mount_gets_no_more_memory() {
    let Some(_swap) = may_swap() else { return };
    let Some(group) = group_of_server() else { return };
    let cluster = Cluster::with_donors("shm", vec![donor_for_paging(), donor_for_paging()], 2, false);
    let point = cluster.folder.0.join("a");
    std::fs::create_dir_all(&point).unwrap();
    let in_group = |command| group.with(&command);
    let Some(mounted) = Mounted::start_by(&cluster.address, &point, &["--for-paging"], in_group) else { return };
    let file = point.join("swap").display().to_string();
    on(&[&file, "--size", "128M", "--priority", "31000"]);
    group.limit_to_more(MORE);
    use_memory();
    let off = run(&mut sinew(&["swap", "off", &file, "--remove"]));
    assert!(off.status.success(), "{}", text(&off.stderr));
    // Nothing is paged to it any more, so it may take memory to end.
    group.limit_to_more(1 << 30);
    mounted.end();
}

#[test]
fn a_served_block_device_is_swap_though_its_server_gets_no_more_memory() {
    let Some(_swap) = may_swap() else { return };
    let Some(group) = group_of_server() else { return };
    if !run(Command::new("sh").args(["-c", "modprobe nbd"])).status.success() {
        return skipped("no nbd in this kernel");
    }
    let donors = [donor_for_paging(), donor_for_paging()];
    let folder = Folder::new();
    let at = format!("unix:{}", folder.0.join("socket").display());
    let mut serve = sinew(&["serve", "block", "--child", "--size", "128M", "--at", &at, "--for-paging"]);
    serve.args(donors.iter().map(|donor| &donor.address));
    let server = Server::of(&mut group.with(&serve));
    on(&[&at, "--priority", "31000"]);
    group.limit_to_more(MORE);
    use_memory();
    let off = run(&mut sinew(&["swap", "off", &at]));
    assert!(off.status.success(), "{}", text(&off.stderr));
    drop(server);
}

#[test]
fn a_server_for_paging_has_its_memory_locked_and_is_not_ended_for_memory() {
    let Some(_swap) = may_swap() else { return };
    let folder = Folder::new();
    let at = format!("unix:{}", folder.0.join("socket").display());
    let (donor, files) = (format!("shm://{}", unique("donor")), format!("shm://{}", unique("files")));
    for what in [&["block", "--at", &at][..], &["memory", &donor], &["files", &files]] {
        let mut command = sinew(&["serve"]);
        let server = Server::of(command.args(what).args(["--child", "--memory", "64M", "--for-paging"]));
        check_paging_server(server.process.0.id());
    }
}

#[test]
fn a_server_for_paging_is_refused_memory_that_the_host_does_not_have() {
    let output = run(&mut sinew(&[
        "serve",
        "memory",
        &format!("shm://{}", unique("donor")),
        "--memory",
        "900G",
        "--for-paging",
    ]));
    let stderr = text(&output.stderr);
    assert!(output.status.code() == Some(1) && stderr.contains("takes 900 GB of memory at the start"), "{stderr}");
}

fn check_paging_server(pid: u32) {
    let of = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let status = of("status");
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
    assert!(!value("VmLck:").starts_with("0 "), "{status}");
    // Root in a container may lack the right.
    let rights = u64::from_str_radix(value("CapEff:"), 16).unwrap();
    let may_tell_the_kernel = rights & 1 << CAP_SYS_RESOURCE != 0;
    assert_eq!(of("oom_score_adj").trim() == "-1000", may_tell_the_kernel, "{status}");
}
