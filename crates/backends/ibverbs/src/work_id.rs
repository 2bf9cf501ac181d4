//! What a work request says of itself when it completes.

const NUMBER_BITS: u32 = 24;
const SLOT_BITS: u32 = 16;
/// Operations that a queue can hold at most: half the numbers, so that those in flight are told from those long over.
pub(crate) const DEPTH_MAX: usize = 1 << (NUMBER_BITS - 1);
/// Queue pairs of a thread.
pub(crate) const QPS_MAX: usize = 1 << SLOT_BITS;

/// What a work request says of itself when it completes (`wr_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkId {
    /// Which life of its queue pair's slot it belongs to: completions of queue pairs that are gone, or were reset, may come late.
    pub generation: u32,
    /// Whether it is a receive: failed completions say it nowhere else.
    pub receive: bool,
    /// Its queue pair's place in the thread's list.
    pub slot: usize,
    /// The low bits of its number in the queue pair's table.
    pub number: u32,
}

impl WorkId {
    pub const GENERATION_MASK: u32 = (1 << (64 - NUMBER_BITS - SLOT_BITS - 1)) - 1;
    const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

    #[inline]
    pub fn pack(generation: u32, slot: usize, receive: bool, number: u64) -> u64 {
        let above = u64::from(generation) << (SLOT_BITS + 1) | (slot as u64) << 1 | u64::from(receive);
        above << NUMBER_BITS | (number & Self::NUMBER_MASK)
    }

    #[inline]
    pub fn unpack(bits: u64) -> Self {
        let above = bits >> NUMBER_BITS;
        Self {
            generation: (above >> (SLOT_BITS + 1)) as u32,
            receive: above & 1 == 1,
            slot: (above >> 1) as usize & (QPS_MAX - 1),
            number: (bits & Self::NUMBER_MASK) as u32,
        }
    }

    /// The whole number, of those from `oldest` on.
    #[inline]
    pub fn number_from(self, oldest: u64) -> u64 {
        oldest + (u64::from(self.number).wrapping_sub(oldest) & Self::NUMBER_MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_says_what_was_put_in() {
        for (generation, slot, receive, number) in [
            (0, 0, false, 0),
            (WorkId::GENERATION_MASK, QPS_MAX - 1, true, WorkId::NUMBER_MASK),
            (77, 5, true, 1 << 23),
        ] {
            let id = WorkId::unpack(WorkId::pack(generation, slot, receive, number));
            assert_eq!(id, WorkId { generation, receive, slot, number: number as u32 });
        }
    }

    #[test]
    fn numbers_are_whole_again_when_they_come_back() {
        for oldest in [0, 1 << 24, (1 << 40) - 3, u64::from(u32::MAX)] {
            for later in [0, 1, DEPTH_MAX as u64] {
                let number = oldest + later;
                assert_eq!(WorkId::unpack(WorkId::pack(1, 2, false, number)).number_from(oldest), number);
            }
        }
    }
}
