//! Devices that the kernel swaps to: network block devices, and loop devices over files.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use super::tools;
use crate::{output, socket_args};
use sinew_harness::units;

/// Directory in which the kernel lists its block devices.
const DEVICES: &str = "/sys/block";

/// Bytes at the beginning of a device that any user of it writes to.
const BEGINNING: usize = 128 << 10;

/// Magic at the end of the first page of swap.
const SWAP_MAGIC: &[u8] = b"SWAPSPACE2";

/// Device or file that becomes swap.
#[derive(Debug, PartialEq, Eq)]
pub enum Source {
    /// A block device that is served at a Unix socket.
    Socket(PathBuf),
    /// A block device that is served at a host and a port.
    Port(String, u16),
    /// A file.
    File(PathBuf),
    /// A device that is attached already, to be released.
    Device(PathBuf),
}

/// A device that is released when this is dropped.
pub struct Attached {
    /// Path of the device.
    pub device: PathBuf,
    /// Size of the device, in bytes.
    pub bytes: u64,
    /// Whether it was made just now, so that nothing can be on it.
    pub is_new: bool,
    /// A file that is removed with it.
    file: Option<PathBuf>,
    is_kept: bool,
}

impl Attached {
    /// Keeps the device attached.
    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        if let Err(error) = detach(&self.device) {
            output::complain(output::describe(&error));
        }
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Source {
    /// Parses the argument of `sinew swap`.
    ///
    /// # Errors
    ///
    /// The argument is none of these.
    pub fn of(text: &str) -> anyhow::Result<Self> {
        if text.starts_with("/dev/") {
            return Ok(Self::Device(text.into()));
        }
        if let Some(path) = text.strip_prefix("unix:") {
            ensure!(!path.is_empty(), "{text}: the path of the socket is missing");
            return Ok(Self::Socket(std::path::absolute(path)?));
        }
        let in_directory = || Path::new(text).parent().is_some_and(|parent| parent != Path::new("") && parent.is_dir());
        if text.starts_with('/') || text.starts_with('.') || Path::new(text).exists() || in_directory() {
            return Ok(Self::File(std::path::absolute(text)?));
        }
        let address = socket_args::parse_address(
            text,
            "for example 127.0.0.1:10809, unix:/run/memory.sock, or the path of a file",
        );
        let address = address.map_err(|error| anyhow::anyhow!("{text}: {error}"))?;
        let (host, port) = address.rsplit_once(':').context("an address has a port")?;
        let port: u16 =
            port.parse().ok().filter(|port| *port > 0).with_context(|| format!("{text}: the port is missing"))?;
        Ok(Self::Port(host.trim_matches(['[', ']']).to_owned(), port))
    }

    /// Attaches a device for it.
    ///
    /// # Errors
    ///
    /// Something is missing, or a program failed.
    pub fn attach(&self, name: &str, size: Option<usize>) -> anyhow::Result<Attached> {
        match self {
            Self::Device(device) => bail!(
                "{}: give the address of a block device, or a file; mkswap and swapon make a device swap",
                device.display()
            ),
            Self::File(file) => attach_file(file, size),
            Self::Socket(path) => attach_nbd(&["-unix", &path.to_string_lossy()], name),
            Self::Port(host, port) => attach_nbd(&[host, &port.to_string()], name),
        }
    }

    /// Finds the device that was attached for it.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn device(&self) -> anyhow::Result<PathBuf> {
        match self {
            Self::Device(device) => {
                let is_device = std::fs::metadata(device).is_ok_and(|about| about.file_type().is_block_device());
                ensure!(is_device, "{} is not a block device of this machine", device.display());
                Ok(device.clone())
            }
            Self::File(file) => {
                tools::require(&["losetup"])?;
                std::fs::metadata(file).with_context(|| file.display().to_string())?;
                let devices = loop_devices(file)?;
                // Other programs may have attached the file to a device, too.
                let ours = devices.iter().find(|device| check_ours(device).is_ok());
                let device = ours.or_else(|| devices.first()).cloned();
                device.with_context(|| format!("{} is not on a loop device", file.display()))
            }
            Self::Socket(_) | Self::Port(..) => {
                let backend = self.backend();
                let is_it = |device: &PathBuf| note(device).is_some_and(|note| note == backend);
                let device = nbd_devices()?.into_iter().find(is_it);
                device.with_context(|| {
                    format!(
                        "no network block device was set up for {backend}; sinew swap show lists the devices in use"
                    )
                })
            }
        }
    }

    /// Text that a device's note holds for this source.
    fn backend(&self) -> String {
        match self {
            Self::Socket(path) => format!("unix:{}", path.display()),
            Self::Port(host, port) => format!("{host}:{port}"),
            Self::File(path) | Self::Device(path) => path.display().to_string(),
        }
    }
}

