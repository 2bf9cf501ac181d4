//! A volume: donors, and servers of a block device on it, all of which are killed, stopped and continued.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sinew_fabric::SeededGenerator;

use super::donor::Donor;
use super::pages::{PAGE, pages};
use super::plan::Plan;
use super::running::Running;
use super::shadow::{Shadow, lock};
use crate::common::{Folder, PATIENCE, run, sinew, text};
use crate::nbd::Client;

const DONORS: usize = 4;
const PAGES: u64 = 4096;
/// Kills between two checks of everything.
const CHECK_EVERY: u64 = 25;
/// Most pages that are written or read at once.
const RUN_MAX: u64 = 24;
/// Time within which a server that starts reports what it lacks.
const REPORT_TIME: Duration = Duration::from_millis(500);
/// Time for which a change of a donor may go unnoticed.
const SETTLE: Duration = Duration::from_millis(2500);

/// A server, and its client on a thread.
struct Device {
    server: Running,
    client: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    /// Whether the server was killed or replaced; then requests may fail.
    may_fail: Arc<AtomicBool>,
}

/// Reads and writes until `is_over`, or until the server is gone.
fn use_device(mut client: Client, seed: u64, shadow: &Mutex<Shadow>, is_over: &AtomicBool, may_fail: &AtomicBool) {
    let mut random = SeededGenerator::new(seed);
    while !is_over.load(Ordering::SeqCst) {
        let from = random.below(PAGES);
        let to = (from + 1 + random.below(RUN_MAX)).min(PAGES);
        let result = if random.below(3) == 0 {
            let floor = lock(shadow).acked_versions(from, to);
            client.try_read(from * PAGE as u64, (to - from) as usize * PAGE).map(|read| {
                read.map(|bytes| {
                    lock(shadow).record_read(from, &bytes, may_fail.load(Ordering::SeqCst).then_some(&floor))
                })
            })
        } else {
            let version = lock(shadow).begin_write(from, to);
            let bytes = pages(from..to, version);
            client
                .try_write(from * PAGE as u64, &bytes)
                .map(|written| written.map(|()| lock(shadow).ack_write(from, to, version)))
        };
        match result {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                // `may_fail` is set before the server is killed.
                if !may_fail.load(Ordering::SeqCst) {
                    lock(shadow).record_error(format!("pages {from}..{to}: error {error}"));
                }
                return;
            }
            Err(error) => {
                if !may_fail.load(Ordering::SeqCst) {
                    lock(shadow).record_error(format!("pages {from}..{to}: {error}"));
                }
                return;
            }
        }
    }
}

struct World {
    plan: Plan,
    folder: Folder,
    donors: Vec<Donor>,
    device: Option<Device>,
    /// A stopped server from which another took over, and when it is continued.
    frozen: Option<(Device, Instant)>,
    shadow: Arc<Mutex<Shadow>>,
    sockets: u64,
    is_whole: bool,
    awaits_loss: bool,
    settled: Instant,
}

impl World {
    fn new(plan: Plan) -> Self {
        let donors = (0..DONORS).map(|_| Donor::new(&plan.fabric, "60M")).collect();
        let mut world = Self {
            plan,
            folder: Folder::new(),
            donors,
            device: None,
            frozen: None,
            shadow: Arc::new(Mutex::new(Shadow::new(PAGES))),
            sockets: 0,
            is_whole: true,
            awaits_loss: false,
            settled: Instant::now() + SETTLE,
        };
        world.serve(&["--size", "16M"]);
        world
    }

    /// Starts a server, which takes the volume from any other, and a client.
    fn serve(&mut self, more: &[&str]) {
        self.sockets += 1;
        let socket: PathBuf = self.folder.0.join(format!("s{}", self.sockets));
        let at = format!("unix:{}", socket.display());
        let mut command = sinew(&["serve", "block", "--json", "--force", "--at", &at]);
        command.args(self.donors.iter().map(|donor| &donor.address)).args(more);
        let server = Running::start(&mut command);
        server.wait_for("serving");
        // The server reports what it lacks, and nothing if it lacks nothing.
        (self.is_whole, self.awaits_loss) = (true, false);
        self.settled = Instant::now() + REPORT_TIME;
        let client = Client::connect(&socket);
        assert_eq!(client.len, PAGES * PAGE as u64);
        let (is_over, may_fail) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (shadow, over, fail) = (self.shadow.clone(), is_over.clone(), may_fail.clone());
        let seed = self.plan.random.below(u64::MAX);
        let client = std::thread::spawn(move || use_device(client, seed, &shadow, &over, &fail));
        self.device = Some(Device { server, client: Some(client), is_over, may_fail });
    }

