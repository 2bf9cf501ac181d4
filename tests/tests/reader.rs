//! The adaptive reader over shared memory: objects are the same whichever way they are fetched, and no get is lost.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use sinew::fabric::reader::{
    AccessMethod, AskError, Choice, CompletionMode, GetClass, GetError, Hello, Joining, Object, ObjectLimits, Outcome,
    PointerChase, Reader, ReaderConfig, Refusal, Region, Server, ServerConfig, Welcome,
};
use sinew::fabric::verbs::{
    Access, CompletionQueue, Device, Exposed, Operation, ProtectionDomain, QpConfig, QueuePair, RemoteMemory, Request,
    Source, ThreadDomain, Transport,
};
use sinew::fabric::{Armed, PollPolicy, Readiness, SeededGenerator, Step};
use sinew::mem::SharedMemory;
use sinew::shm::verbs::{ShmDevice, ShmDomain, ShmExposed};

/// Returns bytes that differ from place to place, and from object to object.
fn pattern(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number * 31 + at / 251) as u8).collect()
}

const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a hop: the place of the next access.
const HOP_LEN: u32 = RemoteMemory::BYTES as u32;
const LIMITS: ObjectLimits = ObjectLimits { accesses_max: 8, len_max: 4096 };

fn now_ns() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Follows a hop, which holds the place of the next access; zeros lead nowhere.
fn next(_: u32, bytes: &[u8]) -> Option<RemoteMemory> {
    let place = RemoteMemory::from_bytes(bytes.first_chunk()?);
    (place.rkey != 0 || place.len != 0).then_some(place)
}

type Next = fn(u32, &[u8]) -> Option<RemoteMemory>;

/// Exposed memory with chains that end in objects.
struct Data {
    device: ShmDevice,
    domain: ShmDomain,
    exposed: ShmExposed,
    /// Objects with their bytes.
    objects: Vec<(Object, Vec<u8>)>,
    used: usize,
}

impl Data {
    fn new(device: ShmDevice) -> Self {
        let domain = device.protection_domain().unwrap();
        let exposed = domain.expose(1 << 20, Access::READ).unwrap();
        let mut data = Self { device, domain, exposed, objects: Vec::new(), used: 0 };
        for accesses in [1, 2, 4, 8] {
            for len in [1, 32, 300, 4096] {
                data.chain(accesses, len);
            }
        }
        data
    }

    fn put(&mut self, bytes: &[u8]) -> RemoteMemory {
        self.exposed.write(self.used, bytes).unwrap();
        let place = RemoteMemory { len: bytes.len() as u64, ..self.exposed.remote().at(self.used as u64).unwrap() };
        self.used += bytes.len().next_multiple_of(64);
        place
    }

    fn chain(&mut self, accesses: u32, len: u32) {
        let bytes = pattern(self.objects.len(), len as usize);
        let end = self.put(&bytes);
        let start = (1..accesses).fold(end, |next, _| self.put(&next.to_bytes()));
        self.objects.push((Object { start, accesses, hop_len: HOP_LEN, len }, bytes));
    }

    fn regions(&self) -> Vec<Region> {
        vec![Region { remote: self.exposed.remote(), memory: SharedMemory::clone(&self.exposed) }]
    }

    fn server(&self, poller: PollPolicy) -> Server<ShmDevice, Next> {
        let config = ServerConfig { clients: 4, window: 8, limits: LIMITS, poller };
        Server::new(&self.device, &self.domain, &config, self.regions(), next as Next).unwrap()
    }
}

type ShmReader = Reader<ShmDevice, Next, SeededGenerator>;

fn config() -> ReaderConfig {
    ReaderConfig { window: 8, limits: LIMITS, timeout_ns: 30_000_000_000, ..ReaderConfig::new("the test's server") }
}

fn joining(device: &ShmDevice, config: &ReaderConfig) -> (Joining<ShmDevice>, Hello) {
    let domain = device.protection_domain().unwrap();
    Joining::prepare(device, &domain, config).unwrap()
}

