//! HERD's cache against a plain map, where the cache may also forget: on a fabric that loses requests, and with old
//! requests that arrive again.

#[path = "common/herd.rs"]
mod herd;

use std::collections::HashMap;

use herd::LAYOUT;
use sinew::fabric::SeededGenerator;
use sinew::fabric::verbs::Device;
use sinew::herd::{Server, ServerConfig, SlotDrop, Worker, WorkerConfig};
use sinew::kv::Partitions;
use sinew::kv::herd::{CacheClient, CacheService, Status, layout};
use sinew::shm::verbs::ShmDevice;
use sinew::store::cache::{Cache, CacheConfig};

const KEYS: u64 = 300;
const CLIENTS: usize = 2;

/// A request that is not answered yet.
struct Open {
    key: u64,
    /// `Some(Some(value))` for a PUT, `Some(None)` for a DELETE, `None` for a GET.
    stores: Option<Option<Vec<u8>>>,
}

fn key_of(key: u64) -> Vec<u8> {
    // Keys have several lengths.
    format!("{key:0width$}", width = 1 + key as usize % 40).into_bytes()
}

/// Returns the number of answers that were repeated, and of slots found torn.
fn run(seed: u64, config: &WorkerConfig) -> [u64; 2] {
    let mut random = SeededGenerator::new(seed);
    let device = ShmDevice::threads().unwrap();
    let domain = device.protection_domain().unwrap();
    let layout = layout(1, LAYOUT.clients, 8);
    let (server, seeds) = Server::new(&device, &ServerConfig { layout, seed }).unwrap();
    // There is so little memory that most of the items do not fit.
    let cache = Cache::new(&CacheConfig { items: 200, memory_bytes: 32 << 10, ..CacheConfig::default() }).unwrap();
    let service = CacheService::new(cache, Partitions::new(1), 0);
    let worker = Worker::new(seeds.into_iter().next().unwrap(), config, service).unwrap();
    let mut world = herd::World { device, domain, server, worker };
    let mut clients = Vec::new();
    let mut ids = Vec::new();
    for _ in 0..CLIENTS {
        let (calls, id) = world.client_of(layout);
        clients.push(CacheClient::new(calls));
        ids.push(id);
    }
    let mut vandal = world.vandal();
    world.turn();
    let mut model: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut open: Vec<HashMap<u64, Open>> = (0..CLIENTS).map(|_| HashMap::new()).collect();
    let (mut now_ns, mut tag, mut found) = (0, 0u64, 0);
    for step in 0..6000 {
        now_ns += random.below(400);
        for (which, client) in clients.iter_mut().enumerate() {
            for _ in 0..random.below(4) {
                let key = random.below(KEYS);
                let bytes = key_of(key);
                // The order of concurrent requests for one key cannot be predicted.
                if open.iter().any(|open| open.values().any(|other| other.key == key)) || !client.has_room(&bytes) {
                    continue;
                }
                tag += 1;
                let stores = match random.below(4) {
                    0 => {
                        let value: Vec<u8> = (0..random.below(900)).map(|at| (at ^ tag) as u8).collect();
                        client.put(tag, &bytes, &value, now_ns).unwrap();
                        Some(Some(value))
                    }
                    1 if random.chance(0.2) => {
                        client.delete(tag, &bytes, now_ns).unwrap();
                        Some(None)
                    }
                    _ => {
                        client.get(tag, &bytes, now_ns).unwrap();
                        None
                    }
                };
                open[which].insert(tag, Open { key, stores });
            }
            client.flush();
        }
        if random.chance(0.05) {
            // A request is lost, or an old one comes again, or a slot is corrupted.
            let (client, sequence) = (ids[random.below(CLIENTS as u64) as usize].index, random.below(8) as u32);
            let end = layout.slot_end(0, client as usize, sequence);
            match random.below(3) {
                0 => vandal.write_at(end - 16, &[0; 16]),
                1 => vandal.write_at(end - 64, &random.below(1 << 40).to_le_bytes()),
                _ => {
                    let (token, early) = (ids[client as usize].token, 1 + random.below(step / 100 + 1) as u32);
                    let key = random.below(KEYS);
                    let body = [key_of(key), b"yesterday".to_vec()].concat();
                    let kind = 2 | (key_of(key).len() as u16) << 8;
                    let (lap, slot) = (early & !7, sequence);
                    vandal.write(client, lap + slot, &sinew::herd::build_request(token, lap + slot, 9, kind, &body));
                }
            }
        }
        if random.chance(0.7) {
            for _ in 0..random.below(40) {
                world.worker.turn(now_ns);
            }
        }
        for (which, client) in clients.iter_mut().enumerate() {
            let open = &mut open[which];
            client
                .poll(now_ns, |outcome| {
                    let Open { key, stores } = open.remove(&outcome.tag).expect("nobody asked that");
                    match (outcome.status, stores) {
                        (Some(Status::Found), None) => {
                            found += 1;
                            assert_eq!(
                                Some(outcome.value),
                                model.get(&key).map(Vec::as_slice),
                                "seed {seed}, key {key}"
                            );
                        }
                        // The item may have been evicted; then it stays absent.
                        (Some(Status::Absent), None | Some(None)) => drop(model.remove(&key)),
                        (Some(Status::Stored), Some(Some(value))) => drop(model.insert(key, value)),
                        (Some(Status::Deleted), Some(None)) => {
                            assert!(model.remove(&key).is_some(), "seed {seed}: {key} was deleted before");
                        }
                        (status, _) => panic!("seed {seed}: {status:?}"),
                    }
                })
                .unwrap();
        }
    }
    let stats = world.worker.stats();
    assert!(found > 500 && clients.iter().all(|client| client.calls().stats().retried > 0), "seed {seed}: {stats:?}");
    [stats.repeated, stats.dropped(SlotDrop::Torn)]
}

#[test]
fn what_is_found_is_what_was_stored_last_whatever_is_lost_or_comes_again() {
    let mut sums = [0; 2];
    for seed in 0..8 {
        for config in [WorkerConfig::herd_opt(), WorkerConfig::herd()] {
            let counts = run(seed, &config);
            sums = [sums[0] + counts[0], sums[1] + counts[1]];
        }
    }
    assert!(sums.iter().all(|sum| *sum > 0), "{sums:?}");
}
