//! Tests of a server as its clients see it.

mod common;

use std::io::Write;
use std::time::{Duration, Instant};

use common::*;
use proptest::prelude::*;
use sinew_remote_block::Config;

const LEN: usize = 4 << 20;

#[test]
fn what_is_written_is_read_by_all() {
    let server = serve(LEN, Config::default());
    let mut clients = [server.client(true), server.client(false)];
    let long: Vec<u8> = (0..1_500_000u32).map(|at| (at / 7) as u8).collect();
    for round in 0..2 {
        let (at, bytes) = ([1, 70_001][round], &long[round..]);
        assert_eq!(clients[round].write(FUA, at, bytes), Reply::Done);
        for client in &mut clients {
            for flags in [0, if client.structured { DF } else { 0 }] {
                assert!(client.read(flags, at, bytes.len() as u32).unwrap() == bytes);
                assert_eq!(client.read(flags, at + 5, 9).unwrap(), bytes[5..14]);
            }
        }
    }
    let [first, second] = &mut clients;
    assert_eq!(first.request_done(ZEROES, NO_HOLE, 100_000, 700_000), Reply::Done);
    assert_eq!(second.request_done(TRIM, FUA, 900_000, 100), Reply::Done);
    assert_eq!(second.request_done(FLUSH, 0, 0, 0), Reply::Done);
    assert_eq!(second.request_done(5, 0, 0, 10), Reply::Done);
    assert!(second.read(0, 100_000, 700_000).unwrap().iter().all(|byte| *byte == 0));
    assert_eq!(second.read(0, 899_999, 102).unwrap()[1..101], [0; 100]);
    assert_eq!(second.read(0, 99_999, 1).unwrap(), [long[1..][29_998]]);
    let counters = server.end();
    assert_eq!((counters.writes, counters.flushes, counters.refused), (2, 1, 0));
}

#[test]
fn a_long_read_comes_in_one_chunk_only_where_that_is_asked() {
    let server = serve(LEN, Config::default());
    let mut client = server.client(true);
    client.write(0, 0, &[7; LEN / 2]);
    let mut chunks = |flags| {
        client.ask(READ, flags, 9, 0, 1 << 20);
        (0..).find(|_| client.reply(0).1).unwrap() + 1
    };
    assert_eq!((chunks(DF), chunks(0)), (1, 4));
    server.end();
}

#[test]
fn what_is_not_in_order_is_refused_and_its_payload_read_off() {
    let server = serve(LEN, Config::default());
    for structured in [false, true] {
        let mut client = server.client(structured);
        assert_eq!(client.write(0, LEN as u64 - 10, &[1; 11]), Reply::Error(28));
        assert_eq!(client.write(DF, 0, &[1; 100_000]), Reply::Error(22));
        assert_eq!(client.write(0, 0, &vec![1; (32 << 20) + 1]), Reply::Error(22));
        assert_eq!(client.read(0, LEN as u64, 1), Err(22));
        assert_eq!(client.read(0, 0, 0), Err(22));
        assert_eq!(client.request_done(ZEROES, NO_HOLE | 16, 0, 1), Reply::Error(95));
        assert_eq!(client.request_done(99, 0, 0, 1), Reply::Error(22));
        if structured {
            assert_eq!(client.read(DF, 0, (32 << 20) + 1), Err(75));
        } else {
            assert_eq!(client.request_done(STATUS, 0, 0, 1), Reply::Error(22));
        }
        assert_eq!(client.read(0, 0, 4).unwrap(), [0; 4], "the next request is served");
    }
    let counters = server.end();
    assert_eq!((counters.no_space, counters.unsupported, counters.too_long, counters.io_errors), (2, 2, 1, 0));
}

#[test]
fn a_malformed_request_ends_its_connection_and_no_other() {
    let server = serve(LEN, Config::default());
    let mut other = server.client(true);
    let mut client = server.client(true);
    client.socket.write_all(&[0x25; 28]).unwrap();
    assert!(client.is_closed());
    let mut socket = server.socket();
    read_array::<18>(&mut socket);
    socket.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(Client { socket, structured: false }.is_closed());
    other.write(0, 0, b"still there");
    let counters = server.end();
    assert_eq!((counters.malformed, counters.unwelcome, counters.writes), (1, 1, 1));
}

