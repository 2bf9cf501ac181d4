//! The service as a whole: receives messages, performs requests and answers.

use std::collections::BTreeSet;
use std::hash::Hash;

use sinew_fabric::Generator;
use sinew_remote_memory::donor::{Gate, Key, Refusal};
use sinew_remote_memory::volume::Donors;

use super::config::{Config, Failure, Now, OpenError, Stats};
use super::lanes::Withdrawal;
use super::memory::Memory;
use super::quota;
use super::reads;
use super::sessions::Sessions;
use super::store::Store;
use super::waiting::{WAITING_MAX, Waiting, Wanted};
use crate::disk::Disk;
use crate::durable_state::{DurableState, Op};
use crate::locks::Locks;
use crate::protocol::{
    Access, Answer, Attr, Caller, Envelope, Error, Extent, Ino, Join, Joined, Lock, Message, OpenFile, PAGE, Pages,
    RESERVE_PAGES_MAX, Reply, Request, SECRET_LEN, Space, VERSION,
};

/// Outcome of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// The answer, to be sent now.
    Answer(Vec<u8>),
    /// The answer will come from [`Service::poll`], under this number.
    Deferred(u64),
}

/// The grace period, in which clients of an earlier epoch may come back.
struct Grace {
    until_ns: u64,
    missing: BTreeSet<u64>,
    /// The last inode of earlier epochs. Clients of those cannot have later ones open.
    last_ino: Ino,
}

/// A file system's metadata service; see [the module](super). `P` identifies peers: `rpc` sessions.
pub struct Service<D, K, P> {
    pub(super) store: Store<K>,
    pub(super) memory: Memory<D>,
    pub(super) sessions: Sessions<P>,
    locks: Locks,
    gate: Gate<P>,
    random: Box<dyn Generator>,
    pub(super) config: Config,
    grace: Option<Grace>,
    /// Answers that wait until all changes are durable.
    unsynced: Vec<(u64, Vec<u8>)>,
    done: Vec<(u64, Vec<u8>)>,
    waiting: Vec<Waiting>,
    /// Clients that are gone but still recorded, because the disk was full.
    leaving_clients: BTreeSet<u64>,
    /// Unnamed and closed inodes that are still recorded, because the disk was full.
    closed_inodes: BTreeSet<Ino>,
    last_id: u64,
    next_periodic_ns: u64,
}

impl<D, K, P> std::fmt::Debug for Service<D, K, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("held", &self.unsynced.len()).finish_non_exhaustive()
    }
}

/// Interval between checks for dead clients, in ns.
const PERIODIC_NS: u64 = 50_000_000;

impl<D: Donors, K: Disk, P: Copy + Eq + Hash> Service<D, K, P> {
    /// Opens a service with donors, whose addresses are `names` in the order of [`Donors::ids`]. It finds and stores
    /// its state on `disk`; without a disk the file system ends with the service. If there is a key, callers must have
    /// it.
    ///
    /// # Errors
    ///
    /// [`OpenError`] if the disk cannot be read, or what it holds cannot be interpreted.
    pub fn open(
        disk: Option<K>,
        donors: D,
        names: Vec<String>,
        key: Option<Key>,
        (mut random, for_gate): (Box<dyn Generator>, Box<dyn Generator>),
        config: Config,
        now: Now,
    ) -> Result<Self, OpenError> {
        let mut store = Store::open(disk, config.copies, now.time, || random.next_u64())?;
        let memory = Memory::new(donors, names, config, &mut store);
        let missing: BTreeSet<u64> = store.state.clients.keys().copied().collect();
        let (until_ns, last_ino) = (now.ns + config.lease_ns, store.state.tree.last_ino());
        let mut service = Self {
            store,
            memory,
            sessions: Sessions::default(),
            locks: Locks::default(),
            gate: Gate::new(key, config.strangers_max, for_gate),
            random,
            config,
            grace: Some(Grace { until_ns, missing, last_ino }),
            unsynced: Vec::new(),
            done: Vec::new(),
            waiting: Vec::new(),
            leaving_clients: BTreeSet::new(),
            closed_inodes: BTreeSet::new(),
            last_id: 0,
            next_periodic_ns: 0,
        };
        service.end_grace_if_due(now);
        Ok(service)
    }

