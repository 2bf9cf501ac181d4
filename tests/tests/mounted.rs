//! The remote file system as programs see it: donors, a service and mounts are processes, some of which are killed.

mod common;
#[path = "common/device.rs"]
mod device;
mod mounts {
    pub mod facts;
    pub mod mapping;
    pub mod others;
    pub mod random;
    pub mod remote;
}

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::rights::can_mount;
use common::{Folder, PATIENCE, run, sinew, text};
use device::rdma_device;
use mounts::remote::{Cluster, Mounted, is_mounted, wait_until};
use mounts::{facts, others, random};
use rustix::process::Signal;
use sinew_conformance::skipped;

/// Returns bytes that depend on a number.
fn bytes(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(number + 3) >> 5) as u8 ^ number as u8).collect()
}

#[test]
fn remote_files_are_as_posix_has_them() {
    for fabric in ["shm", "udp"] {
        let cluster = Cluster::over(fabric, 2, 2, false);
        let Some(mounted) = cluster.mount("a", &[]) else { return };
        for (name, fact) in facts::ALL.iter().chain(facts::MORE) {
            let directory = mounted.point.join(name);
            fs::create_dir(&directory).unwrap();
            eprintln!("{fabric}: {name}");
            fact(&directory);
        }
        mounted.end();
    }
}

#[test]
fn a_mount_is_measured_beside_one_of_memory_and_judged_by_its_ratios() {
    if !can_mount() {
        return;
    }
    let bench = |ratio: &str| {
        let args = ["files", "bench", "--size", "16M", "--reads", "100", "--repetitions", "1", "--json"];
        run(sinew(&args).args(["--fail-if-ratio-below", ratio]))
    };
    for (ratio, status) in [("0", 0), ("1e9", 3)] {
        let output = bench(ratio);
        let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let figures = result["figures"].as_array().unwrap();
        assert!(figures.len() == 3 && figures.iter().all(|figure| figure["ratio"].as_f64().unwrap() > 0.0), "{result}");
        // Other tests may disturb it.
        let is_valid = result["invalid_because"].as_array().unwrap().is_empty();
        assert_eq!(output.status.code(), Some(if is_valid { status } else { 4 }), "{}", text(&output.stderr));
    }
    assert_eq!(bench("-1").status.code(), Some(2));
}

#[test]
fn privileges_go_when_others_change_files() {
    if !rustix::process::geteuid().is_root() {
        return skipped("not root");
    }
    let local = Folder::new();
    others::let_in(&local.0);
    others::capabilities_are_roots_to_set_and_go_when_the_file_changes(&local.0);
    let cluster = Cluster::new(2, 2, false);
    let Some(mounted) = cluster.mount("a", &["--allow-other"]) else { return };
    others::let_in(&cluster.folder.0);
    others::set_id_bits_go_when_others_change_the_file(&mounted.point, true);
    others::capabilities_are_roots_to_set_and_go_when_the_file_changes(&mounted.point);
    mounted.end();
}

#[test]
fn random_steps_on_remote_files_are_as_in_their_shadows() {
    for fabric in ["shm", "udp"] {
        let cluster = Cluster::over(fabric, 2, 2, false);
        // The limit on unwritten data is so low that data is written out while more comes in.
        let Some(mounted) = cluster.mount("a", &["--unwritten", "4M"]) else { return };
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let point = &mounted.point;
                scope.spawn(move || random::run(point, 100 + seed, 400, 600_000));
            }
        });
        mounted.end();
    }
}

#[test]
fn whoever_opens_a_file_sees_what_others_have_closed() {
    let cluster = Cluster::new(2, 2, false);
    let (Some(a), Some(b)) = (cluster.mount("a", &[]), cluster.mount("b", &[])) else { return };
    let path = |mounted: &mounts::remote::Mounted, name: &str| mounted.point.join(name);
    for round in 0..20 {
        let (from, to) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let len = 1 + (round * 7919) % 300_000;
        fs::write(path(from, "file"), bytes(round, len)).unwrap();
        let read = fs::read(path(to, "file")).unwrap();
        assert!(read == bytes(round, len), "round {round}: {} bytes of {len}", read.len());
    }
    // Both write different parts of the same page, and neither part is lost.
    fs::write(path(&a, "page"), vec![b'.'; 4096]).unwrap();
    let open = |mounted| OpenOptions::new().read(true).write(true).open(path(mounted, "page")).unwrap();
    let (one, other) = (open(&a), open(&b));
    for at in 0..50 {
        one.write_all_at(b"a", at * 40).unwrap();
        other.write_all_at(b"b", at * 40 + 20).unwrap();
    }
    drop((one, other));
    let read = fs::read(path(&a, "page")).unwrap();
    for at in 0..50 {
        assert_eq!((read[at * 40], read[at * 40 + 20]), (b'a', b'b'), "at {at}");
    }
    // A lock held through one mount excludes the other.
    let (held, wanted) = (File::create(path(&a, "lock")).unwrap(), File::open(path(&b, "lock")));
    held.lock().unwrap();
    let wanted = wanted.unwrap();
    assert!(wanted.try_lock_shared().is_err());
    drop(held);
    wait_until(|| wanted.try_lock_shared().is_ok());
    facts::lock_crosswise(&a.point, &b.point);
    facts::lock_after_waits(&a.point, &b.point);
    a.end();
    b.end();
}

