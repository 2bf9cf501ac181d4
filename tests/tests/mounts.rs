//! Mounts, as programs see them: files in memory behind the front, and the remote file system.

mod common;
mod mounts {
    pub mod facts;
    pub mod mapping;
    #[allow(dead_code)] // Files in memory have no extended attributes.
    pub mod others;
    pub mod random;
}

use std::path::{Path, PathBuf};

use common::Folder;
use common::rights::can_mount;
use mounts::{facts, others, random};
use sinew_conformance::skipped;
use sinew_mount::files::Caller;
use sinew_mount::{InMemory, Mount, Options};

/// Mounts files in memory at a folder; `None` where nothing can be mounted.
fn in_memory(folder: &Folder, options: &Options) -> Option<Mount<InMemory>> {
    let me = Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        ..Caller::default()
    };
    can_mount().then(|| Mount::new(InMemory::new(1 << 34, &me), &folder.0, options).unwrap())
}

/// Checks each fact in a directory of its own.
fn hold(facts: &[(&str, facts::Fact)], root: &Path) {
    for (name, fact) in facts {
        let directory: PathBuf = root.join(name);
        std::fs::create_dir(&directory).unwrap();
        eprintln!("{name}");
        fact(&directory);
    }
}

#[test]
fn files_in_memory_are_as_posix_has_them() {
    let folder = Folder::new();
    let Some(mount) = in_memory(&folder, &Options::new("memory")) else { return };
    hold(facts::ALL, mount.point());
    assert_eq!(mount.unmount().unwrap(), sinew_mount::Unmounted::Unused);
}

#[test]
fn random_steps_on_files_in_memory_are_as_in_their_shadows() {
    let folder = Folder::new();
    let Some(mount) = in_memory(&folder, &Options::new("memory")) else { return };
    for seed in 0..8 {
        random::run(mount.point(), seed, 400, 300_000);
    }
}

#[test]
fn set_id_bits_go_when_others_change_files_as_on_the_systems_own_file_systems() {
    if !rustix::process::geteuid().is_root() {
        return skipped("not root");
    }
    let (folder, local) = (Folder::new(), Folder::new());
    others::let_in(&local.0);
    others::set_id_bits_go_when_others_change_the_file(&local.0, false);
    let options = Options { allow_other: true, ..Options::new("memory") };
    let Some(mount) = in_memory(&folder, &options) else { return };
    others::let_in(mount.point());
    others::set_id_bits_go_when_others_change_the_file(mount.point(), true);
}

#[test]
fn what_was_mounted_after_someone_unmounted_a_file_system_stays_when_that_one_ends() {
    let folder = Folder::new();
    for has_ended in [false, true] {
        let Some(first) = in_memory(&folder, &Options::new("first")) else { return };
        let unmounted = rustix::mount::unmount(&folder.0, rustix::mount::UnmountFlags::empty());
        if unmounted.is_err() {
            return skipped("not root");
        }
        while has_ended && !first.is_unmounted() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let second = in_memory(&folder, &Options::new("second")).unwrap();
        std::fs::write(folder.0.join("file"), "of the second").unwrap();
        first.unmount().unwrap();
        assert_eq!(std::fs::read(folder.0.join("file")).unwrap(), b"of the second");
        second.unmount().unwrap();
        assert!(!folder.0.join("file").exists());
    }
}

#[test]
fn a_directory_that_is_mounted_once_more_is_a_mount_point() {
    let folder = Folder::new();
    let again = || match Mount::new(InMemory::new(1 << 20, &Caller::default()), &folder.0, &Options::new("memory")) {
        Ok(mount) => mount.unmount().map(drop).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    if rustix::mount::mount_bind(&folder.0, &folder.0).is_err() {
        return skipped("not root");
    }
    let refused = again();
    rustix::mount::unmount(&folder.0, rustix::mount::UnmountFlags::empty()).unwrap();
    assert!(refused.unwrap_err().contains("is a mount point already"));
}
