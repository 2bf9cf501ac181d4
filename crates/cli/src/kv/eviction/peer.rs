//! memcached, given the same requests as the table.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use sinew_harness::load::memcached::key_text;
use sinew_harness::workload::{Request, Sizes, check_value, fill_value};

use super::{AskedCache, Hits};
use crate::kv::memcached::servers::{self, ServerPlan, Started};

/// Most keys of a `get`. What these miss is stored after all of them, so there are few.
const KEYS: usize = 32;
/// Longest silence of memcached.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// memcached, with one thread, and a connection to it. It ends when this is dropped.
pub struct Peer {
    started: Started,
    stream: BufReader<TcpStream>,
    sizes: Sizes,
    out: Vec<u8>,
    line: Vec<u8>,
    value: Vec<u8>,
}

impl Peer {
    /// Starts it with `memory_bytes` for items, on the processor `cpu`.
    pub fn start(sizes: Sizes, memory_bytes: usize, cpu: Option<usize>) -> anyhow::Result<Self> {
        let memory_mb = memory_bytes >> 20;
        let started = servers::memcached(&ServerPlan { keys: 0, memory_mb, cpu, unix: false })?;
        let stream = TcpStream::connect(&started.address).context("connecting to memcached")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        let stream = BufReader::with_capacity(1 << 18, stream);
        Ok(Self { started, stream, sizes, out: Vec::new(), line: Vec::new(), value: Vec::new() })
    }

    /// Its name and version.
    pub fn name(&self) -> &str {
        &self.started.name
    }

    /// Number of items that it has.
    pub fn items(&mut self) -> anyhow::Result<u64> {
        self.out.extend(b"stats\r\n");
        self.send()?;
        let mut items = None;
        loop {
            self.read_line()?;
            if self.line == b"END" {
                return items.context("memcached does not say how many items it has");
            }
            let line = String::from_utf8_lossy(&self.line);
            items = line.strip_prefix("STAT curr_items ").map_or(items, |number| number.parse().ok());
        }
    }

    fn send(&mut self) -> anyhow::Result<()> {
        self.stream.get_mut().write_all(&self.out).context("it takes no requests")?;
        self.out.clear();
        Ok(())
    }

    /// Reads a line into `self.line`, without its end.
    fn read_line(&mut self) -> anyhow::Result<()> {
        self.line.clear();
        self.stream.read_until(b'\n', &mut self.line).context("it does not answer")?;
        ensure!(self.line.ends_with(b"\r\n"), "memcached closed the connection");
        self.line.truncate(self.line.len() - 2);
        Ok(())
    }

    /// Asks for all keys that `requests` get. Returns for each whether it was found.
    fn get(&mut self, requests: &[Request]) -> anyhow::Result<[bool; KEYS]> {
        let mut found = [false; KEYS];
        self.out.extend(b"get");
        for request in requests.iter().filter(|request| request.is_get()) {
            self.out.push(b' ');
            self.out.extend(key_text(request.key()));
        }
        self.out.extend(b"\r\n");
        self.send()?;
        // Values come in the order of the keys, without those that are missing.
        let mut asked = requests.iter().enumerate().filter(|(_, request)| request.is_get());
        loop {
            self.read_line()?;
            if self.line == b"END" {
                return Ok(found);
            }
            let line = String::from_utf8_lossy(&self.line);
            let words: Vec<&str> = line.split(' ').collect();
            let ["VALUE", key, _, len] = words[..] else { bail!("memcached answered {line:?}") };
            let is_asked = |(_, request): &(usize, &Request)| key.as_bytes() == key_text(request.key());
            let (at, request) = asked.find(is_asked).with_context(|| format!("memcached answered {line:?}"))?;
            let (key, len) = (request.key(), len.parse::<usize>().ok());
            ensure!(len == Some(self.sizes.of(key)), "memcached answered {line:?}, of another length");
            // The value, and the end of its line.
            self.value.resize(self.sizes.of(key) + 2, 0);
            self.stream.read_exact(&mut self.value).context("it does not answer")?;
            let (value, end) = self.value.split_at(self.value.len() - 2);
            ensure!(end == b"\r\n" && check_value(value, key), "memcached gave a wrong value of {key}");
            found[at] = true;
        }
    }
}

impl AskedCache for Peer {
    fn serve(&mut self, requests: &[Request], hits: &mut Hits) -> anyhow::Result<()> {
        for requests in requests.chunks(KEYS) {
            let found =
                if requests.iter().any(|request| request.is_get()) { self.get(requests)? } else { [false; KEYS] };
            for (request, found) in requests.iter().zip(found) {
                hits.gets += u64::from(request.is_get());
                hits.hits += u64::from(found);
                if found {
                    continue;
                }
                self.value.resize(self.sizes.of(request.key()), 0);
                fill_value(&mut self.value, request.key(), 0);
                // These go with the next `get`, whose answer comes after them.
                self.out.extend(b"set ");
                self.out.extend(key_text(request.key()));
                write!(self.out, " 0 0 {} noreply\r\n", self.value.len())?;
                self.out.extend(&self.value);
                self.out.extend(b"\r\n");
            }
        }
        Ok(())
    }
}
