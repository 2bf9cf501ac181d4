//! The conformance suite of verbs devices, run between threads and between processes.

use std::process::Command;
use std::time::Instant;

use sinew_conformance::verbs::{Expectations, Fixture, serve_peer};
use sinew_shm::verbs::ShmDevice;

/// Set in a process that is the peer of another.
const PEER: &str = "SINEW_VERBS_PEER";

fn open() -> ShmDevice {
    ShmDevice::open(&"shm://".parse().expect("an address")).expect("a device")
}

/// One device for all ends, or one for each end, as different processes have them.
struct Devices(Option<ShmDevice>, Instant);

impl Devices {
    fn of(device: Option<ShmDevice>) -> Self {
        Self(device, Instant::now())
    }
}

impl Fixture for Devices {
    type Device = ShmDevice;

    fn device(&self) -> ShmDevice {
        self.0.clone().unwrap_or_else(open)
    }

    fn now_ns(&self) -> u64 {
        self.1.elapsed().as_nanos() as u64
    }

    fn expectations(&self) -> Expectations {
        Expectations { patience_ns: 30_000_000_000, ..Expectations::default() }
    }

    fn peer_process(&self) -> Result<Command, &'static str> {
        if self.0.is_some() {
            return Err("the device belongs to one process alone");
        }
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "child", "--nocapture"]).env(PEER, "1");
        Ok(command)
    }
}

/// Runs in the process of a peer. As a test of its own it does nothing.
#[test]
fn child() {
    if std::env::var_os(PEER).is_some() {
        serve_peer(&open());
    }
}

mod threads {
    sinew_conformance::verbs_tests!(super::Devices::of(Some(super::ShmDevice::threads().expect("a device"))));
}

mod processes {
    sinew_conformance::verbs_tests!(super::Devices::of(None));
}
