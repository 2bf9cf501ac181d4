//! Requests of several classes over shared memory, which are cut into chunks and put together again.

use sinew::fabric::SeededGenerator;
use sinew::fabric::share::{
    ClassConfig, ClassId, FinishedRequest, Share, ShareConfig, ShareLimits, SharedQpId, SubmitError, Transfer,
};
use sinew::fabric::verbs::{
    Access, Completion, CompletionQueue, Device, Exposed, Opcode, ProtectionDomain, QpConfig, QueuePair, RemoteMemory,
    Slice, Status, ThreadDomain, Transport,
};
use sinew::mem::{Arena, Frozen};
use sinew::shm::verbs::{ShmCompletionQueue, ShmDevice, ShmExposed, ShmQueuePair, ShmThread};

const SMALL: ClassId = ClassId(0);
const BULK: ClassId = ClassId(1);
const CHUNK: usize = 1000;
const MEMORY: usize = 1 << 20;

/// A share with two queue pairs, and their far ends.
struct World {
    share: Share<ShmQueuePair>,
    lanes: [SharedQpId; 2],
    cq: ShmCompletionQueue,
    far: Vec<ShmQueuePair>,
    far_cq: ShmCompletionQueue,
    memory: ShmExposed,
    arena: Arena,
    done: Vec<FinishedRequest>,
    received: Vec<Completion>,
    thread: ShmThread,
}

impl World {
    fn new() -> Self {
        let device = ShmDevice::threads().unwrap();
        let domain = device.protection_domain().unwrap();
        let thread = domain.thread().unwrap();
        let (cq, far_cq) = (thread.completion_queue(256).unwrap(), thread.completion_queue(256).unwrap());
        let arena = domain.arena(16 << 20).unwrap();
        let bulk = ClassConfig { weight: 1, outstanding_max_len: 8 * 1024, reserve_len: 0 };
        let small = ClassConfig { reserve_len: 2048, ..bulk };
        let limits =
            ShareLimits { chunk_len: CHUNK as u64, overhead_len: 24, quantum_len: 2048, outstanding_max_len: 8 * 1024 };
        let config = ShareConfig { limits, classes: vec![small, bulk], requests_max: 64 };
        let mut share = Share::new(&config, arena.clone()).unwrap();
        let rc = QpConfig { send_depth: 16, receive_depth: 16, ..QpConfig::new(Transport::Rc) };
        let mut far = Vec::new();
        let lanes = [0, 1].map(|_| {
            let mut qp = thread.queue_pair(&rc, &cq, &cq).unwrap();
            let mut other = thread.queue_pair(&rc, &far_cq, &far_cq).unwrap();
            qp.connect(Some(&other.address())).unwrap();
            other.connect(Some(&qp.address())).unwrap();
            far.push(other);
            share.add(qp, rc.send_depth)
        });
        let memory = domain.expose(MEMORY, Access::ALL).unwrap();
        let (done, received) = (Vec::new(), Vec::new());
        Self { share, lanes, cq, far, far_cq, memory, arena, done, received, thread }
    }

    fn source(&self, number: usize, len: usize) -> Frozen {
        let mut buffer = self.arena.alloc(len, len.max(1)).unwrap();
        buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + number * 31 + at / 251) as u8);
        buffer.freeze()
    }

    fn at(&self, offset: usize) -> RemoteMemory {
        self.memory.remote().at(offset as u64).unwrap()
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes).unwrap();
        bytes
    }

    /// Turns until this many requests have ended.
    fn run(&mut self, requests: usize) {
        let since = std::time::Instant::now();
        while self.done.len() < requests {
            let other = |completion| panic!("{completion:?}");
            self.share.turn(&mut self.cq, |done| self.done.push(done), other);
            self.far_cq.poll(&mut self.received, 16);
            assert!(self.share.scheduler().all_outstanding_len() <= 8 * 1024 + 2048);
            assert!(since.elapsed().as_secs() < 60, "{} of {requests} ended: {:?}", self.done.len(), self.share);
        }
        assert_eq!(self.share.turn(&mut self.cq, |done| panic!("{done:?} ended twice"), |_| ()), 0);
    }
}

