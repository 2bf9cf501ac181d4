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

use crate::call::Returns;
use crate::client::{ClientState, Completion, RequestType, SessionId};
use crate::config::Config;
use crate::core::{Core, Link};
use crate::error::{CallError, Cause, ConnectError, Error, Rejected};
use crate::management::SessionEvent;
use crate::nexus::{Handlers, Nexus};
use crate::stats::Stats;

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
    handlers: Handlers,
    port: P,
    clock: C,
    poller: Poller,
    burst_max: usize,
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
    pub fn new(nexus: &Nexus, port: P, clock: C, generator: Box<dyn Generator>) -> Self {
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
        let core = Core::new(config, link, port.arena().clone(), generator, returns, clock.now_ns());
        Self { core, handlers: nexus.handlers(), port, clock, poller, burst_max: caps.burst_max }
    }

    /// Where others reach this endpoint.
    pub fn address(&self) -> Address {
        self.port.address()
    }

    /// The limits it runs with.
    pub fn config(&self) -> &Config {
        &self.core.config
    }

    /// The port, for what only it knows.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// What the endpoint counted.
    pub fn stats(&self) -> Stats {
        self.core.stats
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
        self.core.clients.table.len() + self.core.servers.table.len()
    }

    /// Receive capacity committed to sessions, in packets.
    pub fn committed_packets(&self) -> u64 {
        self.core.committed_packets
    }

    /// Makes a message buffer of `len` bytes, whose contents are unspecified. Takes a lock: allocate up front and reuse.
    ///
    /// # Errors
    ///
    /// [`AllocError`].
    pub fn alloc(&self, len: usize) -> Result<MessageBuffer, AllocError> {
        self.core.alloc(len)
    }

    /// Begins to open a session, without waiting. Calls can be enqueued at once; they leave when the session is open.
    /// [`Self::poll_event`] tells what becomes of it.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] when the name leads nowhere or a limit of this endpoint is reached.
    pub fn begin_connect(&mut self, address: &Address) -> Result<SessionId, ConnectError> {
        let peer = self.port.resolve(address)?;
        self.core.begin_turn(self.clock.now_ns());
        let packet_len_max = self.port.packet_len_max(peer);
        self.core.begin_connect(peer, &address.to_string(), packet_len_max)
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
            while let Some(event) = rpc.core.events.pop_front() {
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
        self.core.events.extend(others);
        turned?;
        outcome.expect("the loop ends with an outcome")
    }

    /// Ends a session. Its calls complete with [`Cause::Disconnected`]; [`SessionEvent::Disconnected`] follows. Returns whether
    /// there was such a session.
    pub fn disconnect(&mut self, session: SessionId) -> bool {
        self.core.disconnect(session)
    }

    /// The next thing that happened to a session.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.core.events.pop_front()
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
    #[inline]
    pub fn enqueue_request(
        &mut self,
        session: SessionId,
        request_type: RequestType,
        request: MessageBuffer,
        response: MessageBuffer,
        tag: u64,
    ) -> Result<(), Rejected> {
        if (self.core.was_idle && self.core.pacing.is_on()) || self.core.pacing.is_waiting() {
            // The last turn began a while ago: packets spaced from then on would leave all at once.
            self.core.now_ns = self.clock.now_ns();
            self.core.was_idle = false;
        }
        self.core.enqueue(session, request_type, request, response, tag).map(|_| ())
    }

    /// Cancels the calls of a session with this tag; each completes with [`Cause::Cancelled`]. Returns how many there were.
    pub fn cancel(&mut self, session: SessionId, tag: u64) -> usize {
        self.core.cancel(session, Cause::Cancelled, |of_call, _| of_call == tag)
    }

    /// The rate that congestion control lets a session have, in bytes per second; none without it, or without such a session.
    pub fn session_rate(&self, session: SessionId) -> Option<f64> {
        let index = self.core.clients.table.find(session.key())?;
        self.core.pacing.rate(index)
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
        self.core.pacing.poll_rtt_ns()
    }

    /// Starts to bring a session's state near, for a call that is about to be enqueued: with thousands of sessions it lies in
    /// memory, and the reads of several calls' sessions then overlap (nsdi19 6.3). A hint; a session that is gone does no harm.
    #[inline]
    pub fn prefetch_session(&self, session: SessionId) {
        // Slots are used from the first on.
        self.core.clients.table.prefetch(session.key(), 0);
    }

    /// The next call that is over.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.core.completions.pop_front()
    }

    /// Turns the loop once: what was enqueued leaves; what has arrived is taken in (at most eight full bursts), its requests run,
    /// and what they and the timers have to say leaves too. Never blocks. Returns whether anything happened.
    #[inline]
    pub fn turn(&mut self) -> bool {
        let core = &mut self.core;
        core.begin_turn(self.clock.now_ns());
        let handled = core.stats.requests_handled;
        let (rx, tx) = self.port.split();
        let mut busy = false;
        core.pacing.release(core.now_ns, &mut core.transmit);
        // Calls that were enqueued since the last turn: they need not wait for the look at what has arrived.
        let early = core.has_output();
        if early {
            busy = true;
            core.transmit(tx);
            tx.submit_soon(core.now_ns);
        }
        for _ in 0..BURSTS_PER_TURN {
            let mut burst = RxBurst::new(core.now_ns);
            rx.receive(&mut burst);
            if !burst.packets.is_empty() {
                busy = true;
                core.now_ns = burst.time_ns;
                core.handle_burst(&burst, &mut self.handlers, &self.clock);
            }
            if burst.packets.len() < self.burst_max {
                break;
            }
            if core.stats.requests_handled != handled {
                // What comes next may have arrived while they ran.
                core.now_ns = self.clock.now_ns();
            }
        }
        busy |= core.take_returns();
        let told = core.completions.len() + core.events.len();
        core.retransmit_late();
        core.manage();
        // Who is given up is sent nothing, and yet there is something to hear of it.
        busy |= core.completions.len() + core.events.len() != told;
        let late = core.has_output();
        if late {
            busy = true;
            if core.stats.requests_handled != handled {
                // What the handlers took is residence, not round trip.
                core.now_ns = self.clock.now_ns();
            }
            core.transmit(tx);
        }
        if late || !early {
            // Also with nothing new: the port may hold back what it was given in earlier turns.
            tx.submit_soon(core.now_ns);
        }
        if !core.clients.reclaiming.is_empty() {
            core.reclaim(tx);
        }
        while let Some(PortEvent::PeerLost { peer, loss }) = self.port.poll_event() {
            busy = true;
            self.core.peer_lost(peer, loss);
        }
        while let Some(peer) = self.core.forgotten.pop() {
            // Unless a session with it was begun since.
            if self.core.peers.index_of(peer).is_none() {
                self.port.forget(peer);
            }
        }
        self.core.was_idle = !busy;
        busy
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
        let own = self.core.next_deadline_ns().map(|deadline| deadline.saturating_sub(now_ns));
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
            if self.poller.step(self.core.now_ns, busy) == Step::Block {
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
        self.core.begin_turn(self.clock.now_ns());
        let deadline_ns = self.core.now_ns.saturating_add(self.core.config.call_timeout_ns);
        let call = self
            .core
            .enqueue(session, request_type, buffer, response, 0)
            .map_err(|rejected| Error::Enqueue(rejected.error))?;
        let mut completion = None;
        let mut cancelled = false;
        while completion.is_none() {
            let busy = self.turn();
            let place = self.core.completions.iter().position(|over| over.call == call);
            completion = place.and_then(|place| self.core.completions.remove(place));
            if completion.is_some() {
                break;
            }
            if !cancelled && self.core.now_ns >= deadline_ns {
                cancelled = true;
                self.core.cancel(session, Cause::DeadlinePassed, |_, of_call| of_call == call);
                continue;
            }
            // Other calls' completions wait for their own poll; they must not keep us from sleeping here.
            if self.poller.step(self.core.now_ns, busy) == Step::Block && !self.core.has_output() {
                let left = deadline_ns.saturating_sub(self.core.now_ns);
                let own = self.core.next_deadline_ns().map(|deadline| deadline.saturating_sub(self.core.now_ns));
                self.port.wait(Some(own.map_or(left, |own| own.min(left)).max(1)))?;
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
        self.core.begin_turn(self.clock.now_ns());
        self.core.close();
        let (_, tx) = self.port.split();
        self.core.transmit(tx);
        tx.submit();
        tx.flush();
    }
}
