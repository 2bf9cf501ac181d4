//! Messages between clients and servers of a cache.
//!
//! Little-endian, packed. A request is its kind, in one byte, and:
//!
//! | request | kind | then |
//! | --- | --- | --- |
//! | get | 1 | the key |
//! | get with flags, lifetime and version | 2 | the key |
//! | put | 3 | options (1), length of the key (2), [flags (4), lifetime (4)], [version (8)], the key, the value |
//! | delete | 4 | the key |
//! | get several | 5 | how many (1), for each: length of the key (2), the key |
//! | info | 6 | |
//! | stats | 7 | |
//! | touch | 8 | lifetime (4), the key |
//! | add | 9 | signed amount to add (8), the key |
//! | flush | 10 | |
//!
//! Options are the condition in two bits ([`When`](sinew_store::cache::When)) and bit 2, which is set when flags and
//! lifetime are present; the version is present when the condition compares it. A response is its kind and:
//!
//! | response | kind | then |
//! | --- | --- | --- |
//! | miss | 0 | |
//! | value | 1 | the value |
//! | item | 2 | flags (4), lifetime (4), version (8), the value |
//! | stored | 3 | version (8) |
//! | deleted | 4 | |
//! | values | 5 | how many (1), for each: length of the value (4), the value |
//! | info | 6 | [`Info`] |
//! | stats | 7 | how many (1), the counters (8 each), in the order of [`Stats`] |
//! | touched | 8 | |
//! | number | 9 | the number (8) |
//! | flushed | 10 | |
//! | refused | 128 and more | [`Refusal`] |
//!
//! The length 2^32 - 1 stands for a key without a value, 2^32 - 2 for a value that did not fit into the response.
//!
//! The kinds from 8 on were added later: a server that does not know them refuses them as malformed and changes
//! nothing.
//!
//! With the packet header's 24 bytes and the ring's 8, a get of a 16-byte key fits one cache line.

mod request;
mod response;

use sinew_store::cache::KEY_LEN_MAX;

pub(super) use request::KEYS_AT;
pub use request::{Keys, Put, PutOptions, Request};
pub use response::{
    ITEM_VALUE_AT, Info, Item, Lookup, Refusal, Response, Slot, Stats, VALUE_AT, VALUES_AT, Values, write_item_head,
    write_value_head,
};

/// The most keys of one request for several.
pub const KEYS_MAX: usize = 64;

/// Version of the protocol, as [`Info`] carries it.
pub const VERSION: u8 = 1;

/// Bytes that are not a valid request or response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Malformed {
    /// Description of the fault.
    pub what: &'static str,
}

const fn malformed<T>(what: &'static str) -> Result<T, Malformed> {
    Err(Malformed { what })
}

/// Reads numbers and bytes from the front of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    #[inline(always)]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some((array, rest)) = self.0.split_first_chunk() else { return malformed("it ends too early") };
        self.0 = rest;
        Ok(*array)
    }

    #[inline(always)]
    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    #[inline(always)]
    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline(always)]
    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline(always)]
    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    #[inline(always)]
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let Some((bytes, rest)) = self.0.split_at_checked(len) else { return malformed("it ends too early") };
        self.0 = rest;
        Ok(bytes)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { malformed("it goes on too long") }
    }
}

/// Writes numbers and bytes one after another. The target must be long enough.
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    #[inline(always)]
    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        let (target, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        // Most keys are short enough to be copied without a call.
        sinew_mem::copy_small(target, bytes);
        self.0 = rest;
        self
    }
}

#[inline(always)]
fn a_key(key: &[u8]) -> Result<&[u8], Malformed> {
    if key.len() <= KEY_LEN_MAX { Ok(key) } else { malformed("the key is longer than 65535 bytes") }
}

#[cfg(test)]
mod tests;
