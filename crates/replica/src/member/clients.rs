//! Requests of clients, and the answers that they wait for.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use raft::StateRole;
use sinew_journal::disk::Disk;

use super::applying::LogCommand;
use super::{Member, MemberConfig};
use crate::client_wire::{Answer, ClientRequest, Freshness, MemberStatus, Role, Standing, Status};
use crate::machine::StateMachine;
use crate::wire::{self, DecodeError, MemberId};

/// Time after which a watch that has found nothing is told so, in ns.
const WATCH_NS: u64 = 5_000_000_000;

/// Outcome of accepting a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It is answered at once, with these bytes.
    Answer(Vec<u8>),
    /// It is answered later, under this number, by [`Member::take_answers`].
    Deferred(u64),
}

/// A request that waits for its log entry.
struct Proposed {
    place: EntryId,
    request_id: u64,
    command: Option<CommandId>,
}

struct Watch {
    request_id: u64,
    /// The query, narrowed to what was not searched yet, if the machine can do that.
    query: Vec<u8>,
    end_ns: u64,
}

/// Bytes that a search counts for beside what it finds.
const SEARCH_LEN: usize = 256;
/// Bytes that the first search of a watch counts for if it finds nothing, as it may look at all changes that are kept.
const VAIN_SEARCH_LEN: usize = 32 << 10;
/// Capacity kept for answers, in bytes.
const BYTES_KEPT: usize = 64 << 10;

/// Term and index of an entry, which are unique within a cluster.
pub type EntryId = (u64, u64);

/// Session of a command, and its number there.
pub type CommandId = (u64, u64);

/// Requests that wait.
#[derive(Default)]
pub struct WaitingRequests {
    next: u64,
    waiting: usize,
    /// Requests that wait for an entry, in the log's order.
    proposed: VecDeque<Proposed>,
    /// Number of requests that were taken from the front of `proposed`.
    taken: u64,
    /// Commands that wait: the position of each in `proposed`, counted from the first request ever.
    positions: BTreeMap<CommandId, u64>,
    watches: VecDeque<Watch>,
    /// Whether the machine's state has changed since the watches were last checked.
    pub has_changed: bool,
    /// Watches, from the first on, that must be checked because of an earlier change.
    unchecked_watches: usize,
    /// Bytes counted for searches since [`Self::begin_search`].
    found_len: usize,
    /// Answers that are ready, each with its place in `bytes`.
    answers: Vec<(u64, Range<usize>)>,
    bytes: Vec<u8>,
}

impl WaitingRequests {
    /// Returns a number for a request that waits.
    pub fn defer(&mut self) -> u64 {
        self.next += 1;
        self.waiting += 1;
        self.next
    }

