//! Sleeping on an endpoint: alone, or together with other event sources.

use sinew_fabric::{Armed, Descriptor, Readiness};

use super::{FabricEndpoint, Rpc};
use crate::error::Result;

impl Rpc {
    /// Sleeps until something may have arrived, a timer of the endpoint is due, or `timeout_ns` has passed. Returns
    /// whether it slept; it does not if there is work already.
    ///
    /// # Errors
    ///
    /// [`Error::System`](crate::Error::System), from the port.
    pub fn wait(&mut self, timeout_ns: Option<u64>) -> Result<bool> {
        Ok(for_each_fabric!(&mut self.endpoint, rpc => rpc.wait(timeout_ns))?)
    }

    /// For use after each turn: if there has been nothing to do for longer than
    /// [`Config::poller`](sinew_rpc::Config::poller) spins, sleeps until there is work, but for at most `timeout_ns`
    /// nanoseconds. `busy` is what the turn returned.
    ///
    /// # Errors
    ///
    /// [`Error::System`](crate::Error::System) when the port cannot sleep.
    pub fn rest(&mut self, busy: bool, timeout_ns: Option<u64>) -> Result<()> {
        Ok(for_each_fabric!(&mut self.endpoint, rpc => rpc.rest(busy, timeout_ns))?)
    }

    /// As [`Self::rest`], on a thread that also serves other event sources: sleeps on the endpoint and on all sources
    /// in `beside`. `busy` says whether any of them had work. Other endpoints in `beside` are not turned by this call:
    /// turn each one in every round of the loop. See [`sinew_rpc::Rpc::rest_beside`].
    ///
    /// ```
    /// # use sinew::{fabric::readiness::ForeignFd, prelude::*};
    /// # fn round(near: &mut Rpc, far: &mut Rpc, socket: &mut ForeignFd) -> sinew::Result<()> {
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
        Ok(for_each_fabric!(&mut self.endpoint, rpc => rpc.rest_beside(busy, beside, timeout_ns))?)
    }

    /// A descriptor that becomes readable when an [armed](Self::arm) endpoint has work; see
    /// [`sinew_rpc::Rpc::descriptor`].
    pub fn descriptor(&self) -> Option<Descriptor> {
        for_each_fabric!(&self.endpoint, rpc => rpc.descriptor())
    }

    /// Prepares the endpoint for its thread's sleep; see [`sinew_rpc::Rpc::arm`].
    ///
    /// # Errors
    ///
    /// [`Error::System`](crate::Error::System): there is no descriptor, or the port failed.
    pub fn arm(&mut self) -> Result<Armed> {
        Ok(for_each_fabric!(&mut self.endpoint, rpc => rpc.arm())?)
    }

    /// Tells the endpoint that its thread is awake, as a turn does; see [`sinew_rpc::Rpc::disarm`].
    pub fn disarm(&mut self) -> bool {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.disarm())
    }
}

/// Lets a thread sleep on an endpoint together with other event sources. Deadlines are on the caller's clock.
impl Readiness for Rpc {
    fn descriptor(&self) -> Option<Descriptor> {
        self.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> std::io::Result<Armed> {
        let armed = for_each_fabric!(&mut self.endpoint, rpc => rpc.arm())?;
        Ok(armed.on_clock(self.now_ns(), now_ns))
    }

    fn disarm(&mut self) -> bool {
        self.disarm()
    }
}
