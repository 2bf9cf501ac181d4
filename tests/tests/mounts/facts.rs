//! POSIX's rules for files, as far as programs rely on them. Each fact has a directory of its own.
#![allow(dead_code)] // Each test program uses some of it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom as Whence, XattrFlags};
use rustix::io::Errno;
use sinew_conformance::skipped;

use super::mapping::Mapping;
use crate::common::{PATIENCE, Process};

pub type Fact = fn(&Path);

/// Facts that hold for all file systems here.
pub const ALL: &[(&str, Fact)] = &[
    ("a_name_is_there_once", a_name_is_there_once),
    ("names_are_255_bytes_at_most", names_are_255_bytes_at_most),
    ("directories_are_removed_when_they_are_empty", directories_are_removed_when_they_are_empty),
    ("a_rename_replaces_what_it_may", a_rename_replaces_what_it_may),
    ("a_rename_with_flags_replaces_nothing_or_exchanges", a_rename_with_flags_replaces_nothing_or_exchanges),
    ("links_are_counted", links_are_counted),
    ("symbolic_links_lead_where_they_say", symbolic_links_lead_where_they_say),
    ("a_file_without_names_lives_as_long_as_it_is_open", a_file_without_names_lives_as_long_as_it_is_open),
    ("modes_and_owners_are_kept", modes_and_owners_are_kept),
    ("times_are_those_of_changes_or_as_set", times_are_those_of_changes_or_as_set),
    ("what_is_cut_off_reads_as_zeros", what_is_cut_off_reads_as_zeros),
    ("appends_go_to_the_end", appends_go_to_the_end),
    ("holes_are_found_and_made", holes_are_found_and_made),
    ("direct_and_cached_reads_are_the_same", direct_and_cached_reads_are_the_same),
    ("a_mapping_is_the_file", a_mapping_is_the_file),
    ("large_files_are_as_they_were_written", large_files_are_as_they_were_written),
    ("programs_run", programs_run),
    ("a_program_that_runs_is_not_written", a_program_that_runs_is_not_written),
    ("pipes_and_sockets_have_names", pipes_and_sockets_have_names),
    ("an_open_file_excludes_others_by_locks", an_open_file_excludes_others_by_locks),
    ("locks_by_flock_and_by_fcntl_do_not_exclude_each_other", locks_by_flock_and_by_fcntl_do_not_exclude_each_other),
    ("a_listing_has_every_name_once", a_listing_has_every_name_once),
    ("there_is_room", there_is_room),
];

/// Facts that do not hold for files in memory.
pub const MORE: &[(&str, Fact)] = &[
    ("extended_attributes_are_kept", extended_attributes_are_kept),
    ("a_lock_is_waited_for", a_lock_is_waited_for),
    ("processes_that_wait_for_each_other_are_told", processes_that_wait_for_each_other_are_told),
    ("a_wait_for_a_lock_that_was_interrupted_is_over", a_wait_for_a_lock_that_was_interrupted_is_over),
];

fn error<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

fn names(directory: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(directory).unwrap().map(name).collect();
    names.sort();
    names
}

fn a_name_is_there_once(at: &Path) {
    let file = at.join("file");
    let new = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
    new(&file).unwrap().write_all(b"first").unwrap();
    assert_eq!(error(new(&file)), Some(Errno::EXIST));
    assert_eq!(error(fs::create_dir(&file)), Some(Errno::EXIST));
    assert_eq!(error(symlink("x", &file)), Some(Errno::EXIST));
    assert_eq!(fs::read(&file).unwrap(), b"first");
    fs::write(&file, b"2nd").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"2nd");
    fs::remove_file(&file).unwrap();
    assert_eq!(error(File::open(&file)), Some(Errno::NOENT));
    assert_eq!(error(fs::remove_file(&file)), Some(Errno::NOENT));
    assert_eq!(error(fs::write(at.join("no/file"), b"")), Some(Errno::NOENT));
    fs::write(&file, b"").unwrap();
    assert_eq!(error(fs::write(file.join("below"), b"")), Some(Errno::NOTDIR));
}

