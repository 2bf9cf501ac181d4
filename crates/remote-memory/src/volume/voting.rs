//! Voting: failed donors are removed from the record, which a majority of the voters keeps.

use super::core::{Lanes, PendingCall, Round, Volume, lane_bit};
use super::donors::{CallFailed, Donors};
use super::record::{DonorId, Record, Voter};
use crate::donor::{Answer, Call, Refusal};
use crate::store::{Status, StoreError};

/// Whether these lanes reach a majority of the voters.
pub(super) fn is_majority(voters: &[Voter], ids: &[DonorId], lanes: Lanes) -> bool {
    let is_in =
        |voter: &&Voter| ids.iter().position(|id| *id == voter.donor).is_some_and(|lane| lanes >> lane & 1 == 1);
    voters.iter().filter(is_in).count() * 2 > voters.len()
}

impl<D: Donors> Volume<D> {
    /// Handles the failure of a donor: its copies no longer count, and no change that one of them missed is
    /// acknowledged before the voters know.
    pub(super) fn drop_lane(&mut self, lane: u8, why: String) {
        let state = &mut self.lanes[usize::from(lane)];
        if state.down.is_some() {
            return;
        }
        state.down = Some(why);
        self.stats.donors_lost += 1;
        for segment in &mut self.segments {
            if segment.joining.as_ref().is_some_and(|joining| joining.lane == lane) {
                segment.joining = None;
            }
            let has_others = segment.reached().any(|(other, _)| other != lane);
            if has_others {
                segment.copies.retain(|copy| copy.lane != Some(lane));
            } else {
                // The last copy stays in the record, because it may come back.
                segment.copies.iter_mut().filter(|copy| copy.lane == Some(lane)).for_each(|copy| copy.lane = None);
            }
        }
        self.forget_removed_copies();
        self.change_record();
    }

    /// Trusts no copy that was removed from its segment: a later one at the same donor may lack what that one had. A
    /// page without a copy that is trusted is lost.
    pub(super) fn forget_removed_copies(&mut self) {
        let mut trusted = std::mem::take(&mut self.trusted);
        trusted.iter_mut().for_each(|(page, lanes)| *lanes &= self.named_lanes(self.home_segment(*page).0));
        self.trusted = trusted;
    }

    /// Begins a new record: from now on no run finishes before the voters have it.
    pub(super) fn change_record(&mut self) {
        self.voting.generation += 1;
        let keys: Vec<u32> = self.runs.keys().collect();
        for key in keys {
            if let Some(run) = self.runs.get_mut(key) {
                run.needs = self.voting.generation;
            }
        }
    }

    pub(super) fn record(&self) -> Record {
        Record {
            volume: self.id,
            number: self.number,
            epoch: self.epoch,
            generation: self.voting.generation,
            pages: self.pages,
            slots: self.shape.slots,
            copies: self.copies,
            voters: self.voting.voters.clone(),
            segments: self
                .segments
                .iter()
                .map(|segment| segment.copies.iter().map(|copy| copy.member).collect())
                .collect(),
        }
    }

    pub(super) fn turn_voting(&mut self) {
        self.replace_bad_voter();
        let voting = &self.voting;
        let is_due = voting.durable < voting.generation && voting.round.is_none() && self.now_ns >= voting.retry_at_ns;
        if !is_due || self.ended.is_some() {
            return;
        }
        let record: std::sync::Arc<[u8]> = self.record().to_bytes().into();
        let (generation, number) = (self.voting.generation, self.voting.rounds + 1);
        self.voting.rounds = number;
        let mut round = Round {
            number,
            generation,
            voters: self.voting.voters.clone(),
            acks: 0,
            waiting: 0,
            older: None,
            errors: String::new(),
        };
        let mut voters_asked = self.voting.voters.clone();
        voters_asked.extend(self.voting.durable_voters.iter().filter(|voter| !self.voting.voters.contains(voter)));
        for voter in voters_asked {
            let Some(lane) = self.donors.ids().iter().position(|id| *id == voter.donor) else { continue };
            round.waiting += 1;
            let tag = self.calls.insert(PendingCall::Record { round: number, lane: lane as u8 });
            let call = Call::Record { volume: self.id, epoch: self.epoch, generation, record: record.clone() };
            self.donors.call(lane, u64::from(tag), call);
        }
        self.voting.round = Some(round);
        self.close_round();
    }

