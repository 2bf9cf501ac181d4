//! Requests to a queue pair, and their checks.

use sinew_mem::{Frozen, MessageBuffer, OwnedRange};
use smallvec::SmallVec;

use super::error::PostError;
use super::memory::RemoteMemory;
use super::types::{Attributes, Opcode, QpConfig, QpNumber, QpState, Transport, Verb};

/// The most pieces of a source or a target: RDMA devices take about 30.
pub const GATHER_MAX: usize = 30;
/// Pieces of a list that lie in the list itself; a longer one takes an allocation.
const PIECES_IN_PLACE: usize = 4;

/// A range of a share of a message buffer.
#[derive(Clone, Debug)]
pub struct Slice {
    /// The share.
    pub buffer: Frozen,
    /// Offset of the first byte in the buffer.
    pub start: usize,
    /// Length in bytes.
    pub len: usize,
}

impl Slice {
    /// The bytes.
    ///
    /// # Panics
    ///
    /// When the range does not lie in the buffer. (A queue pair refuses such a piece.)
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.start + self.len]
    }

    /// Whether the range lies in the buffer.
    #[inline]
    pub fn is_in_bounds(&self) -> bool {
        self.start.checked_add(self.len).is_some_and(|end| end <= self.buffer.len())
    }
}

impl From<Frozen> for Slice {
    fn from(buffer: Frozen) -> Self {
        let len = buffer.len();
        Self { buffer, start: 0, len }
    }
}

/// Source of a request's bytes.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    /// No bytes: the message is a header alone.
    Empty,
    /// Bytes copied into the request when it is pushed, at most [`super::QpConfig::inline_max`] of them.
    Inline(&'a [u8]),
    /// Bytes that are read from the buffers some time before the request completes.
    Gather(Gather),
}

#[inline]
fn check_pieces(pieces: usize, config: &QpConfig) -> Result<(), PostError> {
    let limit = config.gather_max;
    if pieces > limit { Err(PostError::TooManyPieces { pieces, limit }) } else { Ok(()) }
}

/// Checks that a queue pair of this configuration and state can take a receive; see [`Request::check`].
///
/// # Errors
///
/// [`PostError`].
#[inline]
pub fn check_receive(buffers: &[MessageBuffer], config: &QpConfig, state: QpState) -> Result<(), PostError> {
    if state == QpState::Reset { Err(PostError::State(state)) } else { check_pieces(buffers.len(), config) }
}

impl Source<'_> {
    #[inline]
    fn check(&self, config: &QpConfig) -> Result<(), PostError> {
        match self {
            Source::Empty => Ok(()),
            Source::Inline(bytes) if bytes.len() > config.inline_max => {
                Err(PostError::InlineTooLong { len: bytes.len(), limit: config.inline_max })
            }
            Source::Inline(_) => Ok(()),
            Source::Gather(pieces) => {
                check_pieces(pieces.len(), config)?;
                if pieces.iter().all(Slice::is_in_bounds) { Ok(()) } else { Err(PostError::BadSlice) }
            }
        }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Source::Empty => 0,
            Source::Inline(bytes) => bytes.len(),
            Source::Gather(pieces) => pieces.iter().map(|piece| piece.len).sum(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Frozen> for Source<'_> {
    #[inline]
    fn from(buffer: Frozen) -> Self {
        let mut pieces = Gather::new();
        pieces.push(Slice::from(buffer));
        Source::Gather(pieces)
    }
}

/// Slices whose bytes are gathered, one after the other: up to four of them without an allocation. A queue pair takes
/// [`super::QpConfig::gather_max`] at most.
pub type Gather = SmallVec<[Slice; PIECES_IN_PLACE]>;

/// Buffers over which bytes are scattered, one after the other, each up to its length: up to four of them without an
/// allocation. A queue pair takes [`super::QpConfig::gather_max`] at most.
pub type Scatter = SmallVec<[MessageBuffer; PIECES_IN_PLACE]>;

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The device's own handle for the path there ([`super::ThreadDomain::destination`], or
    /// [`super::Completion::from`]).
    pub handle: u64,
    /// Number of the queue pair there.
    pub number: QpNumber,
    /// Key of that queue pair.
    pub qkey: u32,
}

