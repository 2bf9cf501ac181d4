//! Memory of other hosts, for programs that need more than their own host has (rdmabox).
//!
//! - [`engine`]: reads and writes of one donor's memory by many threads, in as few operations as possible, and with no
//!   more bytes in flight than the NIC handles well.
//! - [`store`]: the interface for file systems, block devices and paged memory. A [`Store`] is a range of bytes that
//!   lies elsewhere.
//! - [`donor`]: a process that lends memory, and [`volume`]: a store over donors, some of which may die.
//! - [`pool`]: a set of donors, and the placement of data on them.
//! - [`ram`]: a store in this process's own memory, as a baseline.
#![forbid(unsafe_code)]

pub mod donor;
pub mod engine;
pub mod pool;
pub mod ram;
pub mod store;
pub mod volume;

pub use ram::RamStore;
pub use store::{Extent, Finished, Job, Refused, Request, Status, Store, StoreError};
