//! Ports of other processes that are killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sinew_fabric::PortError;
use sinew_xdp::testbed::{PairOptions, Side};
use sinew_xdp::{FrameOptions, Memory, XdpFrames};

mod common;

/// Set in the environment of a process that only holds a port.
const HOLDS: &str = "SINEW_XDP_HOLDS";

/// Runs in that process. As a test of its own, it does nothing.
#[test]
fn child() {
    if std::env::var_os(HOLDS).is_some() {
        let memory = Memory::new(4096, 2048).unwrap();
        let _port = XdpFrames::open(Side::B.interface(), &memory, &FrameOptions::default()).unwrap();
        println!("\nopen");
        std::io::stdout().flush().unwrap();
        std::thread::sleep(Duration::from_secs(600));
    }
}

#[test]
fn a_process_that_is_killed_leaves_nothing_attached() {
    let Some(pair) = common::pair(PairOptions::default()) else { return };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env(HOLDS, "1").stdout(Stdio::piped());
    let mut child = pair.at(Side::B).within(|| command.spawn()).unwrap().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "open"));
    let memory = Memory::new(4096, 2048).unwrap();
    let open =
        || pair.at(Side::B).within(|| XdpFrames::open(Side::B.interface(), &memory, &FrameOptions::default())).unwrap();
    let error = open().unwrap_err();
    assert!(matches!(error, PortError::Taken { .. }), "{error}");
    assert!(error.to_string().contains(&format!("process {}", child.id())), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    // The kernel takes the dead process's sockets apart in its own time.
    let began = Instant::now();
    loop {
        match open() {
            Ok(_) => break,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(10), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
