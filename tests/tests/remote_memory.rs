//! Engines of remote memory: by verbs of shared memory and of RDMA devices, by calls, and on several threads at once.

#[path = "common/device.rs"]
mod device;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use sinew::fabric::readiness::wait_on;
use sinew::fabric::verbs::{Access, Device, Exposed, ProtectionDomain};
use sinew::fabric::{Clock, Generator, ManualClock, SeededGenerator};
use sinew::mem::{Arena, SharedMemory};
use sinew::shm::verbs::{ShmDevice, ShmDomain, ShmExposed};
use sinew::shm::{Hub, ShmPort};
use sinew_remote_memory::engine::facts::TestSetup;
use sinew_remote_memory::engine::{
    ACCESS, AdaptiveWindow, DonorQueuePairs, Engine, EngineConfig, Finished, Mode, Op, Ranges, Request, RpcPath,
    RpcPathConfig, Shared, SharedConfig, StaticWindow, Unlimited, VerbsPath, VerbsPathConfig,
};
use sinew_rpc::{Nexus, Rpc};

const LEN: usize = 4 << 20;
/// Rights that paths need.
const ACCESS_OF_PATHS: Access = Access { atomic: false, ..Access::ALL };

type Domain<D> = <D as Device>::Domain;
type Memory<D> = <Domain<D> as ProtectionDomain>::Exposed;
type PathPair<D> = (VerbsPath<D>, DonorQueuePairs<D>);

fn open_pair<D: Device>(
    device: &D,
    domain: &Domain<D>,
    arena: &Arena,
    memory: &Memory<D>,
    completion_queues: usize,
) -> PathPair<D> {
    let config = VerbsPathConfig { depth: 32, completion_queues, ..VerbsPathConfig::default() };
    let mut path = VerbsPath::new(device, domain, std::slice::from_ref(arena), &config).unwrap();
    let lending = DonorQueuePairs::new(device, domain, &path.addresses()).unwrap();
    path.connect(&lending.addresses(), memory.remote()).unwrap();
    (path, lending)
}

/// A donor's memory, and paths to it by the verbs of a device.
struct Verbs<D: Device> {
    device: D,
    domain: Domain<D>,
    memory: Option<Memory<D>>,
    kept: SharedMemory,
    arena: Arena,
    lending: Vec<DonorQueuePairs<D>>,
    clock: ManualClock,
    /// Whether something other than this thread carries the requests out.
    is_apart: bool,
    /// Completion queues of a path.
    completion_queues: usize,
}

impl<D: Device> Verbs<D> {
    fn new(device: D, is_apart: bool, completion_queues: usize) -> Self {
        let domain = device.protection_domain().unwrap();
        let memory = domain.expose(LEN, ACCESS_OF_PATHS).unwrap();
        let arena = domain.arena(256 << 20).unwrap();
        let kept = SharedMemory::clone(&memory);
        let clock = ManualClock::new();
        Self {
            device,
            domain,
            memory: Some(memory),
            kept,
            arena,
            lending: Vec::new(),
            clock,
            is_apart,
            completion_queues,
        }
    }
}

impl<D: Device> TestSetup for Verbs<D> {
    type Path = VerbsPath<D>;

    fn len(&self) -> u64 {
        LEN as u64
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn path(&mut self) -> Self::Path {
        let memory = self.memory.as_ref().expect("the donor is alive");
        let (path, lending) = open_pair(&self.device, &self.domain, &self.arena, memory, self.completion_queues);
        self.lending.push(lending);
        path
    }

    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn advance(&mut self) {
        self.clock.advance(1000);
        if self.is_apart {
            thread::sleep(Duration::from_micros(50));
        }
    }

    fn read_donor(&self, at: u64, bytes: &mut [u8]) {
        self.kept.read(at as usize, bytes).unwrap();
    }

    fn kill_donor(&mut self) {
        self.lending.clear();
        self.memory = None;
    }
}

mod by_verbs {
    use super::*;

    sinew_remote_memory::engine_tests!(Verbs::new(ShmDevice::threads().unwrap(), false, 1));
}

mod by_verbs_over_shared_completion_queues {
    use super::*;

