//! `sinew kv`, as its users run it.

mod common;

use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Folder, Server, client, eventually, positive, results, run, sinew, text, unique};
use rustix::process::Signal;
use serde_json::Value;
use sinew::kv::cache::protocol::PutOptions;
use sinew::kv::cache::{Client, ClientConfig, Error, REQUESTS, Service};
use sinew::store::cache::CacheConfig;

#[test]
fn a_table_is_measured_beside_what_memory_allows() {
    for (distribution, value_size) in [("uniform", "32"), ("zipf", "100"), ("uniform", "0")] {
        let results =
            results(
                sinew(&["kv", "bench", "table", "--keys", "10K", "--seconds", "0.05", "--json", "--batch", "8,1"])
                    .args(["--get", "50", "--dist", distribution, "--value-size", value_size]),
            );
        for result in &results {
            for place in
                ["/figure", "/limit", "/ratio", "/percentiles/p50_ns", "/percentiles/p99_ns", "/details/index_bytes"]
            {
                positive(result, place);
            }
            // Nearly all keys fit, and popular ones are put again after they were evicted.
            assert!(positive(result, "/details/hit_percent") > 95.0, "{result}");
            let workload = &result["setup"]["workload"];
            assert_eq!((&workload["keys"], &workload["dist"]), (&10_000.into(), &distribution.into()));
        }
        let batches: Vec<_> = results.iter().map(|result| result["setup"]["batch"].as_u64()).collect();
        assert_eq!(batches, [Some(1), Some(8), None]);
        positive(&results[1], "/details/gain");
        assert_eq!(results[2]["setup"]["pipeline"], 32);
        positive(&results[2], "/details/gain");
    }
}

#[test]
fn a_missed_threshold_is_an_exit_status() {
    let args = ["kv", "bench", "table", "--keys", "1K", "--seconds", "0.02", "--batch", "4", "--fail-if-below", "1e9"];
    let output = run(&mut sinew(&args));
    // A result from a busy machine is not compared with the threshold.
    let expected = if text(&output.stdout).contains("INVALID") { 4 } else { 3 };
    assert_eq!(output.status.code(), Some(expected), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("1000 keys of 16 B"), "{}", text(&output.stdout));
}

