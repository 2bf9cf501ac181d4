//! Tests of leases: what a writer may answer without asking a donor, and when another may take its volume over.

use sinew_mem::Arena;

use super::facts::{
    ID, PAGE, arena, config, crash, create, finish_one, read, read_job, run_until_idle, submit, turn_for, write_job,
};
use super::model::{Shared, World, Writer, one_in};
use crate::donor::{Answer, Call};
use crate::store::{BLOCK, Store};
use crate::volume::{OpenError, Opening, Volume, VolumeConfig};

const LEASE_NS: u64 = 1_000_000;
const PAGES: u64 = 32;

fn leased() -> VolumeConfig {
    VolumeConfig { lease_ns: LEASE_NS, vote_timeout_ns: 20 * LEASE_NS, ..config() }
}

fn beats(world: &Shared, host: usize) -> u64 {
    match world.borrow_mut().hosts[host].donor.handle(&Call::Inspect { volume: ID }) {
        Ok(Answer::Inspected { beats, .. }) => beats,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_page_that_was_never_written_reads_as_zeros_while_a_majority_confirms_the_writer_and_waits_otherwise() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let mut volume = create(&world, &arena, PAGES, 2, leased());
    let writer = volume.donors().number;
    run_until_idle(&world, &mut volume);
    assert!(volume.extent(0, PAGE).is_hole);
    // One voter of three is not needed, and no message either.
    world.borrow_mut().hosts[2].cut.insert(writer);
    turn_for(&world, &mut volume, 3 * LEASE_NS);
    let operations = volume.stats().operations;
    let job = read_job(&volume, 3 * PAGE, 2 * BLOCK);
    submit(&mut volume, 5, job);
    volume.turn();
    let mut finished = Vec::new();
    assert_eq!(volume.poll(&mut finished, 1), 1, "it is answered at once");
    assert!(finished[0].target.as_ref().is_some_and(|target| target.iter().all(|byte| *byte == 0)));
    assert_eq!(volume.stats().operations, operations);
    assert!(volume.extent(0, PAGE).is_hole);
    // Now too few are left.
    world.borrow_mut().hosts[1].cut.insert(writer);
    turn_for(&world, &mut volume, 3 * LEASE_NS);
    assert!(!volume.extent(0, PAGE).is_hole);
    let jobs = [read_job(&volume, 3 * PAGE, BLOCK), write_job(&volume, 7 * PAGE + 9, b"a part")];
    (6..).zip(jobs).for_each(|(tag, job)| submit(&mut volume, tag, job));
    turn_for(&world, &mut volume, 3 * LEASE_NS);
    assert_eq!((volume.poll(&mut finished, 1), volume.ended()), (0, None));
    world.borrow_mut().hosts[1].cut.clear();
    for _ in 0..2 {
        let one = finish_one(&world, &mut volume);
        assert_eq!(one.result, Ok(()), "{}", one.tag);
        assert!(one.target.is_none_or(|target| target.iter().all(|byte| *byte == 0)));
    }
    assert_eq!(read(&world, &mut volume, 7 * PAGE + 8, 8).unwrap(), b"\0a part\0");
    assert!(volume.extent(0, PAGE).is_hole);
}

#[test]
fn what_waits_for_confirmation_fails_when_too_few_voters_stay_silent() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let mut volume = create(&world, &arena, PAGES, 2, leased());
    run_until_idle(&world, &mut volume);
    world.borrow_mut().hosts[..2].iter_mut().for_each(|host| host.is_alive = false);
    turn_for(&world, &mut volume, 2 * LEASE_NS);
    let found = read(&world, &mut volume, 0, BLOCK);
    assert!(found.is_err() && found.err().as_ref() == volume.ended(), "{:?}", volume.ended());
}

#[test]
fn a_voter_that_has_voted_for_the_next_writer_confirms_the_last_one_no_more() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let mut old = create(&world, &arena, PAGES, 2, leased());
    run_until_idle(&world, &mut old);
    for host in &mut world.borrow_mut().hosts {
        host.donor.handle(&Call::Claim { volume: ID, epoch: 2 }).unwrap();
    }
    turn_for(&world, &mut old, 2 * LEASE_NS);
    assert!(read(&world, &mut old, 0, BLOCK).is_err(), "another writer may be writing by now");
}

#[test]
fn a_writer_whose_heartbeat_comes_between_the_last_look_and_the_vote_is_fenced_only_after_a_lease() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let mut old = create(&world, &arena, PAGES, 2, leased());
    run_until_idle(&world, &mut old);
    (0..200).for_each(|_| world.borrow_mut().step());
    let writer = Writer::new(&world, &arena);
    let number = writer.number;
    let mut next = Opening::new(writer, ID, leased());
    while !world.borrow().is_calling(number, |call| matches!(call, Call::Claim { .. })) {
        assert!(next.turn().unwrap().is_none());
        world.borrow_mut().step();
    }
    let beat = Call::Heartbeat { volume: ID, epoch: old.epoch() };
    let beat = |host: usize| world.borrow_mut().hosts[host].donor.handle(&beat).is_ok();
    assert!((0..3).any(beat), "a donor has not voted yet");
    let beat_ns = world.borrow().now_ns;
    while next.turn().unwrap().is_none() {
        world.borrow_mut().step();
        let world = world.borrow();
        let is_fenced = world.hosts.iter().any(|host| host.donor.fence_of(ID) > old.epoch());
        assert!(!is_fenced || world.now_ns >= beat_ns + LEASE_NS, "the writer may still answer from its map");
    }
}

