//! Requests in a pipeline: their cache misses overlap with the service of other requests.

use super::{Cache, Key, KnownKey};

/// Requests on their way through a table, `LEN` at most: a power of two, 2 at least.
///
/// Each request that enters prefetches its bucket; the one that entered `LEN / 2` before prefetches its item; and the
/// one that entered `LEN` before is returned, to be served. Unlike with batches, of which all requests wait for memory
/// and then all are served, the processor always has both kinds of work at hand.
///
/// ```
/// use sinew_store::cache::{Cache, CacheConfig, Pipeline, Put};
///
/// let mut cache = Cache::new(&CacheConfig { items: 1000, ..CacheConfig::default() })?;
/// let hasher = cache.hasher().clone();
/// cache.put(&hasher.key(b"b"), b"2", &Put::default(), 1)?;
///
/// let mut pipeline = Pipeline::<&[u8], 4>::default();
/// let mut found = Vec::new();
/// let mut serve = |cache: &Cache, (key, bytes)| {
///     let key = sinew_store::cache::KnownKey::with_bytes(key, bytes);
///     found.push((bytes, cache.get(&key, 1).is_some()));
/// };
/// for bytes in [&b"a"[..], b"b", b"c", b"d", b"e"] {
///     if let Some(ready) = pipeline.push(&cache, &hasher.key(bytes), bytes) {
///         serve(&cache, ready);
///     }
/// }
/// while let Some(ready) = pipeline.pop(&cache) {
///     serve(&cache, ready);
/// }
/// assert_eq!(found, [(&b"a"[..], false), (b"b", true), (b"c", false), (b"d", false), (b"e", false)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pipeline<T, const LEN: usize> {
    ring: [Option<(KnownKey, T)>; LEN],
    /// Steps made: the place of the next request, and of the oldest one.
    step: usize,
    /// Requests under way.
    len: usize,
}

impl<T, const LEN: usize> Default for Pipeline<T, LEN> {
    fn default() -> Self {
        const { assert!(LEN.is_power_of_two() && LEN >= 2, "a pipeline's length is a power of two, 2 at least") };
        Self { ring: std::array::from_fn(|_| None), step: 0, len: 0 }
    }
}

impl<T, const LEN: usize> Pipeline<T, LEN> {
    /// Requests under way.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no request is under way.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes a request in, and returns the one that is to be served now, once the pipeline is full. Requests leave in
    /// the order in which they entered. The key's bytes stay with the caller, for example in `request`.
    #[inline(always)]
    pub fn push(&mut self, cache: &Cache, key: &Key<'_>, request: T) -> Option<(KnownKey, T)> {
        cache.prefetch_bucket(key);
        self.len += 1;
        self.advance(cache, Some((key.known(), request)))
    }

    /// Returns the oldest request, to be served although no other one has entered; `None` when the pipeline is empty.
    #[inline]
    pub fn pop(&mut self, cache: &Cache) -> Option<(KnownKey, T)> {
        while self.len > 0 {
            if let Some(ready) = self.advance(cache, None) {
                return Some(ready);
            }
        }
        None
    }

    #[inline(always)]
    fn advance(&mut self, cache: &Cache, next: Option<(KnownKey, T)>) -> Option<(KnownKey, T)> {
        if let Some((known, _)) = &mut self.ring[self.step.wrapping_add(LEN / 2) & (LEN - 1)] {
            let mut key = known.with_bytes(&[]);
            cache.prefetch_item(&mut key);
            *known = key.known();
        }
        let ready = std::mem::replace(&mut self.ring[self.step & (LEN - 1)], next);
        self.step = self.step.wrapping_add(1);
        self.len -= usize::from(ready.is_some());
        ready
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::super::{CacheConfig, Put};
    use super::*;

    proptest! {
        #[test]
        fn requests_leave_in_order_and_see_all_changes_before_them(
            steps in prop::collection::vec((0u8..40, any::<bool>(), prop::bool::weighted(0.1)), 1..300)
        ) {
            let config = CacheConfig { items: 100, memory_bytes: 1 << 16, ..CacheConfig::default() };
            let mut cache = Cache::new(&config).unwrap();
            let hasher = cache.hasher().clone();
            let mut pipeline = Pipeline::<(usize, [u8; 1], bool), 8>::default();
            let mut model = HashMap::new();
            let mut served = 0;
            let mut serve = |cache: &mut Cache, (known, (number, bytes, is_get)): (KnownKey, (usize, [u8; 1], bool))| {
                assert_eq!(number, served);
                served += 1;
                let key = known.with_bytes(&bytes);
                if is_get {
                    let item = cache.get(&key, 1);
                    let mut found = Vec::new();
                    item.inspect(|item| item.append_to(&mut found));
                    let expected = model.get(&bytes).map(|number: &usize| number.to_le_bytes().to_vec());
                    assert_eq!(item.map(|_| found), expected);
                } else {
                    cache.put(&key, &number.to_le_bytes(), &Put::default(), 1).unwrap();
                    model.insert(bytes, number);
                }
            };
            let total = steps.len();
            for (number, (byte, is_get, drains)) in steps.into_iter().enumerate() {
                let before = pipeline.len();
                let ready = pipeline.push(&cache, &hasher.key(&[byte]), (number, [byte], is_get));
                prop_assert_eq!(pipeline.len(), before + usize::from(ready.is_none()));
                if let Some(ready) = ready {
                    serve(&mut cache, ready);
                }
                while let Some(ready) = if drains { pipeline.pop(&cache) } else { None } {
                    serve(&mut cache, ready);
                }
            }
            while let Some(ready) = pipeline.pop(&cache) {
                serve(&mut cache, ready);
            }
            prop_assert!(pipeline.is_empty());
            prop_assert_eq!(served, total);
        }
    }
}
