//! Pilaf's store (atc13; sigcomm14 2.3 and 5.1.1): a 3-1 cuckoo table whose buckets and items verify themselves. A GET
//! takes about 1.6 READs of buckets and one of the item; a PUT is a message.
//!
//! Client and owner are those of [`crate::one_sided`].

use sinew_store::cuckoo::{BUCKET_LEN, Layout};

use crate::one_sided::{self, Emulation};

/// A client of a Pilaf store.
pub type PilafClient<D> = one_sided::OneSidedClient<D, Layout>;

/// Layout of a table for `items` items, each of at most `item_len` bytes of key and value, three quarters full when it
/// holds them all. Some spare memory is included, because a changed item briefly lies beside its old version.
pub fn layout(items: u32, item_len: u32, seed: u64) -> Layout {
    let buckets = (u64::from(items) * 4 / 3 + 8).min(u32::MAX.into()) as u32;
    let extent = (u64::from(item_len) + 8).next_multiple_of(8);
    let extent_bytes = ((extent + extent / 8) * (u64::from(items) + 1024)).next_multiple_of(8);
    Layout { buckets, extent_bytes: extent_bytes.min(8 << 32), item_len_max: item_len, seed }
}

/// Emulates Pilaf (Pilaf-em-OPT): 1.6 READs of a bucket on average, and one of the value.
pub fn emulation(items: u32, value_len: u32) -> Emulation {
    let words = (u64::from(items) * (BUCKET_LEN as u64 * 4 / 3 + u64::from(value_len)) / 8).max(1024);
    Emulation { words, probe_len: BUCKET_LEN as u32, second_probes_of_ten: 6, value_len: value_len.max(1) }
}
