//! A client with many requests in flight.

use sinew_mem::{AllocError, MessageBuffer};
use sinew_rpc::{CallOptions, Channel, ChannelError, Completion, Endpoint, EnqueueError};

use super::error::Error;
use super::protocol::{Malformed, Request, Response};
use super::{POINTS, RANGES};

/// Initial length of a buffer; a longer message replaces its buffer by a longer one.
const BUFFER_LEN: usize = 128;
/// Longest buffer that is kept for the next request.
const KEPT_LEN: usize = 64 << 10;

/// A client's window and time-out.
#[derive(Clone, Copy, Debug)]
pub struct PipelineConfig {
    /// Requests in flight, over as many sessions as it takes to have that many slots.
    pub window: usize,
    /// Time-out of a request, in nanoseconds; the remaining time travels with the request. `None` waits until the
    /// request is answered or the server is given up.
    pub timeout_ns: Option<u64>,
}

impl Default for PipelineConfig {
    fn default() -> Self {
        Self { window: 64, timeout_ns: None }
    }
}

/// A client of an index on the fast path: enqueue requests, turn the loop, take answers, in any order. It belongs to
/// the thread that made it, and in steady state allocates nothing for requests and answers of up to 64 KB. It takes all
/// completions and events of its endpoint; to use the endpoint for other things as well, give the pipeline a
/// [share](sinew_rpc::SharedEndpoint) of it.
pub struct Pipeline<E: Endpoint> {
    rpc: E,
    channel: Channel,
    timeout_ns: Option<u64>,
    pending: Vec<PendingRequest>,
    idle: Vec<Idle>,
    /// The encoded request, before it has a buffer of its length.
    request: Vec<u8>,
    /// The call whose answer was handed out last; the answer borrows its buffers.
    last: Option<Completion>,
}

/// A request in flight.
#[derive(Clone, Copy)]
struct PendingRequest {
    tag: u64,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Get,
    Change,
    Stats,
    Scan,
    Sum,
}

/// A request that is not in flight.
struct Idle {
    number: usize,
    request: MessageBuffer,
    response: MessageBuffer,
}

/// Outcome of a request.
#[derive(Debug)]
pub struct Answer<'a> {
    /// Tag given with the request.
    pub tag: u64,
    /// The server's answer. [`Response::Refused`] does not occur here; it becomes an error.
    pub response: Result<Response<'a>, Error>,
}

impl<E: Endpoint> Pipeline<E> {
    /// Connects to the index at `address`.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`], [`Error::Channel`], [`Error::Alloc`].
    pub fn connect(mut rpc: E, address: &str, config: PipelineConfig) -> Result<Self, Error> {
        let window = config.window.max(1);
        let channel = Channel::open(&mut rpc, address, window)?;
        Self::with_channel(rpc, channel, config)
    }

    /// Makes a client that uses the sessions of `channel`, which belong to `rpc`.
    ///
    /// # Errors
    ///
    /// [`Error::Alloc`].
    pub fn with_channel(rpc: E, channel: Channel, config: PipelineConfig) -> Result<Self, Error> {
        let window = config.window.max(1);
        let idle = (0..window)
            .map(|number| Ok(Idle { number, request: rpc.alloc(BUFFER_LEN)?, response: rpc.alloc(BUFFER_LEN)? }));
        let idle = idle.collect::<Result<_, AllocError>>()?;
        let pending = vec![PendingRequest { tag: 0, kind: Kind::Stats }; window];
        Ok(Self { channel, timeout_ns: config.timeout_ns, pending, idle, request: Vec::new(), last: None, rpc })
    }

    /// The endpoint.
    pub fn rpc(&self) -> &E {
        &self.rpc
    }

    /// Requests that may be in flight.
    pub fn window(&self) -> usize {
        self.pending.len()
    }

    /// Requests whose answers have not been taken yet.
    pub fn in_flight(&self) -> usize {
        self.pending.len() - self.idle.len() - usize::from(self.last.is_some())
    }

