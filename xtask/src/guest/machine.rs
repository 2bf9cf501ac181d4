//! The virtual machine, from its start to its end.
//!
//! QEMU is handed three open files for all that it writes: two sockets, for the command's standard output and its
//! standard error, and a pipe for the console and QEMU's own complaints. The script goes in through the first socket.
//! So a run leaves no file behind, however it ends.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::script::{Script, share_tag};
use super::stream::Splitter;

/// Time limit from a guest's start to its command, for each attempt. Under emulation it takes some 20 s, and more on a
/// busy machine. Occasionally a guest never starts its command (a processor was seen to hang where the kernel patches
/// its own code), so the guest is started again.
const BOOT_TIMEOUTS: [Duration; 3] = [Duration::from_secs(150), Duration::from_secs(300), Duration::from_secs(600)];

/// Last lines of the console that are kept, to be shown if something goes wrong.
const CONSOLE_LINES: usize = 40;

/// Parts of the machine.
pub struct Machine {
    pub kernel: PathBuf,
    pub image: PathBuf,
    pub cpus: u32,
    pub memory_mb: u32,
    pub kvm: bool,
}

/// How a command ended.
pub enum GuestOutcome {
    Exited(u8),
    /// The command took too long. The text holds the console's last lines.
    TimedOut(String),
    /// The command never began, because the guest did not come up in time. The text holds the console's last lines.
    NotBooted(String),
}

/// The two streams of a command.
#[derive(Clone, Copy)]
enum Stream {
    Out,
    Err,
}

/// Reports from the threads that read from the guest.
enum Event {
    Note(Stream, String),
    /// The guest's end of a stream is gone.
    Closed,
    /// Our own output can no longer be written to.
    Unwritable(std::io::Error),
}

impl Machine {
    /// Boots, runs the script's command and ends the guest. `ready` is called with the time that the boot took.
    pub fn run(
        &self,
        script: &Script,
        timeout: Duration,
        mut ready: impl FnMut(Duration),
    ) -> anyhow::Result<GuestOutcome> {
        let bytes = script.to_bytes();
        let mut ended = GuestOutcome::NotBooted(String::new());
        for boot_timeout in BOOT_TIMEOUTS {
            let command = self.command(script, bytes.len());
            let timeouts = Timeouts { boot: boot_timeout, command: timeout };
            ended = supervise(command, &script.mark, bytes.clone(), timeouts, &mut ready)?;
            let GuestOutcome::NotBooted(console) = &ended else { break };
            eprintln!("guest: not up within {} s; {console}", boot_timeout.as_secs());
        }
        Ok(ended)
    }

    fn command(&self, script: &Script, script_len: usize) -> Command {
        // QEMU ends when we do, even if we are killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        command.args(["-machine", "q35", "-cpu", "max", "-accel", if self.kvm { "kvm" } else { "tcg,thread=multi" }]);
        command.args(["-smp", &self.cpus.to_string(), "-m", &self.memory_mb.to_string()]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.image);
        // A kernel oops ends the guest, and with it the run. The kernel's self-tests of ciphers are slow, and left out.
        let arguments =
            format!("console=ttyS0 loglevel=7 oops=panic panic=-1 cryptomgr.notests sinew.script_len={script_len}");
        command.args(["-append", &arguments]);
        command.args(["-chardev", "file,id=console,path=/dev/stderr", "-serial", "chardev:console"]);
        command.args(["-device", "virtio-serial-pci"]);
        for (fd, name) in [(0, "out"), (1, "err")] {
            command.args(["-chardev", &format!("socket,id={name},fd={fd}")]);
            command.args(["-device", &format!("virtserialport,chardev={name},nr={}", fd + 1)]);
        }
        share(&mut command, "root", Path::new("/"), ",readonly=on");
        for (index, folder) in script.shares.iter().enumerate() {
            share(&mut command, &share_tag(index), folder, "");
        }
        command
    }
}

