//! Clients' sessions: each command runs once, however often it is sent and whichever member leads.
//!
//! A session is part of the replicated state. It keeps the answers to commands that its client may repeat. Sessions
//! expire by the log: when there are too many, the one least recently used, in the log's order, is dropped. So all
//! members agree on which have expired. In the same way the oldest long answers are dropped when there are too many.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::wire::ClusterId;

/// Sessions at a time, at most. Opening one more ends the one least recently used.
pub const SESSIONS_MAX: usize = 4096;
/// Answers that a session keeps, and so commands that a client may have in flight.
pub const IN_FLIGHT_MAX: usize = 256;
/// Bytes of long answers that all sessions keep together, at most, apart from the last. A snapshot serialises them in
/// one go, with the short ones, of which there are 64 MiB at most.
pub const LONG_ANSWERS_LEN_MAX: usize = 8 << 20;
/// Longest answer, in bytes, that is kept however many there are.
const SHORT_LEN_MAX: usize = 64;

/// Decision on a command of a session.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It has not run: run it, and keep the answer with [`Sessions::store_answer`].
    Run,
    /// It has run, with this answer.
    HasRun(&'a [u8]),
    /// It has run, and its answer is no longer kept: its client has confirmed it, or there were too many long ones.
    Forgotten,
    /// The session does not exist, or not any more.
    Expired,
    /// Its number is [`IN_FLIGHT_MAX`] or more above the first whose answer the client does not have.
    TooMany,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Session {
    /// Log index of the last use.
    last_used_index: u64,
    /// Nonce that opened it, so that a repeated request opens only one session.
    nonce: u64,
    /// Commands below this number have run, and their answers have arrived.
    done_below: u64,
    /// Answers, in order of the commands' numbers.
    answers: VecDeque<KeptAnswer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptAnswer {
    number: u64,
    /// Index of the command's log entry.
    index: u64,
    /// `None` once it was dropped.
    bytes: Option<Vec<u8>>,
}

impl Session {
    /// Position of a command's answer (`Ok`), or the position at which to insert it (`Err`).
    fn position(&self, number: u64) -> Result<usize, usize> {
        self.answers.binary_search_by_key(&number, |answer| answer.number)
    }

    /// Whether it can keep such an answer: of a command that may be in flight, and that ran by its last use or before.
    fn may_keep(&self, answer: &KeptAnswer) -> bool {
        let ahead = answer.number.checked_sub(self.done_below);
        ahead.is_some_and(|ahead| ahead < IN_FLIGHT_MAX as u64) && answer.index <= self.last_used_index
    }
}

/// Whether no number comes twice.
fn all_differ(numbers: impl Iterator<Item = u64>) -> bool {
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    numbers.is_sorted_by(|one, next| one < next)
}

/// The long answers of all sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct LongAnswers {
    /// Session and number of each one's command, by the index of the log entry.
    places: BTreeMap<u64, (u64, u64)>,
    len: usize,
}

impl LongAnswers {
    fn add(&mut self, index: u64, place: (u64, u64), len: usize) {
        if len > SHORT_LEN_MAX {
            self.places.insert(index, place);
            self.len += len;
        }
    }

    fn remove(&mut self, answer: &KeptAnswer) {
        if self.places.remove(&answer.index).is_some() {
            self.len = self.len.saturating_sub(answer.bytes.as_ref().map_or(0, Vec::len));
        }
    }

    /// Whether the oldest must be dropped.
    fn are_too_many(&self) -> bool {
        self.len > LONG_ANSWERS_LEN_MAX && self.places.len() > 1
    }
}

/// All sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sessions {
    sessions: BTreeMap<u64, Session>,
    by_use: BTreeMap<u64, u64>,
    long_answers: LongAnswers,
    /// Buffers of answers, for reuse.
    #[serde(skip)]
    spare: SpareBuffers,
}

#[derive(Clone, Debug, Default)]
struct SpareBuffers(VecDeque<Vec<u8>>);

