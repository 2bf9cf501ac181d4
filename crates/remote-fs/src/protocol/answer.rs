//! Answers of the service.

use serde::{Deserialize, Serialize};
use sinew_remote_memory::donor::PROOF_LEN;
use sinew_remote_memory::volume::DonorId;

use super::attr::{Attr, Ino};
use super::error::Error;
use super::limits::SECRET_LEN;
use super::page::{Placement, Reservation, Run, donor_id};
use super::request::Lock;

/// The reply to a [`Message`](super::Message).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Demands a proof that the client has the key, computed with this nonce.
    Nonce([u8; PROOF_LEN]),
    /// The session is admitted, and its requests will be answered.
    Welcome,
    /// The session has not been admitted, or the proof was wrong.
    NotAdmitted,
    /// The bytes were not a valid message.
    Malformed,
    /// The answer to a [`Join`](super::Join).
    Joined(Joined),
    /// The answer to a request that was performed.
    Answer(Answer),
    /// The reason why a request was refused.
    Refused(Error),
    /// The service speaks this version of the protocol, and the client another. These bytes are the same in all
    /// versions: 7, and the version.
    Version(u8),
}

/// The identity of a client that has joined, and what the service knows of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Number of the client, never used for another. Donors admit the client under it.
    pub client: u64,
    /// Secret for the client's requests.
    pub secret: [u8; SECRET_LEN],
    /// Whether this is the same client as [before](super::Join::before).
    pub is_known: bool,
    /// Epoch of the service, higher after each start.
    pub epoch: u32,
    /// Volume by which donors know the file system.
    pub volume: u64,
    /// Bytes of a page: [`PAGE`](super::PAGE).
    pub page_len: u32,
    /// Time of silence after which a client is declared dead.
    pub lease_ns: u64,
    /// The reported handles that the client has open.
    pub opens: Vec<u64>,
    /// The reported locks that the client holds.
    pub locks: Vec<Lock>,
    /// The donors.
    pub donors: Vec<DonorInfo>,
}

/// How to reach a donor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DonorInfo {
    /// Identifier of the donor in [`SegmentCopy`](super::SegmentCopy)s.
    #[serde(with = "donor_id")]
    pub donor: DonorId,
    /// Address of the donor.
    pub address: String,
    /// Run of the donor that has copies; `None` while it does not answer the service.
    pub incarnation: Option<u64>,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Name of the entry.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Position in the order of the directory, from 1. It never changes, and later entries have higher ones.
    pub cookie: u64,
    /// Attributes of the inode.
    pub attr: Attr,
}

/// The places of pages of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// [Version](Attr::version) of the file's contents.
    pub version: u64,
    /// Length of the file in bytes.
    pub size: u64,
    /// First page that the answer does not cover: the end of the requested range, or less if there is much to tell.
    /// Pages before it that are in no run are holes.
    pub until: u64,
    /// The pages, in order.
    pub runs: Vec<Run>,
    /// Places of their segments.
    pub places: Vec<Placement>,
}

/// Room for pages and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// All pages, including those of files. A page counts once, whatever its copies.
    pub pages: u64,
    /// Free pages.
    pub free_pages: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Most inodes allowed.
    pub inodes_max: u64,
}

/// The answer to a request; each request says which.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Answer {
    /// The request was performed.
    Done,
    /// Attributes of an inode after the request.
    Attr(Attr),
    /// New attributes of an inode that lost a name.
    Unlinked(Attr),
    /// A path, a value, or names.
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Entries of a directory.
    Entries {
        /// The entries, in order.
        entries: Vec<Entry>,
        /// Whether these are the last ones.
        is_end: bool,
        /// The parent directory.
        parent: Ino,
    },
    /// Places of pages.
    Layout(Layout),
    /// Places of segments.
    Placements(Vec<Placement>),
    /// Reserved pages.
    Reserved(Reservation),
    /// The donors.
    Donors(Vec<DonorInfo>),
    /// Room for pages and inodes.
    Space(Space),
    /// A lock that conflicts with the requested one; its owner is a number of the client that holds it.
    LockConflict(Option<Lock>),
}
