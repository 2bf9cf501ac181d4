//! The conformance suite of verbs, on modelled NICs.

use std::cell::Cell;

use sinew_conformance::verbs::{Expectations, Fixture, Promise};
use sinew_sim::nic::Profile;
use sinew_sim::{HostId, Network, SimVerbs, Topology};

/// Devices on hosts in turn, each with a NIC of its own.
struct Hosts {
    network: Network,
    opened: Cell<usize>,
}

const HOSTS: usize = 4;

impl Hosts {
    fn new() -> Self {
        let network = Network::new(Topology::star(HOSTS, 54.54, 10, 4096), 1).unwrap();
        let profile = Profile::built_in("cx3").unwrap();
        for host in 0..HOSTS {
            network.attach_nic(HostId(host), &profile).unwrap();
        }
        Self { network, opened: Cell::new(0) }
    }
}

impl Fixture for Hosts {
    type Device = SimVerbs;

    fn device(&self) -> SimVerbs {
        let opened = self.opened.get();
        self.opened.set(opened + 1);
        self.network.verbs(HostId(opened % HOSTS), &format!("device {opened}")).unwrap()
    }

    fn now_ns(&self) -> u64 {
        self.network.now_ns()
    }

    fn expectations(&self) -> Expectations {
        Expectations {
            real_time: Promise::Not("time is virtual"),
            notices_death: Promise::Not("a NIC hears only silence"),
            ..Expectations::default()
        }
    }
}

sinew_conformance::verbs_tests!(Hosts::new());
