//! What stands behind the store's bytes in the file: whose they are, and whether all are there.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

/// Bytes of the trailer: a page, so that the file is a whole number of them.
pub const TRAILER: usize = 4096;
const MAGIC: [u8; 16] = *b"sinew last copy\n";
const SECRETS: RapidSecrets = RapidSecrets::seed_cpp(u64::from_le_bytes(*b"SinewLCp"));
/// Bytes before the checksum.
const BODY: usize = 48;
/// Bytes that are not zero. All lie in a sector, which a disk writes as a whole or not at all.
const USED: usize = BODY + 8;

/// Which volume a last copy is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whose {
    /// The volume's [name](sinew_remote_memory::volume::Volume::id).
    pub id: u64,
    /// The volume's [number](sinew_remote_memory::volume::Volume::number), which an older or newer one of the same name does not have.
    pub number: u64,
}

/// Whose the bytes are, how many, and whether all are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    pub whose: Whose,
    pub len: u64,
    /// Whether the file has, for all of the volume, what was there at the last flush, or something later.
    pub is_complete: bool,
}

impl Trailer {
    pub fn to_bytes(self) -> [u8; TRAILER] {
        let words = [self.whose.id, self.whose.number, self.len, self.is_complete.into()];
        let mut bytes = [0; TRAILER];
        bytes[..16].copy_from_slice(&MAGIC);
        for (place, word) in bytes[16..BODY].as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        let sum = sum(&bytes[..BODY]);
        bytes[BODY..USED].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// None: these bytes are no trailer, or a damaged one.
    pub fn read(bytes: &[u8; TRAILER]) -> Option<Self> {
        let word = |at: usize| bytes[at..].first_chunk().copied().map(u64::from_le_bytes);
        let is_whole =
            bytes[..16] == MAGIC && word(BODY)? == sum(&bytes[..BODY]) && bytes[USED..].iter().all(|byte| *byte == 0);
        let is_complete = match word(40)? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let whose = Whose { id: word(16)?, number: word(24)? };
        is_whole.then_some(Self { whose, len: word(32)?, is_complete })
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
            let trailer = Trailer { whose: Whose { id: 1, number: u64::MAX }, len: 1 << 40, is_complete };
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
