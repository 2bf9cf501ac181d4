//! Devices, protection domains, and exposed memory of modelled NICs.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use sinew_fabric::verbs::{
    Access, Attributes, Device, Exposed, GATHER_MAX, ProtectionDomain, Registration, RemoteMemory, VerbsError,
};
use sinew_mem::{Arena, BufferPlace, SharedMemory};

use super::handle::{Domain, Handle};
use super::queues::SimThread;
use crate::network::Network;
use crate::nic::{NicStats, NicUse, Profile};
use crate::port::PortId;
use crate::topology::HostId;

/// Bytes of a page for the cost of registering.
const PAGE: usize = 4096;
/// Most requests, and most receives, that a queue pair holds.
const QUEUE_DEPTH_MAX: usize = 16_384;

/// One actor's handle of a modelled NIC: see [the module](crate::verbs). Clones are the same handle.
#[derive(Clone, Debug)]
pub struct SimVerbs(Handle);

impl Network {
    /// Puts a NIC into a host. From then on its model alone determines the host's latencies for packets, in place of
    /// the topology's.
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoDevice`] when there is no such host; [`VerbsError::Device`] when it has a NIC already, or an
    /// open port, which charges for a NIC of its own.
    pub fn attach_nic(&self, host: HostId, profile: &Profile) -> Result<(), VerbsError> {
        let mut world = self.0.world.borrow_mut();
        if host.0 >= world.topology.hosts.len() {
            return Err(VerbsError::NoDevice(format!("there is no host {}: name one of the topology", host.0)));
        }
        let name = world.topology.hosts[host.0].name.clone();
        if world.nic_of(host).is_some() {
            return Err(VerbsError::Device(format!("{name} has a NIC already: its threads share one")));
        }
        if world.nodes.iter().any(|node| node.host == host && node.is_open) {
            return Err(VerbsError::Device(format!("{name} has open ports, which charge for a NIC of their own")));
        }
        world.attach_nic(host, Rc::new(profile.clone()));
        Ok(())
    }

    /// Opens the NIC of a host under a name of the caller's choice, which no other port or handle of the network may
    /// have.
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoDevice`] when the host has no NIC; [`VerbsError::Device`] when the name is taken.
    pub fn verbs(&self, host: HostId, name: &str) -> Result<SimVerbs, VerbsError> {
        let mut world = self.0.world.borrow_mut();
        let Some(nic) = world.nic_of(host) else {
            return Err(VerbsError::NoDevice(format!("host {} has no NIC: attach one first", host.0)));
        };
        if world.find(name).is_some() {
            return Err(VerbsError::Device(format!("the name {name} is taken: give each handle its own")));
        }
        let node = world.open(name, host, 0);
        let of_nic = &world.nics[nic as usize];
        let (profile, regions) = (&of_nic.profile, Arc::clone(&of_nic.regions));
        let attributes = Attributes {
            name: format!("sim:{} ({})", world.topology.hosts[host.0].name, profile.name),
            mtu: profile.link.mtu,
            message_len_max: 1 << 30,
            inline_max: profile.wqe.inline_max,
            gather_max: GATHER_MAX,
            queue_depth_max: QUEUE_DEPTH_MAX,
            reads_max: profile.units.reads_max,
            atomics: true,
            line_rate_bps: Some((profile.link.rate_gbps * 1e9) as u64),
        };
        Ok(SimVerbs(Handle::new(self.id(), (node, world.generation(node)), nic, attributes, regions)))
    }

    /// Counters of a host's NIC; none where the host has none.
    pub fn nic_stats(&self, host: HostId) -> Option<NicStats> {
        let world = self.0.world.borrow();
        world.nic_of(host).map(|nic| world.nics[nic as usize].stats)
    }

    /// Share of the time since 0 for which each part of a host's NIC was busy; none where the host has none.
    pub fn nic_use(&self, host: HostId) -> Option<NicUse> {
        let world = self.0.world.borrow();
        world.nic_of(host).map(|nic| world.nic_use(nic, self.0.clock.event_ns()))
    }
}

impl SimVerbs {
    /// The handle's name for a [`Cluster`](crate::Cluster).
    pub fn place(&self) -> PortId {
        PortId(self.0.node())
    }
}

fn no_memory(bytes: usize) -> impl FnOnce(std::io::Error) -> VerbsError {
    move |source| VerbsError::System { doing: format!("mapping {bytes} bytes"), source, remedy: None }
}

