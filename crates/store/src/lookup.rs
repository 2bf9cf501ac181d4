//! Tables whose lookups wait for memory, and hide the wait (nsdi15 3.3 and 4). Each has three forms that give the same
//! answers.
//!
//! - *plain*, `get`: one key.
//! - *interleaved*, `get_all`: many keys, whose cache misses overlap (`sinew_interleave`) even if their lookups take
//!   different steps; `look_up` is the same as an `async` function, for lookups of several steps.
//! - *grouped*, `get_grouped`: group prefetching by hand (nsdi15 3.1.1), stage by stage for all keys. It is the
//!   baseline for the interleaved form.
//!
//! | table | maps | misses of a lookup |
//! | --- | --- | --- |
//! | [`cuckoo::Cuckoo`] | a number to a number | 1 to 2 |
//! | [`mac::MacTable`] | an Ethernet address to a port | 1 to 2 |
//! | [`ipv4::Ipv4Table`] | the longest prefix of an IPv4 address to a next hop (DIR-24-8) | 1 to 2 |
//! | [`ipv6::Ipv6Table`] | the same for IPv6 | 1 to 14 |
//! | [`names::NameTable`] | the longest prefix of a name (NDN) to a next hop | about 2 for each prefix that is tried |
//!
//! [`patterns`] searches several texts for patterns at once. [`crate::cache`] has interleaved lookups, too.
//!
//! Each lookup is written once, with marks, and becomes the plain and the interleaved form; the grouped form is written
//! by hand.

pub mod cuckoo;
pub mod ipv4;
pub mod ipv6;
pub mod mac;
pub mod names;
pub mod patterns;
mod trie;

pub use trie::{HOP_MAX, RouteError};

/// Keys that the grouped forms process together.
pub const GROUP_MAX: usize = 64;