    /// Replaces a voter that is gone, wants its memory back, or has forgotten its votes. Takes one step at a time, so
    /// that the majorities before and after a step have a voter in common: first the bad voter is removed, then an even
    /// number of voters gets one more.
    fn replace_bad_voter(&mut self) {
        let voting = &self.voting;
        let is_settled = voting.durable == voting.generation && voting.round.is_none() && self.ended.is_none();
        if !is_settled || !self.config.repairs {
            return;
        }
        let ids = self.donors.ids();
        let stays = |lane: usize| self.repairing.leaving & lane_bit(lane as u8) == 0;
        let is_leaving = |voter: &Voter| ids.iter().position(|id| *id == voter.donor).is_some_and(|lane| !stays(lane));
        let candidate = self.lanes.iter().zip(ids).enumerate().find_map(|(number, (lane, id))| {
            let incarnation = lane.incarnation.filter(|_| lane.down.is_none() && stays(number))?;
            let voter = Voter { donor: *id, incarnation };
            (!voting.voters.contains(&voter)).then_some(voter)
        });
        let Some(candidate) = candidate else { return };
        let bad = voting.voters.iter().position(|voter| !self.is_good_voter(voter) || is_leaving(voter));
        match bad {
            Some(bad) if voting.voters.len() >= 3 && voting.voters.len() % 2 == 1 => {
                self.voting.voters.remove(bad);
            }
            None if voting.voters.len().is_multiple_of(2) => self.voting.voters.push(candidate),
            _ => return,
        }
        self.change_record();
    }

    pub(super) fn count_vote(&mut self, number: u64, lane: u8, result: Result<Answer, CallFailed>) {
        let ids = self.donors.ids();
        let expected = ids.get(usize::from(lane)).and_then(|id| {
            let mut all = self.voting.voters.iter().chain(&self.voting.durable_voters);
            all.find(|voter| voter.donor == *id).map(|voter| voter.incarnation)
        });
        let Some(round) = self.voting.round.as_mut().filter(|round| round.number == number) else { return };
        round.waiting -= 1;
        match result {
            Ok(Answer::Recorded { incarnation }) if Some(incarnation) == expected => round.acks |= lane_bit(lane),
            Ok(_) => round.errors = "a voter has restarted since, and has forgotten its votes".into(),
            Err(CallFailed::Refused(Refusal::OlderEpoch { held })) => round.older = round.older.max(Some(held)),
            Err(error) => round.errors = error.to_string(),
        }
        self.close_round();
    }

    fn close_round(&mut self) {
        let Some(round) = &self.voting.round else { return };
        let ids = self.donors.ids();
        if is_majority(&round.voters, ids, round.acks) && is_majority(&self.voting.durable_voters, ids, round.acks) {
            self.voting.durable = round.generation;
            self.voting.durable_voters.clone_from(&round.voters);
            self.update_confirmation();
            self.voting.round = None;
            self.voting.failing_since_ns = None;
            self.stats.records += 1;
            return self.finish_gated();
        }
        if round.waiting > 0 {
            return;
        }
        if let Some(held) = round.older {
            return self.end(StoreError::Fenced(format!("its epoch is {held}, and this one's {}", self.epoch)));
        }
        let errors = round.errors.clone();
        self.voting.round = None;
        self.voting.retry_at_ns = self.now_ns + self.config.retry_ns;
        let since = *self.voting.failing_since_ns.get_or_insert(self.now_ns);
        if self.now_ns - since >= self.config.vote_timeout_ns {
            self.end(StoreError::NoAnswer(format!(
                "too few of the volume's {} voters answer, so nobody can tell which copies count: {errors}",
                self.voting.voters.len()
            )));
        }
    }

    /// Lists the donors that are not used now, with the reasons.
    pub fn describe_down(&self) -> String {
        let down = self
            .donors
            .ids()
            .iter()
            .zip(&self.lanes)
            .filter_map(|(id, lane)| lane.down.as_ref().map(|why| format!("donor {:016x}: {why}", id.0)));
        down.collect::<Vec<_>>().join("; ")
    }

    pub(super) fn describe(&self) -> Status {
        if let Some(error) = &self.ended {
            return Status::Ended(error.to_string());
        }
        let dead = self.segments.iter().filter(|segment| segment.is_dead()).count();
        if dead > 0 {
            let all = self.segments.len();
            return Status::Damaged(format!(
                "{dead} of {all} segments have no copy that answers: {}",
                self.describe_down()
            ));
        }
        let few = self.segments.iter().filter(|segment| segment.copies.len() < self.copies as usize).count();
        if few > 0 {
            let why = self.describe_down();
            let all = self.segments.len();
            return Status::Degraded(format!("{few} of {all} segments lack copies: {why}"));
        }
        if self.copies < 2 {
            return Status::Degraded("each page has one copy: if a donor dies, its pages are lost".into());
        }
        let (all, good) = (self.voting.durable_voters.len(), self.good_voters());
        if good.saturating_sub(1) * 2 <= all {
            let why = self.describe_down();
            let separator = if why.is_empty() { "" } else { ": " };
            return Status::FewVoters(format!(
                "{good} of {all} voters remain, and if one of them fails, there is no majority; with three donors or more any one may fail{separator}{why}"
            ));
        }
        Status::Whole
    }

    /// Voters of the durable record that can still vote.
    fn good_voters(&self) -> usize {
        self.voting.durable_voters.iter().filter(|voter| self.is_good_voter(voter)).count()
    }

    /// Whether a voter is there and has not forgotten its votes.
    fn is_good_voter(&self, voter: &Voter) -> bool {
        let lane = self.donors.ids().iter().position(|id| *id == voter.donor);
        lane.map(|lane| &self.lanes[lane])
            .is_some_and(|state| state.down.is_none() && state.incarnation == Some(voter.incarnation))
    }
}
