//! Messages to users: the devices of the machine, and what they may not do.

mod common;

use std::os::unix::process::CommandExt;
use std::process::Command;

use sinew_fabric::verbs::{Device, ProtectionDomain, VerbsError};
use sinew_ibverbs::{IbDevice, Selector, devices};

#[test]
fn devices_are_listed_with_what_can_be_used() {
    let Some(device) = common::device() else { return };
    let listed = devices().unwrap();
    let usable: Vec<_> = listed.iter().flat_map(|device| &device.ports).filter(|port| port.trouble.is_none()).collect();
    let port = usable.iter().find(|port| port.gids == device.port().gids).unwrap();
    assert_eq!((port.mtu, &port.chosen), (device.attributes().mtu, &device.port().chosen));
    let chosen = port.chosen.as_ref().unwrap();
    assert!(port.gids.contains(chosen) && device.attributes().name.contains(&chosen.to_string()));
}

#[test]
fn a_device_port_or_gid_that_is_not_there_is_an_error_that_says_so() {
    let Some(device) = common::device() else { return };
    let name = device.attributes().name.split(':').next().unwrap().to_owned();
    let refused = |text: &str| match IbDevice::open(&text.parse().unwrap()) {
        Err(VerbsError::NoDevice(why)) => why,
        other => panic!("{text}: {other:?}"),
    };
    let why = refused("no-such-device");
    assert!(why.contains("no-such-device") && why.contains(&name), "{why}");
    assert!(refused(&format!("{name}:77")).contains("no port 77"));
    let why = refused(&format!("{name}?gid=255"));
    assert!(why.contains("no GID 255") && why.contains("(GID "), "{why}");
    let gid = device.port().gids.last().unwrap();
    let other = IbDevice::open(&format!("{name}?gid={}", gid.index).parse().unwrap()).unwrap();
    assert_eq!(other.port().chosen.as_ref(), Some(gid));
}

/// Tries to lock more memory than it may, and prints the outcome.
#[test]
fn child() {
    if std::env::var_os("SINEW_CHILD").is_none() {
        return;
    }
    let locked = IbDevice::open(&Selector::default())
        .and_then(|device| device.protection_domain())
        .and_then(|domain| domain.arena(16 << 20));
    println!("outcome: {}", locked.map_or_else(|error| error.to_string(), |_| "locked".into()));
}

#[test]
fn an_ordinary_user_is_told_what_to_raise() {
    if common::device().is_none() {
        return;
    }
    let mut command = Command::new("sh");
    let script = "ulimit -l 1024 && exec \"$0\" --exact child --nocapture";
    command.args(["-c", script]).arg(std::env::current_exe().unwrap()).env("SINEW_CHILD", "1").uid(65534).gid(65534);
    let Ok(output) = command.output() else {
        common::skipped("another user's programs cannot be started: not root");
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let outcome = text.lines().find_map(|line| line.split_once("outcome: ")).unwrap().1;
    let locked = outcome.contains("may lock 1048576") && outcome.contains("ulimit -l unlimited");
    assert!(locked || outcome.contains("/dev/infiniband"), "{outcome}");
}