    /// The durable state.
    pub fn state(&self) -> &DurableState {
        &self.store.state
    }

    /// Statistics of the service.
    pub fn stats(&self) -> Stats {
        self.store.stats
    }

    /// Clients that have joined.
    pub fn clients(&self) -> usize {
        self.sessions.clients().count()
    }

    /// Number of segments with fewer copies than there should be, and of segments without any.
    pub fn degraded(&self) -> (usize, usize) {
        let segments = || self.store.state.segments.values();
        let whole =
            |segment: &crate::durable_state::Segment| segment.members.iter().filter(|member| member.is_whole).count();
        let lacking = segments().filter(|segment| (1..self.config.copies).contains(&whole(segment))).count();
        (lacking, segments().filter(|segment| whole(segment) == 0).count())
    }

    /// Bytes that a donor must have free in one piece before the next missing copy can be made; `None` while there is
    /// room for all of them.
    pub fn wanted_len(&self) -> Option<u64> {
        self.memory.wanted_slab_len
    }

    /// Number of donors that answer, and of all donors.
    pub fn donors_ready(&self) -> (usize, usize) {
        let lanes = &self.memory.lanes.0;
        (lanes.iter().filter(|lane| lane.is_ready()).count(), lanes.len())
    }

    /// Donors that are not in use, each with the reason if it is known.
    pub fn donors_away(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let lanes = self.memory.lanes.0.iter().filter(|lane| !lane.is_ready());
        lanes.map(|lane| (lane.name.as_str(), lane.away_reason.as_deref()))
    }

    /// Donors that want their memory back, each with whether it has all of it: nothing lies there any more.
    pub fn donors_withdrawing(&self) -> impl Iterator<Item = (&str, bool)> {
        let lanes = self.memory.lanes.0.iter().filter(|lane| lane.is_withdrawing());
        lanes.map(|lane| (lane.name.as_str(), lane.withdrawal == Withdrawal::Ended))
    }

    /// Donors that fail to cut off an expelled client, with their reason. Until they do, what that client had reserved
    /// is not reused.
    pub fn refusals(&self) -> impl Iterator<Item = (&str, &Refusal)> {
        self.memory.lanes.0.iter().filter_map(|lane| Some((lane.name.as_str(), lane.refusal.as_ref()?)))
    }

    /// The donors.
    pub fn donors(&mut self) -> &mut D {
        self.memory.donors()
    }

    /// Handles a peer's message.
    pub fn take(&mut self, peer: P, message: &[u8], now: Now) -> Accepted {
        let reply = match Message::read(message) {
            Err(_) => {
                self.store.stats.malformed += 1;
                Reply::Malformed
            }
            Ok(Message::Greet(version)) if version != VERSION => {
                self.store.stats.not_admitted += 1;
                Reply::Version(VERSION)
            }
            Ok(Message::Greet(_)) => self.gate.issue_nonce(peer).map_or(Reply::Welcome, Reply::Nonce),
            Ok(Message::Prove(proof)) if self.gate.check_proof(peer, &proof) => Reply::Welcome,
            Ok(message) if matches!(message, Message::Prove(_)) || !self.gate.is_proven(peer) => {
                self.store.stats.not_admitted += 1;
                Reply::NotAdmitted
            }
            Ok(Message::Join(join)) => self.join(peer, join, now).map_or_else(Reply::Refused, Reply::Joined),
            Ok(Message::Request(envelope)) => match self.ask(peer, envelope, now) {
                Ok(reply) => reply,
                Err(waits) => {
                    let (client, wanted) = *waits;
                    match self.wait(client, wanted, now) {
                        Ok(id) => return Accepted::Deferred(id),
                        Err(error) => Reply::Refused(error),
                    }
                }
            },
            Ok(Message::Prove(_)) => Reply::NotAdmitted,
        };
        self.count(&reply);
        let bytes = reply.to_bytes();
        if !self.store.is_dirty() {
            return Accepted::Answer(bytes);
        }
        self.last_id += 1;
        self.unsynced.push((self.last_id, bytes));
        Accepted::Deferred(self.last_id)
    }

