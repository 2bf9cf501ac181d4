//! The machine's processors, threads that are pinned to them, and how far apart two of them are.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use sinew::host::{available_cpus, pin_current_thread};

use crate::units;

/// Round trip of a cache line below which two cores share a cache.
pub const NEAR_BELOW_NS: f64 = 150.0;

/// Processors of two threads: the one that asks, and the one that answers. `None` leaves their placement to the system.
pub type Pair = Option<[usize; 2]>;

/// Processors that this process may use, as at its start: a thread that has been pinned since would only see its own.
pub fn cpus() -> &'static [usize] {
    static CPUS: OnceLock<Vec<usize>> = OnceLock::new();
    CPUS.get_or_init(available_cpus)
}

/// Whether two threads can spin at the same time.
pub fn has_two_cpus() -> bool {
    cpus().len() >= 2
}

/// The first two processors, if there are two.
pub fn default_pair() -> Pair {
    match *cpus() {
        [first, second, ..] => Some([first, second]),
        _ => None,
    }
}

/// Checks that threads can be pinned to these processors.
pub fn check_pins(pins: &[usize]) -> anyhow::Result<()> {
    for cpu in pins {
        ensure!(cpus().contains(cpu), "--pin: this process may not use processor {cpu}; it may use {:?}", cpus());
    }
    Ok(())
}

/// Processors of client threads and of server threads; `None` leaves a thread's placement to the system.
pub type Places = (Vec<Option<usize>>, Vec<Option<usize>>);

/// A processor for each client thread, and one for each server thread: those of `pins`, or, unless `no_pin`, the first
/// ones available. For a server elsewhere the clients' processors suffice.
///
/// # Errors
///
/// `--pin` names too few, too many, or processors that this process may not use.
pub fn places(
    pins: &[usize],
    no_pin: bool,
    (clients, servers): (usize, usize),
    is_server_elsewhere: bool,
) -> anyhow::Result<Places> {
    let wanted = clients + servers;
    let is_enough = |len: usize| len == wanted || (is_server_elsewhere && len == clients);
    ensure!(
        pins.is_empty() || is_enough(pins.len()),
        "--pin: name {}, one for each client thread ({clients}) and then one for each server thread",
        units::counted(wanted, "processor")
    );
    check_pins(pins)?;
    let available = if pins.is_empty() { cpus() } else { pins };
    let is_pinned = !pins.is_empty() || !(no_pin || available.len() < wanted || !has_two_cpus());
    let mut all: Vec<_> = (0..wanted).map(|nth| available.get(nth).copied().filter(|_| is_pinned)).collect();
    let servers = all.split_off(clients);
    Ok((all, servers))
}

/// Processors of the first client and the first server.
pub fn pair(clients: &[Option<usize>], servers: &[Option<usize>]) -> Pair {
    Some([(*clients.first()?)?, (*servers.first()?)?])
}

/// Share of this process's own memory that has huge pages, in percent, if the system says so. Random reads of memory
/// without them also miss the TLB.
pub fn huge_pages_percent() -> Option<f64> {
    huge_percent(&std::fs::read_to_string("/proc/self/smaps_rollup").ok()?)
}

fn huge_percent(rollup: &str) -> Option<f64> {
    let kb =
        |name: &str| rollup.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    let (all, huge): (f64, f64) = (kb("Anonymous:")?, kb("AnonHugePages:")?);
    (all > 0.0).then(|| 100.0 * huge / all)
}

/// Pins the calling thread, unless `cpu` is `None`.
pub fn pin(cpu: Option<usize>) -> anyhow::Result<()> {
    match cpu {
        Some(cpu) => pin_current_thread(cpu).context("--pin"),
        None => Ok(()),
    }
}

/// Wait of one thread for another: it spins if they have processors of their own, and otherwise yields.
#[derive(Clone, Copy)]
pub struct Idle {
    yields: bool,
}

impl Default for Idle {
    fn default() -> Self {
        Self::new()
    }
}

impl Idle {
    /// Chooses by the number of processors.
    pub fn new() -> Self {
        Self { yields: !has_two_cpus() }
    }

    /// Waits a moment.
    #[inline(always)]
    pub fn pass(self) {
        if self.yields {
            std::thread::yield_now();
        }
    }
}

/// Nanoseconds for which measuring threads of this process that have ended waited for their processors.
static ENDED_WAITED_NS: AtomicU64 = AtomicU64::new(0);

/// Called by a measuring thread before it ends, since the time for which it waited for its processor would be lost with
/// it.
fn thread_ends() {
    let waited = std::fs::read_to_string("/proc/thread-self/schedstat").ok().and_then(|text| waited_ns(&text));
    ENDED_WAITED_NS.fetch_add(waited.unwrap_or(0), Ordering::Relaxed);
}

/// Nanoseconds for which measuring threads of this process that have ended waited for their processors.
pub(crate) fn ended_waited_ns() -> u64 {
    ENDED_WAITED_NS.load(Ordering::Relaxed)
}