/// Path of a device's note, a file that says what the device was set up for. It does not survive a reboot.
fn note_path(device: &Path) -> PathBuf {
    Path::new("/run/sinew-swap").join(device.file_name().unwrap_or_default())
}

/// Path of the file that says which process connected the device.
fn client_path(device: &Path) -> PathBuf {
    note_path(device).with_extension("client")
}

/// ID of the process that has connected a network block device, according to the kernel.
fn nbd_client(device: &Path) -> Option<String> {
    let path = Path::new(DEVICES).join(device.file_name()?).join("pid");
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

fn note(device: &Path) -> Option<String> {
    std::fs::read_to_string(note_path(device)).ok()
}

fn write_note(device: &Path, what: &str) -> anyhow::Result<()> {
    let note = note_path(device);
    let folder = note.parent().context("notes lie in a folder")?;
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&note, what))
        .with_context(|| format!("writing {}", note.display()))
}

/// The file under a loop device, according to the kernel.
fn backing_file(device: &Path) -> Option<String> {
    let path = Path::new(DEVICES).join(device.file_name()?).join("loop/backing_file");
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    // The kernel marks a file that has lost its name.
    Some(text.strip_suffix(" (deleted)").unwrap_or(text).to_owned())
}

/// Checks that `sinew swap on` has set the device up.
///
/// # Errors
///
/// It has not; the error says what the device is.
pub fn check_ours(device: &Path) -> anyhow::Result<()> {
    let shown = device.display();
    let name = device.file_name().unwrap_or_default().to_string_lossy();
    let note = note(device);
    if name.starts_with("loop") {
        let found =
            backing_file(device).with_context(|| format!("{shown} is not over a file: there is nothing to release"))?;
        match note {
            Some(ours) if ours == found => Ok(()),
            Some(ours) => {
                bail!("{shown} is now over {found}, but sinew swap on set it up over {ours}, so it is left alone")
            }
            None => bail!(
                "{shown} is over {found}, but was not set up by sinew swap on, so it is left alone; the one that \
                 set it up can release it with: losetup -d {shown}"
            ),
        }
    } else if name.starts_with("nbd") {
        let ours = std::fs::read_to_string(client_path(device)).ok();
        check_nbd(device, note.is_some(), ours.as_deref(), nbd_client(device).as_deref())
    } else {
        bail!("{shown} is neither a network block device nor a loop device, so sinew swap has not set it up");
    }
}

/// Checks that a network block device is still the one that was set up: process `ours` connected it then, and `found`
/// has it connected now.
fn check_nbd(device: &Path, is_noted: bool, ours: Option<&str>, found: Option<&str>) -> anyhow::Result<()> {
    let shown = device.display();
    ensure!(
        is_noted,
        "{shown} is a network block device that was not set up by sinew swap on, so it is left alone; the one \
         that set it up can release it with: nbd-client -d {shown}"
    );
    match (ours, found) {
        (Some(ours), Some(found)) if ours != found => bail!(
            "{shown} is now connected by process {found}, but sinew swap on connected it by process {ours}, so it is \
             left alone; the one that set it up can release it with: nbd-client -d {shown}"
        ),
        _ => Ok(()),
    }
}

fn attach_file(file: &Path, size: Option<usize>) -> anyhow::Result<Attached> {
    let shown = file.display();
    let undo = |error: anyhow::Error| {
        if size.is_some() {
            let _ = std::fs::remove_file(file);
        }
        error
    };
    if size.is_none()
        && let Some(device) = loop_devices(file)?.first()
    {
        let device = device.display();
        bail!(
            "{shown} is in use already, by {device}: two swap devices over one file would overwrite each other; see sinew swap show"
        );
    }
    let about = match size {
        Some(size) => {
            let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
            let made = made.map_err(|error| match error.kind() {
                ErrorKind::AlreadyExists => {
                    anyhow::anyhow!("{shown} exists already: without --size it is used as it is")
                }
                _ => anyhow::Error::from(error).context(format!("making {shown}")),
            })?;
            let longer = take_room(file, &made, size as u64);
            longer.and_then(|()| made.metadata().context("reading its length")).map_err(undo)?
        }
        None => std::fs::metadata(file).with_context(|| format!("{shown} (with --size BYTES it is created)"))?,
    };
    ensure!(about.is_file(), "{shown} is not a regular file");
    ensure!(about.len() as usize >= super::SIZE_MIN, "{shown} is too short for swap");
    ensure!(
        about.mode() & 0o077 == 0,
        "{shown} can be read by others, who would see what is in memory: chmod 600 {shown}"
    );
    let device = PathBuf::from(loop_device(file).map_err(undo)?);
    let new_file = size.map(|_| file.to_path_buf());
    let attached = Attached { device, bytes: about.len(), is_new: size.is_some(), file: new_file, is_kept: false };
    // From here on, an error releases the device.
    let device = &attached.device;
    write_note(device, &backing_file(device).with_context(|| format!("{} is not over a file", device.display()))?)?;
    Ok(attached)
}

