//! Designs that a workload allows, and their settings.

use sinew_sim::nic::Profile;

use super::workload::{CpuLoad, Goal, OUTSTANDING_BYTES, Workload, WorkloadKind};

/// A chain of READs, each of which depends on the result of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// One READ of the neighbourhood of six items that a key hashes to (FaRM).
    Neighbourhood,
    /// READs of 32-byte buckets, 1.6 on average, and then one of the item (Pilaf).
    Buckets,
    /// A READ of a 32-byte entry, and then one of the item (DrTM; FaRM with items of any length).
    Entry,
    /// READs of 8-byte pointers, and then one of the object; only the latter if the object's place is known.
    Pointers,
}

/// Placement of locks in records of 4 KB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// All at the same offset in their records, so that the 12 low bits of their addresses are equal.
    SameBits,
    /// At different offsets.
    Spread,
}

/// Way to make an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// READs, which bypass the server's processor. Changes are calls, as by [`Design::WriteSend`].
    Reads(Chain),
    /// A WRITE into server memory that the server polls, and a SEND by datagram back (HERD).
    WriteSend,
    /// SENDs by datagram in both directions.
    SendSend,
    /// SENDs by datagram without payload: the header's immediate says everything.
    HeaderOnly,
    /// Calls by an RPC library over datagrams, with its header and its CPU time.
    Rpc,
    /// Fetch-and-add for a sequencer; compare-and-swap, and a WRITE to release it, for a lock.
    Atomics(Placement),
}

/// Way to wait for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The core polls.
    Poll,
    /// The core sleeps until an interrupt.
    Events,
    /// The core polls for as long as an interrupt takes, and then sleeps.
    Adaptive,
}

/// Settings that a design leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Accesses in flight of each client.
    pub window: usize,
    /// Most answers that the server sends with one doorbell.
    pub batch: usize,
    /// Datagram queue pairs of each server thread.
    pub queue_pairs: usize,
    /// Whether payloads are inline in the work queue elements, where they fit.
    pub inline: bool,
    /// Signaling interval: of the requests that need no completion, one in this many asks for one.
    pub signal: usize,
    /// Way in which clients wait.
    pub client_wait: Wait,
    /// Way in which the server's threads wait.
    pub server_wait: Wait,
    /// Threads of the server.
    pub threads: usize,
    /// Longest payload of a packet, in bytes.
    pub mtu: usize,
}

/// Bytes that [`Design::Rpc`] adds to each message: the header of this project's packets.
pub const RPC_HEADER: usize = 24;
/// CPU time of a call in the library at the client, in ns: 568 instructions, at three per ns. (`costs.toml` now has
/// 560.5.)
pub const RPC_CLIENT_NS: u64 = 190;
/// CPU time of a call in the library at the server, in ns: 393 instructions, at three per ns. (`costs.toml` now has
/// 395.2.)
pub const RPC_SERVER_NS: u64 = 131;
/// Items of a neighbourhood (FaRM, as sigcomm14 5.1.1 describes it).
const NEIGHBOURS: usize = 6;
/// Bytes of the version beside each item of a neighbourhood.
const VERSION: usize = 8;
/// Bytes of an entry of an index: a key's digest, a place, a length and a checksum.
const ENTRY: usize = 32;

impl Design {
    /// Short name, shown to people.
    pub fn name(self, workload: &Workload) -> String {
        let text = match self {
            Self::Reads(Chain::Neighbourhood) => {
                return format!("READ of {} B (FaRM)", self.reads(workload)[0]);
            }
            Self::Reads(Chain::Buckets) => "2 to 3 READs (Pilaf)",
            Self::Reads(Chain::Entry) => "2 READs (DrTM)",
            Self::Reads(Chain::Pointers) => match workload.accesses {
                1 => "one READ",
                more => return format!("{more} dependent READs"),
            },
            Self::WriteSend => "WRITE/SEND (HERD)",
            Self::SendSend => "SEND/SEND, datagrams",
            Self::HeaderOnly => "SEND/SEND, headers",
            Self::Rpc => "RPC over datagrams",
            Self::Atomics(_) if workload.kind == WorkloadKind::Sequencer => "fetch-and-add",
            Self::Atomics(Placement::SameBits) if workload.locks == 1 => "atomics",
            Self::Atomics(Placement::SameBits) => "atomics, same bits",
            Self::Atomics(Placement::Spread) => "atomics, spread",
        };
        text.to_owned()
    }

