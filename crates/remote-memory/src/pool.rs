//! Donors together: where a volume's segments lie, and how they are reached.
//!
//! - [`Reach`]: one donor within reach, by calls over `rpc` and an [engine](crate::engine).
//! - [`Approach`]: how its memory is reached: by one-sided [`Verbs`], or, where a fabric has none, by [`Calls`].
//! - [`Pool`]: donors within reach as a [volume](crate::volume) wants them: [`VerbsDonors`], [`CallDonors`].
//! - [`Survey`]: which donors answer, and how much memory they have free.
//! - [`place`]: which donors have which segments, by the memory that they have free.

mod approach;
mod config;
mod donors;
mod link;
mod place;
mod reach;
mod survey;
mod watch;

pub use approach::{Approach, Calls, Verbs};
pub use config::PoolConfig;
pub use donors::{CallDonors, Pool, VerbsDonors};
pub use place::{NoRoom, Room, place};
pub use reach::Reach;
pub use survey::Survey;
