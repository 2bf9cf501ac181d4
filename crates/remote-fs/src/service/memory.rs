//! The donors' memory: fencing, growth by segments, and restoring of missing copies.

mod filling;
mod withdrawal;

use std::collections::{BTreeSet, HashMap};

use sinew_remote_memory::donor::{Answer, Call, LentSlab, Refusal};
use sinew_remote_memory::volume::{CallFailed, DonorId, Donors, Event};

use super::config::{Config, Failure};
use super::growth::{self, Growth};
use super::lanes::{DonorLane, LaneState, Lanes, Withdrawal};
use super::orphans::FormerCopies;
use super::repair::{self, Repair};
use super::retired_clients::RetiredClients;
use super::store::Store;
use crate::disk::Disk;
use crate::durable_state::{Member, Op};
use crate::protocol::{Error, PAGE};
use filling::{Mend, Search};

/// How many times as often a donor is asked for its free memory while it zeroes some.
const STATS_WHILE_ZEROING: u64 = 8;

/// Purpose of a call or transfer whose answer is awaited.
#[derive(Clone, Copy, Debug)]
enum CallPurpose {
    Fence(usize),
    Stat(usize),
    Grow(usize),
    Repair(usize),
    Free(usize),
    Expel(usize, u64),
    Read(usize),
    Write(usize),
}

/// The donors, and the work in progress with them.
pub(super) struct Memory<D> {
    donors: D,
    pub lanes: Lanes,
    config: Config,
    volume: u64,
    epoch: u32,
    purposes: HashMap<u64, CallPurpose>,
    last_tag: u64,
    growth: Option<Growth>,
    growth_again_ns: u64,
    repair: Option<Repair>,
    /// The search for pages of the repair's current step that were wrong where they were read first.
    search: Option<Search>,
    /// Right bytes that are still to be written to copies where they were wrong, before the step is over.
    mends: Vec<Mend>,
    repair_again_ns: u64,
    retired: RetiredClients,
    orphans: FormerCopies,
    failure: Option<Failure>,
    events: Vec<Event>,
    /// Whether the pages that can be reserved may have changed.
    has_changed: bool,
    started_ns: Option<u64>,
    next_periodic_ns: u64,
    now_ns: u64,
    /// Length of a missing copy for which no donor has room.
    pub wanted_slab_len: Option<u64>,
}

impl<D: Donors> Memory<D> {
    /// The memory of these donors, whose addresses are `names` in the order of [`Donors::ids`].
    pub fn new<K: Disk>(donors: D, names: Vec<String>, config: Config, store: &mut Store<K>) -> Self {
        let lanes = Lanes::new(donors.ids().to_vec().into_iter().zip(names));
        let memory = Self {
            donors,
            lanes,
            config,
            volume: store.state.volume,
            epoch: store.state.epoch,
            purposes: HashMap::new(),
            last_tag: 0,
            growth: None,
            growth_again_ns: 0,
            repair: None,
            search: None,
            mends: Vec::new(),
            repair_again_ns: 0,
            retired: RetiredClients::default(),
            orphans: FormerCopies::default(),
            failure: None,
            events: Vec::new(),
            has_changed: true,
            started_ns: None,
            next_periodic_ns: 0,
            now_ns: 0,
            wanted_slab_len: None,
        };
        for (segment, members) in repair::abandoned(store, None) {
            // If the disk is full, this is retried later.
            let _ = store.perform(&Op::Members { segment, members });
        }
        memory
    }

    pub fn donors(&mut self) -> &mut D {
        &mut self.donors
    }

    fn call(&mut self, lane: usize, purpose: CallPurpose, call: Call) {
        self.last_tag += 1;
        self.purposes.insert(self.last_tag, purpose);
        self.donors.call(lane, self.last_tag, call);
    }

