//! Workloads: what a service has to do, and where.

use sinew_harness::units::counted;
use sinew_sim::nic::Profile;

/// Kind of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadKind {
    /// GETs and PUTs of items by their keys.
    Cache,
    /// The next number of one counter.
    Sequencer,
    /// Acquiring and releasing one of many locks.
    Locks,
    /// READs of an object whose place the reader knows, or which is at the end of a chain of pointers.
    Reads,
}

/// Figure to optimise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Time of one access, for a client that makes one at a time.
    Latency,
    /// Accesses per second, of all clients together.
    Throughput,
}

/// Other load on a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuLoad {
    /// None.
    Idle,
    /// Programs that compute all the time, on each core.
    Busy,
}

/// A workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Kind of service.
    pub kind: WorkloadKind,
    /// Bytes of an object; for a cache, of an item with its key.
    pub object_bytes: usize,
    /// Memory accesses, each of which depends on the one before; 1 if the place is known.
    pub accesses: usize,
    /// Share of accesses that change nothing, from 0 to 1.
    pub read_share: f64,
    /// Clients: threads on other hosts, each with a connection of its own if the design has connections.
    pub peers: usize,
    /// Number of locks.
    pub locks: usize,
    /// Other load on the clients' processors.
    pub client_cpu: CpuLoad,
    /// Other load on the server's processors.
    pub server_cpu: CpuLoad,
    /// Figure to optimise.
    pub goal: Goal,
    /// Whether another client keeps 4 MB of READs in flight from the same server.
    pub bulk: bool,
    /// Whether the server may take several requests and post their answers together, which code that answers one at a
    /// time cannot do (atc16 3.1).
    pub batches: bool,
}

/// Most bytes of objects in flight, over all clients, which the simulating machine has to hold.
pub(super) const OUTSTANDING_BYTES: usize = 256 << 20;
/// Bytes of a cache's key.
pub const KEY: usize = 16;
/// Longest object, in bytes.
pub const OBJECT_MAX: usize = 1 << 20;
/// Most accesses in a chain.
pub const ACCESSES_MAX: usize = 8;
/// Most clients.
pub const PEERS_MAX: usize = 10_000;
/// Most locks.
pub const LOCKS_MAX: usize = 1 << 16;

impl WorkloadKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Cache, Self::Sequencer, Self::Locks, Self::Reads];

    /// Name in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Sequencer => "sequencer",
            Self::Locks => "locks",
            Self::Reads => "reads",
        }
    }
}

impl Goal {
    /// All goals.
    pub const ALL: [Self; 2] = [Self::Latency, Self::Throughput];

    /// Name in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Throughput => "throughput",
        }
    }
}

impl CpuLoad {
    /// All loads.
    pub const ALL: [Self; 2] = [Self::Idle, Self::Busy];

    /// Name in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
        }
    }
}

impl Workload {
    /// The usual workload of a kind: a cache of small items that are read nineteen times out of twenty, one counter,
    /// 4,096 locks, or single reads.
    pub fn of(kind: WorkloadKind) -> Self {
        Self {
            kind,
            object_bytes: match kind {
                WorkloadKind::Cache => 48,
                WorkloadKind::Sequencer | WorkloadKind::Locks => 8,
                WorkloadKind::Reads => 64,
            },
            accesses: if kind == WorkloadKind::Cache { 2 } else { 1 },
            read_share: if kind == WorkloadKind::Cache { 0.95 } else { 1.0 },
            peers: 64,
            locks: 4096,
            client_cpu: CpuLoad::Idle,
            server_cpu: CpuLoad::Idle,
            goal: if kind == WorkloadKind::Reads { Goal::Latency } else { Goal::Throughput },
            bulk: false,
            batches: true,
        }
    }

