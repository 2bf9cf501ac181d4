//! `sinew serve cache --memcached` with a common client library, and `sinew kv bench memcached`.

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use common::{Folder, Process, Server, children, eventually, is_alive, positive, results, run, sinew, text, unique};
use memcache::Client;
use rustix::process::Signal;
use serde_json::Value;
use sinew_conformance::skipped;

/// Serves a cache from a process of its own.
fn serve(args: &[&str]) -> Server {
    Server::of(sinew(&["serve", "cache", "--child", "--memory", "16M"]).args(args))
}

fn connect(address: &str) -> Client {
    memcache::connect(format!("memcache://{address}?protocol=ascii&timeout=20")).unwrap()
}

#[test]
fn a_client_library_has_its_session() {
    for threads in ["1", "3"] {
        let server = serve(&["--memcached", "127.0.0.1:0", "--threads", threads]);
        let client = connect(&server.address);
        assert_eq!(client.version().unwrap()[0].1.trim(), "1.6.18");
        assert_eq!(client.get::<String>("nobody").unwrap(), None);
        client.set("greeting", "hello", 0).unwrap();
        client.append("greeting", ", world").unwrap();
        client.prepend("greeting", "> ").unwrap();
        assert_eq!(client.get("greeting").unwrap(), Some("> hello, world".to_owned()));
        // Over this protocol, the library does not report whether these did anything.
        let _ = (client.add("greeting", "x", 0), client.replace("nobody", "x", 0));
        assert_eq!(client.get("greeting").unwrap(), Some("> hello, world".to_owned()));
        assert_eq!(client.get::<String>("nobody").unwrap(), None);
        client.set("number", 40, 0).unwrap();
        assert_eq!((client.increment("number", 2).unwrap(), client.decrement("number", 1).unwrap()), (42, 41));
        let (_, _, version) = client.get::<(Vec<u8>, u32, Option<u64>)>("number").unwrap().unwrap();
        let version = version.or_else(|| {
            let found: HashMap<String, (Vec<u8>, u32, Option<u64>)> = client.gets(&["number"]).unwrap();
            found["number"].2
        });
        assert!(client.cas("number", 7, 0, version.unwrap()).unwrap());
        assert!(!client.cas("number", 8, 0, version.unwrap()).unwrap());
        let keys: Vec<String> = (0..200).map(|key| format!("key-{key}")).collect();
        for key in &keys {
            client.set(key, key.as_bytes(), 100).unwrap();
        }
        let names: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found: HashMap<String, String> = client.gets(&names).unwrap();
        assert_eq!(found.len(), 200);
        assert!(found.iter().all(|(key, value)| key == value));
        let long = vec![7u8; 1_000_000];
        client.set("long", &long[..], 0).unwrap();
        assert!(client.get::<Vec<u8>>("long").unwrap() == Some(long));
        assert!(client.touch("greeting", 1000).unwrap() && client.delete("greeting").unwrap());
        assert!(!client.delete("greeting").unwrap());
        client.flush().unwrap();
        assert_eq!(client.get::<String>("key-1").unwrap(), None);
    }
}

#[test]
fn memcached_clients_and_those_of_rpc_share_a_cache() {
    let folder = Folder::new();
    let socket = folder.0.join("socket");
    let address = format!("shm://{}", unique("door"));
    let door = format!("unix:{}", socket.display());
    for block in [&["--block"][..], &[]] {
        let _server = serve(&[&[&address, "--memcached", &door, "--threads", "2"], block].concat());
        let mut client = UnixStream::connect(&socket).unwrap();
        client.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        for number in 0..20 {
            // The server's threads sleep in between, and are woken for memcached clients as for others.
            std::thread::sleep(std::time::Duration::from_millis(number * 5));
            let (key, value) = (format!("key-{number}"), format!("value-{number}"));
            let command = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
            client.write_all(command.as_bytes()).unwrap();
            client.read_exact(&mut [0; 8]).unwrap();
            let output = run(&mut sinew(&["kv", "get", &key, "--address", &address]));
            assert_eq!(text(&output.stdout), value, "{}", text(&output.stderr));
        }
        let output = run(&mut sinew(&["kv", "set", "theirs", "yes", "--address", &address]));
        assert!(output.status.success(), "{}", text(&output.stderr));
        client.write_all(b"get theirs\r\n").unwrap();
        let mut answer = [0; 28];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"VALUE theirs 0 3\r\nyes\r\nEND\r\n");
    }
}

