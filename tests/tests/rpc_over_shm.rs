//! The RPC layer's own tests, with every packet carried by UD queue pairs over shared memory.

#![allow(clippy::duplicate_mod)] // each file brings the helpers that it is written with

mod carried;

#[path = "../../crates/rpc/tests/calls.rs"]
mod calls;
#[path = "../../crates/rpc/tests/clients.rs"]
mod clients;
#[path = "../../crates/rpc/tests/handlers.rs"]
mod handlers;
#[path = "../../crates/rpc/tests/histories.rs"]
mod histories;
#[path = "../../crates/rpc/tests/hostile_bytes.rs"]
mod hostile_bytes;
#[path = "../../crates/rpc/tests/identities.rs"]
mod identities;
#[path = "../../crates/rpc/tests/peers.rs"]
mod peers;
#[path = "../../crates/rpc/tests/protocol.rs"]
mod protocol;
#[path = "../../crates/rpc/tests/random.rs"]
mod random;
#[path = "../../crates/rpc/tests/recovery.rs"]
mod recovery;
#[path = "../../crates/rpc/tests/serving.rs"]
mod serving;
#[path = "../../crates/rpc/tests/sessions.rs"]
mod sessions;
#[path = "../../crates/rpc/tests/sharing.rs"]
mod sharing;
#[path = "../../crates/rpc/tests/sleeping.rs"]
mod sleeping;
#[path = "../../crates/rpc/tests/starvation.rs"]
mod starvation;
#[path = "../../crates/rpc/tests/starvation_memory.rs"]
mod starvation_memory;
#[path = "../../crates/rpc/tests/strangers.rs"]
mod strangers;
#[path = "../../crates/rpc/tests/unreachable.rs"]
mod unreachable;

/// Ports of the tests.
mod ports {
    use sinew::fabric::ManualClock;
    use sinew::fabric::loopback::{LoopbackPort, Network};
    use sinew::shm::verbs::{ShmDevice, ShmDomain};

    pub type TestPort = super::carried::Carried<ShmDomain>;

    thread_local! {
        static DEVICE: ShmDevice = ShmDevice::threads().expect("a device");
    }

    pub fn port_on(port: LoopbackPort) -> TestPort {
        DEVICE.with(|device| super::carried::carry(port, Some(device))).expect("a queue pair")
    }

    #[test]
    fn packets_are_carried() {
        super::carried::assert_carried(&Network::new(ManualClock::new()), port_on);
    }
}
