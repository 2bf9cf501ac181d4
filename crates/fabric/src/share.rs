//! A fair share of a NIC for each class of requests within a process.
//!
//! NICs do not share fairly: apnet19 4.3 measures that transfers of 4 MB starve small requests of other queue pairs,
//! whatever the number of queue pairs or of outstanding requests. So a process with both kinds of requests gives them
//! to a [`Share`] instead of to its queue pairs. The share cuts long requests into chunks and posts them by weight,
//! with few bytes outstanding at the NIC at a time: [`scheduler`] decides, and is pure.
//!
//! Bulk transfers are WRITEs and READs. A long message is a WRITE whose last chunk carries an immediate
//! ([`Transfer::Message`]), since a SEND cannot be cut.
//!
//! It shares among the requests of one process only: it does not see what other processes hand to the NIC.

mod nic;
pub mod scheduler;

pub use nic::{FinishedRequest, Handled, Share, ShareConfig, SharedQpId, SubmitError, Transfer};
pub use scheduler::{ClassConfig, ClassId, ConfigError, ShareLimits};
