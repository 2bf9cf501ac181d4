//! A client of any memcached or Redis server: requests of a trace, pipelined over several connections, with every
//! answer checked.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, bail, ensure};
use sinew::fabric::Clock;

use super::{Load, Slice, Span, State};
use crate::workload::{Request, Workload, check_value, fill_value};

/// Requests drawn in advance.
const TRACE: usize = 1 << 20;
/// Length of a key in bytes: a number in hexadecimal.
pub const KEY_LEN: usize = 16;
/// Bytes read at once.
const READ_LEN: usize = 64 << 10;
/// Sampling interval: the latency of one batch in this many is recorded.
const SAMPLE_EVERY: u64 = 8;
/// Longest silence of a server, in ns.
const SILENCE_MAX_NS: u64 = 10_000_000_000;

/// Protocol between client and server.
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
    /// Its commands, in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "get and set",
            Self::Meta => "mg and ms",
            Self::Redis => "GET and SET",
        }
    }
}

/// Load that a client makes.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Connections of the client.
    pub connections: usize,
    /// Requests in flight on each connection. They are sent together, and the next ones once all are answered.
    pub depth: usize,
    /// Keys in each get.
    pub keys_per_get: usize,
    /// Protocol on the connections.
    pub wire: Wire,
    /// Length of every value, in bytes.
    pub value_size: usize,
    /// Open loop: requests a second, over all connections. `None`: closed loop, as many as are answered.
    pub rate: Option<f64>,
}

/// Connects a socket, which is then read and written as a file.
fn connect(address: &str) -> std::io::Result<File> {
    if let Some(path) = address.strip_prefix("unix:") {
        let stream = UnixStream::connect(path)?;
        stream.set_nonblocking(true)?;
        return Ok(OwnedFd::from(stream).into());
    }
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(OwnedFd::from(stream).into())
}

/// A request in flight.
#[derive(Clone, Copy)]
struct Pending {
    /// Number of its keys.
    keys: usize,
    is_get: bool,
    /// Time when it was sent or was due, if its latency is recorded.
    began_ns: Option<u64>,
}

struct Connection {
    stream: File,
    out: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    /// Part of the input that has been read and not yet parsed.
    filled: std::ops::Range<usize>,
    pending: VecDeque<Pending>,
    /// Keys of pending gets that have not been answered yet.
    keys: VecDeque<u64>,
}

/// A driver of connections to a server of memcached's or Redis' protocol.
pub struct Memcached<C> {
    connections: Vec<Connection>,
    clock: C,
    shape: Shape,
    trace: Vec<Request>,
    at: usize,
    round: u64,
    batches: u64,
    value: Vec<u8>,
    /// Keys still to be stored before the trace begins.
    filling: std::ops::Range<u64>,
    /// Requests started in the slice, and when it began, if there is a rate.
    started: u64,
    began_ns: u64,
    last_answer_ns: u64,
    span: Span,
    slice: Slice,
}

/// Text of the key with this number.
pub fn key_text(key: u64) -> [u8; KEY_LEN] {
    std::array::from_fn(|at| b"0123456789abcdef"[(key >> (60 - 4 * at)) as usize & 15])
}

impl<C: Clock> Memcached<C> {
    /// Connects to the server at `HOST:PORT` or `unix:PATH`.
    ///
    /// # Errors
    ///
    /// There is no server.
    pub fn connect(address: &str, shape: Shape, workload: &Workload, clock: C) -> anyhow::Result<Self> {
        let open = || {
            let stream = connect(address).with_context(|| format!("no server at {address}"))?;
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
            connections: (0..shape.connections).map(|_| open()).collect::<anyhow::Result<_>>()?,
            clock,
            shape,
            trace: workload.trace(TRACE),
            at: 0,
            round: 0,
            batches: 0,
            value: vec![0; shape.value_size],
            filling: 0..0,
            started: 0,
            began_ns: 0,
            last_answer_ns: 0,
            span: Span::default(),
            slice: Slice::new(),
        })
    }

    /// Has the next slice store the first `keys` keys, and end once they are stored.
    pub fn fill(&mut self, keys: u64) {
        self.filling = 0..keys;
    }

    fn next(&mut self) -> Request {
        self.at = if self.at + 1 < self.trace.len() { self.at + 1 } else { 0 };
        self.trace[self.at]
    }

    /// Puts the requests that are due into a connection's output.
    fn start_due(&mut self, connection: usize) {
        let in_flight = self.connections[connection].pending.len();
        if !self.filling.is_empty() {
            let depth = (READ_LEN / (self.shape.value_size + 64)).clamp(1, 256);
            for _ in in_flight..if in_flight == 0 { depth } else { 0 } {
                let Some(key) = self.filling.next() else { break };
                self.store(connection, key, None);
            }
        } else if let Some(rate) = self.shape.rate {
            let due = (self.clock.now_ns().saturating_sub(self.began_ns) as f64 * rate / 1e9) as u64;
            let room = self.shape.depth.saturating_sub(in_flight) as u64;
            for _ in 0..due.saturating_sub(self.started).min(room) {
                // Count from when it was due, not from when it is sent.
                let stamp_ns = self.began_ns + (self.started as f64 / rate * 1e9) as u64;
                self.start(connection, Some(stamp_ns));
                self.started += 1;
            }
        } else if in_flight == 0 {
            let stamp_ns = self.batches.is_multiple_of(SAMPLE_EVERY).then(|| self.clock.now_ns());
            self.batches += 1;
            (0..self.shape.depth).for_each(|_| self.start(connection, stamp_ns));
        }
    }

    /// Puts the next request of the trace into a connection's output.
    fn start(&mut self, connection: usize, began_ns: Option<u64>) {
        let request = self.next();
        if !request.is_get() {
            return self.store(connection, request.key(), began_ns);
        }
        let mut key = request.key();
        let connection = &mut self.connections[connection];
        let out = &mut connection.out;
        let [before, after]: [&[u8]; 2] = match self.shape.wire {
            Wire::Text => [b"get ", b"\r\n"],
            Wire::Meta => [b"mg ", b" v\r\n"],
            Wire::Redis => [b"*2\r\n$3\r\nGET\r\n$16\r\n", b"\r\n"],
        };
        out.extend_from_slice(before);
        for more in 1..=self.shape.keys_per_get {
            out.extend_from_slice(&key_text(key));
            connection.keys.push_back(key);
            if more < self.shape.keys_per_get {
                out.push(b' ');
                self.at = if self.at + 1 < self.trace.len() { self.at + 1 } else { 0 };
                key = self.trace[self.at].key();
            }
        }
        out.extend_from_slice(after);
        connection.pending.push_back(Pending { keys: self.shape.keys_per_get, is_get: true, began_ns });
    }

    fn store(&mut self, connection: usize, key: u64, began_ns: Option<u64>) {
        self.round += 1;
        fill_value(&mut self.value, key, self.round);
        let connection = &mut self.connections[connection];
        let len = self.value.len();
        let text = key_text(key);
        let text = std::str::from_utf8(&text).unwrap_or_default();
        // Writing cannot fail: the output is memory.
        let _ = match self.shape.wire {
            Wire::Text => write!(connection.out, "set {text} 0 0 {len}\r\n"),
            Wire::Meta => write!(connection.out, "ms {text} {len}\r\n"),
            Wire::Redis => write!(connection.out, "*3\r\n$3\r\nSET\r\n$16\r\n{text}\r\n${len}\r\n"),
        };
        connection.out.extend_from_slice(&self.value);
        connection.out.extend_from_slice(b"\r\n");
        connection.pending.push_back(Pending { keys: 1, is_get: false, began_ns });
    }
}