/// Joins a reader to a server in the same thread.
fn join<C: PointerChase>(data: &Data, server: &mut Server<ShmDevice, C>, config: &ReaderConfig) -> ShmReader {
    let (joining, hello) = joining(&data.device, config);
    let (_, welcome) = server.admit(&Hello::from_bytes(&hello.to_bytes()).unwrap()).unwrap();
    joining.join(&Welcome::from_bytes(&welcome.to_bytes()).unwrap(), next as Next, SeededGenerator::new(1)).unwrap()
}

type Objects = [(Object, Vec<u8>)];
type Ended = (u64, Result<Vec<u8>, GetError>);

fn ended(outcome: &Outcome<'_>) -> Ended {
    (outcome.tag, outcome.result.map(<[u8]>::to_vec).map_err(Clone::clone))
}

/// Turns both until a get ends.
fn end<C: PointerChase>(reader: &mut ShmReader, server: &mut Server<ShmDevice, C>) -> Ended {
    let since = Instant::now();
    loop {
        let mut outcomes = Vec::new();
        reader.turn(now_ns(), |outcome| outcomes.push(ended(&outcome)));
        server.turn(now_ns());
        if let Some(outcome) = outcomes.pop() {
            assert!(outcomes.is_empty(), "one was asked for");
            return outcome;
        }
        assert!(since.elapsed() < PATIENCE, "nothing ended: {reader:?}");
    }
}

#[test]
fn an_object_is_the_same_whichever_way_it_is_got() {
    let data = Data::new(ShmDevice::threads().unwrap());
    let mut server = data.server(PollPolicy::SPIN);
    let mut reader = join(&data, &mut server, &config());
    for (tag, (object, bytes)) in data.objects.iter().enumerate() {
        for choice in Choice::ALL {
            reader.force(Some(choice));
            assert_eq!(reader.get(tag as u64, object, now_ns()), Ok(choice));
            assert_eq!(end(&mut reader, &mut server), (tag as u64, Ok(bytes.clone())), "{choice}: {object:?}");
        }
    }
    let gets = data.objects.len() as u64;
    assert_eq!((server.stats().served, reader.stats().begun), (2 * gets, [gets; 4]));
    assert_eq!((reader.stats().found, reader.in_flight()), (4 * gets, 0));
}

#[test]
fn what_cannot_be_got_is_refused_alike_whichever_way() {
    let mut data = Data::new(ShmDevice::threads().unwrap());
    let outside = RemoteMemory { len: 4096, ..data.exposed.remote().at((1 << 20) - 8).unwrap() };
    let other = RemoteMemory { rkey: !data.exposed.remote().rkey, ..data.exposed.remote() };
    let short = RemoteMemory { len: 31, ..data.exposed.remote() };
    let ends = [outside, other, short].map(|next| (data.put(&next.to_bytes()), GetError::OutOfBounds { access: 1 }));
    let nowhere = (data.put(&[0; HOP_LEN as usize]), GetError::NoNext { access: 0 });
    let mut server = data.server(PollPolicy::SPIN);
    let mut reader = join(&data, &mut server, &config());
    for (start, error) in ends.into_iter().chain([nowhere]) {
        for choice in Choice::ALL {
            reader.force(Some(choice));
            reader.get(5, &Object { start, accesses: 2, hop_len: HOP_LEN, len: 32 }, now_ns()).unwrap();
            assert_eq!(end(&mut reader, &mut server), (5, Err(error.clone())), "{choice}");
        }
    }
    assert_eq!(server.stats().refused_for(Refusal::OutOfBounds), 6);
    assert_eq!(server.stats().refused_for(Refusal::NoNext), 2);
    // Objects that are wrong from the start are not asked for.
    let (object, bytes) = data.objects[0].clone();
    for (object, is_limit) in [
        (Object { accesses: 9, ..object }, true),
        (Object { accesses: 0, ..object }, true),
        (Object { len: 4097, ..object }, true),
        (Object { len: 0, ..object }, true),
        (Object { start: outside, len: 9, ..object }, false),
    ] {
        let error = reader.get(1, &object, now_ns()).unwrap_err();
        assert_eq!(matches!(error, AskError::Object(_)), is_limit, "{error}");
        assert_eq!(error == AskError::OutOfBounds, !is_limit, "{error}");
    }
    // The connection still works.
    for choice in Choice::ALL {
        reader.force(Some(choice));
        reader.get(6, &object, now_ns()).unwrap();
        assert_eq!(end(&mut reader, &mut server), (6, Ok(bytes.clone())));
    }
}

