//! `sinew serve index` and `sinew index`, as their users run them.

mod common;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Server, client, positive, results, run, sinew, text, unique};
use rustix::process::Signal;
use serde_json::{Value, json};
use sinew::kv::ordered::{Client, Error};

fn serve(more: &[&str]) -> (Server, String) {
    let address = format!("shm://{}", unique("index"));
    let server = Server::of(sinew(&["serve", "index", &address, "--child"]).args(more));
    (server, address)
}

/// Returns what the command prints for this index.
fn ask(address: &str, args: &[&str]) -> String {
    let output = run(sinew(&["index"]).args(args).args(["--address", address]));
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn what_was_put_is_found_scanned_and_summed_until_it_is_deleted() {
    let (_server, address) = serve(&["--memory", "1M"]);
    for (key, value) in [("pear", "3"), ("apple", "1"), ("banana", "2"), ("apricot", "4")] {
        ask(&address, &["put", key, value]);
    }
    assert_eq!(ask(&address, &["get", "apple"]), "1");
    assert_eq!(ask(&address, &["scan"]), "apple\t1\napricot\t4\nbanana\t2\npear\t3\n");
    assert_eq!(ask(&address, &["scan", "--prefix", "ap"]), "apple\t1\napricot\t4\n");
    assert_eq!(ask(&address, &["scan", "--after", "apple", "--to", "pear"]), "apricot\t4\nbanana\t2\n");
    assert_eq!(ask(&address, &["scan", "--from", "apricot", "--limit", "1"]), "apricot\t4\n");
    let scan: Value = serde_json::from_str(&ask(&address, &["scan", "--limit", "1", "--json"])).unwrap();
    assert_eq!(scan, json!({ "entries": [{ "key": "apple", "value": "1" }], "more": true }));
    // None of the values is a number of eight bytes.
    let sum: Value = serde_json::from_str(&ask(&address, &["sum", "--json"])).unwrap();
    assert_eq!(sum, json!({ "sum": "0", "added": 0, "passed_over": 4 }));
    ask(&address, &["put", "number", "8 digits"]);
    assert_eq!(ask(&address, &["sum"]), format!("{}\n", u64::from_le_bytes(*b"8 digits")));
    ask(&address, &["delete", "apple"]);
    let gone = run(&mut sinew(&["index", "get", "apple", "--address", &address]));
    assert_eq!((gone.status.code(), text(&gone.stderr)), (Some(5), "sinew: the index has no key `apple`\n".into()));
    let stats: Value = serde_json::from_str(&ask(&address, &["stats", "--json"])).unwrap();
    assert_eq!((stats["entries"].as_u64(), stats["memory_bytes"].as_u64()), (Some(4), Some(1 << 20)));
}

#[test]
fn an_index_serves_over_udp_too() {
    let server = Server::of(&mut sinew(&["serve", "index", "udp://127.0.0.1:0", "--child"]));
    let address = &server.address;
    let long = "of many packets ".repeat(1000);
    for (key, value) in [("pear", "3"), ("apple", "8 digits"), ("long", long.as_str())] {
        ask(address, &["put", key, value]);
    }
    assert_eq!(ask(address, &["get", "long"]), long);
    assert_eq!(ask(address, &["scan"]), format!("apple\t8 digits\nlong\t{long}\npear\t3\n"));
    assert_eq!(ask(address, &["sum"]), format!("{}\n", u64::from_le_bytes(*b"8 digits")));
    ask(address, &["delete", "long"]);
    assert_eq!(ask(address, &["scan"]), "apple\t8 digits\npear\t3\n");
}

#[test]
fn sums_of_many_answers_are_those_of_the_values() {
    let (_server, address) = serve(&["--workers", "2"]);
    let mut client = Client::connect(client(&address), &address).unwrap();
    let numbers: Vec<u64> = (0..500).map(|number| u64::MAX - number).collect();
    for number in &numbers {
        assert!(!client.put(format!("{number:020}").as_bytes(), &number.to_le_bytes()).unwrap());
    }
    let all = (Bound::Unbounded, Bound::Unbounded);
    let total = client.sum(all, u64::MAX).unwrap();
    let expected: u128 = numbers.iter().map(|number| u128::from(*number)).sum();
    assert_eq!((total.sum, total.added, total.passed_over), (expected, 500, 0));
    assert_eq!(client.sum(all, 10).unwrap().added, 10);
    let mut seen = 0;
    assert!(
        !client
            .scan_all(all, u64::MAX, |_, _| {
                seen += 1;
                true
            })
            .unwrap()
    );
    assert_eq!(seen, 500);
}

/// Sets a flag that ends other threads, also when an assertion fails.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two threads serve one index. A writer changes odd keys at one of them while a reader scans at the other.
#[test]
fn scans_in_workers_see_every_key_that_stands_beside_writers() {
    let (_server, address) = serve(&["--threads", "2"]);
    let key = |number: u64| format!("{:08}", number * 7919 % 1000).into_bytes();
    let mut standing = BTreeMap::new();
    let mut first = Client::connect(client(&address), &address).unwrap();
    for number in (0..1000).step_by(2) {
        first.put(&key(number), &number.to_le_bytes()).unwrap();
        standing.insert(key(number), number);
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = SetAtEnd(&over);
        let (other, over) = (format!("{address}.1"), &over);
        scope.spawn(move || {
            let mut writer = Client::connect(client(&other), &other).unwrap();
            let mut number = 1;
            while !over.load(Ordering::Relaxed) {
                number = ((number + 338) % 1000) | 1;
                writer.put(&key(number), b"comes and goes").unwrap();
                number = ((number + 338) % 1000) | 1;
                writer.delete(&key(number)).unwrap();
            }
        });
        for _ in 0..200 {
            let mut missing = standing.clone();
            let mut last = Vec::new();
            first
                .scan_all((Bound::Unbounded, Bound::Unbounded), u64::MAX, |key, value| {
                    assert!(key > &last[..]);
                    last = key.to_vec();
                    if let Some(number) = missing.remove(key) {
                        assert_eq!(value, number.to_le_bytes());
                    }
                    true
                })
                .unwrap();
            assert!(missing.is_empty(), "{missing:?}");
        }
    });
}

