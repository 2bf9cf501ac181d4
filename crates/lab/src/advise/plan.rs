//! Plans (a design with its settings, on a NIC) and records of what their runs complete.

use std::cell::{Cell, RefCell};

use sinew_sim::ActorState;
use sinew_sim::nic::Profile;

use super::design::{Design, RPC_CLIENT_NS, RPC_SERVER_NS, Settings, Wait};
use super::workload::{CpuLoad, Goal, Workload, WorkloadKind};

/// A design with its settings, on a NIC.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The NIC of every host, with packets as long as the settings say.
    pub profile: Profile,
    /// The workload.
    pub workload: Workload,
    /// The design.
    pub design: Design,
    /// Settings of the design.
    pub settings: Settings,
    /// Lengths of an access's READs, in bytes.
    pub reads: Vec<usize>,
}

/// A message of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Bytes of its payload; 0 if the header says everything.
    pub len: usize,
    /// Whether the payload is inline in the work queue element.
    pub inline: bool,
}

impl Plan {
    /// A plan on a NIC whose packets become as long as the settings say.
    pub fn new(profile: &Profile, workload: &Workload, design: Design, settings: Settings) -> Self {
        let mut profile = profile.clone();
        profile.link.mtu = settings.mtu;
        Self { profile, workload: workload.clone(), design, settings, reads: design.reads(workload) }
    }

    /// Clients that are simulated: only one if the latency of a single access is the goal.
    pub fn clients(&self) -> usize {
        if self.settings.window == 1 && self.workload.goal == Goal::Latency { 1 } else { self.workload.peers }
    }

    /// Mean time from one access to the next, in ns, if accesses come at times of their own: they do on busy
    /// processors, where a latency depends on whose time slice it is. Otherwise an access follows the one before at
    /// once.
    pub fn mean_gap_ns(&self) -> Option<u64> {
        let Workload { goal, client_cpu, server_cpu, .. } = self.workload;
        let is_busy = [client_cpu, server_cpu].contains(&CpuLoad::Busy);
        (goal == Goal::Latency && is_busy).then_some(self.profile.core.time_slice_ns / 10)
    }

    /// Threads of the server that take part.
    pub fn server_threads(&self) -> usize {
        if self.design.is_served(&self.workload) { self.settings.threads } else { 0 }
    }

    /// Steps of an access, each of which awaits the one before.
    pub fn steps(&self, changes: bool) -> usize {
        match self.design {
            Design::Reads(_) if !changes => self.reads.len(),
            // A lock is acquired and released.
            _ if self.workload.kind == WorkloadKind::Locks => 2,
            _ => 1,
        }
    }

    /// Request of a call.
    pub fn request(&self, changes: bool) -> Message {
        if self.design == Design::HeaderOnly {
            return Message { len: 0, inline: false };
        }
        let len = if changes { self.workload.change_len() } else { self.workload.request_len() };
        // The last word of a slot says that the request is complete.
        let len = if self.is_written() { len.next_multiple_of(8) } else { len + self.design.header() };
        self.message(len)
    }

    /// Answer of a call. The answer to a change has no payload: it says only that it was done.
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

    /// Whether the requests of calls are WRITEs.
    pub fn is_written(&self) -> bool {
        !matches!(self.design, Design::SendSend | Design::HeaderOnly | Design::Rpc)
    }

    /// Whether the answers of calls are datagrams.
    pub fn answers_by_datagram(&self) -> bool {
        self.design.answers_by_datagram(&self.workload, &self.profile)
    }

    /// Most answers of a server thread that may be in flight. If there were more, the NIC's cache could not hold their
    /// work queue elements, and it would fetch them again (sigcomm14 3.3, atc16 3.5).
    pub fn answers_max(&self) -> usize {
        let Settings { threads, queue_pairs, signal, batch, .. } = self.settings;
        (self.profile.caches.wqes / threads).max(queue_pairs * signal + batch)
    }

    /// Time in ns that the RPC library takes for a call, at the client and at the server.
    pub fn library_ns(&self) -> (u64, u64) {
        if self.design == Design::Rpc { (RPC_CLIENT_NS, RPC_SERVER_NS) } else { (0, 0) }
    }
}

/// Record of the accesses that completed during the measurement.
#[derive(Debug, Default)]
pub struct Record {
    /// When the measurement begins.
    pub from_ns: Cell<u64>,
    /// Accesses completed since then.
    pub done: Cell<u64>,
    /// Times of the first [`TIMED_MAX`] accesses, in ns.
    pub times_ns: RefCell<Vec<u64>>,
}

/// Most accesses that are timed.
const TIMED_MAX: usize = 100_000;

impl Record {
    /// Counts an access that has completed.
    pub fn note_done(&self, now_ns: u64) {
        if now_ns >= self.from_ns.get() {
            self.done.set(self.done.get() + 1);
        }
    }

    /// Notes the time of an access.
    pub fn note_time(&self, began_ns: u64, now_ns: u64) {
        let mut times_ns = self.times_ns.borrow_mut();
        if now_ns >= self.from_ns.get() && times_ns.len() < TIMED_MAX {
            times_ns.push(now_ns - began_ns);
        }
    }

    /// Summary of the times, if anything was timed.
    pub fn times(&self) -> Option<Times> {
        let mut times_ns = self.times_ns.borrow().clone();
        times_ns.sort_unstable();
        let last = times_ns.len().checked_sub(1)?;
        let at = |percent: usize| times_ns[(times_ns.len() * percent / 100).min(last)];
        let mean_ns = times_ns.iter().sum::<u64>() / times_ns.len() as u64;
        Some(Times { mean_ns, p50_ns: at(50), p99_ns: at(99) })
    }
}

/// Summary of the accesses' times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Mean.
    pub mean_ns: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
}

/// Next step of a core that has found nothing and waits as `wait` says. It last found something at `last_work_ns`, and
/// its own next work, if there is any, is due at `next_ns`.
pub fn next_doing(wait: Wait, last_work_ns: u64, now_ns: u64, interrupt_ns: u64, next_ns: Option<u64>) -> ActorState {
    let until_ns = last_work_ns + interrupt_ns;
    match (wait, next_ns) {
        (Wait::Poll, None) => ActorState::Idle,
        (Wait::Poll, Some(next_ns)) => ActorState::IdleUntil(next_ns),
        (Wait::Adaptive, _) if now_ns < until_ns => ActorState::IdleUntil(next_ns.unwrap_or(until_ns).min(until_ns)),
        (Wait::Events | Wait::Adaptive, None) => ActorState::Asleep,
        (Wait::Events | Wait::Adaptive, Some(next_ns)) => ActorState::AsleepUntil(next_ns),
    }
}
