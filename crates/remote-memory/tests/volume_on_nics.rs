//! Volumes at donors on modelled hosts, in virtual time: memory by RDMA, and by calls where there is no RDMA.
#![cfg(not(miri))]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use common::{AccessKind, DONORS, Endpoint, HOSTS, MEMORY, World, address};
use sinew_fabric::verbs::Slice;
use sinew_fabric::{Generator, SeededGenerator};
use sinew_mem::atomic::Arc;
use sinew_remote_memory::donor::Key;
use sinew_remote_memory::engine::Admission;
use sinew_remote_memory::pool::{AdmissionMaker, DonorSpace, Pool, PoolConfig, place_volume};
use sinew_remote_memory::store::{BLOCK, Extent, Finished, Job, Request, Status, Store, StoreError};
use sinew_remote_memory::volume::{OpenError, Opening, Shape, Volume, VolumeConfig};
use sinew_rpc::SharedEndpoint;

const ID: u64 = 77;
const PAGE: u64 = BLOCK as u64;

type Donors<M> = Pool<SharedEndpoint<Endpoint>, <M as AccessKind>::Method>;

with_all_means!(
    a_volume_keeps_what_was_written_when_a_donor_dies_and_when_its_writer_does,
    a_writer_that_is_stopped_past_its_lease_and_goes_on_changes_nothing,
    a_writer_that_lives_keeps_its_volume_and_one_that_is_silent_past_its_lease_loses_it,
    strangers_get_no_memory,
    pages_are_holes_until_they_are_written_and_once_they_are_discarded,
    a_donor_that_was_cut_off_during_writes_is_not_read_from_until_it_is_repaired,
    each_path_to_a_donor_has_a_policy_of_the_pools_maker,
    whatever_befalls_one_donor_after_the_other_or_a_writer_every_page_is_as_it_was_written,
);

impl<M: AccessKind> World<M> {
    fn donors(&self, host: usize, key: Option<Key>) -> Donors<M> {
        self.donors_with(host, PoolConfig { key, call_timeout_ns: 10_000_000, ..PoolConfig::default() })
    }

    fn donors_with(&self, host: usize, config: PoolConfig) -> Donors<M> {
        let rpc = SharedEndpoint::new(self.endpoint(host, &format!("writer{host}")));
        let donors = (0..DONORS).map(|lane| (address(lane).parse().unwrap(), rpc.share()));
        Pool::with_access(Arc::new(M::access_method(self, host, &rpc)), donors, &config)
    }

    fn finish(&mut self, mut opening: Opening<Donors<M>>) -> Result<Volume<Donors<M>>, OpenError> {
        for _ in 0..1_000_000 {
            if let Some(volume) = opening.turn()? {
                return Ok(volume);
            }
            self.advance();
        }
        panic!("the volume did not open by {} ns", self.network.now_ns());
    }

    fn create(&mut self, host: usize) -> Volume<Donors<M>> {
        self.create_with(host, config())
    }

    fn create_with(&mut self, host: usize, config: VolumeConfig) -> Volume<Donors<M>> {
        let rooms: Vec<DonorSpace> = sinew_remote_memory::volume::Donors::ids(&self.donors(DONORS + 2, None))
            .iter()
            .map(|donor| DonorSpace { donor: *donor, free: MEMORY as u64 })
            .collect();
        let new = place_volume(512 * PAGE, 2, Shape { slots: 300 }.slab_len(), 1, &rooms).unwrap();
        let opening = Opening::create(self.donors(host, self.key.clone()), ID, new, config);
        self.finish(opening).unwrap()
    }

    fn open(&mut self, host: usize) -> Result<Volume<Donors<M>>, OpenError> {
        let opening = Opening::new(self.donors(host, self.key.clone()), ID, config());
        self.finish(opening)
    }

    fn finish_one(&mut self, volume: &mut Volume<Donors<M>>) -> Finished {
        let mut finished = Vec::new();
        for _ in 0..1_000_000 {
            volume.turn();
            if volume.poll(&mut finished, 1) == 1 {
                return finished.remove(0);
            }
            self.advance();
        }
        panic!("no request finished");
    }

