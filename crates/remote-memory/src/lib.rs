//! Memory of other hosts, for programs that need more than their own host has (rdmabox).
//!
//! - [`engine`]: reads and writes of one donor's memory by many threads, as few operations and no more in flight than the NIC can take.
//! - [`store`]: the seam. A [`Store`] is a range of bytes that lies elsewhere; file systems, block devices and paged memory are written against it.
//! - [`donor`]: whoever gives memory, and [`volume`]: a store over donors, some of which may die.
//! - [`pool`]: donors together, and who has what.
//! - [`ram`]: a store in this process' own memory: what others are compared with.
#![forbid(unsafe_code)]

pub mod donor;
pub mod engine;
pub mod pool;
pub mod ram;
pub mod store;
pub mod volume;

pub use ram::RamStore;
pub use store::{Extent, Finished, Job, Refused, Request, Status, Store, StoreError};