#[test]
fn a_window_is_full_when_it_is_and_an_answer_that_comes_late_is_known() {
    let data = Data::new(ShmDevice::threads().unwrap());
    let mut server = data.server(PollPolicy::SPIN);
    let mut reader = join(&data, &mut server, &ReaderConfig { timeout_ns: 1_000_000, ..config() });
    let (object, bytes) = &data.objects[6];
    reader.force(Some(Choice { method: AccessMethod::TwoSided, mode: CompletionMode::Events }));
    for tag in 0..8 {
        reader.get(tag, object, 1000 + tag).unwrap();
    }
    assert_eq!(reader.get(8, object, 1008), Err(AskError::Full(8)));
    let turn = reader.turn(1_000_999, |outcome| panic!("{outcome:?}"));
    assert_eq!((turn.ended, turn.in_flight), (0, 8));
    let mut expired = 0;
    let turn = reader.turn(1_001_007, |outcome| {
        expired += 1;
        let error = outcome.result.unwrap_err();
        assert!(matches!(error, GetError::Deadline { peer, .. } if peer == "the test's server"), "{error}");
    });
    assert_eq!((expired, turn.ended, turn.in_flight, reader.stats().expired), (8, 8, 0, 8));
    assert_eq!(reader.get(9, object, 1_001_008), Err(AskError::Full(8)), "their answers are still to come");
    let since = Instant::now();
    while reader.stats().late < 8 {
        server.turn(2_000_000);
        reader.turn(2_000_000, |outcome| panic!("{outcome:?}"));
        assert!(since.elapsed() < PATIENCE);
    }
    reader.force(None);
    reader.get(10, object, now_ns()).unwrap();
    assert_eq!(end(&mut reader, &mut server), (10, Ok(bytes.clone())));
    assert_eq!(reader.stats().strange, 0);
}

/// Serves until told to stop, sleeping when the server says so.
fn serve(mut server: Server<ShmDevice, impl PointerChase>, stop: &AtomicBool) -> u64 {
    while !stop.load(Ordering::Relaxed) {
        let turn = server.turn(now_ns());
        if turn.step == Step::Block {
            if let Armed::Sleep { .. } = server.arm(now_ns()).unwrap() {
                server.descriptor().unwrap().wait(Some(1_000_000)).unwrap();
            }
            server.disarm();
        } else if !turn.found {
            std::thread::yield_now();
        }
    }
    server.stats().served
}

/// Spins or sleeps after a turn, as the reader asks. Returns whether it slept.
fn rest(reader: &mut ShmReader, step: Step, found: bool) -> bool {
    let mut slept = false;
    if step == Step::Block {
        let armed = reader.arm(now_ns()).unwrap();
        if armed != Armed::Ready {
            reader.descriptor().unwrap().wait(armed.timeout_ns(now_ns())).unwrap();
            slept = true;
        }
        reader.disarm();
    } else if !found {
        std::thread::yield_now();
    }
    slept
}