    /// Pages that donors could lend in addition to those that they lend now.
    pub fn lendable_pages(&self) -> u64 {
        let lending = self.lanes.0.iter().filter(|lane| lane.is_ready() && !lane.is_withdrawing());
        let free = lending.fold(0, |free: u64, lane| free.saturating_add(lane.free));
        let copies = self.config.copies.min(self.lanes.usable_count()).max(1) as u64;
        free / copies / PAGE as u64
    }

    /// Whether there may be more memory soon.
    pub fn may_grow(&self) -> bool {
        self.growth.is_some()
            || self.lanes.0.iter().any(DonorLane::may_gain_memory)
            || growth::plan(&self.lanes, self.config.copies, self.config.slab_len).is_some()
    }

    /// Whether there may soon be so many more pages.
    pub fn may_grow_by(&self, pages: u64) -> bool {
        let is_known = !self.lanes.0.iter().any(DonorLane::may_gain_memory);
        self.may_grow() && (!is_known || self.growth.is_some() || pages <= self.lendable_pages())
    }

    /// Keeps back the pages of a client that is gone, until no donor admits it any more.
    pub fn retire_client<K: Disk>(&mut self, client: u64, store: &mut Store<K>) {
        let pages = store.space.keep_back(client);
        let may_admit = |lane: &DonorLane| lane.incarnation.is_some() && lane.withdrawal != Withdrawal::Ended;
        let open: BTreeSet<usize> = (0..self.lanes.0.len()).filter(|lane| may_admit(&self.lanes.0[*lane])).collect();
        for lane in &open {
            // A donor that does not answer now is told when it is fenced again.
            if self.lanes.0[*lane].is_ready() {
                self.expel(*lane, client);
            }
        }
        self.retired.add(client, pages, open);
        self.retired.release(&self.lanes, store);
    }

    /// Tells a donor to cut off all clients that it must no longer admit.
    fn expel_again(&mut self, lane: usize) {
        for client in self.clients_to_expel(lane) {
            self.expel(lane, client);
        }
    }

    fn expel(&mut self, lane: usize, client: u64) {
        let (volume, epoch) = (self.volume, self.epoch);
        self.call(lane, CallPurpose::Expel(lane, client), Call::Expel { volume, epoch, client });
    }

    /// Whether clients can know that a donor does not answer: before it is fenced under our epoch, it answers none of
    /// them.
    pub fn may_report_failed(&self, donor: DonorId) -> bool {
        let lane = self.lanes.0.iter().find(|lane| lane.donor == donor);
        lane.is_none_or(|lane| lane.incarnation.is_some() || lane.is_given_up)
    }

    /// Removes a copy that a client cannot reach. Returns whether it was still a copy. If the service cannot reach
    /// another copy now, it stays: the other donors may have restarted and lost theirs.
    pub fn report_failed<K: Disk>(
        &mut self,
        store: &mut Store<K>,
        segment: u32,
        is_failed_copy: impl Fn(&Member) -> bool,
    ) -> Result<bool, Error> {
        let members = store.state.segments.get(&segment).map_or(&[][..], |found| &found.members);
        let is_in = members.iter().any(&is_failed_copy);
        let reaches_other =
            members.iter().any(|member| !is_failed_copy(member) && member.is_whole && self.lanes.reaches(member));
        if is_in && !reaches_other {
            return Err(Error::Lost);
        }
        self.remove_copies(store, segment, is_failed_copy)
    }

    /// Removes copies that cannot be reached. Returns whether there were any.
    fn remove_copies<K: Disk>(
        &mut self,
        store: &mut Store<K>,
        segment: u32,
        is_removed: impl Fn(&Member) -> bool,
    ) -> Result<bool, Error> {
        let count = self.take_out(store, segment, is_removed)?;
        store.stats.lost_copies += count as u64;
        Ok(count > 0)
    }

