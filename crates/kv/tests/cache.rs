//! The cache over RPC, on a network in memory.

mod common;

use common::{TestPipeline, World};
use sinew_fabric::fault::FaultConfig;
use sinew_kv::cache::protocol::{Lookup, PutOptions, Refusal, Request, Response};
use sinew_kv::cache::{ClientConfig, Error, REQUESTS, RequestOptions, Service};
use sinew_rpc::{Cause, Config, Nexus};
use sinew_store::cache::{CacheConfig, When, WhenFull};

fn small() -> CacheConfig {
    CacheConfig { items: 4096, memory_bytes: 8 << 20, ..CacheConfig::default() }
}

fn world(partitions: usize) -> (World, TestPipeline) {
    let mut world = World::new(partitions, &small());
    let pipeline = world.connect(ClientConfig::default(), FaultConfig::NONE);
    (world, pipeline)
}

/// Result of the one request in flight, as text to compare.
fn outcome(world: &mut World, pipeline: &mut TestPipeline) -> String {
    world.answer(pipeline, |answer| match answer.response {
        Ok(Response::Value(value)) => format!("value {}", String::from_utf8_lossy(value)),
        Ok(Response::Item(item)) => {
            format!("item {} flags {} lives {}", String::from_utf8_lossy(item.value), item.flags, item.lives_s)
        }
        Ok(Response::Stored { .. }) => "stored".to_owned(),
        Ok(Response::Miss) => "miss".to_owned(),
        Ok(Response::Deleted) => "deleted".to_owned(),
        Ok(other) => format!("{other:?}"),
        Err(error) => error.to_string(),
    })
}

fn put(world: &mut World, pipeline: &mut TestPipeline, key: &[u8], value: &[u8], options: PutOptions) -> String {
    pipeline.put(key, value, options, 0).unwrap();
    outcome(world, pipeline)
}

fn get(world: &mut World, pipeline: &mut TestPipeline, key: &[u8]) -> String {
    pipeline.get(key, 0).unwrap();
    outcome(world, pipeline)
}

#[test]
fn what_was_stored_is_there_until_it_is_deleted() {
    let (mut world, mut pipeline) = world(3);
    let keys: Vec<_> = (0..100u32).map(|key| format!("key {key}").into_bytes()).collect();
    for key in &keys {
        assert_eq!(get(&mut world, &mut pipeline, key), "miss");
        assert_eq!(put(&mut world, &mut pipeline, key, key, PutOptions::default()), "stored");
    }
    for key in &keys {
        assert_eq!(get(&mut world, &mut pipeline, key), format!("value {}", String::from_utf8_lossy(key)));
    }
    // Every partition has some of the items.
    let items: Vec<_> = world.partitions.iter().map(|partition| partition.stats().items).collect();
    assert!(items.iter().all(|items| *items > 10) && items.iter().sum::<u64>() == 100, "{items:?}");
    for key in &keys {
        for expected in ["deleted", "miss"] {
            pipeline.delete(key, 0).unwrap();
            assert_eq!(outcome(&mut world, &mut pipeline), expected);
        }
        assert_eq!(get(&mut world, &mut pipeline, key), "miss");
    }
    let stats = world.partitions.iter().map(|partition| partition.stats()).reduce(|all, one| all.plus(&one)).unwrap();
    assert_eq!((stats.hits, stats.misses, stats.stored, stats.items, stats.refused), (100, 200, 100, 0, 0));
}

