//! Patience: the time for which a member waits for others that are silent.
//!
//! On a machine whose processors are busy, a live member may be silent for longer than the election time-out, because
//! another program runs in its place. If every such silence were taken for a death, leaders would change many times a
//! minute. So a member remembers the longest silences after which it heard again from its leader, or from its
//! followers. If one was longer than half of the election time-out, the member waits three times as long before it
//! takes another for dead, up to ten election time-outs.
//!
//! Beside two busy programs on two processors (Linux 6.18), and with 64 PUTs in flight, members waited for a processor
//! for some milliseconds, but for up to half a second if all ran in one session, which the scheduler makes a group
//! (autogroup). Beside that group even the kernel's own threads waited for seconds. With the default time-out, no
//! patience is long enough for that.

use std::collections::BTreeMap;

use crate::wire::MemberId;

/// Longest silence that is learned, in election time-outs. After a longer one the other was cut off or restarted.
const LEARNED_MAX: u64 = 5;
/// Longest patience, in election time-outs.
const TICKS_MAX: u64 = 10;
/// Shortest time for which a silence is remembered, in election time-outs: half a minute if one is 24 ms. The longest
/// is twice this.
const REMEMBERED: u64 = 1250;

/// The silences that a member has noticed. Its times are in ticks of its own, which pass only while it runs.
#[derive(Debug)]
pub struct Patience {
    /// The election time-out.
    least: u64,
    now: u64,
    /// For each member that was expected to speak, when it was last heard.
    heard: BTreeMap<MemberId, u64>,
    /// The longest silence of the present period, and that of the one before.
    longest: [u64; 2],
    period_end: u64,
}

impl Patience {
    /// A patience of `least` ticks, until a silence of more than half as long is noticed.
    pub fn new(least: usize) -> Self {
        let least = least as u64;
        Self { least, now: 0, heard: BTreeMap::new(), longest: [0; 2], period_end: least * REMEMBERED }
    }

    /// Lets a tick pass, in which only these members are expected to speak. Returns whether the patience has changed.
    pub fn tick(&mut self, expected: impl Fn(MemberId) -> bool) -> bool {
        self.now += 1;
        // Members that are no longer expected to speak are kept while their silence is one to five election time-outs:
        // they may have been taken for dead, and a message from them would show that this was wrong.
        let suspicious = self.least..=self.least * LEARNED_MAX;
        self.heard.retain(|member, heard| expected(*member) || suspicious.contains(&(self.now - *heard)));
        if self.now < self.period_end {
            return false;
        }
        let before = self.ticks();
        self.period_end += self.least * REMEMBERED;
        self.longest = [0, self.longest[0]];
        self.ticks() != before
    }

    /// Notes that a member was heard. Returns whether the patience has changed.
    pub fn note_heard(&mut self, member: MemberId, is_expected: bool) -> bool {
        let before = self.ticks();
        let heard = if is_expected { self.heard.insert(member, self.now) } else { self.heard.remove(&member) };
        let silence = heard.map_or(0, |heard| self.now - heard);
        if silence <= self.least * LEARNED_MAX {
            self.longest[0] = self.longest[0].max(silence);
        }
        self.ticks() != before
    }

    /// Forgets a member that was removed.
    pub fn forget(&mut self, member: MemberId) {
        self.heard.remove(&member);
    }

    /// Ticks of silence after which another member may be dead.
    pub fn ticks(&self) -> usize {
        let longest = self.longest[0].max(self.longest[1]);
        let learned = (3 * longest).min(self.least * TICKS_MAX);
        (if 2 * longest > self.least { learned } else { self.least }) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: MemberId = MemberId(7);

    fn pass(patience: &mut Patience, ticks: u64, is_expected: bool) {
        for _ in 0..ticks {
            patience.tick(|_| is_expected);
        }
    }

    #[test]
    fn silences_that_end_are_waited_out_the_next_time() {
        let mut patience = Patience::new(12);
        for silence in [2, 3, 6] {
            assert!(!patience.note_heard(OTHER, true));
            pass(&mut patience, silence, true);
        }
        assert!(!patience.note_heard(OTHER, true) && patience.ticks() == 12);
        pass(&mut patience, 20, true);
        assert!(patience.note_heard(OTHER, true));
        assert_eq!(patience.ticks(), 60);
        // It was taken for dead, and another leads.
        pass(&mut patience, 30, true);
        pass(&mut patience, 15, false);
        assert!(patience.note_heard(OTHER, false));
        assert_eq!(patience.ticks(), 120);
        pass(&mut patience, 30, false);
        assert!(!patience.note_heard(OTHER, true), "it was not expected to speak");
        // Another leads before this one was silent for long.
        pass(&mut patience, 5, true);
        pass(&mut patience, 50, false);
        assert!(!patience.note_heard(OTHER, true), "nobody waited for it");
    }

    #[test]
    fn members_that_were_gone_teach_nothing_and_what_was_learned_is_forgotten() {
        let mut patience = Patience::new(12);
        patience.note_heard(OTHER, true);
        pass(&mut patience, 12 * LEARNED_MAX + 1, true);
        assert!(!patience.note_heard(OTHER, true));
        pass(&mut patience, 12 * LEARNED_MAX, true);
        assert!(patience.note_heard(OTHER, true));
        assert_eq!(patience.ticks() as u64, 12 * TICKS_MAX);
        let mut changes = 0;
        for _ in 0..2 * 12 * REMEMBERED {
            changes += u32::from(patience.tick(|_| true));
            patience.note_heard(OTHER, true);
        }
        assert_eq!((patience.ticks(), changes), (12, 1));
    }
}
