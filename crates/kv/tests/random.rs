//! Random requests through a network that loses, duplicates, reorders and delays packets, compared with a plain map.
//!
//! Set `PROPTEST_CASES` for a longer run.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{TestPipeline, World};
use proptest::prelude::*;
use sinew_fabric::fault::{FaultConfig, Faults};
use sinew_kv::cache::protocol::{Lookup, PutOptions, Refusal, Response};
use sinew_kv::cache::{ClientConfig, Error};
use sinew_store::cache::{CacheConfig, When, WhenFull};

const KEYS: u8 = 40;

#[derive(Clone, Debug)]
enum Step {
    Get(u8),
    Inspect(u8),
    Put {
        key: u8,
        len: usize,
        when: u8,
        flags: u32,
        lives_s: u32,
    },
    Delete(u8),
    Touch(u8, u32),
    PutNumber(u8, u64),
    Add(u8, i64),
    /// Removes all items, after all answers have been taken.
    Flush,
    GetMany(Vec<u8>),
    Turn(u8),
    /// Takes all answers, and lets seconds pass.
    Wait(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS;
    let len = prop_oneof![6 => 0usize..60, 2 => 60usize..3_000, 1 => 3_000usize..50_000];
    let lives_s = prop_oneof![2 => Just(0u32), 1 => 1u32..20];
    let number = prop_oneof![0..20u64, any::<u64>()];
    let delta = prop_oneof![-20..20i64, any::<i64>()];
    prop_oneof![
        6 => key.clone().prop_map(Step::Get),
        2 => key.clone().prop_map(Step::Inspect),
        6 => (key.clone(), len, 0u8..5, 0u32..3, lives_s.clone())
            .prop_map(|(key, len, when, flags, lives_s)| Step::Put { key, len, when, flags, lives_s }),
        2 => key.clone().prop_map(Step::Delete),
        2 => (key.clone(), lives_s).prop_map(|(key, lives_s)| Step::Touch(key, lives_s)),
        2 => (key.clone(), number).prop_map(|(key, number)| Step::PutNumber(key, number)),
        3 => (key.clone(), delta).prop_map(|(key, delta)| Step::Add(key, delta)),
        1 => Just(Step::Flush),
        2 => prop::collection::btree_set(key, 1..20).prop_map(|keys| Step::GetMany(keys.into_iter().collect())),
        6 => (1u8..20).prop_map(Step::Turn),
        1 => (0u32..5).prop_map(Step::Wait),
    ]
}

#[derive(Clone, Debug)]
struct Case {
    steps: Vec<Step>,
    partitions: usize,
    window: usize,
    evicts: bool,
    faults: Faults,
}

fn case() -> impl Strategy<Value = Case> {
    let probability = || prop_oneof![1 => Just(0.0), 2 => 0.0..0.2f64];
    let faults = (probability(), probability(), probability()).prop_map(|(drop, duplicate, reorder)| Faults {
        drop,
        duplicate,
        reorder,
        ..Faults::NONE
    });
    let steps = prop::collection::vec(step(), 1..120);
    (steps, 1usize..4, 8usize..40, any::<bool>(), faults).prop_map(|(steps, partitions, window, evicts, faults)| Case {
        steps,
        partitions,
        window,
        evicts,
        faults,
    })
}

/// Version of an item that was added to: a new one, which no answer has named.
const UNKNOWN: u64 = 0;

#[derive(Clone, Debug, PartialEq)]
struct Known {
    value: Vec<u8>,
    flags: u32,
    expires_s: u32,
    version: u64,
}

/// A request in flight.
#[derive(Clone, Debug)]
enum Asked {
    Get,
    Inspect,
    Put { value: Vec<u8>, options: PutOptions },
    Delete,
    Touch(u32),
    Add(i64),
    Flush,
    GetMany(Vec<u8>),
}

fn bytes_of(key: u8) -> Vec<u8> {
    [&vec![b'k'; usize::from(key) % 23][..], &[key]].concat()
}

struct Run {
    world: World,
    pipeline: TestPipeline,
    /// Items that must be present, and are if nothing is evicted.
    items: BTreeMap<u8, Known>,
    evicts: bool,
    /// By tag, with the key. No two requests are for the same key, so the order of their execution does not matter.
    asked: BTreeMap<u64, (u8, Asked)>,
    /// Keys in flight.
    busy: BTreeSet<u8>,
    tag: u64,
}

impl Run {
    fn new(case: &Case) -> Self {
        let config = CacheConfig {
            items: 64,
            memory_bytes: if case.evicts { 200_000 } else { 16 << 20 },
            value_len_max: 40_000,
            when_full: if case.evicts { WhenFull::Evict } else { WhenFull::Refuse },
            ..CacheConfig::default()
        };
        let mut world = World::new(case.partitions, &config);
        // Far ahead of the endpoints' clock, so that time passes only when the model says so.
        world.now_s = 1_000_000;
        let config = ClientConfig { window: case.window, ..ClientConfig::default() };
        let pipeline = world.connect(config, FaultConfig::both(case.faults));
        let (items, asked, busy) = <_>::default();
        Self { world, pipeline, items, evicts: case.evicts, asked, busy, tag: 0 }
    }

