//! Changes of the members while the cluster serves: one at a time, asked for by a client, carried out by the leader.
//!
//! A new member is first a learner. Once it is up to date, it becomes a voter, and in the same change an older life of
//! the same name is removed; one that did not vote is removed as soon as the learner is added. A leader that is to be
//! removed hands its leadership over first. A life that is a member already, and has moved to another address with its
//! data, only has its address changed.

use sinew_journal::disk::Disk;

use super::clients::WaitingRequests;
use super::engine::Change;
use super::{Member, Receiver, Transport};
use crate::client_wire::{Answer, ClientRequest};
use crate::machine::StateMachine;
use crate::wire::{self, Founding, Hello, MEMBERS_MAX, MemberId, MemberInfo, PeerMessage, Phase};

/// Interval at which a member that is to be added is asked for its id, in ns.
const ASK_NS: u64 = 20_000_000;
/// Time after which a member is not added if another of its name is still heard, in ns. One that has ended is silent
/// for half of that before.
const NAME_TAKEN_NS: u64 = 1_000_000_000;
/// Longest time without a word after which a member may still live, in ns: well below the time in which a change fails.
const HEARD_WITHIN_MAX_NS: u64 = 12_000_000_000;
/// Time after which a change has failed, in ns.
const CHANGE_TIMEOUT_NS: u64 = 30_000_000_000;
/// Entries that a learner may be behind when it becomes a voter.
const LAG_MAX: u64 = 64;

/// Time after which a change counts as done even if too few others have confirmed that they know of it, in ns.
const SPREAD_NS: u64 = 100_000_000;

enum ChangeStep {
    /// Asks the member at an address for its id. If that is a member that `moved` from another address, asks there,
    /// too, so that no life runs twice. It has `moved` since the time at which it was first heard at the new one.
    Asking { address: String, name: String, stays_learner: bool, next_ns: u64, moved: Option<(MemberInfo, u64)> },
    /// Waits until the learner's change is applied.
    Learning { info: MemberInfo, stays_learner: bool },
    /// Waits until the learner is up to date.
    CatchingUp { info: MemberInfo },
    /// Waits until it has heard from a majority of the voters that would remain: otherwise nobody could lead any more.
    Listening { name: String, change: Change, since_ns: u64 },
    /// Waits until the change is applied.
    Changing { change: Change },
    /// Waits until enough members know that the change is committed. If its leader died before, the others would still
    /// need votes of a majority by the old configuration, in which a member that died counts.
    Spreading { index: u64, since_ns: Option<u64> },
    /// Waits until another member leads.
    HandingOver { to: Option<MemberId> },
}

struct MembershipChange {
    request_id: u64,
    end_ns: u64,
    step: ChangeStep,
}

/// The change in progress.
#[derive(Default)]
pub struct MembershipChanges {
    current: Option<MembershipChange>,
}

impl MembershipChanges {
    /// Notes that the change in the entry at `index` was applied.
    pub fn on_applied(&mut self, requests: &mut WaitingRequests, change: &Change, index: u64) {
        let Some(current) = &mut self.current else { return };
        match &current.step {
            ChangeStep::Learning { info, stays_learner } if change.learners.contains(info) => {
                if !*stays_learner {
                    current.step = ChangeStep::CatchingUp { info: info.clone() };
                    return;
                }
            }
            ChangeStep::Changing { change: expected } if expected == change => {
                current.step = ChangeStep::Spreading { index, since_ns: None };
                return;
            }
            _ => return,
        }
        requests.answer(current.request_id, &Answer::Done);
        self.current = None;
    }

    /// Notes that the second step of a change, in the entry at `entry_index`, was applied: the old configuration no
    /// longer counts.
    pub fn on_second_step(&mut self, entry_index: u64) {
        if let Some(MembershipChange { step: ChangeStep::Spreading { index, since_ns }, .. }) = &mut self.current {
            (*index, *since_ns) = (entry_index, None);
        }
    }

