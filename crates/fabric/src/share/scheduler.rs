//! Whose bytes go next: deficit round robin over classes, with bounds on what is outstanding. Pure.
//!
//! # The rules
//!
//! 1. A request is cut into chunks of [`Limits::chunk_len`] bytes at most. A chunk *costs* its bytes and [`Limits::overhead_len`] more, so that
//!    tiny requests pay for what they are to a NIC.
//! 2. Each class has a *deficit*, from which chunks are paid. When no class that may post can pay, a new round begins: each class gets
//!    [`Limits::quantum_len`] times its weight. A class with nothing to send keeps no more than that.
//!    A class whose turn it is and that waits for room is not overtaken by smaller chunks, but for those under rule 4.
//! 3. A class has at most [`ClassConfig::outstanding_max_len`] outstanding, and all together [`Limits::outstanding_max_len`]. What completes hands
//!    its credit back.
//! 4. A class whose outstanding bytes stay within its [`ClassConfig::reserve_len`] does not wait for the bound of all: so a small request
//!    passes at once between bulk transfers. It pays from its deficit nevertheless, so over a round it gets no more than its share.
//!
//! So classes that always have something to send share bytes by their weights, whatever the order in which the NIC serves its queue
//! pairs, as long as a class's own bound is not below its share of the bound of all. A class that sends less leaves the rest to others
//! (it is work-conserving), and none waits for more than a round.

use std::collections::VecDeque;

/// Bounds of all classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a chunk at most.
    pub chunk_len: u64,
    /// What a chunk costs beside its bytes: the headers of its packets and its place in the NIC's queues, in bytes.
    pub overhead_len: u64,
    /// What a class of weight 1 may send in a round, in bytes; a chunk's cost at least.
    pub quantum_len: u64,
    /// The cost of all that is outstanding, in bytes; a chunk's cost at least. What is less than a bandwidth-delay product leaves the link
    /// idle; what is more lets requests wait behind each other in the NIC.
    pub outstanding_max_len: u64,
}

impl Default for Limits {
    /// Chunks of 16 KB, and 128 KB outstanding: 10 us of a link of 100 Gbps.
    fn default() -> Self {
        Self { chunk_len: 16 << 10, overhead_len: 64, quantum_len: 32 << 10, outstanding_max_len: 128 << 10 }
    }
}

/// A class of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassConfig {
    /// Its share, relative to the other classes': 1 to [`WEIGHT_MAX`].
    pub weight: u32,
    /// The cost of what it may have outstanding, in bytes; a chunk's cost at least.
    pub outstanding_max_len: u64,
    /// The cost of what it may have outstanding however much others have, in bytes. 0 for bulk transfers.
    pub reserve_len: u64,
}

/// The greatest weight.
pub const WEIGHT_MAX: u32 = 1000;
/// Classes at most.
pub const CLASSES_MAX: usize = 64;

/// A class, by its place in the list that the scheduler was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassId(pub usize);

/// Why there is no such scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No class, or too many.
    #[error("there are 1 to {CLASSES_MAX} classes, not {0}")]
    Classes(usize),
    /// A weight that is none.
    #[error("a weight is 1 to {WEIGHT_MAX}, not {0}")]
    Weight(u32),
    /// Chunks of no bytes.
    #[error("a chunk has one byte at least")]
    Chunk,
    /// A bound below the cost of a chunk.
    #[error("{what} of {len} bytes is below a chunk's cost of {chunk_cost} bytes")]
    Bound {
        /// Which.
        what: &'static str,
        /// Its value.
        len: u64,
        /// What it must be at least.
        chunk_cost: u64,
    },
}

/// A part of a request that is to be posted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Whose.
    pub class: ClassId,
    /// The request's.
    pub id: u64,
    /// The first byte of it.
    pub offset: u64,
    /// Bytes of it; 0 for a request of none.
    pub len: u64,
    /// Whether it is the request's last.
    pub is_last: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: u64,
    offset: u64,
    len: u64,
}

#[derive(Clone, Debug)]
struct Class {
    config: ClassConfig,
    waiting: VecDeque<Waiting>,
    deficit: u64,
    outstanding: u64,
}

/// Decides which chunk goes next. See the [module's documentation](self).
#[derive(Clone, Debug)]
pub struct Scheduler {
    classes: Vec<Class>,
    limits: Limits,
    outstanding: u64,
    /// The class whose turn it is.
    turn: usize,
}

/// The next chunk of a class that has one, and is not at its own bound.
#[derive(Clone, Copy, Debug)]
struct First {
    cost: u64,
    /// The bound of all leaves room for it.
    fits: bool,
    /// It passes without that.
    is_reserved: bool,
}

