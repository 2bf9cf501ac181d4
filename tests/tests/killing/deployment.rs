//! A file system's donors and its service, all of which are killed, stopped and continued.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::donor::{Donor, serving};
use super::health::Health;
use super::plan::Plan;
use super::running::Running;
use crate::common::{Folder, PATIENCE, run, sinew, text, unique};

pub const DONORS: usize = 4;

/// Donors, and a service that keeps names on a disk.
pub struct Deployment {
    pub folder: Folder,
    pub donors: Vec<Donor>,
    pub address: String,
    service: Option<Running>,
    health: Health,
    /// When the service is restarted or continued, while it is away.
    back_at: Option<Instant>,
}

impl Deployment {
    pub fn new(fabric: &str, memory: &'static str) -> Self {
        let donors = (0..DONORS).map(|_| Donor::new(fabric, memory)).collect();
        let address = match fabric {
            "shm" => format!("shm://{}", unique("files")),
            _ => format!("{fabric}://127.0.0.1:0"),
        };
        let folder = Folder::new();
        let mut deployment = Self { folder, donors, address, service: None, health: Health::new(), back_at: None };
        deployment.start();
        deployment
    }

    fn start(&mut self) {
        let mut command = sinew(&["serve", "files", &self.address, "--child", "--copies", "2", "--data"]);
        command.arg(self.folder.0.join("data"));
        for donor in &self.donors {
            command.args(["--donor", &donor.address]);
        }
        let (service, address) = serving(&mut command);
        (self.service, self.address, self.health) = (Some(service), address, Health::new());
    }

    /// Reads what the service prints, and restarts or continues the processes that are due.
    pub fn turn(&mut self, plan: &Plan) {
        if let Some(service) = &mut self.service {
            for line in service.err.try_iter() {
                plan.say(&format!("the service: {line}"));
                assert!(!self.health.read_line(&line), "{line}");
            }
            assert!(!service.has_ended(), "the service ended");
        }
        for donor in &mut self.donors {
            if donor.restart_if_due() {
                self.health.unsettle();
            }
        }
        if self.back_at.take_if(|until| *until <= Instant::now()).is_some() {
            match &self.service {
                Some(service) => service.process.signal(Signal::CONT),
                None => self.start(),
            }
            self.health.unsettle();
            plan.say("the service is there again");
        }
    }

    /// Whether the service is running.
    pub fn is_up(&self) -> bool {
        self.back_at.is_none()
    }

    /// Whether all donors and the service are running, and every page has all its copies.
    pub fn is_well(&self) -> bool {
        self.back_at.is_none() && self.donors.iter().all(Donor::is_up) && self.health.is_good()
    }

    /// Notes that mounts have ended. Each may have given up a copy just before, which the service reports a little
    /// later.
    pub fn mounts_have_ended(&mut self) {
        self.health.unsettle();
    }

    /// Kills or stops a donor, while all is well: two donors may hold both copies of a page, and if both forget it, it
    /// is rightly lost.
    pub fn inject_donor_fault(&mut self, plan: &mut Plan) {
        assert!(self.is_well());
        let index = plan.below(DONORS as u64) as usize;
        self.health.unsettle();
        if plan.below(4) == 0 {
            let pause = plan.ms(100, 5_000);
            self.donors[index].stop(pause);
            return plan.say(&format!("donor {index} is stopped for {pause:?}"));
        }
        let pause = plan.ms(300, 2_000);
        self.donors[index].kill(pause);
        plan.killed(&format!("donor {index}, for {pause:?}"));
    }

    /// Kills or stops the service, if it is running.
    pub fn inject_service_fault(&mut self, plan: &mut Plan) {
        if self.back_at.is_some() {
            return;
        }
        let is_stopped = plan.below(4) == 0;
        let pause = if is_stopped { plan.ms(100, 5_000) } else { plan.ms(0, 1_500) };
        self.back_at = Some(Instant::now() + pause);
        match &mut self.service {
            Some(service) if is_stopped => {
                service.process.signal(Signal::STOP);
                plan.say(&format!("the service is stopped for {pause:?}"));
            }
            service => {
                service.take().unwrap().kill();
                plan.killed(&format!("the service, for {pause:?}"));
            }
        }
    }

    /// Ends the service, checks everything and starts the service again. Nothing may be mounted.
    pub fn check(&mut self, plan: &Plan) {
        assert!(self.service.take().unwrap().end(), "the service says that it ended badly");
        let mut check = sinew(&["fsck", "--json", "--files"]);
        check.arg(self.folder.0.join("data")).args(self.donors.iter().map(|donor| &donor.address));
        let output = run(&mut check);
        let (stderr, found) = (text(&output.stderr), text(&output.stdout));
        assert_eq!(output.status.code(), Some(0), "after {} kills: {stderr}{found}", plan.done());
        plan.say(&format!("nothing is wrong: {}", found.trim()));
        self.start();
    }

    /// Ends the service.
    pub fn end(mut self) {
        assert!(self.service.take().unwrap().end(), "the service says that it ended badly");
    }
}

/// Calls `turn` until a condition holds.
pub fn turn_until<W>(world: &mut W, what: &str, turn: impl Fn(&mut W), condition: impl Fn(&W) -> bool) {
    let began = Instant::now();
    while !condition(world) {
        assert!(began.elapsed() < 2 * PATIENCE, "{what}: not within {:?}", 2 * PATIENCE);
        turn(world);
        std::thread::sleep(Duration::from_millis(5));
    }
}
