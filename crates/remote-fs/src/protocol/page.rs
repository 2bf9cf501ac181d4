//! Pages: their places and checksums.

use serde::{Deserialize, Serialize};
use sinew_remote_memory::volume::DonorId;

use super::limits::PAGE;

/// Checksums of consecutive pages; 0 stands for a hole.
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

/// Consecutive pages of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pages {
    /// Number of the segment, which no earlier segment had.
    pub segment: u32,
    /// First page in the segment.
    pub first: u32,
    /// Number of pages; at least one.
    pub count: u32,
}

/// Consecutive pages of a file that are consecutive in a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// First page in the file.
    pub at: u64,
    /// Their place.
    pub pages: Pages,
    /// Bytes of the last page that belong to the file, from 1 to [`PAGE`](super::PAGE). The rest reads as zeros,
    /// whatever is stored there.
    pub last_len: u16,
    /// Checksum of each page, over all its bytes as stored.
    pub sums: Sums,
}

/// Reserved pages that are to become pages of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// First page in the file.
    pub at: u64,
    /// Their place: all within one reservation, so that no other client has written there.
    pub pages: Pages,
    /// Generation of the segment's [`Placement`] that they were written to. If the generation has changed, the commit
    /// fails with [`Error::CopiesChanged`](super::Error::CopiesChanged).
    pub generation: u32,
    /// Checksum of each page; never 0.
    pub sums: Sums,
    /// If the pages are derived from the file's contents (a page was written in part): the [names](contents_name) of
    /// these contents, 0 for holes. If the file's pages have changed since, or have been cut, the commit fails with
    /// [`Error::PagesChanged`](super::Error::PagesChanged).
    pub replaces: Option<Sums>,
}

/// Names the contents of a page that is stored: by its checksum, and, if not all of its bytes belong to the file, by
/// their number. The same bytes are other contents once the file was cut within the page.
pub fn contents_name(sum: u64, len: usize) -> u64 {
    if len >= PAGE {
        return sum;
    }
    // An odd factor keeps lengths apart, and the shift spreads them over all bits.
    let mixed = (len as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (sum ^ mixed ^ (mixed >> 29)).max(1)
}

/// A copy of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentCopy {
    /// The donor that has it.
    #[serde(with = "donor_id")]
    pub donor: DonorId,
    /// The run of the donor that has it; a donor that restarts loses its copies.
    pub incarnation: u64,
    /// Offset of its first page in the donor's memory. The pages are consecutive.
    pub base: u64,
    /// Whether it has all pages. A copy that does not is being filled: clients write to it, and do not read from it.
    pub is_whole: bool,
}

/// Encodes a donor's identifier as a number.
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

/// The place of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Number of the segment.
    pub segment: u32,
    /// Incremented with each change of its copies.
    pub generation: u32,
    /// Pages of the segment.
    pub pages: u32,
    /// Its copies. Writes go to all of them.
    pub copies: Vec<SegmentCopy>,
}

/// A reservation that was granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Epoch of the service, which forgets the reservation when it ends.
    pub epoch: u32,
    /// The client that has them.
    pub client: u64,
    /// The pages: as many as requested, or fewer. None: there may be some soon.
    pub runs: Vec<Pages>,
    /// Places of their segments.
    pub places: Vec<Placement>,
}
