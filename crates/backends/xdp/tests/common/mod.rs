//! Virtual pairs for tests.
#![allow(dead_code)]

use sinew_conformance::skipped;
use sinew_fabric::Address;
use sinew_xdp::testbed::{Pair, PairOptions, Side};
use sinew_xdp::{FrameOptions, Memory, XdpFrames, XdpPort};

/// A pair; where none can be made, the test says so and ends.
pub fn pair(options: PairOptions) -> Option<Pair> {
    match Pair::new(options) {
        Ok(pair) => Some(pair),
        Err(error) => {
            skipped(format_args!("no virtual pair can be made: {error}"));
            None
        }
    }
}

/// A packet port at a side, at a place such as `10.83.0.1:7000`.
pub fn port(pair: &Pair, side: Side, place: &str) -> XdpPort {
    let address = format!("xdp://{}/{place}", side.interface());
    let address: Address = address.parse().expect("an address");
    pair.at(side).within(|| XdpPort::open(&address)).expect("the namespace is there").expect("a port")
}

/// A frame port at a side.
pub fn frames(pair: &Pair, side: Side) -> XdpFrames {
    let memory = Memory::new(4096, 2048).expect("memory");
    let opened = pair.at(side).within(|| XdpFrames::open(side.interface(), &memory, &FrameOptions::default()));
    opened.expect("the namespace is there").expect("a frame port")
}

/// Runs `ip` in the thread's namespace.
pub fn ip(args: &[&str]) {
    let status = std::process::Command::new("ip").args(args).status().expect("ip is there");
    assert!(status.success(), "ip {args:?}");
}

/// The Ethernet address of a side's interface, in the thread's namespace.
pub fn mac(side: Side) -> [u8; 6] {
    let out = std::process::Command::new("ip").args(["-br", "link", "show", side.interface()]).output().expect("ip");
    let text = String::from_utf8(out.stdout).expect("text");
    let mac = text.split_whitespace().nth(2).expect("an address");
    let bytes: Vec<u8> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal")).collect();
    bytes.try_into().expect("six bytes")
}
