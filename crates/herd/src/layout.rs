//! The layout of requests in the server's memory.

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes after the body of a request; see [`crate::slot`].
pub(crate) const FOOT_LEN: usize = 16;
/// Bytes before the body of an answer.
pub(crate) const ANSWER_HEAD_LEN: usize = 8;
/// Largest region accepted, in bytes; a larger one is taken for a mistake.
const REGION_LEN_MAX: usize = 64 << 30;

/// Layout of the request region: by worker, then by client, then by slot, as in figure 8 of sigcomm14.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Worker threads of the server.
    pub workers: usize,
    /// Clients at the same time.
    pub clients: usize,
    /// Requests that a client may have in flight to each worker; a power of two.
    pub window: usize,
    /// Longest body of a request, in bytes; at most 65,535.
    pub request_len_max: usize,
    /// Longest body of an answer, in bytes; at most 65,527, and 8 less than the longest datagram.
    pub response_len_max: usize,
}

impl std::fmt::Display for Layout {
    /// Shows the parts that a client must match.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { workers, window, request_len_max, response_len_max, .. } = self;
        let workers_name = if *workers == 1 { "worker" } else { "workers" };
        write!(
            f,
            "{workers} {workers_name} with a window of {window}, requests up to {request_len_max} B and answers up to {response_len_max} B"
        )
    }
}

/// A layout is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request region cannot have {what} {value} (allowed: {limit})")]
pub struct LayoutError {
    /// The quantity that is out of bounds.
    pub what: &'static str,
    /// The value asked for.
    pub value: usize,
    /// The values that are possible.
    pub limit: &'static str,
}

/// Rounds up to whole cache lines; to an odd number of them if there are several, so that the slots' ends do not share
/// a few sets of the cache.
fn stride(len: usize) -> usize {
    let lines = len.div_ceil(LINE);
    (if lines > 1 { lines | 1 } else { lines }) * LINE
}

impl Layout {
    /// Checks that such a region is possible.
    ///
    /// # Errors
    ///
    /// [`LayoutError`].
    pub fn check(&self) -> Result<(), LayoutError> {
        let in_range = |what, value: usize, limit, good: bool| {
            if good { Ok(()) } else { Err(LayoutError { what, value, limit }) }
        };
        let Self { workers, clients, window, request_len_max, response_len_max } = *self;
        in_range("workers", workers, "1 to 65535 of them", (1..=65_535).contains(&workers))?;
        in_range("clients", clients, "1 to 65536 of them", (1..=65_536).contains(&clients))?;
        let good = window.is_power_of_two() && window <= 1 << 16;
        in_range("a window of", window, "a power of two up to 65536", good)?;
        in_range("requests of", request_len_max, "up to 65535 bytes", request_len_max <= 65_535)?;
        in_range("answers of", response_len_max, "up to 65527 bytes", response_len_max <= 65_527)?;
        let slots = workers.checked_mul(clients).and_then(|slots| slots.checked_mul(window));
        let bytes = slots.and_then(|slots| slots.checked_mul(self.slot_len())).unwrap_or(usize::MAX);
        in_range("bytes", bytes, "up to 64 GiB: fewer clients, or a shorter window", bytes <= REGION_LEN_MAX)
    }

    /// Bytes that a client writes for a request whose body has `len` bytes.
    pub fn request_bytes(len: usize) -> usize {
        len.next_multiple_of(8) + FOOT_LEN
    }

    /// Bytes that a worker sends for an answer whose body has `len` bytes.
    pub fn answer_bytes(len: usize) -> usize {
        len + ANSWER_HEAD_LEN
    }

    /// Distance from one slot to the next, in bytes.
    pub fn slot_len(&self) -> usize {
        stride(Self::request_bytes(self.request_len_max))
    }

    /// Length of the region, in bytes.
    pub fn region_len(&self) -> usize {
        self.workers * self.clients * self.window * self.slot_len()
    }

    /// Offset in the region at which the slot of a request ends.
    #[inline(always)]
    pub fn slot_end(&self, worker: usize, client: usize, sequence: u32) -> usize {
        let slot = self.slot_of(sequence);
        ((worker * self.clients + client) * self.window + slot + 1) * self.slot_len()
    }

    /// Slot of a request of a client to a worker. Request numbers wrap around, and the power of two divides their
    /// range.
    #[inline(always)]
    pub(crate) fn slot_of(&self, sequence: u32) -> usize {
        sequence as usize & (self.window - 1)
    }

    /// Distance from one kept answer to the next, in bytes.
    pub(crate) fn answer_stride(&self) -> usize {
        stride(Self::answer_bytes(self.response_len_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { workers: 2, clients: 3, window: 4, request_len_max: 48, response_len_max: 32 };

    #[test]
    fn slots_lie_side_by_side_and_numbers_take_them_in_turn() {
        assert_eq!((LAYOUT.slot_len(), LAYOUT.region_len()), (64, 2 * 3 * 4 * 64));
        let mut ends = Vec::new();
        for worker in 0..2 {
            for client in 0..3 {
                ends.extend((0..4).map(|sequence| LAYOUT.slot_end(worker, client, sequence)));
            }
        }
        assert_eq!(ends, (1..=24).map(|slot| slot * 64).collect::<Vec<_>>());
        assert_eq!(LAYOUT.slot_end(1, 2, u32::MAX) + 64 - 4 * 64, LAYOUT.slot_end(1, 2, u32::MAX.wrapping_add(1)));
    }

    #[test]
    fn both_sides_of_every_limit() {
        assert_eq!(LAYOUT.check(), Ok(()));
        let bad = [
            Layout { workers: 0, ..LAYOUT },
            Layout { workers: 65_536, ..LAYOUT },
            Layout { clients: 0, ..LAYOUT },
            Layout { clients: 65_537, ..LAYOUT },
            Layout { window: 0, ..LAYOUT },
            Layout { window: 3, ..LAYOUT },
            Layout { window: 1 << 17, ..LAYOUT },
            Layout { request_len_max: 65_536, ..LAYOUT },
            Layout { response_len_max: 65_528, ..LAYOUT },
            Layout { workers: 65_535, clients: 65_536, window: 1 << 16, ..LAYOUT },
        ];
        for layout in bad {
            assert!(layout.check().is_err(), "{layout:?}");
        }
        let longest = Layout { request_len_max: 65_535, response_len_max: 65_527, ..LAYOUT };
        assert_eq!(longest.check(), Ok(()));
    }

    #[test]
    fn the_ends_of_long_slots_spread_over_the_sets_of_a_cache() {
        for len in [49, 112, 1000, 1024, 4096] {
            let lines = Layout { request_len_max: len, ..LAYOUT }.slot_len() / LINE;
            assert!(lines % 2 == 1 && lines * LINE >= len + FOOT_LEN, "{len}");
        }
    }
}
