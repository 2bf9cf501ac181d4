//! Flow control of a send queue: which requests are signaled, and how many are not known to have completed.

/// One request in this many is signaled.
const EVERY: usize = 64;

/// Accounts for the send queue of a queue pair of whose requests only every [`EVERY`]th reports its completion.
#[derive(Debug)]
pub struct Flow {
    depth: usize,
    in_flight: usize,
    unsignaled: usize,
}

impl Flow {
    /// Accounts for a queue of depth [`Self::depth_for`] `burst`.
    pub fn new(burst: usize) -> Self {
        Self { depth: Self::depth_for(burst), in_flight: 0, unsignaled: 0 }
    }

    /// Depth of a queue that has room for `burst` requests whenever all signaled ones have completed.
    pub fn depth_for(burst: usize) -> usize {
        burst + 2 * EVERY
    }

    /// Requests that can be pushed.
    #[inline]
    pub fn room(&self) -> usize {
        self.depth - self.in_flight
    }

    /// Whether the next request is to be signaled.
    #[inline]
    pub fn is_signal_due(&self) -> bool {
        self.unsignaled + 1 == EVERY
    }

    /// Counts a request that was pushed, and signaled if that was due.
    #[inline]
    pub fn pushed(&mut self) {
        self.in_flight += 1;
        self.unsignaled = if self.is_signal_due() { 0 } else { self.unsignaled + 1 };
    }

    /// Notes that a signaled request has completed, and with it those before it.
    #[inline]
    pub fn completed(&mut self) {
        self.in_flight -= EVERY.min(self.in_flight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_a_burst_as_long_as_what_is_signaled_ends() {
        let mut flow = Flow::new(32);
        for _ in 0..1000 {
            let mut signaled = 0;
            for _ in 0..flow.room() {
                signaled += usize::from(flow.is_signal_due());
                flow.pushed();
            }
            assert_eq!(flow.room(), 0);
            (0..signaled).for_each(|_| flow.completed());
            assert!(flow.room() >= 32, "{flow:?}");
        }
    }
}
