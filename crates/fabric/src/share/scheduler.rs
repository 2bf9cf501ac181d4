//! The order in which classes send: deficit round robin, with bounds on outstanding bytes. It does no I/O and reads no
//! clock.
//!
//! # The rules
//!
//! 1. A request is cut into chunks of at most [`ShareLimits::chunk_len`] bytes. A chunk *costs* its bytes plus
//!    [`ShareLimits::overhead_len`], so that tiny requests pay for the load that they put on a NIC.
//! 2. Each class has a *deficit*, from which chunks are paid. When no class that may post can pay, a new round begins:
//!    each class gets [`ShareLimits::quantum_len`] times its weight. A class with nothing to send keeps no more than
//!    that. While a class whose turn it is waits for room, smaller chunks of others do not overtake it, except under
//!    rule 4.
//! 3. A class has at most [`ClassConfig::outstanding_max_len`] outstanding, and all classes together at most
//!    [`ShareLimits::outstanding_max_len`]. Completions hand the credit back.
//! 4. A class whose outstanding bytes stay within its [`ClassConfig::reserve_len`] does not wait for the bound over all
//!    classes, so a small request passes at once between bulk transfers. It still pays from its deficit, so over a
//!    round it gets no more than its share.
//!
//! So classes that always have something to send share bytes by their weights, whatever the order in which the NIC
//! serves its queue pairs, as long as a class's own bound is not below its share of the bound over all. A class that
//! sends less leaves the rest to others (the scheduler is work-conserving), and none waits for more than a round.
//!
//! # Why the order is decided here
//!
//! The order in which a NIC serves its queue pairs is the NIC's own (apnet19 4.3), so the only way to choose an order
//! is to have few bytes outstanding. A class that waits for room in its turn is not overtaken by smaller chunks,
//! because these would take every byte that comes free, and it would starve. A chunk that passes by a class's reserve
//! is paid from the class's deficit.

use std::collections::VecDeque;

/// Bounds over all classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLimits {
    /// The most bytes of a chunk.
    pub chunk_len: u64,
    /// Cost of a chunk besides its bytes: its packets' headers and its place in the NIC's queues, in bytes.
    pub overhead_len: u64,
    /// Cost that a class of weight 1 may send in a round, in bytes; at least a chunk's cost.
    pub quantum_len: u64,
    /// The most that may be outstanding, as cost in bytes; at least a chunk's cost. Less than a bandwidth-delay product
    /// leaves the link idle; more makes requests wait behind each other in the NIC.
    pub outstanding_max_len: u64,
}

impl Default for ShareLimits {
    /// Chunks of 16 KB, and 128 KB outstanding: 10 us of a link of 100 Gbps.
    fn default() -> Self {
        Self { chunk_len: 16 << 10, overhead_len: 64, quantum_len: 32 << 10, outstanding_max_len: 128 << 10 }
    }
}

/// A class of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassConfig {
    /// Share relative to the other classes': 1 to [`WEIGHT_MAX`].
    pub weight: u32,
    /// The most that the class may have outstanding, as cost in bytes; at least a chunk's cost.
    pub outstanding_max_len: u64,
    /// Cost in bytes that the class may have outstanding however much others have. 0 for bulk transfers.
    pub reserve_len: u64,
}

/// The greatest weight.
pub const WEIGHT_MAX: u32 = 1000;
/// The most classes.
pub const CLASSES_MAX: usize = 64;

/// A class, by its index in the list that the scheduler was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassId(pub usize);

/// Reason why a scheduler cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There are no classes, or too many.
    #[error("there are 1 to {CLASSES_MAX} classes, not {0}")]
    Classes(usize),
    /// A weight is out of range.
    #[error("a weight is 1 to {WEIGHT_MAX}, not {0}")]
    Weight(u32),
    /// Chunks would be empty.
    #[error("a chunk has at least one byte")]
    Chunk,
    /// A bound is below the cost of a chunk.
    #[error("{what} of {len} bytes is below a chunk's cost of {chunk_cost} bytes")]
    Bound {
        /// Name of the bound.
        what: &'static str,
        /// Value of the bound, in bytes.
        len: u64,
        /// The least value, in bytes.
        chunk_cost: u64,
    },
}

