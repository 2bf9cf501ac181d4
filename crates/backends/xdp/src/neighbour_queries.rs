//! Requests for neighbours' addresses that are not answered yet, and the times at which they are repeated.

use std::net::IpAddr;

/// Pause before a neighbour that does not answer is asked for again, by the caller's clock. It doubles each time.
const FIRST_PAUSE_NS: u64 = 1_000_000;
const LONGEST_PAUSE_NS: u64 = 1_000_000_000;
/// Turns that replace the first pause where the caller's clock stands still.
const FIRST_TURNS: u32 = 64;
/// Questions after which a neighbour counts as absent: about 3 seconds' worth.
const ATTEMPTS_MAX: u32 = 12;

/// Most neighbours that are asked for at a time. A further one replaces the oldest.
const QUERIES_MAX: usize = 64;

#[derive(Debug)]
struct NeighbourQuery {
    address: IpAddr,
    /// Times that it was asked.
    count: u32,
    asked_ns: u64,
    turns: u32,
}

/// Action that is due for a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueryAction {
    Ask(IpAddr),
    GiveUp(IpAddr),
}

/// The open questions.
#[derive(Debug, Default)]
pub(crate) struct NeighbourQueries(Vec<NeighbourQuery>);

impl NeighbourQuery {
    fn pause_ns(&self) -> u64 {
        (FIRST_PAUSE_NS << (self.count - 1)).min(LONGEST_PAUSE_NS)
    }

    fn is_due(&self, now_ns: u64) -> bool {
        match now_ns.saturating_sub(self.asked_ns) {
            0 => self.turns >= FIRST_TURNS << (self.count - 1),
            passed => passed >= self.pause_ns(),
        }
    }
}

impl NeighbourQueries {
    /// Begins to ask for a neighbour, the first time now, unless it is being asked for; returns whether it began.
    pub fn begin(&mut self, about: IpAddr, now_ns: u64) -> bool {
        let is_new = self.0.iter().all(|question| question.address != about);
        if is_new {
            if self.0.len() == QUERIES_MAX {
                self.0.remove(0);
            }
            self.0.push(NeighbourQuery { address: about, count: 1, asked_ns: now_ns, turns: 0 });
        }
        is_new
    }

    /// Ends the questions for which `is_wanted` is false.
    pub fn retain(&mut self, mut is_wanted: impl FnMut(IpAddr) -> bool) {
        self.0.retain(|question| is_wanted(question.address));
    }

    /// Returns the actions that are due now. A question that is given up has ended.
    pub fn take_due(&mut self, now_ns: u64) -> Vec<QueryAction> {
        let mut due = Vec::new();
        self.0.retain_mut(|question| {
            question.turns += 1;
            if !question.is_due(now_ns) {
                return true;
            }
            if question.count == ATTEMPTS_MAX {
                due.push(QueryAction::GiveUp(question.address));
                return false;
            }
            (question.count, question.asked_ns, question.turns) = (question.count + 1, now_ns, 0);
            due.push(QueryAction::Ask(question.address));
            true
        });
        due
    }

    /// Time until the next question, by the caller's clock.
    pub fn pause_ns(&self, now_ns: u64) -> Option<u64> {
        let left =
            |question: &NeighbourQuery| question.asked_ns.saturating_add(question.pause_ns()).saturating_sub(now_ns);
        self.0.iter().map(left).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn pauses_double_up_to_a_second_and_after_three_a_neighbour_is_given_up() {
        let (mut questions, about) = (NeighbourQueries::default(), "10.0.0.1".parse().unwrap());
        assert!(questions.begin(about, 5 * MS) && !questions.begin(about, 5 * MS));
        assert_eq!(questions.pause_ns(5 * MS), Some(MS));
        let mut asked = Vec::new();
        let given_up = (6..).find(|now| match questions.take_due(now * MS)[..] {
            [] => false,
            [QueryAction::Ask(to)] if to == about => {
                asked.push(now - 5);
                false
            }
            [QueryAction::GiveUp(to)] if to == about => true,
            ref other => panic!("{other:?}"),
        });
        assert_eq!(asked, [1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 2023]);
        assert_eq!(given_up, Some(5 + 3023));
        assert_eq!(questions.pause_ns(0), None);
        assert!(questions.begin(about, 4000 * MS), "another frame begins anew");
    }

    #[test]
    fn turns_count_where_the_clock_stands_still() {
        let (mut questions, about) = (NeighbourQueries::default(), "10.0.0.1".parse().unwrap());
        questions.begin(about, 7);
        let turns: Vec<usize> = (1..=500).filter(|_| !questions.take_due(7).is_empty()).collect();
        assert_eq!(turns, [64, 192, 448]);
    }

    #[test]
    fn no_more_are_open_than_there_is_room_for() {
        let mut questions = NeighbourQueries::default();
        let about = |number: u32| std::net::Ipv4Addr::from(number).into();
        assert!((0..1000).all(|number| questions.begin(about(number), 0)));
        assert_eq!(questions.take_due(MS).len(), QUERIES_MAX);
        assert!(!questions.begin(about(999), MS) && questions.begin(about(0), MS));
    }

    #[test]
    fn a_question_that_was_answered_is_not_asked_again() {
        let (mut questions, about) = (NeighbourQueries::default(), "10.0.0.1".parse().unwrap());
        questions.begin(about, 0);
        questions.retain(|to| to != about);
        assert_eq!(questions.take_due(10 * MS), []);
    }
}
