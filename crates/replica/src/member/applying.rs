//! Application of committed entries: commands, sessions and changes of the configuration.

use raft::eraftpb::{ConfChangeV2, Entry, EntryType};
use serde::{Deserialize, Serialize};
use sinew_journal::disk::Disk;

use super::engine::Change;
use super::{Member, MemberError};
use crate::client_wire::Answer;
use crate::machine::StateMachine;
use crate::sessions::Verdict;
use crate::wire;

/// Contents of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogCommand<'a> {
    /// Opens a session.
    Open {
        nonce: u64,
    },
    Close {
        session: u64,
    },
    Run {
        session: u64,
        number: u64,
        done_below: u64,
        #[serde(borrow, with = "serde_bytes")]
        command: &'a [u8],
    },
}

impl<S: StateMachine, D: Disk> Member<S, D> {
    pub(super) fn apply(&mut self, entries: &[Entry]) -> Result<(), MemberError> {
        for entry in entries {
            match entry.get_entry_type() {
                EntryType::EntryNormal if entry.data.is_empty() => {}
                EntryType::EntryNormal => self.apply_command(entry),
                EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => self.apply_change(entry)?,
            }
            self.applied = entry.index;
            self.requests.on_applied_to((entry.term, entry.index));
        }
        Ok(())
    }

    fn apply_command(&mut self, entry: &Entry) {
        let place = (entry.term, entry.index);
        // What this release does not understand changes nothing, at any member.
        let Ok(order) = wire::decode(&entry.data) else { return };
        match order {
            LogCommand::Open { nonce } => {
                let cluster = self.cluster.unwrap_or(wire::ClusterId::NONE);
                let session = self.sessions.open(cluster, entry.index, nonce);
                self.requests.on_applied(place, &Answer::Opened { session });
            }
            LogCommand::Close { session } => {
                self.sessions.close(session);
                self.requests.on_applied(place, &Answer::Done);
            }
            LogCommand::Run { session, number, done_below, command } => {
                let answer = match self.sessions.begin(entry.index, session, number, done_below) {
                    Verdict::Run => {
                        let mut answer = self.sessions.buffer();
                        self.machine.apply(command, &mut answer);
                        self.requests.has_changed = true;
                        Answer::CommandAnswer(self.sessions.store_answer(session, number, answer))
                    }
                    Verdict::HasRun(answer) => Answer::CommandAnswer(answer),
                    Verdict::Forgotten => Answer::Forgotten,
                    Verdict::Expired => Answer::Expired,
                    Verdict::TooMany => Answer::Busy,
                };
                self.requests.on_applied(place, &answer);
            }
        }
    }

    fn apply_change(&mut self, entry: &Entry) -> Result<(), MemberError> {
        // The engine ends a two-step change by an entry of its own, which has no context.
        let change = match entry.context.is_empty() {
            true => None,
            false => wire::decode::<Change>(&entry.context).ok().filter(Change::is_valid),
        };
        let in_engine = change.as_ref().map_or_else(ConfChangeV2::default, Change::to_engine);
        if self.node.apply_conf_change(&in_engine).is_err() {
            // All members refuse it alike.
            return Ok(());
        }
        self.has_changed_members = true;
        // It was elected while its removal was in the log. The engine's leader goes on, but takes no commands, and
        // panics once more is committed.
        if self.is_leader() && !self.node.raft.prs().conf().voters().contains(self.me.id.0) {
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, raft::INVALID_ID);
        }
        for member in change.iter().flat_map(|change| change.voters.iter().chain(&change.learners)) {
            self.members.insert(member.id, member.clone());
        }
        self.forget_former_members();
        match change {
            Some(change) => self.changes.on_applied(&mut self.requests, &change, entry.index),
            None => self.changes.on_second_step(entry.index),
        }
        Ok(())
    }

    /// Forgets members that the configuration no longer has. One that is removed in two steps votes until the second,
    /// so until then it has to be reached.
    fn forget_former_members(&mut self) {
        let present = self.node.raft.prs();
        let former = self.members.extract_if(.., |id, _| present.get(id.0).is_none());
        for (gone, _) in former {
            self.last_heard_ns.remove(&gone);
            self.patience.forget(gone);
            self.outgoing.remove(&gone);
        }
    }
}
