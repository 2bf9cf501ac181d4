//! What a service is to do, and where.

use sinew_sim::nic::Profile;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// GETs and PUTs of items by their keys.
    Cache,
    /// The next number of one counter.
    Sequencer,
    /// One of many locks, taken and given back.
    Locks,
    /// An object that lies where its reader knows, or at the end of a chain of pointers.
    Reads,
}

/// What is to be best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// How soon one access is over, of one client that makes one at a time.
    Latency,
    /// How many are, of all clients together.
    Throughput,
}

/// What else a processor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Nothing.
    Idle,
    /// Programs compute all the time on each core.
    Busy,
}

/// A workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// What is asked for.
    pub kind: Kind,
    /// Bytes of an object; of a cache's item, with its key.
    pub object_bytes: usize,
    /// Accesses to memory, each of which needs to know what the one before it found: 1 where the place is known.
    pub accesses: usize,
    /// The part of the accesses that change nothing, from 0 to 1.
    pub read_share: f64,
    /// Clients: threads of other hosts, each with a connection where there are any.
    pub peers: usize,
    /// Locks.
    pub locks: usize,
    /// What the clients' processors do beside.
    pub client_cpu: Load,
    /// What the server's do.
    pub server_cpu: Load,
    /// What is to be best.
    pub goal: Goal,
    /// Whether others READ 4 MB at a time from the same server.
    pub bulk: bool,
    /// Whether the server may take several requests and post their answers together, as code that answers one at a time cannot (atc16 3.1).
    pub batches: bool,
}

/// Bytes of all clients' objects that are on their way, which the simulating machine has to hold.
pub(super) const OUTSTANDING_BYTES: usize = 256 << 20;
/// Bytes of a key of a cache.
pub const KEY: usize = 16;
/// The longest object.
pub const OBJECT_MAX: usize = 1 << 20;
/// The longest chain of accesses.
pub const ACCESSES_MAX: usize = 8;
/// The most clients.
pub const PEERS_MAX: usize = 10_000;
/// The most locks.
pub const LOCKS_MAX: usize = 1 << 16;

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Cache, Self::Sequencer, Self::Locks, Self::Reads];

    /// As options and files have it.
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
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Latency, Self::Throughput];

    /// As options and files have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Throughput => "throughput",
        }
    }
}

impl Load {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Idle, Self::Busy];

    /// As options and files have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
        }
    }
}

impl Workload {
    /// The usual one of a kind: a cache of small items that are read nineteen times out of twenty, one counter, 4,096 locks, single reads.
    pub fn of(kind: Kind) -> Self {
        Self {
            kind,
            object_bytes: match kind {
                Kind::Cache => 48,
                Kind::Sequencer | Kind::Locks => 8,
                Kind::Reads => 64,
            },
            accesses: if kind == Kind::Cache { 2 } else { 1 },
            read_share: if kind == Kind::Cache { 0.95 } else { 1.0 },
            peers: 64,
            locks: 4096,
            client_cpu: Load::Idle,
            server_cpu: Load::Idle,
            goal: if kind == Kind::Reads { Goal::Latency } else { Goal::Throughput },
            bulk: false,
            batches: true,
        }
    }

    /// What cannot be: the field, and why. The smallest object of a cache has a key and a byte.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let between = |field, value: usize, least: usize, most: usize| {
            let is_in = (least..=most).contains(&value);
            let expected = if least == most { least.to_string() } else { format!("{least} to {most}") };
            (!is_in).then(|| (field, format!("{field} cannot be {value}: {expected}")))
        };
        let (least, most) = match self.kind {
            Kind::Cache => (KEY + 1, OBJECT_MAX),
            Kind::Reads => (1, OBJECT_MAX),
            Kind::Sequencer | Kind::Locks => (8, 8),
        };
        let is_share = (0.0..=1.0).contains(&self.read_share);
        let share = || ("read_share", format!("read_share cannot be {}: 0 to 1, as 0.95", self.read_share));
        let is_too_much =
            self.goal == Goal::Throughput && self.peers.saturating_mul(self.object_bytes) > OUTSTANDING_BYTES;
        let too_much = || {
            let most = OUTSTANDING_BYTES / self.peers.max(1);
            let (bytes, peers) = (self.object_bytes, self.peers);
            (
                "object_bytes",
                format!(
                    "object_bytes cannot be {bytes} of {peers} peers: up to {most}, since no more than 256 MB on their way are simulated"
                ),
            )
        };
        let is_chain = self.kind == Kind::Cache && self.accesses > 2;
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

    /// A field that means nothing for the kind, and is not as usual.
    fn idle_field(&self) -> Option<(&'static str, String)> {
        let usual = Self::of(self.kind);
        let fields = [
            ("accesses", matches!(self.kind, Kind::Cache | Kind::Reads) || self.accesses == usual.accesses),
            ("read_share", matches!(self.kind, Kind::Cache | Kind::Reads) || self.read_share == usual.read_share),
            ("locks", self.kind == Kind::Locks || self.locks == usual.locks),
        ];
        let idle = fields.into_iter().find(|(_, is_good)| !is_good)?.0;
        Some((idle, format!("{idle} means nothing for {}: leave it out", self.kind.name())))
    }

    /// Bytes of a call's request that reads.
    pub fn request_len(&self) -> usize {
        match self.kind {
            Kind::Cache | Kind::Reads => KEY,
            Kind::Sequencer | Kind::Locks => 8,
        }
    }

    /// Bytes of one that changes something.
    pub fn change_len(&self) -> usize {
        match self.kind {
            Kind::Cache | Kind::Reads => self.object_bytes + 8,
            Kind::Sequencer | Kind::Locks => 8,
        }
    }

    /// Bytes of the answer to a read.
    pub fn answer_len(&self) -> usize {
        match self.kind {
            Kind::Cache => self.object_bytes - KEY,
            Kind::Reads => self.object_bytes,
            Kind::Sequencer | Kind::Locks => 8,
        }
    }

    /// Whether a datagram can carry all that calls say.
    pub fn fits_datagrams(&self, profile: &Profile, header: usize) -> bool {
        let longest = self.answer_len().max(if self.read_share < 1.0 { self.change_len() } else { 0 });
        longest + header <= profile.link.mtu
    }
}
