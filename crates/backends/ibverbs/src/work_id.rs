//! Identifiers of work requests, which their completions carry.

const NUMBER_BITS: u32 = 24;
const SLOT_BITS: u32 = 16;
/// Most operations of a queue: half the numbers, so that operations in flight can be told from ones long over.
pub(crate) const DEPTH_MAX: usize = 1 << (NUMBER_BITS - 1);
/// Most queue pairs of a thread.
pub(crate) const QPS_MAX: usize = 1 << SLOT_BITS;

/// The identifier of a work request, which its completion carries (`wr_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkId {
    /// Generation of its queue pair's slot: late completions may be for queue pairs that are gone or were reset.
    pub generation: u32,
    /// Whether it is a receive, which a failed completion does not say otherwise.
    pub receive: bool,
    /// Its queue pair's slot in the thread's list.
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

    /// The whole number, which is `oldest` or later.
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
