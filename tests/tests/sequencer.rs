//! Sequencers: over verbs between threads, and as processes that are killed and restarted.

mod common;
#[path = "common/judge.rs"]
mod judge;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use common::{Folder, Server, eventually, positive, results, run, sinew, text, unique};
use judge::{Judge, count_unique};
use rustix::process::Signal;
use serde_json::Value;
use sinew::fabric::verbs::{
    Completion, CompletionQueue, Device, Operation, ProtectionDomain, QpAddress, QpConfig, QueuePair, Request, Source,
    ThreadDomain, Transport,
};
use sinew::herd::{Client as Herd, ClientConfig, Hello, ServerConfig, Welcome, Worker, WorkerConfig};
use sinew::mem::Arena;
use sinew::sequencer::atomics::{AtomicsClient, SequencerWord, server_queue_pair};
use sinew::sequencer::herd::{HerdClient, NumberService, layout};
use sinew::sequencer::rpc::{NEXT, read_answer, request_bytes};
use sinew::sequencer::spec::{SpecClient, SpecConfig, SpecServer, SpecServerStats};
use sinew::sequencer::{CallError, Client, Epoch, LAST, Refusal, RequestError, Sequence};
use sinew::shm::verbs::{ShmDevice, ShmDomain, ShmThread};

const EPOCH: Epoch = Epoch(0x1234_5678_9ABC_DEF0);

/// One device, with a sequencer that runs until the test ends.
struct World {
    device: ShmDevice,
    domain: ShmDomain,
    stop: AtomicBool,
}

impl World {
    fn new() -> Self {
        let device = ShmDevice::threads().unwrap();
        let domain = device.protection_domain().unwrap();
        Self { device, domain, stop: AtomicBool::new(false) }
    }

    fn arena(&self) -> Arena {
        self.domain.arena(4 << 20).unwrap()
    }

    fn client(&self, server: &QpAddress, next: u64, window: usize) -> SpecClient<ShmThread> {
        // Longer than any silence that a busy machine could cause.
        let config = SpecConfig { window, lost_after_ns: 20_000_000_000 };
        SpecClient::new(self.domain.thread().unwrap(), self.arena(), server, next, config).unwrap()
    }

    /// Serves while `clients` runs, which is handed the server's address.
    fn serving<R>(
        &self,
        sequence: &Arc<Sequence>,
        receives: usize,
        clients: impl FnOnce(QpAddress) -> R,
    ) -> (R, SpecServerStats) {
        self.stop.store(false, Ordering::Relaxed);
        std::thread::scope(|threads| {
            let (address_sender, address_receiver) = std::sync::mpsc::channel();
            let serve = move || {
                let thread = self.domain.thread().unwrap();
                let mut server =
                    SpecServer::new(thread, self.device.attributes(), Arc::clone(sequence), receives).unwrap();
                address_sender.send(server.address()).unwrap();
                while !self.stop.load(Ordering::Relaxed) {
                    if server.turn().unwrap() == 0 {
                        std::thread::yield_now();
                    }
                }
                server.stats()
            };
            let server = threads.spawn(serve);
            let stop = StopWhenDropped(&self.stop);
            let result = clients(address_receiver.recv().unwrap());
            drop(stop);
            (result, server.join().unwrap())
        })
    }
}