#[test]
fn a_killed_client_leaves_no_mount_and_a_tree_in_order() {
    let cluster = Cluster::new(2, 2, false);
    let (Some(mut a), Some(b)) = (cluster.mount("a", &[]), cluster.mount("b", &[])) else { return };
    fs::write(a.point.join("kept"), bytes(1, 100_000)).unwrap();
    let mut open = File::create(a.point.join("lost")).unwrap();
    open.write_all(&bytes(2, 50_000)).unwrap();
    open.sync_all().unwrap();
    open.write_all(&bytes(3, 50_000)).unwrap();
    open.lock().unwrap();
    a.process.signal(Signal::KILL);
    a.process.wait();
    wait_until(|| !is_mounted(&a.point));
    assert!(fs::read_dir(&a.point).unwrap().next().is_none());
    assert!(fs::read(b.point.join("kept")).unwrap() == bytes(1, 100_000));
    let read = fs::read(b.point.join("lost")).unwrap();
    assert!(read[..50_000] == bytes(2, 50_000)[..]);
    // The lock of the killed client ends when the service takes the client for dead.
    let other = File::open(b.point.join("lost")).unwrap();
    wait_until(|| other.try_lock().is_ok());
    b.end();
}

#[test]
fn a_mount_that_stood_still_past_its_lease_loses_nothing() {
    let cluster = Cluster::new(2, 2, false);
    let (Some(a), Some(b)) = (cluster.mount("a", &[]), cluster.mount("b", &[])) else { return };
    let mut file = File::options().create_new(true).read(true).write(true).open(a.point.join("file")).unwrap();
    file.write_all(&bytes(1, 50_000)).unwrap();
    file.sync_all().unwrap();
    let reader = File::open(a.point.join("file")).unwrap();
    file.write_all(&bytes(2, 50_000)).unwrap();
    a.process.signal(Signal::STOP);
    // A lease lasts ten seconds.
    std::thread::sleep(Duration::from_secs(13));
    a.process.signal(Signal::CONT);
    file.write_all(&bytes(3, 50_000)).unwrap();
    file.sync_all().unwrap();
    assert!(a.log().contains("had taken this client for dead"), "{}", a.log());
    assert!(!a.log().contains("is given up"), "it blames donors for its own silence: {}", a.log());
    let all = [bytes(1, 50_000), bytes(2, 50_000), bytes(3, 50_000)].concat();
    let mut read = vec![0; all.len()];
    reader.read_exact_at(&mut read, 0).unwrap();
    assert!(read == all && fs::read(b.point.join("file")).unwrap() == all);
    drop((file, reader));
    a.end();
    b.end();
}

#[test]
fn a_mount_that_stood_still_within_its_lease_blames_no_donor() {
    let cluster = Cluster::new(3, 2, false);
    let Some(mount) = cluster.mount("a", &[]) else { return };
    let mut file = File::options().create_new(true).read(true).write(true).open(mount.point.join("file")).unwrap();
    for round in 0..2 {
        file.write_all(&bytes(round, 50_000)).unwrap();
        file.sync_all().unwrap();
        file.write_all(&bytes(round, 50_000)).unwrap();
        mount.process.signal(Signal::STOP);
        // Donors give its sessions up within two seconds.
        std::thread::sleep(Duration::from_secs(4));
        mount.process.signal(Signal::CONT);
        file.sync_all().unwrap();
    }
    let all: Vec<u8> = [0, 0, 1, 1].into_iter().flat_map(|round| bytes(round, 50_000)).collect();
    assert!(fs::read(mount.point.join("file")).unwrap() == all);
    assert!(!mount.log().contains("is given up"), "{}", mount.log());
    drop(file);
    mount.end();
}

