//! The service that a worker runs.

/// A request, in a private copy that was checked to be whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Index of the client, from 0; reused once the client is gone.
    pub client: u32,
    /// A number of the client's choice.
    pub kind: u16,
    /// Body of the request.
    pub body: &'a [u8],
}

/// An answer being assembled.
#[derive(Debug)]
pub struct Response<'a> {
    /// A number of the service's choice; 0 unless set.
    pub kind: u16,
    room: &'a mut [u8],
    len: usize,
}

impl<'a> Response<'a> {
    /// Makes an empty answer that will lie in `room`. For tests of services.
    #[inline(always)]
    pub fn new(room: &'a mut [u8]) -> Self {
        Self { kind: 0, room, len: 0 }
    }

    /// Sets the length of the answer to `len` bytes and returns them to be filled; their contents are undefined. `None`
    /// if the answer cannot be that long ([`crate::Layout::response_len_max`]); then it is unchanged.
    #[inline(always)]
    pub fn body(&mut self, len: usize) -> Option<&mut [u8]> {
        let body = self.room.get_mut(..len)?;
        self.len = len;
        Some(body)
    }

    /// Length of the answer, in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the answer is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A service, used by one thread alone.
///
/// A request takes three steps: [`Self::prefetch`], [`Self::advance`], [`Self::execute`]. Between them come the steps
/// of other requests, and the sending of answers, so the data that one step prefetches has arrived when the next reads
/// it (sigcomm14 4.1.1).
pub trait Service {
    /// State kept for a request from step to step.
    type Job: Default;

    /// The first step: parses the request, and prefetches the data that the second reads.
    fn prefetch(&mut self, request: &Request<'_>) -> Self::Job;

    /// The second step: reads that data, and prefetches the data that the third reads.
    fn advance(&mut self, _request: &Request<'_>, _job: &mut Self::Job) {}

    /// Announces that [`Self::execute`] will be called `requests` times before the next call of this method. `now_ns`
    /// is the time passed to the worker.
    fn begin(&mut self, _requests: usize, _now_ns: u64) {}

    /// Executes the request and answers it. It is called once for each request that was prefetched, unless its client
    /// has left.
    fn execute(&mut self, request: &Request<'_>, job: Self::Job, response: &mut Response<'_>);
}