#[test]
fn conditions_hold_or_nothing_is_stored() {
    let (mut world, mut pipeline) = world(2);
    let (world, pipeline) = (&mut world, &mut pipeline);
    let with = |when| PutOptions { when, ..PutOptions::default() };
    assert_eq!(put(world, pipeline, b"key", b"1", with(When::Present)), "no item has this key");
    assert_eq!(put(world, pipeline, b"key", b"1", with(When::Absent)), "stored");
    assert_eq!(put(world, pipeline, b"key", b"2", with(When::Absent)), "an item has this key already");
    pipeline.inspect(b"key", 0).unwrap();
    let version = world.answer(pipeline, |answer| match answer.response {
        Ok(Response::Item(item)) => item.version,
        other => panic!("{other:?}"),
    });
    let changed = put(world, pipeline, b"key", b"3", with(When::Version(version + 1)));
    assert_eq!(changed, format!("the item was changed: it has version {version}"));
    assert_eq!(get(world, pipeline, b"key"), "value 1");
    assert_eq!(put(world, pipeline, b"key", b"4", with(When::Version(version))), "stored");
    assert_eq!(get(world, pipeline, b"key"), "value 4");
    // A condition that does not hold is not counted as a refusal.
    assert!(world.partitions.iter().all(|partition| partition.stats().refused == 0));
}

#[test]
fn items_end_in_their_time_and_keep_what_is_said_of_them() {
    let (mut world, mut pipeline) = world(1);
    let (world, pipeline) = (&mut world, &mut pipeline);
    world.now_s = 1_000;
    let options = PutOptions { flags: 77, lives_s: 10, ..PutOptions::default() };
    assert_eq!(put(world, pipeline, b"key", b"short", options), "stored");
    assert_eq!(put(world, pipeline, b"other", b"long", PutOptions { lives_s: u32::MAX, ..options }), "stored");
    world.now_s = 1_009;
    pipeline.inspect(b"key", 0).unwrap();
    assert_eq!(outcome(world, pipeline), "item short flags 77 lives 1");
    world.now_s = 1_010;
    assert_eq!(get(world, pipeline, b"key"), "miss");
    pipeline.inspect(b"other", 0).unwrap();
    assert_eq!(outcome(world, pipeline), format!("item long flags 77 lives {}", u32::MAX - 1_010));
}

#[test]
fn a_touched_item_ends_by_its_new_lifetime_and_is_otherwise_as_it_was() {
    let (mut world, mut pipeline) = world(1);
    let (world, pipeline) = (&mut world, &mut pipeline);
    world.now_s = 1_000;
    pipeline.touch(b"key", 5, 0).unwrap();
    assert_eq!(outcome(world, pipeline), "miss");
    let mortal = PutOptions { flags: 7, lives_s: 10, ..PutOptions::default() };
    for (key, options, lives_s) in [(b"a", mortal, 100), (b"b", PutOptions::default(), 100), (b"c", mortal, 0)] {
        assert_eq!(put(world, pipeline, key, b"value", options), "stored");
        pipeline.touch(key, lives_s, 0).unwrap();
        assert_eq!(outcome(world, pipeline), "Touched");
        pipeline.inspect(key, 0).unwrap();
        assert_eq!(outcome(world, pipeline), format!("item value flags {} lives {lives_s}", options.flags));
    }
    world.now_s = 1_099;
    assert_eq!(get(world, pipeline, b"a"), "value value");
    world.now_s = 1_100;
    for (key, expected) in [(b"a", "miss"), (b"b", "miss"), (b"c", "value value")] {
        assert_eq!(get(world, pipeline, key), expected);
    }
    pipeline.touch(b"a", 5, 0).unwrap();
    assert_eq!(outcome(world, pipeline), "miss", "an item that ended does not come back");
    pipeline.touch(b"c", u32::MAX, 0).unwrap();
    assert_eq!(outcome(world, pipeline), "Touched");
}