#[test]
fn memcached_servers_are_measured() {
    let server = serve(&["--memcached", "127.0.0.1:0"]);
    let bench = ["kv", "bench", "memcached", "--keys", "1K", "--seconds", "0.1", "--json", "--no-pin"];
    for options in [
        &["--connect", &server.address][..],
        &["--connect", &server.address, "--meta", "--connections", "3", "--depth", "8", "--get", "50"],
        &["--unix", "--keys-per-get", "20", "--value-size", "1000"],
        &["--rate", "0.001", "--depth", "16"],
    ] {
        let result = &results(sinew(&bench).args(options))[0];
        for place in ["/figure", "/percentiles/p50_ns", "/percentiles/p99_ns", "/details/keys_checked"] {
            positive(result, place);
        }
        assert!(positive(result, "/details/hit_percent") > 95.0, "{result}");
    }
    let output = run(sinew(&bench).args(["--peer"]));
    if text(&output.stderr).contains("no memcached") {
        return skipped("no memcached");
    }
    assert!(output.status.success(), "{}", text(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(positive(&result, "/ratio") > 0.0 && result["limit_kind"] == "peer", "{result}");
    assert_eq!(result["details"]["sides"].as_array().map(Vec::len), Some(2), "{result}");
}

#[test]
fn a_full_cache_is_measured_beside_memcached_with_the_same_requests() {
    let bench = ["kv", "bench", "eviction", "--traces", "zipf,scan", "--value-size", "4000", "--json", "--no-pin"];
    let bench = [&bench[..], &["--seconds", "0.05"]].concat();
    let refused = run(sinew(&bench).args(["--peer", "--memory", "63M"]));
    assert!(refused.status.code() == Some(2) && text(&refused.stderr).contains("at least 64M"), "{refused:?}");
    let output = run(sinew(&bench).args(["--peer", "--memory", "64M"]));
    if text(&output.stderr).contains("no memcached") {
        return skipped("no memcached");
    }
    assert!(output.status.success(), "{}", text(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    for result in results["results"].as_array().unwrap() {
        let sides = result["details"]["sides"].as_array().unwrap();
        let hits = [0, 1, 2].map(|side| positive(&sides[side], "/hit_percent"));
        assert!(hits[0] > hits[1] && hits.iter().all(|percent| *percent < 99.0), "{result}");
        assert!(sides[2]["server"].as_str().unwrap().contains("memcached"), "{result}");
        assert!((0..3).all(|side| positive(&sides[side], "/items") > 5000.0), "{result}");
    }
}

#[test]
fn memcached_ends_with_its_benchmark_even_if_that_is_killed() {
    let bench = ["kv", "bench", "memcached", "--keys", "1K", "--seconds", "600", "--json", "--no-pin", "--peer"];
    let mut bench = Process::start(&mut sinew(&bench));
    let is_memcached = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "memcached")
    };
    let mut memcached = None;
    eventually("memcached runs, or there is none", || {
        memcached = children(bench.0.id()).into_iter().find(is_memcached);
        memcached.is_some() || !is_alive(bench.0.id())
    });
    let Some(memcached) = memcached else { return skipped("no memcached") };
    bench.signal(Signal::KILL);
    bench.wait();
    eventually("memcached has ended", || !is_alive(memcached));
}

/// Returns a memcached server's answer to a command, up to a line that begins with `end`.
fn ask(address: &str, command: &str, end: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
    stream.write_all(command.as_bytes()).unwrap();
    let mut answer = String::new();
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        answer = answer + &line + "\n";
        if line.starts_with(end) {
            return answer;
        }
    }
    panic!("{answer}");
}

#[test]
fn ten_thousand_idle_connections_cost_little_and_slow_nobody() {
    const CONNECTIONS: usize = 10_000;
    let limit = sinew::host::raise_descriptor_limit().unwrap();
    if limit.is_some_and(|limit| limit < CONNECTIONS as u64 + 200) {
        return skipped(format_args!("no {} descriptors", CONNECTIONS + 200));
    }
    let server = serve(&["--memcached", "127.0.0.1:0", "--threads", "2"]);
    let pages = || {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", server.process.0.id())).unwrap();
        statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
    };
    let before = pages();
    let connect = || TcpStream::connect(&server.address).unwrap();
    let mut idle: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect()).collect();
    for stream in idle.iter_mut().step_by(97) {
        stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
        stream.write_all(b"set k 0 0 1\r\nx\r\nget k\r\n").unwrap();
        let mut answer = [0; 29];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n");
    }
    let stats = ask(&server.address, "stats\r\n", "END");
    assert!(stats.contains(&format!("STAT curr_connections {}\n", CONNECTIONS + 1)), "{stats}");
    let each = pages().saturating_sub(before) * 4096 / CONNECTIONS;
    assert!(each < 4096, "{each} bytes for each connection");
}

