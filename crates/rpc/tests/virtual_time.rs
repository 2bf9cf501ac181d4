//! Endpoints of simulated hosts: what blocks there says so.
#![cfg(test)]

use std::io::ErrorKind;

use sinew_fabric::SeededGenerator;
use sinew_rpc::{Call, ConnectError, Nexus, RequestType, Rpc};
use sinew_sim::{Actor, Cluster, Doing, HostId, Network, PortConfig, SimClock, SimPort, Topology};

type Endpoint = Rpc<SimPort, SimClock>;

const ECHO: RequestType = RequestType::new(1);

/// Turns an endpoint.
struct Turns(Endpoint);

impl Actor for Turns {
    fn turn(&mut self) -> Doing {
        if self.0.turn() {
            return Doing::Work;
        }
        match self.0.wait(None) {
            Ok(true) => Doing::Idle,
            _ => Doing::Work,
        }
    }
}

struct World {
    network: Network,
    cluster: Cluster,
}

impl World {
    fn new() -> Self {
        let network = Network::new(Topology::star(4, 25.0, 200, 1500), 1).unwrap();
        Self { cluster: Cluster::new(&network), network }
    }

    fn open(&self, nexus: &Nexus, host: usize, name: &str) -> Endpoint {
        let config = PortConfig { arena_bytes: 1 << 20, ..PortConfig::default() };
        let port = self.network.open(HostId(host), name, config).unwrap();
        Rpc::new(nexus, port, self.network.clock(), Box::new(SeededGenerator::new(self.network.random())))
    }

    fn serve(&mut self, rpc: Endpoint) {
        let (name, place) = (rpc.address().to_string(), rpc.port().place());
        self.cluster.add(&name, [place], Box::new(Turns(rpc)));
    }
}

fn echo() -> Nexus {
    let echo = |call: Call| {
        let request = call.request();
        call.reply(request);
    };
    Nexus::builder().handle(ECHO, echo).build().unwrap()
}

fn is_unsupported(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Io(error) if error.kind() == ErrorKind::Unsupported)
}

#[test]
fn a_blocking_connect_beside_actors_ends_with_an_error_and_takes_nobodys_turn() {
    let mut world = World::new();
    let back = world.open(&echo(), 0, "back");
    world.serve(back);
    world.cluster.run_until(1_000);
    let mut client = world.open(&Nexus::client(), 1, "client");
    let error = client.connect("sim://back").unwrap_err();
    assert!(is_unsupported(&error) && error.to_string().contains("Cluster::run_until"), "{error}");
    // All is as before: the server serves, and the client can be an actor.
    let session = client.begin_connect(&"sim://back".parse().unwrap()).unwrap();
    let handle = client.remote_handle();
    world.serve(client);
    world.cluster.run_until(1_000_000);
    let mut pending = handle.call(session, ECHO, b"hello", 0).unwrap();
    world.cluster.run_until(2_000_000);
    assert_eq!(&*pending.try_take().unwrap().unwrap(), b"hello");
}

#[test]
fn a_blocking_connect_where_there_is_no_actor_lets_time_pass() {
    let world = World::new();
    let mut client = world.open(&Nexus::client(), 1, "client");
    let _nobody_turns_it = world.open(&echo(), 0, "back");
    let error = client.connect("sim://back").unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
    assert!(world.network.now_ns() > 1_000_000);
}

#[test]
fn a_call_that_blocks_in_an_actors_turn_ends_with_an_error() {
    let mut world = World::new();
    let [back, client] = [(0, "back"), (1, "client")].map(|(host, name)| world.open(&echo(), host, name));
    let handle = client.remote_handle();
    world.serve(back);
    world.serve(client);
    let mut pending = handle.run(|rpc| rpc.connect("sim://back")).unwrap();
    world.cluster.run_until(1_000_000);
    let error = pending.try_take().unwrap().unwrap().unwrap_err();
    assert!(is_unsupported(&error), "{error}");
}
