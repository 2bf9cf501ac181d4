//! Pages that hold their number and version.

pub const PAGE: usize = 4096;

/// Returns the page with this number in a version; version 0 is all zeros.
fn page(number: u64, version: u64) -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    if version > 0 {
        bytes[..8].copy_from_slice(&version.to_le_bytes());
        let mut word = (number << 20 ^ version).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for place in bytes[8..].chunks_exact_mut(8) {
            word = word.rotate_left(7).wrapping_mul(0xBF58_476D_1CE4_E5B9).wrapping_add(version);
            place.copy_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

/// Returns consecutive pages of one version.
pub fn pages(numbers: std::ops::Range<u64>, version: u64) -> Vec<u8> {
    numbers.flat_map(|number| page(number, version)).collect()
}

/// Returns the version of a page; `None` if it is not this page, or holds more than one version.
pub fn version_of(number: u64, bytes: &[u8]) -> Option<u64> {
    let version = u64::from_le_bytes(*bytes.first_chunk()?);
    (bytes == page(number, version)).then_some(version)
}

/// The last version of a page that was acknowledged, and the last that was begun.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    pub acked: u64,
    pub begun: u64,
}

#[test]
fn a_page_of_another_version_or_place_is_told_apart() {
    assert_eq!((version_of(2, &page(2, 3)), version_of(2, &[0; PAGE])), (Some(3), Some(0)));
    assert_eq!(version_of(2, &page(3, 3)), None);
    let mut torn = page(2, 3);
    torn[2048..].copy_from_slice(&page(2, 4)[2048..]);
    assert_eq!((version_of(2, &torn), version_of(2, &torn[..100])), (None, None));
}
