//! What a worker serves.

/// A request: a private copy, checked to be whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Which client's, from 0; another's once that one is gone.
    pub client: u32,
    /// A number of the client's choice.
    pub kind: u16,
    /// Its bytes.
    pub body: &'a [u8],
}

/// Where an answer is put together.
#[derive(Debug)]
pub struct Response<'a> {
    /// A number of the service's choice; 0 unless it is set.
    pub kind: u16,
    room: &'a mut [u8],
    len: usize,
}

impl<'a> Response<'a> {
    /// An empty answer, which will lie in `room`: for those who test services.
    #[inline(always)]
    pub fn new(room: &'a mut [u8]) -> Self {
        Self { kind: 0, room, len: 0 }
    }

    /// Makes the answer `len` bytes long and gives them to be filled; what they hold is undefined. `None`, and the answer is as it
    /// was, when it cannot be as long ([`crate::Layout::response_len_max`]).
    #[inline(always)]
    pub fn body(&mut self, len: usize) -> Option<&mut [u8]> {
        let body = self.room.get_mut(..len)?;
        self.len = len;
        Some(body)
    }

    /// Bytes of the answer.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A service, alone with its thread.
///
/// A request takes three steps: [`Self::prefetch`], [`Self::advance`], [`Self::execute`]. Other requests' steps, and the sending of
/// answers, come between, so what a step prefetches has arrived when the next reads it (sigcomm14 4.1.1).
pub trait Service {
    /// What is kept of a request from step to step.
    type Job: Default;

    /// The first step: takes the request apart, and prefetches what the second reads.
    fn prefetch(&mut self, request: &Request<'_>) -> Self::Job;

    /// The second step: reads that, and prefetches what the third reads.
    fn advance(&mut self, _request: &Request<'_>, _job: &mut Self::Job) {}

    /// [`Self::execute`] is called so many times from now on, before this is called again. `now_ns` is the time that the worker was
    /// handed.
    fn begin(&mut self, _requests: usize, _now_ns: u64) {}

    /// Executes the request and answers. It is called once for each request that was prefetched, unless its client left.
    fn execute(&mut self, request: &Request<'_>, job: Self::Job, response: &mut Response<'_>);
}
