//! The donors' memory: fencing, growth by segments, and restoring of missing copies.

use std::collections::{BTreeSet, HashMap};

use sinew_mem::MessageBuffer;
use sinew_remote_memory::donor::{Answer, Call, Lent, Refusal};
use sinew_remote_memory::engine::Op as Move;
use sinew_remote_memory::volume::{CallFailed, DonorId, Donors, Event};

use super::config::{Config, Failure};
use super::graves::Graves;
use super::growth::{self, Growth};
use super::lanes::{Lane, Lanes, State};
use super::orphans::Orphans;
use super::repair::{self, Beside, Plan, Repair, STEP};
use super::store::Store;
use crate::disk::Disk;
use crate::kept::{Member, Op};
use crate::protocol::{Error, PAGE};

/// Purpose of a call or transfer whose answer is awaited.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Fence(usize),
    Look(usize),
    Grow(usize),
    Repair(usize),
    Free,
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
    purposes: HashMap<u64, Purpose>,
    last_tag: u64,
    growth: Option<Growth>,
    growth_again_ns: u64,
    repair: Option<Repair>,
    repair_again_ns: u64,
    graves: Graves,
    orphans: Orphans,
    failure: Option<Failure>,
    events: Vec<Event>,
    /// Whether the pages that can be reserved may have changed.
    has_changed: bool,
    begun_ns: Option<u64>,
    look_ns: u64,
    now_ns: u64,
    /// Length of a missing copy for which no donor has room.
    pub wanted_len: Option<u64>,
}

