//! The sequencer over RPC, in virtual time: on a network that loses, duplicates and reorders packets, with clients that
//! die.

use std::sync::Arc;

use sinew_fabric::fault::{FaultConfig, Faults, Faulty};
use sinew_fabric::loopback::{LoopbackPort, Network};
use sinew_fabric::{Clock, Generator, ManualClock, SeededGenerator};
use sinew_rpc::{Cause, Config, Nexus, Rpc, SessionEvent};
use sinew_sequencer::rpc::{NEXT, RpcClient, handler};
use sinew_sequencer::{Answer, CallError, Client, Epoch, LAST, Numbers, Refusal, RequestError, Sequence};

type Server = Rpc<LoopbackPort, ManualClock>;
type FaultyClient = RpcClient<Rpc<Faulty<LoopbackPort>, ManualClock>>;

const EPOCH: Epoch = Epoch(7);
const STEP_NS: u64 = 20_000;
const PATIENCE_STEPS: usize = 200_000;

struct World {
    network: Network,
    clock: ManualClock,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::new();
        clock.advance(1_000_000);
        Self { network: Network::new(clock.clone()), clock }
    }

    fn server(&self, name: &str, sequence: &Arc<Sequence>) -> Server {
        let nexus = Nexus::builder().handle_burst(NEXT, handler(Arc::clone(sequence))).build().unwrap();
        let port = self.network.port(name).unwrap();
        Rpc::new(&nexus, port, self.clock.clone(), Box::new(SeededGenerator::new(1)))
    }

    /// Connects a client, whose packets are subject to `faults` from then on.
    fn client(&self, name: &str, server: &mut Server, window: usize, faults: Faults, seed: u64) -> FaultyClient {
        let config = Config { peer_timeout_ns: 60_000_000_000, ..Config::default() };
        let nexus = Nexus::builder().config(config).build().unwrap();
        let port = Faulty::new(self.network.port(name).unwrap(), FaultConfig::default(), seed);
        let handle = port.handle();
        let mut rpc = Rpc::new(&nexus, port, self.clock.clone(), Box::new(SeededGenerator::new(seed)));
        let session = rpc.begin_connect(&server.address()).unwrap();
        for _ in 0..PATIENCE_STEPS {
            rpc.turn();
            server.turn();
            if let Some(event) = rpc.poll_event() {
                assert!(matches!(event, SessionEvent::Connected(id) if id == session), "{event:?}");
                handle.set(FaultConfig { tx: faults, rx: faults });
                return RpcClient::new(rpc, session, window, None).unwrap();
            }
            self.clock.advance(STEP_NS);
        }
        panic!("no session");
    }

    fn turn(&self, server: &mut Server, client: &mut impl Client) {
        client.turn(self.clock.now_ns()).unwrap();
        server.turn();
    }

    /// Turns both sides until the client has an answer.
    fn answer(&self, server: &mut Server, client: &mut impl Client) -> Answer {
        for _ in 0..PATIENCE_STEPS {
            self.turn(server, client);
            if let Some(answer) = client.answer() {
                return answer;
            }
            self.clock.advance(STEP_NS);
        }
        panic!("no answer");
    }

    fn call(&self, server: &mut Server, client: &mut impl Client, count: u32) -> Result<Numbers, CallError> {
        client.request(9, count).unwrap();
        let answer = self.answer(server, client);
        assert_eq!(answer.tag, 9);
        answer.result
    }
}

/// Checks the guarantees about numbers, as an observer of all clients.
#[derive(Default)]
struct Judge {
    taken: Vec<Numbers>,
    greatest: Option<u64>,
    /// By tag: the greatest number of any call that had ended when this one began.
    floors: Vec<Option<u64>>,
}

impl Judge {
    fn begins(&mut self) -> u64 {
        self.floors.push(self.greatest);
        self.floors.len() as u64 - 1
    }

    fn ends(&mut self, answer: Answer, count: u32) {
        let numbers = answer.result.unwrap();
        assert_eq!(numbers.count, count);
        let floor = self.floors[answer.tag as usize];
        assert!(floor.is_none_or(|floor| numbers.first > floor), "{numbers:?} is not above {floor:?}");
        self.greatest = self.greatest.max(Some(numbers.last()));
        self.taken.push(numbers);
    }

    /// Checks that no number was given twice; returns the count of numbers.
    fn numbers(mut self) -> u64 {
        self.taken.sort_by_key(|numbers| numbers.first);
        for pair in self.taken.windows(2) {
            assert!(pair[0].last() < pair[1].first, "{pair:?}");
        }
        self.taken.iter().map(|numbers| u64::from(numbers.count)).sum()
    }
}

fn bad_network() -> Faults {
    Faults { drop: 0.05, duplicate: 0.05, reorder: 0.1, delay: 0.1, ..Faults::NONE }
}