    fn write(&mut self, volume: &mut Volume<Donors<M>>, page: u64, byte: u8) -> Result<(), StoreError> {
        let job = write::<M>(volume, page, byte);
        volume.submit(Request { tag: 1, job }).unwrap();
        self.finish_one(volume).result
    }

    fn read(&mut self, volume: &mut Volume<Donors<M>>, page: u64) -> Result<u8, StoreError> {
        let target = volume.arena().alloc(BLOCK, BLOCK).unwrap();
        volume.submit(Request { tag: 2, job: Job::Read { at: page * PAGE, target } }).unwrap();
        let Finished { result, target, .. } = self.finish_one(volume);
        result.map(|()| {
            let target = target.unwrap();
            assert!(target.iter().all(|byte| *byte == target[0]), "page {page} is torn");
            target[0]
        })
    }
}

fn config() -> VolumeConfig {
    VolumeConfig { retry_ns: 1_000_000, vote_timeout_ns: 200_000_000, lease_ns: 0, ..VolumeConfig::default() }
}

fn write<M: AccessKind>(volume: &Volume<Donors<M>>, page: u64, byte: u8) -> Job {
    let mut buffer = volume.arena().alloc(BLOCK, BLOCK).unwrap();
    buffer[..].fill(byte);
    Job::Write { at: page * PAGE, source: Slice::from(buffer.freeze()) }
}

fn a_volume_keeps_what_was_written_when_a_donor_dies_and_when_its_writer_does<M: AccessKind>() {
    for seed in 0..3 {
        let mut world = World::<M>::new(seed);
        let mut volume = world.create(DONORS);
        for page in 0..40 {
            world.write(&mut volume, page * 12, page as u8 + 1).unwrap();
        }
        for page in 0..40 {
            assert_eq!(world.read(&mut volume, page * 12), Ok(page as u8 + 1));
        }
        assert_eq!(world.read(&mut volume, 1), Ok(0));
        world.kill(seed as usize);
        for page in 0..40 {
            assert_eq!(world.read(&mut volume, page * 12), Ok(page as u8 + 1), "seed {seed}");
            world.write(&mut volume, page * 12, page as u8 + 100).unwrap();
        }
        drop(volume);
        let mut volume = world.open(DONORS + 1).unwrap();
        for page in 0..40 {
            assert_eq!(world.read(&mut volume, page * 12), Ok(page as u8 + 100), "seed {seed}");
        }
    }
}

fn a_writer_that_is_stopped_past_its_lease_and_goes_on_changes_nothing<M: AccessKind>() {
    for seed in 0..6 {
        let mut world = World::<M>::new(seed);
        let mut old = world.create(DONORS);
        for page in 0..16 {
            world.write(&mut old, page, 1).unwrap();
        }
        // Its NIC has WRITEs to send, or has sent some, when the writer is stopped.
        for page in 0..16 {
            let job = write::<M>(&old, page, 2);
            old.submit(Request { tag: page, job }).unwrap();
        }
        old.turn();
        world.network.run_until(world.network.now_ns() + 700 * seed);
        let mut new = world.open(DONORS + 1).unwrap();
        for page in 0..16 {
            assert!([1, 2].contains(&world.read(&mut new, page).unwrap()), "seed {seed}");
            world.write(&mut new, page, 3).unwrap();
        }
        let error = (0..20).find_map(|page| world.write(&mut old, page % 16, 4).err());
        assert!(matches!(error, Some(StoreError::Fenced(_))), "seed {seed}: {error:?}");
        for page in 0..16 {
            assert_eq!(world.read(&mut new, page), Ok(3), "seed {seed}");
        }
        assert_eq!(new.status(), Status::Whole);
    }
}

