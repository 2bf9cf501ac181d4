//! What is known of every call, on all hosts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sinew_rpc::{Cause, ClientId, Execution};

/// See the module.
#[derive(Debug, Default)]
pub struct Ledger {
    calls: BTreeMap<u64, Known>,
    /// The hosts of clients, as the hosts that they call know them.
    clients: BTreeMap<(usize, ClientId), usize>,
    next: u64,
    outstanding: u64,
    pub answered: u64,
    pub failed: u64,
    /// No call may fail any more.
    pub must_succeed: bool,
    /// The first thing that was wrong.
    pub wrong: Option<String>,
}

/// The ledger of a run. Handlers must be able to go to other threads, though these do not.
#[derive(Clone, Debug, Default)]
pub struct Shared(Arc<Mutex<Ledger>>);

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of a call.
#[derive(Clone, Copy, Debug)]
struct Known {
    client: usize,
    server: usize,
    runs: u32,
    completions: u32,
    /// Its client was told that it did not run.
    must_not_run: bool,
    /// Its client is no more.
    is_orphan: bool,
    /// Its client may not wait for its end.
    is_impatient: bool,
}

impl Ledger {
    /// A call begins; its number is unlike any other.
    pub fn begin(&mut self, client: usize, server: usize, is_impatient: bool) -> u64 {
        self.next += 1;
        self.outstanding += 1;
        let (runs, completions, must_not_run, is_orphan) = (0, 0, false, false);
        let known = Known { client, server, runs, completions, must_not_run, is_orphan, is_impatient };
        self.calls.insert(self.next, known);
        self.next
    }

    fn complain(&mut self, what: impl FnOnce() -> String) {
        if self.wrong.is_none() {
            self.wrong = Some(what());
        }
    }

    /// The host of a client of `server`'s, once that has run a call of the client's.
    pub fn host_of(&self, server: usize, client: ClientId) -> Option<usize> {
        self.clients.get(&(server, client)).copied()
    }

    /// A server runs a call of a client's.
    pub fn run(&mut self, call: u64, server: usize, client: ClientId) {
        let Some(known) = self.calls.get_mut(&call) else {
            return self.complain(|| format!("call {call} is run and was never made"));
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

    /// A call is over; `is_right` says whether the answer was the right one.
    pub fn complete(&mut self, call: u64, result: Result<bool, (Cause, Execution)>) {
        let must_succeed = self.must_succeed;
        let Some(known) = self.calls.get_mut(&call) else {
            return self.complain(|| format!("call {call} completes and was never made"));
        };
        known.completions += 1;
        if result.is_err_and(|(_, execution)| execution != Execution::MayHaveRun) {
            known.must_not_run = true;
        }
        let known = *known;
        self.outstanding -= u64::from(known.completions == 1 && !known.is_orphan);
        if known.completions > 1 {
            return self.complain(|| format!("call {call} completes again: {known:?} {result:?}"));
        }
        match result {
            Ok(is_right) => {
                self.answered += 1;
                if !is_right || known.runs != 1 {
                    self.complain(|| format!("call {call} has the wrong answer, or was not run: {known:?} {is_right}"));
                }
            }
            Err((cause, execution)) => {
                self.failed += 1;
                if known.must_not_run && known.runs > 0 {
                    self.complain(|| {
                        format!("call {call} ends as if it had not run: {known:?} {cause:?} {execution:?}")
                    });
                }
                let ended_itself = matches!(cause, Cause::DeadlinePassed | Cause::Cancelled);
                if ended_itself && !known.is_impatient {
                    self.complain(|| format!("call {call} ends as nobody wanted: {known:?} {cause:?}"));
                }
                if must_succeed && !ended_itself {
                    self.complain(|| format!("call {call} fails though all is well: {known:?} {cause:?}"));
                }
            }
        }
    }

    /// A host lost its memory: its calls end with it.
    pub fn crashed(&mut self, client: usize) {
        for known in self.calls.values_mut().filter(|known| known.client == client) {
            if known.completions == 0 && !known.is_orphan {
                known.is_orphan = true;
                self.outstanding -= 1;
            }
        }
    }

    /// Calls that are not over, of clients that are there.
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// For people: what is not over.
    pub fn left(&self, members: &str) -> String {
        let left = self.calls.iter().filter(|(_, known)| known.completions == 0 && !known.is_orphan);
        let some: Vec<String> = left.take(5).map(|(call, known)| format!("call {call}: {known:?}")).collect();
        format!("{} calls are not over, as {}; {members}", self.outstanding, some.join(", "))
    }
}
