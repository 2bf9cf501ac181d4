//! One donor of three answers with garbage: its words and the bytes that it returns are random, changed, cut off or of
//! an earlier call, and it drops writes that it acknowledges. A volume with two copies never returns wrong bytes, and
//! has all that was acknowledged once the donor is gone.
#![cfg(not(miri))]

mod common;

use common::{AccessKind, ByCalls, DONORS, Endpoint, MEMORY, World, address};
use sinew_fabric::verbs::Slice;
use sinew_fabric::{Generator, SeededGenerator};
use sinew_mem::atomic::Arc;
use sinew_remote_memory::donor::CONTROL;
use sinew_remote_memory::pool::{DonorSpace, Pool, PoolConfig, place_volume};
use sinew_remote_memory::store::{BLOCK, Finished, Job, Request, Store, StoreError};
use sinew_remote_memory::volume::{Donors as _, OpenError, Opening, Shape, Volume, VolumeConfig};
use sinew_rpc::SharedEndpoint;

const ID: u64 = 77;
const PAGE: u64 = BLOCK as u64;
const PAGES: u64 = 24;
/// Time after which a request or an opening counts as stuck, in ns.
const PATIENCE_NS: u64 = 4_000_000_000;

type Donors = Pool<SharedEndpoint<Endpoint>, <ByCalls as AccessKind>::Method>;

/// What a donor does with the truth.
struct Liar {
    lane: usize,
    random: SeededGenerator,
    /// Answers of a hundred that are lies.
    share: u64,
    earlier: Vec<Vec<u8>>,
}

impl Liar {
    fn lies(&mut self) -> bool {
        self.random.below(100) < self.share
    }

    fn noise(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.random.next_u64() as u8).collect()
    }

    /// A lie about a call.
    fn distort(&mut self, mut truth: Vec<u8>) -> Vec<u8> {
        self.earlier.push(truth.clone());
        match self.random.below(5) {
            0 => {
                let len = self.random.below(200) as usize;
                self.noise(len)
            }
            1 => {
                let index = self.random.below(self.earlier.len() as u64) as usize;
                self.earlier[index].clone()
            }
            2 => {
                truth.truncate(self.random.below(truth.len() as u64 + 1) as usize);
                truth
            }
            _ => {
                for _ in 0..=self.random.below(4) {
                    let at = self.random.below(truth.len().max(1) as u64) as usize;
                    if let Some(byte) = truth.get_mut(at) {
                        *byte = self.random.next_u64() as u8;
                    }
                }
                truth
            }
        }
    }

    /// A lie about reads and writes: they are said to be done. What is read has the right length, as a rule.
    fn pretend(&mut self, request: &[u8]) -> Vec<u8> {
        let word = |at: usize| request.get(at..at + 4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        let count = word(8).unwrap_or(0) as usize;
        let is_read = |index: usize| word(12 + 16 * index + 12) == Some(0);
        let lens = (0..count).filter(|index| is_read(*index)).filter_map(|index| word(12 + 16 * index + 8));
        let mut len: usize = lens.map(|len| len as usize).sum();
        if self.random.below(64) == 0 {
            len = self.random.below(2 * len as u64 + 9) as usize;
        }
        let status = if self.random.below(64) == 0 { self.noise(4) } else { vec![0; 4] };
        [status, self.noise(len)].concat()
    }
}

struct Scene {
    world: World<ByCalls>,
    liar: Liar,
}

impl Scene {
    fn new(seed: u64, share: u64) -> Self {
        let random = SeededGenerator::new(seed);
        let lane = (seed % DONORS as u64) as usize;
        Self { world: World::new(seed), liar: Liar { lane, random, share, earlier: Vec::new() } }
    }

    fn advance(&mut self) {
        let Self { world, liar } = self;
        // The others, and time.
        let mut lying = world.donors[liar.lane].take();
        if let Some(common::Donor { service, rpc }) = &mut lying {
            rpc.turn_with(|call| {
                if !liar.lies() {
                    return service.handle_call(call);
                }
                let answer = match call.request_type() {
                    CONTROL => liar.distort(service.answer(call.client(), call.request())),
                    _ => liar.pretend(call.request()),
                };
                call.reply(&answer)
            });
            service.turn();
        }
        world.advance();
        world.donors[liar.lane] = lying;
    }

    fn donors(&self, host: usize) -> Donors {
        let rpc =
            SharedEndpoint::new(self.world.endpoint(host, &format!("writer{host}-{}", self.world.random().next_u64())));
        let donors = (0..DONORS).map(|lane| (address(lane).parse().unwrap(), rpc.share()));
        let config = PoolConfig { key: self.world.key.clone(), call_timeout_ns: 10_000_000, ..PoolConfig::default() };
        // The pool takes its access method in an `Arc`, which here stays in one thread.
        #[allow(clippy::arc_with_non_send_sync)]
        let access_method = Arc::new(ByCalls::access_method(&self.world, host, &rpc));
        Pool::with_access(access_method, donors, &config)
    }

