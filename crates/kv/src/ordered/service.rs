//! The server of an ordered index.

use std::sync::Arc;

use sinew_rpc::{BurstCalls, Call, DeferredCall};
use sinew_store::ordered::{KEY_LEN_MAX, OrderedIndex};

use super::protocol::{
    ENTRIES_AT, ENTRY_HEAD_LEN, LIMIT_MAX, NONE, Range, Refusal, Request, Response, Sum, VALUE, end_entries,
    write_entries_head, write_entry,
};

/// Longest value that a service can be configured for, in bytes.
pub const VALUE_LEN_MAX: usize = 8 << 20;
/// Longest response with several entries, in bytes; one with a single entry may be longer.
const RESPONSE_LEN: usize = 256 << 10;
/// Length of a value that is a number, in bytes.
const NUMBER_LEN: usize = 8;

/// An ordered index that a process serves. Clones are handles to the same index.
///
/// GETs, PUTs and DELETEs belong in the endpoint's own thread. Scans and sums belong in workers, where a long one does
/// not delay later arrivals (nsdi19 7.2); [`Self::ranges_in_dispatch`] is for scans as short as GETs, and for
/// comparison.
///
/// ```
/// # use std::sync::Arc;
/// use sinew_kv::ordered::{POINTS, RANGES, Service};
/// use sinew_rpc::Nexus;
///
/// # fn f(workers: Arc<dyn sinew_fabric::WorkerPool>) -> Result<(), Box<dyn std::error::Error>> {
/// let service = Service::new(1 << 30, 1 << 20);
/// let nexus = Nexus::builder()
///     .handle_burst(POINTS, service.points())
///     .handle_worker(RANGES, service.ranges())
///     .workers(workers)
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Service {
    index: Arc<OrderedIndex>,
    value_len_max: usize,
}

impl Service {
    /// An empty index whose entries take at most `memory_bytes` bytes, and whose values have at most `value_len_max`
    /// bytes, itself capped at [`VALUE_LEN_MAX`].
    pub fn new(memory_bytes: u64, value_len_max: usize) -> Self {
        let index = Arc::new(OrderedIndex::new(memory_bytes));
        Self { index, value_len_max: value_len_max.min(VALUE_LEN_MAX) }
    }

    /// The index, for other threads of this process.
    pub fn index(&self) -> &Arc<OrderedIndex> {
        &self.index
    }

    /// The longest message that the endpoints must accept, in bytes, for
    /// [`Config::message_len_max`](sinew_rpc::Config::message_len_max).
    pub fn message_len_max(&self) -> usize {
        RESPONSE_LEN.max(ENTRIES_AT + ENTRY_HEAD_LEN + KEY_LEN_MAX + self.value_len_max)
    }

    /// The handler of [`POINTS`](super::POINTS), for `handle_burst`.
    pub fn points(&self) -> impl Fn(&mut BurstCalls<'_, '_>) + Send + Sync + use<> {
        let service = self.clone();
        move |calls: &mut BurstCalls<'_, '_>| service.answer_points(calls)
    }

    /// The handler of [`RANGES`](super::RANGES), for `handle_worker`.
    pub fn ranges(&self) -> impl Fn(DeferredCall) + Send + Sync + use<> {
        let service = self.clone();
        move |call: DeferredCall| {
            // An abandoned call has no caller left, and a scan takes long.
            if !call.is_abandoned() {
                let response = service.range(call.request());
                call.reply(&response);
            }
        }
    }

