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
//! - Segments that lack copies get new ones in the background.
//! - [`Check`] inspects all slots of all copies, and reports what is wrong.
//!
//! The donors are anything that implements [`Donors`]; nothing here has a thread, a clock or I/O of its own.

mod check;
mod clear;
mod config;
mod core;
mod donors;
mod drive;
mod map;
mod open;
mod open_error;
mod read;
mod record;
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
pub use donors::{CallFailed, DONORS_MAX, Donors, Event};
pub use open::{NewVolume, Opening};
pub use open_error::OpenError;
pub use record::{BadRecord, DonorId, Member, Record, Voter, id_of};
pub use slot::{Found, HEADER, Header, Shape, Version, checksum};
