//! The endpoint: the core, its port, its clock, and the loop that turns them.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use sinew_fabric::{
    Address, Clock, Generator, PacketPort, PacketRx, PacketTx, Poller, PortError, PortEvent, PortStats, RxBurst, Step,
    Waker,
};
use sinew_mem::{AllocError, MessageBuffer};
use sinew_wire::HEADER_LEN;

use crate::answer::Returns;
use crate::client::{ClientState, NewCall};
use crate::config::Config;
use crate::core::Core;
use crate::error::{CallError, Cause, ConnectError, Error, Rejected};
use crate::names::{Completion, RequestType, SessionId};
use crate::nexus::{Handlers, Nexus};
use crate::receive::take_burst;
use crate::sessions::{SessionEvent, Sessions};
use crate::shared::Link;
use crate::stats::Stats;

/// The lane of the calls that [`Rpc::call`] makes, by which it knows their completions.
const WAITING_LANE: u8 = 1;

/// An endpoint: sessions, the port that carries them, and the loop. It belongs to the thread that made it.
///
/// The methods, by what they are for:
///
/// - **open sessions**: [`Self::connect`] waits, [`Self::begin_connect`] does not; [`Self::poll_event`] tells what became of
///   them; [`Self::disconnect`] ends them.
/// - **call, the quick way**: [`Self::alloc`] buffers once; [`Self::enqueue_request`] moves them in,
///   [`Self::poll_completion`] hands them back.
/// - **call, the simple way**: [`Self::call`].
/// - **turn the loop**: [`Self::turn`] once, [`Self::run_until`] for long; [`Self::wait`] sleeps.
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
    port: P,
    clock: C,
    poller: Poller,
    burst_max: usize,
    /// The tag of the last call of [`Self::call`].
    waited_for: u64,
    /// Whether the last turn found nothing to do.
    was_idle: bool,
}

/// A session's credits: packets that it may have on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionCredits {
    /// Not used now. Without a call in flight these are all.
    pub left: u16,
    /// As granted.
    pub all: u16,
    /// Those that congestion control lets it not use now.
    pub withheld: u16,
}

/// Full bursts that one turn takes in before it answers: where a send costs the same for one packet and for many, as in a
/// kernel's sockets, answers to several bursts in one send are worth their wait.
const BURSTS_PER_TURN: usize = 8;

/// A response, as [`Rpc::call`] returns it: bytes by `Deref`, readable text by `Display`.
#[derive(Debug)]
pub struct Reply(MessageBuffer);

impl Deref for Reply {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Reply {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl<P: PacketPort, C: Clock> Rpc<P, C> {
    /// An endpoint of `nexus` on `port`.
    ///
    /// The clock and the generator are the endpoint's only sources of time and chance. Session tokens come from the
    /// generator: outside tests it must be one that nobody can foresee.
    pub fn new(nexus: &Nexus, port: P, clock: C, mut generator: Box<dyn Generator>) -> Self {
        let caps = port.caps();
        let config = nexus.config().clone();
        let link = Link {
            copy_len_max: caps.copy_len_max.max(HEADER_LEN),
            packet_len_max: caps.packet_len_max,
            receive_packets: caps.receive_packets as u64,
            receive_packets_per_peer: caps.receive_packets_per_peer as u64,
        };
        let returns = Arc::new(Returns::new(port.waker()));
        let poller = Poller::new(config.poller);
        let now_ns = clock.now_ns();
        let sessions = Sessions::new(&config, &mut *generator, now_ns);
        let core = Core::new(config, link, port.arena().clone(), generator, returns, now_ns);
        let (handlers, burst_max) = (nexus.handlers(), caps.burst_max);
        Self { core, sessions, handlers, port, clock, poller, burst_max, waited_for: 0, was_idle: true }
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

    /// Wakes the endpoint's thread out of [`Self::wait`], from any thread.
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
        let peer = self.port.resolve(address)?;
        self.sessions.begin_turn(&mut self.core, self.clock.now_ns());
        let packet_len_max = self.port.packet_len_max(peer);
        self.sessions.begin_connect(&mut self.core, peer, &address.to_string(), packet_len_max)
    }