    fn live(&self, key: u8) -> Option<&Known> {
        let now_s = self.world.now_s;
        self.items.get(&key).filter(|known| known.expires_s == 0 || known.expires_s > now_s)
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Turn(turns) => (0..*turns).for_each(|_| self.turn()),
            Step::Wait(seconds) => {
                self.settle();
                self.world.now_s += seconds;
            }
            Step::Get(key) => self.ask(&[*key], *key, Asked::Get),
            Step::Inspect(key) => self.ask(&[*key], *key, Asked::Inspect),
            Step::Delete(key) => self.ask(&[*key], *key, Asked::Delete),
            Step::Touch(key, lives_s) => self.ask(&[*key], *key, Asked::Touch(*lives_s)),
            Step::Add(key, delta) => self.ask(&[*key], *key, Asked::Add(*delta)),
            Step::PutNumber(key, number) => {
                let value = number.to_string().into_bytes();
                self.ask(&[*key], *key, Asked::Put { value, options: PutOptions::default() });
            }
            Step::Flush => {
                for partition in 0..self.world.partitions.len() {
                    self.settle();
                    self.pipeline.flush(partition, self.tag).unwrap();
                    self.asked.insert(self.tag, (0, Asked::Flush));
                    self.tag += 1;
                }
                self.settle();
                self.items.clear();
            }
            Step::GetMany(keys) => self.ask(keys, keys[0], Asked::GetMany(keys.clone())),
            Step::Put { key, len, when, flags, lives_s } => {
                let version = self.items.get(key).map_or(1, |known| known.version);
                let when = match when {
                    0 => When::Absent,
                    1 => When::Present,
                    2 => When::Version(version),
                    _ => When::Always,
                };
                let options = PutOptions { when, flags: *flags, lives_s: *lives_s };
                let value = (0..*len).map(|at| (at as u64 * 31 + self.tag) as u8).collect();
                self.ask(&[*key], *key, Asked::Put { value, options });
            }
        }
    }

    fn ask(&mut self, keys: &[u8], key: u8, asked: Asked) {
        if keys.iter().any(|key| self.busy.contains(key)) {
            return self.settle_and(keys, key, asked);
        }
        let (tag, bytes) = (self.tag, bytes_of(key));
        let result = match &asked {
            Asked::Get => self.pipeline.get(&bytes, tag).map(drop),
            Asked::Inspect => self.pipeline.inspect(&bytes, tag).map(drop),
            Asked::Delete => self.pipeline.delete(&bytes, tag).map(drop),
            Asked::Touch(lives_s) => self.pipeline.touch(&bytes, *lives_s, tag).map(drop),
            Asked::Add(delta) => self.pipeline.add(&bytes, *delta, tag).map(drop),
            Asked::Flush => panic!("flushes are asked for by themselves"),
            Asked::Put { value, options } => self.pipeline.put(&bytes, value, *options, tag).map(drop),
            Asked::GetMany(keys) => {
                let bytes: Vec<_> = keys.iter().map(|key| bytes_of(*key)).collect();
                let bytes: Vec<_> = bytes.iter().map(Vec::as_slice).collect();
                self.pipeline.get_many(&bytes, tag).map(drop)
            }
        };
        match result {
            Ok(()) => {
                self.tag += 1;
                self.busy.extend(keys);
                self.asked.insert(tag, (key, asked));
            }
            Err(Error::WindowFull { .. }) => self.settle_and(keys, key, asked),
            Err(error) => panic!("{error}"),
        }
    }