    /// Lengths in bytes of an access's READs, in their order; empty if the design has none.
    pub fn reads(self, workload: &Workload) -> Vec<usize> {
        let Self::Reads(chain) = self else { return Vec::new() };
        let item = workload.object_bytes;
        match chain {
            Chain::Neighbourhood => vec![NEIGHBOURS * (item + VERSION)],
            Chain::Buckets => vec![ENTRY, ENTRY, item],
            Chain::Entry => vec![ENTRY, item],
            Chain::Pointers => {
                let mut all = vec![8; workload.accesses - 1];
                all.push(item);
                all
            }
        }
    }

    /// Share of accesses that need the first of these READs, from 0 to 1.
    pub fn first_share(self) -> f64 {
        // "1.6 on the average" is two READs in six cases of ten (sigcomm14 5.1.1).
        if self == Self::Reads(Chain::Buckets) { 0.6 } else { 1.0 }
    }

    /// Whether the server's threads take part in an access.
    pub fn is_served(self, workload: &Workload) -> bool {
        match self {
            Self::Reads(_) => workload.read_share < 1.0,
            Self::Atomics(_) => false,
            _ => true,
        }
    }

    /// Whether clients have connections.
    pub fn is_connected(self) -> bool {
        matches!(self, Self::Reads(_) | Self::WriteSend | Self::Atomics(_))
    }

    /// Bytes that this design adds to each message of a call.
    pub fn header(self) -> usize {
        if self == Self::Rpc { RPC_HEADER } else { 0 }
    }

    /// All designs that a workload allows on a NIC. Those by READs are left out if nothing is read.
    pub fn all(workload: &Workload, profile: &Profile) -> Vec<Self> {
        let mut all: Vec<Self> = match workload.kind {
            WorkloadKind::Cache if workload.accesses == 1 => vec![Self::Reads(Chain::Pointers)],
            WorkloadKind::Cache => [Chain::Neighbourhood, Chain::Entry, Chain::Buckets].map(Self::Reads).to_vec(),
            WorkloadKind::Reads => vec![Self::Reads(Chain::Pointers)],
            WorkloadKind::Sequencer => vec![Self::HeaderOnly, Self::Atomics(Placement::SameBits)],
            WorkloadKind::Locks => {
                vec![Self::HeaderOnly, Self::Atomics(Placement::Spread), Self::Atomics(Placement::SameBits)]
            }
        };
        if workload.read_share == 0.0 {
            all.retain(|design| !matches!(design, Self::Reads(_)));
        }
        // A single lock has only one placement.
        if workload.kind == WorkloadKind::Locks && workload.locks == 1 {
            all.retain(|design| *design != Self::Atomics(Placement::Spread));
        }
        all.push(Self::WriteSend);
        let fits = |design: &Self| workload.fits_datagrams(profile, design.header());
        all.extend([Self::SendSend, Self::Rpc].into_iter().filter(fits));
        all
    }
}

impl Wait {
    /// Name, shown to people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poll => "polling",
            Self::Events => "events",
            Self::Adaptive => "adaptive",
        }
    }
}

impl Settings {
    /// Settings at which a search begins.
    pub fn first(design: Design, workload: &Workload, profile: &Profile) -> Self {
        let is_alone = workload.goal == Goal::Latency;
        let wait = |load| if load == CpuLoad::Busy { Wait::Events } else { Wait::Poll };
        let batches = workload.batches && !is_alone && design.is_served(workload);
        Self {
            window: if is_alone { 1 } else { (1024 / workload.peers).clamp(1, 16).min(window_max(workload)) },
            batch: if batches { 16 } else { 1 },
            queue_pairs: if batches { 4 } else { 1 },
            inline: true,
            signal: 16,
            client_wait: wait(workload.client_cpu),
            server_wait: if design.polls_memory(workload) { Wait::Poll } else { wait(workload.server_cpu) },
            threads: if is_alone { 1 } else { profile.core.count.min(workload.peers) },
            mtu: profile.link.mtu,
        }
    }

