//! A client that blocks until each answer arrives.

use std::ops::Bound;

use sinew_rpc::Endpoint;
use sinew_store::ordered::Stats;

use super::error::Error;
use super::pipeline::{Pipeline, PipelineConfig, is_session_gone};
use super::protocol::{Entries, LIMIT_MAX, Malformed, Range, Request, Response, Sum};

/// A client of an index whose methods block until the answer arrives. To have many requests in flight, see
/// [`Pipeline`].
pub struct Client<E: Endpoint> {
    pipeline: Pipeline<E>,
    /// Tag of the latest request; answers with older tags, which an earlier call left behind, are skipped.
    tag: u64,
}

/// Entries of a range that came with one answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Keys and values, in the order of the keys.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether the range may go on after the last entry.
    pub more: bool,
}

/// The sum of a range's values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// The sum.
    pub sum: u128,
    /// Values added.
    pub added: u64,
    /// Entries whose values are not numbers of eight bytes.
    pub passed_over: u64,
}

/// Error for an answer of the wrong kind, which [`Pipeline`] has already ruled out.
const WRONG_KIND: Malformed = Malformed { what: "it is of another kind than the request" };
const UNORDERED: Malformed = Malformed { what: "its keys are out of order, out of the range, or too many" };

impl<E: Endpoint> Client<E> {
    /// Connects to the index at `address`.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::connect`].
    pub fn connect(rpc: E, address: &str) -> Result<Self, Error> {
        Self::connect_with(rpc, address, PipelineConfig { window: 1, ..PipelineConfig::default() })
    }

    /// As [`Self::connect`], with a time-out for each request.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::connect`].
    pub fn connect_with(rpc: E, address: &str, config: PipelineConfig) -> Result<Self, Error> {
        Ok(Self { pipeline: Pipeline::connect(rpc, address, config)?, tag: 0 })
    }

    /// Turns into the same client, able to have many requests in flight.
    pub fn into_pipeline(self) -> Pipeline<E> {
        self.pipeline
    }

    /// Makes a request and waits for the answer. If the session is lost, reconnects once, since the server may have
    /// been restarted.
    fn request<T>(&mut self, request: &Request<'_>, take: impl FnOnce(Response<'_>) -> Option<T>) -> Result<T, Error> {
        self.tag += 1;
        match self.pipeline.submit(request, self.tag) {
            Err(error) if is_session_gone(&error) => {
                self.pipeline.reconnect()?;
                self.pipeline.submit(request, self.tag)?;
            }
            result => result?,
        }
        loop {
            let answer = self.pipeline.wait()?.ok_or(WRONG_KIND)?;
            if answer.tag == self.tag {
                return take(answer.response?).ok_or(WRONG_KIND.into());
            }
        }
    }

    /// Returns the value of `key`, if there is one.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.request(&Request::Get { key }, |response| match response {
            Response::Value(value) => Some(Some(value.to_vec())),
            Response::None => Some(None),
            _ => None,
        })
    }

    /// Stores a value. Returns whether there was one before.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.request(&Request::Put { key, value }, existed)
    }

    /// Removes a key. Returns whether it was there.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.request(&Request::Delete { key }, existed)
    }

    /// Returns the first entries of a range: up to `limit`, and no more than fit into one answer. To go on, scan from
    /// after the last key ([`Bound::Excluded`]).
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn scan(&mut self, range: Range<'_>, limit: u32) -> Result<Page, Error> {
        self.request(&Request::Scan { range, limit }, |response| match response {
            Response::Entries(entries) => Some(page(&entries, range, limit)),
            _ => None,
        })?
    }

    /// Passes up to `limit` entries of a range to `visit`, in as many requests as that takes, until `visit` returns
    /// `false`. A change between two requests may be seen or not. Returns whether there may be more after the last
    /// entry.
    ///
    /// # Errors
    ///
    /// [`Error`]; earlier entries have been passed to `visit` by then.
    pub fn scan_all(
        &mut self,
        (from, to): Range<'_>,
        limit: u64,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<bool, Error> {
        let mut left = limit;
        let mut last: Option<Vec<u8>> = None;
        while left > 0 {
            let from = last.as_deref().map_or(from, Bound::Excluded);
            let page = self.scan((from, to), left.min(LIMIT_MAX.into()) as u32)?;
            for (key, value) in &page.entries {
                left = left.saturating_sub(1);
                if !visit(key, value) {
                    return Ok(true);
                }
            }
            match page.entries.into_iter().next_back() {
                Some((key, _)) if page.more => last = Some(key),
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Returns the sum of those values of up to `limit` entries of a range that are numbers of eight bytes,
    /// little-endian, in as many requests as that takes.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn sum(&mut self, (from, to): Range<'_>, limit: u64) -> Result<Total, Error> {
        let mut total = Total::default();
        let mut last: Option<Vec<u8>> = None;
        loop {
            let left = limit.saturating_sub(total.added + total.passed_over);
            if left == 0 {
                return Ok(total);
            }
            let from = last.as_deref().map_or(from, Bound::Excluded);
            let limit = left.min(LIMIT_MAX.into());
            let request = Request::Sum { range: (from, to), limit: limit as u32 };
            let (part, next) = self.request(&request, |response| match response {
                Response::Sum(part) => Some((Sum { last: &[], ..part }, part.more.then(|| part.last.to_vec()))),
                _ => None,
            })?;
            let (added, passed_over) = (u64::from(part.added), u64::from(part.passed_over));
            let is_wrong = |next: &[u8]| !is_after(next, from) || !is_before(next, to);
            if added + passed_over > limit || next.as_deref().is_some_and(is_wrong) {
                return Err(UNORDERED.into());
            }
            total.sum = total.sum.saturating_add(part.sum);
            total.added += added;
            total.passed_over += passed_over;
            match next {
                Some(key) => last = Some(key),
                None => return Ok(total),
            }
        }
    }

    /// Returns the index's counters.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn stats(&mut self) -> Result<Stats, Error> {
        self.request(&Request::Stats, |response| match response {
            Response::Stats { stats, .. } => Some(stats),
            _ => None,
        })
    }
}

/// Copies entries, and refuses them if they are out of order, out of their range or too many: else a scan that goes on
/// after the last of them might never end.
fn page(entries: &Entries<'_>, (from, to): Range<'_>, limit: u32) -> Result<Page, Error> {
    let mut last = from;
    for (key, _) in entries.iter() {
        if !is_after(key, last) || !is_before(key, to) {
            return Err(UNORDERED.into());
        }
        last = Bound::Excluded(key);
    }
    if entries.len() > limit as usize || (entries.more && entries.is_empty()) {
        return Err(UNORDERED.into());
    }
    let pairs = entries.iter().map(|(key, value)| (key.to_vec(), value.to_vec()));
    Ok(Page { entries: pairs.collect(), more: entries.more })
}

fn is_after(key: &[u8], from: Bound<&[u8]>) -> bool {
    match from {
        Bound::Included(from) => key >= from,
        Bound::Excluded(from) => key > from,
        Bound::Unbounded => true,
    }
}

fn is_before(key: &[u8], to: Bound<&[u8]>) -> bool {
    match to {
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
        Bound::Unbounded => true,
    }
}

fn existed(response: Response<'_>) -> Option<bool> {
    match response {
        Response::Done { existed } => Some(existed),
        _ => None,
    }
}
