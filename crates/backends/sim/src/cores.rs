//! What a core does with its time.

/// How a core spent its time until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// On turns that found something, or did; a worker's: on jobs.
    pub worked_ns: u64,
    /// Polling in vain: turns that need not be run are charged all the same. A worker's: with nothing to do.
    pub polled_ns: u64,
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
}

impl Core {
    pub fn new(began_ns: u64) -> Self {
        Self { free_ns: 0, began_ns, ended_ns: None, worked_ns: 0, paused_ns: 0, pauses_ns: 0 }
    }

    /// It is busy from `now_ns` on.
    #[inline]
    pub fn spend(&mut self, now_ns: u64, spent_ns: u64) {
        (self.free_ns, self.pauses_ns) = (now_ns + spent_ns, 0);
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
        CoreTime { worked_ns, polled_ns: end_ns.saturating_sub(self.began_ns + worked_ns + paused_ns) }
    }
}
