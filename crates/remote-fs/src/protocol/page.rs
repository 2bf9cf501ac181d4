//! Pages: where they lie, and what they are checked by.

use serde::{Deserialize, Serialize};
use sinew_remote_memory::volume::DonorId;

/// The checksums of pages in a row; 0 says that there is no page but a hole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums(pub Vec<u64>);

impl Serialize for Sums {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = self.0.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        serializer.serialize_bytes(&bytes)
    }
}

impl<'de> Deserialize<'de> for Sums {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = <&[u8]>::deserialize(deserializer)?;
        let (sums, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(serde::de::Error::custom("a checksum has 8 bytes"));
        }
        Ok(Self(sums.iter().map(|sum| u64::from_le_bytes(*sum)).collect()))
    }
}

/// Pages in a row of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pages {
    /// Which segment. None has the number of an earlier one.
    pub segment: u32,
    /// First page in it.
    pub first: u32,
    /// How many; at least one.
    pub count: u32,
}

/// Pages in a row of a file that lie in a row in a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// First page in the file.
    pub at: u64,
    /// Where they lie.
    pub pages: Pages,
    /// Bytes that count of the last of them, from 1 to [`PAGE`](super::PAGE): those behind read as zeros, whatever lies there.
    pub last_len: u16,
    /// Checksum of each, of all its bytes as they lie there.
    pub sums: Sums,
}

/// Reserved pages that become pages of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// First page in the file.
    pub at: u64,
    /// Where they lie: all of one reservation, so that nobody else has written there.
    pub pages: Pages,
    /// The generation of the segment's [`Place`] that they were written by. Where it is another by now, the commit fails with [`Error::Copies`](super::Error::Copies).
    pub generation: u32,
    /// Checksum of each; not 0.
    pub sums: Sums,
    /// Where the pages were made of what the file had (a page was written in part): the checksums of what it had, 0 for holes. Where it has others by now, the commit
    /// fails with [`Error::Changed`](super::Error::Changed).
    pub replaces: Option<Sums>,
}

/// A copy of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    /// At which donor.
    #[serde(with = "donor_id")]
    pub donor: DonorId,
    /// In which run of it: one that has started again has lost it.
    pub incarnation: u64,
    /// First byte of its first page in the donor's memory; the pages follow each other.
    pub base: u64,
    /// Whether it has all pages. One that does not is being filled: it is written to, and not read.
    pub is_whole: bool,
}

/// A donor's name as a number.
pub(super) mod donor_id {
    use serde::{Deserialize, Deserializer, Serializer};
    use sinew_remote_memory::volume::DonorId;

    pub fn serialize<S: Serializer>(id: &DonorId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(id.0)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DonorId, D::Error> {
        u64::deserialize(deserializer).map(DonorId)
    }
}

/// Where a segment lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Which segment.
    pub segment: u32,
    /// Grows with each change of its copies.
    pub generation: u32,
    /// Pages of it.
    pub pages: u32,
    /// Its copies: what is written goes to all of them.
    pub copies: Vec<Replica>,
}

/// What was reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fresh {
    /// The pages: as many as were asked for, or fewer, and at least one.
    pub runs: Vec<Pages>,
    /// Where their segments lie.
    pub places: Vec<Place>,
}
