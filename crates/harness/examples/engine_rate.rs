//! How fast an engine of remote memory reads over shared memory, beside bare copies of as many bytes by the same thread in the same run: 4 KB at random
//! places with 32 in flight, and 1 MB.
//!
//! `cargo run --release -p sinew-harness --example engine_rate`

use std::time::Instant;

use anyhow::{Context, ensure};
use sinew::fabric::SeededGenerator;
use sinew::fabric::verbs::{Access, Device, Exposed, ProtectionDomain};
use sinew::mem::{Arena, MessageBuffer, SharedMemory};
use sinew::shm::verbs::ShmDevice;
use sinew_remote_memory::engine::{
    Engine, EngineConfig, Lending, Mode, Op, Request, Shared, SharedConfig, StaticWindow, VerbsPath, VerbsPathConfig,
};

/// Bytes of the donor's memory: more than the caches hold.
const MEMORY: usize = 512 << 20;
const REPETITIONS: usize = 7;

type Way = VerbsPath<ShmDevice>;

/// Reads `count` times `len` bytes, and returns the bytes of a second.
fn by_engine(
    engine: &mut Engine<Way>,
    targets: &mut Vec<MessageBuffer>,
    random: &mut SeededGenerator,
    len: usize,
    count: u64,
) -> anyhow::Result<f64> {
    let places = (MEMORY / len) as u64;
    let (mut submitted, mut over) = (0, 0);
    let mut finished = Vec::with_capacity(64);
    let start = Instant::now();
    let mut now_ns = 0;
    while over < count {
        while submitted < count
            && let Some(target) = targets.pop()
        {
            let at = random.below(places) * len as u64;
            engine.submit(Request { tag: at, op: Op::Read { at, target } })?;
            submitted += 1;
        }
        engine.turn(now_ns);
        now_ns = start.elapsed().as_nanos() as u64;
        engine.poll(&mut finished, 64);
        for one in finished.drain(..) {
            one.result?;
            let target = one.target.context("a read gives its buffer back")?;
            // Each place says what it is.
            ensure!(target.first_chunk() == Some(&one.tag.to_le_bytes()), "what was read at {}", one.tag);
            targets.push(target);
            over += 1;
        }
    }
    Ok((count * len as u64) as f64 / start.elapsed().as_secs_f64())
}

/// The same by copies alone.
fn by_copies(
    memory: &SharedMemory,
    targets: &mut [MessageBuffer],
    random: &mut SeededGenerator,
    len: usize,
    count: u64,
) -> anyhow::Result<f64> {
    let places = (MEMORY / len) as u64;
    let all = targets.len() as u64;
    let start = Instant::now();
    for number in 0..count {
        let at = random.below(places) * len as u64;
        let target = &mut targets[(number % all) as usize];
        memory.read(at as usize, target)?;
        ensure!(target.first_chunk() == Some(&at.to_le_bytes()), "what was copied from {at}");
    }
    Ok((count * len as u64) as f64 / start.elapsed().as_secs_f64())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> anyhow::Result<()> {
    let device = ShmDevice::threads()?;
    let domain = device.protection_domain()?;
    let memory = domain.expose(MEMORY, Access::ALL)?;
    for at in (0..MEMORY).step_by(4096) {
        memory.store(at, at as u64)?;
    }
    let arena: Arena = domain.arena(256 << 20)?;
    let mut random = SeededGenerator::new(1);
    println!("{:>6} {:>8} {:>9} {:>12} {:>12} {:>7}", "mode", "bytes", "in flight", "engine/s", "copies/s", "ratio");
    for (len, in_flight, count) in [(4096, 32, 400_000), (4096, 1, 400_000), (1 << 20, 4, 2_000)] {
        for mode in Mode::ALL {
            let mut path = VerbsPath::new(&device, &domain, std::slice::from_ref(&arena), &VerbsPathConfig::default())?;
            let lending = Lending::new(&device, &domain, &path.addresses())?;
            path.connect(&lending.addresses(), memory.remote())?;
            let shared = Shared::new("shm", MEMORY as u64, StaticWindow::PAPER, SharedConfig::default());
            let mut engine = Engine::new(&shared, path, EngineConfig { mode, ..EngineConfig::default() });
            let mut targets = (0..in_flight).map(|_| arena.alloc(len, len)).collect::<Result<Vec<_>, _>>()?;
            let (mut engines, mut copies, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..REPETITIONS {
                let engine = by_engine(&mut engine, &mut targets, &mut random, len, count)?;
                let copied = by_copies(&memory, &mut targets, &mut random, len, count)?;
                engines.push(engine / len as f64);
                copies.push(copied / len as f64);
                ratios.push(engine / copied);
            }
            let [engine, copied, ratio] = [&mut engines, &mut copies, &mut ratios].map(|values| median(values));
            let name = format!("{mode:?}");
            println!("{name:>8} {len:>8} {in_flight:>7} {engine:>12.0} {copied:>12.0} {:>6.0} %", 100.0 * ratio);
        }
    }
    Ok(())
}
