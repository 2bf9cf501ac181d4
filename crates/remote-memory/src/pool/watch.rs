//! One descriptor for all that a thread sleeps on.

use std::cell::OnceCell;
use std::io;

use sinew_fabric::Descriptor;
use sinew_fabric::readiness::{Alarm, no_descriptor};

/// A descriptor that is readable when one of those added is. It is created at first use, since nothing sleeps on a
/// simulated network.
#[derive(Debug, Default)]
pub(super) struct Watch(OnceCell<Option<Alarm>>);

impl Watch {
    fn alarm(&self) -> Option<&Alarm> {
        self.0.get_or_init(|| Alarm::new().ok()).as_ref()
    }

    pub fn descriptor(&self) -> Option<Descriptor> {
        Some(self.alarm()?.descriptor())
    }

    /// Adds a descriptor. One that is already watched may be added again; one that is closed is no longer watched.
    pub fn add(&self, descriptor: Option<Descriptor>) -> io::Result<()> {
        let descriptor = descriptor.ok_or_else(no_descriptor)?;
        let alarm = self.alarm().ok_or_else(|| io::Error::other("there are no descriptors left to sleep on"))?;
        match alarm.watch(descriptor) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }
}