/// Gets random objects, window after window, and checks them. `force` chooses how each is fetched. Returns the number
/// of sleeps.
fn read(
    reader: &mut ShmReader,
    objects: &Objects,
    gets: u64,
    chance: &mut SeededGenerator,
    mut force: impl FnMut(&mut SeededGenerator) -> Option<Option<Choice>>,
) -> u64 {
    let (mut begun, mut over, mut slept) = (0, 0, 0);
    let mut expected = HashMap::new();
    let since = Instant::now();
    while over < gets {
        while begun < gets && reader.has_room() && chance.chance(0.8) {
            if let Some(choice) = force(chance) {
                reader.force(choice);
            }
            let which = chance.below(objects.len() as u64) as usize;
            let choice = reader.get(begun, &objects[which].0, now_ns()).unwrap();
            expected.insert(begun, (which, choice));
            begun += 1;
        }
        let turn = reader.turn(now_ns(), |outcome| {
            let (which, choice) = expected.remove(&outcome.tag).expect("a get ends once");
            assert_eq!(outcome.choice, choice, "it ends the way it began");
            assert!(outcome.result == Ok(&objects[which].1[..]), "{choice}: {:?}", outcome.result);
            over += 1;
        });
        slept += u64::from(turn.in_flight > 0 && rest(reader, turn.step, turn.found));
        assert!(since.elapsed() < PATIENCE, "{over} of {gets} ended: {reader:?}");
    }
    assert!(expected.is_empty() && reader.in_flight() == 0);
    slept
}

/// Joins readers, in threads of their own, to one server in another thread. Returns the number of gets that it served.
fn contend(poller: PollPolicy, readers: u64, work: impl Fn(ShmReader, &Objects, u64) + Sync) -> u64 {
    let device = ShmDevice::threads().unwrap();
    let stop = AtomicBool::new(false);
    let (sender, receiver) = mpsc::channel();
    let (hear, heard) = mpsc::channel::<(Hello, mpsc::Sender<Welcome>)>();
    let (work, stop) = (&work, &stop);
    std::thread::scope(|scope| {
        let of_server = device.clone();
        let serving = scope.spawn(move || {
            let data = Data::new(of_server);
            let mut server = data.server(poller);
            sender.send(data.objects.clone()).unwrap();
            for (hello, answer) in (0..readers).map(|_| heard.recv().unwrap()) {
                answer.send(server.admit(&hello).unwrap().1).unwrap();
            }
            serve(server, stop)
        });
        let objects = Arc::new(receiver.recv().unwrap());
        let start = |seed: u64| {
            let (device, hear, objects) = (device.clone(), hear.clone(), Arc::clone(&objects));
            scope.spawn(move || {
                let (joining, hello) = joining(&device, &config());
                let (answer, answered) = mpsc::channel();
                hear.send((hello, answer)).unwrap();
                let welcome = answered.recv().unwrap();
                work(joining.join(&welcome, next as Next, SeededGenerator::new(seed)).unwrap(), &objects, seed);
            })
        };
        let threads: Vec<_> = (0..readers).map(start).collect();
        let results: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        let served = serving.join().unwrap();
        results.into_iter().for_each(|result| result.unwrap());
        served
    })
}

fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

#[test]
fn under_contention_no_get_is_lost_by_switching_at_random_moments() {
    const GETS: u64 = 3000;
    let seed = seed();
    // Shown when the test fails.
    eprintln!("seed {seed}");
    for poller in [PollPolicy::SLEEP, PollPolicy::ADAPTIVE] {
        let served = contend(poller, 2, |mut reader, objects, nth| {
            let mut chance = SeededGenerator::new(seed ^ nth);
            let slept = read(&mut reader, objects, GETS, &mut chance, |chance| {
                let choice = Choice::ALL[chance.below(4) as usize];
                // Now and then the policy may choose, too.
                chance.chance(0.3).then_some((!chance.chance(0.1)).then_some(choice))
            });
            let stats = reader.stats();
            assert_eq!((stats.found, stats.failed, stats.late, stats.strange), (GETS, 0, 0, 0));
            assert!(stats.begun.iter().all(|&begun| begun > 0), "{stats:?}");
            eprintln!("slept {slept} times");
        });
        assert!(served > 0);
    }
}

