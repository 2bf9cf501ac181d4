//! The cache that a HERD worker serves.

use sinew_herd::{Request, Response, Service};
use sinew_store::cache::{Cache, Key, KnownKey, Put};

use super::{KEY_LEN_MAX, Operation, Status};
use crate::partitions::Partitions;

/// Counters of refusals at a worker. The table itself counts hits, misses and the like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheServiceStats {
    /// Malformed requests.
    pub malformed: u64,
    /// Requests for keys of other workers.
    pub wrong_partition: u64,
    /// PUTs that stored nothing.
    pub not_stored: u64,
    /// GETs whose value was too long for an answer.
    pub too_long: u64,
}

/// One partition of the cache.
pub struct CacheService {
    cache: Cache,
    partitions: Partitions,
    partition: usize,
    now_s: u32,
    stats: CacheServiceStats,
}

impl CacheService {
    /// Makes the service of worker `partition`; there must be as many workers as partitions.
    pub fn new(cache: Cache, partitions: Partitions, partition: usize) -> Self {
        Self { cache, partitions, partition, now_s: 1, stats: CacheServiceStats::default() }
    }

    /// The table.
    pub fn cache(&mut self) -> &mut Cache {
        &mut self.cache
    }

    /// Counters so far.
    pub fn stats(&self) -> &CacheServiceStats {
        &self.stats
    }

    /// Splits a request into operation, key and value.
    #[inline(always)]
    fn parse<'a>(request: &Request<'a>) -> Option<(Operation, &'a [u8], &'a [u8])> {
        let (operation, key_len) = Operation::of(request.kind)?;
        let (key, value) = request.body.split_at_checked(key_len)?;
        let is_good = !key.is_empty() && key.len() <= KEY_LEN_MAX && (value.is_empty() || operation == Operation::Put);
        is_good.then_some((operation, key, value))
    }

    #[inline(always)]
    fn answer(&mut self, operation: Operation, key: &Key<'_>, value: &[u8], response: &mut Response<'_>) -> Status {
        match operation {
            Operation::Get => match self.cache.get(key, self.now_s) {
                None => Status::Absent,
                Some(item) => match response.body(item.value_len()) {
                    Some(body) => {
                        item.copy_to(body);
                        Status::Found
                    }
                    None => Status::TooLong,
                },
            },
            Operation::Put => match self.cache.put(key, value, &Put::default(), self.now_s) {
                Ok(_) => Status::Stored,
                Err(_) => Status::NotStored,
            },
            Operation::Delete if self.cache.delete(key, self.now_s) => Status::Deleted,
            Operation::Delete => Status::Absent,
        }
    }

    #[cold]
    fn count(&mut self, status: Status) {
        let stats = &mut self.stats;
        match status {
            Status::Malformed => stats.malformed += 1,
            Status::WrongPartition => stats.wrong_partition += 1,
            Status::NotStored => stats.not_stored += 1,
            Status::TooLong => stats.too_long += 1,
            Status::Found | Status::Absent | Status::Stored | Status::Deleted => {}
        }
    }
}

impl Service for CacheService {
    type Job = KnownKey;

    #[inline(always)]
    fn prefetch(&mut self, request: &Request<'_>) -> KnownKey {
        let Some((_, key, _)) = Self::parse(request) else { return KnownKey::default() };
        let key = self.cache.hasher().key(key);
        self.cache.prefetch_bucket(&key);
        key.known()
    }

    #[inline(always)]
    fn advance(&mut self, request: &Request<'_>, job: &mut KnownKey) {
        if let Some((_, key, _)) = Self::parse(request) {
            let mut key = job.with_bytes(key);
            self.cache.prefetch_item(&mut key);
            *job = key.known();
        }
    }

    #[inline(always)]
    fn begin(&mut self, _: usize, now_ns: u64) {
        // At least 1, since 0 stands for no time.
        self.now_s = u32::try_from(now_ns / 1_000_000_000 + 1).unwrap_or(u32::MAX);
    }

