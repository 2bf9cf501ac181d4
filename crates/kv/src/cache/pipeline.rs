//! A client with many requests in flight.

use arrayvec::ArrayVec;
use sinew_fabric::Address;
use sinew_mem::{AllocError, MessageBuffer};
use sinew_rpc::{CallId, CallOptions, Completion, Endpoint, EnqueueError, Rejected, SessionId};
use sinew_store::cache::KEY_LEN_MAX;

use super::REQUESTS;
use super::error::Error;
use super::protocol::{Info, KEYS_AT, KEYS_MAX, Keys, Malformed, Put, PutOptions, Refusal, Request, Response};
use crate::Partitions;

/// Initial length of a buffer; a longer message replaces its buffer by a longer one.
const BUFFER_LEN: usize = 128;
/// Longest buffer that is kept for the next request.
const KEPT_LEN: usize = 64 << 10;
/// Time-out that never passes.
const NEVER: u64 = u64::MAX;

/// Options of a request: the tag that comes back with its answer, and its time-out. A plain number stands for a tag
/// alone.
///
/// ```
/// # use sinew_kv::cache::{Error, Pipeline, RequestOptions};
/// # fn f<E: sinew_rpc::Endpoint>(cache: &mut Pipeline<E>) -> Result<(), Error> {
/// cache.get(b"key", 7)?;
/// let patient = cache.get(b"key", RequestOptions::tag(8).timeout_ns(2_000_000))?;
/// cache.cancel(patient);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestOptions {
    tag: u64,
    timeout_ns: Option<u64>,
}

impl RequestOptions {
    /// A request whose answer carries `tag`, with the client's time-out
    /// ([`ClientConfig::timeout_ns`](super::ClientConfig::timeout_ns)).
    #[inline]
    pub const fn tag(tag: u64) -> Self {
        Self { tag, timeout_ns: None }
    }

    /// Sets a time-out of the request's own, in nanoseconds from now. When it passes, the request ends on both sides
    /// with [`Cause::DeadlinePassed`](sinew_rpc::Cause::DeadlinePassed). `u64::MAX` waits as long as it takes.
    #[must_use]
    #[inline]
    pub const fn timeout_ns(self, timeout_ns: u64) -> Self {
        Self { timeout_ns: Some(timeout_ns), ..self }
    }
}

impl From<u64> for RequestOptions {
    #[inline]
    fn from(tag: u64) -> Self {
        Self::tag(tag)
    }
}

/// A client of a cache on the fast path: enqueue requests, turn the loop, take answers, in any order. It belongs to the
/// thread that made it, and allocates nothing in steady state. It takes all completions and events of its endpoint. To
/// use the endpoint for other things as well, give the pipeline a [share](sinew_rpc::SharedEndpoint) of it; dropping
/// the share ends its sessions.
///
/// [`Connecting`](super::Connecting) makes one; [`Client`](super::Client) is simpler.
pub struct Pipeline<E: Endpoint> {
    pub(super) rpc: E,
    partitions: Partitions,
    info: Info,
    /// Time-out of requests without one of their own; [`NEVER`] for none.
    timeout_ns: u64,
    /// By partition.
    owners: Vec<Owner>,
    /// By request number.
    pending: Vec<PendingRequest>,
    /// The last one is that of the answer which was handed out last, and which borrows its response.
    idle: Vec<Idle>,
    /// Whether the last one's buffers are too long to be kept.
    last_is_long: bool,
}

/// Address of a partition, and the sessions with it.
pub(super) struct Owner {
    pub address: Address,
    /// Used in turn.
    pub sessions: Vec<SessionId>,
    pub next: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Get,
    Inspect,
    Put,
    Delete,
    GetMany,
    Stats,
    Touch,
    Add,
    Flush,
}

/// A request in flight.
struct PendingRequest {
    tag: u64,
    kind: Kind,
    /// For a request for several keys, the indices of its keys among the caller's.
    keys: Vec<u16>,
}

/// A request that is not in flight.
struct Idle {
    number: usize,
    request: MessageBuffer,
    response: MessageBuffer,
}

