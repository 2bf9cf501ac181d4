//! The endpoint: the core, its port, its clock, and the loop that turns them.
//!
//! What a program does with the requests that come to it is in [`serving`], what it knows of its clients in [`clients`], a
//! turn of the loop in [`turn`].

mod clients;
mod faces;
mod remote;
mod serving;
mod sessions;
mod sleep;
mod turn;

use std::any::Any;
use std::sync::Arc;

use sinew_fabric::{
    Address, Clock, Generator, PacketPort, PacketTx, Poller, PollerConfig, PortError, PortStats, Step, Waker,
};
use sinew_mem::{AllocError, MessageBuffer};
use sinew_wire::HEADER_LEN;

use crate::answer::Returns;
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
/// The methods, by what they are for:
///
/// - **open sessions**: [`Self::connect`] waits, [`Self::begin_connect`] does not; [`Self::poll_event`] tells what became of
///   them; [`Self::disconnect`] ends them.
/// - **call, the quick way**: [`Self::alloc`] buffers once; [`Self::enqueue_request`] moves them in,
///   [`Self::poll_completion`] hands them back.
/// - **call, the simple way**: [`Self::call`].
/// - **keep many calls in flight**: a [`Channel`](crate::Channel) spreads them over as many sessions as that needs.
/// - **turn the loop**: [`Self::turn`] once, [`Self::run_until`] and [`Self::try_run_until`] for long; [`Self::wait`] sleeps.
/// - **sleep on more than one thing**: [`Self::arm`] says whether and until when, [`Self::descriptor`] on what.
/// - **serve with state of one's own**: [`Self::handle`] and [`Self::handle_burst`] for handlers that belong to this endpoint;
///   [`Self::turn_with`] hands requests to a closure, [`Self::poll_request`] to whoever asks.
/// - **know one's clients**: [`Self::poll_client_event`] tells who comes and goes, [`Self::session_to`] how to call them.
/// - **be reached from other threads**: [`Self::remote_handle`] takes closures and calls of theirs.
/// - **be watched**: [`Self::stats`] here, [`Self::stats_reader`] from other threads.
///
/// Calls go out and come in, and requests are handled, only while the loop turns. Using an endpoint from another thread does
/// not compile:
///
/// ```compile_fail,E0277
/// fn is_send<T: Send>() {}
/// fn check<P: sinew_fabric::PacketPort, C: sinew_fabric::Clock>() {
///     is_send::<sinew_rpc::Rpc<P, C>>();
/// }
/// ```
pub struct Rpc<P: PacketPort, C: Clock> {
    // The core first: it holds buffers of the port's arena.
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
    /// Where the counters go, once somebody reads them.
    publisher: Option<Publisher>,
    /// Whether there is a [publisher](Self::publisher) or a [remote](Self::remote), from the first on: one look a turn for both.
    has_audience: bool,
    /// Where other threads leave what they want of the endpoint.
    inbox: Arc<Inbox>,
    /// What they wanted, once they did.
    remote: Option<Box<Remote>>,
}

/// A session's credits: packets that it may have on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionCredits {
    /// Not used now. Without a call in flight these are all, but for those that are [owed](Self::owed).
    pub left: u16,
    /// Of packets of calls that were cancelled, or ended by their deadlines, and are still on their way: they are back when the server has answered
    /// them, or a time-out passes.
    pub owed: u16,
    /// As granted.
    pub all: u16,
    /// Those that congestion control lets it not use now.
    pub withheld: u16,
}

impl<P: PacketPort, C: Clock> Rpc<P, C> {
    /// An endpoint of `nexus` on `port`.
    ///
    /// The clock and the generator are the endpoint's only sources of time and chance. Session tokens come from the
    /// generator: outside tests it must be one that nobody can foresee.
    pub fn new(nexus: &Nexus, port: P, clock: C, generator: Box<dyn Generator>) -> Self {
        Self::numbered(nexus, 0, port, clock, generator)
    }

    /// As [`Self::new`], for one of several endpoints: makers of handlers are told its number ([`EndpointInfo::index`]).
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
        let returns = Arc::new(Returns::new(port.waker()));
        // Virtual time passes while somebody sleeps, and never for who spins.
        let is_virtual = port.waker().is_in_virtual_time();
        let poller = Poller::new(if is_virtual { PollerConfig::SLEEP } else { config.poller });
        let now_ns = clock.now_ns();
        let sessions = Sessions::new(&config, &mut *generator, now_ns);
        let inbox = Arc::new(Inbox::new(Arc::clone(&returns), config.handle_queue_max));
        let core = Core::new(config, link, port.arena().clone(), generator, returns, now_ns);
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

    /// What makers of handlers are told of this endpoint.
    pub fn info(&self) -> &EndpointInfo {
        &self.info
    }

