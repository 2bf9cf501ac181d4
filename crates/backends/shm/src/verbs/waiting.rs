//! Requests that have not been performed yet, and performed ones that are not complete.

use sinew_fabric::verbs::{
    Destination, Gather, InlineOperation, InlineRequest, Opcode, Operation, QpConfig, RemoteMemory, Request, Slice,
    Source, Status,
};
use sinew_mem::Frozen;
use sinew_mem::copy::copy_short;

use super::fifo::{Buffers, Pool};

/// A request's operation, without the data that it moves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestKind {
    Send,
    Datagram(Destination),
    Write(RemoteMemory),
    Read(RemoteMemory),
    CompareSwap { remote: RemoteMemory, expected: u64, desired: u64 },
    FetchAdd { remote: RemoteMemory, add: u64 },
}

impl RequestKind {
    /// Whether it is an operation in the peer's memory.
    pub fn is_access(self) -> bool {
        !matches!(self, Self::Send | Self::Datagram(_))
    }

    pub fn opcode(self) -> Opcode {
        match self {
            Self::Send | Self::Datagram(_) => Opcode::Send,
            Self::Write(_) => Opcode::Write,
            Self::Read(_) => Opcode::Read,
            Self::CompareSwap { .. } => Opcode::CompareSwap,
            Self::FetchAdd { .. } => Opcode::FetchAdd,
        }
    }
}

/// A request whose turn has not come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedRequest {
    pub id: u64,
    pub kind: RequestKind,
    pub immediate: Option<u32>,
    inline_len: usize,
    pub signaled: bool,
}

impl QueuedRequest {
    /// The request in its inline form, if it is a WRITE or a datagram; its bytes are passed.
    #[inline(always)]
    fn as_inline<'a>(&self, bytes: &'a [u8]) -> Option<InlineRequest<'a>> {
        let operation = match self.kind {
            RequestKind::Write(remote) => InlineOperation::Write(remote),
            RequestKind::Datagram(to) => InlineOperation::Send(Some(to)),
            _ => return None,
        };
        Some(InlineRequest { id: self.id, bytes, operation, immediate: self.immediate, signaled: self.signaled })
    }
}

/// An operation that holds nothing.
const NOTHING: Operation<'static> = Operation::Send { source: Source::Empty, immediate: None, to: None };

/// The data or targets of a request, unless they are inline: shares, or what moved in with it and comes back.
#[derive(Debug, Default)]
pub(crate) enum Payload {
    #[default]
    None,
    Source(ShortSlice),
    Sources(Gather),
    Held(Buffers),
}

/// A slice of a buffer with short numbers. They are converted one by one: to move the fields of a [`Slice`] together,
/// the processor would have to wait until all earlier stores have left it, some of them for another core's cache.
#[derive(Debug)]
pub(crate) struct ShortSlice {
    buffer: Frozen,
    start: u32,
    len: u32,
}

impl ShortSlice {
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start as usize..][..self.len as usize]
    }
}

impl Payload {
    /// Puts in what an operation holds, where there is nothing. Each kind is written in place: see `fifo`.
    #[inline(always)]
    fn take_from(&mut self, operation: &mut Operation<'_>, pool: &mut Pool) {
        match operation {
            Operation::Send { source, .. } | Operation::Write { source, .. } => match source {
                Source::Gather(slices) => self.take_slices(slices),
                Source::Empty | Source::Inline(_) => {}
            },
            Operation::Read { target, .. } => self.fill(Self::Held(Buffers::take(target, pool))),
            other => self.take_whole(std::mem::replace(other, NOTHING), pool),
        }
    }

    /// Puts in the slices.
    #[inline(always)]
    fn take_slices(&mut self, slices: &mut Gather) {
        if let [slice] = &slices[..]
            && let (Ok(start), Ok(len)) = (u32::try_from(slice.start), u32::try_from(slice.len))
            && let Some(Slice { buffer, .. }) = slices.pop()
        {
            return self.fill(Self::Source(ShortSlice { buffer, start, len }));
        }
        self.fill(Self::Sources(std::mem::take(slices)));
    }

    /// Puts in what an operation with a range or one buffer holds.
    #[inline(never)]
    fn take_whole(&mut self, operation: Operation<'_>, pool: &mut Pool) {
        match operation {
            Operation::WriteRange { source: range, .. } | Operation::ReadRange { target: range, .. } => {
                self.fill(Self::Held(Buffers::of_range(range, pool)));
            }
            Operation::CompareSwap { target, .. } | Operation::FetchAdd { target, .. } => {
                self.fill(Self::Held(Buffers::one(target)));
            }
            Operation::Send { .. } | Operation::Write { .. } | Operation::Read { .. } => {}
        }
    }

