//! An endpoint's counters, readable by other threads while it runs.
//!
//! One thread writes, with plain stores; any thread reads. A version, which changes before and after each write, tells
//! a reader whether the counters that it read are a consistent snapshot. The endpoint never waits for a reader.
//!
//! An endpoint with a reader publishes its counters once in each busy turn, before its answers leave, and before it
//! sleeps. This costs 30 instructions a call in batches of 8, and 236 for calls one by one (`cargo xtask cost`).
//! Counters that move rarely are written only when their sum has changed.

use sinew_fabric::{Dropped, PortStats};
use sinew_mem::atomic::{Arc, AtomicU64, Ordering, fence};

use crate::stats::Stats;

/// Number of counters that each call moves, plus the number of sessions.
const HOT: usize = Stats::HOT + 4 + 1;
/// Number of all other counters.
const RARE: usize = Stats::RARE + Dropped::ALL.len();

/// An endpoint's counters at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointStats {
    /// Its own counters.
    pub stats: Stats,
    /// Its port's counters.
    pub port_stats: PortStats,
    /// Sessions that were open, in both roles together.
    pub sessions: usize,
}

/// The published counters. The version and the counters written each turn fill one cache line; the alignment keeps
/// unrelated data off that line and its neighbour.
#[repr(C, align(128))]
struct Board {
    /// Odd while the counters are being written.
    version: AtomicU64,
    hot: [AtomicU64; HOT],
    rare: [AtomicU64; RARE],
}
#[cfg(not(loom))]
const _: () = assert!(std::mem::offset_of!(Board, rare) == 64);

impl Board {
    /// Reads the counters; `None` if they were written meanwhile.
    fn read(&self) -> Option<([u64; HOT], [u64; RARE])> {
        // Acquire: the counters are read after the version. Partner: the last store in `Publisher::publish`.
        let before = self.version.load(Ordering::Acquire);
        let hot = std::array::from_fn(|at| self.hot[at].load(Ordering::Relaxed));
        let rare = std::array::from_fn(|at| self.rare[at].load(Ordering::Relaxed));
        // If a counter of a later version was read, the load below sees that version's odd number, or a later one.
        // Partner: the fence in `Publisher::publish`.
        fence(Ordering::Acquire);
        let after = self.version.load(Ordering::Relaxed);
        (before.is_multiple_of(2) && before == after).then_some((hot, rare))
    }
}

/// Reader of an endpoint's counters, for any thread. It also works after the endpoint has gone, and then gives the last
/// values. It is cheap to clone.
///
/// The endpoint publishes its counters once in each turn that found something to do, and before it sleeps. In a turn it
/// publishes before the turn's answers leave, so a client that has an answer finds its request counted.
#[derive(Clone)]
pub struct StatsReader {
    board: Arc<Board>,
}

impl StatsReader {
    /// Returns the counters as last published: a consistent snapshot.
    pub fn read(&self) -> EndpointStats {
        loop {
            if let Some((hot, rare)) = self.board.read() {
                return counters_of(&hot, &rare);
            }
            // The writer needs some tens of nanoseconds, unless it was preempted, perhaps by us.
            std::thread::yield_now();
        }
    }
}

impl std::fmt::Debug for StatsReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StatsReader").field(&self.read()).finish()
    }
}

/// Writer of one endpoint's counters.
pub(crate) struct Publisher {
    board: Arc<Board>,
    version: u64,
    /// Sum of the rare counters as last published: see [`Stats::rare_sum`].
    rare: u64,
}

impl Publisher {
    pub fn new() -> Self {
        let hot = std::array::from_fn(|_| AtomicU64::new(0));
        let rare = std::array::from_fn(|_| AtomicU64::new(0));
        Self { board: Arc::new(Board { version: AtomicU64::new(0), hot, rare }), version: 0, rare: 0 }
    }

    pub fn reader(&self) -> StatsReader {
        StatsReader { board: Arc::clone(&self.board) }
    }

