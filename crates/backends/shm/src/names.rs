//! Names: each is a listening socket and a lock in a directory of the user's own.
//!
//! The lock decides who owns a name, and the kernel drops the lock of a process that dies. The holder of the lock may
//! remove a dead owner's socket and listen anew, so a stale socket is replaced without a race. Both files are removed
//! when the port closes. Those of a killed process are removed when any name is claimed, or when its own is looked up
//! ([`sweep`]). The lock file tells people and peers who holds the name, and how large a ring the holder wants.

mod sweep;

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sinew_fabric::{AddressError, PortError};
use sinew_mem::ring;

use crate::options::RING_LINES_MAX;

/// The longest name, in bytes.
pub const NAME_LEN_MAX: usize = 48;
/// Longest path of a directory for names: a longer one would not leave room for a name in a socket address (108 bytes).
const DIRECTORY_LEN_MAX: usize = 107 - 1 - NAME_LEN_MAX - ".sock".len();
const BACKLOG: i32 = 1024;
/// Attempts to take a lock that is held only briefly, and the pause before each. That makes a second in all, where
/// microseconds suffice unless the holder was stopped meanwhile.
const LOCK_TRIES: usize = 1000;
const LOCK_PAUSE: Duration = Duration::from_millis(1);

fn system(doing: String) -> impl FnOnce(Errno) -> PortError {
    move |error| PortError::System { doing, source: error.into() }
}

/// Refuses a `name` that is empty, too long, has characters other than letters, digits, `-`, `_` and `.`, or starts
/// with a dot.
pub(crate) fn check(address: &str, name: &str) -> Result<(), PortError> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let reason = if name.is_empty() {
        "the name is empty"
    } else if name.len() > NAME_LEN_MAX {
        "the name is too long"
    } else if name.starts_with('.') || !name.bytes().all(good) {
        "the name has characters other than letters, digits, `-`, `_` and `.`, or starts with a dot"
    } else {
        return Ok(());
    };
    Err(PortError::Address(AddressError::Malformed {
        address: address.to_owned(),
        problem: reason.to_owned(),
        expected: format!("shm://NAME, with a name of at most {NAME_LEN_MAX} characters, for example shm://shout"),
    }))
}

/// The directories for names: the user's runtime directory, then one that always exists.
fn directories() -> Vec<PathBuf> {
    of_environment(std::env::var_os("XDG_RUNTIME_DIR"), rustix::process::geteuid().as_raw())
}

fn of_environment(runtime: Option<OsString>, user: u32) -> Vec<PathBuf> {
    let fallback = PathBuf::from(format!("/tmp/sinew-{user}"));
    let runtime = runtime.map(|runtime| Path::new(&runtime).join("sinew"));
    let usable = |path: &PathBuf| path.is_absolute() && path.as_os_str().len() <= DIRECTORY_LEN_MAX;
    runtime.filter(usable).into_iter().chain([fallback]).collect()
}

/// Checks that `directory` is a directory (not a link to one), belongs to us and is closed to others.
fn check_directory(directory: &Path) -> Result<(), String> {
    let stat = rustix::fs::lstat(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let what = if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        "is not a directory"
    } else if stat.st_uid != rustix::process::geteuid().as_raw() {
        "belongs to another user"
    } else if stat.st_mode & 0o077 != 0 {
        "is open to other users (its mode should be 0700)"
    } else {
        return Ok(());
    };
    Err(format!("{} {what}", directory.display()))
}

/// The directory for new names, made if necessary.
fn own_directory(directories: &[PathBuf]) -> Result<PathBuf, PortError> {
    let mut reasons = Vec::new();
    for directory in directories {
        match rustix::fs::mkdir(directory, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => {
                reasons.push(format!("{}: {error}", directory.display()));
                continue;
            }
        }
        match check_directory(directory) {
            Ok(()) => return Ok(directory.clone()),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(PortError::Unavailable {
        fabric: "shm",
        reason: format!("there is no directory for its names ({})", reasons.join("; ")),
        remedy: "set XDG_RUNTIME_DIR to a directory of your own, or remove what is in the way".to_owned(),
    })
}

fn socket_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.sock"))
}

fn lock_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.lock"))
}

/// A name that this process holds, and the socket that listens under it.
#[derive(Debug)]
pub(crate) struct Name {
    /// Declared before the lock, so that the files are removed while it is held, and never those of a new owner.
    _files: Files,
    pub listener: OwnedFd,
    _lock: OwnedFd,
}

