//! The device of the operations that need verbs.

use sinew_shm::verbs::ShmDevice;

/// A device that processes could reach: callgrind has no room for the address space of one between threads.
///
/// # Errors
///
/// What the system says.
pub fn device() -> anyhow::Result<ShmDevice> {
    Ok(ShmDevice::open(&"shm://?exposed=16777216".parse()?)?)
}
