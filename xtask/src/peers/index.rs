//! GETs of an ordered index beside redis, which keeps no order, over sockets, with as many keys and requests in flight.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::contest::{Contest, Runner, Side, Unit};
use super::mounts::{require, start, wait_for};
use super::{Server, Setting, figure};
use crate::process;

const KEYS: u64 = 1_000_000;
/// Requests in flight, and requests sent together.
const WINDOW: usize = 64;
const BATCH: usize = 16;
/// Bytes of a value.
const VALUE_LEN: usize = 8;

/// Fails, with a remedy, unless redis is installed.
pub fn present() -> Result<(), String> {
    require(&["redis-server"])
}

/// The contest between our index and redis.
pub fn contests() -> Vec<Contest> {
    vec![Contest {
        title: format!("GETs of an ordered index, udp beside redis over tcp, {WINDOW} in flight"),
        unit: Unit::MillionPerSecond,
        ours: Side { system: "sinew", name: "sinew".into(), counts: 1.0, measure: Runner::new(ours) },
        peers: vec![Side { system: "redis", name: "redis".into(), counts: 1.0, measure: Runner::new(redis) }],
    }]
}

fn ours(setting: &Setting) -> anyhow::Result<f64> {
    let mut command = Command::new(process::target_dir().join("release/sinew"));
    command.args(["index", "bench", "gets", "--fabric", "udp", "--keys", &KEYS.to_string()]);
    command.args(["--window", &WINDOW.to_string(), "--batch", &BATCH.to_string()]);
    command.args(["--seconds", &setting.seconds.to_string(), "--json"]).stdin(Stdio::null());
    figure(&process::output(&mut command)?, "figure")
}

fn redis(setting: &Setting) -> anyhow::Result<f64> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let [server, client] = setting.cores.map(|core| core.to_string());
    let mut command = Command::new("taskset");
    command.args(["-c", &server, "redis-server", "--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
    let server = Server(start(&mut command)?);
    wait_for("redis-server", || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
    let seconds = Duration::from_secs_f64(setting.seconds);
    // The client is pinned on a thread of its own, which leaves the other cores to later measurements.
    let rate = std::thread::scope(|scope| {
        let run = || {
            super::pin(client.parse()?)?;
            let mut client = Client::connect(port)?;
            client.fill()?;
            client.gets(seconds)
        };
        scope.spawn(run).join().unwrap_or_else(|_| anyhow::bail!("the client panicked"))
    });
    drop(server);
    rate
}

/// A client with several requests in flight on one connection.
struct Client {
    socket: BufReader<TcpStream>,
    word: u64,
}

/// Returns a key of 8 bytes, as long as the index's.
fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Client {
    fn connect(port: u16) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(("127.0.0.1", port)).context("connecting to redis-server")?;
        socket.set_nodelay(true)?;
        Ok(Self { socket: BufReader::with_capacity(64 << 10, socket), word: 1 })
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.socket.read_line(&mut line)?;
        ensure!(!line.is_empty(), "redis-server is gone");
        Ok(line.trim_end().to_owned())
    }

    fn fill(&mut self) -> anyhow::Result<()> {
        const AT_ONCE: u64 = 1000;
        for first in (0..KEYS).step_by(AT_ONCE as usize) {
            let numbers = first..(first + AT_ONCE).min(KEYS);
            let bytes: Vec<u8> =
                numbers.clone().flat_map(|number| command(&[b"SET", &key(number), &number.to_le_bytes()])).collect();
            self.socket.get_mut().write_all(&bytes)?;
            for _ in numbers {
                let line = self.line()?;
                ensure!(line == "+OK", "redis-server says {line}");
            }
        }
        Ok(())
    }

    /// Returns millions of GETs per second. Each value is checked.
    fn gets(&mut self, seconds: Duration) -> anyhow::Result<f64> {
        let mut asked = std::collections::VecDeque::with_capacity(WINDOW);
        let (begun, mut done) = (Instant::now(), 0_u64);
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            while asked.len() + BATCH <= WINDOW {
                for _ in 0..BATCH {
                    self.word =
                        self.word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let number = (self.word >> 32) % KEYS;
                    bytes.extend(command(&[b"GET", &key(number)]));
                    asked.push_back(number);
                }
            }
            self.socket.get_mut().write_all(&bytes)?;
            for number in asked.drain(..BATCH) {
                let mut answer = [0; 4 + VALUE_LEN + 2];
                self.socket.read_exact(&mut answer)?;
                ensure!(answer[..4] == *b"$8\r\n" && answer[4..12] == number.to_le_bytes(), "redis gave a wrong value");
                done += 1;
            }
            let elapsed = begun.elapsed();
            if elapsed >= seconds {
                return Ok(done as f64 / elapsed.as_secs_f64() / 1e6);
            }
        }
    }
}