/// The files of a name, which are removed when this is dropped.
#[derive(Debug)]
struct Files {
    socket_path: PathBuf,
    lock_path: PathBuf,
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = rustix::fs::unlink(&self.socket_path);
        let _ = rustix::fs::unlink(&self.lock_path);
    }
}

impl Name {
    /// Claims `name` for a port that wants rings of `ring_lines` lines.
    pub fn claim(address: &str, name: &str, ring_lines: usize) -> Result<Self, PortError> {
        Self::claim_in(&directories(), address, name, ring_lines)
    }

    fn claim_in(directories: &[PathBuf], address: &str, name: &str, ring_lines: usize) -> Result<Self, PortError> {
        check(address, name)?;
        let directory = own_directory(directories)?;
        sweep::all(&directory);
        let lock_path = lock_path(&directory, name);
        let lock = lock(address, &lock_path)?;
        let files = Files { socket_path: socket_path(&directory, name), lock_path };
        let Files { socket_path, lock_path } = &files;
        write_owner(&lock, ring_lines)
            .map_err(|source| PortError::System { doing: format!("writing {}", lock_path.display()), source })?;
        match rustix::fs::unlink(socket_path) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(system(format!("removing the stale {}", socket_path.display()))(error)),
        }
        let listen = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            rustix::net::bind(&listener, &SocketAddrUnix::new(socket_path)?)?;
            rustix::net::listen(&listener, BACKLOG)?;
            Ok(listener)
        };
        let listener = listen().map_err(system(format!("listening on {}", socket_path.display())))?;
        Ok(Self { _files: files, listener, _lock: lock })
    }
}

/// Locks the file at `path`, which may be removed meanwhile by an owner that is closing, or by a sweep after a dead
/// one.
fn lock(address: &str, path: &Path) -> Result<OwnedFd, PortError> {
    let doing = || format!("locking {}", path.display());
    let taken = |holder| PortError::Taken { address: address.to_owned(), holder };
    for _ in 0..LOCK_TRIES {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(system(doing()))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if sweep::is_at(&lock, path).map_err(system(doing()))? => return Ok(lock),
            // The file was removed between our open and our lock: the name is free, under a new file.
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) if sweep::has_no_owner(&lock) => {
                drop(lock);
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(taken(
                    read_owner(&lock).map_or(String::new(), |owner| format!(" by process {}", owner.pid)),
                ));
            }
            Err(error) => return Err(system(doing())(error)),
        }
    }
    Err(taken(" by a process that was stopped while it removed the files of a dead one".to_owned()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    pid: u32,
    ring_lines: usize,
}

fn write_owner(lock: &OwnedFd, ring_lines: usize) -> io::Result<()> {
    let mut file = std::fs::File::from(lock.try_clone()?);
    file.set_len(0)?;
    file.write_all(format!("process {}\nring-lines {ring_lines}\n", std::process::id()).as_bytes())
}

fn read_owner(file: &OwnedFd) -> Option<Owner> {
    let mut text = String::new();
    let mut file = std::fs::File::from(file.try_clone().ok()?);
    io::Seek::rewind(&mut file).ok()?;
    file.take(256).read_to_string(&mut text).ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u32>().ok()
    };
    let owner = Owner { pid: field("process ")?, ring_lines: field("ring-lines ")? as usize };
    (ring::valid_lines(owner.ring_lines) && owner.ring_lines <= RING_LINES_MAX).then_some(owner)
}

/// A connection to the holder of a name.
#[derive(Debug)]
pub(crate) struct NamedConnection {
    pub socket: OwnedFd,
    /// Lines of the ring through which it wants to receive.
    pub ring_lines: usize,
}

/// Connects to the holder of `name`.
pub(crate) fn connect(address: &str, name: &str) -> Result<NamedConnection, PortError> {
    connect_in(&directories(), address, name)
}

