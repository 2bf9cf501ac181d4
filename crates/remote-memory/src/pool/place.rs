//! Placement: the donors of each segment's copies.

use crate::volume::{DonorId, NewVolume};

/// Free memory of a donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DonorSpace {
    /// The donor.
    pub donor: DonorId,
    /// Bytes that it has free.
    pub free: u64,
}

/// Reason why a volume cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSpace {
    /// There are fewer donors than copies.
    #[error("{copies} copies need as many donors, but there are {donors}")]
    Donors {
        /// Copies of each segment.
        copies: u32,
        /// Known donors.
        donors: usize,
    },
    /// There is too little free memory.
    #[error(
        "slabs of {slab_len} bytes, {} bytes in all with all copies, do not fit: the donors have {free} bytes free",
        segments.saturating_mul(*slab_len).saturating_mul(u64::from(*copies))
    )]
    Memory {
        /// Segments of the volume.
        segments: u64,
        /// Bytes of one slab.
        slab_len: u64,
        /// Copies of each segment.
        copies: u32,
        /// Bytes that all donors together have free.
        free: u64,
    },
}

/// Most voters of a volume. If five vote, two may fail.
const VOTERS_MAX: usize = 5;

/// Places a volume of `len` bytes. Each segment's copies go to the donors with the most free memory, so that all fill
/// evenly. An odd number of donors vote, those with the most free memory; of two donors only one votes, and that one
/// must not fail. `number` must be [drawn at random](NewVolume::number).
///
/// # Errors
///
/// [`NoSpace`] if there are too few donors or too little memory.
pub fn place_volume(
    len: u64,
    copies: u32,
    slab_len: u64,
    number: u64,
    donors: &[DonorSpace],
) -> Result<NewVolume, NoSpace> {
    let mut donors = donors.to_vec();
    if copies == 0 || donors.len() < copies as usize {
        return Err(NoSpace::Donors { copies, donors: donors.len() });
    }
    // Ties are broken by id, so that equal free memory always gives the same placement.
    let most_free =
        |donors: &mut Vec<DonorSpace>| donors.sort_by_key(|space| (std::cmp::Reverse(space.free), space.donor));
    most_free(&mut donors);
    let free = donors.iter().fold(0, |free: u64, space| free.saturating_add(space.free));
    let voters = donors.len().min(VOTERS_MAX);
    let voters = donors[..voters - (voters + 1) % 2].iter().map(|space| space.donor).collect();
    let count = NewVolume::segments_for(len, slab_len);
    let mut segments = Vec::new();
    for _ in 0..count {
        most_free(&mut donors);
        let chosen = &mut donors[..copies as usize];
        if chosen.iter().any(|space| space.free < slab_len) {
            return Err(NoSpace::Memory { segments: count, slab_len, copies, free });
        }
        chosen.iter_mut().for_each(|space| space.free -= slab_len);
        segments.push(chosen.iter().map(|space| space.donor).collect());
    }
    Ok(NewVolume { len, copies, slab_len, segments, voters, number })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spaces(free: &[u64]) -> Vec<DonorSpace> {
        free.iter()
            .enumerate()
            .map(|(index, free)| DonorSpace { donor: DonorId(index as u64), free: free << 20 })
            .collect()
    }

    #[test]
    fn copies_lie_at_different_donors_and_donors_fill_alike() {
        let new = place_volume(64 << 20, 2, 8 << 20, 1, &spaces(&[64, 64, 64])).unwrap();
        let mut slabs = [0; 3];
        for donors in &new.segments {
            assert!(donors.len() == 2 && donors[0] != donors[1]);
            donors.iter().for_each(|donor| slabs[donor.0 as usize] += 1);
        }
        assert!(slabs.iter().max().unwrap() - slabs.iter().min().unwrap() <= 1, "{slabs:?}");
        assert_eq!(new.voters.len(), 3);
    }

    #[test]
    fn an_odd_number_votes() {
        for (donors, voters) in [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (9, 5)] {
            let new = place_volume(1 << 20, 1, 8 << 20, 1, &spaces(&vec![64; donors])).unwrap();
            assert_eq!(new.voters.len(), voters, "{donors} donors");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_figures() {
        assert_eq!(place_volume(1, 2, 8 << 20, 1, &spaces(&[64])), Err(NoSpace::Donors { copies: 2, donors: 1 }));
        assert!(place_volume(60 << 20, 2, 8 << 20, 1, &spaces(&[128, 16])).is_err());
        assert!(place_volume(6 << 20, 2, 8 << 20, 1, &spaces(&[128, 16])).is_ok());
        let boastful = [0, 1].map(|donor| DonorSpace { donor: DonorId(donor), free: u64::MAX });
        assert!(place_volume(6 << 20, 2, 8 << 20, 1, &boastful).is_ok(), "more than there can be");
    }
}
