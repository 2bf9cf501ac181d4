//! Whether the answers to a replicated store's clients are linearizable.
//!
//! The store numbers its changes and remembers them, so the order in which they took effect is known. Each answer must
//! fit a place in this order that agrees with when its request began and ended, and each change must be somebody's.
//! That takes no search, unlike a history without such numbers. Where a place is left open, the first possible one is
//! the best, since later requests only ask for places behind it.

use std::collections::BTreeMap;

/// A client's request. No two requests store the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Put { key: u64, value: u64 },
    Swap { key: u64, expect: Option<u64>, value: Option<u64> },
    Delete { key: u64 },
    Get { key: u64 },
    All,
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It made the change with this number.
    Changed { revision: u64 },
    /// There was no value to delete.
    Missing,
    /// The key had another value than the one expected.
    Differs { found: Option<u64> },
    /// The key's value after the change with this number.
    Got { revision: u64, value: Option<u64> },
    /// All values after the change with this number.
    GotAll { revision: u64, values: BTreeMap<u64, u64> },
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Answered(Answer),
    /// It may have run, or may run at any later time.
    Unknown,
    /// Its client was told that it did not run.
    NotRun,
}

/// A request of a client, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its client, whose earlier requests were over before it began.
    pub client: u64,
    pub request: Request,
    pub begin_ns: u64,
    /// When it was answered; `u64::MAX` if it was not.
    pub end_ns: u64,
    pub outcome: Outcome,
}

/// A change of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: u64,
    /// The new value; `None` if the key was deleted.
    pub value: Option<u64>,
}

/// The store's changes, in order. The first has the revision 1.
struct Changes<'a>(&'a [Change]);

impl Changes<'_> {
    fn last(&self) -> u64 {
        self.0.len() as u64
    }

    fn get(&self, revision: u64) -> Option<Change> {
        self.0.get(revision.checked_sub(1)? as usize).copied()
    }

    /// A key's value after a change.
    fn value_at(&self, key: u64, revision: u64) -> Option<u64> {
        let until = &self.0[..revision as usize];
        until.iter().rev().find(|change| change.key == key).and_then(|change| change.value)
    }

    fn all_at(&self, revision: u64) -> BTreeMap<u64, u64> {
        let keys = self.0[..revision as usize].iter().map(|change| change.key);
        keys.filter_map(|key| Some((key, self.value_at(key, revision)?))).collect()
    }

    /// Whether a request makes the change with this number, if it runs there.
    fn is_made_by(&self, request: Request, revision: u64) -> bool {
        let change = self.get(revision);
        match request {
            Request::Put { key, value } => change == Some(Change { key, value: Some(value) }),
            Request::Swap { key, expect, value } => {
                change == Some(Change { key, value }) && self.value_at(key, revision - 1) == expect
            }
            Request::Delete { key } => {
                change == Some(Change { key, value: None }) && self.value_at(key, revision - 1).is_some()
            }
            Request::Get { .. } | Request::All => false,
        }
    }

    /// The first place from `least` on at which a request is answered like this.
    fn place(&self, request: Request, answer: &Answer, least: u64) -> Option<u64> {
        let is_within = |revision: &u64| (least..=self.last()).contains(revision);
        match (answer, request) {
            // A change is made before the state that it leaves.
            (Answer::Changed { revision }, _) => {
                Some(*revision).filter(|revision| *revision > least && self.is_made_by(request, *revision))
            }
            (Answer::Missing, Request::Delete { key }) => {
                (least..=self.last()).find(|revision| self.value_at(key, *revision).is_none())
            }
            (Answer::Differs { found }, Request::Swap { key, expect, .. }) if *found != expect => {
                (least..=self.last()).find(|revision| self.value_at(key, *revision) == *found)
            }
            (Answer::Got { revision, value }, Request::Get { key }) => {
                Some(*revision).filter(is_within).filter(|revision| self.value_at(key, *revision) == *value)
            }
            (Answer::GotAll { revision, values }, Request::All) => {
                Some(*revision).filter(is_within).filter(|revision| self.all_at(*revision) == *values)
            }
            _ => None,
        }
    }
}

