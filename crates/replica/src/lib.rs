//! Replicated state machines over RPC, on an existing Raft (nsdi19, section 7.1).
//!
//! - [`machine`]: the trait of replicated state machines. [`kv`]: the key-value store that comes with it.
//! - [`member`]: one member, without I/O, clock or thread. [`host`]: a member on an endpoint.
//! - [`client`]: finds the leader, and has each command run once. [`client_wire`]: its protocol.
//! - [`sessions`]: ensure that a command runs once, whichever member leads.
//! - [`wire`]: the protocol between members. [`losses`]: whether members without their state have cost the majority.
//! - [`disk`]: storage for a member's log, needed only if the state must survive the loss of a majority.
//!
//! # Guarantees
//!
//! - Once a client has been told that a command is done, a majority of the voting members has it, on disk if
//!   they have disks.
//! - Commands and reads are linearizable: each appears to take effect at one moment between its start and its answer.
//!   For reads by lease this holds as long as no member's clock runs faster than another's by more than
//!   [`member::MemberConfig::drift_max_ppm`], and no member is restarted at once with a shorter election time-out
//!   ([`member::MemberConfig::election_ticks`]). Stale reads are not linearizable.
//! - A command of a session runs once, however often it is sent. After a session has expired, it is unknown whether its
//!   last commands ran.
//! - A member that lost its data is another member: it votes for nobody until it is added again.
//!
//! # Costs
//!
//! Followers learn that a command is committed from the next append, or from the next heartbeat, 4 ms apart by default.
//! Until then, or, if the leader dies, until the next one leads, they do not show it to stale reads and watches.
//! Telling them at once, in separate messages, would double the messages of a lone command.
//!
//! A snapshot is serialised in parts, one in each turn, written to the disk in parts, and travels in pieces; meanwhile
//! the member sends its heartbeats. Its checksum is computed in one go, about as fast as memory is read. A snapshot
//! that is received is checked, restored and written in one go; what the others send meanwhile waits, and that time
//! does not count as their silence.
#![forbid(unsafe_code)]

// Modules that unit tests share with integration tests call this crate by its name.
#[cfg(test)]
extern crate self as sinew_replica;

mod call;
pub mod client;
pub mod client_wire;
mod few;
pub mod host;
pub mod kv;
mod log;
pub mod losses;
pub mod machine;
pub mod member;
pub mod sessions;
pub mod wire;

pub use sinew_journal::disk;