/// An operation, with its arguments.
#[derive(Debug)]
pub enum Operation<'a> {
    /// Sends a message to the next buffer that the peer posted.
    Send {
        /// The bytes of the message.
        source: Source<'a>,
        /// Four further bytes, which arrive in the completion.
        immediate: Option<u32>,
        /// UD: the destination. `None` on connected transports.
        to: Option<Destination>,
    },
    /// Writes bytes into the peer's exposed memory.
    Write {
        /// The bytes to write.
        source: Source<'a>,
        /// Their destination, from its start on. (Its bounds are checked by the peer's device, not by ours.)
        remote: RemoteMemory,
        /// With these four further bytes, the write completes one of the peer's receives.
        immediate: Option<u32>,
    },
    /// Reads bytes of the peer's exposed memory, as many as the target holds.
    Read {
        /// Buffers for the bytes.
        target: Scatter,
        /// The memory to read.
        remote: RemoteMemory,
    },
    /// As [`Operation::Write`] without an immediate, from memory that moves in and comes back with the completion. It
    /// completes even if it is unsignaled.
    WriteRange {
        /// The bytes to write.
        source: OwnedRange,
        /// Their destination.
        remote: RemoteMemory,
    },
    /// As [`Operation::Read`], into memory that moves in and comes back with the completion. Many READs can fill parts
    /// of one buffer at the same time: see [`OwnedRange::split`].
    ReadRange {
        /// Memory for the bytes.
        target: OwnedRange,
        /// The memory to read.
        remote: RemoteMemory,
    },
    /// Swaps an aligned word of the peer's memory if it is `expected`; the old value arrives in the target's first 8
    /// bytes, in this machine's byte order.
    CompareSwap {
        /// Buffer for the old value, of at least 8 bytes.
        target: MessageBuffer,
        /// The word.
        remote: RemoteMemory,
        /// The value that the word must have.
        expected: u64,
        /// The value that it then gets.
        desired: u64,
    },
    /// Adds to an aligned word of the peer's memory; the old value arrives as for [`Operation::CompareSwap`].
    FetchAdd {
        /// Buffer for the old value, of at least 8 bytes.
        target: MessageBuffer,
        /// The word.
        remote: RemoteMemory,
        /// Number to add, wrapping.
        add: u64,
    },
}

impl Operation<'_> {
    /// A READ into one buffer.
    #[inline]
    pub fn read(target: MessageBuffer, remote: RemoteMemory) -> Self {
        let mut buffers = Scatter::new();
        // Written in place: lists are long, and to move one that was just written stalls the processor.
        buffers.push(target);
        Operation::Read { target: buffers, remote }
    }

    /// The operation's verb.
    pub fn verb(&self) -> Verb {
        match self {
            Operation::Send { .. } => Verb::Send,
            Operation::Write { immediate: None, .. } | Operation::WriteRange { .. } => Verb::Write,
            Operation::Write { .. } => Verb::WriteWithImmediate,
            Operation::Read { .. } | Operation::ReadRange { .. } => Verb::Read,
            Operation::CompareSwap { .. } => Verb::CompareSwap,
            Operation::FetchAdd { .. } => Verb::FetchAdd,
        }
    }

    /// Opcode of its completion.
    pub fn opcode(&self) -> Opcode {
        match self {
            Operation::Send { .. } => Opcode::Send,
            Operation::Write { .. } | Operation::WriteRange { .. } => Opcode::Write,
            Operation::Read { .. } | Operation::ReadRange { .. } => Opcode::Read,
            Operation::CompareSwap { .. } => Opcode::CompareSwap,
            Operation::FetchAdd { .. } => Opcode::FetchAdd,
        }
    }

    /// Bytes that it moves.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Operation::Send { source, .. } | Operation::Write { source, .. } => source.len(),
            Operation::Read { target, .. } => target.iter().map(|buffer| buffer.len()).sum(),
            Operation::WriteRange { source: range, .. } | Operation::ReadRange { target: range, .. } => range.len(),
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => 8,
        }
    }

    /// Whether it moves no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The exclusive handles that moved in with it: the buffers for its result, and a range.
    pub fn into_held(self) -> (Scatter, Option<OwnedRange>) {
        match self {
            Operation::Send { .. } | Operation::Write { .. } => (Scatter::new(), None),
            Operation::Read { target, .. } => (target, None),
            Operation::WriteRange { source: range, .. } | Operation::ReadRange { target: range, .. } => {
                (Scatter::new(), Some(range))
            }
            Operation::CompareSwap { target, .. } | Operation::FetchAdd { target, .. } => {
                let mut buffers = Scatter::new();
                buffers.push(target);
                (buffers, None)
            }
        }
    }
}

