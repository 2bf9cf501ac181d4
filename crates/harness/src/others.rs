//! Share of the processors that other programs used during a measurement.
//!
//! A thread whose processor others use half of the time seems half as fast, and so does the limit that is measured on
//! it. The kernel reports two things: for each thread, how long it waited for its processor; and for each processor how
//! busy it was, of which the measuring processes know their own part. The first is exact, but means something only if
//! each thread has a processor of its own. The second counts in ticks of 10 ms, and includes the time that the
//! hypervisor took.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Instant;

use crate::machine;

/// Share of the CPU time used by others from which a figure is invalid.
pub const TOO_MUCH: f64 = 0.05;
/// Ticks of the kernel's counters from which even a small share used by others can be measured.
const TICKS_MIN: u64 = 100;
/// Ticks used by others that count even when there are fewer than [`TICKS_MIN`] in total: rounding alone never produces
/// this many.
const TICKS_OF_OTHERS_MIN: u64 = 10;

/// Watches processors from its creation on.
pub struct Watch {
    cpus: Vec<usize>,
    /// Whether each measuring thread has a processor of its own.
    are_own: bool,
    processes: Vec<u32>,
    began: Instant,
    before: Reading,
}

/// Counters of the kernel so far.
struct Reading {
    ticks: Option<Ticks>,
    /// Nanoseconds for which each thread of the measuring processes waited for a processor; ended threads are in
    /// `ended_waited_ns`.
    waited_ns: BTreeMap<u32, u64>,
    ended_waited_ns: u64,
}

#[derive(Clone, Copy)]
struct Ticks {
    /// Ticks of the processors, idle ones included.
    all: u64,
    busy: u64,
    /// Ticks of the measuring processes, and of their children that have ended.
    own: u64,
}

impl Watch {
    /// Watches the processors to which measuring threads are pinned (all processors, if one thread is not pinned) for
    /// use by others than this process and `servers`.
    pub fn new(pins: &[Option<usize>], servers: impl IntoIterator<Item = u32>) -> Self {
        let pinned: Option<BTreeSet<usize>> = pins.iter().copied().collect();
        let are_own = pinned.as_ref().is_some_and(|pinned| pinned.len() == pins.len());
        let cpus = pinned.map_or_else(|| machine::cpus().to_vec(), |pinned| pinned.into_iter().collect());
        let processes: Vec<u32> = std::iter::once(std::process::id()).chain(servers).collect();
        let before = Reading::take(&cpus, &processes);
        Self { cpus, are_own, processes, began: Instant::now(), before }
    }

    /// Whether the kernel has the counters for a [share](Self::share), which is then known once enough time has passed.
    pub fn has_counters(&self) -> bool {
        self.before.ticks.is_some()
    }

    /// Share of the CPU time that others have used since the watch began, from 0 to 1; `None` if it is not known.
    pub fn share(&self) -> Option<f64> {
        let now = Reading::take(&self.cpus, &self.processes);
        let by_ticks = self.before.ticks.zip(now.ticks).and_then(|(before, now)| ticks_share(before, now));
        let waited_ns = now.waited_since(&self.before);
        let time_ns = self.began.elapsed().as_nanos() as f64 * self.cpus.len() as f64;
        let by_waiting = self.are_own.then(|| (waited_ns as f64 / time_ns.max(1.0)).min(1.0));
        by_ticks.into_iter().chain(by_waiting).reduce(f64::max)
    }
}

impl Reading {
    fn take(cpus: &[usize], processes: &[u32]) -> Self {
        let waited_ns = processes.iter().flat_map(|process| waits(*process)).collect();
        Self { ticks: Ticks::read(cpus, processes), waited_ns, ended_waited_ns: machine::ended_waited_ns() }
    }

    fn waited_since(&self, before: &Self) -> u64 {
        let of = |thread: &u32| before.waited_ns.get(thread).copied().unwrap_or(0);
        let living: u64 = self.waited_ns.iter().map(|(thread, now)| now.saturating_sub(of(thread))).sum();
        living + self.ended_waited_ns.saturating_sub(before.ended_waited_ns)
    }
}

impl Ticks {
    fn read(cpus: &[usize], processes: &[u32]) -> Option<Self> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let (mut all, mut busy) = (0, 0);
        for cpu in cpus {
            let (of_all, of_busy) = processor(&stat, *cpu)?;
            all += of_all;
            busy += of_busy;
        }
        let process = |id: &u32| process(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?);
        let own: Option<u64> = processes.iter().map(process).sum();
        Some(Self { all, busy, own: own? })
    }
}