impl Device for SimVerbs {
    type Domain = SimDomain;

    fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    fn protection_domain(&self) -> Result<SimDomain, VerbsError> {
        Ok(SimDomain(Domain::new(self.0.clone())))
    }
}

/// A protection domain of a modelled NIC.
#[derive(Clone, Debug)]
pub struct SimDomain(Domain);

impl SimDomain {
    /// Lets requests of this domain also use an arena of another domain, of any handle of the NIC. Threads of a process
    /// share one domain, whereas each actor has its own.
    pub fn share_arena(&self, arena: &Arena) {
        self.0.handle.regions().add_arena(self.0.number(), arena.clone());
    }
}

impl SimDomain {
    fn network(&self) -> Result<Network, VerbsError> {
        self.0.handle.network().find().ok_or_else(|| {
            VerbsError::NoDevice(
                "the simulated network is gone, or another thread's: a simulation has one thread".to_owned(),
            )
        })
    }
}

impl ProtectionDomain for SimDomain {
    type Exposed = SimExposed;
    type Thread = SimThread;
    type Registration = Registration<()>;

    fn arena(&self, bytes: usize) -> Result<Arena, VerbsError> {
        let arena = Arena::private(bytes).map_err(no_memory(bytes))?;
        self.0.handle.regions().add_arena(self.0.number(), arena.clone());
        Ok(arena)
    }

    fn expose(&self, len: usize, access: Access) -> Result<SimExposed, VerbsError> {
        let memory = SharedMemory::private(len).map_err(no_memory(len))?;
        let handle = &self.0.handle;
        let remote = handle.regions().expose(memory.clone(), access, self.0.number(), handle.node());
        Ok(SimExposed { memory, remote, access, handle: handle.clone() })
    }

    /// Charges the core the profile's cost of registering (rdmabox IV-A, Figure 5). It includes deregistering.
    fn register(&self, place: BufferPlace) -> Result<Registration<()>, VerbsError> {
        let network = self.network()?;
        self.0.registered().register(place, |place| {
            let world = network.0.world.borrow();
            let costs = world.nics[self.0.handle.nic as usize].profile.registration;
            drop(world);
            network.0.clock.spend_ns(costs.call_ns + place.len().div_ceil(PAGE) as u64 * costs.page_ns);
            Ok(())
        })
    }

    fn thread(&self) -> Result<SimThread, VerbsError> {
        Ok(SimThread::new(self.0.clone(), self.network()?))
    }
}

/// Memory that other hosts of a simulated network may reach. Its address is the simulation's own.
#[derive(Debug)]
pub struct SimExposed {
    memory: SharedMemory,
    remote: RemoteMemory,
    access: Access,
    handle: Handle,
}

impl Deref for SimExposed {
    type Target = SharedMemory;

    fn deref(&self) -> &SharedMemory {
        &self.memory
    }
}

impl Exposed for SimExposed {
    fn remote(&self) -> RemoteMemory {
        self.remote
    }

    fn access(&self) -> Access {
        self.access
    }

    fn deregister(self) -> Option<SharedMemory> {
        // The NIC accesses no memory between two events.
        Some(self.memory.clone())
    }
}

impl Drop for SimExposed {
    fn drop(&mut self) {
        self.handle.regions().remove(self.remote.rkey);
    }
}

#[cfg(test)]
mod tests {
    use sinew_fabric::verbs::{QpConfig, ThreadDomain, Transport};

    use super::*;
    use crate::topology::Topology;

    #[test]
    fn arenas_of_a_domain_go_with_the_last_that_may_use_them() {
        let network = Network::new(Topology::star(1, 10.0, 10, 4096), 1).unwrap();
        network.attach_nic(HostId(0), &Profile::built_in("cx3").unwrap()).unwrap();
        let device = network.verbs(HostId(0), "device").unwrap();
        let domain = device.protection_domain().unwrap();
        domain.arena(1 << 16).unwrap();
        let thread = domain.thread().unwrap();
        let cq = thread.completion_queue(4).unwrap();
        let config = QpConfig { send_depth: 1, receive_depth: 1, ..QpConfig::new(Transport::Rc) };
        let qp = thread.queue_pair(&config, &cq, &cq).unwrap();
        drop((domain, thread));
        assert_eq!(device.0.regions().arenas(), 1);
        drop(qp);
        assert_eq!(device.0.regions().arenas(), 0);
    }
}