fn connect_in(directories: &[PathBuf], address: &str, name: &str) -> Result<NamedConnection, PortError> {
    check(address, name)?;
    for directory in directories {
        // Another user's directory could lead us to that user's server.
        if check_directory(directory).is_err() {
            continue;
        }
        let path = socket_path(directory, name);
        let connect = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            rustix::net::connect(&socket, &SocketAddrUnix::new(&path)?)?;
            Ok(socket)
        };
        let socket = match connect() {
            Ok(socket) => socket,
            // A refusal means a dead owner's socket, or one that does not listen yet.
            Err(Errno::NOENT | Errno::CONNREFUSED) => {
                sweep::one(directory, name);
                continue;
            }
            Err(Errno::AGAIN) => {
                return Err(PortError::Unavailable {
                    fabric: "shm",
                    reason: format!("{address} has {BACKLOG} connections that it has not accepted"),
                    remedy: "check whether its process is stopped, and try again".to_owned(),
                });
            }
            Err(error) => return Err(system(format!("connecting to {}", path.display()))(error)),
        };
        if !is_own(&socket) {
            continue;
        }
        // The lock file is read after connecting, since it is complete before its owner listens.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let owner = match rustix::fs::open(lock_path(directory, name), flags, Mode::empty()) {
            Ok(lock) => read_owner(&lock),
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                return Err(system(format!("reading who owns {address}"))(error));
            }
            Err(_) => None,
        };
        let Some(owner) = owner else { continue };
        return Ok(NamedConnection { socket, ring_lines: owner.ring_lines });
    }
    let looked_in = directories.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ");
    Err(PortError::NotFound { address: address.to_owned(), looked_in })
}