    /// Opens a session, turning the loop until it is open.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]: no such server, no answer, refused, or a limit of this endpoint.
    pub fn connect(&mut self, address: &str) -> Result<SessionId, ConnectError> {
        let address: Address = address.parse().map_err(PortError::from)?;
        let session = self.begin_connect(&address)?;
        let mut outcome = None;
        // Events of other sessions stay for `poll_event`.
        let mut others = Vec::new();
        let turned = self.run_until(|rpc| {
            while let Some(event) = rpc.sessions.events.pop_front() {
                match event {
                    SessionEvent::Connected(id) if id == session => outcome = Some(Ok(session)),
                    SessionEvent::ConnectFailed { session: id, error } if id == session => {
                        outcome = Some(Err(error));
                    }
                    other => others.push(other),
                }
            }
            outcome.is_some()
        });
        self.sessions.events.extend(others);
        if let Err(error) = turned {
            // Nobody knows its name, so there is nobody to end it or to hear of it.
            self.sessions.disconnect(&mut self.core, session);
            self.sessions.events.retain(|event| !matches!(event, SessionEvent::Disconnected(id) if *id == session));
            return Err(error.into());
        }
        outcome.expect("the loop ends with an outcome")
    }

    /// Ends a session. Its calls complete with [`Cause::Disconnected`]; [`SessionEvent::Disconnected`] follows. Returns whether
    /// there was such a session.
    pub fn disconnect(&mut self, session: SessionId) -> bool {
        self.sessions.disconnect(&mut self.core, session)
    }

    /// The next thing that happened to a session.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.sessions.events.pop_front()
    }

    /// Hands a call to a session (nsdi19 3.1). Both buffers move in, and come back with the completion: until then nobody can
    /// touch them. The response buffer is replaced by a larger one where the response needs it.
    ///
    /// Calls past the session's slots wait in a queue. `tag` comes back with the completion and means nothing here.
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
    /// [`Rejected`], with both buffers: no such session, too large, foreign buffers, a full queue.
    #[inline(always)]
    pub fn enqueue_request(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: MessageBuffer,
        response: MessageBuffer,
        tag: u64,
    ) -> Result<(), Rejected> {
        if self.core.shared.pacing.is_on() {
            self.look_at_the_clock();
        }
        let call = NewCall { request_type: request_type.number(), lane: 0, tag };
        self.core.clients.enqueue(&mut self.core.shared, session, call, request, response)
    }

    /// Where packets are spaced in time, and the last turn began a while ago: those spaced from then on would leave all at once.
    #[cold]
    fn look_at_the_clock(&mut self) {
        if self.was_idle || self.core.shared.pacing.is_waiting() {
            self.core.shared.now_ns = self.clock.now_ns();
            self.was_idle = false;
        }
    }

    /// Cancels the calls of a session with this tag; each completes with [`Cause::Cancelled`]. Returns how many there were.
    pub fn cancel(&mut self, session: SessionId, tag: u64) -> usize {
        let Core { shared, clients, .. } = &mut self.core;
        clients.cancel(shared, session, Cause::Cancelled, |lane, of_call| lane == 0 && of_call == tag)
    }

    /// The rate that congestion control lets a session have, in bytes per second; none without it, or without such a session.
    pub fn session_rate(&self, session: SessionId) -> Option<f64> {
        let index = self.core.clients.table.find(session.key())?;
        self.core.shared.pacing.rate(index)
    }

    /// The credits of a session of ours that is open; none of another.
    pub fn session_credits(&self, session: SessionId) -> Option<SessionCredits> {
        let index = self.core.clients.table.find(session.key())?;
        let entry = &self.core.clients.table.entries[index];
        if entry.state != ClientState::Open {
            return None;
        }
        let withheld = entry.limits.withheld.min(entry.credits_max);
        Some(SessionCredits { left: entry.credits, all: entry.credits_max, withheld })
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
        self.core.clients.completions.pop()
    }

