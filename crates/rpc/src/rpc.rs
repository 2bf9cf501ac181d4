//! The endpoint: the core, its port, its clock, and the loop that turns them.
//!
//! [`serving`] has the program's side of requests, [`clients`] its view of clients, and [`turn`] a turn of the loop.

mod clients;
mod endpoint_impl;
mod remote;
mod serving;
mod sessions;
mod sleep;
mod turn;

use std::any::Any;
use std::sync::Arc;

use sinew_fabric::{
    Address, Clock, Generator, PacketPort, PacketTx, PollPolicy, Poller, PortError, PortStats, Step, Waker,
};
use sinew_mem::{AllocError, MessageBuffer};
use sinew_wire::HEADER_LEN;

use crate::answer::AnswerQueue;
use crate::config::Config;
use crate::core::Core;
use crate::endpoint::handle::Inbox;
use crate::error::{CallError, Cause, ConnectError, EnqueueError, Error, Rejected};
use crate::events::SessionEvent;
use crate::handlers::Handlers;
use crate::lanes::LaneId;
use crate::live::Publisher;
use crate::names::{CallId, Completion, RequestType, SessionId, SessionSlots};
use crate::nexus::{EndpointInfo, Nexus};
use crate::options::{CallOptions, ConnectOptions};
use crate::reply::Reply;
use crate::sessions::Sessions;
use crate::shared::Link;
use crate::stats::Stats;
use remote::Remote;
use sleep::Sleep;

/// An endpoint: sessions, the port that carries them, and the loop. It belongs to the thread that made it.
///
/// Its methods, by purpose:
///
/// - **open sessions**: [`Self::connect`] waits, [`Self::begin_connect`] does not; [`Self::poll_event`] reports what
///   happens to them; [`Self::disconnect`] ends them.
/// - **call, on the fast path**: [`Self::alloc`] allocates buffers once; [`Self::enqueue_request`] takes them,
///   [`Self::poll_completion`] gives them back.
/// - **call, the simple way**: [`Self::call`].
/// - **keep many calls in flight**: a [`Channel`](crate::Channel) spreads them over as many sessions as that needs.
/// - **turn the loop**: [`Self::turn`] turns it once, [`Self::run_until`] and [`Self::try_run_until`] for long;
///   [`Self::wait`] sleeps.
/// - **sleep on several things**: [`Self::arm`] says whether to sleep and until when, [`Self::descriptor`] on what.
/// - **serve with state of the program**: [`Self::handle`] and [`Self::handle_burst`] register handlers of this
///   endpoint alone; [`Self::turn_with`] passes requests to a closure, and [`Self::poll_request`] returns them one by
///   one.
/// - **know the clients**: [`Self::poll_client_event`] reports who comes and leaves, [`Self::session_to`] gives the
///   session to call them back.
/// - **be reached from other threads**: [`Self::remote_handle`] accepts closures and calls from them.
/// - **be watched**: [`Self::stats`] here, [`Self::stats_reader`] from other threads.
///
/// Calls leave and requests are handled only while the loop turns. Using an endpoint from another thread does not
/// compile:
///
/// ```compile_fail,E0277
/// fn is_send<T: Send>() {}
/// fn check<P: sinew_fabric::PacketPort, C: sinew_fabric::Clock>() {
///     is_send::<sinew_rpc::Rpc<P, C>>();
/// }
/// ```
pub struct Rpc<P: PacketPort, C: Clock> {
    // The core comes first, and is dropped first: it holds buffers of the port's arena.
    core: Core,
    sessions: Sessions,
    handlers: Handlers,
    info: EndpointInfo,
    port: P,
    clock: C,
    poller: Poller,
    burst_max: usize,
    /// Whether the last turn found nothing to do.
    was_idle: bool,
    sleep: Sleep,
    /// Publishes the counters, once somebody reads them.
    publisher: Option<Publisher>,
    /// Whether there has ever been a [publisher](Self::publisher) or a [remote](Self::remote): one check per turn for
    /// both.
    has_audience: bool,
    /// Inbox in which other threads leave closures and calls for the endpoint.
    inbox: Arc<Inbox>,
    /// The endpoint's side of these, once there were any.
    remote: Option<Box<Remote>>,
}

