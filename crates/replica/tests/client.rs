//! A client and a member that follows a script, in virtual time.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_fabric::SeededGenerator;
use sinew_replica::client::{Client, ClientError, RequestOutcome};
use sinew_replica::client_wire::{Answer, ClientRequest};
use sinew_replica::wire::{self, CLIENT};
use sinew_rpc::{Config, DeferredCall, Nexus, Rpc};
use sinew_sim::{Actor, ActorState, Cluster, HostId, Network, PortConfig, SimClock, SimPort, Topology};

type SimRpc = Rpc<SimPort, SimClock>;
const MS: u64 = 1_000_000;

/// What a member does with a request: its answer, or `None` if it stays silent.
type Script = Box<dyn FnMut(&ClientRequest<'_>) -> Option<Answer<'static>>>;

struct Scripted {
    rpc: SimRpc,
    script: Script,
    unanswered: Vec<DeferredCall>,
}

impl Actor for Scripted {
    fn turn(&mut self) -> ActorState {
        let mut busy = self.rpc.turn();
        while let Some(call) = self.rpc.poll_request() {
            busy = true;
            match (self.script)(&wire::decode(call.request()).unwrap()) {
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
    let network = Network::new(Topology::star(2, 25.0, 200, 1500), 1).unwrap();
    let nexus = Nexus::builder().config(Config::default()).build().unwrap();
    let mut cluster = Cluster::new(&network);
    let [mut member, client] = [(0, "member"), (1, "client")].map(|(host, name)| {
        let port = network.open(HostId(host), name, PortConfig { arena_bytes: 64 << 20, ..PortConfig::default() });
        Rpc::new(&nexus, port.unwrap(), network.clock(), Box::new(SeededGenerator::new(network.random())))
    });
    member.handle_polled(CLIENT).unwrap();
    let outcomes = Rc::new(RefCell::new(Vec::new()));
    let places = [&member, &client].map(|rpc| rpc.port().place());
    let client = Client::new(client, vec!["sim://member".to_owned()], Box::new(SeededGenerator::new(5)));
    let asker = Asker { client, ask: Box::new(ask), has_begun: false, outcomes: Rc::clone(&outcomes) };
    let member = Scripted { rpc: member, script: Box::new(script), unanswered: Vec::new() };
    cluster.add("member", [places[0]], Box::new(member));
    cluster.add("client", [places[1]], Box::new(asker));
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
