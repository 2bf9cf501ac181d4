//! Rules by which members may be lost: a cluster that has lost a majority of its voters for ever answers nobody, so no
//! run may let that happen.
//!
//! Votes are counted by what each member has applied, so a majority must be left as each voter sees it, and also once
//! the change is made that an operator has asked for.

use std::collections::BTreeSet;

use sinew_replica::client_wire::{ClientRequest, Status};
use sinew_replica::wire::MemberId;

use crate::operator::Desk;
use crate::sim::{MS, Sim};

/// Time after a change's answer in which no member is lost. A repeat of the change may still be on its way.
const QUIET_NS: u64 = 50 * MS;

/// The members as the leader sees them, when nothing is undecided.
pub struct Members {
    status: Status,
}

impl Members {
    /// They are certain if the leader has applied all that it has: then its log has no further change, and that of any
    /// later leader begins with the same entries.
    pub fn of(sim: &Sim) -> Option<Self> {
        let leader = sim.leader()?;
        let status = sim.look_at(leader)?;
        (status.last == status.applied).then_some(Self { status })
    }

    pub fn has(&self, id: MemberId) -> bool {
        self.status.members.iter().any(|member| member.info.id == id)
    }

    pub fn votes(&self, id: MemberId) -> bool {
        self.status.members.iter().any(|member| member.info.id == id && member.standing.votes())
    }

    pub fn voters(&self) -> usize {
        self.status.members.iter().filter(|member| member.standing.votes()).count()
    }

    /// Names of members that are on no host (any more).
    pub fn names_of_the_lost(&self, sim: &Sim) -> Vec<String> {
        let is_lost = |id: MemberId| sim.nodes.iter().all(|node| node.id != Some(id));
        let lost = self.status.members.iter().filter(|member| is_lost(member.info.id));
        lost.map(|member| member.info.name.clone()).collect()
    }

    /// Whether a member may lose all that it has, while an operator has this on the desk.
    pub fn may_lose(&self, sim: &Sim, at: usize, desk: &Desk) -> bool {
        let Some(lost) = sim.nodes[at].id else { return true };
        if desk.request.is_none() && sim.cluster.network().now_ns() < desk.ended_ns + QUIET_NS {
            return false;
        }
        for (at, node) in sim.nodes.iter().enumerate() {
            if !node.id.is_some_and(|id| self.votes(id)) {
                continue;
            }
            // Nobody knows what a member that is down has applied, or what else is in the log of one of a later term.
            // One that is behind may be amid the two steps of a change, between which it takes two majorities.
            let view =
                sim.look_at(at).filter(|view| view.term <= self.status.term && view.applied == self.status.applied);
            if !view.is_some_and(|view| leaves_majority(sim, &view, desk, Some(lost))) {
                return false;
            }
        }
        leaves_majority(sim, &self.status, desk, Some(lost))
    }

    /// Whether an operator may ask for a change.
    pub fn may_order(&self, sim: &Sim, request: &ClientRequest<'static>) -> bool {
        let desk = Desk { request: Some(request.clone()), ..Desk::default() };
        leaves_majority(sim, &self.status, &desk, None)
    }
}

/// Whether most of the voters that a member knows are left without one that is lost, before and after the change that
/// an operator has asked for.
fn leaves_majority(sim: &Sim, view: &Status, desk: &Desk, lost: Option<MemberId>) -> bool {
    let voters = view.members.iter().filter(|member| member.standing.votes()).map(|member| member.info.id).collect();
    let after = voters_after(sim, view, &voters, desk);
    let is_left = |id: &&MemberId| Some(**id) != lost && sim.nodes.iter().any(|node| node.id == Some(**id));
    [voters, after].iter().all(|voters| 2 * voters.iter().filter(is_left).count() > voters.len())
}

/// The voters once the change is made that is asked for, of whom as many as possible are lost.
fn voters_after(sim: &Sim, view: &Status, voters: &BTreeSet<MemberId>, desk: &Desk) -> BTreeSet<MemberId> {
    let (name, is_removed) = match &desk.request {
        Some(ClientRequest::Add { name, .. } | ClientRequest::Promote { name }) => (name, false),
        Some(ClientRequest::Remove { name }) => (name, true),
        _ => return voters.clone(),
    };
    let mut after = voters.clone();
    view.members.iter().filter(|member| member.info.name == *name).for_each(|member| _ = after.remove(&member.info.id));
    // One life of the name gets the vote: that of the member there, or one that was lost after it had said hello.
    let here = sim.nodes.iter().find(|node| node.name == *name).and_then(|node| node.id);
    if let (false, Some(new)) = (is_removed, desk.lost.first().copied().or(here)) {
        after.insert(new);
    }
    after
}
