//! Calls through a layer that seals each packet, over a network that damages and loses them.

mod common;

use common::*;
use sinew_conformance::sealing::{SEAL_LEN, SealLayer, Sealed};
use sinew_fabric::Dropped;
use sinew_fabric::fault::{FaultConfig, Faults, Faulty};
use sinew_fabric::loopback::LoopbackConfig;
use sinew_rpc::{Config, Nexus, PacketDrop, Recovery, SessionEvent};
use sinew_wire::HEADER_LEN;

type SealedEndpoint = Endpoint<Sealed<Faulty<TestPort>>>;

/// Length of a packet that fills an Ethernet frame.
const FRAME: usize = 1472;

fn pair(world: &World, config: &Config, port: LoopbackConfig, faults: FaultConfig) -> (SealedEndpoint, SealedEndpoint) {
    let client = Nexus::builder().config(config.clone()).build().unwrap();
    let server = server_nexus(std::sync::Arc::clone(&world.pool), config.clone());
    (world.sealed("client", &client, port, faults), world.sealed("server", &server, port, faults))
}

fn peers_kept(endpoint: &SealedEndpoint) -> usize {
    endpoint.port().with_layer(|layer: &mut SealLayer| layer.peers())
}

#[test]
fn eight_megabytes_go_both_ways_and_nothing_that_was_damaged_reaches_the_protocol() {
    let faults = Faults { drop: 0.004, duplicate: 0.004, reorder: 0.004, corrupt: 0.004, ..Faults::NONE };
    for (recovery, holds_shares) in [(Recovery::GoBackN, false), (Recovery::Selective { packet_threshold: 3 }, true)] {
        let world = World::new();
        let port = LoopbackConfig { holds_shares, lends_tails: holds_shares, ..LoopbackConfig::default() };
        let config = Config { recovery, ..Config::default() };
        let faults = FaultConfig { tx: faults, rx: Faults::NONE };
        let (mut client, mut server) = pair(&world, &config, port, faults);
        let session = connect(&world, &mut client, &mut server);
        let data = pattern(8 << 20, 9);
        send(&mut client, session, ECHO, &data, 0);
        let over = run(&world, &mut client, &mut server, 1).remove(0);
        assert_eq!(over.result, Ok(()));
        assert!(over.response[..] == data[..]);
        // Packets that were held back for others to overtake arrive too.
        for endpoint in [&client, &server] {
            endpoint.port().with_port(|port| port.handle().heal());
        }
        pass_time(&world, &mut client, &mut server, 10_000_000);

        let counts = [&client, &server].map(|endpoint| endpoint.port().with_port(|port| port.handle().counts()));
        assert!(counts.iter().all(|counts| counts.corrupted > 10 && counts.duplicated > 10), "{counts:?}");
        for (receiver, counts) in [&server, &client].into_iter().zip(counts) {
            let dropped = |reason| receiver.port_stats().dropped(reason);
            assert_eq!(dropped(Dropped::BadSeal), counts.corrupted);
            // A damaged packet is no replay, whether it came first or second.
            assert!(dropped(Dropped::Replayed) <= counts.duplicated && dropped(Dropped::Replayed) > 10);
            let damage = [
                PacketDrop::Truncated,
                PacketDrop::WrongMagic,
                PacketDrop::WrongVersion,
                PacketDrop::UnknownKind,
                PacketDrop::UnknownSession,
                PacketDrop::WrongSource,
                PacketDrop::WrongLength,
                PacketDrop::TooLong,
                PacketDrop::Malformed,
            ];
            let damaged = damage.map(|reason| receiver.stats().dropped(reason));
            assert_eq!(damaged, [0; 9], "{recovery:?}");
        }
        assert!(client.stats().retransmissions > 0);
    }
}

#[test]
fn a_packet_that_is_sent_again_is_sealed_anew() {
    let world = World::new();
    let (mut client, mut server) = pair(&world, &Config::default(), LoopbackConfig::default(), FaultConfig::NONE);
    let session = connect(&world, &mut client, &mut server);
    world.network.start_tap();
    send(&mut client, session, ECHO, b"twice", 0);
    world.losing(|| client.turn());
    world.clock.advance(client.config().retransmit_timeout_ns);
    let over = run(&world, &mut client, &mut server, 1).remove(0);
    assert_eq!(&over.response[..], b"twice");
    assert_eq!((client.stats().retransmissions, server.stats().requests_handled), (1, 1));

    let to_server = server.port().with_port(|port| port.with_port(|_| world.network.peer("server"))).unwrap();
    let sealed_len = HEADER_LEN + 5 + SEAL_LEN;
    let copies: Vec<_> = world.network.take_tapped();
    let copies: Vec<_> = copies.iter().filter(|packet| packet.to == to_server).map(|packet| &packet.bytes).collect();
    assert!(copies.len() >= 2 && copies.iter().all(|bytes| bytes.len() == sealed_len));
    let numbers = copies.iter().map(|bytes| u64::from_le_bytes(bytes[29..37].try_into().unwrap()));
    assert!(numbers.collect::<Vec<_>>().is_sorted_by(|one, next| one < next), "each has a number of its own");
    assert!(copies.windows(2).all(|pair| pair[0][..29] != pair[1][..29]), "and is masked by it");
}