fn count_of(tag: u64) -> u32 {
    (tag % 5) as u32 + 1
}

#[test]
fn a_network_that_loses_doubles_and_turns_around_costs_no_number() {
    let world = World::new();
    let sequence = Arc::new(Sequence::new(1_000, EPOCH, 100));
    let mut server = world.server("server", &sequence);
    let mut clients: Vec<_> =
        (0..4).map(|nth| world.client(&format!("client{nth}"), &mut server, 12, bad_network(), 100 + nth)).collect();
    let (mut judge, mut random) = (Judge::default(), SeededGenerator::new(3));
    let (mut begun, mut over) = (0, 0);
    const CALLS: usize = 20_000;
    for _ in 0..PATIENCE_STEPS * 10 {
        for client in &mut clients {
            while begun < CALLS && client.in_flight() < client.window() && random.next_u64() % 4 > 0 {
                let tag = judge.begins();
                client.request(tag, count_of(tag)).unwrap();
                begun += 1;
            }
            client.turn(world.clock.now_ns()).unwrap();
            while let Some(answer) = client.answer() {
                let count = count_of(answer.tag);
                judge.ends(answer, count);
                over += 1;
            }
        }
        server.turn();
        world.clock.advance(STEP_NS);
        if over == CALLS {
            break;
        }
    }
    assert_eq!(over, CALLS);
    let retransmissions: u64 = clients.iter_mut().map(|client| client.rpc().stats().retransmissions).sum();
    assert!(retransmissions > 100, "the network was too kind: {retransmissions}");
    // Retransmitted calls took no further numbers.
    assert_eq!(sequence.next() - 1_000, judge.numbers());
}

#[test]
fn a_client_that_dies_loses_its_own_numbers_alone() {
    let world = World::new();
    let sequence = Arc::new(Sequence::new(0, EPOCH, 100));
    let mut server = world.server("server", &sequence);
    let mut dying = world.client("dying", &mut server, 8, Faults::NONE, 1);
    let mut living = world.client("living", &mut server, 8, Faults::NONE, 2);
    let mut judge = Judge::default();
    for round in 0..200 {
        let mut clients: Vec<&mut FaultyClient> = vec![&mut living];
        if round < 100 {
            clients.push(&mut dying);
        }
        for client in clients {
            while client.in_flight() < client.window() {
                let tag = judge.begins();
                client.request(tag, 2).unwrap();
            }
            // The dying client has answers on their way to it when it dies.
            client.turn(world.clock.now_ns()).unwrap();
            while let Some(answer) = client.answer() {
                judge.ends(answer, 2);
            }
        }
        if round == 99 {
            assert!(world.network.kill("dying"));
        }
        server.turn();
        world.clock.advance(STEP_NS);
    }
    while living.in_flight() > 0 {
        let answer = world.answer(&mut server, &mut living);
        judge.ends(answer, 2);
    }
    let lost = sequence.next() - judge.numbers();
    assert!(lost <= 2 * 8, "{lost} numbers were lost");
}

#[test]
fn requests_that_are_none_take_no_number_and_say_why() {
    let world = World::new();
    let sequence = Arc::new(Sequence::new(5, EPOCH, 100));
    let mut server = world.server("server", &sequence);
    let mut client = world.client("client", &mut server, 2, Faults::NONE, 1);
    for count in [0, 101, u32::MAX] {
        assert_eq!(world.call(&mut server, &mut client, count), Err(CallError::Refused(Refusal::Count { max: 100 })));
    }
    // Requests that our client never sends.
    let rpc = client.rpc();
    let session = rpc.begin_connect(&server.address()).unwrap();
    for len in [0, 1, 3, 5, 8, 3_000] {
        let (mut request, response) = (rpc.alloc(len).unwrap(), rpc.alloc(64).unwrap());
        request.fill(&vec![1; len]).unwrap();
        rpc.enqueue_request(session, NEXT, request, response, len as u64).unwrap();
    }
    let mut refused = 0;
    for _ in 0..PATIENCE_STEPS {
        rpc.turn();
        server.turn();
        world.clock.advance(STEP_NS);
        while let Some(completion) = rpc.poll_completion() {
            completion.result.unwrap();
            let answer = sinew_sequencer::rpc::read_answer(&completion.response, 1);
            assert_eq!(answer, Err(CallError::Refused(Refusal::Malformed)));
            refused += 1;
        }
        if refused == 6 {
            break;
        }
    }
    assert_eq!((refused, sequence.next()), (6, 5));
    assert_eq!(world.call(&mut server, &mut client, 100), Ok(Numbers { first: 5, count: 100 }));
}