    fn settle_and(&mut self, keys: &[u8], key: u8, asked: Asked) {
        self.settle();
        self.ask(keys, key, asked);
    }

    fn settle(&mut self) {
        for _ in 0..100_000 {
            if self.pipeline.in_flight() == 0 {
                assert!(self.busy.is_empty());
                return;
            }
            self.turn();
        }
        panic!("requests are not answered: {:?}", self.asked);
    }

    fn turn(&mut self) {
        self.pipeline.turn();
        self.world.turn();
        let mut answers = Vec::new();
        while let Some(answer) = self.pipeline.poll() {
            let (key, asked) = self.asked[&answer.tag].clone();
            answers.push((answer.tag, key, said(&asked, answer.keys, answer.response), asked));
        }
        for (tag, key, said, asked) in answers {
            self.check(key, &said, &asked);
            for key in said.keys(key) {
                self.busy.remove(&key);
            }
            let all = match &asked {
                Asked::GetMany(keys) => keys.iter().all(|key| !self.busy.contains(key)),
                _ => true,
            };
            if all {
                self.asked.remove(&tag);
            }
        }
    }

    fn check(&mut self, key: u8, said: &Said, asked: &Asked) {
        let known = self.live(key).cloned();
        match (said, asked) {
            (Said::Value(found), Asked::Get) => self.check_found(key, found.as_ref()),
            (Said::Values(found), Asked::GetMany(_)) => {
                found.iter().for_each(|(key, found)| self.check_found(*key, found.as_ref()));
            }
            (Said::Item(None), Asked::Inspect) => self.check_found(key, None),
            (Said::Item(Some(found)), Asked::Inspect) => {
                let mut expected = known.expect("nothing was stored");
                expected.expires_s = expected.expires_s.saturating_sub(self.world.now_s);
                if expected.version == UNKNOWN {
                    expected.version = found.version;
                    self.items.get_mut(&key).expect("it is known").version = found.version;
                }
                assert_eq!(*found, expected);
            }
            (Said::Stored(version), Asked::Put { value, options }) => {
                match (options.when, &known) {
                    (When::Absent, Some(_)) => assert!(self.evicts, "stored though it was there"),
                    (When::Present | When::Version(_), None) => panic!("stored though it was not there"),
                    (When::Version(expected), Some(known)) => assert_eq!(known.version, expected),
                    _ => {}
                }
                let expires_s = if options.lives_s == 0 { 0 } else { self.world.now_s + options.lives_s };
                let known = Known { value: value.clone(), flags: options.flags, expires_s, version: *version };
                self.items.insert(key, known);
            }
            (Said::Refused(Refusal::Present), Asked::Put { options, .. }) => {
                assert!(options.when == When::Absent && known.is_some());
            }
            (Said::Refused(Refusal::Absent), Asked::Put { options, .. }) => {
                assert!(matches!(options.when, When::Present | When::Version(_)));
                assert!(known.is_none() || self.evicts);
                self.items.remove(&key);
            }
            (Said::Refused(Refusal::Changed { version }), Asked::Put { options, .. }) => {
                assert!(matches!(options.when, When::Version(expected) if expected != *version));
                assert!(known.is_some_and(|known| known.version == *version || known.version == UNKNOWN));
            }
            (Said::Refused(Refusal::ValueTooLong { .. }), Asked::Put { value, .. }) => assert!(value.len() > 40_000),
            (Said::Deleted(was), Asked::Delete) => {
                assert!(*was == known.is_some() || self.evicts && !was);
                self.items.remove(&key);
            }
            (Said::Touched(is), Asked::Touch(lives_s)) => {
                assert!(*is == known.is_some() || self.evicts && !is);
                self.items.remove(&key);
                if let Some(known) = known.filter(|_| *is) {
                    let expires_s = if *lives_s == 0 { 0 } else { self.world.now_s + lives_s };
                    self.items.insert(key, Known { expires_s, ..known });
                }
            }
            (Said::Number(found), Asked::Add(delta)) => {
                let number = known.as_ref().and_then(number_of).expect("there is a number");
                let sum = i128::from(number) + i128::from(*delta);
                assert_eq!(*found, sum.max(0) as u64);
                let value = found.to_string().into_bytes();
                self.items.insert(key, Known { value, version: UNKNOWN, ..known.unwrap() });
            }
            (Said::NoNumber, Asked::Add(_)) => {
                assert!(known.is_none() || self.evicts);
                self.items.remove(&key);
            }
            (Said::Refused(Refusal::NotANumber), Asked::Add(_)) => {
                assert!(known.is_some_and(|known| number_of(&known).is_none()));
            }
            (Said::Flushed, Asked::Flush) => {}
            other => panic!("{other:?}"),
        }
    }