fn names_are_255_bytes_at_most(at: &Path) {
    let long = "n".repeat(255);
    fs::write(at.join(&long), b"x").unwrap();
    fs::rename(at.join(&long), at.join("m".repeat(255))).unwrap();
    let longer = at.join("n".repeat(256));
    assert_eq!(error(fs::write(&longer, b"x")), Some(Errno::NAMETOOLONG));
    assert_eq!(error(fs::create_dir(&longer)), Some(Errno::NAMETOOLONG));
    assert_eq!(error(fs::metadata(&longer)), Some(Errno::NAMETOOLONG));
    assert_eq!(error(fs::rename(at.join("m".repeat(255)), &longer)), Some(Errno::NAMETOOLONG));
    let odd = "\u{e4} \n\t'\"*?";
    fs::write(at.join(odd), b"odd").unwrap();
    assert_eq!(names(at), ["m".repeat(255), odd.to_owned()]);
}

fn directories_are_removed_when_they_are_empty(at: &Path) {
    let (outer, inner) = (at.join("a"), at.join("a/b"));
    fs::create_dir_all(&inner).unwrap();
    assert_eq!(fs::metadata(&outer).unwrap().nlink(), 3);
    assert_eq!(error(fs::remove_dir(&outer)), Some(Errno::NOTEMPTY));
    assert_eq!(error(fs::remove_file(&outer)), Some(Errno::ISDIR));
    fs::write(inner.join("f"), b"").unwrap();
    assert_eq!(error(fs::remove_dir(&inner)), Some(Errno::NOTEMPTY));
    assert_eq!(error(fs::remove_dir(inner.join("f"))), Some(Errno::NOTDIR));
    fs::remove_file(inner.join("f")).unwrap();
    fs::remove_dir(&inner).unwrap();
    assert_eq!(fs::metadata(&outer).unwrap().nlink(), 2);
    fs::remove_dir(&outer).unwrap();
    assert_eq!(error(fs::read_dir(&outer)), Some(Errno::NOENT));
}

fn a_rename_replaces_what_it_may(at: &Path) {
    let path = |name: &str| at.join(name);
    fs::write(path("f"), b"f").unwrap();
    fs::write(path("g"), b"g").unwrap();
    fs::create_dir_all(path("d/e")).unwrap();
    fs::create_dir(path("empty")).unwrap();
    fs::rename(path("f"), path("g")).unwrap();
    assert_eq!((fs::read(path("g")).unwrap(), error(fs::metadata(path("f")))), (b"f".to_vec(), Some(Errno::NOENT)));
    assert_eq!(error(fs::rename(path("g"), path("empty"))), Some(Errno::ISDIR));
    assert_eq!(error(fs::rename(path("d"), path("g"))), Some(Errno::NOTDIR));
    assert_eq!(error(fs::rename(path("empty"), path("d"))), Some(Errno::NOTEMPTY));
    assert_eq!(error(fs::rename(path("d"), path("d/e/x"))), Some(Errno::INVAL));
    assert_eq!(error(fs::rename(path("none"), path("g"))), Some(Errno::NOENT));
    fs::rename(path("d"), path("empty")).unwrap();
    assert_eq!(names(&path("empty")), ["e"]);
    fs::hard_link(path("g"), path("h")).unwrap();
    fs::rename(path("g"), path("h")).unwrap();
    assert!(path("g").exists() && path("h").exists(), "two names of one file are left as they are");
    let mut open = File::open(path("h")).unwrap();
    fs::write(path("new"), b"new").unwrap();
    fs::rename(path("new"), path("h")).unwrap();
    let mut had = String::new();
    open.read_to_string(&mut had).unwrap();
    assert_eq!((&*had, fs::read(path("h")).unwrap()), ("f", b"new".to_vec()));
    // A rename between directories changes their counts of links.
    fs::create_dir(path("other")).unwrap();
    fs::rename(path("empty/e"), path("other/e")).unwrap();
    let links = |name: &str| fs::metadata(path(name)).unwrap().nlink();
    assert_eq!((links("empty"), links("other")), (2, 3));
}