#[test]
fn what_a_layer_keeps_of_a_peer_goes_with_its_last_session() {
    let world = World::new();
    let config = Config::default();
    let (mut client, mut server) = pair(&world, &config, LoopbackConfig::default(), FaultConfig::NONE);
    for _ in 0..2 {
        let session = connect(&world, &mut client, &mut server);
        assert_eq!([&client, &server].map(peers_kept), [1, 1]);
        assert!(client.disconnect(session));
        settle(&mut client, &mut server);
        assert!(matches!(event_of(&mut client), SessionEvent::Disconnected(id) if id == session));
        assert_eq!([&client, &server].map(peers_kept), [0, 0]);
    }
    // For a peer that dies silently, this happens when it is given up.
    connect(&world, &mut client, &mut server);
    world.network.kill("server");
    for _ in 0..2 * config.peer_timeout_ns / 1_000_000 {
        world.clock.advance(1_000_000);
        client.turn();
    }
    assert_eq!(peers_kept(&client), 0);
}

fn event_of(endpoint: &mut SealedEndpoint) -> SessionEvent {
    let mut events = events(endpoint);
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

#[test]
fn buffers_are_laid_out_for_what_a_layer_leaves_of_a_frame() {
    let laid_out = |packet_len_max, sealed: bool| {
        let world = World::new();
        let port = LoopbackConfig { packet_len_max, ..LoopbackConfig::default() };
        let buffer = if sealed {
            world.sealed("client", &Nexus::client(), port, FaultConfig::NONE).alloc(10_000)
        } else {
            world.endpoint_with("client", &Nexus::client(), 1, port).alloc(10_000)
        };
        buffer.unwrap().data_per_packet()
    };
    assert_eq!([FRAME, 8_000, 1_000].map(|len| laid_out(len, false)), [1448, 1448, 976]);
    assert_eq!([FRAME, 8_000, 1_000].map(|len| laid_out(len, true)), [1424, 1424, 952]);
}

#[test]
fn a_session_agrees_on_packets_that_fit_both_ports_with_their_seals() {
    let world = World::new();
    let large = LoopbackConfig { packet_len_max: 8_000, ..LoopbackConfig::default() };
    let frames = LoopbackConfig { packet_len_max: FRAME, ..large };
    for (of_client, of_server) in [(large, frames), (frames, large)] {
        let nexus = server_nexus(std::sync::Arc::clone(&world.pool), Config::default());
        let mut server = world.sealed("server", &nexus, of_server, FaultConfig::NONE);
        let mut client = world.sealed("client", &Nexus::client(), of_client, FaultConfig::NONE);
        let session = connect(&world, &mut client, &mut server);
        world.network.start_tap();
        let data = pattern(100_000, 4);
        send(&mut client, session, ECHO, &data, 0);
        let over = run(&world, &mut client, &mut server, 1).remove(0);
        assert!(over.result.is_ok() && over.response[..] == data[..]);
        let longest = world.network.take_tapped().iter().map(|packet| packet.bytes.len()).max();
        assert_eq!(longest, Some(FRAME));
        assert_eq!((client.port_stats().dropped_total(), server.port_stats().dropped_total()), (0, 0));
    }
}

#[test]
fn a_client_without_the_key_is_not_heard() {
    let world = World::new();
    let nexus = server_nexus(std::sync::Arc::clone(&world.pool), Config::default());
    let mut server = world.sealed("server", &nexus, LoopbackConfig::default(), FaultConfig::NONE);
    let mut client = world.client(Config::default(), LoopbackConfig::default());
    client.begin_connect(&server.address()).unwrap();
    pass_time(&world, &mut client, &mut server, 2 * Config::default().connect_timeout_ns);
    assert!(matches!(event(&mut client), SessionEvent::ConnectFailed { .. }));
    assert!(server.port_stats().dropped(Dropped::BadSeal) > 0);
    assert_eq!((server.port_stats().rx_packets, server.port_stats().tx_packets, peers_kept(&server)), (0, 0, 0));
}