/// A part of a request to be posted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Class of the request.
    pub class: ClassId,
    /// Identifier of the request.
    pub id: u64,
    /// Offset of the chunk in the request.
    pub offset: u64,
    /// Length in bytes; 0 for an empty request.
    pub len: u64,
    /// Whether it is the last chunk of the request.
    pub is_last: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: u64,
    offset: u64,
    len: u64,
}

#[derive(Clone, Debug)]
struct ClassQueue {
    config: ClassConfig,
    waiting: VecDeque<Waiting>,
    deficit: u64,
    outstanding: u64,
}

/// Decides which chunk goes next. See the [module's documentation](self).
#[derive(Clone, Debug)]
pub struct Scheduler {
    classes: Vec<ClassQueue>,
    limits: ShareLimits,
    outstanding: u64,
    /// Index of the class whose turn it is.
    turn: usize,
}

/// The next chunk of a class that has one and is not at its own bound.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    cost: u64,
    /// Whether the bound over all classes leaves room for it.
    fits: bool,
    /// Whether it passes without that room, within its class's reserve.
    is_reserved: bool,
}

impl Scheduler {
    /// A scheduler of these classes, with nothing to send.
    ///
    /// # Errors
    ///
    /// [`ConfigError`].
    pub fn new(limits: ShareLimits, classes: &[ClassConfig]) -> Result<Self, ConfigError> {
        if !(1..=CLASSES_MAX).contains(&classes.len()) {
            return Err(ConfigError::Classes(classes.len()));
        }
        if limits.chunk_len == 0 {
            return Err(ConfigError::Chunk);
        }
        let chunk_cost = limits.chunk_len.saturating_add(limits.overhead_len);
        let bound =
            |what, len| if len < chunk_cost { Err(ConfigError::Bound { what, len, chunk_cost }) } else { Ok(()) };
        bound("a quantum", limits.quantum_len)?;
        bound("the bound over all classes", limits.outstanding_max_len)?;
        for class in classes {
            bound("the bound of a class", class.outstanding_max_len)?;
            if !(1..=WEIGHT_MAX).contains(&class.weight) {
                return Err(ConfigError::Weight(class.weight));
            }
        }
        let class = |config: &ClassConfig| {
            let deficit = limits.quantum_len.saturating_mul(config.weight.into());
            ClassQueue { config: *config, waiting: VecDeque::new(), deficit, outstanding: 0 }
        };
        Ok(Self { classes: classes.iter().map(class).collect(), limits, outstanding: 0, turn: 0 })
    }

    /// Cost of a chunk of `len` bytes.
    #[inline]
    pub fn cost(&self, len: u64) -> u64 {
        len + self.limits.overhead_len
    }

    /// Adds a request of `len` bytes to its class, behind those that wait there.
    ///
    /// # Panics
    ///
    /// When there is no such class.
    pub fn submit(&mut self, class: ClassId, id: u64, len: u64) {
        self.classes[class.0].waiting.push_back(Waiting { id, offset: 0, len });
    }

    /// Drops what is left of a request. Returns whether there was anything.
    pub fn cancel(&mut self, class: ClassId, id: u64) -> bool {
        let Some(class) = self.classes.get_mut(class.0) else { return false };
        let before = class.waiting.len();
        class.waiting.retain(|waiting| waiting.id != id);
        class.waiting.len() < before
    }

    /// The chunk to post now; `None` when there is none, or no room for one. The caller posts it, and reports its
    /// [completion](Self::completed).
    #[inline]
    pub fn next_chunk(&mut self) -> Option<Chunk> {
        self.next_chunk_of(|_| true)
    }

