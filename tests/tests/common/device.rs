//! The machine's RDMA device, for tests that need one.

use sinew::ibverbs::{IbDevice, Selector};
use sinew_conformance::skipped;

/// Opens the device. Where there is none, reports the test as skipped, or fails if the variable `SINEW_RDMA` is set.
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
