//! A server's host and those of its clients.

use sinew_sim::nic::{NicUse, Profile};
use sinew_sim::{Cluster, HostId, Network, SimClock, SimVerbs};

use crate::nics::cluster;

/// Hosts with a NIC each, at one switch. The first is the server's.
pub struct Hosts {
    /// Their network.
    pub network: Network,
    /// What runs on them.
    pub cluster: Cluster,
    profile: Profile,
    clients: usize,
    opened: usize,
}

impl Hosts {
    /// A server and so many hosts of clients, all with this NIC, and with its switch and cables.
    ///
    /// # Panics
    ///
    /// When there are no clients.
    pub fn new(profile: &Profile, clients: usize, seed: u64) -> Self {
        assert!(clients > 0, "a server without clients");
        let topology = cluster::topology(profile, 1 + clients);
        let network = Network::new(topology, seed).expect("a star is a topology");
        for host in 0..=clients {
            network.attach_nic(HostId(host), profile).expect("each host gets one");
        }
        let cluster = Cluster::new(&network);
        Self { network, cluster, profile: profile.clone(), clients, opened: 0 }
    }

    /// Their NICs, and cores.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The clock.
    pub fn clock(&self) -> SimClock {
        self.network.clock()
    }

    /// The server's NIC, for one actor.
    pub fn server(&mut self) -> SimVerbs {
        self.open(0)
    }

    /// The NIC of a client's host, for the actor with this number: clients are spread evenly.
    pub fn client(&mut self, number: usize) -> SimVerbs {
        self.open(1 + number % self.clients)
    }

    /// How busy the server's NIC was.
    pub fn usage(&self) -> NicUse {
        self.network.nic_use(HostId(0)).expect("it has one")
    }

    fn open(&mut self, host: usize) -> SimVerbs {
        self.opened += 1;
        self.network.verbs(HostId(host), &format!("actor{}", self.opened)).expect("a NIC is there, the name is new")
    }
}
