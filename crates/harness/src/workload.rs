//! Requests of the clients of a key-value store.

use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution as _, Zipf};

/// Length of a key, in bytes.
pub const KEY_LEN: usize = 16;
/// Most keys that a trace can name.
pub const KEYS_MAX: usize = 1 << 30;
/// Skew of YCSB, and of the papers.
const ZIPF_EXPONENT: f64 = 0.99;

/// Distribution of requests over the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// All keys equally often
    Uniform,
    /// By a Zipf law with exponent 0.99
    Zipf,
}

impl Distribution {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
        }
    }
}

/// A standard mix of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mix {
    /// YCSB A: half GETs, half PUTs, Zipf
    YcsbA,
    /// YCSB B: 95 % GETs, 5 % PUTs, Zipf
    YcsbB,
    /// YCSB C: GETs only, Zipf
    YcsbC,
    /// YCSB D: 95 % GETs, mostly of the latest keys, 5 % PUTs of new keys
    YcsbD,
    /// YCSB F: half GETs, half GETs followed by a PUT of the same key, Zipf
    YcsbF,
    /// Facebook's ETC pool: 95 % GETs, Zipf, 40 % of the values to 13 B, 55 % to 300 B, 5 % to 1 KB
    Etc,
    /// Facebook's SYS pool: 67 % GETs, Zipf, 70 % of the values from 320 to 500 B, the others shorter
    Sys,
}

impl Mix {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::YcsbA => "ycsb-a",
            Self::YcsbB => "ycsb-b",
            Self::YcsbC => "ycsb-c",
            Self::YcsbD => "ycsb-d",
            Self::YcsbF => "ycsb-f",
            Self::Etc => "etc",
            Self::Sys => "sys",
        }
    }

    /// The workload, with values of `value_size` bytes unless the mix defines their length.
    pub fn workload(self, keys: usize, value_size: usize, seed: u64) -> Workload {
        let (get_percent, order, sizes) = match self {
            Self::YcsbA => (50.0, Order::Alike, Sizes::Fixed(value_size)),
            Self::YcsbB => (95.0, Order::Alike, Sizes::Fixed(value_size)),
            Self::YcsbC => (100.0, Order::Alike, Sizes::Fixed(value_size)),
            Self::YcsbD => (95.0, Order::Latest, Sizes::Fixed(value_size)),
            Self::YcsbF => (50.0, Order::ReadFirst, Sizes::Fixed(value_size)),
            Self::Etc => (95.0, Order::Alike, Sizes::Etc),
            Self::Sys => (67.0, Order::Alike, Sizes::Sys),
        };
        Workload { keys, distribution: Distribution::Zipf, get_percent, order, sizes, seed }
    }
}

/// Relation of a PUT to other requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// None.
    #[default]
    Alike,
    /// It stores a new key; GETs ask mostly for the newest.
    Latest,
    /// A GET of the key comes before it.
    ReadFirst,
    /// None. Half of the requests are GETs of new keys, each of which is asked for once.
    BesideScan,
}

/// Lengths of values in bytes. A key's value always has the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// All the same.
    Fixed(usize),
    /// Those of [`Mix::Etc`].
    Etc,
    /// Those of [`Mix::Sys`].
    Sys,
}

impl Sizes {
    /// Length of a key's value.
    #[inline(always)]
    pub fn of(self, key: u64) -> usize {
        let from = |low: u64, high: u64, number: u64| (low + number % (high - low + 1)) as usize;
        let (share, number) = match self {
            Self::Fixed(size) => return size,
            _ => (mix(key, 1) >> 54, mix(key, 2) >> 33),
        };
        // Shares of 1024.
        match self {
            Self::Etc if share < 410 => from(1, 13, number),
            Self::Etc if share < 973 => from(14, 300, number),
            Self::Etc => from(301, 1024, number),
            _ if share < 717 => from(320, 500, number),
            _ => from(1, 319, number),
        }
    }

