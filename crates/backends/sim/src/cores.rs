//! Accounting of a core's time: work, polling and sleep.

use sinew_mem::atomic::plain::{Arc, AtomicU64, Ordering};

use crate::competitor::{Account, Competitor};

/// Cost of waking on a core, and the competitor that it shares its time with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreShare {
    /// Time from an interrupt until the thread that [sleeps](crate::ActorState::Asleep) for it runs. The core is busy
    /// meanwhile.
    pub interrupt_ns: u64,
    /// A program that computes all the time and competes for the core, if there is one.
    pub competitor: Option<Competitor>,
}

/// A core's time until now, by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// Time on turns that found work; for a worker, on jobs.
    pub worked_ns: u64,
    /// Time on polling that found nothing, including turns that the simulation skips. For a worker, time without a job.
    pub polled_ns: u64,
    /// Time asleep, or woken and not yet running: the core is free for others.
    pub slept_ns: u64,
}

/// Time for which an actor's core was idle: its thread slept, and nothing competed with it
/// ([`Cluster::count_idle`](crate::Cluster::count_idle)).
#[derive(Clone, Debug, Default)]
pub struct IdleCount(Arc<AtomicU64>);

impl IdleCount {
    /// Idle nanoseconds since counting began, up to the actor's last wake.
    pub fn ns(&self) -> u64 {
        // Relaxed: the cluster's own thread writes it.
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, ns: u64) {
        self.0.store(self.ns() + ns, Ordering::Relaxed);
    }
}

/// The core of an actor or of a worker.
// What every turn touches comes first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct CoreState {
    /// When its present work or pause ends.
    pub free_ns: u64,
    /// Start of the current sleep, if it sleeps.
    asleep_ns: Option<u64>,
    /// The scheduler's account, if there is a competitor.
    account: Option<Account>,
    worked_ns: u64,
    /// Length of the pauses since its last work.
    pauses_ns: u64,
    began_ns: u64,
    ended_ns: Option<u64>,
    paused_ns: u64,
    interrupt_ns: u64,
    /// Length of all sleeps before that.
    slept_ns: u64,
    /// Start of the current idle time, if it is idle: it sleeps, and has no competitor.
    idle_since_ns: Option<u64>,
    /// The count that idle time is added to, once it has been asked for.
    idle_ns: Option<IdleCount>,
}

impl CoreState {
    pub fn new(began_ns: u64) -> Self {
        Self {
            free_ns: 0,
            began_ns,
            ended_ns: None,
            worked_ns: 0,
            paused_ns: 0,
            pauses_ns: 0,
            interrupt_ns: 0,
            account: None,
            asleep_ns: None,
            slept_ns: 0,
            idle_since_ns: None,
            idle_ns: None,
        }
    }

    /// Counts idle time from now on.
    pub fn count_idle(&mut self) -> IdleCount {
        self.idle_ns.get_or_insert_default().clone()
    }

    /// Ends its idle time at `now_ns`, if it was idle.
    fn end_idle(&mut self, now_ns: u64) {
        if let (Some(since_ns), Some(idle_ns)) = (self.idle_since_ns.take(), &self.idle_ns) {
            idle_ns.add(now_ns.saturating_sub(since_ns));
        }
    }

    /// Sets the cost of waking and the competitor from now on.
    pub fn share(&mut self, share: CoreShare, now_ns: u64) {
        self.interrupt_ns = share.interrupt_ns;
        // A competitor without a slice never runs.
        let competitor = share.competitor.filter(|competitor| competitor.slice_ns > 0);
        if competitor != self.account.map(|account| account.competitor) {
            self.account = competitor.map(|competitor| Account::new(competitor, now_ns));
            if let (Some(account), Some(asleep_ns)) = (&mut self.account, self.asleep_ns) {
                account.sleep(asleep_ns.max(now_ns));
            }
            match (&self.account, self.asleep_ns) {
                (Some(_), _) => self.end_idle(now_ns),
                (None, Some(asleep_ns)) => self.idle_since_ns = Some(asleep_ns.max(now_ns)),
                (None, None) => {}
            }
        }
    }

    /// Is busy for `spent_ns` from `now_ns` on; the competitor's slices, if there is one, come in between.
    #[inline]
    pub fn spend(&mut self, now_ns: u64, spent_ns: u64) {
        let end_ns = match &self.account {
            None => now_ns + spent_ns,
            Some(account) => account.ends_ns(now_ns, spent_ns),
        };
        (self.free_ns, self.pauses_ns) = (end_ns, 0);
    }

    /// Returns when a turn that is wanted at `wanted_ns` can begin: an interrupt wakes a sleeper first, and beside a
    /// competitor the thread may have to wait.
    #[inline]
    pub fn turn_ns(&self, wanted_ns: u64) -> u64 {
        match (&self.account, self.asleep_ns) {
            (None, None) => wanted_ns,
            (None, Some(_)) => wanted_ns + self.interrupt_ns,
            (Some(account), None) => account.run_start_ns(wanted_ns),
            (Some(account), Some(_)) => account.replaces_ns(wanted_ns) + self.interrupt_ns,
        }
    }

    /// Begins a turn. A sleeper is awake from now on, and its interrupt counts as work.
    #[inline]
    pub fn wake(&mut self, now_ns: u64) {
        if let Some(asleep_ns) = self.asleep_ns.take() {
            let interrupt_ns = self.interrupt_ns.min(now_ns.saturating_sub(asleep_ns));
            self.worked_ns += interrupt_ns;
            self.slept_ns += now_ns.saturating_sub(asleep_ns + interrupt_ns);
            self.end_idle(now_ns - interrupt_ns);
            if let Some(account) = &mut self.account {
                account.wake(now_ns - interrupt_ns);
            }
        }
    }