#[test]
fn a_commit_that_is_made_after_it_was_given_up_is_of_one_file_alone() {
    let cluster = Cluster::new(2, 2, false);
    let (Some(a), Some(b)) = (cluster.mount("a", &["--timeout", "3"]), cluster.mount("b", &[])) else { return };
    let mut one = File::create(a.point.join("one")).unwrap();
    one.write_all(&bytes(1, 65_536)).unwrap();
    one.sync_all().unwrap();
    one.write_all_at(&bytes(2, 65_536), 0).unwrap();
    let service = cluster.service.as_ref().unwrap();
    service.process.signal(Signal::STOP);
    one.sync_all().unwrap_err();
    service.process.signal(Signal::CONT);
    // This is more than a client reserves ahead.
    let mut other = None;
    wait_until(|| {
        other = File::create(a.point.join("other")).ok();
        other.is_some()
    });
    let mut other = other.unwrap();
    other.write_all(&bytes(3, 40 << 20)).unwrap();
    other.sync_all().unwrap();
    let read = fs::read(b.point.join("one")).unwrap();
    assert!(read == bytes(1, 65_536) || read == bytes(2, 65_536));
    assert!(fs::read(b.point.join("other")).unwrap() == bytes(3, 40 << 20));
    drop((one, other));
    a.end();
    b.end();
}

/// Script that writes and syncs files, each with its number and the content of `source`, until `stop` exists, and then
/// prints their number. It runs in a process of its own, because a process with open files on the mount cannot start
/// the service: a child first closes its copies of them, which waits for the service.
const WRITER: &str = "i=0; while [ ! -e \"$3\" ]; do
    { echo $i; cat \"$2\"; } | dd of=\"$1/file-$i\" bs=64k conv=fsync status=none || exit 1
    i=$((i + 1))
done; echo $i";

#[test]
fn what_was_synced_is_there_after_the_service_was_killed() {
    for fabric in ["shm", "udp"] {
        let mut cluster = Cluster::over(fabric, 2, 2, true);
        let Some(mounted) = cluster.mount("a", &[]) else { return };
        let (source, stop) = (cluster.folder.0.join("source"), cluster.folder.0.join("stop"));
        fs::write(&source, bytes(1, 30_000)).unwrap();
        let mut writer = Command::new("sh");
        writer.args(["-c", WRITER, "writer"]).arg(&mounted.point).arg(&source).arg(&stop);
        let writer = writer.stdout(Stdio::piped()).spawn().unwrap();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(700));
            cluster.kill_service();
            std::thread::sleep(Duration::from_millis(200));
            cluster.start_service();
        }
        std::thread::sleep(Duration::from_millis(500));
        fs::write(&stop, b"").unwrap();
        let written = writer.wait_with_output().unwrap();
        assert!(written.status.success(), "{}", mounted.log());
        let done: usize = text(&written.stdout).trim().parse().unwrap();
        assert!(done > 3, "{done}");
        let check = |at: &Path| {
            for number in 0..done {
                let read = fs::read(at.join(format!("file-{number}"))).unwrap();
                let expected = [format!("{number}\n").into_bytes(), bytes(1, 30_000)].concat();
                assert!(read == expected, "file {number}");
            }
        };
        check(&mounted.point);
        let Some(other) = cluster.mount("b", &[]) else { return };
        check(&other.point);
        mounted.end();
        other.end();
    }
}

fn kill_a_donor(fabric: &str) {
    let mut cluster = Cluster::over(fabric, 3, 2, false);
    let Some(mounted) = cluster.mount("a", &[]) else { return };
    let write = |number: usize| fs::write(mounted.point.join(format!("{number}")), bytes(number, 900_000)).unwrap();
    let check = |count: usize| {
        for number in 0..count {
            // Reads past the caches of this host.
            let mut file = File::open(mounted.point.join(format!("{number}"))).unwrap();
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
            let mut read = Vec::new();
            file.read_to_end(&mut read).unwrap();
            assert!(read == bytes(number, 900_000), "file {number}: {}", mounted.log());
        }
    };
    (0..20).for_each(write);
    cluster.kill_donor(1);
    check(20);
    (20..40).for_each(write);
    check(40);
    mounted.end();
}

#[test]
fn a_donor_that_is_killed_takes_nothing_with_it() {
    ["shm", "udp"].into_iter().for_each(kill_a_donor);
}