#[test]
fn numbers_are_added_to_and_keep_what_is_said_of_them() {
    let (mut world, mut pipeline) = world(2);
    let (world, pipeline) = (&mut world, &mut pipeline);
    let add = |world: &mut World, pipeline: &mut TestPipeline, delta| {
        pipeline.add(b"key", delta, 0).unwrap();
        outcome(world, pipeline)
    };
    assert_eq!(add(world, pipeline, 1), "miss");
    let options = PutOptions { flags: 7, lives_s: 10, ..PutOptions::default() };
    const NONE: &str = "the value is not a number of up to 20 decimal digits below 2^64";
    for (value, delta, expected, stored) in [
        ("0", 1, "Number(1)", "1"),
        ("9", 1, "Number(10)", "10"),
        ("10", -1, "Number(9)", "9"),
        // Trailing spaces, as memcached leaves them.
        ("9 ", 0, "Number(9)", "9"),
        ("007", 1, "Number(8)", "8"),
        ("5", -6, "Number(0)", "0"),
        ("18446744073709551615", 1, "Number(0)", "0"),
        ("18446744073709551615", i64::MIN, "Number(9223372036854775807)", "9223372036854775807"),
        ("0", i64::MAX, "Number(9223372036854775807)", "9223372036854775807"),
        ("18446744073709551616", 0, NONE, "18446744073709551616"),
        ("000000000000000000001", 0, NONE, "000000000000000000001"),
        ("", 1, NONE, ""),
        (" ", 1, NONE, " "),
        ("-1", 1, NONE, "-1"),
        ("+1", 1, NONE, "+1"),
        (" 1", 1, NONE, " 1"),
        ("1x", 1, NONE, "1x"),
    ] {
        assert_eq!(put(world, pipeline, b"key", value.as_bytes(), options), "stored");
        assert_eq!(add(world, pipeline, delta), expected, "{value:?}");
        pipeline.inspect(b"key", 0).unwrap();
        assert_eq!(outcome(world, pipeline), format!("item {stored} flags 7 lives 10"));
    }
    // A value that is not a number is not counted as a refusal.
    assert!(world.partitions.iter().all(|partition| partition.stats().refused == 0));
}

#[test]
fn a_number_that_finds_no_room_stays_as_it_was() {
    let config = CacheConfig { value_len_max: 1, when_full: WhenFull::Refuse, ..small() };
    let mut world = World::new(1, &config);
    let mut pipeline = world.connect(ClientConfig::default(), FaultConfig::NONE);
    assert_eq!(put(&mut world, &mut pipeline, b"key", b"9", PutOptions::default()), "stored");
    pipeline.add(b"key", 1, 0).unwrap();
    assert_eq!(outcome(&mut world, &mut pipeline), "a value of 2 bytes is longer than the 1 that this cache takes");
    assert_eq!(get(&mut world, &mut pipeline, b"key"), "value 9");
}

#[test]
fn a_partition_that_is_flushed_has_no_items_and_takes_new_ones() {
    let (mut world, mut pipeline) = world(2);
    let keys: Vec<_> = (0..40u8).map(|key| [key]).collect();
    for key in &keys {
        assert_eq!(put(&mut world, &mut pipeline, key, b"old", PutOptions::default()), "stored");
    }
    pipeline.flush(1, 0).unwrap();
    assert_eq!(outcome(&mut world, &mut pipeline), "Flushed");
    let partitions = pipeline.partitions().clone();
    for key in &keys {
        let expected = if partitions.of(key) == 1 { "miss" } else { "value old" };
        assert_eq!(get(&mut world, &mut pipeline, key), expected);
        assert_eq!(put(&mut world, &mut pipeline, key, b"new", PutOptions::default()), "stored");
        assert_eq!(get(&mut world, &mut pipeline, key), "value new");
    }
}

