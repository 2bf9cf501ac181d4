//! Sleeping on an endpoint, alone or together with other things.

use std::io;

use sinew_fabric::readiness::{no_descriptor, wait_on};
use sinew_fabric::{Armed, Clock, Descriptor, PacketPort, PacketTx, PollerStats, Readiness};

use super::Rpc;

/// An endpoint's record of sleeps.
#[derive(Debug, Default)]
pub(super) struct Sleep {
    /// Whether we have woken the sleeper since the endpoint was last armed, because there is something to do.
    was_woken_by_us: bool,
    /// Whether a waker may have ended a sleep that the caller did not see end: one that a turn ended, or one inside a
    /// blocking call or connect. The caller must hear of that, so its next sleep does not begin.
    was_woken: bool,
    /// Number of waiting events of the main lane that have prevented one sleep already. They need not be taken.
    pub(super) events_seen: usize,
}

impl Sleep {
    /// Notes that the endpoint slept for a purpose of its own. A waker may have ended that sleep, of which the caller
    /// knows nothing.
    pub(super) fn note_wake(&mut self) {
        self.was_woken = true;
    }
}

impl<P: PacketPort, C: Clock> Rpc<P, C> {
    /// The time on the endpoint's clock, which the deadlines of [`Self::arm`] refer to.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// The descriptor that becomes readable when there is something to do at an [armed](Self::arm) endpoint; it is the
    /// same each time. `None` if the port has none, as on simulated networks. The descriptor outlives the endpoint, and
    /// is of no use then.
    pub fn descriptor(&self) -> Option<Descriptor> {
        self.port.descriptor()
    }

