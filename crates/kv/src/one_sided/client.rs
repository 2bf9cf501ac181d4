//! A client whose GETs are READs, and whose PUTs and DELETEs are calls to the owner.

use sinew_fabric::verbs::{
    Device, ProtectionDomain, QpConfig, QueuePair, Status as VerbsStatus, ThreadDomain, Transport, VerbsError,
};
use sinew_herd::RequestError;
use sinew_mem::{AllocError, Arena, MessageBuffer};
use sinew_store::remote::{Index, Step};

use super::{Change, Cq, Domain, Hello, KEY_LEN_MAX, OwnerConfig, Qp, Reads, Thread, Welcome};

/// Limits of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// The owner's configuration, of which only the lengths and the window matter.
    pub owner: OwnerConfig,
    /// GETs that can be in flight.
    pub window: usize,
    /// Longest READ of the table ([`Index::read_len_max`]) that the client can make, in bytes.
    pub read_len_max: usize,
    /// Time after which a GET that keeps finding changes under way is given up, in nanoseconds.
    pub give_up_ns: u64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The GET found the value.
    Found = 1,
    /// No item has the key.
    Absent = 2,
    /// The value was stored.
    Stored = 3,
    /// The item was deleted.
    Deleted = 4,
    /// The value was not stored: the table has no place or no memory for it.
    Full = 5,
    /// The value was not stored: the key is empty, or key or value are longer than the table allows.
    TooLong = 6,
    /// The owner could not read the request.
    Malformed = 7,
    /// [`crate::drtm`]: others held the lock throughout; nothing was changed.
    Contended = 8,
    /// [`crate::drtm`]: every READ was torn, or the lock was taken away from its holder. The memory was damaged, and
    /// the item may have been changed.
    Torn = 9,
}

impl Status {
    /// Decodes the owner's answer.
    pub(crate) fn of(kind: u16) -> Option<Self> {
        use Status::{Absent, Deleted, Found, Full, Malformed, Stored, TooLong};
        let all = [Found, Absent, Stored, Deleted, Full, TooLong, Malformed];
        all.get(usize::from(kind).checked_sub(1)?).copied()
    }
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// Tag given with the request.
    pub tag: u64,
    /// How it ended; `None` for a status that this release does not know.
    pub status: Option<Status>,
    /// The value found; empty for everything but a GET.
    pub value: &'a [u8],
    /// Time at which the request was made, in nanoseconds.
    pub asked_ns: u64,
}

/// Reason why a request was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The key is empty or too long; its length in bytes.
    #[error("a key has 1 to {KEY_LEN_MAX} bytes, and this one has {0}")]
    Key(usize),
    /// The window is full: that of GETs, or in [`crate::drtm`] that of all requests.
    #[error("the window of requests is full: poll for outcomes")]
    Full,
    /// The call to the owner was not accepted.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Reason why a client has become unusable.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The calls to the owner have failed.
    #[error(transparent)]
    Calls(#[from] sinew_herd::ClientError),
    /// An error of the device.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// There was no memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The owner's table is of another kind, or larger than the memory that it exposes, or needs longer READs than this
    /// client can make.
    #[error("the owner's table is not one that this client can read: use the same release and settings on both sides")]
    Table,
    /// A READ failed.
    #[error("a READ of the owner's table failed: {0}; connect again")]
    Read(VerbsStatus),
    /// The connection for READs accepts no more requests.
    #[error("the connection for READs broke; connect again")]
    Broken,
    /// A GET found nothing but changes under way for this many nanoseconds.
    #[error(
        "a GET found only unfinished changes for {0} ns: the owner stopped in the middle of one, or its memory was damaged"
    )]
    Torn(u64),
}

/// Counters of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// GETs completed.
    pub gets: u64,
    /// READs made for them.
    pub reads: u64,
    /// READs that found a change under way, or an item that had moved.
    pub reads_repeated: u64,
}

/// The state of a GET.
struct Get<S> {
    tag: u64,
    asked_ns: u64,
    key: Vec<u8>,
    search: Option<S>,
    /// Absent while a READ uses it.
    buffer: Option<MessageBuffer>,
}

/// A client, which belongs to one thread. Requests start with [`OneSidedClient::flush`] and end in
/// [`OneSidedClient::poll`].
pub struct OneSidedClient<D: Device, I: Index> {
    index: I,
    gets: Vec<Get<I::Search>>,
    free: Vec<usize>,
    qp: Qp<D>,
    cq: Cq<D>,
    _thread: Thread<D>,
    _arena: Arena,
    /// By GET.
    reads: Reads,
    is_broken: bool,
    give_up_ns: u64,
    stats: ClientStats,
    calls: sinew_herd::Client<D>,
}

