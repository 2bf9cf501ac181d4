//! Donors together: where a volume's segments lie, and how they are reached.
//!
//! - [`VerbsDonors`]: donors as a [volume](crate::volume) wants them, by calls over `rpc` and an [engine](crate::engine) for each.
//! - [`place`]: which donors have which segments, by the memory that they have free.

mod donors;
mod link;
mod place;

pub use donors::{PoolConfig, VerbsDonors};
pub use place::{NoRoom, Room, place};
