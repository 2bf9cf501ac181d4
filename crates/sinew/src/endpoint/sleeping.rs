//! Sleeping on the endpoint: alone, or beside other things.

use sinew_fabric::{Armed, Descriptor, Readiness};

use super::{FabricEndpoint, Rpc};
use crate::error::Result;

impl Rpc {
    /// Sleeps until something may have arrived, a timer of the endpoint is due, or `timeout_ns` passed. Returns whether it did: not where
    /// there is something to do already.
    ///
    /// # Errors
    ///
    /// [`Error::System`](crate::Error::System), what the port says.
    pub fn wait(&mut self, timeout_ns: Option<u64>) -> Result<bool> {
        Ok(each!(&mut self.endpoint, rpc => rpc.wait(timeout_ns))?)
    }

    /// After a turn that was `busy` or not: sleeps when there was nothing to do for longer than [`Config::poller`](sinew_rpc::Config::poller) spins, until there is, for so
    /// many nanoseconds at most.
    ///
    /// # Errors
    ///
    /// [`Error::System`](crate::Error::System) when the port cannot sleep.
    pub fn rest(&mut self, busy: bool, timeout_ns: Option<u64>) -> Result<()> {
        Ok(each!(&mut self.endpoint, rpc => rpc.rest(busy, timeout_ns))?)
    }

    /// As [`Self::rest`], on a thread that serves something else too: it sleeps on all of them. `busy` is whether any of them was. Other endpoints
    /// among them are not turned here: each is to be turned in every round of the loop. See [`sinew_rpc::Rpc::rest_beside`].
    ///
    /// ```
    /// # use sinew::prelude::*;
    /// # fn round(near: &mut Rpc, far: &mut Rpc, socket: &mut sinew::fabric::readiness::Foreign) -> sinew::Result<()> {
    /// let busy = near.turn() | far.turn(); // and look at the socket
    /// near.rest_beside(busy, &mut [far, socket], None)
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::System`](crate::Error::System) when one of them cannot sleep.
    pub fn rest_beside(
        &mut self,
        busy: bool,
        beside: &mut [&mut dyn Readiness],
        timeout_ns: Option<u64>,
    ) -> Result<()> {
        Ok(each!(&mut self.endpoint, rpc => rpc.rest_beside(busy, beside, timeout_ns))?)
    }

    /// What becomes readable when there is something to do at an endpoint that is [armed](Self::arm); see [`sinew_rpc::Rpc::descriptor`].
    pub fn descriptor(&self) -> Option<Descriptor> {
        each!(&self.endpoint, rpc => rpc.descriptor())
    }

    /// Gets the endpoint ready for its thread to sleep; see [`sinew_rpc::Rpc::arm`].
    ///
    /// # Errors
    ///
    /// [`Error::System`](crate::Error::System): there is no descriptor, or what the port says.
    pub fn arm(&mut self) -> Result<Armed> {
        Ok(each!(&mut self.endpoint, rpc => rpc.arm())?)
    }

    /// Says that the thread is awake, as a turn does; see [`sinew_rpc::Rpc::disarm`].
    pub fn disarm(&mut self) -> bool {
        each!(&mut self.endpoint, rpc => rpc.disarm())
    }
}

/// An endpoint beside other things that a thread sleeps on. Deadlines are on the caller's clock.
impl Readiness for Rpc {
    fn descriptor(&self) -> Option<Descriptor> {
        self.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> std::io::Result<Armed> {
        let armed = each!(&mut self.endpoint, rpc => rpc.arm())?;
        Ok(armed.on_clock(self.now_ns(), now_ns))
    }

    fn disarm(&mut self) -> bool {
        self.disarm()
    }
}
