//! A store over donors, some of which may die, and whose writer may die too.
//!
//! A volume has one writer, which a majority of its *voters* knows by its epoch. Its memory is divided into *segments*.
//! A segment is a number of *slots*, with copies on several donors; each slot holds a page and has a header. A page is
//! written beside the one that it replaces: to a free slot, on all copies of its segment. Then the writer's map is
//! switched and the request is finished, and then the old slot's header is cleared, on all copies, before the slot is
//! used again. So a writer or a donor that dies at any time leaves old pages and new ones, and none that is a mixture:
//! of several slots with the same page, the one with the highest version that is complete counts.
//!
//! - A copy that missed a write is removed from the volume's [`Record`], at a majority of the voters, before that write
//!   is acknowledged.
//! - A new writer takes an epoch at a majority of the voters, has the donors take the old writer's access away, and
//!   then reads the headers ([`Opening`]).
//! - A page that is read is compared with its checksum in the map. A bad copy is passed over, and the page is written
//!   anew.
//! - A volume that nobody needs any more is taken over, as by a new writer, and then removed ([`Removal`]).
//! - Segments that lack copies get new ones in the background.
//! - [`Check`] inspects all slots of all copies, and reports what is wrong.
//!
//! The donors are anything that implements [`Donors`]; nothing here has a thread, a clock or I/O of its own.
//!
//! # Design
//!
//! - **Segments** are as many slabs as there are copies, on different donors, with the same slots in each. All headers
//!   of a slab lie before its pages, so runs of pages are one operation, straight to and from the caller's buffer, and
//!   recovery reads headers alone. The price is that a lone write takes two operations for each copy.
//! - **A header says how much is settled**: up to which version everything is complete on all copies. So recovery
//!   checks only pages that may have been in flight.
//! - **Recovery completes before it clears.** A page that only some copies have is first written to the others, at the
//!   same slot, and only then is the slot of its older version cleared. A donor may fail at any time in between: then
//!   the other copies are scanned again.
//! - **A page stays in its home segment.** Otherwise a segment that cannot be reached could hide a page's newer
//!   version, and an older one would be read.
//! - **A majority of voters agrees on the members of segments** before a write that a copy missed is acknowledged. A
//!   voter is one run of a donor: a donor that restarted has forgotten its votes, and is replaced. Two donors have one
//!   voter between them; surviving the death of any one donor takes three.
//! - **A new writer** takes a higher epoch at the voters, has donors reset the old writer's queue pairs, and only then
//!   reads what they hold.
//! - **Removal.** A volume that its donors merely forgot could come back by the record of a voter that was away. So the
//!   one who removes it wins the voters and fences the donors as a writer does, records that the volume is empty at a
//!   majority of the voters, and only then gives its slabs back. That record stays at the voters. A donor that was away
//!   keeps its slabs until the removal is repeated, or a volume of the same name is made.
//! - **A volume that is made** has slabs before it has a record. If that fails, they are given back, and if the one who
//!   makes it dies, the next attempt gives them back.
//! - **Leases.** Donors count heartbeats of the writer that fenced a volume, and report the count to anybody who asks.
//!   A program that opens a volume watches for the length of a lease whether the count grows. There is no common clock.
//!   Two things depend on the lease: that a live writer keeps its volume, and that a writer that was stopped and
//!   replaced does not answer, with zeros, for pages that it never wrote: it answers from its map alone only while a
//!   majority of the voters has answered a heartbeat within a lease. It is the fence that keeps a replaced writer from
//!   writing, and from reading pages.

mod check;
mod clear;
mod config;
mod confirmation;
mod core;
mod donors;
mod drive;
mod map;
mod open;
mod open_error;
mod read;
mod record;
mod removal;
mod repair;
mod requests;
mod revive;
mod scan;
mod sequence;
mod silence;
mod slot;
mod slots;
mod table;
mod voting;
mod write;

#[cfg(test)]
mod tests;

pub use check::{Check, CheckReport};
pub use config::{VolumeConfig, VolumeStats};
pub use core::Volume;
pub use donors::{CallFailed, Donors, Event};
pub use open::{NewVolume, Opening};
pub use open_error::OpenError;
pub use record::{BadRecord, DONORS_MAX, DonorId, Member, Record, Voter, id_of};
pub use removal::{Removal, Removed};
pub use slot::{HEADER, Header, Shape, SlotState, Version, checksum};
