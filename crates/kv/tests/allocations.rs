//! Allocations of a cache and its client: a warm get or put makes none.

mod common;
#[path = "../../../xtask/cost/src/counting.rs"]
mod counting;

use common::{TestPipeline, World};
use counting::allocations;
use sinew_fabric::fault::FaultConfig;
use sinew_kv::cache::ClientConfig;
use sinew_kv::cache::protocol::{PutOptions, Response};
use sinew_store::cache::CacheConfig;

/// Puts and gets `requests` items with many requests in flight; counts the answers of each kind.
fn exchange(world: &mut World, pipeline: &mut TestPipeline, value: &[u8], requests: u64) -> [u64; 3] {
    let (mut asked, mut answers) = (0u64, [0; 3]);
    let window = pipeline.window() as u64;
    while answers.iter().sum::<u64>() < requests {
        while asked < requests && asked - answers.iter().sum::<u64>() < window {
            let numbers: [u64; 4] = std::array::from_fn(|at| (asked / 3 + at as u64) % 50);
            let [key, others @ ..] = numbers.map(u64::to_le_bytes);
            match asked % 3 {
                0 => pipeline.put(&key, value, PutOptions { flags: 1, ..PutOptions::default() }, 0).map(drop).unwrap(),
                1 => pipeline.get(&key, 1).map(drop).unwrap(),
                // One partition, so one request.
                _ => assert_eq!(pipeline.get_many(&others.each_ref().map(|key| &key[..]), 2).unwrap(), 1),
            }
            asked += 1;
        }
        pipeline.turn();
        world.turn();
        while let Some(answer) = pipeline.poll() {
            answers[answer.tag as usize] += 1;
            match answer.response {
                Ok(Response::Value(found)) => assert!(found == value),
                Ok(Response::Stored { .. } | Response::Values(_) | Response::Miss) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    answers
}

#[test]
fn a_warm_get_or_put_allocates_nothing() {
    let config = CacheConfig { items: 1000, memory_bytes: 1 << 20, ..CacheConfig::default() };
    for len in [0, 32, 1_000, 5_000] {
        let mut world = World::new(1, &config);
        let mut pipeline = world.connect(ClientConfig { window: 40, ..ClientConfig::default() }, FaultConfig::NONE);
        let value = vec![7; len];
        // Lists of free buffers grow to their final length.
        (0..4).for_each(|_| _ = exchange(&mut world, &mut pipeline, &value, 6_000));
        let before = allocations();
        let answers = exchange(&mut world, &mut pipeline, &value, 6_000);
        assert_eq!(allocations() - before, 0, "6,000 requests with values of {len} bytes");
        assert_eq!(answers, [2_000; 3]);
        assert!(world.partitions[0].stats().hits > 3_000);
    }
}