    /// Whether no change is in progress.
    pub fn is_idle(&self) -> bool {
        self.current.is_none()
    }

    /// Ends the change as its leader steps down. A hand-over to any member is thereby done, and so is a change that is
    /// committed and only spreading. Any other change is redirected: only the next leader knows, for example, whether
    /// it is the member that a hand-over named.
    pub fn redirect_all(&mut self, requests: &mut WaitingRequests, elsewhere: &Answer<'_>) {
        if let Some(current) = self.current.take() {
            let is_done = matches!(current.step, ChangeStep::HandingOver { to: None } | ChangeStep::Spreading { .. });
            requests.answer(current.request_id, if is_done { &Answer::Done } else { elsewhere });
        }
    }
}

impl<S: StateMachine, D: Disk> Member<S, D> {
    /// Begins a change.
    pub(super) fn begin_membership_change(
        &mut self,
        ask: &ClientRequest<'_>,
        now_ns: u64,
    ) -> Result<u64, Answer<'static>> {
        if self.changes.current.is_some() {
            return Err(Answer::Refused(
                "another change of the members is in progress: try again when it is over".into(),
            ));
        }
        // Between the steps of a change, a life that is leaving still votes, and the engine takes no other change.
        if self.is_between_steps() {
            return Err(Answer::Busy);
        }
        let unknown = |name: &str| Answer::Refused(format!("there is no member {name}; `status` lists them"));
        let step = match ask {
            ClientRequest::Add { name, address, learner } => {
                let info = MemberInfo { id: MemberId(1), name: name.clone(), address: address.clone() };
                if !info.is_valid() {
                    return Err(Answer::Refused("a name has 1 to 64 bytes, an address 1 to 256".into()));
                }
                if *name == self.me.name {
                    return Err(Answer::Refused(format!(
                        "{name} is the name of the leader: to replace that member, `transfer` leadership first"
                    )));
                }
                if self.members.len() + 2 > MEMBERS_MAX {
                    return Err(Answer::Refused(format!(
                        "there are already {} members: remove one first",
                        self.members.len()
                    )));
                }
                let (address, name, stays_learner) = (address.clone(), name.clone(), *learner);
                ChangeStep::Asking { address, name, stays_learner, next_ns: now_ns, moved: None }
            }
            ClientRequest::Promote { name } => {
                let id = self.learner(name).ok_or_else(|| unknown(name))?;
                if *name == self.me.name && id != self.me.id {
                    return Err(Answer::Refused(format!("{name} is also the name of the leader: `transfer` first")));
                }
                if self.node.raft.prs().conf().voters().contains(id.0) {
                    return Err(Answer::Refused(format!("{name} is already a voter")));
                }
                ChangeStep::CatchingUp { info: self.members[&id].clone() }
            }
            ClientRequest::Remove { name } => {
                // All lives of the name go: the one that died, and one that was started in its place.
                let gone: Vec<MemberId> = self.incarnations(name).collect();
                if gone.is_empty() {
                    return self.answer_repeated_removal(name);
                }
                let voters = self.node.raft.prs().conf().voters().ids();
                if voters.iter().all(|voter| gone.contains(&MemberId(voter))) {
                    return Err(Answer::Refused(format!("{name} is the last voter, and cannot be removed")));
                }
                self.check_readiness()?;
                let change = Change { voters: vec![], learners: vec![], removed: gone };
                ChangeStep::Listening { name: name.clone(), change, since_ns: self.listening_since_ns(now_ns) }
            }
            ClientRequest::Transfer { name } => {
                let to = match name {
                    Some(name) => Some(self.voter(name).ok_or_else(|| unknown(name))?),
                    None => None,
                };
                if to == Some(self.me.id) {
                    let request_id = self.requests.defer();
                    self.requests.answer(request_id, &Answer::Done);
                    return Ok(request_id);
                }
                self.transfer_leadership(to)?;
                ChangeStep::HandingOver { to }
            }
            _ => return Err(Answer::Refused("the request was not understood".into())),
        };
        let request_id = self.requests.defer();
        self.changes.current = Some(MembershipChange { request_id, end_ns: now_ns + CHANGE_TIMEOUT_NS, step });
        Ok(request_id)
    }

    /// Time from which on what is heard shows that a member lives: a little later than now, since what it said before
    /// it died may be on its way.
    fn listening_since_ns(&self, now_ns: u64) -> u64 {
        now_ns + self.config.tick_ns
    }

    /// The reason why the voters that would remain after a removal could elect nobody; `None` if a majority of them was
    /// heard since a time.
    fn missing_majority(&self, name: &str, gone: &[MemberId], since_ns: u64) -> Option<String> {
        let voters = self.node.raft.prs().conf().voters().ids();
        let (going, stay): (Vec<_>, Vec<_>) = voters.iter().map(MemberId).partition(|voter| gone.contains(voter));
        let is_heard = |voter: &MemberId| {
            *voter == self.me.id || self.last_heard_ns.get(voter).is_some_and(|heard_ns| *heard_ns > since_ns)
        };
        let (heard, silent): (Vec<_>, Vec<_>) = stay.iter().partition(|voter| is_heard(voter));
        if going.is_empty() || heard.len() > stay.len() / 2 {
            return None;
        }
        let names = silent.into_iter().filter_map(|voter| self.members.get(voter)).map(|member| member.name.as_str());
        Some(format!(
            "without {name} the cluster would lose its majority: of the {} voters that would remain, only {} can be \
             reached; start, replace or remove {} first",
            stay.len(),
            heard.len(),
            Vec::from_iter(names).join(", ")
        ))
    }

    /// Answers a request to remove a name that no member has. It may repeat one that a leader carried out before it
    /// died. Of former members, only those that founded the cluster are known.
    fn answer_repeated_removal(&mut self, name: &str) -> Result<u64, Answer<'static>> {
        let has_founded = |founding: &Founding| founding.members.iter().any(|member| member.name == name);
        if !self.founding.as_ref().is_some_and(has_founded) {
            return Err(Answer::Refused(format!(
                "there is no member {name}: it has been removed, or it never was one; `status` lists the members"
            )));
        }
        // A new leader may not have applied that the name was added again.
        if !self.node.raft.commit_to_current_term() || self.applied < self.node.raft.raft_log.committed {
            return Err(Answer::Busy);
        }
        let request_id = self.requests.defer();
        self.requests.answer(request_id, &Answer::Done);
        Ok(request_id)
    }

    /// Whether the configuration is a joint one: the first step of a change was applied, and not yet the second.
    fn is_between_steps(&self) -> bool {
        !self.node.raft.prs().conf().to_conf_state().voters_outgoing.is_empty()
    }

    /// Members with a name. While a member that died is replaced, there are two.
    fn incarnations(&self, name: &str) -> impl Iterator<Item = MemberId> {
        self.members.values().filter(move |member| member.name == name).map(|member| member.id)
    }

    /// The life of this name that does not vote, or otherwise any of this name.
    fn learner(&self, name: &str) -> Option<MemberId> {
        let voters = self.node.raft.prs().conf().voters();
        self.incarnations(name).find(|id| !voters.contains(id.0)).or_else(|| self.incarnations(name).next())
    }

    /// The life of this name that votes, or otherwise any of this name.
    fn voter(&self, name: &str) -> Option<MemberId> {
        let voters = self.node.raft.prs().conf().voters();
        self.incarnations(name).find(|id| voters.contains(id.0)).or_else(|| self.incarnations(name).next())
    }

    /// Whether enough others know that the entry at `index` is committed: any majority without this member then
    /// includes one of them.
    fn is_known_to_majority(&self, index: u64) -> bool {
        let raft = &self.node.raft;
        let voters = raft.prs().conf().voters();
        let knows = |(id, progress): &(&u64, &raft::Progress)| {
            **id != self.me.id.0 && voters.contains(**id) && progress.committed_index >= index
        };
        raft.prs().iter().filter(knows).count() >= voters.ids().iter().count() / 2
    }

    /// Hands leadership over to a member, or to the voter that is least behind. Returns the receiver.
    ///
    /// # Errors
    ///
    /// The answer for the client that asked.
    pub(super) fn transfer_leadership(&mut self, to: Option<MemberId>) -> Result<MemberId, Answer<'static>> {
        let raft = &self.node.raft;
        // Without those that are leaving.
        let voters = raft.prs().conf().to_conf_state().voters;
        let candidates = raft.prs().iter().filter(|(id, _)| **id != self.me.id.0 && voters.contains(id));
        let best = match to {
            Some(to) => candidates.map(|(id, _)| MemberId(*id)).find(|id| *id == to),
            None => {
                let heard_ns = |id: &u64| self.last_heard_ns.get(&MemberId(*id)).copied();
                let best = candidates.max_by_key(|(id, progress)| (progress.matched, heard_ns(id), **id));
                best.map(|(id, _)| MemberId(*id))
            }
        };
        let Some(best) = best else {
            return Err(Answer::Refused("there is no other member that could lead: a leader must be a voter".into()));
        };
        // A member that is told to campaign need not wait for a lease to end.
        self.reads.forbid_lease(self.node.raft.term);
        self.node.transfer_leader(best.0);
        Ok(best)
    }

    /// Hands leadership over before a planned stop. Returns whether there is anything to wait for.
    pub fn begin_stop(&mut self) -> bool {
        self.is_leader() && self.transfer_leadership(None).is_ok()
    }

    fn propose_change(&mut self, change: &Change) -> Result<(), Answer<'static>> {
        let mut context = Vec::new();
        wire::encode(change, &mut context);
        if !self.has_room(1, context.len()) {
            return Err(Answer::DiskFull);
        }
        self.check_readiness()?;
        self.node.propose_conf_change(context, change.to_engine()).map_err(|_| Answer::Busy)
    }

    /// Checks that no other change is in the log. The engine would put an empty entry in the place of this one. A new
    /// leader completes its predecessor's change once it has committed an entry of its own term.
    fn check_readiness(&self) -> Result<(), Answer<'static>> {
        let raft = &self.node.raft;
        let is_ready = !raft.has_pending_conf() && raft.commit_to_current_term() && !self.is_between_steps();
        if is_ready { Ok(()) } else { Err(Answer::Busy) }
    }

    /// Checks whether the change in progress has reached its next step, or has failed.
    pub(super) fn continue_membership_change(&mut self, now_ns: u64, transport: &mut impl Transport) {
        let Some(mut current) = self.changes.current.take() else { return };
        if now_ns >= current.end_ns {
            let timeout_reason = match &current.step {
                ChangeStep::Asking { address, name, .. } => {
                    format!("no member answers at {address}: start {name} there, with the same --peers")
                }
                ChangeStep::CatchingUp { info } => format!("{} does not catch up", info.name),
                ChangeStep::Spreading { .. } => return self.requests.answer(current.request_id, &Answer::Done),
                _ => "no majority agreed in time".to_owned(),
            };
            return self.requests.answer(current.request_id, &Answer::Refused(timeout_reason));
        }
        match &mut current.step {
            ChangeStep::Asking { address, next_ns, moved, .. } if now_ns >= *next_ns => {
                *next_ns = now_ns + ASK_NS;
                let from = moved.as_ref().map(|(known, _)| &known.address);
                for address in [&*address].into_iter().chain(from) {
                    transport.send(Receiver::Address(address), &PeerMessage::Hello(self.hello(None)));
                }
            }
            ChangeStep::CatchingUp { info } => {
                let matched = self.node.raft.prs().get(info.id.0).map_or(0, |progress| progress.matched);
                let is_near = matched > 0 && matched + LAG_MAX >= self.node.raft.raft_log.committed;
                // It may have died since: a dead voter would weaken the majority.
                if is_near && self.is_heard(info.id, now_ns) {
                    let of_name = self.members.values().filter(|member| member.name == info.name);
                    let gone = of_name.map(|member| member.id).filter(|id| *id != info.id).collect();
                    let change = Change { voters: vec![info.clone()], learners: vec![], removed: gone };
                    // While another change is in progress this fails, and is repeated at the next tick.
                    if self.propose_change(&change).is_ok() {
                        current.step = ChangeStep::Changing { change };
                    }
                }
            }
            ChangeStep::Listening { name, change, since_ns } => {
                // What others said while it was away may still wait for it.
                *since_ns = self.listening_since_ns(self.present_since_ns).max(*since_ns);
                match self.missing_majority(name, &change.removed, *since_ns) {
                    None if change.removed.contains(&self.me.id) => {
                        // The next leader removes it, when the client asks there.
                        let answer = self.transfer_leadership(None).err().unwrap_or(Answer::Busy);
                        return self.requests.answer(current.request_id, &answer);
                    }
                    None => match self.propose_change(change) {
                        Ok(()) => {
                            let change = std::mem::take(change);
                            current.step = ChangeStep::Changing { change };
                        }
                        // It is tried again once the change in progress is over.
                        Err(Answer::Busy) => {}
                        Err(answer) => return self.requests.answer(current.request_id, &answer),
                    },
                    Some(why) if now_ns >= *since_ns + self.heard_within_ns() => {
                        return self.requests.answer(current.request_id, &Answer::Refused(why));
                    }
                    Some(_) => {}
                }
            }
            ChangeStep::Spreading { index, since_ns } => {
                let since_ns = *since_ns.get_or_insert(now_ns);
                // A change that replaces a member has two steps, between which both configurations have to agree.
                if !self.is_between_steps() && (self.is_known_to_majority(*index) || now_ns - since_ns >= SPREAD_NS) {
                    return self.requests.answer(current.request_id, &Answer::Done);
                }
            }
            ChangeStep::HandingOver { .. } if self.node.raft.lead_transferee.is_none() && self.is_leader() => {
                let what = "leadership was not handed over in time: the member is too far behind, or does not answer";
                return self.requests.answer(current.request_id, &Answer::Refused(what.to_owned()));
            }
            _ => {}
        }
        self.changes.current = Some(current);
    }

    /// Time within which a member that lives is heard, in ns: half of [`NAME_TAKEN_NS`], or longer where heartbeats are
    /// rare.
    fn heard_within_ns(&self) -> u64 {
        let heartbeat_ns = self.config.tick_ns.saturating_mul(self.config.heartbeat_ticks as u64);
        heartbeat_ns.saturating_mul(2).clamp(NAME_TAKEN_NS / 2, HEARD_WITHIN_MAX_NS)
    }

    pub(super) fn is_heard(&self, id: MemberId, now_ns: u64) -> bool {
        let since_ns = now_ns.saturating_sub(self.heard_within_ns());
        self.last_heard_ns.get(&id).is_some_and(|heard_ns| *heard_ns >= since_ns)
    }

    /// A member of this name with another id and another address, and whether it was heard lately, if that is known: a
    /// member that was away has heard nobody. Of several such lives, one that was heard, or else one that may live.
    fn namesake(&self, id: MemberId, name: &str, address: &str, now_ns: u64) -> Option<(&MemberInfo, Option<bool>)> {
        let since_ns = now_ns.saturating_sub(self.heard_within_ns());
        let is_known = !self.was_away(now_ns) && self.present_since_ns <= since_ns;
        let others = self.members.values();
        let lives = others.filter(|other| other.id != id && other.name == name && other.address != address);
        let heard = lives.map(|other| {
            let is_heard = self.is_heard(other.id, now_ns);
            (other, (is_heard || is_known).then_some(is_heard))
        });
        heard.max_by_key(|(_, is_heard)| match is_heard {
            Some(true) => 2,
            None => 1,
            Some(false) => 0,
        })
    }

    /// Handles a hello, which may come from the member that is to be added.
    pub(super) fn handle_hello_for_change(&mut self, hello: &Hello, now_ns: u64) {
        // A life that is leaving would be taken for a voter. It is asked again.
        if self.is_between_steps() {
            return;
        }
        let Some(MembershipChange {
            request_id,
            end_ns,
            step: ChangeStep::Asking { address, name, stays_learner, moved, .. },
        }) = &mut self.changes.current
        else {
            return;
        };
        if hello.me.name != *name {
            if hello.me.address == *address {
                let (request_id, other) = (*request_id, &hello.me.name);
                let why = format!("the member at {address} is {other}, not {name}: name it as its --name does");
                self.changes.current = None;
                self.requests.answer(request_id, &Answer::Refused(why));
            }
            return;
        }
        if moved.as_ref().is_some_and(|(known, _)| hello.me.id != known.id) {
            // Another program answers at the former address.
            return;
        }
        let known = self.members.get(&hello.me.id).filter(|known| known.address != *address);
        let is_in_cluster = matches!(hello.phase, Phase::MemberOf(cluster) if Some(cluster) == self.cluster);
        let since_ns = moved.as_ref().map_or(now_ns, |(_, since_ns)| *since_ns);
        *moved = known.filter(|_| is_in_cluster).map(|known| (known.clone(), since_ns));
        let has_moved = moved.is_some();
        let votes = self.node.raft.prs().conf().voters().contains(hello.me.id.0);
        let is_known = self.members.get(&hello.me.id).is_some_and(|known| known.address == *address);
        let (request_id, stays_learner) = (*request_id, *stays_learner);
        let (name, address) = (name.clone(), address.clone());
        let begun_ns = end_ns.saturating_sub(CHANGE_TIMEOUT_NS);
        if votes && is_known && !stays_learner {
            // It was added already, but its client has not heard so and asks again.
            self.changes.current = None;
            return self.requests.answer(request_id, &Answer::Done);
        }
        let refused = match hello.phase {
            Phase::MemberOf(cluster) if Some(cluster) != self.cluster => {
                Some(format!("{name} at {address} belongs to another cluster: start it without that cluster's data"))
            }
            _ if has_moved && hello.me.address != address => Some(format!(
                "{name} says that it is at {0}: stop it there, and start it with {name}={address} in --peers",
                hello.me.address
            )),
            // If it also runs at its former address, that is heard in this time.
            _ if has_moved && now_ns < since_ns + NAME_TAKEN_NS => return,
            _ if votes && (!has_moved || stays_learner) => {
                Some(format!("{name} at {address} is already a member, and a voter"))
            }
            _ => match self.namesake(hello.me.id, &name, &address, now_ns) {
                // The program there may have ended a moment ago.
                Some((other, Some(true))) if now_ns >= begun_ns + 2 * self.heard_within_ns() => Some(format!(
                    "there is a member {name} at {}, which answers: stop or remove it first, or give this one another name",
                    other.address
                )),
                Some((_, is_heard)) if is_heard != Some(false) => return,
                _ => None,
            },
        };
        if let Some(refused) = refused {
            self.changes.current = None;
            return self.requests.answer(request_id, &Answer::Refused(refused));
        }
        let info = MemberInfo { address, ..hello.me.clone() };
        let change = if votes {
            Change { voters: vec![info.clone()], learners: vec![], removed: vec![] }
        } else {
            // An earlier life of the name that does not vote goes at once: it could be promoted in the place of this
            // one.
            let voters = self.node.raft.prs().conf().voters();
            let gone = self.incarnations(&name).filter(|id| *id != info.id && !voters.contains(id.0)).collect();
            Change { voters: vec![], learners: vec![info.clone()], removed: gone }
        };
        if self.propose_change(&change).is_ok()
            && let Some(current) = &mut self.changes.current
        {
            current.step =
                if votes { ChangeStep::Changing { change } } else { ChangeStep::Learning { info, stays_learner } };
        }
    }
}