    /// Takes copies out of a segment, which must have others. Returns their number.
    fn take_out<K: Disk>(
        &mut self,
        store: &mut Store<K>,
        segment: u32,
        is_removed: impl Fn(&Member) -> bool,
    ) -> Result<usize, Error> {
        let found = store.state.segments.get(&segment).ok_or(Error::Invalid)?;
        let (out, rest): (Vec<Member>, Vec<Member>) = found.members.iter().copied().partition(is_removed);
        if out.is_empty() {
            return Ok(0);
        }
        if !rest.iter().any(|member| member.is_whole) {
            return Err(Error::Lost);
        }
        store.perform(&Op::Members { segment, members: rest })?;
        let now_ns = self.now_ns;
        out.iter().for_each(|member| self.orphans.add(segment, *member, &self.lanes, now_ns));
        self.has_changed = true;
        Ok(out.len())
    }

    /// Does the work that is due. `wants_more`: a reservation waits for memory. Returns whether there was anything.
    pub fn turn<K: Disk>(&mut self, store: &mut Store<K>, now_ns: u64, wants_more: bool) -> Result<bool, Failure> {
        self.now_ns = now_ns;
        self.started_ns.get_or_insert(now_ns);
        let mut busy = self.donors.turn();
        let mut events = std::mem::take(&mut self.events);
        self.donors.poll(&mut events);
        busy |= !events.is_empty();
        for event in events.drain(..) {
            match event {
                Event::CallAnswered { tag, result } => self.handle_answer(store, tag, result),
                Event::OpFinished { tag, error, target } => self.on_moved(store, tag, error, target),
            }
        }
        self.events = events;
        self.poll_lanes();
        if self.next_periodic_ns <= now_ns {
            self.next_periodic_ns = now_ns + self.config.stat_interval_ns;
            self.run_periodic(store);
        }
        busy |= self.continue_repair(store);
        self.grow(store, wants_more);
        if std::mem::take(&mut self.has_changed) {
            for (number, segment) in &store.state.segments {
                store.space.set_open(*number, self.lanes.is_usable(segment));
            }
            self.retired.release(&self.lanes, store);
        }
        self.failure.clone().map_or(Ok(busy), Err)
    }

    fn poll_lanes(&mut self) {
        let (volume, epoch, now_ns) = (self.volume, self.epoch, self.now_ns);
        for lane in 0..self.lanes.0.len() {
            let known = &mut self.lanes.0[lane];
            if known.is_ready() && known.expel_again_ns.take_if(|again_ns| *again_ns <= now_ns).is_some() {
                self.expel_again(lane);
            }
            match self.lanes.0[lane].state {
                LaneState::Away { again_ns } if again_ns <= now_ns && !self.is_expelling(lane) => {
                    let known = &mut self.lanes.0[lane];
                    known.state = LaneState::Fencing;
                    known.away_since_ns.get_or_insert(now_ns);
                    self.call(lane, CallPurpose::Fence(lane), Call::Fence { volume, epoch });
                }
                LaneState::Ready if self.lanes.0[lane].next_stat_ns <= now_ns && !self.lanes.0[lane].stat_in_flight => {
                    self.lanes.0[lane].stat_in_flight = true;
                    // A later service that has taken the donor over refuses it.
                    self.call(lane, CallPurpose::Stat(lane), Call::Heartbeat { volume, epoch });
                }
                _ => {}
            }
        }
    }

    /// Whether a donor has not answered all requests to cut off clients. None of these may be overtaken by a fence: a
    /// donor that has restarted would accept it then, and keep out a client that it never had to cut off.
    fn is_expelling(&self, lane: usize) -> bool {
        self.purposes.values().any(|purpose| matches!(purpose, CallPurpose::Expel(of, _) if *of == lane))
    }

