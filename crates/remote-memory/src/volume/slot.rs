//! Slots: the layout of a slab, and of a slot's header.
//!
//! A slab begins with all headers, followed by all pages, so that the pages of neighbouring slots are adjacent, and so
//! are their headers. Neighbours are therefore written and read as one operation each, recovery reads only headers (1.5
//! % of the memory), and a page is read straight into its reader's buffer.
//!
//! ```text
//!  0  magic "SwSl"          4  format (1)  6  flags: 1 = the page has a checksum
//!  8  volume
//! 16  logical page
//! 24  epoch of the writer  28  epoch of "settled"
//! 32  sequence number
//! 40  sequence number of "settled": all versions below had finished when this one was begun
//! 48  checksum of the page
//! 56  checksum of the header
//! ```
//!
//! Numbers are little-endian. A header of zeros means that the slot is free. Other bytes that are not a valid header
//! are the remains of a header write that was cut off.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

use crate::donor::LentSlab;
use crate::store::BLOCK;

/// Bytes of a header.
pub const HEADER: usize = 64;
/// Slots that are handled together, at most: a run does not cross a multiple of this.
pub(super) const CHUNK: u32 = 1024;

const MAGIC: u32 = u32::from_le_bytes(*b"SwSl");
const FORMAT: u16 = 1;
const HAS_CHECKSUM: u16 = 1;
const SECRETS: RapidSecrets = RapidSecrets::seed_cpp(u64::from_le_bytes(*b"SinewSlt"));
/// Offset of the page's checksum in a header.
const SUM: usize = 48;

/// Layout of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Slots.
    pub slots: u32,
}

impl Shape {
    /// The layout with as many slots as fit into `len` bytes.
    pub fn within(len: u64) -> Self {
        let mut slots = (len / (HEADER + BLOCK) as u64).min(u64::from(u32::MAX)) as u32;
        while slots > 0 && Self::headers_len(slots) + u64::from(slots) * BLOCK as u64 > len {
            slots -= 1;
        }
        Self { slots }
    }

    /// Logical pages that live in a segment of this shape. Fewer than its slots, because a page is written beside the
    /// one that it replaces.
    pub fn pages(self) -> u32 {
        self.slots - (self.slots / 9).max(64).min(self.slots.div_ceil(2))
    }

    fn headers_len(slots: u32) -> u64 {
        (u64::from(slots) * HEADER as u64).next_multiple_of(BLOCK as u64)
    }

    /// Bytes of the slab.
    pub fn slab_len(self) -> u64 {
        self.page_at(self.slots)
    }

    /// Whether a slab has room for it, and lies where there can be memory.
    pub(super) fn fits(self, lent: &LentSlab) -> bool {
        lent.len >= self.slab_len() && lent.base.checked_add(self.slab_len()).is_some()
    }

    /// First byte of a slot's header.
    pub fn header_at(self, slot: u32) -> u64 {
        u64::from(slot) * HEADER as u64
    }

    /// First byte of a slot's page.
    pub fn page_at(self, slot: u32) -> u64 {
        Self::headers_len(self.slots) + u64::from(slot) * BLOCK as u64
    }
}

/// A position in the order of writes: first by writer, then by each writer's own order. None is used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Epoch of the writer.
    pub epoch: u32,
    /// Sequence number among that writer's writes.
    pub seq: u64,
}

/// Description of the page that a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The volume that it belongs to.
    pub volume: u64,
    /// Logical page of that volume.
    pub page: u64,
    /// Of several slots with the same page, the one with the highest version counts.
    pub version: Version,
    /// All lower versions had finished when this header was written: they are complete on all copies.
    pub settled: Version,
    /// Checksum of the page; 0 if it has none.
    pub sum: u64,
}

/// Contents of a header's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// All zeros: the slot is free.
    Free,
    /// A header.
    Header(Header),
    /// Neither of the two.
    Garbage,
}

impl Header {
    /// Writes the header to `bytes`.
    pub fn write(&self, bytes: &mut [u8; HEADER]) {
        let flags = if self.sum == 0 { 0 } else { HAS_CHECKSUM };
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[6..8].copy_from_slice(&flags.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.volume.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.page.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.version.epoch.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.settled.epoch.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.version.seq.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.settled.seq.to_le_bytes());
        bytes[SUM..56].copy_from_slice(&self.sum.to_le_bytes());
        let sum = hash(&bytes[..56]);
        bytes[56..].copy_from_slice(&sum.to_le_bytes());
    }

