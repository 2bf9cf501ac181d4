//! Requests whose bytes are inline: they borrow everything, so there is nothing to drop or to give back.

use super::memory::RemoteMemory;
use super::request::{Destination, Operation, Request, Source};

/// A SEND or WRITE of inline bytes. Unlike a [`Request`] it is plain data, which devices can take apart as it comes
/// without ever putting it together in memory.
#[derive(Clone, Copy, Debug)]
pub struct InlineRequest<'a> {
    /// Identifier that comes back with the completion.
    pub id: u64,
    /// The bytes, which are copied when the request is pushed: at most [`super::QpConfig::inline_max`] of them.
    pub bytes: &'a [u8],
    /// Operation on the bytes.
    pub operation: InlineOperation,
    /// As in [`Operation`]: four further bytes.
    pub immediate: Option<u32>,
    /// As in [`Request`]: whether its success gives a completion.
    pub signaled: bool,
}

/// Operation of an [`InlineRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineOperation {
    /// A SEND, over UD to this destination.
    Send(Option<Destination>),
    /// A WRITE to this memory, from its start on.
    Write(RemoteMemory),
}

impl<'a> InlineRequest<'a> {
    /// A signaled SEND; over UD it goes `to` a destination.
    #[inline]
    pub fn send(id: u64, bytes: &'a [u8], to: Option<Destination>) -> Self {
        Self { id, bytes, operation: InlineOperation::Send(to), immediate: None, signaled: true }
    }

    /// A signaled WRITE.
    #[inline]
    pub fn write(id: u64, bytes: &'a [u8], remote: RemoteMemory) -> Self {
        Self { id, bytes, operation: InlineOperation::Write(remote), immediate: None, signaled: true }
    }
}

impl<'a> From<InlineRequest<'a>> for Request<'a> {
    fn from(InlineRequest { id, bytes, operation, immediate, signaled }: InlineRequest<'a>) -> Self {
        let source = Source::Inline(bytes);
        let operation = match operation {
            InlineOperation::Send(to) => Operation::Send { source, immediate, to },
            InlineOperation::Write(remote) => Operation::Write { source, remote, immediate },
        };
        Self { id, operation, signaled, fence: false, solicited: false }
    }
}

impl<'a> Request<'a> {
    /// The request as an inline one; `None` when it is another, or has a flag that inline ones lack.
    #[inline]
    pub fn as_inline(&self) -> Option<InlineRequest<'a>> {
        let (bytes, immediate, operation) = match self.operation {
            Operation::Send { source: Source::Inline(bytes), immediate, to } => {
                (bytes, immediate, InlineOperation::Send(to))
            }
            Operation::Write { source: Source::Inline(bytes), immediate, remote } => {
                (bytes, immediate, InlineOperation::Write(remote))
            }
            _ => return None,
        };
        let Self { id, signaled, fence, solicited, .. } = *self;
        (!fence && !solicited).then_some(InlineRequest { id, bytes, operation, immediate, signaled })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::QpNumber;

    #[test]
    fn an_inline_request_is_the_same_request_in_its_long_form() {
        let to = Some(Destination { handle: 1, number: QpNumber(2), qkey: 3 });
        let remote = RemoteMemory { address: 4, rkey: 5, len: 6 };
        for request in [InlineRequest::send(7, b"ab", to), InlineRequest::write(8, b"cd", remote)] {
            for request in [request, InlineRequest { immediate: Some(9), signaled: false, ..request }] {
                let long = Request::from(request);
                assert_eq!((long.id, long.signaled, long.operation.len()), (request.id, request.signaled, 2));
                let back = long.as_inline().expect("it is inline");
                assert_eq!((back.id, back.bytes, back.signaled), (request.id, request.bytes, request.signaled));
                assert_eq!((back.operation, back.immediate), (request.operation, request.immediate));
                assert!(Request { fence: true, ..Request::from(request) }.as_inline().is_none());
            }
        }
        let empty = Operation::Send { source: Source::Empty, immediate: None, to };
        assert!(Request::new(0, empty).as_inline().is_none());
    }
}