impl<C: Clock> Load for Memcached<C> {
    fn begin(&mut self, now_ns: u64, end_ns: u64) -> anyhow::Result<()> {
        self.span = Span::begin(now_ns, end_ns);
        self.slice = Slice::new();
        (self.batches, self.started, self.began_ns, self.last_answer_ns) = (0, 0, now_ns, now_ns);
        Ok(())
    }

    fn turn(&mut self, now_ns: u64) -> anyhow::Result<State> {
        let may_start = !self.filling.is_empty() || self.span.may_start(now_ns, self.slice.done);
        let mut answered = 0;
        for at in 0..self.connections.len() {
            if may_start {
                self.start_due(at);
            }
            let connection = &mut self.connections[at];
            connection.send()?;
            if connection.pending.is_empty() || !connection.receive()? {
                continue;
            }
            answered += connection.take_answers(self.shape, &self.clock, &mut self.slice, may_start)?;
        }
        if answered > 0 {
            self.last_answer_ns = now_ns;
        }
        ensure!(now_ns.saturating_sub(self.last_answer_ns) < SILENCE_MAX_NS, "the server does not answer");
        if !may_start && self.connections.iter().all(|connection| connection.pending.is_empty()) {
            return Ok(State::Over);
        }
        Ok(State::of(answered > 0))
    }

    fn end(&mut self) -> Slice {
        let slice = std::mem::take(&mut self.slice);
        Slice { elapsed_ns: self.span.elapsed_ns(), ..slice }
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

    /// Reads once. Returns whether there was any input.
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

    /// Takes and checks the answers that have arrived, and counts them if they came in time. Returns their number.
    fn take_answers(
        &mut self,
        shape: Shape,
        clock: &impl Clock,
        slice: &mut Slice,
        counts: bool,
    ) -> anyhow::Result<u64> {
        let Shape { wire, value_size, .. } = shape;
        let (mut answered, mut now) = (0, None);
        while let Some(&Pending { keys, is_get, began_ns }) = self.pending.front() {
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
                // Keys without an answer were not found.
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
                // Keys that were not found are left out.
                let found = loop {
                    let asked = self.keys.pop_front().context("a value that was not asked for")?;
                    if key.is_none_or(|key| key == key_text(asked)) {
                        break asked;
                    }
                };
                ensure!(size == value_size && check_value(value, found), "the server gave a wrong value");
                slice.hits += u64::from(counts);
                wire != Wire::Text
            };
            self.filled.start += len;
            if done {
                self.pending.pop_front();
                answered += 1;
                if counts {
                    slice.done += keys as u64;
                    slice.gets += if is_get { keys as u64 } else { 0 };
                }
                if let Some(began_ns) = began_ns {
                    let now_ns = *now.get_or_insert_with(|| clock.now_ns());
                    slice.latency.saturating_record(now_ns.saturating_sub(began_ns));
                }
            }
        }
        Ok(answered)
    }
}

/// Number of unanswered keys that belong to the first request.
fn answers_left(pending: &VecDeque<Pending>, keys: &VecDeque<u64>) -> usize {
    let behind: usize = pending.iter().skip(1).filter(|pending| pending.is_get).map(|pending| pending.keys).sum();
    keys.len() - behind
}

/// The key, if there is one, and the length of the value that a line announces.
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