impl PartialEq for SpareBuffers {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SpareBuffers {}

impl Sessions {
    /// Whether sessions that came from elsewhere, of this cluster after the log entry `last_index`, are as these would
    /// be: no more than there may be, with names, nonces and entries of their own, in order, and counted; with answers
    /// that may be kept, and of which the long ones are no more than are kept together.
    pub fn is_valid(&self, cluster: ClusterId, last_index: u64) -> bool {
        let mut long_answers = LongAnswers::default();
        for (name, session) in &self.sessions {
            for KeptAnswer { number, index, bytes } in &session.answers {
                long_answers.add(*index, (*name, *number), bytes.as_ref().map_or(0, Vec::len));
            }
        }
        let is_right = |(name, session): (&u64, &Session)| {
            let opened_index = *name ^ cluster.0;
            (opened_index..=last_index).contains(&session.last_used_index)
                && self.by_use.get(&session.last_used_index) == Some(name)
                && session.answers.iter().is_sorted_by(|one, next| one.number < next.number)
                && session.answers.iter().all(|answer| session.may_keep(answer))
        };
        let answers = self.sessions.values().flat_map(|session| &session.answers);
        self.sessions.len() <= SESSIONS_MAX
            && self.by_use.len() == self.sessions.len()
            && self.sessions.iter().all(is_right)
            && all_differ(self.sessions.values().map(|session| session.nonce))
            && all_differ(answers.map(|answer| answer.index))
            && self.long_answers == long_answers
            && !long_answers.are_too_many()
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Opens a session, by the log entry `index`. A nonce that has opened one returns the same session. No other
    /// session of this or another cluster has its name, because a client may outlive a cluster without disks, and an
    /// old request to open a session may arrive again.
    pub fn open(&mut self, cluster: ClusterId, index: u64, nonce: u64) -> u64 {
        if let Some((name, _)) = self.sessions.iter().find(|(_, session)| session.nonce == nonce) {
            let name = *name;
            self.touch(name, index);
            return name;
        }
        let name = cluster.0 ^ index;
        if self.sessions.len() >= SESSIONS_MAX
            && let Some((_, oldest)) = self.by_use.first_key_value()
        {
            self.close(*oldest);
        }
        self.sessions.insert(name, Session { last_used_index: index, nonce, ..Session::default() });
        self.by_use.insert(index, name);
        name
    }

    /// Ends a session.
    pub fn close(&mut self, name: u64) {
        if let Some(session) = self.sessions.remove(&name) {
            self.by_use.remove(&session.last_used_index);
            session.answers.iter().for_each(|answer| self.long_answers.remove(answer));
        }
    }

    fn touch(&mut self, name: u64, index: u64) {
        if let Some(session) = self.sessions.get_mut(&name) {
            self.by_use.remove(&session.last_used_index);
            session.last_used_index = index;
            self.by_use.insert(index, name);
        }
    }

    /// Decides on command `number` of a session, by the log entry `index`. The client has the answers to all commands
    /// below `done_below`.
    pub fn begin(&mut self, index: u64, name: u64, number: u64, done_below: u64) -> Verdict<'_> {
        self.touch(name, index);
        let Some(session) = self.sessions.get_mut(&name) else { return Verdict::Expired };
        while let Some(answer) = session.answers.pop_front_if(|answer| answer.number < done_below) {
            self.long_answers.remove(&answer);
            if let Some(buffer) = answer.bytes.filter(|bytes| bytes.capacity() <= SHORT_LEN_MAX)
                && self.spare.0.len() < IN_FLIGHT_MAX
            {
                self.spare.0.push_back(buffer);
            }
        }
        session.done_below = session.done_below.max(done_below);
        if number < session.done_below {
            return Verdict::Forgotten;
        }
        // The limit counts numbers, not answers kept, so the first command in flight can always run, and the others
        // after it.
        if number - session.done_below >= IN_FLIGHT_MAX as u64 {
            return Verdict::TooMany;
        }
        match session.position(number) {
            Ok(place) => session.answers[place].bytes.as_deref().map_or(Verdict::Forgotten, Verdict::HasRun),
            Err(_) => Verdict::Run,
        }
    }

