//! Donors, and servers of a volume, that are killed at random moments take nothing with them that was acknowledged. `cargo xtask soak` does it for longer.

mod common;
mod killing;
#[path = "common/nbd.rs"]
mod nbd;

use killing::plan::Plan;
use killing::volumes;

/// Kills in an ordinary run.
const KILLS: u64 = 8;

#[test]
fn what_was_written_is_in_the_volume_whoever_is_killed() {
    volumes::run_plan(Plan::new("volumes", KILLS));
}
