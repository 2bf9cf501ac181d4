//! A client.

use sinew_fabric::verbs::Device;
use sinew_herd::{ClientError, RequestError};

use super::{ITEM_LEN_MAX, KEY_LEN_MAX, Operation, Status};
use crate::partitions::Partitions;

/// Why a request was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// No key, or one that is too long.
    #[error("a key has from 1 to {KEY_LEN_MAX} bytes, and this one {0}")]
    Key(usize),
    /// Key and value are too long together.
    #[error("key and value have {ITEM_LEN_MAX} bytes at most, and these {0}")]
    Item(usize),
    /// The calls below say no.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// The request's own.
    pub tag: u64,
    /// How it ended; `None` is something that this release does not know.
    pub status: Option<Status>,
    /// The value that was found.
    pub value: &'a [u8],
    /// When it was asked.
    pub asked_ns: u64,
}

/// A client of a cache, which asks the worker that owns a key. What is asked starts with [`CacheClient::flush`] and ends in
/// [`CacheClient::poll`].
pub struct CacheClient<D: Device> {
    calls: sinew_herd::Client<D>,
    partitions: Partitions,
}

impl<D: Device> CacheClient<D> {
    /// A client of the cache behind these calls, with a partition for each worker.
    pub fn new(calls: sinew_herd::Client<D>) -> Self {
        let partitions = Partitions::new(calls.layout().workers);
        Self { calls, partitions }
    }

    /// The calls that it makes.
    pub fn calls(&self) -> &sinew_herd::Client<D> {
        &self.calls
    }

    /// Whether a request for the key would be taken.
    #[inline(always)]
    pub fn has_room(&self, key: &[u8]) -> bool {
        self.calls.has_room(self.partitions.of(key))
    }

    /// Asks for the value of a key.
    ///
    /// # Errors
    ///
    /// [`AskError`]; nothing was asked then.
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

    /// Starts what was asked.
    #[inline(always)]
    pub fn flush(&mut self) {
        self.calls.flush();
    }

    /// Hands `take` what has ended; see [`sinew_herd::Client::poll`].
    ///
    /// # Errors
    ///
    /// As there.
    #[inline(always)]
    pub fn poll(&mut self, now_ns: u64, mut take: impl FnMut(Outcome<'_>)) -> Result<usize, ClientError> {
        self.calls.poll(now_ns, |answer| {
            let status = Status::of(answer.kind);
            take(Outcome { tag: answer.tag, status, value: answer.body, asked_ns: answer.asked_ns });
        })
    }
}