#[test]
fn a_donor_that_is_killed_takes_nothing_with_it_over_rdma() {
    if rdma_device().is_some() {
        kill_a_donor("ibverbs");
    }
}

#[test]
fn a_donor_that_is_asked_for_its_memory_back_ends_when_files_have_moved() {
    let mut cluster = Cluster::new(3, 2, false);
    let Some(mounted) = cluster.mount("a", &[]) else { return };
    let path = |number: usize| mounted.point.join(format!("{number}"));
    let write = |number: usize| fs::write(path(number), bytes(number, 900_000)).unwrap();
    (0..40).for_each(write);
    let mut leaving = cluster.donors[1].take().unwrap();
    leaving.process.signal(Signal::USR1);
    let (mut number, began) = (0, Instant::now());
    while leaving.process.0.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < PATIENCE, "the donor does not end: {}", mounted.log());
        number = (number + 7) % 40;
        write(number);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(leaving.process.wait().success());
    for number in 0..40 {
        let file = File::open(path(number)).unwrap();
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        assert!(fs::read(path(number)).unwrap() == bytes(number, 900_000), "file {number}: {}", mounted.log());
    }
    // The two that are left have two copies of everything.
    cluster.kill_donor(0);
    for number in 0..40 {
        assert!(fs::read(path(number)).unwrap() == bytes(number, 900_000), "file {number}: {}", mounted.log());
    }
    mounted.end();
}

#[test]
fn pages_whose_only_copy_is_lost_are_errors_and_never_other_bytes() {
    const COUNT: usize = 24;
    const LEN: usize = 8 << 20;
    let mut cluster = Cluster::new(2, 1, false);
    let Some(mounted) = cluster.mount("a", &["--timeout", "3"]) else { return };
    let path = |number: usize| mounted.point.join(format!("{number}"));
    let write = |number: usize| {
        let mut file = File::create(path(number)).unwrap();
        file.write_all(&bytes(number, LEN)).unwrap();
        file.sync_all().unwrap();
    };
    // Enough that both donors have some of it.
    (0..COUNT).for_each(write);
    cluster.kill_donor(0);
    let is_lost = |number: &usize| {
        let file = File::open(path(*number)).unwrap();
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        let mut read = vec![0; 64 << 10];
        match file.read_exact_at(&mut read, 1 << 20) {
            Ok(()) => assert!(read == bytes(*number, LEN)[1 << 20..][..64 << 10], "file {number}"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "file {number}: {error}");
                return true;
            }
        }
        false
    };
    let lost: Vec<usize> = (0..COUNT).filter(is_lost).collect();
    assert!(!lost.is_empty() && lost.len() < COUNT, "{lost:?}");
    assert!(mounted.log().contains("donor"), "the log says why: {}", mounted.log());
    // Names remain, and what is written anew is there.
    for number in lost.into_iter().take(2) {
        assert_eq!(fs::metadata(path(number)).unwrap().len(), LEN as u64);
        write(number);
        assert!(fs::read(path(number)).unwrap() == bytes(number, LEN), "file {number}: {}", mounted.log());
    }
    mounted.end();
}

#[test]
fn a_full_file_system_says_so_and_has_room_again_once_files_are_removed() {
    const LEN: usize = 8 << 20;
    let cluster = Cluster::new(1, 1, false);
    let Some(mounted) = cluster.mount("a", &[]) else { return };
    let path = |number: usize| mounted.point.join(format!("{number}"));
    let write = |number: usize| {
        let mut file = File::create(path(number))?;
        file.write_all(&bytes(number, LEN))?;
        file.sync_all()
    };
    // The donor lends 320 MB.
    let full = (0..60).find_map(|number| Some((number, write(number).err()?)));
    let (count, error) = full.expect("it gets full");
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()), "{error}");
    assert!(count * LEN >= 200 << 20, "{count} files of 8 MB of 320 MB");
    for number in 0..count {
        assert!(fs::read(path(number)).unwrap() == bytes(number, LEN), "file {number}");
    }
    fs::remove_file(path(count)).unwrap();
    (0..count / 2).for_each(|number| fs::remove_file(path(number)).unwrap());
    let mut last = None;
    wait_until(|| {
        last = write(0).err();
        last.is_none()
    });
    assert!(fs::read(path(0)).unwrap() == bytes(0, LEN), "{last:?}");
    mounted.end();
}

/// Bytes that a program can still write, according to the system.
fn room(mounted: &Mounted) -> u64 {
    let space = rustix::fs::statvfs(&mounted.point).unwrap();
    space.f_bavail * space.f_frsize
}

