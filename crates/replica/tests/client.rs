//! A client and a member that follows a script, in virtual time.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_fabric::SeededGenerator;
use sinew_replica::client::{Client, ClientError, RequestOutcome};
use sinew_replica::client_wire::{Answer, ClientRequest, Dropped, Freshness, MemberStatus, Role, Standing, Status};
use sinew_replica::wire::{self, CLIENT, MemberId, MemberInfo};
use sinew_rpc::{Config, DeferredCall, Nexus, Rpc};
use sinew_sim::{Actor, ActorState, Cluster, HostId, Network, PortConfig, SimClock, SimPort, Topology};

type SimRpc = Rpc<SimPort, SimClock>;
const MS: u64 = 1_000_000;

/// What a member does with a request: its answer, or `None` if it stays silent.
type Script = Box<dyn FnMut(&ClientRequest<'_>) -> Option<Answer<'static>>>;

/// It tells clients of all members, whatever its script says.
struct Scripted {
    rpc: SimRpc,
    script: Script,
    status: Status,
    unanswered: Vec<DeferredCall>,
}

impl Actor for Scripted {
    fn turn(&mut self) -> ActorState {
        let mut busy = self.rpc.turn();
        while let Some(call) = self.rpc.poll_request() {
            busy = true;
            let answer = match wire::decode(call.request()).unwrap() {
                ClientRequest::Status => Some(Answer::Status(Box::new(self.status.clone()))),
                request => (self.script)(&request),
            };
            match answer {
                Some(answer) => {
                    let mut bytes = Vec::new();
                    wire::encode(&answer, &mut bytes);
                    self.rpc.reply(call, &bytes);
                }
                None => self.unanswered.push(call),
            }
        }
        next_turn(busy, u64::MAX, &mut self.rpc)
    }
}

type Outcome = (u64, Result<RequestOutcome, ClientError>);

/// Asks a client something: at the beginning, and after each outcome.
type Ask = Box<dyn FnMut(&mut Client<SimRpc>, Option<&Outcome>)>;

struct Asker {
    client: Client<SimRpc>,
    ask: Ask,
    has_begun: bool,
    outcomes: Rc<RefCell<Vec<Outcome>>>,
}

impl Actor for Asker {
    fn turn(&mut self) -> ActorState {
        if !std::mem::replace(&mut self.has_begun, true) {
            (self.ask)(&mut self.client, None);
        }
        let busy = self.client.turn();
        while let Some(outcome) = self.client.poll() {
            (self.ask)(&mut self.client, Some(&outcome));
            self.outcomes.borrow_mut().push(outcome);
        }
        next_turn(busy, self.client.next_turn_ns().unwrap_or(u64::MAX), self.client.rpc())
    }
}

fn next_turn(busy: bool, next_ns: u64, rpc: &mut SimRpc) -> ActorState {
    match rpc.wait(None) {
        _ if busy => ActorState::Work,
        Ok(false) => ActorState::Work,
        _ => ActorState::IdleUntil(next_ns),
    }
}

/// Runs a client with a member that follows this script, for ten seconds. Returns the outcomes of its requests.
fn outcomes(
    script: impl FnMut(&ClientRequest<'_>) -> Option<Answer<'static>> + 'static,
    begin: impl Fn(&mut Client<SimRpc>) + 'static,
) -> Vec<Outcome> {
    outcomes_of(script, move |client, outcome| {
        if outcome.is_none() {
            begin(client)
        }
    })
}

/// As [`outcomes`], for a client that is asked more later.
fn outcomes_of(
    script: impl FnMut(&ClientRequest<'_>) -> Option<Answer<'static>> + 'static,
    ask: impl FnMut(&mut Client<SimRpc>, Option<&Outcome>) + 'static,
) -> Vec<Outcome> {
    let script: Script = Box::new(script);
    outcomes_at(vec![("member", script)], ask)
}

/// As [`outcomes_of`], at several members, which the client knows in this order.
fn outcomes_at(
    members: Vec<(&str, Script)>,
    ask: impl FnMut(&mut Client<SimRpc>, Option<&Outcome>) + 'static,
) -> Vec<Outcome> {
    let known = members.len();
    outcomes_knowing(known, members, ask)
}

/// As [`outcomes_at`], for a client that knows the first `known` members.
fn outcomes_knowing(
    known: usize,
    members: Vec<(&str, Script)>,
    ask: impl FnMut(&mut Client<SimRpc>, Option<&Outcome>) + 'static,
) -> Vec<Outcome> {
    let status = status_of(members.iter().map(|(name, _)| info(name)).collect());
    let network = Network::new(Topology::star(members.len() + 1, 25.0, 200, 1500), 1).unwrap();
    let nexus = Nexus::builder().config(Config::default()).build().unwrap();
    let mut cluster = Cluster::new(&network);
    let open = |host: usize, name: &str| -> SimRpc {
        let port = network.open(HostId(host), name, PortConfig { arena_bytes: 64 << 20, ..PortConfig::default() });
        Rpc::new(&nexus, port.unwrap(), network.clock(), Box::new(SeededGenerator::new(network.random())))
    };
    let (client_host, addresses) =
        (members.len(), members[..known].iter().map(|(name, _)| format!("sim://{name}")).collect());
    for (host, (name, script)) in members.into_iter().enumerate() {
        let mut rpc = open(host, name);
        rpc.handle_polled(CLIENT).unwrap();
        let place = rpc.port().place();
        cluster.add(name, [place], Box::new(Scripted { rpc, script, status: status.clone(), unanswered: Vec::new() }));
    }
    let rpc = open(client_host, "client");
    let place = rpc.port().place();
    let outcomes = Rc::new(RefCell::new(Vec::new()));
    let client = Client::new(rpc, addresses, Box::new(SeededGenerator::new(5)));
    let asker = Asker { client, ask: Box::new(ask), has_begun: false, outcomes: Rc::clone(&outcomes) };
    cluster.add("client", [place], Box::new(asker));
    cluster.run_until(10_000 * MS);
    outcomes.take()
}

/// The outcome of one command, of which each attempt gets the next of these answers.
fn outcome_of_attempts(mut attempts: Vec<Option<Answer<'static>>>) -> Result<RequestOutcome, ClientError> {
    attempts.reverse();
    let script = move |ask: &ClientRequest<'_>| match ask {
        ClientRequest::Open { nonce } => Some(Answer::Opened { session: *nonce }),
        _ => attempts.pop().flatten(),
    };
    let mut all = outcomes(script, |client| client.run(0, b"command", 5_000 * MS).unwrap());
    assert_eq!(all.len(), 1);
    all.remove(0).1
}

#[test]
fn a_refusal_is_definite_only_if_no_earlier_attempt_may_have_run() {
    let refused = || Answer::Refused("why".to_owned());
    assert_eq!(outcome_of_attempts(vec![Some(Answer::DiskFull)]), Err(ClientError::DiskFull));
    assert_eq!(outcome_of_attempts(vec![Some(refused())]), Err(ClientError::Refused("why".to_owned())));
    for refusal in [Answer::DiskFull, refused()] {
        for before in [None, Some(Answer::Busy)] {
            let outcome = outcome_of_attempts(vec![before, Some(refusal.clone())]);
            assert!(matches!(outcome, Err(ClientError::NoAnswer { may_have_run: true, .. })), "{outcome:?}");
        }
    }
}

#[test]
fn a_command_whose_answer_is_no_longer_kept_has_run() {
    assert_eq!(outcome_of_attempts(vec![None, Some(Answer::Forgotten)]), Err(ClientError::Forgotten));
}

#[test]
fn a_command_whose_session_is_refused_has_not_run() {
    let all = outcomes(|_| Some(Answer::DiskFull), |client| client.run(3, b"command", 5_000 * MS).unwrap());
    assert_eq!(all, [(3, Err(ClientError::DiskFull))]);
}

/// A member whose sessions expire once, after this many commands have been sent. It lists what it was asked.
fn expiring(mut first: Vec<Option<Answer<'static>>>, asked: Rc<RefCell<Vec<String>>>) -> Script {
    first.reverse();
    let mut opened = 0;
    Box::new(move |ask| match ask {
        ClientRequest::Open { .. } => {
            opened += 1;
            asked.borrow_mut().push(format!("open {opened}"));
            Some(Answer::Opened { session: opened })
        }
        ClientRequest::Run { session, .. } => {
            asked.borrow_mut().push(format!("run in {session}"));
            first.pop().unwrap_or(Some(if *session < opened {
                Answer::Expired
            } else {
                Answer::CommandAnswer(b"done")
            }))
        }
        ClientRequest::Close { session } => {
            asked.borrow_mut().push(format!("close {session}"));
            Some(Answer::Done)
        }
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_command_whose_session_has_expired_runs_in_another_unless_it_may_have_run() {
    let done = || Ok(RequestOutcome::CommandAnswer(b"done".to_vec()));
    let asked = Rc::new(RefCell::new(Vec::new()));
    let run = |client: &mut Client<SimRpc>| client.run(0, b"command", 5_000 * MS).unwrap();
    assert_eq!(outcomes(expiring(vec![Some(Answer::Expired)], Rc::clone(&asked)), run), [(0, done())]);
    assert_eq!(asked.take(), ["open 1", "run in 1", "open 2", "run in 2"]);
    // An attempt before may have run, and its answer been lost with the session.
    let script = expiring(vec![None, Some(Answer::Expired)], Rc::clone(&asked));
    assert_eq!(outcomes(script, run), [(0, Err(ClientError::Expired))]);
    assert_eq!(asked.take(), ["open 1", "run in 1", "run in 1"]);
}

#[test]
fn commands_in_flight_when_their_session_expires_open_one_other_session() {
    let asked = Rc::new(RefCell::new(Vec::new()));
    let run = |client: &mut Client<SimRpc>| (0..20).for_each(|tag| client.run(tag, b"command", 5_000 * MS).unwrap());
    let all = outcomes(expiring(vec![Some(Answer::Expired)], Rc::clone(&asked)), run);
    assert!(all.len() == 20 && all.iter().all(|(_, outcome)| outcome.is_ok()), "{all:?}");
    assert_eq!(asked.take().iter().filter(|ask| ask.starts_with("open")).count(), 2);
}

/// Of two commands in flight when their session expires, the first gets no other session, and the second may have run.
#[test]
fn a_session_that_cannot_be_opened_again_says_nothing_about_commands_of_the_last() {
    let (mut opened, mut sent) = (0, 0);
    let script = move |ask: &ClientRequest<'_>| match ask {
        ClientRequest::Open { .. } => {
            opened += 1;
            Some(if opened == 1 { Answer::Opened { session: 1 } } else { Answer::DiskFull })
        }
        _ => {
            sent += 1;
            (sent == 1).then_some(Answer::Expired)
        }
    };
    let run = |client: &mut Client<SimRpc>| (0..2).for_each(|tag| client.run(tag, b"command", 5_000 * MS).unwrap());
    let all = outcomes(script, run);
    assert_eq!(all, [(0, Err(ClientError::DiskFull)), (1, Err(ClientError::Expired))]);
}

#[test]
fn a_client_that_closes_its_session_leaves_none_and_opens_another_for_later_commands() {
    let asked = Rc::new(RefCell::new(Vec::new()));
    let ask = |client: &mut Client<SimRpc>, outcome: Option<&Outcome>| match outcome {
        None => {
            assert_eq!(client.close(9, 5_000 * MS), Ok(false), "there is no session yet");
            client.run(0, b"command", 5_000 * MS).unwrap();
            assert_eq!(client.close(9, 5_000 * MS), Ok(false), "a command is in flight");
        }
        Some((0, _)) => assert_eq!(client.close(1, 5_000 * MS), Ok(true)),
        Some((1, _)) => client.run(2, b"command", 5_000 * MS).unwrap(),
        Some(_) => {}
    };
    let all = outcomes_of(expiring(vec![], Rc::clone(&asked)), ask);
    assert!(all.len() == 3 && all[1] == (1, Ok(RequestOutcome::Done)), "{all:?}");
    assert_eq!(asked.take(), ["open 1", "run in 1", "close 1", "open 2", "run in 2"]);
}

#[test]
fn a_watch_goes_on_with_the_query_that_the_member_returns() {
    let script = |ask: &ClientRequest<'_>| match ask {
        ClientRequest::Watch { query: b"first" } => Some(Answer::NothingYet { query: b"second" }),
        ClientRequest::Watch { query: b"second" } => Some(Answer::QueryAnswer(b"found")),
        other => panic!("{other:?}"),
    };
    let all = outcomes(script, |client| client.watch(0, b"first", 5_000 * MS).unwrap());
    assert_eq!(all, [(0, Ok(RequestOutcome::QueryAnswer(b"found".to_vec())))]);
}

fn script(script: impl FnMut(&ClientRequest<'_>) -> Option<Answer<'static>> + 'static) -> Script {
    Box::new(script)
}

fn info(name: &str) -> MemberInfo {
    let id = MemberId(u64::from(name.as_bytes()[0]));
    MemberInfo { id, name: name.to_owned(), address: format!("sim://{name}") }
}

fn status_of(members: Vec<MemberInfo>) -> Status {
    let standing = Standing::Voter;
    let members: Vec<MemberStatus> =
        members.into_iter().map(|info| MemberStatus { info, standing, matched: None, silent_ns: None }).collect();
    Status {
        me: members[0].info.clone(),
        cluster: None,
        role: Role::Leader,
        leader: None,
        term: 1,
        committed: 1,
        applied: 1,
        last: 1,
        snapshot: 1,
        sessions: 1,
        is_durable: false,
        is_full: false,
        truncated_len: 0,
        members,
        dropped: Dropped::default(),
    }
}

#[test]
fn a_client_that_knew_the_leader_alone_outlives_it() {
    let leader = |is_gone: Rc<RefCell<bool>>| -> Script {
        Box::new(move |ask| match ask {
            _ if *is_gone.borrow() => None,
            ClientRequest::Open { .. } => Some(Answer::Opened { session: 1 }),
            ClientRequest::Run { .. } => {
                // Its first command was its last.
                *is_gone.borrow_mut() = true;
                Some(Answer::CommandAnswer(b"old"))
            }
            _ => None,
        })
    };
    let next: Script = Box::new(|ask| match ask {
        ClientRequest::Run { session: 1, .. } => Some(Answer::CommandAnswer(b"new")),
        _ => None,
    });
    let is_gone = Rc::new(RefCell::new(false));
    let all = outcomes_knowing(1, vec![("a", leader(is_gone)), ("b", next)], |client, outcome| {
        let is_over = outcome.is_some_and(|(tag, _)| *tag == 1);
        if !is_over {
            client.run(u64::from(outcome.is_some()), b"command", 5_000 * MS).unwrap();
        }
    });
    let answers =
        [(0, b"old"), (1, b"new")].map(|(tag, answer)| (tag, Ok(RequestOutcome::CommandAnswer(answer.into()))));
    assert_eq!(all, answers);
}

/// The answer of a member that does not lead: the leader that it names, and the members that it has not heard lately.
fn not_leader(leader: Option<&str>, silent: &[&str]) -> Answer<'static> {
    let silent = silent.iter().map(|name| (*name).to_owned()).collect();
    Answer::NotLeader { leader: leader.map(info), members: ["a", "b", "c"].map(info).into(), silent }
}

type ReadOutcome = Result<RequestOutcome, ClientError>;

/// Reads once, with a second of time, from members that the client knows in this order. Returns the names of those that
/// were asked, one for each attempt, and the outcome.
fn read_from(members: Vec<(&'static str, Script)>) -> (Vec<&'static str>, ReadOutcome) {
    let asked = Rc::new(RefCell::new(Vec::new()));
    let mut noting = Vec::new();
    for (name, mut answer) in members {
        let asked = Rc::clone(&asked);
        let note = move |ask: &ClientRequest<'_>| {
            asked.borrow_mut().push(name);
            answer(ask)
        };
        noting.push((name, script(note)));
    }
    let mut all = outcomes_at(noting, |client, outcome| {
        if outcome.is_none() {
            client.read(0, Freshness::Linear, b"query", 1_000 * MS).unwrap();
        }
    });
    assert_eq!(all.len(), 1);
    (asked.take(), all.remove(0).1)
}

fn found() -> Option<Answer<'static>> {
    Some(Answer::QueryAnswer(b"found"))
}

fn has_found() -> ReadOutcome {
    Ok(RequestOutcome::QueryAnswer(b"found".to_vec()))
}

/// The leader, `a`, is cut off from the others, but not from the client, and has stepped down. The others name it
/// until they elect `c`; `b`, cut off from `c` as well, names it even then, as a learner does. A client that followed
/// would go from `a` to `b` and back until its time is over, and would never ask `c`.
#[test]
fn a_client_does_not_follow_to_a_silent_leader_and_is_answered_by_the_next_one() {
    let mut asked_before = 0;
    let c = script(move |_| {
        asked_before += 1;
        if asked_before <= 50 { Some(not_leader(Some("a"), &["a"])) } else { found() }
    });
    let a = script(|_| Some(not_leader(None, &["b", "c"])));
    let b = script(|_| Some(not_leader(Some("a"), &["a", "c"])));
    let (asked, outcome) = read_from(vec![("a", a), ("b", b), ("c", c)]);
    assert_eq!(outcome, has_found());
    let count = |name: &str| asked.iter().filter(|one| **one == name).count();
    let counts = ["a", "b", "c"].map(count);
    assert!(counts[2] == 51 && counts.iter().all(|count| *count <= 51), "{counts:?}");
}

/// `c` leads, but `b`, which is cut off from it, still names the leader that has died.
#[test]
fn a_client_waits_for_no_answer_of_a_dead_leader_whom_a_member_still_names() {
    let b = script(|_| Some(not_leader(Some("a"), &["a", "c"])));
    let (asked, outcome) = read_from(vec![("b", b), ("c", script(|_| found())), ("a", script(|_| None))]);
    assert_eq!((asked, outcome), (vec!["b", "c"], has_found()));
}

/// Otherwise it would ask `a`, which comes next.
#[test]
fn a_client_follows_to_the_leader_that_a_member_hears_whoever_else_is_silent() {
    let b = script(|_| Some(not_leader(Some("c"), &["a"])));
    let (asked, outcome) = read_from(vec![("b", b), ("a", script(|_| None)), ("c", script(|_| found()))]);
    assert_eq!((asked, outcome), (vec!["b", "c"], has_found()));
}
