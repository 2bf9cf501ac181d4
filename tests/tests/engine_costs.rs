//! Heap allocations of an engine of remote memory: none, once warm.

#[path = "../../xtask/cost/src/counting.rs"]
mod counting;

use counting::allocations;
use sinew::fabric::SeededGenerator;
use sinew::fabric::verbs::{Access, Device, Exposed, ProtectionDomain};
use sinew::mem::Arena;
use sinew::shm::verbs::ShmDevice;
use sinew_remote_memory::engine::{
    DonorQueuePairs, Engine, EngineConfig, Finished, Mode, Op, Request, Shared, SharedConfig, StaticWindow, VerbsPath,
    VerbsPathConfig,
};

const PAGE: u64 = 4096;
const PAGES: u64 = 512;
/// Requests that are made together, at most.
const TOGETHER: u64 = 48;

/// Makes rounds of reads and writes of one to sixteen pages: lone ones, neighbours, and some that overlap. The requests
/// of any engine may be carried out by another.
fn rounds(engines: &mut [Engine<VerbsPath<ShmDevice>>], arena: &Arena, finished: &mut Vec<Finished>) -> u64 {
    let mut random = SeededGenerator::new(11);
    let mut requests = 0;
    for _ in 0..1000 {
        let together = if random.below(4) == 0 { 1 } else { 1 + random.below(TOGETHER) };
        for tag in 0..together {
            let pages = 1 + random.below(16);
            let at = random.below(PAGES - pages + 1) * PAGE;
            let buffer = arena.alloc((pages * PAGE) as usize, PAGE as usize).unwrap();
            let op = if random.below(2) == 0 {
                Op::Write { at, source: buffer.freeze().into() }
            } else {
                Op::Read { at, target: buffer }
            };
            let engine = random.below(engines.len() as u64) as usize;
            engines[engine].submit(Request { tag, op }).unwrap();
        }
        let mut over = 0;
        while over < together {
            for engine in &mut *engines {
                engine.turn(requests);
                engine.poll(finished, 64);
            }
            over += finished.len() as u64;
            finished.drain(..).for_each(|one| one.result.unwrap());
        }
        requests += together;
    }
    requests
}

#[test]
fn warm_reads_and_writes_take_nothing_from_the_heap() {
    for mode in Mode::ALL {
        for count in [1, 2] {
            let device = ShmDevice::threads().unwrap();
            let domain = device.protection_domain().unwrap();
            let memory = domain.expose((PAGES * PAGE) as usize, Access { atomic: false, ..Access::ALL }).unwrap();
            let arena = domain.arena(64 << 20).unwrap();
            // The window holds requests back.
            let window = StaticWindow { bytes: 256 << 10 };
            let shared = Shared::new("donor", PAGES * PAGE, window, SharedConfig::default());
            let mut lending = Vec::new();
            let mut engines: Vec<_> = (0..count)
                .map(|_| {
                    let arenas = std::slice::from_ref(&arena);
                    let mut path = VerbsPath::new(&device, &domain, arenas, &VerbsPathConfig::default()).unwrap();
                    lending.push(DonorQueuePairs::new(&device, &domain, &path.addresses()).unwrap());
                    path.connect(&lending[lending.len() - 1].addresses(), memory.remote()).unwrap();
                    Engine::new(&shared, path, EngineConfig { mode, ..EngineConfig::default() })
                })
                .collect();
            let mut finished = Vec::with_capacity(TOGETHER as usize);
            // As often as the queues need to wrap around, and their slots to have been used.
            for _ in 0..3 {
                rounds(&mut engines, &arena, &mut finished);
            }
            let before = allocations();
            let requests = rounds(&mut engines, &arena, &mut finished);
            assert_eq!(allocations() - before, 0, "{mode:?}, {count} engines, {requests} requests");
        }
    }
}