    /// Prepares the endpoint for its thread to sleep. With [`Armed::Ready`] there is something to do, for the next
    /// [turn](Self::turn) or for the program, which has completions or events to take. With [`Armed::Sleep`] there is
    /// not: the [descriptor](Self::descriptor) becomes readable when something comes, and stays so until the next turn
    /// or [`Self::disarm`]. The endpoint needs a turn by the deadline at the latest, which is on its own clock
    /// ([`Self::now_ns`]).
    ///
    /// Other causes make the descriptor readable too: a call that is enqueued or cancelled meanwhile, a session that is
    /// begun or ended, an answer to a kept call, a waker. An event that nobody takes prevents only one sleep; a
    /// completion that nobody takes prevents every sleep.
    ///
    /// With [`Armed::Sleep`] the descriptor was not readable a moment ago, so event loops may be edge-triggered.
    ///
    /// Arming takes system calls, so let one [`Poller`](sinew_fabric::Poller) of the thread decide when to arm, after
    /// the loop has spun for a while. [`Self::rest_beside`] does so; an event loop of one's own looks like this:
    ///
    /// ```no_run
    /// # use sinew_fabric::{Armed, Clock, PacketPort, Poller, Step};
    /// # fn f<P: PacketPort, C: Clock>(rpc: &mut sinew_rpc::Rpc<P, C>) -> std::io::Result<()> {
    /// let descriptor = rpc.descriptor().expect("a port of a real fabric");
    /// let mut poller = Poller::new(rpc.config().poller);
    /// loop {
    ///     let busy = rpc.turn();
    ///     while let Some(completion) = rpc.poll_completion() { /* ... */ }
    ///     while let Some(event) = rpc.poll_event() { /* ... */ }
    ///     if poller.step(rpc.now_ns(), busy) == Step::Block {
    ///         let armed = rpc.arm()?;
    ///         if armed != Armed::Ready {
    ///             // Or epoll, with other descriptors.
    ///             descriptor.wait(armed.timeout_ns(rpc.now_ns()))?;
    ///         }
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::Unsupported`] if there is no descriptor; any error of the port.
    pub fn arm(&mut self) -> io::Result<Armed> {
        let descriptor = self.port.descriptor().ok_or_else(no_descriptor)?;
        let now_ns = self.clock.now_ns();
        match self.sleep_state() {
            Armed::Sleep { until_ns } if until_ns.is_none_or(|until_ns| until_ns > now_ns) => {
                self.submit_and_publish();
                let mut armed = self.port.arm(now_ns)?;
                // If it is readable already, perhaps for datagrams that the last turn left in the kernel, then an event
                // loop that hears only of changes would not notice.
                if armed != Armed::Ready && descriptor.wait(Some(0))? {
                    armed = Armed::Ready;
                }
                if armed == Armed::Ready {
                    // The port may be armed from the last time.
                    self.port.disarm();
                }
                self.set_armed(armed != Armed::Ready);
                let armed = armed.min_deadline(until_ns);
                if let Armed::Sleep { until_ns } = armed {
                    self.sessions.note_sleep_until(until_ns);
                }
                Ok(armed)
            }
            _ => {
                if self.sessions.is_armed() {
                    self.end_sleep();
                    // This return reports what woke it.
                    self.sleep.was_woken = false;
                }
                Ok(Armed::Ready)
            }
        }
    }

    /// Notes that the thread is awake, as a turn does. Returns whether a waker was called, where the endpoint can
    /// distinguish that from other causes; that wake-up is then consumed.
    pub fn disarm(&mut self) -> bool {
        let was_woken = self.sessions.is_armed() && self.port.disarm();
        self.set_armed(false);
        std::mem::take(&mut self.sleep.was_woken) | was_woken
    }

    /// Sleeps until something may have arrived, a timer of the endpoint is due, or `timeout_ns` has passed. Returns
    /// whether it slept: it does not if there is something to do already, for the next [turn](Self::turn) or for the
    /// program, which has completions or events to take.
    ///
    /// # Errors
    ///
    /// Any error of the port.
    pub fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<bool> {
        let now_ns = self.clock.now_ns();
        let sleep_state = self.sleep_state();
        let own_ns = sleep_state.timeout_ns(now_ns);
        let timeout_ns = own_ns.into_iter().chain(timeout_ns).min();
        if timeout_ns == Some(0) {
            return Ok(false);
        }
        self.sleep_on_port(now_ns, timeout_ns)?;
        Ok(true)
    }

    /// As [`Self::rest`], on a thread that also serves other things, such as sockets and further endpoints. It sleeps
    /// on all of them, and this endpoint's poller decides when, for all. `busy` says whether any of them was. Other
    /// endpoints among them are not turned here: turn each in every round of the loop.
    ///
    /// # Errors
    ///
    /// Any error of the port, or of one of the others, when it cannot sleep.
    pub fn rest_beside(
        &mut self,
        busy: bool,
        others: &mut [&mut dyn Readiness],
        timeout_ns: Option<u64>,
    ) -> io::Result<()> {
        if self.is_idle_for_long(busy) {
            let now_ns = self.clock.now_ns();
            let until_ns = timeout_ns.map(|timeout_ns| now_ns.saturating_add(timeout_ns));
            let mut waited_on: Vec<&mut dyn Readiness> = Vec::with_capacity(others.len() + 1);
            waited_on.extend(others.iter_mut().map(|other| &mut **other as &mut dyn Readiness));
            waited_on.push(self);
            let slept = wait_on(&mut waited_on, now_ns, until_ns);
            self.poller.woken(self.clock.now_ns());
            slept?;
        }
        Ok(())
    }

    /// Sleeps on the port, even if there is something to do.
    pub(super) fn sleep_on_port(&mut self, now_ns: u64, timeout_ns: Option<u64>) -> io::Result<()> {
        self.submit_and_publish();
        self.sessions.note_sleep_until(timeout_ns.map(|timeout_ns| now_ns.saturating_add(timeout_ns)));
        // The port arms, sleeps and disarms by itself; a port without a descriptor has its own way to sleep.
        let slept = self.port.wait(timeout_ns);
        self.poller.woken(self.clock.now_ns());
        slept
    }

    /// Counters of the endpoint's poller: how often it slept, and the processor time it took. They cover turns that are
    /// followed by [`Self::rest`] or made by the endpoint itself, such as those of [`Self::run_until`].
    pub fn poller_stats(&self) -> PollerStats {
        self.poller.stats()
    }

    /// Publishes the counters before a sleep, if anybody reads them, including packets that the port held back until
    /// now.
    fn submit_and_publish(&mut self) {
        if self.has_audience {
            self.port.split().1.submit();
            self.publish();
        }
    }

    /// Notes the end of a loop that turned the endpoint for one purpose, such as a library's. A waker may have ended
    /// one of its sleeps, of which the loop's caller knows nothing. So the next sleep does not begin.
    pub fn end_waiting(&mut self) {
        self.sleep.note_wake();
    }

    /// When the endpoint next has work of its own; [`Armed::Ready`] if there is something to do now.
    fn sleep_state(&mut self) -> Armed {
        let events = self.core.clients.lanes.events_of_main();
        let is_news = (events > self.sleep.events_seen)
            | self.core.clients.lanes.take_event_news()
            | self.core.servers.take_client_news()
            | self.handlers.backlog.take_news();
        self.sleep.events_seen = events;
        if std::mem::take(&mut self.sleep.was_woken) || is_news || self.core.has_work() {
            return Armed::Ready;
        }
        Armed::Sleep { until_ns: self.sessions.next_deadline_ns(&self.core) }
    }

    fn set_armed(&mut self, armed: bool) {
        self.sessions.set_armed(armed);
        self.sleep.was_woken_by_us = false;
        self.core.shared.enqueue_needs_work = armed || self.core.shared.pacing.is_on();
    }

    /// Ends a sleep, because a turn begins while the endpoint may still be armed.
    #[cold]
    #[inline(never)]
    pub(super) fn end_sleep(&mut self) {
        self.sleep.was_woken |= self.port.disarm();
        self.set_armed(false);
    }

    /// Wakes a thread that may be sleeping on the endpoint and cannot know that there is something to do.
    pub(super) fn wake_sleeper(&mut self) {
        if self.sessions.is_armed() && !std::mem::replace(&mut self.sleep.was_woken_by_us, true) {
            self.port.waker().wake();
            self.core.shared.enqueue_needs_work = self.core.shared.pacing.is_on();
        }
    }
}

/// An endpoint as one of several things that a thread sleeps on. Deadlines are on the caller's clock.
impl<P: PacketPort, C: Clock> Readiness for Rpc<P, C> {
    fn descriptor(&self) -> Option<Descriptor> {
        self.descriptor()
    }

    fn arm(&mut self, now_ns: u64) -> io::Result<Armed> {
        let armed = self.arm()?;
        Ok(armed.on_clock(self.clock.now_ns(), now_ns))
    }

    fn disarm(&mut self) -> bool {
        self.disarm()
    }
}
