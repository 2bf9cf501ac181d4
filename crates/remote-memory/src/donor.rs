//! A donor: it lends slabs of its memory to volumes, and has a vote on who writes to each volume.
//!
//! - [`Call`], [`Answer`], [`Refusal`]: requests to a donor, and its answers.
//! - [`Donor`]: the donor as a state machine, without memory, clock or I/O of its own: the owner of each slab, the
//!   epoch that may use it, and the vote.
//! - [`Service`]: a donor that others call over `rpc`, with memory that they reach by verbs, or by calls
//!   ([`MemoryProvider`]); the [`Key`] says who may.
//!
//! A volume's bytes do not pass through here: an [engine](crate::engine) reads and writes them.
//!
//! # Design
//!
//! - **Access.** [`MemoryProvider`] is a donor's side of access to its memory, and
//!   [`AccessMethod`](crate::pool::AccessMethod) the caller's. By verbs, access means queue pairs: a client that loses
//!   access loses its queue pairs. All of a donor's memory is under one key, so members of a pool trust each other;
//!   over shared memory, where a process that maps it can write all of it, a key for each volume would keep nobody out.
//!   By calls, access is a token, which the donor looks up for each call, with the slabs of its volume.
//! - **Stragglers.** Over shared memory initiators move their bytes themselves, and one that was suspended in the
//!   middle of a copy resumes it later, whatever has become of its queue pair. So before it changes memory, an
//!   initiator takes a seat (an entry in memory that the donor sees), where it notes its queue pair and the bytes, and
//!   only then checks that the queue pair is still connected; the donor ends the queue pairs first, and then looks at
//!   the seats. It waits for initiators that make progress. A slab in which one does not is copied elsewhere before the
//!   fence is answered, and the old place is not reused until the initiator is gone. A slab whose place clients know is
//!   not moved; then expelling is refused until the initiator is gone.
//! - **Several clients.** A service with clients of its own (such as a file system's) fences a volume at the donors.
//!   Its clients are *admitted* beside it, each under a number that the service gave it, until they are *expelled* or a
//!   later epoch fences. A donor keeps expelled numbers as ranges. Numbers are consecutive, so there are about as many
//!   ranges as clients at one time, however many have left. If there are more than [`DonorLimits::clients_max`], the
//!   lowest gaps are closed, and a client in such a gap that the donor has not admitted must join under a new number.
//!   So the donor's memory is bounded, and no expelled client comes back.
//! - **A donor that wants its memory back** says so when it is asked how much it has, which a volume does every second.
//!   Copies are made elsewhere first. A slab is given back once the voters keep a record that no longer names it, and
//!   no earlier operation on it is in flight, since its donor may then lend it to another volume.
//! - **Memory that was given back is zeroed** before it is lent again, a few MB between two turns of the donor's thread
//!   ([`Service::turn`]), so that it answers heartbeats meanwhile. Memory that nobody has had is not touched.
//! - **A removed volume** leaves an empty record at its voters, which the donor keeps for as long as it runs: an older
//!   record of a voter that was away does not bring the volume back. Slabs of which there is no record, such as a file
//!   service's, are [discarded](Call::Discard).
//! - **Authentication.** A donor that other hosts can reach demands the key (an answer to its nonce), unless it was
//!   started with `--open`.

mod access_grants;
mod clients;
mod memory_provider;
mod protocol;
mod service;
mod slabs;
mod state;
mod stragglers;
mod wire;

pub use memory_provider::{CallsOnly, DonorMemory, MemoryProvider, NoGrant, PrivateMemory};
pub use protocol::{Answer, Call, LentSlab, Refusal, Stored, VolumeSummary};
pub use service::{Service, ServiceConfig, ServiceStats};
pub use sinew_rpc::gate::{Gate, KEY_LEN_MIN, Key, PROOF_LEN, Side};
pub use state::{Donor, DonorLimits, LANES_MAX, VOLUMES_PER_ANSWER};
pub use wire::{AccessPath, CONTROL, Request, Response};
