//! HERD's calls over shared memory, turn by turn: which are answered, executed and dropped.

#[path = "common/herd.rs"]
mod herd;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use herd::{LAYOUT, Raw, Vandal, World, poll};
use sinew::fabric::verbs::Device;
use sinew::herd::{
    Answer, Client, ClientConfig, ClientError, Hello, Layout, Request, RequestError, Response, Server, ServerConfig,
    Service, SlotDrop, Worker, WorkerConfig, build_request,
};
use sinew::shm::verbs::ShmDevice;

const KIND: u16 = 3;

fn configs() -> [WorkerConfig; 5] {
    let opt = WorkerConfig::herd_opt();
    [
        WorkerConfig::herd(),
        opt,
        WorkerConfig { inline_max: 0, doorbell_per_batch: false, ..opt },
        WorkerConfig { inline_max: 0, ..opt },
        WorkerConfig { response_queue_pairs: 2, batch: 3, per_client: 2, ..opt },
    ]
}

#[test]
fn every_request_is_answered_once_with_its_own_bytes() {
    for config in configs() {
        let mut world = World::new(&config);
        let mut clients = [world.client().0, world.client().0];
        let (mut asked, mut answered) = ([0u64; 2], [0u64; 2]);
        for round in 0..400 {
            for (which, client) in clients.iter_mut().enumerate() {
                while client.has_room(0) {
                    let len = (asked[which] as usize * 37) % (LAYOUT.request_len_max + 1);
                    let body = vec![asked[which] as u8; len];
                    client.request(0, asked[which], KIND, &body, round).unwrap();
                    asked[which] += 1;
                }
                assert_eq!(client.request(0, 0, KIND, &[], round), Err(RequestError::Full));
                client.flush();
            }
            world.turn();
            for (which, client) in clients.iter_mut().enumerate() {
                poll(client, round, |answer| {
                    // One client's requests are answered in order.
                    assert_eq!((answer.tag, answer.kind, answer.worker), (answered[which], KIND + 1, 0));
                    let len = (answered[which] as usize * 37) % (LAYOUT.request_len_max + 1);
                    assert_eq!(answer.body, vec![answered[which] as u8; len]);
                    assert_eq!(answer.asked_ns, round);
                    answered[which] += 1;
                })
                .unwrap();
                assert_eq!((answered[which], client.in_flight()), (asked[which], 0), "{config:?}");
            }
        }
        let stats = *world.worker.stats();
        assert_eq!((stats.executed, stats.repeated, stats.unsent), (asked[0] + asked[1], 0, 0));
        assert!(SlotDrop::ALL.iter().all(|reason| stats.dropped(*reason) == 0), "{stats:?}");
        assert_eq!(world.worker.service().steps, [stats.executed as usize; 2]);
    }
}

#[test]
fn a_batch_is_answered_with_one_doorbell_where_that_is_asked_for() {
    for (config, doorbells) in [
        (WorkerConfig::herd_opt(), 1),
        (WorkerConfig { doorbell_per_batch: false, ..WorkerConfig::herd_opt() }, 8),
        (WorkerConfig { per_client: 1, ..WorkerConfig::herd_opt() }, 4),
        (WorkerConfig::herd(), 8),
    ] {
        let mut world = World::new(&config);
        let mut clients = [world.client().0, world.client().0];
        world.turn();
        for client in &mut clients {
            (0..4).for_each(|tag| client.request(0, tag, KIND, &[1; 32], 0).unwrap());
            client.flush();
        }
        assert_eq!(world.turn(), 8);
        assert_eq!(world.worker.stats().doorbells, doorbells, "{config:?}");
        let batches = &world.worker.service().batches;
        assert_eq!(
            (batches.iter().sum::<usize>(), batches.len()),
            (8, if config.batch == 1 { 8 } else { 8 / batches[0] })
        );
    }
}

