//! Counts the steps of one side, once everything is warm.

use std::hint::black_box;

use anyhow::bail;

use crate::counting::allocations;

/// Counters of one run.
#[derive(Debug)]
pub struct Count {
    side: &'static str,
    warm: bool,
    operations: u64,
    allocations: u64,
}

/// Callgrind counts while this runs: `cargo xtask cost` finds it by its name, and leaves its own instructions out.
#[inline(never)]
fn counted_step(step: &mut dyn FnMut()) {
    step();
}

impl Count {
    /// Counts the steps of `side`.
    pub fn of(side: &'static str) -> Self {
        Self { side, warm: false, operations: 0, allocations: 0 }
    }

    /// Runs `round` for the warm-up, which is not counted, and then `rounds` times.
    ///
    /// # Errors
    ///
    /// Returns the error of the first round that fails.
    pub fn rounds(
        &mut self,
        warm_up: usize,
        rounds: usize,
        mut round: impl FnMut(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for number in 0..warm_up + rounds {
            self.warm = number >= warm_up;
            round(self)?;
        }
        self.warm = false;
        Ok(())
    }

    /// Takes a step of `side`, which performs this many operations.
    pub fn step<R>(&mut self, side: &str, operations: usize, step: impl FnOnce() -> R) -> R {
        let (mut step, mut result) = (Some(step), None);
        let mut act = || result = step.take().map(|step| step());
        // Both branches run the same code; otherwise the compiler might make two different versions of it.
        let act: &mut dyn FnMut() = black_box(&mut act);
        if self.warm && side == self.side {
            let before = allocations();
            counted_step(act);
            self.allocations += allocations() - before;
            self.operations += operations as u64;
        } else {
            act();
        }
        result.expect("the step was taken")
    }

    /// Operations that were counted.
    ///
    /// # Errors
    ///
    /// No operations were counted.
    pub fn operations(&self) -> anyhow::Result<u64> {
        if self.operations == 0 {
            bail!("nothing was counted: no step of side `{}`", self.side);
        }
        Ok(self.operations)
    }

    /// Allocations in the steps that were counted.
    pub fn allocations(&self) -> u64 {
        self.allocations
    }
}
