//! Small requests beside transfers of 4 MB of the same process (apnet19 4.3), with a fair share for each and without.

use std::cell::RefCell;
use std::rc::Rc;

use sinew_fabric::Clock;
use sinew_fabric::share::{
    ClassConfig, ClassId, FinishedRequest, Share, ShareConfig, ShareLimits, SharedQpId, Transfer,
};
use sinew_fabric::verbs::{
    Access, Device, Exposed, ProtectionDomain, QpConfig, QueuePair, RemoteMemory, Slice, ThreadDomain, Transport,
};
use sinew_mem::Frozen;
use sinew_sim::nic::Profile;
use sinew_sim::{Actor, ActorState, SimClock, SimCq, SimQp};

use super::bulk::BULK;
use crate::experiment::{Experiment, Row};
use crate::nics::cluster::NicCluster;

/// Experiment with fair shares.
pub struct FairShare;

/// Bytes of a small request (`SMALL`), and most bytes that surround it on the link (`HEADERS_LEN`: RoCE version 2, an
/// RC WRITE or the answer to a READ).
const SMALL: usize = 256;
const HEADERS_LEN: usize = 98;
/// Small requests, and transfers, that are in flight or wait.
const SMALL_WINDOW: usize = 32;
const BULK_WINDOW: usize = 2;
const SMALL_CLASS: ClassId = ClassId(0);
const BULK_CLASS: ClassId = ClassId(1);
const WARM_UP_NS: u64 = 4_000_000;
const MEASURED_NS: u64 = 100_000_000;

/// NICs that are run, each with the time in ns from one small request to the next; 0 if the core makes them as fast as
/// it can. On the fast link that would leave transfers nothing of the core.
pub const NICS: [(&str, u64); 2] = [("cx3-roce10", 0), ("cx3", 500)];

/// Load of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadMode {
    /// Small requests alone.
    Alone,
    /// Transfers beside them, all handed to the NIC at once.
    Unscheduled,
    /// Transfers beside them, both scheduled with equal weights.
    Scheduled,
}

/// Rate of each class.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClassRates {
    /// Millions of small requests a second.
    pub small_mops: f64,
    /// Rate of the transfers, in Gb/s.
    pub bulk_gbps: f64,
}

struct Process {
    share: Share<SimQp>,
    cq: SimCq,
    lanes: [SharedQpId; 2],
    reads: bool,
    source: Frozen,
    remote: RemoteMemory,
    has_bulk: bool,
    has_begun: bool,
    /// Small requests that can be made now, the time at which the next is due, and the time between two.
    free_slots: usize,
    next_ns: u64,
    pace_ns: u64,
    clock: SimClock,
    completions: Vec<FinishedRequest>,
    /// Small requests and transfers that completed.
    done: Rc<RefCell<[u64; 2]>>,
}

impl Process {
    fn submit(&mut self, class: ClassId) {
        let len = if class == SMALL_CLASS { SMALL } else { BULK };
        let remote = self.remote;
        let transfer = if self.reads {
            Transfer::Read { remote, len }
        } else {
            Transfer::Write { source: Slice { buffer: self.source.clone(), start: 0, len }, remote }
        };
        self.share.submit(class, self.lanes[class.0], 0, transfer).expect("as many as can be under way");
    }
}

impl Actor for Process {
    fn turn(&mut self) -> ActorState {
        if !std::mem::replace(&mut self.has_begun, true) {
            (0..if self.has_bulk { BULK_WINDOW } else { 0 }).for_each(|_| self.submit(BULK_CLASS));
            self.free_slots = SMALL_WINDOW;
        }
        let mut completions = std::mem::take(&mut self.completions);
        let found = self.share.turn(&mut self.cq, |done| completions.push(done), |other| panic!("{other:?}"));
        for done in completions.drain(..) {
            assert!(done.status.is_success(), "{done:?}");
            self.done.borrow_mut()[done.class.0] += 1;
            self.share.recycle(done.buffers);
            if done.class == SMALL_CLASS {
                self.free_slots += 1;
            } else {
                self.submit(BULK_CLASS);
            }
        }
        self.completions = completions;
        let now_ns = self.clock.now_ns();
        while self.free_slots > 0 && self.next_ns <= now_ns {
            self.free_slots -= 1;
            self.next_ns += self.pace_ns;
            self.submit(SMALL_CLASS);
        }
        match found {
            0 if self.free_slots > 0 => ActorState::IdleUntil(self.next_ns.max(now_ns + 1)),
            0 => ActorState::Idle,
            _ => ActorState::Work,
        }
    }
}

