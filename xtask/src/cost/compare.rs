//! Decides when one cost is above another.

use super::measure::Cost;

/// Rise in instructions that is tolerated, as a part of the figure...
const RELATIVE_TOLERANCE: f64 = 0.02;
/// ...and as a number. A rise must exceed both, so that neither a short operation nor a long one fails for a trifle.
const ABSOLUTE_TOLERANCE: f64 = 4.0;
/// Rise in other counts that is tolerated, for what happens less than once in a hundred operations.
const OTHER_TOLERANCE: f64 = 0.01;

fn is_above(instructions: f64, than: f64) -> bool {
    instructions - than > ABSOLUTE_TOLERANCE && instructions - than > RELATIVE_TOLERANCE * than
}

/// Names the counts in which `now` is dearer than `before`.
pub fn dearer(before: &Cost, now: &Cost) -> Vec<String> {
    describe(before, now, |is_above, before, now| is_above(now, before))
}

/// Names the counts in which they differ, whichever is dearer.
pub fn differences(before: &Cost, now: &Cost) -> Vec<String> {
    describe(before, now, |is_above, before, now| is_above(now, before) || is_above(before, now))
}

/// Describes the differences for which `counts` holds.
fn describe(before: &Cost, now: &Cost, counts: impl Fn(fn(f64, f64) -> bool, f64, f64) -> bool) -> Vec<String> {
    let mut descriptions = Vec::new();
    if counts(is_above, before.instructions, now.instructions) {
        descriptions.push(format!("{:.1} instructions, {:.1}", now.instructions, before.instructions));
    }
    for (what, before, now) in [
        ("locked instructions", before.locked, now.locked),
        ("system calls", before.system_calls, now.system_calls),
        ("allocations", before.allocations, now.allocations),
    ] {
        if counts(|more, than| more - than > OTHER_TOLERANCE, before, now) {
            descriptions.push(format!("{now:.3} {what}, {before:.3}"));
        }
    }
    descriptions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(instructions: f64) -> Cost {
        Cost { instructions, ..Cost::default() }
    }

    #[test]
    fn both_limits_must_be_passed() {
        for (before, now, fails) in [
            // Four instructions are more than 2 %, and the limit.
            (100.0, 104.0, false),
            (100.0, 104.1, true),
            // 2 % are more than four instructions, and the limit.
            (1000.0, 1020.0, false),
            (1000.0, 1020.1, true),
            (1000.0, 1004.1, false),
            (0.0, 4.0, false),
            (0.0, 4.1, true),
            (1000.0, 500.0, false),
        ] {
            assert_eq!(!dearer(&cost(before), &cost(now)).is_empty(), fails, "{before} and then {now}");
            assert_eq!(!differences(&cost(before), &cost(now)).is_empty(), fails || now < before / 1.1);
        }
    }

    #[test]
    fn what_became_cheaper_is_a_difference_and_no_failure() {
        for (before, now, differ) in
            [(104.0, 100.0, false), (104.2, 100.0, true), (1020.0, 1000.0, false), (1021.0, 1000.0, true)]
        {
            assert!(dearer(&cost(before), &cost(now)).is_empty());
            assert_eq!(!differences(&cost(before), &cost(now)).is_empty(), differ, "{before} and then {now}");
        }
    }

    #[test]
    fn a_lock_a_system_call_or_an_allocation_more_is_one_too_many() {
        let none = cost(100.0);
        for one in
            [Cost { locked: 0.02, ..none }, Cost { system_calls: 0.02, ..none }, Cost { allocations: 0.02, ..none }]
        {
            assert_eq!(dearer(&none, &one).len(), 1);
            assert!(dearer(&one, &none).is_empty());
            assert_eq!((differences(&none, &one).len(), differences(&one, &none).len()), (1, 1));
        }
        assert!(dearer(&none, &Cost { locked: 0.009, system_calls: 0.009, allocations: 0.009, ..none }).is_empty());
    }
}
