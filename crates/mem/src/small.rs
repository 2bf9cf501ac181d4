//! Copies of a few bytes within this process's own memory.

/// Copies `source` to `target`. From 16 to 64 bytes, the lengths of small messages, this is a few moves instead of a
/// call of `memcpy`, which costs a small call of the RPC layer a fortieth of its instructions at each side.
///
/// # Panics
///
/// When the lengths differ.
#[inline(always)]
pub fn copy_small(target: &mut [u8], source: &[u8]) {
    assert_eq!(target.len(), source.len(), "source and target must have the same length");
    // Each copies the first and the last bytes as two blocks, which may overlap.
    if !(copy_overlapping::<16>(target, source) || copy_overlapping::<32>(target, source)) {
        target.copy_from_slice(source);
    }
}

/// Copies from `N` to `2 * N` bytes; returns false, without copying, for any other length.
#[inline(always)]
fn copy_overlapping<const N: usize>(target: &mut [u8], source: &[u8]) -> bool {
    if source.len() > 2 * N {
        return false;
    }
    let (Some(&first), Some(&last)) = (source.first_chunk::<N>(), source.last_chunk::<N>()) else { return false };
    if let Some(place) = target.first_chunk_mut::<N>() {
        *place = first;
    }
    if let Some(place) = target.last_chunk_mut::<N>() {
        *place = last;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_whole_and_nothing_beside_it() {
        for len in 0..100 {
            let source: Vec<u8> = (0..len as u8).map(|byte| byte + 1).collect();
            let mut target = vec![0; len + 2];
            copy_small(&mut target[1..=len], &source);
            assert_eq!((&target[1..=len], target[0], target[len + 1]), (&source[..], 0, 0));
        }
    }
}