    /// Where others reach this endpoint.
    pub fn address(&self) -> Address {
        self.port.address()
    }

    /// The limits it runs with.
    pub fn config(&self) -> &Config {
        &self.core.shared.config
    }

    /// The port, for what only it knows.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// What the endpoint counted.
    pub fn stats(&self) -> Stats {
        self.core.shared.stats
    }

    /// What its port counted.
    pub fn port_stats(&self) -> PortStats {
        self.port.stats()
    }

    /// Wakes the endpoint's thread out of [`Self::wait`], or whoever sleeps on its descriptor, from any thread.
    pub fn waker(&self) -> Waker {
        self.port.waker()
    }

    /// Sessions of this endpoint, in both roles.
    pub fn sessions(&self) -> usize {
        self.core.sessions()
    }

    /// Receive capacity committed to sessions, in packets.
    pub fn committed_packets(&self) -> u64 {
        self.core.shared.committed_packets
    }

    /// Makes a message buffer of `len` bytes, whose contents are unspecified. Takes a lock: allocate up front and reuse.
    ///
    /// # Errors
    ///
    /// [`AllocError`].
    pub fn alloc(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        self.core.shared.alloc(len)
    }

    /// Begins to open a session, without waiting. Calls can be enqueued at once; they leave when the session is open.
    /// [`Self::poll_event`] tells what becomes of it.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] when the name leads nowhere or a limit of this endpoint is reached.
    pub fn begin_connect(&mut self, address: &Address) -> Result<SessionId, ConnectError> {
        self.begin_connect_with(address, ConnectOptions::new())
    }

