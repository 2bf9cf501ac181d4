//! Random requests, deaths, cuts and writers, checked against an array of blocks, each of which may have any state
//! since the last acknowledged one.

use std::collections::HashMap;

use sinew_fabric::SeededGenerator;
use sinew_mem::Arena;

use super::facts::{
    ID, crash, create, finish_opening_while, open, read_job, run_until_idle, same_everywhere, submit, write_job,
};
use super::model::{Shared, World, Writer, one_in};
use crate::store::{BLOCK, Finished, Job, Status, Store};
use crate::volume::{DonorId, Donors as _, OpenError, Opening, Volume, VolumeConfig, Voter};

const PAGES: u64 = 150;
/// A block has eight parts, each filled with one number.
const PARTS: usize = 8;
const PART: usize = BLOCK / PARTS;

type Block = [u64; PARTS];

/// Possible states of a block since the last acknowledged one, each with the request that made it.
#[derive(Clone, Debug)]
struct Chain {
    states: Vec<(u64, Block)>,
    /// Whether a request has failed since, so that it is not known which state counts.
    is_ambiguous: bool,
}

impl Chain {
    fn change(&mut self, tag: u64, change: impl Fn(Block) -> Block) {
        let last = self.states.last().map_or(0, |(tag, _)| *tag);
        let bases: Vec<Block> = self
            .states
            .iter()
            .filter(|(tag, _)| self.is_ambiguous || *tag == last)
            .map(|(_, block)| change(*block))
            .collect();
        for block in bases {
            if !self.states.contains(&(tag, block)) {
                self.states.push((tag, block));
            }
        }
        assert!(self.states.len() < 10_000, "too many requests failed to tell which states are right");
    }

    fn acknowledged(&mut self, tag: u64) {
        self.states.retain(|(other, _)| *other >= tag);
        self.is_ambiguous = false;
        self.is_ambiguous = self.states.iter().filter(|(other, _)| *other == tag).count() > 1;
    }
}

/// Results that a request may have.
enum Expected {
    Change(Vec<u64>),
    Read { at: u64, chains: Vec<Chain> },
}

struct Run {
    seed: u64,
    world: Shared,
    arena: Arena,
    random: SeededGenerator,
    blocks: Vec<Chain>,
    expected: HashMap<u64, Expected>,
    tags: u64,
    acknowledged: u64,
    failed: u64,
    may_fail: bool,
    lease_ns: u64,
}

fn bytes_of(block: &Block) -> Vec<u8> {
    block.iter().flat_map(|part| part.to_le_bytes().into_iter().cycle().take(PART)).collect()
}

fn block_of(bytes: &[u8]) -> Option<Block> {
    let mut block = [0; PARTS];
    for (part, bytes) in block.iter_mut().zip(bytes.chunks_exact(PART)) {
        *part = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        if bytes.chunks_exact(8).any(|word| word != &bytes[..8]) {
            return None;
        }
    }
    Some(block)
}

impl Run {
    fn new(seed: u64, hosts: usize) -> Self {
        let block = Chain { states: vec![(0, [0; PARTS])], is_ambiguous: false };
        Self {
            seed,
            world: World::new(hosts, 4 << 20, seed),
            arena: super::facts::arena(),
            random: SeededGenerator::new(seed ^ 0xABCD),
            blocks: vec![block; PAGES as usize],
            expected: HashMap::new(),
            tags: 0,
            acknowledged: 0,
            failed: 0,
            may_fail: false,
            lease_ns: 0,
        }
    }

    fn config(&mut self) -> VolumeConfig {
        let checksums = self.random.below(4) > 0;
        VolumeConfig { checksums, lease_ns: self.lease_ns, ..super::facts::config() }
    }

    /// A range of parts.
    fn range(&mut self) -> (u64, u64) {
        let parts = PAGES * PARTS as u64;
        let len = match self.random.below(4) {
            0 => 1 + self.random.below(20),
            1 => 8 * (1 + self.random.below(30)),
            _ => 8,
        };
        let at = match self.random.below(3) {
            0 => self.random.below(parts - len),
            _ => 8 * self.random.below((parts - len) / 8).min(20),
        };
        (at, len)
    }

