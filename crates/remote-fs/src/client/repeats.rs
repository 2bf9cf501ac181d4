//! Messages of which only the first of many is logged, with the number of the others.

use std::collections::HashMap;

/// Time in which a message is logged once, in ns.
const PERIOD_NS: u64 = 10_000_000_000;
/// Messages that are told apart at a time. Beyond that, all are logged.
const SUBJECTS_MAX: usize = 1024;

/// What messages are about. Those about the same are repetitions, even if their texts differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Subject {
    /// A donor that cannot be written, of a segment.
    Writes { segment: u32, donor: u64 },
    /// A donor with wrong pages, of a segment.
    WrongBytes { segment: u32, donor: u64 },
    /// A segment that cannot be read.
    Reads { segment: u32 },
}

struct Repeated {
    until_ns: u64,
    /// Messages since the one that was logged, and the last of them.
    count: u64,
    last: String,
}

/// The messages of the last period.
#[derive(Default)]
pub(super) struct Repeats(HashMap<Subject, Repeated>);

impl Repeats {
    /// Takes note of a message. Returns whether it is to be logged.
    pub fn note(&mut self, subject: Subject, now_ns: u64, text: &str) -> bool {
        if let Some(known) = self.0.get_mut(&subject) {
            known.count += 1;
            text.clone_into(&mut known.last);
            return false;
        }
        if self.0.len() < SUBJECTS_MAX {
            let until_ns = now_ns.saturating_add(PERIOD_NS);
            self.0.insert(subject, Repeated { until_ns, count: 0, last: String::new() });
        }
        true
    }

    /// What is to be logged of the messages whose period is over. Where there were further ones, another begins.
    pub fn due(&mut self, now_ns: u64) -> Vec<String> {
        let mut due = Vec::new();
        self.0.retain(|subject, known| {
            if known.until_ns > now_ns {
                return true;
            }
            if known.count == 0 {
                return false;
            }
            let seconds = PERIOD_NS / 1_000_000_000;
            due.push((*subject, format!("{} (message {} of its kind in {seconds} s)", known.last, known.count + 1)));
            (known.count, known.until_ns) = (0, now_ns.saturating_add(PERIOD_NS));
            true
        });
        due.sort();
        due.into_iter().map(|(_, text)| text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_is_logged_once_a_period_with_its_count() {
        let mut repeats = Repeats::default();
        let one = Subject::Writes { segment: 1, donor: 7 };
        assert!(repeats.note(one, 0, "a"));
        assert!(repeats.note(Subject::Reads { segment: 1 }, 0, "other"));
        (1..150).for_each(|at| assert!(!repeats.note(one, at, &format!("a {at}"))));
        assert!(repeats.due(PERIOD_NS - 1).is_empty());
        assert_eq!(repeats.due(PERIOD_NS), ["a 149 (message 150 of its kind in 10 s)"]);
        assert!(!repeats.note(one, PERIOD_NS, "b"), "it goes on");
        assert_eq!(repeats.due(2 * PERIOD_NS), ["b (message 2 of its kind in 10 s)"]);
        assert!(repeats.due(3 * PERIOD_NS).is_empty());
        assert!(repeats.note(one, 3 * PERIOD_NS, "c"), "it is new again");
    }

    #[test]
    fn beyond_its_bound_all_is_logged() {
        let mut repeats = Repeats::default();
        for segment in 0..SUBJECTS_MAX as u32 + 5 {
            assert!(repeats.note(Subject::Reads { segment }, 0, "x"));
        }
        assert!(repeats.note(Subject::Reads { segment: SUBJECTS_MAX as u32 + 1 }, 0, "x"));
        assert!(!repeats.note(Subject::Reads { segment: 1 }, 0, "x"));
    }
}