/// A session's credits: the packets that it may have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionCredits {
    /// Credits not in use now. Without a call in flight these are all but the [owed](Self::owed) ones.
    pub left: u16,
    /// Credits of calls that were cancelled, or ended by their deadlines, while packets of theirs were in flight. They
    /// come back when the server has answered these packets, or after a time-out.
    pub owed: u16,
    /// Credits that the server granted.
    pub all: u16,
    /// Credits that congestion control withholds now.
    pub withheld: u16,
}

impl<P: PacketPort, C: Clock> Rpc<P, C> {
    /// Makes an endpoint of `nexus` on `port`.
    ///
    /// The clock and the generator are the endpoint's only sources of time and randomness. Session tokens come from the
    /// generator, so outside tests it must be one that nobody can predict.
    pub fn new(nexus: &Nexus, port: P, clock: C, generator: Box<dyn Generator>) -> Self {
        Self::numbered(nexus, 0, port, clock, generator)
    }

    /// As [`Self::new`], for one of several endpoints: `index` is the number that makers of handlers see
    /// ([`EndpointInfo::index`]).
    pub fn numbered(nexus: &Nexus, index: usize, port: P, clock: C, mut generator: Box<dyn Generator>) -> Self {
        let caps = port.caps();
        let config = nexus.config().clone();
        let link = Link {
            copy_len_max: caps.copy_len_max.max(HEADER_LEN),
            packet_len_max: caps.packet_len_max,
            overhead: caps.overhead,
            receive_packets: caps.receive_packets as u64,
            receive_packets_per_peer: caps.receive_packets_per_peer as u64,
        };
        let answer_queue = Arc::new(AnswerQueue::new(port.waker()));
        // Virtual time advances while threads sleep, and stands still while one spins.
        let is_virtual = port.waker().is_in_virtual_time();
        let poller = Poller::new(if is_virtual { PollPolicy::SLEEP } else { config.poller });
        let now_ns = clock.now_ns();
        let sessions = Sessions::new(&config, &mut *generator, now_ns);
        let inbox = Arc::new(Inbox::new(Arc::clone(&answer_queue), config.handle_queue_max));
        let core = Core::new(config, link, port.arena().clone(), generator, answer_queue, now_ns);
        let info = EndpointInfo {
            index,
            address: port.address(),
            arena: port.arena().clone(),
            data_per_packet: core.shared.data_per_packet_laid_out(),
            inbox: Arc::clone(&inbox) as Arc<dyn Any + Send + Sync>,
        };
        let (handlers, burst_max) = (nexus.handlers(&info), caps.burst_max);
        Self {
            core,
            sessions,
            handlers,
            info,
            port,
            clock,
            poller,
            burst_max,
            was_idle: true,
            sleep: Sleep::default(),
            publisher: None,
            has_audience: false,
            inbox,
            remote: None,
        }
    }

    /// Description of this endpoint, as makers of handlers get it.
    pub fn info(&self) -> &EndpointInfo {
        &self.info
    }

    /// Address at which others reach this endpoint.
    pub fn address(&self) -> Address {
        self.port.address()
    }

    /// The configuration that the endpoint runs with.
    pub fn config(&self) -> &Config {
        &self.core.shared.config
    }

    /// The port, for what only the port can tell.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// Counters of the endpoint.
    pub fn stats(&self) -> Stats {
        self.core.shared.stats
    }

    /// Counters of its port.
    pub fn port_stats(&self) -> PortStats {
        self.port.stats()
    }

    /// A waker that ends [`Self::wait`], or a sleep on the endpoint's descriptor, from any thread.
    pub fn waker(&self) -> Waker {
        self.port.waker()
    }

    /// Number of sessions of this endpoint, in both roles together.
    pub fn sessions(&self) -> usize {
        self.core.sessions()
    }

    /// Receive capacity committed to sessions, in packets.
    pub fn committed_packets(&self) -> u64 {
        self.core.shared.committed_packets
    }

    /// Allocates a message buffer of `len` bytes, whose contents are unspecified. This takes a lock: allocate up front
    /// and reuse.
    ///
    /// # Errors
    ///
    /// [`AllocError`].
    pub fn alloc(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        self.core.shared.alloc(len)
    }