/// Two donors do not answer at first, and the writer lives, but reaches only these.
#[test]
fn a_donor_that_answers_only_late_in_the_watch_still_shows_that_the_writer_lives() {
    let (world, arena) = (World::new(3, 4 << 20, 1), arena());
    let mut old = create(&world, &arena, PAGES, 2, leased());
    run_until_idle(&world, &mut old);
    let (writer, mut next) = (old.donors().number, Opening::new(Writer::new(&world, &arena), ID, leased()));
    let next_writer = writer + 1;
    world.borrow_mut().hosts[0].cut.insert(writer);
    (1..3).for_each(|host| _ = world.borrow_mut().hosts[host].cut.insert(next_writer));
    let until_ns = world.borrow().now_ns + LEASE_NS * 9 / 10;
    let result = loop {
        match next.turn() {
            Ok(None) => {}
            other => break other.map(|_| ()),
        }
        old.turn();
        world.borrow_mut().step();
        if world.borrow().now_ns > until_ns {
            world.borrow_mut().hosts.iter_mut().for_each(|host| _ = host.cut.remove(&next_writer));
        }
    };
    assert_eq!(result, Err(OpenError::InUse));
    assert!(old.ended().is_none() && beats(&world, 1) > 0);
}

enum State {
    Opening(Box<Opening<Writer>>),
    Open(Box<Volume<Writer>>),
}

/// A program that opens the volume whenever it has lost it, reads and writes, and is stopped now and then.
struct Program {
    writer: u32,
    state: State,
    stopped_until_ns: u64,
    /// The page of the request in flight, and the number that it writes, or the least that it may read.
    asked: Option<(u64, u32)>,
}

impl Program {
    fn new(world: &Shared, arena: &Arena) -> Self {
        let writer = Writer::new(world, arena);
        let number = writer.number;
        Self {
            writer: number,
            state: State::Opening(Box::new(Opening::new(writer, ID, leased()))),
            stopped_until_ns: 0,
            asked: None,
        }
    }
}

/// Numbers written so far to each page, and acknowledged.
struct Written {
    last: u32,
    acknowledged: Vec<u32>,
    reads: u64,
    takeovers: u64,
    /// Reads that ended with an error, because another program had the volume.
    late: u64,
}

impl Program {
    /// Lets the program go on for a moment. Returns false if it has to begin anew.
    fn go_on(&mut self, world: &Shared, written: &mut Written, seed: u64) -> bool {
        let draw = |bound: u64| world.borrow_mut().random.below(bound);
        let volume = match &mut self.state {
            State::Opening(opening) => {
                match opening.turn() {
                    Ok(None) => {}
                    Ok(Some(volume)) => {
                        self.state = State::Open(Box::new(volume));
                        written.takeovers += 1;
                    }
                    Err(_) => return false,
                }
                return true;
            }
            State::Open(volume) => volume,
        };
        if self.asked.is_none() {
            let at = draw(PAGES);
            let is_write = draw(8) == 0;
            if is_write {
                written.last += 1;
                let bytes: Vec<u8> = written.last.to_le_bytes().into_iter().cycle().take(BLOCK).collect();
                let job = write_job(volume, at * PAGE, &bytes);
                submit(volume, 1, job);
                self.asked = Some((at, written.last));
            } else {
                let is_hole = volume.extent(at * PAGE, PAGE).is_hole;
                assert!(!is_hole || written.acknowledged[at as usize] == 0, "seed {seed}: page {at} is no hole");
                let job = read_job(volume, at * PAGE, BLOCK);
                submit(volume, 2, job);
                self.asked = Some((at, written.acknowledged[at as usize]));
            }
        }
        volume.turn();
        let mut finished = Vec::new();
        volume.poll(&mut finished, 1);
        if let (Some(one), Some((at, number))) = (finished.pop(), self.asked) {
            self.asked = None;
            if let (Ok(()), 1) = (&one.result, one.tag) {
                written.acknowledged[at as usize] = number;
            } else if let (Ok(()), Some(target)) = (&one.result, one.target) {
                written.reads += 1;
                let found = u32::from_le_bytes(target[..4].try_into().unwrap());
                assert!(found >= number, "seed {seed}: page {at} is {found}, but was {number} when the read began");
            } else if one.tag == 2 {
                written.late += u64::from(number > 0);
            }
        }
        volume.ended().is_none()
    }
}

#[test]
fn whoever_opens_a_volume_and_is_stopped_for_however_long_reads_nothing_that_was_overwritten_before() {
    let (mut reads, mut takeovers, mut late) = (0, 0, 0);
    for seed in 0..80 {
        let (world, arena) = (World::new(3, 4 << 20, seed), arena());
        crash(&world, create(&world, &arena, PAGES, 2, leased()));
        let mut programs: Vec<Program> = (0..3).map(|_| Program::new(&world, &arena)).collect();
        let mut written = Written { last: 0, acknowledged: vec![0; PAGES as usize], reads: 0, takeovers: 0, late: 0 };
        for _ in 0..20_000 {
            let draw = |bound: u64| world.borrow_mut().random.below(bound);
            let (number, now_ns) = (draw(3) as usize, world.borrow().now_ns);
            let program = &mut programs[number];
            if now_ns >= program.stopped_until_ns {
                if !program.go_on(&world, &mut written, seed) {
                    world.borrow_mut().drop_writer(program.writer);
                    *program = Program::new(&world, &arena);
                }
                if one_in(&mut world.borrow_mut().random, 300) {
                    program.stopped_until_ns = now_ns + draw(5 * LEASE_NS);
                }
            }
            world.borrow_mut().step();
        }
        reads += written.reads;
        takeovers += written.takeovers;
        late += written.late;
    }
    assert!(reads > 1000 && takeovers > 100, "{reads} reads, {takeovers} takeovers, {late} reads that came too late");
}
