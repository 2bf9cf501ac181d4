//! A group in a run: its clients and servers, each on a core of its own.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sinew_fabric::Address;
use sinew_rpc::{Config, Congestion, Nexus};
use sinew_sim::{Actor, ActorId, ActorState, Cluster, HostId, NodeId, PortConfig, Topology};

use super::RunError;
use crate::programs::{Endpoint, measuring, open, turn};
use crate::workload::client::{CALL, LoadClient, Tally, answer};
use crate::workload::{Group, Workload};

/// Sessions of a group up to which the rates of all are read; of more sessions, only some are.
const RATES_MAX: usize = 1000;

/// A group in a run.
pub struct Running {
    pub group: Rc<Group>,
    /// Clients, with the names of their hosts.
    pub clients: Vec<(String, Rc<RefCell<LoadClient>>)>,
    pub servers: Vec<Rc<RefCell<Endpoint>>>,
    /// Actors of the clients, and of the servers.
    pub cores: [Vec<ActorId>; 2],
    pub tally: Rc<RefCell<Tally>>,
}

impl Running {
    /// Lowest, median and highest rate of the sessions; none if there are no rates.
    pub fn rates_gbps(&self) -> Option<[f64; 3]> {
        let sessions = self.clients.iter().map(|(_, client)| client.borrow().open()).sum::<usize>();
        let every = sessions.div_ceil(RATES_MAX).max(1);
        let mut rates: Vec<f64> = Vec::new();
        for (_, client) in self.clients.iter().step_by(every) {
            rates.extend(client.borrow().rates());
        }
        rates.sort_by(f64::total_cmp);
        let gbps = |rate: &f64| rate * 8e-9;
        Some([rates.first().map(gbps)?, gbps(&rates[rates.len() / 2]), rates.last().map(gbps)?])
    }
}

/// An actor that others read, too.
struct Shared<A>(Rc<RefCell<A>>);

impl Actor for Shared<LoadClient> {
    fn turn(&mut self) -> ActorState {
        self.0.borrow_mut().turn()
    }
}

impl Actor for Shared<Endpoint> {
    fn turn(&mut self) -> ActorState {
        turn(&mut self.0.borrow_mut())
    }
}

/// Opens a group's endpoints.
pub fn start(
    cluster: &mut Cluster,
    topology: &Topology,
    workload: &Workload,
    index: usize,
    group: &Group,
    origin_ns: &Rc<Cell<Option<u64>>>,
) -> Result<Running, RunError> {
    let network = cluster.network().clone();
    let group = Rc::new(group.clone());
    let name_of = |host: HostId| topology.hosts[host.0].name.clone();
    // An arena's blocks are up to twice as large as their contents. A session has buffers of its own for short answers.
    let call = 4 * (group.request.bounds().1 + group.response.bounds().1 + 4096);
    let clients = group.hosts.len() * group.endpoints;
    let sessions = clients.div_ceil(group.server_endpoints);
    let server_arena = (16 << 20) + clients * group.window * call + sessions * usize::from(workload.slots) * 4096;
    let port = |arena_bytes: usize| PortConfig { arena_bytes, ..PortConfig::default() };
    let server_port = |host: usize, endpoint: usize| format!("group{index}.server{host}.{endpoint}");
    let (mut servers, mut cores) = (Vec::new(), [const { Vec::new() }; 2]);
    for (at, host) in group.servers.iter().enumerate() {
        let nexus = nexus(topology, workload, &group, *host);
        for endpoint in 0..group.server_endpoints {
            let rpc = open(&network, &nexus, *host, &server_port(at, endpoint), port(server_arena))?;
            let place = rpc.port().place();
            let rpc = Rc::new(RefCell::new(rpc));
            let name = format!("{} at {}", group.name, name_of(*host));
            cores[1].push(cluster.add(&name, [place], Box::new(Shared(Rc::clone(&rpc)))));
            servers.push(rpc);
        }
    }
    let (tally, mut clients) = (Rc::default(), Vec::new());
    for (at, host) in group.hosts.iter().enumerate() {
        let nexus = nexus(topology, workload, &group, *host);
        for endpoint in 0..group.endpoints {
            let name = format!("group{index}.client{at}.{endpoint}");
            let rpc = open(&network, &nexus, *host, &name, port((16 << 20) + group.window * call))?;
            let place = rpc.port().place();
            let their_endpoint = endpoint % group.server_endpoints;
            let others = group.servers.iter().enumerate().filter(|(_, server)| *server != host);
            let addresses = others.map(|(at, server)| {
                (name_of(*server), Address::new(sinew_sim::SCHEME, &server_port(at, their_endpoint)))
            });
            let client = LoadClient::new(
                rpc,
                network.clock(),
                network.random(),
                &group,
                addresses.collect(),
                origin_ns,
                &tally,
            )?;
            let client = Rc::new(RefCell::new(client));
            let name = format!("{} ({})", name_of(*host), group.name);
            cores[0].push(cluster.add(&name, [place], Box::new(Shared(Rc::clone(&client)))));
            clients.push((name, client));
        }
    }
    Ok(Running { group, clients, servers, cores, tally })
}

/// Configuration of the endpoints on a host.
fn nexus(topology: &Topology, workload: &Workload, group: &Group, host: HostId) -> Nexus {
    let of_host = topology.links.iter().filter(|link| link.ends.contains(&NodeId::Host(host)));
    let rate_gbps = of_host.map(|link| link.rate_gbps).fold(f64::INFINITY, f64::min);
    let chosen = workload.congestion.map(|congestion| Congestion::new(rate_gbps, congestion.algorithm));
    let congestion = Congestion { rtts_kept: 256, ..chosen.unwrap_or(measuring(rate_gbps)) };
    let config = Config {
        credits: workload.credits,
        slots: workload.slots,
        message_len_max: group.request.bounds().1.max(group.response.bounds().1) as u32,
        overcommit: true,
        recovery: workload.recovery,
        timeout: workload.timeout,
        retransmit_timeout_ns: workload.retransmit_timeout_ns,
        congestion: Some(congestion),
        ..Config::default()
    };
    Nexus::builder().config(config).handle(CALL, answer).build().expect("the file's limits are those of endpoints")
}