    /// Answers a request.
    pub fn answer(&mut self, request_id: u64, answer: &Answer<'_>) {
        let begin = self.bytes.len();
        wire::encode(answer, &mut self.bytes);
        self.answers.push((request_id, begin..self.bytes.len()));
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// Starts a new count of what searches find. New requests, reads that waited, and watches each get a count of their
    /// own in a turn, so that none of them starves.
    pub fn begin_search(&mut self) {
        self.found_len = 0;
    }

    /// Whether the present count allows another search.
    pub fn may_search(&self, config: &MemberConfig) -> bool {
        self.found_len < config.found_len_max
    }

    /// Counts a search that found this many bytes.
    pub fn count_search(&mut self, found_len: usize) {
        self.found_len += found_len + SEARCH_LEN;
    }

    /// Returns a number for a request that waits for the last entry of the log, which has this place.
    pub fn defer_until_applied(&mut self, place: EntryId, command: Option<CommandId>) -> u64 {
        let request_id = self.defer();
        if let Some(command) = command {
            self.positions.insert(command, self.taken + self.proposed.len() as u64);
        }
        self.proposed.push_back(Proposed { place, request_id, command });
        request_id
    }

    /// Makes a repeat of a command that waits take the place of the earlier request, which its client has given up.
    /// Returns the repeat's number, or `None` if no such command waits. Without this, each repeat would get a log entry
    /// of its own, and clients that lose patience with a slow cluster would make it slower.
    pub fn take_over(&mut self, command: CommandId) -> Option<u64> {
        let position = *self.positions.get(&command)? - self.taken;
        let request_id = self.defer();
        let given_up = std::mem::replace(&mut self.proposed[position as usize].request_id, request_id);
        self.answer(given_up, &Answer::Busy);
        Some(request_id)
    }

    fn take_first(&mut self, is_it: impl FnOnce(&Proposed) -> bool) -> Option<Proposed> {
        let first = self.proposed.pop_front_if(|first| is_it(first))?;
        self.taken += 1;
        if let Some(command) = first.command {
            self.positions.remove(&command);
        }
        Some(first)
    }

    /// Handles the application of the entry at a place: gives this answer to the request that waits for it.
    pub fn on_applied(&mut self, place: EntryId, answer: &Answer<'_>) {
        while let Some(first) = self.take_first(|first| first.place <= place) {
            self.answer(first.request_id, if first.place == place { answer } else { &Answer::Busy });
        }
    }

    /// Handles the application of the log up to a place. If another entry took the place of a request's entry, the fate
    /// of the request is unknown, and its client asks again.
    pub fn on_applied_to(&mut self, place: EntryId) {
        self.on_applied(place, &Answer::Busy);
    }

    /// Whether requests wait for entries.
    pub fn awaits_log(&self) -> bool {
        !self.proposed.is_empty()
    }

    /// Sends all requests that wait for entries elsewhere.
    pub fn redirect_all(&mut self, redirect: &Answer<'_>) {
        while let Some(Proposed { request_id, .. }) = self.take_first(|_| true) {
            self.answer(request_id, redirect);
        }
    }

    fn add_watch(&mut self, watch: Watch, is_checked: bool) {
        if is_checked {
            self.watches.push_back(watch);
        } else {
            self.watches.insert(self.unchecked_watches, watch);
            self.unchecked_watches += 1;
        }
    }

    /// Answers watches that have found something, or have waited long enough. Returns whether more may have found
    /// something.
    pub fn answer_watches(&mut self, machine: &impl StateMachine, config: &MemberConfig, now_ns: u64) -> bool {
        self.begin_search();
        if std::mem::take(&mut self.has_changed) {
            self.unchecked_watches = self.watches.len();
        }
        while self.unchecked_watches > 0
            && self.may_search(config)
            && let Some(mut watch) = self.watches.pop_front()
        {
            self.unchecked_watches -= 1;
            let mut found = Vec::new();
            let is_found = machine.read(&watch.query, &mut found);
            self.count_search(found.len());
            if is_found {
                self.answer(watch.request_id, &Answer::QueryAnswer(&found));
                continue;
            }
            watch.query = machine.resume(&watch.query).unwrap_or(watch.query);
            self.watches.push_back(watch);
        }
        let is_over = |watch: &Watch| now_ns >= watch.end_ns;
        // There may be something for those that are unchecked.
        if self.watches.iter().skip(self.unchecked_watches).any(is_over) {
            let checked = self.watches.split_off(self.unchecked_watches).into_iter();
            let (over, left): (Vec<_>, Vec<_>) = checked.partition(is_over);
            self.watches.extend(left);
            for Watch { request_id, query, .. } in over {
                self.answer(request_id, &Answer::NothingYet { query: &query });
            }
        }
        self.unchecked_watches > 0
    }
}

impl<S: StateMachine, D: Disk> Member<S, D> {
    /// Handles a request of a client.
    pub fn handle_client(&mut self, bytes: &[u8], now_ns: u64) -> Accepted {
        let answer = match wire::decode(bytes) {
            Ok(ask) => match self.handle_request(&ask, now_ns) {
                Ok(taken) => return taken,
                Err(answer) => answer,
            },
            Err(DecodeError::Version(version)) => {
                self.dropped.version += 1;
                let ours = wire::VERSION;
                Answer::Refused(format!(
                    "the request has version {version}, but this member knows version {ours}: use the same release"
                ))
            }
            Err(DecodeError::Malformed) => {
                self.dropped.malformed += 1;
                Answer::Refused("the request was not understood: use the same release on both sides".into())
            }
        };
        Accepted::Answer(to_bytes(&answer))
    }