/// Stops the server, also when the test fails.
struct StopWhenDropped<'a>(&'a AtomicBool);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn guessing_clients_get_unique_increasing_numbers_and_the_dead_lose_their_own() {
    const CALLS: usize = 400_000;
    const CLIENTS: u64 = 3;
    const WINDOW: usize = 32;
    let world = World::new();
    // The lower half of the numbers wraps during the test.
    let first = (5 << 32) - CALLS as u64;
    let sequence = Arc::new(Sequence::new(first, EPOCH, 1));
    let judge = Judge::default();
    let (taken, stats) = world.serving(&sequence, 1024, |server| {
        std::thread::scope(|threads| {
            let dying = || {
                let mut taken = Vec::new();
                for _ in 0..20 {
                    let mut client = world.client(&server, first, WINDOW);
                    taken.extend(judge.drive(&mut client, 500));
                    // The client vanishes while answers are on their way to it.
                    (0..WINDOW).for_each(|tag| client.request(tag as u64, 1).unwrap());
                    client.turn(0).unwrap();
                }
                taken
            };
            let dying = threads.spawn(dying);
            let living: Vec<_> = (0..CLIENTS)
                .map(|_| threads.spawn(|| judge.drive(&mut world.client(&server, first, WINDOW), CALLS)))
                .collect();
            let mut taken: Vec<_> = living.into_iter().map(|client| client.join().unwrap()).collect();
            assert!(taken.iter().all(|taken| taken.is_sorted()));
            taken.push(dying.join().unwrap());
            taken
        })
    });
    let unique = count_unique(taken);
    assert_eq!(unique, CLIENTS * CALLS as u64 + 20 * 500);
    let lost = sequence.next() - first - unique;
    assert!(lost <= 20 * WINDOW as u64, "{lost} numbers were lost");
    assert!(sequence.next() > 5 << 32);
    // At most one correction for each call that was in flight when the upper half changed.
    let corrected = stats.corrected;
    assert!((1..=(CLIENTS + 20) * WINDOW as u64).contains(&corrected), "{corrected} answers corrected a guess");
    assert_eq!(stats.malformed, 0);
}

#[test]
fn a_wrong_guess_costs_one_answer_with_data() {
    let world = World::new();
    let sequence = Arc::new(Sequence::new(7 << 32, EPOCH, 1));
    let ((), stats) = world.serving(&sequence, 64, |server| {
        for guess in [0, 6 << 32, 8 << 32, u64::MAX] {
            let mut client = world.client(&server, guess, 1);
            let taken = Judge::default().drive(&mut client, 10);
            assert!(taken.is_sorted() && taken.iter().all(|number| number >> 32 == 7), "{taken:?}");
            assert_eq!(client.stats().corrected, 1);
        }
    });
    assert_eq!((stats.answered, stats.corrected), (40, 4));
}

#[test]
fn calls_that_were_sent_with_the_old_guess_never_meet_the_new_one() {
    let world = World::new();
    for before in 0..40 {
        let first = (1 << 32) - before;
        let sequence = Arc::new(Sequence::new(first, EPOCH, 1));
        world.serving(&sequence, 64, |server| {
            let taken = Judge::default().drive(&mut world.client(&server, first, 16), 64);
            assert!(taken.into_iter().eq(first..first + 64));
        });
    }
}

#[test]
fn messages_that_are_no_requests_are_dropped_and_counted() {
    let world = World::new();
    let sequence = Arc::new(Sequence::new(0, EPOCH, 1));
    let ((), stats) = world.serving(&sequence, 256, |address| {
        let thread = world.domain.thread().unwrap();
        let mut cq = thread.completion_queue(1024).unwrap();
        let config = QpConfig { qkey: address.qkey, ..QpConfig::new(Transport::Ud) };
        let mut sender = thread.queue_pair(&config, &cq, &cq).unwrap();
        sender.connect(None).unwrap();
        let server = thread.destination(&address).unwrap();
        let to = Some(server);
        let mut completions: Vec<Completion> = Vec::new();
        // Data without and with an immediate, and a header with neither.
        for (len, immediate) in [(1, None), (8, Some(0)), (64, Some(0)), (0, None)] {
            let operation = Operation::Send { source: Source::Inline(&[1; 64][..len]), immediate, to };
            sender.post(Request::new(0, operation)).unwrap();
            cq.poll(&mut completions, 64);
        }
        // Another key is that of another incarnation of the server, so the device does not deliver the message.
        let other = Some(sinew::fabric::verbs::Destination { qkey: server.qkey ^ 1, ..server });
        let operation = Operation::Send { source: Source::Empty, immediate: Some(0), to: other };
        sender.post(Request::new(0, operation)).unwrap();
        assert_eq!(Judge::default().drive(&mut world.client(&address, 0, 4), 100).len(), 100);
    });
    assert_eq!((stats.malformed, stats.answered, sequence.next()), (4, 100, 100));
}

