//! A file system: donors, its service and mounts, all of which are killed, stopped and continued.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::deployment::{Deployment, turn_until};
use super::plan::Plan;
use super::shadow::lock;
use super::writers::{Shadows, Writers, check_all_files, make, shadows};
use crate::mounts::remote::{Mounted, is_mounted};

const MOUNTS: usize = 3;
/// Lease of a mount.
const LEASE: Duration = Duration::from_secs(10);
/// Threads that use each mount.
const THREADS: usize = 2;
/// Kills between two looks at everything, and looks between two checks.
const LOOK_EVERY: u64 = 25;
const CHECK_EVERY: u64 = 2;
/// Names are looked up each time, so that a replaced file is seen as another one at once.
const OPTIONS: &[&str] = &["--lifetime-ms", "0"];

/// A mount in use.
struct Used {
    mounted: Mounted,
    writers: Writers,
    /// When it is continued, while it is stopped.
    back_at: Option<Instant>,
}

struct World {
    plan: Plan,
    deployment: Deployment,
    mounts: Vec<Option<Used>>,
    shadows: Shadows,
    kills: Kills,
}

/// Kills of each kind of process.
#[derive(Default)]
struct Kills {
    donors: u64,
    services: u64,
    mounts: u64,
}

impl World {
    fn mount(&self, index: usize) -> Option<Mounted> {
        let point = self.deployment.folder.0.join(format!("mount{index}"));
        std::fs::create_dir_all(&point).unwrap();
        Mounted::start(&self.deployment.address, &point, OPTIONS)
    }

    fn use_mount(&mut self, index: usize, mounted: Mounted) {
        let writers = Writers::start(&mounted.point, THREADS, &mut self.plan.random, &self.shadows);
        self.mounts[index] = Some(Used { mounted, writers, back_at: None });
    }

    fn turn(&mut self) {
        self.deployment.turn(&self.plan);
        for used in self.mounts.iter_mut().flatten() {
            if used.back_at.take_if(|until| *until <= Instant::now()).is_some() {
                used.mounted.process.signal(Signal::CONT);
            }
            if let Some(ended) = used.mounted.process.0.try_wait().unwrap() {
                panic!("a mount ended: {ended}: {}", used.mounted.log());
            }
        }
        for (file, shadow) in self.shadows.iter().enumerate() {
            // A writer that holds the lock looks by itself.
            let wrong = shadow.try_lock().ok().and_then(|mut shadow| shadow.take_error());
            assert!(wrong.is_none(), "file {file}: {wrong:?}, after {} kills\n{}", self.plan.done(), self.logs());
        }
    }

    /// Logs of the mounts, and the room that they see.
    fn logs(&self) -> String {
        let of = |used: &Used| {
            let room = rustix::fs::statvfs(&used.mounted.point).map(|room| (room.f_bfree, room.f_blocks));
            format!("{}, room {room:?}:\n{}", used.mounted.point.display(), used.mounted.log())
        };
        self.mounts.iter().flatten().map(of).collect()
    }

    fn turn_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.turn();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn inject_fault(&mut self) {
        let before = self.plan.done();
        match self.plan.below(10) {
            0..=1 => {
                turn_until(self, "all is well", Self::turn, |world| world.deployment.is_well());
                self.deployment.inject_donor_fault(&mut self.plan);
                self.kills.donors += self.plan.done() - before;
            }
            2..=5 => {
                self.deployment.inject_service_fault(&mut self.plan);
                self.kills.services += self.plan.done() - before;
            }
            _ => {
                self.inject_mount_fault();
                self.kills.mounts += self.plan.done() - before;
            }
        }
    }

