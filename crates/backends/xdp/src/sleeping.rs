//! Sleeping on the sockets of a port.

use std::io;

use rustix::fd::OwnedFd;
use sinew_fabric::readiness::Alarm;
use sinew_fabric::{Descriptor, PortError, Waker};
use sinew_mem::atomic::plain::Arc;

use crate::interface::Attachment;

/// An alarm that goes off when a frame comes. It watches the sockets only during a sleep, since the delivery of each
/// frame to a watched socket goes through the alarm.
#[derive(Debug)]
pub(crate) struct Sleeping {
    alarm: Alarm,
    /// The sockets of the port, which closes them itself.
    sockets: Vec<std::sync::Weak<OwnedFd>>,
    watches: bool,
}

impl Sleeping {
    pub fn new(attachment: &Attachment) -> Result<Self, PortError> {
        let alarm = Alarm::new()
            .map_err(|source| PortError::System { doing: "making an epoll set and an eventfd".to_owned(), source })?;
        let sockets = attachment.sockets.iter().filter_map(|socket| socket.fd.as_ref()).map(Arc::downgrade).collect();
        Ok(Self { alarm, sockets, watches: false })
    }

    pub fn descriptor(&self) -> Descriptor {
        self.alarm.descriptor()
    }

    pub fn waker(&self) -> Waker {
        self.alarm.waker()
    }

    /// Makes frames, including those already there, and wakers make the descriptor readable from now on. Returns false
    /// if a waker was called before.
    ///
    /// # Errors
    ///
    /// The system's error when it has no memory.
    pub fn set(&mut self) -> io::Result<bool> {
        if !self.alarm.set() {
            return Ok(false);
        }
        if !self.watches {
            // Set even if one of several fails: `clear` then removes those that were added.
            self.watches = true;
            for socket in self.sockets.iter().filter_map(std::sync::Weak::upgrade) {
                if let Err(error) = self.alarm.watch(&*socket) {
                    // The next arming must not find a port that believes itself watched.
                    self.clear();
                    return Err(error);
                }
            }
        }
        Ok(true)
    }

    /// Ends the watch; returns whether a waker was called.
    pub fn clear(&mut self) -> bool {
        if std::mem::take(&mut self.watches) {
            for socket in self.sockets.iter().filter_map(std::sync::Weak::upgrade) {
                // One that was never added needs no removal.
                let _ = self.alarm.unwatch(&*socket);
            }
        }
        self.alarm.clear()
    }
}
