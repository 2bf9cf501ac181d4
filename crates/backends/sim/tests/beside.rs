//! Ports without an actor, and code outside all turns, beside a cluster's actors: no actor loses a turn.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::rc::Rc;

use sinew_fabric::{Clock, PacketPort, PacketRx, PacketTx, Peer, RxBurst, TxData, TxPacket, WorkerPool};
use sinew_sim::{
    Actor, ActorState, Cluster, Costs, HostId, Network, PortConfig, SimClock, SimPort, Topology, WorkersConfig,
};

type Turns = Rc<RefCell<Vec<u64>>>;

/// Takes packets, and notes its turns.
struct Listener {
    port: SimPort,
    turns: Turns,
    clock: SimClock,
    /// Longest time from one turn to the next.
    period_ns: Option<u64>,
}

impl Actor for Listener {
    fn turn(&mut self) -> ActorState {
        let now_ns = self.clock.now_ns();
        self.turns.borrow_mut().push(now_ns);
        let mut burst = RxBurst::new(now_ns);
        self.port.split().0.receive(&mut burst);
        self.period_ns.map_or(ActorState::Idle, |period_ns| ActorState::IdleUntil(now_ns + period_ns))
    }
}

fn open(network: &Network, host: usize, name: &str) -> SimPort {
    let config = PortConfig { arena_bytes: 1 << 16, costs: Costs::FREE, ..PortConfig::default() };
    network.open(HostId(host), name, config).unwrap()
}

fn send(port: &mut SimPort, to: Peer) {
    port.split().1.push(TxPacket { to, head: &[1; 64], data: TxData::None });
    port.split().1.submit();
}

/// A cluster with one actor, and a port without one.
fn beside(period_ns: Option<u64>) -> (Cluster, SimPort, Peer, Turns) {
    let network = Network::new(Topology::star(3, 25.0, 200, 1500), 1).unwrap();
    let mut cluster = Cluster::new(&network);
    let (port, turns) = (open(&network, 0, "actor"), Turns::default());
    let (place, peer) = (port.place(), port.peer());
    let actor = Listener { port, turns: Rc::clone(&turns), clock: network.clock(), period_ns };
    cluster.add("actor", [place], Box::new(actor));
    (cluster, open(&network, 1, "outside"), peer, turns)
}

fn refuses_to_wait(port: &mut SimPort, timeout_ns: Option<u64>) {
    let error = port.wait(timeout_ns).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("Cluster::run_until"), "{error}");
}

#[test]
fn a_port_of_no_actor_that_waits_beside_actors_is_told_to_turn_the_cluster_and_takes_no_turn() {
    let (mut cluster, mut outside, actor, turns) = beside(Some(5_000));
    cluster.run_until(1_000);
    assert_eq!(turns.take(), [0]);
    send(&mut outside, actor);
    for timeout_ns in [Some(1_000_000), None] {
        refuses_to_wait(&mut outside, timeout_ns);
    }
    assert_eq!(outside.network().now_ns(), 1_000, "no time has passed");
    cluster.run_until(20_000);
    let turns = turns.take();
    assert!(turns.len() == 4 && turns[0] < 5_000, "for the packet, and each time it was due: {turns:?}");
}

#[test]
fn such_a_port_need_not_wait_for_what_is_there() {
    let (mut cluster, mut outside, _, _) = beside(None);
    let to = outside.peer();
    let mut other = open(cluster.network(), 2, "other");
    outside.wait(Some(0)).unwrap();
    outside.waker().wake();
    outside.wait(None).unwrap();
    send(&mut other, to);
    refuses_to_wait(&mut outside, None);
    cluster.run_until(10_000);
    outside.wait(None).unwrap();
}