/// Limits of a share: some microseconds of the link are outstanding, in chunks that are a fraction of that.
fn limits(profile: &Profile) -> ShareLimits {
    let chunk_len = if profile.link.rate_gbps > 20.0 { 16 << 10 } else { 4 << 10 };
    ShareLimits {
        chunk_len,
        overhead_len: HEADERS_LEN as u64,
        quantum_len: 2 * (chunk_len + HEADERS_LEN as u64),
        outstanding_max_len: 3 * (chunk_len + HEADERS_LEN as u64),
    }
}

/// Runs a process with small requests and transfers, by READ or by WRITE.
pub fn run(profile: &Profile, pace_ns: u64, reads: bool, mode: LoadMode) -> ClassRates {
    let mut nics = NicCluster::new(profile, 2, 1);
    let (near, far) = (nics.open(0), nics.open(1));
    let [(domain, thread), (far_domain, far_thread)] = [&near, &far].map(|device| {
        let domain = device.protection_domain().expect("a domain");
        let thread = domain.thread().expect("queues");
        (domain, thread)
    });
    let memory = far_domain.expose(BULK, Access::ALL).expect("memory");
    let config = QpConfig { send_depth: 1024, receive_depth: 1, ..QpConfig::new(Transport::Rc) };
    let cq = thread.completion_queue(4096).expect("a queue");
    let far_cq = far_thread.completion_queue(4096).expect("a queue");
    // Enough memory for the chunks of all transfers.
    let arena = domain.arena(256 << 20).expect("an arena");
    let limits = match mode {
        LoadMode::Scheduled => limits(profile),
        _ => {
            let unlimited = 1 << 40;
            ShareLimits {
                chunk_len: BULK as u64,
                overhead_len: 0,
                quantum_len: unlimited,
                outstanding_max_len: unlimited,
            }
        }
    };
    let bound = limits.outstanding_max_len;
    let bulk = ClassConfig { weight: 1, outstanding_max_len: bound, reserve_len: 0 };
    let small = ClassConfig { reserve_len: (SMALL_WINDOW * (SMALL + HEADERS_LEN)) as u64, ..bulk };
    let requests_max = SMALL_WINDOW + BULK_WINDOW;
    let mut share = Share::new(&ShareConfig { limits, classes: vec![small, bulk], requests_max }, arena.clone())
        .expect("bounds that fit");
    let mut ends = Vec::new();
    let lanes = [0, 1].map(|_| {
        let mut qp = thread.queue_pair(&config, &cq, &cq).expect("a queue pair");
        let mut end = far_thread.queue_pair(&config, &far_cq, &far_cq).expect("a queue pair");
        qp.connect(Some(&end.address())).expect("a connection");
        end.connect(Some(&qp.address())).expect("a connection");
        ends.push(end);
        share.add(qp, config.send_depth)
    });
    let source = arena.alloc(BULK, BULK).expect("room").freeze();
    let done = Rc::new(RefCell::new([0; 2]));
    let process = Process {
        share,
        cq,
        lanes,
        reads,
        source,
        remote: memory.remote(),
        has_bulk: mode != LoadMode::Alone,
        has_begun: false,
        free_slots: 0,
        next_ns: 0,
        pace_ns,
        clock: nics.clock(),
        completions: Vec::new(),
        done: Rc::clone(&done),
    };
    nics.add(&near, process);
    nics.cluster.run_until(WARM_UP_NS);
    let before = *done.borrow();
    nics.cluster.run_until(WARM_UP_NS + MEASURED_NS);
    let after = *done.borrow();
    let measured_ns = MEASURED_NS as f64;
    ClassRates {
        small_mops: (after[0] - before[0]) as f64 * 1e3 / measured_ns,
        bulk_gbps: (after[1] - before[1]) as f64 * BULK as f64 * 8.0 / measured_ns,
    }
}