    /// The greatest length.
    pub fn max(self) -> usize {
        match self {
            Self::Fixed(size) => size,
            Self::Etc => 1024,
            Self::Sys => 500,
        }
    }

    /// Name in the command's output.
    pub fn name(self) -> String {
        match self {
            Self::Fixed(size) => crate::units::size(size),
            Self::Etc => "1 to 1024 B (ETC)".to_owned(),
            Self::Sys => "1 to 500 B (SYS)".to_owned(),
        }
    }
}

/// Requests that clients make.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Keys that are stored in the beginning; at most 2^30.
    pub keys: usize,
    /// Distribution of requests over the keys.
    pub distribution: Distribution,
    /// Percentage of GETs among the requests; the others are PUTs.
    pub get_percent: f64,
    /// Relation of PUTs to other requests.
    pub order: Order,
    /// Lengths of values.
    pub sizes: Sizes,
    /// Seed of the trace.
    pub seed: u64,
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request(u32);

const PUT: u32 = 1 << 31;
const READ_FIRST: u32 = 1 << 30;

impl Request {
    /// Number of the key.
    #[inline(always)]
    pub fn key(self) -> u64 {
        u64::from(self.0 & !(PUT | READ_FIRST))
    }

    /// Whether it is a GET.
    #[inline(always)]
    pub fn is_get(self) -> bool {
        self.0 & PUT == 0
    }

    /// Whether a PUT of the same key follows this GET.
    #[inline(always)]
    pub fn is_read_first(self) -> bool {
        self.0 & READ_FIRST != 0
    }
}

impl Workload {
    /// The first `len` requests. They are drawn in advance, since drawing one takes longer than serving it. There must
    /// be no more keys than [`KEYS_MAX`], together with new ones ([`Order::BesideScan`]).
    pub fn trace(&self, len: usize) -> Vec<Request> {
        let mut random = SmallRng::seed_from_u64(self.seed);
        let keys = self.keys.max(1) as u64;
        let zipf = Zipf::new(keys as f64, ZIPF_EXPONENT).expect("there are keys, and the exponent is no less than 0");
        let mut next = keys;
        (0..len)
            .map(|_| {
                if self.order == Order::BesideScan && random.random_bool(0.5) {
                    next += 1;
                    return Request((next - 1) as u32);
                }
                let is_get = random.random_bool((self.get_percent / 100.0).clamp(0.0, 1.0));
                let mut rank = || match self.distribution {
                    Distribution::Uniform => random.random_range(0..keys),
                    Distribution::Zipf => zipf.sample(&mut random) as u64 - 1,
                };
                let key = match (self.order, self.distribution) {
                    (Order::Latest, _) if is_get => next - 1 - rank(),
                    (Order::Latest, _) => {
                        next = (next + 1).min(KEYS_MAX as u64);
                        next - 1
                    }
                    (_, Distribution::Uniform) => rank(),
                    // Popular keys are not neighbours, since they were not stored one after the other.
                    (_, Distribution::Zipf) => scattered(rank(), keys),
                };
                let kind = match self.order {
                    _ if is_get => 0,
                    Order::ReadFirst => READ_FIRST,
                    _ => PUT,
                };
                Request(key as u32 | kind)
            })
            .collect()
    }
}

/// A permutation of the numbers from 0 to `keys - 1`.
fn scattered(rank: u64, keys: u64) -> u64 {
    // A prime above 2^31, which has no divisor in common with any number of keys.
    const PRIME: u64 = 4_294_967_291;
    (rank * PRIME) % keys
}

/// Bytes of a key.
#[inline(always)]
pub fn key_bytes(key: u64) -> [u8; KEY_LEN] {
    let mut bytes = [0; KEY_LEN];
    bytes[..8].copy_from_slice(&key.to_be_bytes());
    bytes[8..].copy_from_slice(b"-the-key");
    bytes
}