#[test]
fn without_descriptors_clients_wait_and_the_server_sleeps_and_says_so() {
    let folder = Folder::new();
    let complaints = folder.0.join("complaints");
    let program = sinew(&[]).get_program().to_owned();
    let script = format!(
        "ulimit -n 60; exec \"$0\" serve cache --child --memory 16M --memcached 127.0.0.1:0 2> {}",
        complaints.display()
    );
    let server = Server::of(Command::new("sh").args(["-c", &script]).arg(program));
    let clients: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    let is_served = |mut client: &TcpStream| {
        client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        client.write_all(b"mn\r\n").unwrap();
        client.read_exact(&mut [0; 4]).is_ok()
    };
    assert!(is_served(&clients[0]) && !is_served(&clients[99]));
    common::eventually("the server says so", || {
        std::fs::read_to_string(&complaints)
            .unwrap()
            .contains("no file descriptor is left for another memcached client")
    });
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.process.0.id())).unwrap();
        let mut words = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11);
        [words.next(), words.next()].map(|word| word.unwrap().parse::<u64>().unwrap()).iter().sum::<u64>()
    };
    let before = ticks();
    std::thread::sleep(Duration::from_secs(2));
    assert!(ticks() - before < 20, "of 200 ticks it used {}", ticks() - before);
    // Waiting clients are let in when others leave.
    let mut clients = clients;
    let mut last = clients.split_off(99);
    drop(clients);
    let last = last.remove(0);
    last.set_read_timeout(Some(common::PATIENCE)).unwrap();
    assert_eq!((&last).read(&mut [0; 4]).unwrap(), 4, "it was asked long ago");
    assert!(!ask(&server.address, "stats\r\n", "END").contains("listen_disabled_num 0\n"));
}

