//! Volumes whose donors are other threads, over shared memory, in real time.

mod common;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{Folder, PATIENCE, Server, sinew};
use rustix::process::Signal;

use sinew::fabric::readiness::wait_on;
use sinew::fabric::verbs::Slice;
use sinew::fabric::{Clock, Readiness, SeededGenerator};
use sinew::far_memory::{FarMapping, FarMemory, FarVec, Handler, MapError, MapOptions, Options, PAGE as FAR_PAGE};
use sinew::host::{HostClock, SystemEntropy, ThreadPool};
use sinew::prelude::*;
use sinew::remote_block::{LastCopy, LastCopyFile, VolumeIdentity};
use sinew::remote_memory::donor::{Key, Service, ServiceConfig};
use sinew::remote_memory::pool::{DonorSpace, PoolConfig, VerbsDonors, place_volume};
use sinew::remote_memory::store::{BLOCK, Finished, Job, Request, Status, Store};
use sinew::remote_memory::volume::{Check, Donors as _, Opening, Volume, VolumeConfig};
use sinew::shm::verbs::ShmDevice;
use sinew::{Program, ServerHandle, SharedEndpoint};

const KEY: &[u8] = b"a key of some bytes";
const MEMORY: usize = 48 << 20;
const LEN: u64 = 32 << 20;
const PAGE: u64 = BLOCK as u64;

type Failed = Box<dyn std::error::Error + Send + Sync>;
type Donors = VerbsDonors<SharedEndpoint<Rpc>, ShmDevice>;

struct Donor(Service<ShmDevice>);

impl Program for Donor {
    type Error = Failed;

    fn turn(&mut self, rpc: &mut Rpc) -> Result<Flow, Failed> {
        let service = &mut self.0;
        let busy = rpc.turn_with(|call| service.handle_call(call));
        Ok((service.turn() | busy).into())
    }
}

fn key() -> Option<Key> {
    Key::new(KEY)
}

fn device() -> ShmDevice {
    ShmDevice::open(&"shm://".parse().unwrap()).unwrap()
}

fn names(count: usize) -> Vec<String> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static WORLDS: AtomicU32 = AtomicU32::new(0);
    let world = WORLDS.fetch_add(1, Ordering::Relaxed);
    (0..count).map(|lane| format!("shm://memory-{}-{world}-{lane}", std::process::id())).collect()
}

fn serve(name: &str) -> ServerHandle {
    let nexus = Nexus::builder().build().unwrap();
    let server = nexus.server().program(|_, _| {
        let service = Service::new(&device(), ServiceConfig::new(MEMORY, key()), Box::new(SystemEntropy::new()?))?;
        Ok::<_, Failed>(Donor(service))
    });
    server.at(name).start().unwrap()
}

fn donors(names: &[String]) -> Donors {
    let nexus = Nexus::builder().build().unwrap();
    let rpc = SharedEndpoint::new(Rpc::open_with(&nexus, "shm://").unwrap());
    let donors: Vec<_> = names.iter().map(|name| (name.parse().unwrap(), rpc.share())).collect();
    let config = PoolConfig { key: key(), ..PoolConfig::default() };
    VerbsDonors::new(&device(), donors, 64 << 20, config).unwrap()
}

fn finish<T>(mut step: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(done) = step() {
            return done;
        }
        assert!(since.elapsed() < PATIENCE, "it takes too long");
        std::thread::yield_now();
    }
}

/// Creates a volume with two copies, on donors with 48 MB each.
fn create(names: &[String], config: VolumeConfig) -> Volume<Donors> {
    let donors = donors(names);
    let rooms: Vec<DonorSpace> =
        donors.ids().iter().map(|donor| DonorSpace { donor: *donor, free: MEMORY as u64 }).collect();
    let new = place_volume(LEN, 2, 20 << 20, 1, &rooms).unwrap();
    open(Opening::create(donors, 5, new, config))
}

fn open(mut opening: Opening<Donors>) -> Volume<Donors> {
    finish(|| opening.turn().unwrap())
}

