//! The loop: the steps of a turn, their order, and the conditions for the loop to end or sleep.
//!
//! Enqueued calls are sent before anything is received: polling an empty ring can cost a cache miss, for which no
//! request should wait. A turn also disarms the endpoint if somebody sleeps on it. Checking for that costs nothing
//! extra, since the comparison that detects a pause of the loop covers it.

use sinew_fabric::{Clock, PacketPort, PacketRx, PacketTx, PortEvent, RxBurst, Step};

use super::Rpc;
use crate::core::Core;
use crate::handlers::Handlers;
use crate::peers::ForgottenPeer;
use crate::receive::receive_burst;
use crate::sessions::Sessions;

/// Full bursts that one turn receives before it answers. Where a send costs the same for one packet and for many, as
/// with a kernel's sockets, it pays to collect the answers to several bursts for one send.
const BURSTS_PER_TURN: usize = 8;

/// The parts of an endpoint that handle a received burst.
pub(super) struct TurnParts<'a, C> {
    pub core: &'a mut Core,
    pub sessions: &'a mut Sessions,
    pub handlers: &'a mut Handlers,
    pub clock: &'a C,
}

impl<P: PacketPort, C: Clock> Rpc<P, C> {
    /// Turns the loop once: sends what was enqueued, receives what has arrived (at most eight full bursts) and runs its
    /// requests, and sends their answers and whatever the timers produce. It never blocks. Returns whether anything
    /// happened. It disarms the endpoint.
    #[inline]
    pub fn turn(&mut self) -> bool {
        self.turn_with_handler(|rpc, burst| {
            receive_burst(rpc.core, rpc.sessions, rpc.handlers, burst, rpc.clock);
        })
    }

    /// A turn in which `take` handles each received burst.
    #[inline(always)]
    pub(super) fn turn_with_handler(&mut self, take: impl FnMut(TurnParts<'_, C>, &RxBurst<'_>)) -> bool {
        let handled = self.core.shared.stats.requests_handled;
        if self.sessions.begin_turn(&mut self.core, self.clock.now_ns()) {
            self.end_sleep();
        }
        let sent = self.send_enqueued();
        let received = self.receive(handled, take);
        let timed = self.run_timers();
        let had_port_events = self.take_port_events();
        self.send_answers(handled, sent, sent | received | timed | had_port_events)
    }

    /// Sends the calls that were enqueued since the last turn, so that they need not wait until arrivals are handled.
    #[inline(always)]
    fn send_enqueued(&mut self) -> bool {
        let shared = &mut self.core.shared;
        shared.pacing.release(shared.now_ns, &mut shared.transmit);
        let any = shared.has_output();
        if any {
            if self.core.shared.now_ns >= self.core.shared.deadlines_due_ns {
                // Calls that nobody waits for any more need not leave.
                self.core.end_expired();
            }
            let (_, tx) = self.port.split();
            self.core.transmit(tx);
            tx.submit_soon(self.core.shared.now_ns);
        }
        any
    }

    /// Receives what has arrived, and runs its requests.
    #[inline(always)]
    fn receive(&mut self, handled: u64, mut take: impl FnMut(TurnParts<'_, C>, &RxBurst<'_>)) -> bool {
        let mut any = false;
        let (rx, _) = self.port.split();
        for _ in 0..BURSTS_PER_TURN {
            let mut burst = RxBurst::new(self.core.shared.now_ns);
            rx.receive(&mut burst);
            if !burst.packets.is_empty() {
                any = true;
                self.core.shared.now_ns = burst.time_ns;
                let Self { core, sessions, handlers, clock, .. } = self;
                take(TurnParts { core, sessions, handlers, clock }, &burst);
            }
            if burst.packets.len() < self.burst_max {
                break;
            }
            if self.core.shared.stats.requests_handled != handled {
                // The next burst may have arrived while these requests ran.
                self.core.shared.now_ns = self.clock.now_ns();
            }
        }
        let returned = self.core.servers.take_queued_answers(&mut self.core.shared);
        if returned {
            self.take_remote_tasks();
        }
        any | returned
    }

    /// Retransmits what is late, probes silent peers and gives up dead ones. This happens only every few milliseconds.
    #[inline(always)]
    fn run_timers(&mut self) -> bool {
        self.core.shared.now_ns >= self.core.shared.timers_due_ns && self.run_due_timers()
    }

    #[inline(never)]
    fn run_due_timers(&mut self) -> bool {
        // Giving up a peer sends nothing, but produces completions and events.
        let reports_before = self.waiting_reports();
        self.core.clients.retransmit_overdue(&mut self.core.shared);
        self.core.end_expired();
        self.sessions.manage(&mut self.core);
        let (scan_ns, manage_ns) = (self.core.clients.scan_due_ns(), self.sessions.manage_due_ns());
        self.core.shared.timers_due_ns = scan_ns.min(manage_ns).min(self.core.shared.deadlines_due_ns);
        self.waiting_reports() != reports_before
    }

