//! The sequencer over HERD's calls: a request without data is written into the server's memory, and the answer comes as
//! a datagram (atc16 4.2).
//!
//! With [`sinew_herd::WorkerConfig::herd`] a worker takes and answers requests one by one, the baseline of atc16. With
//! [`sinew_herd::WorkerConfig::herd_opt`] the requests that it finds get their numbers with one access to the shared
//! word, and their answers leave with one doorbell, over several queue pairs in turn.
//!
//! A lost request is retransmitted, and executed once. A restarted server has other tokens, so its answers do not reach
//! clients of the earlier one, nor do their requests reach it.

use std::collections::VecDeque;
use std::sync::Arc;

use sinew_fabric::verbs::Device;
use sinew_herd::{Layout, Request, Response, Service};

use crate::client::{Answer, Client, Numbers};
use crate::error::{CallError, ClientError, Refusal, RequestError};
use crate::sequence::Sequence;

/// Length of an answer, in bytes.
const ANSWER_LEN: usize = 8;
/// Kinds of answers.
const NUMBER: u16 = 0;
const EXHAUSTED: u16 = 1;
const MALFORMED: u16 = 2;

/// Layout of the request region of a sequencer with this many workers, clients, and requests in flight from one client
/// to one worker (a power of two).
pub fn layout(workers: usize, clients: usize, window: usize) -> Layout {
    Layout { workers, clients, window, request_len_max: 0, response_len_max: ANSWER_LEN }
}

/// The service that a worker runs.
#[derive(Debug)]
pub struct NumberService {
    sequence: Arc<Sequence>,
    /// The next of the numbers taken for the current requests, and how many are left.
    next: u64,
    left: u64,
}

impl NumberService {
    /// Makes a service that hands out numbers of `sequence`, which all workers share.
    pub fn new(sequence: Arc<Sequence>) -> Self {
        Self { sequence, next: 0, left: 0 }
    }

    #[inline(always)]
    fn number(&mut self) -> Option<u64> {
        let Some(left) = self.left.checked_sub(1) else { return self.sequence.take(1) };
        self.left = left;
        self.next += 1;
        Some(self.next - 1)
    }
}

impl Service for NumberService {
    type Job = ();

    #[inline(always)]
    fn prefetch(&mut self, _: &Request<'_>) {}

    #[inline(always)]
    fn begin(&mut self, requests: usize, _now_ns: u64) {
        let reserved = self.sequence.take(requests as u64);
        // When there are too few numbers for all, the first requests may still get theirs one by one.
        (self.next, self.left) = reserved.map_or((0, 0), |first| (first, requests as u64));
    }

    #[inline(always)]
    fn execute(&mut self, request: &Request<'_>, (): (), response: &mut Response<'_>) {
        if !request.body.is_empty() {
            response.kind = MALFORMED;
            return;
        }
        let Some(number) = self.number() else {
            response.kind = EXHAUSTED;
            return;
        };
        // Always true: the layout has room for a number.
        if let Some(body) = response.body(ANSWER_LEN) {
            body.copy_from_slice(&number.to_le_bytes());
        }
    }
}

/// A client of a server that runs [`NumberService`]s.
pub struct HerdClient<D: Device> {
    herd: sinew_herd::Client<D>,
    workers: usize,
    /// Index of the worker for the next call.
    worker: usize,
    window: usize,
    /// Calls that found no slot free.
    waiting: VecDeque<u64>,
    answers: VecDeque<Answer>,
    in_flight: usize,
}

impl<D: Device> HerdClient<D> {
    /// Makes a client from one of HERD's that has joined.
    pub fn new(herd: sinew_herd::Client<D>) -> Self {
        let Layout { workers, window, .. } = *herd.layout();
        let window = workers * window;
        let new_queue = || VecDeque::with_capacity(window);
        Self {
            herd,
            workers,
            worker: 0,
            window,
            waiting: new_queue(),
            answers: VecDeque::with_capacity(window),
            in_flight: 0,
        }
    }

