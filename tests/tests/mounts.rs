//! Mounts, as programs see them: files in memory behind the front, and the remote file system.

mod common;
mod mounts {
    pub mod facts;
    pub mod mapping;
    pub mod random;
}

use std::path::{Path, PathBuf};

use common::Folder;
use common::rights::can_mount;
use mounts::{facts, random};
use sinew_mount::files::Caller;
use sinew_mount::{InMemory, Mount, Options};

/// Files in memory at a directory; none where nothing can be mounted.
fn in_memory(folder: &Folder) -> Option<Mount<InMemory>> {
    let me = Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        ..Caller::default()
    };
    can_mount().then(|| Mount::new(InMemory::new(1 << 34, &me), &folder.0, &Options::new("memory")).unwrap())
}

/// A directory of its own for each fact.
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
    let Some(mount) = in_memory(&folder) else { return };
    hold(facts::ALL, mount.point());
    assert_eq!(mount.unmount().unwrap(), sinew_mount::Unmounted::Whole);
}

#[test]
fn random_steps_on_files_in_memory_are_as_in_their_shadows() {
    let folder = Folder::new();
    let Some(mount) = in_memory(&folder) else { return };
    for seed in 0..8 {
        random::run(mount.point(), seed, 400, 300_000);
    }
}