/// A client that is not connected yet.
pub struct Joining<D: Device> {
    pub(crate) calls: sinew_herd::Joining<D>,
    pub(crate) config: ClientConfig,
    pub(crate) qp: Qp<D>,
    pub(crate) cq: Cq<D>,
    pub(crate) thread: Thread<D>,
    pub(crate) arena: Arena,
    pub(crate) buffers: Vec<MessageBuffer>,
}

impl<D: Device> Joining<D> {
    /// Makes the queues of a client for the calling thread, and its introduction to the owner.
    ///
    /// # Errors
    ///
    /// [`ClientError::Calls`], [`ClientError::Verbs`], [`ClientError::Alloc`].
    pub fn prepare(device: &D, domain: &Domain<D>, config: &ClientConfig) -> Result<(Self, Hello), ClientError> {
        Self::with_depth(device, domain, config, 1)
    }

    /// As [`Self::prepare`], with up to `requests` requests on the queue pair at a time for each GET or PUT.
    pub(crate) fn with_depth(
        device: &D,
        domain: &Domain<D>,
        config: &ClientConfig,
        requests: usize,
    ) -> Result<(Self, Hello), ClientError> {
        let calls = sinew_herd::ClientConfig::new(config.owner.layout());
        let (calls, hello) = sinew_herd::Client::prepare(device, domain, &calls)?;
        let window = config.window.clamp(1, device.attributes().queue_depth_max / requests);
        let thread = domain.thread()?;
        let cq = thread.completion_queue(window * requests + 2)?;
        let rc = QpConfig { send_depth: window * requests, receive_depth: 1, ..QpConfig::new(Transport::Rc) };
        let qp = thread.queue_pair(&rc, &cq, &cq)?;
        let len = config.read_len_max.max(64);
        let arena = domain.arena((window * 2 * requests * (len.next_power_of_two() + 512)).max(1 << 20))?;
        let buffers = (0..window).map(|_| arena.alloc(len, len)).collect::<Result<_, _>>()?;
        let hello = Hello { calls: hello, reads: qp.address() };
        Ok((Self { calls, config: *config, qp, cq, thread, arena, buffers }, hello))
    }

    /// Decodes the table's description, and checks that this client can read the table.
    pub(crate) fn index<I: Index>(&self, table: &[u8], welcome: &Welcome) -> Result<I, ClientError> {
        let index = I::from_description(table).ok_or(ClientError::Table)?;
        let fits = index.read_len_max() <= self.config.read_len_max && index.memory_len() as u64 <= welcome.memory.len;
        if fits { Ok(index) } else { Err(ClientError::Table) }
    }

    /// Returns the client, once the owner has welcomed it.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn join<I: Index>(mut self, welcome: &Welcome) -> Result<OneSidedClient<D, I>, ClientError> {
        let index: I = self.index(&welcome.table, welcome)?;
        let calls = self.calls.join(&welcome.calls)?;
        self.qp.connect(Some(&welcome.reads))?;
        let get = |buffer| Get { tag: 0, asked_ns: 0, key: Vec::with_capacity(64), search: None, buffer: Some(buffer) };
        let gets: Vec<_> = self.buffers.into_iter().map(get).collect();
        Ok(OneSidedClient {
            index,
            free: (0..gets.len()).rev().collect(),
            reads: Reads::new(welcome.memory, gets.len()),
            gets,
            qp: self.qp,
            cq: self.cq,
            _thread: self.thread,
            _arena: self.arena,
            is_broken: false,
            give_up_ns: self.config.give_up_ns,
            stats: ClientStats::default(),
            calls,
        })
    }
}

impl<D: Device, I: Index> OneSidedClient<D, I> {
    /// Counters so far.
    pub fn stats(&self) -> &ClientStats {
        &self.stats
    }

    /// The index of the owner's table.
    pub fn index(&self) -> &I {
        &self.index
    }

    /// The client of the calls for PUTs and DELETEs.
    pub fn calls(&self) -> &sinew_herd::Client<D> {
        &self.calls
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.gets.len() - self.free.len() + self.calls.in_flight()
    }

