//! Processes that tests start, kill and wait for.
#![allow(dead_code)] // Each test program uses some of it.

pub mod rights;

use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sinew::fabric::PollPolicy;
use sinew::prelude::*;

/// Longer than anything here takes on a busy machine with one processor: a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Peer time-out of endpoints in tests, in ms.
pub const PEER_TIMEOUT_MS: u64 = 1_000;

/// Request type: a worker of the server sleeps for as many milliseconds as the request says.
pub const SLEEP: RequestType = RequestType::new(4);
/// Request type: the server echoes the request.
pub const ECHO: RequestType = RequestType::new(1);
/// Request type: the server answers with its counters as JSON.
pub const REPORT: RequestType = RequestType::new(3);

/// A service that echoes.
pub fn echo(config: Config) -> Nexus {
    let echo = |call: Call| {
        let request = call.request();
        call.reply(request);
    };
    Nexus::builder().config(config).handle(ECHO, echo).build().unwrap()
}

/// Returns a text that no other test, of this or another run, uses.
pub fn unique(what: &str) -> String {
    format!("{what}-{:016x}", RandomState::new().hash_one(()))
}

/// The command under test.
pub fn sinew(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sinew-under-test"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs a command to its end, and kills it if that takes too long.
pub fn run(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if is_done.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            send(pid, Signal::KILL);
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(done);
    watchdog.join().unwrap();
    output
}

/// Returns what a process wrote, as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns what the command prints for these arguments, which are separated by spaces and valid.
pub fn shown(args: &str) -> String {
    let output = run(&mut sinew(&args.split(' ').collect::<Vec<_>>()));
    assert!(output.status.success(), "{args}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Returns the command's complaint about these arguments, which are wrong usage.
pub fn complaint(args: &str) -> String {
    let output = run(&mut sinew(&args.split(' ').collect::<Vec<_>>()));
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), String::new()), "{args}");
    text(&output.stderr)
}

pub fn send(pid: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), signal);
}

/// A process that ends with the test.
pub struct Process(pub Child);

impl Process {
    pub fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        send(self.0.id(), signal);
    }

    /// Waits until it ends.
    pub fn wait(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "a process did not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A test server in a process of its own.
pub struct Server {
    pub process: Process,
    pub address: String,
    /// The server ends when this closes.
    stdin: Option<std::process::ChildStdin>,
}

impl Drop for Server {
    /// Ends the server cleanly, so that its name is removed. If it does not end, it is killed when `process` is
    /// dropped.
    fn drop(&mut self) {
        drop(self.stdin.take());
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(2) && matches!(self.process.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Server {
    /// Starts a server on a fabric, which sleeps whenever it has nothing to do.
    pub fn start(fabric: &str) -> Self {
        Self::start_patient(fabric, PEER_TIMEOUT_MS)
    }

    /// Starts a server as [`Self::start`] does, with another peer time-out.
    pub fn start_patient(fabric: &str, peer_timeout_ms: u64) -> Self {
        let address = match fabric {
            "udp" | "ibverbs" => format!("{fabric}://127.0.0.1:0"),
            _ => format!("shm://{}", unique("test")),
        };
        let timeout = peer_timeout_ms.to_string();
        Self::of(&mut sinew(&["rpc", "serve", &address, "--child", "--block", "--peer-timeout-ms", timeout.as_str()]))
    }

    /// Starts a server by a command with `--child`.
    pub fn of(command: &mut Command) -> Self {
        let mut process = Process::start(command.stdin(Stdio::piped()));
        let stdin = process.0.stdin.take();
        let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let mut served = None;
        for line in lines.by_ref().map_while(Result::ok) {
            match line.strip_prefix("serving ") {
                Some(address) => served = Some(address.to_owned()),
                None if line == "ready" => break,
                None => {}
            }
        }
        Self { process, address: served.expect("the server said where it serves"), stdin }
    }

    /// Returns the server's own count of sessions, which includes the session that asks.
    pub fn sessions(&self) -> u64 {
        let mut rpc = client(&self.address);
        let session = rpc.connect(&self.address).unwrap();
        let report = rpc.call(session, REPORT, b"").unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        report["sessions"].as_u64().unwrap()
    }

    /// Waits until the only session is the one that asks.
    pub fn wait_until_deserted(&self) {
        eventually("the server forgets all sessions", || self.sessions() == 1);
    }
}

/// Waits for something that other processes bring about.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Limits that suit tests: nothing spins, and dead peers are noticed soon.
pub fn config() -> Config {
    Config {
        poller: PollPolicy::SLEEP,
        peer_timeout_ns: PEER_TIMEOUT_MS * 1_000_000,
        probe_interval_ns: PEER_TIMEOUT_MS * 1_000_000 / 4,
        connect_timeout_ns: 10_000_000_000,
        call_timeout_ns: PATIENCE.as_nanos() as u64,
        ..Config::default()
    }
}

/// Opens an endpoint that can reach `address`.
pub fn client(address: &str) -> Rpc {
    let nexus = Nexus::builder().config(config()).build().unwrap();
    let (fabric, _) = address.split_once("://").unwrap();
    Rpc::open_with(&nexus, &format!("{fabric}://")).unwrap()
}

/// Returns the exit status of a command that is interrupted as soon as it catches signals.
pub fn status_when_interrupted(args: &[&str]) -> Option<i32> {
    let mut process = Process::start(&mut sinew(args));
    eventually("it catches signals", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 2 != 0)
    });
    process.signal(Signal::INT);
    process.wait().code()
}

/// A folder that is removed with the test; its path is short enough for socket names.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(unique("t"));
        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }

    /// Files in the folder that holds names of shared memory.
    pub fn names(&self) -> Vec<String> {
        match std::fs::read_dir(self.0.join("sinew")) {
            Ok(entries) => entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect(),
            Err(_) => Vec::new(),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the running child processes of `pid`.
pub fn children(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(Path::new("/proc")).unwrap().flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if status_of(child).is_some_and(|(parent, state)| parent == pid && is_living(&state)) {
            found.push(child);
        }
    }
    found
}

/// Whether a process runs. One that has ended but was not waited for does not.
pub fn is_alive(pid: u32) -> bool {
    status_of(pid).is_some_and(|(_, state)| is_living(&state))
}

/// Whether a process is stopped.
pub fn is_stopped(pid: u32) -> bool {
    status_of(pid).is_some_and(|(_, state)| state == "T")
}

fn is_living(state: &str) -> bool {
    !matches!(state, "Z" | "X")
}

/// Returns the parent and the state of a process.
fn status_of(pid: u32) -> Option<(u32, String)> {
    // pid (name) state parent ...; the name may hold anything.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.to_owned();
    let parent = fields.next()?.parse().ok()?;
    Some((parent, state))
}

/// Returns the results that a benchmark prints with `--json`, one or several, in the schema.
pub fn results(command: &mut Command) -> Vec<serde_json::Value> {
    let output = run(command);
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    let object: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stdout)));
    sinew_harness::figure::check(&object).unwrap_or_else(|error| panic!("{error}: {object}"));
    object["results"].as_array().cloned().unwrap_or_else(|| vec![object])
}

/// Returns the number at a place of a result; it must be above zero.
pub fn positive(result: &serde_json::Value, place: &str) -> f64 {
    let number = result
        .pointer(place)
        .and_then(serde_json::Value::as_f64)
        .unwrap_or_else(|| panic!("no number {place} in {result}"));
    assert!(number > 0.0, "{place} in {result}");
    number
}