/// The keys of a request for several that one partition owns.
struct Share {
    partition: usize,
    /// Their indices, a bit each.
    keys: u64,
    /// Length of the request to the partition, in bytes.
    len: usize,
}
const _: () = assert!(KEYS_MAX <= u64::BITS as usize);

impl Share {
    /// Indices of the keys, in ascending order.
    #[inline(always)]
    fn indices(&self) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.keys;
        std::iter::from_fn(move || {
            let index = left.trailing_zeros() as usize;
            let is_left = left != 0;
            left &= left.wrapping_sub(1);
            is_left.then_some(index)
        })
    }
}

/// Outcome of a request.
#[derive(Debug)]
pub struct Answer<'a> {
    /// Tag given with the request.
    pub tag: u64,
    /// For a request for several keys, the indices of its keys among the caller's.
    pub keys: &'a [u16],
    /// The server's answer. [`Response::Refused`] does not occur here; it becomes an error.
    pub response: Result<Response<'a>, Error>,
}

impl<E: Endpoint> Pipeline<E> {
    pub(super) fn new(
        rpc: E,
        owners: Vec<Owner>,
        info: Info,
        window: usize,
        timeout_ns: Option<u64>,
    ) -> Result<Self, Error> {
        let idle = (0..window)
            .map(|number| Ok(Idle { number, request: rpc.alloc(BUFFER_LEN)?, response: rpc.alloc(BUFFER_LEN)? }));
        let idle = idle.collect::<Result<_, AllocError>>()?;
        let new_pending = || PendingRequest { tag: 0, kind: Kind::Stats, keys: Vec::with_capacity(KEYS_MAX) };
        Ok(Self {
            partitions: Partitions::new(owners.len()),
            info,
            timeout_ns: timeout_ns.unwrap_or(NEVER),
            owners,
            pending: (0..window).map(|_| new_pending()).collect(),
            idle,
            last_is_long: false,
            rpc,
        })
    }

    /// The endpoint.
    pub fn rpc(&self) -> &E {
        &self.rpc
    }

    /// The mapping from keys to partitions.
    pub fn partitions(&self) -> &Partitions {
        &self.partitions
    }

    /// The server's limits, as the first partition stated them.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Requests that may be in flight.
    pub fn window(&self) -> usize {
        self.pending.len()
    }

    /// Requests whose answers have not been taken yet.
    pub fn in_flight(&self) -> usize {
        self.pending.len() - self.idle.len()
    }

    /// Sets the time-out of later requests that have none of their own; `None` waits as long as it takes. See
    /// [`ClientConfig::timeout_ns`](super::ClientConfig::timeout_ns).
    pub fn set_timeout_ns(&mut self, timeout_ns: Option<u64>) {
        self.timeout_ns = timeout_ns.unwrap_or(NEVER);
    }

    /// Cancels a request: it ends in an error with [`Cause::Cancelled`](sinew_rpc::Cause::Cancelled), and may have been
    /// executed or not. Returns whether it was in flight.
    pub fn cancel(&mut self, request: CallId) -> bool {
        self.rpc.cancel(request)
    }

    /// Asks for the value of `key`: [`Response::Value`] or [`Response::Miss`]. The returned id serves [`Self::cancel`].
    ///
    /// # Errors
    ///
    /// [`Error::WindowFull`], [`Error::KeyTooLong`], or an error of the endpoint; then nothing was sent.
    #[inline]
    pub fn get(&mut self, key: &[u8], options: impl Into<RequestOptions>) -> Result<CallId, Error> {
        self.request_key(key, &Request::Get { key }, Kind::Get, options.into())
    }

    /// Asks for the value of `key` with its flags, lifetime and version: [`Response::Item`] or [`Response::Miss`].
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn inspect(&mut self, key: &[u8], options: impl Into<RequestOptions>) -> Result<CallId, Error> {
        self.request_key(key, &Request::Inspect { key }, Kind::Inspect, options.into())
    }

