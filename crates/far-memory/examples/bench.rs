//! The cost of far memory, compared with its store alone: `cargo run --release -p sinew-far-memory --example bench`.
//!
//! The variants alternate in short slices, and each ratio is computed within one repetition. Medians and the middle
//! half are printed. The argument is the number of repetitions.

use std::time::Instant;

use sinew_fabric::{Clock, Generator, SeededGenerator};
use sinew_far_memory::{FarMemory, FarVec, Options, PAGE};
use sinew_mem::Arena;
use sinew_remote_memory::{Job, RamStore, Request, Store};

/// Far pages: 64 MB, more than the processor's caches.
const PAGES: usize = 16 << 10;
const LOCAL: usize = 1024;
const PER_PAGE: usize = PAGE / 8;
/// Pages that a slice touches.
const SLICE: usize = 512;

struct Watch(Instant);

impl Watch {
    fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Watch {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// Nanoseconds per operation, over `count` operations.
fn each_ns(count: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / count as f64
}

/// The median, and the bounds of the middle half.
fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share: usize| sorted[(sorted.len() - 1) * share / 4];
    (at(2), at(1), at(3))
}

fn print_spread(what: &str, unit: &str, values: &[f64]) {
    let (median, least, most) = spread(values);
    println!("{what:<58} {median:>9.2} {unit:<5} ({least:.2} to {most:.2})");
}

fn ratio(what: &str, over: &[f64], under: &[f64]) {
    let ratios: Vec<f64> = over.iter().zip(under).map(|(over, under)| over / under).collect();
    print_spread(what, "times", &ratios);
}

fn ram() -> RamStore {
    let store = RamStore::new(PAGES * PAGE, 4 * LOCAL * Arena::block_len(PAGE, PAGE) + (32 << 20)).unwrap();
    let mut store = store;
    let mut finished = Vec::new();
    // Every page differs, and is backed by memory.
    for page in 0..PAGES as u64 {
        let mut buffer = store.arena().alloc(PAGE, PAGE).unwrap();
        buffer[..].fill(0);
        for (at, word) in buffer.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = (page * PER_PAGE as u64 + at as u64).to_ne_bytes();
        }
        let source = buffer.freeze().into();
        store.submit(Request { tag: 0, job: Job::Write { at: page * PAGE as u64, source } }).unwrap();
        store.turn();
        finished.clear();
        store.poll(&mut finished, 8);
    }
    store
}

/// Pages in random order, which no read-ahead can follow: each once, then again from the start.
struct Shuffled(Vec<usize>, usize);

impl Shuffled {
    fn new(seed: u64) -> Self {
        let mut random = SeededGenerator::new(seed);
        let mut pages: Vec<usize> = (0..PAGES).collect();
        for at in (1..PAGES).rev() {
            pages.swap(at, random.next_u64() as usize % (at + 1));
        }
        Self(pages, 0)
    }

    /// The next slice: the pages touched longest ago.
    fn slice(&mut self) -> &[usize] {
        let from = self.1;
        self.1 = (from + SLICE) % PAGES;
        &self.0[from..from + SLICE]
    }
}

/// Bare reads of 4 KB at the store. The buffers are used in turn and take as much memory as the pager's.
fn bare_reads(
    store: &mut RamStore,
    pages: &[usize],
    buffers: &mut std::collections::VecDeque<sinew_mem::MessageBuffer>,
) -> f64 {
    let mut finished = Vec::new();
    each_ns(pages.len(), || {
        for page in pages {
            let target = buffers.pop_front().unwrap();
            store.submit(Request { tag: 0, job: Job::Read { at: (page * PAGE) as u64, target } }).unwrap();
            store.turn();
            store.poll(&mut finished, 8);
            let target = finished.pop().unwrap().target.unwrap();
            assert_eq!(target[..8], ((page * PER_PAGE) as u64).to_ne_bytes());
            buffers.push_back(target);
        }
    })
}