#[test]
fn answers_that_are_none_or_not_the_servers_reach_no_call() {
    let world = World::new();
    // The test plays the server, and a stranger.
    let thread = world.domain.thread().unwrap();
    let cqs = [2048; 2].map(|depth| thread.completion_queue(depth).unwrap());
    let config = QpConfig::new(Transport::Ud);
    let mut qps = [0, 1].map(|_| thread.queue_pair(&config, &cqs[0], &cqs[1]).unwrap());
    qps.iter_mut().for_each(|qp| qp.connect(None).unwrap());
    let [mut sends, mut receives] = cqs;
    let mut completions: Vec<Completion> = Vec::new();
    qps[0].post_receive(0, Default::default()).unwrap();
    let mut client = world.client(&qps[0].address(), 0, 4);
    client.request(3, 1).unwrap();
    client.turn(0).unwrap();
    eventually("the request", || receives.poll(&mut completions, 1) > 0);
    let to = completions[0].from;
    let mut send = |from: usize, bytes: &[u8], immediate| {
        let operation = Operation::Send { source: Source::Inline(bytes), immediate, to };
        qps[from].post(Request::new(0, operation)).unwrap();
        sends.poll(&mut completions, 64);
    };
    for (nth, (from, bytes, immediate)) in
        [(1, &[1; 64][..0], Some(1)), (0, &[], None), (0, &[1; 3], None), (0, &[1; 64], None), (0, &[1; 8], Some(1))]
            .into_iter()
            .enumerate()
    {
        send(from, bytes, immediate);
        eventually("a message", || client.turn(0).unwrap());
        assert_eq!((client.answer(), client.stats().malformed), (None, nth as u64 + 1));
    }
    send(0, &[], Some(9));
    eventually("the answer", || client.turn(0).unwrap());
    assert_eq!(client.answer().map(|answer| (answer.tag, answer.result.unwrap().first)), Some((3, 9)));
    // Nobody asked for the first of these, and the second is no greater than one before.
    send(0, &[], Some(10));
    eventually("one too many", || client.turn(0).unwrap());
    client.request(4, 1).unwrap();
    client.turn(0).unwrap();
    send(0, &[], Some(9));
    eventually("an old one", || client.turn(0).unwrap());
    assert_eq!((client.answer(), client.stats().out_of_order), (None, 2));
}