#[test]
fn several_keys_come_back_with_their_own_values() {
    let (mut world, mut pipeline) = world(4);
    let keys: Vec<_> = (0..64u32).map(|key| vec![key as u8; key as usize]).collect();
    for key in keys.iter().step_by(2) {
        assert_eq!(put(&mut world, &mut pipeline, key, &key[..key.len() / 2], PutOptions::default()), "stored");
    }
    let asked: Vec<_> = keys.iter().map(Vec::as_slice).collect();
    for count in [1, 2, 17, 64] {
        let requests = pipeline.get_many(&asked[..count], 9).unwrap();
        assert_eq!(pipeline.in_flight(), requests);
        let mut found = vec![None; count];
        for _ in 0..requests {
            world.answer(&mut pipeline, |answer| {
                let Ok(Response::Values(values)) = answer.response else { panic!("{answer:?}") };
                assert_eq!((answer.tag, values.count()), (9, answer.keys.len()));
                for (index, lookup) in answer.keys.iter().zip(values.iter()) {
                    let value = if let Lookup::Hit(value) = lookup { Some(value.to_vec()) } else { None };
                    assert_eq!(found[usize::from(*index)].replace(value), None);
                }
            });
        }
        for (index, value) in found.into_iter().enumerate() {
            let expected = index.is_multiple_of(2).then(|| keys[index][..index / 2].to_vec());
            assert_eq!(value, Some(expected), "{index} of {count}");
        }
    }
    for count in [0, 65] {
        let keys = vec![&b"k"[..]; count];
        assert!(matches!(pipeline.get_many(&keys, 0), Err(Error::Keys { count: asked }) if asked == count));
    }
}

#[test]
fn values_of_a_megabyte_come_back_whole_and_longer_ones_are_refused() {
    let config = CacheConfig { items: 100, memory_bytes: 32 << 20, ..CacheConfig::default() };
    let mut world = World::new(1, &config);
    let mut pipeline = world.connect(ClientConfig::default(), FaultConfig::NONE);
    let value: Vec<u8> = (0..1usize << 20).map(|at| (at * 7 + (at >> 9)) as u8).collect();
    let longer = vec![0; (1 << 20) + 1];
    for key in [&b"one"[..], b"two", b"three"] {
        assert_eq!(put(&mut world, &mut pipeline, key, &value, PutOptions::default()), "stored");
        pipeline.get(key, 0).unwrap();
        world.answer(&mut pipeline, |answer| {
            assert!(matches!(answer.response, Ok(Response::Value(got)) if got == value))
        });
        let refused = put(&mut world, &mut pipeline, key, &longer, PutOptions::default());
        assert_eq!(refused, "a value of 1048577 bytes is longer than the 1048576 that this cache takes");
    }
    // Together they exceed a response: the rest must be asked for one by one.
    pipeline.get_many(&[b"one", b"two", b"none", b"three"], 0).unwrap();
    world.answer(&mut pipeline, |answer| {
        let Ok(Response::Values(values)) = answer.response else { panic!("{answer:?}") };
        let values: Vec<_> = values.iter().collect();
        assert!(values == [Lookup::Hit(&value), Lookup::Omitted, Lookup::Miss, Lookup::Omitted]);
    });
    assert_eq!(world.partitions[0].stats().refused, 3);
    // A value too long for the session's messages is refused in the same words.
    let error = pipeline.put(b"key", &vec![0; 2_000_000], PutOptions::default(), 0).unwrap_err().to_string();
    assert_eq!(error, "a value of 2000000 bytes is longer than the 1048576 that this cache takes");
}

#[test]
fn a_store_that_evicts_nothing_says_when_it_is_full() {
    let config =
        CacheConfig { items: 100, memory_bytes: 16 << 10, when_full: WhenFull::Refuse, ..CacheConfig::default() };
    let mut world = World::new(1, &config);
    let mut pipeline = world.connect(ClientConfig::default(), FaultConfig::NONE);
    let mut stored = 0;
    let refusal = loop {
        match put(&mut world, &mut pipeline, format!("key {stored}").as_bytes(), &[7; 1000], PutOptions::default()) {
            outcome if outcome == "stored" => stored += 1,
            refusal => break refusal,
        }
    };
    assert!((10..17).contains(&stored) && refusal.contains("nothing is evicted here"), "{stored}: {refusal}");
    assert_eq!(get(&mut world, &mut pipeline, b"key 0"), format!("value {}", "\u{7}".repeat(1000)));
}