    /// Stores a value: [`Response::Stored`].
    ///
    /// # Errors
    ///
    /// As [`Self::get`], and [`Refusal::ValueTooLong`] where the value fits no message and is longer than the server
    /// accepts.
    #[inline]
    pub fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        put_options: PutOptions,
        options: impl Into<RequestOptions>,
    ) -> Result<CallId, Error> {
        let put = Request::Put(Put { key, value, options: put_options });
        self.request_key(key, &put, Kind::Put, options.into())
            .map_err(|error| self.refine_put_error(error, value.len()))
    }

    /// Turns a message that is too long into the refusal that the server would have given.
    #[cold]
    fn refine_put_error(&self, error: Error, value_len: usize) -> Error {
        let (len, max) = (value_len as u64, self.info.value_len_max.into());
        match error {
            Error::Enqueue(EnqueueError::TooLarge { .. }) if len > max => Refusal::ValueTooLong { len, max }.into(),
            error => error,
        }
    }

    /// Removes an item: [`Response::Deleted`] or [`Response::Miss`].
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn delete(&mut self, key: &[u8], options: impl Into<RequestOptions>) -> Result<CallId, Error> {
        self.request_key(key, &Request::Delete { key }, Kind::Delete, options.into())
    }

    /// Sets the lifetime of an item to `lives_s` seconds from now, or to for ever when 0: [`Response::Touched`] or
    /// [`Response::Miss`].
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn touch(&mut self, key: &[u8], lives_s: u32, options: impl Into<RequestOptions>) -> Result<CallId, Error> {
        self.request_key(key, &Request::Touch { key, lives_s }, Kind::Touch, options.into())
    }

    /// Adds to the number that a value holds ([`Request::Add`]): [`Response::Number`] with the sum, or
    /// [`Response::Miss`].
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn add(&mut self, key: &[u8], delta: i64, options: impl Into<RequestOptions>) -> Result<CallId, Error> {
        self.request_key(key, &Request::Add { key, delta }, Kind::Add, options.into())
    }

    /// Removes all items of a partition: [`Response::Flushed`].
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    ///
    /// # Panics
    ///
    /// When the partition does not exist.
    pub fn flush(&mut self, partition: usize, options: impl Into<RequestOptions>) -> Result<CallId, Error> {
        let write = |target: &mut [u8]| Request::Flush.write(target);
        self.request(partition, Request::Flush.len(), Kind::Flush, options.into(), write).map(|(_, call)| call)
    }

    /// Asks for the values of up to [`KEYS_MAX`] keys, in one request to each partition that owns some of them. Returns
    /// the number of requests; each gets an answer of its own, a [`Response::Values`] that goes with [`Answer::keys`].
    ///
    /// # Errors
    ///
    /// As [`Self::get`], and [`Error::Keys`]. When the endpoint rejects the request to a later partition, those to
    /// earlier ones were already sent: their answers arrive with this tag, and hold places in the window until they are
    /// taken.
    pub fn get_many(&mut self, keys: &[&[u8]], options: impl Into<RequestOptions>) -> Result<usize, Error> {
        let options = options.into();
        if keys.is_empty() || keys.len() > KEYS_MAX {
            return Err(Error::Keys { count: keys.len() });
        }
        let mut shares = ArrayVec::<Share, KEYS_MAX>::new();
        for (at, key) in keys.iter().enumerate() {
            check_key(key)?;
            let partition = self.partitions.of(key);
            let share = match shares.iter().position(|share| share.partition == partition) {
                Some(share) => &mut shares[share],
                None => {
                    shares.push(Share { partition, keys: 0, len: KEYS_AT });
                    let last = shares.len() - 1;
                    &mut shares[last]
                }
            };
            share.keys |= 1 << at;
            share.len += Keys::key_len(key);
        }
        // Either all requests find room in the window, or none is made.
        if shares.len() > self.idle.len() {
            return Err(Error::WindowFull { window: self.window() });
        }
        for share in &shares {
            let (number, _) = self.request(share.partition, share.len, Kind::GetMany, options, |target| {
                Keys::write_request(share.indices().map(|at| keys[at]), target);
            })?;
            self.pending[number].keys.extend(share.indices().map(|at| at as u16));
        }
        Ok(shares.len())
    }

    /// Asks a partition for its counters: [`Response::Stats`].
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    ///
    /// # Panics
    ///
    /// When the partition does not exist.
    pub fn stats(&mut self, partition: usize, options: impl Into<RequestOptions>) -> Result<CallId, Error> {
        let write = |target: &mut [u8]| Request::Stats.write(target);
        self.request(partition, Request::Stats.len(), Kind::Stats, options.into(), write).map(|(_, call)| call)
    }

    /// Turns the endpoint's loop once: sends what was enqueued and processes what has arrived. Returns whether anything
    /// happened.
    #[inline]
    pub fn turn(&mut self) -> bool {
        let did_work = self.rpc.turn();
        self.drop_events();
        did_work
    }

    /// Returns the next answer that has arrived. It is lent: the next call that asks, polls or waits takes its buffers
    /// back.
    #[inline]
    pub fn poll(&mut self) -> Option<Answer<'_>> {
        self.shorten_last();
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
        self.shorten_last();
        if self.in_flight() == 0 {
            return Ok(None);
        }
        let mut completion = self.rpc.poll_completion();
        if completion.is_none() {
            self.rpc.run_until(|rpc| {
                completion = completion.take().or_else(|| rpc.poll_completion());
                completion.is_some()
            })?;
            self.drop_events();
        }
        Ok(completion.map(|completion| self.answer(completion)))
    }

    #[inline]
    fn request_key(
        &mut self,
        key: &[u8],
        request: &Request<'_>,
        kind: Kind,
        options: RequestOptions,
    ) -> Result<CallId, Error> {
        check_key(key)?;
        let partition = self.partitions.of(key);
        self.request(partition, request.len(), kind, options, |target| request.write(target)).map(|(_, call)| call)
    }

    /// Enqueues a request; returns its number and its id.
    #[inline]
    fn request(
        &mut self,
        partition: usize,
        len: usize,
        kind: Kind,
        options: RequestOptions,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(usize, CallId), Error> {
        self.shorten_last();
        let Some(mut idle) = self.idle.pop() else { return Err(Error::WindowFull { window: self.window() }) };
        match self.make_room(&mut idle.request, len) {
            Ok(target) => write(target),
            Err(error) => {
                self.put_back(idle);
                return Err(error);
            }
        }
        let Idle { number, request, response } = idle;
        let pending = &mut self.pending[number];
        (pending.tag, pending.kind) = (options.tag, kind);
        pending.keys.clear();
        let owner = &mut self.owners[partition];
        owner.next = if owner.next + 1 >= owner.sessions.len() { 0 } else { owner.next + 1 };
        let session = owner.sessions[owner.next];
        let tag = number as u64;
        let timeout_ns = options.timeout_ns.unwrap_or(self.timeout_ns);
        let result = if timeout_ns == NEVER {
            self.rpc.enqueue_request(session, REQUESTS, request, response, CallOptions::tag(tag))
        } else {
            self.enqueue_timed(session, request, response, CallOptions::tag(tag).timeout_ns(timeout_ns))
        };
        match result {
            Ok(call) => Ok((number, call)),
            Err(rejected) => {
                let options = CallOptions::tag(tag).timeout_ns(timeout_ns);
                self.retry_rejected(partition, number, rejected, options).map(|call| (number, call))
            }
        }
    }

    /// Enqueues a request with a time-out. Out of line, so that requests without one do not pay for it.
    #[inline(never)]
    // Same reason as at the endpoint's method.
    #[allow(clippy::result_large_err)]
    fn enqueue_timed(
        &mut self,
        session: SessionId,
        request: MessageBuffer,
        response: MessageBuffer,
        options: CallOptions,
    ) -> Result<CallId, Rejected> {
        self.rpc.enqueue_request(session, REQUESTS, request, response, options)
    }

    /// Tries a rejected request once more, over a new session where the old one was lost: the server may be back.
    #[cold]
    fn retry_rejected(
        &mut self,
        partition: usize,
        number: usize,
        rejected: Rejected,
        options: CallOptions,
    ) -> Result<CallId, Error> {
        let (error, rejected) = match rejected.error {
            EnqueueError::NoSuchSession => {
                let owner = &mut self.owners[partition];
                match self.rpc.begin_connect(&owner.address) {
                    Ok(session) => {
                        owner.sessions[owner.next] = session;
                        let Rejected { request, response, .. } = rejected;
                        match self.rpc.enqueue_request(session, REQUESTS, request, response, options) {
                            Ok(call) => return Ok(call),
                            Err(rejected) => (rejected.error.into(), rejected),
                        }
                    }
                    Err(error) => (error.into(), rejected),
                }
            }
            error => (error.into(), rejected),
        };
        self.put_back(Idle { number, request: rejected.request, response: rejected.response });
        Err(error)
    }

    /// Resizes a buffer to `len` bytes, or replaces it by a longer one; returns its contents.
    #[inline(always)]
    fn make_room<'b>(&self, buffer: &'b mut MessageBuffer, len: usize) -> Result<&'b mut [u8], Error> {
        if buffer.capacity() < len {
            *buffer = self.rpc.alloc(len)?;
        }
        Ok(buffer.resized(len)?)
    }

    #[inline(always)]
    fn put_back(&mut self, idle: Idle) {
        self.last_is_long = idle.request.capacity().max(idle.response.capacity()) > KEPT_LEN;
        self.idle.push(idle);
    }

    /// Replaces the buffers of the answer that was handed out last, if they are too long to be kept.
    #[inline(always)]
    fn shorten_last(&mut self) {
        if self.last_is_long
            && let Some(last) = self.idle.last_mut()
        {
            self.last_is_long = !last.shorten(&self.rpc);
        }
    }

    /// Drops all events. Lost sessions show in their calls, so the events are of no use here. Left untaken, they would
    /// keep a shared endpoint awake.
    #[inline]
    fn drop_events(&mut self) {
        while self.rpc.poll_event().is_some() {}
    }

    #[inline(always)]
    fn answer(&mut self, completion: Completion) -> Answer<'_> {
        let Completion { tag: number, result, request, response, .. } = completion;
        let number = number as usize;
        self.put_back(Idle { number, request, response });
        let pending = &self.pending[number];
        let response = match (result, self.idle.last()) {
            (Ok(()), Some(idle)) => read(pending, &idle.response),
            (Ok(()), None) => Err(UNEXPECTED.into()),
            (Err(error), _) => Err(error.into()),
        };
        Answer { tag: pending.tag, keys: &pending.keys, response }
    }
}

