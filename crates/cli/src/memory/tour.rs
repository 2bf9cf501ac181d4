//! The tour's part about other hosts' memory: a volume with two copies, at donors in processes of their own.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::json;
use sinew::SharedEndpoint;
use sinew::fabric::Generator;
use sinew::fabric::verbs::Slice as Bytes;
use sinew::host::{HostClock, Interrupt, SystemEntropy};
use sinew::mem::SharedMemory;
use sinew::prelude::*;
use sinew::remote_memory::pool::{DonorSpace, PoolConfig, VerbsDonors, place_volume};
use sinew::remote_memory::store::{BLOCK, Job, Request, Store};
use sinew::remote_memory::volume::{Donors as _, Opening, Volume, VolumeConfig};
use sinew::shm::verbs::ShmDevice;
use sinew_harness::load::Drive;
use sinew_harness::load::memory::{Copies, Memory, Requests, StorePath, fill};
use sinew_harness::run::Progress;
use sinew_harness::{Comparison, Figure, MeasureSides, Run, Unit};

use super::bench::fill_all;
use crate::child::ServerProcess;
use crate::fabrics::Fabric;

/// Bytes of the volume, of a slab of it, and of the memory that each donor lends.
const LEN: usize = 16 << 20;
const SLAB: u64 = 10 << 20;
const GIVEN: usize = 48 << 20;
const COPIES: u32 = 2;
/// Bytes written at a time when the volume is filled.
const PIECE: usize = 64 << 10;
const WINDOW: usize = 32;
/// Longest wait for the donors' answers.
const PATIENCE: Duration = Duration::from_secs(20);

type Donors = VerbsDonors<SharedEndpoint<Rpc>, ShmDevice>;

/// Writes, reads, checks and measures a volume with two copies at two processes.
pub fn volume(duration: Duration, progress: &mut Progress<'_>) -> anyhow::Result<Figure> {
    let interrupt = Interrupt::install().context("catching Ctrl-C")?;
    let mut servers = Vec::new();
    for _ in 0..COPIES {
        let args = ["serve", "memory", &Fabric::Shm.fresh_address("")?, "--memory", &GIVEN.to_string()];
        servers.push(ServerProcess::spawn(&args.map(str::to_owned))?);
    }
    let addresses = servers.iter().map(ServerProcess::address).collect::<anyhow::Result<Vec<_>>>()?;
    let mut volume = create(&addresses)?;
    progress("filling a volume", 0.0);
    write_all(&mut volume)?;
    let arena = volume.arena().clone();
    let requests = Requests { memory: LEN as u64, len: BLOCK, writes: false, follows: false, window: WINDOW, seed: 1 };
    let memory = SharedMemory::private(LEN)?;
    fill_all(&memory)?;
    let mut sides = Sides {
        load: Memory::new(StorePath::new(volume), &arena, requests)?,
        copies: Copies::new(memory, requests),
        clock: HostClock::new(),
        interrupt,
        done: 0,
    };
    let run = Run {
        duration,
        pair: None,
        pins: Vec::new(),
        servers: servers.iter().map(ServerProcess::id).collect(),
        judged: 2,
        yardstick: None,
        interrupt,
    };
    let measured = run.measure_alternately(2, &mut sides, progress)?;
    let figure = measured.figure("memory volume", "reads of 4 KB from a volume", Unit::Mops, 0);
    let what = "copies of 4 KB by the same thread";
    let mut figure = figure.compared_with(&measured, 1, Comparison::Baseline, what);
    figure.setup = json!({ "copies": COPIES, "len": LEN, "size": BLOCK, "in_flight": WINDOW, "fabric": "shm" });
    figure.details = json!({ "requests": sides.done, "checked": sides.load.checked() });
    Ok(figure)
}

/// Repeats a step until it returns a result.
fn finish<T>(what: &str, mut step: impl FnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let since = Instant::now();
    loop {
        if let Some(done) = step()? {
            return Ok(done);
        }
        if since.elapsed() > PATIENCE {
            bail!("{what} took longer than {} s", PATIENCE.as_secs());
        }
        std::thread::yield_now();
    }
}

fn create(addresses: &[&str]) -> anyhow::Result<Volume<Donors>> {
    let nexus = Nexus::builder().build()?;
    let rpc = SharedEndpoint::new(Rpc::open_with(&nexus, &Fabric::Shm.client_address("", None))?);
    let donors = addresses.iter().map(|address| Ok((address.parse()?, rpc.share())));
    let donors = donors.collect::<anyhow::Result<Vec<_>>>()?;
    let device = ShmDevice::open(&"shm://".parse()?)?;
    let donors = VerbsDonors::new(&device, donors, 32 << 20, PoolConfig::default())?;
    let rooms: Vec<DonorSpace> =
        donors.ids().iter().map(|donor| DonorSpace { donor: *donor, free: GIVEN as u64 }).collect();
    let new = place_volume(LEN as u64, COPIES, SLAB, SystemEntropy::new()?.next_u64(), &rooms)
        .context("placing a volume at two donors")?;
    let mut opening = Opening::create(donors, 1, new, VolumeConfig::default());
    finish("making a volume", || Ok(opening.turn()?))
}

/// Writes the volume from beginning to end, and reads each piece back.
fn write_all(volume: &mut Volume<Donors>) -> anyhow::Result<()> {
    let mut finished = Vec::new();
    let mut run = |volume: &mut Volume<Donors>, job| {
        volume.submit(Request { tag: 0, job })?;
        let done = finish("a request", || {
            volume.turn();
            volume.poll(&mut finished, 1);
            Ok(finished.pop())
        })?;
        done.result?;
        anyhow::Ok(done.target)
    };
    let mut expected = vec![0; PIECE];
    for at in (0..LEN as u64).step_by(PIECE) {
        fill(&mut expected, at);
        let mut buffer = volume.arena().alloc(PIECE, PIECE)?;
        buffer.copy_from_slice(&expected);
        run(volume, Job::Write { at, source: Bytes::from(buffer.freeze()) })?;
        let target = volume.arena().alloc(PIECE, PIECE)?;
        let read = run(volume, Job::Read { at, target })?.context("a read came back without its buffer")?;
        ensure!(*read == *expected, "the bytes read from the volume at {at} are not those written");
    }
    Ok(())
}

struct Sides {
    load: Memory<StorePath<Volume<Donors>>>,
    copies: Copies,
    clock: HostClock,
    interrupt: Interrupt,
    done: u64,
}

impl MeasureSides for Sides {
    fn slice(&mut self, side: usize, duration: Duration) -> anyhow::Result<Option<f64>> {
        let slice = match side {
            0 => self.load.drive(&self.clock, duration, self.interrupt)?,
            _ => self.copies.drive(&self.clock, duration, self.interrupt)?,
        };
        self.done += if side == 0 { slice.done } else { 0 };
        Ok(Some(slice.mops()))
    }
}
