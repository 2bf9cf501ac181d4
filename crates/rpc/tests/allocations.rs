//! Heap use of calls and sessions on either side: a warm call allocates nothing, a session little.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::handmade::{HandClient, OFFER};
use common::*;
use sinew_fabric::fault::FaultConfig;
use sinew_fabric::loopback::LoopbackConfig;
use sinew_fabric::{PacketPort, SeededGenerator};
use sinew_mem::MessageBuffer;
use sinew_rpc::{Config, Nexus, RequestType, Rpc, SessionEvent, SessionId};
use sinew_sim::{HostId, Network, PortConfig, Topology};
use sinew_wire::management::Cookie;

/// The system's allocator, with counters.
struct Counting;

thread_local! {
    /// Allocations of this thread alone: the test harness has threads of its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Bytes allocated at present.
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

fn count(allocations: u64, bytes: i64) {
    // A thread that ends may allocate after its thread-locals are gone.
    let _ = ALLOCATIONS.try_with(|all| all.set(all.get() + allocations));
    let _ = BYTES.try_with(|all| all.set(all.get() + bytes));
}

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller keeps `alloc`'s contract, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: the caller keeps `dealloc`'s contract, and `block` came from `System`, since all allocations do.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count(1, len as i64 - layout.size() as i64);
        // SAFETY: the caller keeps `realloc`'s contract, and `block` came from `System`, since all allocations do.
        unsafe { System.realloc(block, layout, len) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const POLLED: RequestType = RequestType::new(60);

/// Handlers of either kind answer a request with a response of its length; polled requests wait to be polled.
fn nexus() -> Nexus {
    Nexus::builder()
        .handle(ECHO, |call| {
            let request = call.request();
            call.reply(request);
        })
        .handle_burst(BURST, |calls| {
            for index in 0..calls.len() {
                let len = calls.request(index).len();
                calls.reply_with(index, len, |response| response.fill(7));
            }
        })
        .handle_polled(POLLED)
        .build()
        .unwrap()
}

/// Makes `count` calls with these buffers, which come back.
#[allow(clippy::too_many_arguments)]
fn make_calls<P: PacketPort>(
    world: &World,
    client: &mut Endpoint<P>,
    server: &mut Endpoint<P>,
    session: SessionId,
    request_type: RequestType,
    buffers: &mut Vec<(MessageBuffer, MessageBuffer)>,
    count: usize,
) {
    let (mut begun, mut over) = (0, 0);
    while over < count {
        while begun < count
            && let Some((request, response)) = buffers.pop()
        {
            client.enqueue_request(session, request_type, request, response, 0).unwrap();
            begun += 1;
        }
        client.turn();
        server.turn();
        while let Some(call) = server.poll_request() {
            let len = call.request().len();
            server.reply_with(call, len, |request, response| response.copy_from_slice(request));
        }
        while let Some(completion) = client.poll_completion() {
            assert!(completion.result.is_ok() && completion.response.len() == completion.request.len());
            buffers.push((completion.request, completion.response));
            over += 1;
        }
        world.clock.advance(50_000);
    }
    // The packets received last go back to the network.
    settle(client, server);
}

/// Asserts that calls of every form allocate nothing once they are warm.
fn assert_warm_calls_allocate_nothing<P: PacketPort>(
    world: &World,
    mut client: Endpoint<P>,
    mut server: Endpoint<P>,
    over: &str,
) {
    let session = connect(world, &mut client, &mut server);
    for request_type in [ECHO, BURST, POLLED] {
        for len in [0, 32, 1_000, 1_448, 1_449, 1_472, 20_000] {
            let buffer = || client.alloc(len).unwrap();
            // More calls than slots, so that some are queued.
            let mut buffers: Vec<_> = (0..20).map(|_| (buffer(), buffer())).collect();
            // Enough calls for the periodic work of sessions and time-outs to have run too.
            let mut calls = |count| {
                make_calls(world, &mut client, &mut server, session, request_type, &mut buffers, count);
            };
            calls(5_000);
            let before = ALLOCATIONS.get();
            calls(5_000);
            let allocations = ALLOCATIONS.get() - before;
            assert_eq!(allocations, 0, "5,000 calls of {len} bytes, {over}");
        }
    }
    assert_eq!(client.stats().retransmissions, 0);
}

#[test]
fn a_warm_call_allocates_nothing() {
    for holds_shares in [false, true] {
        let port = LoopbackConfig { holds_shares, ..LoopbackConfig::default() };
        let world = World::new();
        let server = world.endpoint_with("server", &nexus(), 1, port);
        let client = world.client(Config::default(), port);
        assert_warm_calls_allocate_nothing(&world, client, server, &format!("shares held: {holds_shares}"));
    }
}

#[test]
fn a_warm_call_through_a_layer_that_transforms_packets_allocates_nothing() {
    let world = World::new();
    let port = LoopbackConfig { holds_shares: true, ..LoopbackConfig::default() };
    let [server, client] = [("server", nexus()), ("client", Nexus::client())]
        .map(|(name, nexus)| world.sealed(name, &nexus, port, FaultConfig::NONE));
    assert_warm_calls_allocate_nothing(&world, client, server, "sealed");
}

/// Bytes that `act` has allocated and not freed.
fn bytes_of(act: impl FnOnce()) -> i64 {
    let before = BYTES.get();
    act();
    BYTES.get() - before
}

#[test]
fn a_session_takes_at_most_two_kilobytes_beyond_its_buffers_at_the_client_and_one_at_the_server() {
    const SESSIONS: i64 = 1_000;
    let config = Config { overcommit: true, ..Config::default() };
    let world = World::new();
    let mut server = world.server(config.clone(), LoopbackConfig::default());
    let mut client = world.client(config, LoopbackConfig::default());
    // First whatever an endpoint and its network allocate once.
    let first = connect(&world, &mut client, &mut server);
    send(&mut client, first, ECHO, &[1; 100], 0);
    run(&world, &mut client, &mut server, 1);
    let (mut at_client, mut at_server) = (0, 0);
    for tag in 1..=SESSIONS as u64 {
        at_client += bytes_of(|| {
            let session = client.begin_connect(&server.address()).unwrap();
            // Each session is used once: the call waits for its session.
            send(&mut client, session, ECHO, &[1; 100], tag);
        });
        let mut over = false;
        while !over {
            at_server += bytes_of(|| _ = server.turn());
            at_client += bytes_of(|| {
                client.turn();
                events(&mut client);
                let completion = client.poll_completion();
                over = completion.is_some();
                assert!(completion.is_none_or(|over| over.tag == tag && over.result.is_ok()));
            });
            world.clock.advance(100_000);
        }
    }
    assert_eq!((client.sessions(), server.sessions()), (SESSIONS as usize + 1, SESSIONS as usize + 1));
    for (side, bytes, most) in [("client", at_client, 2048), ("server", at_server, 1024)] {
        assert!(bytes > 0, "the {side}'s sessions were counted");
        assert!(bytes <= SESSIONS * most, "{} bytes of heap for each session at the {side}", bytes / SESSIONS);
    }
}

#[test]
fn a_session_end_on_a_simulated_network_takes_at_most_two_and_a_half_kilobytes_with_its_buffers() {
    const SESSIONS: usize = 1_000;
    let network = Network::new(Topology::star(2, 25.0, 100, 1500), 1).unwrap();
    let nexus = Nexus::builder()
        .config(Config { overcommit: true, ..Config::default() })
        .handle(ECHO, |call| {
            let request = call.request();
            call.reply(request);
        })
        .build()
        .unwrap();
    let before = BYTES.get();
    let [mut server, mut client] = [0, 1].map(|host| {
        let port = network.open(HostId(host), &format!("port{host}"), PortConfig::default()).unwrap();
        Rpc::new(&nexus, port, network.clock(), Box::new(SeededGenerator::new(host as u64)))
    });
    let (address, mut opened, mut answered) = (server.address(), Vec::new(), 0);
    for _ in 0..SESSIONS {
        client.begin_connect(&address).unwrap();
    }
    for _ in 0..10_000 {
        client.turn();
        server.turn();
        network.run_until(network.now_ns() + 10_000);
        while let Some(event) = client.poll_event() {
            let SessionEvent::Connected(session) = event else { panic!("{event:?}") };
            opened.push(session);
        }
        // One call on each session, at most twenty of them begun per turn.
        for session in opened.drain(..opened.len().min(20)) {
            let buffer = || client.alloc(32).unwrap();
            client.enqueue_request(session, ECHO, buffer(), buffer(), 0).unwrap();
        }
        while let Some(over) = client.poll_completion() {
            answered += usize::from(over.result.is_ok());
        }
    }
    assert_eq!((answered, server.sessions(), network.in_flight()), (SESSIONS, SESSIONS, 0));
    let arenas = [&client, &server].map(|rpc| rpc.port().arena().touched()).iter().sum::<usize>();
    assert!(arenas >= SESSIONS * 1_472, "a response buffer for each session, and no more than was used");
    let bytes = (BYTES.get() - before) as usize + arenas;
    assert!(bytes <= 2 * SESSIONS * 2_500, "{} bytes for each end", bytes / SESSIONS / 2);
}

#[test]
fn strangers_take_nothing_from_the_heap() {
    let world = World::new();
    let mut server = world.server(Config::default(), LoopbackConfig::default());
    let packets: Vec<_> = (0..1_000)
        .map(|number| {
            let unknown_client = HandClient::new(&world, number);
            (unknown_client.peer, unknown_client.connect_packet(OFFER, Cookie::default()))
        })
        .collect();
    let garbage = [0xE2; 200];
    let mut flood = || {
        for (peer, connect) in &packets {
            world.network.inject("server", *peer, connect.as_bytes());
            world.network.inject("server", *peer, &garbage[..(peer.0[0] % 200) as usize]);
            server.turn();
            world.clock.advance(1_000);
        }
        server.turn();
    };
    flood();
    let before = ALLOCATIONS.get();
    (0..5).for_each(|_| flood());
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_nothing_is_left(&server);
}