    /// As [`Self::next_chunk`], among the requests for which `is_ready` is true; it is false for one whose queue pair
    /// is full. A class waits while its first request is not ready.
    pub fn next_chunk_of(&mut self, is_ready: impl Fn(u64) -> bool) -> Option<Chunk> {
        loop {
            // The class whose turn it is waits for room, which smaller chunks must not take away.
            let mut is_held = false;
            let mut is_any_without_deficit = false;
            for nth in 0..self.classes.len() {
                let index = (self.turn + nth) % self.classes.len();
                let Some(Candidate { cost, fits, is_reserved }) = self.candidate(index, &is_ready) else { continue };
                let fits = fits && !is_held;
                if self.classes[index].deficit < cost {
                    is_any_without_deficit |= fits;
                    continue;
                }
                if fits || is_reserved {
                    return Some(self.take(index, cost, fits));
                }
                is_held = true;
            }
            if is_held || !is_any_without_deficit {
                return None;
            }
            self.begin_round();
        }
    }

    fn candidate(&self, index: usize, is_ready: impl Fn(u64) -> bool) -> Option<Candidate> {
        let class = &self.classes[index];
        let waiting = class.waiting.front().filter(|waiting| is_ready(waiting.id))?;
        let cost = self.cost((waiting.len - waiting.offset).min(self.limits.chunk_len));
        let of_class = class.outstanding + cost;
        (of_class <= class.config.outstanding_max_len).then(|| Candidate {
            cost,
            fits: self.outstanding + cost <= self.limits.outstanding_max_len,
            is_reserved: of_class <= class.config.reserve_len,
        })
    }

    fn take(&mut self, index: usize, cost: u64, takes_turn: bool) -> Chunk {
        // A class keeps its turn until its deficit is spent. One that passes within its reserve takes no other class's
        // turn.
        if takes_turn {
            self.turn = index;
        }
        let class = &mut self.classes[index];
        let waiting = class.waiting.front_mut().expect("`first` found a request waiting");
        let len = (waiting.len - waiting.offset).min(self.limits.chunk_len);
        let is_last = waiting.offset + len == waiting.len;
        let chunk = Chunk { class: ClassId(index), id: waiting.id, offset: waiting.offset, len, is_last };
        waiting.offset += len;
        if is_last {
            class.waiting.pop_front();
        }
        class.deficit -= cost;
        class.outstanding += cost;
        self.outstanding += cost;
        chunk
    }

    /// Gives each class its quantum. A class saves no more than one quantum and a rest too small for a chunk.
    fn begin_round(&mut self) {
        let chunk_cost = self.cost(self.limits.chunk_len);
        for class in &mut self.classes {
            let quantum = self.limits.quantum_len.saturating_mul(class.config.weight.into());
            let saved = if class.waiting.is_empty() { 0 } else { class.deficit.min(chunk_cost) };
            class.deficit = quantum.saturating_add(saved);
        }
        self.turn = (self.turn + 1) % self.classes.len();
    }

    /// Records the end of a chunk of `len` bytes, whether it succeeded or not: its credit comes back.
    pub fn completed(&mut self, class: ClassId, len: u64) {
        let cost = self.cost(len);
        let class = &mut self.classes[class.0];
        debug_assert!(class.outstanding >= cost && self.outstanding >= cost);
        class.outstanding = class.outstanding.saturating_sub(cost);
        self.outstanding = self.outstanding.saturating_sub(cost);
    }

    /// Cost of what a class has outstanding, in bytes.
    pub fn outstanding_len(&self, class: ClassId) -> u64 {
        self.classes[class.0].outstanding
    }

    /// Cost of what all classes have outstanding, in bytes.
    pub fn all_outstanding_len(&self) -> u64 {
        self.outstanding
    }

    /// Requests of a class that are not wholly posted.
    pub fn waiting(&self, class: ClassId) -> usize {
        self.classes[class.0].waiting.len()
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes.len()
    }
}

#[cfg(test)]
mod tests;