#[test]
fn the_pipeline_empties_itself_when_nobody_asks_any_more() {
    let mut world = World::new(&WorkerConfig::herd());
    let (mut client, _) = world.client();
    world.turn();
    client.request(0, 1, KIND, b"alone", 0).unwrap();
    client.flush();
    let answered: Vec<usize> = (0..200).map(|now_ns| world.worker.turn(now_ns)).collect();
    // The request waits for others to push it on; when none come, it moves by itself.
    assert_eq!(answered.iter().position(|count| *count > 0), Some(102 - 1), "{answered:?}");
    assert_eq!((world.worker.stats().noops, poll(&mut client, 0, |_| ()).unwrap()), (2, 1));
}

#[test]
fn a_lost_request_is_written_again() {
    let mut world = World::new(&WorkerConfig::herd_opt());
    let (mut client, id) = world.client();
    let mut vandal = world.vandal();
    world.turn();
    for tag in 0..3 {
        client.request(0, tag, KIND, &[tag as u8; 40], 0).unwrap();
    }
    client.flush();
    // The second request is lost, and holds up the third.
    vandal.write(id.index, 2, &[0; 64]);
    assert_eq!(world.turn(), 1);
    let mut tags = Vec::new();
    poll(&mut client, 999, |answer| tags.push(answer.tag)).unwrap();
    assert_eq!((&tags[..], client.stats().retried), (&[0][..], 0));
    poll(&mut client, 1250, |answer| tags.push(answer.tag)).unwrap();
    assert_eq!((client.stats().retried, world.turn()), (2, 2));
    poll(&mut client, 1300, |answer| tags.push(answer.tag)).unwrap();
    assert_eq!((tags, client.in_flight()), (vec![0, 1, 2], 0));
    let executed = &world.worker.service().executed;
    assert_eq!(executed.iter().map(|(_, _, body)| body[0]).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_request_is_retransmitted_when_its_time_out_is_due_and_not_a_nanosecond_before() {
    const ASKED_NS: u64 = 7_000;
    // The time-out doubles with each retransmission, up to 64 times the first.
    const TIMEOUTS: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 64, 64];
    let due_ns: Vec<u64> =
        (1..=TIMEOUTS.len()).map(|count| ASKED_NS + 1000 * TIMEOUTS[..count].iter().sum::<u64>()).collect();
    for (count, next_ns) in due_ns.iter().enumerate() {
        // Each count has a client of its own, since a check for expired requests puts off the next check.
        let mut world = World::new(&WorkerConfig::herd_opt());
        let (mut client, _) = world.client();
        world.turn();
        client.request(0, 1, KIND, b"late", ASKED_NS).unwrap();
        client.flush();
        for now_ns in &due_ns[..count] {
            client.poll(*now_ns, |answer| panic!("{answer:?}")).unwrap();
        }
        assert_eq!(client.stats().retried, count as u64, "retransmissions at {:?}", &due_ns[..count]);
        client.poll(next_ns - 1, |answer| panic!("{answer:?}")).unwrap();
        assert_eq!(client.stats().retried, count as u64, "a nanosecond before {next_ns}");
        // All attempts were written to the same slot.
        assert_eq!(world.turn(), 1);
        assert_eq!(poll(&mut client, next_ns - 1, |answer| assert_eq!(answer.body, b"late")).unwrap(), 1);
        assert_eq!((world.worker.stats().executed, world.worker.stats().repeated), (1, 0));
    }
}

#[test]
fn a_request_that_is_retransmitted_after_its_answer_is_executed_once() {
    let layout = Layout { window: 64, ..LAYOUT };
    for config in configs() {
        let mut world = World::with(layout, &config);
        let (mut client, _) = world.client_of(layout);
        world.turn();
        for tag in 0..64 {
            client.request(0, tag, KIND, &[tag as u8], 0).unwrap();
        }
        client.flush();
        assert_eq!(world.turn(), 64);
        let mut answered = [0; 64];
        let mut count = |answer: Answer<'_>| {
            assert_eq!(answer.body, [answer.tag as u8]);
            answered[answer.tag as usize] += 1;
        };
        // One poll takes only some of the answers. The time-outs of the other requests are due, so these are
        // retransmitted although their answers are there.
        let taken = client.poll(1000, &mut count).unwrap() as u64;
        let retried = client.stats().retried;
        assert!(retried > 0 && taken + retried == 64, "{config:?}: {taken} taken, {retried} retransmitted");
        assert_eq!(world.turn(), 0, "{config:?}");
        poll(&mut client, 1001, &mut count).unwrap();
        assert_eq!(answered, [1; 64], "{config:?}");
        assert_eq!((world.worker.stats().executed, world.worker.stats().repeated), (64, retried), "{config:?}");
        assert_eq!(world.worker.service().executed.len(), 64);
        assert_eq!((client.stats().late, client.in_flight()), (retried, 0), "{config:?}");
    }
}