    /// Does the periodic work.
    fn run_periodic<K: Disk>(&mut self, store: &mut Store<K>) {
        let donor_timeout_ns = self.config.donor_timeout_ns;
        for index in 0..self.lanes.0.len() {
            let now_ns = self.now_ns;
            let lane = &mut self.lanes.0[index];
            if lane.away_since_ns.is_some_and(|since| now_ns.saturating_sub(since) >= donor_timeout_ns) {
                lane.is_given_up = true;
                let donor = lane.donor.0;
                self.give_up_copies(store, |member, _| member.donor == donor);
            }
        }
        if self.started_ns.is_some_and(|begun| self.now_ns.saturating_sub(begun) >= donor_timeout_ns) {
            self.give_up_copies(store, |member, lanes| lanes.index_of(member).is_none());
        }
        let is_gone = |(number, segment): &(&u32, &crate::durable_state::Segment)| {
            segment.members.is_empty() && store.space.unused(**number) == u64::from(segment.pages)
        };
        let gone: Vec<u32> = store.state.segments.iter().filter(is_gone).map(|(number, _)| *number).collect();
        for segment in gone {
            if store.perform(&Op::Remove { segment }).is_ok() {
                store.space.remove(segment);
            }
        }
        self.continue_withdrawals(store);
        self.make_room(store);
    }

    /// Gives a segment without contents back, if a missing copy has room nowhere else.
    fn make_room<K: Disk>(&mut self, store: &mut Store<K>) {
        let copies = repair::without_room(store, &self.lanes, &self.orphans, self.config.copies);
        let wanted_len = copies.first().map(|copy| copy.len);
        if wanted_len.is_none() && self.wanted_slab_len.is_some() {
            // There is room now: the copy comes before more segments.
            self.repair_again_ns = self.now_ns;
        }
        self.wanted_slab_len = wanted_len;
        let to_give_back = |copy| repair::segment_to_give_back(store, &self.lanes, &self.orphans, copy);
        if let Some(segment) = copies.iter().find_map(to_give_back) {
            self.give_back_segment(store, segment);
        }
    }

    /// Gives a segment without contents back to its donors.
    fn give_back_segment<K: Disk>(&mut self, store: &mut Store<K>, segment: u32) {
        let members = store.state.segments[&segment].members.clone();
        if store.perform(&Op::Remove { segment }).is_err() {
            return;
        }
        store.space.remove(segment);
        self.has_changed = true;
        for member in members.iter().filter(|member| self.lanes.reaches(member)).copied().collect::<Vec<_>>() {
            if let Some(lane) = self.lanes.index_of(&member) {
                self.free(lane, member.slab);
                // The next look tells how much is free.
                self.lanes.0[lane].next_stat_ns = self.now_ns;
            }
        }
    }

    /// Removes copies that cannot be reached, of segments that have another copy within reach.
    fn give_up_copies<K: Disk>(&mut self, store: &mut Store<K>, is_given_up: impl Fn(&Member, &Lanes) -> bool) {
        let hit = |segment: &crate::durable_state::Segment| {
            let (out, rest): (Vec<&Member>, Vec<&Member>) =
                segment.members.iter().partition(|member| is_given_up(member, &self.lanes));
            !out.is_empty() && rest.iter().any(|member| member.is_whole && self.lanes.reaches(member))
        };
        let hit: Vec<u32> =
            store.state.segments.iter().filter(|(_, segment)| hit(segment)).map(|(number, _)| *number).collect();
        for segment in hit {
            let lanes = &self.lanes;
            let out: Vec<Member> =
                store.state.segments[&segment].members.iter().filter(|m| is_given_up(m, lanes)).copied().collect();
            // What cannot be recorded now is retried later.
            let _ = self.remove_copies(store, segment, |member| out.contains(member));
        }
    }

    /// Records that a donor does not answer.
    fn set_away(&mut self, lane: usize, again_ns: u64) {
        let lane = &mut self.lanes.0[lane];
        (lane.state, lane.stat_in_flight, lane.knows_free) = (LaneState::Away { again_ns }, false, false);
        lane.away_since_ns.get_or_insert(self.now_ns);
        self.has_changed = true;
    }

