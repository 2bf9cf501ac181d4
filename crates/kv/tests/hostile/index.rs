//! Guarantees of an ordered index and of its client that hold whatever the other side sends. Property tests and a fuzz
//! target share them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::rc::Rc;

use sinew_fabric::loopback::{LoopbackConfig, LoopbackPort, Network};
use sinew_fabric::{ManualClock, SeededGenerator};
use sinew_kv::ordered::protocol::{Refusal, Request, Response, Sum};
use sinew_kv::ordered::{Client, LIMIT_MAX, POINTS, RANGES, Range, Service};
use sinew_rpc::{Nexus, RequestType, Rpc};
use sinew_store::ordered::{KEY_LEN_MAX, PutError, entry_bytes};

/// Longest value that the service takes, in bytes.
const VALUE_LEN_MAX: usize = 100;
/// Room for some dozens of entries.
const MEMORY_BYTES: u64 = 16 << 10;
/// Entries that the client asks for.
const LIMIT: u64 = 5;
/// The range that the client asks for: from the first of these keys on, up to the second, which is not in it.
const FROM: &[u8] = b"b";
const TO: &[u8] = b"d";

type Endpoint = Rpc<LoopbackPort, ManualClock>;
type Model = BTreeMap<Vec<u8>, Vec<u8>>;
/// A key and its value.
type Entry<'a> = (&'a [u8], &'a [u8]);

/// Runs a history: requests to a service, or answers to a client.
pub fn index(bytes: &[u8]) {
    messages(bytes);
    match bytes.split_first() {
        Some((side, requests)) if side % 2 == 0 => service(requests),
        Some((side, answers)) => client(side / 2, answers),
        None => {}
    }
}

/// Any bytes are malformed, or a message that survives being written and read again.
pub fn messages(bytes: &[u8]) {
    if let Ok(request) = Request::read(bytes) {
        let mut again = Vec::new();
        request.write(&mut again);
        assert_eq!(again, bytes);
    }
    if let Ok(response) = Response::read(bytes) {
        let mut again = Vec::new();
        response.write(&mut again);
        assert_eq!(again.len(), bytes.len());
        assert_eq!(Response::read(&again), Ok(response));
    }
}

/// An endpoint that is to call itself, so that one thread runs both sides.
fn endpoint() -> Endpoint {
    let clock = ManualClock::new();
    clock.advance(1_000_000);
    let network = Network::new(clock.clone());
    let nexus = Nexus::builder().build().unwrap();
    let config = LoopbackConfig { arena_bytes: 8 << 20, ..LoopbackConfig::default() };
    let port = network.port_with("self", config).unwrap();
    Rpc::new(&nexus, port, clock, Box::new(SeededGenerator::new(1)))
}

/// A service answers as a map does, and holds in the end what the map holds.
fn service(bytes: &[u8]) {
    let service = Service::new(MEMORY_BYTES, VALUE_LEN_MAX);
    let mut rpc = endpoint();
    rpc.handle_burst(POINTS, service.points()).unwrap();
    rpc.handle(RANGES, service.ranges_in_dispatch()).unwrap();
    let address = rpc.address().to_string();
    let session = rpc.connect(&address).unwrap();
    let mut model = Model::new();
    let mut steps = Steps(bytes);
    while let Some((request_type, request)) = steps.request() {
        let answer = rpc.call(session, request_type, &request).unwrap();
        check(&mut model, request_type, &request, &answer);
    }
    let mut held = Model::new();
    let is_cut = service.index().scan((Bound::Unbounded, Bound::Unbounded), |key, value| {
        assert_eq!(held.insert(key.to_vec(), value.to_vec()), None);
        true
    });
    assert!(!is_cut && held == model);
}