#[test]
fn a_request_that_comes_again_is_answered_again_and_executed_once() {
    for config in configs() {
        let mut world = World::new(&config);
        let mut vandal = world.vandal();
        let (index, token) = (vandal.id.index, vandal.id.token);
        world.turn();
        let answer = |sequence| Raw { token: Some(token), sequence, worker: 0, kind: KIND + 1, body: b"put".to_vec() };
        vandal.write(index, 1, &build_request(token, 1, 1, KIND, b"put"));
        assert_eq!(world.turn(), 1);
        assert_eq!(vandal.answers(), [answer(1)]);
        for attempt in 2..5 {
            vandal.write(index, 1, &build_request(token, 1, attempt, KIND, b"put"));
            assert_eq!(world.turn(), 0);
            assert_eq!(vandal.answers(), [answer(1)]);
        }
        assert_eq!((world.worker.stats().executed, world.worker.stats().repeated), (1, 3));
        // A request with the same attempt number is no repetition.
        vandal.write(index, 1, &build_request(token, 1, 4, KIND, b"put"));
        world.turn();
        assert_eq!(vandal.answers(), []);
    }
}

#[test]
fn a_late_request_is_neither_executed_nor_answered() {
    let mut world = World::new(&WorkerConfig::herd_opt());
    let mut vandal = world.vandal();
    let (index, token) = (vandal.id.index, vandal.id.token);
    world.turn();
    for sequence in 1..=5 {
        vandal.write(index, sequence, &build_request(token, sequence, 1, KIND, b"new"));
        assert_eq!(world.turn(), 1);
    }
    assert_eq!(vandal.answers().len(), 5);
    // The first request used the same slot as the fifth.
    vandal.write(index, 1, &build_request(token, 1, 2, KIND, b"old"));
    assert_eq!(world.turn(), 0);
    assert_eq!(vandal.answers(), []);
    assert_eq!(world.worker.stats().dropped(SlotDrop::OutOfTurn), 1);
    // The slot still takes its next request.
    for sequence in 6..=9 {
        vandal.write(index, sequence, &build_request(token, sequence, 1, KIND, b"new"));
    }
    assert_eq!(world.turn(), 4);
    assert!(world.worker.service().executed.iter().all(|(_, _, body)| body == b"new"));
}

#[test]
fn an_answer_to_an_earlier_request_passes_for_no_newer_one() {
    let mut world = World::new(&WorkerConfig::herd_opt());
    let (mut client, id) = world.client();
    let mut vandal = world.vandal();
    world.turn();
    client.request(0, 1, KIND, b"one", 0).unwrap();
    client.flush();
    world.turn();
    poll(&mut client, 1, |answer| assert_eq!(answer.body, b"one")).unwrap();
    // The answer comes a second time, after the slot's next request was made.
    vandal.write(id.index, 1, &build_request(id.token, 1, 2, KIND, b"one"));
    world.turn();
    for tag in 2..=5 {
        client.request(0, tag, KIND, b"two", 1).unwrap();
    }
    let count = poll(&mut client, 2, |answer| panic!("{answer:?}")).unwrap();
    assert_eq!((count, client.stats().late), (0, 1));
    client.flush();
    world.turn();
    assert_eq!(poll(&mut client, 3, |answer| assert_eq!(answer.body, b"two")).unwrap(), 4);
}