/// Fills a value of a key, whose contents depend on `round`.
#[inline(always)]
pub fn fill_value(value: &mut [u8], key: u64, round: u64) {
    let (words, rest) = value.as_chunks_mut::<8>();
    let mut mixed = mix(key, round);
    for (at, word) in words.iter_mut().enumerate() {
        // The first word is the round, for the check.
        *word = if at == 0 { round } else { mixed }.to_le_bytes();
        mixed = mixed.rotate_left(5).wrapping_add(key);
    }
    rest.fill(key as u8);
}

/// Whether a value is one of `key`'s, and complete.
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

/// Times between requests that arrive by themselves (a Poisson process), in multiples of their mean.
pub fn gaps(seed: u64) -> Vec<f64> {
    const GAPS: usize = 1 << 14;
    let mut random = SmallRng::seed_from_u64(seed);
    let gaps: Vec<f64> = (0..GAPS).map(|_| -(1.0 - random.random::<f64>()).ln()).collect();
    // So many gaps have nearly this mean; scaling makes it exact.
    let mean = gaps.iter().sum::<f64>() / GAPS as f64;
    gaps.into_iter().map(|gap| gap / mean).collect()
}

/// Random numbers for purposes other than a workload.
pub fn random(seed: u64) -> impl Rng {
    SmallRng::seed_from_u64(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(distribution: Distribution) -> Workload {
        let (order, sizes) = (Order::Alike, Sizes::Fixed(32));
        Workload { keys: 1000, distribution, get_percent: 95.0, order, sizes, seed: 1 }
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
    fn half_of_the_requests_beside_a_scan_ask_for_keys_that_no_other_asks_for() {
        let beside_scan = Workload { order: Order::BesideScan, ..workload(Distribution::Uniform) };
        let (scanned, others): (Vec<_>, Vec<_>) =
            beside_scan.trace(10_000).into_iter().partition(|request| request.key() >= 1000);
        assert!((4800..5200).contains(&scanned.len()), "{}", scanned.len());
        assert!(scanned.iter().zip(1000..).all(|(request, key)| request.is_get() && request.key() == key));
        assert!(others.iter().any(|request| !request.is_get()));
    }

    #[test]
    fn values_are_as_long_as_their_mix_says() {
        for (mix, shares) in [
            (Mix::Etc, [(1, 13, 40), (14, 300, 55), (301, 1024, 5)]),
            (Mix::Sys, [(320, 500, 70), (1, 319, 30), (0, 0, 0)]),
        ] {
            let sizes = mix.workload(1000, 32, 1).sizes;
            for (low, high, percent) in shares {
                let count = (0..100_000).filter(|key| (low..=high).contains(&sizes.of(*key))).count();
                assert!((percent * 950..=percent * 1050).contains(&count), "{mix:?} {low}..={high}: {count}");
            }
            assert!((0..100_000).all(|key| (1..=sizes.max()).contains(&sizes.of(key))));
        }
        assert_eq!(Mix::YcsbA.workload(1000, 7, 1).sizes.of(5), 7);
    }

    #[test]
    fn the_latest_keys_are_asked_for_most_once_they_are_stored() {
        let mut stored = 1000;
        let mut recent = 0;
        let trace = Mix::YcsbD.workload(1000, 32, 1).trace(50_000);
        for request in &trace {
            if request.is_get() {
                assert!((stored - 1000..stored).contains(&request.key()));
                recent += usize::from(request.key() + 10 >= stored);
            } else {
                assert_eq!(request.key(), stored);
                stored += 1;
            }
        }
        assert!((3_000..4_000).contains(&stored) && recent > trace.len() / 3, "{stored}, {recent}");
    }

    #[test]
    fn half_of_a_mix_reads_before_it_writes() {
        let trace = Mix::YcsbF.workload(1000, 32, 1).trace(10_000);
        let both = trace.iter().filter(|request| request.is_read_first()).count();
        assert!((4_700..5_300).contains(&both) && trace.iter().all(|request| request.is_get()), "{both}");
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
