//! Whether others used the processors that something was measured on.
//!
//! A thread whose processor others use half of the time seems half as fast, and so does the limit that is measured beside it. The
//! kernel counts what each processor did, and what each process used: the rest is others', the hypervisor's included.

use std::collections::BTreeSet;
use std::fs;

use crate::limits::References;
use crate::machine;

/// From this share of the processors' time on, a figure says more of the others than of what was measured.
pub const TOO_MUCH: f64 = 0.1;
/// Ticks of the kernel's counters (of 10 ms, as a rule) that tell anything.
const TICKS_MIN: u64 = 20;

/// The processors of threads that are pinned to them; all, where one is not.
pub fn cpus<'a>(pins: impl Iterator<Item = &'a Option<usize>>) -> Vec<usize> {
    let pinned: Option<BTreeSet<usize>> = pins.copied().collect();
    pinned.map_or_else(|| machine::cpus().to_vec(), |pinned| pinned.into_iter().collect())
}

/// Watches processors from its making on.
pub struct Watch {
    cpus: Vec<usize>,
    processes: Vec<u32>,
    before: Option<Ticks>,
    too_much: f64,
}

/// Ticks so far.
#[derive(Clone, Copy)]
struct Ticks {
    /// Of the processors, idle ones included.
    all: u64,
    busy: u64,
    /// Of the processes that measure.
    own: u64,
}

/// What others used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Others {
    /// Of the processors' time, from 0 to 1, where that can be told.
    pub share: Option<f64>,
    /// From where on it is too much.
    too_much: f64,
}

impl Default for Others {
    fn default() -> Self {
        Self { share: None, too_much: TOO_MUCH }
    }
}

impl Watch {
    /// Watches these processors, on which this process and `servers` measure.
    pub fn new(cpus: impl IntoIterator<Item = usize>, servers: impl IntoIterator<Item = u32>) -> Self {
        let processes = std::iter::once(std::process::id()).chain(servers).collect();
        let mut watch = Self { cpus: cpus.into_iter().collect(), processes, before: None, too_much: TOO_MUCH };
        watch.before = watch.read();
        watch
    }

    /// With as much left to others as they had when the references were made.
    pub fn allowing(self, references: &References) -> Self {
        Self { too_much: references.others_share().max(TOO_MUCH), ..self }
    }

    /// What others used since.
    pub fn end(&self) -> Others {
        let share = self.before.zip(self.read()).and_then(|(before, now)| share(before, now));
        Others { share, too_much: self.too_much }
    }

    fn read(&self) -> Option<Ticks> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let (mut all, mut busy) = (0, 0);
        for cpu in &self.cpus {
            let (of_all, of_busy) = processor(&stat, *cpu)?;
            all += of_all;
            busy += of_busy;
        }
        let process = |id: &u32| process(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?);
        let own: Option<u64> = self.processes.iter().map(process).sum();
        Some(Ticks { all, busy, own: own? })
    }
}

impl Others {
    /// Whether they left enough.
    pub fn are_few(self) -> bool {
        self.share.is_none_or(|share| share < self.too_much)
    }

    /// Their share, where it is too much.
    pub fn too_large_share(self) -> Option<f64> {
        self.share.filter(|_| !self.are_few())
    }

    /// What to say of a result that is invalid because of them.
    pub fn complaint(self) -> Option<String> {
        let share = self.too_large_share()?;
        Some(format!(
            "others used {:.0} % of the processors meanwhile: let them end, or --pin to free ones",
            share * 100.0
        ))
    }
}

fn share(before: Ticks, now: Ticks) -> Option<f64> {
    let [all, busy, own] =
        [(before.all, now.all), (before.busy, now.busy), (before.own, now.own)].map(|(was, is)| is.saturating_sub(was));
    (all >= TICKS_MIN).then(|| busy.saturating_sub(own) as f64 / all as f64)
}

/// All ticks of a processor, and those in which it did something, from `/proc/stat`.
fn processor(stat: &str, cpu: usize) -> Option<(u64, u64)> {
    let name = format!("cpu{cpu}");
    let mut words =
        stat.lines().map(str::split_whitespace).find_map(|mut words| (words.next()? == name).then_some(words))?;
    // User, nice, system, idle, waiting for a device, interrupts of two kinds, stolen. (Guests are counted as users.)
    let mut ticks = [0; 8];
    for tick in &mut ticks {
        *tick = words.next()?.parse().ok()?;
    }
    let all = ticks.iter().sum::<u64>();
    Some((all, all - ticks[3] - ticks[4]))
}

/// Ticks that a process used, from `/proc/PID/stat`.
fn process(stat: &str) -> Option<u64> {
    // Its name may hold anything, and ends with the last parenthesis.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || words.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn what_the_kernel_writes_is_read() {
        let stat =
            "cpu  99 99 99 99 99 99 99 99 0 0\ncpu0 10 20 30 1000 5 1 2 3 0 0\ncpu1 1 0 0 7 0 0 0 0 0 0\nintr 5\n";
        assert_eq!((processor(stat, 0), processor(stat, 1)), (Some((1071, 66)), Some((8, 1))));
        assert_eq!((processor(stat, 2), processor("cpu0 1 2", 0)), (None, None));
        assert_eq!(process("7 (a ) b) R 1 2 3 4 5 6 7 8 9 10 30 12 0 0"), Some(42));
        assert_eq!(process("7 (a"), None);
    }

    #[test]
    fn a_tenth_for_others_is_too_much_and_less_is_not() {
        let before = Ticks { all: 1000, busy: 500, own: 100 };
        let after = |own: u64| share(before, Ticks { all: 1200, busy: 700, own: 100 + own }).unwrap();
        let others = |own: u64| Others { share: Some(after(own)), ..Others::default() };
        assert!(others(181).are_few() && others(181).complaint().is_none());
        assert!(!others(180).are_few());
        assert!(Others { too_much: 0.11, ..others(180) }.are_few(), "as when the references were made");
        assert_eq!(
            others(100).complaint().unwrap().split(':').next(),
            Some("others used 50 % of the processors meanwhile")
        );
        assert!(share(before, Ticks { all: 1019, ..before }).is_none(), "too short to tell");
    }

    #[test]
    fn what_this_process_uses_is_its_own() {
        let watch = Watch::new(machine::cpus().iter().copied(), None);
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(500) {
            std::hint::spin_loop();
        }
        let (before, now) = (watch.before.unwrap(), watch.read().unwrap());
        assert!(now.own > before.own && now.all - before.all >= TICKS_MIN);
    }
}