#[test]
fn what_cannot_be_measured_is_told_before_anything_is_started() {
    for wrong in [
        "table --keys 0",
        "table --keys 3G",
        "table --get 101",
        "table --get nan",
        "table --batch 65",
        "table --batch 0",
        "table --value-size 5K",
        "table --fail-if-above 1ms",
        "table --mix ycsb-a",
        "table --emulate",
        "rpc --keys=1G",
        "rpc --value-size=2M",
        "rpc --batch=4,8",
        "rpc --fabric=hub",
        "rpc --address=shm://",
        "rpc --keys-per-get=65",
        "rpc --rate=0",
        "farm --address=shm://somewhere",
        "farm --value-size=5K",
        "pilaf --out-of-line",
        "drtm --emulate",
        "pilaf --fabric=udp",
        "pilaf --window=2000",
        "no-such-design",
    ] {
        let output = run(sinew(&["kv", "bench"]).args(wrong.split(' ')));
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}

/// Serves a cache from a process of its own.
fn serve(address: &str, options: &[&str]) -> Server {
    let args = ["serve", "cache", address, "--child", "--block", "--memory", "8M", "--peer-timeout-ms", "1000"];
    Server::of(sinew(&args).args(options))
}

#[test]
fn what_one_process_stores_others_get() {
    let shm = format!("shm://{}", unique("cache"));
    for (address, options) in [(shm.as_str(), &["--threads", "2"][..]), ("udp://127.0.0.1:0", &[])] {
        let server = serve(address, options);
        let address = if options.is_empty() { &server.address } else { address };
        let kv = |args: &[&str]| run(sinew(&["kv"]).args(args).args(["--address", address]));
        for key in ["one", "two", "three", ""] {
            let output = kv(&["get", key]);
            assert_eq!((output.status.code(), output.stdout.len()), (Some(5), 0));
            assert!(text(&output.stderr).contains(&format!("no item has the key `{key}`")));
            assert!(
                kv(&["set", key, &format!("value of {key}"), "--flags", "7", "--expires", "1000"]).status.success()
            );
            assert_eq!(text(&kv(&["get", key]).stdout), format!("value of {key}"));
            let item: Value = serde_json::from_slice(&kv(&["get", key, "--json"]).stdout).unwrap();
            assert_eq!((&item["flags"], &item["value"]), (&7.into(), &format!("value of {key}").into()));
            assert!((900..=1000).contains(&item["expires_s"].as_u64().unwrap()), "{item}");
        }
        // A megabyte of arbitrary bytes goes from a file to the cache and back.
        let folder = Folder::new();
        let (path, value) =
            (folder.0.join("value"), (0..1usize << 20).map(|at| (at ^ at >> 9) as u8).collect::<Vec<_>>());
        fs::write(&path, &value).unwrap();
        let set = run(sinew(&["kv", "set", "large", "--address", address]).stdin(File::open(&path).unwrap()));
        assert!(set.status.success(), "{}", text(&set.stderr));
        assert!(kv(&["get", "large"]).stdout == value);
        fs::write(&path, [&value[..], b"x"].concat()).unwrap();
        let set = run(sinew(&["kv", "set", "large", "--address", address]).stdin(File::open(&path).unwrap()));
        assert_eq!(set.status.code(), Some(1));
        assert!(text(&set.stderr).contains("longer than the 1048576 that this cache takes"), "{}", text(&set.stderr));
        assert_eq!([kv(&["delete", "one"]).status.code(), kv(&["delete", "one"]).status.code()], [Some(0), Some(5)]);
        let stats: Value = serde_json::from_slice(&kv(&["stats", "--json"]).stdout).unwrap();
        let counts = ["hits", "misses", "items", "stored", "refused"].map(|name| stats[name].as_u64().unwrap());
        assert_eq!(counts, [9, 4, 4, 5, 1], "{stats}");
        assert!(text(&kv(&["stats"]).stdout).contains("hits            9"));
    }
}

#[test]
fn keys_that_are_not_text_are_given_as_hexadecimal_digits() {
    let address = format!("shm://{}", unique("cache"));
    let _server = serve(&address, &[]);
    let kv = |args: &[&str]| run(sinew(&["kv"]).args(args).args(["--address", &address]));
    assert!(kv(&["set", "--hex", "00ff", "5"]).status.success());
    assert!(kv(&["set", "a", "w"]).status.success());
    let values = [["get", "--hex", "00ff"], ["incr", "--hex", "00FF"], ["get", "--hex", "61"]].map(|args| kv(&args));
    assert_eq!(values.map(|output| text(&output.stdout)), ["5", "6\n", "w"]);
    assert!(kv(&["touch", "--hex", "00ff"]).status.success() && kv(&["delete", "--hex", "00ff"]).status.success());
    let codes = [["get", "--hex", "00ff"], ["get", "--hex", "00f"]].map(|args| kv(&args).status.code());
    assert_eq!(codes, [Some(5), Some(2)]);
}

#[test]
fn a_client_finds_its_cache_again_after_it_was_killed() {
    let address = format!("shm://{}", unique("cache"));
    let server = serve(&address, &[]);
    let mut cache = Client::connect(client(&address), [address.clone()]).unwrap();
    cache.put(b"key", b"value", PutOptions::default()).unwrap();
    assert_eq!(cache.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    let keys = [&b"key"[..], b"none"];
    assert_eq!(cache.get_many(&keys).unwrap(), [Some(b"value".to_vec()), None]);
    server.process.signal(Signal::KILL);
    assert!(matches!(cache.get(b"key"), Err(Error::Call(_))));
    drop(server);
    let _server = serve(&address, &[]);
    // Each session notices the new server by itself.
    eventually("the client finds the new server", || cache.get(b"key").is_ok_and(|found| found.is_none()));
    cache.put(b"key", b"new", PutOptions::default()).unwrap();
    assert_eq!(cache.stats().unwrap()[0].items, 1);
}

#[test]
fn a_cache_over_rpc_is_measured_beside_echoes() {
    for (fabric, options) in [
        ("shm", &["--threads", "2", "--no-pin"][..]),
        ("shm", &["--keys-per-get", "8", "--dist", "zipf", "--get", "50"]),
        ("udp", &["--value-size", "100"]),
        ("shm", &["--mix", "ycsb-f", "--rate", "0.01"]),
        ("shm", &["--mix", "ycsb-d", "--keys-per-get", "4"]),
        ("udp", &["--mix", "etc"]),
    ] {
        let mut args = vec!["kv", "bench", "rpc", "--fabric", fabric, "--keys", "2K", "--seconds", "0.05"];
        args.extend(["--window", "16", "--batch", "4", "--json"]);
        let result = &results(sinew(&args).args(options))[0];
        for place in
            ["/figure", "/limit", "/ratio", "/percentiles/p50_ns", "/percentiles/p99_ns", "/details/keys_checked"]
        {
            positive(result, place);
        }
        assert!(positive(result, "/details/hit_percent") > 95.0, "{result}");
        let setup = &result["setup"];
        assert_eq!((&setup["fabric"], &setup["workload"]["keys"]), (&fabric.into(), &2_000.into()));
    }
}

#[test]
fn stores_whose_gets_are_reads_are_measured_beside_bare_reads() {
    for (design, options, reads) in [
        ("pilaf", &["--get", "90"][..], 2.3..2.9),
        ("pilaf", &["--emulate"], 2.5..2.7),
        ("farm", &["--get", "50"], 1.0..1.2),
        ("farm", &["--out-of-line", "--value-size", "100"], 2.0..2.2),
        ("farm", &["--out-of-line", "--emulate"], 2.0..2.1),
        ("drtm", &["--get", "90"], 1.0..1.1),
        ("drtm", &["--get", "50", "--dist", "zipf", "--value-size", "500"], 1.0..3.0),
    ] {
        let args = ["kv", "bench", design, "--keys", "2K", "--seconds", "0.05", "--no-pin", "--json"];
        let result = &results(sinew(&args).args(options))[0];
        let details = &result["details"];
        for place in ["/figure", "/limit", "/ratio", "/percentiles/p50_ns", "/details/answers_checked"] {
            positive(result, place);
        }
        assert!(details["hit_percent"] == 100.0, "{result}");
        assert!(reads.contains(&positive(result, "/details/reads_per_get")), "{result}");
        let counts = ["puts", "lock_conflicts", "put_retries", "puts_contended"];
        assert!(counts.iter().all(|count| details[count].is_u64() == (design == "drtm")), "{result}");
        assert!(design != "drtm" || positive(result, "/details/atomics_per_put") >= 1.9, "{result}");
    }
}

#[test]
fn a_client_that_waits_waits_no_longer_than_it_says() {
    use sinew::prelude::{Cause, Config, Flow, Nexus, Rpc};
    let pause = Arc::new(AtomicBool::new(false));
    let service = Service::new(1, &CacheConfig { items: 16, memory_bytes: 1 << 20, ..CacheConfig::default() }).unwrap();
    let config = Config { message_len_max: service.message_len_max() as u32, ..common::config() };
    let nexus = Nexus::builder().config(config).build().unwrap();
    let in_program = Arc::clone(&pause);
    let server = nexus.server().at(format!("shm://{}", unique("slow"))).program(move |endpoint, rpc| {
        rpc.handle_burst(REQUESTS, service.handler(endpoint))?;
        let pause = Arc::clone(&in_program);
        Ok(move |rpc: &mut Rpc| -> sinew::Result<Flow> {
            Ok(match pause.load(Ordering::Acquire) {
                false => rpc.turn().into(),
                true => Flow::IdleFor(1_000_000),
            })
        })
    });
    let server = server.start().unwrap();
    let addresses = [server.addresses()[0].to_string()];
    let config = ClientConfig { timeout_ns: Some(common::PATIENCE.as_nanos() as u64), ..ClientConfig::default() };
    let mut cache = Client::connect_with(client("shm://"), addresses, config).unwrap();
    cache.put(b"key", b"value", PutOptions::default()).unwrap();
    cache.set_timeout_ns(Some(5_000_000));
    pause.store(true, Ordering::Release);
    let error = cache.get(b"key").unwrap_err();
    assert!(matches!(&error, Error::Call(error) if error.cause == Cause::DeadlinePassed), "{error}");
    pause.store(false, Ordering::Release);
    cache.set_timeout_ns(None);
    assert_eq!(cache.get(b"key").unwrap().as_deref(), Some(b"value".as_slice()));
}
