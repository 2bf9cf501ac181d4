//! Allocations of the memcached door: a warm get or set makes none, whichever thread owns the key. With values of more
//! than 64 KB this holds only where one thread owns all keys.

#[path = "../../../xtask/cost/src/counting.rs"]
mod counting;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use counting::allocations;
use sinew_kv::Partitions;
use sinew_kv::memcached::{Door, DoorConfig, Listener};
use sinew_store::cache::{Cache, CacheConfig};

const NOW_NS: u64 = 0;

/// Doors and their tables, all turned by this thread, whose allocations are counted.
struct World {
    doors: Vec<(Door, Cache)>,
    address: String,
}

impl World {
    fn new(threads: usize) -> Self {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let address = listener.address().to_owned();
        // Enough to keep all buffers that are in use at once.
        let config = DoorConfig { connection_memory: 512 << 20, ..DoorConfig::default() };
        let doors = Door::open(listener, &Partitions::new(threads), 0, config).unwrap();
        let config = CacheConfig { items: 1000, memory_bytes: 16 << 20, ..CacheConfig::default() };
        Self { doors: doors.into_iter().map(|door| (door, Cache::new(&config).unwrap())).collect(), address }
    }

    fn turn(&mut self) {
        self.doors.iter_mut().for_each(|(door, cache)| _ = door.turn(cache, NOW_NS));
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    }

    /// Sends `script` on each connection, and reads `expected` bytes of answers.
    fn exchange(&mut self, clients: &mut [TcpStream], script: &[u8], expected: usize, target: &mut [u8]) {
        let mut sent = [0; CLIENTS];
        let mut read = [0; CLIENTS];
        while read.iter().any(|read| *read < expected) {
            for (at, client) in clients.iter_mut().enumerate() {
                sent[at] += some(client.write(&script[sent[at]..]));
                if read[at] < expected {
                    read[at] += some(client.read(target));
                }
            }
            self.turn();
        }
        assert_eq!(read, [expected; CLIENTS]);
    }
}

const CLIENTS: usize = 3;

fn some(result: std::io::Result<usize>) -> usize {
    match result {
        Ok(len) => len,
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}"),
    }
}

/// Returns commands, and the length of their answers.
fn script(len: usize, keys: usize) -> (Vec<u8>, usize) {
    let value = vec![b'v'; len];
    let mut script = Vec::new();
    let mut expected = 0;
    for key in 0..keys {
        script.extend(format!("set key-{key} 7 1000 {len}\r\n").bytes());
        script.extend_from_slice(&value);
        script.extend(format!("\r\nms meta-{key} {len} T0 F7\r\n").bytes());
        script.extend_from_slice(&value);
        script.extend_from_slice(b"\r\n");
        expected += "STORED\r\nHD\r\n".len();
    }
    for key in 0..keys {
        // A single key, several, a missing one, and one by a meta command.
        let found = format!("VALUE key-{key} 7 {len}\r\n").len() + len + 2;
        script.extend(format!("get key-{key}\r\nget key-{key} nobody key-{key}\r\nmg key-{key} v k f\r\n").bytes());
        expected += 3 * found + 2 * "END\r\n".len() + format!("VA {len} kkey-{key} f7\r\n").len() + len + 2;
        script.extend(format!("mg meta-{key} v\r\n").bytes());
        expected += format!("VA {len}\r\n").len() + len + 2;
    }
    (script, expected)
}

#[test]
fn a_warm_get_or_set_over_a_socket_allocates_nothing() {
    let mut target = vec![0; 1 << 20];
    for threads in [1, 3] {
        for (len, keys) in [(0, 40), (32, 40), (1000, 40), (40_000, 6), (500_000, 2)] {
            // Room for another thread's long value is requested each time, and may have to be allocated.
            if len > 64 << 10 && threads > 1 {
                continue;
            }
            let (script, expected) = script(len, keys);
            let mut world = World::new(threads);
            let mut clients: Vec<_> = (0..CLIENTS).map(|_| world.connect()).collect();
            // Buffers grow to their final size, and as many are made as are ever in use at once.
            let steady = (0..50).any(|_| {
                let before = allocations();
                (0..10).for_each(|_| world.exchange(&mut clients, &script, expected, &mut target));
                allocations() == before
            });
            assert!(steady, "{threads} threads, values of {len} bytes");
        }
    }
}
