//! Stores whose GETs are READs by the client, while PUTs and DELETEs are messages to the owner (sigcomm14 2.3): what [`crate::pilaf`]
//! and [`crate::farm`] have in common, and much of [`crate::drtm`].
//!
//! The owner exposes the memory of a table ([`sinew_store::remote`]) for READs, and serves changes as [`sinew_herd`]'s calls. A client
//! has a queue pair for READs, on which up to a window of searches are under way, each with one READ at a time, and the
//! client of those calls. GETs cost the owner nothing, and take as many trips as a search has READs.
//!
//! - An [`Owner`] exposes and admits; a [`ChangeService`] with the table is what its worker serves.
//! - A [`OneSidedClient`] GETs, PUTs and DELETEs.
//! - [`Emulation`] is a search of fixed READs without a table, for measuring as sigcomm14 5.1 does.

mod client;
mod emulation;
mod hello;
mod owner;

pub use client::{AskError, ClientConfig, ClientError, ClientStats, Joining, OneSidedClient, Outcome, Status};
pub(crate) use client::{BURST, check_key};
pub use emulation::{Emulation, NoTable};
pub use hello::{Hello, Welcome};
pub use owner::{ChangeService, Owner, OwnerConfig};

use sinew_fabric::verbs::{Device, ProtectionDomain, ThreadDomain};

pub(crate) type Domain<D> = <D as Device>::Domain;
pub(crate) type Thread<D> = <Domain<D> as ProtectionDomain>::Thread;
type Exposed<D> = <Domain<D> as ProtectionDomain>::Exposed;
pub(crate) type Cq<D> = <Thread<D> as ThreadDomain>::Cq;
pub(crate) type Qp<D> = <Thread<D> as ThreadDomain>::Qp;

/// Bytes of a key at most, whatever the table takes.
pub const KEY_LEN_MAX: usize = (1 << 14) - 1;

/// What is asked of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Put = 1,
    Delete = 2,
}

impl Change {
    /// The kind of a request for a key of so many bytes, which are no more than [`KEY_LEN_MAX`].
    pub(crate) fn kind(self, key_len: usize) -> u16 {
        self as u16 | (key_len as u16) << 2
    }

    /// The change and the length of its key.
    pub(crate) fn of(kind: u16) -> Option<(Self, usize)> {
        let change = match kind & 3 {
            1 => Self::Put,
            2 => Self::Delete,
            _ => return None,
        };
        Some((change, usize::from(kind >> 2)))
    }
}
