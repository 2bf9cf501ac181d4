//! A file system whose data lies in donors' memory, and whose names lie at one metadata service.
//!
//! - [`client`]: file access for a program on another host.
//! - [`map`]: the pages of donors' memory that hold a file's pages.
//! - [`protocol`]: requests of clients and answers of the service, as values and as bytes.
//! - [`tree`]: the names, as a state machine.
//! - [`space`]: free and used pages of the donors' memory, and their owners.
//!
//! Clients read and write pages at the donors directly, one-sided, and write only to memory that the service has
//! reserved for them. A commit tells the service which pages a file now has. Data is never overwritten in place, so an
//! interrupted write leaves the old contents, page by page.
#![forbid(unsafe_code)]

pub mod check;
pub mod client;
pub mod kept;
pub mod locks;
pub mod map;
pub mod protocol;
pub mod service;
pub mod space;
pub mod tree;

pub use sinew_journal::{self as journal, disk};
