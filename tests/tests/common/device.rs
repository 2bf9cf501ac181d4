//! The machine's RDMA device, for tests that need one.

use sinew::ibverbs::{IbDevice, Selector};
use sinew_conformance::skipped;

/// Opens it. Where there is none, the test says so and ends, unless the variable `SINEW_RDMA` says that there is one.
pub fn rdma_device() -> Option<IbDevice> {
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
