//! Donors as a volume wants them.

use std::io;

use sinew_fabric::verbs::{Device, VerbsError};
use sinew_fabric::{Address, Armed, Descriptor, Readiness};
use sinew_mem::Arena;
use sinew_mem::atomic::Arc;
use sinew_rpc::Endpoint;

use super::approach::{Approach, Verbs};
use super::config::PoolConfig;
use super::reach::Reach;
use crate::donor::Call;
use crate::engine::{EngineStats, Op};
use crate::volume::{DonorId, Donors, Event};

/// Donors that lend memory by verbs.
pub type VerbsDonors<E, D> = Pool<E, Verbs<D>>;

/// Donors within [reach](Reach), each by its lane.
pub struct Pool<E: Endpoint, A: Approach> {
    ids: Vec<DonorId>,
    lanes: Vec<Reach<E, A>>,
    approach: Arc<A>,
}

impl<E: Endpoint, D: Device> Pool<E, Verbs<D>> {
    /// Donors at these addresses, each reached by an endpoint, or a [share](sinew_rpc::SharedEndpoint) of one. Buffers come from an arena of `arena_len` bytes, which
    /// the device registers.
    ///
    /// # Errors
    ///
    /// What the device says.
    pub fn new(
        device: &D,
        donors: impl IntoIterator<Item = (Address, E)>,
        arena_len: usize,
        config: PoolConfig,
    ) -> Result<Self, VerbsError> {
        let approach = Arc::new(Verbs::new(device, arena_len, config.path)?);
        Ok(Self::by(approach, donors, &config))
    }
}

impl<E: Endpoint, A: Approach> Pool<E, A> {
    /// Donors at these addresses, each reached by an endpoint, or a [share](sinew_rpc::SharedEndpoint) of one.
    pub fn by(approach: Arc<A>, donors: impl IntoIterator<Item = (Address, E)>, config: &PoolConfig) -> Self {
        let lane = |(address, rpc)| Reach::new(address, rpc, &approach, config);
        let lanes: Vec<_> = donors.into_iter().map(lane).collect();
        Self { ids: lanes.iter().map(Reach::id).collect(), lanes, approach }
    }

    /// Their names, as they were given.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.lanes.iter().map(Reach::name)
    }

    /// What the engine of a donor did.
    pub fn engine_stats(&self, lane: usize) -> Option<EngineStats> {
        self.lanes.get(lane)?.engine_stats()
    }
}

impl<E: Endpoint, A: Approach> Readiness for Pool<E, A> {
    fn descriptor(&self) -> Option<Descriptor> {
        None
    }

    fn arm(&mut self, _: u64) -> io::Result<Armed> {
        Err(sinew_fabric::readiness::no_descriptor())
    }
}

impl<E: Endpoint, A: Approach> Donors for Pool<E, A> {
    fn ids(&self) -> &[DonorId] {
        &self.ids
    }

    fn arena(&self) -> &Arena {
        self.approach.arena()
    }

    fn call(&mut self, lane: usize, tag: u64, call: Call) {
        self.lanes[lane].call(tag, call);
    }

    fn submit(&mut self, lane: usize, tag: u64, op: Op) -> Result<(), Op> {
        self.lanes[lane].submit(tag, op)
    }

    fn turn(&mut self) -> bool {
        self.lanes.iter_mut().fold(false, |busy, lane| lane.turn() | busy)
    }

    fn now_ns(&self) -> u64 {
        self.lanes.first().map_or(0, Reach::now_ns)
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        self.lanes.iter_mut().for_each(|lane| lane.poll(events));
    }
}