    /// Turns the loop once: what was enqueued leaves; what has arrived is taken in (at most eight full bursts), its requests run,
    /// and what they and the timers have to say leaves too. Never blocks. Returns whether anything happened.
    #[inline]
    pub fn turn(&mut self) -> bool {
        let handled = self.core.shared.stats.requests_handled;
        self.sessions.begin_turn(&mut self.core, self.clock.now_ns());
        let sent = self.send_enqueued();
        let received = self.receive(handled);
        let timed = self.run_timers();
        let heard = self.take_port_events();
        let answered = self.send_answers(handled, sent);
        self.forget_peers();
        let busy = sent | received | timed | heard | answered;
        self.was_idle = !busy;
        busy
    }

    /// Sends the calls that were enqueued since the last turn: they need not wait for the look at what has arrived.
    #[inline(always)]
    fn send_enqueued(&mut self) -> bool {
        let shared = &mut self.core.shared;
        shared.pacing.release(shared.now_ns, &mut shared.transmit);
        let any = shared.has_output();
        if any {
            let (_, tx) = self.port.split();
            self.core.transmit(tx);
            tx.submit_soon(self.core.shared.now_ns);
        }
        any
    }

    /// Takes in what has arrived, and runs its requests.
    #[inline(always)]
    fn receive(&mut self, handled: u64) -> bool {
        let mut any = false;
        let (rx, _) = self.port.split();
        for _ in 0..BURSTS_PER_TURN {
            let mut burst = RxBurst::new(self.core.shared.now_ns);
            rx.receive(&mut burst);
            if !burst.packets.is_empty() {
                any = true;
                self.core.shared.now_ns = burst.time_ns;
                take_burst(&mut self.core, &mut self.sessions, &mut self.handlers, &burst, &self.clock);
            }
            if burst.packets.len() < self.burst_max {
                break;
            }
            if self.core.shared.stats.requests_handled != handled {
                // What comes next may have arrived while they ran.
                self.core.shared.now_ns = self.clock.now_ns();
            }
        }
        any | self.core.servers.take_returns(&mut self.core.shared)
    }

    /// Repeats what is late, asks the silent, gives up the dead: all of it every few milliseconds only.
    #[inline(always)]
    fn run_timers(&mut self) -> bool {
        let now_ns = self.core.shared.now_ns;
        let is_due = now_ns >= self.core.clients.scan_due_ns() || now_ns >= self.sessions.manage_due_ns();
        is_due && self.run_due_timers()
    }

    #[inline(never)]
    fn run_due_timers(&mut self) -> bool {
        // Who is given up is sent nothing, and yet there is something to hear of it.
        let told = self.core.clients.completions.len() + self.sessions.events.len();
        self.core.clients.retransmit_late(&mut self.core.shared);
        self.sessions.manage(&mut self.core);
        self.core.clients.completions.len() + self.sessions.events.len() != told
    }

    /// Sends what this turn had to say.
    #[inline(always)]
    fn send_answers(&mut self, handled: u64, sent: bool) -> bool {
        let any = self.core.shared.has_output();
        let (_, tx) = self.port.split();
        if any {
            if self.core.shared.stats.requests_handled != handled {
                // What the handlers took is residence, not round trip.
                self.core.shared.now_ns = self.clock.now_ns();
            }
            self.core.transmit(tx);
        }
        if any || !sent {
            // Also with nothing new: the port may hold back what it was given in earlier turns.
            tx.submit_soon(self.core.shared.now_ns);
        }
        if self.core.clients.has_unclaimed() {
            self.core.clients.reclaim(&mut self.core.shared.stats, tx);
        }
        any
    }

    /// Hears from the port who is gone.
    #[inline(always)]
    fn take_port_events(&mut self) -> bool {
        let mut any = false;
        while let Some(PortEvent::PeerLost { peer, loss }) = self.port.poll_event() {
            any = true;
            self.sessions.peer_lost(&mut self.core, peer, loss);
        }
        any
    }

