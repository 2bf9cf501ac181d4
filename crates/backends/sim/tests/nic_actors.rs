//! Acknowledgements and completions of modelled NICs, and the actors that they wake.

use std::cell::Cell;
use std::rc::Rc;

use sinew_fabric::verbs::{
    Access, CompletionQueue, Device, Exposed, Operation, ProtectionDomain, QpConfig, QueuePair, RemoteMemory, Request,
    Source, ThreadDomain, Transport,
};
use sinew_mem::Frozen;
use sinew_sim::nic::Profile;
use sinew_sim::{
    Actor, ActorState, Cluster, HostId, Network, SimClock, SimCq, SimDomain, SimExposed, SimQp, SimThread, SimVerbs,
    Topology,
};

const LONG: usize = 64 << 10;

/// Two hosts. The link brings the first one's NIC several times more than its bus takes.
fn behind_a_slow_bus() -> Network {
    let fast = Profile::built_in("cx3").unwrap();
    let mut slow = fast.clone();
    slow.pcie.link.lanes = 1;
    let network = Network::new(Topology::star(2, 54.54, 10, 4096), 1).unwrap();
    [slow, fast].iter().enumerate().for_each(|(host, profile)| network.attach_nic(HostId(host), profile).unwrap());
    network
}

struct End {
    device: SimVerbs,
    domain: SimDomain,
    thread: SimThread,
    cq: SimCq,
    memory: SimExposed,
    long: Frozen,
}

impl End {
    fn new(network: &Network, host: usize) -> Self {
        let device = network.verbs(HostId(host), &format!("end {host}")).unwrap();
        let domain = device.protection_domain().unwrap();
        let thread = domain.thread().unwrap();
        let cq = thread.completion_queue(256).unwrap();
        let memory = domain.expose(2 * LONG, Access::ALL).unwrap();
        let mut long = domain.arena(4 << 20).unwrap().alloc(LONG, LONG).unwrap();
        long.copy_from_slice(&[7; LONG]);
        Self { device, domain, thread, cq, memory, long: long.freeze() }
    }

    fn qp(&self, transport: Transport) -> SimQp {
        let config = QpConfig { send_depth: 32, receive_depth: 1, inline_max: 64, ..QpConfig::new(transport) };
        self.thread.queue_pair(&config, &self.cq, &self.cq).unwrap()
    }
}

fn connected(a: &End, b: &End, transport: Transport) -> [SimQp; 2] {
    let [mut near, mut far] = [a, b].map(|end| end.qp(transport));
    near.connect(Some(&far.address())).unwrap();
    far.connect(Some(&near.address())).unwrap();
    [near, far]
}

fn write(qp: &mut SimQp, id: u64, source: Source<'_>, remote: RemoteMemory) {
    qp.post(Request::new(id, Operation::Write { source, remote, immediate: None })).unwrap();
}

/// Lets time pass until `is_reached` holds; returns when that was.
fn run_until_true(network: &Network, mut is_reached: impl FnMut() -> bool) -> u64 {
    while !is_reached() {
        assert!(network.now_ns() < 10_000_000, "it never happens");
        network.run_until(network.now_ns() + 100);
    }
    network.now_ns()
}

#[test]
fn what_is_to_be_acknowledged_does_not_hold_the_link_until_the_bus_has_it() {
    let network = behind_a_slow_bus();
    let (a, mut b) = (End::new(&network, 0), End::new(&network, 1));
    let [mut long, _far] = connected(&b, &a, Transport::Rc);
    let [mut short, _near] = connected(&a, &b, Transport::Uc);
    write(&mut long, 1, b.long.clone().into(), a.memory.remote());
    // All packets have come over the link, and most of them wait for the bus.
    let last = LONG - 1;
    let is_there = |memory: &SimExposed| memory.load(last & !7).unwrap() != 0;
    run_until_true(&network, || a.memory.load(0).unwrap() != 0);
    network.run_until(network.now_ns() + 40_000);
    assert!(!is_there(&a.memory), "the bus is slow");
    let began_ns = network.now_ns();
    write(&mut short, 2, Source::Inline(&[1; 8]), b.memory.remote());
    let took_ns = run_until_true(&network, || b.memory.load(0).unwrap() != 0) - began_ns;
    assert!(!is_there(&a.memory), "it was soon");
    assert!(took_ns < 5_000, "{took_ns} ns");
    let mut completions = Vec::new();
    run_until_true(&network, || b.cq.poll(&mut completions, 1) > 0);
    assert!(is_there(&a.memory));
}

