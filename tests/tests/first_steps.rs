//! First steps with the command: advice, exit statuses, and output for people.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use common::{Folder, Process, Server, eventually, run, sinew, status_when_interrupted, text, unique};
use rustix::process::Signal;
use serde_json::Value;

/// Runs a command that must succeed, and returns its output.
fn output_of(args: &[&str]) -> String {
    let output = run(&mut sinew(args));
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn advice_for_a_service_that_is_not_there_starts_it() {
    let address = |what| format!("shm://{}", unique(what));
    for (asking, service) in [
        (&["kv", "set", "key", "value", "--address"][..], "cache"),
        (&["seq", "next", "--address"], "sequencer"),
        (&["rpc", "bench", "latency", "--seconds", "0.05", "--address"], "rpc"),
    ] {
        let address = address(service);
        let ask = || run(sinew(asking).arg(&address));
        let output = ask();
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{complaint}");
        let advice = complaint.split('`').nth(1).unwrap_or_default();
        let words: Vec<_> = advice.split(' ').collect();
        assert!(words[0] == "sinew" && words.contains(&service) && words.last() == Some(&&*address), "{complaint}");
        let _server = Server::of(sinew(&words[1..]).args(["--child", "--block"]));
        let output = ask();
        assert!(output.status.success(), "{asking:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_value_that_is_too_long_names_the_option_that_allows_it() {
    let address = format!("shm://{}", unique("cache"));
    let set = || {
        let mut command = sinew(&["kv", "set", "large", "--address", &address]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&vec![b'v'; 2_000_000]).unwrap();
        child.wait_with_output().unwrap()
    };
    let serve = |options: &[&str]| Server::of(sinew(&["serve", "cache", &address, "--child", "--block"]).args(options));
    let server = serve(&[]);
    let complaint = text(&set().stderr);
    assert!(complaint.contains("2000000 bytes") && complaint.contains("--value-max"), "{complaint}");
    assert!(!complaint.contains("::"), "{complaint}");
    drop(server);
    let _server = serve(&["--value-max", "4M"]);
    let output = set();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(output_of(&["kv", "get", "large", "--address", &address]).len(), 2_000_000);
}

#[test]
fn items_are_touched_counted_and_flushed_in_every_thread() {
    let address = format!("shm://{}", unique("cache"));
    let options = ["--child", "--block", "--threads", "2", "--memory", "64M"];
    let _server = Server::of(sinew(&["serve", "cache", &address]).args(options));
    let kv = |args: &[&str]| run(sinew(&["kv"]).args(args).args(["--address", &address]));
    let good = |args: &[&str]| {
        let output = kv(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let bad = |code: i32, args: &[&str]| {
        let output = kv(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        text(&output.stderr)
    };
    for args in [&["incr", "visits"][..], &["touch", "visits"]] {
        assert_eq!(bad(5, args), "sinew: no item has the key `visits`\n");
    }
    good(&["set", "visits", "7", "--flags", "3"]);
    assert_eq!((good(&["incr", "visits"]), good(&["incr", "visits", "-3"])), ("8\n".to_owned(), "5\n".to_owned()));
    assert_eq!(good(&["get", "visits"]), "5");
    good(&["touch", "visits", "--expires", "1000"]);
    let item: Value = serde_json::from_str(&good(&["get", "visits", "--json"])).unwrap();
    assert!(item["flags"] == 3 && item["expires_s"].as_u64() > Some(900), "{item}");
    good(&["touch", "visits"]);
    let item: Value = serde_json::from_str(&good(&["get", "visits", "--json"])).unwrap();
    assert_eq!(item["expires_s"], 0);
    let keys: Vec<_> = (0..10).map(|key| format!("key {key}")).collect();
    keys.iter().for_each(|key| drop(good(&["set", key, "no number"])));
    assert!(bad(1, &["incr", "key 1"]).contains("is not a number"));
    assert_eq!(good(&["flush"]), "");
    keys.iter().for_each(|key| assert!(bad(5, &["get", key]).contains("no item")));
}

#[test]
fn examples_tell_their_errors_in_words_and_name_no_command() {
    let folder = Folder::new();
    let program = |path: &str| {
        let mut command = Command::new(path);
        command.env("XDG_RUNTIME_DIR", &folder.0).stdin(Stdio::null());
        command
    };
    let output = run(&mut program(env!("CARGO_BIN_EXE_readme-client")));
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.starts_with("Error: no server at shm://shout: looked in /"), "{complaint}");
    assert!(
        complaint.ends_with("; start it first, or check the name\n") && complaint.lines().count() == 1,
        "{complaint}"
    );
    let _server = Process::start(&mut program(env!("CARGO_BIN_EXE_readme-server")));
    eventually("it serves", || run(&mut program(env!("CARGO_BIN_EXE_readme-client"))).status.success());
    let output = run(&mut program(env!("CARGO_BIN_EXE_readme-server")));
    let complaint = text(&output.stderr);
    assert!(complaint.starts_with("Error: shm://shout is taken"), "{complaint}");
    assert!(!complaint.contains(['{', '"']) && complaint.lines().count() == 1, "{complaint}");
}

#[test]
fn whatever_is_interrupted_before_it_is_done_exits_with_130() {
    for args in [
        &["rpc", "bench", "rate", "--fabric", "hub", "--seconds", "600"][..],
        &["rpc", "bench", "latency", "--seconds", "600", "--block"],
        &["verbs", "rate", "--seconds", "600"],
        &["kv", "bench", "table", "--seconds", "600"],
        &["seq", "bench", "--seconds", "600"],
        &["limits", "--seconds", "600"],
    ] {
        assert_eq!(status_when_interrupted(args), Some(130), "{args:?}");
    }
    // The server runs, but does not answer.
    let address = format!("shm://{}", unique("cache"));
    let server = Server::of(&mut sinew(&["serve", "cache", &address, "--child", "--block", "--memory", "16M"]));
    server.process.signal(Signal::STOP);
    for args in [&["kv", "get", "key"][..], &["kv", "flush"], &["seq", "next"]] {
        assert_eq!(status_when_interrupted(&[args, &["--address", &address]].concat()), Some(130), "{args:?}");
    }
    server.process.signal(Signal::CONT);
}

#[test]
fn a_server_that_is_asked_to_stop_is_done() {
    let folder = Folder::new();
    let notes = folder.0.join("notes").to_string_lossy().into_owned();
    let address = || format!("shm://{}", unique("server"));
    let serving: [Vec<String>; 4] = [
        ["rpc", "serve"].map(str::to_owned).into_iter().chain([address()]).collect(),
        ["serve", "cache"].map(str::to_owned).into_iter().chain([address()]).collect(),
        ["serve", "sequencer"].map(str::to_owned).into_iter().chain([address(), "--notes".into(), notes]).collect(),
        ["serve", "cache", "--memcached", "127.0.0.1:0"].map(str::to_owned).to_vec(),
    ];
    for args in serving {
        for signal in [Signal::INT, Signal::TERM] {
            let (mut process, _lines) = start(&args.iter().map(String::as_str).collect::<Vec<_>>());
            process.signal(signal);
            assert_eq!(process.wait().code(), Some(0), "{args:?} {signal:?}");
        }
    }
}

/// Starts a server with output for people, and waits until it has printed its address. Also returns a closure that
/// collects all the lines that it prints.
fn start(args: &[&str]) -> (Process, impl FnOnce() -> Vec<String> + use<>) {
    use std::io::BufRead;
    let mut process = Process::start(&mut sinew(args));
    let mut lines = std::io::BufReader::new(process.0.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("serving"), "{first}");
    (process, move || [first].into_iter().chain(lines.map_while(Result::ok)).collect())
}

#[test]
fn servers_end_with_words_for_people_and_json_for_programs() {
    let address = format!("shm://{}", unique("server"));
    let ask = |of: &str| match of {
        "cache" => output_of(&["kv", "set", "key", "value", "--address", &address]),
        "sequencer" => output_of(&["seq", "next", "--count", "5", "--address", &address]),
        _ => output_of(&["rpc", "bench", "latency", "--seconds", "0.05", "--address", &address]),
    };
    for serving in [&["serve", "cache"][..], &["serve", "sequencer"], &["rpc", "serve"]] {
        let service = serving[1];
        let (mut process, lines) = start(&[serving, &[&address, "--block"]].concat());
        ask(service);
        process.signal(Signal::INT);
        assert!(process.wait().success());
        let lines = lines();
        assert_eq!(lines[0], format!("serving {address}"));
        let report = lines.iter().find(|line| line.starts_with(&format!("{address}: "))).expect("a report");
        assert!(report.contains("answered; ") && !report.contains(['{', '"', '_']), "{report}");
        assert_eq!(lines.iter().any(|line| line == "the next number is 5"), service == "sequencer");

        let (mut process, lines) = start(&[serving, &[&address, "--block", "--json"]].concat());
        ask(service);
        process.signal(Signal::INT);
        assert!(process.wait().success());
        let objects: Vec<Value> = lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(objects[0]["serving"][0], *address);
        let endpoint = &objects[1]["endpoints"][0];
        assert_eq!(endpoint["address"], *address);
        assert!(endpoint["requests_handled"].as_u64() > Some(0), "{endpoint}");
        assert_eq!(objects.get(2).map(|last| last["next"].as_u64()), (service == "sequencer").then_some(Some(5)));
    }
}

#[test]
fn more_threads_than_processors_are_warned_of() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let crowded = (cpus + 1).to_string();
    let address = format!("shm://{}", unique("server"));
    let alone = ["serve", "cache", "--memory", "64M", "--memcached", "127.0.0.1:0"];
    for serving in [&["serve", "cache", &address, "--memory", "64M"][..], &["rpc", "serve", &address], &alone] {
        for (threads, warns) in [(crowded.as_str(), true), ("1", false)] {
            let mut command = sinew(serving);
            command.args(["--threads", threads, "--block"]).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut process = Process(command.spawn().unwrap());
            let mut first = [0; 8];
            process.0.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
            process.signal(Signal::INT);
            assert!(process.wait().success());
            let mut complaints = String::new();
            process.0.stderr.take().unwrap().read_to_string(&mut complaints).unwrap();
            assert_eq!(complaints.contains(&format!("--threads {crowded}")), warns, "{complaints}");
            assert_eq!(complaints.is_empty(), !warns, "{complaints}");
        }
    }
}

/// Runs a command whose standard output is a terminal, and returns what the terminal received.
fn on_a_terminal(command: &mut Command) -> Vec<u8> {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let end = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut child = command.stdout(end).spawn().unwrap();
    // Drops the command's own copy of the terminal, which would keep it open.
    command.stdout(Stdio::null());
    assert!(child.wait().unwrap().success());
    let (mut shown, mut terminal) = (Vec::new(), File::from(terminal));
    let mut some = [0; 256];
    // Reading fails once the other end is closed.
    while let Ok(len @ 1..) = terminal.read(&mut some) {
        shown.extend_from_slice(&some[..len]);
    }
    shown
}

#[test]
fn a_value_ends_its_line_where_somebody_looks_and_is_as_it_was_elsewhere() {
    let address = format!("shm://{}", unique("cache"));
    let _server = Server::of(&mut sinew(&["serve", "cache", &address, "--child", "--block"]));
    output_of(&["kv", "set", "greeting", "hello", "--address", &address]);
    let get = ["kv", "get", "greeting", "--address", &address];
    assert_eq!(output_of(&get), "hello");
    // A terminal turns the end of a line into two characters.
    assert_eq!(text(&on_a_terminal(&mut sinew(&get))), "hello\r\n");
}
