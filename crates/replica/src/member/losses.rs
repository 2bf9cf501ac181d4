//! Voters that were started again without their state, and whether that has cost the cluster its majority.
//!
//! A member that has state knows the voters. It tells them to one that has none, which hears from the others whether
//! they have any.

use sinew_journal::disk::Disk;

use super::Member;
use crate::machine::StateMachine;
use crate::wire::{KnownVoters, MemberInfo};

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
        let known = KnownVoters { applied: self.applied, voters: self.voters().cloned().collect() };
        Some(known).filter(|known| !self.is_outside() && known.is_valid())
    }

    /// The voters of its configuration; in the midst of a change, those before and after it.
    fn voters(&self) -> impl Iterator<Item = &MemberInfo> {
        let voters = self.node.raft.prs().conf().voters();
        self.members.values().filter(move |member| voters.contains(member.id.0))
    }

    /// The voters, and the member from which they are known: this one, or a peer if this one has no state.
    pub(super) fn known_voters(&self) -> Option<(Vec<&MemberInfo>, &MemberInfo)> {
        if !self.is_outside() {
            return Some((self.voters().collect(), &self.me));
        }
        let refusal = self.founding_state.refusal().filter(|_| self.applied == 0)?;
        Some((refusal.known.as_ref()?.voters.iter().collect(), &refusal.by))
    }

    /// Whether too many voters were started again without their state for the others to be a majority, as far as this
    /// member knows. No member can lead then, or be added.
    pub fn lost_majority(&self, now_ns: u64) -> Option<LostMajority<'_>> {
        let (voters, by) = self.known_voters()?;
        let newcomers = self.founding_state.newcomers.values().filter(|newcomer| newcomer.is_fresh(now_ns));
        let lives = Vec::from_iter(newcomers.map(|newcomer| &newcomer.info).chain([&self.me]));
        // One that was removed, or runs at another address, says nothing about a voter of its name.
        let is_lost = |voter: &&&MemberInfo| {
            lives.iter().any(|life| life.name == voter.name && life.address == voter.address && life.id != voter.id)
        };
        let lost = Vec::from_iter(voters.iter().filter(is_lost).map(|voter| voter.name.as_str()));
        let is_final = !lost.is_empty() && voters.len() - lost.len() <= voters.len() / 2;
        let mut others = Vec::from_iter(lost.into_iter().filter(|name| *name != self.me.name));
        others.sort_unstable();
        is_final.then_some(LostMajority { others, by })
    }
}
