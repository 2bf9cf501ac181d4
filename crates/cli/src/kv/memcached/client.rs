//! A client of any memcached or Redis server: requests of a trace, pipelined over several connections, every answer checked.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use sinew::host::Interrupt;

use crate::client::histogram;
use crate::machine;
use crate::workload::{Request, Workload, check_value, fill_value};

/// Requests that are drawn ahead.
const TRACE: usize = 1 << 20;
/// Bytes of a key: a number in hexadecimal.
pub const KEY_LEN: usize = 16;
/// Bytes that are read at once.
const READ_LEN: usize = 64 << 10;
/// Of every so many batches the latency of one is recorded.
const SAMPLE_EVERY: u64 = 8;
/// How long a server may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// What a client and a server say to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// memcached's `get` and `set`
    Text,
    /// memcached's `mg` and `ms`
    Meta,
    /// Redis' `GET` and `SET`
    Redis,
}

impl Wire {
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "get and set",
            Self::Meta => "mg and ms",
            Self::Redis => "GET and SET",
        }
    }
}

/// What a client asks, and how.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub connections: usize,
    /// Requests in flight on each connection, which go out together and of which all are answered before the next.
    pub depth: usize,
    /// Keys of one request to get.
    pub keys_per_get: usize,
    pub wire: Wire,
    pub value_size: usize,
    /// Requests per second, over all connections; as many as are answered when none is given.
    pub rate: Option<f64>,
}

/// What came of a slice.
pub struct Slice {
    /// Keys that were asked for or stored.
    pub keys: u64,
    pub gets: u64,
    pub hits: u64,
    pub elapsed: Duration,
    /// Of requests, from when they went out; with a rate, from when they should have.
    pub latency: Histogram<u64>,
}

impl Slice {
    /// Millions of keys per second.
    pub fn mops(&self) -> f64 {
        self.keys as f64 / self.elapsed.as_secs_f64() / 1e6
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn connect(address: &str) -> std::io::Result<Self> {
        if let Some(path) = address.strip_prefix("unix:") {
            let stream = UnixStream::connect(path)?;
            stream.set_nonblocking(true)?;
            return Ok(Self::Unix(stream));
        }
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self::Tcp(stream))
    }

    fn read(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(target),
            Self::Unix(stream) => stream.read(target),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }
}

/// A request in flight.
#[derive(Clone, Copy)]
struct Pending {
    /// Of its first key, in the list of keys.
    keys: usize,
    is_get: bool,
    /// If its latency counts.
    began: Option<Instant>,
}

struct Connection {
    stream: Stream,
    out: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    /// Of the input, what is read and not looked at.
    filled: std::ops::Range<usize>,
    pending: VecDeque<Pending>,
    /// Keys that pending requests to get are still to be answered for.
    keys: VecDeque<u64>,
}

/// See the module.
pub struct Client {
    connections: Vec<Connection>,
    load: Load,
    trace: Vec<Request>,
    at: usize,
    round: u64,
    batches: u64,
    value: Vec<u8>,
    interrupt: Interrupt,
}

/// What a stretch of answers was.
#[derive(Default)]
struct Counts {
    requests: u64,
    keys: u64,
    gets: u64,
    hits: u64,
}

/// The key with this number.
fn key_text(key: u64) -> [u8; KEY_LEN] {
    std::array::from_fn(|at| b"0123456789abcdef"[(key >> (60 - 4 * at)) as usize & 15])
}

impl Client {
    /// Connects to the server at `HOST:PORT` or `unix:PATH`.
    pub fn connect(address: &str, load: Load, workload: &Workload, interrupt: Interrupt) -> anyhow::Result<Self> {
        let connect = || {
            let stream = Stream::connect(address).with_context(|| format!("no server at {address}"))?;
            Ok(Connection {
                stream,
                out: Vec::new(),
                sent: 0,
                input: vec![0; READ_LEN],
                filled: 0..0,
                pending: VecDeque::new(),
                keys: VecDeque::new(),
            })
        };
        Ok(Self {
            connections: (0..load.connections).map(|_| connect()).collect::<anyhow::Result<_>>()?,
            load,
            trace: workload.trace(TRACE),
            at: 0,
            round: 0,
            batches: 0,
            value: vec![0; load.value_size],
            interrupt,
        })
    }

    /// Stores every key.
    pub fn fill(&mut self, keys: u64) -> anyhow::Result<()> {
        let mut ignored = histogram();
        let mut next = 0;
        let mut last = Instant::now();
        let depth = (READ_LEN / (self.load.value_size + 64)).clamp(1, 256);
        let mut connection = 0;
        while next < keys || self.connections.iter().any(|connection| !connection.pending.is_empty()) {
            connection = (connection + 1) % self.connections.len();
            if next < keys && self.connections[connection].pending.is_empty() {
                for key in next..keys.min(next + depth as u64) {
                    self.store(connection, key, None);
                }
                next += depth as u64;
            }
            let counts = self.exchange(connection, &mut ignored)?;
            self.look_out(&mut last, counts.requests)?;
        }
        Ok(())
    }