/// Turns until `is_over` or until the time `until` has passed, and sleeps whenever there is nothing to do. Returns the
/// number of turns.
fn sleep_until(
    volume: &mut Volume<Donors>,
    until: Duration,
    mut is_over: impl FnMut(&mut Volume<Donors>) -> bool,
) -> u32 {
    let clock = HostClock::new();
    let until_ns = clock.now_ns() + until.as_nanos() as u64;
    let mut turns = 0;
    while !is_over(volume) && clock.now_ns() < until_ns {
        turns += 1;
        if !volume.turn() {
            wait_on(&mut [volume as &mut dyn Readiness], clock.now_ns(), Some(until_ns)).unwrap();
        }
    }
    turns
}

fn run(volume: &mut Volume<Donors>, job: Job) -> Finished {
    volume.submit(Request { tag: 1, job }).unwrap();
    let mut finished = Vec::new();
    finish(|| {
        volume.turn();
        volume.poll(&mut finished, 1);
        finished.pop()
    })
}

fn write(volume: &mut Volume<Donors>, page: u64, byte: u8) {
    let mut buffer = volume.arena().alloc(BLOCK, BLOCK).unwrap();
    buffer[..].fill(byte);
    run(volume, Job::Write { at: page * PAGE, source: Slice::from(buffer.freeze()) }).result.unwrap();
}

fn read(volume: &mut Volume<Donors>, page: u64, pages: usize) -> Vec<u8> {
    let target = volume.arena().alloc(pages * BLOCK, BLOCK).unwrap();
    let Finished { result, target, .. } = run(volume, Job::Read { at: page * PAGE, target });
    result.unwrap();
    target.unwrap().to_vec()
}

#[test]
fn a_volume_in_shared_memory_survives_its_writer_and_a_donor_and_a_check_finds_nothing() {
    let names = names(3);
    let mut servers: Vec<_> = names.iter().map(|name| Some(serve(name))).collect();
    let config = VolumeConfig { lease_ns: 0, ..VolumeConfig::default() };
    let mut volume = create(&names, config);
    for page in 0..256 {
        write(&mut volume, page * 31, page as u8);
    }
    for page in 0..256 {
        assert!(read(&mut volume, page * 31, 1).iter().all(|byte| *byte == page as u8), "page {page}");
    }
    drop(volume);
    let mut volume = open(Opening::new(donors(&names), 5, config));
    // A donor ends.
    servers[0].take().unwrap().stop().unwrap();
    for page in 0..256 {
        assert!(read(&mut volume, page * 31, 1).iter().all(|byte| *byte == page as u8), "page {page}");
        write(&mut volume, page * 31, page as u8 ^ 0xFF);
    }
    drop(volume);
    let config = VolumeConfig { repairs: false, ..config };
    let volume = open(Opening::new(donors(&names), 5, config));
    let mut check = Check::new(volume);
    let report = finish(|| check.turn());
    assert_eq!(
        (report.pages, report.torn, report.missing, report.differing, report.stale),
        (256, 0, 0, 0, 0),
        "{report:?}"
    );
}

#[test]
fn a_thread_sleeps_on_a_volume_until_its_requests_are_over_or_a_donor_is_gone() {
    let names = names(3);
    let mut servers: Vec<_> = names.iter().map(|name| Some(serve(name))).collect();
    let mut volume = create(&names, VolumeConfig::default());
    let mut finished = Vec::new();
    for page in 0..500 {
        let mut buffer = volume.arena().alloc(BLOCK, BLOCK).unwrap();
        buffer[..].fill(page as u8);
        let job = Job::Write { at: page * PAGE, source: Slice::from(buffer.freeze()) };
        volume.submit(Request { tag: page, job }).unwrap();
        sleep_until(&mut volume, PATIENCE, |volume| volume.poll(&mut finished, 1) == 1);
        let Finished { tag, result, .. } = finished.pop().unwrap();
        assert_eq!((tag, result), (page, Ok(())));
    }
    let idle = sleep_until(&mut volume, Duration::from_secs(1), |_| false);
    assert!(idle < 500, "a thread that has nothing to do took {idle} turns in a second");
    servers[1].take().unwrap().stop().unwrap();
    sleep_until(&mut volume, PATIENCE, |volume| matches!(volume.status(), Status::Degraded(_)));
    assert!(matches!(volume.status(), Status::Degraded(_)), "it hears of it without anybody who asks");
    for page in 0..500 {
        assert!(read(&mut volume, page, 1).iter().all(|byte| *byte == page as u8), "page {page}");
    }
}

