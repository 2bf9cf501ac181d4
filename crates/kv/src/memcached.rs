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
//!
//! # Design
//!
//! [`protocol`] does no I/O: a session takes bytes and appends answers. The tests run random streams against memcached
//! 1.6.18.
//!
//! - **A command is executed in place**, in the buffer that it was read into. A command that waits for its data is
//!   parsed again when the data is there; only the number of bytes that it needs is kept meanwhile.
//! - **Keys are read ahead**, up to 32, and their buckets and then their items are prefetched. A `get` of a
//!   single key is then fully parsed and is not read again: a loop of its own answers a run of such commands. In a
//!   pipeline of 16, such a `get` costs 584 instructions (`cargo xtask cost --row memcached`), 243 of them the table's;
//!   it once cost 1,395. Finding its key and the end of its line takes 50, checking the key's owner and the room for
//!   output takes 15, and its share of a turn is 55. Its answer is filled in, in a room that is never zeroed anew.
//! - **A lone client costs two system calls** for most requests: if only one connection was busy, its socket is
//!   read without a poll first. Every fourth check polls all sockets, and so does the first one after a sleep that
//!   ended without input from that connection.
//! - **Output bounds input.** A session stops, in the middle of a list of keys if need be, once there is enough to
//!   send. A client that does not read its answers is not read from.
//! - **Memory is claimed before it is needed.** A value of more than 64 KB is read, or answered, once there is room for
//!   all of it, so that no connection waits halfway. New connections may claim up to half of the memory, connections
//!   that were seen to make progress up to seven eighths; the rest is for short buffers, which need no claim.
//!   Connections that wait are served last in, first out, except that every fourth grant goes to the one that has
//!   waited longest. Only connections that have made no progress for a second are closed, after a last attempt to send.
//! - **A command for another thread's key is handed over as it was written**, each key of a list as a `get` of its own,
//!   and is executed by the same code there; the connection keeps places for the answers. A connection awaits at most
//!   256 answers from other threads, and at most 4 MB of them, estimated from the lengths of earlier answers. A thread
//!   makes no more answers than the asking thread takes. Batches return to the thread that made them, with their
//!   memory.
//! - **Marks are part of the version.** What the meta commands remember of an item (fetched, stale, token sent) takes
//!   four bits above its version, so it makes no item longer.
//! - **One sleep for all.** A thread with a door and an endpoint sleeps on the descriptors of both (`Program::rest` of
//!   the facade). While the door is idle, its sockets are polled every 32 turns.

mod budget;
mod connection;
mod door;
mod hand_over;
mod pool;
pub mod protocol;

pub use budget::Budget;
pub use door::{Door, DoorConfig};
pub use sinew_door::Listener;