    fn count(&mut self, reply: &Reply) {
        self.store.stats.answered += 1;
        self.store.stats.refused += u64::from(matches!(reply, Reply::Refused(_)));
    }

    /// Records that a peer's session has ended.
    pub fn peer_left(&mut self, peer: P, now: Now) {
        self.gate.forget(peer);
        self.sessions.peer_left(peer, now.ns + self.config.left_lease_ns);
    }

    /// Records that nobody waits for a deferred answer any more. A reservation that waits for memory gets none then,
    /// since nobody would know of it.
    pub fn abandon(&mut self, id: u64) {
        self.waiting.retain(|waiting| waiting.id != id || waiting.wanted.sequence().is_some());
    }

    /// Has a request wait for memory. Returns the number of its answer.
    fn wait(&mut self, client: u64, wanted: Wanted, now: Now) -> Result<u64, Error> {
        let (id, sequence) = (self.last_id + 1, wanted.sequence());
        let is_repeat = |waiting: &Waiting| sequence.is_some() && waiting.wanted.sequence() == sequence;
        let mut theirs: Vec<&mut Waiting> =
            self.waiting.iter_mut().filter(|waiting| waiting.client == client).collect();
        if let Some(before) = theirs.iter_mut().find(|waiting| is_repeat(waiting)) {
            // It was sent again, and has waited for a while.
            before.id = id;
        } else if theirs.len() >= WAITING_MAX {
            return Err(Error::TooMany);
        } else {
            let until_ns = now.ns + wanted.wait_max_ns(&self.config);
            self.waiting.push(Waiting { id, client, until_ns, wanted, seen: None });
        }
        self.last_id = id;
        Ok(id)
    }

    /// Does the work that is due, and makes all changes durable. Returns whether there was anything.
    ///
    /// # Errors
    ///
    /// [`Failure`]: the service has ended. Unanswered requests may or may not have been performed.
    pub fn turn(&mut self, now: Now) -> Result<bool, Failure> {
        let mut busy = self.memory.turn(&mut self.store, now.ns, !self.waiting.is_empty())?;
        self.serve_waiting(now);
        if self.next_periodic_ns <= now.ns {
            self.next_periodic_ns = now.ns + PERIODIC_NS;
            for client in self.sessions.expired(now.ns) {
                self.store.stats.clients_expired += 1;
                self.end_client(client);
            }
            self.end_grace_if_due(now);
            for client in std::mem::take(&mut self.leaving_clients) {
                self.forget_client(client);
            }
            let closing = std::mem::take(&mut self.closed_inodes);
            self.drop_closed(closing);
        }
        busy |= self.store.is_dirty();
        self.store.sync()?;
        self.done.append(&mut self.unsynced);
        Ok(busy)
    }

    /// Adds answers that were held and may now be sent, with their numbers.
    pub fn poll(&mut self, answers: &mut Vec<(u64, Vec<u8>)>) {
        answers.append(&mut self.done);
    }

    /// Whether there is work to do at once, without a message or an event.
    pub fn is_busy(&self) -> bool {
        !self.done.is_empty() || !self.waiting.is_empty() || self.store.is_dirty()
    }

    /// Closes the store in an orderly way, so that the next start is quick.
    ///
    /// # Errors
    ///
    /// [`Failure`]; answered changes are durable even so.
    pub fn close(&mut self) -> Result<(), Failure> {
        self.store.close()
    }

    #[cfg(test)]
    pub(super) fn store_for_tests(&mut self) -> &mut Store<K> {
        &mut self.store
    }

