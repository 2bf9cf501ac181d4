//! Volumes at donors of other threads, over shared memory, in real time.

use std::time::{Duration, Instant};

use sinew::fabric::verbs::Slice;
use sinew::host::SystemEntropy;
use sinew::prelude::*;
use sinew::remote_memory::donor::{Key, Service, ServiceConfig};
use sinew::remote_memory::pool::{PoolConfig, Room, VerbsDonors, place};
use sinew::remote_memory::store::{BLOCK, Finished, Job, Request, Store};
use sinew::remote_memory::volume::{Check, Donors as _, Opening, Volume, VolumeConfig};
use sinew::shm::verbs::ShmDevice;
use sinew::{Program, ServerHandle, SharedEndpoint};

const MEMORY: usize = 48 << 20;
const LEN: u64 = 32 << 20;
const PAGE: u64 = BLOCK as u64;
const PATIENCE: Duration = Duration::from_secs(60);

type Failed = Box<dyn std::error::Error + Send + Sync>;
type Donors = VerbsDonors<SharedEndpoint<Rpc>, ShmDevice>;

struct Donor(Service<ShmDevice>);

impl Program for Donor {
    type Error = Failed;

    fn turn(&mut self, rpc: &mut Rpc) -> Result<Flow, Failed> {
        let service = &mut self.0;
        Ok(rpc.turn_with(|call| service.take(call)).into())
    }
}

fn key() -> Option<Key> {
    Key::new(b"a key of some bytes")
}

fn device() -> ShmDevice {
    ShmDevice::open(&"shm://".parse().unwrap()).unwrap()
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

fn open(mut opening: Opening<Donors>) -> Volume<Donors> {
    finish(|| opening.turn().unwrap())
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
    let names: Vec<String> = (0..3).map(|lane| format!("shm://memory-{}-{lane}", std::process::id())).collect();
    let mut servers: Vec<_> = names.iter().map(|name| Some(serve(name))).collect();
    let first = donors(&names);
    let rooms: Vec<Room> = first.ids().iter().map(|donor| Room { donor: *donor, free: MEMORY as u64 }).collect();
    let new = place(LEN, 2, 20 << 20, &rooms).unwrap();
    let config = VolumeConfig::default();
    let mut volume = open(Opening::create(first, 5, new, config));
    for page in 0..256 {
        write(&mut volume, page * 31, page as u8);
    }
    for page in 0..256 {
        assert!(read(&mut volume, page * 31, 1).iter().all(|byte| *byte == page as u8), "page {page}");
    }
    drop(volume);
    let mut volume = open(Opening::new(donors(&names), 5, config));
    // A donor goes.
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
