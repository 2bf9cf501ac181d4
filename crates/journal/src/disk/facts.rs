//! Facts that hold for every disk that does not crash.

use super::{Disk, DiskError};

/// Checks all facts, each on a fresh disk.
///
/// # Panics
///
/// When a fact does not hold.
pub fn all<D: Disk>(mut fresh: impl FnMut() -> D) {
    what_was_appended_is_read(&mut fresh());
    names_are_of_one_file_each(&mut fresh());
    room_that_is_reserved_is_no_part_of_a_file(&mut fresh());
    what_is_not_there_is_said_so(&mut fresh());
}

fn what_was_appended_is_read(disk: &mut impl Disk) {
    disk.create("a").unwrap();
    assert_eq!(disk.read("a").unwrap(), b"");
    disk.append("a", b"one").unwrap();
    disk.append("a", b"two").unwrap();
    disk.sync("a").unwrap();
    assert_eq!(disk.read("a").unwrap(), b"onetwo");
    disk.truncate("a", 4).unwrap();
    disk.append("a", b"x").unwrap();
    assert_eq!(disk.read("a").unwrap(), b"onetx");
    disk.create("a").unwrap();
    disk.append("a", b"y").unwrap();
    assert_eq!(disk.read("a").unwrap(), b"y");
}

fn names_are_of_one_file_each(disk: &mut impl Disk) {
    assert_eq!(disk.names().unwrap(), Vec::<String>::new());
    for name in ["a", "b", "c"] {
        disk.create(name).unwrap();
        disk.append(name, name.as_bytes()).unwrap();
    }
    disk.rename("a", "b").unwrap();
    disk.remove("c").unwrap();
    disk.sync_names().unwrap();
    assert_eq!(disk.names().unwrap(), ["b"]);
    disk.append("b", b"+").unwrap();
    assert_eq!(disk.read("b").unwrap(), b"a+");
}

fn room_that_is_reserved_is_no_part_of_a_file(disk: &mut impl Disk) {
    disk.create("a").unwrap();
    disk.append("a", b"1").unwrap();
    disk.reserve("a", 100_000).unwrap();
    assert_eq!(disk.read("a").unwrap(), b"1");
    disk.append("a", b"2").unwrap();
    assert_eq!(disk.read("a").unwrap(), b"12");
}

fn what_is_not_there_is_said_so(disk: &mut impl Disk) {
    let missing = DiskError::NotFound("a".to_owned());
    assert_eq!(disk.read("a"), Err(missing.clone()));
    assert_eq!(disk.append("a", b"1"), Err(missing.clone()));
    assert_eq!(disk.sync("a"), Err(missing.clone()));
    assert_eq!(disk.rename("a", "b"), Err(missing.clone()));
    assert_eq!(disk.remove("a"), Err(missing));
}