    fn serve_waiting(&mut self, now: Now) {
        if self.waiting.is_empty() {
            return;
        }
        let mut outlook = self.outlook();
        for mut waiting in std::mem::take(&mut self.waiting) {
            let result = if self.sessions.has(waiting.client) {
                let has_changed = waiting.seen != Some(outlook) || waiting.until_ns <= now.ns;
                let answer = if has_changed { self.try_again(&mut waiting, now) } else { None };
                let Some(result) = answer else {
                    waiting.seen = Some(outlook);
                    self.waiting.push(waiting);
                    continue;
                };
                outlook = self.outlook();
                result
            } else {
                Err(Error::Rejoin)
            };
            let reply = result.map_or_else(Reply::Refused, Reply::Answer);
            self.count(&reply);
            self.unsynced.push((waiting.id, reply.to_bytes()));
        }
    }

    fn random_secret(&mut self) -> [u8; SECRET_LEN] {
        let words = [self.random.next_u64(), self.random.next_u64()];
        std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8])
    }

    fn join(&mut self, peer: P, join: Join, now: Now) -> Result<Joined, Error> {
        let known = join.before.filter(|(client, secret)| {
            let kept = self.store.state.clients.get(client).filter(|_| !self.leaving_clients.contains(client));
            kept.is_some_and(|kept| same_secret(&kept.secret, secret))
        });
        let (client, secret) = match known {
            Some(known) => known,
            None => {
                if self.store.state.clients.len() >= self.config.clients_max {
                    return Err(Error::TooMany);
                }
                let (client, secret) = (self.store.state.last_client + 1, self.random_secret());
                self.store.perform(&Op::Join { client, secret })?;
                (client, secret)
            }
        };
        self.sessions.begin(client, peer, now.ns + self.config.lease_ns);
        self.renew_lease(client, peer, now);
        // The handles and locks of an earlier join, whose answer may have been lost, are void.
        let mut closed = self.sessions.close_all(client);
        self.locks.release_client(client);
        let (mut opens, mut locks) = (Vec::new(), Vec::new());
        if known.is_some() {
            let Self { sessions, locks: lock_table, store, .. } = self;
            let is_there = |ino| store.state.tree.inode(ino).is_ok();
            let may_have = |held: &OpenFile| is_there(held.ino) && sessions.open(client, *held).is_ok();
            opens = join.opens.into_iter().filter(may_have).map(|held| held.handle).collect();
            let may_have = |lock: &Lock| is_there(lock.ino) && lock_table.lock(client, *lock, false, now.ns).is_ok();
            locks = join.locks.into_iter().filter(may_have).collect();
        }
        closed.retain(|ino| !self.sessions.is_open(*ino));
        self.drop_closed(closed);
        if let Some(grace) = &mut self.grace {
            grace.missing.remove(&client);
        }
        self.end_grace_if_due(now);
        Ok(Joined {
            client,
            secret,
            is_known: known.is_some(),
            epoch: self.store.state.epoch,
            volume: self.store.state.volume,
            page_len: PAGE as u32,
            lease_ns: self.config.lease_ns,
            opens,
            locks,
            donors: self.memory.lanes.places(),
        })
    }

    fn renew_lease(&mut self, client: u64, peer: P, now: Now) {
        if let Some(session) = self.sessions.get_mut(client) {
            session.peer = peer;
            session.until_ns = now.ns + self.config.lease_ns;
        }
    }

    /// Answers a request, unless it has to wait: of that client, for this.
    fn ask(&mut self, peer: P, envelope: Envelope, now: Now) -> Result<Reply, Box<(u64, Wanted)>> {
        let Envelope { client, secret, sequence, settled, epoch, caller, request } = envelope;
        let known = self.store.state.clients.get(&client);
        let is_authentic = known.is_some_and(|known| same_secret(&known.secret, &secret));
        if !is_authentic || !self.sessions.has(client) {
            return Ok(Reply::Refused(Error::Rejoin));
        }
        self.renew_lease(client, peer, now);
        if let Some(session) = self.sessions.get_mut(client) {
            session.settled = session.settled.max(settled);
        }
        let wanted = match request {
            Request::Reserve { pages } => Wanted::Pages(pages.min(RESERVE_PAGES_MAX)),
            Request::ReserveOverwrite { handle, at, count, pages, waits } => {
                Wanted::Overwrite { handle, at, count, pages, waits }
            }
            Request::Allocate { .. } => {
                Wanted::Allocate { numbers: (sequence, settled, epoch), caller, request, room: 0 }
            }
            request => {
                let result = if request.changes() {
                    self.change(client, (sequence, settled, epoch), caller, request, now)
                } else {
                    self.answer(client, epoch, &caller, request, now)
                };
                return Ok(result.map_or_else(Reply::Refused, Reply::Answer));
            }
        };
        let result = self.try_now(client, &wanted, now).ok_or_else(|| Box::new((client, wanted)))?;
        Ok(result.map_or_else(Reply::Refused, Reply::Answer))
    }

    /// Performs a request that changes the durable state.
    pub(super) fn change(
        &mut self,
        client: u64,
        (sequence, settled, epoch): (u64, u64, u32),
        caller: Caller,
        request: Request,
        now: Now,
    ) -> Result<Answer, Error> {
        if let Some(answer) = self.store.state.clients.get(&client).and_then(|known| known.answers.get(&sequence)) {
            let answer = answer.clone();
            self.reopen_created(client, &request, &answer);
            return Ok(answer);
        }
        if let Some(session) = self.sessions.get_mut(client) {
            session.errors = session.errors.split_off(&settled);
            if let Some(error) = session.errors.get(&sequence) {
                return Err(*error);
            }
            // The client has given the request up, and may have reused the pages that it names.
            if sequence < session.settled {
                return Err(Error::AlreadyAnswered);
            }
        }
        let result = self.change_first(client, (sequence, settled, epoch), caller, request, now);
        if let (Err(error), Some(session)) = (&result, self.sessions.get_mut(client))
            && session.errors.len() < crate::protocol::IN_FLIGHT_MAX
        {
            session.errors.insert(sequence, *error);
        }
        result
    }

    fn change_first(
        &mut self,
        client: u64,
        (sequence, settled, epoch): (u64, u64, u32),
        caller: Caller,
        request: Request,
        now: Now,
    ) -> Result<Answer, Error> {
        let mut opened = None;
        let mut pages = Vec::new();
        match &request {
            Request::SetAttr { ino, handle: Some(handle), .. } => {
                let held = self.sessions.open_file(client, *handle)?;
                opened = (held.0 == *ino && held.1.write).then_some(*ino);
                opened.ok_or(Error::BadHandle)?;
            }
            Request::Commit { handle, extents, .. } => {
                let (ino, access) = self.sessions.open_file(client, *handle)?;
                opened = access.write.then_some(ino);
                opened.ok_or(Error::BadHandle)?;
                pages = self.check_extents(client, epoch, extents)?;
                self.check_replaced(client, ino, extents)?;
            }
            Request::Allocate { handle, at, count, .. } => {
                let (ino, access) = self.sessions.open_file(client, *handle)?;
                opened = access.write.then_some(ino);
                opened.ok_or(Error::BadHandle)?;
                if self.lacking(ino, *at, *count)? > self.store.room() {
                    return Err(Error::NoSpace);
                }
            }
            Request::Create { handle, access, .. } => {
                let held = OpenFile { handle: *handle, ino: Ino::default(), access: *access };
                self.sessions.may_open(client, held)?;
            }
            _ => {}
        }
        quota::check(&self.store.state.tree, &self.config, &request)?;
        let time = now.time;
        let op = Op::Change { client, sequence, settled, caller, now: time, opened, request };
        let answer = self.store.perform(&op)?;
        for pages in pages {
            // Cannot fail: the pages were checked to be the client's.
            let _ = self.store.space.commit(client, pages);
        }
        if let Op::Change { request, .. } = &op {
            self.reopen_created(client, request, &answer);
        }
        if let Answer::Unlinked(Attr { ino, links: 0, .. }) = answer {
            self.drop_closed([ino]);
        }
        Ok(answer)
    }

    /// Records that a client is gone. If the disk is full, this is retried later.
    fn forget_client(&mut self, client: u64) {
        if self.store.perform(&Op::Leave { client }).is_err() {
            self.leaving_clients.insert(client);
        }
    }

    /// Opens a newly created file by the handle that came with the request.
    fn reopen_created(&mut self, client: u64, request: &Request, answer: &Answer) {
        if let (Request::Create { handle, access, .. }, Answer::Attr(attr)) = (request, answer)
            && self.store.state.tree.inode(attr.ino).is_ok()
        {
            // If the handle belongs to another file by now, the client has already received the answer.
            let _ = self.sessions.open(client, OpenFile { handle: *handle, ino: attr.ino, access: *access });
        }
    }

    /// Checks that the client reserved these pages in this epoch, and that their segments still have the same set of
    /// copies, one of them complete.
    fn check_extents(&self, client: u64, epoch: u32, extents: &[Extent]) -> Result<Vec<Pages>, Error> {
        // Punching holes needs no pages.
        if epoch != self.store.state.epoch && !extents.is_empty() {
            return Err(Error::NotReserved);
        }
        for Extent { pages, generation, .. } in extents {
            let segment = self.store.state.segments.get(&pages.segment).ok_or(Error::NotReserved)?;
            if segment.generation != *generation {
                return Err(Error::CopiesChanged);
            }
            if !segment.has_complete() {
                return Err(Error::Lost);
            }
        }
        let pages: Vec<Pages> = extents.iter().map(|extent| extent.pages).collect();
        let has_them = self.store.space.has_reserved(client, pages.iter().copied());
        if has_them { Ok(pages) } else { Err(Error::NotReserved) }
    }

    fn answer(
        &mut self,
        client: u64,
        epoch: u32,
        caller: &Caller,
        request: Request,
        now: Now,
    ) -> Result<Answer, Error> {
        let tree = &self.store.state.tree;
        match request {
            Request::Heartbeat => Ok(Answer::Done),
            Request::Leave => {
                self.end_client(client);
                Ok(Answer::Done)
            }
            Request::Donors => Ok(Answer::Donors(self.memory.lanes.places())),
            Request::Lookup { parent, name } => tree.lookup(caller, parent, &name).map(Answer::Attr),
            Request::GetAttr { ino } => tree.attr(ino).map(Answer::Attr),
            Request::ReadLink { ino } => tree.read_link(ino).map(|target| Answer::Bytes(target.to_vec())),
            Request::Open { handle, ino, access } => {
                // A handle that is open already may allow more than the mode does by now.
                let held = OpenFile { handle, ino, access };
                let attr = match self.sessions.open_file(client, handle) {
                    Ok(_) => tree.attr(ino)?,
                    Err(_) => tree.may_open(caller, ino, access)?,
                };
                self.sessions.open(client, held)?;
                Ok(Answer::Attr(attr))
            }
            Request::Close { handle } => {
                let closed = self.sessions.close(client, handle);
                self.drop_closed(closed);
                Ok(Answer::Done)
            }
            Request::ReadDirectory { handle, after, count } => {
                let (ino, access) = self.sessions.open_file(client, handle)?;
                if !has_data_access(access) {
                    return Err(Error::BadHandle);
                }
                reads::entries(&self.store, ino, after, count)
            }
            Request::Layout { handle, at, count } => {
                let (ino, access) = self.sessions.open_file(client, handle)?;
                if !has_data_access(access) {
                    return Err(Error::BadHandle);
                }
                reads::layout(&self.store, ino, at, count)
            }
            Request::Placements { segments } => Ok(Answer::Placements(reads::places(&self.store, segments))),
            Request::GiveBack { pages } => {
                let is_current = epoch == self.store.state.epoch;
                if !is_current || !self.store.space.has_reserved(client, pages.iter().copied()) {
                    return Err(Error::NotReserved);
                }
                let space = &mut self.store.space;
                pages
                    .into_iter()
                    .try_for_each(|pages| space.give_back(client, pages))
                    .map_err(|_| Error::NotReserved)?;
                Ok(Answer::Done)
            }
            Request::ReportFailed { segment, donor, incarnation } => {
                let session = self.sessions.get_mut(client).ok_or(Error::Rejoin)?;
                if session.failed >= self.config.failed_max {
                    return Err(Error::TooMany);
                }
                if !self.memory.may_report_failed(donor) {
                    return Err(Error::Grace);
                }
                let is_reported = |member: &crate::durable_state::Member| {
                    (member.donor, member.incarnation) == (donor.0, incarnation)
                };
                // A copy already removed, and the last copy, do not count: clients report those repeatedly.
                if self.memory.report_failed(&mut self.store, segment, is_reported)? {
                    session.failed += 1;
                }
                Ok(Answer::Placements(reads::places(&self.store, [segment])))
            }
            Request::Statfs => {
                let (more, space) = (self.memory.lendable_pages(), &self.store.space);
                let (pages, free_pages) = (space.pages() + more, self.store.room_with(more));
                let (inodes, inodes_max) = (tree.len(), self.config.inodes_max);
                Ok(Answer::Space(Space { pages, free_pages, inodes, inodes_max }))
            }
            Request::GetXattr { ino, name } => {
                tree.xattr(caller, ino, &name).map(|value| Answer::Bytes(value.to_vec()))
            }
            Request::ListXattr { ino } => tree.xattr_names(caller, ino).map(Answer::Bytes),
            Request::Lock { lock, waits } => {
                tree.inode(lock.ino)?;
                if self.grace.is_some() {
                    return Err(Error::Grace);
                }
                self.locks.lock(client, lock, waits, now.ns).map(|()| Answer::Done)
            }
            Request::TestLock(lock) => {
                tree.inode(lock.ino)?;
                Ok(Answer::LockConflict(self.locks.find_conflict(client, &lock)))
            }
            Request::Unlock { ino, owner, first, last } => {
                self.locks.unlock(client, ino, owner, first, last);
                Ok(Answer::Done)
            }
            // Changes and reservations are handled elsewhere.
            _ => Err(Error::Invalid),
        }
    }

    /// Drops those of the inodes that have no name and are not open.
    fn drop_closed(&mut self, inos: impl IntoIterator<Item = Ino>) {
        // A client that has it open may still come back.
        let may_be_reopened = |grace: &Grace, ino| ino <= grace.last_ino;
        for ino in inos {
            if self.grace.as_ref().is_some_and(|grace| may_be_reopened(grace, ino)) {
                continue;
            }
            let has_no_name = self.store.state.tree.inode(ino).is_ok_and(|inode| inode.links() == 0);
            if !has_no_name || self.sessions.is_open(ino) {
                continue;
            }
            match self.store.perform(&Op::Drop { ino }) {
                Ok(_) => self.locks.remove_inode(ino),
                // If the disk is full, the inode stays until there is room.
                Err(_) => drop(self.closed_inodes.insert(ino)),
            }
        }
    }

    /// Ends a client that left or was declared dead.
    fn end_client(&mut self, client: u64) {
        let closed = self.sessions.end(client);
        self.locks.release_client(client);
        self.memory.retire_client(client, &mut self.store);
        self.forget_client(client);
        self.drop_closed(closed);
    }

    /// Ends the grace period if its time has passed. Clients that have not come back are declared dead.
    fn end_grace_if_due(&mut self, now: Now) {
        let is_over = self.grace.as_ref().is_some_and(|grace| grace.missing.is_empty() || grace.until_ns <= now.ns);
        if !is_over {
            return;
        }
        for client in self.grace.take().map(|grace| grace.missing).unwrap_or_default() {
            self.store.stats.clients_expired += 1;
            // It had no access in this epoch, but donors might still admit it.
            self.memory.retire_client(client, &mut self.store);
            self.forget_client(client);
        }
        let orphans: Vec<Ino> = self.store.state.tree.orphans().collect();
        self.drop_closed(orphans);
    }
}

fn has_data_access(access: Access) -> bool {
    access.read || access.write || access.execute
}

fn same_secret(one: &[u8; SECRET_LEN], other: &[u8; SECRET_LEN]) -> bool {
    // Compares all bytes, so that the time taken reveals nothing.
    one.iter().zip(other).fold(0, |all, (ours, theirs)| all | (ours ^ theirs)) == 0
}