/// Sends bytes that our client would never send, and returns the answer.
fn raw(world: &mut World, at: usize, request: &[u8]) -> Vec<u8> {
    let mut rpc = world.endpoint(&format!("raw {request:?}"), &Nexus::client(), FaultConfig::NONE);
    let session = rpc.begin_connect(&world.servers[at].address()).unwrap();
    let mut buffer = rpc.alloc(request.len()).unwrap();
    buffer.fill(request).unwrap();
    let response = rpc.alloc(64).unwrap();
    rpc.enqueue_request(session, REQUESTS, buffer, response, 0).unwrap();
    for _ in 0..10_000 {
        rpc.turn();
        world.turn();
        if let Some(completion) = rpc.poll_completion() {
            completion.result.unwrap();
            return completion.response.to_vec();
        }
    }
    panic!("no answer");
}

#[test]
fn hostile_requests_are_refused_and_counted() {
    let (mut world, _pipeline) = world(2);
    let malformed = [
        &b""[..],
        b"\x00",
        b"\x03\x00\xFF\xFFkey",
        b"\x05\x40",
        b"\x05\x01\xFF\xFF",
        b"\xFF\xFF",
        b"\x06x",
        b"\x08\0\0\0",
        b"\x09\x01",
        b"\x0Ax",
        b"\x0B",
    ];
    for (index, request) in malformed.iter().enumerate() {
        let answer = raw(&mut world, 0, request);
        assert_eq!(Response::read(&answer), Ok(Response::Refused(Refusal::Malformed)), "{request:?}");
        assert_eq!(world.partitions[0].stats().refused, index as u64 + 1);
    }
    // Keys of the other partition, alone and among valid ones.
    let partitions = world.partitions[0].partitions().clone();
    let of = |partition| (0u8..=255).find(|key| partitions.of(&[*key]) == partition).unwrap();
    let (own, other) = (of(0), of(1));
    for request in [
        &[1, other][..],
        &[3, 0, 1, 0, other],
        &[4, other],
        &[5, 2, 1, 0, own, 1, 0, other],
        &[8, 0, 0, 0, 0, other],
        &[9, 1, 0, 0, 0, 0, 0, 0, 0, other],
    ] {
        let answer = raw(&mut world, 0, request);
        let refusal = Refusal::WrongPartition { partition: 0 };
        assert_eq!(Response::read(&answer), Ok(Response::Refused(refusal)), "{request:?}");
    }
    let answer = raw(&mut world, 0, &[1, own]);
    assert_eq!(Response::read(&answer), Ok(Response::Miss));
}

#[test]
fn a_client_wants_each_partition_once() {
    let (mut world, _pipeline) = world(2);
    let addresses = world.addresses();
    let mut try_with = |addresses: &[&String]| {
        let addresses = addresses.iter().map(|address| (*address).clone()).collect();
        world.connect_to(addresses, ClientConfig::default(), FaultConfig::NONE).err().map(|error| error.to_string())
    };
    let (first, second) = (&addresses[0], &addresses[1]);
    assert_eq!(try_with(&[second, first]), None);
    assert_eq!(try_with(&[first, second, first]), None);
    assert!(try_with(&[first]).unwrap().contains("2 partitions, each at an address of its own, and 1 were given"));
    assert!(try_with(&[first, first]).unwrap().contains("give the address of each partition of one cache once"));
    assert!(try_with(&[]).unwrap().contains("0 were given"));
}