    /// Number of completions and events that wait to be taken.
    fn waiting_reports(&self) -> usize {
        self.core.clients.lanes.reports_waiting() + self.core.servers.client_events_len()
    }

    /// Sends the answers of this turn, and ends it. `busy` is whether the turn had anything to do so far; returns
    /// whether it had, all in all.
    #[inline(always)]
    fn send_answers(&mut self, handled: u64, sent: bool, busy: bool) -> bool {
        let any = self.core.shared.has_output();
        if any {
            if self.core.shared.stats.requests_handled != handled {
                // The time that handlers took is residence, not part of a round trip.
                self.core.shared.now_ns = self.clock.now_ns();
            }
            self.core.transmit(self.port.split().1);
        }
        let busy = busy | any;
        if self.has_audience | self.core.clients.has_unclaimed() | !self.core.shared.forgotten.is_empty() {
            self.end_turn_with_more(sent, any, busy);
        } else if any || !sent {
            // Even if nothing is new, the port may hold back packets of earlier turns.
            self.port.split().1.submit_soon(self.core.shared.now_ns);
        }
        self.was_idle = !busy;
        busy
    }

    /// Submits what was sent, and does the work that only few turns have.
    #[inline(never)]
    fn end_turn_with_more(&mut self, sent: bool, any: bool, busy: bool) {
        if busy {
            // Publish before anybody can learn of what happened.
            self.publish();
        }
        let (_, tx) = self.port.split();
        if any || !sent {
            tx.submit_soon(self.core.shared.now_ns);
        }
        if !busy && !self.was_idle {
            // Publish once more in the first idle turn, for what was counted since, such as packets that the port had
            // held back.
            self.publish();
        }
        let (_, tx) = self.port.split();
        if self.core.clients.has_unclaimed() {
            self.core.clients.reclaim(&mut self.core.shared.stats, tx);
        }
        self.forget_peers();
        if self.remote.is_some() {
            self.report_finished();
        }
    }

    /// Takes the port's events, which report lost peers.
    #[inline(always)]
    fn take_port_events(&mut self) -> bool {
        let mut any = false;
        while let Some(PortEvent::PeerLost { peer, loss }) = self.port.poll_event() {
            any = true;
            self.sessions.peer_lost(&mut self.core, peer, loss);
        }
        any
    }

    /// Tells the port to forget peers that no session connects us to any more, after the last packets to them have
    /// left.
    fn forget_peers(&mut self) {
        while let Some(ForgottenPeer { peer, initiated }) = self.core.shared.forgotten.pop() {
            // Skip it if a session with the peer was begun since.
            if self.core.shared.peers.index_of(peer).is_none() {
                match initiated {
                    true => self.port.forget(peer),
                    // The peer made the connection, and may be about to come back over it.
                    false => self.port.peer_left(peer),
                }
            }
        }
    }

    /// Turns the loop once, and sleeps when there has been nothing to do for longer than
    /// [`Config::poller`](crate::Config::poller) spins. Returns whether anything happened.
    ///
    /// # Errors
    ///
    /// Any error of the port when it cannot sleep.
    #[inline]
    pub fn turn_or_wait(&mut self) -> std::io::Result<bool> {
        let busy = self.turn();
        self.rest(busy, None)?;
        Ok(busy)
    }

    /// Sleeps after a turn, when there has been nothing to do for longer than [`Config::poller`](crate::Config::poller)
    /// spins: until there is something, but for at most `timeout_ns`. `busy` is what the turn returned.
    ///
    /// # Errors
    ///
    /// Any error of the port when it cannot sleep.
    #[inline]
    pub fn rest(&mut self, busy: bool, timeout_ns: Option<u64>) -> std::io::Result<()> {
        if self.is_idle_for_long(busy) {
            self.wait(timeout_ns)?;
        }
        Ok(())
    }

    /// Whether to sleep after a turn that returned `busy`.
    #[inline]
    pub(super) fn is_idle_for_long(&mut self, busy: bool) -> bool {
        self.poller.step(self.core.shared.now_ns, busy) == Step::Block
    }

    /// Turns the loop until `done` returns true, sleeping when there is nothing to do, as
    /// [`Config::poller`](crate::Config::poller) allows.
    ///
    /// # Errors
    ///
    /// Any error of the port when it cannot sleep.
    pub fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) -> std::io::Result<()> {
        self.try_run_until(|rpc| Ok(done(rpc)))
    }

    /// As [`Self::run_until`], but `done` may also fail, which ends the loop at once. The endpoint is unharmed, and the
    /// loop can be entered again.
    ///
    /// # Errors
    ///
    /// Any error that `done` returns, and any error of the port when it cannot sleep.
    pub fn try_run_until<E: From<std::io::Error>>(
        &mut self,
        mut done: impl FnMut(&mut Self) -> Result<bool, E>,
    ) -> Result<(), E> {
        while !done(self)? {
            let busy = self.turn();
            if done(self)? {
                break;
            }
            if self.poller.step(self.core.shared.now_ns, busy) == Step::Block {
                self.wait(None)?;
            }
        }
        Ok(())
    }
}
