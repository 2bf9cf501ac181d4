//! Measurement of the size from which registering memory is cheaper than copying it (rdmabox IV-A, Figure 5).

use std::hint::black_box;

use sinew_fabric::Clock;
use sinew_fabric::verbs::{ProtectionDomain, VerbsError};
use sinew_mem::{AllocError, Arena};

use super::registration::RegistrationPolicy;

/// Shortest and longest buffer measured, in bytes: 4 KB to 4 MB, which processes may usually lock.
const LEN_MIN: usize = 4 << 10;
const LEN_MAX: usize = 4 << 20;
/// The result is rounded up to pages of this many bytes.
const PAGE: usize = 4096;

/// Cost of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Length of the buffer, in bytes.
    pub len: usize,
    /// Median time to register and deregister the buffer, in ns.
    pub register_ns: u64,
    /// Median time to copy the buffer, in ns.
    pub copy_ns: u64,
}

/// Cost of registering and of copying, by length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostCurve {
    /// Costs, for lengths from 4 KB to 4 MB in powers of two.
    pub costs: Vec<Cost>,
}

fn lens() -> impl Iterator<Item = usize> {
    (0..).map(|power| LEN_MIN << power).take_while(|len| *len <= LEN_MAX)
}

fn median(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

impl CostCurve {
    /// Times that each length is registered, and copied, at a program's start. All together takes some 15 ms, most of
    /// which the system spends on giving the memory.
    pub const ROUNDS_AT_START: usize = 5;

    /// Measures registering and copying alternately, `rounds` times for each length.
    ///
    /// # Errors
    ///
    /// The error of `register`.
    pub fn measure<E>(
        clock: &impl Clock,
        rounds: usize,
        mut register: impl FnMut(usize) -> Result<(), E>,
        mut copy: impl FnMut(usize),
    ) -> Result<Self, E> {
        let mut costs = Vec::new();
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
            costs.push(Cost { len, register_ns, copy_ns });
        }
        Ok(Self { costs })
    }

    /// Measures on a domain: registers buffers of an arena unknown to it, and copies them to an arena of its own. All
    /// memory is touched beforehand.
    ///
    /// # Errors
    ///
    /// The system's error: no memory, or too little that may be locked.
    pub fn of_domain(domain: &impl ProtectionDomain, clock: &impl Clock, rounds: usize) -> Result<Self, VerbsError> {
        let no_memory =
            |source| VerbsError::System { doing: "mapping memory to measure".to_owned(), source, remedy: None };
        let ours = Arena::private(4 * LEN_MAX).map_err(no_memory)?;
        let theirs = domain.arena(2 * LEN_MAX)?;
        let mut target = theirs.alloc(LEN_MAX, LEN_MAX)?;
        target[..].fill(0);
        let filled_buffer = |len: usize| {
            let mut buffer = ours.alloc(len, len)?;
            buffer[..].fill(1);
            Ok(buffer)
        };
        // One buffer for each length, since a buffer is registered as a whole.
        let sources = lens().map(filled_buffer).collect::<Result<Vec<_>, AllocError>>()?;
        let source_of_len = |len: usize| &sources[(len / LEN_MIN).trailing_zeros() as usize];
        let register = |len: usize| domain.register(source_of_len(len).place()).map(drop);
        Self::measure(clock, rounds, register, |len| {
            target[..len].copy_from_slice(black_box(source_of_len(len)));
            black_box(&mut target);
        })
    }

    /// Returns the length, in bytes, from which on registering takes no longer than copying, for every longer length
    /// measured. Between two measured lengths it interpolates linearly, and rounds up to pages. `None` if registering
    /// is slower even for the longest.
    pub fn crossover_len(&self) -> Option<usize> {
        let is_cheaper = |takes: &&Cost| takes.register_ns <= takes.copy_ns;
        let from = self.costs.len() - self.costs.iter().rev().take_while(is_cheaper).count();
        let after = self.costs.get(from)?;
        let Some(before) = from.checked_sub(1).and_then(|before| self.costs.get(before)) else {
            return Some(after.len);
        };
        // Excess of registering at the shorter length, and of copying at the longer one.
        let over = (before.register_ns - before.copy_ns) as f64;
        let under = (after.copy_ns - after.register_ns) as f64;
        let between = (after.len - before.len) as f64 * over / (over + under);
        Some((before.len + between.ceil() as usize).next_multiple_of(PAGE).min(after.len))
    }

    /// Whether the clock moved meanwhile. In virtual time, where work takes no time unless a model says so, it may not
    /// have: then the costs mean nothing.
    pub fn is_timed(&self) -> bool {
        self.costs.iter().any(|cost| cost.register_ns > 0 || cost.copy_ns > 0)
    }

    /// The registration policy with the measured threshold; [`RegistrationPolicy::Never`] if there is none.
    pub fn policy(&self) -> RegistrationPolicy {
        self.crossover_len().map_or(RegistrationPolicy::Never, RegistrationPolicy::From)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use sinew_fabric::ManualClock;

    use super::*;

    fn of(register_ns: impl Fn(usize) -> u64, copy_ns: impl Fn(usize) -> u64) -> CostCurve {
        let clock = ManualClock::new();
        let register = |len| -> Result<(), Infallible> {
            clock.advance(register_ns(len));
            Ok(())
        };
        CostCurve::measure(&clock, 3, register, |len| clock.advance(copy_ns(len))).expect("it does not fail")
    }

    #[test]
    fn lines_that_cross_do_so_where_they_do() {
        // The costs are equal at 928 KB: 100 ns per page plus a fixed cost, against 128 ns per page.
        let crossing = of(|len| 100 * (len as u64 >> 12) + 28 * 232, |len| 128 * (len as u64 >> 12));
        assert_eq!((crossing.crossover_len(), crossing.costs.len()), (Some(928 << 10), 11));
        assert_eq!(crossing.policy(), RegistrationPolicy::PAPER);
    }

    #[test]
    fn what_is_always_or_never_cheaper_is() {
        assert_eq!(of(|_| 1, |_| 1).crossover_len(), Some(4 << 10));
        let never = of(|len| len as u64 + 1, |len| len as u64);
        assert_eq!((never.crossover_len(), never.policy()), (None, RegistrationPolicy::Never));
        // A length in the middle that is cheaper does not count.
        let middle = of(|len| if len == 64 << 10 { 0 } else { len as u64 + 1 }, |len| len as u64);
        assert_eq!(middle.crossover_len(), None);
    }
}