#[test]
fn a_reader_that_chooses_by_itself_loses_nothing_and_measures() {
    contend(PollPolicy::ADAPTIVE, 2, |mut reader, objects, nth| {
        let objects = &objects[..1];
        read(&mut reader, objects, 6000, &mut SeededGenerator::new(nth), |_| None);
        let class = GetClass::of(objects[0].0.len, objects[0].0.accesses);
        let measured = Choice::ALL.map(|choice| reader.policy().measurement(class, choice).latency_ns);
        assert!(measured.iter().any(Option::is_some), "{measured:?}");
        // Some ways may cost so much on this machine that the budget does not allow a try.
        let tried = reader.stats().begun.iter().filter(|&&begun| begun > 0).count();
        assert!(reader.stats().tries > 0 && tried > 1, "{:?}", reader.stats());
        let load = reader.load();
        assert!(load.wasted_ns + load.ready_ns + load.lost_ns + load.slept_ns > 0, "{load:?}");
    });
}

#[test]
fn gets_by_events_sleep_until_the_answer_is_there() {
    contend(PollPolicy::SLEEP, 1, |mut reader, objects, nth| {
        let choice = Choice { method: AccessMethod::TwoSided, mode: CompletionMode::Events };
        let slept = read(&mut reader, objects, 300, &mut SeededGenerator::new(nth), |_| Some(Some(choice)));
        assert!(slept > 0, "{:?}", reader.load());
        assert!(reader.load().slept_ns > 0);
    });
}

#[test]
fn a_reader_with_a_get_that_polls_is_not_to_sleep() {
    let data = Data::new(ShmDevice::threads().unwrap());
    let mut server = data.server(PollPolicy::SPIN);
    let mut reader = join(&data, &mut server, &config());
    let two_sided = |notice| Some(Choice { method: AccessMethod::TwoSided, mode: notice });
    reader.force(two_sided(CompletionMode::Events));
    reader.get(0, &data.objects[0].0, 0).unwrap();
    while reader.turn(1, |_| panic!("nobody serves")).found {}
    assert_eq!(reader.turn(1, |_| panic!("nobody serves")).step, Step::Block);
    let deadline_ns = config().timeout_ns;
    // For a while, `arm` may report that there may be something to do.
    let mut armed = (0..1000).map(|_| {
        let armed = reader.arm(0).unwrap();
        reader.disarm();
        armed
    });
    let asleep = armed.find(|armed| *armed != Armed::Ready);
    assert!(matches!(asleep, Some(Armed::Sleep { until_ns: Some(until_ns) }) if until_ns <= deadline_ns), "{asleep:?}");
    reader.force(two_sided(CompletionMode::Polling));
    reader.get(1, &data.objects[0].0, 0).unwrap();
    assert_eq!(reader.turn(1, |_| panic!("nobody serves")).step, Step::Spin);
    assert_eq!(reader.arm(0).unwrap(), Armed::Ready);
}

#[test]
fn a_server_that_goes_ends_gets_with_an_error_that_names_it() {
    for choice in Choice::ALL {
        let data = Data::new(ShmDevice::threads().unwrap());
        let mut server = data.server(PollPolicy::SPIN);
        let mut reader = join(&data, &mut server, &config());
        reader.force(Some(choice));
        let object = data.objects[7].0;
        for tag in 0..4 {
            reader.get(tag, &object, now_ns()).unwrap();
        }
        if choice.method == AccessMethod::TwoSided {
            reader.flush();
        }
        // The server dies with the requests in its queue.
        drop(server);
        let mut tags = Vec::new();
        let since = Instant::now();
        while tags.len() < 4 {
            reader.turn(now_ns(), |outcome| {
                let error = outcome.result.unwrap_err();
                assert!(matches!(error, GetError::PeerLost { .. }), "{choice}: {error}");
                assert!(error.to_string().contains("the test's server"), "{error}");
                tags.push(outcome.tag);
            });
            assert!(since.elapsed() < PATIENCE, "{choice}: {reader:?}");
        }
        tags.sort_unstable();
        assert_eq!((tags, reader.in_flight()), (vec![0, 1, 2, 3], 0));
        let error = reader.get(9, &object, now_ns()).unwrap_err();
        assert!(matches!(&error, AskError::PeerLost { peer, .. } if peer == "the test's server"), "{error}");
        assert!(!reader.has_room());
        // Flushed requests keep no thread awake: after a while there is nothing left to take.
        let may_sleep = |reader: &mut ShmReader| {
            let turn = reader.turn(now_ns(), |outcome| panic!("{outcome:?} ended twice"));
            let armed = reader.arm(now_ns()).unwrap();
            reader.disarm();
            turn.step == Step::Block && matches!(armed, Armed::Sleep { .. })
        };
        while !may_sleep(&mut reader) {
            assert!(since.elapsed() < PATIENCE, "{choice}: {reader:?}");
        }
    }
}