    /// The handler of [`RANGES`](super::RANGES), for `handle`: scans run between other requests in the endpoint's
    /// thread.
    pub fn ranges_in_dispatch(&self) -> impl Fn(Call<'_>) + Send + Sync + use<> {
        let service = self.clone();
        move |call: Call<'_>| {
            let response = service.range(call.request());
            call.reply(&response);
        }
    }

    fn answer_points(&self, calls: &mut BurstCalls<'_, '_>) {
        if calls.len() > 1 {
            // The cache misses of several GETs overlap.
            for at in 0..calls.len() {
                if let Ok(Request::Get { key }) = Request::read(calls.request(at)) {
                    self.index.prefetch(key);
                }
            }
        }
        for at in 0..calls.len() {
            let request = match Request::read(calls.request(at)) {
                // The common case. The answer is written straight into the message.
                Ok(Request::Get { key }) => {
                    let found = self.index.get(key, |value| {
                        calls.reply_with(at, 1 + value.len(), |target| {
                            let (kind, rest) = target.split_at_mut(1);
                            kind.copy_from_slice(&[VALUE]);
                            rest.copy_from_slice(value);
                        });
                    });
                    if found.is_none() {
                        calls.reply(at, &[NONE]);
                    }
                    continue;
                }
                request => request.map_err(|_| Refusal::Malformed),
            };
            let response = request.and_then(|request| self.change(&request)).unwrap_or_else(Response::Refused);
            let mut bytes = Vec::with_capacity(32);
            response.write(&mut bytes);
            calls.reply(at, &bytes);
        }
    }

    fn change(&self, request: &Request<'_>) -> Result<Response<'static>, Refusal> {
        match request {
            Request::Put { value, .. } if value.len() > self.value_len_max => {
                Err(Refusal::ValueTooLong { len: value.len() as u64, max: self.value_len_max as u64 })
            }
            Request::Put { key, value } => Ok(Response::Done { existed: self.index.put(key, value)? }),
            Request::Delete { key } => Ok(Response::Done { existed: self.index.delete(key) }),
            Request::Stats => {
                Ok(Response::Stats { stats: self.index.stats(), value_len_max: self.value_len_max as u32 })
            }
            Request::Get { .. } | Request::Scan { .. } | Request::Sum { .. } => Err(Refusal::Malformed),
        }
    }

    fn range(&self, request: &[u8]) -> Vec<u8> {
        let mut response = Vec::new();
        let result = match Request::read(request) {
            Ok(Request::Scan { range, limit }) => check_limit(limit).map(|()| self.scan(range, limit, &mut response)),
            Ok(Request::Sum { range, limit }) => check_limit(limit).map(|()| self.sum(range, limit, &mut response)),
            Ok(_) | Err(_) => Err(Refusal::Malformed),
        };
        if let Err(refusal) = result {
            Response::Refused(refusal).write(&mut response);
        }
        response
    }

    fn scan(&self, range: Range<'_>, limit: u32, response: &mut Vec<u8>) {
        write_entries_head(response);
        let mut count = 0;
        // Of an entry past the limit, the answer only says that it exists.
        let more = self.index.scan(range, |key, value| {
            let len = response.len() + ENTRY_HEAD_LEN + key.len() + value.len();
            if count == limit || (count > 0 && len > RESPONSE_LEN) {
                return false;
            }
            write_entry(response, key, value);
            count += 1;
            true
        });
        end_entries(response, count, more);
    }

    fn sum(&self, range: Range<'_>, limit: u32, response: &mut Vec<u8>) {
        let (mut sum, mut added, mut passed_over) = (0, 0, 0);
        let mut last = Vec::new();
        let more = self.index.scan(range, |key, value| {
            if added + passed_over == limit {
                return false;
            }
            match value.as_array::<NUMBER_LEN>() {
                Some(number) => {
                    sum += u128::from(u64::from_le_bytes(*number));
                    added += 1;
                }
                None => passed_over += 1,
            }
            if added + passed_over == limit {
                last.extend_from_slice(key);
            }
            true
        });
        let last = if more { &last[..] } else { &[] };
        Response::Sum(Sum { sum, added, passed_over, last, more }).write(response);
    }
}

fn check_limit(limit: u32) -> Result<(), Refusal> {
    if (1..=LIMIT_MAX).contains(&limit) { Ok(()) } else { Err(Refusal::Limit { limit }) }
}
