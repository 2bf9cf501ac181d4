//! The door's sockets, with real clients on this machine.

#[path = "memcached/ours.rs"]
mod ours;
#[path = "memcached/server.rs"]
mod server;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ours::{Ours, Table};
use proptest::prelude::*;
use server::{Beside, NOW_NS, Server};
use sinew_fabric::Readiness;
use sinew_fabric::readiness::wait_on;
use sinew_kv::Partitions;
use sinew_kv::memcached::{Door, DoorConfig, Listener};
use sinew_store::cache::{Cache, CacheConfig};

/// Sends a whole conversation, and returns the answers.
fn converse(mut stream: TcpStream, script: &[u8]) -> Vec<u8> {
    let mut writer = stream.try_clone().unwrap();
    std::thread::scope(|threads| {
        threads.spawn(move || {
            writer.write_all(script).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    })
}

/// Commands whose answers do not depend on which table an item is in.
fn script() -> impl Strategy<Value = Vec<u8>> {
    let key = || (0..40u32).prop_map(|key| format!("key-{key}"));
    let command = prop_oneof![
        4 => (key(), 0..300usize).prop_map(|(key, len)| format!("set {key} {len} 0 {len}\r\n{}\r\n", "v".repeat(len))),
        3 => prop::collection::vec(key(), 1..30).prop_map(|keys| format!("get {}\r\n", keys.join(" "))),
        1 => key().prop_map(|key| format!("mg {key} v k Oopaque\r\n")),
        1 => key().prop_map(|key| format!("set {key} 0 0 1\r\n7\r\nincr {key} 5\r\ndecr {key} 1\r\n")),
        1 => key().prop_map(|key| format!("append {key} 0 0 3\r\nabc\r\ndelete {key} noreply\r\n")),
        1 => key().prop_map(|key| format!("set {key} 0 0 5\r\ntoo long\r\ntouch {key} 100\r\ngat 1000 {key} key-1\r\n")),
        1 => key().prop_map(|key| format!("set {key} 0 0 1100000\r\n{}\r\nget {key}\r\n", "x".repeat(1_100_000))),
        1 => Just("flush_all\r\n".to_owned()),
    ];
    prop::collection::vec(command, 1..60).prop_map(|commands| commands.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn threads_answer_a_connection_as_one_does_alone(
        script in script(),
        threads in 1..4usize,
        beside in prop_oneof![Just(Beside::Nothing), Just(Beside::AnAlarm)],
    ) {
        let server = Server::start_beside(beside, "127.0.0.1:0", threads, DoorConfig::default());
        let said = converse(server.connect(), &script);
        let expected = Ours::default().hear(&mut Table::new(), &script);
        prop_assert!(said == expected, "{} threads: {} bytes, not {}", threads, said.len(), expected.len());
        let doors = server.stop();
        let handed_over: u64 = doors[0].counters().iter().map(|counters| counters.handed_over.get()).sum();
        prop_assert!(threads > 1 || handed_over == 0);
    }
}

/// Each thread sleeps until it is woken: by a client, by a request or an answer of another thread, or by a new
/// connection.
#[test]
fn doors_beside_other_things_sleep_through_nothing() {
    for threads in [1, 3] {
        let server = Server::start_beside(Beside::AnAlarm, "127.0.0.1:0", threads, DoorConfig::default());
        let mut clients: Vec<_> = (0..threads + 1).map(|_| BufReader::new(server.connect())).collect();
        for round in 0..40 {
            let clients_count = clients.len();
            let client = &mut clients[round % clients_count];
            if round % 8 == 0 {
                // By now every thread sleeps.
                std::thread::sleep(Duration::from_millis(5));
            }
            for key in 0..6 {
                let commands = format!("set key-{key} 0 0 1\r\n{key}\r\nget key-{key}\r\n");
                client.get_mut().write_all(commands.as_bytes()).unwrap();
                let expected = format!("STORED\r\nVALUE key-{key} 0 1\r\n{key}\r\nEND\r\n");
                let mut answer = vec![0; expected.len()];
                client.read_exact(&mut answer).unwrap();
                assert_eq!(std::str::from_utf8(&answer), Ok(&expected[..]), "{threads} threads, round {round}");
            }
        }
        server.stop();
    }
}

/// After a sleep, a thread asks its sockets at once; while they are idle, it asks them only now and then.
#[test]
fn a_door_beside_other_things_looks_at_its_sockets_after_a_sleep() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.address()).unwrap();
    let mut door = Door::open(listener, &Partitions::new(1), 0, DoorConfig::default()).unwrap().pop().unwrap();
    let mut cache = Cache::new(&CacheConfig { items: 100, memory_bytes: 4 << 20, ..CacheConfig::default() }).unwrap();
    while door.counters()[0].curr_connections.get() == 0 {
        door.turn_shared(&mut cache, NOW_NS);
    }
    let mut turns_until = |what: &str, sleeps: bool| {
        while door.turn_shared(&mut cache, NOW_NS) {}
        client.write_all(b"get x\r\n").unwrap();
        let descriptor = door.descriptor().unwrap();
        assert!(descriptor.wait(Some(20_000_000_000)).unwrap(), "{what}: the socket is readable");
        if sleeps {
            assert!(wait_on(&mut [&mut door], 0, None).unwrap());
        }
        let turns = (1..=33).find(|_| door.turn_shared(&mut cache, NOW_NS)).expect(what);
        client.read_exact(&mut [0; 5]).unwrap();
        turns
    };
    assert_eq!(turns_until("after a sleep", true), 1);
    assert!(turns_until("without one", false) > 1);
}

/// A door reads the socket of a client that alone is busy without asking the poll, but asks it now and then.
#[test]
fn a_lone_client_keeps_no_other_waiting() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let connect = || TcpStream::connect(listener.address()).unwrap();
    let (mut lone, mut other) = (connect(), connect());
    let mut door = Door::open(listener, &Partitions::new(1), 0, DoorConfig::default()).unwrap().pop().unwrap();
    let mut cache = Cache::new(&CacheConfig { items: 100, memory_bytes: 4 << 20, ..CacheConfig::default() }).unwrap();
    while door.counters()[0].curr_connections.get() < 2 {
        door.turn(&mut cache, NOW_NS);
    }
    [&lone, &other].iter().for_each(|client| client.set_nonblocking(true).unwrap());
    let mut ask = |door: &mut Door| {
        lone.write_all(b"get x\r\n").unwrap();
        let mut len = 0;
        while len < b"END\r\n".len() {
            door.turn(&mut cache, NOW_NS);
            len += lone.read(&mut [0; 5]).unwrap_or(0);
        }
    };
    (0..20).for_each(|_| ask(&mut door));
    other.write_all(b"get y\r\n").unwrap();
    let is_answered = (0..1000).any(|_| {
        ask(&mut door);
        other.read(&mut [0; 5]).is_ok()
    });
    assert!(is_answered);
}