    /// Settings at which searches begin: with batches where they are possible, and without.
    pub fn starts(design: Design, workload: &Workload, profile: &Profile) -> Vec<Self> {
        let first = Self::first(design, workload, profile);
        let single = Self { batch: 1, queue_pairs: 1, ..first };
        if single == first { vec![first] } else { vec![first, single] }
    }

    /// Settings that differ from these in one respect, in coarse steps if `step` is 0, else in fine ones. Settings that
    /// make no difference to the design are left out.
    pub fn neighbours(&self, design: Design, workload: &Workload, profile: &Profile, step: usize) -> Vec<Self> {
        let mut all = Vec::new();
        let mut put = |change: &dyn Fn(&mut Self)| {
            let mut other = *self;
            change(&mut other);
            let fits = matches!(design, Design::Reads(_) | Design::WriteSend | Design::Atomics(_))
                || workload.answer_len().max(workload.change_len()) + design.header() <= other.mtu;
            if other != *self && fits && !all.contains(&other) {
                all.push(other);
            }
        };
        let is_served = design.is_served(workload);
        let sends_datagrams = is_served && design.answers_by_datagram(workload, profile);
        if workload.goal == Goal::Throughput {
            let factor = [4, 2][step.min(1)];
            put(&|it| it.window = (it.window / factor).max(1));
            put(&|it| it.window = (it.window * factor).min(window_max(workload)));
            if is_served {
                let most = profile.core.count.min(workload.peers);
                put(&|it| it.threads = (it.threads / [2, 1][step.min(1)]).max(1).min(most));
                put(&|it| it.threads = (it.threads * 3 / 4).max(1).min(most));
            }
            if sends_datagrams {
                let batches: &[usize] = if step == 0 { &[1, 16] } else { &[1, 4, 32] };
                let allowed = batches.iter().filter(|batch| workload.batches || **batch == 1);
                allowed.for_each(|batch| put(&|it| it.batch = *batch));
                let pairs: &[usize] = if step == 0 { &[1, 4] } else { &[1, 2, 3] };
                pairs.iter().for_each(|pairs| put(&|it| it.queue_pairs = *pairs));
            }
        }
        if is_served && design != Design::HeaderOnly {
            put(&|it| it.inline = !it.inline);
        }
        if is_served && step > 0 {
            [1, 64].iter().for_each(|signal| put(&|it| it.signal = *signal));
        }
        let waits = [Wait::Poll, Wait::Events, Wait::Adaptive];
        // If cores have nothing else to do, rates do not depend on whether they sleep.
        let matters = |load| workload.goal == Goal::Latency || load == CpuLoad::Busy;
        if matters(workload.client_cpu) {
            waits.iter().for_each(|wait| put(&|it| it.client_wait = *wait));
        }
        if is_served && !design.polls_memory(workload) && matters(workload.server_cpu) {
            waits.iter().for_each(|wait| put(&|it| it.server_wait = *wait));
        }
        if workload.bulk || workload.object_bytes > 1024 {
            [1024, 4096].iter().for_each(|mtu| put(&|it| it.mtu = *mtu));
        }
        all
    }
}

/// Most accesses in flight of one client.
const WINDOW_MAX: usize = 64;
/// Most accesses in flight of all clients.
const OUTSTANDING_MAX: usize = 16_384;

/// The widest window that is tried.
fn window_max(workload: &Workload) -> usize {
    let all = OUTSTANDING_MAX.min(OUTSTANDING_BYTES / workload.object_bytes);
    (all / workload.peers).clamp(1, WINDOW_MAX)
}

impl Design {
    /// Whether the server finds requests by polling its memory, where no completion and hence no interrupt announces
    /// them.
    pub fn polls_memory(self, workload: &Workload) -> bool {
        matches!(self, Self::WriteSend | Self::Reads(_)) && self.is_served(workload)
    }

    /// Whether answers are datagrams: they are if one can carry them.
    pub fn answers_by_datagram(self, workload: &Workload, profile: &Profile) -> bool {
        workload.answer_len() + self.header() <= profile.link.mtu
    }
}
