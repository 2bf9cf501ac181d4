//! Answering a burst of requests: first the buckets of all keys are prefetched, then their items, and then the requests
//! are executed in order.

use arrayvec::ArrayVec;
use sinew_fabric::MAX_BURST;
use sinew_rpc::BurstCalls;
use sinew_store::cache::{Cache, Item, Key, ModifyError, Put, PutError};

use super::protocol::{
    ITEM_VALUE_AT, KEYS_MAX, Keys, PutOptions, Refusal, Request, Response, Slot, VALUE_AT, VALUES_AT, Values,
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

/// A request, or the reason for refusing it.
type ParsedRequest<'a> = Result<Request<'a>, Refusal>;

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
        let mut keys = &keys[..];
        for (index, request) in (first..).zip(&requests) {
            let count = match request {
                Ok(Request::GetMany(many)) => many.count(),
                Ok(Request::Info | Request::Stats | Request::Flush) | Err(_) => 0,
                Ok(_) => 1,
            };
            let (own_keys, rest) = keys.split_at(count);
            keys = rest;
            self.answer_one(cache, calls, index, request, own_keys);
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
    ) -> Result<Request<'a>, Refusal> {
        let request = Request::read(request).map_err(|_| Refusal::Malformed)?;
        let mut add = |bytes: &'a [u8]| {
            if !self.owns(bytes) {
                return Err(self.wrong_partition());
            }
            let key = cache.hasher().key(bytes);
            cache.prefetch_bucket(&key);
            keys.push(key);
            Ok(())
        };
        match request {
            Request::Get { key } | Request::Inspect { key } | Request::Delete { key } => add(key)?,
            Request::Touch { key, .. } | Request::Add { key, .. } => add(key)?,
            Request::Put(put) => add(put.key)?,
            Request::GetMany(many) => self.read_keys(cache, &many, keys)?,
            Request::Info | Request::Stats | Request::Flush => {}
        }
        Ok(request)
    }

    fn read_keys<'a>(
        &self,
        cache: &Cache,
        many: &Keys<'a>,
        keys: &mut ArrayVec<Key<'a>, KEYS_AT_ONCE>,
    ) -> Result<(), Refusal> {
        let before = keys.len();
        for bytes in many.iter() {
            if !self.owns(bytes) {
                keys.truncate(before);
                return Err(self.wrong_partition());
            }
            let key = cache.hasher().key(bytes);
            cache.prefetch_bucket(&key);
            keys.push(key);
        }
        Ok(())
    }

    fn wrong_partition(&self) -> Refusal {
        Refusal::WrongPartition { partition: self.index as u64 }
    }

    /// Executes a request and answers it; `keys` are its keys.
    #[inline(always)]
    fn answer_one(
        &self,
        cache: &mut Cache,
        calls: &mut BurstCalls<'_, '_>,
        index: usize,
        request: &ParsedRequest<'_>,
        keys: &[Key<'_>],
    ) {
        let now_s = self.now_s.get();
        let response = match (request, keys) {
            (Ok(Request::Get { .. }), [key]) => match cache.get(key, now_s) {
                Some(item) => {
                    return calls.reply_with(index, VALUE_AT + item.value_len(), |target| {
                        item.copy_to(write_value_head(target));
                    });
                }
                None => Response::Miss,
            },
            (Ok(Request::Inspect { .. }), [key]) => match cache.get(key, now_s) {
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
            (Ok(Request::Put(put)), [key]) => match cache.put(key, put.value, &to_put(&put.options, now_s), now_s) {
                Ok(version) => Response::Stored { version },
                Err(error) => Response::Refused(error.into()),
            },
            (Ok(Request::Delete { .. }), [key]) => {
                if cache.delete(key, now_s) {
                    Response::Deleted
                } else {
                    Response::Miss
                }
            }
            (Ok(Request::GetMany(_)), keys) => return self.answer_many(cache, calls, index, keys),
            (Ok(Request::Info), _) => Response::Info(self.info()),
            (Ok(Request::Stats), _) => Response::Stats(self.stats(cache)),
            (Ok(request), keys) => answer_rare(cache, request, keys, now_s),
            (Err(refusal), _) => Response::Refused(*refusal),
        };
        if let Response::Refused(refusal) = &response
            && refusal.is_fault()
        {
            self.refused.set(self.refused.get() + 1);
        }
        reply(calls, index, &response);
    }

    fn answer_many(&self, cache: &Cache, calls: &mut BurstCalls<'_, '_>, index: usize, keys: &[Key<'_>]) {
        let now_s = self.now_s.get();
        let mut len = VALUES_AT + 4 * keys.len();
        let mut items = ArrayVec::<(Slot, Option<Item<'_>>), KEYS_MAX>::new();
        for key in keys {
            let found = match cache.get(key, now_s) {
                None => (Slot::Miss, None),
                Some(item) if item.value_len() > self.response_len_max - len => (Slot::Omitted, None),
                Some(item) => {
                    len += item.value_len();
                    (Slot::Hit(item.value_len()), Some(item))
                }
            };
            items.push(found);
        }
        calls.reply_with(index, len, |target| {
            let mut rest = Values::write_count(items.len() as u8, target);
            for (slot, item) in &items {
                let value;
                (value, rest) = Values::write_next(*slot, rest);
                if let Some(item) = item {
                    item.copy_to(value);
                }
            }
        });
    }
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
