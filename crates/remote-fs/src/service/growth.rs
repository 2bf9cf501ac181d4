//! Adding a segment: the choice of donors, and the slabs that they grant.

use super::lanes::Lanes;
use crate::durable_state::Member;
use crate::protocol::PAGE;

/// Shortest slab worth having, in bytes.
const SLAB_MIN: u64 = 1 << 20;

/// A segment whose slabs have been requested.
#[derive(Debug)]
pub(super) struct Growth {
    pub slab_len: u64,
    /// Donors that have not answered.
    pub answers_missing: usize,
    /// The slabs that were granted.
    pub members: Vec<Member>,
    pub has_failed: bool,
}

impl Growth {
    pub fn pages(&self) -> u32 {
        (self.slab_len / PAGE as u64) as u32
    }
}

/// Chooses the donors for the next segment's copies, and the length of each slab; `None` while there is no room for all
/// copies.
pub(super) fn plan(lanes: &Lanes, copies: usize, slab_len: u64) -> Option<(Vec<usize>, u64)> {
    // If there are fewer donors than wanted copies, there are fewer copies, as for data written earlier.
    let copies = copies.min(lanes.usable_count()).max(1);
    let mut chosen = lanes.with_room(SLAB_MIN, &[]);
    if chosen.len() < copies {
        return None;
    }
    chosen.truncate(copies);
    let free = chosen.iter().map(|lane| lanes.0[*lane].room()).min()?;
    let mut len = slab_len.max(SLAB_MIN);
    // Except for the shortest slabs, a slab takes at most half of a donor's free memory, so that the rest can go to
    // another segment, together with another donor.
    while len > SLAB_MIN && len > free / 2 {
        len /= 2;
    }
    Some((chosen, len / PAGE as u64 * PAGE as u64))
}
