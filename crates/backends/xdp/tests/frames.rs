//! The conformance suite of frame ports, for AF_XDP between the two ends of a virtual pair.

use std::time::Instant;

use sinew_conformance::frames::{Expectations, Fixture};
use sinew_xdp::testbed::{Pair, PairOptions, Side};
use sinew_xdp::{FrameOptions, InterfaceOptions, Memory, Mode, XdpFrames};

mod common;

struct Veth {
    mode: Mode,
    queues: u32,
    began: Instant,
    pairs: Vec<Pair>,
}

impl Veth {
    fn new(mode: Mode, queues: u32) -> Self {
        Self { mode, queues, began: Instant::now(), pairs: Vec::new() }
    }
}

impl Fixture for Veth {
    type Port = XdpFrames;

    fn pair(&mut self) -> Option<(XdpFrames, XdpFrames)> {
        let options = PairOptions { addresses: false, queues: self.queues, ..PairOptions::default() };
        let pair = common::pair(options)?;
        let open = |side: Side| {
            let options = FrameOptions {
                interface: InterfaceOptions { mode: self.mode, ring: 512, ..InterfaceOptions::default() },
                ..FrameOptions::default()
            };
            let memory = Memory::new(4096, 2048).expect("memory");
            let opened = pair.at(side).within(|| XdpFrames::open(side.interface(), &memory, &options));
            opened.expect("the namespace is there").expect("a port on a virtual interface")
        };
        let ports = (open(Side::A), open(Side::B));
        self.pairs.push(pair);
        Some(ports)
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn expectations(&self) -> Expectations {
        Expectations::default()
    }
}

mod generic {
    sinew_conformance::frame_tests!(super::Veth::new(sinew_xdp::Mode::Generic, 1));
}
mod native {
    sinew_conformance::frame_tests!(super::Veth::new(sinew_xdp::Mode::Native, 1));
}
mod several_queues {
    sinew_conformance::frame_tests!(super::Veth::new(sinew_xdp::Mode::Auto, 3));
}