#[test]
fn an_endpoint_without_a_partition_refuses() {
    let mut world = World::new(0, &small());
    let service = Service::new(2, &small()).unwrap();
    let nexus =
        Nexus::builder().handle_burst_with(REQUESTS, move |endpoint| service.handler(endpoint)).build().unwrap();
    // The endpoint's number selects its partition: one claimed already is not given twice, and one beyond the last does
    // not exist.
    for index in [1, 0, 2, 0] {
        let server = world.numbered_endpoint(&format!("server.{}", world.servers.len()), index, &nexus);
        world.servers.push(server);
    }
    let mut info = [0; 1];
    Request::Info.write(&mut info);
    let partitions = [0, 1, 2, 3].map(|server| match Response::read(&raw(&mut world, server, &info)) {
        Ok(Response::Info(info)) => Some(info.partition),
        Ok(Response::Refused(Refusal::NoPartition)) => None,
        other => panic!("{other:?}"),
    });
    assert_eq!(partitions, [Some(1), Some(0), None, None]);
}

#[test]
fn items_end_by_the_clock_of_their_endpoint() {
    let mut world = World::new(1, &small());
    world.now_s = 0;
    let mut pipeline = world.connect(ClientConfig::default(), FaultConfig::NONE);
    let options = PutOptions { lives_s: 2, ..PutOptions::default() };
    assert_eq!(put(&mut world, &mut pipeline, b"key", b"1", options), "stored");
    assert_eq!(get(&mut world, &mut pipeline, b"key"), "value 1");
    world.clock.advance(1_500_000_000);
    assert_eq!(get(&mut world, &mut pipeline, b"key"), "value 1");
    world.clock.advance(1_000_000_000);
    assert_eq!(get(&mut world, &mut pipeline, b"key"), "miss");
}

#[test]
fn a_full_window_is_told_and_nothing_is_lost() {
    let mut world = World::new(2, &small());
    let config = ClientConfig { window: 4, ..ClientConfig::default() };
    let mut pipeline = world.connect(config, FaultConfig::NONE);
    (0..4u8).for_each(|tag| _ = pipeline.put(&[tag], &[tag], PutOptions::default(), u64::from(tag)).unwrap());
    assert!(matches!(pipeline.get(b"key", 9), Err(Error::WindowFull { window: 4 })));
    assert!(matches!(pipeline.get_many(&[b"key"], 9), Err(Error::WindowFull { window: 4 })));
    let mut tags: Vec<_> = (0..4).map(|_| world.answer(&mut pipeline, |answer| answer.tag)).collect();
    tags.sort_unstable();
    assert_eq!((tags, pipeline.in_flight()), (vec![0, 1, 2, 3], 0));
    let long_key = vec![0; 65_536];
    assert!(matches!(pipeline.get(&long_key, 0), Err(Error::KeyTooLong { len: 65_536 })));
    assert_eq!(get(&mut world, &mut pipeline, &long_key[1..]), "miss");
}

/// Returns the tag and the cause of the next failed request, while no server turns.
fn unanswered(world: &mut World, pipeline: &mut TestPipeline) -> Option<(u64, Cause)> {
    pipeline.turn();
    world.clock.advance(20_000);
    pipeline.poll().map(|answer| match answer.response {
        Err(Error::Call(error)) => (answer.tag, error.cause),
        other => panic!("{other:?}"),
    })
}