    #[inline(always)]
    pub fn publish(&mut self, stats: &Stats, port: &PortStats, sessions: usize) {
        let rare = stats.rare_sum() + port.dropped_total();
        let has_changed = std::mem::replace(&mut self.rare, rare) != rare;
        self.begin();
        store(&self.board.hot[..Stats::HOT], &stats.hot_counters());
        let of_port = [port.rx_packets, port.rx_bytes, port.tx_packets, port.tx_bytes];
        store(&self.board.hot[Stats::HOT..], &of_port);
        self.board.hot[HOT - 1].store(sessions as u64, Ordering::Relaxed);
        if has_changed {
            self.store_rare(stats, port);
        }
        self.end();
    }

    #[cold]
    #[inline(never)]
    fn store_rare(&self, stats: &Stats, port: &PortStats) {
        store(&self.board.rare, &stats.rare_counters());
        store(&self.board.rare[Stats::RARE..], &Dropped::ALL.map(|reason| port.dropped(reason)));
    }

    #[inline(always)]
    fn begin(&self) {
        self.board.version.store(self.version + 1, Ordering::Relaxed);
        // The odd version becomes visible before the counters. Partner: the fence in `Board::read`.
        fence(Ordering::Release);
    }

    #[inline(always)]
    fn end(&mut self) {
        self.version += 2;
        // Release: the even version becomes visible after the counters. Partner: the first load in `Board::read`.
        self.board.version.store(self.version, Ordering::Release);
    }
}

#[inline(always)]
fn store(words: &[AtomicU64], counters: &[u64]) {
    for (word, count) in words.iter().zip(counters) {
        word.store(*count, Ordering::Relaxed);
    }
}

fn counters_of(hot: &[u64; HOT], rare: &[u64; RARE]) -> EndpointStats {
    let [calls_completed, requests_handled, rx_packets, rx_bytes, tx_packets, tx_bytes, sessions] = *hot;
    let (of_rpc, drops) = rare.split_first_chunk().expect("the endpoint's counters come first");
    let mut port_stats = PortStats::default();
    (port_stats.rx_packets, port_stats.rx_bytes) = (rx_packets, rx_bytes);
    (port_stats.tx_packets, port_stats.tx_bytes) = (tx_packets, tx_bytes);
    for (reason, packets) in Dropped::ALL.into_iter().zip(drops) {
        port_stats.count_dropped(reason, *packets);
    }
    let stats = Stats::of_counters(&[calls_completed, requests_handled], of_rpc);
    EndpointStats { stats, port_stats, sessions: sessions as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_comes_back_as_it_was_published() {
        let mut publisher = Publisher::new();
        let reader = publisher.reader();
        let none = counters_of(&[0; HOT], &[0; RARE]);
        assert_eq!(reader.read(), none);
        for round in 1..4 {
            let count = |at: usize| round * 1_000 + at as u64;
            let all = counters_of(&std::array::from_fn(count), &std::array::from_fn(|at| count(HOT + at)));
            publisher.publish(&all.stats, &all.port_stats, all.sessions);
            assert_eq!(reader.read(), all);
        }
    }

    #[test]
    fn one_rare_counter_alone_is_published_too() {
        let (mut publisher, mut rare) = (Publisher::new(), [0; RARE]);
        let reader = publisher.reader();
        for at in 0..RARE {
            rare[at] += 1;
            let all = counters_of(&[0; HOT], &rare);
            publisher.publish(&all.stats, &all.port_stats, 0);
            assert_eq!(reader.read(), all);
        }
    }

    #[test]
    fn a_reader_sees_counters_of_one_moment_and_never_older_ones_than_before() {
        const ROUNDS: u64 = if cfg!(miri) { 20 } else { 200_000 };
        let mut publisher = Publisher::new();
        let reader = publisher.reader();
        let of_round = |round| counters_of(&[round; HOT], &[round; RARE]);
        std::thread::scope(|threads| {
            threads.spawn(move || {
                for EndpointStats { stats, port_stats, sessions } in (1..=ROUNDS).map(of_round) {
                    publisher.publish(&stats, &port_stats, sessions);
                }
            });
            let mut last = 0;
            while last < ROUNDS {
                let read = reader.read();
                let round = read.sessions as u64;
                assert!(round >= last, "{round} after {last}");
                assert_eq!(read, of_round(round));
                last = round;
            }
        });
    }

    #[test]
    fn what_is_being_written_is_not_read() {
        let publisher = Publisher::new();
        publisher.board.version.store(1, Ordering::Relaxed);
        assert_eq!(publisher.board.read(), None);
    }
}