#[test]
fn clients_of_several_threads_see_each_others_items() {
    let server = Server::tcp(3);
    let mut clients: Vec<_> = (0..6).map(|_| BufReader::new(server.connect())).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let mut line = String::new();
        write!(client.get_mut(), "set key-{number} 0 0 1\r\n{number}\r\n").unwrap();
        client.read_line(&mut line).unwrap();
        assert_eq!(line, "STORED\r\n");
    }
    let list: String = (0..6).map(|number| format!(" key-{number}")).collect();
    let expected: String = (0..6).map(|number| format!("VALUE key-{number} 0 1\r\n{number}\r\n")).collect();
    for client in &mut clients {
        write!(client.get_mut(), "get{list}\r\n").unwrap();
        let mut answer = vec![0; expected.len() + 5];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(String::from_utf8(answer).unwrap(), format!("{expected}END\r\n"));
    }
    drop(clients);
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline
        && converse(server.connect(), b"stats\r\n").windows(20).all(|w| w != b"curr_connections 1\r\n")
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    let doors = server.stop();
    let total: u64 = doors[0].counters().iter().map(|counters| counters.total_connections.get()).sum();
    assert!(total >= 7);
    assert!(doors[0].counters().iter().all(|counters| counters.total_connections.get() >= 2), "they share connections");
}

#[test]
fn a_unix_socket_is_served_and_removed_and_that_of_a_dead_server_replaced() {
    let path = std::env::temp_dir().join(format!("sinew-door-{}.socket", std::process::id()));
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let address = format!("unix:{}", path.display());
    let server = Server::start(&address, 1, DoorConfig::default());
    assert_eq!(server.address, address);
    assert!(Listener::bind(&address).is_err(), "somebody listens there");
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"version\r\nquit\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "VERSION 1.6.18\r\n");
    drop(server.stop());
    assert!(!path.exists());
}

#[test]
fn a_client_that_never_reads_is_not_read_from() {
    let config = DoorConfig::default();
    let server = Server::start("127.0.0.1:0", 1, config);
    let value = vec![b'v'; 1_000_000];
    let mut setup = server.connect();
    setup.write_all(b"set big 0 0 1000000\r\n").unwrap();
    setup.write_all(&value).unwrap();
    setup.write_all(b"\r\n").unwrap();
    setup.read_exact(&mut [0; 8]).unwrap();
    let mut deaf = server.connect();
    deaf.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let requests = b"get big big big\r\n".repeat(1000);
    let mut sent = 0;
    while let Ok(len) = deaf.write(&requests) {
        sent += len;
        assert!(sent < 64 << 20, "somebody takes all of it");
    }
    // Other clients do not notice.
    assert!(converse(server.connect(), b"get big\r\n").len() > value.len());
    let written = server.stop()[0].counters()[0].bytes_written.get();
    // No more than the sockets' buffers hold.
    assert!(written < 64 << 20, "{written}");
}