    /// Makes the system back `len` bytes of message buffers, and all buffers made so far (these only from Linux 5.14
    /// on). An endpoint that must not wait for memory later calls this when it starts.
    pub fn back_buffers(&self, len: usize) {
        self.core.shared.arena.back(len);
    }

    /// Begins to open a session, without waiting. Calls can be enqueued at once, and leave when the session is open.
    /// [`Self::poll_event`] reports the outcome.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] when the address cannot be resolved or a limit of this endpoint is reached.
    pub fn begin_connect(&mut self, address: &Address) -> Result<SessionId, ConnectError> {
        self.begin_connect_with(address, ConnectOptions::new())
    }

    /// As [`Self::begin_connect`], with options: which lane hears of the session, and whether its server may call back.
    ///
    /// # Errors
    ///
    /// As for [`Self::begin_connect`], and [`ConnectError::Lane`].
    pub fn begin_connect_with(
        &mut self,
        address: &Address,
        options: ConnectOptions,
    ) -> Result<SessionId, ConnectError> {
        self.wake_sleeper();
        let peer = self.port.resolve(address)?;
        self.sessions.begin_turn(&mut self.core, self.clock.now_ns());
        let packet_len_max = self.port.packet_len_max(peer);
        self.sessions.begin_connect(&mut self.core, peer, &address.to_string(), packet_len_max, options)
    }

    /// Opens a session, turning the loop until it is open.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]: no such server, no answer, a refusal, or a limit of this endpoint.
    pub fn connect(&mut self, address: &str) -> Result<SessionId, ConnectError> {
        self.connect_with(address, ConnectOptions::new())
    }

    /// As [`Self::connect`], with options.
    ///
    /// # Errors
    ///
    /// As for [`Self::connect`], and [`ConnectError::Lane`].
    pub fn connect_with(&mut self, address: &str, options: ConnectOptions) -> Result<SessionId, ConnectError> {
        let address: Address = address.parse().map_err(PortError::from)?;
        let session = self.begin_connect_with(&address, options)?;
        let mut outcome = None;
        let turned = self.run_until(|rpc| {
            // Events of other sessions stay for their own users.
            let is_its = |event: &SessionEvent| event.session() == session;
            outcome = rpc.core.clients.lanes.take_event(options.lane, is_its);
            // A closure of another thread may have closed the lane, or taken the event.
            outcome.is_some() || rpc.session_slots(session) != Some(SessionSlots::default())
        });
        self.sleep.note_wake();
        if let Err(error) = turned {
            // The caller does not know this session: end it, and drop its event.
            self.sessions.disconnect(&mut self.core, session);
            self.core.clients.lanes.take_event(options.lane, |event| event.session() == session);
            return Err(error.into());
        }
        match outcome {
            Some(SessionEvent::Connected(_)) => Ok(session),
            Some(SessionEvent::ConnectFailed { error, .. }) => Err(error),
            Some(SessionEvent::Lost { peer, cause, .. }) => Err(ConnectError::Failed { peer, cause }),
            None if self.session_slots(session).is_some() => Ok(session),
            _ => match self.core.clients.lanes.check(options.lane) {
                Err(error @ EnqueueError::NoSuchLane) => Err(ConnectError::Lane(error)),
                _ => Err(ConnectError::Failed { peer: address.to_string().into(), cause: Cause::Disconnected }),
            },
        }
    }

    /// Opens a lane: a queue of completions and events for a client library or a future that shares this endpoint with
    /// others. A lane in which nothing happens costs nothing.
    pub fn open_lane(&mut self) -> LaneId {
        self.core.clients.lanes.open()
    }

    /// Closes a lane: its calls are cancelled, the sessions that were opened for it end, and whatever it has not taken
    /// is dropped, buffers included. Returns whether the lane existed; the main lane cannot be closed.
    pub fn close_lane(&mut self, lane: LaneId) -> bool {
        self.wake_sleeper();
        self.sessions.begin_turn(&mut self.core, self.clock.now_ns());
        let Core { shared, clients, .. } = &mut self.core;
        if !clients.lanes.close(lane) {
            return false;
        }
        clients.cancel_lane(shared, lane.index());
        for session in clients.sessions_of(lane) {
            self.sessions.disconnect(&mut self.core, session);
        }
        true
    }