    #[inline(always)]
    fn execute(&mut self, request: &Request<'_>, job: KnownKey, response: &mut Response<'_>) {
        let status = match Self::parse(request) {
            None => Status::Malformed,
            Some((_, key, _)) if self.partitions.of(key) != self.partition => Status::WrongPartition,
            Some((operation, key, value)) => self.answer(operation, &job.with_bytes(key), value, response),
        };
        if status as u16 >= Status::Malformed as u16 {
            self.count(status);
        }
        response.kind = status as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sinew_store::cache::CacheConfig;

    fn service(partitions: usize, partition: usize) -> CacheService {
        let cache = Cache::new(&CacheConfig { items: 1000, value_len_max: 900, ..CacheConfig::default() }).unwrap();
        CacheService::new(cache, Partitions::new(partitions), partition)
    }

    fn ask(service: &mut CacheService, kind: u16, body: &[u8]) -> (Status, Vec<u8>) {
        let request = Request { client: 0, kind, body };
        let mut job = service.prefetch(&request);
        service.advance(&request, &mut job);
        service.begin(1, 0);
        let mut room = [0; 100];
        let mut response = Response::new(&mut room);
        service.execute(&request, job, &mut response);
        let (kind, len) = (response.kind, response.len());
        (Status::of(kind).unwrap(), room[..len].to_vec())
    }

    #[test]
    fn what_was_put_is_found_until_it_is_deleted() {
        let mut service = service(1, 0);
        let [get, put, delete] = [Operation::Get, Operation::Put, Operation::Delete].map(|op| op.kind(3));
        assert_eq!(ask(&mut service, get, b"key"), (Status::Absent, vec![]));
        assert_eq!(ask(&mut service, put, b"keyvalue"), (Status::Stored, vec![]));
        assert_eq!(ask(&mut service, get, b"key"), (Status::Found, b"value".to_vec()));
        assert_eq!(ask(&mut service, put, b"key"), (Status::Stored, vec![]));
        assert_eq!(ask(&mut service, get, b"key"), (Status::Found, vec![]));
        assert_eq!(ask(&mut service, delete, b"key"), (Status::Deleted, vec![]));
        assert_eq!(ask(&mut service, delete, b"key"), (Status::Absent, vec![]));
        assert_eq!(*service.stats(), CacheServiceStats::default());
    }

    #[test]
    fn nonsense_is_answered_as_such_and_counted() {
        let mut service = service(1, 0);
        for (kind, body) in [
            (0, &b"key"[..]),
            (Operation::Get.kind(0), b""),
            (Operation::Put.kind(0), b"value"),
            (Operation::Get.kind(4), b"key"),
            (Operation::Get.kind(2), b"key"),
            (Operation::Delete.kind(2), b"key"),
            (u16::MAX, b"key"),
        ] {
            assert_eq!(ask(&mut service, kind, body), (Status::Malformed, vec![]), "{kind:x}");
        }
        let long = [1; 1000];
        assert_eq!(ask(&mut service, Operation::Put.kind(1), &long[..902]).0, Status::NotStored);
        assert_eq!(ask(&mut service, Operation::Put.kind(1), &long[..901]).0, Status::Stored);
        // The buffer for an answer has 100 bytes here.
        assert_eq!(ask(&mut service, Operation::Get.kind(1), &long[..1]), (Status::TooLong, vec![]));
        let expected = CacheServiceStats { malformed: 7, wrong_partition: 0, not_stored: 1, too_long: 1 };
        assert_eq!(*service.stats(), expected);
    }

    #[test]
    fn keys_of_other_workers_are_refused() {
        let partitions = Partitions::new(2);
        let mut service = service(2, 1);
        for key in 0..100u32 {
            let status = ask(&mut service, Operation::Get.kind(4), &key.to_le_bytes()).0;
            let is_own = partitions.of(&key.to_le_bytes()) == 1;
            assert_eq!(status, if is_own { Status::Absent } else { Status::WrongPartition });
        }
        assert!((20..80).contains(&service.stats().wrong_partition));
    }
}