fn a_writer_that_lives_keeps_its_volume_and_one_that_is_silent_past_its_lease_loses_it<M: AccessKind>() {
    const BEAT_NS: u64 = 1_000_000;
    let patient = || VolumeConfig { lease_ns: 4 * BEAT_NS, heartbeat_ns: BEAT_NS, ..config() };
    let mut world = World::<M>::new(1);
    let mut old = world.create_with(DONORS, patient());
    world.write(&mut old, 1, 1).unwrap();
    let mut opening = Opening::new(world.donors(DONORS + 1, world.key.clone()), ID, patient());
    let refused = (0..100_000).find_map(|_| {
        old.turn();
        world.advance();
        opening.turn().err()
    });
    assert_eq!(refused, Some(OpenError::InUse));
    drop(opening);
    world.write(&mut old, 1, 2).unwrap();
    // The old writer is stopped.
    let since_ns = world.network.now_ns();
    let opening = Opening::new(world.donors(DONORS + 1, world.key.clone()), ID, patient());
    let mut new = world.finish(opening).unwrap();
    assert!(world.network.now_ns() - since_ns >= 4 * BEAT_NS);
    assert_eq!(world.read(&mut new, 1), Ok(2));
    // The old writer goes on, and learns even without a write that it has lost the volume.
    let ended = (0..100_000).any(|_| {
        old.turn();
        world.advance();
        old.status() != Status::Whole
    });
    let Err(error) = world.write(&mut old, 1, 3) else { panic!("{ended}: a write without access succeeded") };
    assert!(ended && matches!(error, StoreError::Fenced(_)), "{error}");
    assert_eq!(world.read(&mut new, 1), Ok(2));
    drop(old);
    // A writer that leaves is not waited for.
    new.leave();
    while !new.has_left() {
        new.turn();
        world.advance();
    }
    let since_ns = world.network.now_ns();
    let opening = Opening::new(world.donors(DONORS, world.key.clone()), ID, patient());
    let mut next = world.finish(opening).unwrap();
    assert!(world.network.now_ns() - since_ns < 4 * BEAT_NS);
    assert_eq!(world.read(&mut next, 1), Ok(2));
}

fn strangers_get_no_memory<M: AccessKind>() {
    let mut world = World::<M>::new(1);
    drop(world.create(DONORS));
    for key in [None, Key::new(b"another key of some bytes")] {
        let opening = Opening::new(world.donors(DONORS + 1, key), ID, config());
        let error = world.finish(opening).err().unwrap();
        assert!(matches!(error, OpenError::NotFound(_) | OpenError::NoMajority(_)), "{error}");
        world.network.run_until(world.network.now_ns() + 1_000_000);
    }
    let refused = world.donors[0].as_ref().unwrap().service.stats();
    assert!(refused.not_admitted > 0, "{refused:?}");
    assert!(world.open(DONORS + 1).is_ok());
}

fn each_path_to_a_donor_has_a_policy_of_the_pools_maker<M: AccessKind>() {
    /// A policy that notes all completions in the pool's number.
    struct Noting(std::sync::Arc<AtomicU64>);

    impl Admission for Noting {
        fn window_bytes(&self) -> u64 {
            2 * PAGE
        }

        fn completed(&mut self, bytes: u64, _: u64, _: u64) {
            self.0.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    let mut world = World::<M>::new(1);
    drop(world.create(DONORS));
    let (made, moved) = (std::sync::Arc::new(AtomicU64::new(0)), std::sync::Arc::new(AtomicU64::new(0)));
    let (counted, noted) = (made.clone(), moved.clone());
    let admission = AdmissionMaker::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Noting(noted.clone())
    });
    let key = world.key.clone();
    let pool = PoolConfig { key, call_timeout_ns: 10_000_000, admission, ..PoolConfig::default() };
    let opening = Opening::new(world.donors_with(DONORS + 1, pool), ID, config());
    let mut volume = world.finish(opening).unwrap();
    let before = moved.load(Ordering::Relaxed);
    for page in 0..16 {
        world.write(&mut volume, page, 1).unwrap();
        assert_eq!(world.read(&mut volume, page), Ok(1));
    }
    assert_eq!(made.load(Ordering::Relaxed), DONORS as u64);
    assert!(moved.load(Ordering::Relaxed) - before >= 3 * 16 * PAGE, "two copies were written, and one read");
}

fn a_donor_that_was_cut_off_during_writes_is_not_read_from_until_it_is_repaired<M: AccessKind>() {
    let mut world = World::<M>::new(3);
    let mut volume = world.create(DONORS);
    for page in 0..64 {
        world.write(&mut volume, page, 1).unwrap();
    }
    world.cut(0, true);
    for page in 0..64 {
        world.write(&mut volume, page, 2).unwrap();
    }
    world.cut(0, false);
    drop(volume);
    let mut volume = world.open(DONORS + 1).unwrap();
    for _ in 0..2 {
        for page in 0..64 {
            assert_eq!(world.read(&mut volume, page), Ok(2), "page {page}");
        }
    }
    for _ in 0..200_000 {
        volume.turn();
        if volume.status() == Status::Whole {
            break;
        }
        world.advance();
    }
    assert_eq!(volume.status(), Status::Whole);
    world.kill(1);
    for page in 0..64 {
        assert_eq!(world.read(&mut volume, page), Ok(2), "page {page}");
    }
}

