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

/// A client, and what it is asked in its first turn.
struct Asker {
    client: Client<SimRpc>,
    begin: Option<Box<dyn FnOnce(&mut Client<SimRpc>)>>,
    outcomes: Rc<RefCell<Vec<Outcome>>>,
}

impl Actor for Asker {
    fn turn(&mut self) -> ActorState {
        if let Some(begin) = self.begin.take() {
            begin(&mut self.client);
        }
        let busy = self.client.turn();
        while let Some(outcome) = self.client.poll() {
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
    begin: impl FnOnce(&mut Client<SimRpc>) + 'static,
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
    let asker = Asker { client, begin: Some(Box::new(begin)), outcomes: Rc::clone(&outcomes) };
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
fn a_command_whose_session_is_refused_has_not_run() {
    let all = outcomes(|_| Some(Answer::DiskFull), |client| client.run(3, b"command", 5_000 * MS).unwrap());
    assert_eq!(all, [(3, Err(ClientError::DiskFull))]);
}
