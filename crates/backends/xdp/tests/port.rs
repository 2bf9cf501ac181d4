//! The conformance suite of packet ports, for AF_XDP between the two ends of a virtual pair. The first port is at one
//! end, all others at the other.

use std::time::Instant;

use sinew_conformance::ports::{Expectations, Fixture};
use sinew_xdp::XdpPort;
use sinew_xdp::testbed::{Pair, PairOptions, Side};

mod common;

/// The addresses that the ports have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addresses {
    V4,
    V6,
}

struct Veth {
    pair: Pair,
    addresses: Addresses,
    options: &'static str,
    opened: usize,
    began: Instant,
}

impl Veth {
    fn new(addresses: Addresses, options: &'static str, queues: u32) -> Option<Self> {
        let pair = common::pair(PairOptions { queues, ..PairOptions::default() })?;
        Some(Self { pair, addresses, options, opened: 0, began: Instant::now() })
    }
}

impl Fixture for Veth {
    type Port = XdpPort;

    fn open(&mut self) -> XdpPort {
        let side = if self.opened == 0 { Side::A } else { Side::B };
        self.opened += 1;
        let options = self.pair.options();
        let place = match self.addresses {
            Addresses::V4 => options.v4(side).to_string(),
            Addresses::V6 => format!("[{}]", options.v6(side)),
        };
        common::port(&self.pair, side, &format!("{place}:0?{}", self.options))
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn expectations(&self) -> Expectations {
        // A closed port is not reported.
        Expectations { reports_closed_peers: false, ..Expectations::default() }
    }
}

macro_rules! facts {
    ($addresses:ident, $options:literal, $queues:literal; $($fact:ident)*) => {
        $(
            #[test]
            fn $fact() {
                if let Some(mut veth) = super::Veth::new(super::Addresses::$addresses, $options, $queues) {
                    sinew_conformance::ports::$fact(&mut veth);
                }
            }
        )*
    };
}

mod v4 {
    sinew_conformance::__port_facts!(facts, V4, "ring=512", 1);
}
mod v4_each_alone_over_two_queues {
    sinew_conformance::__port_facts!(facts, V4, "ring=512&coalesce=off", 2);
}
mod v6_in_the_driver {
    sinew_conformance::__port_facts!(facts, V6, "ring=512&mode=native", 1);
}