/// Fills a mount with one file, in writes of 1 MB and then of single pages. Returns its length.
fn fill(mounted: &Mounted, name: &str) -> u64 {
    let file = File::create(mounted.point.join(name)).unwrap();
    let mut len = 0;
    for part in [1 << 20, 4096] {
        let error = loop {
            match file.write_all_at(&bytes(7, part), len) {
                Ok(()) => len += part as u64,
                Err(error) => break error,
            }
        };
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()), "{error}");
    }
    file.sync_all().unwrap();
    len
}

#[test]
fn on_a_full_file_system_files_can_be_overwritten_in_any_way_and_not_grown() {
    use std::os::unix::fs::OpenOptionsExt;
    let cluster = Cluster::new(2, 2, false);
    let Some(mounted) = cluster.mount("a", &[]) else { return };
    let len = fill(&mounted, "file");
    assert!(len >= 250 << 20, "{len} bytes of 320 MB");
    assert_eq!(room(&mounted), 0);
    // The one page that becomes free takes a new file, in small parts.
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    let file = OpenOptions::new().write(true).open(mounted.point.join("file")).unwrap();
    rustix::fs::fallocate(&file, punch, 200 << 20, 4096).unwrap();
    let mut small = File::create(mounted.point.join("small")).unwrap();
    (0..40).for_each(|number| small.write_all(&bytes(number, 100)).unwrap());
    drop((small, file));
    let all: Vec<u8> = (0..40).flat_map(|number| bytes(number, 100)).collect();
    assert!(fs::read(mounted.point.join("small")).unwrap() == all);
    let path = mounted.point.join("file");
    let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path).unwrap();
    let (cached, direct) = (open(0), open(sinew_mount::O_DIRECT));
    // More than is kept for it at once, in long writes, in single pages and in parts of pages.
    for at in (0..64 << 20).step_by(1 << 20) {
        cached.write_all_at(&bytes(1, 1 << 20), at).unwrap();
    }
    for at in 0..500 {
        cached.write_all_at(&bytes(2, 4096), (80 << 20) + at * 4096).unwrap();
        cached.write_all_at(&bytes(3, 100), (100 << 20) + at * 5000).unwrap();
    }
    let mut page = vec![0; 2 * 4096];
    let start = page.as_ptr().align_offset(4096);
    for at in 0..100 {
        page[start..start + 4096].copy_from_slice(&bytes(4, 4096));
        direct.write_all_at(&page[start..start + 4096], (120 << 20) + at * 4096).unwrap();
    }
    cached.sync_all().unwrap();
    let other = cluster.mount("b", &[]).unwrap();
    let read = File::open(other.point.join("file")).unwrap();
    let check = |at: u64, expected: Vec<u8>| {
        let mut found = vec![0; expected.len()];
        read.read_exact_at(&mut found, at).unwrap();
        assert!(found == expected, "at {at}");
    };
    (0..64).for_each(|mb| check(mb << 20, bytes(1, 1 << 20)));
    for at in 0..500 {
        check((80 << 20) + at * 4096, bytes(2, 4096));
        check((100 << 20) + at * 5000, bytes(3, 100));
    }
    (0..100).for_each(|at| check((120 << 20) + at * 4096, bytes(4, 4096)));
    check(len - 4096, bytes(7, 4096));
    let is_full = |error: std::io::Error| error.raw_os_error() == Some(rustix::io::Errno::NOSPC.raw_os_error());
    assert!(is_full(cached.write_all_at(b"more", len).unwrap_err()));
    // Of a write that the file has room for only in part, that part is written.
    let mut data = vec![0; 65536 + 4096];
    let start = data.as_ptr().align_offset(4096);
    let data = &mut data[start..start + 65536];
    data.copy_from_slice(&bytes(6, 65536));
    for (file, written) in [(&cached, 3 * 4096 - 1), (&cached, 4095), (&direct, 3 * 4096)] {
        let at = len - written as u64;
        assert_eq!(file.write_at(data, at).unwrap(), written);
        assert!(is_full(file.write_at(&data[written..], len).unwrap_err()));
        file.sync_all().unwrap();
        let mut found = vec![0; written];
        File::open(other.point.join("file")).unwrap().read_exact_at(&mut found, at).unwrap();
        assert!(found == data[..written], "{written} bytes");
    }
    drop(direct);
    rustix::fs::fallocate(&cached, punch, 6 << 20, 3 * 4096).unwrap();
    let short = File::create(mounted.point.join("short")).unwrap();
    assert_eq!(short.write_at(data, 0).unwrap(), 3 * 4096);
    assert!(is_full(short.write_at(data, 3 * 4096).unwrap_err()));
    drop(short);
    assert!(fs::read(other.point.join("short")).unwrap() == data[..3 * 4096]);
    // A hole makes room, for others as well.
    rustix::fs::fallocate(&cached, punch, 100, 5 << 20).unwrap();
    check(0, bytes(1, 1 << 20)[..100].to_vec());
    fs::write(other.point.join("new"), bytes(5, 4 << 20)).unwrap();
    assert!(fs::read(mounted.point.join("new")).unwrap() == bytes(5, 4 << 20));
    drop((cached, read));
    mounted.end();
    other.end();
}

