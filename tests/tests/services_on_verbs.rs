//! HERD's cache and the sequencers on verbs, as processes: clients that are killed, visitors that are not clients, and
//! RDMA devices.

mod common;
#[path = "common/crowd.rs"]
mod crowd;
#[path = "common/device.rs"]
mod device;
#[path = "common/judge.rs"]
mod judge;

use std::io::Read;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Process, Server, run, sinew, text};
use crowd::Crowd;
use device::rdma_device;
use judge::{Judge, count_unique};
use rustix::process::Signal;
use serde_json::{Value, json};
use sinew::fabric::Clock;
use sinew::fabric::verbs::{Device, ProtectionDomain, QpAddress, RemoteMemory};
use sinew::herd::{Client as Herd, ClientConfig, Welcome};
use sinew::host::{HostClock, Rendezvous, RendezvousLimits};
use sinew::kv::herd::{CacheClient, Status};
use sinew::sequencer::Client;
use sinew::sequencer::atomics::AtomicsClient;
use sinew::sequencer::herd::{HerdClient, layout};
use sinew::sequencer::spec::{SpecClient, SpecConfig};
use sinew::shm::verbs::ShmDevice;

const DESIGNS: [&str; 4] = ["spec-s0", "atomics", "herd", "herd-opt"];

fn sequencer(design: &str, args: &[&str]) -> Server {
    Server::of(sinew(&["serve", "sequencer", "127.0.0.1:0", "--design", design, "--child", "--block"]).args(args))
}

fn herd(args: &[&str]) -> Server {
    Server::of(sinew(&["serve", "herd", "--child"]).args(args))
}