#[test]
fn wakes_that_are_due_and_workers_that_begin_keep_others_from_waiting() {
    let (mut cluster, mut outside, _, turns) = beside(None);
    let clock = cluster.clock();
    let waker = cluster.network().wake_source();
    let mut wakes = Some(waker.waker());
    struct Once<F>(F);
    impl<F: FnMut()> Actor for Once<F> {
        fn turn(&mut self) -> ActorState {
            (self.0)();
            ActorState::Done
        }
    }
    let first = cluster.add("listens", [], {
        let (turns, clock) = (Rc::clone(&turns), clock.clone());
        struct Notes(Turns, SimClock);
        impl Actor for Notes {
            fn turn(&mut self) -> ActorState {
                self.0.borrow_mut().push(self.1.now_ns());
                ActorState::Idle
            }
        }
        Box::new(Notes(turns, clock))
    });
    cluster.listen(first, &waker);
    cluster.add("wakes", [], {
        Box::new(Once(move || {
            clock.spend_ns(5_000);
            wakes.take().into_iter().for_each(|waker| waker.wake());
        }))
    });
    cluster.run_until(2_000);
    turns.take();
    refuses_to_wait(&mut outside, Some(10_000));
    cluster.run_until(20_000);
    assert_eq!(turns.take(), [5_000]);

    let network = Network::new(Topology::star(3, 25.0, 200, 1500), 1).unwrap();
    let mut cluster = Cluster::new(&network);
    let mut outside = open(&network, 0, "outside");
    let config = WorkersConfig { workers: 1, capacity: 1, job_ns: 100 };
    let ran = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (runs, clock) = (std::sync::Arc::clone(&ran), cluster.clock());
    let workers = cluster.workers("workers", config);
    workers.submit(Box::new(move || runs.store(clock.now_ns(), std::sync::atomic::Ordering::Relaxed))).ok().unwrap();
    refuses_to_wait(&mut outside, Some(10_000));
    cluster.run_until(20_000);
    assert_eq!(ran.load(std::sync::atomic::Ordering::Relaxed), 100);
}

#[test]
fn the_network_is_its_ports_again_once_the_cluster_is_gone() {
    let (cluster, mut outside, _, turns) = beside(Some(1_000));
    let network = cluster.network().clone();
    drop(cluster);
    outside.wait(Some(10_000)).unwrap();
    assert_eq!((network.now_ns(), turns.take()), (10_000, vec![]));
}

#[test]
fn turns_that_are_due_while_the_network_runs_by_itself_are_late_and_not_lost() {
    let (mut cluster, mut outside, actor, turns) = beside(None);
    cluster.run_until(1_000);
    turns.take();
    // A packet, a wake, and a timer, one after the other.
    send(&mut outside, actor);
    cluster.network().run_until(11_000);
    assert_eq!(turns.take(), []);
    cluster.run_until(20_000);
    assert_eq!(turns.take(), [11_000]);
    cluster.network().run_until(30_000);
    let id = cluster.add(
        "another",
        [],
        Box::new(Listener {
            port: open(cluster.network(), 2, "another"),
            turns: Rc::clone(&turns),
            clock: cluster.clock(),
            period_ns: Some(7_000),
        }),
    );
    cluster.waker(id).wake();
    cluster.network().run_until(40_000);
    cluster.run_until(50_000);
    assert_eq!(turns.take(), [40_000, 47_000]);
    cluster.network().run_until(60_000);
    cluster.run_until(61_000);
    assert_eq!(turns.take(), [60_000]);
}

#[test]
fn an_actor_that_waits_in_its_turn_for_what_comes_later_is_told() {
    struct Blocks(SimPort, Rc<RefCell<Vec<std::io::Error>>>);
    impl Actor for Blocks {
        fn turn(&mut self) -> ActorState {
            let error = (0..10_000).find_map(|_| self.0.wait(None).err());
            self.1.borrow_mut().extend(error);
            ActorState::Idle
        }
    }
    let network = Network::new(Topology::star(3, 25.0, 200, 1500), 1).unwrap();
    let mut cluster = Cluster::new(&network);
    let (port, errors) = (open(&network, 0, "blocks"), Rc::default());
    let (place, waker) = (port.place(), port.waker());
    cluster.add("blocks", [place], Box::new(Blocks(port, Rc::clone(&errors))));
    for turns in 1..=2 {
        cluster.run_until(turns * 1_000);
        waker.wake();
        assert_eq!(errors.borrow().len(), turns as usize);
        assert_eq!(errors.borrow().last().unwrap().kind(), ErrorKind::Unsupported);
    }
}
