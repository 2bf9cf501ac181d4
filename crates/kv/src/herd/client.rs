//! The client of HERD's cache.

use sinew_fabric::verbs::Device;
use sinew_herd::{ClientError, RequestError};

use super::{ITEM_LEN_MAX, KEY_LEN_MAX, Operation, Status};
use crate::partitions::Partitions;

/// Reason why a request was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The key is empty or too long; its length in bytes.
    #[error("a key has 1 to {KEY_LEN_MAX} bytes, and this one has {0}")]
    Key(usize),
    /// Key and value together are too long; their length in bytes.
    #[error("key and value may have {ITEM_LEN_MAX} bytes together, and these have {0}")]
    Item(usize),
    /// The call to the worker was not accepted.
    #[error(transparent)]
    Request(#[from] RequestError),
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

/// A client of a cache, which asks the worker that owns a key. Requests start with [`CacheClient::flush`] and end in
/// [`CacheClient::poll`].
pub struct CacheClient<D: Device> {
    calls: sinew_herd::Client<D>,
    partitions: Partitions,
}

impl<D: Device> CacheClient<D> {
    /// Makes a client of the cache that these calls reach, with one partition for each worker.
    pub fn new(calls: sinew_herd::Client<D>) -> Self {
        let partitions = Partitions::new(calls.layout().workers);
        Self { calls, partitions }
    }

    /// The calls that this client makes.
    pub fn calls(&self) -> &sinew_herd::Client<D> {
        &self.calls
    }

    /// Whether a request for the key would be accepted.
    #[inline(always)]
    pub fn has_room(&self, key: &[u8]) -> bool {
        self.calls.has_room(self.partitions.of(key))
    }

    /// Asks for the value of a key.
    ///
    /// # Errors
    ///
    /// [`AskError`]; then nothing was asked.
    #[inline(always)]
    pub fn get(&mut self, tag: u64, key: &[u8], now_ns: u64) -> Result<(), AskError> {
        self.ask(Operation::Get, tag, key, &[], now_ns)
    }

    /// Stores a value.
    ///
    /// # Errors
    ///
    /// As for [`Self::get`].
    #[inline(always)]
    pub fn put(&mut self, tag: u64, key: &[u8], value: &[u8], now_ns: u64) -> Result<(), AskError> {
        self.ask(Operation::Put, tag, key, value, now_ns)
    }

    /// Deletes an item.
    ///
    /// # Errors
    ///
    /// As for [`Self::get`].
    #[inline(always)]
    pub fn delete(&mut self, tag: u64, key: &[u8], now_ns: u64) -> Result<(), AskError> {
        self.ask(Operation::Delete, tag, key, &[], now_ns)
    }

    #[inline(always)]
    fn ask(&mut self, operation: Operation, tag: u64, key: &[u8], value: &[u8], now_ns: u64) -> Result<(), AskError> {
        if !(1..=KEY_LEN_MAX).contains(&key.len()) {
            return Err(AskError::Key(key.len()));
        }
        let len = key.len() + value.len();
        if len > ITEM_LEN_MAX {
            return Err(AskError::Item(len));
        }
        let (worker, kind) = (self.partitions.of(key), operation.kind(key.len()));
        self.calls.request_with(worker, tag, kind, len, now_ns, |body| {
            let (first, rest) = body.split_at_mut(key.len());
            first.copy_from_slice(key);
            rest.copy_from_slice(value);
        })?;
        Ok(())
    }

    /// Starts the requests made so far.
    #[inline(always)]
    pub fn flush(&mut self) {
        self.calls.flush();
    }

    /// Passes each ended request to `take`; see [`sinew_herd::Client::poll`].
    ///
    /// # Errors
    ///
    /// As [`sinew_herd::Client::poll`].
    #[inline(always)]
    pub fn poll(&mut self, now_ns: u64, mut take: impl FnMut(Outcome<'_>)) -> Result<usize, ClientError> {
        self.calls.poll(now_ns, |answer| {
            let status = Status::of(answer.kind);
            take(Outcome { tag: answer.tag, status, value: answer.body, asked_ns: answer.asked_ns });
        })
    }
}