#[test]
fn a_client_that_goes_is_answered_first_and_one_that_vanishes_leaves_nothing() {
    let server = serve(LEN, Config::default());
    let mut client = server.client(false);
    client.ask(READ, 0, 5, 0, 300_000);
    client.ask(DISC, 0, 6, 0, 0);
    assert_eq!(client.reply(300_000).0, 5);
    assert!(client.is_closed());
    // One vanishes in the middle of a payload, one in the middle of a header, and one with replies that it has not
    // read.
    let mut half = server.client(true);
    half.ask(WRITE, 0, 1, 0, 1 << 20);
    half.socket.write_all(&[1; 600_000]).unwrap();
    let mut cut = server.client(true);
    cut.socket.write_all(&[0x25, 0x60]).unwrap();
    let mut deaf = server.client(false);
    (0..8).for_each(|cookie| deaf.ask(READ, 0, cookie, 0, 1 << 20));
    std::thread::sleep(Duration::from_millis(50));
    drop((half, cut, deaf));
    assert_eq!(server.client(true).read(0, 3 << 20, 4).unwrap(), [0; 4]);
    std::thread::sleep(Duration::from_millis(50));
    let counters = server.end();
    assert_eq!((counters.vanished, counters.connections), (3, 5));
}

/// Two connections hold all the memory. One that makes progress is served; one that does not is closed after a second.
#[test]
fn who_holds_memory_and_does_not_move_makes_others_wait_for_a_second_at_most() {
    let memory = 64 << 20;
    let server = serve(64 << 20, Config { memory, connection_memory: memory / 2, ..Config::default() });
    let mut holders: Vec<_> = (0..2).map(|_| server.client(false)).collect();
    for holder in &mut holders {
        holder.ask(WRITE, 0, 1, 0, 32 << 20);
        holder.socket.write_all(&[1; 100]).unwrap();
    }
    std::thread::sleep(Duration::from_millis(100));
    let began = Instant::now();
    let mut client = server.client(true);
    assert_eq!(client.write(0, 0, b"moves"), Reply::Done);
    assert!(began.elapsed() < Duration::from_secs(20));
    // Which of the two is closed depends on which the server served first.
    let is_closed = |holder: &mut Client| {
        holder.socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        holder.is_closed()
    };
    assert!(holders.iter_mut().any(is_closed));
    assert!(server.end().stalled >= 1);
}

#[test]
fn more_requests_than_may_be_under_way_wait_in_the_socket() {
    let server = serve(LEN, Config { requests_max: 2, connections_max: 1, ..Config::default() });
    let mut client = server.client(true);
    client.write(0, 0, &[3; 4096 * 100]);
    (0..100).for_each(|cookie| client.ask(READ, 0, cookie, 4096 * cookie, 4096));
    let mut seen: Vec<u64> = (0..100).map(|_| client.reply(4096).0).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    let mut second = Client { socket: server.socket(), structured: false };
    assert!(second.is_closed(), "one connection is allowed");
    assert_eq!(server.end().refused_connections, 1);
}

#[test]
fn a_server_that_is_asked_to_end_does_and_its_socket_is_gone() {
    let server = serve(LEN, Config::default());
    let path = server.path.clone();
    let mut client = server.client(false);
    client.write(0, 0, b"kept");
    let mut idle = server.socket();
    read_array::<18>(&mut idle);
    let began = Instant::now();
    server.end();
    assert!(began.elapsed() < Duration::from_secs(10) && !path.exists());
    assert!(client.is_closed());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Random requests in random order on two connections leave what an array would hold.
    #[test]
    fn a_device_is_an_array(steps in prop::collection::vec((0..5u8, 0..200_000u64, 1..150_000u32, any::<u8>(), any::<bool>()), 1..40)) {
        let server = serve(1 << 19, Config::default());
        let mut clients = [server.client(true), server.client(false)];
        let mut model = vec![0u8; 1 << 19];
        for (kind, at, len, byte, second) in steps {
            let client = &mut clients[usize::from(second)];
            let range = at as usize..at as usize + len as usize;
            match kind {
                0 => {
                    model[range].fill(byte);
                    prop_assert_eq!(client.write(0, at, &vec![byte; len as usize]), Reply::Done);
                }
                1 => {
                    model[range].fill(0);
                    prop_assert_eq!(client.request_done(ZEROES, if byte & 1 == 1 { NO_HOLE } else { 0 }, at, len), Reply::Done);
                }
                2 => {
                    model[range].fill(0);
                    prop_assert_eq!(client.request_done(TRIM, 0, at, len), Reply::Done);
                }
                _ => prop_assert!(client.read(0, at, len).unwrap() == model[range]),
            }
        }
        server.end();
    }

    /// Whatever bytes arrive, other clients are served, and no memory is lost.
    #[test]
    fn whatever_bytes_come_others_are_served(noise in prop::collection::vec(any::<u8>(), 0..400), good in 0..6usize) {
        let server = serve(1 << 19, Config::default());
        let mut client = server.client(good % 2 == 0);
        (0..good).for_each(|cookie| client.ask(READ, 0, cookie as u64, 0, 4096));
        let _ = client.socket.write_all(&noise);
        drop(client);
        prop_assert_eq!(server.client(true).write(0, 0, b"fine"), Reply::Done);
        server.end();
    }
}
