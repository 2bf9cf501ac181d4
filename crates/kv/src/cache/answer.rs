//! Answering a burst of requests: first the buckets of all keys are prefetched, then their items, and then the requests
//! are executed in order.

use arrayvec::ArrayVec;
use sinew_fabric::MAX_BURST;
use sinew_rpc::BurstCalls;
use sinew_store::cache::{Cache, Key, ModifyError, Put, PutError, Value};

use super::protocol::{
    ITEM_VALUE_AT, KEYS_MAX, PutOptions, Refusal, Request, Response, Slot, VALUE_AT, VALUES_AT, Values,
    write_item_head, write_value_head,
};
use super::service::{Owned, Partition};

/// Keys of a batch, whose cache misses overlap: one for each request of a burst, plus those of one request for several.
const KEYS_AT_ONCE: usize = MAX_BURST + KEYS_MAX;

/// Refuses all requests, at an endpoint without a partition.
pub(super) fn refuse_all(calls: &mut BurstCalls<'_, '_>) {
    for index in 0..calls.len() {
        reply(calls, index, &Response::Refused(Refusal::NoPartition));
    }
}

#[inline]
fn reply(calls: &mut BurstCalls<'_, '_>, index: usize, response: &Response<'_>) {
    calls.reply_with(index, response.len(), |target| response.write(target));
}

/// A request as it was read. Its keys are in the batch's list.
enum ParsedRequest<'a> {
    /// A [`Request::Get`], apart from the others because it is the most common one, and needs no more than its key.
    Get,
    /// A [`Request::GetMany`] for this many keys.
    GetMany(usize),
    Other(Request<'a>),
    Refused(Refusal),
}

impl ParsedRequest<'_> {
    /// Number of its keys in the batch's list.
    #[inline(always)]
    fn key_count(&self) -> usize {
        match self {
            Self::Get => 1,
            Self::GetMany(count) => *count,
            Self::Other(request) => request.key_count(),
            Self::Refused(_) => 0,
        }
    }
}

impl Partition {
    /// Answers a burst of requests.
    pub fn answer(&self, calls: &mut BurstCalls<'_, '_>) {
        let owned = &*self.0;
        let mut cache = owned.cache.borrow_mut();
        let mut at = 0;
        while at < calls.len() {
            at = owned.answer_batch(&mut cache, calls, at);
        }
    }
}

impl Owned {
    /// Answers the requests from `first` on, as many as [`KEYS_AT_ONCE`] keys allow; returns the index of the next.
    fn answer_batch(&self, cache: &mut Cache, calls: &mut BurstCalls<'_, '_>, first: usize) -> usize {
        let mut requests = ArrayVec::<ParsedRequest<'_>, MAX_BURST>::new();
        let mut keys = ArrayVec::<Key<'_>, KEYS_AT_ONCE>::new();
        let mut next = first;
        // The batch ends when the keys of one more request might not fit.
        while next < calls.len() && keys.len() <= KEYS_AT_ONCE - KEYS_MAX && !requests.is_full() {
            requests.push(self.read_request(cache, calls.request(next), &mut keys));
            next += 1;
        }
        for key in &mut keys {
            cache.prefetch_item(key);
        }
        let (mut keys, mut at) = (&keys[..], 0);
        while at < requests.len() {
            // Between two other requests, GETs see the same table.
            let gets = requests[at..].iter().take_while(|request| matches!(request, ParsedRequest::Get)).count();
            let (gets_keys, rest) = keys.split_at(gets);
            self.answer_gets(cache, calls, first + at, gets_keys);
            keys = rest;
            at += gets;
            let Some(request) = requests.get(at) else { break };
            let (own_keys, rest) = keys.split_at(request.key_count());
            match request {
                // The run above took all of these.
                ParsedRequest::Get => self.refuse(calls, first + at, Refusal::Malformed),
                ParsedRequest::GetMany(_) => self.answer_many(cache, calls, first + at, own_keys),
                ParsedRequest::Other(request) => self.answer_other(cache, calls, first + at, request, own_keys),
                ParsedRequest::Refused(refusal) => self.refuse(calls, first + at, *refusal),
            }
            keys = rest;
            at += 1;
        }
        next
    }

