//! The host of a server, and those of its clients.

use sinew_sim::nic::{NicUse, Profile};
use sinew_sim::{Cluster, HostId, Network, SimClock, SimVerbs};

use crate::nics::cluster;

/// Hosts with a NIC each, at one switch. The first is the server's.
pub struct Hosts {
    /// The hosts' network.
    pub network: Network,
    /// The actors on the hosts.
    pub cluster: Cluster,
    profile: Profile,
    clients: usize,
    opened: usize,
}

impl Hosts {
    /// A server's host and `clients` hosts of clients, with NICs, switch and cables of a profile.
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

    /// Profile of the hosts' NICs and cores.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The network's clock.
    pub fn clock(&self) -> SimClock {
        self.network.clock()
    }

    /// Opens the server's NIC for one actor.
    pub fn server(&mut self) -> SimVerbs {
        self.open(0)
    }

    /// Opens the NIC of a client's host for the actor with this number; clients are spread evenly.
    pub fn client(&mut self, number: usize) -> SimVerbs {
        self.open(1 + number % self.clients)
    }

    /// Use of the server's NIC.
    pub fn usage(&self) -> NicUse {
        self.network.nic_use(HostId(0)).expect("the server has a NIC")
    }

    fn open(&mut self, host: usize) -> SimVerbs {
        self.opened += 1;
        self.network.verbs(HostId(host), &format!("actor{}", self.opened)).expect("a NIC is there, the name is new")
    }
}