    /// The answer of a command that has run, if it is kept.
    pub fn answer(&self, name: u64, number: u64) -> Option<&[u8]> {
        let session = self.sessions.get(&name)?;
        session.position(number).ok().and_then(|place| session.answers[place].bytes.as_deref())
    }

    /// Returns an empty buffer for an answer.
    pub fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.spare.0.pop_front().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Keeps the answer of a command for which [`Self::begin`] has just returned [`Verdict::Run`].
    pub fn store_answer(&mut self, name: u64, number: u64, answer: Vec<u8>) -> &[u8] {
        let Some(session) = self.sessions.get_mut(&name) else { return &[] };
        let index = session.last_used_index;
        if let Err(place) = session.position(number) {
            self.long_answers.add(index, (name, number), answer.len());
            session.answers.insert(place, KeptAnswer { number, index, bytes: Some(answer) });
        }
        self.drop_long_answers();
        self.answer(name, number).unwrap_or_default()
    }

    /// Drops the oldest long answers while there are too many. Their commands stay known as having run.
    fn drop_long_answers(&mut self) {
        while self.long_answers.are_too_many()
            && let Some((_, (name, number))) = self.long_answers.places.pop_first()
        {
            let Some(session) = self.sessions.get_mut(&name) else { continue };
            let Ok(place) = session.position(number) else { continue };
            let len = session.answers[place].bytes.take().map_or(0, |bytes| bytes.len());
            self.long_answers.len = self.long_answers.len.saturating_sub(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = ClusterId(0xC0FF_EE00_0000_0000);

    fn open(sessions: &mut Sessions, index: u64, nonce: u64) -> u64 {
        sessions.open(CLUSTER, index, nonce)
    }

    fn run(sessions: &mut Sessions, index: u64, name: u64, number: u64, done_below: u64) -> Option<Vec<u8>> {
        match sessions.begin(index, name, number, done_below) {
            Verdict::Run => {
                let answer = index.to_le_bytes().to_vec();
                Some(sessions.store_answer(name, number, answer).to_vec())
            }
            Verdict::HasRun(answer) => Some(answer.to_vec()),
            _ => None,
        }
    }

    #[test]
    fn a_repeated_command_gets_its_first_answer() {
        let mut sessions = Sessions::default();
        let name = open(&mut sessions, 5, 77);
        let first = run(&mut sessions, 6, name, 0, 0);
        assert_eq!(run(&mut sessions, 9, name, 0, 0), first);
        assert_eq!(run(&mut sessions, 10, name, 1, 1), Some(10_u64.to_le_bytes().to_vec()));
        assert_eq!(sessions.begin(11, name, 0, 0), Verdict::Forgotten);
    }

    #[test]
    fn a_session_that_is_opened_twice_keeps_its_answers() {
        let mut sessions = Sessions::default();
        let name = open(&mut sessions, 5, 77);
        let first = run(&mut sessions, 6, name, 0, 0);
        assert_eq!(open(&mut sessions, 7, 77), name);
        assert_eq!((run(&mut sessions, 8, name, 0, 0), sessions.len()), (first, 1));
    }

    #[test]
    fn a_session_of_another_cluster_is_not_known() {
        let mut sessions = Sessions::default();
        open(&mut sessions, 5, 77);
        let elsewhere = Sessions::default().open(ClusterId(1 << 40), 5, 78);
        assert_eq!(sessions.begin(6, elsewhere, 0, 0), Verdict::Expired);
    }

    #[test]
    fn what_opened_a_session_that_is_over_opens_another() {
        let mut sessions = Sessions::default();
        let name = open(&mut sessions, 5, 77);
        sessions.close(name);
        assert_ne!(open(&mut sessions, 6, 77), name);
        assert_eq!(sessions.begin(7, name, 0, 0), Verdict::Expired);
    }

    #[test]
    fn the_oldest_command_runs_however_many_later_ones_have() {
        let mut sessions = Sessions::default();
        let name = open(&mut sessions, 1, 1);
        for number in 1..IN_FLIGHT_MAX as u64 {
            assert!(run(&mut sessions, number + 2, name, number, 0).is_some());
        }
        assert_eq!(sessions.begin(1000, name, IN_FLIGHT_MAX as u64, 0), Verdict::TooMany);
        assert!(run(&mut sessions, 1001, name, 0, 0).is_some());
    }

    #[test]
    fn the_session_used_longest_ago_expires_and_says_so() {
        let mut sessions = Sessions::default();
        let names: Vec<_> = (1..=SESSIONS_MAX as u64).map(|index| open(&mut sessions, index, index)).collect();
        assert_eq!(sessions.begin(5000, names[0], 0, 0), Verdict::Run);
        open(&mut sessions, 5001, 5001);
        assert_eq!(sessions.begin(5002, names[1], 0, 0), Verdict::Expired);
        assert_eq!(sessions.begin(5003, names[0], 1, 0), Verdict::Run);
        assert_eq!(sessions.len(), SESSIONS_MAX);
    }

    #[test]
    fn a_session_keeps_no_more_answers_than_it_may() {
        let mut sessions = Sessions::default();
        let name = open(&mut sessions, 1, 1);
        for number in 0..IN_FLIGHT_MAX as u64 {
            assert!(run(&mut sessions, number + 2, name, number, 0).is_some());
        }
        assert_eq!(sessions.begin(1000, name, IN_FLIGHT_MAX as u64, 0), Verdict::TooMany);
        assert!(run(&mut sessions, 1001, name, IN_FLIGHT_MAX as u64, 1).is_some());
    }

    #[test]
    fn the_oldest_long_answers_are_dropped_and_their_commands_run_no_second_time() {
        let mut sessions = Sessions::default();
        let names: Vec<_> = (1..=3).map(|index| open(&mut sessions, index, index)).collect();
        let mut index = 10;
        let mut run = |sessions: &mut Sessions, name, number, len| {
            index += 1;
            assert_eq!(sessions.begin(index, name, number, 0), Verdict::Run);
            assert_eq!(sessions.store_answer(name, number, vec![7; len]).len(), len);
        };
        run(&mut sessions, names[0], 0, SHORT_LEN_MAX);
        for number in 1..20 {
            run(&mut sessions, names[0], number, 1 << 20);
            run(&mut sessions, names[1], number, 1 << 20);
        }
        run(&mut sessions, names[2], 0, 2 * LONG_ANSWERS_LEN_MAX);
        assert_eq!(sessions.answer(names[2], 0).map(<[u8]>::len), Some(2 * LONG_ANSWERS_LEN_MAX), "it is the last");
        run(&mut sessions, names[1], 20, 1 << 20);
        assert_eq!(sessions.begin(200, names[0], 0, 0), Verdict::HasRun(&[7; SHORT_LEN_MAX]));
        for (name, number) in [(names[0], 1), (names[1], 19), (names[2], 0)] {
            assert_eq!(sessions.begin(201, name, number, 0), Verdict::Forgotten);
        }
        assert!(matches!(sessions.begin(202, names[1], 20, 0), Verdict::HasRun(_)));
        sessions.close(names[1]);
        assert_eq!(sessions.long_answers, LongAnswers::default());
    }

    const ONE: u64 = CLUSTER.0 ^ 1;
    const OTHER: u64 = CLUSTER.0 ^ 2;
    const LAST_INDEX: u64 = 10_000;

    /// Two sessions: one with two short answers and a long one, the other with a long one.
    fn in_use() -> Sessions {
        let mut sessions = Sessions::default();
        assert_eq!([1, 2].map(|index| open(&mut sessions, index, index)), [ONE, OTHER]);
        for (index, name, number, len) in
            [(3, ONE, 0, 1), (4, ONE, 1, SHORT_LEN_MAX), (5, ONE, 2, 100), (6, OTHER, 0, 1000)]
        {
            assert_eq!(sessions.begin(index, name, number, 0), Verdict::Run);
            sessions.store_answer(name, number, vec![7; len]);
        }
        sessions
    }

    fn answers_of_one(all: &mut Sessions) -> &mut VecDeque<KeptAnswer> {
        &mut all.sessions.get_mut(&ONE).unwrap().answers
    }

    /// Adds sessions, up to this many.
    fn add_sessions(all: &mut Sessions, count: usize) {
        for index in (10..).take(count - all.sessions.len()) {
            add_session(all, CLUSTER, index);
        }
    }

    fn add_session(all: &mut Sessions, cluster: ClusterId, index: u64) {
        let name = cluster.0 ^ index;
        all.sessions.insert(name, Session { last_used_index: index, nonce: index, ..Session::default() });
        all.by_use.insert(index, name);
    }

    /// Adds short answers to one session, up to this many.
    fn add_answers(all: &mut Sessions, count: usize) {
        all.touch(ONE, 1000);
        let answers = answers_of_one(all);
        for number in (3..).take(count - answers.len()) {
            answers.push_back(KeptAnswer { number, index: 100 + number, bytes: Some(vec![7]) });
        }
    }

    /// Drops the long answer of one session.
    fn drop_long_answer(all: &mut Sessions) {
        answers_of_one(all)[2].bytes = None;
        all.long_answers.places.remove(&5);
        all.long_answers.len -= 100;
    }

    /// Makes the two long answers as long as this together.
    fn lengthen(all: &mut Sessions, len: usize) {
        answers_of_one(all)[2].bytes = Some(vec![7; len - 1000]);
        all.long_answers.len = len;
    }

    /// Leaves one long answer, and makes it longer than two may be together.
    fn lengthen_last(all: &mut Sessions) {
        drop_long_answer(all);
        let len = LONG_ANSWERS_LEN_MAX + 1;
        all.sessions.get_mut(&OTHER).unwrap().answers[0].bytes = Some(vec![7; len]);
        all.long_answers.len = len;
    }

    type Change = fn(&mut Sessions);

    #[test]
    fn sessions_that_come_from_elsewhere_are_valid_unless_they_are_wrong_in_any_one_way() {
        let right: [(&str, Change); 7] = [
            ("as they are", |_| ()),
            ("as many as there may be", |all| add_sessions(all, SESSIONS_MAX)),
            ("with as many answers as one keeps", |all| add_answers(all, IN_FLIGHT_MAX)),
            ("with a long answer that was dropped", drop_long_answer),
            ("with as long answers as are kept together", |all| lengthen(all, LONG_ANSWERS_LEN_MAX)),
            ("with one long answer, of any length", lengthen_last),
            ("with one that the last entry used", |all| all.touch(ONE, LAST_INDEX)),
        ];
        for (what, change) in right {
            let mut all = in_use();
            change(&mut all);
            let mut bytes = Vec::new();
            crate::wire::encode(&all, &mut bytes);
            let read: Sessions = crate::wire::decode(&bytes).unwrap();
            assert!(read == all && read.is_valid(CLUSTER, LAST_INDEX), "{what}");
        }
        let wrong: [(&str, Change); 21] = [
            ("one too many", |all| add_sessions(all, SESSIONS_MAX + 1)),
            ("one answer too many", |all| add_answers(all, IN_FLIGHT_MAX + 1)),
            ("answers out of order", |all| answers_of_one(all).swap(0, 1)),
            ("two answers of one number", |all| answers_of_one(all)[1].number = 0),
            ("a session of another use than is listed", |all| {
                all.sessions.get_mut(&ONE).unwrap().last_used_index = 9;
            }),
            ("a session whose use is not listed", |all| _ = all.by_use.remove(&5)),
            ("a session with two uses", |all| _ = all.by_use.insert(7, ONE)),
            ("a use of no session", |all| _ = all.by_use.insert(7, 8)),
            ("sessions in each other's place", |all| all.by_use = [(5, OTHER), (6, ONE)].into()),
            ("a long answer that is not listed", |all| {
                all.long_answers.places.remove(&5);
                all.long_answers.len -= 100;
            }),
            ("a long answer that is another session's", |all| _ = all.long_answers.places.insert(5, (OTHER, 2))),
            ("a short answer among the long ones", |all| {
                all.long_answers.places.insert(4, (ONE, 1));
                all.long_answers.len += SHORT_LEN_MAX;
            }),
            ("a long answer that was dropped and is still listed", |all| answers_of_one(all)[2].bytes = None),
            ("a length that is not theirs", |all| all.long_answers.len += 1),
            ("longer answers than are kept together", |all| lengthen(all, LONG_ANSWERS_LEN_MAX + 1)),
            ("two sessions of one nonce", |all| all.sessions.get_mut(&OTHER).unwrap().nonce = 1),
            ("a session of another cluster", |all| add_session(all, ClusterId(1 << 40), 10)),
            ("a session that a later entry used", |all| all.touch(ONE, LAST_INDEX + 1)),
            ("an answer that the client has", |all| all.sessions.get_mut(&ONE).unwrap().done_below = 1),
            ("an answer that is later than the last use", |all| answers_of_one(all)[0].index = 9),
            ("two answers of one entry", |all| answers_of_one(all)[0].index = 4),
        ];
        for (what, change) in wrong {
            let mut all = in_use();
            change(&mut all);
            assert!(!all.is_valid(CLUSTER, LAST_INDEX), "{what}");
        }
    }

    proptest::proptest! {
        /// What is counted is what is there, whichever way answers go.
        #[test]
        fn the_length_of_long_answers_is_right(
            steps in proptest::collection::vec((0_u64..4, 0_u64..30, 0_u64..30, 0_usize..3 << 20), 0..60),
        ) {
            let mut sessions = Sessions::default();
            let mut names: Vec<_> = (0..3).map(|nonce| open(&mut sessions, nonce + 1, nonce)).collect();
            for (index, (client, number, done_below, len)) in (10..).zip(steps) {
                let Some(name) = names.get(client as usize) else {
                    sessions.close(names[0]);
                    names[0] = open(&mut sessions, index, index);
                    continue;
                };
                if sessions.begin(index, *name, number, done_below) == Verdict::Run {
                    sessions.store_answer(*name, number, vec![0; len]);
                }
                let kept = sessions.sessions.values().flat_map(|session| &session.answers);
                let long = kept.filter_map(|answer| answer.bytes.as_ref()).filter(|bytes| bytes.len() > SHORT_LEN_MAX);
                let (count, len) = long.fold((0, 0), |(count, len), bytes| (count + 1, len + bytes.len()));
                let counted = (sessions.long_answers.places.len(), sessions.long_answers.len);
                proptest::prop_assert_eq!(counted, (count, len));
                proptest::prop_assert!(len <= LONG_ANSWERS_LEN_MAX || count == 1);
            }
        }

        /// Compares with a map that never forgets.
        #[test]
        fn each_command_runs_once(tries in proptest::collection::vec((0_u64..3, 0_u64..20, 0_u64..20), 0..200)) {
            let mut sessions = Sessions::default();
            let names: Vec<_> = (0..3).map(|nonce| open(&mut sessions, nonce + 1, nonce)).collect();
            let mut ran = std::collections::BTreeSet::new();
            let mut done = [0; 3];
            for (index, (client, number, done_below)) in tries.into_iter().enumerate() {
                done[client as usize] = done_below.max(done[client as usize]);
                match sessions.begin(index as u64 + 10, names[client as usize], number, done_below) {
                    Verdict::Run => {
                        proptest::prop_assert!(ran.insert((client, number)), "ran twice");
                        sessions.store_answer(names[client as usize], number, vec![]);
                    }
                    Verdict::HasRun(_) => proptest::prop_assert!(ran.contains(&(client, number))),
                    Verdict::Forgotten => proptest::prop_assert!(number < done[client as usize]),
                    other => proptest::prop_assert!(false, "{other:?}"),
                }
            }
        }
    }
}