    fn turn(&mut self) {
        if let Some(device) = &mut self.device {
            for line in device.server.err.try_iter() {
                self.plan.say(&format!("the server: {line}"));
                assert!(!line.contains("damaged") && !line.contains("no longer use"), "{line}");
                self.is_whole = line.contains("is whole again");
                self.awaits_loss = false;
                self.settled = Instant::now() + Duration::from_millis(200);
            }
            assert!(!device.server.has_ended(), "the server ended");
        }
        let wrong = lock(&self.shadow).take_error();
        assert!(wrong.is_none(), "{wrong:?}, after {} kills", self.plan.done());
        for donor in &mut self.donors {
            if donor.restart_if_due() {
                self.settled = Instant::now() + SETTLE;
            }
        }
        if let Some((mut frozen, _)) = self.frozen.take_if(|(_, until)| *until <= Instant::now()) {
            frozen.server.process.signal(Signal::CONT);
            self.plan.say("the stopped server goes on");
            // Its client gets no more acknowledgements for writes, and ends.
            frozen.client.take().unwrap().join().unwrap();
            frozen.server.kill();
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
        are_up && self.is_whole && !self.awaits_loss && self.settled <= Instant::now()
    }

    fn wait_until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !condition(self) {
            assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
            self.turn_for(Duration::from_millis(20));
        }
    }

    fn inject_fault(&mut self) {
        match self.plan.random.below(10) {
            0..=2 => {
                // Two donors may hold both copies of a page, and if both forget it, it is rightly lost.
                self.wait_until("all is well", Self::is_well);
                self.inject_donor_fault();
            }
            3..=4 if self.frozen.is_none() => self.freeze_server(),
            _ => self.kill_server(),
        }
    }

    fn inject_donor_fault(&mut self) {
        let index = self.plan.random.below(DONORS as u64) as usize;
        if self.plan.random.below(4) == 0 {
            let away = self.plan.ms(100, 5_000);
            self.donors[index].stop(away);
            self.plan.say(&format!("donor {index} is stopped for {away:?}"));
            return;
        }
        let away = self.plan.ms(300, 2_000);
        self.donors[index].kill(away);
        self.awaits_loss = true;
        self.plan.killed(&format!("donor {index}, for {away:?}"));
    }

    fn kill_server(&mut self) {
        let mut device = self.device.take().unwrap();
        device.may_fail.store(true, Ordering::SeqCst);
        device.server.kill();
        device.client.take().unwrap().join().unwrap();
        self.plan.killed("the server");
        self.serve(&[]);
    }

    /// Stops the server wherever it is. It is continued once another has taken over and written.
    fn freeze_server(&mut self) {
        let device = self.device.take().unwrap();
        device.server.process.signal(Signal::STOP);
        device.may_fail.store(true, Ordering::SeqCst);
        let away = self.plan.ms(200, 3_000);
        self.plan.say(&format!("the server is stopped for {away:?}, and another takes over"));
        self.serve(&[]);
        self.frozen = Some((device, Instant::now() + away));
    }

    /// With all clients idle, checks that a server that opens the volume now finds everything acknowledged, and that
    /// `fsck` finds nothing.
    fn check(&mut self) {
        self.wait_until("all is well", |world| world.is_well() && world.frozen.is_none());
        let mut device = self.device.take().unwrap();
        device.is_over.store(true, Ordering::SeqCst);
        device.client.take().unwrap().join().unwrap();
        assert!(device.server.end());
        let mut check = sinew(&["fsck", "--json"]);
        let output = run(check.args(self.donors.iter().map(|donor| &donor.address)));
        let (stderr, found) = (text(&output.stderr), text(&output.stdout));
        assert_eq!(output.status.code(), Some(0), "after {} kills: {stderr}{found}", self.plan.done());
        self.plan.say(&format!("nothing is wrong: {found}"));
        self.serve(&[]);
        let socket = self.folder.0.join(format!("s{}", self.sockets));
        // No client changes anything while everything is read.
        let device = self.device.as_mut().unwrap();
        device.is_over.store(true, Ordering::SeqCst);
        device.client.take().unwrap().join().unwrap();
        let mut client = Client::connect(&socket);
        for from in (0..PAGES).step_by(64) {
            let bytes = client.read(from * PAGE as u64, 64 * PAGE).unwrap();
            lock(&self.shadow).record_read(from, &bytes, None);
        }
        let shadow = self.shadow.clone();
        let (over, fail) = (device.is_over.clone(), device.may_fail.clone());
        over.store(false, Ordering::SeqCst);
        let seed = self.plan.random.below(u64::MAX);
        device.client = Some(std::thread::spawn(move || use_device(client, seed, &shadow, &over, &fail)));
        self.turn();
    }
}

/// Kills processes, and checks that everything that was acknowledged is there.
pub fn run_plan(plan: Plan) {
    let mut world = World::new(plan);
    let mut checked = 0;
    world.turn_for(Duration::from_millis(300));
    while world.plan.has_more() {
        let gap = world.plan.ms(20, 600);
        world.turn_for(gap);
        world.inject_fault();
        if world.plan.done() >= checked + CHECK_EVERY {
            checked = world.plan.done();
            world.check();
        }
    }
    world.check();
    let acked = lock(&world.shadow).acked();
    world.plan.say(&format!("{acked} writes were acknowledged, and nothing was lost"));
    assert!(acked > 0);
    let mut device = world.device.take().unwrap();
    device.is_over.store(true, Ordering::SeqCst);
    device.client.take().unwrap().join().unwrap();
    assert!(device.server.end());
}
