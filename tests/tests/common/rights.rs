//! Rights of the tests' own process.

use sinew_conformance::skipped;

/// Number of the capability that allows mounts, among much else.
const CAP_SYS_ADMIN: u32 = 21;

/// Whether file systems can be mounted here by FUSE: by this process itself, or by the setuid program that does it for
/// users. If not, reports the calling test as skipped.
pub fn can_mount() -> bool {
    let has_device = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    let can = has_device
        && (has_capability(CAP_SYS_ADMIN)
            || (may_gain_privileges() && ["fusermount3", "fusermount"].into_iter().any(is_on_path)));
    if !can {
        skipped("no FUSE");
    }
    can
}

pub fn has_capability(number: u32) -> bool {
    u64::from_str_radix(&status("CapEff:"), 16).unwrap() >> number & 1 == 1
}

/// Whether setuid programs have an effect.
fn may_gain_privileges() -> bool {
    status("NoNewPrivs:") == "0"
}

/// Whether a program is on the path.
pub fn is_on_path(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

/// Returns a field of this process's status.
fn status(name: &str) -> String {
    let all = std::fs::read_to_string("/proc/self/status").unwrap();
    all.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
}