#[test]
fn room_that_was_reserved_is_there_whatever_others_write_and_whoever_dies() {
    const LEN: u64 = 100 << 20;
    let mut cluster = Cluster::new(3, 2, true);
    let (Some(a), Some(b)) = (cluster.mount("a", &[]), cluster.mount("b", &[])) else { return };
    let swap = File::create(a.point.join("swap")).unwrap();
    let none = rustix::fs::FallocateFlags::empty();
    assert_eq!(rustix::fs::fallocate(&swap, none, 0, 1 << 40), Err(rustix::io::Errno::NOSPC));
    use std::os::unix::fs::MetadataExt;
    assert_eq!(swap.metadata().unwrap().blocks(), 0, "all or nothing");
    rustix::fs::fallocate(&swap, none, 0, LEN).unwrap();
    rustix::fs::fallocate(&swap, rustix::fs::FallocateFlags::KEEP_SIZE, LEN, 1 << 20).unwrap();
    let about = swap.metadata().unwrap();
    assert_eq!((about.len(), about.blocks() * 512), (LEN, LEN + (1 << 20)));
    let mut start = vec![1; 8192];
    File::open(a.point.join("swap")).unwrap().read_exact(&mut start).unwrap();
    assert!(start.iter().all(|byte| *byte == 0), "it reads as zeros");
    let written = fill(&b, "file");
    let space = rustix::fs::statvfs(&a.point).unwrap();
    assert!(written > 100 << 20 && written + LEN + (1 << 20) <= space.f_blocks * space.f_frsize, "{written}");
    assert_eq!((room(&a), room(&b)), (0, 0));
    // Neither the service nor a client has to survive for that.
    cluster.kill_service();
    cluster.start_service();
    for round in 0..2 {
        for at in (0..LEN).step_by(1 << 20) {
            swap.write_all_at(&bytes(round + at as usize, 1 << 20), at).unwrap();
        }
        swap.sync_all().unwrap();
    }
    let mut found = vec![0; 1 << 20];
    let read = File::open(b.point.join("swap")).unwrap();
    for at in (0..LEN).step_by(1 << 20) {
        read.read_exact_at(&mut found, at).unwrap();
        assert!(found == bytes(1 + at as usize, 1 << 20), "at {at}");
    }
    drop((swap, read));
    fs::remove_file(a.point.join("swap")).unwrap();
    wait_until(|| room(&b) >= LEN);
    a.end();
    b.end();
    let (status, found) = fsck(&mut cluster);
    assert_eq!((status, &found["findings"]), (Some(0), &serde_json::json!([])));
}

/// Ends the service, and checks its files and the donors.
fn fsck(cluster: &mut Cluster) -> (Option<i32>, serde_json::Value) {
    drop(cluster.service.take());
    let data = cluster.folder.0.join("data").display().to_string();
    let donors = cluster.donors.iter().flatten().map(|donor| &donor.address);
    let output = run(sinew(&["fsck", "--json", "--files", &data]).args(donors));
    (
        output.status.code(),
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr))),
    )
}