    fn request(&mut self, volume: &mut Volume<Writer>) {
        self.tags += 1;
        let tag = self.tags;
        let (at, len) = self.range();
        let (first, last) = (at / 8, (at + len).div_ceil(8));
        let pages: Vec<u64> = (first..last).collect();
        let job = match self.random.below(5) {
            0 | 1 => {
                let chains = pages.iter().map(|page| self.blocks[*page as usize].clone()).collect();
                self.expected.insert(tag, Expected::Read { at, chains });
                read_job(volume, at * PART as u64, len as usize * PART)
            }
            kind => {
                let value = if kind == 4 { 0 } else { tag };
                for page in &pages {
                    let is_in = |part: usize| (at..at + len).contains(&(page * 8 + part as u64));
                    let change =
                        |block: Block| std::array::from_fn(|part| if is_in(part) { value } else { block[part] });
                    self.blocks[*page as usize].change(tag, change);
                }
                self.expected.insert(tag, Expected::Change(pages));
                if kind == 4 {
                    Job::Discard { at: at * PART as u64, len: len * PART as u64 }
                } else {
                    let bytes: Vec<u8> = tag.to_le_bytes().into_iter().cycle().take(len as usize * PART).collect();
                    write_job(volume, at * PART as u64, &bytes)
                }
            }
        };
        submit(volume, tag, job);
    }

    fn check(&mut self, finished: Finished) {
        let seed = self.seed;
        let Finished { tag, result, target } = finished;
        let expected = self.expected.remove(&tag).unwrap_or_else(|| panic!("seed {seed}: {tag} finished twice"));
        match (expected, result) {
            (Expected::Change(pages), Ok(())) => {
                self.acknowledged += 1;
                pages.iter().for_each(|page| self.blocks[*page as usize].acknowledged(tag));
            }
            (Expected::Change(pages), Err(error)) => {
                self.failed += 1;
                assert!(self.may_fail, "seed {seed}: {error}");
                pages.iter().for_each(|page| self.blocks[*page as usize].is_ambiguous = true);
            }
            (Expected::Read { at, chains }, Ok(())) => {
                let target = target.unwrap();
                for (index, chain) in chains.iter().enumerate() {
                    let page = at / 8 + index as u64;
                    let parts = (page * 8).max(at)..((page + 1) * 8).min(at + (target.len() / PART) as u64);
                    let last = chain.states.last().unwrap().0;
                    let fits = |(other, block): &(u64, Block)| {
                        (chain.is_ambiguous || *other == last)
                            && parts.clone().all(|part| {
                                let bytes = &target[(part - at) as usize * PART..][..PART];
                                bytes.chunks_exact(8).all(|word| word == block[part as usize % 8].to_le_bytes())
                            })
                    };
                    // A request that failed after the read was submitted may have left an earlier state.
                    let now = &self.blocks[page as usize];
                    let is_ambiguous = chain.is_ambiguous || now.is_ambiguous;
                    let any = |state: &(u64, Block)| fits(state) || is_ambiguous && fits(&(last, state.1));
                    assert!(chain.states.iter().any(any), "seed {seed}: read {tag} of page {page}: {chain:?}");
                }
            }
            (Expected::Read { .. }, Err(error)) => {
                self.failed += 1;
                assert!(self.may_fail, "seed {seed}: {error}");
            }
        }
    }

    fn collect(&mut self, volume: &mut Volume<Writer>) {
        let mut finished = Vec::new();
        volume.poll(&mut finished, usize::MAX);
        finished.into_iter().for_each(|one| self.check(one));
    }

    /// Checks after recovery that every block has one of its possible states, and fixes that state from now on.
    fn verify(&mut self, volume: &mut Volume<Writer>) {
        let seed = self.seed;
        for page in 0..PAGES {
            let job = read_job(volume, page * BLOCK as u64, BLOCK);
            submit(volume, 1 << 40 | page, job);
        }
        let mut finished = Vec::new();
        for _ in 0..1_000_000 {
            volume.turn();
            volume.poll(&mut finished, usize::MAX);
            if finished.len() == PAGES as usize {
                break;
            }
            self.world.borrow_mut().step();
        }
        assert_eq!(finished.len() as u64, PAGES, "seed {seed}");
        for one in finished {
            let page = one.tag & 0xFFFF;
            assert_eq!(one.result, Ok(()), "seed {seed}: page {page} is lost");
            let bytes = one.target.unwrap();
            let block = block_of(&bytes).unwrap_or_else(|| panic!("seed {seed}: page {page} is torn"));
            assert!(bytes_of(&block) == *bytes);
            let chain = &mut self.blocks[page as usize];
            assert!(
                chain.states.iter().any(|(_, state)| *state == block),
                "seed {seed}: page {page} is {block:?}, but may be only one of {:?}",
                chain.states
            );
            *chain = Chain { states: vec![(0, block)], is_ambiguous: false };
        }
    }

