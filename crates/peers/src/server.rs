//! Server processes of other systems.

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use sinew_host::kill_with_parent;

/// Longest time for a server to start.
const START_MAX: Duration = Duration::from_secs(30);
/// Address of local ports, without the number.
const LOCAL: &str = "127.0.0.1:";
/// Prefix of an address that is the path of a Unix socket.
const UNIX: &str = "unix:";

/// A program that is not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {program}: apt-get install {package}")]
pub struct Missing {
    program: &'static str,
    package: &'static str,
}

impl Missing {
    /// Fails unless the program is installed. `package` is the one of Debian that has it.
    pub(crate) fn check(program: &'static str, package: &'static str) -> Result<(), Self> {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let is_here = std::env::split_paths(&paths).any(|folder| folder.join(program).is_file());
        if is_here { Ok(()) } else { Err(Self { program, package }) }
    }
}

/// Place where a server is to listen, and its processor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// Processor to which it is pinned, if any.
    pub cpu: Option<usize>,
    /// Listen at a Unix socket rather than a TCP port.
    pub unix: bool,
}

impl Place {
    /// Address for a server to listen at: a socket of its own, or a port that was free a moment ago.
    ///
    /// # Errors
    ///
    /// No port is free.
    pub fn address(self, name: &str) -> anyhow::Result<String> {
        if self.unix {
            let socket = std::env::temp_dir().join(format!("sinew-bench-{name}-{}", std::process::id()));
            return Ok(format!("{UNIX}{}", socket.display()));
        }
        Ok(free_ports(1)?.remove(0))
    }

    /// Command that runs a program on its processor.
    pub(crate) fn command(self, program: &str) -> Command {
        let Some(cpu) = self.cpu else { return Command::new(program) };
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string(), program]);
        command
    }
}

/// Returns local addresses, as HOST:PORT, at which nothing listened a moment ago.
pub(crate) fn free_ports(count: usize) -> anyhow::Result<Vec<String>> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind(format!("{LOCAL}0"))).collect();
    listeners.into_iter().map(|listener| Ok(listener?.local_addr()?.to_string())).collect()
}

/// The path of an address that is a Unix socket.
pub(crate) fn socket(address: &str) -> Option<&str> {
    address.strip_prefix(UNIX)
}

/// The port of a local address.
pub(crate) fn port(address: &str) -> &str {
    address.trim_start_matches(LOCAL)
}

/// A server. It is killed when this is dropped, and when the thread that started it ends.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Command that started it.
    command: String,
    /// Addresses at which it listens.
    address: String,
}

impl Server {
    /// Starts a server that will listen at `address`: HOST:PORT or unix:PATH.
    pub(crate) fn start(mut command: Command, address: &str) -> anyhow::Result<Self> {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let shown = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        kill_with_parent(&mut command).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().with_context(|| format!("starting `{shown}`"))?;
        Ok(Self { child, command: shown, address: address.to_owned() })
    }

    /// Waits until the server listens.
    pub(crate) fn wait_until_it_listens(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_MAX;
        let listens = |address: &str| match socket(address) {
            Some(path) => UnixStream::connect(path).is_ok(),
            None => TcpStream::connect(address).is_ok(),
        };
        while !listens(&self.address) {
            self.check()?;
            if Instant::now() > deadline {
                bail!("`{}` did not start to listen at {}", self.command, self.address);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Fails if the server has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("a server ended, with {status}; it was started as `{}`", self.command),
            None => Ok(()),
        }
    }

    /// Process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Address at which it listens: HOST:PORT or unix:PATH.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Command that started it.
    pub fn command(&self) -> &str {
        &self.command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(path) = socket(&self.address) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// First line that a program writes about its version.
pub(crate) fn version(program: &str, option: &str) -> anyhow::Result<String> {
    let output = Command::new(program).arg(option).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("starting {program}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let missing = Missing::check("no-such-program", "no-such-package").unwrap_err();
        assert_eq!(missing.to_string(), "there is no no-such-program: apt-get install no-such-package");
        assert_eq!(Missing::check("sh", "dash"), Ok(()));
    }

    #[test]
    fn a_server_that_ends_at_once_is_told_with_its_command() {
        let address = Place::default().address("sh").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "exit 3"]);
        let error = Server::start(command, &address).unwrap().wait_until_it_listens().unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("`sh -c exit 3`"), "{error}");
    }

    #[test]
    fn a_server_ends_with_the_thread_that_started_it() {
        let mut command = Command::new("sleep");
        command.arg("600");
        let start = std::thread::spawn(|| Server::start(command, "unix:").unwrap());
        let mut server = start.join().unwrap();
        let deadline = Instant::now() + START_MAX;
        while server.check().is_ok() {
            assert!(Instant::now() < deadline, "it did not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
