//! What the tests' own process may do.

use sinew_conformance::skipped;

/// Mounts, among much else; as Linux numbers it.
const CAP_SYS_ADMIN: u32 = 21;

/// Whether file systems can be mounted here by FUSE: by this process itself, or by the setuid program that does it for users. If not, the calling test is
/// skipped.
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

fn has_capability(number: u32) -> bool {
    u64::from_str_radix(&status("CapEff:"), 16).unwrap() >> number & 1 == 1
}

/// Whether setuid programs have an effect.
fn may_gain_privileges() -> bool {
    status("NoNewPrivs:") == "0"
}

/// Whether a program can be called by its name.
pub fn is_on_path(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

/// What the system says of this process under this name.
fn status(name: &str) -> String {
    let all = std::fs::read_to_string("/proc/self/status").unwrap();
    all.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
}