/// Rates of a process in each kind of run, and the fair ones.
struct RateComparison {
    alone: ClassRates,
    unscheduled: ClassRates,
    scheduled: ClassRates,
    /// The lesser of the rate of small requests alone and that of half of the link.
    fair_small_mops: f64,
    /// Rate that the scheduled small requests leave of the link for transfers, in Gb/s.
    rest_gbps: f64,
}

impl RateComparison {
    fn of(name: &str, pace_ns: u64, reads: bool) -> Self {
        let profile = Profile::built_in(name).expect("it is built in");
        let [alone, unscheduled, scheduled] = [LoadMode::Alone, LoadMode::Unscheduled, LoadMode::Scheduled]
            .map(|beside| run(&profile, pace_ns, reads, beside));
        let rate_gbps = profile.link.rate_gbps;
        let small_bits = ((SMALL + HEADERS_LEN) * 8) as f64;
        let fair_small_mops = alone.small_mops.min(rate_gbps * 1e3 / 2.0 / small_bits);
        let mtu = profile.link.mtu as f64;
        let rest_gbps = (rate_gbps - scheduled.small_mops * small_bits / 1e3) * mtu / (mtu + HEADERS_LEN as f64);
        Self { alone, unscheduled, scheduled, fair_small_mops, rest_gbps }
    }
}

impl Experiment for FairShare {
    fn id(&self) -> &'static str {
        "apnet19-share"
    }

    fn title(&self) -> &'static str {
        "A fair share for small requests beside transfers of 4 MB"
    }

    fn source(&self) -> &'static str {
        "apnet19 4.3, 5"
    }

    fn setup(&self) -> &'static str {
        "A process makes requests of 256 B, 32 at a time (two million per second on the 56 Gb/s link), and transfers \
         of 4 MB, two at a time, to another host, all by WRITE or all by READ, on a queue pair for each. There are \
         runs with small requests alone, with both handed to the NIC as they come, and with both scheduled by a share \
         with equal weights, which cuts transfers into chunks and keeps only some microseconds of the link \
         outstanding."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        for (nth, (name, pace_ns)) in NICS.into_iter().enumerate() {
            for (verb, reads) in [("WRITE", false), ("READ", true)] {
                progress((2 * nth + usize::from(reads)) as f64 / 4.0);
                let RateComparison { alone, unscheduled, scheduled, fair_small_mops, rest_gbps } =
                    RateComparison::of(name, pace_ns, reads);
                for (id, metric, model, unit) in [
                    ("small.alone", "small requests, alone", alone.small_mops, "M/s"),
                    ("small.fair", "small requests, fair share", fair_small_mops, "M/s"),
                    ("small.unscheduled", "small requests, unscheduled", unscheduled.small_mops, "M/s"),
                    ("small.scheduled", "small requests, scheduled", scheduled.small_mops, "M/s"),
                    ("bulk.unscheduled", "transfers, unscheduled", unscheduled.bulk_gbps, "Gbps"),
                    ("bulk.scheduled", "transfers, scheduled", scheduled.bulk_gbps, "Gbps"),
                    ("bulk.rest", "what scheduled small requests leave", rest_gbps, "Gbps"),
                ] {
                    let id = format!("roce.share.{name}.{}.{id}", verb.to_lowercase());
                    rows.push(Row::model(id, metric, model, unit).case(format!("{name}, {verb}")));
                }
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_requests_and_transfers_each_get_their_share() {
        for (name, pace_ns) in NICS {
            for reads in [false, true] {
                let RateComparison { unscheduled, scheduled, fair_small_mops, rest_gbps, .. } =
                    RateComparison::of(name, pace_ns, reads);
                let what = format!("{name}, reads {reads}: {scheduled:?}, unscheduled {unscheduled:?}");
                assert!(scheduled.small_mops >= 0.8 * fair_small_mops, "{what}, fair {fair_small_mops}");
                assert!(scheduled.bulk_gbps >= 0.8 * rest_gbps, "{what}, rest {rest_gbps}");
                // Without a share, small requests starve.
                assert!(unscheduled.small_mops < 0.5 * fair_small_mops, "{what}");
            }
        }
    }
}
