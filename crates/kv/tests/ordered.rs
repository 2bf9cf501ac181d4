//! An ordered index over RPC compared with a `BTreeMap`, on a network in memory that loses, repeats and reorders
//! packets.

use std::collections::BTreeMap;
use std::ops::Bound;

use proptest::prelude::*;
use sinew_fabric::fault::{FaultConfig, Faults, Faulty};
use sinew_fabric::loopback::{LoopbackConfig, LoopbackPort, Network};
use sinew_fabric::{ManualClock, SeededGenerator};
use sinew_kv::ordered::protocol::{Malformed, Refusal, Request, Response, Sum};
use sinew_kv::ordered::{Error, LIMIT_MAX, POINTS, Pipeline, PipelineConfig, RANGES, Range, Service, prefix_range};
use sinew_rpc::{Channel, Config, ConnectOptions, Nexus, NexusBuilder, Rpc};
use sinew_store::ordered::{KEY_LEN_MAX, PutError};

type Endpoint = Rpc<Faulty<LoopbackPort>, ManualClock>;
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

fn nexus(service: &Service, config: Config) -> NexusBuilder {
    let builder = Nexus::builder().config(config);
    builder.handle_burst(POINTS, service.points()).handle(RANGES, service.ranges_in_dispatch())
}

struct World {
    clock: ManualClock,
    server: Endpoint,
    client: Pipeline<Endpoint>,
}

impl World {
    fn new(service: &Service, faults: FaultConfig) -> Self {
        let clock = ManualClock::new();
        clock.advance(1_000_000);
        let network = Network::new(clock.clone());
        let config = Config { message_len_max: service.message_len_max() as u32, ..Config::default() };
        let endpoint = |name: &str, nexus: &Nexus, faults, seed| {
            let port = Faulty::new(network.port_with(name, LoopbackConfig::default()).unwrap(), faults, seed);
            Rpc::new(nexus, port, clock.clone(), Box::new(SeededGenerator::new(seed)))
        };
        let nexus = nexus(service, config.clone()).build().unwrap();
        let mut server = endpoint("index", &nexus, FaultConfig::NONE, 1);
        let mut rpc = endpoint("client", &Nexus::builder().config(config).build().unwrap(), faults, 2);
        let address = server.address().clone();
        let mut channel = Channel::begin_open(&mut rpc, &address, 8, ConnectOptions::new()).unwrap();
        while !channel.poll(&mut rpc).unwrap() {
            rpc.turn();
            server.turn();
            clock.advance(100_000);
        }
        let client = Pipeline::with_channel(rpc, channel, PipelineConfig { window: 8, timeout_ns: None }).unwrap();
        Self { clock, server, client }
    }

