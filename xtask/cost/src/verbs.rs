//! The device of the operations that need verbs.

use sinew_shm::verbs::ShmDevice;

/// Opens a device that other processes could reach: callgrind has no room for the address space of one between threads.
///
/// # Errors
///
/// The device cannot be opened.
pub fn device() -> anyhow::Result<ShmDevice> {
    Ok(ShmDevice::open(&"shm://?exposed=16777216".parse()?)?)
}