#[test]
fn what_a_server_without_room_drops_is_given_up_and_late_answers_reach_nobody() {
    let world = World::new();
    let sequence = Arc::new(Sequence::new(0, EPOCH, 1));
    let ((), _) = world.serving(&sequence, 2, |server| {
        let config = SpecConfig { window: 64, lost_after_ns: 1_000_000 };
        let mut client = SpecClient::new(world.domain.thread().unwrap(), world.arena(), &server, 0, config).unwrap();
        let (clock, mut greatest, mut answered, mut given_up, mut tag) = (Instant::now(), None, 0, 0, 0);
        while answered < 1000 || given_up < 100 {
            while client.in_flight() < 64 {
                client.request(tag, 1).unwrap();
                tag += 1;
            }
            client.turn(clock.elapsed().as_nanos() as u64).unwrap();
            while let Some(answer) = client.answer() {
                match answer.result {
                    Ok(numbers) => {
                        assert!(greatest < Some(numbers.first), "{numbers:?} after {greatest:?}");
                        greatest = Some(numbers.first);
                        answered += 1;
                    }
                    Err(CallError::NoAnswer { waited_ns }) => {
                        assert!(waited_ns >= 1_000_000);
                        given_up += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(clock.elapsed() < common::PATIENCE, "{answered} answered, {given_up} given up");
        }
    });
}

#[test]
fn the_end_of_the_numbers_is_told_to_those_who_guess() {
    let world = World::new();
    let sequence = Arc::new(Sequence::new(LAST - 1, EPOCH, 1));
    let ((), stats) = world.serving(&sequence, 64, |server| {
        let mut client = world.client(&server, LAST, 4);
        (0..4).for_each(|tag| client.request(tag, 1).unwrap());
        assert_eq!(client.request(4, 1), Err(RequestError::WindowFull { window: 4 }));
        assert_eq!(client.request(4, 2), Err(RequestError::Count { asked: 2, max: 1 }));
        let mut results = Vec::new();
        eventually("four answers", || {
            client.turn(0).unwrap();
            results.extend(std::iter::from_fn(|| client.answer()).map(|answer| answer.result));
            results.len() == 4
        });
        let numbers: Vec<_> = results.iter().map(|result| result.clone().map(|numbers| numbers.first)).collect();
        let exhausted = Err(CallError::Refused(Refusal::Exhausted));
        assert_eq!(numbers, [Ok(LAST - 1), Ok(LAST), exhausted.clone(), exhausted]);
    });
    assert_eq!((stats.answered, stats.refused), (2, 2));
}

#[test]
fn clients_that_add_to_a_word_get_unique_increasing_numbers() {
    const CALLS: usize = 300_000;
    let world = World::new();
    let word = SequencerWord::expose(&world.domain, 100).unwrap();
    let judge = Judge::default();
    let taken = std::thread::scope(|threads| {
        let work = || {
            // The server's end is on this thread, too: the server's processor takes no part.
            let server = world.domain.thread().unwrap();
            let cq = server.completion_queue(8).unwrap();
            let mut end = server_queue_pair(&server, &cq).unwrap();
            let mut client = AtomicsClient::new(world.domain.thread().unwrap(), &world.arena(), 16).unwrap();
            end.connect(Some(&client.address())).unwrap();
            client.connect(&end.address(), word.remote(), word.next()).unwrap();
            judge.drive(&mut client, CALLS)
        };
        let clients: Vec<_> = (0..3).map(|_| threads.spawn(work)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(taken.iter().all(|taken| taken.is_sorted()));
    assert_eq!(count_unique(taken), 3 * CALLS as u64);
    assert_eq!(word.next(), 100 + 3 * CALLS as u64);
}

#[test]
fn a_word_that_is_gone_ends_all_calls() {
    let world = World::new();
    let word = SequencerWord::expose(&world.domain, 0).unwrap();
    let server = world.domain.thread().unwrap();
    let cq = server.completion_queue(8).unwrap();
    let mut end = server_queue_pair(&server, &cq).unwrap();
    let mut client = AtomicsClient::new(world.domain.thread().unwrap(), &world.arena(), 4).unwrap();
    end.connect(Some(&client.address())).unwrap();
    client.connect(&end.address(), word.remote(), word.next()).unwrap();
    client.request(0, 10).unwrap();
    eventually("numbers", || client.turn(0).unwrap());
    assert_eq!(client.answer().unwrap().result.map(|numbers| (numbers.first, numbers.last())), Ok((0, 9)));
    drop(word);
    (0..4).for_each(|tag| client.request(tag, 1).unwrap());
    eventually("the error", || client.turn(0).is_err());
    let mut failed = 0;
    eventually("all calls fail", || {
        let _ = client.turn(0);
        while let Some(answer) = client.answer() {
            assert!(matches!(answer.result, Err(CallError::Operation(_))), "{answer:?}");
            failed += 1;
        }
        failed == 4
    });
}

#[test]
fn a_word_that_went_around_hands_out_nothing_more() {
    let world = World::new();
    let word = SequencerWord::expose(&world.domain, LAST - 4).unwrap();
    let server = world.domain.thread().unwrap();
    let cq = server.completion_queue(8).unwrap();
    let mut ends = Vec::new();
    let mut clients = [0, 1].map(|_| {
        let mut end = server_queue_pair(&server, &cq).unwrap();
        let mut client = AtomicsClient::new(world.domain.thread().unwrap(), &world.arena(), 4).unwrap();
        end.connect(Some(&client.address())).unwrap();
        client.connect(&end.address(), word.remote(), word.next()).unwrap();
        ends.push(end);
        client
    });
    let mut take = |client: usize, count| {
        let client = &mut clients[client];
        client.request(0, count).unwrap();
        eventually("an answer", || client.turn(0).unwrap());
        client.answer().unwrap().result.map(|numbers| (numbers.first, numbers.last()))
    };
    let exhausted = Err(CallError::Refused(Refusal::Exhausted));
    assert_eq!((take(0, 3), word.is_exhausted()), (Ok((LAST - 4, LAST - 2)), false));
    assert_eq!(take(0, 2), Ok((LAST - 1, LAST)));
    assert_eq!((take(0, 1), word.is_exhausted()), (exhausted.clone(), true));
    // The end holds for a client that saw it, for one that had no number yet, and whatever is added later.
    assert_eq!((take(0, 1), take(1, 1), word.is_exhausted()), (exhausted.clone(), exhausted.clone(), true));
    assert_eq!((take(1, u32::MAX), take(0, 1), word.is_exhausted()), (exhausted.clone(), exhausted, true));
}

#[test]
fn callers_of_herd_get_unique_increasing_numbers_and_the_dead_lose_their_own() {
    const CALLS: usize = 100_000;
    const WINDOW: usize = 16;
    for config in [WorkerConfig::herd(), WorkerConfig::herd_opt()] {
        let world = World::new();
        let sequence = Arc::new(Sequence::new(0, EPOCH, 1));
        let layout = layout(1, 4, WINDOW);
        let (mut server, seeds) =
            sinew::herd::Server::new(&world.device, &ServerConfig { layout, seed: EPOCH.0 }).unwrap();
        let judge = Judge::default();
        let (admit, hellos) = std::sync::mpsc::channel::<(Hello, bool, std::sync::mpsc::Sender<Welcome>)>();
        let taken = std::thread::scope(|threads| {
            let _stop = StopWhenDropped(&world.stop);
            for seed in seeds {
                let (sequence, stop) = (Arc::clone(&sequence), &world.stop);
                threads.spawn(move || {
                    let mut worker = Worker::new(seed, &config, NumberService::new(sequence)).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        if worker.turn(0) == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let (world, judge) = (&world, &judge);
            let client = move |admit: &std::sync::mpsc::Sender<_>, will_die| {
                // Longer than any delay that a busy machine could cause.
                let config = ClientConfig { timeout_ns: 20_000_000_000, ..ClientConfig::new(layout) };
                let (joining, hello) = Herd::prepare(&world.device, &world.domain, &config).unwrap();
                let (sender, receiver) = std::sync::mpsc::channel();
                admit.send((hello, will_die, sender)).unwrap();
                HerdClient::new(joining.join(&receiver.recv().unwrap()).unwrap())
            };
            let living: Vec<_> = (0..2)
                .map(|_| {
                    let admit = admit.clone();
                    threads.spawn(move || judge.drive(&mut client(&admit, false), CALLS))
                })
                .collect();
            let dying = threads.spawn(move || {
                let mut taken = Vec::new();
                for _ in 0..10 {
                    let mut client = client(&admit, true);
                    taken.extend(judge.drive(&mut client, 500));
                    (0..WINDOW).for_each(|tag| client.request(tag as u64, 1).unwrap());
                    client.turn(0).unwrap();
                }
                taken
            });
            // Each dying client takes the place of the one before.
            let mut dead = None;
            for (hello, will_die, sender) in hellos {
                if will_die && let Some(id) = dead.take() {
                    server.dismiss(id);
                }
                let (id, welcome) = server.admit(&hello).unwrap();
                if will_die {
                    dead = Some(id);
                }
                sender.send(welcome).unwrap();
            }
            let mut taken: Vec<_> = living.into_iter().map(|client| client.join().unwrap()).collect();
            assert!(taken.iter().all(|taken| taken.is_sorted()));
            taken.push(dying.join().unwrap());
            taken
        });
        let unique = count_unique(taken);
        assert_eq!(unique, 2 * CALLS as u64 + 10 * 500);
        let lost = sequence.next() - unique;
        assert!(lost <= 10 * WINDOW as u64, "{lost} numbers were lost");
    }
}

fn server(address: &str, args: &[&str]) -> Server {
    Server::of(sinew(&["serve", "sequencer", address, "--child", "--block"]).args(args))
}

fn next(address: &str, args: &[&str]) -> Value {
    let output = run(sinew(&["seq", "next", "--json", "--address", address]).args(args));
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_server_process_hands_out_numbers_on_every_fabric() {
    for address in [format!("shm://{}", unique("seq")), "udp://127.0.0.1:0".to_owned()] {
        let server = server(&address, &["--first", "41"]);
        let output = run(&mut sinew(&["seq", "next", "--address", &server.address, "--count", "3"]));
        assert_eq!(text(&output.stdout), "41\n42\n43\n", "{}", text(&output.stderr));
        let numbers = next(&server.address, &[]);
        assert_eq!((&numbers["first"], &numbers["last"], &numbers["count"]), (&44.into(), &44.into(), &1.into()));
        let epoch = numbers["epoch"].as_str().unwrap();
        assert_eq!(next(&server.address, &["--epoch", epoch])["first"], 45);
        let other = run(&mut sinew(&["seq", "next", "--address", &server.address, "--epoch", "0123456789abcdef"]));
        assert_eq!(other.status.code(), Some(1));
        assert!(text(&other.stderr).contains("was restarted"), "{}", text(&other.stderr));
        let many = run(&mut sinew(&["seq", "next", "--address", &server.address, "--count", "1048577"]));
        assert_eq!(many.status.code(), Some(1));
        assert!(text(&many.stderr).contains("1 to 1048576"), "{}", text(&many.stderr));
    }
}

#[test]
fn a_killed_server_that_keeps_notes_hands_out_no_number_again() {
    let folder = Folder::new();
    let notes = folder.0.join("notes").to_string_lossy().into_owned();
    let (address, mut expected, mut epochs) = (format!("shm://{}", unique("seq")), 0, Vec::new());
    for round in 0..4 {
        let mut server = server(&address, &["--notes", &notes]);
        let numbers = next(&address, &["--count", "10"]);
        let first = numbers["first"].as_u64().unwrap();
        epochs.push(numbers["epoch"].clone());
        // A server that was shut down cleanly left no gap; one that was killed left a small one.
        let gap = if round % 2 == 1 { 1..=1 << 16 } else { 0..=0 };
        assert!(gap.contains(&(first - expected)), "{round}: {first}, {expected}");
        expected = first + 10;
        if round % 2 == 0 {
            server.process.signal(Signal::KILL);
            server.process.wait();
        }
    }
    epochs.dedup();
    assert_eq!(epochs.len(), 4);
    let _server = server(&address, &["--notes", &notes]);
    let second = run(sinew(&["serve", "sequencer", "shm://another", "--child", "--notes", &notes]).args(["--block"]));
    assert!(text(&second.stderr).contains("another sequencer"), "{}", text(&second.stderr));
}

/// Takes ranges of `count` until the server is killed after `ms` milliseconds; returns the first and the last number.
fn take_until_it_is_killed(server: &mut Server, count: u32, ms: u64) -> (u64, u64) {
    let mut rpc = common::client(&server.address);
    let session = rpc.connect(&server.address).unwrap();
    let (mut taken, mut killed, began) = (Vec::new(), false, Instant::now());
    while let Ok(reply) = rpc.call(session, NEXT, request_bytes(count)) {
        let (numbers, _) = read_answer(&reply, count).expect("no call is refused");
        taken.push((numbers.first, numbers.last()));
        if !killed && began.elapsed().as_millis() >= ms.into() {
            server.process.signal(Signal::KILL);
            killed = true;
        }
        assert!(began.elapsed() < common::PATIENCE);
    }
    server.process.wait();
    assert!(taken.windows(2).all(|pair| pair[0].1 < pair[1].0));
    (taken[0].0, taken[taken.len() - 1].1)
}

#[test]
fn a_busy_server_that_is_killed_repeats_nothing_refuses_nothing_and_leaves_a_gap_that_fits_its_rate() {
    let folder = Folder::new();
    let notes = folder.0.join("notes").to_string_lossy().into_owned();
    let (address, mut last) = (format!("shm://{}", unique("seq")), None);
    // From single numbers to ranges that use up the first lease with one call.
    for (count, ms) in [(1, 300), (100, 50), (1 << 20, 700), (1 << 20, 5), (1000, 300)] {
        let mut server = server(&address, &["--notes", &notes]);
        let (first, end) = take_until_it_is_killed(&mut server, count, ms);
        assert!(last < Some(first), "{first} after {last:?}");
        // A lease doubles when half of it is used, and ends past the numbers that the last call asked for.
        let noted = std::fs::read_to_string(&notes).unwrap();
        let noted: u64 = noted.lines().last().unwrap().parse().unwrap();
        assert!(noted > end, "{noted} was noted, {end} was handed out");
        let (gap, taken) = (noted - end, end - first + 1 + u64::from(count));
        assert!(gap <= (1 << 16) + 4 * taken, "{count}: {gap} numbers lost, {taken} taken");
        last = Some(noted - 1);
    }
    let server = server(&address, &["--notes", &notes]);
    assert_eq!(next(&address, &[])["first"].as_u64(), last.map(|last| last + 1));
    drop(server);
}

#[test]
fn what_makes_no_sequencer_is_told_at_once() {
    for wrong in [
        &["serve", "sequencer", "shm://"][..],
        &["serve", "sequencer", "--count-max", "0"],
        &["serve", "sequencer", "--first", "-1"],
        &["seq", "next", "--count", "0"],
        &["seq", "next", "--epoch", "7"],
        &["seq", "next", "--address", "pigeon://a"],
    ] {
        let output = run(&mut sinew(wrong));
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", text(&output.stderr));
    }
    let folder = Folder::new();
    let notes = folder.0.join("notes");
    std::fs::write(&notes, "7").unwrap();
    let output = run(sinew(&["serve", "sequencer", "shm://nobody", "--notes"]).arg(&notes));
    assert!(text(&output.stderr).contains("is not a note of a sequencer"), "{}", text(&output.stderr));
    let nobody = format!("shm://{}", unique("nobody"));
    let output = run(&mut sinew(&["seq", "next", "--address", &nobody]));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains(&format!("sinew serve sequencer {nobody}")), "{}", text(&output.stderr));
}

#[test]
fn processes_that_are_killed_cost_the_others_nothing() {
    const COUNT: u64 = 100_000;
    let address = format!("shm://{}", unique("seq"));
    let server = server(&address, &[]);
    let mut ranges: Vec<(u64, u64)> = std::thread::scope(|threads| {
        let killing = threads.spawn(|| {
            for _ in 0..4 {
                let args = ["seq", "bench", "--address", &address, "--seconds", "60", "--no-pin", "--range", "1"];
                let mut process = common::Process::start(&mut sinew(&args));
                std::thread::sleep(std::time::Duration::from_millis(700));
                process.signal(Signal::KILL);
                process.wait();
            }
        });
        let take = || -> Vec<(u64, u64)> {
            let one = |_| {
                let numbers = next(&address, &["--count", &COUNT.to_string()]);
                (numbers["first"].as_u64().unwrap(), numbers["last"].as_u64().unwrap())
            };
            (0..10).map(one).collect()
        };
        let takers: Vec<_> = (0..3).map(|_| threads.spawn(take)).collect();
        let mut all = Vec::new();
        for taker in takers {
            let ranges = taker.join().unwrap();
            assert!(ranges.is_sorted());
            all.extend(ranges);
        }
        killing.join().unwrap();
        all
    });
    ranges.sort_unstable();
    assert!(ranges.iter().all(|(first, last)| last - first + 1 == COUNT));
    assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ranges:?}");
    // The killed clients had their share.
    let after = next(&server.address, &[])["first"].as_u64().unwrap();
    assert!(after > 30 * COUNT, "{after}");
}

#[test]
fn every_design_is_measured_beside_its_limit() {
    for (design, has_limit, has_ranges, clients) in [
        ("rpc", true, true, "2"),
        ("spec-s0", true, false, "2"),
        ("atomics", false, true, "2"),
        ("herd", false, false, "1"),
        ("herd-opt", true, false, "1"),
    ] {
        let args = ["seq", "bench", "--design", design, "--seconds", "0.2", "--json", "--clients", clients];
        let result = &results(&mut sinew(&args))[0];
        for place in ["/figure", "/percentiles/p50_ns", "/details/calls_checked", "/details/numbers_checked"] {
            positive(result, place);
        }
        let details = &result["details"];
        assert_eq!(result["setup"]["design"], design);
        // Only datagrams may be lost.
        assert!(details["gaps"].as_u64() <= details["lost"].as_u64(), "{result}");
        assert!(design == "spec-s0" || details["lost"] == 0, "{result}");
        assert_eq!((result["ratio"].as_f64() > Some(0.0), details["ranges"].is_object()), (has_limit, has_ranges));
    }
    for wrong in [
        &["--design", "spec-s0", "--fabric", "udp"][..],
        &["--design", "rpc", "--fabric", "hub"],
        &["--design", "herd", "--window", "32"],
        &["--design", "atomics", "--fail-if-ratio-below", "1"],
        &["--batch", "65"],
        &["--address", "pigeon://a"],
    ] {
        let output = run(sinew(&["seq", "bench"]).args(wrong));
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", text(&output.stderr));
    }
}