    /// Returns the next lane, other than the main one, that got something since it was last returned here. Take
    /// everything that it has: it is returned again only when something new comes.
    pub fn poll_ready_lane(&mut self) -> Option<LaneId> {
        self.core.clients.lanes.poll_ready()
    }

    /// Returns the next finished call of a lane; `None` also if the lane is closed.
    pub fn poll_lane(&mut self, lane: LaneId) -> Option<Completion> {
        self.core.clients.lanes.poll(lane)
    }

    /// Returns the next session event of a lane.
    pub fn poll_lane_event(&mut self, lane: LaneId) -> Option<SessionEvent> {
        if lane == LaneId::MAIN {
            return self.poll_event();
        }
        self.core.clients.lanes.poll_event(lane)
    }

    /// Ends a session. Its calls complete with [`crate::Cause::Disconnected`], and [`SessionEvent::Disconnected`]
    /// follows. Returns whether the session existed.
    pub fn disconnect(&mut self, session: SessionId) -> bool {
        self.wake_sleeper();
        self.sessions.begin_turn(&mut self.core, self.clock.now_ns());
        self.sessions.disconnect(&mut self.core, session)
    }

    /// Returns the next session event of the main lane.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        let event = self.core.clients.lanes.poll_event(LaneId::MAIN)?;
        // The owner takes events, so those that still wait are worth a wake-up again.
        self.sleep.events_seen = 0;
        Some(event)
    }

    /// Hands a call to a session (nsdi19 3.1). Both buffers move in and come back with the completion; until then
    /// nobody can touch them. The response buffer is replaced by a larger one where the response needs it.
    ///
    /// Calls beyond the session's slots wait in a queue. `options` is either a number, which comes back as the
    /// completion's tag, or [`CallOptions`] with a deadline or a lane. The returned name can be passed to
    /// [`Self::cancel`].
    ///
    /// ```compile_fail,E0382
    /// # use sinew_fabric::{Clock, PacketPort};
    /// # fn f<P: PacketPort, C: Clock>(rpc: &mut sinew_rpc::Rpc<P, C>, session: sinew_rpc::SessionId) {
    /// let (request, response) = (rpc.alloc(32).unwrap(), rpc.alloc(32).unwrap());
    /// rpc.enqueue_request(session, sinew_rpc::RequestType::new(1), request, response, 0).unwrap();
    /// request[0] = 1; // the request is on its way
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejected`], with both buffers: no such session or lane, a request that is too large, foreign buffers, or a
    /// full queue.
    #[inline(always)]
    pub fn enqueue_request(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: MessageBuffer,
        response: MessageBuffer,
        options: impl Into<CallOptions>,
    ) -> Result<CallId, Rejected> {
        let options = options.into();
        if self.core.shared.enqueue_needs_work {
            self.on_enqueue();
        }
        if options.is_timed() {
            // Its time begins now, not at the start of the last turn.
            self.update_time();
        }
        self.core.enqueue(session, request_type, request, response, options)
    }

    #[cold]
    #[inline(never)]
    fn on_enqueue(&mut self) {
        self.wake_sleeper();
        // Packets paced from an old `now_ns` would all leave at once, if the last turn began a while ago.
        if self.core.shared.pacing.is_on() && (self.was_idle || self.core.shared.pacing.is_waiting()) {
            self.update_time();
        }
    }

    #[inline]
    fn update_time(&mut self) {
        self.core.shared.now_ns = self.clock.now_ns();
        self.was_idle = false;
    }

    /// Cancels a call: it completes with [`crate::Cause::Cancelled`]. The server is told, so that the holder of a
    /// deferred call can see that nobody waits ([`crate::DeferredCall::is_abandoned`]); that is a hint, and undoes
    /// nothing. Returns whether the call was still under way; if not, its completion has come or is about to.
    pub fn cancel(&mut self, call: CallId) -> bool {
        self.wake_sleeper();
        self.sessions.begin_turn(&mut self.core, self.clock.now_ns());
        let Core { shared, clients, .. } = &mut self.core;
        clients.cancel(shared, call)
    }

    /// The rate that congestion control allows a session, in bytes per second; `None` without congestion control, or if
    /// there is no such session.
    pub fn session_rate(&self, session: SessionId) -> Option<f64> {
        let index = self.core.clients.table.find(session.key())?;
        self.core.shared.pacing.rate(index)
    }

    /// Returns the next measured round trip, in ns, of those that
    /// [`Congestion::rtts_kept`](crate::Congestion::rtts_kept) keeps.
    pub fn poll_rtt_ns(&mut self) -> Option<u64> {
        self.core.shared.pacing.poll_rtt_ns()
    }

    /// Prefetches a session's state for a call that is about to be enqueued. With thousands of sessions that state is
    /// not in the caches, and prefetching lets the reads for several calls overlap (nsdi19 6.3). This is a hint; a
    /// session that has ended does no harm.
    #[inline]
    pub fn prefetch_session(&self, session: SessionId) {
        // Slots are used from the first one on.
        self.core.clients.prefetch(&self.core.shared, session.key(), 0);
    }

    /// Prefetches the state that a packet will need, for a port's owner who knows the packet before it is received.
    /// This is a hint; bytes that are no packet of ours do no harm.
    #[inline]
    pub fn prefetch_packet(&self, packet: &[u8]) {
        self.core.prefetch_session_of(packet);
    }

    /// Prefetches the buffers of a packet's call, some time after [`Self::prefetch_packet`].
    #[inline]
    pub fn prefetch_buffers(&self, packet: &[u8]) {
        self.core.prefetch_buffers_of(packet);
    }

    /// Returns the next finished call of the main lane.
    #[inline(always)]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.core.clients.lanes.main.pop()
    }

    /// Makes a call and waits for the response, at most [`Config::call_timeout_ns`]. It allocates;
    /// [`Self::enqueue_request`] is the fast path.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] says which peer, why, and whether the request may have run.
    pub fn call(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: impl AsRef<[u8]>,
    ) -> Result<Reply, Error> {
        self.call_within(session, request_type, request, self.config().call_timeout_ns)
    }

    /// As [`Self::call`], but waits for at most `timeout_ns`.
    ///
    /// # Errors
    ///
    /// As for [`Self::call`].
    pub fn call_within(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: impl AsRef<[u8]>,
        timeout_ns: u64,
    ) -> Result<Reply, Error> {
        let mut buffer = self.alloc(request.as_ref().len())?;
        buffer.fill(request.as_ref())?;
        let response = self.alloc(1024)?;
        self.sessions.begin_turn(&mut self.core, self.clock.now_ns());
        let options = CallOptions::tag(0).lane(LaneId::BLOCKING).timeout_ns(timeout_ns);
        let call = self.core.enqueue(session, request_type, buffer, response, options)?;
        let completion = loop {
            let busy = self.turn();
            if let Some(completion) = self.core.clients.lanes.poll(LaneId::BLOCKING) {
                if completion.id() == call {
                    break completion;
                }
                self.set_aside(completion);
            }
            // Other calls' completions stay until they are polled; they must not keep us from sleeping here.
            if self.poller.step(self.core.shared.now_ns, busy) == Step::Block && !self.core.shared.has_output() {
                let own = self.sessions.next_deadline_ns(&self.core);
                let timeout_ns = own.map(|own| own.saturating_sub(self.core.shared.now_ns).max(1));
                self.sleep.note_wake();
                if let Err(error) = self.sleep_on_port(self.core.shared.now_ns, timeout_ns) {
                    let Core { shared, clients, .. } = &mut self.core;
                    clients.cancel(shared, call);
                    // Takes its buffers back from the port too, as nobody will wait for its completion.
                    clients.reclaim(&mut shared.stats, self.port.split().1);
                    if let Some(other) = clients.lanes.poll(LaneId::BLOCKING).filter(|over| over.id() != call) {
                        self.set_aside(other);
                    }
                    return Err(error.into());
                }
            }
        };
        completion.result.map_err(|error: CallError| Error::Call(error))?;
        Ok(Reply(completion.response))
    }
}

impl<P: PacketPort, C: Clock> Drop for Rpc<P, C> {
    fn drop(&mut self) {
        // Peers should not need a time-out to learn that we are gone.
        self.sessions.begin_turn(&mut self.core, self.clock.now_ns());
        self.sessions.close(&mut self.core);
        let (_, tx) = self.port.split();
        self.core.transmit(tx);
        tx.submit();
        tx.flush();
        self.end_remote_tasks();
        self.core.servers.answer_queue.close();
        self.publish();
    }
}
