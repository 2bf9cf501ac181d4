//! Reads at the leader: either it asks a majority whether it still leads (read index), once for all reads of a turn, or
//! it relies on a lease.
//!
//! A majority that confirms a round which asks for a lease also grants it: until an election time-out has passed on its
//! clock, each of these members votes for nobody else. So until then, less the allowed clock drift, the leader knows
//! that no other has been elected. A transfer of leadership does not wait for that, so a term in which one was begun
//! has no leases from then on.
//!
//! The lease counts from the moment at which the majority was asked. It is shorter than the election time-out by two
//! ticks and by the clock drift. A leader that asks for a lease states its length. A member whose own election time-out
//! is shorter votes for nobody for that length. It confirms no lease of more than twice the length of its own, because
//! after a restart from its disk it votes for nobody for two of its own election time-outs. So it must not be restarted
//! with a shorter election time-out while such a lease lasts.

use std::collections::VecDeque;

use raft::{RawNode, ReadState, StateRole};
use sinew_journal::disk::Disk;

use super::clients::WaitingRequests;
use super::{Member, MemberConfig};
use crate::client_wire::{Answer, Freshness};
use crate::log::Log;
use crate::machine::StateMachine;

struct Read {
    request_id: u64,
    query: Vec<u8>,
    /// Number of the round that must confirm it.
    round: u64,
    /// Index that must be applied, once the read is confirmed.
    index: Option<u64>,
}

/// Length of a round's number in the context of its heartbeats, in bytes. The length of the lease follows it:
/// [`full_lease_ns`], or 0 if no read asked for one.
const ROUND_LEN: usize = 8;

/// Length of a lease on clocks that do not drift, in ns. A tick may be late, and the next one then comes sooner, which
/// can shorten the time that others wait by up to two ticks.
fn full_lease_ns(config: &MemberConfig) -> u64 {
    config.election_ticks.saturating_sub(2) as u64 * config.tick_ns
}

/// Reads that wait.
#[derive(Default)]
pub struct Reads {
    waiting: VecDeque<Read>,
    round: u64,
    /// Whether reads have come since the last round, and whether any of them may be answered by lease.
    has_new: bool,
    wants_lease: bool,
    /// Unanswered rounds: their numbers, and the times at which those were begun that ask for a lease.
    unanswered_rounds: VecDeque<(u64, Option<u64>)>,
    /// Time at which the last confirmed round with a lease was begun; 0 if there is none.
    confirmed_ns: u64,
    /// Last term that has no leases.
    leaseless_term: u64,
}

impl Reads {
    /// Begins a round for all reads that have come.
    pub fn begin(&mut self, node: &mut RawNode<Log>, config: &MemberConfig, now_ns: u64) {
        // Until an entry of its own term is committed, a leader does not know the commit index.
        if !self.has_new || node.raft.state != StateRole::Leader || !node.raft.commit_to_current_term() {
            return;
        }
        self.has_new = false;
        let has_lease = std::mem::take(&mut self.wants_lease);
        self.unanswered_rounds.push_back((self.round, has_lease.then_some(now_ns)));
        let lease_ns = if has_lease { full_lease_ns(config) } else { 0 };
        node.read_index([self.round, lease_ns].map(u64::to_le_bytes).concat());
        self.round += 1;
    }

    /// Handles confirmations by a majority.
    pub fn on_confirmed(&mut self, states: Vec<ReadState>) {
        for state in states {
            let Some(round) = state.request_ctx.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else { continue };
            for read in self.waiting.iter_mut().filter(|read| read.round <= round) {
                read.index.get_or_insert(state.index);
            }
            while let Some((number, asked_ns)) =
                self.unanswered_rounds.front().copied().filter(|(number, _)| *number <= round)
            {
                self.unanswered_rounds.pop_front();
                // Answers to a later round confirm this one as well, but grant a lease only if that round asked for
                // one.
                let asks_for_lease = self.unanswered_rounds.iter().all(|(_, asked_ns)| asked_ns.is_some());
                if let (true, true, Some(asked_ns)) = (number == round, asks_for_lease, asked_ns) {
                    self.confirmed_ns = asked_ns;
                }
            }
        }
    }

    /// Drops the lease, as its term has ended.
    pub fn drop_lease(&mut self) {
        self.confirmed_ns = 0;
    }

    /// Allows no leases in this term.
    pub fn forbid_lease(&mut self, term: u64) {
        self.leaseless_term = term;
        self.drop_lease();
    }

    /// Whether no reads wait.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends all reads elsewhere.
    pub fn redirect_all(&mut self, requests: &mut WaitingRequests, elsewhere: &Answer<'_>) {
        for read in self.waiting.drain(..) {
            requests.answer(read.request_id, elsewhere);
        }
        self.unanswered_rounds.clear();
        (self.has_new, self.wants_lease) = (false, false);
    }
}

impl<S: StateMachine, D: Disk> Member<S, D> {
    /// Whether a read may be answered at once.
    pub(super) fn may_read_now(&self, freshness: Freshness, now_ns: u64) -> bool {
        match freshness {
            Freshness::Stale => self.applied > 0,
            Freshness::Lease => {
                let raft = &self.node.raft;
                let full_ns = full_lease_ns(&self.config);
                let lease_ns = full_ns - full_ns / 1_000_000 * self.config.drift_max_ppm.min(1_000_000) - 1;
                let confirmed_ns = self.reads.confirmed_ns;
                raft.state == StateRole::Leader
                    && raft.commit_to_current_term()
                    && raft.term > self.reads.leaseless_term
                    && confirmed_ns > 0
                    && now_ns < confirmed_ns.saturating_add(lease_ns)
                    && self.applied >= raft.raft_log.committed
            }
            Freshness::Linear => false,
        }
    }

    /// Decides whether to confirm a round of reads, by the context of a heartbeat. If so, and its lease is longer than
    /// this member would wait anyway before it votes for another, votes for nobody until it has ended.
    pub(super) fn promise_lease(&mut self, context: &[u8], now_ns: u64) -> bool {
        let lease_ns = context.get(ROUND_LEN..).and_then(<[u8]>::first_chunk).map(|bytes| u64::from_le_bytes(*bytes));
        let (lease_ns, own_ns) = (lease_ns.unwrap_or(0), full_lease_ns(&self.config));
        if lease_ns > 2 * own_ns {
            return false;
        }
        if lease_ns > own_ns {
            self.quiet_until_ns = self.quiet_until_ns.max(now_ns + lease_ns);
        }
        true
    }

    /// Adds a read that waits for a confirmation.
    pub(super) fn queue_read(&mut self, request_id: u64, freshness: Freshness, query: &[u8]) {
        let round = self.reads.round;
        self.reads.waiting.push_back(Read { request_id, query: query.to_vec(), round, index: None });
        self.reads.has_new = true;
        self.reads.wants_lease |= freshness == Freshness::Lease;
    }

    /// Answers confirmed reads whose entries are applied. Returns whether more of them wait for the next turn.
    pub(super) fn answer_reads(&mut self) -> bool {
        let applied = self.applied;
        self.requests.begin_search();
        while let Some(read) = self.reads.waiting.pop_front_if(|read| read.index.is_some_and(|index| index <= applied))
        {
            if !self.requests.may_search(&self.config) {
                self.reads.waiting.push_front(read);
                return true;
            }
            let mut found = Vec::new();
            self.machine.read(&read.query, &mut found);
            self.requests.count_search(found.len());
            self.requests.answer(read.request_id, &Answer::QueryAnswer(&found));
        }
        false
    }
}
