//! Heap allocations of a call of a sequencer, at either side: none, once warm.

#[path = "../../xtask/cost/src/counting.rs"]
mod counting;

use std::sync::Arc;
use std::time::Duration;

use counting::allocations;
use sinew::fabric::loopback::Network;
use sinew::fabric::verbs::{Device, ProtectionDomain, QueuePair, ThreadDomain};
use sinew::fabric::{ManualClock, SeededGenerator};
use sinew::herd::{Client as Herd, ClientConfig, ServerConfig, Worker, WorkerConfig};
use sinew::rpc::{Nexus, Rpc};
use sinew::sequencer::atomics::{AtomicsClient, SequencerWord, server_queue_pair};
use sinew::sequencer::herd::{HerdClient, NumberService, layout};
use sinew::sequencer::rpc::{NEXT, RpcClient, handler};
use sinew::sequencer::spec::{SpecClient, SpecConfig, SpecServer};
use sinew::sequencer::{Client, Epoch, Sequence};
use sinew::shm::verbs::ShmDevice;

/// Makes `calls` calls, with `serve` between the client's turns.
fn drive(client: &mut impl Client, mut serve: impl FnMut(), calls: usize) {
    let (mut begun, mut over, mut turns) = (0, 0, 0u64);
    while over < calls {
        while begun < calls && client.in_flight() < client.window() {
            client.request(begun as u64, 1).unwrap();
            begun += 1;
        }
        client.turn(turns).unwrap();
        serve();
        while let Some(answer) = client.answer() {
            answer.result.unwrap();
            over += 1;
        }
        turns += 1;
        assert!(turns < 10_000_000, "{over} of {calls} answers");
    }
}

fn assert_free(what: &str, client: &mut impl Client, mut serve: impl FnMut()) {
    // Queues grow until they have been as full as they get. And two ports complete a link only when they check their
    // sockets and each other's control messages, which they do at intervals; a worker reads the clock once in some
    // thousand turns.
    for _ in 0..4 {
        drive(client, &mut serve, 2_000);
        for turn in 0..5_000 {
            client.turn(turn).unwrap();
            serve();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = allocations();
    drive(client, &mut serve, 5_000);
    assert_eq!(allocations() - before, 0, "{what}: 5,000 calls");
}

fn sequence() -> Arc<Sequence> {
    Arc::new(Sequence::new(0, Epoch(1), 8))
}

#[test]
fn a_warm_call_over_rpc_allocates_nothing() {
    let clock = ManualClock::new();
    let network = Network::new(clock.clone());
    let nexus = Nexus::builder().handle_burst(NEXT, handler(sequence())).build().unwrap();
    let endpoint = |nexus: &Nexus, name: &str, seed| {
        Rpc::new(nexus, network.port(name).unwrap(), clock.clone(), Box::new(SeededGenerator::new(seed)))
    };
    let mut server = endpoint(&nexus, "server", 1);
    let mut rpc = endpoint(&Nexus::client(), "client", 2);
    let session = rpc.begin_connect(&server.address()).unwrap();
    while rpc.poll_event().is_none() {
        rpc.turn();
        server.turn();
        clock.advance(100_000);
    }
    let mut client = RpcClient::new(rpc, session, 16, None).unwrap();
    let serve = || {
        server.turn();
        clock.advance(50_000);
    };
    assert_free("rpc", &mut client, serve);
}

#[test]
fn a_warm_call_over_verbs_allocates_nothing() {
    let device = ShmDevice::threads().unwrap();
    let domain = device.protection_domain().unwrap();
    let arena = || domain.arena(4 << 20).unwrap();

    let mut server = SpecServer::new(domain.thread().unwrap(), device.attributes(), sequence(), 256).unwrap();
    let config = SpecConfig { window: 16, lost_after_ns: u64::MAX };
    let mut client = SpecClient::new(domain.thread().unwrap(), arena(), &server.address(), 0, config).unwrap();
    let serve = || {
        server.turn().unwrap();
    };
    assert_free("spec-s0", &mut client, serve);

    let word = SequencerWord::expose(&domain, 0).unwrap();
    let thread = domain.thread().unwrap();
    let cq = thread.completion_queue(8).unwrap();
    let mut end = server_queue_pair(&thread, &cq).unwrap();
    let mut client = AtomicsClient::new(domain.thread().unwrap(), &arena(), 16).unwrap();
    end.connect(Some(&client.address())).unwrap();
    client.connect(&end.address(), word.remote(), word.next()).unwrap();
    assert_free("atomics", &mut client, || ());

    for config in [WorkerConfig::herd(), WorkerConfig::herd_opt()] {
        let layout = layout(1, 2, 16);
        let (mut server, mut seeds) = sinew::herd::Server::new(&device, &ServerConfig { layout, seed: 1 }).unwrap();
        let service = NumberService::new(sequence());
        let mut worker = Worker::new(seeds.pop().unwrap(), &config, service).unwrap();
        let client = ClientConfig { timeout_ns: u64::MAX, give_up_ns: u64::MAX, ..ClientConfig::new(layout) };
        let (joining, hello) = Herd::prepare(&device, &domain, &client).unwrap();
        let (_, welcome) = server.admit(&hello).unwrap();
        let mut client = HerdClient::new(joining.join(&welcome).unwrap());
        assert_free("herd", &mut client, || {
            worker.turn(0);
        });
    }
}