#[test]
fn requests_end_when_they_were_waited_for_long_enough() {
    const MS: u64 = 1_000_000;
    let mut world = World::new(2, &small());
    let config = ClientConfig { timeout_ns: Some(2 * MS), ..ClientConfig::default() };
    let mut pipeline = world.connect(config, FaultConfig::NONE);
    // The time-out is long enough.
    assert_eq!(put(&mut world, &mut pipeline, b"key", b"1", PutOptions::default()), "stored");
    assert_eq!(get(&mut world, &mut pipeline, b"key"), "value 1");
    // From here on no server answers.
    pipeline.get(b"key", 1).unwrap();
    pipeline.put(b"key", b"2", PutOptions::default(), RequestOptions::tag(2).timeout_ns(MS)).unwrap();
    pipeline.get(b"key", RequestOptions::tag(3).timeout_ns(u64::MAX)).unwrap();
    let parts = pipeline.get_many(&[b"key", b"k", b"e", b"y"], RequestOptions::tag(4).timeout_ns(3 * MS)).unwrap();
    pipeline.stats(1, RequestOptions::tag(5).timeout_ns(4 * MS)).unwrap();
    let ended: Vec<_> = (0..250).filter_map(|_| unanswered(&mut world, &mut pipeline)).collect();
    let tags = [[2, 1].as_slice(), &vec![4; parts], &[5]].concat();
    assert_eq!(ended, tags.into_iter().map(|tag| (tag, Cause::DeadlinePassed)).collect::<Vec<_>>());
    // One request waits as long as it takes, and so do the later ones.
    pipeline.set_timeout_ns(None);
    pipeline.delete(b"k", 6).unwrap();
    assert!((0..250).all(|_| unanswered(&mut world, &mut pipeline).is_none()));
    let mut tags = [0; 2].map(|_| world.answer(&mut pipeline, |answer| (answer.tag, answer.response.is_ok())));
    tags.sort_unstable();
    assert_eq!(tags, [(3, true), (6, true)]);
}

#[test]
fn a_request_is_cancelled_by_its_name() {
    let (mut world, mut pipeline) = world(1);
    let [one, other] = [1, 2].map(|tag| pipeline.put(&[tag], b"value", PutOptions::default(), u64::from(tag)).unwrap());
    assert!(pipeline.cancel(one));
    assert!(!pipeline.cancel(one), "it is over");
    assert_eq!(unanswered(&mut world, &mut pipeline), Some((1, Cause::Cancelled)));
    assert_eq!(world.answer(&mut pipeline, |answer| (answer.tag, answer.response.is_ok())), (2, true));
    assert!(!pipeline.cancel(other), "it was answered");
    assert_eq!(pipeline.in_flight(), 0);
}

/// Requests without a time-out are byte for byte as before time-outs existed.
#[test]
fn only_requests_with_a_time_out_carry_options() {
    let (mut world, mut pipeline) = world(1);
    let mut bytes = [RequestOptions::tag(0), RequestOptions::tag(0).timeout_ns(u64::MAX), 0.into()].map(|options| {
        let before = pipeline.rpc().port_stats().tx_bytes;
        pipeline.get(b"key", options).unwrap();
        assert_eq!(outcome(&mut world, &mut pipeline), "miss");
        pipeline.rpc().port_stats().tx_bytes - before
    });
    assert!(bytes.iter().all(|len| *len == bytes[0]), "{bytes:?}");
    let before = pipeline.rpc().port_stats().tx_bytes;
    pipeline.get(b"key", RequestOptions::tag(0).timeout_ns(1_000_000_000)).unwrap();
    assert_eq!(outcome(&mut world, &mut pipeline), "miss");
    bytes[1] = pipeline.rpc().port_stats().tx_bytes - before;
    assert_eq!(bytes[1], bytes[0] + 8);
}

#[test]
fn a_window_has_its_slots_whatever_a_server_grants() {
    let mut world = World::new(0, &small());
    let service = Service::new(1, &small()).unwrap();
    let config = Config { slots: 2, message_len_max: service.message_len_max() as u32, ..Config::default() };
    let nexus = Nexus::builder().config(config).build().unwrap();
    let mut server = world.endpoint("sparing", &nexus, FaultConfig::NONE);
    server.handle_burst(REQUESTS, service.handler(server.info())).unwrap();
    world.servers.push(server);
    let config = ClientConfig { window: 8, ..ClientConfig::default() };
    let mut pipeline = world.connect(config, FaultConfig::NONE);
    assert_eq!((pipeline.rpc().sessions(), world.servers[0].sessions()), (4, 4));
    for key in 0..8 {
        pipeline.get(&[key], 0).unwrap();
    }
    for _ in 0..8 {
        assert_eq!(outcome(&mut world, &mut pipeline), "miss");
    }
}
