//! The trailer after the store's bytes in the file: it says which volume they are from, and whether they are complete.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

/// Bytes of the trailer. It is a page, so that the file is a whole number of pages.
pub const TRAILER: usize = 4096;
const MAGIC: [u8; 16] = *b"sinew last copy\n";
const SECRETS: RapidSecrets = RapidSecrets::seed_cpp(u64::from_le_bytes(*b"SinewLCp"));
/// Bytes before the checksum.
const BODY: usize = 48;
/// Bytes that are not zero. They all lie in one sector, which a disk writes as a whole or not at all.
const USED: usize = BODY + 8;

/// The volume that a last copy belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeIdentity {
    /// The volume's [id](sinew_remote_memory::volume::Volume::id), derived from its name.
    pub id: u64,
    /// The volume's [number](sinew_remote_memory::volume::Volume::number), which no older or newer volume of the same
    /// name has.
    pub number: u64,
}

/// Contents of a trailer: the volume, its length, and whether the copy is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    pub volume: VolumeIdentity,
    pub len: u64,
    /// Whether the file has, for every byte of the volume, its value at the last flush or a later one.
    pub is_complete: bool,
}

impl Trailer {
    pub fn to_bytes(self) -> [u8; TRAILER] {
        let words = [self.volume.id, self.volume.number, self.len, self.is_complete.into()];
        let mut bytes = [0; TRAILER];
        bytes[..16].copy_from_slice(&MAGIC);
        for (place, word) in bytes[16..BODY].as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        let sum = sum(&bytes[..BODY]);
        bytes[BODY..USED].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Parses a trailer; `None` if the bytes are no trailer, or a damaged one.
    pub fn read(bytes: &[u8; TRAILER]) -> Option<Self> {
        let word = |at: usize| bytes[at..].first_chunk().copied().map(u64::from_le_bytes);
        let is_whole =
            bytes[..16] == MAGIC && word(BODY)? == sum(&bytes[..BODY]) && bytes[USED..].iter().all(|byte| *byte == 0);
        let is_complete = match word(40)? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let volume = VolumeIdentity { id: word(16)?, number: word(24)? };
        is_whole.then_some(Self { volume, len: word(32)?, is_complete })
    }
}

fn sum(bytes: &[u8]) -> u64 {
    rapidhash_v3_inline::<true, false, false>(bytes, &SECRETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trailer_comes_back_as_it_was_and_nothing_else_does() {
        for is_complete in [false, true] {
            let trailer = Trailer { volume: VolumeIdentity { id: 1, number: u64::MAX }, len: 1 << 40, is_complete };
            let bytes = trailer.to_bytes();
            assert_eq!(Trailer::read(&bytes), Some(trailer));
            for at in 0..TRAILER {
                let mut changed = bytes;
                changed[at] ^= 1;
                assert_eq!(Trailer::read(&changed), None, "{at}");
            }
        }
        assert_eq!(Trailer::read(&[0; TRAILER]), None);
    }
}
