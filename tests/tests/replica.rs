//! A replicated store whose members are processes; the leader is killed while clients write.

mod common;
#[path = "common/members.rs"]
mod members;

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use common::{Folder, Process, Server, eventually, run, sinew, text};
use members::{Members, client, free_addresses, name, wait};
use rustix::process::Signal;
use sinew::prelude::*;
use sinew::replica::client::{Client, ClientError, RequestOutcome};
use sinew::replica::client_wire::Freshness;
use sinew::replica::kv::{Command as Change, CommandResult, Query, QueryResult};
use sinew::replica::wire;

const PATIENCE_NS: u64 = 30_000_000_000;

fn put(client: &mut Client<Rpc>, key: &[u8], value: &[u8]) -> u64 {
    let mut bytes = Vec::new();
    wire::encode(&Change::Put { key, value }, &mut bytes);
    client.run(0, &bytes, PATIENCE_NS).unwrap();
    let RequestOutcome::CommandAnswer(done) = wait(client).unwrap() else { panic!() };
    match wire::decode(&done).unwrap() {
        CommandResult::Changed { revision } => revision,
        other => panic!("{other:?}"),
    }
}

fn get(client: &mut Client<Rpc>, key: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    wire::encode(&Query::Get { key }, &mut bytes);
    client.read(0, Freshness::Linear, &bytes, PATIENCE_NS).unwrap();
    let RequestOutcome::QueryAnswer(found) = wait(client).unwrap() else { panic!() };
    match wire::decode(&found).unwrap() {
        QueryResult::Item { item, .. } => item.map(|item| item.value.to_vec()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_person_does_with_three_members() {
    let mut members = Members::start(3, false);
    assert_eq!(members.ask(&["put", "colour", "blue"]).1, "revision 1\n");
    assert_eq!(members.ask(&["get", "colour"]).1, "blue");
    assert_eq!(members.ask(&["get", "colour", "--lease"]).1, "blue");
    let (status, _, complaint) = members.ask(&["put", "colour", "red", "--if-absent"]);
    assert_eq!(status, 5, "{complaint}");
    assert_eq!(members.ask(&["put", "colour", "red", "--if-revision", "1"]).1, "revision 2\n");
    assert_eq!(members.ask(&["put", "shape", "round"]).1, "revision 3\n");
    assert_eq!(members.ask(&["get", "", "--prefix"]).1, "colour=red\nshape=round\n");
    assert_eq!(members.ask(&["delete", "shape"]).1, "revision 4\n");
    assert_eq!(members.ask(&["get", "shape"]).0, 5);
    let watched = members.ask(&["watch", "", "--from", "1", "--count", "4"]).1;
    assert_eq!(watched, "1 colour=blue\n2 colour=red\n3 shape=round\n4 shape\n");
    // A member that is started again has no state until it is added.
    let leader = members.leader();
    let (away, name_of_it) = ((leader + 1) % 3, name((leader + 1) % 3));
    members.kill(away);
    assert_eq!(members.ask(&["put", "colour", "green"]).0, 0);
    members.begin(away);
    let role = |members: &Members| {
        let status = members.status();
        let own = status["members"].as_array().unwrap().iter().find(|member| member["name"] == name_of_it);
        own.map(|own| own["role"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
    };
    eventually("it is outside", || role(&members) == "outside: add it");
    let (status, _, complaint) = members.ask(&["add", &format!("{name_of_it}={}", members.addresses[away])]);
    assert_eq!(status, 0, "{complaint}");
    eventually("it follows", || role(&members) == "follows");
    assert_eq!(members.ask(&["transfer", &name_of_it]).0, 0);
    eventually("it leads", || role(&members) == "leads");
    assert_eq!(members.ask(&["get", "colour"]).1, "green");
    let (status, _, complaint) = members.ask(&["remove", "nobody"]);
    assert!(status == 1 && complaint.contains("no member nobody"), "{complaint}");
}

#[test]
fn a_range_that_does_not_fit_an_answer_is_read_in_parts() {
    let members = Members::start(1, false);
    let value = "v".repeat(600_000);
    let file = Folder::new();
    let path = file.0.join("value");
    std::fs::write(&path, &value).unwrap();
    for key in ["a/1", "a/2", "a/3", "b"] {
        let mut put = sinew(&["replica", "put", key, "-", "--at", &members.at()]);
        let output = put.stdin(std::fs::File::open(&path).unwrap()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let keys = |args: &[&str]| -> Vec<String> {
        let (status, found, complaint) = members.ask(&[&["get", "a/", "--prefix"], args].concat());
        assert_eq!(status, 0, "{complaint}");
        let key = |line: &str| line.strip_suffix(&format!("={value}")).expect("a key and its value").to_owned();
        found.lines().map(key).collect()
    };
    assert_eq!(keys(&[]), ["a/1", "a/2", "a/3"]);
    assert_eq!(keys(&["--limit", "2"]), ["a/1", "a/2"]);
    assert_eq!(keys(&["--after", "a/1"]), ["a/2", "a/3"]);
    assert_eq!(keys(&["--after", "a"]), ["a/1", "a/2", "a/3"]);
    assert_eq!(keys(&["--after", "b"]), <[String; 0]>::default());
}

#[test]
fn nobody_is_added_in_the_place_of_a_member_of_its_name_that_lives() {
    let mut members = Members::start(3, true);
    let taken = (members.leader() + 1) % 3;
    let other = format!("udp://{}", UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let address = |at: usize| if at == taken { other.as_str() } else { &members.addresses[at] };
    let peers: Vec<_> = (0..3).map(|at| format!("{}={}", name(at), address(at))).collect();
    let serve = ["serve", "replica", "--child", "--name", &name(taken), "--peers", &peers.join(",")];
    let _second = Server::of(&mut sinew(&serve));
    let add = ["add", &peers[taken]];
    let (status, _, complaint) = members.ask(&add);
    assert!(status == 1 && complaint.contains("which answers: stop or remove it first"), "{complaint}");
    members.kill(taken);
    // On a slow machine the client has asked twice, and the second change may not be over.
    eventually("it is added", || members.ask(&add).0 == 0);
}

#[test]
fn a_watch_goes_back_as_far_as_any_member_can() {
    let mut members = Members::start(3, false);
    for number in 1..=3 {
        assert_eq!(members.ask(&["put", "k", &number.to_string()]).0, 0);
    }
    let away = (members.leader() + 1) % 3;
    members.kill(away);
    members.begin(away);
    let address = members.addresses[away].clone();
    let add = ["add", &format!("{}={address}", name(away))];
    eventually("it is added", || members.ask(&add).0 == 0);
    // Its leader is asked first.
    assert_eq!(members.ask(&["transfer", &name(away)]).0, 0);
    let output = run(&mut sinew(&["replica", "watch", "k", "--from", "1", "--count", "3", "--at", &address]));
    assert_eq!(text(&output.stdout), "1 k=1\n2 k=2\n3 k=3\n", "{output:?}");
    (0..3).for_each(|member| members.kill(member));
    let output = run(&mut sinew(&["replica", "watch", "k", "--from", "1", "--timeout-ms", "300", "--at", &address]));
    assert!(!output.status.success() && text(&output.stderr).contains("no answer in time"), "{output:?}");
}

#[test]
fn keys_that_are_not_text_are_given_and_printed_as_hexadecimal_digits() {
    let members = Members::start(3, false);
    assert_eq!(members.ask(&["put", "--hex", "00ff", "v"]).1, "revision 1\n");
    assert_eq!(members.ask(&["put", "a", "w"]).1, "revision 2\n");
    assert_eq!(members.ask(&["get", "--hex", "00FF"]).1, "v");
    assert_eq!(members.ask(&["get", "", "--prefix", "--hex"]).1, "00ff=76\n61=77\n");
    let found = members.ask(&["get", "--hex", "00", "--prefix", "--json"]).1;
    assert!(found.contains("\"key\":\"00ff\"") && found.contains("\"value\":\"76\""), "{found}");
    assert_eq!(members.ask(&["delete", "--hex", "00ff"]).1, "revision 3\n");
    let watched = members.ask(&["watch", "", "--hex", "--from", "1", "--count", "3"]).1;
    assert_eq!(watched, "1 00ff=76\n2 61=77\n3 00ff\n");
}

#[test]
fn the_leader_is_killed_under_load() {
    writes_go_on_without_their_leader(Signal::KILL, "killed");
}

#[test]
fn the_leader_is_stopped_under_load() {
    writes_go_on_without_their_leader(Signal::TERM, "stopped");
}

/// Without a hand-over, its last report would say that it leads. It waits a tenth of a second for the next leader, to
/// which a busy machine may give no time, so several stops may be needed.
#[test]
fn a_leader_that_is_told_to_stop_hands_over_first() {
    let mut members = Members::start(3, true);
    members.leader();
    let has_handed_over = (0..5).any(|_| {
        members.kill(0);
        let mut leader = Process::start(&mut members.command(0, "--json"));
        eventually("it leads", || members.ask(&["transfer", "a"]).0 == 0 && members.status()["leader"] == "a");
        leader.signal(Signal::TERM);
        assert_eq!(leader.wait().code(), Some(0));
        let mut printed = String::new();
        leader.0.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        let report: serde_json::Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
        let role = report["status"]["role"].as_str().unwrap().to_owned();
        assert!(role == "Follower" || role == "Leader", "{printed}");
        assert_ne!(members.leader(), 0);
        assert_eq!(members.ask(&["put", "colour", "blue"]).0, 0);
        role == "Follower"
    });
    assert!(has_handed_over, "the leader was stopped five times");
}

/// No acknowledged write is lost, and none runs twice: each has a revision of its own. `SINEW_SOAK_KILLS=COUNT` sends
/// the signal as often as that, with default time-outs, and measures.
fn writes_go_on_without_their_leader(signal: Signal, done: &str) {
    let measured: Option<u64> = std::env::var("SINEW_SOAK_KILLS").ok().and_then(|count| count.parse().ok());
    let kills = measured.unwrap_or(6).max(1);
    let start = if measured.is_some() { Members::start_as_users_do } else { Members::start };
    let mut members = start(3, true);
    members.leader();
    let mut client = client(members.addresses.clone());
    put(&mut client, b"count", b"0");
    let (mut revision, mut gaps_ms) = (1, Vec::new());
    for _ in 0..kills {
        let leader = members.leader();
        let addresses = members.addresses.clone();
        let load = thread::spawn(move || {
            let mut client_of_load = self::client(addresses);
            for index in 0_u32..300 {
                put(&mut client_of_load, b"load", &index.to_le_bytes());
            }
        });
        thread::sleep(Duration::from_millis(30));
        members.signal(leader, signal);
        let since = Instant::now();
        let later = put(&mut client, b"count", b"x");
        gaps_ms.push(since.elapsed().as_secs_f64() * 1e3);
        assert!(later > revision);
        load.join().unwrap();
        let status = members.wait_for_end(leader).unwrap();
        assert_eq!(status.code(), (signal == Signal::TERM).then_some(0), "{status}");
        members.begin(leader);
        revision = put(&mut client, b"count", b"y");
    }
    gaps_ms.sort_by(f64::total_cmp);
    let (median, longest) = (gaps_ms[gaps_ms.len() / 2], gaps_ms[gaps_ms.len() - 1]);
    println!("{kills} leaders {done}: writes went on after {median:.1} ms at the median, {longest:.1} ms at most");
    // There was one PUT before, and there are 302 in each round.
    assert_eq!(revision, 1 + kills * 302);
    assert_eq!(get(&mut client, b"load"), Some(299_u32.to_le_bytes().to_vec()));
}

#[test]
fn all_are_killed_at_once_and_go_on_from_their_disks() {
    let mut members = Members::start(3, true);
    members.leader();
    let mut client = client(members.addresses.clone());
    for index in 0_u32..100 {
        put(&mut client, &index.to_le_bytes(), b"v");
    }
    for at in 0..3 {
        members.kill(at);
    }
    for at in 0..3 {
        members.begin(at);
    }
    for index in 0_u32..100 {
        assert_eq!(get(&mut client, &index.to_le_bytes()).as_deref(), Some(&b"v"[..]));
    }
    // A member refuses another member's directory.
    let data = members.data.as_ref().unwrap().0.join("a").display().to_string();
    members.kill(0);
    let address = &members.addresses[0];
    let peers = format!("z={address}");
    let output = run(&mut sinew(&["serve", "replica", "--name", "z", "--peers", &peers, "--data", &data]));
    assert!(text(&output.stderr).contains("belong to member a"), "{}", text(&output.stderr));
}

#[test]
fn a_quorum_that_is_lost_is_said_so() {
    let mut members = Members::start(3, true);
    let leader = members.leader();
    let (dead, alive) = ([leader, (leader + 1) % 3], (leader + 2) % 3);
    assert_eq!(members.ask(&["put", "k", "v"]).0, 0);
    let mut client = client(members.addresses.clone());
    put(&mut client, b"of a client", b"v");
    // The follower first, so that the last member can lead nobody.
    dead.into_iter().rev().for_each(|at| members.kill(at));
    let mut command = Vec::new();
    wire::encode(&Change::Put { key: b"of a client", value: b"w" }, &mut command);
    client.run(0, &command, 1_000_000_000).unwrap();
    let outcome = wait(&mut client);
    let Err(ClientError::NoAnswer { reached, silent, may_have_run: true }) = &outcome else { panic!("{outcome:?}") };
    assert!(reached.contains(&members.addresses[alive]) && !silent.is_empty(), "{outcome:?}");
    for request in [&["put", "k", "other"][..], &["delete", "k"], &["get", "k"]] {
        let (status, _, complaint) = members.ask(&[request, &["--timeout-ms", "1000"]].concat());
        assert!(status == 1 && complaint.contains("no answer in time from a leader"), "{complaint}");
        assert!(complaint.contains(&format!("reached: {}", members.addresses[alive])), "{complaint}");
        assert!(complaint.contains("not heard from: "), "{complaint}");
        // Without a leader, these had no session in which they could have run.
        assert!(request[0] == "get" || complaint.contains("nothing was changed"), "{complaint}");
    }
    // A majority goes on from what was acknowledged.
    dead.into_iter().for_each(|at| members.begin(at));
    assert_eq!(members.ask(&["get", "k"]), (0, "v".into(), String::new()));
}

#[test]
fn five_members_survive_the_loss_of_two_and_seven_that_of_three() {
    for count in [5, 7] {
        let mut members = Members::start(count, true);
        let mut client = client(members.addresses.clone());
        put(&mut client, b"k", b"0");
        // Leaders, one after the other.
        let mut dead = Vec::new();
        for number in 1..=count / 2 {
            let leader = members.leader();
            members.kill(leader);
            dead.push(leader);
            put(&mut client, b"k", number.to_string().as_bytes());
            assert_eq!(members.ask(&["put", "other", &number.to_string(), "--timeout-ms", "20000"]).0, 0);
        }
        // One more, which does not lead: what its leader is asked then may have run.
        let leader = members.leader();
        let last = (0..count).find(|at| *at != leader && !dead.contains(at)).unwrap();
        members.kill(last);
        dead.push(last);
        let mut command = Vec::new();
        wire::encode(&Change::Put { key: b"k", value: b"unknown" }, &mut command);
        client.run(0, &command, 2_000_000_000).unwrap();
        let outcome = wait(&mut client);
        let Err(ClientError::NoAnswer { reached, silent, may_have_run: true }) = &outcome else {
            panic!("{count} members: {outcome:?}")
        };
        let alive: Vec<_> = (0..count).filter(|at| !dead.contains(at)).map(|at| &members.addresses[at]).collect();
        assert!(!reached.is_empty() && reached.iter().all(|reached| alive.contains(&reached)), "{outcome:?}");
        assert!(!silent.is_empty(), "{outcome:?}");
        let (status, _, complaint) = members.ask(&["get", "other", "--timeout-ms", "1000"]);
        assert!(status == 1 && complaint.contains("no answer in time from a leader"), "{complaint}");
        dead.into_iter().for_each(|at| members.begin(at));
        assert_eq!(get(&mut client, b"other"), Some((count / 2).to_string().into_bytes()));
        let value = get(&mut client, b"k").unwrap();
        assert!(value == b"unknown" || value == (count / 2).to_string().into_bytes(), "{value:?}");
        put(&mut client, b"k", b"end");
        let keeps_up = |at: usize| {
            let status = members.status_of(at);
            ["leads", "follows"].iter().any(|role| status["role"] == *role) && status["behind"] == 0
        };
        eventually("all keep up", || (0..count).all(keeps_up));
    }
}

#[test]
fn a_majority_that_lost_its_state_is_said_so_with_what_is_left() {
    let mut members = Members::start(3, false);
    assert_eq!(members.ask(&["put", "colour", "blue"]).0, 0);
    let alive = members.leader();
    let dead = [(alive + 1) % 3, (alive + 2) % 3];
    dead.into_iter().for_each(|at| members.kill(at));
    members.begin(dead[0]);
    let folder = Folder::new();
    let notes = folder.0.join("notes");
    let second = members.begin_with_notes(dead[1], &notes);
    let said = || std::fs::read_to_string(&notes).unwrap();
    let (other, by) = (name(dead[0]), name(alive));
    let other = format!("has no state, and neither has {other}: unless the members that {by} knows have changed");
    eventually("it says that it cannot be added", || said().contains(&other));
    let mut status = (0, String::new(), String::new());
    eventually("nobody leads", || {
        status = members.ask(&["status"]);
        status.0 == 5
    });
    let mut lost = dead.map(name);
    lost.sort();
    let what = format!("the cluster's state is lost: {} were started again without it", lost.join(", "));
    let shown = status.1.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.contains(&what) && !shown.contains("add it"), "{shown}");
    assert_eq!(members.status()["lost"], serde_json::json!(lost));
    // What it says can be done.
    let address = &members.addresses[alive];
    assert!(shown.contains(&format!("sinew replica get '' --prefix --stale --at {address}")), "{shown}");
    let left = run(&mut sinew(&["replica", "get", "", "--prefix", "--stale", "--at", address]));
    assert_eq!(text(&left.stdout), "colour=blue\n", "{left:?}");
    drop(second);
    (0..3).for_each(|at| members.kill(at));
    (0..3).for_each(|at| members.begin(at));
    assert_eq!(members.ask(&["put", "colour", "red", "--timeout-ms", "20000"]).1, "revision 1\n");
}

#[test]
fn an_incomplete_write_at_the_end_of_a_log_is_cut_off_and_told() {
    let mut members = Members::start(1, true);
    assert_eq!(members.ask(&["put", "colour", "blue"]).0, 0);
    assert_eq!(members.status_of(0)["truncated_len"], 0);
    members.kill(0);
    let data = members.data.as_ref().unwrap().0.join("a");
    let names = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let log = data.join(names.filter(|name| name.starts_with("log-")).max().unwrap());
    std::fs::OpenOptions::new().append(true).open(&log).unwrap().write_all(b"torn").unwrap();
    let folder = Folder::new();
    let notes = folder.0.join("notes");
    let _member = members.begin_with_notes(0, &notes);
    eventually("it serves", || members.status_of(0)["truncated_len"] == 4);
    let said = std::fs::read_to_string(&notes).unwrap();
    assert!(said.contains(&format!("cut off the last 4 bytes of {}, an incomplete write", log.display())), "{said}");
    assert_eq!(members.ask(&["get", "colour"]).1, "blue");
}

#[test]
fn a_member_moves_to_another_address_with_its_data() {
    let mut members = Members::start(3, true);
    assert_eq!(members.ask(&["put", "colour", "blue"]).0, 0);
    let leader = members.leader();
    let (moved, third) = ((leader + 1) % 3, (leader + 2) % 3);
    members.kill(moved);
    let former = std::mem::replace(&mut members.addresses[moved], free_addresses(1).remove(0));
    let folder = Folder::new();
    let notes = folder.0.join("notes");
    let there = members.begin_with_notes(moved, &notes);
    let add = format!("{}={}", name(moved), members.addresses[moved]);
    let advice = format!("give them the new one with: sinew replica add {add}");
    eventually("it says what to do", || std::fs::read_to_string(&notes).unwrap().contains(&advice));
    let (status, _, complaint) = members.ask(&["add", &add]);
    assert_eq!(status, 0, "{complaint}");
    eventually("it follows", || members.status_of(moved)["role"] == "follows");
    // The others need it now. It has its log, so it was not added anew.
    members.kill(third);
    assert_eq!(members.ask(&["put", "colour", "green", "--timeout-ms", "20000"]).1, "revision 2\n");
    drop(there);
    members.begin(moved);
    assert_eq!(members.ask(&["put", "colour", "red", "--timeout-ms", "20000"]).1, "revision 3\n");
    members.begin(third);
    let status = members.ask(&["status"]).1;
    assert!(!status.contains(&former), "{status}");
    assert_eq!(members.ask(&["add", &add]).0, 0, "an address that is known already is no error");
}

/// Adds a follower at another address, where a copy of its data is started while the original runs, `before` the leader
/// is asked or long after.
fn a_copy_is_refused(before: bool) {
    let members = Members::start(3, true);
    assert_eq!(members.ask(&["put", "colour", "blue"]).0, 0);
    let (copied, folder) = ((members.leader() + 1) % 3, Folder::new());
    for entry in std::fs::read_dir(members.data.as_ref().unwrap().0.join(name(copied))).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.0.join(path.file_name().unwrap())).unwrap();
    }
    let address = free_addresses(1).remove(0);
    let peers = members.peers().replace(&members.addresses[copied], &address);
    let start = || {
        let mut serve = sinew(&["serve", "replica", "--child", "--name", &name(copied), "--peers", &peers, "--data"]);
        Server::of(serve.arg(&folder.0))
    };
    let add = || members.ask(&["add", &format!("{}={address}", name(copied)), "--timeout-ms", "20000"]);
    let (status, _, complaint) = std::thread::scope(|scope| {
        let _early = before.then(start);
        let added = scope.spawn(add);
        let _late = (!before).then(|| {
            std::thread::sleep(Duration::from_millis(1500));
            start()
        });
        added.join().unwrap()
    });
    let says = format!("{} says that it is at {}: stop it there", name(copied), members.addresses[copied]);
    assert!(status == 1 && complaint.contains(&says), "{complaint}");
}

#[test]
fn a_copy_of_a_member_that_lives_does_not_take_its_place() {
    a_copy_is_refused(true);
}

/// The leader asks for the original from the moment at which the copy answers, however long it waited for that.
#[test]
fn a_copy_that_is_started_long_after_it_was_added_does_not_take_its_place_either() {
    a_copy_is_refused(false);
}

#[test]
fn a_cluster_with_a_key_lets_nobody_in_without_it() {
    let folder = Folder::new();
    let file = |name: &str, byte: u8| {
        let path = folder.0.join(name);
        std::fs::write(&path, [byte; 32]).unwrap();
        path
    };
    let (key, other) = (file("key", 1), file("other", 2));
    let mut members = Members::start_with(3, false, Some(key.clone()));
    let ask = |members: &Members, args: &[&str], key: &Path| {
        members.ask(&[args, &["--key-file", &key.display().to_string()]].concat())
    };
    eventually("a leader", || ask(&members, &["status"], &key).0 == 0);
    assert_eq!(ask(&members, &["put", "colour", "blue"], &key).1, "revision 1\n");
    let (status, _, complaint) = members.ask(&["put", "colour", "red"]);
    assert!(status == 1 && complaint.contains("it wants the cluster's key; give"), "{complaint}");
    let (status, _, complaint) = ask(&members, &["put", "colour", "red"], &other);
    assert!(status == 1 && complaint.contains("it does not have the key that it asks for"), "{complaint}");
    // The others do not accept a member with another key, whichever side calls.
    members.kill(2);
    members.key = Some(other);
    members.begin(2);
    let (status, _, complaint) = ask(&members, &["add", &format!("c={}", members.addresses[2])], &key);
    assert!(status != 0, "{complaint}");
    assert_eq!(ask(&members, &["get", "colour"], &key).1, "blue");
    // With the right one it is.
    members.kill(2);
    members.key = Some(key.clone());
    members.begin(2);
    let add = ["add", &format!("c={}", members.addresses[2])];
    eventually("it is added", || ask(&members, &add, &key).0 == 0);
    members.kill(0);
    assert_eq!(ask(&members, &["put", "colour", "green", "--timeout-ms", "20000"], &key).1, "revision 2\n");
}

#[test]
fn arguments_that_cannot_be_are_refused() {
    for (args, what) in [
        ("serve replica --name a --peers b=udp://127.0.0.1:1", "does not say where it is"),
        ("serve replica --name a --peers a=udp://10.0.0.1:1", "--key-file FILE"),
        ("serve replica --name a --peers a", "NAME=URL"),
        ("serve replica --name a --peers a=udp://127.0.0.1:1,b=shm://b", "on one fabric"),
        ("serve replica --name a --open --peers a=udp://0.0.0.0:1,b=udp://10.0.0.2:1", "at which the others"),
        ("serve replica --name a --open --peers a=udp://[::]:1", "at which the others"),
        ("replica get k --at udp://127.0.0.1:1,shm://b", "on one fabric"),
        ("replica get k --after a", "--prefix"),
        ("replica get k --at nothing", "nothing"),
        ("replica get --hex 0x", "two hexadecimal digits for each byte"),
        ("serve replica --name a --peers a=udp://127.0.0.1:1,a=udp://127.0.0.1:2", "two peers have one name"),
        ("serve replica --name a --peers a=udp://127.0.0.1:1,b=udp://127.0.0.1:1", "have one address"),
        ("replica add x=udp://0.0.0.0:1", "at which the others reach x"),
    ] {
        let complaint = common::complaint(args);
        assert!(complaint.contains(what), "{args}: {complaint}");
    }
}