    fn handle_answer<K: Disk>(&mut self, store: &mut Store<K>, tag: u64, result: Result<Answer, CallFailed>) {
        let Some(purpose) = self.purposes.remove(&tag) else { return };
        if let Err(CallFailed::Refused(Refusal::OlderEpoch { held })) = &result
            && let CallPurpose::Fence(lane)
            | CallPurpose::Grow(lane)
            | CallPurpose::Repair(lane)
            | CallPurpose::Expel(lane, _)
            | CallPurpose::Stat(lane) = purpose
            && *held > self.epoch
        {
            self.failure = Some(Failure::TakenOver { donor: self.lanes.0[lane].name.clone(), held: *held });
        }
        // A restarted donor has forgotten us, and everyone who had access: it is fenced again at once. Several calls
        // may be refused for that, and the first refusal suffices.
        let has_restarted = matches!(result, Err(CallFailed::Refused(Refusal::NotFenced { .. })));
        if has_restarted
            && let CallPurpose::Grow(lane) | CallPurpose::Repair(lane) | CallPurpose::Expel(lane, _) = purpose
            && self.lanes.0[lane].is_ready()
        {
            self.set_away(lane, self.now_ns);
        }
        if let CallPurpose::Fence(lane) | CallPurpose::Expel(lane, _) = purpose {
            self.lanes.0[lane].refusal = match &result {
                Err(CallFailed::Refused(why)) if !has_restarted => Some(why.clone()),
                _ => None,
            };
        }
        let again_ns = self.now_ns + self.config.stat_interval_ns / 2;
        let is_unreachable = matches!(result, Err(CallFailed::Unreachable(_)));
        match (purpose, result) {
            (CallPurpose::Fence(lane), Ok(Answer::Fenced { incarnation, slabs, .. })) => {
                self.on_fenced(store, lane, incarnation, &slabs);
            }
            (CallPurpose::Fence(lane), result) => {
                self.lanes.0[lane].away_reason = result.err().map(|why| why.to_string());
                self.set_away(lane, again_ns);
            }
            (CallPurpose::Stat(lane), Ok(Answer::Stat { incarnation, free, zeroing, is_withdrawing, .. })) => {
                let now_ns = self.now_ns;
                let known = &mut self.lanes.0[lane];
                known.stat_in_flight = false;
                known.set_free(free);
                known.zeroing = zeroing;
                // What it zeroes is free soon.
                let pause_ns = self.config.stat_interval_ns / if zeroing > 0 { STATS_WHILE_ZEROING } else { 1 };
                (known.knows_free, known.next_stat_ns) = (true, now_ns + pause_ns);
                if known.incarnation != Some(incarnation) {
                    // It has restarted, and does not know us any more.
                    self.set_away(lane, now_ns);
                } else if is_withdrawing && known.withdrawal == Withdrawal::None {
                    known.withdrawal = Withdrawal::Asked;
                }
            }
            (CallPurpose::Stat(lane), _) => self.set_away(lane, self.now_ns),
            (CallPurpose::Grow(lane), result) => {
                self.on_grow_answer(store, lane, result);
                if is_unreachable {
                    self.set_away(lane, again_ns);
                }
            }
            (CallPurpose::Repair(lane), Ok(Answer::Taken { incarnation, lent })) => {
                let to = self.member(lane, incarnation, lent, false);
                let is_there = self.lanes.is_fenced(&to);
                let begun = is_there && self.repair.as_mut().is_some_and(|repair| repair.begin(store, to));
                self.lanes.0[lane].free = self.lanes.0[lane].free.saturating_sub(lent.len);
                self.has_changed = true;
                if !begun {
                    self.free_granted(&to);
                    self.end_repair(store, false);
                }
            }
            (CallPurpose::Repair(lane), result) => {
                if let (Err(CallFailed::Refused(Refusal::Full { asked, free })), Some(_)) = (&result, self.repair) {
                    self.lanes.0[lane].refuse(*asked, *free);
                }
                self.end_repair(store, false);
                if is_unreachable {
                    self.set_away(lane, again_ns);
                }
            }
            (CallPurpose::Expel(lane, client), Ok(Answer::Expelled { .. })) => {
                self.note_cut_off(lane, client);
                self.has_changed = true;
            }
            // The donor works for everyone else, but a client that was stopped in the middle of a write may still
            // complete it. Until then that client's reservations are not reused.
            (CallPurpose::Expel(lane, _), Err(CallFailed::Refused(Refusal::WriterStopped))) => {
                self.lanes.0[lane].expel_again_ns = Some(again_ns);
            }
            (CallPurpose::Expel(..), _) if has_restarted => {}
            // The donor is told again when it is fenced again.
            (CallPurpose::Expel(lane, _), _) => self.set_away(lane, again_ns),
            // A donor that wants its memory back ends once it has all of it: it is fenced again, and the rest freed.
            (CallPurpose::Free(lane), Err(CallFailed::Unreachable(_))) if self.lanes.0[lane].is_withdrawing() => {
                self.set_away(lane, again_ns);
            }
            (CallPurpose::Free(_) | CallPurpose::Read(_) | CallPurpose::Write(_), _) => {}
        }
    }