    /// Counters of HERD's client.
    pub fn stats(&self) -> &sinew_herd::ClientStats {
        self.herd.stats()
    }
}

/// Decodes an answer.
#[inline(always)]
fn read(answer: &sinew_herd::Answer<'_>) -> Result<Numbers, CallError> {
    match (answer.kind, answer.body.as_array::<ANSWER_LEN>()) {
        (NUMBER, Some(number)) => Ok(Numbers { first: u64::from_le_bytes(*number), count: 1 }),
        (EXHAUSTED, _) => Err(CallError::Refused(Refusal::Exhausted)),
        (MALFORMED, _) => Err(CallError::Refused(Refusal::Malformed)),
        _ => Err(CallError::BadAnswer { len: answer.body.len() }),
    }
}

impl<D: Device> Client for HerdClient<D> {
    fn window(&self) -> usize {
        self.window
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.in_flight
    }

    #[inline]
    fn request(&mut self, tag: u64, count: u32) -> Result<(), RequestError> {
        if count != 1 {
            return Err(RequestError::Count { asked: count, max: 1 });
        }
        if self.in_flight == self.window {
            return Err(RequestError::WindowFull { window: self.window });
        }
        self.in_flight += 1;
        self.waiting.push_back(tag);
        Ok(())
    }

    #[inline]
    fn turn(&mut self, now_ns: u64) -> Result<bool, ClientError> {
        let mut is_busy = false;
        while let Some(&tag) = self.waiting.front()
            && self.herd.has_room(self.worker)
        {
            // A call refused all the same waits for the next turn; a broken connection is reported below.
            if self.herd.request(self.worker, tag, 0, &[], now_ns).is_err() {
                break;
            }
            self.waiting.pop_front();
            self.worker = if self.worker + 1 == self.workers { 0 } else { self.worker + 1 };
            is_busy = true;
        }
        self.herd.flush();
        let answers = &mut self.answers;
        let answered =
            self.herd.poll(now_ns, |answer| answers.push_back(Answer { tag: answer.tag, result: read(&answer) }))?;
        Ok(is_busy || answered > 0)
    }

    #[inline]
    fn answer(&mut self) -> Option<Answer> {
        let answer = self.answers.pop_front()?;
        self.in_flight -= 1;
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epoch, LAST};

    /// Executes a request with this body; returns the kind of the answer, and the number in it.
    fn execute(service: &mut NumberService, body: &[u8]) -> (u16, Option<u64>) {
        let mut room = [0; ANSWER_LEN];
        let mut response = Response::new(&mut room);
        service.execute(&Request { client: 0, kind: 0, body }, (), &mut response);
        let (kind, len) = (response.kind, response.len());
        (kind, (len == ANSWER_LEN).then(|| u64::from_le_bytes(room)))
    }

    #[test]
    fn requests_at_hand_take_their_numbers_together() {
        let sequence = Arc::new(Sequence::new(5, Epoch(1), 1));
        let mut service = NumberService::new(Arc::clone(&sequence));
        service.begin(3, 0);
        assert_eq!(sequence.next(), 8);
        let taken = [b"", &b"x"[..], b"", b"", b""].map(|body| execute(&mut service, body));
        let expected = [(NUMBER, Some(5)), (MALFORMED, None), (NUMBER, Some(6)), (NUMBER, Some(7)), (NUMBER, Some(8))];
        assert_eq!(taken, expected);
    }

    #[test]
    fn what_is_left_is_handed_out_before_the_end_is_told() {
        let mut service = NumberService::new(Arc::new(Sequence::new(LAST, Epoch(1), 1)));
        service.begin(2, 0);
        let taken = [(); 2].map(|()| execute(&mut service, b""));
        assert_eq!(taken, [(NUMBER, Some(LAST)), (EXHAUSTED, None)]);
    }
}
