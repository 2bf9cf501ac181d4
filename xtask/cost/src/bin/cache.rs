//! The cache as clients reach it: by calls, and by memcached's protocol.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, ensure};
use sinew_cost::{CALL_NS, Count, Ends, Operation, Rings, cache_config, key_bytes, operation};
use sinew_fabric::{Generator, SeededGenerator};
use sinew_kv::Partitions;
use sinew_kv::cache::protocol::{Lookup, PutOptions, Response};
use sinew_kv::cache::{ClientConfig, Connecting, REQUESTS, Service};
use sinew_kv::memcached::{Door, DoorConfig, Listener};
use sinew_rpc::{Config, Nexus};
use sinew_store::cache::{Cache, Put};

const OPERATIONS: &[Operation] = &[
    operation("GET of the cache over calls in batches of 8", &["client", "server"], |count| gets(count, 1)),
    operation("key of a GET of 8 over calls in batches of 8", &["client", "server"], |count| gets(count, 8)),
    operation("memcached get in a pipeline of 16", &["server"], memcached),
];

fn main() -> anyhow::Result<()> {
    sinew_cost::main(OPERATIONS)
}

const BATCH: usize = 8;
const ROUNDS: usize = 512;
const KEYS: u64 = 4096;
const VALUE: [u8; 32] = [7; 32];

/// Makes GETs in batches of small calls, each for `keys_of_get` keys.
fn gets(count: &mut Count, keys_of_get: usize) -> anyhow::Result<()> {
    let service = Service::new(1, &cache_config(KEYS))?;
    let limits = || Config { message_len_max: service.message_len_max() as u32, ..Config::default() };
    let (server_limits, client_limits) = (limits(), limits());
    let server = Nexus::builder()
        .config(server_limits)
        .handle_burst_with(REQUESTS, move |endpoint| service.handler(endpoint))
        .build()?;
    let client = Nexus::builder().config(client_limits).build()?;
    let Ends { clock, mut server, client } = Ends::new(Rings::Private, &server, &client)?;
    let address = server.address().to_string();
    let mut connecting = Connecting::begin(client, [address], ClientConfig { window: 64, ..ClientConfig::default() })?;
    for _ in 0..1_000 {
        if connecting.poll()? {
            break;
        }
        connecting.rpc_mut().turn();
        server.turn();
        clock.advance(100_000);
    }
    let mut pipeline = connecting.finish()?;
    for number in 0..KEYS {
        pipeline.put(&key_bytes(number), &VALUE, PutOptions::default(), number)?;
        pipeline.turn();
        server.turn();
        pipeline.turn();
        let stored = pipeline.poll().context("no answer to a PUT")?.response?;
        ensure!(matches!(stored, Response::Stored { .. }));
        clock.advance(CALL_NS);
    }
    let mut generator = SeededGenerator::new(1);
    let mut round = 0;
    count.rounds(ROUNDS, ROUNDS, |count| {
        let keys: [[u8; 16]; BATCH * 8] = std::array::from_fn(|_| key_bytes(generator.next_u64() % KEYS));
        let found = count.step("client", BATCH * keys_of_get, || {
            let mut found = 0;
            while let Some(answer) = pipeline.poll() {
                match answer.response.ok()? {
                    Response::Value(value) => found += usize::from(value == VALUE),
                    Response::Values(values) => {
                        found += values.iter().filter(|value| *value == Lookup::Hit(&VALUE)).count();
                    }
                    _ => return None,
                }
            }
            for keys in keys.chunks_exact(keys_of_get).take(BATCH) {
                if let [key] = keys {
                    pipeline.get(key, 0).ok()?;
                } else {
                    let mut asked = [&[][..]; 8];
                    asked.iter_mut().zip(keys).for_each(|(asked, key)| *asked = key);
                    pipeline.get_many(&asked, 0).ok()?;
                }
            }
            pipeline.turn();
            Some(found)
        });
        let found = found.context("a GET failed")?;
        let handled = server.stats().requests_handled;
        count.step("server", BATCH * keys_of_get, || server.turn());
        ensure!(server.stats().requests_handled - handled == BATCH as u64, "another burst than of {BATCH}");
        ensure!(found == if round < 2 { 0 } else { BATCH * keys_of_get }, "{found} keys in round {round}");
        round += 1;
        clock.advance(CALL_NS * BATCH as u64);
        Ok(())
    })
}

/// Makes GETs over a local socket. The client writes before each turn of the server, so that every turn finds the same
/// amount.
fn memcached(count: &mut Count) -> anyhow::Result<()> {
    const DEPTH: usize = 16;
    const NOW_S: u32 = 1;
    const NOW_NS: u64 = 0;
    let mut cache = Cache::new(&cache_config(KEYS))?;
    let hasher = cache.hasher().clone();
    let listener = Listener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.address())?;
    client.set_nodelay(true)?;
    let mut doors = Door::open(listener, &Partitions::new(1), 0, DoorConfig::default())?;
    let door = doors.first_mut().context("there is one partition")?;
    let (mut script, mut expected) = (Vec::new(), Vec::new());
    for number in 0..DEPTH {
        let key = format!("key-{number:012}");
        cache.put(&hasher.key(key.as_bytes()), &VALUE, &Put::default(), NOW_S)?;
        script.extend(format!("get {key}\r\n").bytes());
        expected.extend(format!("VALUE {key} 0 {}\r\n", VALUE.len()).bytes());
        expected.extend(VALUE.iter().chain(b"\r\nEND\r\n"));
    }
    let mut answers = vec![0; expected.len()];
    // The door accepts the connection.
    (0..10).for_each(|_| _ = door.turn(&mut cache, NOW_NS));
    count.rounds(ROUNDS, ROUNDS, |count| {
        client.write_all(&script)?;
        count.step("server", DEPTH, || door.turn(&mut cache, NOW_NS));
        ensure!(door.counters()[0].bytes_written.get() % expected.len() as u64 == 0, "a part of the answers");
        client.read_exact(&mut answers)?;
        ensure!(answers == expected, "other answers");
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::OPERATIONS;

    #[test]
    fn two_runs_are_equal() {
        sinew_cost::check_that_runs_are_equal(OPERATIONS);
    }
}
