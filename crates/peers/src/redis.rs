//! Redis, without persistence, and a client of it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::server::{Missing, Place, Server, port, socket, version};

/// Length of a key, and of a value, in bytes.
const LEN: usize = 8;
/// Keys that are stored together.
const STORED_TOGETHER: u64 = 1000;
/// Longest silence of the server.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Fails unless Redis is installed.
///
/// # Errors
///
/// [`Missing`].
pub fn check() -> Result<(), Missing> {
    Missing::check("redis-server", "redis-server")
}

/// Starts Redis, and waits until it listens. Returns it, and its name with the version. With `memory_mb`, it evicts
/// what was used longest ago when it holds so many megabytes.
///
/// # Errors
///
/// [`Missing`], or it does not start.
pub fn start(place: Place, memory_mb: Option<usize>) -> anyhow::Result<(Server, String)> {
    check()?;
    let text = version("redis-server", "--version")?;
    let number = text.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or_default();
    let address = place.address("redis")?;
    let mut command = place.command("redis-server");
    command.args(["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]);
    if let Some(memory_mb) = memory_mb {
        command.args(["--maxmemory-policy", "allkeys-lru", "--maxmemory", &format!("{memory_mb}mb")]);
    }
    match socket(&address) {
        Some(socket) => command.args(["--port", "0", "--unixsocket"]).arg(socket),
        None => command.args(["--port", port(&address)]),
    };
    let mut server = Server::start(command, &address)?;
    server.wait_until_it_listens()?;
    Ok((server, format!("redis {number}")))
}

/// GETs that a client keeps in flight.
#[derive(Clone, Copy, Debug)]
pub struct Gets {
    /// Keys to draw from; key and value have 8 bytes each.
    pub keys: u64,
    /// GETs in flight.
    pub window: usize,
    /// GETs sent together.
    pub batch: usize,
}

/// A client with several requests in flight on one connection. It sleeps while it waits.
#[derive(Debug)]
pub struct Client {
    socket: BufReader<TcpStream>,
    gets: Gets,
    word: u64,
}

/// Returns the key of a number. The order of keys is not that of numbers.
fn key(number: u64) -> [u8; LEN] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn command(words: &[&[u8]], bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
}

impl Client {
    /// Connects to a server at a TCP address, and stores all keys.
    ///
    /// # Errors
    ///
    /// The server is gone, or refuses a request.
    pub fn connect(server: &Server, gets: Gets) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(server.address()).context("connecting to redis-server")?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(SILENCE_MAX))?;
        let mut client = Self { socket: BufReader::with_capacity(64 << 10, socket), gets, word: 1 };
        client.fill()?;
        Ok(client)
    }

    fn fill(&mut self) -> anyhow::Result<()> {
        let keys = self.gets.keys;
        for first in (0..keys).step_by(STORED_TOGETHER as usize) {
            let numbers = first..(first + STORED_TOGETHER).min(keys);
            let mut bytes = Vec::new();
            for number in numbers.clone() {
                command(&[b"SET", &key(number), &number.to_le_bytes()], &mut bytes);
            }
            self.socket.get_mut().write_all(&bytes)?;
            for _ in numbers {
                let mut line = String::new();
                self.socket.read_line(&mut line).context("redis-server does not answer")?;
                ensure!(line == "+OK\r\n", "redis-server answered {line:?}");
            }
        }
        Ok(())
    }

    /// GETs random keys for this time, checks each value, and returns millions of GETs per second.
    ///
    /// # Errors
    ///
    /// The server is gone, or an answer is wrong.
    pub fn rate_mops(&mut self, duration: Duration) -> anyhow::Result<f64> {
        let Gets { keys, window, batch } = self.gets;
        let mut asked = VecDeque::with_capacity(window);
        let (begun, mut done) = (Instant::now(), 0_u64);
        let mut bytes = Vec::new();
        loop {
            let elapsed = begun.elapsed();
            let is_over = elapsed >= duration && done > 0;
            bytes.clear();
            while asked.len() + batch <= window && !is_over {
                for _ in 0..batch {
                    self.word =
                        self.word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let number = (self.word >> 32) % keys;
                    command(&[b"GET", &key(number)], &mut bytes);
                    asked.push_back(number);
                }
            }
            self.socket.get_mut().write_all(&bytes)?;
            if asked.is_empty() {
                return Ok(done as f64 / elapsed.as_secs_f64() / 1e6);
            }
            for number in asked.drain(..batch) {
                let mut answer = [0; 4 + LEN + 2];
                self.socket.read_exact(&mut answer).context("redis-server does not answer")?;
                let is_right = answer[..4] == *b"$8\r\n" && answer[4..4 + LEN] == number.to_le_bytes();
                ensure!(is_right, "redis-server gave a wrong value");
                done += 1;
            }
        }
    }
}
