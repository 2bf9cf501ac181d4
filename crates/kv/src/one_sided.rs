//! Stores whose clients GET with READs, while PUTs and DELETEs are messages to the owner (sigcomm14 2.3): the common
//! part of [`crate::pilaf`] and [`crate::farm`], and much of [`crate::drtm`].
//!
//! The owner exposes the memory of a table ([`sinew_store::remote`]) for READs, and serves changes as [`sinew_herd`]'s
//! calls. A client has a client of those calls, and a queue pair for READs, on which a window of searches can be under
//! way, each with one READ at a time. GETs cost the owner nothing, and take as many round trips as the search has
//! READs.
//!
//! - An [`Owner`] exposes the table and admits clients; its worker serves a [`ChangeService`] that holds the table.
//! - A [`OneSidedClient`] GETs, PUTs and DELETEs.
//! - An [`Emulation`] is a search of fixed READs without a table, for measurements as in sigcomm14 5.1.
//!
//! [`crate::drtm`] has a client of its own, which remembers records, locks, stores and unlocks, and calls the owner to
//! insert and to remove.
//!
//! # Speed
//!
//! The READs of a client start in lists, so a burst of them pays once for a doorbell and for the entry to the table's
//! memory. Over shared memory, with 16 B keys and 32 B values, a GET of Pilaf's store takes 1248 instructions at the
//! client, one of FaRM's 787, and one of DrTM's, whose client knows the record, 881 (`costs.toml`). An owner takes the
//! PUTs of a batch in three steps ([`sinew_store::remote::Table`]): it hashes each key and prefetches its own records
//! of the key's places, then reads these and prefetches the item, then makes the change. The two steps of prefetching
//! cost 120 to 180 instructions of a PUT. With 2 M items, far more than fit into the caches, a service alone then made
//! 2.7 times as many PUTs (Pilaf) and 3.2 times as many (FaRM), and 1.9 times as many insertions (DrTM), as one change
//! at a time (medians of 10 alternating repetitions, on a busy machine).

mod client;
mod emulation;
mod hello;
mod owner;
mod reads;

pub(crate) use client::check_key;
pub use client::{AskError, ClientConfig, ClientError, ClientStats, Joining, OneSidedClient, Outcome, Status};
pub use emulation::{Emulation, NoTable};
pub use hello::{Hello, Welcome};
pub use owner::{ChangeService, Owner, OwnerConfig};
pub(crate) use reads::Reads;

use sinew_fabric::verbs::{Device, ProtectionDomain, ThreadDomain};
use sinew_herd::Request;

pub(crate) type Domain<D> = <D as Device>::Domain;
pub(crate) type Thread<D> = <Domain<D> as ProtectionDomain>::Thread;
type Exposed<D> = <Domain<D> as ProtectionDomain>::Exposed;
pub(crate) type Cq<D> = <Thread<D> as ThreadDomain>::Cq;
pub(crate) type Qp<D> = <Thread<D> as ThreadDomain>::Qp;

/// Longest key, in bytes, whatever the table allows.
pub const KEY_LEN_MAX: usize = (1 << 14) - 1;

/// A change that a client asks the owner for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Put = 1,
    Delete = 2,
}

impl Change {
    /// Encodes the change with the length of its key, which is at most [`KEY_LEN_MAX`].
    pub(crate) fn kind(self, key_len: usize) -> u16 {
        self as u16 | (key_len as u16) << 2
    }

    /// Decodes the change and the length of its key.
    pub(crate) fn of(kind: u16) -> Option<(Self, usize)> {
        let change = match kind & 3 {
            1 => Self::Put,
            2 => Self::Delete,
            _ => return None,
        };
        Some((change, usize::from(kind >> 2)))
    }

    /// Decodes a request: the change, its key, and what follows that.
    #[inline(always)]
    pub(crate) fn parse<'a>(request: &Request<'a>) -> Option<(Self, &'a [u8], &'a [u8])> {
        let (change, key_len) = Self::of(request.kind)?;
        let (key, rest) = request.body.split_at_checked(key_len)?;
        Some((change, key, rest))
    }
}