    /// Returns a field with a value that is not allowed, and why. A cache's smallest object has a key and a byte.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let between = |field, value: usize, least: usize, most: usize| {
            let is_in = (least..=most).contains(&value);
            let expected = if least == most { least.to_string() } else { format!("{least} to {most}") };
            (!is_in).then(|| (field, format!("{field} cannot be {value}: {expected}")))
        };
        let (least, most) = match self.kind {
            WorkloadKind::Cache => (KEY + 1, OBJECT_MAX),
            WorkloadKind::Reads => (1, OBJECT_MAX),
            WorkloadKind::Sequencer | WorkloadKind::Locks => (8, 8),
        };
        let is_share = (0.0..=1.0).contains(&self.read_share);
        let share = || ("read_share", format!("read_share cannot be {}: 0 to 1, as 0.95", self.read_share));
        let is_too_much =
            self.goal == Goal::Throughput && self.peers.saturating_mul(self.object_bytes) > OUTSTANDING_BYTES;
        let too_much = || {
            let most = OUTSTANDING_BYTES / self.peers.max(1);
            let (bytes, peers) = (self.object_bytes, counted(self.peers, "peer"));
            (
                "object_bytes",
                format!(
                    "object_bytes cannot be {bytes} for {peers}: up to {most}, since no more than 256 MB in \
                     flight are simulated"
                ),
            )
        };
        let is_chain = self.kind == WorkloadKind::Cache && self.accesses > 2;
        let chain = || ("accesses", format!("accesses cannot be {}: a cache has 1, or 2 with an index", self.accesses));
        between("object_bytes", self.object_bytes, least, most)
            .or_else(|| between("accesses", self.accesses, 1, ACCESSES_MAX))
            .or_else(|| between("peers", self.peers, 1, PEERS_MAX))
            .or_else(|| between("locks", self.locks, 1, LOCKS_MAX))
            .or_else(|| (!is_share).then(share))
            .or_else(|| is_chain.then(chain))
            .or_else(|| is_too_much.then(too_much))
            .or_else(|| self.idle_field())
    }

    /// Returns a field that means nothing for the kind and yet differs from the usual value.
    fn idle_field(&self) -> Option<(&'static str, String)> {
        let usual = Self::of(self.kind);
        let fields = [
            (
                "accesses",
                matches!(self.kind, WorkloadKind::Cache | WorkloadKind::Reads) || self.accesses == usual.accesses,
            ),
            (
                "read_share",
                matches!(self.kind, WorkloadKind::Cache | WorkloadKind::Reads) || self.read_share == usual.read_share,
            ),
            ("locks", self.kind == WorkloadKind::Locks || self.locks == usual.locks),
        ];
        let idle = fields.into_iter().find(|(_, is_good)| !is_good)?.0;
        Some((idle, format!("{idle} means nothing for {}: leave it out", self.kind.name())))
    }

    /// Bytes of the request of a call that reads.
    pub fn request_len(&self) -> usize {
        match self.kind {
            WorkloadKind::Cache | WorkloadKind::Reads => KEY,
            WorkloadKind::Sequencer | WorkloadKind::Locks => 8,
        }
    }

    /// Bytes of the request of a call that changes something.
    pub fn change_len(&self) -> usize {
        match self.kind {
            WorkloadKind::Cache | WorkloadKind::Reads => self.object_bytes + 8,
            WorkloadKind::Sequencer | WorkloadKind::Locks => 8,
        }
    }

    /// Bytes of the answer to a read.
    pub fn answer_len(&self) -> usize {
        match self.kind {
            WorkloadKind::Cache => self.object_bytes - KEY,
            WorkloadKind::Reads => self.object_bytes,
            WorkloadKind::Sequencer | WorkloadKind::Locks => 8,
        }
    }

    /// Whether datagrams can carry all requests and answers.
    pub fn fits_datagrams(&self, profile: &Profile, header: usize) -> bool {
        let longest = self.answer_len().max(if self.read_share < 1.0 { self.change_len() } else { 0 });
        longest + header <= profile.link.mtu
    }
}
