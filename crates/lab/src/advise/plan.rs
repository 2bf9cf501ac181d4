//! What is run: a design with its settings, and how long.

use std::cell::{Cell, RefCell};

use sinew_sim::Doing;
use sinew_sim::nic::Profile;

use super::design::{Design, RPC_CLIENT_NS, RPC_SERVER_NS, Settings, Wait};
use super::workload::{Goal, Kind, Load, Workload};

/// A design with its settings, on a NIC.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The NIC of every host, with the packets that the settings say.
    pub profile: Profile,
    /// What is to be done.
    pub workload: Workload,
    /// How.
    pub design: Design,
    /// With which settings.
    pub settings: Settings,
    /// Bytes of an access's READs.
    pub reads: Vec<usize>,
}

/// A message of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its bytes; none where the header says all.
    pub len: usize,
    /// Whether they are in the work queue element.
    pub inline: bool,
}

impl Plan {
    /// A plan.
    pub fn new(profile: &Profile, workload: &Workload, design: Design, settings: Settings) -> Self {
        let mut profile = profile.clone();
        profile.link.mtu = settings.mtu;
        Self { profile, workload: workload.clone(), design, settings, reads: design.reads(workload) }
    }

    /// Clients that are simulated: one where it counts how soon one access is over.
    pub fn clients(&self) -> usize {
        if self.settings.window == 1 && self.workload.goal == Goal::Latency { 1 } else { self.workload.peers }
    }

    /// How long it is on the average from one access to the next, where accesses come up at times of their own: on busy processors how soon they are over
    /// depends on whose slice of time it is then. Else one follows the other.
    pub fn rests_ns(&self) -> Option<u64> {
        let Workload { goal, client_cpu, server_cpu, .. } = self.workload;
        let is_busy = [client_cpu, server_cpu].contains(&Load::Busy);
        (goal == Goal::Latency && is_busy).then_some(self.profile.core.time_slice_ns / 10)
    }

    /// Threads of the server that take part.
    pub fn server_threads(&self) -> usize {
        if self.design.is_served(&self.workload) { self.settings.threads } else { 0 }
    }

    /// Parts of an access, each of which awaits the one before.
    pub fn steps(&self, changes: bool) -> usize {
        match self.design {
            Design::Reads(_) if !changes => self.reads.len(),
            // A lock is taken and given back.
            _ if self.workload.kind == Kind::Locks => 2,
            _ => 1,
        }
    }

    /// A call's request.
    pub fn request(&self, changes: bool) -> Message {
        if self.design == Design::HeaderOnly {
            return Message { len: 0, inline: false };
        }
        let len = if changes { self.workload.change_len() } else { self.workload.request_len() };
        // A slot's last word says that it is whole.
        let len = if self.is_written() { len.next_multiple_of(8) } else { len + self.design.header() };
        self.message(len)
    }

    /// The answer to it. That to a change says nothing but that it was done.
    pub fn answer(&self, changes: bool) -> Message {
        if self.design == Design::HeaderOnly {
            return Message { len: 0, inline: false };
        }
        let len = if changes { 0 } else { self.workload.answer_len() };
        self.message(len + self.design.header())
    }

    fn message(&self, len: usize) -> Message {
        Message { len, inline: self.settings.inline && len > 0 && len <= self.profile.wqe.inline_max }
    }

    /// Whether requests of calls are WRITEs.
    pub fn is_written(&self) -> bool {
        !matches!(self.design, Design::SendSend | Design::HeaderOnly | Design::Rpc)
    }

    /// Whether their answers are datagrams.
    pub fn answers_by_datagram(&self) -> bool {
        self.design.answers_by_datagram(&self.workload, &self.profile)
    }

    /// Answers of a server's thread that may be on their way: more are more than the NIC remembers the elements of, and it fetches them again
    /// (sigcomm14 3.3, atc16 3.5).
    pub fn answers_max(&self) -> usize {
        let Settings { threads, queue_pairs, signal, batch, .. } = self.settings;
        (self.profile.caches.wqes / threads).max(queue_pairs * signal + batch)
    }

    /// What a library does beside, at the client and at the server.
    pub fn library_ns(&self) -> (u64, u64) {
        if self.design == Design::Rpc { (RPC_CLIENT_NS, RPC_SERVER_NS) } else { (0, 0) }
    }
}

/// What came of the accesses that were over while it was measured.
#[derive(Debug, Default)]
pub struct Record {
    /// When measuring begins.
    pub from_ns: Cell<u64>,
    /// How many were over since.
    pub done: Cell<u64>,
    /// How long some of them took.
    pub took_ns: RefCell<Vec<u64>>,
}

/// Of so many accesses one is timed, once there are many.
const SAMPLED_MAX: usize = 100_000;

impl Record {
    /// An access is over.
    pub fn note_done(&self, now_ns: u64) {
        if now_ns >= self.from_ns.get() {
            self.done.set(self.done.get() + 1);
        }
    }

    /// It took so long.
    pub fn note_time(&self, began_ns: u64, now_ns: u64) {
        let mut took_ns = self.took_ns.borrow_mut();
        if now_ns >= self.from_ns.get() && took_ns.len() < SAMPLED_MAX {
            took_ns.push(now_ns - began_ns);
        }
    }

    /// How long they took, if anything was timed.
    pub fn times(&self) -> Option<Times> {
        let mut took_ns = self.took_ns.borrow().clone();
        took_ns.sort_unstable();
        let last = took_ns.len().checked_sub(1)?;
        let at = |percent: usize| took_ns[(took_ns.len() * percent / 100).min(last)];
        let mean_ns = took_ns.iter().sum::<u64>() / took_ns.len() as u64;
        Some(Times { mean_ns, p50_ns: at(50), p99_ns: at(99) })
    }
}

/// How long accesses took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// On the average.
    pub mean_ns: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
}

/// What a core does that waits as its settings say, found something last at `found_ns`, and has something to do at `next_ns`, if it has.
pub fn waits(wait: Wait, found_ns: u64, now_ns: u64, interrupt_ns: u64, next_ns: Option<u64>) -> Doing {
    let until_ns = found_ns + interrupt_ns;
    match (wait, next_ns) {
        (Wait::Poll, None) => Doing::Idle,
        (Wait::Poll, Some(next_ns)) => Doing::IdleUntil(next_ns),
        (Wait::Adaptive, _) if now_ns < until_ns => Doing::IdleUntil(next_ns.unwrap_or(until_ns).min(until_ns)),
        (Wait::Events | Wait::Adaptive, None) => Doing::Asleep,
        (Wait::Events | Wait::Adaptive, Some(next_ns)) => Doing::AsleepUntil(next_ns),
    }
}