fn a_rename_with_flags_replaces_nothing_or_exchanges(at: &Path) {
    let here = File::open(at).unwrap();
    let rename = |from: &str, to: &str, flags| rustix::fs::renameat_with(&here, from, &here, to, flags);
    fs::write(at.join("a"), b"a").unwrap();
    fs::create_dir(at.join("d")).unwrap();
    assert_eq!(rename("a", "d", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    assert_eq!(rename("a", "none", RenameFlags::EXCHANGE), Err(Errno::NOENT));
    rename("a", "d", RenameFlags::EXCHANGE).unwrap();
    assert!(at.join("a").is_dir() && fs::read(at.join("d")).unwrap() == b"a");
    rename("d", "new", RenameFlags::NOREPLACE).unwrap();
    assert_eq!(names(at), ["a", "new"]);
}

fn links_are_counted(at: &Path) {
    fs::write(at.join("a"), b"content").unwrap();
    fs::hard_link(at.join("a"), at.join("b")).unwrap();
    let of = |name: &str| fs::metadata(at.join(name)).unwrap();
    assert_eq!((of("a").nlink(), of("b").nlink(), of("a").ino()), (2, 2, of("b").ino()));
    fs::write(at.join("b"), b"changed").unwrap();
    assert_eq!(fs::read(at.join("a")).unwrap(), b"changed");
    fs::remove_file(at.join("a")).unwrap();
    assert_eq!((of("b").nlink(), fs::read(at.join("b")).unwrap()), (1, b"changed".to_vec()));
    fs::create_dir(at.join("d")).unwrap();
    assert_eq!(error(fs::hard_link(at.join("d"), at.join("e"))), Some(Errno::PERM));
    assert_eq!(error(fs::hard_link(at.join("b"), at.join("d"))), Some(Errno::EXIST));
}

fn symbolic_links_lead_where_they_say(at: &Path) {
    symlink("target", at.join("link")).unwrap();
    assert_eq!(fs::read_link(at.join("link")).unwrap(), Path::new("target"));
    assert_eq!(error(fs::read(at.join("link"))), Some(Errno::NOENT));
    fs::write(at.join("link"), b"through").unwrap();
    assert_eq!(fs::read(at.join("target")).unwrap(), b"through");
    assert!(fs::symlink_metadata(at.join("link")).unwrap().is_symlink());
    assert_eq!(fs::symlink_metadata(at.join("link")).unwrap().len(), 6);
    let long = "x/".repeat(2000);
    symlink(&long, at.join("long")).unwrap();
    assert_eq!(fs::read_link(at.join("long")).unwrap().as_os_str().len(), long.len());
    symlink("loop", at.join("loop")).unwrap();
    assert_eq!(error(fs::read(at.join("loop"))), Some(Errno::LOOP));
    fs::remove_file(at.join("link")).unwrap();
    assert_eq!(fs::read(at.join("target")).unwrap(), b"through");
}

fn a_file_without_names_lives_as_long_as_it_is_open(at: &Path) {
    let path = at.join("file");
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    file.write_all(b"still ").unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all(b"here").unwrap();
    file.sync_all().unwrap();
    let mut read = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut read).unwrap();
    assert_eq!((&*read, file.metadata().unwrap().nlink()), ("still here", 0));
    file.set_len(5).unwrap();
    fs::write(&path, b"another").unwrap();
    assert_eq!((file.metadata().unwrap().len(), fs::read(&path).unwrap()), (5, b"another".to_vec()));
}

fn modes_and_owners_are_kept(at: &Path) {
    let path = at.join("file");
    OpenOptions::new().write(true).create_new(true).mode(0o640).open(&path).unwrap();
    let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
    assert_eq!(mode(), 0o640 & !umask());
    for wanted in [0o000, 0o755, 0o4711, 0o2755, 0o1777, 0o600] {
        fs::set_permissions(&path, Permissions::from_mode(wanted)).unwrap();
        assert_eq!(mode(), wanted);
    }
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (12, 34));
        let directory = at.join("d");
        fs::create_dir(&directory).unwrap();
        std::os::unix::fs::chown(&directory, None, Some(56)).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o2755)).unwrap();
        fs::write(directory.join("f"), b"").unwrap();
        fs::create_dir(directory.join("e")).unwrap();
        let of = |name: &str| fs::metadata(directory.join(name)).unwrap();
        assert_eq!((of("f").gid(), of("e").gid(), of("e").mode() & 0o2000), (56, 56, 0o2000));
    }
}