/// Parses `schedstat`, which has nanoseconds on a processor, nanoseconds of waiting for one, and the number of time
/// slices. Returns the second.
pub(crate) fn waited_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

/// Runs `first` and `second` on two threads, pinned to `cpus` if given; `second` goes on until the flag is set. Neither
/// runs if one of them cannot be pinned.
pub fn two_threads<A: Send, B: Send>(
    cpus: Pair,
    first: impl FnOnce() -> A + Send,
    second: impl FnOnce(&AtomicBool) -> B + Send,
) -> anyhow::Result<(A, B)> {
    let (stop, unpinned, pinning) = (AtomicBool::new(false), AtomicBool::new(false), Barrier::new(2));
    // Each one waits for the other, so both must be able to run.
    let both_pinned = |which: usize| {
        let result = pin(cpus.map(|cpus| cpus[which]));
        unpinned.fetch_or(result.is_err(), Ordering::Relaxed);
        pinning.wait();
        result.map(|()| !unpinned.load(Ordering::Relaxed))
    };
    std::thread::scope(|threads| {
        let (stop, both_pinned) = (&stop, &both_pinned);
        let second = threads.spawn(move || {
            let result = both_pinned(1).map(|run| run.then(|| second(stop)));
            thread_ends();
            result
        });
        let first = threads.spawn(move || {
            let result = both_pinned(0).map(|run| run.then(first));
            thread_ends();
            result
        });
        let first = first.join();
        stop.store(true, Ordering::Relaxed);
        let lost = |_| anyhow::anyhow!("a measuring thread panicked");
        let second = second.join();
        // The thread that could not be pinned gives the reason.
        match (first.map_err(lost)??, second.map_err(lost)??) {
            (Some(first), Some(second)) => Ok((first, second)),
            _ => bail!("a measuring thread did not run"),
        }
    })
}

#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// Median round trip of a cache line to another core, in nanoseconds. `None` if both threads are on one processor.
pub fn core_round_trip_ns(cpus: Pair, duration: Duration) -> anyhow::Result<Option<f64>> {
    const TRIPS: u64 = 256;
    let is_one = cpus.is_some_and(|[first, second]| first == second);
    if is_one || !has_two_cpus() {
        return Ok(None);
    }
    let (there, back) = (Line::default(), Line::default());
    let first = || {
        let mut means = Vec::with_capacity(1 << 16);
        let (mut count, began) = (0u64, Instant::now());
        while began.elapsed() < duration && means.len() < means.capacity() {
            let group = Instant::now();
            for _ in 0..TRIPS {
                count += 1;
                there.0.store(count, Ordering::Release);
                while back.0.load(Ordering::Acquire) != count {}
            }
            means.push(group.elapsed().as_nanos() as f64 / TRIPS as f64);
        }
        means
    };
    let second = |stop: &AtomicBool| {
        let mut seen = 0;
        while !stop.load(Ordering::Relaxed) {
            let now = there.0.load(Ordering::Acquire);
            if now != seen {
                seen = now;
                back.0.store(now, Ordering::Release);
            }
        }
    };
    let (means, ()) = two_threads(cpus, first, second)?;
    Ok(Some(units::median(&means)))
}

/// `near` or `far`, or `one` if there is only one processor.
pub fn distance(round_trip_ns: Option<f64>) -> &'static str {
    match round_trip_ns {
        None => "one",
        Some(ns) if ns < NEAR_BELOW_NS => "near",
        Some(_) => "far",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_of_a_thread_is_read() {
        assert_eq!((waited_ns("5 17 3\n"), waited_ns("5"), waited_ns("")), (Some(17), None, None));
    }

    #[test]
    fn what_the_kernel_writes_of_huge_pages_is_read() {
        let rollup = "0-1 ---p [rollup]\nRss:  99 kB\nAnonymous:     40 kB\nAnonHugePages:     30 kB\n";
        assert_eq!(huge_percent(rollup), Some(75.0));
        assert_eq!((huge_percent(""), huge_percent("Anonymous: 0 kB\nAnonHugePages: 0 kB")), (None, None));
    }

    #[test]
    fn threads_that_share_a_processor_have_no_distance() {
        let both = Some([cpus()[0]; 2]);
        assert_eq!(core_round_trip_ns(both, Duration::from_millis(1)).unwrap(), None);
    }

    #[test]
    fn a_thread_that_cannot_be_pinned_ends_both() {
        for cpus in [[cpus()[0], usize::MAX], [usize::MAX, cpus()[0]]] {
            let second = |stop: &AtomicBool| {
                while !stop.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            };
            let error = two_threads(Some(cpus), || (), second).unwrap_err();
            assert!(format!("{error:#}").contains("--pin"), "{error:#}");
        }
        assert!(check_pins(&[usize::MAX]).is_err() && check_pins(&cpus()[..1]).is_ok());
    }
}
