//! Processes that are killed, frozen, and come and go.

mod common;

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use common::{ECHO, PATIENCE, Process, Server, client, eventually, sinew};
use rustix::process::Signal;
use sinew::fabric::layer::{Layer, Layered, OwnedPacket, Pool};
use sinew::fabric::{Clock, PacketPort, PacketTx};
use sinew::prelude::*;
use sinew::shm::ShmPort;

/// Calls in flight when something happens to their server: more than a session has slots.
const CALLS: u64 = 12;
/// Slots of a session: this many calls are sent, and the others wait.
const SLOTS: usize = 8;

/// Enqueues calls that the server would answer only after a minute, and sends those that have slots.
fn begin_long_calls(rpc: &mut Rpc, session: SessionId) {
    for tag in 0..CALLS {
        let mut request = rpc.alloc(5).unwrap();
        request.copy_from_slice(b"60000");
        let response = rpc.alloc(64).unwrap();
        rpc.enqueue_request(session, common::SLEEP, request, response, tag).unwrap();
    }
    // The calls go out with the first turn; an echo over another session comes back after they have arrived.
    rpc.turn();
}

/// Turns the loop until all calls have finished.
fn completions(rpc: &mut Rpc) -> Vec<Completion> {
    let began = Instant::now();
    let mut completions = Vec::new();
    while completions.len() < CALLS as usize {
        assert!(began.elapsed() < PATIENCE, "{} of {CALLS} calls are over", completions.len());
        rpc.turn();
        completions.extend(std::iter::from_fn(|| rpc.poll_completion()));
        rpc.wait(Some(50_000_000)).unwrap();
    }
    completions
}

/// Checks that each call ended once, with one of `causes`, and that its error names the right peer.
fn check(completions: &[Completion], server: &Server, causes: &[Cause]) {
    let mut tags: Vec<u64> = completions.iter().map(|completion| completion.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..CALLS).collect::<Vec<_>>(), "each call completes exactly once");
    let mut may_have_run = 0;
    for completion in completions {
        let error = completion.result.as_ref().unwrap_err();
        assert!(causes.contains(&error.cause), "{error}");
        assert!(error.to_string().contains(&server.address), "{error}");
        may_have_run += usize::from(error.execution == Execution::MayHaveRun);
        assert_eq!(&completion.request[..], b"60000", "the request comes back as it was");
    }
    assert_eq!(may_have_run, SLOTS, "calls that had a slot may have run, those that waited were never sent");
}

#[test]
fn sigkill_of_a_server_ends_every_pending_call_and_names_peer_and_cause() {
    for (fabric, causes) in [
        ("shm", &[Cause::PeerDied, Cause::PeerClosed][..]),
        ("udp", &[Cause::PeerUnreachable, Cause::PeerSilent, Cause::PeerDied]),
    ] {
        let server = Server::start(fabric);
        let mut rpc = client(&server.address);
        let session = rpc.connect(&server.address).unwrap();
        let other = rpc.connect(&server.address).unwrap();
        begin_long_calls(&mut rpc, session);
        rpc.call(other, ECHO, b"here").unwrap();
        server.process.signal(Signal::KILL);
        check(&completions(&mut rpc), &server, causes);
        eventually("the client drops its sessions", || {
            rpc.turn();
            rpc.sessions() == 0
        });
        let error = rpc.call(session, ECHO, b"gone").unwrap_err();
        assert!(matches!(error, sinew::Error::Enqueue(_)), "{error}");
    }
}

#[test]
fn a_frozen_server_is_given_up_and_forgets_us_when_it_thaws() {
    for fabric in ["shm", "udp"] {
        let server = Server::start(fabric);
        let mut rpc = client(&server.address);
        let session = rpc.connect(&server.address).unwrap();
        let other = rpc.connect(&server.address).unwrap();
        begin_long_calls(&mut rpc, session);
        rpc.call(other, ECHO, b"here").unwrap();
        server.process.signal(Signal::STOP);
        check(&completions(&mut rpc), &server, &[Cause::PeerSilent]);
        // Another client comes while the server is frozen, and goes again.
        let mut passing = client(&server.address);
        passing.begin_connect(&server.address).unwrap();
        passing.turn();
        drop(passing);
        server.process.signal(Signal::CONT);
        // The same endpoint connects to the same server again.
        let mut again = None;
        eventually("the server accepts again", || {
            again = rpc.connect(&server.address).ok();
            again.is_some()
        });
        assert_eq!(&*rpc.call(again.unwrap(), ECHO, b"again").unwrap(), b"again");
        assert!(rpc.call(session, ECHO, b"old").is_err(), "the old session stays dead");
        let report = rpc.call(again.unwrap(), common::REPORT, b"").unwrap().to_string();
        assert!(!report.contains("malformed"), "whoever gave up broke no rule: {report}");
        drop(rpc);
        server.wait_until_deserted();
    }
}

