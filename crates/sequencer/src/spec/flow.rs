//! Which requests are signaled, and how many are not known to be over.

/// One request in so many is signaled.
const EVERY: usize = 64;

/// The send queue of a queue pair whose requests succeed untold but for every [`EVERY`]th.
#[derive(Debug)]
pub struct Flow {
    depth: usize,
    in_flight: usize,
    unsignaled: usize,
}

impl Flow {
    /// Of a queue that holds [`Self::depth_for`] `burst` requests.
    pub fn new(burst: usize) -> Self {
        Self { depth: Self::depth_for(burst), in_flight: 0, unsignaled: 0 }
    }

    /// Requests that a queue holds so that it always has room for `burst` once all that is signaled is over.
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

    /// Counts a request that was pushed, signaled if that was due.
    #[inline]
    pub fn pushed(&mut self) {
        self.in_flight += 1;
        self.unsignaled = if self.is_signal_due() { 0 } else { self.unsignaled + 1 };
    }

    /// A signaled request is over, and those before it.
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
