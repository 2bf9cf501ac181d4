//! Sleeping on an endpoint: alone, or beside other things.

use std::io;

use sinew_fabric::readiness::{no_descriptor, wait_on};
use sinew_fabric::{Armed, Clock, Descriptor, PacketPort, PacketTx, PollerStats, Readiness};

use super::Rpc;

/// What an endpoint remembers of sleeps.
#[derive(Debug, Default)]
pub(super) struct Sleep {
    /// Whoever sleeps was told that there is something to do since.
    is_told: bool,
    /// A turn, or the end of a call or a connect that waits, ended a sleep that a waker may have ended too. Who called it is owed that the
    /// next sleep does not begin.
    was_woken: bool,
    /// Events of sessions and of clients that a sleep did not begin for already. They do not have to be taken.
    pub(super) events_told: usize,
}

impl Sleep {
    /// The endpoint sleeps for something of its own, which a waker may end: who called it knows nothing of that.
    pub(super) fn may_have_ended(&mut self) {
        self.was_woken = true;
    }
}

impl<P: PacketPort, C: Clock> Rpc<P, C> {
    /// The time on the endpoint's clock, which the deadlines of [`Self::arm`] are on.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// What becomes readable when there is something to do at an endpoint that is [armed](Self::arm); the same each time. `None` where the
    /// port has none, as on simulated networks. It outlives the endpoint, and then says nothing of use.
    pub fn descriptor(&self) -> Option<Descriptor> {
        self.port.descriptor()
    }

    /// Gets the endpoint ready for its thread to sleep. [`Armed::Ready`]: there is something to do, in the next [turn](Self::turn) or for
    /// who takes completions and events. [`Armed::Sleep`]: there is not; the [descriptor](Self::descriptor) becomes readable when something
    /// comes, and stays so until the next turn or [`Self::disarm`], and the endpoint wants a turn at the deadline at the latest, on
    /// its own clock ([`Self::now_ns`]).
    ///
    /// What else has the endpoint do something makes the descriptor readable too: a call that is enqueued or cancelled meanwhile, a
    /// session that is begun or ended, an answer to a call that was kept, a waker. An event that nobody takes keeps nobody awake for longer than once;
    /// a completion that nobody takes does.
    ///
    /// When it says [`Armed::Sleep`] the descriptor was not readable a moment ago, so event loops may be edge-triggered.
    ///
    /// It takes system calls, so one [`Poller`](sinew_fabric::Poller) of the thread decides when, after the loop has spun for a while. That is what
    /// [`Self::rest_beside`] does; an event loop of one's own:
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
    /// [`io::ErrorKind::Unsupported`] where there is no descriptor; what the port says.
    pub fn arm(&mut self) -> io::Result<Armed> {
        let descriptor = self.port.descriptor().ok_or_else(no_descriptor)?;
        let now_ns = self.clock.now_ns();
        match self.quiet() {
            Armed::Sleep { until_ns } if until_ns.is_none_or(|until_ns| until_ns > now_ns) => {
                self.submit_and_publish();
                let mut armed = self.port.arm(now_ns)?;
                // What makes it readable already, such as datagrams that the last turn left in the kernel, is no news to an event loop that
                // hears of changes only.
                if armed != Armed::Ready && descriptor.wait(Some(0))? {
                    armed = Armed::Ready;
                }
                if armed == Armed::Ready {
                    // It may be armed from the last time.
                    self.port.disarm();
                }
                self.set_armed(armed != Armed::Ready);
                let armed = armed.by(until_ns);
                if let Armed::Sleep { until_ns } = armed {
                    self.sessions.listen_until(until_ns);
                }
                Ok(armed)
            }
            _ => {
                if self.sessions.is_armed() {
                    self.end_sleep();
                    // What woke it is told now.
                    self.sleep.was_woken = false;
                }
                Ok(Armed::Ready)
            }
        }
    }

    /// Says that the thread is awake, as a turn does. Returns whether a waker was called, as far as can be told from other news; that wake-up is
    /// over.
    pub fn disarm(&mut self) -> bool {
        let was_woken = self.sessions.is_armed() && self.port.disarm();
        self.set_armed(false);
        std::mem::take(&mut self.sleep.was_woken) | was_woken
    }

