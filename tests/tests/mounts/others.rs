//! A file's privileges when users change it. Only root can check these facts, at a mount that lets others in.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, XattrFlags, fallocate, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use rustix::thread::set_thread_res_uid;

use super::mapping::Mapping;

/// A user who is not root.
const OTHER: u32 = 54_321;
const CAPABILITY: &str = "security.capability";
/// Revision 2: one permitted capability, no inherited one.
const VALUE: [u8; 20] = [0, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const LEN: usize = 64 << 10;

type Act = fn(&Path);

/// Acts that count as a change on every file system.
const CHANGES: &[(&str, Act)] = &[
    ("write", |path| open(path).write_all_at(b"x", 7).unwrap()),
    ("direct", |path| {
        let file = OpenOptions::new().write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path).unwrap();
        let page = Aligned([9; 4096]);
        file.write_all_at(&page.0, 0).unwrap();
    }),
    ("truncate", |path| open(path).set_len(5).unwrap()),
    ("allocate", |path| fallocate(open(path), FallocateFlags::empty(), 0, 2 * LEN as u64).unwrap()),
    ("punch", |path| {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(open(path), how, 0, 4096).unwrap();
    }),
];

/// An act that counts as a change here, but not on Linux's own file systems.
const MAPPED: (&str, Act) = ("map", |path| {
    let mut mapping = Mapping::new(&open(path), LEN);
    mapping.write(5, b"mapped");
    mapping.sync();
});

#[repr(align(4096))]
struct Aligned([u8; 4096]);

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Acts as another user, on a thread of its own.
fn by_another<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let run = || {
        let user = rustix::thread::Uid::from_raw(OTHER);
        set_thread_res_uid(user, user, user).unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// Lets other users into a test's folder, which is its user's alone.
pub fn let_in(folder: &Path) {
    fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
}

fn fresh(path: &Path, mode: u32) {
    let _ = fs::remove_file(path);
    fs::write(path, vec![3; LEN]).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

pub fn set_id_bits_go_when_others_change_the_file(at: &Path, is_ours: bool) {
    let path = at.join("program");
    for (name, act) in CHANGES.iter().chain(is_ours.then_some(&MAPPED)) {
        fresh(&path, 0o6777);
        assert_eq!(mode(&path), 0o6777);
        by_another(|| act(&path));
        assert_eq!(mode(&path), 0o777, "{name} by another");
        fresh(&path, 0o2767);
        by_another(|| act(&path));
        assert_eq!(mode(&path), 0o2767, "{name}: whose group may not execute it");
        fresh(&path, 0o6777);
        act(&path);
        assert_eq!(mode(&path), 0o6777, "{name} by root");
    }
}

fn capability(path: &Path) -> Result<usize, Errno> {
    getxattr(path, CAPABILITY, &mut [0; 64])
}

pub fn capabilities_are_roots_to_set_and_go_when_the_file_changes(at: &Path) {
    let path = at.join("program");
    fresh(&path, 0o777);
    let set = || setxattr(&path, CAPABILITY, &VALUE, XattrFlags::empty());
    assert_eq!(by_another(|| capability(&path)), Err(Errno::NODATA));
    by_another(|| open(&path).write_all_at(b"no need", 0).unwrap());
    assert_eq!(by_another(set), Err(Errno::PERM));
    set().unwrap();
    assert_eq!(by_another(|| removexattr(&path, CAPABILITY)), Err(Errno::PERM));
    assert_eq!(by_another(|| capability(&path)), Ok(VALUE.len()));
    removexattr(&path, CAPABILITY).unwrap();
    assert_eq!(capability(&path), Err(Errno::NODATA));
    let given: (&str, Act) = ("chown", |path| chown(path, Some(7), None).unwrap());
    for (name, act) in CHANGES.iter().chain([&given]) {
        fresh(&path, 0o777);
        if *name != "chown" {
            set().unwrap();
            by_another(|| act(&path));
            assert_eq!(capability(&path), Err(Errno::NODATA), "{name} by another");
        }
        set().unwrap();
        act(&path);
        assert_eq!(capability(&path), Err(Errno::NODATA), "{name} by root");
    }
    // A user that has the file open may write to it, whatever its mode is by now.
    fresh(&path, 0o777);
    let file = by_another(|| open(&path));
    fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    set().unwrap();
    by_another(|| file.write_all_at(b"x", 0).unwrap());
    assert_eq!(capability(&path), Err(Errno::NODATA));
}