    fn inject_mount_fault(&mut self) {
        let index = self.plan.below(MOUNTS as u64) as usize;
        let stops = self.plan.below(4) == 0;
        // Now and then it is stopped for longer than its lease of ten seconds.
        let away = if self.plan.below(8) == 0 { self.plan.ms(10_500, 13_000) } else { self.plan.ms(50, 3_000) };
        let Some(used) = self.mounts[index].as_mut().filter(|used| used.back_at.is_none()) else { return };
        if stops {
            if away > LEASE {
                used.writers.may_be_unknown();
            }
            used.mounted.process.signal(Signal::STOP);
            used.back_at = Some(Instant::now() + away);
            return self.plan.say(&format!("mount {index} is stopped for {away:?}"));
        }
        let Used { mut mounted, writers, .. } = self.mounts[index].take().unwrap();
        writers.may_fail();
        mounted.process.signal(Signal::KILL);
        mounted.process.wait();
        self.plan.killed(&format!("mount {index}"));
        writers.stop();
        turn_until(self, "the mount is cleared away", Self::turn, |_| !is_mounted(&mounted.point));
        drop(mounted);
        // A new mount needs a running service.
        turn_until(self, "the service is there", Self::turn, |world| world.deployment.is_up());
        let mounted = self.mount(index).unwrap();
        // The service answered the new mount after it had taken what the dead one had sent.
        writers.end();
        self.use_mount(index, mounted);
    }

    /// With all writers idle, checks that everything acknowledged is there through each mount, and that `fsck` finds
    /// nothing if `with_fsck`.
    fn check_all(&mut self, with_fsck: bool) {
        turn_until(self, "all is well", Self::turn, |world| {
            world.deployment.is_well() && world.mounts.iter().flatten().all(|used| used.back_at.is_none())
        });
        let mut mounted = Vec::new();
        for used in &mut self.mounts {
            let Used { mounted: mount, writers, .. } = used.take().unwrap();
            writers.end();
            mounted.push(mount);
        }
        self.turn();
        mounted.iter().for_each(|mount| check_all_files(&mount.point, &self.shadows));
        if with_fsck {
            mounted.drain(..).for_each(Mounted::end);
            self.deployment.mounts_have_ended();
            // A mount that ended may have found a donor slow, and a copy is then rebuilt: until that is done, a check
            // would report it.
            turn_until(self, "all is well again", Self::turn, |world| world.deployment.is_well());
            self.deployment.check(&self.plan);
            for index in 0..MOUNTS {
                let mount = self.mount(index).unwrap();
                check_all_files(&mount.point, &self.shadows);
                mounted.push(mount);
            }
        }
        for (index, mount) in mounted.into_iter().enumerate() {
            self.use_mount(index, mount);
        }
    }

    fn end(mut self) {
        for used in self.mounts.iter_mut().filter_map(Option::take) {
            used.writers.end();
            used.mounted.end();
        }
        let acked: u64 = self.shadows.iter().map(|shadow| lock(shadow).acked()).sum();
        let Kills { donors, services, mounts } = self.kills;
        self.plan.say(&format!(
            "{acked} writes were acknowledged, and nothing was lost: {donors} donors, {services} services and {mounts} mounts were killed"
        ));
        assert!(acked > 0);
        self.deployment.end();
    }
}

/// Kills processes, and checks that everything that was acknowledged is there.
pub fn run_plan(plan: Plan) {
    let deployment = Deployment::new(&plan.fabric, "200M");
    let mounts = (0..MOUNTS).map(|_| None).collect();
    let mut world = World { plan, deployment, mounts, shadows: shadows(), kills: Kills::default() };
    for index in 0..MOUNTS {
        // If nothing can be mounted, that was reported.
        let Some(mounted) = world.mount(index) else { return };
        if index == 0 {
            make(&mounted.point, &world.shadows);
        }
        world.use_mount(index, mounted);
    }
    let mut looked = (0, 0);
    world.turn_for(Duration::from_millis(300));
    while world.plan.has_more() {
        let gap = world.plan.ms(20, 600);
        world.turn_for(gap);
        world.inject_fault();
        if world.plan.done() >= looked.0 + LOOK_EVERY {
            looked = (world.plan.done(), looked.1 + 1);
            world.check_all(looked.1 % CHECK_EVERY == 0);
        }
    }
    world.check_all(true);
    world.end();
}
