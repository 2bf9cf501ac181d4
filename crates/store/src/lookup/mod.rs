//! Tables whose lookups wait for memory, and hide it (nsdi15 3.3 and 4): each gives the same answers in three forms.
//!
//! - *plain*, `get`: one key.
//! - *interleaved*, `get_all`: many keys, whose cache misses overlap (`sinew_interleave`), however each of them goes; `look_up` is the same as an
//!   `async` function, for a lookup of several steps.
//! - *grouped*, `get_grouped`: group prefetching by hand (nsdi15 3.1.1), stage by stage for all keys. It is what the interleaved form is measured against.
//!
//! | table | from what to what | misses of a lookup |
//! | --- | --- | --- |
//! | [`cuckoo::Cuckoo`] | a number to a number | 1 to 2 |
//! | [`mac::MacTable`] | an Ethernet address to a port | 1 to 2 |
//! | [`ipv4::Ipv4Table`] | the longest prefix of an IPv4 address to a next hop (DIR-24-8) | 1 to 2 |
//! | [`ipv6::Ipv6Table`] | the same of IPv6 | 1 to 14 |
//! | [`names::NameTable`] | the longest prefix of a name of components (NDN) to a next hop | about 2 for each prefix that is tried |
//!
//! [`patterns`] finds patterns in texts by automata, several texts at once. [`crate::cache`] has interleaved lookups, too.

pub mod cuckoo;
pub mod ipv4;
pub mod ipv6;
pub mod mac;
pub mod names;
pub mod patterns;
mod trie;

pub use trie::{HOP_MAX, RouteError};

/// Keys that the grouped forms take at a time at most.
pub const GROUP_MAX: usize = 64;