/// Checks that a store which made these changes could have given these answers.
///
/// # Errors
///
/// The answer, or the change, that does not fit.
pub fn check(changes: &[Change], operations: &[Operation]) -> Result<(), String> {
    let changes = Changes(changes);
    let mut by_end: Vec<&Operation> = operations.iter().collect();
    by_end.sort_by_key(|operation| operation.end_ns);
    // Requests that were answered, with their places.
    let mut placed: Vec<(&Operation, u64)> = Vec::new();
    // The least place of a request. Requests of two clients overlap if one begins as the other ends.
    let least = |placed: &[(&Operation, u64)], later: &Operation| {
        let is_before = |earlier: &Operation| {
            earlier.end_ns < later.begin_ns || earlier.client == later.client && earlier.end_ns == later.begin_ns
        };
        placed.iter().filter(|(earlier, _)| is_before(earlier)).map(|(_, place)| *place).max().unwrap_or(0)
    };
    let mut makers = vec![0; changes.0.len()];
    for operation in by_end {
        let Outcome::Answered(answer) = &operation.outcome else { continue };
        let least = least(&placed, operation);
        let Some(place) = changes.place(operation.request, answer, least) else {
            return Err(format!("no order of requests explains {operation:?}, which began after change {least}"));
        };
        if matches!(answer, Answer::Changed { .. }) {
            makers[place as usize - 1] += 1;
        }
        placed.push((operation, place));
    }
    if let Some(index) = makers.iter().position(|makers| *makers > 1) {
        return Err(format!("two requests made change {}: {:?}", index + 1, changes.0[index]));
    }
    let is_unknown = |operation: &&Operation| operation.outcome == Outcome::Unknown;
    let mut unknown: Vec<&Operation> = operations.iter().filter(is_unknown).collect();
    // Of several that may have made a change, the first can have made the least of later ones: no value comes back, so
    // a swap fits one change, and a deletion all later ones of its key.
    unknown.sort_by_key(|operation| matches!(operation.request, Request::Delete { .. }));
    for revision in (1..=changes.last()).filter(|revision| makers[*revision as usize - 1] == 0) {
        let may_make = |operation: &&Operation| {
            changes.is_made_by(operation.request, revision) && least(&placed, operation) < revision
        };
        let Some(maker) = unknown.iter().position(may_make) else {
            return Err(format!("no request can have made change {revision}: {:?}", changes.get(revision)));
        };
        unknown.remove(maker);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    const KEY: u64 = 1;

    fn operation(request: Request, [begin_ns, end_ns]: [u64; 2], answer: Answer) -> Operation {
        Operation { client: begin_ns, request, begin_ns, end_ns, outcome: Outcome::Answered(answer) }
    }

    fn put(value: u64, times: [u64; 2], revision: u64) -> Operation {
        operation(Request::Put { key: KEY, value }, times, Answer::Changed { revision })
    }

    fn get(value: Option<u64>, times: [u64; 2], revision: u64) -> Operation {
        operation(Request::Get { key: KEY }, times, Answer::Got { revision, value })
    }

    fn open(request: Request, begin_ns: u64) -> Operation {
        Operation { client: begin_ns, request, begin_ns, end_ns: u64::MAX, outcome: Outcome::Unknown }
    }

    /// Whether the store may have set the key to these values, one after the other, with these answers.
    fn is_right(values: &[Option<u64>], operations: &[Operation]) -> bool {
        let changes: Vec<Change> = values.iter().map(|value| Change { key: KEY, value: *value }).collect();
        check(&changes, operations).is_ok()
    }

    #[test]
    fn reads_see_what_was_stored_before_they_began_and_nothing_that_is_gone() {
        let puts = [put(5, [0, 10], 1), put(6, [20, 30], 2)];
        let with = |more: &[Operation]| is_right(&[Some(5), Some(6)], &[&puts[..], more].concat());
        assert!(with(&[get(Some(6), [40, 50], 2)]));
        assert!(with(&[get(Some(5), [25, 50], 1)]), "it began before the second put ended");
        assert!(!with(&[get(Some(5), [40, 50], 1)]), "stale");
        assert!(!with(&[get(Some(5), [40, 50], 2)]), "not what was there");
        assert!(!with(&[get(Some(6), [5, 15], 2)]), "before the put began");
        assert!(!with(&[get(Some(6), [21, 23], 2), get(Some(5), [24, 26], 1)]), "seen, and then unseen");
        assert!(!with(&[get(Some(7), [40, 50], 3)]), "from nowhere");
    }

    #[test]
    fn each_change_is_made_once_by_a_request_that_had_begun() {
        assert!(is_right(&[Some(5)], &[put(5, [0, 10], 1)]));
        assert!(!is_right(&[], &[put(5, [0, 10], 1)]), "lost");
        assert!(!is_right(&[Some(5), Some(5)], &[put(5, [0, 10], 1)]), "it ran twice");
        assert!(!is_right(&[Some(5), Some(6)], &[put(6, [0, 10], 2), put(5, [20, 30], 1)]), "in the wrong order");
        let unknown = open(Request::Put { key: KEY, value: 6 }, 40);
        assert!(is_right(&[Some(5)], &[put(5, [0, 10], 1), unknown.clone()]));
        assert!(is_right(&[Some(5), Some(6)], &[put(5, [0, 10], 1), unknown.clone()]));
        assert!(!is_right(&[Some(6), Some(5)], &[put(5, [0, 10], 2), unknown.clone()]), "before it began");
        let not_run = Operation { outcome: Outcome::NotRun, ..unknown };
        assert!(!is_right(&[Some(5), Some(6)], &[put(5, [0, 10], 1), not_run]), "its client was told otherwise");
    }

    #[test]
    fn swaps_succeed_where_the_value_is_the_expected_one_and_fail_where_it_is_not() {
        let swap = |expect, value| Request::Swap { key: KEY, expect, value };
        let done = |expect, value, revision| operation(swap(expect, value), [20, 30], Answer::Changed { revision });
        let failed = |expect, found| operation(swap(expect, Some(9)), [20, 30], Answer::Differs { found });
        let first = put(5, [0, 10], 1);
        let with = |values: &[Option<u64>], swap: Operation| is_right(values, &[first.clone(), swap]);
        assert!(with(&[Some(5), Some(6)], done(Some(5), Some(6), 2)));
        assert!(!with(&[Some(5), Some(6)], done(Some(4), Some(6), 2)));
        assert!(with(&[Some(5), None], done(Some(5), None, 2)));
        assert!(with(&[Some(5)], failed(Some(4), Some(5))));
        assert!(!with(&[Some(5)], failed(Some(5), Some(5))), "it was as expected");
        assert!(!with(&[Some(5)], failed(Some(4), None)), "there was a value before it began");
        // Two that are open, of which one took the value away.
        let taken = [open(swap(Some(5), None), 15), open(swap(Some(5), None), 5)];
        let later = get(None, [20, 30], 2);
        assert!(is_right(&[Some(5), None], &[&[first.clone(), later.clone()], &taken[..]].concat()));
        assert!(!is_right(&[Some(5), None], &[first.clone(), later, open(swap(Some(4), None), 5)]));
    }

    #[test]
    fn a_client_makes_one_request_after_the_other_even_in_one_moment() {
        let put = Operation { client: 7, ..put(5, [0, 10], 1) };
        let stale = |client| is_right(&[Some(5)], &[put.clone(), Operation { client, ..get(None, [10, 20], 0) }]);
        assert!(stale(8) && !stale(7));
    }

    #[test]
    fn deletions_find_a_value_or_none() {
        let (first, delete) = (put(5, [0, 10], 1), Request::Delete { key: KEY });
        let with =
            |values: &[Option<u64>], more: &[Operation]| is_right(values, &[slice::from_ref(&first), more].concat());
        let done = operation(delete, [20, 30], Answer::Changed { revision: 2 });
        assert!(with(&[Some(5), None], slice::from_ref(&done)));
        assert!(!with(&[Some(5), None, None], &[done, operation(delete, [40, 50], Answer::Changed { revision: 3 })]));
        let missing = |times| operation(delete, times, Answer::Missing);
        assert!(with(&[Some(5)], &[missing([5, 30])]), "it began before the value was there for sure");
        assert!(!with(&[Some(5)], &[missing([20, 30])]));
        // The swap can have taken only the first value away, so the deletion took the second.
        let open = [open(delete, 15), open(Request::Swap { key: KEY, expect: Some(5), value: None }, 16)];
        let second = put(6, [60, 70], 3);
        assert!(with(&[Some(5), None, Some(6), None], &[&[second], &open[..]].concat()));
    }

    #[test]
    fn a_failed_swap_has_a_place_before_what_began_later() {
        // The key is absent only at the beginning, and a read saw the value before the swap began.
        let swap = Request::Swap { key: KEY, expect: Some(9), value: Some(8) };
        let failed = |times| operation(swap, times, Answer::Differs { found: None });
        let history = |times| is_right(&[Some(5)], &[put(5, [0, 30], 1), get(Some(5), [5, 10], 1), failed(times)]);
        assert!(history([8, 20]));
        assert!(!history([11, 20]));
    }

    #[test]
    fn a_range_is_of_one_moment() {
        let changes = [Change { key: 1, value: Some(5) }, Change { key: 2, value: Some(6) }];
        let all = |revision, values: &[(u64, u64)]| {
            let values = values.iter().copied().collect();
            let range = operation(Request::All, [0, 100], Answer::GotAll { revision, values });
            let put =
                |key, value, revision| operation(Request::Put { key, value }, [0, 100], Answer::Changed { revision });
            check(&changes, &[put(1, 5, 1), put(2, 6, 2), range]).is_ok()
        };
        assert!(all(0, &[]) && all(1, &[(1, 5)]) && all(2, &[(1, 5), (2, 6)]));
        assert!(!all(2, &[(2, 6)]) && !all(1, &[(1, 5), (2, 6)]) && !all(3, &[(1, 5), (2, 6)]));
    }
}