    /// Enqueues a request, which leaves with the next [`Self::turn`]; `tag` comes back with its answer.
    ///
    /// # Errors
    ///
    /// [`Error::WindowFull`], [`Error::Refused`] where a key is longer than any index accepts, or an error of the
    /// endpoint; then nothing was sent.
    pub fn submit(&mut self, request: &Request<'_>, tag: u64) -> Result<(), Error> {
        request.check()?;
        self.recycle();
        let Some(Idle { number, request: mut buffer, response }) = self.idle.pop() else {
            return Err(Error::WindowFull { window: self.window() });
        };
        self.request.clear();
        request.write(&mut self.request);
        if buffer.resize(self.request.len()).is_err() {
            match self.rpc.alloc(self.request.len()) {
                Ok(longer) => buffer = longer,
                Err(error) => {
                    self.idle.push(Idle { number, request: buffer, response });
                    return Err(error.into());
                }
            }
        }
        buffer.copy_from_slice(&self.request);
        let (kind, request_type) = match request {
            Request::Get { .. } => (Kind::Get, POINTS),
            Request::Put { .. } | Request::Delete { .. } => (Kind::Change, POINTS),
            Request::Stats => (Kind::Stats, POINTS),
            Request::Scan { .. } => (Kind::Scan, RANGES),
            Request::Sum { .. } => (Kind::Sum, RANGES),
        };
        self.pending[number] = PendingRequest { tag, kind };
        let options = CallOptions::tag(number as u64);
        let options = self.timeout_ns.map_or(options, |timeout_ns| options.timeout_ns(timeout_ns));
        match self.channel.enqueue_request(&mut self.rpc, request_type, buffer, response, options) {
            Ok(_) => Ok(()),
            Err(rejected) => {
                self.idle.push(Idle { number, request: rejected.request, response: rejected.response });
                Err(rejected.error.into())
            }
        }
    }

    /// Opens lost sessions again, for instance after a restart of the server. Returns the number of sessions that were
    /// lost.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`], [`Error::Channel`].
    pub fn reconnect(&mut self) -> Result<usize, Error> {
        Ok(self.channel.reconnect(&mut self.rpc)?)
    }

    /// Turns the endpoint's loop once: sends what was enqueued and processes what has arrived. Returns whether anything
    /// happened.
    #[inline]
    pub fn turn(&mut self) -> bool {
        self.rpc.turn()
    }

    /// Returns the next answer that has arrived. It is lent: the next call that asks, polls or waits takes its buffers
    /// back.
    #[inline]
    pub fn poll(&mut self) -> Option<Answer<'_>> {
        self.recycle();
        let Some(completion) = self.rpc.poll_completion() else {
            self.drop_events();
            return None;
        };
        Some(self.answer(completion))
    }

    /// Returns the next answer, turning the loop until it arrives; `None` when nothing is in flight.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the port cannot sleep.
    pub fn wait(&mut self) -> Result<Option<Answer<'_>>, Error> {
        self.recycle();
        if self.in_flight() == 0 {
            return Ok(None);
        }
        let mut completion = self.rpc.poll_completion();
        if completion.is_none() {
            self.rpc.run_until(|rpc| {
                completion = completion.take().or_else(|| rpc.poll_completion());
                completion.is_some()
            })?;
        }
        Ok(completion.map(|completion| self.answer(completion)))
    }

    /// Takes back the buffers of the answer that was handed out last.
    #[inline]
    fn recycle(&mut self) {
        let Some(Completion { tag, mut request, mut response, .. }) = self.last.take() else { return };
        for buffer in [&mut request, &mut response] {
            if buffer.capacity() > KEPT_LEN
                && let Ok(small) = self.rpc.alloc(BUFFER_LEN)
            {
                *buffer = small;
            }
        }
        self.idle.push(Idle { number: tag as usize, request, response });
    }

    /// Drops all events. Lost sessions show in their calls, so the events are of no use here. Left untaken, they would
    /// keep a shared endpoint awake.
    #[inline]
    fn drop_events(&mut self) {
        while self.rpc.poll_event().is_some() {}
    }

    #[inline]
    fn answer(&mut self, completion: Completion) -> Answer<'_> {
        self.drop_events();
        let PendingRequest { tag, kind } = self.pending[completion.tag as usize];
        let completion = self.last.insert(completion);
        let response = match std::mem::replace(&mut completion.result, Ok(())) {
            Ok(()) => read(kind, &completion.response),
            Err(error) => Err(error.into()),
        };
        Answer { tag, response }
    }
}

/// Reads a response and checks that it answers the request.
#[inline]
fn read(kind: Kind, bytes: &[u8]) -> Result<Response<'_>, Error> {
    let response = Response::read(bytes)?;
    let fits = match response {
        Response::Refused(refusal) => return Err(refusal.into()),
        Response::None | Response::Value(_) => kind == Kind::Get,
        Response::Done { .. } => kind == Kind::Change,
        Response::Stats { .. } => kind == Kind::Stats,
        Response::Entries(_) => kind == Kind::Scan,
        Response::Sum(_) => kind == Kind::Sum,
    };
    if fits { Ok(response) } else { Err(Malformed { what: "it answers something that was not asked" }.into()) }
}

/// Whether a request was rejected because its session is lost, so that [`Pipeline::reconnect`] may help.
pub(super) fn is_session_gone(error: &Error) -> bool {
    matches!(error, Error::Enqueue(EnqueueError::NoSuchSession) | Error::Channel(ChannelError::Connect(_)))
}