/// Checks an answer against the map, and makes the same change to the map.
fn check(model: &mut Model, request_type: RequestType, request: &[u8], answer: &[u8]) {
    let answer = Response::read(answer).expect("the service's answer can be read");
    let is_of_type = |request: &Request<'_>| {
        let is_range = matches!(request, Request::Scan { .. } | Request::Sum { .. });
        is_range == (request_type == RANGES)
    };
    let Some(request) = Request::read(request).ok().filter(is_of_type) else {
        return assert_eq!(answer, Response::Refused(Refusal::Malformed));
    };
    match request {
        Request::Get { key } => {
            let expected = model.get(key).map_or(Response::None, |value| Response::Value(value));
            assert_eq!(answer, expected);
        }
        Request::Put { key, value } => match answer {
            Response::Done { existed } => {
                assert!(key.len() <= KEY_LEN_MAX && value.len() <= VALUE_LEN_MAX);
                assert_eq!(existed, model.insert(key.to_vec(), value.to_vec()).is_some());
            }
            Response::Refused(Refusal::ValueTooLong { len, max }) => {
                assert!(len == value.len() as u64 && max == VALUE_LEN_MAX as u64 && len > max);
            }
            Response::Refused(Refusal::Put(PutError::KeyTooLong { len })) => {
                assert!(len == key.len() && len > KEY_LEN_MAX);
            }
            Response::Refused(Refusal::Put(PutError::Full { .. })) => {
                let mut after = model.clone();
                after.insert(key.to_vec(), value.to_vec());
                assert!(used(&after) > MEMORY_BYTES && used(&after) > used(model));
            }
            other => panic!("{other:?}"),
        },
        Request::Delete { key } => assert_eq!(answer, Response::Done { existed: model.remove(key).is_some() }),
        Request::Stats => {
            let Response::Stats { stats, value_len_max } = answer else { panic!("{answer:?}") };
            assert_eq!((stats.entries, stats.memory_bytes), (model.len() as u64, MEMORY_BYTES));
            assert_eq!((stats.used_bytes, value_len_max as usize), (used(model), VALUE_LEN_MAX));
            assert!(stats.used_bytes <= MEMORY_BYTES);
        }
        Request::Scan { limit, .. } | Request::Sum { limit, .. } if !(1..=LIMIT_MAX).contains(&limit) => {
            assert_eq!(answer, Response::Refused(Refusal::Limit { limit }));
        }
        Request::Scan { range, limit } => {
            let Response::Entries(entries) = answer else { panic!("{answer:?}") };
            let found: Vec<_> = entries.iter().collect();
            assert_eq!((found, entries.more), within(model, range, limit));
        }
        Request::Sum { range, limit } => {
            let (entries, more) = within(model, range, limit);
            let numbers = entries.iter().filter_map(|(_, value)| value.as_array());
            let numbers: Vec<_> = numbers.map(|number| u128::from(u64::from_le_bytes(*number))).collect();
            let sum = Sum {
                sum: numbers.iter().sum(),
                added: numbers.len() as u32,
                passed_over: (entries.len() - numbers.len()) as u32,
                last: entries.last().filter(|_| more).map_or(&[][..], |(key, _)| *key),
                more,
            };
            assert_eq!(answer, Response::Sum(sum));
        }
    }
}

fn used(model: &Model) -> u64 {
    model.iter().map(|(key, value)| entry_bytes(key, value.len())).sum()
}

/// Up to `limit` entries of a range, and whether it has more.
fn within<'a>(model: &'a Model, range: Range<'_>, limit: u32) -> (Vec<Entry<'a>>, bool) {
    let entries = model.iter().map(|(key, value)| (&key[..], &value[..]));
    let mut entries: Vec<_> = entries.filter(|(key, _)| RangeBounds::<[u8]>::contains(&range, *key)).collect();
    let more = entries.len() > limit as usize;
    entries.truncate(limit as usize);
    (entries, more)
}

