//! The sequencer for everyday use: over remote procedure calls, on any packet port.
//!
//! A request is the count of numbers wanted (4 bytes, little-endian). The answer is the first of them and the server's
//! [`Epoch`] (16 bytes), or a refusal (9 bytes). All requests of a received burst take their numbers from the
//! [`Sequence`] together. Calls run at most once, so a retransmitted request is answered with the numbers that it had.

use std::sync::Arc;

use arrayvec::ArrayVec;
use sinew_fabric::MAX_BURST;
use sinew_mem::{AllocError, MessageBuffer};
use sinew_rpc::{BurstCalls, CallId, CallOptions, Endpoint, RequestType, SessionId};

use crate::client::{Answer, Client, Numbers};
use crate::error::{CallError, ClientError, Refusal, RequestError};
use crate::sequence::{Epoch, Sequence};

/// The type of a sequencer's requests.
pub const NEXT: RequestType = RequestType::new(32);

/// Length of a request, in bytes.
pub const REQUEST_LEN: usize = 4;
/// Length of an answer with numbers, in bytes; refusals are shorter.
pub const ANSWER_LEN: usize = 16;
const REFUSAL_LEN: usize = 9;
/// Time-out that never passes.
const NEVER: u64 = u64::MAX;

impl Refusal {
    fn to_bytes(self) -> [u8; REFUSAL_LEN] {
        let (code, detail) = match self {
            Self::Count { max } => (1, u64::from(max)),
            Self::Exhausted => (2, 0),
            Self::Malformed => (3, 0),
        };
        let mut bytes = [code; REFUSAL_LEN];
        bytes[1..].copy_from_slice(&u64::to_le_bytes(detail));
        bytes
    }

    fn from_bytes(bytes: &[u8; REFUSAL_LEN]) -> Option<Self> {
        let (&code, detail) = bytes.split_first()?;
        let detail = u64::from_le_bytes(*detail.first_chunk()?);
        match code {
            1 => Some(Self::Count { max: u32::try_from(detail).ok()? }),
            2 => Some(Self::Exhausted),
            3 => Some(Self::Malformed),
            _ => None,
        }
    }
}

/// Encodes a request for `count` numbers.
#[inline]
pub fn request_bytes(count: u32) -> [u8; REQUEST_LEN] {
    count.to_le_bytes()
}

/// Encodes an answer with numbers from `first` on.
#[inline(always)]
fn answer_bytes(first: u64, epoch: Epoch) -> [u8; ANSWER_LEN] {
    let mut bytes = [0; ANSWER_LEN];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&epoch.0.to_le_bytes());
    bytes
}

/// Decodes the answer to a request for `count` numbers: the numbers, and their epoch.
///
/// # Errors
///
/// [`CallError::Refused`], [`CallError::BadAnswer`].
#[inline]
pub fn read_answer(answer: &[u8], count: u32) -> Result<(Numbers, Epoch), CallError> {
    if let Some((first, epoch)) = answer.as_array::<ANSWER_LEN>().and_then(|answer| answer.split_first_chunk::<8>()) {
        let first = u64::from_le_bytes(*first);
        // A range that runs past the last number is not a valid answer.
        if let (Some(_), Some(epoch)) = (first.checked_add(u64::from(count)), epoch.first_chunk()) {
            return Ok((Numbers { first, count }, Epoch(u64::from_le_bytes(*epoch))));
        }
    }
    let refusal = answer.as_array::<REFUSAL_LEN>().and_then(Refusal::from_bytes);
    Err(refusal.map_or(CallError::BadAnswer { len: answer.len() }, CallError::Refused))
}

/// Decodes a request: the count of numbers asked for.
#[inline]
fn read_request(request: &[u8], max: u32) -> Result<u32, Refusal> {
    let Some(count) = request.as_array() else { return Err(Refusal::Malformed) };
    let count = u32::from_le_bytes(*count);
    if (1..=max).contains(&count) { Ok(count) } else { Err(Refusal::Count { max }) }
}

/// The handler of requests of type [`NEXT`], for `handle_burst`; a server uses it for all of its endpoints.
pub fn handler(sequence: Arc<Sequence>) -> impl Fn(&mut BurstCalls<'_, '_>) + Send + Sync + 'static {
    move |calls| answer_burst(&sequence, calls)
}

