//! Memory that a table takes from the system. The test has a process of its own, so that this can be measured.

use sinew_store::cache::{Cache, CacheConfig, Put};

const NOW_S: u32 = 1;

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn memory_beyond_a_lower_limit_goes_back_to_the_system() {
    let config = CacheConfig { items: 1000, memory_bytes: 400 << 20, ..CacheConfig::default() };
    let mut cache = Cache::new(&config).unwrap();
    let hasher = cache.hasher().clone();
    let before = resident();
    for number in 0..380u64 {
        let bytes = number.to_le_bytes();
        cache.put(&hasher.key(&bytes), &vec![1; 1 << 20], &Put::default(), NOW_S).unwrap();
    }
    assert!(resident() - before > 350 << 20);
    cache.limit_memory(50 << 20, NOW_S).unwrap();
    assert!(resident() - before < 200 << 20, "{} MB", (resident() - before) >> 20);
    assert!(cache.stats().items > 40, "{:?}", cache.stats());
}
