//! Requests in the hands of the program that turns the endpoint: through handlers that share its state, through a
//! closure that borrows it, or polled when it likes. Also the counters, for other threads to watch.

use sinew_fabric::{Clock, PacketPort};

use super::Rpc;
use crate::call::{BurstCalls, Call, DeferredCall};
use crate::handlers::{Handler, WithFallback};
use crate::live::{Publisher, StatsReader};
use crate::names::RequestType;
use crate::nexus::NexusError;
use crate::receive::receive_burst;

impl<P: PacketPort, C: Clock> Rpc<P, C> {
    /// Handles requests of a type with a handler of this endpoint's own. The handler stays on this thread, so it can
    /// share state with the program through `Rc`. Register it before clients call: until then they get
    /// [`Cause::NoHandler`](crate::Cause::NoHandler).
    ///
    /// # Errors
    ///
    /// [`NexusError::DuplicateType`] when the type has a handler already, here or in the [`crate::Nexus`].
    pub fn handle(
        &mut self,
        request_type: RequestType,
        handler: impl FnMut(Call<'_>) + 'static,
    ) -> Result<(), NexusError> {
        self.register(request_type, || Handler::dispatch(handler))
    }

    /// As [`Self::handle`], for all requests of a type in a received burst together: see
    /// [`crate::NexusBuilder::handle_burst`].
    ///
    /// # Errors
    ///
    /// As [`Self::handle`].
    pub fn handle_burst(
        &mut self,
        request_type: RequestType,
        handler: impl FnMut(&mut BurstCalls<'_, '_>) + 'static,
    ) -> Result<(), NexusError> {
        self.register(request_type, || Handler::Burst(Box::new(handler)))
    }

    /// Copies requests of a type and queues them for [`Self::poll_request`].
    ///
    /// # Errors
    ///
    /// As [`Self::handle`].
    pub fn handle_polled(&mut self, request_type: RequestType) -> Result<(), NexusError> {
        self.register(request_type, || Handler::Polled)
    }

    fn register(&mut self, request_type: RequestType, make: impl FnOnce() -> Handler) -> Result<(), NexusError> {
        let number = request_type.number();
        if self.handlers.has(number) {
            return Err(NexusError::DuplicateType(number));
        }
        self.handlers.set(number, make());
        Ok(())
    }

    /// As [`Self::turn`], and passes to `take` those requests that have no registered handler, where they lie. So they
    /// can be handled with state that the caller borrows:
    ///
    /// ```
    /// # use sinew_rpc::{Call, RequestType, Rpc};
    /// # fn serve<P: sinew_fabric::PacketPort, C: sinew_fabric::Clock>(rpc: &mut Rpc<P, C>) {
    /// const ADD: RequestType = RequestType::new(1);
    /// let mut sum = 0u64;
    /// let busy = rpc.turn_with(|call: Call<'_>| match call.request_type() {
    ///     ADD => {
    ///         sum += call.request().len() as u64;
    ///         call.reply(&sum.to_le_bytes())
    ///     }
    ///     _ => call.refuse_type(),
    /// });
    /// # }
    /// ```
    ///
    /// All other methods that turn the loop ([`Self::turn`], [`Self::call`], [`Self::connect`], [`Self::run_until`]) do
    /// not know `take`, and answer such requests with [`crate::Cause::NoHandler`]. So a program that serves like this
    /// begins its own calls and sessions without waiting for them. If `take` panics, its call fails and the others go
    /// on, as with a handler.
    #[inline]
    pub fn turn_with(&mut self, mut take: impl FnMut(Call<'_>)) -> bool {
        self.turn_with_handler(|rpc, burst| {
            let mut service = WithFallback { handlers: rpc.handlers, fallback: &mut take };
            receive_burst(rpc.core, rpc.sessions, &mut service, burst, rpc.clock);
        })
    }

    /// Returns the next request of a [polled](crate::NexusBuilder::handle_polled) type, in order of arrival. Answer it
    /// with [`Self::reply`], or as any [`DeferredCall`].
    ///
    /// The request is a copy, in a buffer of the endpoint's arena that goes back there with the answer: in the steady
    /// state nothing is allocated from the heap. Until it is answered it counts towards its client's share of the
    /// memory ([`crate::Config::peer_share_percent`]). While [`crate::Config::polled_requests_max`] requests wait,
    /// further ones are answered with [`crate::Cause::ServerBusy`]. Requests whose client has left or given up are
    /// skipped.
    pub fn poll_request(&mut self) -> Option<DeferredCall> {
        self.handlers.backlog.next(&self.core)
    }

    /// Answers a kept call with these bytes, on its endpoint's own thread. Unlike [`DeferredCall::reply`] this takes no
    /// lock and wakes nobody, and writes into the buffer that the call's slot keeps for answers. A call of another
    /// endpoint is answered through that endpoint.
    pub fn reply(&mut self, call: DeferredCall, response: &[u8]) {
        self.reply_with(call, response.len(), |_request, target| target.copy_from_slice(response));
    }

    /// As [`Self::reply`], with `len` bytes that `write` fills in from the request. Before that their contents are
    /// unspecified.
    pub fn reply_with(&mut self, call: DeferredCall, len: usize, write: impl FnOnce(&[u8], &mut [u8])) {
        self.wake_sleeper();
        call.reply_at(&mut self.core, len, write);
    }

    /// Makes the endpoint publish its counters from now on, so that other threads can read them while it runs;
    /// [`StatsReader`] says when. Without a reader nothing is published.
    pub fn stats_reader(&mut self) -> StatsReader {
        self.has_audience = true;
        let reader = self.publisher.get_or_insert_with(Publisher::new).reader();
        self.publish();
        reader
    }

    /// Publishes the counters if anybody reads them.
    pub(super) fn publish(&mut self) {
        if let Some(publisher) = &mut self.publisher {
            publisher.publish(&self.core.shared.stats, &self.port.stats(), self.core.sessions());
        }
    }
}
