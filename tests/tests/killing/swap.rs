//! Swap on a file of a mounted file system, whose donors and service are killed and stopped under a program that needs
//! the swap.

use std::path::PathBuf;
use std::time::Duration;

use sinew_conformance::skipped;

use super::deployment::{Deployment, turn_until};
use super::plan::Plan;
use super::running::Running;
use crate::common::{run, sinew, text};
use crate::mounts::remote::Mounted;
use crate::pressure::{Group, hog_until};

/// Memory that the program uses, memory that it may have, and size of the swap.
pub(super) const USED: usize = 96 << 20;
pub(super) const LIMIT: usize = 48 << 20;
pub(super) const SWAP: &str = "256M";
/// Memory in bytes that two copies of all the swap take, and as much again for the programs and whatever else runs.
const NEEDED: u64 = 1 << 30;
/// Bytes of a page of memory.
const PAGE: u64 = 4096;

/// Swap in use, turned off when dropped.
pub(super) struct Swap {
    place: String,
    options: &'static [&'static str],
}

impl Swap {
    /// Swaps to a new file.
    fn on_file(file: PathBuf) -> Self {
        Self::on(file.display().to_string(), &["--size", SWAP], &["--remove"])
    }

    /// Swaps to a place, with these options, and others when it is turned off.
    pub(super) fn on(place: String, on: &[&str], off: &'static [&'static str]) -> Self {
        let output = run(sinew(&["swap", "on", &place, "--priority", "31000"]).args(on));
        assert!(output.status.success(), "{}", text(&output.stderr));
        Self { place, options: off }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let output = run(sinew(&["swap", "off", &self.place]).args(self.options));
        if !std::thread::panicking() {
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
    }
}

/// Fields are in the order in which they must be dropped.
struct World {
    program: Running,
    _swap: Swap,
    group: Group,
    mounted: Mounted,
    deployment: Deployment,
    plan: Plan,
}

impl World {
    fn turn(&mut self) {
        self.deployment.turn(&self.plan);
        if self.program.has_ended() {
            let output: Vec<String> = self.program.out.iter().chain(self.program.err.iter()).collect();
            panic!("the program ended after {} kills: {output:?}; {}", self.plan.done(), self.mounted.log());
        }
        assert!(self.mounted.process.0.try_wait().unwrap().is_none(), "the mount ended: {}", self.mounted.log());
    }

    fn turn_for(&mut self, time: Duration) {
        let until = std::time::Instant::now() + time;
        while std::time::Instant::now() < until {
            self.turn();
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Pages that the machine has read from swap, and written to it.
pub(super) fn swapped() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap();
    let of = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0);
    ["pswpin ", "pswpout "].map(of)
}

/// Prints what was swapped since `before`; it must be something.
pub(super) fn say_swapped(plan: &Plan, before: [u64; 2]) {
    let [was_in, was_out] = before;
    let [read, written] = swapped();
    let mb = |pages: u64| (pages * PAGE) >> 20;
    plan.say(&format!("{} MB were read from swap and {} MB written", mb(read - was_in), mb(written - was_out)));
    assert!(written > was_out, "there was memory enough");
}

/// Bytes that programs can still get without swap.
fn available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let of = |line: &str| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok();
    text.lines().find_map(of).map_or(u64::MAX, |kilobytes| kilobytes << 10)
}

/// Kills processes while a program checks its pages. `test` is the name of the test that becomes that program.
pub fn run_plan(plan: Plan, test: &str) {
    if !sinew::host::is_root() {
        return skipped("not root");
    }
    let Some(group) = Group::new(LIMIT) else { return skipped("no control groups of memory") };
    if available() < NEEDED {
        return skipped("too little memory: donors would be ended by the kernel, and not by the plan");
    }
    let deployment = Deployment::new(&plan.fabric, "400M");
    let point = deployment.folder.0.join("mount");
    std::fs::create_dir_all(&point).unwrap();
    let Some(mounted) = Mounted::start(&deployment.address, &point, &["--for-paging"]) else { return };
    let swap = Swap::on_file(point.join("swap"));
    let (over, before) = (deployment.folder.0.join("over"), swapped());
    let program = Running::start(&mut group.with(&hog_until(test, USED, &over)));
    let mut world = World { program, _swap: swap, group, mounted, deployment, plan };
    world.turn_for(Duration::from_secs(2));
    while world.plan.has_more() {
        let gap = world.plan.ms(100, 2_000);
        world.turn_for(gap);
        turn_until(&mut world, "all is well", World::turn, |world| world.deployment.is_well());
        if world.plan.below(5) == 0 {
            world.deployment.inject_service_fault(&mut world.plan);
        } else {
            world.deployment.inject_donor_fault(&mut world.plan);
        }
    }
    turn_until(&mut world, "all is well", World::turn, |world| world.deployment.is_well());
    std::fs::write(&over, b"").unwrap();
    let World { mut program, _swap, group, mounted, deployment, plan } = world;
    let summary = program.wait_for("pages were right");
    assert!(program.process.wait().success());
    plan.say(&summary);
    say_swapped(&plan, before);
    drop(_swap);
    drop(group);
    mounted.end();
    deployment.end();
}