    /// Reads a request and prefetches the buckets of its keys.
    #[inline(always)]
    fn read_request<'a>(
        &self,
        cache: &Cache,
        request: &'a [u8],
        keys: &mut ArrayVec<Key<'a>, KEYS_AT_ONCE>,
    ) -> ParsedRequest<'a> {
        match Request::read_get(request) {
            Some(key) => match self.add_key(cache, key, keys) {
                Ok(()) => ParsedRequest::Get,
                Err(refusal) => ParsedRequest::Refused(refusal),
            },
            None => self.read_other(cache, request, keys),
        }
    }

    /// As [`Self::read_request`], for any request. Out of line, so that GETs do not pay for it.
    #[inline(never)]
    fn read_other<'a>(
        &self,
        cache: &Cache,
        request: &'a [u8],
        keys: &mut ArrayVec<Key<'a>, KEYS_AT_ONCE>,
    ) -> ParsedRequest<'a> {
        let before = keys.len();
        let read = match Request::read_many(request, |key| self.add_key(cache, key, keys)) {
            Some(count) => count.map(ParsedRequest::GetMany),
            None => self.read_any(cache, request, keys).map(ParsedRequest::Other),
        };
        read.unwrap_or_else(|refusal| {
            keys.truncate(before);
            ParsedRequest::Refused(refusal)
        })
    }

    #[inline(never)]
    fn read_any<'a>(
        &self,
        cache: &Cache,
        request: &'a [u8],
        keys: &mut ArrayVec<Key<'a>, KEYS_AT_ONCE>,
    ) -> Result<Request<'a>, Refusal> {
        Request::read_with(request, |key| self.add_key(cache, key, keys))
    }

    /// Adds a key to the batch's and prefetches its bucket.
    #[inline(always)]
    fn add_key<'a>(
        &self,
        cache: &Cache,
        bytes: &'a [u8],
        keys: &mut ArrayVec<Key<'a>, KEYS_AT_ONCE>,
    ) -> Result<(), Refusal> {
        if !self.owns(bytes) {
            return Err(self.wrong_partition());
        }
        let key = cache.hasher().key(bytes);
        cache.prefetch_bucket(&key);
        keys.push(key);
        Ok(())
    }

    fn wrong_partition(&self) -> Refusal {
        Refusal::WrongPartition { partition: self.index as u64 }
    }

    /// Answers GETs, from request `first` on, each of which has one of `keys`.
    #[inline(always)]
    fn answer_gets(&self, cache: &Cache, calls: &mut BurstCalls<'_, '_>, first: usize, keys: &[Key<'_>]) {
        let (gets, mut hits) = (cache.gets(self.now_s.get()), 0);
        for (index, key) in (first..).zip(keys) {
            match gets.get(key) {
                Some(item) => {
                    hits += 1;
                    calls.reply_with(index, VALUE_AT + item.value_len(), |target| {
                        item.copy_to(write_value_head(target));
                    });
                }
                None => reply(calls, index, &Response::Miss),
            }
        }
        cache.count_gets(keys.len() as u64, hits);
    }

    /// Executes a request and answers it; `keys` are its keys.
    #[inline(never)]
    fn answer_other(
        &self,
        cache: &mut Cache,
        calls: &mut BurstCalls<'_, '_>,
        index: usize,
        request: &Request<'_>,
        keys: &[Key<'_>],
    ) {
        let now_s = self.now_s.get();
        let response = match (request, keys) {
            (Request::Inspect { .. }, [key]) => match cache.get(key, now_s) {
                Some(item) => {
                    let lives_s = match item.expires_s() {
                        0 => 0,
                        expires_s => expires_s - now_s,
                    };
                    return calls.reply_with(index, ITEM_VALUE_AT + item.value_len(), |target| {
                        item.copy_to(write_item_head(item.flags(), lives_s, item.version(), target));
                    });
                }
                None => Response::Miss,
            },
            (Request::Put(put), [key]) => match cache.put(key, put.value, &to_put(&put.options, now_s), now_s) {
                Ok(version) => Response::Stored { version },
                Err(error) => return self.refuse(calls, index, error.into()),
            },
            (Request::Delete { .. }, [key]) => {
                if cache.delete(key, now_s) {
                    Response::Deleted
                } else {
                    Response::Miss
                }
            }
            (Request::Info, _) => Response::Info(self.info()),
            (Request::Stats, _) => Response::Stats(self.stats(cache)),
            (request, keys) => match answer_rare(cache, request, keys, now_s) {
                Response::Refused(refusal) => return self.refuse(calls, index, refusal),
                response => response,
            },
        };
        reply(calls, index, &response);
    }

    #[cold]
    fn refuse(&self, calls: &mut BurstCalls<'_, '_>, index: usize, refusal: Refusal) {
        if refusal.is_fault() {
            self.refused.set(self.refused.get() + 1);
        }
        reply(calls, index, &Response::Refused(refusal));
    }

    #[inline(never)]
    fn answer_many(&self, cache: &Cache, calls: &mut BurstCalls<'_, '_>, index: usize, keys: &[Key<'_>]) {
        let now_s = self.now_s.get();
        if !calls.reply_if_room(index, |target| write_many(cache, keys, now_s, target)) {
            self.answer_many_afresh(cache, calls, index, keys);
        }
    }

    /// As [`Self::answer_many`], where no earlier answer has left a buffer that is long enough: the length must be
    /// known first.
    #[cold]
    fn answer_many_afresh(&self, cache: &Cache, calls: &mut BurstCalls<'_, '_>, index: usize, keys: &[Key<'_>]) {
        let now_s = self.now_s.get();
        let mut len = VALUES_AT + 4 * keys.len();
        let mut all = ArrayVec::<Found<'_>, KEYS_MAX>::new();
        for key in keys {
            all.push(match cache.get(key, now_s) {
                None => Found::Miss,
                Some(item) if item.value_len() > self.response_len_max - len => Found::Omitted,
                Some(item) => {
                    len += item.value_len();
                    Found::Hit(item.value())
                }
            });
        }
        calls.reply_with(index, len, |target| {
            let mut rest = Values::write_count(all.len() as u8, target);
            for found in &all {
                rest = match found {
                    Found::Miss => Values::write_next(Slot::Miss, rest).1,
                    Found::Omitted => Values::write_next(Slot::Omitted, rest).1,
                    Found::Hit(value) => {
                        let (place, rest) = Values::write_next(Slot::Hit(value.len()), rest);
                        value.copy_to(place);
                        rest
                    }
                };
            }
        });
    }
}

/// Writes the values of `keys`, as they are found; returns the length of the whole, or `None` if `target` is too short.
/// Nothing is counted then.
#[inline(always)]
fn write_many(cache: &Cache, keys: &[Key<'_>], now_s: u32, target: &mut [u8]) -> Option<usize> {
    let (room, gets, mut hits) = (target.len(), cache.gets(now_s), 0);
    let mut rest = Values::try_write_count(keys.len() as u8, target)?;
    for key in keys {
        rest = match gets.get(key) {
            None => Values::try_write_next(Slot::Miss, rest)?.1,
            Some(item) => {
                let (place, rest) = Values::try_write_next(Slot::Hit(item.value_len()), rest)?;
                item.copy_to(place);
                hits += 1;
                rest
            }
        };
    }
    cache.count_gets(keys.len() as u64, hits);
    Some(room - rest.len())
}

/// Result for one of several keys.
enum Found<'a> {
    Miss,
    /// The response has no room for the value.
    Omitted,
    Hit(Value<'a>),
}

/// Executes the rarer requests. Out of line, so that the common ones do not pay for them.
#[cold]
fn answer_rare(cache: &mut Cache, request: &Request<'_>, keys: &[Key<'_>], now_s: u32) -> Response<'static> {
    match (request, keys) {
        (Request::Touch { lives_s, .. }, [key]) => {
            match cache.touch(key, None, Some(expires_at_s(*lives_s, now_s)), now_s) {
                Ok(_) => Response::Touched,
                Err(PutError::Absent) => Response::Miss,
                Err(error) => Response::Refused(error.into()),
            }
        }
        (Request::Add { delta, .. }, [key]) => add(cache, key, *delta, now_s),
        (Request::Flush, _) => {
            cache.clear();
            Response::Flushed
        }
        _ => Response::Refused(Refusal::Malformed),
    }
}

/// Adds to the number that a value holds.
fn add(cache: &mut Cache, key: &Key<'_>, delta: i64, now_s: u32) -> Response<'static> {
    let mut number = 0;
    let changed = cache.modify(key, now_s, |value| {
        number = number_of(value).ok_or(())?;
        number =
            if delta < 0 { number.saturating_sub(delta.unsigned_abs()) } else { number.wrapping_add(delta as u64) };
        value.clear();
        value.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        Ok(())
    });
    match changed {
        Ok(_) => Response::Number(number),
        Err(ModifyError::Refused(())) => Response::Refused(Refusal::NotANumber),
        Err(ModifyError::Put(PutError::Absent)) => Response::Miss,
        Err(ModifyError::Put(error)) => Response::Refused(error.into()),
    }
}

/// Reads decimal digits. Trailing spaces are allowed: memcached leaves them where a number became shorter.
fn number_of(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii_end();
    let is_number = matches!(digits.len(), 1..=20) && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

/// Converts options: a client gives a lifetime, the table stores the time of expiry by our clock.
#[inline(always)]
fn to_put(options: &PutOptions, now_s: u32) -> Put {
    Put { when: options.when, flags: options.flags, expires_s: expires_at_s(options.lives_s, now_s) }
}

#[inline(always)]
fn expires_at_s(lives_s: u32, now_s: u32) -> u32 {
    if lives_s == 0 { 0 } else { now_s.saturating_add(lives_s) }
}