#[test]
fn what_is_cut_arrives_whole_and_ends_once() {
    let mut world = World::new();
    for (number, len) in [0, 1, 999, 1000, 1001, 2000, 300_000].into_iter().enumerate() {
        let source = world.source(number, len + 3);
        let slice = || Slice { buffer: source.clone(), start: 3, len };
        let lane = world.lanes[number % 2];
        let write = Transfer::Write { source: slice(), remote: world.at(512) };
        world.share.submit(BULK, lane, 7, write).unwrap();
        world.run(1);
        assert_eq!(world.bytes(512, len), source[3..], "{len}");

        let receive = world.arena.alloc(8, 8).unwrap();
        world.far[number % 2].post_buffer(number as u64, receive).unwrap();
        let message = Transfer::Message { source: slice(), remote: world.at(400_000), immediate: 5 };
        world.share.submit(BULK, lane, 8, message).unwrap();
        world.run(2);
        while world.received.is_empty() {
            world.far_cq.poll(&mut world.received, 16);
        }
        let received = world.received.pop().unwrap();
        assert!(world.received.is_empty(), "one receive for one message");
        assert_eq!((received.opcode, received.immediate), (Opcode::ReceiveWrite, Some(5)));
        assert_eq!(world.bytes(400_000, len), source[3..], "{len}");

        let read = Transfer::Read { remote: world.at(512), len };
        world.share.submit(BULK, lane, 9, read).unwrap();
        world.run(3);
        let done = world.done.pop().unwrap();
        let read: Vec<u8> = done.buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        assert_eq!(read, source[3..], "{len}");
        assert!(done.buffers.iter().rev().skip(1).all(|buffer| buffer.len() == CHUNK));
        world.share.recycle(done.buffers);
        let ended: Vec<_> = world.done.drain(..).map(|done| (done.id, done.qp, done.status)).collect();
        assert_eq!(ended, [7, 8].map(|id| (id, lane, Status::Success)));
    }
    assert_eq!(world.share.scheduler().all_outstanding_len(), 0);
}