#[test]
fn hostile_requests_are_refused_and_counted_by_reason() {
    let data = Data::new(ShmDevice::threads().unwrap());
    let mut server = data.server(PollPolicy::SPIN);
    let thread = data.domain.thread().unwrap();
    let mut cq = thread.completion_queue(64).unwrap();
    let mut qp = thread
        .queue_pair(&QpConfig { receive_depth: 32, send_depth: 32, ..QpConfig::new(Transport::Rc) }, &cq, &cq)
        .unwrap();
    let (id, welcome) = server.admit(&Hello { address: qp.address(), window: 4 }).unwrap();
    qp.connect(Some(&welcome.address)).unwrap();
    let arena = data.domain.arena(1 << 18).unwrap();
    // Builds a valid request, by its layout.
    let request = |number: u64, accesses: u8, hop_len: u32, len: u32, start: RemoteMemory| {
        let mut bytes = vec![0x44, 0x53, 1, accesses];
        bytes.extend(len.to_le_bytes());
        bytes.extend(number.to_le_bytes());
        bytes.extend(hop_len.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(start.to_bytes());
        bytes
    };
    let number = |uses: u64, place: u64| uses << 16 | place;
    let whole = data.exposed.remote();
    let mut completions = Vec::new();
    let mut ask = |server: &mut Server<_, _>, bytes: Vec<u8>, is_answered: bool| {
        qp.post_buffer(1, arena.alloc(8192, 8192).unwrap()).unwrap();
        let operation = Operation::Send { source: Source::Inline(&bytes), immediate: None, to: None };
        qp.post(Request::new(2, operation)).unwrap();
        let mut answer = None;
        for _ in 0..1000 {
            server.turn(0);
            cq.poll(&mut completions, 16);
            for completion in completions.drain(..).filter(|completion| completion.id == 1) {
                answer = Some(completion.buffers[0].to_vec());
            }
        }
        assert_eq!(answer.is_some(), is_answered, "{bytes:?}");
        answer.map(|answer| answer[9])
    };
    let good = request(number(1, 0), 1, 0, 64, whole);
    assert_eq!(ask(&mut server, good.clone(), true), Some(0));
    for (bytes, reason, is_answered) in [
        (good.clone(), Refusal::Number, false),
        (request(number(0, 1), 1, 0, 64, whole), Refusal::Number, false),
        (request(number(1, 4), 1, 0, 64, whole), Refusal::Number, false),
        (request(u64::MAX, 1, 0, 64, whole), Refusal::Number, false),
        (good[..43].to_vec(), Refusal::Malformed, false),
        (vec![], Refusal::Malformed, false),
        (vec![0xFF; 44], Refusal::Malformed, false),
        (request(number(2, 0), 9, HOP_LEN, 64, whole), Refusal::Accesses, true),
        (request(number(3, 0), 0, HOP_LEN, 64, whole), Refusal::Accesses, true),
        (request(number(4, 0), 255, HOP_LEN, 64, whole), Refusal::Accesses, true),
        (request(number(5, 0), 1, 0, 4097, whole), Refusal::Len, true),
        (request(number(6, 0), 1, 0, u32::MAX, whole), Refusal::Len, true),
        (request(number(7, 0), 1, 0, 0, whole), Refusal::Len, true),
        (request(number(8, 0), 2, u32::MAX, 64, whole), Refusal::Len, true),
        (request(number(9, 0), 1, 0, 64, RemoteMemory { rkey: !whole.rkey, ..whole }), Refusal::OutOfBounds, true),
        (request(number(10, 0), 1, 0, 64, RemoteMemory { address: u64::MAX, ..whole }), Refusal::OutOfBounds, true),
        (
            request(
                number(11, 0),
                1,
                0,
                64,
                RemoteMemory { len: u64::MAX, address: whole.address + whole.len - 63, ..whole },
            ),
            Refusal::OutOfBounds,
            true,
        ),
    ] {
        let before = server.stats().refused_for(reason);
        let status = ask(&mut server, bytes, is_answered);
        assert!(status.is_none_or(|status| status == reason as u8 + 1), "{reason}");
        assert_eq!(server.stats().refused_for(reason), before + 1, "{reason}");
    }
    assert_eq!(ask(&mut server, request(number(12, 0), 1, 0, 64, whole), true), Some(0), "and it serves on");
    assert_eq!(server.stats().served, 2);
    assert!(server.is_current(id) && server.dismiss(id) && !server.is_current(id) && !server.dismiss(id));
}

const CHILD: &str = "SINEW_TEST_READER_SERVER";

/// A server process: admits a reader, then serves nobody, until it is killed.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let data = Data::new(ShmDevice::open(&"shm://".parse().unwrap()).unwrap());
    let mut server = data.server(PollPolicy::SPIN);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let welcome = server.admit(&Hello::from_bytes(&from_hex(line.trim())).unwrap()).unwrap().1;
    println!("\nwelcome {} {}", hex(&data.objects[0].0.start.to_bytes()), hex(&welcome.to_bytes()));
    // Ends, at the latest, when the parent closes its end of the pipe.
    while std::io::stdin().read_line(&mut line).is_ok_and(|len| len > 0) {}
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

#[test]
fn a_server_process_that_is_killed_mid_get_ends_gets_with_an_error_that_names_it() {
    for choice in Choice::ALL {
        let exe = std::env::current_exe().unwrap();
        let mut command = Command::new(exe);
        command.args(["child", "--exact", "--nocapture"]).env(CHILD, "1");
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let device = ShmDevice::open(&"shm://".parse().unwrap()).unwrap();
        let (joining, hello) = joining(&device, &config());
        let mut stdin = process.stdin.take().unwrap();
        writeln!(stdin, "{}", hex(&hello.to_bytes())).unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let welcome_text = lines.find_map(|line| line.strip_prefix("welcome ").map(str::to_owned)).expect("it serves");
        let (start, welcome) = welcome_text.split_once(' ').unwrap();
        let start = RemoteMemory::from_bytes(from_hex(start).first_chunk().unwrap());
        let object = Object { start, accesses: 1, hop_len: HOP_LEN, len: 1 };
        let welcome = Welcome::from_bytes(&from_hex(welcome)).unwrap();
        let mut reader = joining.join(&welcome, next as Next, SeededGenerator::new(1)).unwrap();
        reader.force(Some(choice));
        let (mut begun, mut ended, mut error) = (0, 0, None);
        let since = Instant::now();
        while error.is_none() {
            if begun - ended < 4 && reader.has_room() && reader.get(begun, &object, now_ns()).is_ok() {
                begun += 1;
            }
            let turn = reader.turn(now_ns(), |outcome: Outcome<'_>| {
                ended += 1;
                error = outcome.result.err().cloned();
            });
            if begun >= 4 && since.elapsed() > Duration::from_millis(50) {
                process.kill().unwrap();
            }
            if error.is_none() && turn.in_flight > 0 {
                rest(&mut reader, turn.step, turn.found);
            }
            assert!(since.elapsed() < PATIENCE, "{choice}: {reader:?}");
        }
        let error = error.unwrap();
        assert!(matches!(&error, GetError::PeerLost { peer, .. } if peer == "the test's server"), "{choice}: {error}");
        assert_eq!((ended, reader.in_flight()), (begun, 0), "{choice}");
        process.kill().unwrap();
        process.wait().unwrap();
    }
}
