//! The door: sockets and text protocol by which memcached clients use the tables that threads own.
//!
//! Each thread has a [`Door`] besides its partition's table. Each connection belongs to one door; commands for keys of
//! other partitions are handed over to the threads that own them, and the answers keep their order. With one thread
//! nothing is handed over.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::time::Duration;
//!
//! use sinew_kv::Partitions;
//! use sinew_kv::memcached::{Door, DoorConfig, Listener};
//! use sinew_store::cache::{Cache, CacheConfig};
//!
//! let mut cache = Cache::new(&CacheConfig { memory_bytes: 4 << 20, ..CacheConfig::default() })?;
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let mut client = std::net::TcpStream::connect(listener.address())?;
//! let mut doors = Door::open(listener, &Partitions::new(1), 0, DoorConfig::default())?;
//!
//! client.write_all(b"set greeting 0 0 5\r\nhello\r\nget greeting\r\nquit\r\n")?;
//! let now_ns = 0;
//! let door = &mut doors[0];
//! while door.counters()[0].bytes_written.get() == 0 {
//!     door.wait(Duration::from_millis(100));
//!     door.turn(&mut cache, now_ns);
//! }
//! let mut said = String::new();
//! client.read_to_string(&mut said)?;
//! assert_eq!(said, "STORED\r\nVALUE greeting 0 5\r\nhello\r\nEND\r\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod budget;
mod connection;
mod door;
mod hand_over;
mod pool;
pub mod protocol;

pub use budget::Budget;
pub use door::{Door, DoorConfig};
pub use sinew_door::Listener;