#[test]
fn a_check_finds_nothing_until_pages_are_lost() {
    let mut cluster = Cluster::new(2, 2, true);
    let Some(mounted) = cluster.mount("a", &[]) else { return };
    for number in 0..10 {
        fs::write(mounted.point.join(format!("{number}")), bytes(number, 300_000)).unwrap();
    }
    mounted.end();
    drop(cluster.service.take());
    let data = cluster.folder.0.join("data").display().to_string();
    let mut addresses = Vec::new();
    addresses.extend(cluster.donors.iter().flatten().map(|donor| donor.address.clone()));
    let check = |addresses: &[String]| {
        let output = run(sinew(&["fsck", "--json", "--files", &data]).args(addresses));
        let found = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
        (output.status.code(), found)
    };
    let (status, found): (_, serde_json::Value) = check(&addresses);
    assert_eq!((status, &found["clean"], &found["findings"]), (Some(0), &true.into(), &serde_json::json!([])));
    // There are ten files and the root; each file has 74 pages, in two copies.
    assert_eq!((&found["inodes"], &found["pages"]), (&11.into(), &1480.into()));
    let (status, found) = check(&[]);
    assert_eq!((status, &found["pages"]), (Some(0), &serde_json::Value::Null));
    cluster.kill_donor(0);
    let (status, found) = check(&addresses);
    assert_eq!((status, &found["clean"]), (Some(5), &false.into()));
    let findings = found["findings"].as_array().unwrap();
    assert!(findings.len() == 1 && findings[0].as_str().unwrap().contains(&addresses[0]), "{findings:?}");
    cluster.kill_donor(1);
    let (_, found) = check(&addresses);
    let lost = |finding: &&serde_json::Value| finding.as_str().unwrap().contains("no copy of it is right");
    assert_eq!(found["findings"].as_array().unwrap().iter().filter(lost).count(), 740);
}

#[test]
fn a_directory_has_a_hundred_thousand_names() {
    const COUNT: usize = 100_000;
    let cluster = Cluster::new(1, 1, false);
    let Some(mounted) = cluster.mount("a", &[]) else { return };
    let directory = mounted.point.join("many");
    fs::create_dir(&directory).unwrap();
    for number in 0..COUNT {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            directory.join(format!("name-{number}")),
            rustix::fs::FileType::RegularFile,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
    }
    let mut seen = vec![false; COUNT];
    for entry in fs::read_dir(&directory).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let number: usize = name.strip_prefix("name-").unwrap().parse().unwrap();
        assert!(!std::mem::replace(&mut seen[number], true), "{name} twice");
    }
    assert!(seen.into_iter().all(|seen| seen));
    mounted.end();
}

#[test]
fn fio_verifies_what_it_wrote_to_a_mount() {
    let has_fio = Command::new("fio").arg("--version").output().is_ok();
    if !has_fio {
        return skipped("no fio");
    }
    let cluster = Cluster::new(2, 2, false);
    let Some(mounted) = cluster.mount("a", &[]) else { return };
    for (name, options) in
        [("direct", "--direct=1 --bs=64k"), ("cached", "--direct=0 --bs=3k"), ("mapped", "--ioengine=mmap")]
    {
        let mut command = Command::new("fio");
        command.args(["--rw=randwrite", "--size=16M", "--verify=crc32c", "--verify_fatal=1", "--numjobs=2"]);
        command.arg("--verify_state_save=0");
        command.arg(format!("--name={name}")).arg("--directory").arg(&mounted.point).args(options.split(' '));
        let output = run(&mut command);
        assert!(output.status.success(), "{name}: {}{}", text(&output.stdout), text(&output.stderr));
    }
    mounted.end();
}

/// Two users that a test suite becomes, each with its group.
fn users() -> Option<String> {
    let groups = fs::read_to_string("/etc/group").ok()?;
    let has = |name: &str| groups.lines().any(|line| line.split(':').next() == Some(name));
    let nobody = ["nogroup", "nobody"].into_iter().find(|name| has(name))?;
    has("daemon").then(|| format!("[[\"nobody\", \"{nobody}\"], [\"daemon\", \"daemon\"]]"))
}

