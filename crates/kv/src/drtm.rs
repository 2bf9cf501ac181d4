//! DrTM-KV's store (atc16 4.3.2): a GET is READs, only one of them if the client remembers which record the key has. A
//! PUT of an existing key locks, updates and unlocks its record with a compare-and-swap, a WRITE and another
//! compare-and-swap. The owner takes part in neither. Inserting and removing are messages to the owner.
//!
//! The table is [`sinew_store::locked`], whose readers never wait for a lock.
//!
//! # Locks of lost clients
//!
//! A lock word names its holder by a number that the owner gave it. [`Owner::tend`] goes through all records in turn.
//! It dismisses a client that has held a record for longer than [`OwnerConfig::lease_ns`], which ends its connection,
//! and releases the lock with the value from before the PUT. A dismissed client that is still alive finds its
//! connection broken and connects again; its requests in flight may have been executed or not.
//!
//! # Trust
//!
//! The clients can write the whole table, so one of them can damage every item in it, and name other clients as lock
//! holders, so that these are dismissed; but it can do no more than that. Readers find damaged records torn
//! ([`crate::one_sided::Status::Torn`]), and the owner removes them. The owner checks everything that it reads there.

mod client;
mod locations;
mod owner;

pub use client::{ClientConfig, ClientStats, DrtmClient, Joining};
pub use owner::{ChangeService, Owner, OwnerConfig, OwnerStats};
pub use sinew_store::locked::Layout;

use crate::one_sided;

/// Bytes after the key in a request to remove its item: the record and its lock word.
const LOCK_LEN: usize = 12;
/// The owner's answer when an item with this key exists already; it is not among [`one_sided::Status`].
const EXISTS: u16 = 64;
/// The owner's answer when the lock is not held as the client said.
const NOT_HELD: u16 = 65;

/// Layout of a table for `items` items, with buckets half full when it holds them all, and a sixteenth more records,
/// for items that move.
pub fn layout(items: u32, key_len_max: u32, value_len_max: u32, seed: u64) -> Layout {
    let records = u64::from(items) + u64::from(items) / 16 + 16;
    let buckets = (u64::from(items) / 4 + 2).min(1 << 28);
    Layout { buckets: buckets as u32, records: records.min(1 << 30) as u32, key_len_max, value_len_max, seed }
}

/// Configuration of the calls to the owner of such a table, for `clients` clients, each with up to `window` requests in
/// flight (a power of two).
pub fn calls(layout: &Layout, clients: usize, window: usize, seed: u64) -> one_sided::OwnerConfig {
    let item_len_max = layout.key_len_max as usize + (layout.value_len_max as usize).max(LOCK_LEN);
    one_sided::OwnerConfig { clients, window, item_len_max, seed }
}
