//! The ledger: everything that is known of every call, on all hosts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sinew_harness::units::counted;
use sinew_rpc::{Cause, ClientId, Execution, LaneId};

/// Knowledge of all calls of a run.
#[derive(Debug, Default)]
pub struct Ledger {
    calls: BTreeMap<u64, CallRecord>,
    /// Host of each client, by the server that knows the client under this name.
    clients: BTreeMap<(usize, ClientId), usize>,
    next: u64,
    outstanding: u64,
    pub answered: u64,
    pub failed: u64,
    /// Calls that handlers kept, and those of them that servers then saw abandoned.
    pub kept: u64,
    pub abandoned: u64,
    /// Calls whose completion must not be reported, since their lanes were closed or their callers dropped them.
    pub silenced: u64,
    /// Whether calls may no longer fail.
    pub must_succeed: bool,
    /// Description of the first thing that went wrong.
    pub wrong: Option<String>,
}

/// The shared ledger of a run. It is behind a mutex because handlers must be able to move to other threads, although
/// these do not.
#[derive(Clone, Debug, Default)]
pub struct Shared(Arc<Mutex<Ledger>>);

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time for which the client of a call waits for its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// For ever.
    Endless,
    /// Until a deadline. No host's clock passes the deadline before this time of the cluster's clock, in ns.
    Until(u64),
    /// Until it cancels the call.
    UntilCancelled,
}

/// A moment, with enough to tell later whether a packet that was sent then must have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Time on the cluster's clock.
    pub time_ns: u64,
    /// Packets lost in the whole cluster until then.
    pub lost: u64,
}

/// Knowledge of one call.
#[derive(Clone, Copy, Debug)]
struct CallRecord {
    client: usize,
    server: usize,
    /// Lane on which it must complete.
    lane: LaneId,
    patience: Patience,
    runs: u32,
    completions: u32,
    /// Whether its client was told that it did not run.
    must_not_run: bool,
    /// Whether its client has crashed.
    is_orphan: bool,
    /// When its client cancelled it, closed its lane or dropped it.
    stopped: Option<Moment>,
    /// Whether its completion must not be reported.
    is_silenced: bool,
    /// Whether its server dropped it without an answer.
    is_dropped: bool,
    /// Whether its server was told that its client no longer waits.
    is_abandoned: bool,
}

impl CallRecord {
    /// Whether its client waits for it at this time.
    fn is_waited_for(&self, time_ns: u64) -> bool {
        let is_late = matches!(self.patience, Patience::Until(end_ns) if time_ns >= end_ns);
        self.completions == 0 && !self.is_orphan && self.stopped.is_none() && !is_late
    }
}

impl Ledger {
    /// Notes that a call begins, and returns its unique number.
    pub fn begin(&mut self, client: usize, server: usize, lane: LaneId, patience: Patience) -> u64 {
        self.next += 1;
        self.outstanding += 1;
        let known = CallRecord {
            client,
            server,
            lane,
            patience,
            runs: 0,
            completions: 0,
            must_not_run: false,
            is_orphan: false,
            stopped: None,
            is_silenced: false,
            is_dropped: false,
            is_abandoned: false,
        };
        self.calls.insert(self.next, known);
        self.next
    }

    pub fn complain(&mut self, what: impl FnOnce() -> String) {
        if self.wrong.is_none() {
            self.wrong = Some(what());
        }
    }

    /// Host of a client of `server`, once the server has run a call of that client.
    pub fn host_of(&self, server: usize, client: ClientId) -> Option<usize> {
        self.clients.get(&(server, client)).copied()
    }

    /// Notes that a server runs a call of a client.
    pub fn run(&mut self, call: u64, server: usize, client: ClientId) {
        let Some(known) = self.calls.get_mut(&call) else {
            return self.complain(|| format!("call {call} is run although it was never made"));
        };
        let host = *self.clients.entry((server, client)).or_insert(known.client);
        if host != known.client {
            let known = *known;
            return self.complain(|| format!("call {call} seems to come from host {host}: {known:?}"));
        }
        known.runs += 1;
        let known = *known;
        if known.runs > 1 {
            self.complain(|| format!("call {call} is run again: {known:?}"));
        }
        if known.server != server {
            self.complain(|| format!("call {call} is run by host {server}: {known:?}"));
        }
        if known.must_not_run {
            self.complain(|| format!("call {call} is run after its client was told that it would not be: {known:?}"));
        }
    }

    /// Whether the client of a call will stop waiting for it, whatever the server does.
    pub fn is_impatient(&self, call: u64) -> bool {
        self.calls.get(&call).is_some_and(|known| known.patience != Patience::Endless)
    }