impl<D: Donors> Memory<D> {
    /// The memory of these donors, whose addresses are `names` in the order of [`Donors::ids`].
    pub fn new<K: Disk>(donors: D, names: Vec<String>, config: Config, store: &mut Store<K>) -> Self {
        let lanes = Lanes::new(donors.ids().to_vec().into_iter().zip(names));
        let memory = Self {
            donors,
            lanes,
            config,
            volume: store.kept.volume,
            epoch: store.kept.epoch,
            purposes: HashMap::new(),
            last_tag: 0,
            growth: None,
            growth_again_ns: 0,
            repair: None,
            repair_again_ns: 0,
            graves: Graves::default(),
            orphans: Orphans::default(),
            failure: None,
            events: Vec::new(),
            has_changed: true,
            begun_ns: None,
            look_ns: 0,
            now_ns: 0,
            wanted_len: None,
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

    fn call(&mut self, lane: usize, purpose: Purpose, call: Call) {
        self.last_tag += 1;
        self.purposes.insert(self.last_tag, purpose);
        self.donors.call(lane, self.last_tag, call);
    }

    /// Pages that donors could lend in addition to those that they lend now.
    pub fn lendable_pages(&self) -> u64 {
        let free: u64 = self.lanes.0.iter().filter(|lane| lane.is_ready()).map(|lane| lane.free).sum();
        let copies = self.config.copies.min(self.lanes.counting()).max(1) as u64;
        free / copies / PAGE as u64
    }

    /// Whether there may be more memory soon.
    pub fn may_grow(&self) -> bool {
        self.growth.is_some()
            || self.lanes.0.iter().any(Lane::is_coming)
            || growth::plan(&self.lanes, self.config.copies, self.config.slab_len).is_some()
    }

    /// Keeps back the pages of a client that is gone, until no donor admits it any more.
    pub fn bury<K: Disk>(&mut self, client: u64, store: &mut Store<K>) {
        let pages = store.space.keep_back(client);
        let fenced = (0..self.lanes.0.len()).filter(|lane| self.lanes.0[*lane].incarnation.is_some());
        let open: BTreeSet<usize> = fenced.collect();
        for lane in &open {
            // A donor that does not answer now is told when it is fenced again.
            if self.lanes.0[*lane].is_ready() {
                self.expel(*lane, client);
            }
        }
        self.graves.dig(client, pages, open);
        self.graves.settle(&self.lanes, store);
    }

    /// Tells a donor to cut off all buried clients that it may still admit.
    fn expel_buried(&mut self, lane: usize) {
        for client in self.graves.of_lane(lane) {
            self.expel(lane, client);
        }
    }

    fn expel(&mut self, lane: usize, client: u64) {
        let (volume, epoch) = (self.volume, self.epoch);
        self.call(lane, Purpose::Expel(lane, client), Call::Expel { volume, epoch, client });
    }

    /// Whether clients can know that a donor does not answer: before it is fenced under our epoch, it answers none of
    /// them.
    pub fn may_be_blamed(&self, donor: DonorId) -> bool {
        let lane = self.lanes.0.iter().find(|lane| lane.donor == donor);
        lane.is_none_or(|lane| lane.incarnation.is_some() || lane.is_given_up)
    }

    /// Removes a copy that a client cannot reach. Returns whether it was still a copy. If the service cannot reach
    /// another copy now, it stays: the other donors may have restarted and lost theirs.
    pub fn blame<K: Disk>(
        &mut self,
        store: &mut Store<K>,
        segment: u32,
        is_it: impl Fn(&Member) -> bool,
    ) -> Result<bool, Error> {
        let members = store.kept.segments.get(&segment).map_or(&[][..], |found| &found.members);
        let is_in = members.iter().any(&is_it);
        let reaches_other =
            members.iter().any(|member| !is_it(member) && member.is_whole && self.lanes.reaches(member));
        if is_in && !reaches_other {
            return Err(Error::Lost);
        }
        self.take_out(store, segment, is_it)
    }

    /// Removes a copy that cannot be reached. Returns whether it was still a copy.
    fn take_out<K: Disk>(
        &mut self,
        store: &mut Store<K>,
        segment: u32,
        is_it: impl Fn(&Member) -> bool,
    ) -> Result<bool, Error> {
        let found = store.kept.segments.get(&segment).ok_or(Error::Invalid)?;
        let (out, rest): (Vec<Member>, Vec<Member>) = found.members.iter().copied().partition(is_it);
        if out.is_empty() {
            return Ok(false);
        }
        if !rest.iter().any(|member| member.is_whole) {
            return Err(Error::Lost);
        }
        store.perform(&Op::Members { segment, members: rest })?;
        let now_ns = self.now_ns;
        out.iter().for_each(|member| self.orphans.add(segment, *member, &self.lanes, now_ns));
        store.stats.lost_copies += out.len() as u64;
        self.has_changed = true;
        Ok(true)
    }

    /// Does the work that is due. `wants_more`: a reservation waits for memory. Returns whether there was anything.
    pub fn turn<K: Disk>(&mut self, store: &mut Store<K>, now_ns: u64, wants_more: bool) -> Result<bool, Failure> {
        self.now_ns = now_ns;
        self.begun_ns.get_or_insert(now_ns);
        let mut busy = self.donors.turn();
        let mut events = std::mem::take(&mut self.events);
        self.donors.poll(&mut events);
        busy |= !events.is_empty();
        for event in events.drain(..) {
            match event {
                Event::Answered { tag, result } => self.hear(store, tag, result),
                Event::Over { tag, error, target } => self.moved(store, tag, error, target),
            }
        }
        self.events = events;
        self.see_to_lanes();
        if self.look_ns <= now_ns {
            self.look_ns = now_ns + self.config.look_ns;
            self.look(store);
        }
        self.go_on_repairing(store);
        self.grow(store, wants_more);
        if std::mem::take(&mut self.has_changed) {
            for (number, segment) in &store.kept.segments {
                store.space.open(*number, self.lanes.is_usable(segment));
            }
            self.graves.settle(&self.lanes, store);
        }
        self.failure.clone().map_or(Ok(busy), Err)
    }

    fn see_to_lanes(&mut self) {
        let (volume, epoch, now_ns) = (self.volume, self.epoch, self.now_ns);
        for lane in 0..self.lanes.0.len() {
            let known = &mut self.lanes.0[lane];
            if known.is_ready() && known.expel_again_ns.take_if(|again_ns| *again_ns <= now_ns).is_some() {
                self.expel_buried(lane);
            }
            let known = &mut self.lanes.0[lane];
            match known.state {
                State::Away { again_ns } if again_ns <= now_ns => {
                    known.state = State::Fencing;
                    known.away_since_ns.get_or_insert(now_ns);
                    self.call(lane, Purpose::Fence(lane), Call::Fence { volume, epoch });
                }
                State::Ready if known.look_ns <= now_ns && !known.is_looked_at => {
                    known.is_looked_at = true;
                    self.call(lane, Purpose::Look(lane), Call::Stat);
                }
                _ => {}
            }
        }
    }

    /// Does the periodic work.
    fn look<K: Disk>(&mut self, store: &mut Store<K>) {
        let patience_ns = self.config.patience_ns;
        for index in 0..self.lanes.0.len() {
            let now_ns = self.now_ns;
            let lane = &mut self.lanes.0[index];
            if lane.away_since_ns.is_some_and(|since| now_ns.saturating_sub(since) >= patience_ns) {
                lane.is_given_up = true;
                let donor = lane.donor.0;
                self.give_up(store, |member, _| member.donor == donor);
            }
        }
        if self.begun_ns.is_some_and(|begun| self.now_ns.saturating_sub(begun) >= patience_ns) {
            self.give_up(store, |member, lanes| lanes.of(member).is_none());
        }
        let is_gone = |(number, segment): &(&u32, &crate::kept::Segment)| {
            segment.members.is_empty() && store.space.unused(**number) == u64::from(segment.pages)
        };
        let gone: Vec<u32> = store.kept.segments.iter().filter(is_gone).map(|(number, _)| *number).collect();
        for segment in gone {
            if store.perform(&Op::Remove { segment }).is_ok() {
                store.space.remove(segment);
            }
        }
        self.make_room(store);
    }

    /// Gives a segment without contents back, if a missing copy has room nowhere else.
    fn make_room<K: Disk>(&mut self, store: &mut Store<K>) {
        let copies = repair::without_room(store, &self.lanes, &self.orphans, self.config.copies);
        let wanted_len = copies.first().map(|copy| copy.len);
        if wanted_len.is_none() && self.wanted_len.is_some() {
            // There is room now: the copy comes before more segments.
            self.repair_again_ns = self.now_ns;
        }
        self.wanted_len = wanted_len;
        let to_give_back = |copy| repair::to_give_back(store, &self.lanes, &self.orphans, copy);
        let Some(segment) = copies.iter().find_map(to_give_back) else { return };
        let members = store.kept.segments[&segment].members.clone();
        if store.perform(&Op::Remove { segment }).is_err() {
            return;
        }
        store.space.remove(segment);
        self.has_changed = true;
        for member in members.iter().filter(|member| self.lanes.reaches(member)).copied().collect::<Vec<_>>() {
            if let Some(lane) = self.lanes.of(&member) {
                self.free(lane, member.slab);
                // The next look tells how much is free.
                self.lanes.0[lane].look_ns = self.now_ns;
            }
        }
    }

    /// Removes copies that cannot be reached, of segments that have another copy within reach.
    fn give_up<K: Disk>(&mut self, store: &mut Store<K>, is_it: impl Fn(&Member, &Lanes) -> bool) {
        let hit = |segment: &crate::kept::Segment| {
            let (out, rest): (Vec<&Member>, Vec<&Member>) =
                segment.members.iter().partition(|member| is_it(member, &self.lanes));
            !out.is_empty() && rest.iter().any(|member| member.is_whole && self.lanes.reaches(member))
        };
        let hit: Vec<u32> =
            store.kept.segments.iter().filter(|(_, segment)| hit(segment)).map(|(number, _)| *number).collect();
        for segment in hit {
            let lanes = &self.lanes;
            let out: Vec<Member> =
                store.kept.segments[&segment].members.iter().filter(|m| is_it(m, lanes)).copied().collect();
            // What cannot be recorded now is retried later.
            let _ = self.take_out(store, segment, |member| out.contains(member));
        }
    }

    /// Records that a donor does not answer.
    fn away(&mut self, lane: usize, again_ns: u64) {
        let lane = &mut self.lanes.0[lane];
        (lane.state, lane.is_looked_at, lane.knows_free) = (State::Away { again_ns }, false, false);
        lane.away_since_ns.get_or_insert(self.now_ns);
        self.has_changed = true;
    }

    fn hear<K: Disk>(&mut self, store: &mut Store<K>, tag: u64, result: Result<Answer, CallFailed>) {
        let Some(purpose) = self.purposes.remove(&tag) else { return };
        if let Err(CallFailed::Refused(Refusal::Older { held })) = &result
            && let Purpose::Fence(lane) | Purpose::Grow(lane) | Purpose::Repair(lane) | Purpose::Expel(lane, _) =
                purpose
            && *held > self.epoch
        {
            self.failure = Some(Failure::TakenOver { donor: self.lanes.0[lane].name.clone(), held: *held });
        }
        if let Purpose::Fence(lane) | Purpose::Expel(lane, _) = purpose {
            self.lanes.0[lane].refusal = match &result {
                Err(CallFailed::Refused(why)) => Some(why.clone()),
                _ => None,
            };
        }
        let again_ns = self.now_ns + self.config.look_ns / 2;
        let is_unreachable = matches!(result, Err(CallFailed::Unreachable(_)));
        match (purpose, result) {
            (Purpose::Fence(lane), Ok(Answer::Fenced { incarnation, slabs, .. })) => {
                self.fenced(store, lane, incarnation, &slabs);
            }
            (Purpose::Fence(lane), _) => self.away(lane, again_ns),
            (Purpose::Look(lane), Ok(Answer::Stat { incarnation, free, .. })) => {
                let now_ns = self.now_ns;
                let known = &mut self.lanes.0[lane];
                known.is_looked_at = false;
                known.set_free(free);
                (known.knows_free, known.look_ns) = (true, now_ns + self.config.look_ns);
                if known.incarnation != Some(incarnation) {
                    // It has restarted, and does not know us any more.
                    self.away(lane, now_ns);
                }
            }
            (Purpose::Look(lane), _) => self.away(lane, self.now_ns),
            (Purpose::Grow(lane), result) => {
                self.grown(store, lane, result);
                if is_unreachable {
                    self.away(lane, again_ns);
                }
            }
            (Purpose::Repair(lane), Ok(Answer::Taken { incarnation, lent })) => {
                let to = self.member(lane, incarnation, lent, false);
                let begun = self.repair.as_mut().is_some_and(|repair| repair.begin(store, to));
                self.lanes.0[lane].free = self.lanes.0[lane].free.saturating_sub(lent.len);
                self.has_changed = true;
                if !begun {
                    self.free(lane, lent.slab);
                    self.end_repair(store, false);
                }
            }
            (Purpose::Repair(lane), result) => {
                if let (Err(CallFailed::Refused(Refusal::Full { asked, free })), Some(_)) = (&result, self.repair) {
                    self.lanes.0[lane].refuse(*asked, *free);
                }
                self.end_repair(store, false);
                if is_unreachable {
                    self.away(lane, again_ns);
                }
            }
            (Purpose::Expel(lane, client), Ok(Answer::Expelled { .. })) => {
                self.graves.close(lane, Some(client));
                self.has_changed = true;
            }
            // The donor works for everyone else, but a client that was stopped in the middle of a write may still
            // complete it. Until then that client's reservations are not reused.
            (Purpose::Expel(lane, _), Err(CallFailed::Refused(Refusal::Stopped))) => {
                self.lanes.0[lane].expel_again_ns = Some(again_ns);
            }
            // The donor is told again when it is fenced again.
            (Purpose::Expel(lane, _), _) => self.away(lane, again_ns),
            (Purpose::Free | Purpose::Read(_) | Purpose::Write(_), _) => {}
        }
    }

    fn member(&self, lane: usize, incarnation: u64, lent: Lent, is_whole: bool) -> Member {
        Member { donor: self.lanes.0[lane].donor.0, incarnation, slab: lent.slab, base: lent.base, is_whole }
    }

    fn free(&mut self, lane: usize, slab: u64) {
        let (volume, epoch) = (self.volume, self.epoch);
        self.call(lane, Purpose::Free, Call::Free { volume, epoch, slab });
    }

    /// Handles a successful fence: no client of an earlier epoch writes to this donor any more.
    fn fenced<K: Disk>(&mut self, store: &mut Store<K>, lane: usize, incarnation: u64, slabs: &[Lent]) {
        let is_first = self.lanes.0[lane].incarnation != Some(incarnation);
        if !self.take_over(store, lane, incarnation, slabs, is_first) {
            // Clients are not told of a donor while the recorded places are not up to date. The next fence gets the
            // same answer.
            return self.away(lane, self.now_ns + self.config.look_ns / 2);
        }
        let known = &mut self.lanes.0[lane];
        (known.state, known.incarnation, known.look_ns) = (State::Ready, Some(incarnation), self.now_ns);
        (known.away_since_ns, known.is_given_up) = (None, false);
        self.has_changed = true;
        let donor = self.lanes.0[lane].donor.0;
        if !is_first {
            let place = |slab| slabs.iter().find(|lent| lent.slab == slab).map(|lent| lent.base);
            self.orphans.fenced(donor, place);
            return self.expel_buried(lane);
        }
        self.graves.close(lane, None);
        self.orphans.forget(donor);
        // Slabs not in use were requested by a service that died, or given up in an earlier epoch.
        let is_used = |lent: &&Lent| {
            let mut all = store.kept.segments.values().flat_map(|segment| &segment.members);
            all.any(|member| (member.donor, member.incarnation, member.slab) == (donor, incarnation, lent.slab))
        };
        let unused: Vec<u64> = slabs.iter().filter(|lent| !is_used(lent)).map(|lent| lent.slab).collect();
        unused.into_iter().for_each(|slab| self.free(lane, slab));
    }

    /// Takes over the current places of a donor's slabs, and, at its first fence, removes copies whose slabs are gone.
    /// Returns whether everything could be recorded.
    fn take_over<K: Disk>(
        &self,
        store: &mut Store<K>,
        lane: usize,
        incarnation: u64,
        slabs: &[Lent],
        is_first: bool,
    ) -> bool {
        let donor = self.lanes.0[lane].donor.0;
        let place = |member: &Member| slabs.iter().find(|lent| lent.slab == member.slab).map(|lent| lent.base);
        let is_ours = |member: &Member| (member.donor, member.incarnation) == (donor, incarnation);
        let is_there = |member: &Member| member.donor != donor || (is_ours(member) && place(member).is_some());
        let mut changed = Vec::new();
        for (number, segment) in &store.kept.segments {
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
        let mut all = true;
        for (segment, members) in changed {
            let lost = store.kept.segments[&segment].members.len() - members.len();
            if store.perform(&Op::Members { segment, members }).is_ok() {
                store.stats.lost_copies += lost as u64;
            } else {
                all = false;
            }
        }
        all
    }

    fn grow<K: Disk>(&mut self, store: &Store<K>, wants_more: bool) {
        let least = (self.config.slab_len / PAGE as u64 / 4).max(64);
        let is_wanted = wants_more || store.space.free_pages() < least;
        // Memory that was given back for a copy is not to go to another segment.
        let is_reserved = self.wanted_len.is_some() && !wants_more;
        if self.growth.is_some() || !is_wanted || is_reserved || self.growth_again_ns > self.now_ns {
            return;
        }
        let Some((lanes, slab_len)) = growth::plan(&self.lanes, self.config.copies, self.config.slab_len) else {
            return;
        };
        let (volume, epoch) = (self.volume, self.epoch);
        self.growth = Some(Growth { slab_len, waiting: lanes.len(), members: Vec::new(), has_failed: false });
        for lane in lanes {
            self.call(lane, Purpose::Grow(lane), Call::Take { volume, epoch, len: slab_len });
        }
    }

    fn grown<K: Disk>(&mut self, store: &mut Store<K>, lane: usize, result: Result<Answer, CallFailed>) {
        let Some(mut growth) = self.growth.take() else { return };
        growth.waiting -= 1;
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
        if growth.waiting > 0 {
            self.growth = Some(growth);
            return;
        }
        self.growth_again_ns = self.now_ns + if growth.has_failed { self.config.look_ns / 8 } else { 0 };
        let is_same = growth.members.iter().all(|member| self.lanes.is_fenced(member));
        let (segment, pages) = (store.kept.last_segment + 1, growth.pages());
        let op = Op::Segment { segment, pages, members: growth.members.clone() };
        if !growth.has_failed && is_same && store.perform(&op).is_ok() {
            store.space.add(segment, pages);
            self.has_changed = true;
            return;
        }
        for member in &growth.members {
            if let Some(lane) = self.lanes.of(member) {
                self.free(lane, member.slab);
            }
        }
    }

    fn go_on_repairing<K: Disk>(&mut self, store: &mut Store<K>) {
        let Some(repair) = self.repair else {
            if self.repair_again_ns > self.now_ns {
                return;
            }
            self.repair_again_ns = self.now_ns + self.config.look_ns / 8;
            for (segment, members) in repair::abandoned(store, None) {
                let half = store.kept.segments[&segment].members.iter().find(|member| !member.is_whole).copied();
                if let (Some(half), Ok(_)) = (half, store.perform(&Op::Members { segment, members })) {
                    self.orphans.add(segment, half, &self.lanes, self.now_ns);
                }
            }
            let until_ns = self.now_ns.saturating_sub(self.config.patience_ns);
            let beside = Beside { orphans: &self.orphans, graves: &self.graves, until_ns };
            return match repair::plan(store, &self.lanes, &beside, self.config.copies) {
                None => {}
                Some(Plan::Take { segment, lane, len }) => {
                    self.repair = Some(Repair { segment, lane, to: None, next: 0, step: 0 });
                    let (volume, epoch) = (self.volume, self.epoch);
                    self.call(lane, Purpose::Repair(lane), Call::Take { volume, epoch, len });
                }
                Some(Plan::Adopt { segment, lane, to }) => {
                    let mut repair = Repair { segment, lane, to: None, next: 0, step: 0 };
                    if repair.begin(store, to) {
                        self.repair = Some(repair);
                        self.has_changed = true;
                    }
                }
            };
        };
        let (Some(to), 0) = (repair.to, repair.step) else { return };
        let Some(segment) = store.kept.segments.get(&repair.segment) else { return self.end_repair(store, false) };
        let (source, is_copy) = (repair.source(segment, &self.lanes), segment.members.contains(&to));
        let (Some(source), true, true) = (source, is_copy, self.lanes.reaches(&to)) else {
            return self.end_repair(store, false);
        };
        let Some((first, count)) = store.space.used(repair.segment, repair.next, STEP) else {
            return self.end_repair(store, true);
        };
        let len = count as usize * PAGE;
        // There is room again once the previous step is done.
        let Ok(target) = self.donors.arena().alloc(len, len) else { return };
        let Some(lane) = self.lanes.of(source) else { return };
        let at = source.base + u64::from(first) * PAGE as u64;
        // The contents of these pages do not change until they are copied.
        store.pinned = Some(repair.segment);
        self.repair = Some(Repair { next: first, step: count, ..repair });
        self.carry(store, Purpose::Read(lane), Move::Read { at, target });
    }

    fn carry<K: Disk>(&mut self, store: &mut Store<K>, purpose: Purpose, op: Move) {
        let (Purpose::Read(lane) | Purpose::Write(lane)) = purpose else { return };
        self.last_tag += 1;
        self.purposes.insert(self.last_tag, purpose);
        if self.donors.submit(lane, self.last_tag, op).is_err() {
            // None of our own transfers is in flight there, so the lane is filled by another user, or broken.
            self.purposes.remove(&self.last_tag);
            self.end_repair(store, false);
        }
    }

    fn moved<K: Disk>(&mut self, store: &mut Store<K>, tag: u64, error: Option<String>, target: Option<MessageBuffer>) {
        let Some(purpose) = self.purposes.remove(&tag) else { return };
        let Some(repair) = self.repair else { return };
        match (purpose, error, target, repair.to) {
            (Purpose::Read(_), None, Some(bytes), Some(to)) => {
                let at = to.base + u64::from(repair.next) * PAGE as u64;
                self.carry(store, Purpose::Write(repair.lane), Move::Write { at, source: bytes.freeze().into() });
            }
            (Purpose::Write(_), None, ..) => {
                store.unpin();
                self.repair = Some(Repair { next: repair.next + repair.step, step: 0, ..repair });
            }
            (Purpose::Read(lane) | Purpose::Write(lane), ..) => {
                // The connection is broken. The next fence makes a new one.
                self.end_repair(store, false);
                self.away(lane, self.now_ns);
            }
            _ => {}
        }
    }

    fn end_repair<K: Disk>(&mut self, store: &mut Store<K>, is_whole: bool) {
        store.unpin();
        let Some(repair) = self.repair.take() else { return };
        let is_recorded = repair.end(store, is_whole);
        if is_recorded && is_whole {
            store.stats.repaired += 1;
            self.repair_again_ns = self.now_ns;
        } else if let (true, Some(to)) = (is_recorded, repair.to) {
            self.orphans.add(repair.segment, to, &self.lanes, self.now_ns);
        }
        self.has_changed = true;
    }
}