#[test]
fn what_cannot_be_served_or_measured_is_told() {
    for (wrong, why) in [
        (&["serve", "cache", "--memcached", "nowhere"][..], "nowhere"),
        (&["serve", "cache", "--memcached", "unix:/no/such/folder/socket"], "/no/such/folder"),
        (&["kv", "bench", "memcached", "--connect", "127.0.0.1:1"], "no server at 127.0.0.1:1"),
        (&["kv", "bench", "memcached", "--meta", "--keys-per-get", "2"], "cannot be used with"),
        (&["kv", "bench", "memcached", "--fail-if-ratio-below", "1"], "--peer"),
    ] {
        let output = run(&mut sinew(wrong));
        assert!(!output.status.success() && output.stdout.is_empty());
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
}

#[test]
fn what_makes_no_sense_is_refused_by_name_with_an_example() {
    for (wrong, option, example) in [
        (&["--memcached", "0.0.0.0"][..], "--memcached", "0.0.0.0:11211"),
        (&["--memcached", "unix:"], "--memcached", "unix:/tmp/cache"),
        (&["--memcached", "127.0.0.1:0", "--memory", "4"], "--memory", "--memory 256M"),
        (
            &["--memcached", "127.0.0.1:0", "--connection-memory", "1M"],
            "--connection-memory",
            "--connection-memory 64M",
        ),
        (&["--memcached", "127.0.0.1:0", "--socket-mode", "999"], "--socket-mode", "770"),
        (&["--memcached", "127.0.0.1:0", "--socket-mode", "770"], "--socket-mode", "unix:PATH"),
        (&["--memcached", "127.0.0.1:0", "--connections", "0"], "--connections", "1024"),
        (&["--memcached", "127.0.0.1:0", "--connections", "99999999999"], "--connections", "1048576"),
        (&["--memcached", "127.0.0.1:0", "--value-max", "0"], "--value-max", "from 1 B"),
        (&["--memcached", "127.0.0.1:0", "--value-max", "128M", "--memory", "64M"], "--value-max", "64 MB"),
        (&["--memcached", "127.0.0.1:0", "--value-max", "129M"], "--value-max", "128 MB"),
        (&["shm://x", "--memcached", "127.0.0.1:0", "--value-max", "9M"], "--value-max", "8 MB"),
    ] {
        let output = run(sinew(&["serve", "cache"]).args(wrong));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {stderr}");
        assert!(stderr.contains(option) && stderr.contains(example), "{wrong:?}: {stderr}");
    }
}

#[test]
fn limits_of_the_door_are_what_was_asked_for() {
    let folder = Folder::new();
    let socket = folder.0.join("socket");
    let door = format!("unix:{}", socket.display());
    let _server = serve(&[
        "--memcached",
        &door,
        "--socket-mode",
        "770",
        "--connections",
        "2",
        "--idle-timeout",
        "1",
        "--value-max",
        "4M",
        "--connection-memory",
        "40M",
        "--threads",
        "2",
    ]);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o770);
    let connect = || {
        let stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
        stream
    };
    let mut idle = connect();
    idle.write_all(b"mn\r\n").unwrap();
    idle.read_exact(&mut [0; 4]).unwrap();
    let mut other = connect();
    let long = vec![b'v'; 3_000_000];
    other.write_all(&[&b"set long 0 0 3000000\r\n"[..], &long, b"\r\nget long\r\n"].concat()).unwrap();
    let expected = [&b"STORED\r\nVALUE long 0 3000000\r\n"[..], &long, b"\r\nEND\r\n"].concat();
    let mut answer = vec![0; expected.len()];
    other.read_exact(&mut answer).unwrap();
    assert!(answer == expected);
    let mut refused = String::new();
    connect().read_to_string(&mut refused).unwrap();
    assert_eq!(refused, "ERROR Too many open connections\r\n");
    assert_eq!(idle.read(&mut [0; 4]).unwrap(), 0, "it said nothing for a while");
    drop(other);
    let mut asking = connect();
    asking.write_all(b"stats\r\nstats settings\r\nquit\r\n").unwrap();
    let mut stats = String::new();
    asking.read_to_string(&mut stats).unwrap();
    for line in [
        "STAT max_connections 2\r",
        "STAT accepting_conns 1\r",
        "STAT limit_connection_bytes 41943040\r",
        "STAT umask 770\r",
        "STAT idle_timeout 1\r",
    ] {
        assert!(stats.contains(line), "{line}: {stats}");
    }
    assert!(!stats.contains("STAT idle_kicks 0\r"), "{stats}");
    // The kernel may charge all of a short time to either.
    let used = |name: &str| stats.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok()).unwrap();
    assert!(used("STAT rusage_user ") + used("STAT rusage_system ") > 0.0, "{stats}");
}
