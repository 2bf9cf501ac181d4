//! Requests in the hands of the program that turns the endpoint: handlers that share its state, requests lent to a closure of its own,
//! requests that it takes when it likes. And the counters, for those who watch.

use sinew_fabric::{Clock, PacketPort};

use super::Rpc;
use crate::call::{BurstCalls, Call, DeferredCall};
use crate::handlers::{Handler, WithRest};
use crate::live::{Publisher, StatsReader};
use crate::names::RequestType;
use crate::nexus::NexusError;
use crate::receive::take_burst;

impl<P: PacketPort, C: Clock> Rpc<P, C> {
    /// Handles requests of a type with a handler of this endpoint's own. It stays on this thread: what it shares with the program, it can share
    /// by `Rc`. To be called before clients ask, since until then they hear that there is no handler.
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

    /// As [`Self::handle`], of all requests of a type in a received burst at once: see [`crate::NexusBuilder::handle_burst`].
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

    /// As [`Self::turn`], and hands `take` the requests of all types that no handler is registered for, where they lie. So they can be handled with
    /// state that the caller borrows:
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
    /// Whatever else turns the loop ([`Self::turn`], [`Self::call`], [`Self::connect`], [`Self::run_until`]) does not know `take`, and answers such
    /// requests with [`crate::Cause::NoHandler`]: a program that serves like this begins its own calls and sessions
    /// without waiting for them. When `take` panics, that is as when a handler does: the call fails, the others go on.
    #[inline]
    pub fn turn_with(&mut self, mut take: impl FnMut(Call<'_>)) -> bool {
        self.turn_taking(|rpc, burst| {
            let mut service = WithRest { handlers: rpc.handlers, take: &mut take };
            take_burst(rpc.core, rpc.sessions, &mut service, burst, rpc.clock);
        })
    }

    /// The next request of a type that is [polled](crate::NexusBuilder::handle_polled), in the order in which they came. Answer it with
    /// [`Self::reply`], or as any [`DeferredCall`].
    ///
    /// It is a copy, in a buffer of the endpoint's arena that goes back there with the answer: in the steady state nothing is allocated from the heap.
    /// Until it is answered it counts for its client's share of the memory ([`crate::Config::peer_share_percent`]); while
    /// [`crate::Config::polled_requests_max`] wait, further ones are answered [`crate::Cause::ServerBusy`]. Requests whose client has gone or given up
    /// are passed over.
    pub fn poll_request(&mut self) -> Option<DeferredCall> {
        self.handlers.backlog.next(&self.core)
    }

    /// Answers a call that was kept, with these bytes, on its endpoint's own thread: without the lock and the wake-up of
    /// [`DeferredCall::reply`], and into the buffer that the call's slot keeps for answers. A call of another endpoint is answered there.
    pub fn reply(&mut self, call: DeferredCall, response: &[u8]) {
        self.reply_with(call, response.len(), |_request, target| target.copy_from_slice(response));
    }

    /// As [`Self::reply`], with `len` bytes that `write` fills in from the request. They are unspecified before.
    pub fn reply_with(&mut self, call: DeferredCall, len: usize, write: impl FnOnce(&[u8], &mut [u8])) {
        self.wake_sleeper();
        call.reply_at(&mut self.core, len, write);
    }

    /// Has the endpoint publish its counters from now on, for other threads to read while it runs; see [`StatsReader`] for when. Without
    /// a reader nothing is published.
    pub fn stats_reader(&mut self) -> StatsReader {
        self.has_audience = true;
        let reader = self.publisher.get_or_insert_with(Publisher::new).reader();
        self.publish();
        reader
    }

    /// Publishes the counters, if anybody reads them.
    pub(super) fn publish(&mut self) {
        if let Some(publisher) = &mut self.publisher {
            publisher.publish(&self.core.shared.stats, &self.port.stats(), self.core.sessions());
        }
    }
}
