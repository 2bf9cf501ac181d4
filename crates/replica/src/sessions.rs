//! Clients' sessions: each command runs once, whatever is repeated and whoever leads.
//!
//! A session is part of the replicated state. It keeps the answers to commands that its client may ask for again. Sessions expire by the log: when there
//! are too many, that which was used longest ago, in the log's order, is gone. So all members agree on what has expired.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

/// Sessions that there can be. Opening one more ends the one that was used longest ago.
pub const SESSIONS_MAX: usize = 4096;
/// Answers that a session keeps: commands that a client may have in flight.
pub const IN_FLIGHT_MAX: usize = 256;

/// What a session says to a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It has not run: run it, and keep the answer with [`Sessions::keep`].
    Run,
    /// It has run, with this answer.
    Ran(&'a [u8]),
    /// It has run, and its client has said that it has the answer.
    Forgotten,
    /// There is no such session (any more).
    Expired,
    /// More commands are in flight than [`IN_FLIGHT_MAX`].
    TooMany,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Session {
    /// Of the last use.
    used: u64,
    /// What opened it: asked for twice, it is opened once.
    nonce: u64,
    /// Commands below this have run, and their answers have arrived.
    done_below: u64,
    answers: BTreeMap<u64, Vec<u8>>,
}

/// All sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sessions {
    sessions: BTreeMap<u64, Session>,
    by_use: BTreeMap<u64, u64>,
    /// Answers' buffers that can be used again.
    #[serde(skip)]
    spare: Spare,
}

#[derive(Clone, Debug, Default)]
struct Spare(VecDeque<Vec<u8>>);

impl PartialEq for Spare {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Spare {}

impl Sessions {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Opens a session, by a log entry's index, which becomes its name. A nonce that opened one gives the same one again.
    pub fn open(&mut self, index: u64, nonce: u64) -> u64 {
        if let Some((name, _)) = self.sessions.iter().find(|(_, session)| session.nonce == nonce) {
            let name = *name;
            self.touch(name, index);
            return name;
        }
        if self.sessions.len() >= SESSIONS_MAX
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.sessions.remove(&oldest);
        }
        self.sessions.insert(index, Session { used: index, nonce, ..Session::default() });
        self.by_use.insert(index, index);
        index
    }

    /// Ends a session.
    pub fn close(&mut self, name: u64) {
        if let Some(session) = self.sessions.remove(&name) {
            self.by_use.remove(&session.used);
        }
    }

    fn touch(&mut self, name: u64, index: u64) {
        if let Some(session) = self.sessions.get_mut(&name) {
            self.by_use.remove(&session.used);
            session.used = index;
            self.by_use.insert(index, name);
        }
    }

    /// What becomes of command `number` of a session, by the log entry `index`. Its client has the answers to all commands below `done_below`.
    pub fn begin(&mut self, index: u64, name: u64, number: u64, done_below: u64) -> Verdict<'_> {
        self.touch(name, index);
        let Some(session) = self.sessions.get_mut(&name) else { return Verdict::Expired };
        while session.answers.first_key_value().is_some_and(|(number, _)| *number < done_below) {
            if let Some((_, answer)) = session.answers.pop_first()
                && self.spare.0.len() < IN_FLIGHT_MAX
            {
                self.spare.0.push_back(answer);
            }
        }
        session.done_below = session.done_below.max(done_below);
        if number < session.done_below {
            return Verdict::Forgotten;
        }
        if session.answers.len() >= IN_FLIGHT_MAX && !session.answers.contains_key(&number) {
            return Verdict::TooMany;
        }
        match session.answers.get(&number) {
            Some(answer) => Verdict::Ran(answer),
            None => Verdict::Run,
        }
    }

    /// An empty buffer for an answer.
    pub fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.spare.0.pop_front().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Keeps the answer of a command that [`Self::begin`] said to run.
    pub fn keep(&mut self, name: u64, number: u64, answer: Vec<u8>) -> &[u8] {
        match self.sessions.get_mut(&name) {
            Some(session) => session.answers.entry(number).or_insert(answer),
            None => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(sessions: &mut Sessions, index: u64, name: u64, number: u64, done_below: u64) -> Option<Vec<u8>> {
        match sessions.begin(index, name, number, done_below) {
            Verdict::Run => {
                let answer = index.to_le_bytes().to_vec();
                Some(sessions.keep(name, number, answer).to_vec())
            }
            Verdict::Ran(answer) => Some(answer.to_vec()),
            _ => None,
        }
    }

    #[test]
    fn a_repeated_command_gets_its_first_answer() {
        let mut sessions = Sessions::default();
        let name = sessions.open(5, 77);
        let first = run(&mut sessions, 6, name, 0, 0);
        assert_eq!(run(&mut sessions, 9, name, 0, 0), first);
        assert_eq!(run(&mut sessions, 10, name, 1, 1), Some(10_u64.to_le_bytes().to_vec()));
        assert_eq!(sessions.begin(11, name, 0, 0), Verdict::Forgotten);
    }

    #[test]
    fn opening_with_the_same_nonce_opens_once() {
        let mut sessions = Sessions::default();
        assert_eq!((sessions.open(5, 77), sessions.open(6, 77), sessions.open(7, 78)), (5, 5, 7));
    }

    #[test]
    fn the_session_used_longest_ago_expires_and_says_so() {
        let mut sessions = Sessions::default();
        for index in 1..=SESSIONS_MAX as u64 {
            sessions.open(index, index);
        }
        assert_eq!(sessions.begin(5000, 1, 0, 0), Verdict::Run);
        sessions.open(5001, 5001);
        assert_eq!(sessions.begin(5002, 2, 0, 0), Verdict::Expired);
        assert_eq!(sessions.begin(5003, 1, 1, 0), Verdict::Run);
        assert_eq!(sessions.len(), SESSIONS_MAX);
    }

    #[test]
    fn a_session_keeps_no_more_answers_than_it_may() {
        let mut sessions = Sessions::default();
        let name = sessions.open(1, 1);
        for number in 0..IN_FLIGHT_MAX as u64 {
            assert!(run(&mut sessions, number + 2, name, number, 0).is_some());
        }
        assert_eq!(sessions.begin(1000, name, IN_FLIGHT_MAX as u64, 0), Verdict::TooMany);
        assert!(run(&mut sessions, 1001, name, IN_FLIGHT_MAX as u64, 1).is_some());
    }

    proptest::proptest! {
        /// Against a map that never forgets.
        #[test]
        fn each_command_runs_once(tries in proptest::collection::vec((0_u64..3, 0_u64..20, 0_u64..20), 0..200)) {
            let mut sessions = Sessions::default();
            let names: Vec<_> = (0..3).map(|nonce| sessions.open(nonce + 1, nonce)).collect();
            let mut ran = std::collections::BTreeSet::new();
            let mut done = [0; 3];
            for (index, (client, number, done_below)) in tries.into_iter().enumerate() {
                done[client as usize] = done_below.max(done[client as usize]);
                match sessions.begin(index as u64 + 10, names[client as usize], number, done_below) {
                    Verdict::Run => {
                        proptest::prop_assert!(ran.insert((client, number)), "ran twice");
                        sessions.keep(names[client as usize], number, vec![]);
                    }
                    Verdict::Ran(_) => proptest::prop_assert!(ran.contains(&(client, number))),
                    Verdict::Forgotten => proptest::prop_assert!(number < done[client as usize]),
                    other => proptest::prop_assert!(false, "{other:?}"),
                }
            }
        }
    }
}
