//! Engines over verbs on modelled NICs.

use sinew_fabric::SeededGenerator;
use sinew_fabric::verbs::{Access, Device, Exposed, ProtectionDomain};
use sinew_mem::Arena;
use sinew_remote_memory::engine::facts::{TestSetup, run_seed};
use sinew_remote_memory::engine::{DonorQueuePairs, VerbsPath, VerbsPathConfig};
use sinew_remote_memory::engine_tests;
use sinew_sim::nic::Profile;
use sinew_sim::{HostId, LinkFaults, Network, SimDomain, SimExposed, SimVerbs, Topology};

const LEN: usize = 4 << 20;

/// A donor on one host, and threads on the other.
struct NicsSetup {
    network: Network,
    client: (SimVerbs, SimDomain),
    donor: (SimVerbs, SimDomain),
    memory: SimExposed,
    arena: Arena,
    donor_qps: Vec<DonorQueuePairs<SimVerbs>>,
    /// Completion queues of a path.
    completion_queues: usize,
}

impl NicsSetup {
    fn new(seed: u64) -> Self {
        let network = Network::new(Topology::star(2, 54.54, 10, 4096), seed).unwrap();
        let profile = Profile::built_in("cx3").unwrap();
        let open = |host: usize, name: &str| {
            network.attach_nic(HostId(host), &profile).unwrap();
            let device = network.verbs(HostId(host), name).unwrap();
            let domain = device.protection_domain().unwrap();
            (device, domain)
        };
        let (client, donor) = (open(0, "asking"), open(1, "donor"));
        let memory = donor.1.expose(LEN, Access::ALL).unwrap();
        let arena = client.1.arena(256 << 20).unwrap();
        Self { network, client, donor, memory, arena, donor_qps: Vec::new(), completion_queues: 1 }
    }

    fn with_completion_queues(seed: u64, completion_queues: usize) -> Self {
        Self { completion_queues, ..Self::new(seed) }
    }
}

impl TestSetup for NicsSetup {
    type Path = VerbsPath<SimVerbs>;

    fn len(&self) -> u64 {
        LEN as u64
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn path(&mut self) -> Self::Path {
        let (device, domain) = &self.client;
        let config = VerbsPathConfig {
            queue_pairs: 3,
            depth: 16,
            completion_queues: self.completion_queues,
            ..VerbsPathConfig::default()
        };
        let mut path = VerbsPath::new(device, domain, std::slice::from_ref(&self.arena), &config).unwrap();
        let lending = DonorQueuePairs::new(&self.donor.0, &self.donor.1, &path.addresses()).unwrap();
        path.connect(&lending.addresses(), self.memory.remote()).unwrap();
        self.donor_qps.push(lending);
        path
    }

    fn now_ns(&self) -> u64 {
        self.network.now_ns()
    }

    fn advance(&mut self) {
        // When nothing is in flight, a timer is due next.
        let step_ns = if self.network.in_flight() > 0 { 700 } else { 20_000 };
        self.network.run_until(self.network.now_ns() + step_ns);
    }

    fn read_donor(&self, at: u64, bytes: &mut [u8]) {
        self.memory.read(at as usize, bytes).unwrap();
    }

    fn kill_donor(&mut self) {
        self.network.set_cut(HostId(0), HostId(1), true);
    }
}

engine_tests!(NicsSetup::new(1));

mod over_shared_completion_queues {
    use super::*;

    engine_tests!(NicsSetup::with_completion_queues(1, 2));
}

#[test]
// Few packets are faulty, since a READ starts over with each that is lost.
fn links_that_lose_double_and_damage_packets_change_nothing() {
    for seed in 100..108 {
        let mut nics = NicsSetup::new(seed);
        let mut random = SeededGenerator::new(seed);
        let reordering_ns = [50, 300, 2_000][random.below(3) as usize];
        let faults =
            LinkFaults { loss: 0.000_3, corruption: 0.000_2, duplication: 0.01, reordering: 0.002, reordering_ns };
        nics.network.set_all_faults(faults);
        run_seed(&mut nics, seed);
    }
}
