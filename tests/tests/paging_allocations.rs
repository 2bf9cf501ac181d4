//! A device that a host swaps to must not need the memory that it is asked to free: once everything has been used once,
//! the thread that serves it allocates nothing for a request. (Its heartbeats, one a second to each donor, allocate a
//! few words, from memory that `--for-paging` has locked.)

mod common;
#[path = "common/nbd.rs"]
mod nbd;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use common::{Folder, PATIENCE};
use nbd::Client;
use sinew::fabric::{SeededGenerator, Waker};
use sinew::host::{HostClock, SystemEntropy};
use sinew::prelude::*;
use sinew::remote_block::{Config as BlockConfig, Listener, Server};
use sinew::remote_memory::donor::{CallsOnly, MemoryProvider, Service, ServiceConfig};
use sinew::remote_memory::engine::RpcPathConfig;
use sinew::remote_memory::pool::{CallDonors, DonorSpace, PoolConfig, VerbsDonors, place_volume};
use sinew::remote_memory::volume::{Donors, Opening, VolumeConfig};
use sinew::shm::verbs::ShmDevice;
use sinew::{Program, ServerHandle, SharedEndpoint};

const MEMORY: usize = 24 << 20;
const LEN: u64 = 8 << 20;
/// Bytes of buffers; only those in use take memory.
const ARENA: usize = 288 << 20;

/// The system's allocator, with a counter.
struct Counting;

