//! From how many bytes on registering is cheaper than copying (rdmabox IV-A, Figure 5).

use std::hint::black_box;

use sinew_fabric::Clock;
use sinew_fabric::verbs::{ProtectionDomain, VerbsError};
use sinew_mem::{AllocError, Arena};

use super::registering::Registering;

/// Bytes that are registered, or copied: 4 KB to 4 MB, which processes may lock as a rule.
const LEN_MIN: usize = 4 << 10;
const LEN_MAX: usize = 4 << 20;
/// The crossing is told in pages.
const PAGE: usize = 4096;

/// What one length takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takes {
    /// Bytes.
    pub len: usize,
    /// To register them and to end that, in nanoseconds: the median.
    pub register_ns: u64,
    /// To copy them, in nanoseconds: the median.
    pub copy_ns: u64,
}

/// What registering and copying take, by length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// By length, from 4 KB to 4 MB in powers of two.
    pub takes: Vec<Takes>,
}

fn lens() -> impl Iterator<Item = usize> {
    (0..).map(|power| LEN_MIN << power).take_while(|len| *len <= LEN_MAX)
}

fn median(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

impl Crossing {
    /// Measures both by turns, `rounds` times for each length.
    ///
    /// # Errors
    ///
    /// What `register` says.
    pub fn measure<E>(
        clock: &impl Clock,
        rounds: usize,
        mut register: impl FnMut(usize) -> Result<(), E>,
        mut copy: impl FnMut(usize),
    ) -> Result<Self, E> {
        let mut takes = Vec::new();
        for len in lens() {
            let mut times = [const { Vec::new() }; 2];
            for _ in 0..rounds.max(1) {
                let began_ns = clock.now_ns();
                register(len)?;
                let registered_ns = clock.now_ns();
                copy(len);
                times[0].push(registered_ns.saturating_sub(began_ns));
                times[1].push(clock.now_ns().saturating_sub(registered_ns));
            }
            let [register_ns, copy_ns] = times.map(|mut times| median(&mut times));
            takes.push(Takes { len, register_ns, copy_ns });
        }
        Ok(Self { takes })
    }

    /// Measures them on a domain: of buffers of an arena that it does not know, which are copied to one that it does. All of it is in memory before.
    ///
    /// # Errors
    ///
    /// What the system says: no memory, or too little that may be locked.
    pub fn of_domain(domain: &impl ProtectionDomain, clock: &impl Clock, rounds: usize) -> Result<Self, VerbsError> {
        let no_memory =
            |source| VerbsError::System { doing: "mapping memory to measure".to_owned(), source, remedy: None };
        let ours = Arena::private(4 * LEN_MAX).map_err(no_memory)?;
        let theirs = domain.arena(2 * LEN_MAX)?;
        let mut target = theirs.alloc(LEN_MAX, LEN_MAX)?;
        target[..].fill(0);
        let made = |len: usize| {
            let mut buffer = ours.alloc(len, len)?;
            buffer[..].fill(1);
            Ok(buffer)
        };
        // One for each length, since it is a buffer as a whole that is registered.
        let sources = lens().map(made).collect::<Result<Vec<_>, AllocError>>()?;
        let of = |len: usize| &sources[(len / LEN_MIN).trailing_zeros() as usize];
        let register = |len: usize| domain.register(of(len).place()).map(drop);
        Self::measure(clock, rounds, register, |len| {
            target[..len].copy_from_slice(black_box(of(len)));
            black_box(&mut target);
        })
    }

    /// From how many bytes on registering takes no longer than copying, for this length and all longer ones that were measured: between two lengths as if both grew
    /// evenly, in pages. `None`: it takes longer up to the longest.
    pub fn at(&self) -> Option<usize> {
        let is_cheaper = |takes: &&Takes| takes.register_ns <= takes.copy_ns;
        let from = self.takes.len() - self.takes.iter().rev().take_while(is_cheaper).count();
        let after = self.takes.get(from)?;
        let Some(before) = from.checked_sub(1).and_then(|before| self.takes.get(before)) else {
            return Some(after.len);
        };
        // What registering takes longer before, and copying after.
        let over = (before.register_ns - before.copy_ns) as f64;
        let under = (after.copy_ns - after.register_ns) as f64;
        let between = (after.len - before.len) as f64 * over / (over + under);
        Some((before.len + between.ceil() as usize).next_multiple_of(PAGE).min(after.len))
    }

    /// What follows for requests.
    pub fn registering(&self) -> Registering {
        self.at().map_or(Registering::Never, Registering::From)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use sinew_fabric::ManualClock;

    use super::*;

    fn of(register_ns: impl Fn(usize) -> u64, copy_ns: impl Fn(usize) -> u64) -> Crossing {
        let clock = ManualClock::new();
        let register = |len| -> Result<(), Infallible> {
            clock.advance(register_ns(len));
            Ok(())
        };
        Crossing::measure(&clock, 3, register, |len| clock.advance(copy_ns(len))).expect("it does not fail")
    }

    #[test]
    fn lines_that_cross_do_so_where_they_do() {
        // 928 KB: 100 ns a page beside 128 ns a page, and a call.
        let crossing = of(|len| 100 * (len as u64 >> 12) + 28 * 232, |len| 128 * (len as u64 >> 12));
        assert_eq!((crossing.at(), crossing.takes.len()), (Some(928 << 10), 11));
        assert_eq!(crossing.registering(), Registering::PAPER);
    }

    #[test]
    fn what_is_always_or_never_cheaper_is() {
        assert_eq!(of(|_| 1, |_| 1).at(), Some(4 << 10));
        let never = of(|len| len as u64 + 1, |len| len as u64);
        assert_eq!((never.at(), never.registering()), (None, Registering::Never));
        // Cheaper in the middle counts for nothing.
        let middle = of(|len| if len == 64 << 10 { 0 } else { len as u64 + 1 }, |len| len as u64);
        assert_eq!(middle.at(), None);
    }
}