fn pages_are_holes_until_they_are_written_and_once_they_are_discarded<M: AccessKind>() {
    let mut world = World::<M>::new(1);
    let mut volume = world.create(DONORS);
    let extents = |volume: &Volume<Donors<M>>| {
        let (mut at, mut found) = (0, Vec::new());
        while at < volume.len() {
            let Extent { len, is_hole } = volume.extent(at, volume.len() - at);
            found.push((at / PAGE, is_hole));
            at += len;
        }
        // A run may be told in parts.
        found.dedup_by_key(|(_, is_hole)| *is_hole);
        found
    };
    assert_eq!(extents(&volume), [(0, true)]);
    let job = write::<M>(&volume, 3, 7);
    volume.submit(Request { tag: 1, job }).unwrap();
    assert_eq!(extents(&volume)[0], (0, false), "a change of it is on its way");
    world.finish_one(&mut volume).result.unwrap();
    world.write(&mut volume, 5, 7).unwrap();
    assert_eq!(extents(&volume), [(0, true), (3, false), (4, true), (5, false), (6, true)]);
    volume.submit(Request { tag: 1, job: Job::Discard { at: 0, len: 5 * PAGE } }).unwrap();
    world.finish_one(&mut volume).result.unwrap();
    let expected = [(0, true), (5, false), (6, true)];
    assert_eq!(extents(&volume), expected);
    // The next writer finds the same, and the last one knows nothing any more.
    let next = world.open(DONORS + 1).unwrap();
    assert_eq!(extents(&next), expected);
    assert!(world.write(&mut volume, 5, 8).is_err());
    assert_eq!(extents(&volume), [(0, false)]);
}

/// Seeds of the random runs; `SINEW_VOLUME_SEEDS=FROM..TO` selects others.
fn seeds() -> std::ops::Range<u64> {
    let drawn = std::env::var("SINEW_VOLUME_SEEDS").ok().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    drawn.unwrap_or(0..12)
}

/// A volume in use, beside the numbers that its pages may hold.
struct Used<M: AccessKind> {
    world: World<M>,
    volume: Option<Volume<Donors<M>>>,
    host: usize,
    /// More than one number while a write is on its way, or was when its writer was replaced.
    pages: Vec<Vec<u8>>,
    /// Writes that nobody has waited for: the tag and page of each.
    on_their_way: Vec<(u64, u64)>,
    next_tag: u64,
    random: SeededGenerator,
    seed: u64,
}

const PAGES_USED: u64 = 100;

/// With heartbeats, by which a writer notices that a donor has restarted.
fn lively() -> VolumeConfig {
    VolumeConfig { lease_ns: 20_000_000, heartbeat_ns: 2_000_000, ..config() }
}

impl<M: AccessKind> Used<M> {
    fn new(seed: u64) -> Self {
        let mut world = World::<M>::new(seed);
        let volume = Some(world.create_with(DONORS, lively()));
        let pages = vec![vec![0]; PAGES_USED as usize];
        let random = SeededGenerator::new(seed);
        Self { world, volume, host: DONORS, pages, on_their_way: Vec::new(), next_tag: 0, random, seed }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random.next_u64() % below
    }

    /// Begins to write a page on which no other write is on its way.
    fn begin_write(&mut self) {
        let (page, byte) = (self.draw(PAGES_USED), self.draw(255) as u8 + 1);
        if self.on_their_way.iter().any(|(_, other)| *other == page) {
            return;
        }
        let volume = self.volume.as_mut().unwrap();
        let job = write::<M>(volume, page, byte);
        volume.submit(Request { tag: self.next_tag, job }).unwrap();
        self.on_their_way.push((self.next_tag, page));
        self.next_tag += 1;
        self.pages[page as usize].push(byte);
    }