    /// Whether another GET would be accepted.
    #[inline]
    pub fn has_room_to_get(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether another PUT or DELETE would be accepted.
    #[inline]
    pub fn has_room_to_change(&self) -> bool {
        self.calls.has_room(0)
    }

    /// Asks for the value of a key.
    ///
    /// # Errors
    ///
    /// [`AskError::Key`], [`AskError::Full`], and [`AskError::Request`] when the owner's memory has no such place; then
    /// nothing was asked. (That the device refuses READs is found by [`Self::flush`], and told by [`Self::poll`].)
    #[inline]
    pub fn get(&mut self, tag: u64, key: &[u8], now_ns: u64) -> Result<(), AskError> {
        check_key(key)?;
        let Some(slot) = self.free.pop() else { return Err(AskError::Full) };
        let (search, span) = self.index.search(key);
        let get = &mut self.gets[slot];
        get.tag = tag;
        get.asked_ns = now_ns;
        get.key.clear();
        get.key.extend_from_slice(key);
        get.search = Some(search);
        if let Some(buffer) = get.buffer.take() {
            match self.reads.add(slot, span, buffer) {
                Ok(()) => return Ok(()),
                Err(buffer) => get.buffer = Some(buffer),
            }
        }
        self.free.push(slot);
        Err(AskError::Request(RequestError::Refused))
    }

    /// Posts the READs.
    #[inline]
    fn post_reads(&mut self) {
        match self.reads.post(&mut self.qp) {
            Ok(count) => self.stats.reads += count as u64,
            Err(_) => self.is_broken = true,
        }
    }

    /// Stores a value.
    ///
    /// # Errors
    ///
    /// [`AskError::Key`], [`AskError::Request`]; then nothing was asked.
    #[inline]
    pub fn put(&mut self, tag: u64, key: &[u8], value: &[u8], now_ns: u64) -> Result<(), AskError> {
        self.change(Change::Put, tag, key, value, now_ns)
    }

    /// Deletes an item.
    ///
    /// # Errors
    ///
    /// As for [`Self::put`].
    pub fn delete(&mut self, tag: u64, key: &[u8], now_ns: u64) -> Result<(), AskError> {
        self.change(Change::Delete, tag, key, &[], now_ns)
    }

    #[inline]
    fn change(&mut self, change: Change, tag: u64, key: &[u8], value: &[u8], now_ns: u64) -> Result<(), AskError> {
        check_key(key)?;
        self.calls.request_with(0, tag, change.kind(key.len()), key.len() + value.len(), now_ns, |body| {
            let (first, rest) = body.split_at_mut(key.len());
            first.copy_from_slice(key);
            rest.copy_from_slice(value);
        })?;
        Ok(())
    }

    /// Starts the requests made so far.
    #[inline]
    pub fn flush(&mut self) {
        self.post_reads();
        self.calls.flush();
    }

    /// Takes completed READs, starts the next ones of their searches, and passes each ended request to `take`. Returns
    /// the number of requests that ended. Never blocks.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; then connect again.
    #[inline]
    pub fn poll(&mut self, now_ns: u64, mut take: impl FnMut(Outcome<'_>)) -> Result<usize, ClientError> {
        let mut count = self.calls.poll(now_ns, |answer| {
            // `Found` comes only from the READs of a GET, never from the owner.
            let status = Status::of(answer.kind).filter(|status| *status != Status::Found);
            take(Outcome { tag: answer.tag, status, value: &[], asked_ns: answer.asked_ns });
        })?;
        let polled = self.reads.poll(&mut self.cq);
        let mut done = std::mem::take(&mut self.reads.done);
        for (get, buffer) in done.drain(..) {
            count += usize::from(self.advance(get, buffer, now_ns, &mut take)?);
        }
        self.reads.done = done;
        polled.map_err(ClientError::Read)?;
        self.post_reads();
        if self.is_broken { Err(ClientError::Broken) } else { Ok(count) }
    }

    /// Processes a completed READ of a GET; returns whether the GET has ended.
    #[inline]
    fn advance(
        &mut self,
        slot: usize,
        buffer: MessageBuffer,
        now_ns: u64,
        take: &mut impl FnMut(Outcome<'_>),
    ) -> Result<bool, ClientError> {
        let Self { gets, index, stats, .. } = self;
        let Some(get) = gets.get_mut(slot) else { return Ok(false) };
        let Some(search) = get.search.as_mut() else { return Ok(false) };
        let outcome = |status, value| Outcome { tag: get.tag, status: Some(status), value, asked_ns: get.asked_ns };
        let next = match index.step(search, &get.key, &buffer) {
            Step::Read(span) => Some(span),
            Step::Again(span) => {
                stats.reads_repeated += 1;
                let searched_ns = now_ns.saturating_sub(get.asked_ns);
                if searched_ns >= self.give_up_ns {
                    return Err(ClientError::Torn(searched_ns));
                }
                Some(span)
            }
            Step::Found(value) => {
                take(outcome(Status::Found, value));
                None
            }
            Step::Missing => {
                take(outcome(Status::Absent, &[]));
                None
            }
        };
        let Some(span) = next else {
            get.search = None;
            get.buffer = Some(buffer);
            stats.gets += 1;
            self.free.push(slot);
            return Ok(true);
        };
        self.reads.add(slot, span, buffer).map_or(Err(ClientError::Broken), |()| Ok(false))
    }
}

pub(crate) fn check_key(key: &[u8]) -> Result<(), AskError> {
    if (1..=KEY_LEN_MAX).contains(&key.len()) { Ok(()) } else { Err(AskError::Key(key.len())) }
}
