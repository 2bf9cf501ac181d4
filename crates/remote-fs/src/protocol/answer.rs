//! What the service answers.

use serde::{Deserialize, Serialize};
use sinew_remote_memory::donor::PROOF_LEN;
use sinew_remote_memory::volume::DonorId;

use super::attr::{Attr, Ino};
use super::error::Error;
use super::limits::SECRET_LEN;
use super::page::{Fresh, Place, Run, donor_id};
use super::request::Lock;

/// What a client is sent for a [`Message`](super::Message).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Prove that you have the key, with this.
    Nonce([u8; PROOF_LEN]),
    /// Requests are answered.
    Welcome,
    /// Greet first; or the proof was wrong.
    Stranger,
    /// The bytes made no sense.
    Nonsense,
    /// To a [`Join`](super::Join).
    Joined(Joined),
    /// It is done.
    Answer(Answer),
    /// It is not.
    Refused(Error),
}

/// A client is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Its number, which no other client ever has, for donors to admit it by.
    pub client: u64,
    /// Its secret.
    pub secret: [u8; SECRET_LEN],
    /// Whether it is the client that it was [before](super::Join::before).
    pub is_known: bool,
    /// The service's epoch: a higher one at each of its starts.
    pub epoch: u32,
    /// The volume that donors know the file system by.
    pub volume: u64,
    /// Bytes of a page: [`PAGE`](super::PAGE).
    pub page_len: u32,
    /// A client that was silent for so long is dead.
    pub lease_ns: u64,
    /// The handles, of those that it told, which it has open.
    pub opens: Vec<u64>,
    /// The locks, of those that it told, which it has.
    pub locks: Vec<Lock>,
    /// The donors.
    pub donors: Vec<DonorPlace>,
}

/// How a donor is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DonorPlace {
    /// Its name in [`Replica`](super::Replica)s.
    #[serde(with = "donor_id")]
    pub donor: DonorId,
    /// Its address.
    pub address: String,
    /// Its run that has copies; none: it does not answer the service now.
    pub incarnation: Option<u64>,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Its place in the order of the directory, from 1 on. It stays, and entries that are made later have higher ones.
    pub cookie: u64,
    /// The inode.
    pub attr: Attr,
}

/// Where pages of a file lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Of which [version](Attr::version).
    pub version: u64,
    /// Bytes of the file.
    pub size: u64,
    /// First page that nothing is said of: all that was asked for, or less where there is much to say. What lies before it and in no run is a hole.
    pub until: u64,
    /// The pages, in order.
    pub runs: Vec<Run>,
    /// Where their segments lie.
    pub places: Vec<Place>,
}

/// Memory and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Pages, those that files have among them. Copies count once.
    pub pages: u64,
    /// Pages that are nobody's.
    pub free_pages: u64,
    /// Inodes.
    pub inodes: u64,
    /// Inodes that there may be.
    pub inodes_max: u64,
}

/// What a request is answered with; each says which.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Answer {
    /// It is done.
    Done,
    /// An inode, as it is after it.
    Attr(Attr),
    /// A name is gone from this inode, whose attributes are these now.
    Gone(Attr),
    /// A path, a value, names.
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Entries of a directory.
    Entries {
        /// They, in order.
        entries: Vec<Entry>,
        /// Whether there are none behind.
        is_end: bool,
        /// The directory above.
        parent: Ino,
    },
    /// Where pages lie.
    Layout(Layout),
    /// Where segments lie.
    Places(Vec<Place>),
    /// Pages that are reserved.
    Fresh(Fresh),
    /// The donors.
    Donors(Vec<DonorPlace>),
    /// Memory and inodes.
    Space(Space),
    /// A lock that excludes the one asked for; its owner is a number of its own client's.
    Excluded(Option<Lock>),
}