#[test]
fn a_volume_is_opened_by_a_thread_that_sleeps() {
    let names = names(3);
    let _servers: Vec<_> = names.iter().map(|name| serve(name)).collect();
    drop(create(&names, VolumeConfig::default()));
    let mut opening = Opening::new(donors(&names), 5, VolumeConfig::default());
    let clock = HostClock::new();
    let (mut turns, since) = (0, Instant::now());
    let volume = loop {
        turns += 1;
        if let Some(volume) = opening.turn().unwrap() {
            break volume;
        }
        wait_on(&mut [&mut opening as &mut dyn Readiness], clock.now_ns(), None).unwrap();
        assert!(since.elapsed() < PATIENCE, "it takes too long");
    };
    assert!(turns < 2_000, "{turns} turns");
    assert_eq!(volume.status(), Status::Whole);
}

/// Starts three donors with the key as processes, to be killed. Returns them, and their names.
fn start_donors() -> (Vec<Server>, Vec<String>) {
    let folder = Folder::new();
    let key_file = folder.0.join("key").display().to_string();
    std::fs::write(&key_file, KEY).unwrap();
    let names = names(3);
    let serve = |name: &String| {
        Server::of(&mut sinew(&["serve", "memory", name, "--child", "--memory", "48M", "--key-file", &key_file]))
    };
    (names.iter().map(serve).collect(), names)
}

/// Compares far memory with a vector in ordinary memory.
#[test]
fn far_memory_on_a_volume_is_memory_while_a_donor_is_killed() {
    const COUNT: usize = LEN as usize / 8;
    const SEED: u64 = 20_240_731;
    let (mut servers, names) = start_donors();
    let options = Options::with_local_pages(200);
    let memory = FarMemory::new(create(&names, VolumeConfig::default()), options, HostClock::new()).unwrap();
    let mut vector = FarVec::<u64, _>::zeroed(&memory, COUNT).unwrap();
    let mut shadow = vec![0u64; COUNT];
    let mut random = SeededGenerator::new(SEED);
    for step in 0..60_000u64 {
        let index = random.below(COUNT as u64) as usize;
        match random.below(3) {
            0 => assert_eq!(vector.get(index).unwrap(), shadow[index], "seed {SEED}, step {step}"),
            _ => {
                vector.set(index, step).unwrap();
                shadow[index] = step;
            }
        }
        if step == 30_000 {
            servers.remove(2).process.signal(Signal::KILL);
        }
    }
    assert!(vector.iter().map(|element| element.unwrap()).eq(shadow.iter().copied()), "seed {SEED}");
    assert!(memory.stats().local <= 200);
    memory.flush().unwrap();
    drop(vector);
    let mut volume = memory.into_store().unwrap().unwrap();
    assert_eq!(volume.stats().donors_lost, 1);
    // The donors hold what was written, page by page.
    for (page, words) in shadow.chunks(FAR_PAGE / 8).enumerate() {
        let bytes = read(&mut volume, page as u64, 1);
        let stored = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        assert!(stored.eq(words.iter().copied()), "seed {SEED}, page {page}");
    }
}