    /// As [`Self::begin_connect`], with options: who hears of the session, and whether its server may call back.
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
    /// [`ConnectError`]: no such server, no answer, refused, or a limit of this endpoint.
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
            // Events of other sessions stay for those whom they are for.
            let is_its = |event: &SessionEvent| event.session() == session;
            outcome = rpc.core.clients.lanes.take_event(options.lane, is_its);
            // A closure of another thread may have closed the lane, or taken the event.
            outcome.is_some() || rpc.session_slots(session) != Some(SessionSlots::default())
        });
        self.sleep.may_have_ended();
        if let Err(error) = turned {
            // Nobody knows its name, so there is nobody to end it or to hear of it.
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

    /// Opens a lane: completions and events of its own, for a client library or a future that shares this endpoint with others. A lane in
    /// which nothing happens costs nothing.
    pub fn open_lane(&mut self) -> LaneId {
        self.core.clients.lanes.open()
    }

    /// Closes a lane: its calls are cancelled, the sessions that were opened for it end, and what it has not taken is dropped, buffers
    /// included. Returns whether there was such a lane; the main lane is never closed.
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

    /// The next lane, but for the main one, that got something since it was last told here. Take all that it has: it is told again only when
    /// something new comes.
    pub fn poll_ready_lane(&mut self) -> Option<LaneId> {
        self.core.clients.lanes.poll_ready()
    }

    /// The next call of a lane that is over; none of a lane that is closed.
    pub fn poll_lane(&mut self, lane: LaneId) -> Option<Completion> {
        self.core.clients.lanes.poll(lane)
    }

    /// The next thing that happened to a session of a lane.
    pub fn poll_lane_event(&mut self, lane: LaneId) -> Option<SessionEvent> {
        if lane == LaneId::MAIN {
            return self.poll_event();
        }
        self.core.clients.lanes.poll_event(lane)
    }

    /// Ends a session. Its calls complete with [`crate::Cause::Disconnected`]; [`SessionEvent::Disconnected`] follows. Returns whether
    /// there was such a session.
    pub fn disconnect(&mut self, session: SessionId) -> bool {
        self.wake_sleeper();
        self.sessions.begin_turn(&mut self.core, self.clock.now_ns());
        self.sessions.disconnect(&mut self.core, session)
    }

    /// The next thing that happened to a session.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        let event = self.core.clients.lanes.poll_event(LaneId::MAIN)?;
        // Somebody takes them: those behind it are news again.
        self.sleep.events_told = 0;
        Some(event)
    }

    /// Hands a call to a session (nsdi19 3.1). Both buffers move in, and come back with the completion: until then nobody can
    /// touch them. The response buffer is replaced by a larger one where the response needs it.
    ///
    /// Calls past the session's slots wait in a queue. `options` are a number, which comes back as the completion's tag, or
    /// [`CallOptions`] with a deadline or a lane. The name that is returned is good for [`Self::cancel`].
    ///
    /// ```compile_fail,E0382
    /// # fn f<P: sinew_fabric::PacketPort, C: sinew_fabric::Clock>(rpc: &mut sinew_rpc::Rpc<P, C>, session: sinew_rpc::SessionId) {
    /// let (request, response) = (rpc.alloc(32).unwrap(), rpc.alloc(32).unwrap());
    /// rpc.enqueue_request(session, sinew_rpc::RequestType::new(1), request, response, 0).unwrap();
    /// request[0] = 1; // the request is on its way
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejected`], with both buffers: no such session or lane, too large, foreign buffers, a full queue.
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
        if self.core.shared.heeds_calls {
            self.heed_call();
        }
        if options.is_timed() {
            // Its time begins now, and not with the last turn.
            self.look_at_the_clock();
        }
        self.core.enqueue(session, request_type, request, response, options)
    }

    #[cold]
    #[inline(never)]
    fn heed_call(&mut self) {
        self.wake_sleeper();
        // Packets that are spaced in time from then on would leave all at once if the last turn began a while ago.
        if self.core.shared.pacing.is_on() && (self.was_idle || self.core.shared.pacing.is_waiting()) {
            self.look_at_the_clock();
        }
    }

    #[inline]
    fn look_at_the_clock(&mut self) {
        self.core.shared.now_ns = self.clock.now_ns();
        self.was_idle = false;
    }

    /// Cancels a call: it completes with [`crate::Cause::Cancelled`]. The server is told, so that a deferred call can see that nobody waits
    /// ([`crate::DeferredCall::is_abandoned`]); that is a hint, and takes nothing back that ran. Returns whether the call was there: else it is
    /// over, and its completion has come or is about to.
    pub fn cancel(&mut self, call: CallId) -> bool {
        self.wake_sleeper();
        self.sessions.begin_turn(&mut self.core, self.clock.now_ns());
        let Core { shared, clients, .. } = &mut self.core;
        clients.cancel(shared, call)
    }

    /// The rate that congestion control lets a session have, in bytes per second; none without it, or without such a session.
    pub fn session_rate(&self, session: SessionId) -> Option<f64> {
        let index = self.core.clients.table.find(session.key())?;
        self.core.shared.pacing.rate(index)
    }

    /// The next round trip that was measured, in nanoseconds, of those that [`Congestion::rtts_kept`](crate::Congestion::rtts_kept) keeps.
    pub fn poll_rtt_ns(&mut self) -> Option<u64> {
        self.core.shared.pacing.poll_rtt_ns()
    }

    /// Starts to bring a session's state near, for a call that is about to be enqueued: with thousands of sessions it lies in
    /// memory, and the reads of several calls' sessions then overlap (nsdi19 6.3). A hint; a session that is gone does no harm.
    #[inline]
    pub fn prefetch_session(&self, session: SessionId) {
        // Slots are used from the first on.
        self.core.clients.table.prefetch(session.key(), 0);
    }

    /// The next call that is over.
    #[inline(always)]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.core.clients.lanes.main.pop()
    }

    /// Calls and waits for the response, at most [`Config::call_timeout_ns`]. Allocates; for the quick way see
    /// [`Self::enqueue_request`].
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

    /// As [`Self::call`], for at most so many nanoseconds.
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
        let options = CallOptions::tag(0).lane(LaneId::WAITING).timeout_ns(timeout_ns);
        let call = self.core.enqueue(session, request_type, buffer, response, options)?;
        let completion = loop {
            let busy = self.turn();
            if let Some(completion) = self.core.clients.lanes.poll(LaneId::WAITING) {
                if completion.id() == call {
                    break completion;
                }
                self.set_aside(completion);
            }
            // Other calls' completions wait for their own poll; they must not keep us from sleeping here.
            if self.poller.step(self.core.shared.now_ns, busy) == Step::Block && !self.core.shared.has_output() {
                let own = self.sessions.next_deadline_ns(&self.core);
                let timeout_ns = own.map(|own| own.saturating_sub(self.core.shared.now_ns).max(1));
                self.sleep.may_have_ended();
                if let Err(error) = self.sleep_on_port(self.core.shared.now_ns, timeout_ns) {
                    let Core { shared, clients, .. } = &mut self.core;
                    clients.cancel(shared, call);
                    // Its buffers are free, also of the port, and nobody waits for its completion.
                    clients.reclaim(&mut shared.stats, self.port.split().1);
                    if let Some(other) = clients.lanes.poll(LaneId::WAITING).filter(|over| over.id() != call) {
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
        // Peers need not wait for a time-out to learn that we are gone.
        self.sessions.begin_turn(&mut self.core, self.clock.now_ns());
        self.sessions.close(&mut self.core);
        let (_, tx) = self.port.split();
        self.core.transmit(tx);
        tx.submit();
        tx.flush();
        self.end_handed();
        self.core.servers.returns.close();
        self.publish();
    }
}