/// The loop devices over a file.
fn loop_devices(file: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let listed = tools::done(&["losetup", "--noheadings", "--output", "NAME", "-j", &file.to_string_lossy()])?;
    Ok(listed.lines().map(str::trim).filter(|device| !device.is_empty()).map(PathBuf::from).collect())
}

/// Checks that no loop device uses a file, which is then safe to remove.
///
/// # Errors
///
/// One does; the error names it.
pub fn check_detached(file: &Path) -> anyhow::Result<()> {
    match loop_devices(file)?.first() {
        Some(other) => bail!("{} is used by {}, too: the file stays", file.display(), other.display()),
        None => Ok(()),
    }
}

/// Makes a new file this many bytes long, and has its file system reserve room for all of it: a page without room could
/// not be swapped out.
fn take_room(path: &Path, made: &File, bytes: u64) -> anyhow::Result<()> {
    let shown = path.display();
    match sinew::host::reserve_room(made, bytes).map_err(|error| (error.kind(), error)) {
        Ok(()) => Ok(()),
        // Then the file has holes at first, and the file system may fill up before they do.
        Err((ErrorKind::Unsupported, _)) => {
            check_room(path, bytes)?;
            made.set_len(bytes).with_context(|| format!("making {shown} that long"))
        }
        Err((ErrorKind::StorageFull | ErrorKind::FileTooLarge | ErrorKind::QuotaExceeded, error)) => {
            check_room(path, bytes)?;
            Err(error).with_context(|| format!("reserving {} for {shown}", units::size(bytes as usize)))
        }
        Err((_, error)) => Err(error).with_context(|| format!("reserving room for {shown}")),
    }
}

/// Checks that a file system has room for a file of this many bytes.
fn check_room(file: &Path, bytes: u64) -> anyhow::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    let shown = tools::done(&["df", "--output=avail", "--block-size=1", &folder.to_string_lossy()])?;
    let free = shown.lines().last().and_then(|line| line.trim().parse::<u64>().ok());
    let free = free.with_context(|| format!("df does not say how much of {} is free", folder.display()))?;
    ensure!(
        free >= bytes,
        "{} has {} free, too little for swap of {}: give its file system more memory, or ask for less",
        folder.display(),
        units::size(free as usize),
        units::size(bytes as usize)
    );
    Ok(())
}

/// Attaches a file to a loop device. Where the file system can, I/O bypasses the page cache, so that swapping out a
/// page takes no other page.
fn loop_device(file: &Path) -> anyhow::Result<String> {
    if !Path::new("/dev/loop-control").exists() {
        // If the module does not exist, losetup reports it.
        let _ = tools::done(&["modprobe", "loop"]);
    }
    let path = file.to_string_lossy();
    let attach = |direct: &str| tools::done(&["losetup", "--find", "--show", direct, &path]);
    attach("--direct-io=on").or_else(|_| {
        let device = attach("--direct-io=off")?;
        output::complain(format_args!(
            "{path}: its file system has no direct I/O, so swapping out a page takes memory of the page cache for a while"
        ));
        Ok(device)
    })
}

/// The network block devices of this machine.
fn nbd_devices() -> anyhow::Result<Vec<PathBuf>> {
    let listed = std::fs::read_dir(DEVICES).with_context(|| format!("reading {DEVICES}"))?;
    let mut names: Vec<String> = listed
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.strip_prefix("nbd").is_some_and(|number| number.parse::<u32>().is_ok()))
        .collect();
    names.sort_by_key(|name| (name.len(), name.clone()));
    Ok(names.into_iter().map(|name| Path::new("/dev").join(name)).collect())
}

/// Size of a device in bytes. The kernel counts sectors of 512 bytes, whatever the device's own size is.
fn device_bytes(device: &Path) -> anyhow::Result<u64> {
    let path = Path::new(DEVICES).join(device.file_name().unwrap_or_default()).join("size");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let sectors: u64 = text.trim().parse().with_context(|| format!("{} is not a number", path.display()))?;
    Ok(sectors * 512)
}