    /// Notes that the client cancels a call, whose completion is still reported to it.
    pub fn cancel(&mut self, call: u64, now: Moment) {
        if let Some(known) = self.calls.get_mut(&call) {
            known.stopped.get_or_insert(now);
        }
    }

    /// Notes that the client stops waiting for a call, whose completion must not be reported to it.
    pub fn silence(&mut self, call: u64, now: Moment) {
        let Some(known) = self.calls.get_mut(&call) else { return };
        known.stopped.get_or_insert(now);
        known.is_silenced = true;
        self.outstanding -= u64::from(known.completions == 0 && !known.is_orphan);
        self.silenced += 1;
    }

    /// When the client of a call stopped waiting, unless it has crashed and could not say so.
    pub fn stopped(&self, call: u64) -> Option<Moment> {
        self.calls.get(&call).filter(|known| !known.is_orphan).and_then(|known| known.stopped)
    }

    /// Notes that a call which a server keeps is reported as abandoned; `is_connected` says that the call's client is
    /// still there.
    pub fn abandon(&mut self, call: u64, is_connected: bool, time_ns: u64) {
        self.abandoned += 1;
        let Some(known) = self.calls.get_mut(&call) else { return };
        known.is_abandoned = true;
        let known = *known;
        if is_connected && known.is_waited_for(time_ns) {
            self.complain(|| format!("call {call} counts as abandoned while its client waits: {known:?}"));
        }
    }

    /// Notes that a server drops a call without an answer.
    pub fn drop_unanswered(&mut self, call: u64) {
        if let Some(known) = self.calls.get_mut(&call) {
            known.is_dropped = true;
        }
    }

    /// Notes that a call completes on a lane. `is_right` says whether the answer was right.
    pub fn complete(&mut self, call: u64, lane: LaneId, result: Result<bool, (Cause, Execution)>) {
        let must_succeed = self.must_succeed;
        let Some(known) = self.calls.get_mut(&call) else {
            return self.complain(|| format!("call {call} completes although it was never made"));
        };
        known.completions += 1;
        if result.is_err_and(|(_, execution)| execution != Execution::MayHaveRun) {
            known.must_not_run = true;
        }
        let known = *known;
        if known.is_silenced {
            return self.complain(|| format!("call {call} completes although it was silenced: {known:?} {result:?}"));
        }
        self.outstanding -= u64::from(known.completions == 1 && !known.is_orphan);
        if known.completions > 1 {
            return self.complain(|| format!("call {call} completes again: {known:?} {result:?}"));
        }
        if known.lane != lane {
            return self.complain(|| format!("call {call} completes on {lane:?}: {known:?} {result:?}"));
        }
        match result {
            Ok(is_right) => {
                self.answered += 1;
                if !is_right || known.runs != 1 {
                    self.complain(|| format!("call {call} has the wrong answer, or was not run: {known:?} {is_right}"));
                }
                if known.is_dropped || known.is_abandoned {
                    self.complain(|| format!("call {call} has an answer that its server cannot have given: {known:?}"));
                }
            }
            Err((cause, execution)) => {
                self.failed += 1;
                if known.must_not_run && known.runs > 0 {
                    self.complain(|| {
                        format!("call {call} ends as if it had not run: {known:?} {cause:?} {execution:?}")
                    });
                }
                let ended_by_client = matches!(cause, Cause::DeadlinePassed | Cause::Cancelled);
                if ended_by_client && known.patience == Patience::Endless {
                    self.complain(|| format!("call {call} ends, but had no limit: {known:?} {cause:?}"));
                }
                let was_dropped = cause == Cause::HandlerDropped;
                if was_dropped && !known.is_dropped {
                    self.complain(|| format!("call {call} was not dropped: {known:?} {cause:?}"));
                }
                if must_succeed && !ended_by_client && !was_dropped {
                    self.complain(|| format!("call {call} fails although all faults have ended: {known:?} {cause:?}"));
                }
            }
        }
    }

    /// Notes that a host has lost its memory: its calls are gone with it.
    pub fn forget_client(&mut self, client: usize) {
        for known in self.calls.values_mut().filter(|known| known.client == client && !known.is_orphan) {
            self.outstanding -= u64::from(known.completions == 0 && !known.is_silenced);
            known.is_orphan = true;
        }
    }

    /// Calls in flight whose clients are still there.
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Describes the calls in flight, for people.
    pub fn describe_left(&self, members: &str) -> String {
        let is_left = |known: &CallRecord| known.completions == 0 && !known.is_orphan && !known.is_silenced;
        let left = self.calls.iter().filter(|(_, known)| is_left(known));
        let some: Vec<String> = left.take(5).map(|(call, known)| format!("call {call}: {known:?}")).collect();
        format!("{} not completed, such as {}; {members}", counted(self.outstanding, "call"), some.join(", "))
    }
}