    fn open(&mut self) -> Volume<Writer> {
        for _ in 0..50 {
            let config = self.config();
            match open(&self.world, &self.arena, config) {
                Ok(volume) => return volume,
                Err(OpenError::Failed(_) | OpenError::NoMajority(_)) => {}
                // A heartbeat of a writer that was stopped or has died was still on its way.
                Err(OpenError::InUse) if self.lease_ns > 0 => {}
                Err(error) => panic!("seed {}: {error}", self.seed),
            }
        }
        panic!("seed {}: it cannot be opened", self.seed);
    }

    /// Makes some requests, and calls `happens` after each.
    fn work(
        &mut self,
        volume: &mut Volume<Writer>,
        requests: u64,
        mut happens: impl FnMut(&mut Self, &mut Volume<Writer>),
    ) {
        for _ in 0..requests {
            self.request(volume);
            happens(self, volume);
            while one_in(&mut self.random, 2) {
                for _ in 0..self.random.below(40) {
                    self.world.borrow_mut().step();
                }
                volume.turn();
                self.collect(volume);
            }
        }
    }
}

/// Whether all copies are there, and all their donors and all voters are as the volume knows them.
fn is_redundant(world: &Shared, volume: &Volume<Writer>) -> bool {
    let hosts = &world.borrow().hosts;
    let is_there = |donor: DonorId, incarnation: u64| {
        let lane = (donor.0 - 100) as usize;
        volume.lanes[lane].down.is_none() && hosts[lane].donor.incarnation() == incarnation
    };
    let is_good = |voter: &Voter| is_there(voter.donor, voter.incarnation);
    let mut members = volume.segments.iter().flat_map(|segment| &segment.copies).map(|copy| copy.member);
    // A donor that has restarted may not have been noticed yet.
    if !members.all(|member| is_there(member.donor, member.incarnation)) {
        return false;
    }
    let voting = &volume.voting;
    let is_settled = voting.durable == voting.generation && voting.voters.len() == 3;
    volume.status() == Status::Whole && volume.is_idle() && is_settled && voting.voters.iter().all(is_good)
}

/// Seeds to run: all, or the one in `SINEW_SEED`.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("SINEW_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (0..count).collect(),
    }
}

#[test]
fn after_writers_die_at_any_moment_every_block_is_old_or_new_and_the_same_everywhere() {
    let mut acknowledged = 0;
    for seed in seeds(60) {
        let mut run = Run::new(seed, 3);
        let config = run.config();
        let mut volume = create(&run.world.clone(), &run.arena.clone(), PAGES, 2, config);
        for _ in 0..6 {
            let requests = 1 + run.random.below(60);
            run.work(&mut volume, requests, |_, _| {});
            run.expected.clear();
            crash(&run.world, volume);
            volume = run.open();
            run.verify(&mut volume);
            same_everywhere(&run.world, &mut volume, seed);
        }
        assert_eq!(run.failed, 0, "seed {seed}");
        acknowledged += run.acknowledged;
    }
    assert!(acknowledged > 0);
}