#[test]
fn a_client_reaches_an_index_that_was_started_again() {
    let (mut server, address) = serve(&[]);
    let mut client = Client::connect(client(&address), &address).unwrap();
    client.put(b"key", b"value").unwrap();
    server.process.signal(Signal::KILL);
    server.process.wait();
    assert!(matches!(client.get(b"key"), Err(Error::Call(_))));
    let _again = Server::of(&mut sinew(&["serve", "index", &address, "--child"]));
    assert_eq!(client.get(b"key").unwrap(), None);
}

#[test]
fn an_index_takes_entries_up_to_its_memory_and_more_once_some_are_deleted() {
    // Two entries of 290 bytes and a key and a value of two bytes each.
    let (_server, address) = serve(&["--memory", "588"]);
    let refused = |key: &str, value: &str| {
        let output = run(&mut sinew(&["index", "put", key, value, "--address", &address]));
        let stderr = text(&output.stderr);
        assert!(output.status.code() == Some(1) && stderr.contains("the index is full"), "{stderr}");
        assert!(stderr.contains("588 B"), "{stderr}");
    };
    let used = || {
        let stats: Value = serde_json::from_str(&ask(&address, &["stats", "--json"])).unwrap();
        ["entries", "used_bytes", "memory_bytes"].map(|name| stats[name].as_u64().unwrap())
    };
    ask(&address, &["put", "k1", "v1"]);
    refused("k2", "v12");
    assert_eq!(used(), [1, 294, 588]);
    ask(&address, &["put", "k2", "v2"]);
    refused("k3", "");
    refused("k1", "v11");
    assert_eq!(ask(&address, &["scan"]), "k1\tv1\nk2\tv2\n");
    ask(&address, &["put", "k1", "v3"]);
    assert_eq!((ask(&address, &["get", "k1"]), used()), ("v3".into(), [2, 588, 588]));
    ask(&address, &["delete", "k1"]);
    ask(&address, &["put", "k3", "v3"]);
    assert_eq!(ask(&address, &["scan"]), "k2\tv2\nk3\tv3\n");
    assert!(ask(&address, &["stats"]).ends_with("used            588 B\nmemory          588 B\n"));
}

#[test]
fn keys_that_are_not_text_are_given_and_printed_as_hexadecimal_digits() {
    let (_server, address) = serve(&[]);
    ask(&address, &["put", "--hex", "00ff", "v"]);
    ask(&address, &["put", "a", "w"]);
    assert_eq!(ask(&address, &["get", "--hex", "00FF"]), "v");
    assert_eq!(ask(&address, &["get", "--hex", "61"]), "w");
    assert_eq!(ask(&address, &["scan", "--hex"]), "00ff\t76\n61\t77\n");
    assert_eq!(ask(&address, &["scan", "--hex", "--after", "00ff"]), "61\t77\n");
    let scan: Value = serde_json::from_str(&ask(&address, &["scan", "--hex", "--prefix", "00", "--json"])).unwrap();
    assert_eq!(scan, json!({ "entries": [{ "key": "00ff", "value": "76" }], "more": false }));
    // Without the option, a line has the bytes themselves.
    let output = run(&mut sinew(&["index", "scan", "--address", &address]));
    assert_eq!(output.stdout, b"\x00\xff\tv\na\tw\n");
    ask(&address, &["delete", "--hex", "00ff"]);
    assert_eq!(ask(&address, &["scan"]), "a\tw\n");
}

#[test]
fn nobody_there_and_wrong_usage_are_told_with_what_to_do() {
    let nobody = run(&mut sinew(&["index", "get", "key", "--address", "shm://nobody-serves-this-index"]));
    let stderr = text(&nobody.stderr);
    assert!(nobody.status.code() == Some(1) && stderr.contains("sinew serve index"), "{stderr}");
    for wrong in [
        "serve index --value-max 0",
        "serve index --value-max 1G",
        "serve index --workers 0",
        "serve index --scans dispatch --workers 2",
        "index bench gets --keys 0",
        "index bench scans --scan-share 0",
        "index bench scans --scan-share nan",
        "index bench gets --window 4 --batch 8",
        "index bench gets --fabric hub",
        "index scan --prefix a --from b",
        "index get --hex 0",
        "index scan --hex --prefix 0g",
    ] {
        let output = run(sinew(&[]).args(wrong.split(' ')));
        assert_eq!(output.status.code(), Some(2), "{wrong}: {}", text(&output.stderr));
    }
}

#[test]
fn gets_are_measured_beside_echoes_and_beside_scans_in_dispatch() {
    for what in ["gets", "scans"] {
        let more = ["--keys", "10K", "--seconds", "0.05", "--json"];
        for result in results(sinew(&["index", "bench", what]).args(more)) {
            for place in ["/figure", "/limit", "/percentiles/p50_ns", "/details/answers_checked"] {
                positive(&result, place);
            }
        }
    }
}
