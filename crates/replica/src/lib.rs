//! Replicated state machines over RPC, on an existing Raft (nsdi19, section 7.1).
//!
//! - [`machine`]: what is replicated, as a trait. [`kv`]: the key-value store that comes with it.
//! - [`member`]: one member, without I/O, clock or thread. [`host`]: a member on an endpoint.
//! - [`client`]: finds the leader, and has each command run once. [`client_wire`]: what it says.
//! - [`sessions`]: how a command runs once, whoever leads.
//! - [`wire`]: what members say to each other.
//! - [`disk`]: where a member's log lies, if it is to outlive the loss of a majority.
//!
//! # What holds
//!
//! - What a client has been told is done lies with a majority of the members that vote, on their disks where they have any.
//! - Commands and reads are linearizable: each seems to happen at one moment between its beginning and its answer. Reads by lease are so as long as all
//!   members have the same election time-out and no member's clock runs faster than another's by more than [`member::MemberConfig::drift_max_ppm`]; stale reads are not.
//! - A command of a session runs once, whatever is repeated. After a session expires, whether its last commands ran is unknown.
//! - A member that lost what it knew is another member: it votes for nobody until it is added again.
//!
//! # What it costs
//!
//! A snapshot is made in one go, on the member's thread: while a state of many megabytes is written as bytes, that member says nothing. It *travels* in pieces.
#![forbid(unsafe_code)]

pub mod client;
pub mod client_wire;
mod few;
pub mod host;
pub mod kv;
mod log;
pub mod machine;
pub mod member;
pub mod sessions;
pub mod wire;

pub use sinew_journal::disk;