impl Idle {
    /// Replaces buffers that are too long to be kept. Returns false where there is no memory for shorter ones.
    #[cold]
    fn shorten(&mut self, rpc: &impl Endpoint) -> bool {
        let mut all = true;
        for buffer in [&mut self.request, &mut self.response] {
            if buffer.capacity() > KEPT_LEN {
                match rpc.alloc(BUFFER_LEN) {
                    Ok(small) => *buffer = small,
                    Err(_) => all = false,
                }
            }
        }
        all
    }
}

#[inline]
fn check_key(key: &[u8]) -> Result<(), Error> {
    if key.len() <= KEY_LEN_MAX { Ok(()) } else { Err(Error::KeyTooLong { len: key.len() }) }
}

const UNEXPECTED: Malformed = Malformed { what: "it answers something that was not asked" };

/// Reads a response and checks that it answers the request.
#[inline]
fn read<'a>(pending: &PendingRequest, bytes: &'a [u8]) -> Result<Response<'a>, Error> {
    let response = Response::read(bytes)?;
    let fits = match (&response, pending.kind) {
        (Response::Refused(refusal), _) => return Err((*refusal).into()),
        (Response::Miss, kind) => matches!(kind, Kind::Get | Kind::Inspect | Kind::Delete | Kind::Touch | Kind::Add),
        (Response::Value(_), kind) => kind == Kind::Get,
        (Response::Item(_), kind) => kind == Kind::Inspect,
        (Response::Stored { .. }, kind) => kind == Kind::Put,
        (Response::Deleted, kind) => kind == Kind::Delete,
        (Response::Values(values), kind) => kind == Kind::GetMany && values.count() == pending.keys.len(),
        (Response::Stats(_), kind) => kind == Kind::Stats,
        (Response::Touched, kind) => kind == Kind::Touch,
        (Response::Number(_), kind) => kind == Kind::Add,
        (Response::Flushed, kind) => kind == Kind::Flush,
        (Response::Info(_), _) => false,
    };
    if fits { Ok(response) } else { Err(UNEXPECTED.into()) }
}
