//! Voters that were started again without their state, and whether that has cost the cluster its majority.
//!
//! A member that has state knows the voters. It tells them to one that has none, which hears from the others whether
//! they have any.

use sinew_journal::disk::Disk;

use super::Member;
use crate::losses::Losses;
use crate::machine::StateMachine;
use crate::wire::{KnownVoters, MemberId, MemberInfo};

/// The members of a configuration.
pub(super) struct Configuration<'a> {
    /// The voters after the change in progress.
    incoming: Vec<&'a MemberInfo>,
    /// The voters before the change in progress; none without one.
    outgoing: Vec<&'a MemberInfo>,
    learners: Vec<&'a MemberInfo>,
}

impl Configuration<'_> {
    /// Whether a voter has this name.
    pub fn has_voter(&self, name: &str) -> bool {
        self.incoming.iter().chain(&self.outgoing).any(|voter| voter.name == name)
    }
}

/// A cluster of which too few voters have their state.
#[derive(Debug, PartialEq, Eq)]
pub struct LostMajority<'a> {
    /// Names of the voters that have lost their state, in order, without this member.
    pub others: Vec<&'a str>,
    /// The member from which the voters are known. If they have changed without it, there may still be a majority.
    pub by: &'a MemberInfo,
}

impl<S: StateMachine, D: Disk> Member<S, D> {
    /// The voters of its own configuration, for a member that has no state. One that is outside does not know them.
    pub(super) fn own_voters(&self) -> Option<KnownVoters> {
        if self.is_outside() {
            return None;
        }
        let Configuration { incoming, outgoing, learners } = self.configuration();
        let [incoming, outgoing, learners] =
            [incoming, outgoing, learners].map(|members| members.into_iter().cloned().collect());
        Some(KnownVoters { applied: self.applied, incoming, outgoing, learners }).filter(KnownVoters::is_valid)
    }

    /// Its configuration.
    fn configuration(&self) -> Configuration<'_> {
        let roles = self.node.raft.prs().conf().to_conf_state();
        let infos = |ids: Vec<u64>| ids.into_iter().filter_map(|id| self.members.get(&MemberId(id))).collect();
        let [incoming, outgoing, learners] = [roles.voters, roles.voters_outgoing, roles.learners].map(infos);
        Configuration { incoming, outgoing, learners }
    }

    /// The configuration, and the member from which it is known: this one, or a peer if this one has no state.
    pub(super) fn known_configuration(&self, now_ns: u64) -> Option<(Configuration<'_>, &MemberInfo)> {
        if !self.is_outside() {
            return Some((self.configuration(), &self.me));
        }
        let (by, known) = self.founding_state.best_known(now_ns).filter(|_| self.applied == 0)?;
        let [incoming, outgoing, learners] =
            [&known.incoming, &known.outgoing, &known.learners].map(|members| members.iter().collect());
        Some((Configuration { incoming, outgoing, learners }, by))
    }

    /// Whether too many voters were started again without their state for the others to be a majority, as far as this
    /// member knows. No member can lead then, or be added.
    pub fn lost_majority(&self, now_ns: u64) -> Option<LostMajority<'_>> {
        let (Configuration { incoming, outgoing, learners }, by) = self.known_configuration(now_ns)?;
        let newcomers = self.founding_state.newcomers.values().filter(|newcomer| newcomer.is_fresh(now_ns));
        let me = Some(&self.me).filter(|_| self.applied == 0);
        let others = learners.into_iter().chain(newcomers.map(|newcomer| &newcomer.info)).chain(me);
        let is_alive = |id| {
            let is_me = id == self.me.id && self.applied > 0;
            is_me || self.is_heard(id, now_ns) || self.founding_state.is_told_by(id, now_ns)
        };
        let Losses { names, is_final } = Losses::of(&incoming, &outgoing, &Vec::from_iter(others), is_alive);
        let others = names.into_iter().filter(|name| *name != self.me.name).collect();
        is_final.then_some(LostMajority { others, by })
    }
}