/// Answers a burst, whose numbers are taken together.
fn answer_burst(sequence: &Sequence, calls: &mut BurstCalls<'_, '_>) {
    let mut counts = ArrayVec::<u32, MAX_BURST>::new();
    let mut total = 0;
    for index in 0..calls.len() {
        let Ok(count) = read_request(calls.request(index), sequence.count_max()) else {
            return answer_one_by_one(sequence, calls);
        };
        total += u64::from(count);
        counts.push(count);
    }
    let Some(mut first) = sequence.take(total) else { return answer_one_by_one(sequence, calls) };
    // Two instructions fewer for each answer than with an iterator of pairs.
    let mut index = 0;
    while let Some(&count) = counts.get(index) {
        calls.reply(index, &answer_bytes(first, sequence.epoch()));
        first += u64::from(count);
        index += 1;
    }
}

/// Answers a burst in which a request is refused, or for which there are too few numbers: the first requests may still
/// get theirs.
#[cold]
#[inline(never)]
fn answer_one_by_one(sequence: &Sequence, calls: &mut BurstCalls<'_, '_>) {
    for index in 0..calls.len() {
        let first = read_request(calls.request(index), sequence.count_max())
            .and_then(|count| sequence.take(count.into()).ok_or(Refusal::Exhausted));
        match first {
            Ok(first) => calls.reply(index, &answer_bytes(first, sequence.epoch())),
            Err(refusal) => calls.reply(index, &refusal.to_bytes()),
        }
    }
}

/// A client over one session, on an endpoint of its own or on a [share](sinew_rpc::SharedEndpoint) of one.
pub struct RpcClient<E: Endpoint> {
    rpc: E,
    session: SessionId,
    window: usize,
    /// Buffers of calls that are not in flight.
    idle: Vec<(MessageBuffer, MessageBuffer)>,
    epoch: Option<Epoch>,
    /// Time-out of calls without one of their own; [`NEVER`] for none.
    timeout_ns: u64,
}

impl<E: Endpoint> RpcClient<E> {
    /// Makes a client over a session of `rpc`, with up to `window` calls in flight. Those beyond the session's slots
    /// wait in its queue.
    ///
    /// With `epoch`, only numbers of that epoch are accepted; otherwise the first answer sets it.
    ///
    /// # Errors
    ///
    /// [`AllocError`].
    pub fn new(rpc: E, session: SessionId, window: usize, epoch: Option<Epoch>) -> Result<Self, AllocError> {
        let buffers = |_| Ok((rpc.alloc(REQUEST_LEN)?, rpc.alloc(ANSWER_LEN)?));
        let idle = (0..window).map(buffers).collect::<Result<_, AllocError>>()?;
        Ok(Self { rpc, session, window, idle, epoch, timeout_ns: NEVER })
    }

    /// Sets the time-out of calls, in nanoseconds. The remaining time travels with a call, which ends with
    /// [`Cause::DeadlinePassed`](sinew_rpc::Cause::DeadlinePassed) on both sides when it has passed; the server may
    /// have taken its numbers by then, which are gaps. Without a time-out, a call waits until it is answered or the
    /// server is given up.
    #[must_use]
    pub fn timeout_ns(self, timeout_ns: u64) -> Self {
        Self { timeout_ns, ..self }
    }

    /// As [`Client::request`], with a time-out of its own in place of the client's; `u64::MAX` waits as long as it
    /// takes. Returns the call's id, for [`Self::cancel`].
    ///
    /// # Errors
    ///
    /// As [`Client::request`].
    // Out of line, so that calls without a time-out do not pay for it.
    #[inline(never)]
    pub fn request_within(&mut self, tag: u64, count: u32, timeout_ns: u64) -> Result<CallId, RequestError> {
        self.enqueue(CallOptions::tag(tag).timeout_ns(timeout_ns), count)
    }

    /// Cancels a call: it ends in an error with [`Cause::Cancelled`](sinew_rpc::Cause::Cancelled), and its numbers may
    /// have been taken, and are then gaps. Returns whether it was in flight.
    pub fn cancel(&mut self, call: CallId) -> bool {
        self.rpc.cancel(call)
    }

