//! HERD's cache and its clients as processes, some of which are killed.

mod common;

use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Process, positive, results, run, sinew, text};
use rustix::process::Signal;
use serde_json::Value;
use sinew::fabric::Clock;
use sinew::fabric::verbs::Device;
use sinew::herd::{ClientConfig, Hello, Welcome};
use sinew::host::{HostClock, Rendezvous, RendezvousLimits};
use sinew::kv::herd::{CacheClient, Status, layout};
use sinew::shm::verbs::ShmDevice;

/// Requests of a client after which it is at work, beyond the thousand that fill the cache.
const EXECUTED: u64 = 5_000;

/// Starts a server with places for two clients; also returns its address.
fn serve(design: &str) -> (Process, String) {
    let args = ["serve", "herd", "--design", design, "--clients", "2", "--window", "16", "--keys", "1K", "--child"];
    let mut process = Process::start(sinew(&args).stdin(Stdio::piped()));
    let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    let mut address = None;
    for line in lines.map_while(Result::ok) {
        match line.strip_prefix("serving ") {
            Some(at) => address = Some(at.to_owned()),
            None if line == "ready" => break,
            None => {}
        }
    }
    (process, address.expect("the server said where it serves"))
}

/// Greets a server. Returns its answer: a welcome, or the reason for a refusal.
fn greet(address: &str, hello: &Hello) -> (Rendezvous, Result<Welcome, String>) {
    let mut rendezvous = Rendezvous::connect(address, common::PATIENCE, RendezvousLimits::default()).unwrap();
    rendezvous.send(&hello.to_bytes()).unwrap();
    let frame = rendezvous.receive().unwrap();
    let answer = match frame[0] {
        0 => Ok(Welcome::from_bytes(&frame[1..]).unwrap()),
        _ => Err(String::from_utf8_lossy(&frame[1..]).into_owned()),
    };
    (rendezvous, answer)
}

#[test]
fn clients_that_are_killed_leave_their_places_and_disturb_nobody() {
    for design in ["herd", "herd-opt"] {
        let (_server, address) = serve(design);
        let device = ShmDevice::open(&"shm://".parse().unwrap()).unwrap();
        let domain = device.protection_domain().unwrap();
        let config =
            ClientConfig { timeout_ns: 50_000_000, give_up_ns: 60_000_000_000, ..ClientConfig::new(layout(1, 2, 16)) };
        let (joining, hello) = sinew::herd::Client::prepare(&device, &domain, &config).unwrap();
        let (mut admission, welcome) = greet(&address, &hello);
        let mut client = CacheClient::new(joining.join(&welcome.unwrap()).unwrap());
        let clock = HostClock::new();
        let stored = Cell::new(0u64);
        // Stores a number and reads it back, again and again for a time.
        let mut work = |duration: Duration| {
            let began = Instant::now();
            let before = stored.get();
            while began.elapsed() < duration || stored.get() == before {
                let number = stored.get() + 1;
                stored.set(number);
                client.put(0, b"number", &number.to_le_bytes(), clock.now_ns()).unwrap();
                client.get(1, b"number", clock.now_ns()).unwrap();
                client.flush();
                let mut left = 2;
                while left > 0 {
                    let count = client.poll(clock.now_ns(), |outcome| match outcome.tag {
                        0 => assert_eq!(outcome.status, Some(Status::Stored)),
                        _ => assert_eq!(
                            (outcome.status, outcome.value),
                            (Some(Status::Found), &number.to_le_bytes()[..])
                        ),
                    });
                    left -= count.unwrap();
                    std::thread::yield_now();
                }
            }
        };
        work(Duration::from_millis(1));
        // Counts the requests of others that the workers have executed.
        let mut executed = || {
            admission.send(&[]).unwrap();
            let counters: Value = serde_json::from_slice(&admission.receive().unwrap()).unwrap();
            counters["executed"].as_u64().unwrap().saturating_sub(2 * stored.get())
        };
        for round in 0..4 {
            let args = ["kv", "bench", design, "--window", "16", "--keys", "1K", "--seconds", "6", "--get", "50"];
            let start = || Process::start(sinew(&args).args(["--address", &address]));
            let (mut other, before) = (start(), executed());
            let began = Instant::now();
            // The other client takes the second place, once its predecessor has left it.
            while executed() < before + EXECUTED {
                work(Duration::from_millis(5));
                if let Ok(Some(_)) = other.0.try_wait() {
                    other = start();
                }
                assert!(began.elapsed() < common::PATIENCE, "round {round}: nobody else is served");
            }
            other.signal(Signal::KILL);
            work(Duration::from_millis(50));
        }
        // All places but ours are free again.
        let began = Instant::now();
        loop {
            let (_joining, hello) = sinew::herd::Client::prepare(&device, &domain, &config).unwrap();
            match greet(&address, &hello).1 {
                Ok(_) => break,
                Err(_) => assert!(began.elapsed() < common::PATIENCE, "the place of the dead is not free"),
            }
            work(Duration::from_millis(5));
        }
        work(Duration::from_millis(10));
    }
}