/// Whether the process at the other end runs as our user.
pub(crate) fn is_own(socket: impl AsFd) -> bool {
    rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use sinew_conformance::unique;

    use super::*;

    const CLEAN: [&str; 0] = [];

    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Self {
            Self(Path::new("/tmp").join(unique(&format!("sinew-names-{test}"))))
        }

        fn claim(&self, name: &str) -> Result<Name, PortError> {
            Name::claim_in(std::slice::from_ref(&self.0), &format!("shm://{name}"), name, 64)
        }

        fn files(&self) -> Vec<String> {
            let entries = std::fs::read_dir(&self.0).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort_unstable();
            names
        }

        fn connect(&self, name: &str) -> Result<NamedConnection, PortError> {
            connect_in(std::slice::from_ref(&self.0), &format!("shm://{name}"), name)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_taken_name_says_who_has_it_and_is_free_again_when_its_port_goes() {
        let directory = Directory::new("taken");
        let name = directory.claim("a").unwrap();
        assert_eq!(directory.connect("a").unwrap().ring_lines, 64);
        let error = directory.claim("a").unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(name);
        assert_eq!(directory.files(), CLEAN, "nothing stale is left");
        directory.claim("a").unwrap();
    }

    #[test]
    fn a_missing_name_says_where_it_was_looked_for() {
        let directory = Directory::new("missing");
        let error = directory.connect("a").unwrap_err();
        assert!(matches!(&error, PortError::NotFound { .. }), "{error}");
        assert!(error.to_string().contains(directory.0.to_str().unwrap()), "{error}");
    }

    /// Does to a name what the kernel does when its process is killed: the files stay, but nobody listens or holds the
    /// lock.
    fn die_with(name: Name) {
        let Name { _files, listener, _lock } = name;
        std::mem::forget(_files);
        drop((listener, _lock));
    }

    #[test]
    fn what_a_dead_owner_left_is_replaced() {
        let directory = Directory::new("stale");
        die_with(directory.claim("a").unwrap());
        let name = directory.claim("a").unwrap();
        assert!(directory.connect("a").is_ok());
        drop(name);
    }

    #[test]
    fn what_a_dead_owner_left_goes_when_its_name_is_looked_up() {
        let directory = Directory::new("look-up");
        die_with(directory.claim("a").unwrap());
        assert_eq!(directory.files(), ["a.lock", "a.sock"]);
        assert!(matches!(directory.connect("a"), Err(PortError::NotFound { .. })));
        assert_eq!(directory.files(), CLEAN);
    }

    #[test]
    fn what_dead_owners_left_goes_when_another_name_is_claimed_and_nothing_else_does() {
        let directory = Directory::new("sweep");
        let living = directory.claim("living").unwrap();
        die_with(directory.claim("dead").unwrap());
        die_with(directory.claim("dead.lock").unwrap());
        // This is left by an owner that was killed before it listened.
        std::fs::write(directory.0.join("half.lock"), "").unwrap();
        let others = ["notes.txt", ".lock", "x y.lock", "alone.sock"];
        for other in others {
            std::fs::write(directory.0.join(other), "").unwrap();
        }
        std::os::unix::fs::symlink("notes.txt", directory.0.join("link.lock")).unwrap();
        let name = directory.claim("new").unwrap();
        let left = ["living.lock", "living.sock", "new.lock", "new.sock", "link.lock"].into_iter().chain(others);
        let mut left: Vec<_> = left.collect();
        left.sort_unstable();
        assert_eq!(directory.files(), left);
        assert!(directory.connect("living").is_ok() && directory.connect("new").is_ok());
        drop((living, name));
    }

    #[test]
    fn a_name_whose_sweeper_was_stopped_is_taken_until_it_goes_on() {
        let directory = Directory::new("stopped");
        die_with(directory.claim("a").unwrap());
        let sweeping = std::fs::File::open(&directory.0).unwrap();
        sweeping.lock().unwrap();
        let lock = std::fs::File::open(directory.0.join("a.lock")).unwrap();
        lock.lock_shared().unwrap();
        directory.claim("b").unwrap();
        let error = directory.claim("a").unwrap_err();
        assert!(matches!(&error, PortError::Taken { holder, .. } if holder.contains("stopped")), "{error}");
        drop((sweeping, lock));
        directory.claim("a").unwrap();
    }

    #[test]
    fn sweeping_takes_no_name_from_one_who_has_it_or_is_just_claiming_it() {
        let directory = Directory::new("race");
        drop(directory.claim("a").unwrap());
        let stop = AtomicBool::new(false);
        let owners = [const { AtomicU32::new(0) }; 2];
        std::thread::scope(|threads| {
            let (directory, stop, owners) = (&directory, &stop, &owners);
            for sweeper in 0..2 {
                threads.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        sweep::all(&directory.0);
                        sweep::one(&directory.0, ["alone", "shared"][sweeper]);
                        std::thread::yield_now();
                    }
                });
            }
            // A single thread claims the first name and must always get it; two threads compete for the second.
            let claimers = [0, 1, 1].map(|which| {
                threads.spawn(move || {
                    let name = ["alone", "shared"][which];
                    let mut claimed = 0;
                    for round in 0..400 {
                        let held = match directory.claim(name) {
                            Ok(held) => held,
                            Err(PortError::Taken { holder, .. }) if which == 1 && !holder.contains("stopped") => {
                                continue;
                            }
                            Err(error) => panic!("{name}: {error}"),
                        };
                        assert_eq!(owners[which].fetch_add(1, Ordering::Relaxed), 0, "{name} has two owners");
                        let found = directory.connect(name).map(drop);
                        assert!(found.is_ok(), "{name} was removed from under its owner: {found:?}");
                        claimed += 1;
                        owners[which].fetch_sub(1, Ordering::Relaxed);
                        // Half of the owners die, so that there is something to sweep.
                        if round % 2 == 0 { drop(held) } else { die_with(held) }
                    }
                    claimed
                })
            });
            let claimed = claimers.map(|claimer| claimer.join());
            stop.store(true, Ordering::Relaxed);
            let claimed = claimed.map(Result::unwrap);
            assert_eq!(claimed[0], 400);
            assert!(claimed[1] + claimed[2] > 0);
        });
        sweep::all(&directory.0);
        assert_eq!(directory.files(), CLEAN);
    }

    #[test]
    fn directories_of_others_links_and_open_ones_are_refused() {
        let directory = Directory::new("mode");
        std::fs::create_dir(&directory.0).unwrap();
        std::fs::set_permissions(&directory.0, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let error = directory.claim("a").unwrap_err().to_string();
        assert!(error.contains("0700"), "{error}");
        std::fs::set_permissions(&directory.0, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        assert!(directory.claim("a").is_ok());
        let link = Directory::new("link");
        std::os::unix::fs::symlink(&directory.0, &link.0).unwrap();
        assert!(link.claim("a").unwrap_err().to_string().contains("not a directory"));
        std::fs::remove_file(&link.0).unwrap();
    }

    #[test]
    fn names_are_checked() {
        let longest = "x".repeat(NAME_LEN_MAX);
        for good in ["a", "A-b_c.9", &longest] {
            assert!(check("shm://", good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", ".a", "a/b", "a b", "ä", "a\0b", &format!("{longest}x")] {
            assert!(check("shm://", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_runtime_directory_comes_first_when_a_socket_path_fits_in_it() {
        let fallback = PathBuf::from("/tmp/sinew-7");
        assert_eq!(of_environment(None, 7).len(), 1);
        assert_eq!(
            of_environment(Some("/run/user/7".into()), 7),
            [PathBuf::from("/run/user/7/sinew"), fallback.clone()]
        );
        assert_eq!(of_environment(Some("relative".into()), 7), std::slice::from_ref(&fallback));
        assert_eq!(of_environment(Some(format!("/{}", "x".repeat(60)).into()), 7), [fallback]);
    }
}