impl Scheduler {
    /// A scheduler of these classes, with nothing to send.
    ///
    /// # Errors
    ///
    /// [`ConfigError`].
    pub fn new(limits: Limits, classes: &[ClassConfig]) -> Result<Self, ConfigError> {
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
        bound("the bound of all", limits.outstanding_max_len)?;
        for class in classes {
            bound("the bound of a class", class.outstanding_max_len)?;
            if !(1..=WEIGHT_MAX).contains(&class.weight) {
                return Err(ConfigError::Weight(class.weight));
            }
        }
        let class = |config: &ClassConfig| {
            let deficit = limits.quantum_len.saturating_mul(config.weight.into());
            Class { config: *config, waiting: VecDeque::new(), deficit, outstanding: 0 }
        };
        Ok(Self { classes: classes.iter().map(class).collect(), limits, outstanding: 0, turn: 0 })
    }

    /// What a chunk of `len` bytes costs.
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

    /// What is left of a request is not to be sent. Whether anything was.
    pub fn cancel(&mut self, class: ClassId, id: u64) -> bool {
        let Some(class) = self.classes.get_mut(class.0) else { return false };
        let before = class.waiting.len();
        class.waiting.retain(|waiting| waiting.id != id);
        class.waiting.len() < before
    }

    /// The chunk that goes now; `None` when there is none, or no room for one. The caller posts it, and says when it is
    /// [over](Self::completed).
    #[inline]
    pub fn next_chunk(&mut self) -> Option<Chunk> {
        self.next_chunk_of(|_| true)
    }

    /// The same, of those whose request `may_go`: not, for one whose queue pair is full. A class waits while its first request does.
    pub fn next_chunk_of(&mut self, may_go: impl Fn(u64) -> bool) -> Option<Chunk> {
        loop {
            // Whose turn it is waits for room; what is less must not take that away.
            let mut is_held = false;
            let mut is_any_broke = false;
            for nth in 0..self.classes.len() {
                let index = (self.turn + nth) % self.classes.len();
                let Some(First { cost, fits, is_reserved }) = self.first(index, &may_go) else { continue };
                let fits = fits && !is_held;
                if self.classes[index].deficit < cost {
                    is_any_broke |= fits;
                    continue;
                }
                if fits || is_reserved {
                    return Some(self.take(index, cost, fits));
                }
                is_held = true;
            }
            if is_held || !is_any_broke {
                return None;
            }
            self.begin_round();
        }
    }

    fn first(&self, index: usize, may_go: impl Fn(u64) -> bool) -> Option<First> {
        let class = &self.classes[index];
        let waiting = class.waiting.front().filter(|waiting| may_go(waiting.id))?;
        let cost = self.cost((waiting.len - waiting.offset).min(self.limits.chunk_len));
        let of_class = class.outstanding + cost;
        (of_class <= class.config.outstanding_max_len).then(|| First {
            cost,
            fits: self.outstanding + cost <= self.limits.outstanding_max_len,
            is_reserved: of_class <= class.config.reserve_len,
        })
    }

    fn take(&mut self, index: usize, cost: u64, takes_turn: bool) -> Chunk {
        // A class goes on until its deficit is spent. One that passes by its reserve takes nobody's turn.
        if takes_turn {
            self.turn = index;
        }
        let class = &mut self.classes[index];
        let waiting = class.waiting.front_mut().expect("it was looked at");
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

    /// Each class gets its quantum. Nobody saves up more than one and what is too little for a chunk.
    fn begin_round(&mut self) {
        let chunk_cost = self.cost(self.limits.chunk_len);
        for class in &mut self.classes {
            let quantum = self.limits.quantum_len.saturating_mul(class.config.weight.into());
            let saved = if class.waiting.is_empty() { 0 } else { class.deficit.min(chunk_cost) };
            class.deficit = quantum.saturating_add(saved);
        }
        self.turn = (self.turn + 1) % self.classes.len();
    }

    /// A chunk of `len` bytes is over, well or not: its credit comes back.
    pub fn completed(&mut self, class: ClassId, len: u64) {
        let cost = self.cost(len);
        let class = &mut self.classes[class.0];
        debug_assert!(class.outstanding >= cost && self.outstanding >= cost);
        class.outstanding = class.outstanding.saturating_sub(cost);
        self.outstanding = self.outstanding.saturating_sub(cost);
    }

    /// The cost of what a class has outstanding, in bytes.
    pub fn outstanding_len(&self, class: ClassId) -> u64 {
        self.classes[class.0].outstanding
    }

    /// The cost of what all have outstanding, in bytes.
    pub fn all_outstanding_len(&self) -> u64 {
        self.outstanding
    }

    /// Requests of a class that are not wholly posted.
    pub fn waiting(&self, class: ClassId) -> usize {
        self.classes[class.0].waiting.len()
    }

    /// Classes.
    pub fn classes(&self) -> usize {
        self.classes.len()
    }
}

#[cfg(test)]
mod tests;
