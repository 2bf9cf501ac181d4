//! Processes are killed at random moments: donors, servers of a volume, mounts, the service of a file system, members
//! of a replicated store. Nothing that was acknowledged is lost. `cargo xtask soak` does this for longer.

mod common;
mod killing;
#[path = "common/members.rs"]
mod members;
#[allow(dead_code)] // Other tests use the rest of it.
mod mounts {
    pub mod remote;
}
#[path = "common/nbd.rs"]
mod nbd;
#[path = "common/pressure.rs"]
#[allow(dead_code)] // Other tests use the rest of it.
mod pressure;

use killing::plan::Plan;
use killing::{files, replica, swap, swap_device, volumes};

/// Kills in an ordinary run.
const KILLS: u64 = 8;

#[test]
fn what_was_written_is_in_the_volume_whoever_is_killed() {
    volumes::run_plan(Plan::new("volumes", KILLS));
}

#[test]
fn what_was_synced_is_in_the_files_whoever_is_killed() {
    files::run_plan(Plan::new("files", KILLS / 2));
}

#[test]
fn a_replicated_store_is_linearizable_whichever_member_is_killed() {
    replica::run_plan(Plan::new("replica", KILLS));
}

#[test]
fn what_was_swapped_out_comes_back_whichever_donor_is_killed() {
    swap::run_plan(Plan::new("swap", 1), "the_program_that_needs_memory");
}

#[test]
fn what_was_swapped_out_to_a_volume_comes_back_whichever_donor_is_killed() {
    swap_device::run_plan(Plan::new("swap device", 1), "the_program_that_needs_memory");
}

#[test]
fn the_program_that_needs_memory() {
    pressure::use_memory_if_told();
}