#[test]
fn far_memory_on_a_volume_with_a_last_copy_outlives_all_donors() {
    const COUNT: usize = 4 << 20 >> 3;
    let folder = Folder::new();
    let (servers, names) = start_donors();
    let volume = create(&names, VolumeConfig::default());
    let identity = VolumeIdentity { id: volume.id(), number: volume.number() };
    let file = LastCopyFile::open(&folder.0.join("last copy"), identity, volume.len()).unwrap();
    let pool = Arc::new(ThreadPool::new("last-copy", 1, 4).unwrap());
    let store = LastCopy::new(volume, file, HostClock::new(), pool).unwrap();
    let memory = FarMemory::new(store, Options::with_local_pages(200), HostClock::new()).unwrap();
    let mut vector = FarVec::<u64, _>::zeroed(&memory, COUNT).unwrap();
    let value = |index: usize| index as u64 * 3 + 1;
    for index in 0..COUNT {
        vector.set(index, value(index)).unwrap();
    }
    memory.flush().unwrap();
    servers.iter().for_each(|server| server.process.signal(Signal::KILL));
    for (index, element) in vector.iter().enumerate() {
        assert_eq!(element.unwrap(), value(index), "element {index}");
    }
    // A change needs the donors: the file alone is not what was promised.
    vector.set(0, 0).unwrap();
    assert!(memory.flush().is_err());
}

/// Threads load and store words of their own in pages that they share, and of which few are local.
#[test]
fn plain_loads_and_stores_on_a_volume_are_memory_while_a_donor_is_killed() {
    const THREADS: usize = 3;
    const STEPS: u64 = 15_000;
    let map = MapOptions { user_mode_only: true, ..MapOptions::default() };
    let mapping = match FarMapping::new(LEN / FAR_PAGE as u64, map) {
        Ok(mapping) => mapping,
        Err(error @ (MapError::Forbidden | MapError::NotPermitted | MapError::Absent | MapError::Lacks(_))) => {
            return sinew_conformance::skipped(format_args!("no userfaultfd: {error}"));
        }
        Err(error) => panic!("{error}"),
    };
    let (mut servers, names) = start_donors();
    let (sender, receiver) = mpsc::channel();
    let mapped = mapping.clone();
    let handler = thread::spawn(move || {
        let volume = create(&names, VolumeConfig::default());
        let mut handler = Handler::new(&mapped, volume, Options::with_local_pages(200), HostClock::new()).unwrap();
        sender.send(handler.control()).unwrap();
        let mut errors = Vec::new();
        handler.run(|error| errors.push(error)).unwrap();
        (handler.stats(), errors)
    });
    let control = receiver.recv().unwrap();
    let (half_done, half) = mpsc::channel();
    let mut shadow = vec![0u64; LEN as usize / 8];
    thread::scope(|scope| {
        let threads = Vec::from_iter((0..THREADS).map(|mine| {
            let (words, half_done) = (mapping.words(), half_done.clone());
            scope.spawn(move || {
                let mut random = SeededGenerator::new(mine as u64);
                let mut shadow = std::collections::HashMap::new();
                for step in 1..=STEPS {
                    let at = random.below((words.len() / THREADS) as u64) as usize * THREADS + mine;
                    if random.below(2) == 0 {
                        words[at].store(step, Relaxed);
                        shadow.insert(at, step);
                    } else {
                        let expected = shadow.get(&at).copied().unwrap_or(0);
                        assert_eq!(words[at].load(Relaxed), expected, "word {at} of thread {mine}, step {step}");
                    }
                    if step == STEPS / 2 {
                        half_done.send(()).unwrap();
                    }
                }
                shadow
            })
        }));
        half.recv().unwrap();
        servers.remove(2).process.signal(Signal::KILL);
        for thread in threads {
            thread.join().unwrap().into_iter().for_each(|(at, word)| shadow[at] = word);
        }
    });
    assert!(mapping.words().iter().map(|word| word.load(Relaxed)).eq(shadow));
    control.flush().unwrap();
    control.stop();
    let (stats, errors) = handler.join().unwrap();
    assert!(errors.is_empty(), "{errors:?}");
    assert!(stats.local <= 200 && stats.dirty == 0, "{stats:?}");
}