fn umask() -> u32 {
    let was = rustix::process::umask(Mode::empty());
    rustix::process::umask(was);
    was.bits()
}

fn times_are_those_of_changes_or_as_set(at: &Path) {
    let path = at.join("file");
    let file = File::create(&path).unwrap();
    let early = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    let modified = || fs::metadata(&path).unwrap().modified().unwrap();
    file.set_modified(early).unwrap();
    assert_eq!(modified(), early);
    let before = SystemTime::now() - Duration::from_secs(2);
    (&file).write_all(b"x").unwrap();
    assert!(modified() >= before, "{:?}", modified());
    // This is what `cp -p` does: an earlier write does not count as a later change.
    file.set_modified(early).unwrap();
    drop(file);
    assert_eq!(modified(), early);
    let changed = |path: &Path| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.ctime(), metadata.ctime_nsec())
    };
    let was = changed(&path);
    std::thread::sleep(Duration::from_millis(20));
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert!(changed(&path) > was && modified() == early);
    let of_directory = |at: &Path| fs::metadata(at).unwrap().modified().unwrap();
    let was = of_directory(at);
    std::thread::sleep(Duration::from_millis(20));
    fs::remove_file(&path).unwrap();
    assert!(of_directory(at) > was);
    let old = UNIX_EPOCH - Duration::from_secs(1000);
    let file = File::create(&path).unwrap();
    file.set_modified(old).unwrap();
    assert_eq!(modified(), old);
}

fn what_is_cut_off_reads_as_zeros(at: &Path) {
    let path = at.join("file");
    fs::write(&path, vec![7; 10_000]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.set_len(5_000).unwrap();
    file.set_len(20_000).unwrap();
    let mut expected = vec![7; 5_000];
    expected.resize(20_000, 0);
    assert!(fs::read(&path).unwrap() == expected);
    file.write_all_at(b"end", 19_999).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 20_002);
    file.set_len(0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
    file.write_all_at(b"far", 1 << 30).unwrap();
    let mut bytes = [1; 4];
    assert_eq!(file.read_at(&mut bytes, (1 << 30) - 1).unwrap(), 4);
    assert_eq!(&bytes, b"\0far");
    fs::write(&path, b"short").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"short");
}

fn appends_go_to_the_end(at: &Path) {
    let path = at.join("file");
    let open = || OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let (mut one, mut other) = (open(), open());
    for number in 0..100 {
        one.write_all(format!("one {number}\n").as_bytes()).unwrap();
        other.write_all(format!("other {number}\n").as_bytes()).unwrap();
    }
    let lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
    let expected: Vec<String> = (0..100).flat_map(|n| [format!("one {n}"), format!("other {n}")]).collect();
    assert_eq!(lines, expected);
}

fn holes_are_found_and_made(at: &Path) {
    const MB: u64 = 1 << 20;
    let path = at.join("file");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let seek = |from| rustix::fs::seek(&file, from);
    file.write_all_at(&vec![1; 2 * MB as usize], 4 * MB).unwrap();
    assert_eq!((seek(Whence::Data(0)), seek(Whence::Hole(0))), (Ok(4 * MB), Ok(0)));
    assert_eq!((seek(Whence::Hole(4 * MB)), seek(Whence::Data(6 * MB))), (Ok(6 * MB), Err(Errno::NXIO)));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 4 * MB, MB).unwrap();
    assert_eq!((seek(Whence::Data(0)), file.metadata().unwrap().len()), (Ok(5 * MB), 6 * MB));
    // A hole need not be of whole pages.
    rustix::fs::fallocate(&file, punch, 5 * MB + 100, 10_000).unwrap();
    let mut bytes = vec![9; 10_200];
    file.read_exact_at(&mut bytes, 5 * MB).unwrap();
    assert!(bytes[..100] == [1; 100] && bytes[100..10_100] == [0; 10_000] && bytes[10_100..] == [1; 100]);
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 6 * MB - 5, 10).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 6 * MB + 5);
    let mut bytes = [9; 11];
    file.read_exact_at(&mut bytes, 6 * MB - 6).unwrap();
    assert_eq!(bytes, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 7 * MB).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 9 * MB).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 7 * MB);
    assert_eq!(rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, MB), Err(Errno::OPNOTSUPP));
}