#[test]
fn a_torn_slot_is_not_executed_until_it_is_whole() {
    let mut world = World::new(&WorkerConfig::herd_opt());
    let mut vandal = world.vandal();
    let (index, token) = (vandal.id.index, vandal.id.token);
    world.turn();
    let whole = build_request(token, 1, 1, KIND, &[9; 100]);
    let end = LAYOUT.slot_end(0, index as usize, 1);
    // The words arrive in descending order of addresses, which is the worst.
    for at in (0..whole.len()).step_by(8).rev() {
        assert_eq!(world.turn(), 0, "{at}");
        vandal.write_at(end - whole.len() + at, &whole[at..at + 8]);
    }
    assert_eq!(world.turn(), 1);
    assert_eq!(vandal.answers()[0].body, [9; 100]);
    assert_eq!(world.worker.stats().dropped(SlotDrop::Torn), 1);
}

#[test]
fn hostile_slots_are_dropped_by_reason_and_hurt_nobody() {
    let mut world = World::new(&WorkerConfig::herd_opt());
    let (mut client, _) = world.client();
    let mut vandal = world.vandal();
    let (index, token) = (vandal.id.index, vandal.id.token);
    world.turn();
    let mut random = 1u64;
    for round in 0..2000u64 {
        let mut bytes = build_request(token, 1, 1, KIND, &[7; 100]);
        let len = bytes.len();
        let wrong: Vec<u8> = match round % 4 {
            0 => {
                bytes[len - 10..len - 8].copy_from_slice(&(1001 + round as u16).to_le_bytes());
                bytes
            }
            1 => build_request(token ^ 1 << (round % 32), 1, 1, KIND, &[7; 100]),
            2 => build_request(token, 2 + round as u32, 1, KIND, &[7; 100]),
            _ => {
                for word in bytes.chunks_mut(8) {
                    random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                    word.copy_from_slice(&random.to_be_bytes()[..word.len()]);
                }
                // Its number is the one that is awaited; otherwise nobody would look at it.
                bytes[len - 8..len - 4].copy_from_slice(&1u32.to_le_bytes());
                bytes
            }
        };
        vandal.write(index, 1, &wrong);
        client.request(0, round, KIND, b"good", round).unwrap();
        client.flush();
        assert_eq!((0..20).map(|_| world.worker.turn(round)).sum::<usize>(), 1);
        assert_eq!(poll(&mut client, round, |answer| assert_eq!(answer.body, b"good")).unwrap(), 1);
    }
    let stats = *world.worker.stats();
    assert_eq!(stats.executed, 2000);
    assert!(stats.dropped(SlotDrop::Length) >= 500 && stats.dropped(SlotDrop::Torn) > 0, "{stats:?}");
    assert_eq!(stats.dropped(SlotDrop::Token), 500);
    assert_eq!(vandal.answers(), []);
}

/// Checks that each byte of a request is the request's length, and counts the requests of one client.
#[derive(Default)]
struct Whole {
    of_vandal: Arc<AtomicU32>,
    vandal: u32,
}

impl Service for Whole {
    type Job = usize;

    fn prefetch(&mut self, request: &Request<'_>) -> usize {
        request.body.len()
    }

