//! The Debian packages that the guest needs: those that are installed, and two that are only unpacked.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::process;

/// Packages that must be installed: QEMU, and tools that make and use an RDMA device and a network block device inside.
const INSTALLED: &[&str] = &[
    "qemu-system-x86",
    "kmod",
    "iproute2",
    "util-linux",
    "rdma-core",
    "ibverbs-providers",
    "ibverbs-utils",
    "perftest",
    "libibverbs-dev",
    "nbd-client",
];

/// The package that depends on the newest kernel.
const NEWEST_KERNEL: &str = "linux-image-amd64";

/// A shell that needs no library. It is only unpacked, because installing it would remove another package.
const BUSYBOX: &str = "busybox-static";

/// The kernel and the shell, unpacked.
pub struct System {
    folder: PathBuf,
    /// Release of the kernel, as `uname -r` prints it inside.
    pub release: String,
}

impl System {
    /// Returns the system that an earlier run unpacked, if any.
    pub fn cached(cache: &Path) -> Option<Self> {
        let folder = cache.join("system");
        let mut releases = std::fs::read_dir(folder.join("lib/modules")).ok()?;
        let release = releases.next()?.ok()?.file_name().into_string().ok()?;
        Some(Self { folder, release })
    }

    /// The compressed kernel.
    pub fn kernel(&self) -> PathBuf {
        self.folder.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// The folder that becomes `/lib/modules`.
    pub fn modules(&self) -> PathBuf {
        self.folder.join("lib/modules")
    }

    /// A static busybox.
    pub fn busybox(&self) -> PathBuf {
        self.folder.join("bin/busybox")
    }

    /// Returns the files of these modules and of all that they need, in the order in which to load them.
    pub fn module_files(&self, names: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for name in names {
            let mut modprobe = administration("modprobe");
            modprobe.arg("--dirname").arg(&self.folder).args(["--set-version", &self.release]);
            let shown = process::output(modprobe.args(["--show-depends", name]))?;
            let paths = shown.lines().filter_map(|line| line.trim().strip_prefix("insmod "));
            for path in paths.map(PathBuf::from) {
                if !files.contains(&path) {
                    files.push(path);
                }
            }
        }
        Ok(files)
    }
}

/// Says for people whether the guest can run; fails if something is missing that cannot be installed.
pub fn check(cache: &Path) -> anyhow::Result<String> {
    let missing = missing()?;
    if !missing.is_empty() && !can_install() {
        bail!("{}", remedy(&missing));
    }
    let mut words = match missing.as_slice() {
        [] => "all packages are installed".to_string(),
        _ => format!("the first run installs {}", missing.join(" ")),
    };
    match System::cached(cache) {
        Some(system) => words += &format!("; kernel {} in {}", system.release, cache.display()),
        None if can_install() => words += "; the first run downloads a kernel",
        None => words += &format!("; the first run downloads the kernel {}", newest_kernel()?),
    }
    Ok(words)
}

/// Installs and unpacks what is missing.
pub fn prepare(cache: &Path) -> anyhow::Result<System> {
    let missing = missing()?;
    if !missing.is_empty() && !can_install() {
        bail!("{}", remedy(&missing));
    }
    let cached = System::cached(cache);
    // apt's lists may be missing, or too old to download by.
    if can_install() && (!missing.is_empty() || cached.is_none()) {
        process::output(apt_get().arg("update"))?;
    }
    if !missing.is_empty() {
        eprintln!("guest: installing {}", missing.join(" "));
        let mut install = apt_get();
        install.args(["install", "--yes", "--no-install-recommends"]).args(&missing);
        process::output(&mut install)?;
    }
    match cached {
        Some(system) => Ok(system),
        None => unpack(cache),
    }
}

/// Packages of [`INSTALLED`] that are not installed.
fn missing() -> anyhow::Result<Vec<&'static str>> {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat", "${Package} ${db:Status-Status}\\n"]).args(INSTALLED);
    // dpkg-query fails and complains if it does not know a package; such a package counts as missing.
    let output = query.stdin(Stdio::null()).stderr(Stdio::null()).output();
    let output = output.context("cannot start dpkg-query: the guest is made of Debian's packages")?;
    let known = String::from_utf8_lossy(&output.stdout).into_owned();
    let installed = |package: &&str| known.lines().any(|line| line.split_once(' ') == Some((package, "installed")));
    Ok(INSTALLED.iter().copied().filter(|package| !installed(package)).collect())
}