    /// Makes a request and passes its answer to `read`.
    fn ask<T>(&mut self, request: &Request<'_>, read: impl FnOnce(Result<Response<'_>, Error>) -> T) -> T {
        self.client.submit(request, 7).unwrap();
        for _ in 0..1_000_000 {
            self.client.turn();
            self.server.turn();
            self.clock.advance(20_000);
            if let Some(answer) = self.client.poll() {
                assert_eq!(answer.tag, 7);
                return read(answer.response);
            }
        }
        panic!("no answer");
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> bool {
        self.ask(&Request::Put { key, value }, |response| match response {
            Ok(Response::Done { existed }) => existed,
            other => panic!("{other:?}"),
        })
    }

    fn scan(&mut self, range: Range<'_>, limit: u32) -> (Entries, bool) {
        self.ask(&Request::Scan { range, limit }, |response| match response {
            Ok(Response::Entries(entries)) => {
                assert_eq!(entries.len(), entries.iter().count());
                (entries.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect(), entries.more)
            }
            other => panic!("{other:?}"),
        })
    }

    fn refusal(&mut self, request: &Request<'_>) -> Refusal {
        self.ask(request, |response| match response {
            Err(Error::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        })
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Get(Vec<u8>),
    Scan(Bound<Vec<u8>>, Bound<Vec<u8>>, u32),
    Sum(Bound<Vec<u8>>, Bound<Vec<u8>>, u32),
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(0u8..3, 0..10)
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![Just(Bound::Unbounded), key().prop_map(Bound::Included), key().prop_map(Bound::Excluded)]
}

fn step() -> impl Strategy<Value = Step> {
    let number = any::<u64>().prop_map(|number| number.to_le_bytes().to_vec());
    let value = prop_oneof![number, proptest::collection::vec(any::<u8>(), 0..30)];
    prop_oneof![
        4 => (key(), value).prop_map(|(key, value)| Step::Put(key, value)),
        1 => key().prop_map(Step::Delete),
        1 => key().prop_map(Step::Get),
        1 => (bound(), bound(), 1..20u32).prop_map(|(from, to, limit)| Step::Scan(from, to, limit)),
        1 => (bound(), bound(), 1..20u32).prop_map(|(from, to, limit)| Step::Sum(from, to, limit)),
    ]
}

fn within(model: &BTreeMap<Vec<u8>, Vec<u8>>, (from, to): Range<'_>) -> Entries {
    let lies_in = |key: &[u8]| {
        (match from {
            Bound::Included(from) => key >= from,
            Bound::Excluded(from) => key > from,
            Bound::Unbounded => true,
        }) && (match to {
            Bound::Included(to) => key <= to,
            Bound::Excluded(to) => key < to,
            Bound::Unbounded => true,
        })
    };
    model.iter().filter(|(key, _)| lies_in(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn an_index_answers_as_a_map_does_whatever_the_network_does(
        steps in proptest::collection::vec(step(), 0..60),
        loss in 0..20u32,
    ) {
        let faults = Faults { drop: f64::from(loss) / 100.0, duplicate: 0.05, reorder: 0.05, ..Faults::NONE };
        let service = Service::new(1 << 20, 1 << 10);
        let mut world = World::new(&service, FaultConfig::both(faults));
        let mut model = BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(key, value) => {
                    let existed = world.put(&key, &value);
                    prop_assert_eq!(existed, model.insert(key, value).is_some());
                }
                Step::Delete(key) => {
                    let expected = model.remove(&key).is_some();
                    world.ask(&Request::Delete { key: &key }, |response| match response {
                        Ok(Response::Done { existed }) => assert_eq!(existed, expected),
                        other => panic!("{other:?}"),
                    });
                }
                Step::Get(key) => world.ask(&Request::Get { key: &key }, |response| match response {
                    Ok(Response::Value(value)) => assert_eq!(model.get(&key).map(Vec::as_slice), Some(value)),
                    Ok(Response::None) => assert_eq!(model.get(&key), None),
                    other => panic!("{other:?}"),
                }),
                Step::Scan(from, to, limit) => {
                    let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
                    let mut expected = within(&model, range);
                    let more = expected.len() > limit as usize;
                    expected.truncate(limit as usize);
                    prop_assert_eq!(world.scan(range, limit), (expected, more));
                }
                Step::Sum(from, to, limit) => {
                    let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
                    let mut expected = within(&model, range);
                    let more = expected.len() > limit as usize;
                    expected.truncate(limit as usize);
                    let numbers: Vec<_> = expected
                        .iter()
                        .filter_map(|(_, value)| value.as_array().map(|number| u128::from(u64::from_le_bytes(*number))))
                        .collect();
                    world.ask(&Request::Sum { range, limit }, |response| match response {
                        Ok(Response::Sum(sum)) => {
                            assert_eq!((sum.sum, sum.more), (numbers.iter().sum(), more));
                            assert_eq!(sum.added as usize, numbers.len());
                            assert_eq!(sum.passed_over as usize, expected.len() - numbers.len());
                            let last = expected.last().filter(|_| more).map_or(&[][..], |(key, _)| key);
                            assert_eq!(sum.last, last);
                        }
                        other => panic!("{other:?}"),
                    });
                }
            }
        }
        prop_assert_eq!(service.index().stats().entries, model.len() as u64);
    }
}

#[test]
fn a_scan_goes_on_where_its_answer_was_full() {
    let service = Service::new(1 << 30, 1 << 20);
    let mut world = World::new(&service, FaultConfig::NONE);
    let names: Vec<_> = (0..1000).map(|number| format!("{number:04}").into_bytes()).collect();
    for name in &names {
        service.index().put(name, &[7; 1000]).unwrap();
    }
    // A value longer than an answer of several entries has an answer to itself.
    service.index().put(b"0500", &[8; 1 << 20]).unwrap();
    let (mut seen, mut answers) = (Vec::new(), 0);
    let mut last: Option<Vec<u8>> = None;
    loop {
        let from = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let (entries, more) = world.scan((from, Bound::Unbounded), LIMIT_MAX);
        answers += 1;
        seen.extend(entries.into_iter().map(|(key, _)| key));
        if !more {
            break;
        }
        last = seen.last().cloned();
    }
    assert_eq!(seen, names);
    assert!((5..10).contains(&answers), "{answers}");
}

#[test]
fn what_an_index_cannot_do_is_refused_and_changes_nothing() {
    let service = Service::new(1 << 10, 100);
    let mut world = World::new(&service, FaultConfig::NONE);
    assert!(!world.put(b"a", &[1; 100]));
    let put = Request::Put { key: b"a", value: &[1; 101] };
    assert_eq!(world.refusal(&put), Refusal::ValueTooLong { len: 101, max: 100 });
    for number in 0u8..10 {
        let put = Request::Put { key: &[number], value: &[1; 100] };
        if world.ask(&put, |response| response.is_err()) {
            assert_eq!(world.refusal(&put), Refusal::Put(PutError::Full { memory_bytes: 1 << 10 }));
        }
    }
    for limit in [0, LIMIT_MAX + 1, u32::MAX] {
        let range = (Bound::Unbounded, Bound::Unbounded);
        assert_eq!(world.refusal(&Request::Scan { range, limit }), Refusal::Limit { limit });
        assert_eq!(world.refusal(&Request::Sum { range, limit }), Refusal::Limit { limit });
    }
    let entries = service.index().stats().entries;
    assert!((2..10).contains(&entries), "{entries}");
    assert_eq!(world.scan((Bound::Unbounded, Bound::Unbounded), LIMIT_MAX).0.len() as u64, entries);
}

#[test]
fn a_key_that_no_index_takes_is_refused_before_it_is_sent() {
    let mut world = World::new(&Service::new(1 << 20, 100), FaultConfig::NONE);
    let longest = vec![1; KEY_LEN_MAX];
    assert!(!world.put(&longest, b""));
    let longer = vec![1; KEY_LEN_MAX + 1];
    let range = (Bound::Included(&longer[..]), Bound::Unbounded);
    for request in [
        Request::Get { key: &longer },
        Request::Put { key: &longer, value: b"" },
        Request::Delete { key: &longer },
        Request::Scan { range, limit: 1 },
        Request::Sum { range: (Bound::Unbounded, Bound::Excluded(&longer)), limit: 1 },
    ] {
        let Err(Error::Refused(refusal)) = world.client.submit(&request, 0) else { panic!("{request:?} was taken") };
        assert_eq!(refusal, Refusal::Put(PutError::KeyTooLong { len: KEY_LEN_MAX + 1 }));
    }
    assert_eq!(world.client.in_flight(), 0);
}

#[test]
fn requests_that_are_none_or_of_the_other_type_are_refused() {
    let service = Service::new(1 << 20, 100);
    let clock = ManualClock::new();
    let network = Network::new(clock.clone());
    let nexus = nexus(&service, Config::default()).build().unwrap();
    let mut server = Rpc::new(
        &nexus,
        network.port_with("index", LoopbackConfig::default()).unwrap(),
        clock.clone(),
        Box::new(SeededGenerator::new(1)),
    );
    let plain = Nexus::builder().build().unwrap();
    let port = network.port_with("client", LoopbackConfig::default()).unwrap();
    let mut rpc = Rpc::new(&plain, port, clock.clone(), Box::new(SeededGenerator::new(2)));
    let address = server.address().clone();
    let session = rpc.begin_connect(&address).unwrap();
    let scan = {
        let mut bytes = Vec::new();
        Request::Scan { range: (Bound::Unbounded, Bound::Unbounded), limit: 1 }.write(&mut bytes);
        bytes
    };
    let wrong: Vec<(_, &[u8])> = vec![
        (POINTS, b""),
        (POINTS, b"\x00key"),
        (POINTS, b"\x02\xff\xffkey"),
        (POINTS, b"\x04rest"),
        (POINTS, &scan),
        (RANGES, b""),
        (RANGES, b"\x01key"),
        (RANGES, &scan[..scan.len() - 1]),
        (RANGES, b"\x05\x01\x00\x00\x00\x03\x00\x00\x00\x00\x00"),
    ];
    for (request_type, bytes) in wrong {
        let (mut request, response) = (rpc.alloc(bytes.len()).unwrap(), rpc.alloc(64).unwrap());
        request.copy_from_slice(bytes);
        rpc.enqueue_request(session, request_type, request, response, 0).unwrap();
        let completion = loop {
            rpc.turn();
            server.turn();
            clock.advance(100_000);
            if let Some(completion) = rpc.poll_completion() {
                break completion;
            }
        };
        completion.result.unwrap();
        assert_eq!(Response::read(&completion.response), Ok(Response::Refused(Refusal::Malformed)), "{bytes:?}");
    }
}

#[test]
fn answers_that_lie_about_their_entries_are_malformed() {
    let mut bytes = Vec::new();
    Response::Sum(Sum { sum: 3, added: 1, passed_over: 0, last: b"key", more: true }).write(&mut bytes);
    assert!(Response::read(&bytes).is_ok());
    assert!(Response::read(&bytes[..bytes.len() - 1]).is_err());
    // A client would ask for the next part for ever.
    let mut idle = Vec::new();
    Response::Sum(Sum { sum: 0, added: 0, passed_over: 0, last: b"key", more: true }).write(&mut idle);
    assert!(Response::read(&idle).is_err());
    // Two entries are announced, and only one is present.
    let one = b"\x04\x00\x02\x00\x00\x00\x01\x00\x01\x00\x00\x00kv";
    assert_eq!(Response::read(one), Err(Malformed { what: "it ends too early" }));
    let more = b"\x04\x00\x00\x00\x00\x00\x01\x00\x01\x00\x00\x00kv";
    assert_eq!(Response::read(more), Err(Malformed { what: "it does not end where it should" }));
}

#[test]
fn the_range_of_a_prefix_is_what_begins_with_it() {
    let service = Service::new(1 << 20, 100);
    for key in [&b"a"[..], b"a\xff", b"a\xff\xff", b"a\xffz", b"b", b"\xff", b"\xff\xff", b""] {
        service.index().put(key, b"").unwrap();
    }
    let mut world = World::new(&service, FaultConfig::NONE);
    for prefix in [&b""[..], b"a", b"a\xff", b"\xff", b"\xff\xff", b"c"] {
        let mut end = Vec::new();
        let range = prefix_range(prefix, &mut end);
        let found: Vec<_> = world.scan(range, 100).0.into_iter().map(|(key, _)| key).collect();
        let mut all: Vec<_> = world.scan((Bound::Unbounded, Bound::Unbounded), 100).0;
        all.retain(|(key, _)| key.starts_with(prefix));
        assert_eq!(found, all.into_iter().map(|(key, _)| key).collect::<Vec<_>>());
    }
}
