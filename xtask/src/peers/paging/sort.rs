//! A sort that does not fit.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, bail, ensure};

use super::group::Group;

/// Bytes that are sorted.
pub const LEN: u64 = 96 << 20;
/// What the program has beside them.
const BESIDE: u64 = 6 << 20;
/// As Linux numbers it.
const KILLED: i32 = 9;
/// The task by which this program does it.
const TASK: &str = "sort-numbers";

/// Times that it is tried: a system that finds all pages in use at a moment, as happens with zram, ends the program rather than looks again.
const TRIES: u32 = 8;

/// Seconds that it takes a program which may have so many percent of what it sorts.
pub fn measure(share: u64) -> anyhow::Result<f64> {
    let group = Group::new("sort")?;
    group.limit(LEN * share / 100 + BESIDE)?;
    let program = std::env::current_exe().context("finding this program")?;
    for _ in 0..TRIES {
        let output = group.command(Path::new(&program), &[TASK]).stderr(Stdio::inherit()).output()?;
        if output.status.signal() == Some(KILLED) {
            continue;
        }
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "the sort: {}", output.status);
        return said.trim().parse().with_context(|| format!("no number of seconds: {said}"));
    }
    bail!("the system ended the sort {TRIES} times for want of memory")
}

/// Sorts numbers, looks whether they are in order, and prints how many seconds that took.
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
        bail!("other numbers were sorted than there were");
    }
    println!("{}", began.elapsed().as_secs_f64());
    Ok(())
}
