//! The facts that hold for every packet port, for AF_XDP between the two ends of a virtual pair: the first port is at one end, all others at the other.

use std::time::Instant;

use sinew_conformance::ports::{Expectations, Fixture};
use sinew_fabric::{Address, PacketPort};
use sinew_xdp::XdpPort;
use sinew_xdp::testbed::{Pair, PairOptions, Side};

/// Which addresses the ports have.
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
    fn new(addresses: Addresses, options: &'static str, queues: u32) -> Self {
        let pair = Pair::new(PairOptions { queues, ..PairOptions::default() }).expect("a pair");
        Self { pair, addresses, options, opened: 0, began: Instant::now() }
    }
}

impl Fixture for Veth {
    type Port = XdpPort;

    fn open(&mut self) -> XdpPort {
        let side = if self.opened == 0 { Side::A } else { Side::B };
        self.opened += 1;
        let place = match self.addresses {
            Addresses::V4 => PairOptions::v4(side).to_string(),
            Addresses::V6 => format!("[{}]", PairOptions::v6(side)),
        };
        let address = format!("xdp://{}/{place}:0?{}", side.interface(), self.options);
        let address: Address = address.parse().expect("an address");
        self.pair.at(side).within(|| XdpPort::open(&address)).expect("the namespace is there").expect("a port")
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn expectations(&self) -> Expectations {
        Expectations { reports_closed_peers: false, ..Expectations::default() }
    }
}

mod v4 {
    sinew_conformance::port_tests!(super::Veth::new(super::Addresses::V4, "ring=512", 1));
}
mod v6_native {
    sinew_conformance::port_tests!(super::Veth::new(super::Addresses::V6, "ring=512&mode=native", 1));
}
mod v4_each_alone {
    sinew_conformance::port_tests!(super::Veth::new(super::Addresses::V4, "ring=512&coalesce=off", 2));
}
