//! The conformance suite of verbs devices, on the machine's RDMA device.

use std::process::Command;
use std::time::Instant;

use sinew_conformance::verbs::{Expectations, Fixture, Promise, serve_peer};
use sinew_ibverbs::IbDevice;

mod common;

/// Set in the environment of a process that is the peer of another.
const PEER: &str = "SINEW_VERBS_PEER";

struct Machine(IbDevice, Instant);

impl Fixture for Machine {
    type Device = IbDevice;

    fn device(&self) -> IbDevice {
        self.0.clone()
    }

    fn now_ns(&self) -> u64 {
        self.1.elapsed().as_nanos() as u64
    }

    fn expectations(&self) -> Expectations {
        Expectations {
            notices_death: Promise::Not("an RDMA device notices a dead peer only when it sends, and never over UC"),
            length_errors: Promise::Not("soft-RoCE calls them QP operation errors"),
            knows_its_peer: Promise::Not("a UC packet does not name its sender"),
            whole_words: Promise::Not("soft-RoCE may copy memory byte by byte"),
            processor_atomics: Promise::Not("most devices' atomics are atomic only among themselves"),
            // Long, since emulated processors are slow, and only failures take that long.
            patience_ns: 60_000_000_000,
            ..Expectations::default()
        }
    }

    fn peer_process(&self) -> Result<Command, &'static str> {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "child", "--nocapture"]).env(PEER, "1");
        Ok(command)
    }
}

/// Runs in the process of a peer. As a test of its own, it does nothing.
#[test]
fn child() {
    if std::env::var_os(PEER).is_some() {
        serve_peer(&common::device().expect("the device of the process that started this one"));
    }
}

macro_rules! facts {
    (; $($fact:ident)*) => {
        $(
            #[test]
            fn $fact() {
                if let Some(device) = common::device() {
                    sinew_conformance::verbs::$fact(&Machine(device, Instant::now()));
                }
            }
        )*
    };
}

sinew_conformance::__verbs_facts!(facts,);