fn direct_and_cached_reads_are_the_same(at: &Path) {
    const LEN: usize = 3 << 20;
    let path = at.join("file");
    let bytes: Vec<u8> = (0..LEN).map(|at| ((at * 31) >> 7) as u8).collect();
    let direct = |options: &mut OpenOptions| options.custom_flags(OFlags::DIRECT.bits() as i32).open(&path).unwrap();
    let writer = direct(OpenOptions::new().write(true).create(true).truncate(true));
    let mut aligned = vec![0; LEN + 4096];
    let start = aligned.as_ptr().align_offset(4096);
    aligned[start..start + LEN].copy_from_slice(&bytes);
    writer.write_all_at(&aligned[start..start + LEN], 0).unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
    let cached = OpenOptions::new().write(true).open(&path).unwrap();
    cached.write_all_at(b"between", 1 << 20).unwrap();
    let reader = direct(OpenOptions::new().read(true));
    let target = &mut aligned[start..start + LEN];
    reader.read_exact_at(target, 0).unwrap();
    let mut expected = bytes;
    expected[1 << 20..(1 << 20) + 7].copy_from_slice(b"between");
    assert!(*target == expected);
    target[..4096].fill(5);
    writer.write_all_at(&target[..4096], 8192).unwrap();
    expected[8192..12288].fill(5);
    assert!(fs::read(&path).unwrap() == expected);
}

fn a_mapping_is_the_file(at: &Path) {
    for flags in [OFlags::empty(), OFlags::DIRECT] {
        let path = at.join(format!("file-{}", flags.bits()));
        fs::write(&path, vec![1; 20_000]).unwrap();
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(flags.bits() as i32).open(&path).unwrap();
        let mut mapping = Mapping::new(&file, 20_000);
        mapping.write(9_000, b"mapped");
        mapping.sync();
        let mut bytes = [0; 8];
        File::open(&path).unwrap().read_exact_at(&mut bytes, 8_999).unwrap();
        assert_eq!(&bytes, b"\x01mapped\x01");
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"WRITTEN", 12_000).unwrap();
        let mut bytes = [0; 7];
        mapping.read(12_000, &mut bytes);
        assert_eq!(&bytes, b"WRITTEN");
        drop(file);
        mapping.write(0, b"last");
        drop(mapping);
        assert_eq!(&fs::read(&path).unwrap()[..6], b"last\x01\x01");
    }
}

fn large_files_are_as_they_were_written(at: &Path) {
    const MB: usize = 1 << 20;
    let path = at.join("file");
    let block = |number: usize| -> Vec<u8> { (0..MB).map(|at| ((at * 7 + number * 13) >> 3) as u8).collect() };
    let mut file = File::create(&path).unwrap();
    for number in 0..96 {
        file.write_all(&block(number)).unwrap();
    }
    drop(file);
    let mut file = File::open(&path).unwrap();
    let mut bytes = vec![0; MB];
    for number in 0..96 {
        file.read_exact(&mut bytes).unwrap();
        assert!(bytes == block(number), "block {number}");
    }
    assert_eq!(file.read(&mut bytes).unwrap(), 0);
    let copy = at.join("copy");
    fs::copy(&path, &copy).unwrap();
    let same = Command::new("cmp").arg(&path).arg(&copy).status().unwrap();
    assert!(same.success());
}