    fn member(&self, lane: usize, incarnation: u64, lent: LentSlab, is_whole: bool) -> Member {
        Member { donor: self.lanes.0[lane].donor.0, incarnation, slab: lent.slab, base: lent.base, is_whole }
    }

    fn free(&mut self, lane: usize, slab: u64) {
        let (volume, epoch) = (self.volume, self.epoch);
        self.call(lane, CallPurpose::Free(lane), Call::Free { volume, epoch, slab });
    }

    /// Frees a slab that was granted and is not used after all. If its donor has restarted since, the slab is gone, and
    /// its number may be that of another, which is in use.
    fn free_granted(&mut self, member: &Member) {
        if let Some(lane) = self.lanes.index_of(member).filter(|_| self.lanes.is_fenced(member)) {
            self.free(lane, member.slab);
        }
    }

    /// Handles a successful fence: no client of an earlier epoch writes to this donor any more.
    fn on_fenced<K: Disk>(&mut self, store: &mut Store<K>, lane: usize, incarnation: u64, slabs: &[LentSlab]) {
        let is_first = self.lanes.0[lane].incarnation != Some(incarnation);
        if !self.take_over(store, lane, incarnation, slabs, is_first) {
            // Clients are not told of a donor while the recorded places are not up to date. The next fence gets the
            // same answer.
            return self.set_away(lane, self.now_ns + self.config.stat_interval_ns / 2);
        }
        let known = &mut self.lanes.0[lane];
        (known.state, known.incarnation, known.next_stat_ns) = (LaneState::Ready, Some(incarnation), self.now_ns);
        (known.away_since_ns, known.is_given_up) = (None, false);
        self.has_changed = true;
        let donor = self.lanes.0[lane].donor.0;
        if is_first {
            self.lanes.0[lane].withdrawal = Withdrawal::None;
            self.retired.expelled(lane, None);
        } else if !matches!(self.lanes.0[lane].withdrawal, Withdrawal::CutOff | Withdrawal::Ended) {
            let place = |slab| slabs.iter().find(|lent| lent.slab == slab).map(|lent| lent.base);
            self.orphans.update_places(donor, place);
            return self.expel_again(lane);
        }
        self.orphans.remove_donor(donor);
        // Slabs not in use were requested by a service that died, given up in an earlier epoch, or left because the
        // donor wants them back.
        let is_used = |lent: &&LentSlab| {
            let mut all = store.state.segments.values().flat_map(|segment| &segment.members);
            all.any(|member| (member.donor, member.incarnation, member.slab) == (donor, incarnation, lent.slab))
        };
        let unused: Vec<u64> = slabs.iter().filter(|lent| !is_used(lent)).map(|lent| lent.slab).collect();
        unused.into_iter().for_each(|slab| self.free(lane, slab));
        if !is_first {
            self.lanes.0[lane].withdrawal = Withdrawal::Ended;
        }
    }