/// Leaves out two things: remounting for EROFS, for which the system has a helper that does not know this file system,
/// and links up to `LINK_MAX`, which Linux does not report for FUSE.
#[test]
fn pjdfstest_finds_nothing_on_a_mount() {
    let has_it = Command::new("pjdfstest").arg("--version").output().is_ok();
    if !has_it {
        return skipped("no pjdfstest");
    }
    if !sinew::host::is_root() {
        return skipped("not root");
    }
    let Some(users) = users() else { return skipped("no pjdfstest's users") };
    let cluster = Cluster::new(2, 2, false);
    let Some(mounted) = cluster.mount("a", &["--allow-other"]) else { return };
    // Lets the other users reach the mount.
    fs::set_permissions(&cluster.folder.0, fs::Permissions::from_mode(0o755)).unwrap();
    let config = cluster.folder.0.join("pjdfstest.toml");
    // No two changes of a file have the same time.
    let settings = format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nutime_now = {{}}\nutimensat = {{}}\nstat_st_birthtime = {{}}\n\
         [settings]\nnaptime = 0.02\nallow_remount = false\n[dummy_auth]\nentries = {users}\n"
    );
    fs::write(&config, settings).unwrap();
    let other = Path::new("/dev/shm");
    let mut command = Command::new("pjdfstest");
    command.current_dir(&cluster.folder.0).arg("-c").arg(&config).arg("-p").arg(&mounted.point);
    if other.is_dir() {
        command.arg("-s").arg(other);
    }
    let output = run(&mut command);
    let stdout = text(&output.stdout);
    assert!(output.status.success() && stdout.contains("Summary: 0 failed"), "{stdout}{}", text(&output.stderr));
    let passed = stdout.rsplit("Summary: ").next().unwrap().split(", ").find_map(|part| part.strip_suffix(" passed"));
    assert!(passed.unwrap().parse::<u32>().unwrap() > 300, "{stdout}");
    mounted.end();
}

/// Operations of fsx, with their relative frequency.
const FSX: &str = "flen = 1048576\n[opsize]\nmax = 131072\n[weights]\nclose_open = 1\nread = 10\nwrite = 10\n\
    mapread = 10\nmapwrite = 10\ntruncate = 3\ninvalidate = 1\nfsync = 1\nfdatasync = 1\npunch_hole = 3\n\
    sendfile = 2\nposix_fadvise = 1\nposix_fallocate = 1\ncopy_file_range = 2\n";

#[test]
fn fsx_finds_nothing_on_a_mount() {
    if Command::new("fsx").arg("--version").output().is_err() {
        return skipped("no fsx");
    }
    let cluster = Cluster::new(2, 2, false);
    let Some(mounted) = cluster.mount("a", &["--unwritten", "4M"]) else { return };
    let config = cluster.folder.0.join("fsx.toml");
    fs::write(&config, FSX).unwrap();
    for seed in 1..4 {
        let mut command = Command::new("fsx");
        command.args(["-N", "3000", "-S", &seed.to_string()]).arg("-f").arg(&config);
        command.arg("-P").arg(&cluster.folder.0).arg(mounted.point.join("file"));
        let output = run(&mut command);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success() && said.contains("A-OK"), "seed {seed}: {said}{}", mounted.log());
    }
    mounted.end();
}

#[test]
fn a_mount_in_the_background_ends_with_umount() {
    let cluster = Cluster::new(1, 1, false);
    let Some(first) = cluster.mount("a", &[]) else { return };
    first.end();
    let point = cluster.folder.0.join("b");
    fs::create_dir(&point).unwrap();
    let at = point.display().to_string();
    let output = run(&mut sinew(&["mount", &cluster.address, &at, "--background"]));
    assert!(output.status.success() && text(&output.stdout).contains("is mounted at"), "{output:?}");
    fs::write(point.join("file"), b"written").unwrap();
    assert!(run(Command::new("umount").arg(&point)).status.success());
    assert!(!is_mounted(&point));
    let Some(again) = cluster.mount("b", &["--read-only"]) else { return };
    assert_eq!(fs::read(again.point.join("file")).unwrap(), b"written");
    assert!(fs::write(again.point.join("file"), b"x").is_err());
    // Open files do not delay the end of the mount.
    let _open = File::open(again.point.join("file")).unwrap();
    again.end();
}

#[test]
fn a_mount_that_cannot_be_says_what_to_do() {
    let folder = Folder::new();
    let complaint = |address: &str, at: &Path| {
        let output = run(&mut sinew(&["mount", address, &at.display().to_string(), "--timeout", "1"]));
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let cluster = Cluster::new(1, 1, false);
    let Some(mounted) = cluster.mount("a", &[]) else { return };
    let none = complaint("shm://nobody-is-here", &folder.0);
    assert!(none.contains("serve files"), "{none}");
    let missing = complaint(&cluster.address, &folder.0.join("none"));
    assert!(missing.contains("mkdir -p"), "{missing}");
    fs::write(folder.0.join("file"), b"").unwrap();
    let file = complaint(&cluster.address, &folder.0.join("file"));
    assert!(file.contains("is not a directory"), "{file}");
    let busy = complaint(&cluster.address, &mounted.point);
    assert!(busy.contains("mount point already") && busy.contains("umount"), "{busy}");
    // No service hears of it.
    assert_eq!(complaint("shm://nobody-is-here", &mounted.point), busy);
    mounted.end();
}