/// Shares a folder of the host with the guest.
fn share(command: &mut Command, tag: &str, folder: &Path, options: &str) {
    let mut device = OsString::from(format!("local,id={tag},security_model=none,multidevs=remap{options},path="));
    // A comma ends an option, so one in a path is written twice.
    let parts: Vec<&[u8]> = folder.as_os_str().as_bytes().split(|&byte| byte == b',').collect();
    device.push(OsString::from_vec(parts.join(&b",,"[..])));
    command.arg("-fsdev").arg(device);
    command.args(["-device", &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}")]);
}

/// Time limits for a guest's boot and for its command.
#[derive(Clone, Copy)]
struct Timeouts {
    boot: Duration,
    command: Duration,
}

/// Starts a guest and listens to it until its command ends.
fn supervise(
    command: Command,
    mark: &str,
    script: Vec<u8>,
    timeouts: Timeouts,
    ready: &mut dyn FnMut(Duration),
) -> anyhow::Result<GuestOutcome> {
    let started = Instant::now();
    let (events, arriving) = channel();
    let mut guest = start(command, mark, script, events)?;
    let mut deadline = started + timeouts.boot;
    let mut is_up = false;
    let (mut status, mut err_ended) = (None, false);
    loop {
        let event = match next_event(&arriving, deadline) {
            Some(event) => event,
            None if is_up => return Ok(GuestOutcome::TimedOut(guest.end())),
            None => return Ok(GuestOutcome::NotBooted(guest.end())),
        };
        match event {
            Event::Note(Stream::Err, _) => err_ended = true,
            Event::Note(Stream::Out, note) => match note.split_once(' ') {
                Some(("exit", code)) => status = code.parse().ok(),
                Some(("failed", step)) => bail!("the guest could not `{step}`; {}", guest.end()),
                _ => {
                    deadline = Instant::now() + timeouts.command;
                    if !std::mem::replace(&mut is_up, true) {
                        ready(started.elapsed());
                    }
                }
            },
            Event::Closed => {
                // QEMU is ending by itself; waiting lets it print the reason.
                let _ = guest.qemu.wait();
                bail!("the guest died; {}", guest.end());
            }
            Event::Unwritable(error) => bail!("cannot write what the guest writes: {error}"),
        }
        if let (Some(status), true) = (status, err_ended) {
            return Ok(GuestOutcome::Exited(status));
        }
    }
}

fn start(mut command: Command, mark: &str, script: Vec<u8>, events: Sender<Event>) -> anyhow::Result<Guest> {
    let (out, qemu_out) = UnixStream::pair()?;
    let (err, qemu_err) = UnixStream::pair()?;
    command.stdin(Stdio::from(OwnedFd::from(qemu_out))).stdout(Stdio::from(OwnedFd::from(qemu_err)));
    let mut qemu = command.stderr(Stdio::piped()).spawn().context("cannot start setpriv (util-linux)")?;
    // Closes our copies of QEMU's socket ends; otherwise ours would never see them close.
    drop(command);
    let console = qemu.stderr.take().expect("piped");
    let console = std::thread::spawn(move || last_lines(console));
    let guest = Guest { qemu, console: Some(console) };
    let mut script_into = out.try_clone()?;
    // The guest reads the script only once it is up, so this may block. If the guest dies first, the readers notice.
    std::thread::spawn(move || script_into.write_all(&script));
    for (stream, socket) in [(Stream::Out, out), (Stream::Err, err)] {
        let (events, splitter) = (events.clone(), Splitter::new(mark));
        std::thread::spawn(move || {
            let to: Box<dyn Write> = match stream {
                Stream::Out => Box::new(std::io::stdout()),
                Stream::Err => Box::new(std::io::stderr()),
            };
            let ended = copy(socket, to, splitter, |note| events.send(Event::Note(stream, note)).is_ok());
            let _ = events.send(ended.map_or_else(Event::Unwritable, |()| Event::Closed));
        });
    }
    Ok(guest)
}

/// A running QEMU, which is killed when dropped.
struct Guest {
    qemu: Child,
    /// Thread that reads the console to its end.
    console: Option<JoinHandle<Vec<String>>>,
}

impl Guest {
    /// Kills the guest and returns the last lines of its console, in words.
    fn end(&mut self) -> String {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        let lines = self.console.take().and_then(|console| console.join().ok()).unwrap_or_default();
        if lines.is_empty() {
            return "its console is empty".into();
        }
        format!("the last lines of its console:\n  {}", lines.join("\n  "))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

fn next_event(arriving: &Receiver<Event>, deadline: Instant) -> Option<Event> {
    match arriving.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(event) => Some(event),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(Event::Closed),
    }
}

/// Copies the command's bytes as they come and hands our lines to `note`, until either side ends. Errors are those of
/// `to`.
fn copy(
    mut from: impl Read,
    mut to: impl Write,
    mut splitter: Splitter,
    mut note: impl FnMut(String) -> bool,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    // A read error counts as the guest's end.
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        let (bytes, notes) = splitter.push(&buffer[..len]);
        to.write_all(&bytes)?;
        to.flush()?;
        if !notes.into_iter().all(&mut note) {
            return Ok(());
        }
    }
    to.write_all(&splitter.finish())?;
    to.flush()
}

/// Reads to the end and returns the last [`CONSOLE_LINES`].
fn last_lines(from: impl Read) -> Vec<String> {
    let mut lines = VecDeque::new();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        if lines.len() == CONSOLE_LINES {
            lines.pop_front();
        }
        lines.push_back(String::from_utf8_lossy(&line).trim_end().to_string());
    }
    lines.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &str = "<mark>";
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Attends a shell that plays the guest.
    fn attend(guest: &str, timeout: Duration) -> anyhow::Result<GuestOutcome> {
        let mut command = Command::new("sh");
        command.args(["-c", guest]);
        let timeouts = Timeouts { boot: PATIENCE, command: timeout };
        super::supervise(command, MARK, b"script\n".to_vec(), timeouts, &mut |_| ())
    }

    fn exit_status(guest: &str) -> u8 {
        match attend(guest, PATIENCE).unwrap() {
            GuestOutcome::Exited(status) => status,
            GuestOutcome::TimedOut(console) | GuestOutcome::NotBooted(console) => panic!("time-out: {console}"),
        }
    }

    #[test]
    fn the_exit_status_passes_through() {
        for status in [0, 1, 42, 139, 255] {
            let guest =
                format!("echo '{MARK}ready' >&0; echo '{MARK}end'; echo '{MARK}exit {status}' >&0; exec sleep 60");
            assert_eq!(exit_status(&guest), status);
        }
    }

    #[test]
    fn an_exit_status_counts_only_once_both_streams_have_ended() {
        let exits = format!("echo '{MARK}ready' >&0; echo '{MARK}exit 3' >&0");
        let ended = attend(&format!("{exits}; exec sleep 60"), Duration::from_millis(100)).unwrap();
        assert!(matches!(ended, GuestOutcome::TimedOut(_)));
        assert_eq!(exit_status(&format!("{exits}; sleep 0.1; printf '{MARK}'; sleep 0.1; echo end; exec sleep 60")), 3);
    }

    #[test]
    fn the_script_arrives() {
        let guest =
            format!("read line; test \"$line\" = script; echo '{MARK}exit '$? >&0; echo '{MARK}end'; exec sleep 60");
        assert_eq!(exit_status(&guest), 0);
    }

    #[test]
    fn a_guest_that_dies_leaves_its_last_words() {
        let guest = "seq 1 100 >&2; echo '<mark>ready' >&0";
        let error = attend(guest, PATIENCE).err().unwrap().to_string();
        let last: Vec<String> = (61..=100).map(|line| line.to_string()).collect();
        assert_eq!(error, format!("the guest died; the last lines of its console:\n  {}", last.join("\n  ")));
    }

    #[test]
    fn a_step_of_the_boot_that_fails_is_named() {
        let guest = "echo 'modprobe: no' >&2; echo '<mark>failed modprobe rdma_rxe' >&0; exec sleep 60";
        let error = attend(guest, PATIENCE).err().unwrap().to_string();
        assert!(error.starts_with("the guest could not `modprobe rdma_rxe`;"), "{error}");
        assert!(error.ends_with("modprobe: no"), "{error}");
    }

    #[test]
    fn a_command_that_takes_too_long_is_ended() {
        let ended = attend("echo '<mark>ready' >&0; exec sleep 60", Duration::from_millis(50)).unwrap();
        assert!(matches!(ended, GuestOutcome::TimedOut(console) if console == "its console is empty"));
    }

    #[test]
    fn a_guest_that_does_not_come_up_is_no_error_yet() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo stuck >&2; exec sleep 60"]);
        let timeouts = Timeouts { boot: Duration::from_millis(300), command: PATIENCE };
        let ended = super::supervise(command, MARK, Vec::new(), timeouts, &mut |_| panic!("it is not up")).unwrap();
        assert!(matches!(ended, GuestOutcome::NotBooted(console) if console.ends_with("stuck")));
    }
}
