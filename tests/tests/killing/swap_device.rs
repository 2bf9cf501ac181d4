//! Swap on a block device, whose volume's donors are killed and stopped under a program that needs the swap. The kernel
//! needs a client for network block devices, as that of the guest has.

use std::process::Command;
use std::time::{Duration, Instant};

use sinew_conformance::skipped;

use super::deployment::turn_until;
use super::donor::Donor;
use super::plan::Plan;
use super::running::Running;
use super::swap::{LIMIT, SWAP, Swap, USED, say_swapped, swapped};
use crate::common::{Folder, run, sinew};
use crate::pressure::{Group, hog_until};

const DONORS: usize = 4;
/// Time for which a change of a donor may go unnoticed.
const SETTLE: Duration = Duration::from_millis(3500);

/// Fields are in the order in which they must be dropped.
struct World {
    program: Running,
    swap: Swap,
    group: Group,
    server: Running,
    donors: Vec<Donor>,
    is_whole: bool,
    settled: Instant,
    plan: Plan,
}

impl World {
    fn turn(&mut self) {
        for line in self.server.err.try_iter() {
            self.plan.say(&format!("the server: {line}"));
            assert!(!line.contains("damaged") && !line.contains("no longer use"), "{line}");
            self.is_whole = line.contains("is whole again");
            self.settled = self.settled.max(Instant::now() + Duration::from_millis(200));
        }
        assert!(!self.server.has_ended(), "the server ended");
        for donor in &mut self.donors {
            if donor.restart_if_due() {
                self.settled = Instant::now() + SETTLE;
            }
        }
        if self.program.has_ended() {
            let output: Vec<String> = self.program.out.iter().chain(self.program.err.iter()).collect();
            panic!("the program ended after {} kills: {output:?}", self.plan.done());
        }
    }

    fn turn_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.turn();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_well(&self) -> bool {
        let are_up = self.donors.iter().all(Donor::is_up);
        are_up && self.is_whole && self.settled <= Instant::now()
    }

    /// Kills or stops a donor, while all is well: two donors may hold both copies of a page.
    fn inject_fault(&mut self) {
        let index = self.plan.below(DONORS as u64) as usize;
        if self.plan.below(4) == 0 {
            let away = self.plan.ms(100, 5_000);
            self.donors[index].stop(away);
            return self.plan.say(&format!("donor {index} is stopped for {away:?}"));
        }
        let away = self.plan.ms(300, 2_000);
        self.donors[index].kill(away);
        // The server reports it soon, unless nothing lies there.
        self.settled = Instant::now() + SETTLE;
        self.plan.killed(&format!("donor {index}, for {away:?}"));
    }
}

/// Kills donors while a program checks its pages. `test` is the name of the test that becomes that program.
pub fn run_plan(plan: Plan, test: &str) {
    if !sinew::host::is_root() {
        return skipped("not root");
    }
    if !run(Command::new("sh").args(["-c", "modprobe nbd"])).status.success() {
        return skipped("no nbd in this kernel");
    }
    let Some(group) = Group::new(LIMIT) else { return skipped("no control groups of memory") };
    let folder = Folder::new();
    let donors: Vec<Donor> = (0..DONORS).map(|_| Donor::new(&plan.fabric, "400M")).collect();
    let at = format!("unix:{}", folder.0.join("socket").display());
    let mut serve = sinew(&["serve", "block", "--json", "--for-paging", "--size", SWAP, "--at", &at]);
    let server = Running::start(serve.args(donors.iter().map(|donor| &donor.address)));
    server.wait_for("serving");
    let swap = Swap::on(at, &[], &[]);
    let (over, before) = (folder.0.join("over"), swapped());
    let program = Running::start(&mut group.with(&hog_until(test, USED, &over)));
    let settled = Instant::now() + SETTLE;
    let mut world = World { program, swap, group, server, donors, is_whole: true, settled, plan };
    world.turn_for(Duration::from_secs(2));
    while world.plan.has_more() {
        let gap = world.plan.ms(100, 2_000);
        world.turn_for(gap);
        turn_until(&mut world, "all is well", World::turn, World::is_well);
        world.inject_fault();
    }
    turn_until(&mut world, "all is well", World::turn, World::is_well);
    std::fs::write(&over, b"").unwrap();
    let World { mut program, swap, group, server, plan, .. } = world;
    let summary = program.wait_for("pages were right");
    assert!(program.process.wait().success());
    plan.say(&summary);
    say_swapped(&plan, before);
    drop(swap);
    drop(group);
    assert!(server.end());
}
