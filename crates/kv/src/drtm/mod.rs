//! DrTM-KV's store (atc16 4.3.2): GETs are READs, of a record alone where the client remembers which one the key has; a PUT of a key that there
//! is locks, updates and unlocks its record with a compare-and-swap, a WRITE and another compare-and-swap. The owner has no part in either. What
//! inserts and removes is a message to the owner.
//!
//! The table is [`sinew_store::locked`], whose readers never wait for a lock.
//!
//! # Locks of those who are gone
//!
//! A lock word names its holder by a number that the owner gave it. [`Owner::tend`] looks at all records in turn: whoever holds a record for
//! longer than [`OwnerConfig::lease_ns`] is dismissed, which ends its connection, and what it held is released, with the value from before its
//! PUT. A client that was dismissed so, and lives, finds its connection broken and connects again; what it had not heard the end of may
//! have happened or not.
//!
//! # Whom it trusts
//!
//! Its clients can write the whole table, so they can spoil every item in it, and name others as holders who are dismissed for it; no more
//! than that. What was spoiled, readers find torn ([`crate::one_sided::Status::Torn`]), and the owner removes. The owner takes nothing
//! that it reads there for granted.

mod client;
mod locations;
mod owner;

pub use client::{ClientConfig, ClientStats, DrtmClient, Joining};
pub use owner::{ChangeService, Owner, OwnerConfig, OwnerStats};
pub use sinew_store::locked::Layout;

use crate::one_sided;

/// Behind the key in a request to remove its item: the record and its lock word.
const LOCK_LEN: usize = 12;
/// What the owner answers beside [`one_sided::Status`]: there is an item with this key already.
const EXISTS: u16 = 64;
/// The lock is not held as the client said.
const NOT_HELD: u16 = 65;

/// A table for so many items, with buckets half full when all are there, and a sixteenth more records, for items that move.
pub fn layout(items: u32, key_len_max: u32, value_len_max: u32, seed: u64) -> Layout {
    let records = u64::from(items) + u64::from(items) / 16 + 16;
    let buckets = (u64::from(items) / 4 + 2).min(1 << 28);
    Layout { buckets: buckets as u32, records: records.min(1 << 30) as u32, key_len_max, value_len_max, seed }
}

/// The owner of such a table, for so many clients, each with so many requests to the owner on their way (a power of two).
pub fn calls(layout: &Layout, clients: usize, window: usize, seed: u64) -> one_sided::OwnerConfig {
    let item_len_max = layout.key_len_max as usize + (layout.value_len_max as usize).max(LOCK_LEN);
    one_sided::OwnerConfig { clients, window, item_len_max, seed }
}
