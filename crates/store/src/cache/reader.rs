//! The table as seen by threads that only read it.

use super::entry::Entry;
use super::key::{Key, KeyHasher};
use super::log::Head;
use super::view::{FoundItem, HEAD, View};

/// Attempts before a reader yields: the writer may be waiting for the reader's processor.
const TRIES_BEFORE_YIELD: u32 = 1000;

/// Reads a table that another thread writes. See [`super::Cache::reader`].
#[derive(Clone, Debug)]
pub struct CacheReader {
    pub(super) view: View,
    hasher: KeyHasher,
}

/// Version, flags and expiry of an item whose value was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// As [`super::Item::version`].
    pub version: u64,
    /// As [`super::Item::flags`].
    pub flags: u32,
    /// As [`super::Item::expires_s`].
    pub expires_s: u32,
}

impl CacheReader {
    pub(crate) fn new(view: View, hasher: KeyHasher) -> Option<Self> {
        view.versions.is_some().then_some(Self { view, hasher })
    }

    /// The hasher that all keys must be made with.
    pub fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// As [`super::Cache::prefetch_bucket`].
    #[inline(always)]
    pub fn prefetch_bucket(&self, key: &Key<'_>) {
        self.view.prefetch_bucket(key);
    }

    /// As [`super::Cache::prefetch_item`].
    #[inline(always)]
    pub fn prefetch_item(&self, key: &mut Key<'_>) {
        self.view.prefetch_item(key);
    }

    /// Reads the value of `key` into `value`, replacing its contents, as it was at one moment during the call. Retries
    /// for as long as items of the same buckets keep changing.
    pub fn get(&self, key: &Key<'_>, now_s: u32, value: &mut Vec<u8>) -> Option<Read> {
        let versions = self.view.versions.as_ref()?;
        let version = View::version_of(versions, key.bucket(self.view.buckets));
        let mut looks = 0;
        loop {
            if let Some(stamp) = versions.stamp(version) {
                // The log overwrites items without changing their buckets. So what lies there is used only once it is
                // known to be the item, and returned only if it still is.
                let read = self.view.find(key).filter(|found| self.is_whole(found)).and_then(|found| {
                    let read = self.read(&found.entry, now_s, value)?;
                    self.is_whole(&found).then_some(read)
                });
                if versions.is_unchanged(version, stamp) {
                    return read;
                }
            }
            looks += 1;
            if looks % TRIES_BEFORE_YIELD == 0 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    /// Whether the item had not been overwritten by the time of the last read of it.
    fn is_whole(&self, found: &FoundItem) -> bool {
        !self.view.evicts || Head(self.view.control.load_acquired(HEAD)).is_live(found.position)
    }

    fn read(&self, entry: &Entry, now_s: u32, value: &mut Vec<u8>) -> Option<Read> {
        // The writer may be at work there, so the header may be garbage.
        if !entry.lies_in(&self.view.body) {
            return None;
        }
        let extras = entry.extras(&self.view.body);
        if self.view.is_dead(entry, extras, now_s) {
            return None;
        }
        value.resize(entry.value_len(), 0);
        entry.read_value(&self.view.body, value);
        Some(Read { version: entry.version(), flags: extras.flags, expires_s: extras.expires_s })
    }
}