    /// Interprets these bytes.
    pub fn read(bytes: &[u8; HEADER]) -> SlotState {
        if bytes.iter().all(|byte| *byte == 0) {
            return SlotState::Free;
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let format = u16::from_le_bytes([bytes[4], bytes[5]]);
        let flags = u16::from_le_bytes([bytes[6], bytes[7]]);
        let sum = word(SUM);
        let expected_flags = if sum == 0 { 0 } else { HAS_CHECKSUM };
        if half(0) != MAGIC || format != FORMAT || flags != expected_flags || word(56) != hash(&bytes[..56]) {
            return SlotState::Garbage;
        }
        SlotState::Header(Self {
            volume: word(8),
            page: word(16),
            version: Version { epoch: half(24), seq: word(32) },
            settled: Version { epoch: half(28), seq: word(40) },
            sum,
        })
    }
}

#[inline]
fn hash(bytes: &[u8]) -> u64 {
    rapidhash_v3_inline::<true, false, false>(bytes, &SECRETS)
}

/// Checksum of a page; never 0.
#[inline]
pub fn checksum(page: &[u8]) -> u64 {
    hash(page).max(1)
}

/// Checksum of the page in header `index` of several.
#[inline]
pub(super) fn sum_in(headers: &[u8], index: usize) -> u64 {
    let offset = index * HEADER + SUM;
    headers.get(offset..offset + 8).map_or(0, |bytes| u64::from_le_bytes(std::array::from_fn(|byte| bytes[byte])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            volume: 0x0102_0304_0506_0708,
            page: 9,
            version: Version { epoch: 3, seq: 0x55 },
            settled: Version { epoch: 2, seq: 0x44 },
            sum: 0xABCD,
        }
    }

    #[test]
    fn the_layout_is_fixed() {
        let mut bytes = [0xFF; HEADER];
        header().write(&mut bytes);
        let expected = [
            &b"SwSl"[..],
            &[1, 0, 1, 0],
            &[8, 7, 6, 5, 4, 3, 2, 1],
            &[9, 0, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 0, 2, 0, 0, 0],
            &[0x55, 0, 0, 0, 0, 0, 0, 0],
            &[0x44, 0, 0, 0, 0, 0, 0, 0],
            &[0xCD, 0xAB, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(bytes[..56], expected);
        assert_eq!(Header::read(&bytes), SlotState::Header(header()));
        assert_eq!(sum_in(&bytes, 0), 0xABCD);
    }

    #[test]
    fn any_bit_that_changes_makes_it_garbage_and_any_part_of_it_too() {
        let mut bytes = [0; HEADER];
        header().write(&mut bytes);
        for bit in 0..HEADER * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::read(&changed), SlotState::Garbage, "bit {bit}");
        }
        for len in 1..HEADER {
            let mut part = [0; HEADER];
            part[..len].copy_from_slice(&bytes[..len]);
            assert_eq!(Header::read(&part), SlotState::Garbage, "{len} bytes");
        }
        assert_eq!(Header::read(&[0; HEADER]), SlotState::Free);
    }

    #[test]
    fn a_slab_holds_its_slots_and_no_more() {
        for len in [0, 4159, 4160, 8192, 8193, 1 << 16, 1 << 26] {
            let shape = Shape::within(len);
            assert!(shape.slab_len() <= len);
            assert!(Shape { slots: shape.slots + 1 }.slab_len() > len, "{len}");
            if shape.slots > 0 {
                assert!(shape.header_at(shape.slots - 1) + HEADER as u64 <= shape.page_at(0));
            }
        }
        assert_eq!(Shape::within(64 << 20).slots, 16131);
        let shape = Shape { slots: 10 };
        let lent = |base, len| LentSlab { slab: 1, base, len };
        let end = u64::MAX - shape.slab_len();
        assert!(shape.fits(&lent(end, u64::MAX)) && !shape.fits(&lent(end + 1, u64::MAX)));
        assert!(shape.fits(&lent(0, shape.slab_len())) && !shape.fits(&lent(0, shape.slab_len() - 1)));
    }
}