/// A request for a queue pair.
#[derive(Debug)]
pub struct Request<'a> {
    /// Identifier that comes back with the completion.
    pub id: u64,
    /// The operation to perform.
    pub operation: Operation<'a>,
    /// Whether its success gives a completion; a failure always does. Unsignaled requests that succeeded are known to
    /// be over from the completion of a later request, and what moved in with READs, atomics and WRITEs from ranges
    /// comes back before it.
    pub signaled: bool,
    /// Whether it waits until the queue pair's earlier READs and atomics are over.
    pub fence: bool,
    /// Whether it wakes a peer that waits for such a message. ([`super::CompletionQueue::wait`] wakes for every
    /// message; devices that can tell them apart may wake for these alone.)
    pub solicited: bool,
}

impl<'a> Request<'a> {
    /// A signaled request without a fence.
    #[inline]
    pub fn new(id: u64, operation: Operation<'a>) -> Self {
        Self { id, operation, signaled: true, fence: false, solicited: false }
    }

    /// Checks that a queue pair of this configuration and state can take the request: everything that does not depend
    /// on the device's memory. Every backend calls this, so that all refuse alike.
    ///
    /// # Errors
    ///
    /// [`PostError`].
    #[inline]
    pub fn check(&self, config: &QpConfig, state: QpState, attributes: &Attributes) -> Result<(), PostError> {
        if !matches!(state, QpState::ReadyToSend | QpState::Error) {
            return Err(PostError::State(state));
        }
        let (verb, transport) = (self.operation.verb(), config.transport);
        let atomic = matches!(verb, Verb::CompareSwap | Verb::FetchAdd);
        if !transport.allows(verb) || (atomic && !attributes.atomics) {
            return Err(PostError::NotOnTransport(verb, transport));
        }
        let (len, limit) = match &self.operation {
            Operation::Send { source, to, .. } => {
                if to.is_some() == transport.is_connected() {
                    return Err(PostError::Destination);
                }
                source.check(config)?;
                let datagram = transport == Transport::Ud;
                (source.len(), if datagram { attributes.mtu } else { attributes.message_len_max })
            }
            Operation::Write { source, .. } => {
                source.check(config)?;
                (source.len(), attributes.message_len_max)
            }
            Operation::Read { target, .. } => {
                check_pieces(target.len(), config)?;
                (target.iter().map(|buffer| buffer.len()).sum(), attributes.message_len_max)
            }
            Operation::WriteRange { source: range, .. } | Operation::ReadRange { target: range, .. } => {
                check_pieces(1, config)?;
                (range.len(), attributes.message_len_max)
            }
            Operation::CompareSwap { target, remote, .. } | Operation::FetchAdd { target, remote, .. } => {
                if target.len() < 8 || !remote.address.is_multiple_of(8) {
                    return Err(PostError::Atomic);
                }
                (8, 8)
            }
        };
        if len > limit { Err(PostError::TooLong { len, limit }) } else { Ok(()) }
    }

    /// The request, unsignaled.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.signaled = false;
        self
    }
}

/// A receive that was refused, with its buffers.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RefusedReceive {
    /// Reason for the refusal.
    #[source]
    pub error: PostError,
    /// The buffers that were to be posted.
    pub buffers: Scatter,
}

/// A request that was refused, with the memory that had moved in with it.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RefusedRequest {
    /// Reason for the refusal.
    #[source]
    pub error: PostError,
    /// The targets of a READ or an atomic.
    pub buffers: Scatter,
    /// The range of a READ or a WRITE.
    pub range: Option<OwnedRange>,
}

impl RefusedRequest {
    /// A refusal that gives back what `operation` holds.
    pub fn new(error: PostError, operation: Operation<'_>) -> Self {
        let (buffers, range) = operation.into_held();
        Self { error, buffers, range }
    }