/// Runs a bench, which checks every number, and returns its result.
fn bench(design: &str, args: &[&str]) -> Value {
    let output = run(sinew(&["seq", "bench", "--json", "--no-pin", "--range", "1", "--design", design]).args(args));
    assert!(output.status.success(), "{design}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(value: &Value) -> Vec<u8> {
    let digits = value.as_str().unwrap();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// Joins a server process; returns the client, and the connection that it must keep open.
fn join(device: &ShmDevice, design: &str, address: &str) -> (Box<dyn Client>, Rendezvous) {
    let domain = device.protection_domain().unwrap();
    let mut rendezvous = Rendezvous::connect(address, common::PATIENCE, RendezvousLimits::default()).unwrap();
    let mut ask = |key: &str, value: &[u8]| -> Value {
        let fields = json!({ "design": design, "fabric": "shm", key: hex(value) });
        rendezvous.send(fields.to_string().as_bytes()).unwrap();
        serde_json::from_slice(&rendezvous.receive().unwrap()).unwrap()
    };
    let address_of = |value: &Value| QpAddress::from_bytes(&bytes_of(value)).unwrap();
    let thread = || domain.thread().unwrap();
    let arena = || domain.arena(4 << 20).unwrap();
    // So long that nothing is given up, however busy the machine is.
    const LONG_NS: u64 = 60_000_000_000;
    let client: Box<dyn Client> = match design {
        "spec-s0" => {
            let answer = ask("-", &[]);
            let config = SpecConfig { window: 32, lost_after_ns: LONG_NS };
            let next = answer["next"].as_u64().unwrap();
            Box::new(SpecClient::new(thread(), arena(), &address_of(&answer["qp"]), next, config).unwrap())
        }
        "atomics" => {
            let mut client = AtomicsClient::new(thread(), &arena(), 32).unwrap();
            let answer = ask("qp", &client.address().to_bytes());
            let word = RemoteMemory::from_bytes(&bytes_of(&answer["word"]).try_into().unwrap());
            client.connect(&address_of(&answer["qp"]), word, answer["next"].as_u64().unwrap()).unwrap();
            Box::new(client)
        }
        _ => {
            let config = ClientConfig { give_up_ns: LONG_NS, ..ClientConfig::new(layout(1, 256, 64)) };
            let (joining, hello) = Herd::prepare(device, &domain, &config).unwrap();
            let answer = ask("hello", &hello.to_bytes());
            let welcome = Welcome::from_bytes(&bytes_of(&answer["welcome"])).unwrap();
            Box::new(HerdClient::new(joining.join(&welcome).unwrap()))
        }
    };
    (client, rendezvous)
}

#[test]
fn killed_clients_of_any_sequencer_cost_the_others_nothing() {
    const CALLS: usize = 20_000;
    for design in DESIGNS {
        let server = sequencer(design, &["--first", "1000"]);
        let address = server.address.as_str();
        let (judge, is_over) = (Judge::default(), AtomicBool::new(false));
        let (judge, is_over) = (&judge, &is_over);
        let taken: Vec<Vec<u64>> = std::thread::scope(|threads| {
            let killing = threads.spawn(move || {
                // Each client is killed in the middle of its requests, and another one starts.
                for _ in 0..4 {
                    let args =
                        ["seq", "bench", "--design", design, "--address", address, "--seconds", "60", "--no-pin"];
                    let mut process = Process::start(&mut sinew(&args));
                    std::thread::sleep(Duration::from_millis(500));
                    process.signal(Signal::KILL);
                    process.wait();
                }
                is_over.store(true, Ordering::Relaxed);
            });
            let take = move || {
                let device = ShmDevice::open(&"shm://".parse().unwrap()).unwrap();
                let (mut client, _hold) = join(&device, design, address);
                let mut taken = Vec::new();
                while !is_over.load(Ordering::Relaxed) || taken.len() < 5 * CALLS {
                    taken.extend(judge.drive(&mut *client, CALLS));
                }
                assert!(taken.is_sorted());
                taken
            };
            let takers = [(); 2].map(|()| threads.spawn(take));
            killing.join().unwrap();
            takers.into_iter().map(|taker| taker.join().unwrap()).collect()
        });
        let greatest = taken.iter().flatten().max().copied().unwrap();
        let unique = count_unique(taken);
        assert!(unique >= 10 * CALLS as u64);
        // The killed clients had their share.
        assert!(greatest - 1000 > unique + 1000, "{design}: {greatest}, {unique}");
        // The server goes on above all of these numbers.
        let device = ShmDevice::open(&"shm://".parse().unwrap()).unwrap();
        let (mut client, _hold) = join(&device, design, address);
        assert!(judge.drive(&mut *client, 100).iter().all(|number| *number > greatest), "{design}");
    }
}

#[test]
fn a_sequencer_of_several_threads_has_one_sequence() {
    for design in ["spec-s0", "herd", "herd-opt"] {
        let server = sequencer(design, &["--threads", "2"]);
        let result = bench(design, &["--address", &server.address, "--seconds", "0.2", "--clients", "2"]);
        assert!(result["details"]["calls_checked"].as_u64() > Some(1000), "{result}");
        assert_eq!(result["setup"]["window"], 64);
        assert!(result["details"]["gaps"].as_u64() <= result["details"]["lost"].as_u64(), "{result}");
    }
}

/// Whether the server closes this connection within `patience`.
fn is_shown_out(mut visitor: &TcpStream, patience: Duration) -> bool {
    visitor.set_read_timeout(Some(patience)).unwrap();
    let mut heard = Vec::new();
    visitor.read_to_end(&mut heard).is_ok()
}

#[test]
fn who_comes_and_says_nothing_keeps_nobody_from_a_server() {
    let (seq, cache) = (sequencer("herd", &[]), herd(&["--clients", "1"]));
    let visit = |address: &str| -> Vec<TcpStream> { (0..100).map(|_| TcpStream::connect(address).unwrap()).collect() };
    let (at_seq, at_cache) = (visit(&seq.address), visit(&cache.address));
    let began = Instant::now();
    let device = ShmDevice::open(&"shm://".parse().unwrap()).unwrap();
    let (mut client, _hold) = join(&device, "herd", &seq.address);
    assert_eq!(Judge::default().drive(&mut *client, 100).len(), 100);
    // One after the other, the visitors would have kept the server for two seconds each.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    // There is room for a few visitors, and silent ones have to leave it.
    assert!(at_seq.iter().all(|visitor| is_shown_out(visitor, common::PATIENCE)));
    assert!(at_cache.iter().all(|visitor| is_shown_out(visitor, common::PATIENCE)));
    let args = ["--seconds", "0.1", "--keys", "1K", "--clients", "1", "--no-pin", "--address", &cache.address];
    let output = run(sinew(&["kv", "bench", "herd-opt"]).args(args));
    assert!(output.status.success(), "{}", text(&output.stderr));
    // Nor do silent visitors keep a server from ending.
    let _silent = [visit(&seq.address), visit(&cache.address)];
    for mut server in [seq, cache] {
        let began = Instant::now();
        server.process.signal(Signal::INT);
        assert!(server.process.wait().success());
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    }
}

/// There are more connections than a server lets wait at a time; each sends a byte of a frame now and then, or nothing.
#[test]
fn a_crowd_that_speaks_slowly_keeps_nobody_from_a_server() {
    let (seq, cache) = (sequencer("herd", &[]), herd(&["--clients", "1"]));
    let crowds = [Crowd::at(&seq.address, 200), Crowd::at(&cache.address, 200)];
    let device = ShmDevice::open(&"shm://".parse().unwrap()).unwrap();
    for _ in 0..3 {
        let began = Instant::now();
        let (mut client, _hold) = join(&device, "herd", &seq.address);
        assert_eq!(Judge::default().drive(&mut *client, 100).len(), 100);
        // If each were heard to its end, joining would take a hundred times half a second.
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
    let args = ["--seconds", "0.1", "--keys", "1K", "--clients", "1", "--no-pin", "--address", &cache.address];
    let output = run(sinew(&["kv", "bench", "herd-opt"]).args(args));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(crowds.into_iter().all(|crowd| crowd.wait_until_shown_out(common::PATIENCE)));
}

#[test]
fn who_comes_for_something_else_is_told_what_there_is() {
    let (seq, cache) = (sequencer("herd", &[]), herd(&["--window", "32"]));
    let at_seq = ["--address", &seq.address, "--seconds", "0.1"];
    let at_cache = ["--address", &cache.address, "--seconds", "0.1"];
    for (command, args, expected) in [
        ("seq", [&["--design", "spec-s0"][..], &at_seq].concat(), "this sequencer's design is herd"),
        ("seq", [&["--design", "herd"][..], &at_cache].concat(), "is not a sequencer on verbs"),
        ("kv", [&["herd", "--keys", "1K"][..], &at_seq].concat(), "is not the JSON of a sequencer's client"),
        ("kv", [&["herd", "--keys", "1K"][..], &at_cache].concat(), "1 worker with a window of 32"),
    ] {
        let output = run(sinew(&[command, "bench"]).args(&args).arg("--no-pin"));
        assert_eq!(output.status.code(), Some(1), "{command} {args:?}");
        assert!(text(&output.stderr).contains(expected), "{command} {args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_server_that_is_still_filling_its_cache_can_be_interrupted() {
    let mut process = Process::start(&mut sinew(&["serve", "herd", "--keys", "40M", "--memory", "1M"]));
    std::thread::sleep(Duration::from_millis(500));
    process.signal(Signal::INT);
    assert_eq!(process.wait().code(), Some(130));
}

#[test]
fn a_device_carries_the_calls_of_every_sequencer() {
    if rdma_device().is_none() {
        return;
    }
    for design in DESIGNS {
        let server = sequencer(design, &["--fabric", "ibverbs"]);
        let args = ["--fabric", "ibverbs", "--address", &server.address, "--seconds", "0.2", "--clients", "2"];
        let result = bench(design, &args);
        assert!(result["details"]["calls_checked"].as_u64() > Some(100), "{result}");
        assert!(result["details"]["gaps"].as_u64() <= result["details"]["lost"].as_u64(), "{result}");
    }
}

#[test]
fn a_device_carries_gets_puts_and_deletes_of_a_herd() {
    const WINDOW: usize = 8;
    let Some(device) = rdma_device() else { return };
    for design in ["herd", "herd-opt"] {
        let server = herd(&["--fabric", "ibverbs", "--design", design, "--window", "8", "--clients", "2"]);
        let domain = device.protection_domain().unwrap();
        let layout = sinew::kv::herd::layout(1, 2, WINDOW);
        let config = ClientConfig { timeout_ns: 100_000_000, give_up_ns: 50_000_000_000, ..ClientConfig::new(layout) };
        let clock = HostClock::new();
        let mut clients = [0u8, 1].map(|_| {
            let (joining, hello) = Herd::prepare(&device, &domain, &config).unwrap();
            let mut hold = Rendezvous::connect(&server.address, common::PATIENCE, RendezvousLimits::default()).unwrap();
            hold.send(&hello.to_bytes()).unwrap();
            let welcome = Welcome::from_bytes(&hold.receive().unwrap()[1..]).unwrap();
            (CacheClient::new(joining.join(&welcome).unwrap()), hold)
        });
        // Some values go inline, and others are longer.
        let value_of = |key: u8| vec![key; 4 * usize::from(key)];
        for (step, expected) in
            [(0, Status::Absent), (1, Status::Stored), (0, Status::Found), (2, Status::Deleted), (0, Status::Absent)]
        {
            for (which, (client, _)) in clients.iter_mut().enumerate() {
                let (mut asked, mut answered) = (0u8, 0);
                let began = Instant::now();
                while answered < 100 {
                    while asked < 100 && client.has_room(&[0]) {
                        // Each client has keys of its own.
                        let key = [which as u8, asked];
                        let now_ns = clock.now_ns();
                        match step {
                            0 => client.get(asked.into(), &key, now_ns),
                            1 => client.put(asked.into(), &key, &value_of(asked), now_ns),
                            _ => client.delete(asked.into(), &key, now_ns),
                        }
                        .unwrap();
                        asked += 1;
                    }
                    client.flush();
                    let take = |outcome: sinew::kv::herd::Outcome<'_>| {
                        // A DELETE that is retried is executed once.
                        assert_eq!(outcome.status, Some(expected), "{design}: step {step}, {}", outcome.tag);
                        if expected == Status::Found {
                            assert_eq!(outcome.value, value_of(outcome.tag as u8));
                        }
                    };
                    answered += client.poll(clock.now_ns(), take).unwrap();
                    assert!(began.elapsed() < common::PATIENCE, "{design}: {answered} answers at step {step}");
                    std::thread::yield_now();
                }
            }
        }
        let strange: u64 = clients.iter().map(|(client, _)| client.calls().stats().unexpected).sum();
        assert_eq!(strange, 0);
    }
}