/// The threads of a process that are pinned to a processor, and the nanoseconds for which each has waited for it. The
/// other threads only control those that measure, and wait for them.
fn waits(process: u32) -> Vec<(u32, u64)> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let of = |thread: fs::DirEntry| {
        let id = thread.file_name().to_str()?.parse().ok()?;
        let read = |name: &str| fs::read_to_string(thread.path().join(name)).ok();
        is_pinned(&read("status")?).then_some(())?;
        Some((id, machine::waited_ns(&read("schedstat")?)?))
    };
    threads.filter_map(of).collect()
}

/// Whether a thread may run on one processor only, according to its `status`.
fn is_pinned(status: &str) -> bool {
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    allowed.is_some_and(|list| list.trim().parse::<usize>().is_ok())
}

fn ticks_share(before: Ticks, now: Ticks) -> Option<f64> {
    let [all, busy, own] =
        [(before.all, now.all), (before.busy, now.busy), (before.own, now.own)].map(|(was, is)| is.saturating_sub(was));
    let others = busy.saturating_sub(own);
    (all >= TICKS_MIN || others >= TICKS_OF_OTHERS_MIN).then(|| others as f64 / all.max(1) as f64)
}

/// Parses `/proc/stat`: all ticks of a processor, and those in which it was busy.
fn processor(stat: &str, cpu: usize) -> Option<(u64, u64)> {
    let name = format!("cpu{cpu}");
    let mut words =
        stat.lines().map(str::split_whitespace).find_map(|mut words| (words.next()? == name).then_some(words))?;
    // User, nice, system, idle, waiting for a device, interrupts of two kinds, stolen. (User time includes guests.)
    let mut ticks = [0; 8];
    for tick in &mut ticks {
        *tick = words.next()?.parse().ok()?;
    }
    let all = ticks.iter().sum::<u64>();
    Some((all, all - ticks[3] - ticks[4]))
}

/// Parses `/proc/PID/stat`: the ticks that a process used, with those of its children that have ended.
fn process(stat: &str) -> Option<u64> {
    // Its name may contain anything, and ends with the last parenthesis.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || words.next()?.parse::<u64>().ok();
    Some(next()? + next()? + next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let stat =
            "cpu  99 99 99 99 99 99 99 99 0 0\ncpu0 10 20 30 1000 5 1 2 3 0 0\ncpu1 1 0 0 7 0 0 0 0 0 0\nintr 5\n";
        assert_eq!((processor(stat, 0), processor(stat, 1)), (Some((1071, 66)), Some((8, 1))));
        assert_eq!((processor(stat, 2), processor("cpu0 1 2", 0)), (None, None));
        assert_eq!(process("7 (a ) b) R 1 2 3 4 5 6 7 8 9 10 30 12 500 600 0"), Some(1142));
        assert_eq!(process("7 (a"), None);
        let status =
            |list: &str| format!("Name:\tsinew\nCpus_allowed:\t3\nCpus_allowed_list:\t{list}\nMems_allowed:\t1\n");
        assert!(is_pinned(&status("1")) && !is_pinned(&status("0-1")) && !is_pinned(&status("0,2")) && !is_pinned(""));
    }

    #[test]
    fn busy_ticks_that_are_not_ours_are_the_others() {
        let before = Ticks { all: 1000, busy: 500, own: 100 };
        let after = |own: u64| ticks_share(before, Ticks { all: 1200, busy: 700, own: 100 + own }).unwrap();
        assert!((after(180) - 0.1).abs() < 1e-9 && after(200) == 0.0 && after(250) == 0.0);
        assert!(ticks_share(before, Ticks { all: 1099, busy: 509, ..before }).is_none(), "too short to tell");
        assert_eq!(ticks_share(before, Ticks { all: 1040, busy: 510, ..before }), Some(0.25), "however short");
    }

    #[test]
    fn a_busy_loop_on_a_measured_processor_is_noticed_within_a_tenth_of_a_second() {
        let cpu = machine::cpus()[0];
        let stop = std::sync::atomic::AtomicBool::new(false);
        let spin = |until: &dyn Fn() -> bool| {
            machine::pin(Some(cpu)).unwrap();
            while !until() {
                std::hint::spin_loop();
            }
        };
        let share = std::thread::scope(|threads| {
            let (stop, spin) = (&stop, &spin);
            threads.spawn(move || spin(&|| stop.load(std::sync::atomic::Ordering::Relaxed)));
            let measured = threads.spawn(move || {
                let watch = Watch::new(&[Some(cpu)], None);
                let began = Instant::now();
                spin(&|| began.elapsed() > Duration::from_millis(100));
                watch.share()
            });
            let share = measured.join().unwrap();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            share
        });
        assert!(share.unwrap() > TOO_MUCH, "{share:?}");
    }
}