fn safe(repetitions: usize) {
    let mut store = ram();
    let mut buffers: std::collections::VecDeque<_> =
        (0..LOCAL).map(|_| store.arena().alloc(PAGE, PAGE).unwrap()).collect();
    let plain = Options { ahead_pages: 0, ..Options::with_local_pages(LOCAL) };
    let options = [plain.clone(), Options::with_local_pages(LOCAL), plain];
    let [vector, ahead, mut written] = options.map(|options| {
        let memory = FarMemory::new(ram(), options, Watch::start()).unwrap();
        FarVec::<u64, _>::at(&memory, 0, PAGES * PER_PAGE).unwrap()
    });
    let (mut pages, mut window) = (Shuffled::new(1), 0);
    let [mut bare, mut missing, mut missing_ahead, mut hit, mut iterated, mut pieces, mut got, mut changed] =
        [const { Vec::new() }; 8];
    let of = |vector: &FarVec<u64, RamStore>, pages: &[usize]| {
        let before = vector.memory().stats().missing;
        let ns = each_ns(1, || {
            for page in pages {
                assert_eq!(vector.get(page * PER_PAGE).unwrap(), (page * PER_PAGE) as u64);
            }
        });
        // Some pages are still local from the last round.
        let missing = vector.memory().stats().missing - before;
        assert!(missing > SLICE as u64 / 2);
        ns / missing as f64
    };
    for _ in 0..repetitions {
        let slice = pages.slice();
        bare.push(bare_reads(&mut store, slice, &mut buffers));
        missing.push(of(&vector, slice));
        missing_ahead.push(of(&ahead, slice));
        changed.push(each_ns(slice.len(), || {
            for page in slice {
                written.set(page * PER_PAGE, (page * PER_PAGE) as u64).unwrap();
            }
        }));
        // Local pages: 64 of them in turn.
        let few = |at: usize| at * 7 % 64;
        (0..1024).for_each(|at| assert!(vector.get(few(at) * PER_PAGE).is_ok()));
        hit.push(each_ns(1 << 16, || {
            let sum: u64 = (0..1 << 16).map(|at| vector.get(few(at) * PER_PAGE + 1).unwrap()).sum();
            assert_eq!(sum, 1024 * (0..64).map(|page| (page * PER_PAGE + 1) as u64).sum::<u64>());
        }));
        // Sequential reads of 4 MB each, in successive windows.
        let from = window * 1024 * PER_PAGE;
        window = (window + 3) % (PAGES / 1024);
        let range = from..from + 1024 * PER_PAGE;
        let all = range.clone().map(|word| word as u64).sum::<u64>();
        let bytes = 1024 * PAGE;
        got.push(
            1.0 / each_ns(bytes, || {
                assert_eq!(range.clone().map(|index| ahead.get(index).unwrap()).sum::<u64>(), all);
            }),
        );
        let next = (from + 5 * 1024 * PER_PAGE) % (PAGES * PER_PAGE);
        let range = next..next + 1024 * PER_PAGE;
        let all = range.clone().map(|word| word as u64).sum::<u64>();
        iterated.push(
            1.0 / each_ns(bytes, || {
                let mut sum = 0;
                for element in ahead.iter_of(range.clone()).unwrap() {
                    sum += element.unwrap();
                }
                assert_eq!(sum, all);
            }),
        );
        let next = (from + 10 * 1024 * PER_PAGE) % (PAGES * PER_PAGE);
        let range = next..next + 1024 * PER_PAGE;
        let all = range.clone().map(|word| word as u64).sum::<u64>();
        pieces.push(
            1.0 / each_ns(bytes, || {
                let sum = ahead.iter_of(range.clone()).unwrap().map(|element| element.unwrap()).sum::<u64>();
                assert_eq!(sum, all);
            }),
        );
    }
    println!("the safe face, {PAGES} pages of 4 KB at a store in memory, {LOCAL} local, one thread:");
    print_spread("  a bare read of 4 KB at the store", "ns", &bare);
    print_spread("  a missing page, and another is evicted", "ns", &missing);
    ratio("    over the bare read (1.5 asked)", &missing, &bare);
    print_spread("  the same, with detection of sequential readers", "ns", &missing_ahead);
    ratio("    over the bare read (1.5 asked)", &missing_ahead, &bare);
    print_spread("  a missing page, changed, and another is written back", "ns", &changed);
    print_spread("  a local page", "ns", &hit);
    print_spread("  a sequential reader: for", "GB/s", &iterated);
    print_spread("  a sequential reader: sum of an iterator (1 asked)", "GB/s", &pieces);
    print_spread("  a sequential reader: get", "GB/s", &got);
}

fn main() {
    let repetitions = std::env::args().nth(1).map_or(101, |count| count.parse().expect("a number of repetitions"));
    safe(repetitions);
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    mapped::run(repetitions);
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "bench/mapped.rs"]
mod mapped;