#[test]
fn donors_that_die_are_cut_off_and_come_back_stale_lose_nothing_that_was_acknowledged() {
    let mut healed = 0;
    for seed in seeds(80) {
        let mut run = Run::new(seed, 4);
        let config = run.config();
        let mut volume = create(&run.world.clone(), &run.arena.clone(), PAGES, 2, config);
        let mut failed_lane: Option<usize> = None;
        for _ in 0..8 {
            let requests = 20 + run.random.below(40);
            // One donor at a time has failed; the voters are the first three.
            let when = run.random.below(requests);
            let mut count = 0;
            let may_fail_donor = failed_lane.is_none();
            let lane = run.random.below(4) as usize;
            run.work(&mut volume, requests, |run, volume| {
                count += 1;
                if count == when && may_fail_donor {
                    let number = volume.donors().number;
                    let mut world = run.world.borrow_mut();
                    if run.random.below(2) == 0 {
                        world.hosts[lane].is_alive = false;
                    } else {
                        world.hosts[lane].cut.insert(number);
                    }
                    failed_lane = Some(lane);
                }
            });
            if one_in(&mut run.random, 2) {
                run.expected.clear();
                crash(&run.world, volume);
                if let Some(lane) = failed_lane
                    && run.random.below(2) == 0
                {
                    let mut world = run.world.borrow_mut();
                    world.hosts[lane].is_alive = true;
                    world.hosts[lane].cut.clear();
                }
                volume = run.open();
                run.verify(&mut volume);
                same_everywhere(&run.world, &mut volume, seed);
            }
            // The donor comes back, with its memory or without. Then all segments get their copies back, and it gets
            // its vote back.
            if run.random.below(2) == 0 {
                if let Some(lane) = failed_lane {
                    let mut world = run.world.borrow_mut();
                    if run.random.below(2) == 0 {
                        world.restart(lane);
                    }
                    world.hosts[lane].is_alive = true;
                    world.hosts[lane].cut.clear();
                }
                for _ in 0..60_000 {
                    volume.turn();
                    run.collect(&mut volume);
                    run.world.borrow_mut().step();
                    if is_redundant(&run.world, &volume) {
                        failed_lane = None;
                        healed += 1;
                        break;
                    }
                }
                assert_eq!(failed_lane, None, "seed {seed}: it does not get well: {:?}", volume.status());
            }
        }
        run_until_idle(&run.world, &mut volume);
        run.collect(&mut volume);
        assert!(run.expected.is_empty(), "seed {seed}: {} requests are unfinished", run.expected.len());
        run.verify(&mut volume);
        same_everywhere(&run.world, &mut volume, seed);
    }
    assert!(healed > 0 || std::env::var_os("SINEW_SEED").is_some());
}

/// A writer dies, some of whose last requests have reached one copy alone, and a donor dies or is cut off while the
/// next writer opens the volume.
#[test]
fn donors_that_fail_while_a_volume_is_opened_lose_nothing_that_was_acknowledged() {
    let mut opened = 0;
    for seed in seeds(80) {
        let mut run = Run::new(seed, 4);
        let config = run.config();
        let mut volume = create(&run.world.clone(), &run.arena.clone(), PAGES, 2, config);
        for round in 0..6 {
            let requests = 10 + run.random.below(30);
            run.work(&mut volume, requests, |_, _| {});
            run.world.borrow_mut().slow = Some(run.random.below(4) as usize);
            run.work(&mut volume, 10, |_, _| {});
            run.expected.clear();
            crash(&run.world, volume);
            run.world.borrow_mut().slow = None;
            let (lane, when) = (run.random.below(4) as usize, run.random.below(600));
            let (world, config) = (run.world.clone(), run.config());
            let writer = Writer::new(&world, &run.arena);
            let (number, dies) = (writer.number, run.random.below(2) == 0);
            let first = finish_opening_while(&world, Opening::new(writer, ID, config), |step| {
                if step == when {
                    let host = &mut world.borrow_mut().hosts[lane];
                    host.is_alive = !dies;
                    host.cut.insert(number);
                }
            });
            if dies {
                world.borrow_mut().hosts[lane].is_alive = false;
            }
            opened += u64::from(first.is_ok());
            volume = first.unwrap_or_else(|_| run.open());
            run.verify(&mut volume);
            same_everywhere(&run.world, &mut volume, seed);
            if one_in(&mut run.random, 2) {
                crash(&run.world, volume);
                volume = run.open();
                run.verify(&mut volume);
            }
            if run.random.below(2) == 0 {
                world.borrow_mut().restart(lane);
            }
            world.borrow_mut().hosts[lane].is_alive = true;
            world.borrow_mut().hosts[lane].cut.clear();
            let is_well = (0..60_000).any(|_| {
                volume.turn();
                world.borrow_mut().step();
                is_redundant(&world, &volume)
            });
            assert!(is_well, "seed {seed}, round {round}: it does not get well: {:?}", volume.status());
        }
        assert_eq!(run.failed, 0, "seed {seed}");
    }
    assert!(opened > 0);
}