#[test]
fn the_end_of_the_numbers_is_told_and_what_is_left_is_handed_out() {
    let world = World::new();
    let sequence = Arc::new(Sequence::new(LAST - 3, EPOCH, 100));
    let mut server = world.server("server", &sequence);
    let mut client = world.client("client", &mut server, 8, Faults::NONE, 1);
    // All in one burst.
    for (tag, count) in [(0, 3), (1, 2), (2, 1), (3, 1)] {
        client.request(tag, count).unwrap();
    }
    let mut answers: Vec<_> = (0..4).map(|_| world.answer(&mut server, &mut client)).collect();
    answers.sort_by_key(|answer| answer.tag);
    let numbers: Vec<_> = answers.iter().map(|answer| answer.result.clone().map(|numbers| numbers.first)).collect();
    let exhausted = Err(CallError::Refused(Refusal::Exhausted));
    assert_eq!(numbers, [Ok(LAST - 3), exhausted.clone(), Ok(LAST), exhausted]);
}

#[test]
fn a_server_that_started_anew_is_noticed() {
    let world = World::new();
    let sequence = Arc::new(Sequence::new(0, EPOCH, 100));
    let mut server = world.server("server", &sequence);
    let mut client = world.client("client", &mut server, 2, Faults::NONE, 1);
    assert_eq!(world.call(&mut server, &mut client, 10), Ok(Numbers { first: 0, count: 10 }));
    let epoch = client.epoch();
    assert_eq!(epoch, Some(EPOCH));
    // The server dies, and forgets how far it had got.
    assert!(world.network.kill("server"));
    client.request(1, 1).unwrap();
    let mut result = None;
    for _ in 0..PATIENCE_STEPS {
        client.turn(world.clock.now_ns()).unwrap();
        result = client.answer();
        if result.is_some() {
            break;
        }
        world.clock.advance(STEP_NS);
    }
    assert!(matches!(result.map(|answer| answer.result), Some(Err(CallError::Rpc(_)))));
    drop(server);
    let anew = Arc::new(Sequence::new(0, Epoch(8), 100));
    let mut server = world.server("server", &anew);
    let nexus = Nexus::client();
    let port = world.network.port("client-again").unwrap();
    let mut rpc = Rpc::new(&nexus, port, world.clock.clone(), Box::new(SeededGenerator::new(5)));
    let session = rpc.begin_connect(&server.address()).unwrap();
    let mut again = RpcClient::new(rpc, session, 2, epoch).unwrap();
    let restarted = Err(CallError::Restarted { expected: EPOCH, found: Epoch(8) });
    assert_eq!(world.call(&mut server, &mut again, 1), restarted);
}

#[test]
fn a_full_window_takes_no_more() {
    let world = World::new();
    let sequence = Arc::new(Sequence::new(0, EPOCH, 100));
    let mut server = world.server("server", &sequence);
    let mut client = world.client("client", &mut server, 2, Faults::NONE, 1);
    client.request(0, 1).unwrap();
    client.request(1, 1).unwrap();
    assert_eq!(client.request(2, 1), Err(RequestError::WindowFull { window: 2 }));
    world.answer(&mut server, &mut client);
    client.request(2, 1).unwrap();
}

#[test]
fn calls_end_when_they_were_waited_for_long_enough_or_are_cancelled() {
    const MS: u64 = 1_000_000;
    let world = World::new();
    let sequence = Arc::new(Sequence::new(0, EPOCH, 100));
    let mut server = world.server("server", &sequence);
    let client = world.client("client", &mut server, 8, Faults::NONE, 1);
    let mut client = client.timeout_ns(2 * MS);
    assert_eq!(world.call(&mut server, &mut client, 10), Ok(Numbers { first: 0, count: 10 }));
    // From here on no server answers.
    client.request(1, 1).unwrap();
    client.request_within(2, 1, MS).unwrap();
    let [cancelled, kept] = [3, 4].map(|tag| client.request_within(tag, 1, u64::MAX).unwrap());
    assert!(client.cancel(cancelled) && !client.cancel(cancelled));
    let mut ended = Vec::new();
    for _ in 0..10 * MS / STEP_NS {
        client.turn(world.clock.now_ns()).unwrap();
        ended.extend(std::iter::from_fn(|| client.answer()).map(|answer| match answer.result {
            Err(CallError::Rpc(error)) => (answer.tag, error.cause),
            other => panic!("{other:?}"),
        }));
        world.clock.advance(STEP_NS);
    }
    assert_eq!(ended, [(3, Cause::Cancelled), (2, Cause::DeadlinePassed), (1, Cause::DeadlinePassed)]);
    assert_eq!(client.in_flight(), 1);
    let answer = world.answer(&mut server, &mut client);
    assert!(answer.tag == 4 && answer.result.is_ok(), "{answer:?}");
    assert!(!client.cancel(kept) && client.in_flight() == 0);
}
