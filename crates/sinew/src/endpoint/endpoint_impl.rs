//! [`Rpc`] as an [`Endpoint`], for libraries.

use sinew_fabric::{Address, Armed, Descriptor, PortStats, Readiness, Waker};
use sinew_mem::{AllocError, MessageBuffer};
use sinew_rpc::{
    BurstCalls, Call, CallBackError, CallId, CallOptions, ClientEvent, ClientId, Completion, Config, ConnectError,
    ConnectOptions, DeferredCall, Endpoint, EndpointInfo, LaneId, NexusError, Rejected, Reply, RequestType,
    SessionEvent, SessionId, SessionSlots, Stats, StatsReader,
};

use super::{FabricEndpoint, Rpc};

/// Errors are those of the RPC layer.
impl Endpoint for Rpc {
    fn address(&self) -> Address {
        self.address()
    }

    fn config(&self) -> &Config {
        self.config()
    }

    fn stats(&self) -> Stats {
        self.stats()
    }

    fn port_stats(&self) -> PortStats {
        self.port_stats()
    }

    fn waker(&self) -> Waker {
        self.waker()
    }

    fn sessions(&self) -> usize {
        self.sessions()
    }

    #[inline]
    fn alloc(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        self.alloc(len)
    }

    fn back_buffers(&self, len: usize) {
        self.back_buffers(len);
    }

    fn begin_connect(&mut self, address: &Address) -> Result<SessionId, ConnectError> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.begin_connect(address))
    }

    fn connect(&mut self, address: &str) -> Result<SessionId, ConnectError> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.connect(address))
    }

    fn connect_with(&mut self, address: &str, options: ConnectOptions) -> Result<SessionId, ConnectError> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.connect_with(address, options))
    }

    fn disconnect(&mut self, session: SessionId) -> bool {
        self.disconnect(session)
    }

    fn poll_event(&mut self) -> Option<SessionEvent> {
        self.poll_event()
    }

    fn session_to(&self, client: ClientId) -> Result<SessionId, CallBackError> {
        self.session_to(client)
    }

    fn poll_client_event(&mut self) -> Option<ClientEvent> {
        self.poll_client_event()
    }

    fn dismiss(&mut self, client: ClientId) -> bool {
        self.dismiss(client)
    }

    #[inline]
    fn session_slots(&self, session: SessionId) -> Option<SessionSlots> {
        self.session_slots(session)
    }

    fn take_session_event(&mut self, lane: LaneId, session: SessionId) -> Option<SessionEvent> {
        self.take_session_event(lane, session)
    }

    #[inline]
    fn enqueue_request(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: MessageBuffer,
        response: MessageBuffer,
        options: CallOptions,
    ) -> Result<CallId, Rejected> {
        self.enqueue_request(session, request_type, request, response, options)
    }

    fn cancel(&mut self, call: CallId) -> bool {
        self.cancel(call)
    }

    #[inline]
    fn prefetch_session(&self, session: SessionId) {
        self.prefetch_session(session);
    }

    #[inline]
    fn poll_completion(&mut self) -> Option<Completion> {
        self.poll_completion()
    }

    #[inline]
    fn turn(&mut self) -> bool {
        self.turn()
    }

    fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<bool> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.wait(timeout_ns))
    }

    #[inline]
    fn turn_or_wait(&mut self) -> std::io::Result<bool> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.turn_or_wait())
    }

    fn call(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: &[u8],
    ) -> Result<Reply, sinew_rpc::Error> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.call(session, request_type, request))
    }

    fn info(&self) -> &EndpointInfo {
        self.info()
    }

    fn now_ns(&self) -> u64 {
        self.now_ns()
    }

    fn stats_reader(&mut self) -> StatsReader {
        self.stats_reader()
    }

    fn begin_connect_with(&mut self, address: &Address, options: ConnectOptions) -> Result<SessionId, ConnectError> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.begin_connect_with(address, options))
    }

    fn open_lane(&mut self) -> LaneId {
        self.open_lane()
    }

    fn close_lane(&mut self, lane: LaneId) -> bool {
        self.close_lane(lane)
    }

    fn poll_ready_lane(&mut self) -> Option<LaneId> {
        self.poll_ready_lane()
    }

    fn poll_lane(&mut self, lane: LaneId) -> Option<Completion> {
        self.poll_lane(lane)
    }

    fn poll_lane_event(&mut self, lane: LaneId) -> Option<SessionEvent> {
        self.poll_lane_event(lane)
    }

    fn end_waiting(&mut self) {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.end_waiting());
    }

    fn descriptor(&self) -> Option<Descriptor> {
        self.descriptor()
    }

    fn disarm(&mut self) -> bool {
        self.disarm()
    }

    fn poll_request(&mut self) -> Option<DeferredCall> {
        self.poll_request()
    }

    fn reply(&mut self, call: DeferredCall, response: &[u8]) {
        self.reply(call, response);
    }

    fn turn_with(&mut self, take: &mut dyn FnMut(Call<'_>)) -> bool {
        self.turn_with(take)
    }

    fn reply_with(&mut self, call: DeferredCall, len: usize, write: &mut dyn FnMut(&[u8], &mut [u8])) {
        self.reply_with(call, len, write);
    }

    fn arm(&mut self) -> std::io::Result<Armed> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.arm())
    }

    fn rest(&mut self, busy: bool, timeout_ns: Option<u64>) -> std::io::Result<()> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.rest(busy, timeout_ns))
    }

    fn rest_beside(
        &mut self,
        busy: bool,
        beside: &mut [&mut dyn Readiness],
        timeout_ns: Option<u64>,
    ) -> std::io::Result<()> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.rest_beside(busy, beside, timeout_ns))
    }

    fn call_within(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: &[u8],
        timeout_ns: u64,
    ) -> Result<Reply, sinew_rpc::Error> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.call_within(session, request_type, request, timeout_ns))
    }

    fn handle(&mut self, request_type: RequestType, handler: Box<dyn FnMut(Call<'_>)>) -> Result<(), NexusError> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.handle(request_type, handler))
    }

    fn handle_burst(
        &mut self,
        request_type: RequestType,
        handler: Box<dyn FnMut(&mut BurstCalls<'_, '_>)>,
    ) -> Result<(), NexusError> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.handle_burst(request_type, handler))
    }

    fn handle_polled(&mut self, request_type: RequestType) -> Result<(), NexusError> {
        for_each_fabric!(&mut self.endpoint, rpc => rpc.handle_polled(request_type))
    }
}