/// A random donor wants its memory back at a random time.
#[test]
fn donors_that_want_their_memory_back_get_it_while_requests_go_on() {
    for seed in seeds(60) {
        let mut run = Run::new(seed, 4);
        let config = run.config();
        let mut volume = create(&run.world.clone(), &run.arena.clone(), PAGES, 2, config);
        let lane = run.random.below(4) as usize;
        let dies = if one_in(&mut run.random, 3) { Some((lane + 1) % 4) } else { None };
        run.work(&mut volume, 40, |_, _| {});
        run.world.borrow_mut().hosts[lane].donor.begin_withdrawal();
        let mut count = 0;
        run.work(&mut volume, 80, |run, _| {
            count += 1;
            if let Some(dies) = dies
                && count == 40
            {
                run.world.borrow_mut().hosts[dies].is_alive = false;
            }
        });
        if one_in(&mut run.random, 4) {
            // The next writer learns of it too.
            run.expected.clear();
            crash(&run.world, volume);
            volume = run.open();
            run.verify(&mut volume);
        }
        let has_it = |run: &Run| run.world.borrow().hosts[lane].donor.lent_bytes() == 0;
        for step in 0..200_000 {
            if step % 500 == 0 {
                run.request(&mut volume);
            }
            volume.turn();
            run.collect(&mut volume);
            run.world.borrow_mut().step();
            if has_it(&run) {
                break;
            }
        }
        assert!(has_it(&run), "seed {seed}: it does not get its memory");
        run_until_idle(&run.world, &mut volume);
        run.collect(&mut volume);
        assert!(has_it(&run) && run.expected.is_empty() && run.failed == 0, "seed {seed}");
        let status = volume.status();
        // Of four donors, one wants to go, and one may have died.
        let may_lack_voters = dies.is_some() && matches!(status, Status::FewVoters(_));
        assert!(status == Status::Whole || may_lack_voters, "seed {seed}: {status:?}");
        // The donor can go now; it has no vote any more where another could take it.
        let id = volume.donors().ids()[lane];
        assert!(dies.is_some() || volume.voting.voters.iter().all(|voter| voter.donor != id), "seed {seed}");
        run.world.borrow_mut().hosts[lane].is_alive = false;
        run.verify(&mut volume);
        same_everywhere(&run.world, &mut volume, seed);
    }
}

#[test]
fn of_two_writers_the_later_one_alone_changes_or_answers_anything() {
    for seed in seeds(60) {
        let mut run = Run::new(seed, 3);
        run.lease_ns = 5 * super::facts::config().heartbeat_ns;
        let config = run.config();
        let mut old = create(&run.world.clone(), &run.arena.clone(), PAGES, 2, config);
        for _ in 0..4 {
            let requests = 10 + run.random.below(40);
            run.work(&mut old, requests, |_, _| {});
            // The old writer is stopped; another takes over, and then the old one goes on.
            let mut new = run.open();
            run.expected.clear();
            run.verify(&mut new);
            let number = old.donors().number;
            let is_hole = |page: u64| old.extent(page * BLOCK as u64, BLOCK as u64).is_hole;
            assert!(!(0..PAGES).any(is_hole), "seed {seed}");
            let mut tag = 1 << 50;
            run.work(&mut new, 60, |run, _| {
                if run.random.below(2) == 0 {
                    tag += 1;
                    let at = run.random.below(PAGES) * BLOCK as u64;
                    let job = match run.random.below(3) {
                        0 => read_job(&old, at, BLOCK),
                        1 => Job::Discard { at, len: BLOCK as u64 },
                        _ => write_job(&old, at, &[0xAA; BLOCK]),
                    };
                    let _ = old.submit(crate::store::Request { tag, job });
                    old.turn();
                }
            });
            for _ in 0..3000 {
                old.turn();
                run.world.borrow_mut().step();
            }
            let mut finished = Vec::new();
            old.poll(&mut finished, usize::MAX);
            assert!(finished.iter().all(|one| one.tag < 1 << 50 || one.result.is_err()), "seed {seed}");
            drop(old);
            run.world.borrow_mut().drop_writer(number);
            run_until_idle(&run.world, &mut new);
            run.collect(&mut new);
            run.verify(&mut new);
            same_everywhere(&run.world, &mut new, seed);
            old = new;
        }
    }
}