#[test]
fn a_server_that_is_killed_is_noticed() {
    let (server, address) = serve("herd-opt");
    let device = ShmDevice::open(&"shm://".parse().unwrap()).unwrap();
    let domain = device.protection_domain().unwrap();
    let config = ClientConfig { timeout_ns: 5_000_000, give_up_ns: 300_000_000, ..ClientConfig::new(layout(1, 2, 16)) };
    let (joining, hello) = sinew::herd::Client::prepare(&device, &domain, &config).unwrap();
    let (_admission, welcome) = greet(&address, &hello);
    let mut client = CacheClient::new(joining.join(&welcome.unwrap()).unwrap());
    server.signal(Signal::KILL);
    let clock = HostClock::new();
    client.get(0, b"is anybody there", clock.now_ns()).unwrap();
    client.flush();
    let began = Instant::now();
    let error = loop {
        if let Err(error) = client.poll(clock.now_ns(), |_| ()) {
            break error.to_string();
        }
        assert!(began.elapsed() < common::PATIENCE, "it waits for ever");
        std::thread::yield_now();
    };
    assert!(error.contains("worker 0 of the server has answered nothing") || error.contains("broke"), "{error}");
}

#[test]
fn nonsense_in_place_of_a_greeting_is_refused() {
    let (_server, address) = serve("herd");
    for malformed in [&b""[..], b"GET / HTTP/1.1", &[1; 500]] {
        let mut rendezvous = Rendezvous::connect(&address, common::PATIENCE, RendezvousLimits::default()).unwrap();
        rendezvous.send(malformed).unwrap();
        let frame = rendezvous.receive().unwrap();
        assert_eq!(frame[0], 1);
        assert!(String::from_utf8_lossy(&frame[1..]).contains("not a greeting of this release"));
    }
}

#[test]
fn herd_is_measured_beside_the_same_messages_without_a_cache() {
    for (design, more) in [
        ("herd", &[][..]),
        ("herd-opt", &["--batch", "8", "--clients", "2", "--dist", "zipf", "--value-size", "700", "--inline", "64"]),
        (
            "herd-opt",
            &[
                "--workers",
                "2",
                "--threads",
                "2",
                "--window",
                "4",
                "--response-qps",
                "2",
                "--doorbell-each",
                "--no-pin",
            ],
        ),
    ] {
        let args = ["kv", "bench", design, "--keys", "10K", "--seconds", "0.3", "--get", "50", "--json"];
        let result = &results(sinew(&args).args(more))[0];
        for place in ["/figure", "/limit", "/ratio", "/details/requests", "/percentiles/mean_ns", "/percentiles/p99_ns"]
        {
            positive(result, place);
        }
        assert_eq!((&result["setup"]["design"], &result["setup"]["fabric"]), (&design.into(), &"shm".into()));
        assert!(positive(result, "/details/hit_percent") > 90.0, "{result}");
        positive(result, "/details/server/executed");
        assert_eq!(result["details"]["server"]["dropped"]["token"], 0, "{result}");
    }
}

#[test]
fn a_herd_that_cannot_be_is_told_before_anything_is_started() {
    for wrong in [
        ["--window", "3"],
        ["--value-size", "1001"],
        ["--workers", "0"],
        ["--clients", "0"],
        ["--pin", "0"],
        ["--address", "nowhere"],
        ["--response-qps", "65"],
        ["--device", "rxe0"],
    ] {
        let output = run(sinew(&["kv", "bench", "herd"]).args(wrong));
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}
