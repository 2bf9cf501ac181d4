//! What a core does with its time.

/// How a core shares its time, and wakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreShare {
    /// From an interrupt until the thread that [sleeps](crate::Doing::Asleep) for it runs, which the core spends on that.
    pub interrupt_ns: u64,
    /// How long the scheduler lets one thread run before another that wants to, where a program that computes all the time competes for the core; none
    /// where nothing does. Whoever polls takes turns with it; whoever sleeps runs at once when it is woken, and takes turns from then on, as under Linux's
    /// fair scheduler.
    pub competing_slice_ns: Option<u64>,
}

/// How a core spent its time until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// On turns that found something, or did; a worker's: on jobs.
    pub worked_ns: u64,
    /// Polling in vain: turns that need not be run are charged all the same. A worker's: with nothing to do.
    pub polled_ns: u64,
    /// Asleep.
    pub slept_ns: u64,
}

/// The core of an actor or of a worker.
#[derive(Debug)]
pub(crate) struct Core {
    /// When it can do something next.
    pub free_ns: u64,
    began_ns: u64,
    ended_ns: Option<u64>,
    worked_ns: u64,
    paused_ns: u64,
    /// The last pause, if nothing was done after it.
    pauses_ns: u64,
    pub share: CoreShare,
    /// Since when the actor has not slept: its turns with a competitor begin there.
    awake_ns: u64,
    /// Since when it sleeps, if it does, and how long it did before.
    asleep_ns: Option<u64>,
    slept_ns: u64,
}

impl Core {
    pub fn new(began_ns: u64) -> Self {
        Self {
            free_ns: 0,
            began_ns,
            ended_ns: None,
            worked_ns: 0,
            paused_ns: 0,
            pauses_ns: 0,
            share: CoreShare::default(),
            awake_ns: began_ns,
            asleep_ns: None,
            slept_ns: 0,
        }
    }

    /// It is busy from `now_ns` on, and meanwhile the competitor's, if there is one and its turn comes.
    #[inline]
    pub fn spend(&mut self, now_ns: u64, spent_ns: u64) {
        let end_ns = match self.share.competing_slice_ns {
            None => now_ns + spent_ns,
            Some(slice_ns) => self.ends_beside(now_ns, spent_ns, slice_ns),
        };
        (self.free_ns, self.pauses_ns) = (end_ns, 0);
    }

    /// When work is done that begins in a slice of ours, if others follow that are not.
    fn ends_beside(&self, now_ns: u64, spent_ns: u64, slice_ns: u64) -> u64 {
        let into_ns = (now_ns - self.awake_ns) % (2 * slice_ns);
        let others = (into_ns + spent_ns) / slice_ns;
        now_ns + spent_ns + others * slice_ns
    }

    /// When a turn can be that is wanted at `wanted_ns`: a sleeper is woken by an interrupt, and whoever is awake waits for a slice of its own.
    #[inline]
    pub fn turn_ns(&mut self, wanted_ns: u64) -> u64 {
        if self.asleep_ns.is_some() {
            return wanted_ns + self.share.interrupt_ns;
        }
        let Some(slice_ns) = self.share.competing_slice_ns else { return wanted_ns };
        let into_ns = wanted_ns.saturating_sub(self.awake_ns) % (2 * slice_ns);
        if into_ns < slice_ns { wanted_ns } else { wanted_ns + 2 * slice_ns - into_ns }
    }

    /// A turn begins. A sleeper is awake from now on, and what woke it was work.
    #[inline]
    pub fn wake(&mut self, now_ns: u64) {
        if let Some(asleep_ns) = self.asleep_ns.take() {
            self.awake_ns = now_ns;
            let interrupt_ns = self.share.interrupt_ns.min(now_ns.saturating_sub(asleep_ns));
            self.worked_ns += interrupt_ns;
            self.slept_ns += now_ns.saturating_sub(asleep_ns + interrupt_ns);
        }
    }

    /// It sleeps from the end of its turn on.
    pub fn sleep(&mut self) {
        self.asleep_ns = Some(self.free_ns);
    }

    /// So much of that was work.
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

    /// It stands still until `end_ns`, once it has done what it does.
    pub fn pause(&mut self, now_ns: u64, end_ns: u64) {
        let ns = end_ns.saturating_sub(self.free_ns.max(now_ns));
        self.paused_ns += ns;
        self.pauses_ns += ns;
        self.free_ns = self.free_ns.max(end_ns);
    }

    /// It polls whenever it does not work or stand still.
    pub fn time(&self, now_ns: u64) -> CoreTime {
        let end_ns = self.ended_ns.unwrap_or(now_ns);
        // The last pause, or turn, may last longer.
        let beyond_ns = self.free_ns.saturating_sub(end_ns);
        let of_pause_ns = beyond_ns.min(self.pauses_ns);
        let paused_ns = self.paused_ns - of_pause_ns;
        let worked_ns = self.worked_ns.saturating_sub(beyond_ns - of_pause_ns);
        let slept_ns = self.slept_ns + self.asleep_ns.map_or(0, |asleep_ns| end_ns.saturating_sub(asleep_ns));
        let polled_ns = end_ns.saturating_sub(self.began_ns + worked_ns + paused_ns + slept_ns);
        CoreTime { worked_ns, polled_ns, slept_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE_NS: u64 = 1000;

    fn core(competing_slice_ns: Option<u64>) -> Core {
        Core { share: CoreShare { interrupt_ns: 50, competing_slice_ns }, ..Core::new(0) }
    }

    #[test]
    fn whoever_polls_beside_a_program_that_computes_has_every_other_slice() {
        let mut core = core(Some(SLICE_NS));
        for (wanted_ns, turn_ns) in [(0, 0), (999, 999), (1000, 2000), (1999, 2000), (2500, 2500), (3001, 4000)] {
            assert_eq!(core.turn_ns(wanted_ns), turn_ns, "{wanted_ns}");
        }
        // Work that does not fit in a slice goes on in the next.
        for (begins_ns, spent_ns, ends_ns) in [(0, 999, 999), (900, 200, 2100), (2000, 2500, 6500)] {
            core.spend(begins_ns, spent_ns);
            assert_eq!(core.free_ns, ends_ns, "{spent_ns} from {begins_ns}");
        }
    }

    #[test]
    fn a_sleeper_is_woken_by_an_interrupt_and_has_a_slice_at_once() {
        for competing_slice_ns in [None, Some(SLICE_NS)] {
            let mut core = core(competing_slice_ns);
            core.spend(0, 10);
            core.sleep();
            // In the other's slice.
            assert_eq!(core.turn_ns(1500), 1550);
            core.wake(1550);
            assert_eq!(core.turn_ns(1600), 1600);
            core.spend(1600, 100);
            core.work(110);
            let time = core.time(1700);
            assert_eq!((time.worked_ns, time.slept_ns, time.polled_ns), (160, 1490, 50), "{competing_slice_ns:?}");
        }
    }
}
