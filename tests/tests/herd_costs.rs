//! Heap allocations of HERD's cache, at either side: none, once warm.

#[path = "../../xtask/cost/src/counting.rs"]
mod counting;
#[path = "common/herd.rs"]
mod herd;

use counting::allocations;
use sinew::fabric::verbs::Device;
use sinew::herd::{Server, ServerConfig, Worker, WorkerConfig};
use sinew::kv::Partitions;
use sinew::kv::herd::{CacheClient, CacheService, layout};
use sinew::shm::verbs::ShmDevice;
use sinew::store::cache::{Cache, CacheConfig};

#[test]
fn warm_gets_puts_and_retries_take_nothing_from_the_heap() {
    for config in
        [WorkerConfig::herd(), WorkerConfig::herd_opt(), WorkerConfig { inline_max: 0, ..WorkerConfig::herd_opt() }]
    {
        let device = ShmDevice::threads().unwrap();
        let domain = device.protection_domain().unwrap();
        let layout = layout(1, herd::LAYOUT.clients, 8);
        let (server, seeds) = Server::new(&device, &ServerConfig { layout, seed: 1 }).unwrap();
        let cache = Cache::new(&CacheConfig { items: 1000, memory_bytes: 1 << 20, ..CacheConfig::default() }).unwrap();
        let service = CacheService::new(cache, Partitions::new(1), 0);
        let worker = Worker::new(seeds.into_iter().next().unwrap(), &config, service).unwrap();
        let mut world = herd::World { device, domain, server, worker };
        let (calls, _) = world.client_of(layout);
        let mut client = CacheClient::new(calls);
        let (mut now_ns, mut done) = (0, 0);
        let mut rounds = |count: usize| {
            for round in 0..count {
                now_ns += 100;
                for nth in 0..8u8 {
                    let key = [b'k', nth, round as u8];
                    if !client.has_room(&key) {
                        break;
                    }
                    match nth {
                        0 | 1 => client.put(0, &key, &[nth; 700], now_ns).unwrap(),
                        2 => client.delete(0, &key, now_ns).unwrap(),
                        _ => client.get(0, &[b'k', nth % 2, round as u8], now_ns).unwrap(),
                    }
                }
                client.flush();
                // Now and then the worker is so late that every request is retried.
                if round % 50 != 0 {
                    for _ in 0..200 {
                        world.worker.turn(now_ns);
                    }
                }
                done += client.poll(now_ns, |_| ()).unwrap();
                now_ns += if round % 50 == 1 { 5000 } else { 0 };
            }
        };
        // This is long enough for every send queue to wrap around, and for its sources to have their buffers.
        rounds(1000);
        let before = allocations();
        rounds(1000);
        assert_eq!(allocations() - before, 0, "{config:?}");
        assert!(done > 10_000 && client.calls().stats().retried > 0);
    }
}
