//! A file system whose data lie in donors' memory, and whose names lie at one metadata service.
//!
//! - [`client`]: files as a program on another host has them.
//! - [`map`]: which pages of the donors' memory a file's pages are.
//! - [`protocol`]: what clients ask the service for, and what it answers, as values and as bytes.
//! - [`tree`]: the names, as a state machine.
//! - [`space`]: which pages of the donors' memory are free, and whose the others are.
//!
//! Clients read and write pages at the donors by themselves, one-sided, and only to memory that the service has reserved for them. A commit tells the service
//! which pages a file now has; data are never overwritten in place, so a write that was cut off reads as old, page by page.
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