    fn finish(&mut self, mut opening: Opening<Donors>) -> Result<Volume<Donors>, OpenError> {
        let until_ns = self.world.network.now_ns() + PATIENCE_NS;
        while self.world.network.now_ns() < until_ns {
            if let Some(volume) = opening.turn()? {
                return Ok(volume);
            }
            self.advance();
        }
        panic!("the opening neither succeeds nor fails");
    }

    fn create(&mut self) -> Result<Volume<Donors>, OpenError> {
        let donors = self.donors(DONORS);
        let rooms: Vec<DonorSpace> =
            donors.ids().iter().map(|donor| DonorSpace { donor: *donor, free: MEMORY as u64 }).collect();
        let new = place_volume(64 * PAGE, 2, Shape { slots: 40 }.slab_len(), 1, &rooms).unwrap();
        self.finish(Opening::create(donors, ID, new, config()))
    }

    fn open(&mut self) -> Result<Volume<Donors>, OpenError> {
        let donors = self.donors(DONORS + 1);
        self.finish(Opening::new(donors, ID, config()))
    }

    fn finish_one(&mut self, volume: &mut Volume<Donors>, job: Job) -> Finished {
        volume.submit(Request { tag: 1, job }).unwrap();
        let mut finished = Vec::new();
        let until_ns = self.world.network.now_ns() + PATIENCE_NS;
        while self.world.network.now_ns() < until_ns {
            volume.turn();
            if volume.poll(&mut finished, 1) == 1 {
                return finished.remove(0);
            }
            self.advance();
        }
        panic!("the request never finishes: {:?}", volume.status());
    }

    fn write(&mut self, volume: &mut Volume<Donors>, page: u64, byte: u8) -> Result<(), StoreError> {
        let mut buffer = volume.arena().alloc(BLOCK, BLOCK).unwrap();
        buffer[..].fill(byte);
        self.finish_one(volume, Job::Write { at: page * PAGE, source: Slice::from(buffer.freeze()) }).result
    }

    /// Reads a page of equal bytes.
    fn read(&mut self, volume: &mut Volume<Donors>, page: u64) -> Result<u8, StoreError> {
        let target = volume.arena().alloc(BLOCK, BLOCK).unwrap();
        let Finished { result, target, .. } = self.finish_one(volume, Job::Read { at: page * PAGE, target });
        result.map(|()| {
            let target = target.unwrap();
            assert!(target.iter().all(|byte| *byte == target[0]), "page {page} has bytes that nobody wrote");
            target[0]
        })
    }
}

fn config() -> VolumeConfig {
    VolumeConfig { retry_ns: 1_000_000, vote_timeout_ns: 100_000_000, lease_ns: 0, ..VolumeConfig::default() }
}

/// Values that a page may have: after a write that failed, the old one or the new one.
struct Shadow(Vec<Vec<u8>>);

impl Shadow {
    fn write(&mut self, page: u64, byte: u8, is_acknowledged: bool) {
        let values = &mut self.0[page as usize];
        if is_acknowledged {
            values.clear();
        }
        values.push(byte);
    }
}

/// Uses a volume while one donor lies in `share` of a hundred answers, beginning with or after its creation.
fn use_volume(seed: u64, share: u64, lies_from_the_start: bool) {
    let mut scene = Scene::new(seed, if lies_from_the_start { share } else { 0 });
    let Ok(mut volume) = scene.create() else {
        assert!(lies_from_the_start, "seed {seed}");
        return;
    };
    scene.liar.share = share;
    let mut shadow = Shadow(vec![vec![0]; PAGES as usize]);
    for step in 0..200_u64 {
        let page = scene.liar.random.below(PAGES);
        if scene.liar.random.below(2) == 0 {
            let byte = (step % 255) as u8 + 1;
            let result = scene.write(&mut volume, page, byte);
            shadow.write(page, byte, result.is_ok());
        } else if let Ok(byte) = scene.read(&mut volume, page) {
            assert!(shadow.0[page as usize].contains(&byte), "page {page} is {byte} (seed {seed}, step {step})");
        }
    }
    drop(volume);
    // Another writer, while the donor still lies.
    if let Ok(mut volume) = scene.open() {
        for page in 0..PAGES {
            if let Ok(byte) = scene.read(&mut volume, page) {
                assert!(shadow.0[page as usize].contains(&byte), "page {page} is {byte} (seed {seed}, reopened)");
            }
        }
        drop(volume);
    }
    // The donor is gone. The others have everything.
    let lane = scene.liar.lane;
    scene.world.kill(lane);
    let mut volume = scene.open().unwrap_or_else(|error| panic!("{error} (seed {seed})"));
    for page in 0..PAGES {
        let read = scene.read(&mut volume, page);
        let is_right = read.as_ref().is_ok_and(|byte| shadow.0[page as usize].contains(byte));
        assert!(is_right, "page {page} is {read:?} of {:?} (seed {seed}, without the donor)", shadow.0[page as usize]);
    }
}

fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("SINEW_LIES_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(24)
}

#[test]
fn a_donor_that_lies_now_and_then_costs_no_page() {
    seeds().for_each(|seed| use_volume(seed, 5, seed % 4 == 0));
}

#[test]
fn a_donor_that_lies_most_of_the_time_costs_no_page() {
    seeds().for_each(|seed| use_volume(seed, 70, seed % 4 == 0));
}
