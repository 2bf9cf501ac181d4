//! A set of donors: where a volume's segments lie, and how they are reached.
//!
//! - [`DonorHandle`]: one donor within reach, by calls over `rpc` and an [engine](crate::engine).
//! - [`AccessMethod`]: how a donor's memory is accessed: by one-sided [`Verbs`], or by [`Calls`] on a fabric that has
//!   none.
//! - [`Pool`]: donors within reach, in the form that a [volume](crate::volume) uses: [`VerbsDonors`], [`CallDonors`].
//! - [`Survey`]: which donors answer, and how much memory they have free.
//! - [`Inventory`]: which volumes have memory at the donors.
//! - [`place_volume`]: chooses the donors of each segment by their free memory.
//!
//! # Design
//!
//! - **One descriptor for a pool's sleep** covers its sessions (an endpoint that several share is armed once) and the
//!   queues of its engines. A turn that found work is followed by another before the thread sleeps.
//! - **A [`DonorHandle`] is one donor from one thread's side.** A volume's donors ([`Pool`]) are made of these, and so
//!   are the lanes of file systems and their clients.

mod access_method;
mod config;
mod donor_handle;
mod donors;
mod inventory;
mod link;
mod place;
mod survey;
mod watch;

pub use access_method::{AccessMethod, Calls, Verbs};
pub use config::{AdmissionMaker, PoolConfig};
pub use donor_handle::DonorHandle;
pub use donors::{CallDonors, Pool, VerbsDonors};
pub use inventory::{Inventory, ListedVolume};
pub use place::{DonorSpace, NoSpace, place_volume};
pub use survey::Survey;