    /// Fails when nothing comes for long.
    fn look_out(&self, last: &mut Instant, answers: u64) -> anyhow::Result<()> {
        if answers > 0 {
            *last = Instant::now();
            return Ok(());
        }
        ensure!(!self.interrupt.is_set(), "interrupted");
        ensure!(last.elapsed() < SILENCE_MAX, "the server does not answer");
        if !machine::has_two_cpus() {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Goes on with the trace.
    pub fn run(&mut self, duration: Duration) -> anyhow::Result<Slice> {
        let mut latency = histogram();
        let mut counts = Counts::default();
        let began = Instant::now();
        let (mut last, mut now) = (began, began);
        let mut started = 0u64;
        let mut turns = 0u64;
        while now.duration_since(began) < duration || counts.requests == 0 {
            for connection in 0..self.connections.len() {
                match self.load.rate {
                    None => {
                        if self.connections[connection].pending.is_empty() {
                            let stamp = self.batches.is_multiple_of(SAMPLE_EVERY).then(Instant::now);
                            self.batches += 1;
                            for _ in 0..self.load.depth {
                                self.start(connection, stamp);
                            }
                        }
                    }
                    Some(rate) => {
                        let due = (Instant::now().duration_since(began).as_secs_f64() * rate) as u64;
                        let room = self.load.depth.saturating_sub(self.connections[connection].pending.len());
                        for _ in 0..due.saturating_sub(started).min(room as u64) {
                            // When it should have gone out, not when it did.
                            let stamp = began + Duration::from_secs_f64(started as f64 / rate);
                            self.start(connection, Some(stamp));
                            started += 1;
                        }
                    }
                }
                let more = self.exchange(connection, &mut latency)?;
                counts.add(&more);
                turns += 1;
                if more.requests == 0 || turns.is_multiple_of(16) {
                    self.look_out(&mut last, more.requests)?;
                    now = Instant::now();
                }
            }
        }
        let elapsed = began.elapsed();
        // What is in flight is nobody's.
        let mut ignored = histogram();
        while self.connections.iter().any(|connection| !connection.pending.is_empty()) {
            for connection in 0..self.connections.len() {
                let more = self.exchange(connection, &mut ignored)?;
                self.look_out(&mut last, more.requests)?;
            }
        }
        Ok(Slice { keys: counts.keys, gets: counts.gets, hits: counts.hits, elapsed, latency })
    }

    fn next(&mut self) -> Request {
        self.at = if self.at + 1 < self.trace.len() { self.at + 1 } else { 0 };
        self.trace[self.at]
    }

    /// Puts the next request of the trace in a connection's output.
    fn start(&mut self, connection: usize, began: Option<Instant>) {
        let request = self.next();
        if !request.is_get() {
            return self.store(connection, request.key(), began);
        }
        let mut key = request.key();
        let connection = &mut self.connections[connection];
        let out = &mut connection.out;
        let [before, after]: [&[u8]; 2] = match self.load.wire {
            Wire::Text => [b"get ", b"\r\n"],
            Wire::Meta => [b"mg ", b" v\r\n"],
            Wire::Redis => [b"*2\r\n$3\r\nGET\r\n$16\r\n", b"\r\n"],
        };
        out.extend_from_slice(before);
        for more in 1..=self.load.keys_per_get {
            out.extend_from_slice(&key_text(key));
            connection.keys.push_back(key);
            if more < self.load.keys_per_get {
                out.push(b' ');
                self.at = if self.at + 1 < self.trace.len() { self.at + 1 } else { 0 };
                key = self.trace[self.at].key();
            }
        }
        out.extend_from_slice(after);
        connection.pending.push_back(Pending { keys: self.load.keys_per_get, is_get: true, began });
    }

    fn store(&mut self, connection: usize, key: u64, began: Option<Instant>) {
        self.round += 1;
        fill_value(&mut self.value, key, self.round);
        let connection = &mut self.connections[connection];
        let len = self.value.len();
        let text = key_text(key);
        let text = std::str::from_utf8(&text).unwrap_or_default();
        // It can be written: it is memory.
        let _ = match self.load.wire {
            Wire::Text => write!(connection.out, "set {text} 0 0 {len}\r\n"),
            Wire::Meta => write!(connection.out, "ms {text} {len}\r\n"),
            Wire::Redis => write!(connection.out, "*3\r\n$3\r\nSET\r\n$16\r\n{text}\r\n${len}\r\n"),
        };
        connection.out.extend_from_slice(&self.value);
        connection.out.extend_from_slice(b"\r\n");
        connection.pending.push_back(Pending { keys: 1, is_get: false, began });
    }

    /// Sends and reads what it can, and checks the answers that are there.
    fn exchange(&mut self, connection: usize, latency: &mut Histogram<u64>) -> anyhow::Result<Counts> {
        let connection = &mut self.connections[connection];
        connection.send()?;
        if connection.pending.is_empty() || !connection.receive()? {
            return Ok(Counts::default());
        }
        connection.take_answers(self.load.wire, self.load.value_size, latency)
    }
}

impl Counts {
    fn add(&mut self, more: &Self) {
        self.requests += more.requests;
        self.keys += more.keys;
        self.gets += more.gets;
        self.hits += more.hits;
    }
}

impl Connection {
    fn send(&mut self) -> anyhow::Result<()> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("sending to the server"),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    /// Reads once; returns whether anything came.
    fn receive(&mut self) -> anyhow::Result<bool> {
        if self.filled.start > 0 {
            self.input.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        if self.filled.end == self.input.len() {
            self.input.resize(self.input.len() * 2, 0);
        }
        match self.stream.read(&mut self.input[self.filled.end..]) {
            Ok(0) => bail!("the server closed the connection"),
            Ok(len) => {
                self.filled.end += len;
                Ok(true)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
            Err(error) => Err(error).context("reading from the server"),
        }
    }

    fn take_answers(&mut self, wire: Wire, value_size: usize, latency: &mut Histogram<u64>) -> anyhow::Result<Counts> {
        let mut counts = Counts::default();
        let mut now = None;
        while let Some(&Pending { keys, is_get, began }) = self.pending.front() {
            let rest = &self.input[self.filled.clone()];
            let Some(end) = rest.windows(2).take(300).position(|two| two == b"\r\n") else {
                ensure!(rest.len() < 300, "no answer: {}", shown(rest));
                break;
            };
            let line = &rest[..end];
            let mut len = end + 2;
            let done = if !is_get {
                ensure!(matches!(line, b"STORED" | b"HD" | b"+OK"), "not stored: {}", shown(line));
                true
            } else if matches!(line, b"END" | b"EN" | b"$-1") {
                // What was not answered was not there.
                let left = if wire == Wire::Text { answers_left(&self.pending, &self.keys) } else { 1 };
                self.keys.drain(..left.min(self.keys.len()));
                true
            } else {
                let (key, size) = value_line(line, wire).with_context(|| format!("no value: {}", shown(line)))?;
                if rest.len() < len + size + 2 {
                    break;
                }
                let value = &rest[len..len + size];
                ensure!(rest[len + size..].starts_with(b"\r\n"), "a value without its end");
                len += size + 2;
                // Keys that were not there are left out.
                let found = loop {
                    let asked = self.keys.pop_front().context("a value that nobody asked for")?;
                    if key.is_none_or(|key| key == key_text(asked)) {
                        break asked;
                    }
                };
                ensure!(size == value_size && check_value(value, found), "the server gave a wrong value");
                counts.hits += 1;
                wire != Wire::Text
            };
            self.filled.start += len;
            if done {
                self.pending.pop_front();
                counts.requests += 1;
                counts.keys += keys as u64;
                counts.gets += if is_get { keys as u64 } else { 0 };
                if let Some(began) = began {
                    let now = *now.get_or_insert_with(Instant::now);
                    latency.saturating_record(now.saturating_duration_since(began).as_nanos() as u64);
                }
            }
        }
        Ok(counts)
    }
}

/// Of the keys that are not answered for, those of the first request.
fn answers_left(pending: &VecDeque<Pending>, keys: &VecDeque<u64>) -> usize {
    let behind: usize = pending.iter().skip(1).filter(|pending| pending.is_get).map(|pending| pending.keys).sum();
    keys.len() - behind
}

/// The key, if it is told, and the length that a line announces.
fn value_line(line: &[u8], wire: Wire) -> Option<(Option<&[u8]>, usize)> {
    let (key, size) = match wire {
        Wire::Redis => (None, line.strip_prefix(b"$")?),
        Wire::Meta => (None, line.strip_prefix(b"VA ")?.split(|byte| *byte == b' ').next()?),
        Wire::Text => {
            let mut words = line.strip_prefix(b"VALUE ")?.split(|byte| *byte == b' ');
            (Some(words.next()?), words.nth(1)?)
        }
    };
    Some((key, std::str::from_utf8(size).ok()?.parse().ok()?))
}

fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(100)].escape_ascii().to_string()
}