    /// Lets all writes that are on their way end.
    fn finish_writes(&mut self) {
        while !self.on_their_way.is_empty() {
            let Finished { tag, result, .. } = self.world.finish_one(self.volume.as_mut().unwrap());
            assert_eq!(result, Ok(()), "seed {}", self.seed);
            let place = self.on_their_way.iter().position(|(other, _)| *other == tag).unwrap();
            let (_, page) = self.on_their_way.swap_remove(place);
            let may_be = &mut self.pages[page as usize];
            may_be.drain(..may_be.len() - 1);
        }
    }

    /// Reads a page on which no write is on its way.
    fn read(&mut self, page: u64) {
        let found = self.world.read(self.volume.as_mut().unwrap(), page).unwrap();
        let may_be = &mut self.pages[page as usize];
        assert!(may_be.contains(&found), "seed {}, page {page}: {found}, not one of {may_be:?}", self.seed);
        *may_be = vec![found];
    }

    fn use_pages(&mut self, count: u64) {
        for _ in 0..count {
            (0..self.draw(4)).for_each(|_| self.begin_write());
            self.finish_writes();
            let page = self.draw(PAGES_USED);
            self.read(page);
        }
    }

    /// Lets a donor die and come back empty, be cut off for a while, or the writer be replaced by one of another host,
    /// or two of these, while writes are on their way.
    fn disaster(&mut self) {
        let lane = self.draw(DONORS as u64) as usize;
        let (kills, replaces) = (self.draw(2) == 0, self.draw(2) == 0);
        let uses = self.draw(30);
        (0..8).for_each(|_| self.begin_write());
        (0..self.draw(20)).for_each(|_| self.world.advance());
        match kills {
            true => self.world.kill(lane),
            false => self.world.cut(lane, true),
        }
        if replaces {
            // The donor comes back, or can be reached again, while the next writer opens the volume.
            self.volume = None;
            self.on_their_way.clear();
            self.host = DONORS + (self.host - DONORS + 1 + self.draw(2) as usize) % (HOSTS - DONORS);
            let mut opening = Opening::new(self.world.donors(self.host, self.world.key.clone()), ID, lively());
            for _ in 0..self.draw(2_000) {
                if let Some(volume) = opening.turn().unwrap_or_else(|error| panic!("seed {}: {error}", self.seed)) {
                    self.volume = Some(volume);
                    break;
                }
                self.world.advance();
            }
            self.come_back(lane, kills);
            if self.volume.is_none() {
                self.volume =
                    Some(self.world.finish(opening).unwrap_or_else(|error| panic!("seed {}: {error}", self.seed)));
            }
        } else {
            self.finish_writes();
            self.use_pages(uses);
            self.come_back(lane, kills);
        }
        self.use_pages(20);
    }

    fn come_back(&mut self, lane: usize, was_killed: bool) {
        if was_killed {
            let donor = self.world.donor(lane);
            self.world.donors[lane] = Some(donor);
        }
        self.world.cut(lane, false);
    }

    /// Waits until any donor may fail, and the volume uses all of them, for so long that its heartbeats have noticed
    /// donors that restarted.
    fn wait_until_whole(&mut self) {
        let end_ns = self.world.network.now_ns() + 60_000_000_000;
        let mut since_ns = None;
        let volume = self.volume.as_mut().unwrap();
        while since_ns.is_none_or(|since_ns| self.world.network.now_ns() < since_ns + 50_000_000) {
            let now_ns = self.world.network.now_ns();
            assert!(now_ns < end_ns, "seed {}: {:?}, {}", self.seed, volume.status(), volume.describe_down());
            let is_whole = volume.status() == Status::Whole && volume.describe_down().is_empty();
            since_ns = is_whole.then(|| since_ns.unwrap_or(now_ns));
            volume.turn();
            self.world.advance();
        }
    }
}

fn whatever_befalls_one_donor_after_the_other_or_a_writer_every_page_is_as_it_was_written<M: AccessKind>() {
    for seed in seeds() {
        let mut used = Used::<M>::new(seed);
        for _ in 0..6 {
            used.use_pages(20);
            used.disaster();
            used.wait_until_whole();
        }
        (0..PAGES_USED).for_each(|page| used.read(page));
    }
}