    /// Sleeps until something may have arrived, a timer of the endpoint is due, or `timeout_ns` passed. Returns whether it did: not
    /// where there is something to do already, in the next [turn](Self::turn) or for who takes completions and events.
    ///
    /// # Errors
    ///
    /// What the port says.
    pub fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<bool> {
        let now_ns = self.clock.now_ns();
        let quiet = self.quiet();
        let own_ns = quiet.timeout_ns(now_ns);
        let timeout_ns = own_ns.into_iter().chain(timeout_ns).min();
        if timeout_ns == Some(0) {
            return Ok(false);
        }
        self.sleep_on_port(now_ns, timeout_ns)?;
        Ok(true)
    }

    /// As [`Self::rest`], on a thread that serves something else too, such as sockets and further endpoints: it sleeps on all of them, and this
    /// endpoint's poller decides when, for all. `busy` is whether any of them was. Other endpoints among them are not turned here: each is to be
    /// turned in every round of the loop.
    ///
    /// # Errors
    ///
    /// What the port says when it cannot sleep, or one of the others.
    pub fn rest_beside(
        &mut self,
        busy: bool,
        beside: &mut [&mut dyn Readiness],
        timeout_ns: Option<u64>,
    ) -> io::Result<()> {
        if self.is_idle_for_long(busy) {
            let now_ns = self.clock.now_ns();
            let until_ns = timeout_ns.map(|timeout_ns| now_ns.saturating_add(timeout_ns));
            let mut all: Vec<&mut dyn Readiness> = Vec::with_capacity(beside.len() + 1);
            all.extend(beside.iter_mut().map(|other| &mut **other as &mut dyn Readiness));
            all.push(self);
            let slept = wait_on(&mut all, now_ns, until_ns);
            self.poller.woken(self.clock.now_ns());
            slept?;
        }
        Ok(())
    }

    /// Sleeps on the port, whatever else there is to do.
    pub(super) fn sleep_on_port(&mut self, now_ns: u64, timeout_ns: Option<u64>) -> io::Result<()> {
        self.submit_and_publish();
        self.sessions.listen_until(timeout_ns.map(|timeout_ns| now_ns.saturating_add(timeout_ns)));
        // Armed, slept on and disarmed; a port without a descriptor has a way of its own.
        let slept = self.port.wait(timeout_ns);
        self.poller.woken(self.clock.now_ns());
        slept
    }

    /// What the endpoint's poller did: how often it slept, and what processor time it took. Of turns that are followed by [`Self::rest`] or
    /// are the endpoint's own, such as those of [`Self::run_until`].
    pub fn poller_stats(&self) -> PollerStats {
        self.poller.stats()
    }

    /// Publishes the counters before a sleep, if anybody reads them: with what the port held back until now.
    fn submit_and_publish(&mut self) {
        if self.has_audience {
            self.port.split().1.submit();
            self.publish();
        }
    }

    /// Says that a loop that turned the endpoint for one purpose, such as a library's, is over: a waker that was called may have ended one of its
    /// sleeps, of which whoever entered the loop knows nothing. The next sleep does not begin.
    pub fn end_waiting(&mut self) {
        self.sleep.may_have_ended();
    }

    /// Until when there is nothing to do but for what arrives.
    fn quiet(&mut self) -> Armed {
        let events = self.core.clients.lanes.events_of_main();
        let is_news = (events > self.sleep.events_told)
            | self.core.clients.lanes.is_event_news()
            | self.core.servers.is_client_news()
            | self.handlers.backlog.is_news();
        self.sleep.events_told = events;
        if std::mem::take(&mut self.sleep.was_woken) || is_news || self.core.has_work() {
            return Armed::Ready;
        }
        Armed::Sleep { until_ns: self.sessions.next_deadline_ns(&self.core) }
    }

    fn set_armed(&mut self, armed: bool) {
        self.sessions.set_armed(armed);
        self.sleep.is_told = false;
        self.core.shared.heeds_calls = armed || self.core.shared.pacing.is_on();
    }

    /// A turn begins although somebody may sleep on the endpoint.
    #[cold]
    #[inline(never)]
    pub(super) fn end_sleep(&mut self) {
        self.sleep.was_woken |= self.port.disarm();
        self.set_armed(false);
    }

    /// There is something to do that whoever sleeps on the endpoint cannot know of.
    pub(super) fn wake_sleeper(&mut self) {
        if self.sessions.is_armed() && !std::mem::replace(&mut self.sleep.is_told, true) {
            self.port.waker().wake();
            self.core.shared.heeds_calls = self.core.shared.pacing.is_on();
        }
    }
}

/// An endpoint beside other things that a thread sleeps on. Deadlines are on the caller's clock.
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