fn can_install() -> bool {
    process::is_root() && process::works(Command::new("apt-get").arg("--version"))
}

fn remedy(missing: &[&str]) -> String {
    let packages = missing.join(" ");
    format!("not installed: {packages}; as root, apt-get update && apt-get install --no-install-recommends {packages}")
}

/// An apt-get that asks nothing, and waits while another one runs.
fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.args(["--quiet=2", "--option", "DPkg::Lock::Timeout=600", "--option", "Dpkg::Use-Pty=false"]);
    command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    command
}

/// Name of the newest kernel's package, from apt's lists.
fn newest_kernel() -> anyhow::Result<String> {
    let mut show = Command::new("apt-cache");
    let shown = process::output(show.args(["show", "--no-all-versions", NEWEST_KERNEL]).stdin(Stdio::null()));
    let shown = shown.with_context(|| {
        format!("apt knows no package {NEWEST_KERNEL}: as root, apt-get update; only Debian's kernels are supported")
    })?;
    kernel_in(&shown).with_context(|| format!("the package {NEWEST_KERNEL} names no kernel:\n{shown}"))
}

/// The kernel package that [`NEWEST_KERNEL`] depends on, from what apt shows of it.
fn kernel_in(shown: &str) -> Option<String> {
    let depends = shown.lines().find_map(|line| line.strip_prefix("Depends: "))?;
    let names = depends.split(',').filter_map(|part| part.split_whitespace().next());
    names.filter(|name| name.starts_with("linux-image-")).map(str::to_string).next()
}

fn unpack(cache: &Path) -> anyhow::Result<System> {
    let kernel = newest_kernel()?;
    eprintln!("guest: downloading {kernel} and {BUSYBOX}");
    let fresh = cache.join("fresh");
    if fresh.exists() {
        std::fs::remove_dir_all(&fresh).with_context(|| format!("cannot clear {}", fresh.display()))?;
    }
    let packages = fresh.join("packages");
    std::fs::create_dir_all(&packages).with_context(|| format!("cannot make {}", packages.display()))?;
    let mut download = apt_get();
    // apt's usual unprivileged user may not write here.
    download.args(["--option", "APT::Sandbox::User=root", "download", &kernel, BUSYBOX]).current_dir(&packages);
    process::output(&mut download)?;
    for package in std::fs::read_dir(&packages)? {
        process::output(Command::new("dpkg-deb").arg("--extract").arg(package?.path()).arg(&fresh))?;
    }
    std::fs::remove_dir_all(&packages)?;
    merge_usr(&fresh)?;
    let release = kernel.trim_start_matches("linux-image-").to_string();
    process::output(administration("depmod").arg("--basedir").arg(&fresh).arg(&release))?;
    // The folder gets its name only once it is complete.
    let folder = cache.join("system");
    std::fs::rename(&fresh, &folder)
        .with_context(|| format!("cannot rename the new system to {}", folder.display()))?;
    System::cached(cache).with_context(|| format!("{kernel} holds no modules"))
}

/// Makes each path valid both in `usr` and beside it: Debian's releases differ in where packages have their files.
fn merge_usr(folder: &Path) -> anyhow::Result<()> {
    for (name, parent) in [("lib/modules", "lib"), ("bin/busybox", "bin")] {
        let below_usr = folder.join("usr").join(name);
        if below_usr.exists() {
            std::fs::create_dir_all(folder.join(parent))?;
            std::fs::rename(&below_usr, folder.join(name))?;
        }
    }
    // Only documentation is left there.
    std::fs::remove_dir_all(folder.join("usr"))?;
    std::os::unix::fs::symlink(".", folder.join("usr"))?;
    Ok(())
}

/// A command for an administrator's program, which may not be on an ordinary user's path.
fn administration(program: &str) -> Command {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    let mut command = Command::new(program);
    command.env("PATH", path).stdin(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_is_what_its_package_depends_on() {
        let shown = "Package: linux-image-amd64\nDepends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)\nSize: 1480\n";
        assert_eq!(kernel_in(shown).as_deref(), Some("linux-image-6.1.0-56-amd64"));
        let several = "Depends: libc6, linux-image-6.12.48+deb13-amd64 (= 6.12.48-1), kmod\n";
        assert_eq!(kernel_in(several).as_deref(), Some("linux-image-6.12.48+deb13-amd64"));
        assert_eq!(kernel_in("Depends: libc6\n"), None);
        assert_eq!(kernel_in(""), None);
    }
}