fn programs_run(at: &Path) {
    let program = at.join("true");
    fs::copy("/bin/true", &program).unwrap();
    assert!(Command::new(&program).status().unwrap().success());
    fs::set_permissions(&program, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(Command::new(&program).status().unwrap_err().kind(), ErrorKind::PermissionDenied);
}

fn a_program_that_runs_is_not_written(at: &Path) {
    let (file, original) = (at.join("program"), fs::read("/bin/sleep").unwrap());
    fs::write(&file, &original).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let mut running = Command::new(&file).arg("60").spawn().unwrap();
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::TRUNC, OFlags::WRONLY | OFlags::TRUNC] {
        let opened = rustix::fs::open(&file, flags, Mode::empty());
        assert_eq!(opened.err(), Some(Errno::TXTBSY), "{flags:?}");
    }
    assert!(fs::read(&file).unwrap() == original);
    assert!(running.try_wait().unwrap().is_none(), "it has ended");
    running.kill().unwrap();
    running.wait().unwrap();
}

fn pipes_and_sockets_have_names(at: &Path) {
    let listener = std::os::unix::net::UnixListener::bind(at.join("socket")).unwrap();
    assert!(fs::metadata(at.join("socket")).unwrap().file_type().is_socket());
    let _stream = std::os::unix::net::UnixStream::connect(at.join("socket")).unwrap();
    drop(listener);
    rustix::fs::mkfifoat(rustix::fs::CWD, at.join("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
    assert!(fs::metadata(at.join("pipe")).unwrap().file_type().is_fifo());
    let (path, read) = (at.join("pipe"), at.join("pipe"));
    let writer = std::thread::spawn(move || fs::write(path, b"through the pipe"));
    assert_eq!(fs::read(read).unwrap(), b"through the pipe");
    writer.join().unwrap().unwrap();
}

fn an_open_file_excludes_others_by_locks(at: &Path) {
    let path = at.join("file");
    let (one, other) = (File::create(&path).unwrap(), File::open(&path).unwrap());
    one.lock().unwrap();
    assert!(other.try_lock_shared().is_err());
    one.unlock().unwrap();
    other.try_lock_shared().unwrap();
    one.try_lock_shared().unwrap();
    assert!(one.try_lock().is_err());
    // The kernel does not wait until the file system knows that a file is closed.
    drop(other);
    let began = Instant::now();
    while let Err(error) = one.try_lock() {
        assert!(began.elapsed() < PATIENCE, "{error}");
    }
}

fn locks_by_flock_and_by_fcntl_do_not_exclude_each_other(at: &Path) {
    use rustix::fs::FlockOperation::{NonBlockingLockExclusive, NonBlockingUnlock};
    let path = at.join("file");
    let (one, other) = (File::create(&path).unwrap(), OpenOptions::new().write(true).open(&path).unwrap());
    let fcntl = |file: &File, how| rustix::fs::fcntl_lock(file, how);
    one.lock().unwrap();
    fcntl(&other, NonBlockingLockExclusive).unwrap();
    assert!(other.try_lock_shared().is_err(), "each excludes its like");
    // Each ends without the other.
    one.unlock().unwrap();
    other.try_lock().unwrap();
    let locks = |how: &str| {
        let script = format!("import fcntl, sys; fcntl.{how}(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)");
        Command::new("python3").args(["-c", &script]).arg(&path).stderr(std::process::Stdio::null()).status()
    };
    if locks("lockf").is_ok() {
        assert!(!locks("lockf").unwrap().success() && !locks("flock").unwrap().success());
        fcntl(&one, NonBlockingUnlock).unwrap();
        assert!(locks("lockf").unwrap().success() && !locks("flock").unwrap().success());
    }
    fcntl(&one, NonBlockingLockExclusive).unwrap();
    drop(other);
    let began = Instant::now();
    while let Err(error) = one.try_lock() {
        assert!(began.elapsed() < PATIENCE, "{error}");
    }
}

fn a_listing_has_every_name_once(at: &Path) {
    let expected: Vec<String> = (0..2_500).map(|number| format!("file-{number:05}")).collect();
    for name in &expected {
        File::create(at.join(name)).unwrap();
    }
    assert_eq!(names(at), expected);
    // A name that is removed during a listing is still listed, and no other is missed.
    let mut seen = Vec::new();
    for (number, entry) in fs::read_dir(at).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if number % 2 == 0 {
            fs::remove_file(at.join(&name)).unwrap();
        }
        seen.push(name);
    }
    seen.sort();
    assert_eq!((seen, names(at).len()), (expected, 1_250));
    fs::remove_dir_all(at).unwrap();
}

fn there_is_room(at: &Path) {
    let before = rustix::fs::statvfs(at).unwrap();
    assert!(before.f_bavail > 0 && before.f_bavail <= before.f_blocks && before.f_namemax == 255);
    let file = File::create(at.join("file")).unwrap();
    (&file).write_all(&vec![1; 8 << 20]).unwrap();
    file.sync_all().unwrap();
    let after = rustix::fs::statvfs(at).unwrap();
    assert!(after.f_bfree + (8 << 20) / after.f_bsize <= before.f_bfree, "{} {}", before.f_bfree, after.f_bfree);
    assert_eq!(file.metadata().unwrap().blocks(), (8 << 20) / 512);
}

fn extended_attributes_are_kept(at: &Path) {
    let path = at.join("file");
    fs::write(&path, b"").unwrap();
    let get = |name: &str| {
        let mut value = Vec::with_capacity(70_000);
        rustix::fs::getxattr(&path, name, rustix::buffer::spare_capacity(&mut value)).map(|_| value)
    };
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    assert_eq!(get("user.a"), Err(Errno::NODATA));
    assert_eq!(set("user.a", b"1", XattrFlags::REPLACE), Err(Errno::NODATA));
    set("user.a", b"one", XattrFlags::CREATE).unwrap();
    assert_eq!(set("user.a", b"1", XattrFlags::CREATE), Err(Errno::EXIST));
    set("user.b", &[7; 10_000], XattrFlags::empty()).unwrap();
    assert_eq!((get("user.a"), get("user.b").map(|value| value.len())), (Ok(b"one".to_vec()), Ok(10_000)));
    let mut list = Vec::with_capacity(1000);
    rustix::fs::listxattr(&path, rustix::buffer::spare_capacity(&mut list)).unwrap();
    assert_eq!(list, b"user.a\0user.b\0");
    let mut short = [0; 2];
    assert_eq!(rustix::fs::getxattr(&path, "user.a", &mut short[..]), Err(Errno::RANGE));
    rustix::fs::removexattr(&path, "user.a").unwrap();
    assert_eq!((get("user.a"), rustix::fs::removexattr(&path, "user.a")), (Err(Errno::NODATA), Err(Errno::NODATA)));
}

fn a_lock_is_waited_for(at: &Path) {
    let path = at.join("file");
    let holder = File::create(&path).unwrap();
    holder.lock().unwrap();
    // One waiter is killed, and another gets the lock once it is free.
    let wait = |what: &str| Command::new("flock").arg(&path).args(["echo", what]).spawn().unwrap();
    let mut killed = wait("killed");
    std::thread::sleep(Duration::from_millis(200));
    killed.kill().unwrap();
    assert!(!killed.wait().unwrap().success());
    let mut waiter = wait("waited");
    std::thread::sleep(Duration::from_millis(100));
    assert!(waiter.try_wait().unwrap().is_none());
    holder.unlock().unwrap();
    assert!(waiter.wait().unwrap().success());
}

fn processes_that_wait_for_each_other_are_told(at: &Path) {
    lock_crosswise(at, at);
}

fn a_wait_for_a_lock_that_was_interrupted_is_over(at: &Path) {
    lock_after_waits(at, at);
}

/// Processes, each at a mount of the same directory, of which one waits for a lock until it is interrupted, and another
/// until it is killed. Nobody who asks later is kept from a lock by these waits.
pub fn lock_after_waits(one: &Path, other: &Path) {
    const SCRIPT: &str = "import fcntl, signal, sys
def interrupt(*_):
    raise TimeoutError
signal.signal(signal.SIGALRM, interrupt)
own, wanted = [open(path, 'a') for path in sys.argv[1:]]
fcntl.lockf(own, fcntl.LOCK_EX, 1)
print('own', flush=True)
for seconds in iter(sys.stdin.readline, ''):
    signal.setitimer(signal.ITIMER_REAL, float(seconds))
    try:
        fcntl.lockf(wanted, fcntl.LOCK_EX, 1)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print('both', flush=True)
    except TimeoutError:
        print('interrupted', flush=True)
    except OSError as error:
        print(error, flush=True)
";
    struct Locker {
        process: Process,
        output: BufReader<ChildStdout>,
    }
    impl Locker {
        fn start(at: &Path, own: &str, wanted: &str) -> Option<Self> {
            let mut command = Command::new("python3");
            command.args(["-c", SCRIPT]).args([at.join(own), at.join(wanted)]);
            let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok().map(Process)?;
            let output = BufReader::new(process.0.stdout.take().unwrap());
            Some(Self { process, output })
        }

        fn next(&mut self) -> String {
            let mut line = String::new();
            self.output.read_line(&mut line).unwrap();
            line.trim().to_owned()
        }

        /// Asks for the other lock, for so many seconds.
        fn ask(&mut self, seconds: &str) {
            self.process.0.stdin.as_mut().unwrap().write_all(format!("{seconds}\n").as_bytes()).unwrap();
        }

        fn end(&mut self) {
            drop(self.process.0.stdin.take());
            assert!(self.process.wait().success());
        }
    }
    let (Some(mut first), Some(mut second)) = (Locker::start(one, "p", "q"), Locker::start(other, "q", "p")) else {
        return skipped("no python3");
    };
    assert_eq!([first.next(), second.next()], ["own", "own"]);
    second.ask("0.3");
    assert_eq!(second.next(), "interrupted");
    // If the second still counted as waiting for the first, this would be refused.
    first.ask("60");
    std::thread::sleep(Duration::from_millis(200));
    second.end();
    assert_eq!(first.next(), "both");
    let mut killed = Locker::start(other, "r", "p").unwrap();
    assert_eq!(killed.next(), "own");
    killed.ask("60");
    std::thread::sleep(Duration::from_millis(200));
    killed.process.0.kill().unwrap();
    assert!(!killed.process.wait().success());
    first.end();
    let mut last = Locker::start(one, "r", "p").unwrap();
    last.ask("60");
    assert_eq!([last.next(), last.next()], ["own", "both"]);
    last.end();
}

/// Two processes, each at a mount of the same directory, lock a byte of one file and wait for that of the other's.
pub fn lock_crosswise(one: &Path, other: &Path) {
    const SCRIPT: &str = "import errno, fcntl, sys
own, wanted = [open(path, 'a') for path in sys.argv[1:]]
fcntl.lockf(own, fcntl.LOCK_EX, 1)
print('own', flush=True)
sys.stdin.readline()
try:
    fcntl.lockf(wanted, fcntl.LOCK_EX, 1)
    print('both')
except OSError as error:
    print('refused' if error.errno == errno.EDEADLK else error)
";
    let start = |at: &Path, own: &str, wanted: &str| {
        let mut command = Command::new("python3");
        command.args(["-c", SCRIPT]).args([at.join(own), at.join(wanted)]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok().map(Process)
    };
    let (Some(one), Some(other)) = (start(one, "a", "b"), start(other, "b", "a")) else {
        return skipped("no python3");
    };
    let mut both = [one, other].map(|mut process| (BufReader::new(process.0.stdout.take().unwrap()), process));
    let next = |output: &mut BufReader<ChildStdout>| {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    for (output, _) in &mut both {
        assert_eq!(next(output), "own");
    }
    for (_, process) in &mut both {
        drop(process.0.stdin.take());
    }
    let mut results = both.map(|(mut output, mut process)| {
        assert!(process.wait().success());
        next(&mut output)
    });
    results.sort();
    assert_eq!(results, ["both", "refused"], "when one is refused and ends, the other gets its lock");
}