/// A client that is given these answers passes on entries in order, no more than it was asked for, and comes to an end.
/// A right answer is understood afterwards.
fn client(question: u8, bytes: &[u8]) {
    let answers: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let mut rpc = endpoint();
    for request_type in [POINTS, RANGES] {
        let answers = Rc::clone(&answers);
        // After the last answer, there are empty ones.
        rpc.handle(request_type, move |call| call.reply(&answers.borrow_mut().pop().unwrap_or_default())).unwrap();
    }
    let address = rpc.address().to_string();
    let mut client = Client::connect(rpc, &address).unwrap();
    let mut steps = Steps(bytes);
    while !steps.0.is_empty() {
        answers.borrow_mut().push(steps.bytes().to_vec());
    }
    answers.borrow_mut().reverse();
    let range = (Bound::Included(FROM), Bound::Excluded(TO));
    match question % 7 {
        0 => _ = client.get(FROM),
        1 => _ = client.put(FROM, b"value"),
        2 => _ = client.delete(FROM),
        3 => _ = client.stats(),
        4 => {
            let page = client.scan(range, LIMIT as u32).unwrap_or_default();
            check_order(page.entries.into_iter().map(|(key, _)| key).collect());
        }
        5 => {
            let mut keys = Vec::new();
            let _ = client.scan_all(range, LIMIT, |key, _| {
                keys.push(key.to_vec());
                true
            });
            check_order(keys);
        }
        _ => {
            let total = client.sum(range, LIMIT).unwrap_or_default();
            assert!(total.added + total.passed_over <= LIMIT);
        }
    }
    let mut right = Vec::new();
    Response::Value(b"value").write(&mut right);
    *answers.borrow_mut() = vec![right];
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}

fn check_order(keys: Vec<Vec<u8>>) {
    assert!(keys.len() as u64 <= LIMIT && keys.is_sorted_by(|one, next| one < next), "{keys:?}");
    assert!(keys.iter().all(|key| (FROM..TO).contains(&&key[..])), "{keys:?}");
}

/// Keys of most requests.
const KEYS: [&[u8]; 8] = [b"", b"a", b"a\0", b"ab", b"b", b"b\xff", b"\xff", b"a key of some length"];

/// The rest of a history's bytes.
struct Steps<'a>(&'a [u8]);

impl<'a> Steps<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn small(&mut self) -> u8 {
        self.byte().unwrap_or(0)
    }

    fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.small()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }

    fn key(&mut self) -> &'a [u8] {
        match self.small() {
            at @ ..224 => KEYS[usize::from(at) % KEYS.len()],
            _ => self.bytes(),
        }
    }

    fn range(&mut self) -> Range<'a> {
        (self.bound(), self.bound())
    }

    fn bound(&mut self) -> Bound<&'a [u8]> {
        match self.small() % 3 {
            0 => Bound::Unbounded,
            1 => Bound::Included(self.key()),
            _ => Bound::Excluded(self.key()),
        }
    }

    /// A limit, which is seldom one that the service refuses.
    fn limit(&mut self) -> u32 {
        match self.small() {
            255 => LIMIT_MAX + 1,
            limit => limit.into(),
        }
    }

    fn request(&mut self) -> Option<(RequestType, Vec<u8>)> {
        let step = self.byte()?;
        let is_for_points = step < 128;
        let number;
        let request = match step % 8 {
            0 => return Some((if is_for_points { POINTS } else { RANGES }, self.bytes().to_vec())),
            1 => Request::Get { key: self.key() },
            2 => Request::Put { key: self.key(), value: self.bytes() },
            3 => {
                number = [self.small(); 8];
                Request::Put { key: self.key(), value: &number }
            }
            4 => Request::Delete { key: self.key() },
            5 => Request::Stats,
            6 => Request::Scan { range: self.range(), limit: self.limit() },
            _ => Request::Sum { range: self.range(), limit: self.limit() },
        };
        let mut bytes = Vec::new();
        request.write(&mut bytes);
        // A few are sent as the other type.
        let is_of_points = step % 8 < 6;
        Some((if is_of_points == (step < 240) { POINTS } else { RANGES }, bytes))
    }
}
