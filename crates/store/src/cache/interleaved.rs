//! GETs that let other lookups run while they wait for memory.

use sinew_interleave::{Batch, switch};

use super::{Cache, CacheReader, Item, Key, Read};

impl Cache {
    /// [`Cache::get`] as a lookup that lets others run while it waits for its bucket and for its item.
    #[inline(always)]
    pub async fn look_up<'a>(&'a self, mut key: Key<'_>, now_s: u32) -> Option<Item<'a>> {
        self.prefetch_bucket(&key);
        switch().await;
        self.prefetch_item(&mut key);
        self.view.prefetch_item_end(&key);
        switch().await;
        self.get(&key, now_s)
    }

    /// [`Cache::get`] of each key, interleaved; items are in the order of the keys. Returns the number of keys.
    #[inline(always)]
    pub fn get_all<'a, 'k, const MAX: usize>(
        &'a self,
        batch: Batch<MAX>,
        now_s: u32,
        keys: impl IntoIterator<Item = Key<'k>>,
        items: &mut [Option<Item<'a>>],
    ) -> usize {
        // Same as `look_up`, which is not called here because the call would cost as much as the rest of a switch.
        batch.run(keys, items, async |mut key| {
            self.prefetch_bucket(&key);
            switch().await;
            self.prefetch_item(&mut key);
            self.view.prefetch_item_end(&key);
            switch().await;
            self.get(&key, now_s)
        })
    }
}

impl CacheReader {
    /// [`CacheReader::get`] as a lookup that lets others run while it waits for its bucket and for its item.
    #[inline(always)]
    pub async fn look_up(&self, mut key: Key<'_>, now_s: u32, value: &mut Vec<u8>) -> Option<Read> {
        self.prefetch_bucket(&key);
        switch().await;
        self.prefetch_item(&mut key);
        self.view.prefetch_item_end(&key);
        switch().await;
        self.get(&key, now_s, value)
    }
}
