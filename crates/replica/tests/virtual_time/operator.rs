//! An operator, who changes the members through a client like any other, and asks until there is a definite answer.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use sinew_replica::client::{Client, ClientError, RequestOutcome};
use sinew_replica::client_wire::ClientRequest;
use sinew_replica::wire::MemberId;
use sinew_rpc::Endpoint;
use sinew_sim::{Actor, ActorId, ActorState, SimClock};

use crate::sim::{MS, Sim, SimRpc, next_turn};

/// Time after which a request without an answer is made again. A leader may take half a minute to give a change up.
const TIMEOUT_NS: u64 = 60_000 * MS;
/// Pause before a request is made again that was refused for a reason that may pass.
const AGAIN_NS: u64 = 10 * MS;
/// Parts of refusals that are final. After any other, the change may be possible later, or may yet be made.
const FINAL: [&str; 12] = [
    "there is no member",
    "is already a voter",
    "is already a member",
    "is the last voter",
    "is the name of the leader",
    "is also the name of the leader",
    "there are already",
    "there is no other member",
    "was not handed over",
    "answers: stop or remove it first",
    "no member answers",
    "does not catch up",
];

/// What an operator is to do, and has done.
#[derive(Default)]
pub struct Desk {
    /// The change to be made.
    pub request: Option<ClientRequest<'static>>,
    /// Members that have been lost since, and that this change may still give a vote.
    pub lost: BTreeSet<MemberId>,
    /// Time of the last definite answer, in ns.
    pub ended_ns: u64,
    /// Changes that were made.
    pub done: Vec<ClientRequest<'static>>,
    /// Refusals that were final.
    pub refused: Vec<String>,
}

struct Operator {
    client: Client<SimRpc>,
    clock: SimClock,
    desk: Rc<RefCell<Desk>>,
    is_asking: bool,
    again_ns: u64,
}

impl Operator {
    fn end(&mut self, result: Result<RequestOutcome, ClientError>, now_ns: u64) {
        let mut desk = self.desk.borrow_mut();
        self.is_asking = false;
        self.again_ns = now_ns + AGAIN_NS;
        match result {
            Ok(RequestOutcome::Done) => {
                let request = desk.request.take();
                desk.done.extend(request);
            }
            Err(ClientError::Refused(why)) if FINAL.iter().any(|part| why.contains(part)) => {
                desk.request = None;
                desk.refused.push(why);
            }
            Err(ClientError::Refused(_) | ClientError::NoAnswer { .. } | ClientError::DiskFull) => return,
            other => panic!("{:?}: {other:?}", desk.request),
        }
        desk.lost.clear();
        desk.ended_ns = self.clock.to_simulation_ns(now_ns);
    }
}

impl Actor for Operator {
    fn turn(&mut self) -> ActorState {
        let mut busy = self.client.turn();
        let now_ns = self.client.rpc().now_ns();
        while let Some((_, result)) = self.client.poll() {
            busy = true;
            self.end(result, now_ns);
        }
        let mut begin_ns = u64::MAX;
        if let (false, Some(request)) = (self.is_asking, &self.desk.borrow().request) {
            begin_ns = self.again_ns;
            if now_ns >= begin_ns {
                (self.is_asking, busy) = (true, true);
                self.client.ask(0, request, None, TIMEOUT_NS).unwrap();
            }
        }
        next_turn(busy, self.client.next_turn_ns().unwrap_or(begin_ns), &self.clock, self.client.rpc())
    }
}

/// The place where an operator gets work.
pub struct Office {
    pub desk: Rc<RefCell<Desk>>,
    actor: ActorId,
}

impl Office {
    /// Puts an operator on a host.
    pub fn new(sim: &mut Sim, host: usize, name: &str) -> Self {
        let (client, place) = sim.client(host, name, None);
        let desk = Rc::new(RefCell::new(Desk::default()));
        let (clock, again_ns) = (sim.clock(host), 0);
        let operator = Operator { client, clock, desk: Rc::clone(&desk), is_asking: false, again_ns };
        Self { desk, actor: sim.cluster.add(name, [place], Box::new(operator)) }
    }

    pub fn is_busy(&self) -> bool {
        self.desk.borrow().request.is_some()
    }

    /// Gives an operator who is not busy a change to make.
    pub fn order(&self, sim: &Sim, request: ClientRequest<'static>) {
        let before = self.desk.borrow_mut().request.replace(request);
        assert_eq!(before, None, "one change at a time");
        sim.cluster.waker(self.actor).wake();
    }
}
