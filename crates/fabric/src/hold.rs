//! The rule by which small packets wait for more to share their datagram.
//!
//! A system call costs some microseconds whatever it carries, so a program that turns its loop after every few packets
//! would spend all its time in system calls: on loopback, 60 RPCs in flight in batches of 3 came to 0.8 million a
//! second, and with the rule here to over 2 million. A turn's packets wait if the turn before brought packets too,
//! until a turn brings none, the datagram is full, or [`HOLD_NS`] have passed. So no packet waits longer than one or
//! two system calls take, and a program with nothing more to send does not wait: RPCs made one at a time go out at
//! once.

/// The longest that a packet waits, in nanoseconds.
pub const HOLD_NS: u64 = 6_000;
/// Length in bytes from which a datagram is not held any longer.
pub const HOLD_LEN_MAX: usize = 16 << 10;

/// Record of the last turns.
#[derive(Debug, Default)]
pub struct Hold {
    /// Packets held back at the end of the last turn.
    held: u64,
    /// Whether the last turn brought packets.
    last_turn_brought: bool,
    since_ns: Option<u64>,
}

impl Hold {
    /// Whether the `packets` that are there at a turn's end may wait for the next turn.
    #[inline]
    pub fn should_hold(&mut self, packets: u64, now_ns: u64) -> bool {
        let brought = packets > self.held;
        let may_hold = brought && self.last_turn_brought;
        self.last_turn_brought = brought;
        self.held = packets;
        may_hold && now_ns.saturating_sub(*self.since_ns.get_or_insert(now_ns)) < HOLD_NS
    }

    /// Notes that everything was sent.
    #[inline]
    pub fn sent(&mut self) {
        self.held = 0;
        self.since_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_wait_only_while_every_turn_brings_more() {
        let mut hold = Hold::default();
        assert!(!hold.should_hold(1, 0), "the first goes at once");
        hold.sent();
        assert!(hold.should_hold(3, 1) && hold.should_hold(6, 2));
        assert!(!hold.should_hold(6, 3), "nothing came");
        hold.sent();
        assert!(!hold.should_hold(0, 4));
        assert!(!hold.should_hold(1, 5), "after an idle turn");
    }

    #[test]
    fn nothing_waits_for_longer_than_the_limit() {
        let mut hold = Hold::default();
        hold.should_hold(1, 0);
        hold.sent();
        assert!(hold.should_hold(1, 100) && hold.should_hold(2, 99 + HOLD_NS));
        assert!(!hold.should_hold(3, 100 + HOLD_NS));
        hold.sent();
        assert!(hold.should_hold(1, 101 + HOLD_NS), "and the next begins anew");
    }
}
