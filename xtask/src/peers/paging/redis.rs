//! A redis-server that does not fit, under YCSB's load: Zipf-distributed keys, some of whose values are read and some
//! written.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::group::Group;
use crate::peers::Server;
use crate::peers::mounts::{folder, start, wait_for};

/// Records, and bytes of a value: YCSB's ten fields of 100 bytes.
const RECORDS: u64 = 200_000;
const VALUE: usize = 1000;
/// Memory that the server needs for them, in bytes: an estimate.
pub const LEN: u64 = 320 << 20;
/// Clients, each with one request in flight.
const CLIENTS: u64 = 4;
/// Records sent at once when loading.
const BATCH: u64 = 1000;

/// Returns thousands of requests per second, at a server that may keep `share` percent of the memory that it used;
/// `reads` percent of the requests are reads.
pub fn measure(share: u64, reads: u32, seconds: f64) -> anyhow::Result<f64> {
    let group = Group::new("redis")?;
    let folder = folder("redis")?;
    let socket = folder.join("socket");
    let path = socket.display().to_string();
    let args = ["--port", "0", "--unixsocket", &path, "--save", "", "--appendonly", "no"];
    let server = Server(start(&mut group.command(Path::new("redis-server"), &args))?);
    wait_for("redis-server", || UnixStream::connect(&socket).is_ok())?;
    let mut client = Client::connect(&socket, 0)?;
    client.load()?;
    let used = client.resident()?;
    group.limit(used * share / 100)?;
    // At first the limit has only just been reached, and popular records have yet to come back. So the same time passes
    // beforehand without being counted.
    let from = Instant::now() + Duration::from_secs_f64(seconds);
    let until = from + Duration::from_secs_f64(seconds);
    let counts: Vec<anyhow::Result<u64>> = std::thread::scope(|scope| {
        let run = |number| {
            let socket = &socket;
            scope.spawn(move || Client::connect(socket, number)?.run(reads, from, until))
        };
        let clients: Vec<_> = (1..=CLIENTS).map(run).collect();
        clients.into_iter().map(|client| client.join().unwrap_or_else(|_| bail!("a client panicked"))).collect()
    });
    let took = from.elapsed().as_secs_f64();
    // A killed server need not swap anything in to end.
    drop(server);
    drop(group);
    let _ = std::fs::remove_dir_all(&folder);
    let counts = counts.into_iter().collect::<anyhow::Result<Vec<u64>>>()?;
    Ok(counts.iter().sum::<u64>() as f64 / took / 1000.0)
}

struct Client {
    socket: BufReader<UnixStream>,
    word: u64,
}

fn key(record: u64) -> String {
    format!("user{record:012}")
}