    /// Takes over the current places of a donor's slabs, and, at its first fence, removes copies whose slabs are gone.
    /// Returns whether everything could be recorded.
    fn take_over<K: Disk>(
        &self,
        store: &mut Store<K>,
        lane: usize,
        incarnation: u64,
        slabs: &[LentSlab],
        is_first: bool,
    ) -> bool {
        let donor = self.lanes.0[lane].donor.0;
        let place = |member: &Member| slabs.iter().find(|lent| lent.slab == member.slab).map(|lent| lent.base);
        let is_ours = |member: &Member| (member.donor, member.incarnation) == (donor, incarnation);
        let is_there = |member: &Member| member.donor != donor || (is_ours(member) && place(member).is_some());
        let mut changed = Vec::new();
        for (number, segment) in &store.state.segments {
            let mut members = segment.members.clone();
            // A donor moves a slab away if a client was cut off in the middle of a write to it.
            members.iter_mut().filter(|member| is_ours(member)).for_each(|member| {
                member.base = place(member).unwrap_or(member.base);
            });
            // At a later fence, the list of slabs says nothing about copies made since.
            members.retain(|member| !is_first || is_there(member));
            if members.len() < segment.members.len() && !members.iter().any(|member| member.is_whole) {
                // A copy that was being filled has no source any more.
                members.clear();
            }
            if members != segment.members {
                changed.push((*number, members));
            }
        }
        let mut all_recorded = true;
        for (segment, members) in changed {
            let lost = store.state.segments[&segment].members.len() - members.len();
            if store.perform(&Op::Members { segment, members }).is_ok() {
                store.stats.lost_copies += lost as u64;
            } else {
                all_recorded = false;
            }
        }
        all_recorded
    }

    fn grow<K: Disk>(&mut self, store: &Store<K>, wants_more: bool) {
        let free_pages_min = (self.config.slab_len / PAGE as u64 / 4).max(64);
        let is_wanted = wants_more || store.room() < free_pages_min;
        // Memory that was given back for a copy is not to go to another segment.
        let is_reserved = self.wanted_slab_len.is_some() && !wants_more;
        if self.growth.is_some() || !is_wanted || is_reserved || self.growth_again_ns > self.now_ns {
            return;
        }
        let Some((lanes, slab_len)) = growth::plan(&self.lanes, self.config.copies, self.config.slab_len) else {
            return;
        };
        let (volume, epoch) = (self.volume, self.epoch);
        self.growth = Some(Growth { slab_len, answers_missing: lanes.len(), members: Vec::new(), has_failed: false });
        for lane in lanes {
            self.call(lane, CallPurpose::Grow(lane), Call::Take { volume, epoch, len: slab_len });
        }
    }

    fn on_grow_answer<K: Disk>(&mut self, store: &mut Store<K>, lane: usize, result: Result<Answer, CallFailed>) {
        let Some(mut growth) = self.growth.take() else { return };
        growth.answers_missing -= 1;
        match result {
            Ok(Answer::Taken { incarnation, lent }) => {
                growth.members.push(self.member(lane, incarnation, lent, true));
                self.lanes.0[lane].free = self.lanes.0[lane].free.saturating_sub(lent.len);
            }
            Err(CallFailed::Refused(Refusal::Full { free, .. })) => {
                self.lanes.0[lane].refuse(growth.slab_len, free);
                growth.has_failed = true;
            }
            _ => growth.has_failed = true,
        }
        if growth.answers_missing > 0 {
            self.growth = Some(growth);
            return;
        }
        self.growth_again_ns = self.now_ns + if growth.has_failed { self.config.stat_interval_ns / 8 } else { 0 };
        let is_same = growth.members.iter().all(|member| self.lanes.is_fenced(member));
        let (segment, pages) = (store.state.last_segment + 1, growth.pages());
        let op = Op::Segment { segment, pages, members: growth.members.clone() };
        if !growth.has_failed && is_same && store.perform(&op).is_ok() {
            store.space.add(segment, pages);
            self.has_changed = true;
            return;
        }
        for member in &growth.members {
            self.free_granted(member);
        }
    }
}