/// While the flag is set, takes back everything that was sent and that its receiver has not read.
struct TakesBack(Rc<Cell<bool>>);

impl Layer for TakesBack {
    fn advance(&mut self, _: u64, tx: &mut dyn PacketTx, _: &mut VecDeque<OwnedPacket>, _: &mut Pool) -> bool {
        if self.0.get() {
            tx.flush();
        }
        false
    }
}

#[test]
fn a_call_whose_packets_a_frozen_server_finds_taken_back_is_sent_again_and_runs_once() {
    let server = Server::start("shm");
    let nexus =
        Nexus::builder().config(Config { peer_timeout_ns: 60_000_000_000, ..common::config() }).build().unwrap();
    let takes_back = Rc::new(Cell::new(false));
    let port = ShmPort::open(&"shm://".parse().unwrap()).unwrap();
    let port = Layered::wrap(port, TakesBack(Rc::clone(&takes_back))).unwrap();
    let mut rpc = sinew::endpoint(&nexus, port).unwrap();
    let session = rpc.connect(&server.address).unwrap();
    let before = report(&mut rpc, session);

    server.process.signal(Signal::STOP);
    eventually("the server is stopped", || common::is_stopped(server.process.0.id()));
    let message: Vec<u8> = (0..300_000u32).map(|at| ((at * 31) >> 3) as u8).collect();
    let (mut request, response) = (rpc.alloc(message.len()).unwrap(), rpc.alloc(message.len()).unwrap());
    request.fill(&message).unwrap();
    rpc.enqueue_request(session, ECHO, request, response, 1).unwrap();
    takes_back.set(true);
    let frozen = Instant::now();
    while frozen.elapsed() < Duration::from_millis(100) {
        rpc.turn();
        rpc.wait(Some(1_000_000)).unwrap();
    }
    takes_back.set(false);
    assert!(rpc.stats().retransmissions > 0 && rpc.poll_completion().is_none());
    server.process.signal(Signal::CONT);

    let mut completion = None;
    eventually("the call completes", || {
        rpc.turn();
        completion = rpc.poll_completion();
        completion.is_some()
    });
    let completion = completion.unwrap();
    assert!(completion.result.is_ok() && completion.response[..] == message[..]);
    let after = report(&mut rpc, session);
    let handled = |report: &serde_json::Value| report["requests_handled"].as_u64().unwrap();
    assert_eq!(handled(&after) - handled(&before), 2, "the call and the report");
    let dropped = after["port_dropped"].as_object().unwrap();
    assert!(dropped["revoked"].as_u64().unwrap() > 0, "{after}");
    assert!(!dropped.contains_key("malformed"), "{after}");
}

fn report<P: PacketPort, C: Clock>(rpc: &mut sinew::rpc::Rpc<P, C>, session: SessionId) -> serde_json::Value {
    serde_json::from_slice(&rpc.call(session, common::REPORT, b"").unwrap()).unwrap()
}

#[test]
fn sigkill_of_a_client_frees_its_sessions_at_the_server() {
    for fabric in ["shm", "udp"] {
        let server = Server::start(fabric);
        let args = ["rpc", "bench", "latency", "--seconds", "600", "--block", "--sessions", "5", "--address"];
        let mut bench = Process::start(sinew(&args).arg(&server.address));
        eventually("the client has its sessions", || server.sessions() == 6);
        bench.signal(Signal::KILL);
        bench.wait();
        server.wait_until_deserted();
    }
}

#[test]
fn clients_that_come_and_go_leave_no_sessions() {
    for fabric in ["shm", "udp"] {
        let server = Server::start(fabric);
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    for round in 0..8u8 {
                        let mut rpc = client(&server.address);
                        let session = rpc.connect(&server.address).unwrap();
                        assert_eq!(&*rpc.call(session, ECHO, [round]).unwrap(), [round]);
                        // Half of them end the session, and the others only close their endpoint.
                        if round % 2 == 0 {
                            rpc.disconnect(session);
                        }
                    }
                });
            }
        });
        server.wait_until_deserted();
    }
}

#[test]
fn a_server_that_was_killed_can_start_again_under_its_name() {
    let mut server = Server::start("shm");
    server.process.signal(Signal::KILL);
    server.process.wait();
    let error = client(&server.address).connect(&server.address).unwrap_err().to_string();
    assert!(error.contains(&server.address) && error.contains("start it first"), "{error}");
    let nexus =
        Nexus::builder().config(common::config()).handle(ECHO, |call: Call| call.reply(b"new")).build().unwrap();
    let again = nexus.server().at(&server.address).start().unwrap();
    let mut rpc = client(&server.address);
    let session = rpc.connect(&server.address).unwrap();
    assert_eq!(&*rpc.call(session, ECHO, b"").unwrap(), b"new");
    drop(rpc);
    again.stop().unwrap();
}