#[test]
fn what_is_acknowledged_behind_an_answer_is_in_memory() {
    let network = behind_a_slow_bus();
    let (a, mut b) = (End::new(&network, 0), End::new(&network, 1));
    let [mut qp, _far] = connected(&b, &a, Transport::Rc);
    let remote = a.memory.remote();
    let arena = b.domain.arena(1 << 20).unwrap();
    write(&mut qp, 1, b.long.clone().into(), remote);
    // Its answer comes behind the first WRITE, when the second has arrived and is not yet written.
    let target = [arena.alloc(8, 8).unwrap()].into_iter().collect();
    qp.post(Request::new(2, Operation::Read { target, remote })).unwrap();
    write(&mut qp, 3, b.long.clone().into(), remote.at(LONG as u64).unwrap());
    let mut completions = Vec::new();
    run_until_true(&network, || {
        b.cq.poll(&mut completions, 1);
        completions.last().is_some_and(|completion| completion.id == 3)
    });
    assert_eq!(completions.iter().map(|completion| completion.id).collect::<Vec<_>>(), [1, 2, 3]);
    assert_ne!(a.memory.load(2 * LONG - 8).unwrap(), 0, "it was said to be there");
}

/// Posts four requests and does other work until they are over; then polls one in each turn, and goes idle.
struct Takes {
    qp: SimQp,
    cq: SimCq,
    remote: RemoteMemory,
    clock: SimClock,
    has_begun: bool,
    sleeps: bool,
    taken: Rc<Cell<usize>>,
}

impl Actor for Takes {
    fn turn(&mut self) -> ActorState {
        if !std::mem::replace(&mut self.has_begun, true) {
            (0..4).for_each(|id| write(&mut self.qp, id, Source::Inline(&[1; 8]), self.remote));
            self.clock.spend_ns(100_000);
            return ActorState::Work;
        }
        self.taken.set(self.taken.get() + self.cq.poll(&mut Vec::new(), 1));
        if self.sleeps { ActorState::Asleep } else { ActorState::Idle }
    }
}

#[test]
fn who_leaves_completions_when_it_polls_has_another_turn() {
    for sleeps in [false, true] {
        let network = Network::new(Topology::star(2, 54.54, 10, 4096), 1).unwrap();
        (0..2).for_each(|host| network.attach_nic(HostId(host), &Profile::built_in("cx3").unwrap()).unwrap());
        let (a, b) = (End::new(&network, 0), End::new(&network, 1));
        let [qp, _far] = connected(&a, &b, Transport::Uc);
        let mut cluster = Cluster::new(&network);
        let taken = Rc::new(Cell::new(0));
        let End { device, cq, .. } = a;
        let (remote, clock) = (b.memory.remote(), network.clock());
        let actor = Takes { qp, cq, remote, clock, has_begun: false, sleeps, taken: Rc::clone(&taken) };
        cluster.add("takes", [device.place()], Box::new(actor));
        cluster.run_until(1_000_000);
        assert_eq!(taken.get(), 4, "sleeps: {sleeps}");
    }
}

#[test]
fn a_name_is_free_again_once_nobody_has_the_handle() {
    let network = behind_a_slow_bus();
    let end = End::new(&network, 0);
    let End { device, domain, thread, cq, memory, .. } = end;
    let taken = || network.verbs(HostId(0), "end 0").is_err();
    drop((device, domain, cq, memory));
    assert!(taken(), "the thread has it");
    drop(thread);
    assert!(!taken());
}