    #[inline(always)]
    fn enqueue(&mut self, options: CallOptions, count: u32) -> Result<CallId, RequestError> {
        let window = self.window;
        let (mut request, response) = self.idle.pop().ok_or(RequestError::WindowFull { window })?;
        // Of constant length, so that the copy is no call of `memcpy`.
        if let Some(bytes) = request.first_chunk_mut() {
            *bytes = request_bytes(count);
        }
        match self.rpc.enqueue_request(self.session, NEXT, request, response, options) {
            Ok(call) => Ok(call),
            Err(rejected) => {
                self.idle.push((rejected.request, rejected.response));
                Err(RequestError::Enqueue(rejected.error))
            }
        }
    }

    /// The epoch that numbers come from, once known.
    pub fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// The endpoint, for its counters. [`Client::answer`] takes all completions of the endpoint and drops its events,
    /// so to make other calls or hold other sessions, share the endpoint ([`sinew_rpc::SharedEndpoint`]).
    pub fn rpc(&mut self) -> &mut E {
        &mut self.rpc
    }

    #[inline]
    fn read(&mut self, answer: &[u8], count: u32) -> Result<Numbers, CallError> {
        let (numbers, epoch) = read_answer(answer, count)?;
        match *self.epoch.get_or_insert(epoch) {
            expected if expected == epoch => Ok(numbers),
            expected => Err(CallError::Restarted { expected, found: epoch }),
        }
    }
}

impl<E: Endpoint> Client for RpcClient<E> {
    fn window(&self) -> usize {
        self.window
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.window - self.idle.len()
    }

    #[inline]
    fn request(&mut self, tag: u64, count: u32) -> Result<(), RequestError> {
        if self.timeout_ns != NEVER {
            return self.request_within(tag, count, self.timeout_ns).map(|_| ());
        }
        // The options are constant here, so the compiler can drop the code for them.
        self.enqueue(CallOptions::tag(tag), count).map(|_| ())
    }

    #[inline]
    fn turn(&mut self, _now_ns: u64) -> Result<bool, ClientError> {
        Ok(self.rpc.turn())
    }

    #[inline]
    fn answer(&mut self) -> Option<Answer> {
        let Some(completion) = self.rpc.poll_completion() else {
            // A lost session shows in its calls, so the events are of no use. Left untaken, they would keep a shared
            // endpoint awake.
            while self.rpc.poll_event().is_some() {}
            return None;
        };
        let result = match completion.result {
            Err(error) => Err(CallError::Rpc(error)),
            Ok(()) => {
                let count = completion.request.first_chunk().map_or(0, |count| u32::from_le_bytes(*count));
                self.read(&completion.response, count)
            }
        };
        self.idle.push((completion.request, completion.response));
        Some(Answer { tag: completion.tag, result })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_another_length_or_for_none_or_too_many_are_refused() {
        assert_eq!((read_request(&request_bytes(1), 7), read_request(&request_bytes(7), 7)), (Ok(1), Ok(7)));
        for count in [0, 8, u32::MAX] {
            assert_eq!(read_request(&request_bytes(count), 7), Err(Refusal::Count { max: 7 }));
        }
        for len in (0..20).filter(|len| *len != REQUEST_LEN) {
            assert_eq!(read_request(&[1; 20][..len], 7), Err(Refusal::Malformed));
        }
    }

    #[test]
    fn answers_are_numbers_or_refusals_or_none() {
        let answer = |first: u64, epoch: u64| [first.to_le_bytes(), epoch.to_le_bytes()].concat();
        let numbers = Numbers { first: 5, count: 3 };
        assert_eq!(read_answer(&answer(5, 9), 3), Ok((numbers, Epoch(9))));
        assert_eq!((numbers.last(), numbers.into_iter().collect()), (7, vec![5, 6, 7]));
        for refusal in [Refusal::Count { max: 70_000 }, Refusal::Exhausted, Refusal::Malformed] {
            assert_eq!(read_answer(&refusal.to_bytes(), 3), Err(CallError::Refused(refusal)));
        }
        assert_eq!(read_answer(&answer(u64::MAX, 9), 1), Err(CallError::BadAnswer { len: 16 }));
        assert_eq!(read_answer(&[77; REFUSAL_LEN], 1), Err(CallError::BadAnswer { len: 9 }));
        for len in (0..40).filter(|len| ![REFUSAL_LEN, ANSWER_LEN].contains(len)) {
            assert_eq!(read_answer(&[0; 40][..len], 1), Err(CallError::BadAnswer { len }));
        }
    }
}
