//! What the clients of a key-value store ask for.

use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution as _, Zipf};

/// Bytes of a key.
pub const KEY_LEN: usize = 16;
/// The skew of YCSB, and of the papers.
const ZIPF_EXPONENT: f64 = 0.99;

/// How often each key is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// All alike
    Uniform,
    /// By a Zipf law with exponent 0.99
    Zipf,
}

impl Distribution {
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
        }
    }
}

/// A mix of requests.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// At most 2^31.
    pub keys: usize,
    pub distribution: Distribution,
    /// GETs among a hundred requests; the others are PUTs.
    pub get_percent: f64,
    pub seed: u64,
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request(u32);

const PUT: u32 = 1 << 31;

impl Request {
    /// Number of the key.
    #[inline(always)]
    pub fn key(self) -> u64 {
        u64::from(self.0 & !PUT)
    }

    #[inline(always)]
    pub fn is_get(self) -> bool {
        self.0 & PUT == 0
    }
}

impl Workload {
    /// The first `len` requests: drawn ahead, since drawing one takes longer than serving it.
    pub fn trace(&self, len: usize) -> Vec<Request> {
        let mut random = SmallRng::seed_from_u64(self.seed);
        let keys = self.keys.max(1) as u64;
        let zipf = Zipf::new(keys as f64, ZIPF_EXPONENT).expect("there are keys, and the exponent is no less than 0");
        (0..len)
            .map(|_| {
                let key = match self.distribution {
                    Distribution::Uniform => random.random_range(0..keys),
                    // The popular keys are not neighbours: they were not stored one after the other.
                    Distribution::Zipf => scattered(zipf.sample(&mut random) as u64 - 1, keys),
                };
                let is_get = random.random_bool((self.get_percent / 100.0).clamp(0.0, 1.0));
                Request(key as u32 | if is_get { 0 } else { PUT })
            })
            .collect()
    }
}

/// The numbers from 0 to `keys`, each once, in another order.
fn scattered(rank: u64, keys: u64) -> u64 {
    // A prime above 2^31: it has no divisor in common with any number of keys.
    const PRIME: u64 = 4_294_967_291;
    (rank * PRIME) % keys
}

/// The bytes of a key.
#[inline(always)]
pub fn key_bytes(key: u64) -> [u8; KEY_LEN] {
    let mut bytes = [0; KEY_LEN];
    bytes[..8].copy_from_slice(&key.to_be_bytes());
    bytes[8..].copy_from_slice(b"-the-key");
    bytes
}

/// Fills a value of a key, which differs with `round`.
#[inline(always)]
pub fn fill_value(value: &mut [u8], key: u64, round: u64) {
    let (words, rest) = value.as_chunks_mut::<8>();
    let mut mixed = mix(key, round);
    for (at, word) in words.iter_mut().enumerate() {
        // The round first, for whoever checks.
        *word = if at == 0 { round } else { mixed }.to_le_bytes();
        mixed = mixed.rotate_left(5).wrapping_add(key);
    }
    rest.fill(key as u8);
}

/// Whether a value is one of `key`'s, whole.
#[inline(always)]
pub fn check_value(value: &[u8], key: u64) -> bool {
    let (words, rest) = value.as_chunks::<8>();
    let Some(round) = words.first().map(|word| u64::from_le_bytes(*word)) else {
        return rest.iter().all(|byte| *byte == key as u8);
    };
    let mut mixed = mix(key, round);
    let mut same = rest.iter().all(|byte| *byte == key as u8);
    for word in &words[1..] {
        mixed = mixed.rotate_left(5).wrapping_add(key);
        same &= u64::from_le_bytes(*word) == mixed;
    }
    same
}

#[inline(always)]
fn mix(key: u64, round: u64) -> u64 {
    (key ^ round.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Random numbers for something that is no workload.
pub fn random(seed: u64) -> impl Rng {
    SmallRng::seed_from_u64(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(distribution: Distribution) -> Workload {
        Workload { keys: 1000, distribution, get_percent: 95.0, seed: 1 }
    }

    #[test]
    fn scattering_loses_no_key() {
        for keys in [1u64, 2, 10, 1000, 1 << 16, 65_537] {
            let all: std::collections::BTreeSet<u64> = (0..keys).map(|rank| scattered(rank, keys)).collect();
            assert_eq!(all.len() as u64, keys);
            assert!(all.iter().all(|key| *key < keys));
        }
    }

    #[test]
    fn requests_are_as_often_gets_and_keys_as_was_asked_for() {
        const REQUESTS: usize = 200_000;
        for distribution in [Distribution::Uniform, Distribution::Zipf] {
            let trace = workload(distribution).trace(REQUESTS);
            let gets = trace.iter().filter(|request| request.is_get()).count();
            assert!((REQUESTS * 94 / 100..REQUESTS * 96 / 100).contains(&gets), "{gets}");
            let mut counts = vec![0usize; 1000];
            trace.iter().for_each(|request| counts[request.key() as usize] += 1);
            let most = counts.iter().copied().max().unwrap_or(0);
            // The most popular of 1000 gets 1 / (1 + 1/2^.99 + ... ) = 13 %.
            let expected = if distribution == Distribution::Uniform { 150..300 } else { 24_000..29_000 };
            assert!(expected.contains(&most), "{distribution:?}: {most}");
        }
    }

    #[test]
    fn one_seed_is_one_trace() {
        let trace = |seed| Workload { seed, ..workload(Distribution::Zipf) }.trace(100);
        assert_eq!(trace(1), trace(1));
        assert_ne!(trace(1), trace(2));
    }

    #[test]
    fn a_value_of_another_key_or_of_two_rounds_is_noticed() {
        for len in [0, 3, 8, 16, 32, 100] {
            let (mut one, mut other) = (vec![0; len], vec![0; len]);
            fill_value(&mut one, 7, 1);
            fill_value(&mut other, 7, 2);
            assert!(check_value(&one, 7) && check_value(&other, 7));
            if len >= 16 {
                assert!(!check_value(&one, 8));
                let torn = [&one[..len / 2], &other[len / 2..]].concat();
                assert!(!check_value(&torn, 7), "{len}");
            }
        }
    }
}