    fn handle_request(&mut self, ask: &ClientRequest<'_>, now_ns: u64) -> Result<Accepted, Answer<'static>> {
        match *ask {
            ClientRequest::Status => {
                return Ok(Accepted::Answer(to_bytes(&Answer::Status(Box::new(self.status(now_ns))))));
            }
            ClientRequest::Read { query, .. } | ClientRequest::Watch { query } => {
                self.machine.check_query(query).map_err(refused)?
            }
            ClientRequest::Run { command, .. } => {
                let (len, max) = (command.len(), self.config.command_len_max);
                if len > max {
                    return Err(Answer::Refused(format!("a command of {len} bytes: at most {max} are allowed")));
                }
                self.machine.check_command(command).map_err(refused)?
            }
            _ => {}
        }
        if let ClientRequest::Run { session, number, .. } = *ask
            && let Some(request_id) = self.requests.take_over((session, number))
        {
            return Ok(Accepted::Deferred(request_id));
        }
        // Watches have a limit of their own, so that they stop no other request.
        let is_watch = matches!(ask, ClientRequest::Watch { .. });
        let watches = self.requests.watches.len();
        let (waiting, waiting_max) = match is_watch {
            true => (watches, self.config.watches_max),
            false => (self.requests.waiting.saturating_sub(watches), self.config.held_max),
        };
        if waiting >= waiting_max {
            return Err(Answer::Busy);
        }
        let may_search = self.requests.may_search(&self.config);
        if let ClientRequest::Read { freshness, query } = *ask
            && self.may_read_now(freshness, now_ns)
        {
            // Only the leader can let a read wait.
            if !may_search && freshness == Freshness::Stale {
                return Err(Answer::Busy);
            }
            if may_search && let Some(found) = self.search(query) {
                return Ok(found);
            }
        }
        if let ClientRequest::Watch { query } = *ask {
            let is_searched = may_search && self.applied > 0;
            if is_searched && let Some(found) = self.search(query) {
                return Ok(found);
            }
            // A member that was removed, or does not hear its leader, may never see another change.
            if self.is_outside() || !self.hears_leader(now_ns) {
                return Err(self.redirect_now(now_ns));
            }
            let request_id = self.requests.defer();
            let later = if is_searched { self.machine.resume(query) } else { None };
            let query = later.unwrap_or_else(|| query.to_vec());
            self.requests.add_watch(Watch { request_id, query, end_ns: now_ns + WATCH_NS }, is_searched);
            return Ok(Accepted::Deferred(request_id));
        }
        if !self.is_leader() {
            return Err(self.redirect_now(now_ns));
        }
        let request_id = match *ask {
            ClientRequest::Read { freshness, query } => {
                let request_id = self.requests.defer();
                self.queue_read(request_id, freshness, query);
                request_id
            }
            ClientRequest::Open { nonce } => self.propose(LogCommand::Open { nonce })?,
            ClientRequest::Close { session } => self.propose(LogCommand::Close { session })?,
            ClientRequest::Run { session, number, done_below, command } => {
                match self.propose(LogCommand::Run { session, number, done_below, command }) {
                    // A command that has run needs no room.
                    Err(Answer::DiskFull) if let Some(answer) = self.sessions.answer(session, number) => {
                        return Ok(Accepted::Answer(to_bytes(&Answer::CommandAnswer(answer))));
                    }
                    proposed => proposed?,
                }
            }
            _ => self.begin_membership_change(ask, now_ns)?,
        };
        Ok(Accepted::Deferred(request_id))
    }

    /// Searches for a request that has just come. Returns the answer, if there is one.
    fn search(&mut self, query: &[u8]) -> Option<Accepted> {
        let mut found = Vec::new();
        let is_found = self.machine.read(query, &mut found);
        self.requests.count_search(if is_found { found.len() } else { VAIN_SEARCH_LEN });
        is_found.then(|| Accepted::Answer(to_bytes(&Answer::QueryAnswer(&found))))
    }

    /// Proposes a log entry, and makes a request wait for it. Returns the request's number.
    fn propose(&mut self, order: LogCommand<'_>) -> Result<u64, Answer<'static>> {
        let (command, capacity) = match order {
            LogCommand::Run { session, number, command, .. } => (Some((session, number)), command.len() + 40),
            _ => (None, 16),
        };
        let mut data = Vec::with_capacity(capacity);
        wire::encode(&order, &mut data);
        if !self.has_room(1, data.len()) {
            return Err(Answer::DiskFull);
        }
        // Fails while leadership is being handed over, or too much is uncommitted.
        self.node.propose(Vec::new(), data).map_err(|_| Answer::Busy)?;
        let raft = &self.node.raft;
        Ok(self.requests.defer_until_applied((raft.term, raft.raft_log.last_index()), command))
    }

    /// Passes on the answers that have become ready, with the numbers of their requests.
    pub fn take_answers(&mut self, mut handle: impl FnMut(u64, &[u8])) {
        let WaitingRequests { answers, bytes, .. } = &mut self.requests;
        for (request_id, place) in answers.drain(..) {
            handle(request_id, &bytes[place]);
        }
        bytes.clear();
        // Many long answers at once should not hold their memory for ever.
        bytes.shrink_to(BYTES_KEPT);
    }

    pub(super) fn redirect(&self) -> Answer<'static> {
        Answer::NotLeader {
            leader: self.leader().filter(|leader| leader.id != self.me.id).cloned(),
            members: self.members.values().cloned().collect(),
            silent: Vec::new(),
        }
    }

    fn redirect_now(&self, now_ns: u64) -> Answer<'static> {
        let mut answer = self.redirect();
        if let Answer::NotLeader { silent, .. } = &mut answer {
            silent.extend(self.silent(now_ns).into_iter().map(str::to_owned));
        }
        answer
    }

