//! [`Rpc`] as a server: handlers of its own, and requests that its program takes.

use sinew_rpc::{BurstCalls, Call, DeferredCall, RequestType};

use super::{FabricEndpoint, Rpc};
use crate::error::Result;

impl Rpc {
    /// Handles requests of a type with a handler of this endpoint's own. The handler stays on this thread, so it can
    /// share state with the program by `Rc`. Must be called before clients ask, since until then they are told that
    /// there is no handler.
    ///
    /// # Errors
    ///
    /// [`Error::Nexus`](crate::Error::Nexus) when the type has a handler already, here or in the
    /// [`Nexus`](crate::Nexus).
    pub fn handle(&mut self, request_type: RequestType, handler: impl FnMut(Call<'_>) + 'static) -> Result<()> {
        Ok(
            for_each_fabric!(&mut self.endpoint, rpc => rpc.handle(request_type, handler), other => other.handle(request_type, Box::new(handler)))?,
        )
    }

    /// As [`Self::handle`], with a handler that gets all requests of a type in a received burst at once.
    ///
    /// # Errors
    ///
    /// As [`Self::handle`].
    pub fn handle_burst(
        &mut self,
        request_type: RequestType,
        handler: impl FnMut(&mut BurstCalls<'_, '_>) + 'static,
    ) -> Result<()> {
        Ok(
            for_each_fabric!(&mut self.endpoint, rpc => rpc.handle_burst(request_type, handler), other => other.handle_burst(request_type, Box::new(handler)))?,
        )
    }

    /// Copies requests of a type and queues them for [`Self::poll_request`].
    ///
    /// # Errors
    ///
    /// As [`Self::handle`].
    pub fn handle_polled(&mut self, request_type: RequestType) -> Result<()> {
        Ok(for_each_fabric!(&mut self.endpoint, rpc => rpc.handle_polled(request_type))?)
    }

    /// As [`Self::turn`], and hands `take` the requests of all types without a handler, so that they can be handled
    /// with state that the caller borrows. Other ways to turn the loop refuse these requests; see
    /// [`sinew_rpc::Rpc::turn_with`].
    #[inline]
    pub fn turn_with(&mut self, mut take: impl FnMut(Call<'_>)) -> bool {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.turn_with(take), other => other.turn_with(&mut take))
    }

    /// The next request of a polled type ([`Self::handle_polled`]); see [`sinew_rpc::Rpc::poll_request`]. Answer it
    /// with [`Self::reply`], or as any [`DeferredCall`].
    pub fn poll_request(&mut self) -> Option<DeferredCall> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.poll_request())
    }

    /// Answers a deferred call with these bytes. On its endpoint's own thread this is quicker than
    /// [`DeferredCall::reply`].
    pub fn reply(&mut self, call: DeferredCall, response: &[u8]) {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.reply(call, response));
    }

    /// As [`Self::reply`], with `len` bytes that `write` fills in from the request. They are unspecified before.
    pub fn reply_with(&mut self, call: DeferredCall, len: usize, write: impl FnOnce(&[u8], &mut [u8])) {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.reply_with(call, len, write), other => {
            let mut write = Some(write);
            other.reply_with(call, len, &mut |request, response| {
                if let Some(write) = write.take() {
                    write(request, response);
                }
            });
        });
    }
}