    fn execute(&mut self, request: &Request<'_>, len: usize, response: &mut Response<'_>) {
        assert_eq!((request.body.len(), request.kind as usize), (len, len));
        assert!(request.body.iter().all(|byte| *byte == len as u8), "torn: {:?}", request.body);
        response.kind = KIND + 1;
        if request.client == self.vandal {
            self.of_vandal.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Stops the other thread, also when the test fails.
struct StopWhenDropped<'a>(&'a AtomicBool);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn slots_that_are_written_while_they_are_read_are_executed_whole_or_not_at_all() {
    for config in configs() {
        let device = ShmDevice::threads().unwrap();
        let domain = device.protection_domain().unwrap();
        let (server, seeds) = Server::new(&device, &ServerConfig { layout: LAYOUT, seed: 7 }).unwrap();
        let worker = Worker::new(seeds.into_iter().next().unwrap(), &config, Whole::default()).unwrap();
        let mut world = World { device, domain: domain.clone(), server, worker };
        let (mut client, _) = world.client();
        let executed = Arc::clone(&world.worker.service().of_vandal);
        let stop = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let (ask, asked) = mpsc::channel::<(Hello, mpsc::Sender<_>)>();
            let _stop = StopWhenDropped(&stop);
            let (executed, stop) = (&executed, &stop);
            threads.spawn(move || {
                let mut vandal = Vandal::of(&domain, |hello| {
                    let (sender, receiver) = mpsc::channel();
                    ask.send((hello.clone(), sender)).unwrap();
                    receiver.recv().unwrap()
                });
                let (index, token) = (vandal.id.index, vandal.id.token);
                let request =
                    |sequence, len: usize| build_request(token, sequence, 1, len as u16, &vec![len as u8; len]);
                let mut random = 1u64;
                while !stop.load(Ordering::Relaxed) {
                    // Writes several requests with the awaited number over each other: they differ in length, and some
                    // are damaged.
                    let sequence = executed.load(Ordering::Relaxed) + 1;
                    for _ in 0..8 {
                        random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                        let len = (random >> 33) as usize % (LAYOUT.request_len_max + 1);
                        let mut bytes = request(sequence, len);
                        if random >> 60 == 0 {
                            let at = bytes.len() - 16 + (random >> 50) as usize % 12;
                            bytes[at] ^= (random >> 40) as u8;
                        }
                        vandal.write(index, sequence, &bytes);
                    }
                    // On a single CPU each would wait for the end of the other's time slice.
                    std::thread::yield_now();
                }
            });
            let (hello, sender) = asked.recv().unwrap();
            let (id, welcome) = world.server.admit(&hello).unwrap();
            world.worker.service().vandal = id.index;
            sender.send((id, welcome)).unwrap();
            let (began, mut answered) = (Instant::now(), 0);
            // The good client is served all the while.
            while executed.load(Ordering::Relaxed) < 3000 || answered < 1000 {
                while client.has_room(0) {
                    client.request(0, 0, 9, &[9; 9], 0).unwrap();
                }
                client.flush();
                (0..8).for_each(|_| {
                    world.worker.turn(0);
                });
                answered += client.poll(0, |answer| assert_eq!(answer.kind, KIND + 1)).unwrap();
                std::thread::yield_now();
                let stats = world.worker.stats();
                assert!(began.elapsed() < Duration::from_secs(60), "{answered} answers, {stats:?}");
            }
        });
        let stats = *world.worker.stats();
        assert!(stats.dropped(SlotDrop::Torn) > 0, "nothing was torn: {stats:?}");
        assert_eq!(stats.dropped(SlotDrop::Gone), 0);
    }
}

#[test]
fn a_newcomer_hears_nothing_of_its_predecessor() {
    for config in configs() {
        let mut world = World::new(&config);
        let mut dead = world.vandal();
        let index = dead.id.index;
        world.turn();
        dead.write(index, 1, &build_request(dead.id.token, 1, 1, KIND, b"first"));
        world.turn();
        // Two requests are not executed yet when the client's end is noticed; one has the number with which a newcomer
        // begins.
        dead.write(index, 2, &build_request(dead.id.token, 2, 1, KIND, b"left over"));
        dead.write(index, 1, &build_request(dead.id.token, 1, 1, KIND, b"left over"));
        assert!(world.server.dismiss(dead.id) && !world.server.dismiss(dead.id));
        let (mut client, id) = world.client();
        assert!(id.index == index && id.token != dead.id.token);
        let before = world.worker.stats().executed;
        while world.worker.turn(0) > 0 {}
        assert!(world.worker.stats().executed <= before + 1, "what was taken before the news may be executed");
        world.turn();
        let before = world.worker.stats().executed;
        // The dead client goes on writing.
        dead.write(index, 1, &build_request(dead.id.token, 1, 1, KIND, b"from the grave"));
        assert_eq!(world.turn(), 0);
        assert_eq!(poll(&mut client, 0, |answer| panic!("{answer:?}")).unwrap(), 0);
        client.request(0, 1, KIND, b"mine", 0).unwrap();
        client.flush();
        assert_eq!(world.turn(), 1);
        assert_eq!(poll(&mut client, 0, |answer| assert_eq!(answer.body, b"mine")).unwrap(), 1);
        assert_eq!((world.worker.stats().executed, client.stats().unexpected), (before + 1, 0));
    }
}