    /// Puts `load` in, where there is nothing.
    #[inline(always)]
    fn fill(&mut self, load: Self) {
        debug_assert!(matches!(self, Self::None));
        // There is nothing to drop, which the compiler cannot know.
        std::mem::forget(std::mem::replace(self, load));
    }

    fn len(&self) -> usize {
        match self {
            Self::Source(slice) => slice.len as usize,
            Self::Sources(slices) => slices.iter().map(|slice| slice.len).sum(),
            Self::Held(_) | Self::None => 0,
        }
    }
}

/// The requests whose turn has not come, oldest first, in memory of their own. The short, plain part of each lies apart
/// from the rest, which most requests lack.
#[derive(Debug)]
pub(crate) struct Waiting {
    requests: Vec<QueuedRequest>,
    payloads: Vec<Payload>,
    inline: Box<[u8]>,
    inline_max: usize,
    /// Number of slots, a power of two, less one.
    mask: u64,
    /// Number of the oldest request.
    oldest: u64,
    /// Number of the next request.
    next: u64,
    /// Number of the first request for which the doorbell has not rung.
    doorbell_at: u64,
}

impl Waiting {
    pub fn new(config: &QpConfig) -> Self {
        let slots = config.send_depth.max(1).next_power_of_two();
        Self {
            requests: Vec::new(),
            payloads: Vec::new(),
            inline: vec![0; slots * config.inline_max].into(),
            inline_max: config.inline_max,
            mask: slots as u64 - 1,
            oldest: 0,
            next: 0,
            doorbell_at: 0,
        }
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.oldest == self.next
    }

    #[inline(always)]
    pub fn len(&self) -> u64 {
        self.next - self.oldest
    }

    /// Rings the doorbell for all requests so far.
    #[inline(always)]
    pub fn ring(&mut self) {
        self.doorbell_at = self.next;
    }

    /// Takes the slot of the next request; there are as many as the queue pair can hold.
    #[inline(always)]
    fn next_slot(&mut self) -> usize {
        let slot = (self.next & self.mask) as usize;
        if slot >= self.requests.len() {
            self.grow();
        }
        self.next += 1;
        slot
    }

    /// Adds a request whose bytes are inline.
    #[inline(always)]
    pub fn push_inline(&mut self, id: u64, signaled: bool, kind: RequestKind, immediate: Option<u32>, bytes: &[u8]) {
        let slot = self.next_slot();
        let start = slot * self.inline_max;
        copy_short(&mut self.inline[start..start + bytes.len()], bytes);
        // The request is written a field at a time, and read in the same way: see `fifo`.
        let work = &mut self.requests[slot];
        work.id = id;
        work.kind = kind;
        work.immediate = immediate;
        work.inline_len = bytes.len();
        work.signaled = signaled;
    }

    /// Adds any other request, and takes what it holds.
    #[inline(always)]
    pub fn push_loaded(&mut self, request: &mut Request<'_>, pool: &mut Pool) {
        let slot = self.next_slot();
        let (kind, immediate) = kind_of(&request.operation);
        self.payloads[slot].take_from(&mut request.operation, pool);
        let work = &mut self.requests[slot];
        work.id = request.id;
        work.kind = kind;
        work.immediate = immediate;
        work.inline_len = 0;
        work.signaled = request.signaled;
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let empty = QueuedRequest { id: 0, kind: RequestKind::Send, immediate: None, inline_len: 0, signaled: false };
        let slots = self.mask as usize + 1;
        self.requests.resize(slots, empty);
        self.payloads.resize_with(slots, Payload::default);
    }

    /// The oldest request for which the doorbell has rung, its inline bytes, and its other data or targets.
    #[inline(always)]
    pub fn oldest(&mut self) -> Option<(&QueuedRequest, &[u8], &mut Payload)> {
        if self.oldest == self.doorbell_at {
            return None;
        }
        let slot = (self.oldest & self.mask) as usize;
        let work = self.requests.get(slot)?;
        let start = slot * self.inline_max;
        Some((work, &self.inline[start..start + work.inline_len], self.payloads.get_mut(slot)?))
    }