    /// Tells the port whom nothing connects us to any more, after what we had to say to them.
    #[inline(always)]
    fn forget_peers(&mut self) {
        while let Some(peer) = self.core.shared.forgotten.pop() {
            // Unless a session with it was begun since.
            if self.core.shared.peers.index_of(peer).is_none() {
                self.port.forget(peer);
            }
        }
    }

    /// Sleeps until something may have arrived, a timer of the endpoint is due, or `timeout_ns` passed. Returns whether it did: not
    /// where there is something to do already, in the next [turn](Self::turn) or for who takes completions.
    ///
    /// # Errors
    ///
    /// What the port says.
    pub fn wait(&mut self, timeout_ns: Option<u64>) -> std::io::Result<bool> {
        if self.core.has_work() {
            return Ok(false);
        }
        let now_ns = self.clock.now_ns();
        let own = self.sessions.next_deadline_ns(&self.core).map(|deadline| deadline.saturating_sub(now_ns));
        let timeout_ns = own.into_iter().chain(timeout_ns).min();
        if timeout_ns == Some(0) {
            return Ok(false);
        }
        self.port.wait(timeout_ns)?;
        Ok(true)
    }

    /// Turns the loop until `done` says so, sleeping when there is nothing to do as [`Config::poller`] allows.
    ///
    /// # Errors
    ///
    /// What the port says when it cannot sleep.
    pub fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) -> std::io::Result<()> {
        while !done(self) {
            let busy = self.turn();
            if done(self) {
                break;
            }
            if self.poller.step(self.core.shared.now_ns, busy) == Step::Block {
                self.wait(None)?;
            }
        }
        Ok(())
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
        let mut buffer = self.alloc(request.as_ref().len())?;
        buffer.fill(request.as_ref())?;
        let response = self.alloc(1024)?;
        self.sessions.begin_turn(&mut self.core, self.clock.now_ns());
        let deadline_ns = self.core.shared.now_ns.saturating_add(self.core.shared.config.call_timeout_ns);
        self.waited_for += 1;
        let tag = self.waited_for;
        let call = NewCall { request_type: request_type.number(), lane: WAITING_LANE, tag };
        let is_ours = |lane: u8, of_call: u64| lane == WAITING_LANE && of_call == tag;
        let Core { shared, clients, .. } = &mut self.core;
        clients.enqueue(shared, session, call, buffer, response)?;
        let mut completion = None;
        let mut cancelled = false;
        while completion.is_none() {
            let busy = self.turn();
            let Core { shared, clients, .. } = &mut self.core;
            completion = clients.completions.remove(|over| is_ours(over.lane, over.tag));
            if completion.is_some() {
                break;
            }
            if !cancelled && shared.now_ns >= deadline_ns {
                cancelled = true;
                clients.cancel(shared, session, Cause::DeadlinePassed, is_ours);
                continue;
            }
            // Other calls' completions wait for their own poll; they must not keep us from sleeping here.
            if self.poller.step(self.core.shared.now_ns, busy) == Step::Block && !self.core.shared.has_output() {
                let left = deadline_ns.saturating_sub(self.core.shared.now_ns);
                let own = self
                    .sessions
                    .next_deadline_ns(&self.core)
                    .map(|deadline| deadline.saturating_sub(self.core.shared.now_ns));
                if let Err(error) = self.port.wait(Some(own.map_or(left, |own| own.min(left)).max(1))) {
                    let Core { shared, clients, .. } = &mut self.core;
                    clients.cancel(shared, session, Cause::Cancelled, is_ours);
                    // Its buffers are free, also of the port, and nobody waits for its completion.
                    clients.reclaim(&mut shared.stats, self.port.split().1);
                    clients.completions.remove(|over| is_ours(over.lane, over.tag));
                    return Err(error.into());
                }
            }
        }
        let completion = completion.expect("the loop ends with a completion");
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
    }
}
