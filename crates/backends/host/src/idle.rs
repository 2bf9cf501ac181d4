//! Holding off the processors' idle states.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

const LATENCY_DEVICE: &str = "/dev/cpu_dma_latency";

/// Reason why idle states could not be held off.
#[derive(Debug, thiserror::Error)]
pub enum IdleStatesError {
    /// This kernel has no control for idle states.
    #[error(
        "{LATENCY_DEVICE} is not there: idle processors will take tens of microseconds to wake; spin instead of sleeping"
    )]
    NotThere,
    /// The user may not write to the control.
    #[error(
        "{LATENCY_DEVICE} cannot be opened for writing by this user; run as root, or give the user the right to write it"
    )]
    NotPermitted,
    /// Any other error of the system.
    #[error("{LATENCY_DEVICE}: {0}")]
    System(#[from] io::Error),
}

/// Guard that keeps every processor of the machine out of its idle states until it is dropped.
#[derive(Debug)]
pub struct IdleStatesOff {
    _device: File,
}

/// Asks the kernel to keep idle processors polling until the returned guard is dropped.
///
/// An idle processor then wakes within a microsecond or two, rather than after tens of them. This costs power (and, on
/// a virtual machine, the host's processor time), so use it for measurements and on machines of your own.
///
/// # Errors
///
/// [`IdleStatesError`], which gives the reason.
pub fn hold_idle_states_off() -> Result<IdleStatesOff, IdleStatesError> {
    hold_at(Path::new(LATENCY_DEVICE))
}

fn hold_at(path: &Path) -> Result<IdleStatesOff, IdleStatesError> {
    let mut device = OpenOptions::new().write(true).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => IdleStatesError::NotThere,
        io::ErrorKind::PermissionDenied => IdleStatesError::NotPermitted,
        _ => IdleStatesError::System(error),
    })?;
    // The request is a 32-bit count of microseconds and holds while the descriptor is open.
    device.write_all(&0i32.to_ne_bytes())?;
    Ok(IdleStatesOff { _device: device })
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};

    use super::*;

    #[test]
    fn a_machine_without_the_control_says_so() {
        let missing = Path::new("/nowhere/cpu_dma_latency");
        let error = hold_at(missing).unwrap_err();
        assert!(matches!(error, IdleStatesError::NotThere));
        assert!(error.to_string().contains(LATENCY_DEVICE));
    }

    #[test]
    fn zero_microseconds_are_asked_for_and_the_device_stays_open() {
        let path = std::env::temp_dir().join(format!("sinew-idle-{:016x}", RandomState::new().hash_one(())));
        File::create(&path).unwrap();
        let held = hold_at(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), 0i32.to_ne_bytes());
        std::fs::remove_file(&path).unwrap();
        drop(held);
    }

    #[test]
    fn the_real_control_is_held_or_the_refusal_is_named() {
        match hold_idle_states_off() {
            Ok(held) => drop(held),
            Err(IdleStatesError::NotThere) => assert!(!Path::new(LATENCY_DEVICE).exists()),
            Err(error) => assert!(error.to_string().starts_with(LATENCY_DEVICE)),
        }
    }
}
