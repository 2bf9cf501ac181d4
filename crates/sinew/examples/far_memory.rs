//! A vector that is larger than the local memory it may use: its pages lie at three donors, in two copies, and one
//! donor goes away.
//!
//! `cargo run --release -p sinew --example far_memory`. The donors are threads of this process; elsewhere they are
//! `sinew serve memory shm://NAME`, or run on other hosts.

use sinew::fabric::Generator;
use sinew::far_memory::{FarMemory, FarVec, Options, PAGE};
use sinew::host::{HostClock, SystemEntropy};
use sinew::mem::Arena;
use sinew::prelude::*;
use sinew::remote_memory::donor::{Service, ServiceConfig};
use sinew::remote_memory::pool::{PoolConfig, Survey, VerbsDonors, place_volume};
use sinew::remote_memory::volume::{Opening, VolumeConfig, id_of};
use sinew::shm::verbs::ShmDevice;
use sinew::{Program, SharedEndpoint};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Bytes that each donor lends, and bytes of the volume.
const GIVEN: usize = 64 << 20;
const LEN: u64 = 32 << 20;
/// Pages that are in local memory at a time: 1 MB.
const LOCAL_PAGES: usize = 256;

struct Donor(Service<ShmDevice>);

impl Program for Donor {
    type Error = Failed;

    fn turn(&mut self, rpc: &mut Rpc) -> Result<Flow, Failed> {
        let service = &mut self.0;
        let busy = rpc.turn_with(|call| service.handle_call(call));
        Ok((service.turn() | busy).into())
    }
}

fn device() -> Result<ShmDevice, Failed> {
    Ok(ShmDevice::open(&"shm://".parse()?)?)
}

fn donate(name: &str) -> Result<ServerHandle, Failed> {
    let server = Nexus::builder().build()?.server().program(|_, _| {
        let config = ServiceConfig::new(GIVEN, None);
        Ok::<_, Failed>(Donor(Service::new(&device()?, config, Box::new(SystemEntropy::new()?))?))
    });
    Ok(server.at(name).start()?)
}

fn main() -> Result<(), Failed> {
    let names: Vec<String> = (0..3).map(|donor| format!("shm://far-{}-{donor}", std::process::id())).collect();
    let mut donors: Vec<_> = names.iter().map(|name| donate(name)).collect::<Result<_, _>>()?;

    // The donors within reach, and the memory that each of them has.
    let rpc = SharedEndpoint::new(Rpc::open("shm://")?);
    let addresses = names.iter().map(|name| Ok((name.parse()?, rpc.share()))).collect::<Result<Vec<_>, Failed>>()?;
    let arena_len = (64 << 20) + 4 * LOCAL_PAGES * Arena::block_len(PAGE, PAGE);
    let mut survey = Survey::new(VerbsDonors::new(&device()?, addresses, arena_len, PoolConfig::default())?);
    while !survey.turn() {
        std::thread::yield_now();
    }
    let rooms = survey.results().cloned().collect::<Result<Vec<_>, _>>()?;

    // A volume with two copies of every page.
    let new = place_volume(LEN, 2, 4 << 20, SystemEntropy::new()?.next_u64(), &rooms)?;
    let mut opening = Opening::create(survey.into_donors(), id_of("example"), new, VolumeConfig::default());
    let volume = loop {
        match opening.turn()? {
            Some(volume) => break volume,
            None => std::thread::yield_now(),
        }
    };

    let memory = FarMemory::new(volume, Options::with_local_pages(LOCAL_PAGES), HostClock::new())?;
    let count = LEN as usize / 2 / size_of::<u64>();
    let mut squares = FarVec::<u64, _>::zeroed(&memory, count)?;
    for index in 0..count {
        squares.set(index, (index * index) as u64)?;
    }
    memory.flush()?;
    println!("{count} numbers, {} of {} pages here: {:?}", memory.stats().local, count * 8 / PAGE, memory.status());

    donors.remove(1).stop()?;
    for (index, square) in squares.iter().enumerate() {
        assert_eq!(square?, (index * index) as u64);
    }
    println!("all of them are right without {}: {:?}", names[1], memory.status());
    Ok(())
}