    /// Sleeps from the end of its turn on.
    pub fn sleep(&mut self) {
        self.asleep_ns = Some(self.free_ns);
        match &mut self.account {
            Some(account) => account.sleep(self.free_ns),
            None => self.idle_since_ns = Some(self.free_ns),
        }
    }

    /// Counts part of its busy time as work.
    #[inline]
    pub fn work(&mut self, worked_ns: u64) {
        self.worked_ns += worked_ns;
    }

    pub fn end(&mut self, now_ns: u64) {
        self.ended_ns.get_or_insert(now_ns);
    }

    pub fn has_ended(&self) -> bool {
        self.ended_ns.is_some()
    }

    /// Stalls until `end_ns`, once its present work is over. A sleeper goes on sleeping after that.
    pub fn pause(&mut self, now_ns: u64, end_ns: u64) {
        let begin_ns = self.free_ns.max(now_ns);
        let ns = end_ns.saturating_sub(begin_ns);
        self.paused_ns += ns;
        self.pauses_ns += ns;
        self.free_ns = self.free_ns.max(end_ns);
        let was_idle = self.idle_since_ns.is_some();
        self.end_idle(begin_ns);
        self.idle_since_ns = was_idle.then_some(self.free_ns);
        if let Some(asleep_ns) = &mut self.asleep_ns {
            self.slept_ns += begin_ns.saturating_sub(*asleep_ns);
            *asleep_ns = self.free_ns;
        }
    }

    /// Returns its time until `now_ns`. It polls whenever it neither works, stalls nor sleeps.
    pub fn time(&self, now_ns: u64) -> CoreTime {
        let end_ns = self.ended_ns.unwrap_or(now_ns);
        // The last pause or turn may end after that.
        let not_yet_passed_ns = self.free_ns.saturating_sub(end_ns);
        let pause_part_ns = not_yet_passed_ns.min(self.pauses_ns);
        let paused_ns = self.paused_ns - pause_part_ns;
        let worked_ns = self.worked_ns.saturating_sub(not_yet_passed_ns - pause_part_ns);
        let slept_ns = self.slept_ns + self.asleep_ns.map_or(0, |asleep_ns| end_ns.saturating_sub(asleep_ns));
        let polled_ns = end_ns.saturating_sub(self.began_ns + worked_ns + paused_ns + slept_ns);
        CoreTime { worked_ns, polled_ns, slept_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: CoreShare = CoreShare {
        interrupt_ns: 50,
        competitor: Some(Competitor { slice_ns: 1000, sleeper_credit_ns: 1000, wakeup_granularity_ns: 300 }),
    };

    fn core(share: CoreShare) -> CoreState {
        let mut core = CoreState::new(0);
        core.share(share, 0);
        core
    }

    fn times(time: CoreTime) -> (u64, u64, u64) {
        (time.worked_ns, time.slept_ns, time.polled_ns)
    }

    #[test]
    fn a_sleeper_is_woken_by_an_interrupt() {
        for share in [SHARED, CoreShare { competitor: None, ..SHARED }] {
            let mut core = core(share);
            core.spend(0, 10);
            core.sleep();
            assert_eq!(core.turn_ns(1500), 1550);
            core.wake(1550);
            assert_eq!(core.turn_ns(1600), 1600);
            core.spend(1600, 100);
            core.work(110);
            assert_eq!(times(core.time(1700)), (160, 1490, 50), "{share:?}");
        }
    }

    #[test]
    fn a_sleeper_that_ran_lately_waits_beside_a_competitor_and_its_core_is_somebody_elses() {
        let mut core = core(SHARED);
        core.spend(0, 100);
        core.work(100);
        core.sleep();
        // At 500 the competitor has run for 300 longer than we have.
        assert_eq!((core.turn_ns(150), core.turn_ns(480), core.turn_ns(600)), (550, 550, 650));
        core.wake(550);
        core.spend(550, 10);
        core.work(10);
        assert_eq!(times(core.time(560)), (160, 400, 0));
    }

    #[test]
    fn a_core_is_idle_while_its_thread_sleeps_and_nothing_computes_beside() {
        let mut core = core(CoreShare { competitor: None, ..SHARED });
        let idle = core.count_idle();
        core.spend(0, 10);
        core.sleep();
        core.share(SHARED, 110);
        assert_eq!(idle.ns(), 100, "until the competitor came");
        core.wake(2050);
        core.spend(2050, 50);
        core.sleep();
        core.share(CoreShare { competitor: None, ..SHARED }, 3000);
        core.pause(3100, 3300);
        core.wake(3550);
        assert_eq!(idle.ns(), 100 + 100 + 200, "from when it went until the interrupt, but while it stood still");
        core.spend(3550, 1000);
        core.share(SHARED, 4000);
        assert_eq!(idle.ns(), 400);
    }

    #[test]
    fn a_sleeper_that_stands_still_does_not_sleep_meanwhile() {
        let mut core = core(CoreShare { competitor: None, ..SHARED });
        core.spend(0, 10);
        core.work(10);
        core.sleep();
        core.pause(100, 400);
        assert_eq!(times(core.time(250)), (10, 90, 0));
        assert_eq!(core.turn_ns(core.free_ns), 450);
        core.wake(500);
        core.spend(500, 0);
        // It stalled for 300 of the 500.
        assert_eq!(times(core.time(500)), (60, 140, 0));
    }
}
