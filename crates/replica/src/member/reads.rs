//! Reads at the leader: by asking a majority whether it still leads (read index), once for all reads of a turn, or by a lease.
//!
//! A lease is what such a confirmation is good for: nobody who confirmed votes for somebody else before an election time-out has passed on its clock. So until
//! then, less what clocks may differ by, the leader knows that nobody else has been elected. A transfer of leadership breaks that, so a term that has
//! seen one has no leases any more.

use std::collections::VecDeque;

use raft::{RawNode, ReadState, StateRole};
use sinew_journal::disk::Disk;

use super::Member;
use super::clients::Clients;
use crate::client_wire::{Answer, Freshness};
use crate::log::Log;
use crate::machine::StateMachine;

struct Read {
    held: u64,
    query: Vec<u8>,
    /// Of the question that it waits for.
    round: u64,
    /// The entry that has to be applied, once confirmed.
    index: Option<u64>,
}

/// Reads that wait.
#[derive(Default)]
pub struct Reads {
    waiting: VecDeque<Read>,
    round: u64,
    /// Reads have come since the last question.
    has_new: bool,
    /// Questions that are not answered: their numbers, and when they were asked.
    asked: VecDeque<(u64, u64)>,
    /// Until when a confirmation is good for reads by lease, of which term.
    lease: (u64, u64),
    /// The last term that has none.
    no_lease_term: u64,
}

impl Reads {
    /// Asks for all reads that have come, once.
    pub fn begin(&mut self, node: &mut RawNode<Log>, now_ns: u64) {
        // Before it has an entry of its own decided, a leader does not know what is.
        if !self.has_new || node.raft.state != StateRole::Leader || !node.raft.commit_to_current_term() {
            return;
        }
        self.has_new = false;
        self.asked.push_back((self.round, now_ns));
        node.read_index(self.round.to_le_bytes().to_vec());
        self.round += 1;
    }

    /// A majority has answered.
    pub fn confirmed(&mut self, states: Vec<ReadState>, _now_ns: u64) {
        for state in states {
            let Some(round) = state.request_ctx.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else { continue };
            for read in self.waiting.iter_mut().filter(|read| read.round <= round) {
                read.index.get_or_insert(state.index);
            }
            while let Some((number, asked_ns)) = self.asked.front().copied().filter(|(number, _)| *number <= round) {
                self.asked.pop_front();
                if number == round {
                    self.lease.0 = asked_ns;
                }
            }
        }
    }

    /// Confirmations of a term are good for nothing any more.
    pub fn forget_lease(&mut self) {
        self.lease = (0, 0);
    }

    /// No leases in this term.
    pub fn no_lease(&mut self, term: u64) {
        self.no_lease_term = term;
        self.forget_lease();
    }

    /// Whether none waits.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// All are sent elsewhere.
    pub fn turn_away(&mut self, clients: &mut Clients, elsewhere: &Answer<'_>) {
        for read in self.waiting.drain(..) {
            clients.answer(read.held, elsewhere);
        }
        self.asked.clear();
        self.has_new = false;
    }
}

impl<S: StateMachine, D: Disk> Member<S, D> {
    /// Answers at once, or says no.
    pub(super) fn read_at_once(
        &mut self,
        freshness: Freshness,
        query: &[u8],
        now_ns: u64,
        answer: &mut Vec<u8>,
    ) -> bool {
        let may = match freshness {
            Freshness::Stale => self.applied > 0,
            Freshness::Lease => {
                let raft = &self.node.raft;
                // A tick may be late, and the next one comes all the sooner: that takes up to two off the time that others wait.
                let ticks = self.config.election_ticks.saturating_sub(2) as u64;
                let full_ns = ticks * self.config.tick_ns;
                let good_ns = full_ns - full_ns / 1_000_000 * self.config.drift_max_ppm.min(1_000_000) - 1;
                let confirmed_ns = self.reads.lease.0;
                raft.state == StateRole::Leader
                    && raft.commit_to_current_term()
                    && raft.term > self.reads.no_lease_term
                    && confirmed_ns > 0
                    && now_ns < confirmed_ns.saturating_add(good_ns)
                    && self.applied >= raft.raft_log.committed
            }
            Freshness::Linear => false,
        };
        may && self.machine.read(query, answer)
    }

    /// A read that waits for a confirmation.
    pub(super) fn hold_read(&mut self, held: u64, query: &[u8]) {
        let round = self.reads.round;
        self.reads.waiting.push_back(Read { held, query: query.to_vec(), round, index: None });
        self.reads.has_new = true;
    }

    /// Answers reads that are confirmed, and whose entries are applied.
    pub(super) fn answer_reads(&mut self) {
        let applied = self.applied;
        while let Some(read) = self.reads.waiting.front()
            && read.index.is_some_and(|index| index <= applied)
        {
            let Some(read) = self.reads.waiting.pop_front() else { break };
            let mut found = Vec::new();
            self.machine.read(&read.query, &mut found);
            self.clients.answer(read.held, &Answer::Found(&found));
        }
    }
}