#[test]
fn places_are_limited_and_come_free() {
    let mut world = World::new(&WorkerConfig::herd_opt());
    let mut ids = Vec::new();
    let _clients: Vec<_> = (0..3)
        .map(|_| {
            let (client, id) = world.client();
            ids.push(id);
            client
        })
        .collect();
    let config = sinew::herd::ClientConfig::new(LAYOUT);
    let (_joining, hello) = sinew::herd::Client::prepare(&world.device, &world.domain, &config).unwrap();
    assert!(world.server.admit(&hello).unwrap_err().to_string().contains("3 clients are here already"));
    assert!(world.server.dismiss(ids[1]));
    assert_eq!((world.server.clients(), world.server.admit(&hello).unwrap().0.index), (2, 1));
}

#[test]
fn a_worker_that_is_gone_is_given_up() {
    let mut world = World::new(&WorkerConfig::herd_opt());
    let (mut client, _) = world.client();
    client.request(0, 1, KIND, b"is there anybody", 0).unwrap();
    client.flush();
    let mut tries = 0;
    for now_ns in (0..2_000_000).step_by(250) {
        match poll(&mut client, now_ns, |_| ()) {
            Ok(_) => tries = client.stats().retried,
            Err(ClientError::Silent { worker: 0, silent_ns }) => {
                assert!(now_ns >= 1_000_000 && silent_ns >= 1_000_000);
                // Time-outs double, up to 64 times the first.
                assert!((15..40).contains(&tries), "{tries}");
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("it waits for ever");
}

#[test]
fn a_client_that_was_away_gives_nobody_up_whose_answers_wait() {
    // There are enough requests that the completion of one of them is found first.
    let layout = Layout { window: 64, ..LAYOUT };
    let mut world = World::with(layout, &WorkerConfig::herd_opt());
    let (mut client, _) = world.client_of(layout);
    world.turn();
    let (mut now_ns, mut answered) = (0, 0);
    for round in 1..=3 {
        for tag in 0..64 {
            client.request(0, tag, KIND, b"x", now_ns).unwrap();
        }
        client.flush();
        assert_eq!(world.turn(), 64);
        now_ns += 1_000_000_000;
        for _ in 0..8 {
            answered += client.poll(now_ns, |_| ()).expect("the worker has answered");
            now_ns += 1;
        }
        assert_eq!((answered, client.in_flight()), (64 * round, 0));
    }
}

#[test]
fn requests_go_on_for_many_laps_of_their_slots() {
    // There are enough requests that signaled ones are needed often.
    let mut world = World::new(&WorkerConfig::herd_opt());
    let (mut client, _) = world.client();
    world.turn();
    let mut answered = 0;
    for tag in 0..20_000 {
        client.request(0, tag, KIND, &[], 0).unwrap();
        client.flush();
        world.worker.turn(0);
        answered += poll(&mut client, 0, |answer| assert_eq!(answer.tag, tag)).unwrap();
    }
    assert_eq!(answered, 20_000);
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let mut world = World::new(&WorkerConfig::herd());
    let (mut client, _) = world.client();
    assert_eq!(client.request(1, 0, 0, &[], 0), Err(RequestError::NoWorker(1)));
    let error = client.request(0, 0, 0, &[0; 1001], 0);
    assert_eq!(error, Err(RequestError::TooLong { len: 1001, max: 1000 }));
    assert_eq!(client.in_flight(), 0);
}

#[test]
fn every_worker_serves_the_requests_that_each_client_made_to_it() {
    let layout = Layout { workers: 3, ..LAYOUT };
    for config in configs() {
        let (mut world, mut others) = World::with_workers(layout, &config);
        // The second client was made for fewer workers, with enough requests in flight over all of them.
        let made_for = Layout { workers: 1, window: 16, ..LAYOUT };
        let mut clients = [world.client_of(layout), world.client_of(made_for)];
        assert_eq!(clients.each_ref().map(|(client, id)| (*client.layout(), id.index)), [(layout, 0), (layout, 1)]);
        for round in 0..10u64 {
            for (which, (client, _)) in clients.iter_mut().enumerate() {
                for worker in 0..3 {
                    // The workers get different numbers of requests, so that their slots fall out of step.
                    for nth in 0..1 + which + worker {
                        let body = [round as u8, which as u8, worker as u8, nth as u8];
                        client.request(worker, u32::from_le_bytes(body).into(), KIND, &body, round).unwrap();
                    }
                }
                assert_eq!(client.request(3, 0, KIND, &[], round), Err(RequestError::NoWorker(3)));
                client.flush();
            }
            assert_eq!(world.turn(), 3, "{config:?}");
            for (index, worker) in (1..).zip(&mut others) {
                let count: usize = (0..1000).map(|now_ns| worker.turn(now_ns)).sum();
                assert_eq!(count, 3 + 2 * index, "{config:?}");
            }
            for (which, (client, _)) in clients.iter_mut().enumerate() {
                let count = poll(client, round, |answer| {
                    assert_eq!(answer.body, (answer.tag as u32).to_le_bytes());
                    assert_eq!([which, answer.worker].map(|index| index as u8), answer.body[1..3]);
                });
                assert_eq!((count.unwrap(), client.in_flight()), (6 + 3 * which, 0), "{config:?}");
                assert_eq!((client.stats().late, client.stats().unexpected), (0, 0));
            }
        }
        for (index, worker) in [&mut world.worker].into_iter().chain(&mut others).enumerate() {
            let stats = *worker.stats();
            assert_eq!(stats.executed, 10 * (3 + 2 * index as u64));
            assert!(SlotDrop::ALL.iter().all(|reason| stats.dropped(*reason) == 0), "{stats:?}");
            let is_ours = |(client, _, body): &(u32, u16, Vec<u8>)| body[1..3] == [*client as u8, index as u8];
            assert!(worker.service().executed.iter().all(is_ours), "worker {index}");
        }
    }
}

#[test]
fn a_client_refuses_a_server_that_is_larger_than_it_was_made_for() {
    for larger in [
        Layout { workers: 2, ..LAYOUT },
        Layout { window: 8, ..LAYOUT },
        Layout { request_len_max: 2000, ..LAYOUT },
        Layout { response_len_max: LAYOUT.response_len_max + 1, ..LAYOUT },
    ] {
        let mut world = World::with(larger, &WorkerConfig::herd_opt());
        let (joining, hello) = Client::prepare(&world.device, &world.domain, &ClientConfig::new(LAYOUT)).unwrap();
        let (id, welcome) = world.server.admit(&hello).unwrap();
        let Err(ClientError::Layout { theirs, ours }) = joining.join(&welcome) else { panic!("{larger:?}") };
        assert_eq!((theirs, ours), (larger, LAYOUT));
        assert!(world.server.dismiss(id));
        // A client that is made for what the error names is served.
        let (mut client, _) = world.client_of(theirs);
        let body = vec![1; larger.request_len_max.min(larger.response_len_max)];
        client.request(0, 1, KIND, &body, 0).unwrap();
        client.flush();
        assert_eq!(world.turn(), 1, "{larger:?}");
        assert_eq!(poll(&mut client, 1, |answer| assert_eq!(answer.body, body)).unwrap(), 1, "{larger:?}");
    }
}

#[test]
fn a_client_keeps_to_the_limits_of_a_smaller_server() {
    let smaller = Layout { workers: 1, clients: 1, window: 2, request_len_max: 100, response_len_max: 200 };
    let mut world = World::with(smaller, &WorkerConfig::herd_opt());
    let (mut client, _) = world.client_of(LAYOUT);
    assert_eq!(*client.layout(), smaller);
    let error = client.request(0, 0, KIND, &[0; 101], 0);
    assert_eq!(error, Err(RequestError::TooLong { len: 101, max: 100 }));
    for round in 0..5 {
        for tag in 0..2 {
            client.request(0, tag, KIND, &[tag as u8; 100], round).unwrap();
        }
        assert_eq!(client.request(0, 2, KIND, &[], round), Err(RequestError::Full));
        client.flush();
        assert_eq!(world.turn(), 2);
        let count = poll(&mut client, round, |answer| assert_eq!(answer.body, [answer.tag as u8; 100]));
        assert_eq!((count.unwrap(), client.in_flight()), (2, 0));
    }
}
