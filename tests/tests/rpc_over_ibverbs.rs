//! The RPC layer's own tests, with every packet carried by UD queue pairs of this machine's RDMA device.

#![allow(clippy::duplicate_mod)] // each file brings the helpers that it is written with

mod carried;

#[path = "../../crates/rpc/tests/calls.rs"]
mod calls;
#[path = "../../crates/rpc/tests/handlers.rs"]
mod handlers;
#[path = "../../crates/rpc/tests/hostile_bytes.rs"]
mod hostile_bytes;
#[path = "../../crates/rpc/tests/peers.rs"]
mod peers;
#[path = "../../crates/rpc/tests/protocol.rs"]
mod protocol;
#[path = "../../crates/rpc/tests/random.rs"]
mod random;
#[path = "../../crates/rpc/tests/recovery.rs"]
mod recovery;
#[path = "../../crates/rpc/tests/sessions.rs"]
mod sessions;
#[path = "../../crates/rpc/tests/strangers.rs"]
mod strangers;

/// What the tests' ports are.
mod ports {
    use sinew::fabric::ManualClock;
    use sinew::fabric::conformance::skipped;
    use sinew::fabric::loopback::{LoopbackPort, Network};
    use sinew::ibverbs::{IbDevice, IbDomain, Selector};

    pub type TestPort = super::carried::Carried<IbDomain>;

    thread_local! {
        static DEVICE: Option<IbDevice> = device();
    }

    /// The machine's device. Where there is none, tests say so and their packets travel by the loopback network alone.
    fn device() -> Option<IbDevice> {
        match IbDevice::open(&Selector::default()) {
            Ok(device) => Some(device),
            Err(error) if std::env::var_os("SINEW_RDMA").is_some() => {
                panic!("SINEW_RDMA is set, and there is no device: {error}")
            }
            Err(error) => {
                skipped(format_args!("no device: {error}"));
                None
            }
        }
    }

    pub fn port_on(port: LoopbackPort) -> TestPort {
        DEVICE.with(|device| super::carried::carry(port, device.as_ref())).expect("a queue pair")
    }

    #[test]
    fn packets_are_carried() {
        if DEVICE.with(Option::is_some) {
            super::carried::assert_carried(&Network::new(ManualClock::new()), port_on);
        }
    }
}
