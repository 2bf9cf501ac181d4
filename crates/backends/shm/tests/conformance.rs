//! The conformance suite of packet ports, run on links between processes and between threads.

use std::time::Instant;

use sinew_conformance::ports::{Expectations, Fixture};
use sinew_conformance::sealing::SealedFixture;
use sinew_conformance::unique;
use sinew_fabric::frames::MacAddress;
use sinew_fabric::frames::cable::Cable;
use sinew_fabric::verbs::port::{UdPort, UdPortConfig};
use sinew_fabric::{Address, PacketPort};
use sinew_shm::verbs::{ShmDevice, ShmDomain};
use sinew_shm::{Hub, ShmPort};

fn name() -> String {
    format!("{}?ring=100&arena=67108864", unique("conformance"))
}

/// Ports as used between processes.
struct Processes(Instant);

impl Fixture for Processes {
    type Port = ShmPort;

    fn open(&mut self) -> ShmPort {
        let address: Address = format!("shm://{}", name()).parse().expect("an address");
        ShmPort::open(&address).expect("a port")
    }

    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    fn expectations(&self) -> Expectations {
        Expectations::default()
    }

    fn absent_address(&self) -> Option<Address> {
        Some(Address::new("shm", "nobody-has-this-name"))
    }
}

/// Ports of threads of one process.
struct Threads(Hub, Instant);

impl Fixture for Threads {
    type Port = ShmPort;

    fn open(&mut self) -> ShmPort {
        self.0.port(&name()).expect("a port")
    }

    fn now_ns(&self) -> u64 {
        self.1.elapsed().as_nanos() as u64
    }

    fn expectations(&self) -> Expectations {
        Expectations::default()
    }

    fn absent_address(&self) -> Option<Address> {
        Some(Address::new("shm", "nobody-has-this-name"))
    }
}

/// Ports that are queue pairs, each on a device of its own, or all on one.
struct Datagrams(Option<ShmDevice>, Instant);

impl Datagrams {
    fn new(device: Option<ShmDevice>) -> Self {
        Self(device, Instant::now())
    }
}

impl Fixture for Datagrams {
    type Port = UdPort<ShmDomain>;

    fn open(&mut self) -> Self::Port {
        let own = || ShmDevice::open(&"shm://?ring=300".parse().expect("an address")).expect("a device");
        let device = self.0.clone().unwrap_or_else(own);
        let config =
            UdPortConfig { receive_packets: 128, send_packets: 128, arena_bytes: 32 << 20, ..UdPortConfig::default() };
        UdPort::open(&device, &config).expect("a port")
    }

    fn now_ns(&self) -> u64 {
        self.1.elapsed().as_nanos() as u64
    }

    fn expectations(&self) -> Expectations {
        Expectations { reports_closed_peers: false, ..Expectations::default() }
    }
}

mod processes {
    sinew_conformance::port_tests!(super::Processes(std::time::Instant::now()));
}

mod threads {
    sinew_conformance::port_tests!(super::Threads(super::Hub::new(), std::time::Instant::now()));
}

mod sealed_between_processes {
    sinew_conformance::port_tests!(super::SealedFixture::new(super::Processes(std::time::Instant::now())));
}

mod datagrams_of_processes {
    sinew_conformance::port_tests!(super::Datagrams::new(None));
}

mod datagrams_of_threads {
    sinew_conformance::port_tests!(super::Datagrams::new(Some(super::ShmDevice::threads().expect("a device"))));
}

/// Cables between ports, which carry Ethernet frames.
struct Cables<F>(F, Instant);

impl<F: Fixture> sinew_conformance::frames::Fixture for Cables<F> {
    type Port = Cable<F::Port>;

    fn pair(&mut self) -> Option<(Self::Port, Self::Port)> {
        let (a, b) = (self.0.open(), self.0.open());
        let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
        let to_b = b.address();
        let a = Cable::to(a, &to_b, mac(1)).expect("the other end");
        // If both ends resolved each other there would be two links, so the called end only answers.
        Some((a, Cable::to_first_sender(b, mac(2))))
    }

    fn now_ns(&self) -> u64 {
        self.1.elapsed().as_nanos() as u64
    }
}

mod frames_between_processes {
    use std::time::Instant;
    sinew_conformance::frame_tests!(super::Cables(super::Processes(Instant::now()), Instant::now()));
}

mod frames_between_threads {
    use std::time::Instant;
    sinew_conformance::frame_tests!(super::Cables(super::Threads(super::Hub::new(), Instant::now()), Instant::now()));
}
