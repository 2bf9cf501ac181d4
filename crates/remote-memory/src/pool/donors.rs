//! Donors in the form that a volume uses.

use std::io;
use std::os::fd::AsRawFd;

use sinew_fabric::verbs::{Device, VerbsError};
use sinew_fabric::{Address, Armed, Descriptor, Readiness};
use sinew_mem::Arena;
use sinew_mem::atomic::Arc;
use sinew_rpc::{Endpoint, SharedEndpoint};

use super::access_method::{AccessMethod, Calls, Verbs};
use super::config::PoolConfig;
use super::donor_handle::DonorHandle;
use super::watch::Watch;
use crate::donor::Call;
use crate::engine::{EngineStats, Op, RpcPathConfig};
use crate::volume::{DonorId, Donors, Event};

/// Donors that lend memory by verbs.
pub type VerbsDonors<E, D> = Pool<E, Verbs<D>>;

/// Donors whose memory is read and written by calls, over any fabric.
pub type CallDonors<E> = Pool<SharedEndpoint<E>, Calls<E>>;

/// Donors within [reach](DonorHandle), one per lane.
pub struct Pool<E: Endpoint, A: AccessMethod> {
    ids: Vec<DonorId>,
    lanes: Vec<DonorHandle<E, A>>,
    access_method: Arc<A>,
    /// Whether each lane is the first of those that share its endpoint, which is armed once.
    arms_endpoint: Vec<bool>,
    watch: Watch,
    watched_connections: Option<u32>,
}

impl<E: Endpoint, D: Device> Pool<E, Verbs<D>> {
    /// Makes a pool of the donors at these addresses, each reached by an endpoint, or a
    /// [share](sinew_rpc::SharedEndpoint) of one. Buffers come from an arena of `arena_len` bytes, which the device
    /// registers.
    ///
    /// # Errors
    ///
    /// The error of the device.
    pub fn new(
        device: &D,
        donors: impl IntoIterator<Item = (Address, E)>,
        arena_len: usize,
        config: PoolConfig,
    ) -> Result<Self, VerbsError> {
        let access_method = Arc::new(Verbs::new(device, arena_len, config.path)?);
        Ok(Self::with_access(access_method, donors, &config))
    }
}

impl<E: Endpoint> Pool<SharedEndpoint<E>, Calls<E>> {
    /// Makes a pool of the donors at these addresses, whose memory is read and written by calls as well. Buffers come
    /// from an arena of `arena_len` bytes.
    ///
    /// # Errors
    ///
    /// The system's error if it has no memory.
    pub fn by_calls(
        rpc: &SharedEndpoint<E>,
        donors: impl IntoIterator<Item = Address>,
        arena_len: usize,
        path: RpcPathConfig,
        config: &PoolConfig,
    ) -> io::Result<Self> {
        let access_method = Arc::new(Calls::new(rpc, arena_len, path)?);
        Ok(Self::with_access(access_method, donors.into_iter().map(|donor| (donor, rpc.share())), config))
    }
}

impl<E: Endpoint, A: AccessMethod> Pool<E, A> {
    /// Makes a pool of the donors at these addresses, each reached by an endpoint, or a
    /// [share](sinew_rpc::SharedEndpoint) of one.
    pub fn with_access(
        access_method: Arc<A>,
        donors: impl IntoIterator<Item = (Address, E)>,
        config: &PoolConfig,
    ) -> Self {
        let lane = |(address, rpc)| DonorHandle::new(address, rpc, &access_method, config);
        let lanes: Vec<_> = donors.into_iter().map(lane).collect();
        let descriptors: Vec<_> =
            lanes.iter().map(|lane| lane.session_descriptor().map(|descriptor| descriptor.as_raw_fd())).collect();
        let arms_endpoint = (0..lanes.len()).map(|lane| !descriptors[..lane].contains(&descriptors[lane])).collect();
        Self {
            ids: lanes.iter().map(DonorHandle::id).collect(),
            lanes,
            access_method,
            arms_endpoint,
            watch: Watch::default(),
            watched_connections: None,
        }
    }

    /// Addresses of the donors, as they were given.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.lanes.iter().map(DonorHandle::name)
    }

    /// Counters of the engine of one donor; `None` if it has no engine yet.
    pub fn engine_stats(&self, lane: usize) -> Option<EngineStats> {
        self.lanes.get(lane)?.engine_stats()
    }
}

/// A thread can sleep on all donors at once, if their endpoints and the device allow it.
impl<E: Endpoint, A: AccessMethod> Readiness for Pool<E, A> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.lanes.first()?.session_descriptor().and_then(|_| self.watch.descriptor())
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        let connections_made = self.lanes.iter().map(DonorHandle::connections_made).fold(0, u32::wrapping_add);
        if self.watched_connections != Some(connections_made) {
            for lane in &self.lanes {
                self.watch.add(lane.session_descriptor())?;
                lane.watch_engines(&self.watch)?;
            }
            self.watched_connections = Some(connections_made);
        }
        let mut all = Armed::Sleep { until_ns: None };
        for (lane, arms_endpoint) in self.lanes.iter_mut().zip(&self.arms_endpoint) {
            match (all, lane.arm_with(now_ns, *arms_endpoint)?) {
                (Armed::Sleep { until_ns }, armed @ Armed::Sleep { .. }) => all = armed.min_deadline(until_ns),
                _ => {
                    self.disarm();
                    return Ok(Armed::Ready);
                }
            }
        }
        Ok(all)
    }

    fn disarm(&mut self) -> bool {
        self.lanes.iter_mut().fold(false, |woken, lane| lane.disarm() | woken)
    }
}

impl<E: Endpoint, A: AccessMethod> Donors for Pool<E, A> {
    fn ids(&self) -> &[DonorId] {
        &self.ids
    }

    fn arena(&self) -> &Arena {
        self.access_method.arena()
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
        self.lanes.first().map_or(0, DonorHandle::now_ns)
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        self.lanes.iter_mut().for_each(|lane| lane.poll(events));
    }
}