fn attach_nbd(server: &[&str], name: &str) -> anyhow::Result<Attached> {
    if nbd_devices()?.is_empty() && tools::done(&["modprobe", "nbd"]).is_err() {
        bail!(
            "this kernel has no network block devices (modprobe nbd fails): use a file of a mounted file system, which takes a loop device: sinew swap on /mnt/memory/swap --size 4G"
        );
    }
    let is_free = |device: &PathBuf| device_bytes(device).is_ok_and(|bytes| bytes == 0);
    let device = nbd_devices()?.into_iter().find(is_free).context("all network block devices are in use")?;
    let shown = device.to_string_lossy().into_owned();
    let mut command = vec!["nbd-client"];
    command.extend(server);
    // Options of a device that is swapped to: `-swap` keeps its client, too, from waiting for memory.
    command.extend([shown.as_str(), "-name", name, "-block-size", "4096", "-swap"]);
    tools::done(&command)?;
    let attached = |bytes| Attached { device: device.clone(), bytes, is_new: false, file: None, is_kept: false };
    // From here on, an error releases the device.
    let mut attached = attached(0);
    attached.bytes = device_bytes(&device)?;
    ensure!(attached.bytes as usize >= super::SIZE_MIN, "the block device is too short for swap");
    let backend = match server {
        ["-unix", path] => format!("unix:{path}"),
        _ => server.join(":"),
    };
    write_note(&device, &backend)?;
    // On kernels that do not name the process, the device is recognised by its name alone.
    match nbd_client(&device) {
        Some(client) => std::fs::write(client_path(&device), client).context("noting the connecting process")?,
        None => drop(std::fs::remove_file(client_path(&device))),
    }
    Ok(attached)
}

/// Releases a device that [is ours](check_ours).
///
/// # Errors
///
/// A program failed.
pub fn detach(device: &Path) -> anyhow::Result<()> {
    let shown = device.to_string_lossy();
    let name = device.file_name().unwrap_or_default().to_string_lossy();
    let program = if name.starts_with("nbd") { "nbd-client" } else { "losetup" };
    tools::done(&[program, "-d", &shown])?;
    let _ = std::fs::remove_file(note_path(device));
    let _ = std::fs::remove_file(client_path(device));
    Ok(())
}

/// Checks that a device holds no data worth keeping: it begins with zeros, or is swap.
///
/// # Errors
///
/// Something else is on it.
pub fn check_unused(device: &Path) -> anyhow::Result<()> {
    let shown = device.display();
    let mut file = File::open(device).with_context(|| format!("reading {shown}"))?;
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(BEGINNING as u64).read_to_end(&mut bytes).with_context(|| format!("reading {shown}"))?;
    ensure!(
        is_unused(&bytes),
        "something other than swap is on the device: if it is no longer needed, add --overwrite"
    );
    Ok(())
}

fn is_unused(beginning: &[u8]) -> bool {
    let is_swap = beginning.get(4096 - SWAP_MAGIC.len()..4096) == Some(SWAP_MAGIC);
    is_swap || beginning.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_swap_is_told_by_how_it_is_written() {
        let of = |text: &str| Source::of(text).unwrap();
        assert_eq!(of("unix:/run/memory.sock"), Source::Socket("/run/memory.sock".into()));
        assert_eq!(of("127.0.0.1:10809"), Source::Port("127.0.0.1".into(), 10809));
        assert_eq!(of("[::1]:10809"), Source::Port("::1".into(), 10809));
        assert_eq!(of("/mnt/swap"), Source::File("/mnt/swap".into()));
        assert_eq!(of("src/swap"), Source::File(std::path::absolute("src/swap").unwrap()), "there is a folder src");
        assert_eq!(of("/dev/nbd3"), Source::Device("/dev/nbd3".into()));
        for (text, why) in [("unix:", "path of the socket"), ("host", "port"), ("host:0", "port")] {
            let error = Source::of(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_network_block_device_that_another_has_connected_since_stays() {
        let device = Path::new("/dev/nbd3");
        let message =
            |is_noted, ours, found| check_nbd(device, is_noted, ours, found).err().map(|error| error.to_string());
        assert!(message(false, None, Some("7")).unwrap().contains("was not set up by sinew swap on"));
        assert!(message(true, Some("7"), Some("8")).unwrap().contains("now connected by process 8"));
        assert!(message(true, Some("7"), Some("8")).unwrap().contains("sinew swap on connected it by process 7"));
        // A device that is no longer connected is nobody else's, and not every kernel names the process.
        for (ours, found) in [(Some("7"), Some("7")), (Some("7"), None), (None, Some("7")), (None, None)] {
            assert_eq!(message(true, ours, found), None);
        }
    }

    #[test]
    fn zeros_and_swap_are_free_to_use_and_anything_else_is_not() {
        let mut bytes = vec![0; BEGINNING];
        assert!(is_unused(&bytes));
        bytes[1080] = 1;
        assert!(!is_unused(&bytes));
        bytes[4086..4096].copy_from_slice(SWAP_MAGIC);
        assert!(is_unused(&bytes));
        assert!(is_unused(&[]) && !is_unused(&[1]));
    }
}
