//! Which voters were started again without their state, and whether that has cost a cluster its majority.

use crate::wire::{MemberId, MemberInfo};

/// Voters of a cluster that have lost their state.
#[derive(Debug, PartialEq, Eq)]
pub struct Losses<'a> {
    /// Their names, in order, each once.
    pub names: Vec<&'a str>,
    /// Whether too few voters have their state for any of them to lead: the cluster cannot go on.
    pub is_final: bool,
}

impl<'a> Losses<'a> {
    /// Judges the voters of a configuration by other lives. `incoming` are the voters after the change in progress,
    /// `outgoing` those before it, or none without a change. In a change, each list needs a majority. `others` are
    /// lives that have no state, and learners.
    ///
    /// A voter has lost its state if another life has its name and its address: one that has no state, or a learner or
    /// an incoming voter, which are added only once they answer there. One that runs at another address says nothing
    /// about it. A voter that is alive has its state: it may have been started again where a learner ran meanwhile.
    pub fn of(
        incoming: &[&'a MemberInfo],
        outgoing: &[&'a MemberInfo],
        others: &[&MemberInfo],
        is_alive: impl Fn(MemberId) -> bool,
    ) -> Self {
        let is_lost = |voter: &&&'a MemberInfo| {
            let mut others = others.iter().chain(incoming);
            !is_alive(voter.id)
                && others.any(|life| life.name == voter.name && life.address == voter.address && life.id != voter.id)
        };
        let mut losses = Self { names: Vec::new(), is_final: false };
        for voters in [incoming, outgoing] {
            let before = losses.names.len();
            losses.names.extend(voters.iter().filter(is_lost).map(|voter| voter.name.as_str()));
            let lost = losses.names.len() - before;
            losses.is_final |= lost > 0 && voters.len() - lost <= voters.len() / 2;
        }
        losses.names.sort_unstable();
        losses.names.dedup();
        losses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(name: &str, id: u64) -> MemberInfo {
        MemberInfo { id: MemberId(id), name: name.into(), address: format!("sim://{name}") }
    }

    /// The third of three members is replaced.
    #[test]
    fn a_majority_is_lost_if_the_voters_before_or_after_a_change_have_lost_theirs() {
        let [a, b, earlier, later] = [life("a", 1), life("b", 2), life("c", 3), life("c", 4)];
        let moved = MemberInfo { address: "sim://moved".into(), ..life("b", 9) };
        let (after, before) = ([&a, &b, &later], [&a, &b, &earlier]);
        for (voters, stateless, names, is_final) in [
            // Both of c's lives are lost, but they are one member of three in each list.
            ((&after[..], &before[..]), vec![life("c", 5)], vec!["c"], false),
            // The earlier life of c is lost, too, as the later one runs in its place.
            ((&after, &before), vec![life("b", 5)], vec!["b", "c"], true),
            ((&after, &before), vec![], vec!["c"], false),
            ((&after, &[]), vec![life("b", 5)], vec!["b"], false),
            ((&after, &[]), vec![life("b", 5), life("c", 6)], vec!["b", "c"], true),
            ((&after, &[]), vec![moved, life("c", 6)], vec!["c"], false),
            // The voters after the change have lost their majority, those before it have not.
            ((&[&a, &b], &before), vec![life("b", 5)], vec!["b"], true),
            ((&[], &[]), vec![life("b", 5)], vec![], false),
        ] {
            let losses = Losses::of(voters.0, voters.1, &stateless.iter().collect::<Vec<_>>(), |_| false);
            assert_eq!(losses, Losses { names, is_final }, "{voters:?} {stateless:?}");
        }
    }

    #[test]
    fn a_voter_that_is_alive_has_its_state_whatever_ran_in_its_place() {
        let ([a, b, c], learner, empty) = ([life("a", 1), life("b", 2), life("c", 3)], life("c", 4), life("b", 5));
        for (alive, names) in [(None, vec!["b", "c"]), (Some(3), vec!["b"])] {
            let losses = Losses::of(&[&a, &b, &c], &[], &[&learner, &empty], |id| Some(id.0) == alive);
            assert_eq!(losses, Losses { is_final: names.len() == 2, names });
        }
    }
}