    sinew_remote_memory::engine_tests!(Verbs::new(ShmDevice::threads().unwrap(), false, 3));
}

/// On a machine without a device, these tests are skipped.
mod by_device {
    use super::*;

    sinew_remote_memory::engine_tests!(match device::rdma_device() {
        Some(device) => Verbs::new(device, true, 1),
        None => return,
    });
}

/// The same, with several completion queues.
mod by_device_over_shared_completion_queues {
    use super::*;

    sinew_remote_memory::engine_tests!(match device::rdma_device() {
        Some(device) => Verbs::new(device, true, 3),
        None => return,
    });
}

mod by_calls {
    use super::*;

    struct Calls {
        hub: Hub,
        clock: ManualClock,
        donor: Option<Rpc<ShmPort, ManualClock>>,
        memory: SharedMemory,
        key: u64,
        arena: Arena,
    }

    impl Calls {
        fn new() -> Self {
            let (hub, clock, ranges) = (Hub::new(), ManualClock::new(), Ranges::new());
            clock.advance(1_000_000);
            let memory = SharedMemory::private(LEN).unwrap();
            let key = ranges.offer(memory.clone());
            let nexus = Nexus::builder().handle(ACCESS, ranges.handler()).build().unwrap();
            let port = hub.port("donor?arena=67108864").unwrap();
            let donor = Rpc::new(&nexus, port, clock.clone(), Box::new(SeededGenerator::new(1)));
            Self { hub, clock, donor: Some(donor), memory, key, arena: Arena::private(256 << 20).unwrap() }
        }
    }

    impl TestSetup for Calls {
        type Path = RpcPath<Rpc<ShmPort, ManualClock>>;

        fn len(&self) -> u64 {
            LEN as u64
        }

        fn arena(&self) -> &Arena {
            &self.arena
        }

        fn path(&mut self) -> Self::Path {
            let port = self.hub.port("?arena=67108864").unwrap();
            let generator = Box::new(SeededGenerator::new(2));
            let mut rpc = Rpc::new(&Nexus::client(), port, self.clock.clone(), generator);
            let address = self.donor.as_ref().expect("the donor is alive").address();
            let session = rpc.begin_connect(&address).unwrap();
            while rpc.poll_event().is_none() {
                rpc.turn();
                self.advance();
            }
            RpcPath::new(rpc, session, self.key, &RpcPathConfig::default())
        }

        fn now_ns(&self) -> u64 {
            self.clock.now_ns()
        }

        fn advance(&mut self) {
            self.donor.as_mut().map(Rpc::turn);
            self.clock.advance(2_000);
        }

        fn read_donor(&self, at: u64, bytes: &mut [u8]) {
            self.memory.read(at as usize, bytes).unwrap();
        }

        fn kill_donor(&mut self) {
            self.donor = None;
        }
    }