    /// Removes inline WRITEs and datagrams for which the doorbell has rung, oldest first, for as long as `perform`
    /// performs them.
    #[inline(always)]
    pub fn pop_inline_while(&mut self, mut perform: impl FnMut(InlineRequest<'_>) -> bool) {
        while let Some((request, bytes, Payload::None)) = self.oldest()
            && let Some(request) = request.as_inline(bytes)
            && perform(request)
        {
            self.oldest += 1;
        }
    }

    /// Starts again at the first slot when no request waits, since slots that were just used are in the cache.
    #[inline(always)]
    pub fn rewind(&mut self) {
        if self.is_empty() {
            (self.oldest, self.next, self.doorbell_at) = (0, 0, 0);
        }
    }

    /// Drops the oldest request, which moves its bytes to the peer, and returns how many they are.
    #[inline(always)]
    pub fn pop_oldest(&mut self) -> usize {
        let slot = (self.oldest & self.mask) as usize;
        self.oldest += 1;
        let mut len = self.requests.get(slot).map_or(0, |work| work.inline_len);
        if let Some(load) = self.payloads.get_mut(slot)
            && !matches!(load, Payload::None)
        {
            len = load.len();
            *load = Payload::None;
        }
        len
    }

    /// Takes what moved in with the oldest request, and drops the request.
    #[inline(always)]
    pub fn take_oldest_held(&mut self) -> Buffers {
        let slot = (self.oldest & self.mask) as usize;
        self.oldest += 1;
        let Some(load) = self.payloads.get_mut(slot) else { return Buffers::default() };
        let held = if let Payload::Held(held) = load { held.take_out() } else { Buffers::default() };
        *load = Payload::None;
        held
    }

    /// Removes the oldest request for which the doorbell has rung.
    #[inline]
    pub fn pop(&mut self, pool: &mut Pool) -> Option<InFlight> {
        if self.oldest == self.doorbell_at {
            return None;
        }
        let slot = (self.oldest & self.mask) as usize;
        self.oldest += 1;
        let QueuedRequest { id, kind, inline_len, signaled, .. } = *self.requests.get(slot)?;
        let load = self.payloads.get_mut(slot)?;
        let mut request = InFlight { id, opcode: kind.opcode(), signaled, len: inline_len, ..InFlight::default() };
        match load {
            Payload::None => {}
            Payload::Source(_) | Payload::Sources(_) => {
                request.len = load.len();
                *load = Payload::None;
            }
            Payload::Held(held) => {
                request.len = len_of(kind, held, pool);
                request.held = held.take_out();
                *load = Payload::None;
            }
        }
        Some(request)
    }
}

/// Bytes that a request moves to or from the memory that it holds.
#[inline(always)]
pub(crate) fn len_of(kind: RequestKind, held: &mut Buffers, pool: &mut Pool) -> usize {
    if matches!(kind, RequestKind::CompareSwap { .. } | RequestKind::FetchAdd { .. }) {
        return 8;
    }
    if let Some(buffer) = held.single() {
        return buffer.len();
    }
    match held.range(pool) {
        Some(range) => range.len(),
        None => held.get(pool).iter().map(|buffer| buffer.len()).sum(),
    }
}

/// An operation without its data, and its immediate.
#[inline(always)]
pub(crate) fn kind_of(operation: &Operation<'_>) -> (RequestKind, Option<u32>) {
    match *operation {
        Operation::Send { to: None, immediate, .. } => (RequestKind::Send, immediate),
        Operation::Send { to: Some(to), immediate, .. } => (RequestKind::Datagram(to), immediate),
        Operation::Write { remote, immediate, .. } => (RequestKind::Write(remote), immediate),
        Operation::WriteRange { remote, .. } => (RequestKind::Write(remote), None),
        Operation::Read { remote, .. } | Operation::ReadRange { remote, .. } => (RequestKind::Read(remote), None),
        Operation::CompareSwap { remote, expected, desired, .. } => {
            (RequestKind::CompareSwap { remote, expected, desired }, None)
        }
        Operation::FetchAdd { remote, add, .. } => (RequestKind::FetchAdd { remote, add }, None),
    }
}

/// The bytes of a source, unless they lie in buffers that must be kept.
#[inline(always)]
pub(crate) fn inline<'a>(source: &Source<'a>) -> Option<&'a [u8]> {
    match source {
        Source::Empty => Some(&[]),
        Source::Inline(bytes) => Some(bytes),
        Source::Gather(_) => None,
    }
}

/// A request that was performed and is not complete.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub id: u64,
    pub opcode: Opcode,
    pub signaled: bool,
    pub len: usize,
    /// What moved in with it.
    pub held: Buffers,
    /// Its status; `None` for a message that is not acknowledged yet.
    pub status: Option<Status>,
    /// Number of the message.
    pub number: u32,
}

impl Default for InFlight {
    fn default() -> Self {
        let (opcode, held) = (Opcode::Send, Buffers::default());
        Self { id: 0, opcode, signaled: false, len: 0, held, status: None, number: 0 }
    }
}
