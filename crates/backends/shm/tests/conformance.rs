//! The facts that hold for every packet port, for links between processes and for links between threads.

use std::time::Instant;

use sinew_fabric::Address;
use sinew_fabric::conformance::{Expectations, Fixture, unique};
use sinew_shm::{Hub, ShmPort};

fn name() -> String {
    format!("{}?ring=100&arena=67108864", unique("conformance"))
}

/// Ports as different processes have them.
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

mod processes {
    sinew_fabric::conformance_tests!(super::Processes(std::time::Instant::now()));
}

mod threads {
    sinew_fabric::conformance_tests!(super::Threads(super::Hub::new(), std::time::Instant::now()));
}