    sinew_remote_memory::engine_tests!(Calls::new());
}

/// Pages that all threads write and read, each as a whole.
const PAGES: u64 = 24;
const PAGE: usize = 4096;

/// Makes one thread's requests, each of which must be answered once. Now and then the thread drops its engine and takes
/// another.
fn hammer(shared: &std::sync::Arc<Shared>, (device, domain, memory): (&ShmDevice, &ShmDomain, &ShmExposed), seed: u64) {
    let arena = domain.arena(16 << 20).unwrap();
    let mut random = SeededGenerator::new(seed);
    let mut finished: Vec<Finished> = Vec::new();
    for life in 0..6 {
        let (path, _lending) = open_pair(device, domain, &arena, memory, 1 + life % 4);
        let config = EngineConfig { mode: Mode::ALL[random.below(4) as usize], ..EngineConfig::default() };
        let mut engine = Engine::new(shared, path, config);
        let (mut submitted, mut over) = (0, 0);
        while over < 1500 {
            while submitted < 1500 && submitted - over < 32 {
                let pages = 1 + random.below(2);
                let at = random.below(PAGES - pages + 1) * PAGE as u64;
                let mut buffer = arena.alloc(pages as usize * PAGE, PAGE).unwrap();
                let op = if random.below(2) == 0 {
                    buffer[..].fill(random.next_u64() as u8);
                    Op::Write { at, source: buffer.freeze().into() }
                } else {
                    Op::Read { at, target: buffer }
                };
                engine.submit(Request { tag: submitted, op }).unwrap();
                submitted += 1;
                if random.below(4) == 0 {
                    break;
                }
            }
            engine.turn(over);
            engine.poll(&mut finished, 64);
            for one in finished.drain(..) {
                over += 1;
                // A thread that drops its engine may have others' requests in flight; those end with an error.
                if one.result.is_ok()
                    && let Some(target) = one.target
                {
                    for page in target.chunks(PAGE) {
                        assert!(page.iter().all(|byte| *byte == page[0]), "seed {seed}, life {life}: a torn page");
                    }
                }
            }
            if over < submitted && random.below(64) == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(over, submitted);
        // Others' requests that this engine has in flight end, or are given back.
        drop(engine);
    }
}

#[test]
fn threads_see_no_torn_page_and_lose_no_request() {
    let device = ShmDevice::threads().unwrap();
    let domain = device.protection_domain().unwrap();
    let memory = domain.expose(LEN, Access::ALL).unwrap();
    for round in 0..3u64 {
        let config = SharedConfig::default();
        let shared = match round {
            0 => Shared::new("donor", LEN as u64, Unlimited, config),
            1 => Shared::new("donor", LEN as u64, StaticWindow { bytes: 5 * PAGE as u64 }, config),
            _ => Shared::new("donor", LEN as u64, AdaptiveWindow::default(), config),
        };
        thread::scope(|scope| {
            for number in 0..3 {
                let (shared, ground) = (&shared, (&device, &domain, &memory));
                scope.spawn(move || hammer(shared, ground, 10 * round + number));
            }
        });
        assert_eq!((shared.unfinished(), shared.in_flight_bytes()), (0, 0));
        let stats = shared.stats();
        assert_eq!(stats.reads + stats.writes, 3 * 6 * 1500);
    }
}

#[test]
fn who_sleeps_is_woken_by_whoever_finishes_its_requests() {
    [1, 3].into_iter().for_each(sleep_and_wake);
}

fn sleep_and_wake(completion_queues: usize) {
    let device = ShmDevice::threads().unwrap();
    let domain = device.protection_domain().unwrap();
    let memory = domain.expose(LEN, Access::ALL).unwrap();
    let shared = Shared::new("donor", LEN as u64, Unlimited, SharedConfig::default());
    let arena = domain.arena(16 << 20).unwrap();
    let (sender, receiver) = mpsc::channel::<()>();
    let (took, taken) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let (shared, device, domain, arena, memory) = (&shared, &device, &domain, &arena, &memory);
        scope.spawn(move || {
            let (path, _lending) = open_pair(device, domain, arena, memory, completion_queues);
            let mut engine = Engine::new(shared, path, EngineConfig::default());
            for () in receiver {
                while engine.in_flight() == 0 {
                    engine.turn(0);
                }
                took.send(()).unwrap();
                while engine.in_flight() > 0 {
                    thread::yield_now();
                    engine.turn(0);
                }
            }
        });
        let (path, _lending) = open_pair(device, domain, arena, memory, completion_queues);
        let mut engine = Engine::new(shared, path, EngineConfig::default());
        let mut finished = Vec::new();
        for number in 0..500 {
            let read = |tag| Request { tag, op: Op::Read { at: 0, target: arena.alloc(PAGE, PAGE).unwrap() } };
            // The first read finds no other, and this engine posts it; another engine takes the second.
            engine.submit(read(2 * number)).unwrap();
            engine.turn(0);
            engine.submit(read(2 * number + 1)).unwrap();
            sender.send(()).unwrap();
            taken.recv().unwrap();
            let mut over = 0;
            while over < 2 {
                wait_on(&mut [&mut engine], 0, None).unwrap();
                engine.turn(0);
                over += engine.poll(&mut finished, 2);
            }
        }
        assert!(finished.iter().all(|one| one.result.is_ok()));
        let per_queue: Vec<u64> = engine.path().completions().collect();
        assert!(per_queue.len() == completion_queues && per_queue.iter().all(|count| *count > 0), "{per_queue:?}");
        drop(sender);
    });
}