    fn check_found(&mut self, key: u8, found: Option<&Vec<u8>>) {
        match (self.live(key), found) {
            (Some(known), Some(found)) => assert_eq!(known.value, *found),
            (None, None) => {}
            (Some(_), None) => {
                assert!(self.evicts, "{key} is missing");
                self.items.remove(&key);
            }
            (None, Some(_)) => panic!("{key} is there and should not"),
        }
    }
}

fn number_of(known: &Known) -> Option<u64> {
    let text = std::str::from_utf8(&known.value).ok()?;
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// An owned copy of an answer.
#[derive(Clone, Debug)]
enum Said {
    Value(Option<Vec<u8>>),
    Item(Option<Known>),
    Values(Vec<(u8, Option<Vec<u8>>)>),
    Stored(u64),
    Deleted(bool),
    Touched(bool),
    Number(u64),
    NoNumber,
    Flushed,
    Refused(Refusal),
}

impl Said {
    /// The keys that the answer concerns.
    fn keys(&self, key: u8) -> Vec<u8> {
        match self {
            Self::Values(values) => values.iter().map(|(key, _)| *key).collect(),
            _ => vec![key],
        }
    }
}

fn said(asked: &Asked, keys: &[u16], response: Result<Response<'_>, Error>) -> Said {
    match response {
        Ok(Response::Value(value)) => Said::Value(Some(value.to_vec())),
        Ok(Response::Miss) => match asked {
            Asked::Inspect => Said::Item(None),
            Asked::Delete => Said::Deleted(false),
            Asked::Touch(_) => Said::Touched(false),
            Asked::Add(_) => Said::NoNumber,
            _ => Said::Value(None),
        },
        Ok(Response::Item(item)) => Said::Item(Some(Known {
            value: item.value.to_vec(),
            flags: item.flags,
            expires_s: item.lives_s,
            version: item.version,
        })),
        Ok(Response::Stored { version }) => Said::Stored(version),
        Ok(Response::Deleted) => Said::Deleted(true),
        Ok(Response::Touched) => Said::Touched(true),
        Ok(Response::Number(number)) => Said::Number(number),
        Ok(Response::Flushed) => Said::Flushed,
        Ok(Response::Values(values)) => {
            let Asked::GetMany(asked) = asked else { panic!("{asked:?}") };
            let values = values.iter().map(|lookup| match lookup {
                Lookup::Hit(value) => Some(value.to_vec()),
                Lookup::Miss => None,
                Lookup::Omitted => panic!("20 values of 40 KB fit"),
            });
            Said::Values(keys.iter().map(|index| asked[usize::from(*index)]).zip(values).collect())
        }
        Err(Error::Refused(refusal)) => Said::Refused(refusal),
        other => panic!("{other:?}"),
    }
}

fn cases() -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: asked.unwrap_or(100), failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn answers_are_those_of_a_map_that_may_forget_if_it_evicts(case in case()) {
        let mut run = Run::new(&case);
        case.steps.iter().for_each(|step| run.step(step));
        run.settle();
        // At the end, the cache holds what the answers implied.
        for key in 0..KEYS {
            run.step(&Step::Inspect(key));
            run.settle();
        }
    }
}
