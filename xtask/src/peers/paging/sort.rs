//! A sort that does not fit.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, bail, ensure};

use super::group::Group;

/// Bytes that are sorted.
pub const LEN: u64 = 96 << 20;
/// Bytes of memory that the program has beside them.
const OVERHEAD_LEN: u64 = 6 << 20;
/// Number of SIGKILL.
const KILLED: i32 = 9;
/// Task of `cargo xtask` that runs the sort.
const TASK: &str = "sort-numbers";

/// Most attempts. If all pages are in use at some moment, as happens with zram, the OOM killer ends the program.
const TRIES: u32 = 8;

/// Returns the seconds that a program takes that may have `share` percent of the memory that it sorts.
pub fn measure(share: u64) -> anyhow::Result<f64> {
    let group = Group::new("sort")?;
    group.limit(LEN * share / 100 + OVERHEAD_LEN)?;
    let program = std::env::current_exe().context("finding this program")?;
    for _ in 0..TRIES {
        let output = group.command(Path::new(&program), &[TASK]).stderr(Stdio::inherit()).output()?;
        if output.status.signal() == Some(KILLED) {
            continue;
        }
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "the sort: {}", output.status);
        return stdout.trim().parse().with_context(|| format!("no number of seconds: {stdout}"));
    }
    bail!("the system killed the sort {TRIES} times for lack of memory")
}

/// Sorts numbers, checks their order, and prints the seconds taken.
pub fn run() -> anyhow::Result<()> {
    let mut word = 1u64;
    let next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word ^ word >> 32
    };
    let mut numbers: Vec<u64> = std::iter::repeat_with(next).take(LEN as usize / 8).collect();
    let sum = |numbers: &[u64]| numbers.iter().fold(0u64, |sum, number| sum.wrapping_add(*number));
    let before = sum(&numbers);
    let began = Instant::now();
    numbers.sort_unstable();
    ensure!(numbers.is_sorted(), "the numbers are not in order");
    if sum(&numbers) != before {
        bail!("the sorted numbers are not the ones that were to be sorted");
    }
    println!("{}", began.elapsed().as_secs_f64());
    Ok(())
}
