//! Server processes that a command starts for itself.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::endpoint_args::LimitArgs;
use crate::own_pair;
use crate::serve::{FAILED, READY, SERVING};

/// Time that a server has to shut down cleanly before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// A server process. It ends when this is dropped or when this process ends, for whatever reason.
pub struct ServerProcess {
    child: Child,
    /// Closing this ends the server.
    stdin: Option<ChildStdin>,
    addresses: Vec<String>,
}

impl ServerProcess {
    /// Starts a server with one thread for each entry of `cpus` (`None`: not pinned), and waits until it serves.
    pub fn start(address: &str, cpus: &[Option<usize>], limits: &LimitArgs) -> anyhow::Result<Self> {
        let mut args = vec!["rpc".to_owned(), "serve".to_owned(), address.to_owned()];
        args.extend(limits.to_args(cpus));
        Self::spawn(&args)
    }

    /// Starts this program with `args`, which make it a server, and waits until it serves.
    pub fn spawn(args: &[String]) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("finding this program, to start it as a server")?;
        let mut command = Command::new(&program);
        command.args(args).arg("--child");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let spawned = own_pair::in_server(args, || command.spawn())?;
        let mut child = spawned.with_context(|| format!("starting {} as a server", program.display()))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        // From here on, dropping `server` ends the process.
        let mut server = Self { child, stdin, addresses: Vec::new() };
        for line in BufReader::new(stdout.context("the server's output was not captured")?).lines() {
            let line = line.context("reading what the server says")?;
            if line == READY {
                return Ok(server);
            }
            if let Some(address) = line.strip_prefix(SERVING) {
                server.addresses.push(address.to_owned());
            } else if let Some(reason) = line.strip_prefix(FAILED) {
                bail!("the server process did not start: {reason}");
            }
        }
        let status = server.child.wait().context("waiting for the server")?;
        bail!("the server process `{}` ended at once ({status}); its messages, if any, are above", args.join(" "))
    }

    /// Addresses where it serves, one for each thread.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Address where its first thread serves.
    pub fn address(&self) -> anyhow::Result<&str> {
        Ok(self.addresses.first().context("the server did not say where it serves")?)
    }

    /// Process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