thread_local! {
    /// Allocations of this thread.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending may allocate after its locals are gone.
    let _ = ALLOCATIONS.try_with(|all| all.set(all.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `alloc`'s contract, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract, and `block` came from `System`, since all allocations do.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `realloc`'s contract, and `block` came from `System`, since all allocations do.
        unsafe { System.realloc(block, layout, len) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

type Failed = Box<dyn std::error::Error + Send + Sync>;

struct Donor<L: MemoryProvider>(Service<L>);

impl<L: MemoryProvider> Program for Donor<L> {
    type Error = Failed;

    fn turn(&mut self, rpc: &mut Rpc) -> Result<Flow, Failed> {
        let service = &mut self.0;
        let busy = rpc.turn_with(|call| service.handle_call(call));
        Ok((service.turn() | busy).into())
    }
}

fn lend<L: MemoryProvider + Clone + Send + Sync + 'static>(address: &str, lends: L) -> ServerHandle {
    let nexus = Nexus::builder().build().unwrap();
    let server = nexus.server().program(move |_, _| {
        let service = Service::new(&lends, ServiceConfig::new(MEMORY, None), Box::new(SystemEntropy::new()?))?;
        Ok::<_, Failed>(Donor(service))
    });
    server.at(address).start().unwrap()
}

/// Ends a server when it is dropped.
struct EndOnDrop<'a> {
    is_over: &'a AtomicBool,
    waker: Waker,
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// Rounds until everything has been used, and rounds that are counted.
const WARM: u32 = 150;
const ROUNDS: u32 = 100;
/// Allocations for the heartbeats of a second, at most.
const PER_SECOND: f64 = 24.0;

/// Serves a volume of two copies, while `use_it` uses the device; each call of it is one round. Checks that the serving
/// thread allocates for heartbeats alone in the rounds after the first ones.
fn check<D: Donors>(make_donors: impl FnOnce() -> D + Send, mut use_it: impl FnMut(&mut Client)) {
    let folder = Folder::new();
    let path = folder.0.join("socket");
    let at = format!("unix:{}", path.display());
    let (is_over, made) = (AtomicBool::new(false), AtomicU64::new(0));
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        let (is_over, made) = (&is_over, &made);
        scope.spawn(move || {
            let donors = make_donors();
            let rooms: Vec<DonorSpace> =
                donors.ids().iter().map(|donor| DonorSpace { donor: *donor, free: MEMORY as u64 }).collect();
            let new = place_volume(LEN, 2, 10 << 20, 1, &rooms).unwrap();
            let mut opening = Opening::create(donors, 5, new, VolumeConfig::default());
            let since = Instant::now();
            let volume = loop {
                if let Some(volume) = opening.turn().unwrap() {
                    break volume;
                }
                assert!(since.elapsed() < PATIENCE, "the volume does not open");
                std::thread::yield_now();
            };
            let mut server = Server::open(Listener::bind(&at).unwrap(), volume, BlockConfig::default()).unwrap();
            send.send(server.waker()).unwrap();
            let look = || {
                made.store(ALLOCATIONS.get(), Ordering::Release);
                is_over.load(Ordering::Acquire)
            };
            server.run(&HostClock::new(), look).unwrap();
        });
        // Also ends the server when a check fails.
        let ends = EndOnDrop { is_over, waker: receive.recv().unwrap() };
        let mut client = Client::connect(&path);
        // The count is that of the last loop, which a short wait lets come after the last answer.
        let mut made_after = |rounds: u32| {
            (0..rounds).for_each(|_| use_it(&mut client));
            std::thread::sleep(Duration::from_millis(50));
            made.load(Ordering::Acquire)
        };
        let (before, since) = (made_after(WARM), Instant::now());
        let allocations = made_after(ROUNDS) - before;
        let for_heartbeats = (since.elapsed().as_secs_f64() + 1.0) * PER_SECOND;
        drop((client, ends));
        let requests = u64::from(ROUNDS) * REQUESTS;
        assert!((allocations as f64) < for_heartbeats, "{allocations} allocations for {requests} requests");
    });
}

/// Requests of a round.
const REQUESTS: u64 = 129;

/// A round as paging has it: writes and reads of one to sixteen pages anywhere, and a flush now and then.
fn paging() -> impl FnMut(&mut Client) {
    let mut random = SeededGenerator::new(7);
    let bytes: Arc<[u8]> = (0..64 << 10).map(|at| at as u8).collect();
    move |client| {
        for _ in 0..64 {
            let pages = 1 + random.below(16);
            let at = random.below(LEN / 4096 - pages) * 4096;
            client.write(at, &bytes[..pages as usize * 4096]).unwrap();
            assert!(client.read(at, pages as usize * 4096).unwrap() == bytes[..pages as usize * 4096]);
        }
        client.flush().unwrap();
    }
}

#[test]
fn a_device_on_a_volume_reached_by_verbs_allocates_nothing_for_a_request_once_it_is_warm() {
    let device = || ShmDevice::open(&"shm://".parse().unwrap()).unwrap();
    let names: Vec<String> = (0..2).map(|lane| format!("shm://{}", common::unique(&format!("memory{lane}")))).collect();
    let lent: Vec<ServerHandle> = names.iter().map(|name| lend(name, device())).collect();
    let donors = || {
        let nexus = Nexus::builder().build().unwrap();
        let rpc = SharedEndpoint::new(Rpc::open_with(&nexus, "shm://").unwrap());
        let donors: Vec<_> = names.iter().map(|name| (name.parse().unwrap(), rpc.share())).collect();
        VerbsDonors::new(&device(), donors, ARENA, PoolConfig::default()).unwrap()
    };
    check(donors, paging());
    for donor in lent {
        donor.stop().unwrap();
    }
}

#[test]
fn a_device_on_a_volume_reached_by_calls_allocates_nothing_for_a_request_once_it_is_warm() {
    let lent: Vec<ServerHandle> = (0..2).map(|_| lend("udp://127.0.0.1:0", CallsOnly)).collect();
    let addresses: Vec<_> = lent.iter().map(|donor| donor.addresses()[0].clone()).collect();
    let donors = || {
        let nexus = Nexus::builder().build().unwrap();
        let rpc = SharedEndpoint::new(Rpc::open_with(&nexus, "udp://").unwrap());
        CallDonors::by_calls(&rpc, addresses, ARENA, RpcPathConfig::default(), &PoolConfig::default()).unwrap()
    };
    check(donors, paging());
    for donor in lent {
        donor.stop().unwrap();
    }
}