    /// Whether the member leads, or has heard its leader lately.
    fn hears_leader(&self, now_ns: u64) -> bool {
        let silent = self.silent(now_ns);
        self.leader().is_some_and(|leader| leader.id == self.me.id || !silent.contains(leader.name.as_str()))
    }

    /// Whether the member is none of the cluster's members, as far as it knows.
    pub(super) fn is_outside(&self) -> bool {
        self.applied == 0 || self.is_unwanted || !self.members.contains_key(&self.me.id)
    }

    /// Returns the status of this member.
    pub fn status(&self, now_ns: u64) -> Status {
        let raft = &self.node.raft;
        let progress =
            |id: MemberId| raft.prs().get(id.0).filter(|_| self.is_leader()).map(|progress| progress.matched);
        let role = match raft.state {
            _ if self.cluster.is_none() && !self.founding_state.is_too_late() => Role::Founding,
            _ if self.is_outside() => Role::Outside,
            StateRole::Leader => Role::Leader,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            StateRole::Follower if raft.prs().conf().voters().contains(self.me.id.0) => Role::Follower,
            StateRole::Follower => Role::Learner,
        };
        let roles = raft.prs().conf().to_conf_state();
        let is_between_steps = !roles.voters_outgoing.is_empty();
        let standing = |id: MemberId| match (roles.voters.contains(&id.0), roles.voters_outgoing.contains(&id.0)) {
            (true, false) if is_between_steps => Standing::Joining,
            (true, _) => Standing::Voter,
            (false, true) => Standing::Leaving,
            (false, false) => Standing::Learner,
        };
        let member = |info: &wire::MemberInfo| MemberStatus {
            info: info.clone(),
            standing: standing(info.id),
            matched: progress(info.id),
            silent_ns: self.last_heard_ns.get(&info.id).map(|heard| now_ns.saturating_sub(*heard)),
        };
        Status {
            me: self.me.clone(),
            cluster: self.cluster.map(|cluster| cluster.0),
            role,
            leader: self.leader().cloned(),
            term: raft.term,
            committed: raft.raft_log.committed,
            applied: self.applied,
            last: raft.raft_log.last_index(),
            snapshot: self.node.store().latest_snapshot().get_metadata().index,
            sessions: self.sessions.len() as u64,
            is_durable: self.journal.is_some(),
            is_full: self.is_full,
            truncated_len: self.truncated.as_ref().map_or(0, |(_, len)| *len),
            members: self.members.values().map(member).collect(),
            dropped: self.dropped,
        }
    }
}

fn refused(malformed: crate::machine::Malformed) -> Answer<'static> {
    Answer::Refused(malformed.0)
}

fn to_bytes(answer: &Answer<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(96);
    wire::encode(answer, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(requests: &mut WaitingRequests) -> Vec<(u64, Vec<u8>)> {
        let begin = requests.bytes.clone();
        requests.answers.drain(..).map(|(request_id, place)| (request_id, begin[place].to_vec())).collect()
    }

    #[test]
    fn a_request_is_answered_by_its_own_entry_and_asked_again_where_another_took_its_place() {
        let mut requests = WaitingRequests::default();
        let request_ids: Vec<u64> =
            [(1, 5), (1, 6), (3, 7)].map(|place| requests.defer_until_applied(place, None)).into();
        requests.on_applied((1, 5), &Answer::Done);
        // An entry of another leader.
        requests.on_applied((2, 6), &Answer::Forgotten);
        requests.on_applied_to((2, 7));
        let (done, busy) = (to_bytes(&Answer::Done), to_bytes(&Answer::Busy));
        assert_eq!(answers(&mut requests), [(request_ids[0], done), (request_ids[1], busy)]);
        assert!(requests.awaits_log() && requests.waiting == 1);
    }

    #[test]
    fn a_repeat_takes_the_place_of_the_request_that_waits_and_of_no_other() {
        let mut requests = WaitingRequests::default();
        let first = requests.defer_until_applied((1, 5), Some((7, 2)));
        let other = requests.defer_until_applied((1, 6), Some((8, 2)));
        for command in [(7, 1), (7, 3), (9, 2)] {
            assert_eq!(requests.take_over(command), None, "{command:?}");
        }
        let repeat = requests.take_over((7, 2)).unwrap();
        requests.on_applied((1, 5), &Answer::Done);
        let (done, busy) = (to_bytes(&Answer::Done), to_bytes(&Answer::Busy));
        assert_eq!(answers(&mut requests), [(first, busy), (repeat, done)]);
        assert_eq!(requests.take_over((7, 2)), None, "it waits no more");
        assert!(requests.take_over((8, 2)).is_some_and(|request_id| request_id != other) && requests.waiting == 1);
    }
}