#[test]
fn a_small_request_overtakes_a_long_one_and_a_send_arrives() {
    let mut world = World::new();
    let (long, short) = (world.source(1, 200_000), world.source(2, 64));
    let write = Transfer::Write { source: long.clone().into(), remote: world.at(0) };
    world.share.submit(BULK, world.lanes[0], 1, write).unwrap();
    assert_eq!(world.share.scheduler().outstanding_len(BULK), 8 * 1024, "no more than its bound");
    let receive = world.arena.alloc(64, 64).unwrap();
    world.far[1].post_buffer(3, receive).unwrap();
    let send = Transfer::Send { source: short.clone().into(), immediate: None, to: None };
    world.share.submit(SMALL, world.lanes[1], 2, send).unwrap();
    assert_eq!(world.share.scheduler().outstanding_len(SMALL), 88, "it passes at once");
    world.run(2);
    assert_eq!(world.done.iter().map(|done| done.id).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(world.received[0].buffers[0][..], short[..]);
    assert_eq!(world.bytes(0, long.len()), long[..]);
}

#[test]
fn a_request_of_which_a_chunk_fails_ends_once_with_the_first_failure() {
    let mut world = World::new();
    let bytes = world.source(1, 100_000);
    // The remote memory claims to be longer than what is exposed.
    let beyond = RemoteMemory { len: 1 << 20, ..world.at(MEMORY - 5000) };
    let write = Transfer::Write { source: bytes.clone().into(), remote: beyond };
    world.share.submit(BULK, world.lanes[0], 1, write).unwrap();
    let after = Transfer::Read { remote: world.at(0), len: 5000 };
    world.share.submit(BULK, world.lanes[0], 2, after).unwrap();
    let other = Transfer::Write { source: bytes.clone().into(), remote: world.at(0) };
    world.share.submit(BULK, world.lanes[1], 3, other).unwrap();
    world.run(3);
    let status = |id| world.done.iter().find(|done| done.id == id).map(|done| (done.status, done.buffers.len()));
    assert_eq!(status(1), Some((Status::RemoteAccess, 0)));
    assert_eq!(status(2), Some((Status::Flushed, 0)), "its queue pair is in error");
    assert_eq!(status(3), Some((Status::Success, 0)), "the other one is not");
    assert_eq!(world.bytes(MEMORY - 5000, 5000), bytes[..5000], "what went well took effect");
    assert_eq!(world.share.scheduler().all_outstanding_len(), 0);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut world = World::new();
    let bytes = world.source(1, 2000);
    let lane = world.lanes[0];
    let write = |source: Slice, remote| Transfer::Write { source, remote };
    let place = world.at(MEMORY - 1999);
    let whole = || Slice::from(bytes.clone());
    let error = world.share.submit(BULK, lane, 1, write(whole(), place)).unwrap_err();
    assert_eq!(error, SubmitError::TooLong { len: 2000, limit: 1999 });
    let outside = Slice { start: 1, ..whole() };
    assert_eq!(world.share.submit(BULK, lane, 1, write(outside, place)).unwrap_err(), SubmitError::BadSlice);
    assert_eq!(world.share.submit(ClassId(2), lane, 1, write(whole(), place)).unwrap_err(), SubmitError::Class(2));
    let send = Transfer::Send { source: whole(), immediate: None, to: None };
    let error = world.share.submit(BULK, lane, 1, send).unwrap_err();
    assert_eq!(error, SubmitError::TooLong { len: 2000, limit: 1000 });
    let read = Transfer::Read { remote: RemoteMemory { len: 1 << 40, ..place }, len: 1 << 30 };
    assert!(matches!(world.share.submit(BULK, lane, 1, read).unwrap_err(), SubmitError::Alloc(_)));
    for id in 0..64 {
        let read = Transfer::Read { remote: world.at(0), len: 3000 };
        world.share.submit(BULK, lane, id, read).unwrap();
    }
    let read = Transfer::Read { remote: world.at(0), len: 1 };
    assert_eq!(world.share.submit(SMALL, lane, 64, read).unwrap_err(), SubmitError::Full(64));
    world.run(64);
}

#[test]
fn a_message_is_not_cut_over_a_transport_that_loses_chunks() {
    let mut world = World::new();
    let uc = QpConfig { send_depth: 16, receive_depth: 16, ..QpConfig::new(Transport::Uc) };
    let qp = world.thread.queue_pair(&uc, &world.cq, &world.cq).unwrap();
    let lane = world.share.add(qp, 16);
    let message = Transfer::Message { source: world.source(1, 10).into(), remote: world.at(0), immediate: 1 };
    assert_eq!(world.share.submit(BULK, lane, 1, message).unwrap_err(), SubmitError::Unreliable(Transport::Uc));
}

#[test]
fn a_request_that_its_queue_pair_does_not_take_ends_without_a_completion() {
    let mut world = World::new();
    let rc = QpConfig { send_depth: 16, receive_depth: 16, ..QpConfig::new(Transport::Rc) };
    // The queue pair is not connected.
    let qp = world.thread.queue_pair(&rc, &world.cq, &world.cq).unwrap();
    let lane = world.share.add(qp, 16);
    let write = Transfer::Write { source: world.source(1, 5000).into(), remote: world.at(0) };
    world.share.submit(BULK, lane, 9, write).unwrap();
    let done = world.share.take_refused().expect("nothing else tells of it");
    assert_eq!((done.id, done.status), (9, Status::LocalQpOperation));
    assert!(world.share.take_refused().is_none());
    assert_eq!(world.share.scheduler().all_outstanding_len(), 0);
}

#[test]
fn requests_of_all_kinds_at_random_end_once_each() {
    const SEED: u64 = 11;
    let mut world = World::new();
    let mut chance = SeededGenerator::new(SEED);
    let sources: Vec<_> = [10, 100, 5000].into_iter().enumerate().map(|(nth, len)| world.source(nth, len)).collect();
    let mut ended = [0u8; 2000];
    let (mut begun, mut over) = (0, 0);
    while over < ended.len() {
        while begun < ended.len() && chance.chance(0.7) {
            let source = &sources[chance.below(3) as usize];
            let remote = world.at(chance.below(100) as usize * 8192);
            let transfer = match chance.below(2) {
                0 => Transfer::Write { source: source.clone().into(), remote },
                _ => Transfer::Read { remote, len: source.len() },
            };
            let class = if source.len() < 1000 { SMALL } else { BULK };
            match world.share.submit(class, world.lanes[chance.below(2) as usize], begun as u64, transfer) {
                Ok(()) => begun += 1,
                Err(error) => {
                    assert_eq!(error, SubmitError::Full(64), "seed {SEED}");
                    break;
                }
            }
        }
        let World { share, cq, .. } = &mut world;
        let mut buffers = Vec::new();
        let take = |done: FinishedRequest| {
            assert_eq!(done.status, Status::Success, "seed {SEED}");
            ended[done.id as usize] += 1;
            over += 1;
            buffers.extend(done.buffers);
        };
        share.turn(cq, take, |completion| panic!("{completion:?}"));
        share.recycle(buffers);
    }
    assert!(ended.iter().all(|&times| times == 1), "seed {SEED}");
}