#[test]
fn values_for_which_there_is_no_room_wait_until_there_is() {
    let config = DoorConfig { connection_memory: 1, ..DoorConfig::default() };
    for threads in [1, 2] {
        let server = Server::start("127.0.0.1:0", threads, config.clone());
        // Two of the values take all the memory for unproven clients.
        let mut slow: Vec<_> = (0..8).map(|_| server.connect()).collect();
        for (number, stream) in slow.iter_mut().enumerate() {
            write!(stream, "set k{number} 0 0 1000000\r\n").unwrap();
            stream.write_all(&[b'v'; 900_000]).unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
        std::thread::scope(|scope| {
            for stream in slow {
                scope.spawn(|| {
                    let rest = [&[b'v'; 100_000][..], b"\r\nversion\r\n"].concat();
                    assert_eq!(show(&converse(stream, &rest)), "STORED\r\nVERSION 1.6.18\r\n");
                });
            }
        });
        let doors = server.stop();
        assert!(doors[0].counters().iter().any(|counters| counters.memory_waits.get() > 0));
    }
}

fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn connections_beyond_the_limit_are_told_and_closed() {
    let server = Server::start("127.0.0.1:0", 1, DoorConfig { connections_max: 2, ..DoorConfig::default() });
    let mut held: Vec<_> = (0..2).map(|_| server.connect()).collect();
    for stream in &mut held {
        stream.write_all(b"mn\r\n").unwrap();
        stream.read_exact(&mut [0; 4]).unwrap();
    }
    let mut answer = String::new();
    server.connect().read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "ERROR Too many open connections\r\n");
    held.pop();
    // A rejected client may be disconnected before it has sent anything.
    let is_served = || -> std::io::Result<bool> {
        let (mut stream, mut answer) = (server.connect(), Vec::new());
        stream.write_all(b"mn\r\n")?;
        stream.shutdown(Shutdown::Write)?;
        stream.read_to_end(&mut answer)?;
        Ok(answer == b"MN\r\n")
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_served().unwrap_or(false) {
        assert!(Instant::now() < deadline, "there is a place again");
    }
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let path = std::env::temp_dir().join(format!("sinew-door-{}.txt", std::process::id()));
    std::fs::write(&path, "precious").unwrap();
    let bound = Listener::bind(&format!("unix:{}", path.display()));
    assert!(bound.is_err(), "{bound:?}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_client_of_the_binary_protocol_is_hung_up_on_at_once() {
    let server = Server::tcp(1);
    let mut client = server.connect();
    // A binary request for the version.
    client.write_all(&[&[0x80, 0x0B][..], &[0; 22]].concat()).unwrap();
    assert_eq!(client.read(&mut [0; 24]).unwrap(), 0);
}

#[test]
fn a_line_of_half_a_million_keys_takes_its_length_and_not_the_square_of_it() {
    for threads in [1, 2] {
        let server = Server::tcp(threads);
        let line = [&b"get"[..], &b" k".repeat(500_000), b"\r\n"].concat();
        let began = Instant::now();
        assert_eq!(converse(server.connect(), &line), b"END\r\n");
        assert!(began.elapsed() < Duration::from_secs(3), "{threads} threads: {:?}", began.elapsed());
    }
}

#[test]
fn lists_of_keys_of_any_length_are_answered_whole() {
    for threads in [1, 2] {
        let server = Server::tcp(threads);
        let key = |number: u32| format!("key-of-a-usual-length-{number:06}");
        let set: String = (0..40).map(|number| format!("set {} 0 0 1\r\nx\r\n", key(number * 2500))).collect();
        let list: String = (0..100_000).map(|number| format!(" {}", key(number))).collect();
        let found: String = (0..40).map(|number| format!("VALUE {} 0 1\r\nx\r\n", key(number * 2500))).collect();
        let script = format!("{set}get{list}\r\nmn\r\n");
        let answer = converse(server.connect(), script.as_bytes());
        assert!(show(&answer) == format!("{}{found}END\r\nMN\r\n", "STORED\r\n".repeat(40)), "{threads} threads");
        // A client that waits for its answer gets it, wherever its line was cut.
        for cut in [4000, 65_536, 70_000, 131_072, 135_168] {
            let mut stream = server.connect();
            let script = format!("get{} {}\r\n", &list[..cut], key(0));
            stream.write_all(&script.as_bytes()[..cut]).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            stream.write_all(&script.as_bytes()[cut..]).unwrap();
            let mut answer = String::new();
            let mut reader = BufReader::new(stream);
            while !answer.ends_with("END\r\n") {
                assert!(reader.read_line(&mut answer).unwrap() > 0, "{threads} threads, {cut}: {answer}");
            }
        }
        // A key that is too long ends the answer, but not the connection.
        let script = format!("get {} {} key{list}\r\nmn\r\n", key(0), "k".repeat(200_000));
        let answer = show(&converse(server.connect(), script.as_bytes()));
        assert!(answer.ends_with("CLIENT_ERROR bad command line format\r\nMN\r\n"), "{threads} threads: {answer}");
    }
}

#[test]
fn what_is_done_with_keys_is_counted_by_their_prefixes_while_that_is_asked_for() {
    for threads in [1, 3] {
        let server = Server::tcp(threads);
        let answer = |script: &str| show(&converse(server.connect(), script.as_bytes()));
        assert_eq!(answer("set foo:1 0 0 1\r\nx\r\nstats detail dump\r\n"), "STORED\r\nEND\r\n");
        assert_eq!(
            answer("stats detail on\r\nget foo:1 foo:2 nopre\r\nset foo:3 0 0 1\r\ny\r\ndelete bar:1\r\n"),
            "OK\r\nVALUE foo:1 0 1\r\nx\r\nEND\r\nSTORED\r\nNOT_FOUND\r\n"
        );
        let counted = "PREFIX bar get 0 hit 0 set 0 del 1\r\nPREFIX foo get 2 hit 1 set 1 del 0\r\nEND\r\n";
        assert_eq!(
            answer("stats detail off\r\nget foo:1\r\nstats detail dump\r\n").split_once("END\r\n").unwrap().1,
            counted
        );
        assert_eq!(answer("stats reset\r\nstats detail dump\r\n"), "RESET\r\nEND\r\n");
    }
}

#[test]
fn a_flush_counts_once_however_many_threads_there_are() {
    let server = Server::tcp(3);
    converse(server.connect(), b"flush_all\r\nset k 0 0 1\r\nx\r\nget k\r\nget k2 k3 k4\r\n");
    let answer = String::from_utf8(converse(server.connect(), b"stats\r\n")).unwrap();
    for expected in ["cmd_flush 1", "cmd_set 1", "get_hits 1", "get_misses 3", "cmd_get 4"] {
        assert!(answer.contains(&format!("STAT {expected}\r\n")), "{expected}: {answer}");
    }
}

#[test]
fn long_answers_of_other_threads_come_whole() {
    let value = "v".repeat(100_000);
    let set: String = (0..40).map(|key| format!("set key-{key} 0 0 {}\r\n{value}\r\n", value.len())).collect();
    let get: String = (0..40).map(|key| format!("get key-{key}\r\n")).collect();
    let list = format!("get{}\r\n", (0..40).map(|key| format!(" key-{key}")).collect::<String>());
    let script = [set, get, list].concat().into_bytes();
    let expected = Ours::default().hear(&mut Table::new(), &script);
    for threads in [1, 2, 3] {
        let server = Server::tcp(threads);
        let answer = converse(server.connect(), &script);
        assert!(answer == expected, "{threads} threads: {} bytes, not {}", answer.len(), expected.len());
    }
}

/// Peak memory of this process, in bytes.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn clients_that_never_read_take_bounded_memory_and_those_that_do_are_kept() {
    let before = peak_memory();
    for threads in [1, 2] {
        let config = DoorConfig { connection_memory: 16 << 20, ..DoorConfig::default() };
        let server = Server::start("127.0.0.1:0", threads, config);
        let value = vec![b'v'; 1_000_000];
        let mut setup = server.connect();
        for key in 0..4 {
            write!(setup, "set key-{key} 0 0 1000000\r\n").unwrap();
            setup.write_all(&value).unwrap();
            setup.write_all(b"\r\n").unwrap();
            setup.read_exact(&mut [0; 8]).unwrap();
        }
        let mut deaf: Vec<_> = (0..40).map(|_| server.connect()).collect();
        let requests = b"get key-0\r\nget key-1\r\nget key-2\r\nget key-3\r\n".repeat(200);
        for stream in &mut deaf {
            // Clients that do not read are closed eventually.
            let _ = stream.write_all(&requests);
        }
        // These clients have been silent for a while.
        std::thread::sleep(Duration::from_millis(300));
        for _ in 0..10 {
            let answer = converse(server.connect(), b"get key-0 key-1\r\nget key-2\r\nget key-3\r\n");
            assert!(answer.len() > 4 * value.len(), "{threads} threads: {} bytes", answer.len());
        }
    }
    let taken = peak_memory() - before;
    assert!(taken < 500 << 20, "{} MB", taken >> 20);
}
