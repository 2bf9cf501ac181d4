//! Replicated state machines over RPC, on an existing Raft (nsdi19, section 7.1).
#![forbid(unsafe_code)]

pub mod client;
pub mod client_wire;
pub mod host;
pub mod kv;
mod log;
pub mod machine;
pub mod member;
pub mod sessions;
pub mod wire;