    /// A refusal of a request that held no memory.
    pub fn bare(error: PostError) -> Self {
        Self { error, buffers: Scatter::new(), range: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sinew_mem::Arena;

    fn attributes() -> Attributes {
        Attributes {
            name: "test".into(),
            mtu: 4096,
            message_len_max: 1 << 20,
            inline_max: 64,
            gather_max: 2,
            queue_depth_max: 16,
            reads_max: 16,
            atomics: true,
            line_rate_bps: None,
        }
    }

    fn check(transport: Transport, operation: Operation<'_>) -> Result<(), PostError> {
        let config = QpConfig { gather_max: 2, ..QpConfig::new(transport) };
        Request::new(0, operation).check(&config, QpState::ReadyToSend, &attributes())
    }

    fn send(source: Source<'_>, to: Option<Destination>) -> Operation<'_> {
        Operation::Send { source, immediate: None, to }
    }

    const ANYONE: Destination = Destination { handle: 0, number: QpNumber(1), qkey: 0 };
    const REMOTE: RemoteMemory = RemoteMemory { address: 0, rkey: 0, len: 1 << 20 };

    #[test]
    fn every_verb_is_taken_or_refused_as_the_matrix_says() {
        let arena = Arena::private(1 << 16).unwrap();
        let buffer = || arena.alloc(8, 8).unwrap();
        for transport in Transport::ALL {
            for verb in Verb::ALL {
                let to = (transport == Transport::Ud).then_some(ANYONE);
                let operation = match verb {
                    Verb::Send => send(Source::Empty, to),
                    Verb::Write => Operation::Write { source: Source::Empty, remote: REMOTE, immediate: None },
                    Verb::WriteWithImmediate => {
                        Operation::Write { source: Source::Empty, remote: REMOTE, immediate: Some(1) }
                    }
                    Verb::Read => Operation::Read { target: Scatter::new(), remote: REMOTE },
                    Verb::CompareSwap => {
                        Operation::CompareSwap { target: buffer(), remote: REMOTE, expected: 0, desired: 1 }
                    }
                    Verb::FetchAdd => Operation::FetchAdd { target: buffer(), remote: REMOTE, add: 1 },
                };
                assert_eq!(operation.verb(), verb);
                assert_eq!(check(transport, operation).is_ok(), transport.allows(verb), "{transport:?} {verb:?}");
            }
        }
    }

    #[test]
    fn both_sides_of_every_limit() {
        let arena = Arena::private(4 << 20).unwrap();
        let frozen = |len: usize| arena.alloc(len, len.max(1)).unwrap().freeze();
        let ud = |len: usize| check(Transport::Ud, send(frozen(len).into(), Some(ANYONE)));
        assert!(ud(4096).is_ok());
        assert_eq!(ud(4097), Err(PostError::TooLong { len: 4097, limit: 4096 }));
        let rc = |source: Source<'_>| check(Transport::Rc, send(source, None));
        assert!(rc(frozen(1 << 20).into()).is_ok() && rc(frozen((1 << 20) + 1).into()).is_err());
        assert!(rc(Source::Inline(&[0; 64])).is_ok());
        assert_eq!(rc(Source::Inline(&[0; 65])), Err(PostError::InlineTooLong { len: 65, limit: 64 }));
        let pieces = |count| Source::Gather((0..count).map(|_| Slice::from(frozen(1))).collect());
        assert!(rc(pieces(2)).is_ok());
        assert_eq!(rc(pieces(3)), Err(PostError::TooManyPieces { pieces: 3, limit: 2 }));
        for (start, len, good) in [(0, 8, true), (8, 0, true), (1, 8, false), (9, 0, false), (usize::MAX, 2, false)] {
            let slice = Slice { buffer: frozen(8), start, len };
            assert_eq!(rc(Source::Gather([slice].into_iter().collect())).is_ok(), good, "{start} {len}");
        }
        assert_eq!(check(Transport::Rc, send(Source::Empty, Some(ANYONE))), Err(PostError::Destination));
        assert_eq!(check(Transport::Ud, send(Source::Empty, None)), Err(PostError::Destination));
        let add = |len: usize, address: u64| {
            let remote = RemoteMemory { address, ..REMOTE };
            check(Transport::Rc, Operation::FetchAdd { target: arena.alloc(len, 8).unwrap(), remote, add: 1 })
        };
        assert!(add(8, 8).is_ok());
        assert_eq!((add(7, 8), add(8, 4)), (Err(PostError::Atomic), Err(PostError::Atomic)));
    }

    #[test]
    fn only_a_ready_queue_pair_or_a_broken_one_takes_requests() {
        let config = QpConfig::new(Transport::Rc);
        for (state, sends, receives) in [
            (QpState::Reset, false, false),
            (QpState::Init, false, true),
            (QpState::ReadyToReceive, false, true),
            (QpState::ReadyToSend, true, true),
            (QpState::Error, true, true),
        ] {
            let request = Request::new(0, send(Source::Empty, None));
            assert_eq!(request.check(&config, state, &attributes()).is_ok(), sends);
            assert_eq!(check_receive(&Scatter::new(), &config, state).is_ok(), receives);
        }
    }
}