/// Returns a value whose first 8 bytes are the record's number and whose other bytes cannot be compressed.
fn value(record: u64, word: u64) -> Vec<u8> {
    let mut bytes = record.to_le_bytes().to_vec();
    let mut word = word | 1;
    while bytes.len() < VALUE {
        word = step(word);
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

fn step(word: u64) -> u64 {
    let word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    word ^ word >> 29
}

fn set(record: u64, value: &[u8]) -> Vec<u8> {
    let key = key(record);
    let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n", key.len(), value.len());
    [head.as_bytes(), value, b"\r\n"].concat()
}

impl Client {
    fn connect(socket: &Path, number: u64) -> anyhow::Result<Self> {
        let socket = UnixStream::connect(socket).with_context(|| format!("connecting to {}", socket.display()))?;
        Ok(Self { socket: BufReader::new(socket), word: step(number + 7) })
    }

    fn send_command(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.socket.get_mut().write_all(bytes)?)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.socket.read_line(&mut line)?;
        ensure!(!line.is_empty(), "redis-server is gone");
        Ok(line.trim_end().to_owned())
    }

    fn expect_ok(&mut self) -> anyhow::Result<()> {
        let line = self.line()?;
        ensure!(line == "+OK", "redis-server says {line}");
        Ok(())
    }

    fn bulk(&mut self) -> anyhow::Result<Vec<u8>> {
        let line = self.line()?;
        let len = line.strip_prefix('$').and_then(|len| len.parse::<usize>().ok());
        let mut bytes = vec![0; len.with_context(|| format!("redis-server says {line}"))? + 2];
        self.socket.read_exact(&mut bytes)?;
        bytes.truncate(bytes.len() - 2);
        Ok(bytes)
    }

    fn load(&mut self) -> anyhow::Result<()> {
        for first in (0..RECORDS).step_by(BATCH as usize) {
            let batch: Vec<u8> =
                (first..first + BATCH).flat_map(|record| set(record, &value(record, record))).collect();
            let mut writer = self.socket.get_ref().try_clone()?;
            // redis answers while it is written to, so another thread writes.
            let sent = std::thread::spawn(move || writer.write_all(&batch));
            (0..BATCH).try_for_each(|_| self.expect_ok())?;
            sent.join().unwrap_or_else(|_| Err(std::io::Error::other("a writer panicked")))?;
        }
        Ok(())
    }

    /// Bytes that the server has in memory.
    fn resident(&mut self) -> anyhow::Result<u64> {
        self.send_command(b"*2\r\n$4\r\nINFO\r\n$6\r\nmemory\r\n")?;
        let info = String::from_utf8_lossy(&self.bulk()?).into_owned();
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory_rss:")?.trim().parse().ok());
        used.with_context(|| format!("no used_memory_rss in {info}"))
    }

    /// Sends requests until `until`; counts those that were sent from `from` on.
    fn run(&mut self, reads: u32, from: Instant, until: Instant) -> anyhow::Result<u64> {
        let zipf = Zipf::new(RECORDS);
        let mut count = 0;
        while Instant::now() < until {
            let is_counted = Instant::now() >= from;
            self.word = step(self.word);
            let record = scatter(zipf.rank(self.word));
            if self.word % 100 < u64::from(reads) {
                let key = key(record);
                self.send_command(format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).as_bytes())?;
                let found = self.bulk()?;
                let is_it = found.len() >= VALUE && found[..8] == record.to_le_bytes();
                ensure!(is_it, "record {record} does not have the value that was stored");
            } else {
                let value = value(record, self.word);
                self.send_command(&set(record, &value))?;
                self.expect_ok()?;
            }
            count += u64::from(is_counted);
        }
        Ok(count)
    }
}

/// Spreads the ranks, so that popular records lie anywhere.
fn scatter(rank: u64) -> u64 {
    // 7919 is prime and no factor of the number of records, so no two ranks share a record.
    rank * 7919 % RECORDS
}

/// YCSB's distribution of ranks: their chance falls with their power of 0.99 (Gray and others, SIGMOD 1994).
struct Zipf {
    items: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

const THETA: f64 = 0.99;

impl Zipf {
    fn new(items: u64) -> Self {
        let zeta = |items: u64| (1..=items).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let zeta_all = zeta(items);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - THETA)) / (1.0 - zeta(2) / zeta_all);
        Self { items: items as f64, zeta: zeta_all, alpha: 1.0 / (1.0 - THETA), eta }
    }

    /// Returns the rank, from 0 on, that a random word stands for.
    fn rank(&self, word: u64) -> u64 {
        let part = (word >> 11) as f64 / (1u64 << 53) as f64;
        let place = part * self.zeta;
        if place < 1.0 {
            return 0;
        }
        if place < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        let rank = self.items * (self.eta * part - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items as u64 - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_ranks_have_most_of_the_chance_and_all_have_some() {
        let zipf = Zipf::new(1000);
        assert_eq!((zipf.rank(0), zipf.rank(u64::MAX)), (0, 999));
        let (mut word, mut counts) = (1, vec![0u32; 1000]);
        for _ in 0..100_000 {
            word = step(word);
            counts[zipf.rank(word) as usize] += 1;
        }
        let first: u32 = counts[..10].iter().sum();
        // The formula gives 39 %.
        assert!((33_000..45_000).contains(&first), "{first}");
        assert!(counts[0] > counts[1] && counts[1] > counts[9]);
    }

    #[test]
    fn each_record_has_one_place() {
        let mut seen = vec![false; RECORDS as usize];
        (0..RECORDS).for_each(|rank| assert!(!std::mem::replace(&mut seen[scatter(rank) as usize], true)));
    }

    #[test]
    fn a_value_says_whose_it_is() {
        let bytes = value(77, 5);
        assert!(bytes.len() >= VALUE && bytes[..8] == 77u64.to_le_bytes());
        assert!(set(7, b"abc").starts_with(b"*3\r\n$3\r\nSET\r\n$16\r\nuser000000000007\r\n$3\r\nabc\r\n"));
    }
}
